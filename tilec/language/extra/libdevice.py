# mypy: disable-error-code="annotation-unchecked"
"""Functions of numbers under the names of CUDA's libdevice: those of the language where they mean
the same, others written in it.

Where no speed is at stake, formulas work in float64, for narrower floats too, and are rounded once.
Accuracy: docs/semantics.md, section 6.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from math import factorial
from math import log as ln
from typing import Any

from tilec.frontend.function import function
from tilec.language import math
from tilec.language.casting import cast
from tilec.language.control import static_range
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
from tilec.language.selection import clamp, maximum, minimum, where
from tilec.language.values import constexpr, constexpr_function

abs = fabs = math.abs
exp = fast_expf = math.exp
exp2 = math.exp2
log2 = fast_log2f = math.log2
sin = fast_sinf = math.sin
cos = fast_cosf = math.cos
tanh = fast_tanhf = math.tanh
erf, floor, ceil, fma, rsqrt = math.erf, math.floor, math.ceil, math.fma, math.rsqrt
sqrt, sqrt_rn, div_rn = math.sqrt, math.sqrt_rn, math.div_rn
fmin = min = minimum
fmax = max = maximum

INF, NAN, PI = constexpr(float("inf")), constexpr(float("nan")), constexpr(3.141592653589793)
LN2, LN10, LOG2_E = constexpr(ln(2)), constexpr(ln(10)), constexpr(1 / ln(2))


@constexpr_function
def _floats(t: Any) -> tuple[Any, int, int]:
    """The unsigned type as wide as a float type, its mantissa's bits, and its exponent's bias."""
    assert t == float32 or t == float64, f"found {t}, expected float32 or float64"
    return (uint32, 23, 127) if t == float32 else (uint64, 52, 1023)


@constexpr_function
def _parts(t: Any, over: int) -> tuple[float, float]:
    """The logarithm of 2 to base `over` (0: the natural one) as a number whose product with an
    exponent is exact in `t`, and the rest."""
    scale = 1 << (16 if t == float32 else 32)
    with localcontext(prec=60):
        exact = Decimal(2).ln() / (Decimal(over).ln() if over else 1)
        high = Decimal(int(exact * scale)) / scale
        return float(high), float(exact - high)


@constexpr_function
def _inverse_factorial(n: int) -> float:
    return 1 / factorial(n)


# -- bits -----------------------------------------------------------------------------------------

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
    wide = _narrow(x)
    whole: constexpr = 1 << _floats(wide.dtype)[1]
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


# -- exponents and logarithms ---------------------------------------------------------------------

@function
def _power_of_2(k, t):
    """2 to integers, which a float type has as normal numbers."""
    form: constexpr = _floats(t)
    return ((k + form[2]).to(form[0]) << form[1]).to(t, bitcast=True)


@function
def ldexp(x, n):
    """x * 2 ** n, for an int32 n."""
    wide, n = cast(x, float64), clamp(n, -2200, 2200)
    quarter = n >> 2
    by = _power_of_2(quarter, float64)
    return (wide * by * by * by * _power_of_2(n - 3 * quarter, float64)).to(x.dtype)


scalbn = ldexp


@function
def _log_parts(u):
    """k, f with u = 2**k * (1 + f), f from sqrt(1/2) - 1 to sqrt(2) - 1; for a normal u."""
    form: constexpr = _floats(u.dtype)
    low: constexpr = 0x3F3504F3 if form[0] == uint32 else 0x3FE6A09E667F3BCD
    v = u.to(form[0], bitcast=True) + ((form[2] << form[1]) - low)
    k = (v >> form[1]).to(int32) - form[2]
    m = ((v & ((1 << form[1]) - 1)) + low).to(u.dtype, bitcast=True)
    return k.to(u.dtype), m - 1


@function
def _log_sum(k, f, rest):
    """k * ln(2) + ln(1 + f) + rest, by the series of atanh(s) with s = f / (2 + f)."""
    terms: constexpr = 5 if f.dtype == float32 else 11
    ln2: constexpr = _parts(f.dtype, 0)
    s = f / (2 + f)
    z = s * s
    tail = z * 0.0 + 1 / (2 * terms + 1)
    for i in static_range(terms - 1, 0, -1):
        tail = tail * z + 1 / (2 * i + 1)
    half = 0.5 * f * f
    return s * (half + 2 * z * tail) + (k * ln2[1] + rest) - half + f + k * ln2[0]


@function
def _log(x):
    """Natural logarithm, with a relative bound near 1, too."""
    small = x < (1.1754943508222875e-38 if x.dtype == float32 else 2.2250738585072014e-308)
    k, f = _log_parts(where(small, x * 18014398509481984.0, x))  # 2**54
    y = _log_sum(k - where(small, 54.0, 0.0), f, 0.0)
    y = where(x < INF, y, x)  # NaN as well
    return where(x > 0, y, where(x == 0, -INF, where(x < 0, NAN, y)))


@function
def _log1p(x):
    u = 1 + x
    lost = where(x < 1, x - (u - 1), 1 - (u - x))
    k, f = _log_parts(u)
    y = _log_sum(k, f, lost / u)
    y = where(x < INF, y, x)
    return where(x > -1, where(x == 0, x, y), where(x == -1, -INF, where(x < -1, NAN, y)))


@function
def _expm1_near_0(x):
    """exp(x) - 1 for |x| up to ln(2) / 2 and a little more, by its series."""
    terms: constexpr = 9 if x.dtype == float32 else 15
    tail = x * 0.0 + _inverse_factorial(terms)
    for i in static_range(terms - 1, 1, -1):
        tail = tail * x + _inverse_factorial(i)
    return x + x * x * tail


@function
def _expm1(x):
    ln2: constexpr = _parts(x.dtype, 0)
    most: constexpr = 128 if x.dtype == float32 else 1024
    k = clamp(rint(x * LOG2_E), 2.0 - most, most * 1.0)
    p = _expm1_near_0(x - k * ln2[0] - k * ln2[1])
    half = _power_of_2(k.to(int32) - 1, x.dtype)  # 2 ** 128 is no float32, twice its half is
    y = (half * p + (half - 0.5)) * 2
    y = where(k == 0, where(x == 0, x, p), y)
    y = where(x > most * LN2, INF, where(x < -(most * 0.5), -1.0, y))
    return where(x == x, y, x)


@function
def _narrow(x):
    """A float as one of the types that formulas are for; float16 and bfloat16 as float32."""
    static_assert(x.dtype.is_floating(), "this function takes floats")
    return x if x.dtype == float64 else cast(x, float32)


@function
def log(x):
    """Natural logarithm."""
    return _log(_narrow(x)).to(x.dtype)


fast_logf = math.log


@function
def log10(x):
    """Logarithm to base 10."""
    return (_log(cast(x, float64)) * 0.4342944819032518).to(x.dtype)


fast_log10f = log10


@function
def log1p(x):
    """ln(1 + x)."""
    return _log1p(_narrow(x)).to(x.dtype)


@function
def expm1(x):
    """exp(x) - 1."""
    return _expm1(_narrow(x)).to(x.dtype)


@function
def exp10(x):
    """10 to the x."""
    parts: constexpr = _parts(float64, 10)
    wide = clamp(cast(x, float64), -330.0, 310.0)
    k = rint(wide * (1 / (parts[0] + parts[1])))
    p = _expm1_near_0((wide - k * parts[0] - k * parts[1]) * LN10)
    n = k.to(int32)
    y = (1 + p) * _power_of_2(n >> 1, float64) * _power_of_2(n - (n >> 1), float64)
    return where(x == x, y, NAN).to(x.dtype)


fast_exp10f = exp10


@function
def _pow(x, y):
    a = math.abs(x)
    r = math.exp2(y * (_log(a) * LOG2_E))
    whole = math.floor(y) == y
    half = y * 0.5
    odd = whole & (math.floor(half) != half)
    r = where(odd & signbit(x), -r, where((x < 0) & ~whole & (a < INF), NAN, r))
    one = (x == 1) | (y == 0) | (x == -1) & (math.abs(y) == INF)
    return where(one, 1.0, r)


@function
def pow(x, y):
    """x to the y, as C's pow; y may be an integer."""
    t = (x + y).dtype
    return _pow(cast(x, float64), cast(y, float64)).to(t)


@function
def fast_powf(x, y):
    """x to the y for a positive x, as exp2(y * log2(x))."""
    return math.exp2(y * math.log2(x))


@function
def cbrt(x):
    """Cube root."""
    whole = math.abs(cast(x, float64))
    tiny = whole < 1e-290
    a = where(tiny, whole * 5846006549323611672814739330865132078623730171904.0, whole)  # 2 ** 162
    y = math.exp2(_log(a) * (LOG2_E / 3))
    better = y - (y * y * y - a) / (3 * y * y)
    y = where((a > 0) & (a < INF), better, y) * where(tiny, 1 / 18014398509481984, 1.0)
    return copysign(y.to(x.dtype), x)


@function
def hypot(x, y):
    """sqrt(x * x + y * y), without overflow on the way."""
    t = (x + y).dtype
    a, b = math.abs(cast(x, float64)), math.abs(cast(y, float64))
    most, least = maximum(a, b, True), minimum(a, b, True)
    ratio = where(most > 0, least / most, 0.0)
    r = where(most < INF, most * math.sqrt(1 + ratio * ratio), most)
    return where((a == INF) | (b == INF), INF, r).to(t)


# -- circles and hyperbolas -----------------------------------------------------------------------

@function
def tan(x):
    """Tangent of radians."""
    wide = cast(x, float64)
    return (math.sin(wide) / math.cos(wide)).to(x.dtype)


@function
def fast_tanf(x):
    """Tangent of radians, as sin(x) / cos(x)."""
    return math.sin(x) / math.cos(x)


@function
def _atan(a):
    """The angle of a tangent from 0 to 1: of half the angle, twice over, its series."""
    t = a / (1 + math.sqrt(1 + a * a))
    t = t / (1 + math.sqrt(1 + t * t))
    z = t * t
    tail = z * 0.0 - 1 / 27
    for i in static_range(12, 0, -1):
        tail = tail * z + (1 - 2 * (i % 2)) / (2 * i + 1)
    return 4 * (t + t * z * tail)


@function
def _atan2(y, x):
    a, b = math.abs(x), math.abs(y)
    most, least = maximum(a, b), minimum(a, b)
    ratio = where(most == 0, 0.0, where(least == INF, 1.0, least / most))
    r = _atan(ratio)
    r = where(b > a, PI / 2 - r, r)
    r = where(signbit(x), PI - r, r)
    return where((x != x) | (y != y), NAN, copysign(r, y))


@function
def atan2(y, x):
    """The angle of the point (x, y), from -pi to pi."""
    t = (x + y).dtype
    return _atan2(cast(y, float64), cast(x, float64)).to(t)


@function
def atan(x):
    """The angle from -pi/2 to pi/2 with this tangent."""
    wide = cast(x, float64)
    return _atan2(wide, where(wide == wide, 1.0, wide)).to(x.dtype)


@function
def asin(x):
    """The angle from -pi/2 to pi/2 with this sine."""
    wide = cast(x, float64)
    return _atan2(wide, math.sqrt((1 - wide) * (1 + wide))).to(x.dtype)


@function
def acos(x):
    """The angle from 0 to pi with this cosine."""
    wide = cast(x, float64)
    return _atan2(math.sqrt((1 - wide) * (1 + wide)), wide).to(x.dtype)


@function
def sinh(x):
    """Hyperbolic sine."""
    wide = cast(x, float64)
    a = math.abs(wide)
    e, half = _expm1(a), math.exp(a * 0.5)
    near = 0.5 * (e + e / (e + 1))
    return copysign(where(a < 1, near, 0.5 * half * half - 0.5 / half / half), wide).to(x.dtype)


@function
def cosh(x):
    """Hyperbolic cosine."""
    half = math.exp(math.abs(cast(x, float64)) * 0.5)
    return (0.5 * half * half + 0.5 / half / half).to(x.dtype)


@function
def asinh(x):
    """The number with this hyperbolic sine."""
    wide = cast(x, float64)
    a = math.abs(wide)
    near = _log1p(a + a * a / (1 + math.sqrt(a * a + 1)))
    return copysign(where(a < 1e8, near, _log(a) + LN2), wide).to(x.dtype)


@function
def acosh(x):
    """The number from 0 on with this hyperbolic cosine."""
    wide = cast(x, float64)
    over = wide - 1
    near = _log1p(over + math.sqrt(2 * over + over * over))
    return where(wide < 1, NAN, where(wide < 1e8, near, _log(wide) + LN2)).to(x.dtype)


@function
def atanh(x):
    """The number with this hyperbolic tangent."""
    wide = cast(x, float64)
    a = math.abs(wide)
    y = where(a > 1, NAN, 0.5 * _log1p(2 * a + 2 * a * a / (1 - a)))
    return copysign(y, wide).to(x.dtype)
