"""Arithmetic on numpy arrays exactly as docs/semantics.md sections 3 and 4 define it.

Binary functions take two arrays of one dtype that broadcast, and return that dtype (comparisons
bool). They know nothing of the IR.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilec.eval.dtypes import BOOL, Array, bits_of, is_float, uint_like

_quiet = np.errstate(all="ignore")


@_quiet
def add(a: Array, b: Array) -> Array:
    """Integers wrap; floats are correctly rounded in their dtype."""
    return np.asarray(a ^ b if a.dtype == BOOL else a + b)


@_quiet
def sub(a: Array, b: Array) -> Array:
    """Integers wrap; floats are correctly rounded in their dtype."""
    return np.asarray(a ^ b if a.dtype == BOOL else a - b)


@_quiet
def mul(a: Array, b: Array) -> Array:
    """Integers wrap; floats are correctly rounded in their dtype."""
    return np.asarray(a & b if a.dtype == BOOL else a * b)


@_quiet
def true_div(a: Array, b: Array) -> Array:
    """Floats only, correctly rounded."""
    return np.asarray(a / b)


@_quiet
def c_rem(a: Array, b: Array) -> Array:
    """Remainder with the dividend's sign, exact; of integers 0 where b is 0 (poison to the
    interpreter)."""
    if a.dtype == BOOL:
        return np.zeros(np.broadcast_shapes(a.shape, b.shape), BOOL)
    return np.asarray(np.fmod(a, b))


@_quiet
def c_div(a: Array, b: Array) -> Array:
    """Integer quotient truncated toward zero; 0 where b is 0 (poison to the interpreter)."""
    if a.dtype == BOOL:
        return np.asarray(a & b)
    if a.dtype.kind == "u":
        return np.asarray(a // b)
    # What remains after the remainder is taken off divides exactly, so flooring does not matter.
    return np.asarray((a - np.fmod(a, b)) // b)


def _shift_amount(b: Array, width: int) -> tuple[Array, Array]:
    """The amount clamped below `width`, and where it was too large; negatives are too large."""
    amount = np.asarray(b).view(uint_like(b.dtype))
    small = np.asarray(amount < width)
    return np.where(small, b, np.zeros((), b.dtype)), small


def shl(a: Array, b: Array) -> Array:
    """Left shift; 0 for amounts of the width or more."""
    if a.dtype == BOOL:
        return np.asarray(a & ~b)
    amount, small = _shift_amount(b, bits_of(a.dtype))
    return np.where(small, np.left_shift(a, amount), np.zeros((), a.dtype))


def shr(a: Array, b: Array) -> Array:
    """Right shift, arithmetic for signed types; the sign fill or 0 for amounts of the width up."""
    if a.dtype == BOOL:
        return np.asarray(a & ~b)
    width = bits_of(a.dtype)
    amount, small = _shift_amount(b, width)
    if a.dtype.kind == "i":
        amount = np.where(small, amount, np.asarray(width - 1, b.dtype))
        return np.asarray(np.right_shift(a, amount))
    return np.where(small, np.right_shift(a, amount), np.zeros((), a.dtype))


@_quiet
def neg(a: Array) -> Array:
    """Wraps for integers; flips the sign of floats, zero and NaN included."""
    return a if a.dtype == BOOL else np.asarray(-a)


@_quiet
def abs_(a: Array) -> Array:
    """The most negative integer stays itself; clears the sign of floats."""
    return a if a.dtype == BOOL else np.asarray(np.abs(a))


@_quiet
def minimum(a: Array, b: Array, propagate_nan: bool = False) -> Array:
    """A number wins over NaN unless `propagate_nan`; -0.0 is less than +0.0."""
    if not is_float(a.dtype):
        return np.asarray(np.minimum(a, b))
    out = np.minimum(a, b) if propagate_nan else _number_wins(np.fmin(a, b), a, b)
    return _with_zeros(out, a, b, negative=True)


@_quiet
def maximum(a: Array, b: Array, propagate_nan: bool = False) -> Array:
    """A number wins over NaN unless `propagate_nan`; +0.0 is more than -0.0."""
    if not is_float(a.dtype):
        return np.asarray(np.maximum(a, b))
    out = np.maximum(a, b) if propagate_nan else _number_wins(np.fmax(a, b), a, b)
    return _with_zeros(out, a, b, negative=False)


def _number_wins(out: Array, a: Array, b: Array) -> Array:
    """`out`, of fmin or fmax, where numpy's loops let a signalling NaN win, as C's fmin does."""
    if not np.isnan(out).any():
        return np.asarray(out)
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, out))


def _with_zeros(out: Array, a: Array, b: Array, negative: bool) -> Array:
    """`out` with a zero of the wanted sign wherever it is zero and `a` or `b` is that zero."""
    zero = np.zeros((), out.dtype)
    is_zero = out == zero
    if not is_zero.any():
        return out
    in_a, in_b = ((x == zero) & (np.signbit(x) == negative) for x in (a, b))
    wanted = in_a | in_b
    return np.where(is_zero & wanted, -zero if negative else zero, out)


_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal}


@_quiet
def compare(a: Array, b: Array, predicate: str) -> Array:
    """predicate: lt, le, gt, ge, eq or ne; with a NaN only `ne` is true."""
    return np.asarray(_COMPARE[predicate](a, b))
