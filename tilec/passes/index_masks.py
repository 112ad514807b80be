"""What masks of row and column indices say of a whole tile: the comparisons that hold for all its
elements exactly if one of scalars does, however integers wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilec.ir import ops
from tilec.ir.core import Block, Op, Value
from tilec.ir.ops.base import Rearrange
from tilec.ir.origins import sources, walk_back
from tilec.ir.types import Scalar, Tensor, scalar_of
from tilec.passes.fold import constant

MOST = 1 << 28  # of what is added to a scalar: far from the ends of 32-bit integers
LONGEST = 100  # ops of a mask, and of a scalar to be copied; a longer one is left alone


@dataclass(frozen=True)
class Index:
    """Integers that are, modulo 2^width, scalar + t with low <= t <= high; the scalar is the sum
    of `plus` less that of `minus`."""

    plus: tuple[Value, ...] = ()
    minus: tuple[Value, ...] = ()
    low: int = 0
    high: int = 0

    def __add__(self, other: Index) -> Index:
        return Index(self.plus + other.plus, self.minus + other.minus, self.low + other.low,
                     self.high + other.high)

    def __neg__(self) -> Index:
        return Index(self.minus, self.plus, -self.high, -self.low)

    @property
    def scalars(self) -> tuple[Value, ...]:
        """All scalars of the sum."""
        return self.plus + self.minus

    def of(self, change: Callable[[Value], Value]) -> Index:
        """The index of other scalars."""
        return Index(tuple(map(change, self.plus)), tuple(map(change, self.minus)), self.low,
                     self.high)


@dataclass(frozen=True)
class Less:
    """Every element of `small` is less than every one of `big` by `by` or more: 0 or 1."""

    small: Index
    big: Index
    by: int


@dataclass(frozen=True)
class Known:
    """A scalar i1 is `truth`."""

    value: Value
    truth: bool


@dataclass(frozen=True)
class Either:
    """All of one list hold, or all of the other."""

    left: Conditions
    right: Conditions


Conditions = Sequence[Less | Known | Either]  # all of them hold


def conditions(mask: Value, truth: bool) -> Conditions | None:
    """Under which every lane of an i1 tile is `truth`; None where that is not known."""
    return _Reader().conditions(mask, truth)


class _Reader:
    """Follows a mask back to scalars. left: how many ops it still looks at."""

    def __init__(self) -> None:
        self.left = LONGEST

    def conditions(self, mask: Value, truth: bool) -> Conditions | None:
        op = self._next(mask)
        if (value := constant(mask)) is not None:
            return () if bool(value) == truth else None
        if not isinstance(mask.type, Tensor):
            return (Known(mask, truth),) if _defined(mask) else None
        if isinstance(op, Rearrange):
            return self.conditions(op.x, truth)
        if isinstance(op, ops.Not):
            return self.conditions(op.x, not truth)
        if isinstance(op, ops.Cmp):
            return self._compared(op, truth)
        if not isinstance(op, ops.And | ops.Or):
            return None
        left, right = self.conditions(op.lhs, truth), self.conditions(op.rhs, truth)
        if left is None or right is None:
            return None
        return (*left, *right) if isinstance(op, ops.And) == truth else (Either(left, right),)

    def _next(self, value: Value) -> Op | None:
        self.left -= 1
        return value.op if self.left >= 0 else None

    def _compared(self, op: ops.Cmp, truth: bool) -> Conditions | None:
        if op.predicate in ("eq", "ne") or not _wide(scalar_of(op.lhs.type)):
            return None
        left, right = self.index(op.lhs), self.index(op.rhs)
        if left is None or right is None or not all(map(_defined, left.scalars + right.scalars)):
            return None
        strict = op.predicate in ("lt", "gt")
        if (op.predicate in ("lt", "le")) != truth:
            left, right = right, left
        return (Less(left, right, int(strict == truth)),)

    def index(self, value: Value) -> Index | None:
        """A number or a tile of them as scalars and a range; None if it is something else."""
        op, number, found = self._next(value), constant(value), None
        scalar = not isinstance(value.type, Tensor)
        if number is not None:
            found = Index(low=int(number), high=int(number))
        elif isinstance(op, ops.Add | ops.Sub):
            left, right = self.index(op.lhs), self.index(op.rhs)
            if left is not None and right is not None:
                found = left + right if isinstance(op, ops.Add) else left + -right
        elif isinstance(op, ops.Arange):
            found = Index(low=op.start, high=op.end - 1)
        elif isinstance(op, Rearrange):
            found = self.index(op.x)
        elif isinstance(op, ops.Cast) and not scalar and _wide(scalar_of(op.x.type)):
            found = self.index(op.x)
            if found is not None and found.scalars:
                return None  # it may have wrapped before it was cast
        if found is not None and -MOST <= found.low and found.high <= MOST:
            return found
        return Index((value,)) if scalar else None


def _wide(element: Scalar) -> bool:
    return element.is_int and element.is_signed and element.bits >= 32


def may_divide_by_zero(op: Op | None) -> bool:
    """Whether an op may divide an integer by zero, which gives poison."""
    return isinstance(op, ops.Div | ops.Rem) and not scalar_of(op.rhs.type).is_float and \
        not constant(op.rhs)


def divided(value: Value) -> Sequence[Value]:
    """A scalar and all that elementwise ops compute it from; empty if no integer among them is
    divided by what may be zero."""
    found = list(walk_back(value, lambda v: isinstance(v.op, ops.Elementwise)))
    return found if any(may_divide_by_zero(v.op) for v in found) else ()


def _defined(value: Value) -> bool:
    """Whether a scalar is certainly not poison, on which no branch may depend; or would not be if
    its elementwise ops, of which a copy can be made, divided by no zero."""
    if found := divided(value):
        return len(found) <= LONGEST and \
            all(_defined(v) for x in found for v in sources(x) if v not in found)
    return all(map(_adds_no_poison, walk_back(value, lambda v: not _was_checked(v))))


def _was_checked(value: Value) -> bool:
    """Whether a scalar is not poison wherever it is known: poison is an error as a bound of a loop
    that runs, and as an address that is loaded from."""
    op, owner = value.op, value.owner
    if isinstance(owner, Block):
        return isinstance(owner.owner, ops.For) and value is owner.args[0]
    return isinstance(op, ops.Load) and op.mask is None


def _adds_no_poison(value: Value) -> bool:
    op = value.op
    if isinstance(op, ops.Load):
        return op.other is not None
    return op is None or not may_divide_by_zero(op) and isinstance(
        op, ops.Constant | ops.ProgramId | ops.NumPrograms | ops.Elementwise | ops.ControlFlow)
