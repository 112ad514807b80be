"""Exact float helpers: formats, rounding modes, fused multiply-add with one rounding.

Wide results are carried as float64 rounded to odd: with at least two spare bits, a second rounding
in any mode then gives what a single rounding of the exact value gives.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]


class Format(NamedTuple):
    """A binary float format: p significant bits, smallest normal exponent, largest finite value.

    `kind` is the numpy type that holds its values, `bits` that of their bits.
    """

    precision: int
    emin: int
    largest: float
    kind: Any
    bits: Any
    nan: int
    infinities: bool = True


FORMATS = {
    "f64": Format(53, -1022, np.finfo(np.float64).max, np.float64, np.uint64, 0x7FFFFFFFFFFFFFFF),
    "f32": Format(24, -126, float(np.finfo(np.float32).max), np.float32, np.uint32, 0x7FFFFFFF),
    "tf32": Format(11, -126, (2 - 2**-10) * 2.0**127, np.float32, np.uint32, 0x7FFFE000),
    "bf16": Format(8, -126, (2 - 2**-7) * 2.0**127, ml_dtypes.bfloat16, np.uint16, 0x7FFF),
    "f16": Format(11, -14, 65504.0, np.float16, np.uint16, 0x7FFF),
    "e5m2": Format(3, -14, 57344.0, ml_dtypes.float8_e5m2, np.uint8, 0x7F),
    "e4m3": Format(4, -6, 448.0, ml_dtypes.float8_e4m3fn, np.uint8, 0x7F, infinities=False),
}
"""Every scalar float format, with the canonical NaN that the hardware writes."""


def widen(bits: Array, fmt: str) -> Array:
    """Bits of `fmt` as values: float64 for f64, float32 for all others (exact)."""
    values = bits.view(FORMATS[fmt].kind)
    return values if fmt == "f64" else values.astype(np.float32, copy=False)


def encode(values: Array, fmt: str) -> Array:
    """Bits of values that `fmt` holds exactly; NaN becomes the format's canonical NaN."""
    info = FORMATS[fmt]
    bits = np.ascontiguousarray(values).astype(info.kind, copy=False).view(info.bits)
    missing = np.isnan(values)
    if fmt != "f64" and np.count_nonzero(missing):
        bits = np.where(missing, info.bits(info.nan), bits)
    return bits


def typed(bits: Array, fmt: str) -> Array:
    """Bits as a register is seen: f32 and f64 as values, the narrower formats as they are."""
    return bits.view(FORMATS[fmt].kind) if fmt in ("f32", "f64") else bits


def canonical(values: Array) -> Array:
    """float32 results with every NaN replaced by 0x7fffffff; `values` must be a fresh array."""
    missing = np.isnan(values)
    if np.count_nonzero(missing):
        values.view(np.uint32)[missing] = 0x7FFFFFFF
    return values


def to_precision(values: Array, fmt: str, mode: str) -> Array:
    """Values rounded to the precision of `fmt`, whatever their exponents; f32 and f64 arrays."""
    fraction, exponent = np.frexp(values)
    precision = FORMATS[fmt].precision
    return np.ldexp(round_mode(np.ldexp(fraction, precision), mode), exponent - precision)


def flush(values: Array, fmt: str = "f32") -> Array:
    """Values that are subnormal in `fmt` become zeros of the same sign (.ftz)."""
    small = np.abs(values) < values.dtype.type(2.0 ** FORMATS[fmt].emin)
    if np.count_nonzero(small):
        return np.where(small, np.copysign(values.dtype.type(0), values), values)
    return values


def flush_bits(bits: Array, fmt: str) -> Array:
    """The same of values' bits."""
    sign = bits & FORMATS[fmt].bits(1 << 8 * bits.itemsize - 1)
    small = (bits ^ sign) < FORMATS[fmt].bits(1 << FORMATS[fmt].precision - 1)
    return np.where(small, sign, bits) if np.count_nonzero(small) else bits


def extreme(x: Array, y: Array, largest: bool) -> Array:
    """The smaller or the larger value: NaN loses, and -0 is less than +0."""
    low = np.fmax(x, y) if largest else np.fmin(x, y)
    if np.count_nonzero(np.isnan(low)):  # numpy, as C, lets a signalling NaN win
        low = np.where(np.isnan(x), y, np.where(np.isnan(y), x, low))
    zeros = (x == 0) & (y == 0)
    if np.count_nonzero(zeros):
        negative = np.signbit(x) & np.signbit(y) if largest else np.signbit(x) | np.signbit(y)
        zero = np.copysign(np.zeros_like(x), np.where(negative, -1, 1).astype(x.dtype))
        low = np.where(zeros, zero, low)
    return low


def saturate(values: Array) -> Array:
    """Clamp to [0, 1]; NaN becomes +0 (.sat)."""
    clipped = np.where(values > 0, np.minimum(values, values.dtype.type(1)), values.dtype.type(0))
    return np.where(np.isnan(values), values.dtype.type(0), clipped)


def relu(values: Array) -> Array:
    """Negative values and -0 become +0; NaN stays (.relu)."""
    return np.where(np.signbit(values) & ~np.isnan(values), values.dtype.type(0), values)


def to_odd(value: Array, error: Array) -> Array:
    """Round to odd: `value` is the nearest float64 of value + error; fix its last bit.

    An inexact even result moves one step toward the error, which makes its last bit 1.
    """
    bits = value.view(np.int64)
    fix = (error != 0) & ((bits & 1) == 0) & np.isfinite(value) & np.isfinite(error)
    if not np.count_nonzero(fix):
        return value
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where(fix, np.nextafter(value, toward), value)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """s + e == a + b exactly, s the nearest float64 (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """p + e == a * b exactly, p the nearest float64 (Dekker), away from overflow and underflow."""
    p = a * b
    ah, al = _halves(a)
    bh, bl = _halves(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _halves(x: Array) -> tuple[Array, Array]:
    t = x * 134217729.0
    high = t - (t - x)
    return high, x - high


def round_mode(x: Array, mode: str) -> Array:
    """Round float64 to an integral value: n nearest even, z, m down, p up, na nearest away."""
    if mode != "na":
        return {"n": np.rint, "z": np.trunc, "m": np.floor, "p": np.ceil}[mode](x)
    whole = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= 0.5, np.sign(x), 0.0)


def round_to(values: Array, fmt: str, mode: str = "n", satfinite: bool = False) -> Array:
    """Round float64 (exact, or rounded to odd) to `fmt`; the result is float64.

    Overflow gives infinity or the largest finite value as `mode` asks; formats without infinity
    and `satfinite` give the largest finite value.
    """
    info = FORMATS[fmt]
    x = values.astype(np.float64)
    _, exponent = np.frexp(x)
    quantum = np.maximum(exponent - 1, info.emin) - (info.precision - 1)
    with np.errstate(all="ignore"):
        y = np.ldexp(round_mode(np.ldexp(x, -quantum), mode), quantum)
    y = np.where(np.isfinite(x), np.copysign(y, x), x)
    over = np.abs(y) > info.largest
    if np.count_nonzero(over):
        keep = satfinite | (not info.infinities)
        finite = np.isfinite(x)
        toward_zero = (mode == "z") | ((mode == "m") & (x > 0)) | ((mode == "p") & (x < 0))
        limit = np.where(keep | (toward_zero & finite), info.largest, np.inf)
        y = np.where(over, np.copysign(limit, x), y)
    return y


def narrow(values: Array, fmt: str, mode: str = "n", satfinite: bool = False) -> Array:
    """Bits of `fmt` for float values that are exact or rounded to odd."""
    if mode == "n" and not satfinite:
        if fmt == "f64":
            return encode(values, fmt)
        if fmt == "f32":
            return canonical(values.astype(np.float32)).view(np.uint32)
        if fmt == "f16":
            return encode(values.astype(np.float16), fmt)
        if fmt == "bf16":
            return f32_to_bf16(values if values.dtype == np.float32 else odd32(values))
    return encode(round_to(values, fmt, mode, satfinite), fmt)


def odd32(values: Array) -> Array:
    """float64 rounded to odd float32, from values that are exact or themselves rounded to odd."""
    bits = values.view(np.uint64)
    low = np.uint64(0x1FFFFFFF)
    if not np.count_nonzero(np.abs(values) < 2.0**-126):
        sticky = np.where(bits & low, np.uint64(0x20000000), np.uint64(0))
        return ((bits & ~low) | sticky).view(np.float64).astype(np.float32)
    near = values.astype(np.float32)
    error = values - near
    fix = (error != 0) & ((near.view(np.uint32) & np.uint32(1)) == 0) & ~np.isnan(error)
    toward = np.where(error > 0, np.float32(np.inf), np.float32(-np.inf))
    return np.where(fix, np.nextafter(near, toward), near)


def f32_to_bf16(values: Array) -> Array:
    """Round float32 to bfloat16 bits, to nearest even."""
    bits = values.view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    result = (rounded >> np.uint32(16)).astype(np.uint16)
    missing = np.isnan(values)
    if np.count_nonzero(missing):
        result[missing] = 0x7FFF
    return result


def exact_add(a: Array, b: Array) -> Array:
    """a + b of float32 values as float64 rounded to odd."""
    return to_odd(*two_sum(a.astype(np.float64), b.astype(np.float64)))


def exact_fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float32 (or narrower) values as float64 rounded to odd; the product is exact."""
    product = a.astype(np.float64) * b.astype(np.float64)
    return to_odd(*two_sum(product, c.astype(np.float64)))


def exact_div(a: Array, b: Array) -> Array:
    """a / b of float32 values as float64 rounded to odd."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    q = x / y
    p, e = two_product(q, y)
    return to_odd(q, np.where(np.isfinite(q), ((x - p) - e) * np.sign(y), 0.0))


def exact_sqrt(a: Array) -> Array:
    """Square root of float32 values as float64 rounded to odd."""
    x = a.astype(np.float64)
    r = np.sqrt(x)
    p, e = two_product(r, r)
    return to_odd(r, np.where(np.isfinite(r), (x - p) - e, 0.0))


def fma64(a: Array, b: Array, c: Array, mode: str = "n") -> Array:
    """a * b + c of float64 with one rounding (Boldo and Melquiond, for middling exponents).

    Values where an intermediate could overflow or underflow go through exact fractions.
    """
    direct = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, a * b + c)
    exps = [np.frexp(x)[1] for x in (a, b, c)]
    total = exps[0] + exps[1]
    calm = (np.abs(total) < 900) & (np.abs(exps[2]) < 900)
    for x, exponent in ((a, exps[0]), (b, exps[1]), (c, exps[2])):
        calm &= np.isfinite(x) & (np.abs(exponent) < 900)
    if mode == "n":
        uh, ul = two_product(a, b)
        th, tl = two_sum(c, ul)
        vh, vl = two_sum(uh, th)
        result = vh + to_odd(*two_sum(tl, vl))
        hard = ~calm
    else:
        result, hard = direct.copy(), np.ones(a.shape, bool)
    result = np.where(calm & (a * b != 0), result, direct)
    hard &= np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    for i in np.flatnonzero(hard):
        exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        if exact:
            result[i] = round_fraction(exact, mode)
    return result


def round_fraction(value: Fraction, mode: str) -> float:
    """A non-zero exact value rounded to float64 in the given mode."""
    try:
        near = float(value)
    except OverflowError:
        near = float("inf") if value > 0 else float("-inf")
    if mode == "n":
        return near
    if np.isinf(near):
        error = 1 if near < 0 else -1
    else:
        error = (value > Fraction(near)) - (value < Fraction(near))
    return float(directed(np.array([near]), np.array([float(error)]), mode)[0])


def directed(value: Array, error: Array, mode: str) -> Array:
    """Turn a nearest float64 with the sign of its error into a directed rounding."""
    down = np.nextafter(value, -np.inf)
    up = np.nextafter(value, np.inf)
    toward_zero = np.where(value > 0, down, up)
    if mode == "m":
        return np.where(error < 0, down, value)
    if mode == "p":
        return np.where(error > 0, up, value)
    wrong = ((value > 0) & (error < 0)) | ((value < 0) & (error > 0))
    return np.where(wrong, toward_zero, value)


def direct64(op: Callable[[Fraction, Fraction], Fraction], a: Array, b: Array, near: Array,
             mode: str) -> Array:
    """A float64 operation in a directed mode, by exact fractions; `near` is the nearest result."""
    result = near.copy()
    for i in np.flatnonzero(np.isfinite(a) & np.isfinite(b)):
        if op is Fraction.__truediv__ and b[i] == 0:
            continue
        exact = op(Fraction(float(a[i])), Fraction(float(b[i])))
        if exact:
            result[i] = round_fraction(exact, mode)
        elif mode == "m" and op is Fraction.__add__ and (np.signbit(a[i]) or np.signbit(b[i])):
            result[i] = -0.0
    return result
