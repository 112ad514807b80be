"""guard_masks: a mask of row and column indices is computed only in rounds of a loop in which it
may drop something.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from math import prod
from typing import Any

from tilec.ir import ops
from tilec.ir.core import Block, Builder, Module, Op, Value
from tilec.ir.origins import comes_from_dot
from tilec.ir.remarks import remark
from tilec.ir.types import Tensor, i1, scalar_of, shape_of
from tilec.passes.base import Pass
from tilec.passes.fold import constant, make_constant
from tilec.passes.index_masks import (
    Conditions,
    Index,
    Known,
    Less,
    conditions,
    divided,
    may_divide_by_zero,
)

LEAST_ELEMENTS = 2048  # of a tile for which a branch pays


class GuardMasks(Pass):
    """A select that masks what a dot gave, in a loop that TMA feeds, goes into a branch, which is
    taken unless a condition on scalars says that the mask holds in the whole tile. So does what
    adds a select of zero to what a dot gave. What the loop does not change is computed before it.
    A quotient or remainder that may be poison has 0 for it in the condition, not in the mask.

        %columns = splat(%start) + 0 .. 63          %last = max(%n, least + 63) - 63
        %mask = %columns < splat(%n)          ->    for %start {
        %1 = select(%mask, %0, %low)                  %1 = if %start >= %last {
                                                        select(%columns < splat(%n), %0, %low)
                                                      } else { %0 }
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            for op in list(func.walk()):
                loop = op.parent and op.parent.parent_op
                if isinstance(op, ops.Select) and isinstance(loop, ops.For) and _pays(op, loop):
                    _visit(op, loop)


def _pays(select: ops.Select, loop: ops.For) -> bool:
    """Whether a branch costs less than the mask: it ends what may be scheduled together, which in
    a loop that TMA feeds the waits for its products do anyway."""
    return prod(shape_of(select.result.type)) >= LEAST_ELEMENTS and \
        any(isinstance(op, ops.DescriptorLoad) for op in loop.body)


def _visit(select: ops.Select, loop: ops.For) -> None:
    for truth, kept in ((True, select.a), (False, select.b)):
        last = _masked(select, kept)
        found = conditions(select.cond, truth) if last is not None else None
        if last is not None and found and any(_inside(v, loop) for v in _scalars(found)):
            _branch(select, last, _Guard(select, loop).of(found), kept)
            remark(select, "mask", "this mask is computed only in rounds that it may change")
            return


def _masked(select: ops.Select, kept: Value) -> Op | None:
    """What gives a masked product: the select itself, or the only op that uses it, which adds."""
    if comes_from_dot(kept):
        return select
    user = next(iter(select.result.users), None)
    adds = isinstance(user, ops.Add | ops.Sub | ops.Fma) and user.parent is select.parent and \
        constant(kept) == 0 and len(select.result.uses) == 1 and comes_from_dot(user.result)
    return user if adds else None


def _branch(select: ops.Select, last: Op, unmasked: Value, kept: Value) -> None:
    """The ops from a select to the last one in the arm of a branch that is taken where the mask may
    drop something; the other arm has what is kept instead of the select."""
    before = Builder(before=last, loc=select.loc)
    masked, whole = Block(), Block()
    here, copies = Builder(masked, loc=select.loc), dict[Value, Value]()
    _copy(select.cond, here, copies)
    for v in select.operands[1:]:
        if v is not kept and isinstance(v.op, ops.Constant | ops.Splat):
            _copy(v, here, copies)
    made = here.insert(select.clone(copies)).result
    if last is not select:
        made = here.insert(last.clone(copies)).result
        there = Builder(whole, loc=select.loc)
        kept = there.insert(last.clone({select.result: kept})).result
    here.insert(ops.Yield([made]))
    Builder(whole, loc=select.loc).insert(ops.Yield([kept]))
    last.replace_by([before.emit(ops.If(before.emit(ops.Not(unmasked)), then=masked,
                                        orelse=whole))])
    if last is not select:
        select.erase()


def _copy(value: Value, here: Builder, copies: dict[Value, Value]) -> None:
    """Copy a tile into the arm, down to scalars: no register holds parts of it over the loop."""
    op = value.op
    if op is not None and isinstance(value.type, Tensor) and value not in copies:
        for v in op.operands:
            _copy(v, here, copies)
        here.insert(op.clone(copies))


class _Terms:
    """What all must hold. bounds: of (x, True, by) what x + by is less than, of (x, False, by)
    greater than, no sum wrapping. flags: i1."""

    def __init__(self) -> None:
        self.bounds: dict[tuple[Value, bool, int], list[Value]] = {}
        self.flags: list[Value] = []

    def add(self, value: Value, upper: bool, by: int, end: Value) -> None:
        self.bounds.setdefault((value, upper, by), []).append(end)


class _Guard:
    """Emits the condition of a select, each op in front of all loops that do not change it."""

    def __init__(self, select: ops.Select, loop: ops.For) -> None:
        self.select, self.loop = select, loop
        self.copies: dict[Value, Value] = {}

    def of(self, found: Conditions) -> Value:
        """Whether all the conditions hold, an i1. What does not change in the loop is part of a
        bound, and bounds of one scalar are one."""
        terms = _Terms()
        for condition in found:
            if isinstance(condition, Less):
                self._less(condition, terms)
            elif isinstance(condition, Known):
                v = self._defined(condition.value)
                terms.flags.append(v if condition.truth else self._emit(ops.Not, v))
            else:
                terms.flags.append(self._emit(ops.Or, self.of(condition.left),
                                              self.of(condition.right)))
        limits = self._limits(terms)
        moving = [key for key in limits if _inside(key[0], self.loop)]
        fixed = [f for f in terms.flags if not _inside(f, self.loop)]
        fixed += [self._compare(*key, limits[key]) for key in limits if key not in moving]
        if moving and fixed:
            key = moving[0]
            never = _ends(key[0])[0 if key[1] else 1]
            limits[key] = self._emit(ops.Select, self._all(ops.And, fixed), limits[key], never)
            fixed = []
        flags = [f for f in terms.flags if _inside(f, self.loop)]
        return self._all(ops.And, [*(self._compare(*key, limits[key]) for key in moving), *fixed,
                                   *flags])

    def _limits(self, terms: _Terms) -> dict[tuple[Value, bool], Value]:
        """Of (x, True) what x is less than, of (x, False) what it is greater than."""
        found: dict[tuple[Value, bool], list[Value]] = {}
        nearest = {True: ops.Minimum, False: ops.Maximum}
        for (value, upper, by), ends in terms.bounds.items():
            limit = self._minus(self._all(nearest[upper], ends), by)
            found.setdefault((value, upper), []).append(limit)
        return {key: self._all(nearest[key[1]], limits) for key, limits in found.items()}

    def _less(self, condition: Less, terms: _Terms) -> None:
        """Bounds of the scalar that changes, if one does, by that of the other side."""
        small, big = condition.small.of(self._defined), condition.big.of(self._defined)
        by = condition.by
        if not small.scalars and not big.scalars:
            here = Builder(before=self.select, loc=self.select.loc)
            terms.flags.append(make_constant(here, small.high + by <= big.low, i1))
            return
        upper = bool(small.scalars) and (self._moves(small) or not self._moves(big))
        x, other = (small, big) if upper else (big, small)
        value = self._sum(x)
        least, most = _ends(value)
        if upper:  # x + high < other + 1 - by
            terms.add(value, True, x.high, self._end(other, False, 1 - by, value))
            if x.low < 0:
                self._never_wraps(value, False, least - x.low - 1, terms)
        else:  # x + low > other + by - 1
            terms.add(value, False, x.low, self._end(other, True, by - 1, value))
            if x.high > 0:
                self._never_wraps(value, True, most - x.high + 1, terms)

    def _defined(self, value: Value) -> Value:
        """A scalar, or a copy of it that is 0 instead of poison where it divides by zero: there the
        program's own mask is poison in the lanes that depend on it, and may be anything."""
        op = value.op
        if not isinstance(op, ops.Elementwise) or not divided(value):
            return value
        if isinstance(op, ops.Hint):  # which the copy may break
            return self._defined(op.x)
        if value not in self.copies:
            operands = {v: self._defined(v) for v in op.operands}
            here, found = self._at(*operands.values()), value
            if any(v is not copy for v, copy in operands.items()):
                found = here.insert(op.clone(operands)).result
            if may_divide_by_zero(op):
                none = self._emit(ops.Cmp, operands[op.operands[1]], 0, predicate="eq")
                found = self._emit(ops.Select, none, 0, found)
            self.copies[value] = found
        return self.copies[value]

    def _never_wraps(self, value: Value, upper: bool, limit: int, terms: _Terms) -> None:
        """A bound; of a loop's index its ends tell, before the loop."""
        loop = value.owner.owner if isinstance(value.owner, Block) else None
        if isinstance(loop, ops.For) and value is loop.body.args[0]:
            terms.flags.append(self._emit(ops.Cmp, loop.hi, limit, predicate="le") if upper else
                               self._emit(ops.Cmp, loop.lo, limit, predicate="gt"))
        else:
            terms.add(value, upper, 0, self._number(limit, value))

    def _moves(self, index: Index) -> bool:
        return any(_inside(v, self.loop) for v in index.scalars)

    def _sum(self, index: Index) -> Value:
        """The scalar of an index."""
        if not index.plus:
            first, minus = self._emit(ops.Neg, index.minus[0]), index.minus[1:]
        else:
            first, minus = self._all(ops.Add, index.plus), index.minus
        for v in minus:
            first = self._emit(ops.Sub, first, v)
        return first

    def _end(self, index: Index, top: bool, more: int, like: Value) -> Value:
        """The greatest element, or the least one, and a little more: the type's end, if some
        element wraps."""
        by = (index.high if top else index.low) + more
        if not index.scalars:
            return self._number(by, like)
        value = self._sum(index)
        least, most = _ends(value)
        fits = []
        if (high := max(index.high, by)) > 0:
            fits.append(self._emit(ops.Cmp, value, most - high, predicate="le"))
        if (low := min(index.low, by)) < 0:
            fits.append(self._emit(ops.Cmp, value, least - low, predicate="ge"))
        moved = self._emit(ops.Add, value, by) if by else value
        if not fits:
            return moved
        return self._emit(ops.Select, self._all(ops.And, fits), moved, most if top else least)

    def _minus(self, x: Value, by: int) -> Value:
        """x - by, or the end of the type that is nearest to it."""
        if not by:
            return x
        least, most = _ends(x)
        held = self._emit(ops.Maximum, x, least + by) if by > 0 else \
            self._emit(ops.Minimum, x, most + by)
        return self._emit(ops.Sub, held, by)

    def _compare(self, value: Value, upper: bool, limit: Value) -> Value:
        return self._emit(ops.Cmp, value, limit, predicate="lt" if upper else "gt")

    def _all(self, kind: type[Op], values: Sequence[Value]) -> Value:
        """The values joined by an op."""
        return reduce(lambda a, b: self._emit(kind, a, b), values)

    def _number(self, number: int, like: Value) -> Value:
        return make_constant(self._at(), number, like.type)

    def _emit(self, kind: type[Op], *operands: Value | int, **attributes: Any) -> Value:
        """An op on scalars; a number has the type of the last operand that is none."""
        values = [v for v in operands if isinstance(v, Value)]
        here = self._at(*values)
        args = [v if isinstance(v, Value) else make_constant(here, v, values[-1].type)
                for v in operands]
        return here.emit(kind(*args, **attributes))

    def _at(self, *values: Value) -> Builder:
        """In front of the loops around the select in which none of the values changes."""
        point: Op = self.select
        for op in self.select.ancestors():
            if not isinstance(op, ops.For | ops.While) or op.disable_licm or \
                    any(_inside(v, op) for v in values):
                break
            point = op
        return Builder(before=point, loc=self.select.loc)


def _inside(value: Value, loop: Op) -> bool:
    """Whether a value is made in a loop."""
    op = value.owner.owner if isinstance(value.owner, Block) else value.owner
    return isinstance(op, Op) and any(x is loop for x in (op, *op.ancestors())) and \
        value.op is not loop


def _scalars(found: Conditions) -> Iterator[Value]:
    for condition in found:
        if isinstance(condition, Less):
            yield from (*condition.small.scalars, *condition.big.scalars)
        elif isinstance(condition, Known):
            yield condition.value
        else:
            yield from (*_scalars(condition.left), *_scalars(condition.right))


def _ends(value: Value) -> tuple[int, int]:
    """The least and the greatest number of a signed integer's type."""
    half = 1 << (scalar_of(value.type).bits - 1)
    return -half, half - 1
