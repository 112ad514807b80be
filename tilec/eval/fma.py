"""Fused multiply-add, rounded once, for every float dtype.

Narrow floats go through f64, where the product is exact; f64 uses error-free transformations.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tilec.eval.dtypes import BF16, F32, F64, Array


@np.errstate(all="ignore")
def fma(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c` with one rounding to nearest even; one dtype (f16, bf16, f32 or f64)."""
    dtype = a.dtype
    if dtype == F64:
        return _fma_f64(*np.broadcast_arrays(a, b, c))
    product = a.astype(F64) * b.astype(F64)
    addend = c.astype(F64)
    total = np.asarray(product + addend)
    # Rounding twice differs from once only if the f64 sum lies on a midpoint of the narrow type
    # (its low bits are 100..0) or that type is subnormal there; only then round the sum to odd.
    if dtype == F32:
        midpoint = (total.view(np.uint64) & np.uint64(0x1FFFFFFF)) == np.uint64(0x10000000)
        tiny = np.abs(total) < 2.0**-125
        if not (midpoint | (tiny & (total != 0))).any():
            return total.astype(dtype)
    odd = _round_to_odd(product, addend, total)
    # There is no direct f64 to bf16; a step through f32 must round to odd again.
    return (_odd_f32(odd) if dtype == BF16 else odd).astype(dtype)


def _odd_f32(x: Array) -> Array:
    """f64 to f32, rounded to odd."""
    near = np.asarray(x.astype(F32))
    bits = near.view(np.int32)
    wrong = np.isfinite(near) & (near != x) & ((bits & 1) == 0)
    step = np.where(np.abs(x) > np.abs(near), 1, -1).astype(np.int32)
    return np.where(wrong, bits + step, bits).view(F32)


def _two_sum(x: Array, y: Array, s: Array) -> Array:
    """The error of s = fl(x + y)."""
    t = s - x
    return np.asarray((x - (s - t)) + (y - t))


def _round_to_odd(x: Array, y: Array, s: Array) -> Array:
    """x + y in f64, rounded to odd: a later rounding to a narrower type is then as if direct."""
    error = _two_sum(x, y, s)
    bits = np.asarray(s).view(np.int64)
    inexact = np.isfinite(s) & (error != 0) & ((bits & 1) == 0)
    away = (error > 0) == (s > 0)
    step = np.where(away, 1, -1)
    return np.where(inexact, bits + step, bits).view(F64)


def _split_product(a: Array, b: Array) -> tuple[Array, Array]:
    """a * b as an unevaluated sum of two f64, exact away from overflow and underflow."""
    def halves(x: Array) -> tuple[Array, Array]:
        t = 134217729.0 * x
        high = t - (t - x)
        return high, x - high

    p = a * b
    (ah, al), (bh, bl) = halves(a), halves(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _exact_f64(a: float, b: float, c: float) -> float:
    total = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(total)
    except OverflowError:
        return np.inf if total > 0 else -np.inf


def _fma_f64(a: Array, b: Array, c: Array) -> Array:
    p, low = _split_product(a, b)
    t = c + low
    t_low = _two_sum(c, low, t)
    high = p + t
    v_low = _two_sum(p, t, high)
    out = np.asarray(high + _round_to_odd(t_low, v_low, np.asarray(t_low + v_low)))
    plain = a * b + c
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    zero = (a == 0) | (b == 0)
    # Zeros and non-finite operands round trivially; extreme exponents break the transformations.
    out = np.where(finite & ~zero, out, plain)
    safe = np.ones(a.shape, bool)
    for x in (a, b, p, c):
        safe &= (x == 0) | ((np.abs(x) > 2.0**-480) & (np.abs(x) < 2.0**480))
    for i in zip(*np.nonzero(finite & ~zero & ~safe), strict=True):
        out[i] = _exact_f64(float(a[i]), float(b[i]), float(c[i]))
    return out
