"""Pattern rewriting driven by a worklist over use lists.

A pattern roots on an op class (bases count) and looks at one op; it returns replacement values, an
empty tuple for "changed in place" (or erased), or None for "does not match".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tilec.ir.core import Block, Builder, Func, Module, Op, Value

OpT = TypeVar("OpT", bound=Op)
Values = Sequence[Value]
Rewrite = Callable[[OpT, Builder], Values | None]


@dataclass(frozen=True)
class Pattern:
    """A rewrite rooted on `root`. The builder inserts before the op and carries its location."""

    root: type[Op]
    rewrite: Rewrite[Any]

    @property
    def name(self) -> str:
        """The name of the rewriting function, for statistics."""
        return self.rewrite.__name__


def pattern(root: type[OpT]) -> Callable[[Rewrite[OpT]], Pattern]:
    """Decorator: make a Pattern of a function `(op, builder) -> values | None`."""
    return lambda rewrite: Pattern(root, rewrite)


# How often each pattern fired in this process; tests check that every one does.
FIRED: dict[str, int] = {}


def rewrite(module: Module, patterns: Iterable[Pattern], *, remove_dead: bool = True) -> bool:
    """Apply patterns until none matches; True if anything changed.

    Pure ops without users are erased on the way unless remove_dead is off.
    """
    table = list(patterns)
    changed = [_Driver(func, table, remove_dead).run() for func in module.funcs]
    return any(changed)


class _Driver:
    def __init__(self, func: Func, patterns: list[Pattern], remove_dead: bool) -> None:
        self.patterns = patterns
        self.by_class: dict[type[Op], list[Pattern]] = {}
        self.remove_dead = remove_dead
        self.work: dict[Op, None] = dict.fromkeys(reversed(list(func.walk())))

    def run(self) -> bool:
        changed = False
        while self.work:
            op, _ = self.work.popitem()
            if op.parent is not None:
                changed |= self.visit(op)
        return changed

    def matching(self, cls: type[Op]) -> list[Pattern]:
        if cls not in self.by_class:
            self.by_class[cls] = [p for p in self.patterns if issubclass(cls, p.root)]
        return self.by_class[cls]

    def add(self, op: Op | None) -> None:
        if op is not None and op.parent is not None:
            self.work[op] = None

    def visit(self, op: Op) -> bool:
        if self.remove_dead and not any(r.uses for r in op.results) and op.pure:
            self.erase(op)
            return True
        before, after, block, old = op.prev, op.next, op.parent, list(op.operands)
        assert block is not None
        builder = Builder(before=op, loc=op.loc)
        for p in self.matching(type(op)):
            values = p.rewrite(op, builder)
            if values is None:
                continue
            FIRED[p.name] = FIRED.get(p.name, 0) + 1
            if values:
                self.revisit_users(op)
                for result, value in zip(op.results, values, strict=True):
                    result.replace_by(value)
                    self.add(value.op)
                self.erase(op)
            elif op.parent is None:
                self.forget(op)
            else:
                for v in old:
                    self.add(v.op)
                for inner in op.walk():
                    self.add(inner)
                self.revisit_users(op)
            self.revisit_new(block, before, after)
            return True
        return False

    def revisit_users(self, op: Op) -> None:
        for result in op.results:
            for user in result.users:
                self.add(user)

    def revisit_new(self, block: Block, before: Op | None, after: Op | None) -> None:
        """Put what now stands between two ops of a block on the worklist."""
        new = after.prev if after is not None else block.last
        while new is not None and new is not before:
            for inner in new.walk():
                self.add(inner)
            new = new.prev

    def erase(self, op: Op) -> None:
        op.erase()
        self.forget(op)

    def forget(self, op: Op) -> None:
        """Take an erased op off the worklist, and look at what fed it again: it may be dead."""
        erased = dict.fromkeys(op.walk())
        for inner in erased:
            self.work.pop(inner, None)
        for inner in erased:
            for v in inner.operands:
                if v.op not in erased:
                    self.add(v.op)
