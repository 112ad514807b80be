"""A loop and those around it: what is carried through all of them, and a cursor that runs ahead of
the inner one, on into the next iterations of the outer one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilec.ir import ops
from tilec.ir.core import Builder, Op, Value
from tilec.passes.ahead import held
from tilec.passes.expand import ahead_sources, carry, floats, number, reaches


@dataclass
class Cursor:
    """A place in a nest: both indices, what scalars of the outer body are there, and whether the
    nest has such an iteration."""

    outer: Value
    inner: Value
    scalars: dict[Value, Value]
    runs: Value

    def values(self) -> list[Value]:
        """All of it."""
        return [self.outer, self.inner, *self.scalars.values(), self.runs]

    def like(self, values: Sequence[Value]) -> Cursor:
        """A cursor of these values."""
        return Cursor(values[0], values[1], dict(zip(self.scalars, values[2:])), values[-1])


def around(loop: ops.For) -> list[ops.For]:
    """The loops that a loop is nested in, the outermost first, as far as it is directly in them."""
    out: list[ops.For] = []
    parent = loop.parent and loop.parent.parent_op
    while isinstance(parent, ops.For):
        out.insert(0, parent)
        parent = parent.parent and parent.parent.parent_op
    return out


def give(loop: ops.For, values: Iterable[Value]) -> None:
    """What new carried values are in the next iteration."""
    end = loop.body.terminator
    end.set_operands([*end.operands, *values])


class Nest:
    """The nest of a loop. flat: whether a cursor may run on over the loop around it, whose author
    wants them flattened; reason: why none may."""

    def __init__(self, inner: ops.For, needs: Iterable[Value]) -> None:
        self.inner, self.outers = inner, around(inner)
        self.outermost = self.outers[0] if self.outers else inner
        self.leaves: list[Value] = []
        self.reason = self._obstacle(list(needs))
        self.flat = bool(self.outers) and self.outers[-1].flatten and not self.reason

    def _obstacle(self, work: list[Value]) -> str:
        """Why a cursor cannot run on over the outer loop, or an empty string."""
        if len(self.outers) != 1:
            return "the nest is not two loops deep"
        outer, inner, seen = self.outers[0], self.inner, set[Value]()
        if held(outer):
            return held(outer)
        while work:
            v = work.pop()
            if v in seen or v is inner.body.args[0]:
                continue
            seen.add(v)
            if v.owner is inner.body or v.op is not None and v.op.parent is inner.body and \
                    not floats(v.op):
                return "a block's place depends on more than both indices"
            if v.op is not None and v.op.parent is inner.body:
                work += [x for op in v.op.walk() for x in op.operands]
            elif v.owner is outer.body or v.op is not None and v.op.parent is outer.body:
                self.leaves.append(v)
        fixed = [v for v in (inner.lo, inner.hi, inner.step)
                 if v.owner is outer.body or v.op is not None and v.op.parent is outer.body]
        if fixed:
            return "the inner loop's bounds change"
        if ahead_sources(outer, self.leaves) or \
                set(outer.body.args[1:]) & _reached(outer, self.leaves):
            return "a block's place depends on more than both indices"
        return ""

    def thread(self, start: Value) -> Value:
        """Carry a value through the outer loops; what it is before the inner one."""
        for loop in self.outers:
            start = carry(loop, start)
        return start

    def tie(self, result: Value) -> None:
        """What a value that was threaded is after the inner loop."""
        for loop in reversed(self.outers):
            result, given = loop.results[len(loop.body.terminator.operands)], result
            give(loop, [given])

    # -- the cursor -----------------------------------------------------------------------

    def start(self, here: Builder) -> Cursor:
        """The first iteration of all."""
        outer, inner = self.outers[0], self.inner
        runs = [here.emit(ops.Cmp(loop.lo, loop.hi, predicate="lt")) for loop in (outer, inner)]
        runs.append(here.emit(ops.Cmp(outer.step, number(here, 0, outer.step.type),
                                      predicate="gt")))
        holds = here.emit(ops.And(here.emit(ops.And(runs[0], runs[1])), runs[2]))
        return Cursor(outer.lo, inner.lo, self._scalars(here, outer.lo), holds)

    def _scalars(self, here: Builder, index: Value) -> dict[Value, Value]:
        outer = self.outers[0]
        values = {outer.body.args[0]: index}
        _copy(here, outer, self.leaves, values)
        return {v: values.get(v, v) for v in self.leaves}

    def following(self, here: Builder, cursor: Cursor) -> Cursor:
        """The start of the outer iteration after the cursor's."""
        outer = self.outers[0]
        index = here.emit(ops.Add(cursor.outer, outer.step))
        more = reaches(here, cursor.outer, outer.hi, outer.step)
        return Cursor(index, self.inner.lo, self._scalars(here, index),
                      here.emit(ops.And(cursor.runs, more)))

    def advance(self, here: Builder, cursor: Cursor, following: Cursor) -> Cursor:
        """One round on: in the same outer iteration, or at the start of the following one."""
        inner = self.inner
        more = reaches(here, cursor.inner, inner.hi, inner.step)
        stay = [cursor.outer, here.emit(ops.Add(cursor.inner, inner.step)),
                *cursor.scalars.values(), cursor.runs]
        return cursor.like([here.emit(ops.Select(more, a, b))
                            for a, b in zip(stay, following.values(), strict=True)])

    def at(self, here: Builder, cursor: Cursor, values: Sequence[Value]) -> list[Value]:
        """Values of the inner body in the cursor's round."""
        known = {self.inner.body.args[0]: cursor.inner, **cursor.scalars}
        _copy(here, self.inner, values, known)
        return [known.get(v, v) for v in values]


def _reached(loop: ops.For, values: Iterable[Value]) -> set[Value]:
    """What `values` are computed of by ops of the body that float."""
    work, seen = list(values), set[Value]()
    while work:
        v = work.pop()
        if v not in seen:
            seen.add(v)
            if v.op is not None and v.op.parent is loop.body and floats(v.op):
                work += [x for op in v.op.walk() for x in op.operands]
    return seen


def _copy(here: Builder, loop: ops.For, wanted: Iterable[Value], values: dict[Value, Value]
          ) -> None:
    """Compute values of a loop's body anew from those in `values`, which gains them."""
    work, needed = list(wanted), set[Op]()
    while work:
        v = work.pop()
        if v not in values and v.op is not None and v.op.parent is loop.body and \
                v.op not in needed:
            needed.add(v.op)
            work += [x for op in v.op.walk() for x in op.operands]
    for op in [op for op in loop.body if op in needed]:
        here.insert(op.clone(values))
