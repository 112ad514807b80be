"""The float functions in f64, to 2**-48: LLVM has no instructions or library for them here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import factorial, pi, sqrt

from tilec.codegen.context import CodeGen
from tilec.codegen.emit import Emit, Reg

_LN_2 = (0.6931471805599453, 2.3190468138462996e-17)  # the leading double, and what it leaves
_LOG2_E = 1.4426950408889634
_EXP = tuple(1.0 / factorial(k) for k in range(15))


def _const(e: Emit, value: float, like: Reg) -> Reg:
    return e.const(value, like.elem, like.n)


def polynomial(e: Emit, x: Reg, coefficients: Sequence[float]) -> Reg:
    """c[0] + c[1] x + ..., by Horner's rule."""
    total = _const(e, coefficients[-1], x)
    for c in coefficients[-2::-1]:
        total = e.generic("fma", total, x, _const(e, c, x))
    return total


def _power_of_two(e: Emit, k: Reg) -> Reg:
    """2.0 ** k for an i32 k in the range of normal numbers."""
    bits = e.resize(e.int_op("add", k, 1023), "i64", True)
    return e.bitcast(e.int_op("shl", bits, 52), "double", k.n)


def _scale(e: Emit, x: Reg, k: Reg) -> Reg:
    """x * 2**k for |k| <= 2000, in two steps, so that the result may be subnormal or infinite."""
    half = e.int_op("ashr", k, 1)
    rest = e.binary("sub", k, half)
    once = e.binary("fmul", x, _power_of_two(e, half))
    return e.binary("fmul", once, _power_of_two(e, rest))


def _to_int(e: Emit, x: Reg) -> Reg:
    return e.per_lane(lambda v: e.call("llvm.nvvm.d2i.rz", "i32", 0, (v,)), x)


def _bounded(e: Emit, x: Reg, limit: float) -> Reg:
    """x cut to [-limit, limit]; NaN stays."""
    high, low = _const(e, limit, x), _const(e, -limit, x)
    x = e.select(e.compare("ogt", x, high), high, x)
    return e.select(e.compare("olt", x, low), low, x)


def _reduce_exp(e: Emit, x: Reg) -> tuple[Reg, Reg]:
    """(k, f) with x = k ln 2 + f and |f| <= ln 2 / 2; k as i32."""
    k = e.generic("rint", e.binary("fmul", x, _const(e, _LOG2_E, x)))
    f = e.generic("fma", k, _const(e, -_LN_2[0], x), x)
    return _to_int(e, k), e.generic("fma", k, _const(e, -_LN_2[1], x), f)


def exp(cg: CodeGen, x: Reg) -> Reg:
    """e ** x."""
    e = cg.e
    k, f = _reduce_exp(e, _bounded(e, x, 800.0))
    return _scale(e, polynomial(e, f, _EXP), k)


def exp2(cg: CodeGen, x: Reg) -> Reg:
    """2 ** x."""
    e = cg.e
    x = _bounded(e, x, 1200.0)
    k = e.generic("rint", x)
    f = e.binary("fmul", e.binary("fsub", x, k), _const(e, _LN_2[0], x))
    return _scale(e, polynomial(e, f, _EXP), _to_int(e, k))


def _split(e: Emit, x: Reg) -> tuple[Reg, Reg]:
    """(exponent as a double, m - 1 over m + 1) with x = 2**exponent * m, m in [0.707, 1.414]."""
    n = x.n
    tiny = e.compare("olt", x, _const(e, 2.0**-1022, x))
    bits = e.bitcast(e.select(tiny, e.binary("fmul", x, _const(e, 2.0**54, x)), x), "i64", n)
    # 0x3FE6A09E667F3BCD is sqrt(1/2): at and above it a mantissa counts for the next exponent.
    moved = e.int_op("sub", bits, 0x3FE6A09E667F3BCD)
    exponent = e.int_op("ashr", moved, 52)
    mantissa = e.binary("sub", bits, e.int_op("shl", exponent, 52))
    count = e.convert("sitofp", e.resize(exponent, "i32", True), "double")
    count = e.select(tiny, e.binary("fsub", count, _const(e, 54.0, x)), count)
    m = e.bitcast(mantissa, "double", n)
    one = _const(e, 1.0, x)
    return count, e.binary("fdiv", e.binary("fsub", m, one), e.binary("fadd", m, one))


_ATANH = tuple(2.0 / (2 * k + 1) for k in range(1, 12))


def _log_mantissa(e: Emit, z: Reg) -> Reg:
    """2 atanh(z)."""
    square = e.binary("fmul", z, z)
    tail = e.binary("fmul", e.binary("fmul", square, z), polynomial(e, square, _ATANH))
    return e.generic("fma", z, _const(e, 2.0, z), tail)


def _special_log(e: Emit, x: Reg, value: Reg) -> Reg:
    zero, inf = _const(e, 0.0, x), _const(e, float("inf"), x)
    value = e.select(e.compare("oeq", x, zero), _const(e, float("-inf"), x), value)
    value = e.select(e.compare("oeq", x, inf), inf, value)
    # Below zero, and NaN.
    return e.select(e.compare("uge", x, zero), e.select(e.compare("uno", x, x), x, value),
                    _const(e, float("nan"), x))


def log(cg: CodeGen, x: Reg) -> Reg:
    """Natural logarithm."""
    e = cg.e
    exponent, z = _split(e, x)
    low = e.generic("fma", exponent, _const(e, _LN_2[1], x), _log_mantissa(e, z))
    return _special_log(e, x, e.generic("fma", exponent, _const(e, _LN_2[0], x), low))


def log2(cg: CodeGen, x: Reg) -> Reg:
    """Logarithm to base 2."""
    e = cg.e
    exponent, z = _split(e, x)
    mantissa = e.generic("fma", _log_mantissa(e, z), _const(e, _LOG2_E, x), exponent)
    return _special_log(e, x, mantissa)


_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
_SIN = tuple((-1.0) ** k / factorial(2 * k + 1) for k in range(1, 9))
_COS = tuple((-1.0) ** k / factorial(2 * k) for k in range(1, 10))


def reduced_sine(cg: CodeGen, x: Reg, quarter: int, half_pi: Sequence[float], sin: Sequence[float],
                 cos: Sequence[float], to_int: str) -> Reg:
    """sin(x + quarter * pi/2): a multiple of pi/2 is taken off in steps, the rest is a polynomial.

    to_int: the intrinsic that makes a number of this type an i32.
    """
    e, n = cg.e, x.n
    turns = e.generic("rint", e.binary("fmul", x, _const(e, 2 / pi, x)))
    rest = x
    for part in half_pi:
        rest = e.generic("fma", turns, _const(e, -part, x), rest)
    # Beyond the stated domain the rest may be anything; in it, it is at most about pi/4.
    rest = _bounded(e, rest, 0.8)
    square = e.binary("fmul", rest, rest)
    cube = e.binary("fmul", square, rest)
    odd = e.generic("fma", cube, polynomial(e, square, sin), rest)
    if quarter == 0:
        odd = e.select(e.compare("oeq", x, _const(e, 0.0, x)), x, odd)  # keeps -0.0
    even = e.generic("fma", square, polynomial(e, square, cos), _const(e, 1.0, x))
    count = e.per_lane(lambda v: e.call(to_int, "i32", 0, (v,)), turns)
    count = e.int_op("add", count, quarter)
    swap = e.compare("ne", e.int_op("and", count, 1), e.const(0, "i32", n))
    flip = e.compare("ne", e.int_op("and", count, 2), e.const(0, "i32", n))
    value = e.select(swap, even, odd)
    return e.select(flip, e.fneg(value), value)


def sine(quarter: int) -> Callable[[CodeGen, Reg], Reg]:
    """sin(x + quarter * pi/2)."""
    return lambda cg, x: reduced_sine(cg, x, quarter, _HALF_PI, _SIN, _COS, "llvm.nvvm.d2i.rz")


def tanh(cg: CodeGen, x: Reg) -> Reg:
    """m / (m + 2) for m = e**2|x| - 1, which is exact to the last bits near zero too."""
    e = cg.e
    size = e.generic("fabs", x)
    twice = _bounded(e, e.binary("fadd", size, size), 60.0)
    k, f = _reduce_exp(e, twice)
    minus_one = e.binary("fmul", f, polynomial(e, f, _EXP[1:]))
    scale = _power_of_two(e, k)
    m = e.generic("fma", scale, minus_one, e.binary("fsub", scale, _const(e, 1.0, x)))
    value = e.binary("fdiv", m, e.binary("fadd", m, _const(e, 2.0, x)))
    return e.generic("copysign", value, x)


_ERF = tuple(2 / sqrt(pi) * (-1.0) ** k / (factorial(k) * (2 * k + 1)) for k in range(20))
# Of erfc(x) * e**x**2 in (x - 2.5) / (x + 2.5), x in 1 .. 6.
_ERFCX = (0.2108063640611437, -0.37173673394897183, 0.2517131932174407, -0.1250330523791005,
          0.03992253907716543, -0.003993701150164907, -0.0026423660452320166, 0.0008759150772482847,
          0.00022838205787657672, -0.00012887282410272251, -3.419781348456599e-05,
          1.8588054692070912e-05, 7.609087234851693e-06, -2.219105854839099e-06,
          -1.7924349362396187e-06)


def erf(cg: CodeGen, x: Reg) -> Reg:
    """The power series up to 1; beyond, 1 - e**-x**2 q."""
    e = cg.e
    size = e.generic("fabs", x)
    small = e.binary("fmul", x, polynomial(e, e.binary("fmul", x, x), _ERF))
    bounded = _bounded(e, size, 6.0)
    middle = _const(e, 2.5, x)
    t = e.binary("fdiv", e.binary("fsub", bounded, middle), e.binary("fadd", bounded, middle))
    square = e.binary("fmul", bounded, bounded)
    decay = exp(cg, e.fneg(square))
    one = _const(e, 1.0, x)
    large = e.binary("fsub", one, e.binary("fmul", decay, polynomial(e, t, _ERFCX)))
    use = e.compare("ogt", size, one)
    return e.select(use, e.generic("copysign", large, x), small)


def rsqrt(cg: CodeGen, x: Reg) -> Reg:
    """1 / square root."""
    return cg.e.binary("fdiv", _const(cg.e, 1.0, x), cg.e.generic("sqrt", x))
