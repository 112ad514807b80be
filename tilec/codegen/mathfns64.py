"""The float functions in f64, to 2**-48: LLVM has no instructions or library for them here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
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


# The bits of 2/pi after the binary point, as words that follow one of zeros.
_TWO_OVER_PI = ("0000000000000000a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561"
                "b7246e3a424dd2e006492eea09d1921cfe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e41"
                "3991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b7"
                "4f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d08")
_LARGE = 65536.0  # from here on steps leave too little of the rest


def _words(e: Emit, index: Reg) -> list[Reg]:
    """The words of 2/pi at `index`, of each lane, and the two after it."""
    held = [int(_TWO_OVER_PI[i:i + 16], 16) for i in range(0, len(_TWO_OVER_PI), 16)]
    name, kind = "@two_over_pi", f"[{len(held)} x i64]"
    e.globals[name] = f"{name} = private addrspace(4) constant {kind} " \
        f"[{', '.join(f'i64 {word}' for word in held)}], align 8"
    return [e.per_lane(lambda i: e.load(e.new(
        f"getelementptr {kind}, ptr addrspace(4) {name}, i64 0, i64 {i.ref}",
        "ptr addrspace(4)"), "i64", 1, 8), e.int_op("add", index, k)) for k in range(3)]


def _reduced_exactly(e: Emit, size: Reg) -> tuple[Reg, Reg]:
    """(turns, rest) with size = turns pi/2 + rest, turns modulo 4 as i32, of numbers from 2**16 on.
    Bits of 2/pi that only add multiples of 4 turns are left out (M. Payne and R. Hanek, Radian
    reduction for trigonometric functions, SIGNUM Newsletter 18, 1983)."""
    kind, fraction, bias = ("i64", 52, 1023) if size.elem == "double" else ("i32", 23, 127)
    bits = e.resize(e.bitcast(size, kind, size.n), "i64", False)
    mantissa = e.int_op("or", e.int_op("and", bits, (1 << fraction) - 1), 1 << fraction)
    first = e.int_op("add", e.int_op("lshr", bits, fraction), 62 - bias - fraction)
    words = _words(e, e.int_op("lshr", first, 6))
    shift = e.int_op("and", first, 63)
    high, low = (e.generic("fshl", a, b, shift) for a, b in zip(words, words[1:]))
    carried = e.per_lane(lambda *v: e.call("llvm.nvvm.mulhi.ull", "i64", 0, v), mantissa, low)
    product = e.binary("add", e.binary("mul", mantissa, high), carried)  # in 2**-62 turns
    turns = e.int_op("lshr", e.int_op("add", product, 1 << 61), 62)
    rest = e.convert("sitofp", e.int_op("shl", product, 2), size.elem)
    return e.resize(turns, "i32", False), e.binary("fmul", rest, _const(e, pi * 2.0**-65, size))


def _reduced(e: Emit, x: Reg, half_pi: Sequence[float], to_int: str) -> tuple[Reg, Reg]:
    """(turns, rest) with x = turns pi/2 + rest, turns modulo 4 as i32, |rest| about pi/4 at most:
    turns are taken off in steps, unless one of a thread's numbers is large."""
    n, size = x.n, e.generic("fabs", x)
    count = e.generic("rint", e.binary("fmul", x, _const(e, 2 / pi, x)))
    rest = x
    for part in half_pi:
        rest = e.generic("fma", count, _const(e, -part, x), rest)
    turns = e.per_lane(lambda v: e.call(to_int, "i32", 0, (v,)), count)
    large = e.binary("and", e.compare("ogt", size, _const(e, _LARGE, x)),
                     e.compare("one", size, _const(e, float("inf"), x)))
    lanes, before = e.lane_list(large), e.block
    with e.when(reduce(lambda a, b: e.binary("or", a, b), lanes), "large"):
        exact, left = _reduced_exactly(e, e.select(large, size, _const(e, 2 * _LARGE, x)))
        below = e.compare("olt", x, _const(e, 0.0, x))
        exact = e.select(below, e.binary("sub", e.const(0, "i32", n), exact), exact)
        exact = e.select(large, exact, turns)
        left = e.select(large, e.select(below, e.fneg(left), left), rest)
        inside = e.block
    return (e.phi("i32", n, [(turns, before), (exact, inside)]),
            e.phi(x.elem, n, [(rest, before), (left, inside)]))


def reduced_sine(cg: CodeGen, x: Reg, quarter: int, half_pi: Sequence[float], sin: Sequence[float],
                 cos: Sequence[float], to_int: str) -> Reg:
    """sin(x + quarter * pi/2): multiples of pi/2 are taken off, the rest is a polynomial.

    to_int: the intrinsic that makes a number of this type an i32.
    """
    e, n = cg.e, x.n
    count, rest = _reduced(e, x, half_pi, to_int)
    square = e.binary("fmul", rest, rest)
    cube = e.binary("fmul", square, rest)
    odd = e.generic("fma", cube, polynomial(e, square, sin), rest)
    if quarter == 0:
        odd = e.select(e.compare("oeq", x, _const(e, 0.0, x)), x, odd)  # keeps -0.0
    even = e.generic("fma", square, polynomial(e, square, cos), _const(e, 1.0, x))
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
