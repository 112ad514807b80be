"""Lowering of the float functions in f32, within the bounds of docs/semantics.md section 6.

f16 and bf16 are widened and rounded once at the end; f64 has its own formulas. Coefficients are
Chebyshev interpolations on the stated intervals.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.codegen import casts, mathfns64
from tilec.codegen.context import CodeGen, compute
from tilec.codegen.elementwise import divide, number
from tilec.codegen.emit import Emit, Reg
from tilec.ir import ops
from tilec.ir.core import Op

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


def _by_width(single: Callable[[CodeGen, Reg], Reg], double: Callable[[CodeGen, Reg], Reg]
              ) -> Callable[[CodeGen, Op, Reg], Reg]:
    """The rule of a function from its f32 and f64 formulas."""
    def rule(cg: CodeGen, op: Op, x: Reg) -> Reg:
        number(op)
        if x.elem == "double":
            return double(cg, x)
        return casts.from_f32(cg, single(cg, casts.to_f32(cg, x)), x.elem)
    return rule


def lanewise(cg: CodeGen, intrinsic: str, x: Reg) -> Reg:
    """An NVVM intrinsic that takes one f32."""
    return cg.e.per_lane(lambda v: cg.e.call(f"llvm.nvvm.{intrinsic}", "float", 0, (v,)), x)


def scaled(e: Emit, x: Reg, factor: float) -> Reg:
    """x * factor."""
    return e.binary("fmul", x, e.const(factor, x.elem, x.n))


def exp2(cg: CodeGen, x: Reg) -> Reg:
    """2 ** x."""
    return lanewise(cg, "ex2.approx.ftz.f", x)


def exp(cg: CodeGen, x: Reg) -> Reg:
    """e ** x."""
    return exp2(cg, scaled(cg.e, x, LOG2_E))


def log2(cg: CodeGen, x: Reg) -> Reg:
    """Logarithm to base 2."""
    return lanewise(cg, "lg2.approx.f", x)


def log(cg: CodeGen, x: Reg) -> Reg:
    """Natural logarithm."""
    return scaled(cg.e, log2(cg, x), LN_2)


def rsqrt(cg: CodeGen, x: Reg) -> Reg:
    """1 / square root."""
    return lanewise(cg, "rsqrt.approx.f", x)


_HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
_SIN = (-0.16666666666666666, 0.008333333333333333, -0.0001984126984126984, 2.7557319223985893e-06)
_COS = (-0.5, 0.041666666666666664, -0.001388888888888889, 2.48015873015873e-05,
        -2.755731922398589e-07)


def sine(quarter: int) -> Callable[[CodeGen, Reg], Reg]:
    """sin(x + quarter * pi/2)."""
    return lambda cg, x: mathfns64.reduced_sine(cg, x, quarter, _HALF_PI, _SIN, _COS,
                                                "llvm.nvvm.f2i.rz")


_TANH = (-0.3333333134651184, 0.13332915306091309, -0.053873948752880096, 0.021110953763127327,
         -0.006269113626331091)  # of (tanh(x)/x - 1)/x**2 in x**2, |x| < 0.6


def tanh(cg: CodeGen, x: Reg) -> Reg:
    """A polynomial near zero, else 1 - 2 / (e**2|x| + 1)."""
    e, n = cg.e, x.n
    size = e.generic("fabs", x)
    square = e.binary("fmul", x, x)
    cube = e.binary("fmul", mathfns64.polynomial(e, square, _TANH), square)
    small = e.generic("fma", cube, x, x)
    grown = exp2(cg, scaled(e, size, 2 * LOG2_E))
    below = divide(cg, e.const(2.0, "float", n), e.binary("fadd", grown, e.const(1.0, "float", n)))
    large = e.binary("fsub", e.const(1.0, "float", n), below)
    use = e.compare("ogt", size, e.const(0.58, "float", n))
    return e.generic("copysign", e.select(use, large, small), x)


_ERF = (0.12837915122509003, -0.3761245608329773, 0.11281407624483109, -0.026751499623060226,
        0.004970797337591648, -0.0005876505747437477)  # of erf(x)/x - 1 in x**2, |x| < 0.95
_LOG2_ERFC = (0.0004595555947162211, -1.6305787563323975, -0.9115292429924011,
              -0.1588222086429596, 0.03812702000141144, -0.006871016696095467,
              0.0008621340384706855, -6.660036888206378e-05, 2.3704399154667044e-06)  # 0.9 .. 4


def erf(cg: CodeGen, x: Reg) -> Reg:
    """A polynomial near zero, else 1 - 2**p(|x|)."""
    e, n = cg.e, x.n
    size = e.generic("fabs", x)
    square = e.binary("fmul", x, x)
    small = e.generic("fma", mathfns64.polynomial(e, square, _ERF), x, x)
    # From 4 on the result is 1.
    bounded = e.generic("minnum", size, e.const(4.0, "float", n))
    tail = exp2(cg, mathfns64.polynomial(e, bounded, _LOG2_ERFC))
    large = e.binary("fsub", e.const(1.0, "float", n), tail)
    use = e.compare("ogt", size, e.const(0.93, "float", n))
    return e.select(use, e.generic("copysign", large, x), small)


def exactly(intrinsic: str) -> Callable[[CodeGen, Reg], Reg]:
    """A function that LLVM and the hardware have, correctly rounded."""
    return lambda cg, x: cg.e.generic(intrinsic, x)


for _op, _single, _double in (
    (ops.Exp, exp, mathfns64.exp), (ops.Exp2, exp2, mathfns64.exp2),
    (ops.Log, log, mathfns64.log), (ops.Log2, log2, mathfns64.log2),
    (ops.Sin, sine(0), mathfns64.sine(0)), (ops.Cos, sine(1), mathfns64.sine(1)),
    (ops.Tanh, tanh, mathfns64.tanh), (ops.Erf, erf, mathfns64.erf),
    (ops.Rsqrt, rsqrt, mathfns64.rsqrt), (ops.Sqrt, exactly("sqrt"), exactly("sqrt")),
    (ops.Floor, exactly("floor"), exactly("floor")), (ops.Ceil, exactly("ceil"), exactly("ceil")),
):
    compute(_op)(_by_width(_single, _double))
