# mypy: disable-error-code="annotation-unchecked"
"""Bits of numbers, and rounding: what libdevice.py has of them, written in the language."""

from __future__ import annotations

from typing import Any

from tilec.frontend.function import function
from tilec.language import math
from tilec.language.casting import cast
from tilec.language.debug import static_assert
from tilec.language.dtypes import (
    float32,
    float64,
    get_int_dtype,
    int1,
    int32,
    int64,
    uint32,
    uint64,
)
from tilec.language.selection import clamp, where
from tilec.language.values import constexpr, constexpr_function

INF = constexpr(float("inf"))


@constexpr_function
def float_form(t: Any) -> tuple[Any, int, int]:
    """The unsigned type as wide as a float type, its mantissa's bits, and its exponent's bias."""
    assert t == float32 or t == float64, f"found {t}, expected float32 or float64"
    return (uint32, 23, 127) if t == float32 else (uint64, 52, 1023)


@function
def narrowed(x):
    """A float as one of the types that formulas are for; float16 and bfloat16 as float32."""
    static_assert(x.dtype.is_floating(), "this function takes floats")
    return x if x.dtype == float64 else cast(x, float32)


@function
def _bits(x):
    return x.to(get_int_dtype(x.dtype.primitive_bitwidth, False), bitcast=True)


@function
def copysign(x, y):
    """The magnitude of `x` with the sign of `y`; both of one float type."""
    sign: constexpr = 1 << (x.dtype.primitive_bitwidth - 1)
    return ((_bits(x) & (sign - 1)) | (_bits(y) & sign)).to(x.dtype, bitcast=True)


@function
def signbit(x):
    """Whether the sign bit of a float is set."""
    return (_bits(x) >> (x.dtype.primitive_bitwidth - 1)).to(int1)


@function
def isnan(x):
    """Whether a float is NaN."""
    return x != x


@function
def isinf(x):
    """Whether a float is an infinity."""
    return math.abs(x) == INF


@function
def finitef(x):
    """Whether a float is neither an infinity nor NaN."""
    return math.abs(x) < INF


isfinited = finitef


@function
def float_as_int(x):
    """The bits of a float32 as an int32."""
    return x.to(int32, bitcast=True)


@function
def float_as_uint(x):
    """The bits of a float32 as a uint32."""
    return x.to(uint32, bitcast=True)


@function
def int_as_float(x):
    """The float32 with the bits of an int32 or uint32."""
    return x.to(float32, bitcast=True)


uint_as_float = int_as_float


@function
def double_as_longlong(x):
    """The bits of a float64 as an int64."""
    return x.to(int64, bitcast=True)


@function
def longlong_as_double(x):
    """The float64 with the bits of an int64."""
    return x.to(float64, bitcast=True)


@function
def popc(x):
    """How many bits of an integer of up to 64 bits are set, as an int32."""
    v = x.to(get_int_dtype(x.dtype.primitive_bitwidth, False), bitcast=True).to(uint64)
    v = v - ((v >> 1) & 0x5555555555555555)
    v = (v & 0x3333333333333333) + ((v >> 2) & 0x3333333333333333)
    v = (v + (v >> 4)) & 0x0F0F0F0F0F0F0F0F
    return ((v * 0x0101010101010101) >> 56).to(int32)


@function
def _exponent(x):
    """Of a positive integer of up to 53 bits, the index of its highest bit; -1023 of 0."""
    return ((x.to(float64).to(uint64, bitcast=True) >> 52).to(int32)) - 1023


@function
def ffs(x):
    """1 plus the index of the lowest bit of an integer that is set, 0 if none is; an int32."""
    v = x.to(get_int_dtype(x.dtype.primitive_bitwidth, False), bitcast=True).to(uint64)
    return where(v == 0, 0, _exponent(v & (~v + 1)) + 1)


@function
def clz(x):
    """How many bits above the highest that is set a 32- or 64-bit integer has; an int32."""
    width: constexpr = x.dtype.primitive_bitwidth
    v = x.to(get_int_dtype(width, False), bitcast=True).to(uint64)
    high = v >> 32
    top = where(high != 0, _exponent(high) + 32, _exponent(v & 0xFFFFFFFF))
    return where(v == 0, width, width - 1 - top)


@function
def brev(x):
    """A 32- or 64-bit integer with its bits in reverse."""
    width: constexpr = x.dtype.primitive_bitwidth
    v = x.to(get_int_dtype(width, False), bitcast=True).to(uint64)
    v = ((v >> 1) & 0x5555555555555555) | ((v & 0x5555555555555555) << 1)
    v = ((v >> 2) & 0x3333333333333333) | ((v & 0x3333333333333333) << 2)
    v = ((v >> 4) & 0x0F0F0F0F0F0F0F0F) | ((v & 0x0F0F0F0F0F0F0F0F) << 4)
    v = ((v >> 8) & 0x00FF00FF00FF00FF) | ((v & 0x00FF00FF00FF00FF) << 8)
    v = ((v >> 16) & 0x0000FFFF0000FFFF) | ((v & 0x0000FFFF0000FFFF) << 16)
    v = (v >> 32) | (v << 32)
    return (v >> (64 - width)).to(x.dtype)


# -- rounding -------------------------------------------------------------------------------------

@function
def trunc(x):
    """Toward zero."""
    return where(x < 0, math.ceil(x), math.floor(x))


@function
def rint(x):
    """To the nearest integer, halves to the even one."""
    wide = narrowed(x)
    whole: constexpr = 1 << float_form(wide.dtype)[1]
    a = math.abs(wide)
    return where(a < whole, copysign((a + whole) - whole, wide), wide).to(x.dtype)


nearbyint = rint


@function
def round(x):
    """To the nearest integer, halves away from zero."""
    a = math.abs(x)
    down = math.floor(a)
    return copysign(where(a - down >= 0.5, down + 1, down), x)


@function
def llrint(x):
    """The nearest integer, halves to the even one, as an int64."""
    return rint(x).to(int64)


@function
def llround(x):
    """The nearest integer, halves away from zero, as an int64."""
    return round(x).to(int64)


@function
def float2int_rn(x):
    """The nearest int32, halves to the even one; saturating, as all of these."""
    return rint(x).to(int32)


@function
def float2int_rz(x):
    """The int32 toward zero."""
    return x.to(int32)


@function
def float2int_rd(x):
    """The int32 below."""
    return math.floor(x).to(int32)


@function
def float2int_ru(x):
    """The int32 above."""
    return math.ceil(x).to(int32)


@function
def saturatef(x):
    """Clamped to 0 to 1; NaN gives 0."""
    return clamp(x, 0.0, 1.0)


@function
def fdim(x, y):
    """x - y where that is positive, else 0."""
    return where(x <= y, 0.0, x - y)


@function
def fmod(x, y):
    """The remainder of x / y rounded toward zero: `x % y`."""
    return x % y


@function
def fast_dividef(x, y):
    """x / y."""
    return x / y


@function
def div_rz(x, y):
    """x / y, rounded toward zero."""
    t = (x + y).dtype
    a, b = cast(x, float64), cast(y, float64)
    q = a / b
    if t != float64:  # no quotient of narrower floats lies so near one that `q` is beyond it
        return cast(q, t, fp_downcast_rounding="rtz")
    beyond = math.fma(-math.abs(q), math.abs(b), math.abs(a)) < 0
    return where(beyond, (q.to(int64, bitcast=True) - 1).to(float64, bitcast=True), q)


@function
def rcp_rn(x):
    """1 / x, correctly rounded."""
    return math.div_rn(1.0, x)


@function
def mulhi(x, y):
    """The upper 32 bits of the product of two int32 or two uint32."""
    wide = get_int_dtype(64, x.dtype.is_int_signed())
    return ((cast(x, wide) * cast(y, wide)) >> 32).to(x.dtype)


umulhi = mulhi
