"""Statement lists and `if`: static and run-time branches, names after them, early return.

A `return`, `break` or `continue` under a run-time condition moves the remaining statements into the
other arm; where both arms may fall through, a flag in scope (LEFT) guards them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tilec.errors import CompilationError
from tilec.frontend.analysis import Names
from tilec.frontend.expressions import as_bool, truth
from tilec.frontend.merge import Join, Mismatch, Undefined, rebuild
from tilec.frontend.visitor import FLAGS, LEFT, RESULT, Visitor, handles
from tilec.ir import ops
from tilec.ir.core import Block, Op
from tilec.language import dtypes as dt
from tilec.language.control import elect
from tilec.language.shape import item
from tilec.language.values import constant, tensor

Scope = dict[str, Any]
_MISSING: Any = object()


def body(v: Visitor, stmts: Sequence[ast.stmt], tail: bool = False) -> None:
    """Run statements in order, until control has left them on every path.

    tail: the function ends after them, so that reaching their end is to return None.
    """
    for i, stmt in enumerate(stmts):
        if type(stmt) is ast.If:
            rest = stmts[i + 1:]
            if visit_if(v, stmt, rest, tail):
                return
        else:
            v.visit(stmt)
        if LEFT in v.names:
            if v.names[LEFT] is not True and i + 1 < len(stmts):
                _guarded(v, stmts[i + 1:], tail)
            break
    if tail and LEFT not in v.names:
        v.names[LEFT], v.names[RESULT] = True, None


def condition(v: Visitor, node: ast.expr, x: Any, where: str) -> tensor:
    """A run-time value, a scalar or a tile of one element, as the scalar int1 that `if` and `while`
    need."""
    if isinstance(x, tensor) and x.numel != 1:
        raise v.error(node, f"the condition of `{where}` is a {x}, expected a scalar",
                      "choose per element with tl.where(cond, a, b), or reduce it, as by "
                      "tl.max(cond.to(tl.int32), axis=0)")
    v.at(node)
    return item(as_bool(v, node, x))


def visit_if(v: Visitor, node: ast.If, rest: Sequence[ast.stmt], tail: bool) -> bool:
    """Run an `if`; whether `rest`, the statements after it, has been run too."""
    ends = tail and not rest
    test = v.visit(node.test)
    if isinstance(test, elect):
        _by_one_thread(v, node, test)
        return False
    known = truth(v, node.test, test)
    if known is not None:
        body(v, node.body if known else node.orelse, ends)
        return False
    cond = condition(v, node.test, test, "if")
    branch = Branch(v, node)
    branch.run(0, lambda: body(v, node.body, ends))
    branch.run(1, lambda: body(v, node.orelse, ends))
    moved = False
    if node in v.analysis.leaves and rest:
        gone = [scope.get(LEFT) is True for scope in branch.scopes]
        if gone[0] != gone[1]:
            # Exactly one arm has left for good, so the rest belongs to the other. That one may
            # have left on some of its own paths, which makes its rest a guarded one.
            branch.run(1 if gone[0] else 0, lambda: _go_on(v, rest, tail))
            moved = True
    last = rest[-1] if moved else node
    branch.finish(cond, v.analysis.live_after[last])
    return moved or v.names.get(LEFT) is True


def _by_one_thread(v: Visitor, node: ast.If, test: elect) -> None:
    """Run an `if tlg.elect(...)`."""
    if node.orelse:
        raise v.error(node.orelse[0], "`else` of tlg.elect() is not supported",
                      "the other threads go on after the `if`")
    if node in v.analysis.leaves:
        raise v.error(node, "one thread alone cannot return, or leave a loop", "do so after the "
                      "`if`")
    if v.context.one_thread:
        raise v.error(node, "tlg.elect() stands in another one", "one thread runs this already")
    pred = [] if test.pred is None else [condition(v, node.test, test.pred, "if tlg.elect").handle]
    before, block = v.names, Block()
    v.names = dict(before)
    with v.context.inside(block):
        v.context.one_thread = True
        body(v, node.body)
        v.context.one_thread = False
        block.insert(ops.Yield(loc=v.location(node)))
    v.builder.insert(ops.Elect(*pred, body=block, warp=test.warp, by=test.by,
                               loc=v.location(node)))
    v.names = {name: value if value is before.get(name, _MISSING) else Undefined(
        f"`{name}` is assigned by one thread alone, at line {node.lineno}",
        "compute it before that `if`, where all threads do") for name, value in v.names.items()}


def _go_on(v: Visitor, rest: Sequence[ast.stmt], tail: bool) -> None:
    if LEFT in v.names:
        _guarded(v, rest, tail)
    else:
        body(v, rest, tail)


def _guarded(v: Visitor, rest: Sequence[ast.stmt], tail: bool) -> None:
    """Run statements where control has not left them yet."""
    flag = v.names[LEFT]
    branch = Branch(v, rest[0])

    def leave() -> None:
        v.names[LEFT] = True

    branch.run(0, leave)
    branch.run(1, lambda: body(v, rest, tail), afresh=True)
    branch.finish(flag, v.analysis.live_after[rest[-1]])


class Branch:
    """An scf.if in the making: two blocks, and the scopes at their ends."""

    def __init__(self, v: Visitor, node: ast.stmt | ast.expr) -> None:
        self.v = v
        self.node = node
        self.loc = v.location(node)
        self.blocks = (Block(), Block())
        self.before = v.names
        self.scopes: list[Scope] = [dict(v.names), dict(v.names)]

    def at_end(self, arm: int) -> AbstractContextManager[None]:
        """Send ops to the end of an arm."""
        return self.v.context.inside(self.blocks[arm])

    def run(self, arm: int, run: Callable[[], None], afresh: bool = False) -> None:
        """Run more of an arm; afresh: where control has not left the statements after all."""
        self.v.names = self.scopes[arm]
        for name in (*FLAGS, RESULT) if afresh else ():
            self.v.names.pop(name, None)
        with self.at_end(arm):
            run()
        self.scopes[arm] = self.v.names
        self.v.names = self.before

    def finish(self, cond: tensor, live: Names) -> None:
        """Make the scf.if, and the scope after it."""
        v = self.v
        v.builder.loc = self.loc
        join = Join(self.at_end, v.builder)
        one, two = self.scopes
        trees: dict[str, Any] = {}
        for name in dict.fromkeys((*one, *two)):
            a, b = one.get(name, _MISSING), two.get(name, _MISSING)
            if a is not b:
                trees[name] = self._join(join, name, a, b, live)
            else:
                trees[name] = a
        op = self.emit(cond, join)
        v.names = {}
        for name, tree in trees.items():
            if tree is not _MISSING:
                v.names[name] = rebuild(tree, op.results, name.strip("<>"))

    def emit(self, cond: tensor, join: Join) -> Op:
        """Make the scf.if, whose arms yield what `join` collected."""
        for block, values in zip(self.blocks, join.handles, strict=True):
            block.insert(ops.Yield(values, loc=self.loc))
        return self.v.builder.insert(ops.If(cond.handle, then=self.blocks[0],
                                            orelse=self.blocks[1], loc=self.loc))

    def _join(self, join: Join, name: str, a: Any, b: Any, live: Names) -> Any:
        """The tree of a name that the arms leave different."""
        if name in FLAGS:
            return self._join_flags(join, a, b)
        if name == RESULT:
            return self._join_results(join, a, b)
        if name not in live:
            return Undefined(f"`{name}` has no value here", f"assign `{name}` before this line")
        gone = [scope.get(LEFT) is True for scope in self.scopes]
        if any(gone) and not self.v.loops:  # what leaves a round is read in the next, or after it
            stays = 1 if gone[0] else 0
            value = (a, b)[stays]
            return value if value is _MISSING or type(value) is Undefined else \
                join.one(value, stays)
        for value, arm in ((a, 0), (b, 1)):
            if value is _MISSING:
                return self._only_in_one(name, 1 - arm)
            if type(value) is Undefined:
                return value
        try:
            return join.both(a, b)
        except Mismatch as e:
            return self._differs(name, *e.args)

    def _line(self) -> int:
        return self.node.lineno

    def _only_in_one(self, name: str, arm: int) -> Undefined:
        holds = "holds" if arm == 0 else "does not hold"
        return Undefined(
            f"`{name}` is only assigned where the condition at line {self._line()} {holds}",
            f"assign `{name}` before that `if`, or in both of its arms")

    def _differs(self, name: str, a: str, b: str) -> Undefined:
        """Raised where the name is read: a name nobody reads may be anything."""
        return Undefined(
            f"`{name}` is {a} where the condition at line {self._line()} holds, and {b} "
            "where it does not",
            f"give `{name}` one type and shape in both arms: convert one by `.to(...)`, or make "
            "it by tl.full or tl.zeros", self.loc)

    def _join_flags(self, join: Join, a: Any, b: Any) -> Any:
        with join.at_end(0):
            x = constant(a is True, dt.int1) if not isinstance(a, tensor) else a
        with join.at_end(1):
            y = constant(b is True, dt.int1) if not isinstance(b, tensor) else b
        return join.both(x, y)

    def _join_results(self, join: Join, a: Any, b: Any) -> Any:
        if a is _MISSING or b is _MISSING:
            arm = 1 if a is _MISSING else 0
            return join.one((a, b)[arm], arm)
        try:
            return join.both(a, b)
        except Mismatch as e:
            shown = ["nothing" if x is None else text for x, text in zip((a, b), e.args)]
            raise CompilationError(
                f"`{self.v.fn.name}` returns {shown[0]} where the condition at line "
                f"{self._line()} holds, and {shown[1]} where it does not",
                self.loc, "return one type and shape everywhere, and end with a `return`"
                ) from None


@handles(ast.IfExp)
def visit_ifexp(v: Visitor, node: ast.IfExp) -> Any:
    """`a if cond else b`: one side is visited at compile time, else an scf.if."""
    test = v.visit(node.test)
    known = truth(v, node.test, test)
    if known is not None:
        return v.visit(node.body if known else node.orelse)
    cond = condition(v, node.test, test, "if ... else")
    for named in (n for arm in (node.body, node.orelse) for n in ast.walk(arm)
                  if isinstance(n, ast.NamedExpr)):
        raise v.error(named, "`:=` stands in an arm that may not be computed",
                      "assign before this expression")
    branch = Branch(v, node)
    values: list[Any] = []
    branch.run(0, lambda: values.append(v.visit(node.body)))
    branch.run(1, lambda: values.append(v.visit(node.orelse)))
    v.at(node)
    a, b = values
    join = Join(branch.at_end, v.builder)
    try:
        tree = join.both(a, b)
    except Mismatch as e:
        raise v.error(node, f"this is {e.args[0]} if the condition holds, else {e.args[1]}",
                      "convert one side by `.to(...)`; for tiles use tl.where") from None
    return rebuild(tree, branch.emit(cond, join).results, "")
