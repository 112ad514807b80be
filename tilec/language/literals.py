"""Python numbers as typed constants: which dtype a literal has, and its value there.

Plain Python, since this runs while kernels are parsed and numpy is not needed for it.
"""

from __future__ import annotations

import math

from tilec.errors import shown
from tilec.ir import types as ir
from tilec.language import dtypes as dt
from tilec.language.context import error

_F32_LEAST = 2.0 ** -126
_F32_MOST = (2.0 - 2.0 ** -23) * 2.0 ** 127
_F8E4M3_MOST = 448.0  # e4m3fn spends its top exponent on numbers too, but for one NaN


def int_range(scalar: ir.Scalar) -> tuple[int, int]:
    """The least and the greatest value of an integer type."""
    if scalar.is_signed:
        return -(1 << (scalar.bits - 1)), (1 << (scalar.bits - 1)) - 1
    return 0, (1 << scalar.bits) - 1


def literal_dtype(x: bool | int | float) -> dt.dtype:
    """The dtype of a Python number that nothing else types: int1; the first of int32, uint32,
    int64, uint64 that holds it; float32, or float64 outside of float32's normal range."""
    if isinstance(x, bool):
        return dt.int1
    if isinstance(x, int):
        for t in (dt.int32, dt.uint32, dt.int64, dt.uint64):
            if fits(x, t):
                return t
        raise error(f"the integer {shown(x)} does not fit any type",
                    "64 bits are the most there is")
    normal = x == 0 or math.isnan(x) or math.isinf(x) or _F32_LEAST <= abs(x) <= _F32_MOST
    return dt.float32 if normal else dt.float64


def fits(x: bool | int | float, t: dt.dtype) -> bool:
    """Whether an integer lies in the range of the integer type `t`."""
    assert isinstance(t.ir, ir.Scalar)
    low, high = int_range(t.ir)
    return low <= x <= high


def convert(x: bool | int | float, t: dt.dtype) -> bool | int | float:
    """The value of a number in type `t`, by the rules of casts (semantics.md section 5): integers
    wrap, floats round to nearest even, floats to integers truncate and saturate."""
    scalar = t.ir
    assert isinstance(scalar, ir.Scalar), t
    if scalar.is_bool:
        return x != 0
    if scalar.is_float:
        return _round(to_float(x), scalar)
    low, high = int_range(scalar)
    if isinstance(x, float):
        return 0 if math.isnan(x) else int(min(max(x, low), high))
    return (int(x) - low) % (1 << scalar.bits) + low


def to_float(x: bool | int | float) -> float:
    """A number as a float: infinity beyond the range."""
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def _round(x: float, scalar: ir.Scalar) -> float:
    """A double rounded to a float type; fp8 saturates, the others overflow to infinity."""
    if scalar == ir.f64 or x == 0 or math.isnan(x):
        return x
    if scalar in (ir.bf16, ir.f8e4m3, ir.f8e5m2):
        x = _round(x, ir.f32)  # as casts from float64 do
    saturates = scalar.bits == 8
    exponent_bits = scalar.bits - 1 - scalar.mantissa
    bias = (1 << (exponent_bits - 1)) - 1
    most = _F8E4M3_MOST if scalar == ir.f8e4m3 else \
        (2.0 - 2.0 ** -scalar.mantissa) * 2.0 ** bias
    if math.isinf(x):
        return math.copysign(most, x) if saturates else x
    exponent = max(math.frexp(x)[1] - 1, 1 - bias)
    quantum = exponent - scalar.mantissa
    # Scaled by a power of two, a kept bit is an integer: Python's round() is half to even.
    rounded = math.copysign(math.ldexp(round(math.ldexp(x, -quantum)), quantum), x)
    if abs(rounded) > most:
        return math.copysign(most if saturates else math.inf, x)
    return rounded
