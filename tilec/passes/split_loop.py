"""Split a loop where a branch in it begins to be taken: before that, it has no branch."""

from __future__ import annotations

from functools import reduce

from tilec.ir import ops
from tilec.ir.core import Builder, Value
from tilec.ir.types import i32, i64
from tilec.passes.expand import number
from tilec.passes.fold import constant

_NOT = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def split_loop(loop: ops.For) -> bool:
    """Make two loops of one whose index is an i32: one for the rounds in which it is known that
    branches in its body are not taken, and one for the rest, as it is. Whether there was a branch
    that depends on the index so that it is not taken up to some round.

    for i { if i + 63 >= n { ... } else { ... } } --> for i < n - 63 { ... } ; for i { if ... }
    """
    step, here = constant(loop.step), Builder(before=loop, loc=loop.loc)
    if loop.lo.type != i32 or not isinstance(step, int) or step <= 0:
        return False
    bounds = _Bounds(loop, here)
    untaken = {n: t for n, op in enumerate(loop.body) if isinstance(op, ops.If)
               and (t := bounds.until(op.cond, False)) is not None}
    if not untaken:
        return False
    lo, hi = bounds.lo, here.emit(ops.Maximum(bounds.lo, bounds.hi))
    end = reduce(lambda a, b: here.emit(ops.Minimum(a, b)), untaken.values(), hi)
    end = here.emit(ops.Maximum(end, lo))
    rounds = here.emit(ops.Div(here.emit(ops.Add(here.emit(ops.Sub(end, lo)),
                                                 number(here, step - 1, i64))),
                               number(here, step, i64)))
    start = here.emit(ops.Add(lo, here.emit(ops.Mul(rounds, number(here, step, i64)))))
    start, end = (here.emit(ops.Cast(v, types=[i32]))
                  for v in (here.emit(ops.Minimum(start, hi)), end))
    first = here.insert(loop.clone({}))
    assert isinstance(first, ops.For)
    first.set_operand(1, end)
    loop.set_operands([start, loop.hi, loop.step, *first.results])
    body = list(first.body)
    for n in untaken:
        branch = body[n]
        assert isinstance(branch, ops.If)
        found = branch.orelse.terminator.operands
        for op in branch.orelse:
            if not op.terminator:
                op.move_before(branch)
        branch.replace_by(list(found))
    return True


class _Bounds:
    """Of conditions in a loop, up to which index they surely stay as they are; in i64, in which
    nothing wraps. lo, hi: the loop's bounds."""

    def __init__(self, loop: ops.For, here: Builder) -> None:
        self.loop, self.here = loop, here
        self.lo, self.hi = (here.emit(ops.Cast(v, types=[i64])) for v in (loop.lo, loop.hi))

    def until(self, v: Value, truth: bool) -> Value | None:
        """An index below which the condition is `truth` in each round, if one is known."""
        op = v.op
        if self._outside(v):
            ends = (self.hi, self.lo) if truth else (self.lo, self.hi)
            return self.here.emit(ops.Select(v, *ends))
        if isinstance(op, ops.Not):
            return self.until(op.x, not truth)
        if isinstance(op, ops.And if truth else ops.Or):
            found = [self.until(x, truth) for x in op.operands]
            a, b = found
            return None if a is None or b is None else self.here.emit(ops.Minimum(a, b))
        if not isinstance(op, ops.Cmp) or op.lhs.type != i32 or op.predicate not in _NOT:
            return None
        small, big, predicate = op.lhs, op.rhs, op.predicate if truth else _NOT[op.predicate]
        if self._outside(small):
            small, big, predicate = big, small, _TURNED[predicate]
        ahead = self._ahead(small)
        if ahead is None or not self._outside(big) or predicate not in ("lt", "le"):
            return None
        limit = self.here.emit(ops.Cast(big, types=[i64]))
        distance = number(self.here, ahead - (predicate == "le"), i64)
        return self.here.emit(ops.Sub(limit, distance))

    def _ahead(self, v: Value) -> int | None:
        """By how much a value exceeds the index: a sum of it and of constants that are not
        negative, so that where the sum is less than something, no part of it has wrapped."""
        if v is self.loop.body.args[0]:
            return 0
        if not isinstance(v.op, ops.Add):
            return None
        rest, more = self._ahead(v.op.lhs), constant(v.op.rhs)
        return None if rest is None or not isinstance(more, int) or more < 0 else rest + more

    def _outside(self, v: Value) -> bool:
        """Whether a value is made outside of the loop."""
        if v.op is None:
            return v.owner is not self.loop.body
        return self.loop not in v.op.ancestors()
