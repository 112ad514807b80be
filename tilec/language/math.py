"""Functions of numbers, element by element; `tl.math` is this module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tilec.errors import shown
from tilec.ir import ops
from tilec.ir.core import Op
from tilec.language.casting import convert, reinterpret
from tilec.language.context import error
from tilec.language.dtypes import from_name, uint64
from tilec.language.literals import literal_dtype, to_float
from tilec.language.semantic import (
    add,
    and_,
    common_dtype,
    common_operands,
    emit,
    floordiv,
    mul,
    refuse_fp8,
    rshift,
    truediv,
)
from tilec.language.values import (
    builtin,
    const_value,
    constant,
    describe,
    is_number,
    method,
    tensor,
    to_tensor,
    unwrap,
)


def _float_function(name: str, op_class: type[Op], what: str) -> Callable[[Any], tensor]:
    """A builtin around a float function; `what` opens its docstring."""

    def apply(x: Any) -> tensor:
        if is_number(x):
            x = constant(x, literal_dtype(to_float(x)))
        x = to_tensor(x)
        if not x.dtype.is_floating():
            raise error(f"tl.{name} takes floats, found {x}",
                        "convert it first, as by `.to(tl.float32)`")
        refuse_fp8(f"tl.{name}", x.dtype)
        return emit(op_class(x.handle))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"{what}, of float16, bfloat16, float32 or float64.\n\n    float16 and " \
        "bfloat16 are computed in float32 and rounded once. Accuracy: docs/semantics.md, " \
        "section 6.\n    "
    return method(name)(builtin(apply))


exp = _float_function("exp", ops.Exp, "e to the x")
exp2 = _float_function("exp2", ops.Exp2, "2 to the x")
log = _float_function("log", ops.Log, "Natural logarithm")
log2 = _float_function("log2", ops.Log2, "Logarithm to base 2")
sin = _float_function("sin", ops.Sin, "Sine of radians")
cos = _float_function("cos", ops.Cos, "Cosine of radians")
tanh = _float_function("tanh", ops.Tanh, "Hyperbolic tangent")
erf = _float_function("erf", ops.Erf, "Error function")
sqrt = _float_function("sqrt", ops.Sqrt, "Square root, correctly rounded")
sqrt_rn = _float_function("sqrt_rn", ops.Sqrt, "Square root, correctly rounded, as `sqrt` is")
rsqrt = _float_function("rsqrt", ops.Rsqrt, "1 / square root")
floor = _float_function("floor", ops.Floor, "Largest integer not above x, as a float")
ceil = _float_function("ceil", ops.Ceil, "Smallest integer not below x, as a float")


@method("abs", "__abs__")
@builtin
def abs(x: Any) -> tensor:
    """Absolute value of any number type, fp8 included; the least signed integer stays itself."""
    value = to_tensor(x)
    if value.dtype.is_ptr():
        raise error(f"tl.abs takes numbers, found {value}",
                    "load what the pointer points at first")
    return value if value.dtype.is_int_unsigned() else emit(ops.Abs(value.handle))


@builtin
def fma(x: Any, y: Any, z: Any) -> tensor:
    """x * y + z with one rounding; promoted and broadcast like the operands of `+`, to a float
    type."""
    a, b, c = common_operands("tl.fma", x, y, z)
    if not a.dtype.is_floating():
        raise error(f"tl.fma takes floats, found {', '.join(describe(v) for v in (x, y, z))}",
                    "integers do not round: write x * y + z")
    refuse_fp8("tl.fma", a.dtype)
    return emit(ops.Fma(a.handle, b.handle, c.handle))


@builtin
def fdiv(x: Any, y: Any, ieee_rounding: Any = False) -> tensor:
    """`x / y` of floats; with ieee_rounding as by `div_rn`."""
    return _quotient("tl.fdiv", x, y, bool(const_value(ieee_rounding, "ieee_rounding of tl.fdiv")))


@builtin
def div_rn(x: Any, y: Any) -> tensor:
    """`x / y` of floats, correctly rounded in float32, where `/` is within 2 ulp; float16 and
    bfloat16 divide as float32."""
    return _quotient("tl.div_rn", x, y, True)


def _quotient(what: str, x: Any, y: Any, rounded: bool) -> tensor:
    if not common_dtype("/", x, y).is_floating():
        raise error(f"{what} takes floats, found {describe(x)} and {describe(y)}",
                    "convert one first, as by `.to(tl.float32)`, or divide by `/` or `//`")
    return truediv(x, y, rounded)


@builtin
def umulhi(x: Any, y: Any) -> tensor:
    """The upper half of the product of two integers, both read as unsigned; promoted and broadcast
    like the operands of `*`."""
    a, b = common_operands("tl.umulhi", x, y)
    t, bits = a.dtype, a.dtype.primitive_bitwidth
    if not t.is_int() or t.is_bool():
        raise error(f"tl.umulhi takes integers, found {describe(x)} and {describe(y)}",
                    "reinterpret the bits of others by `.to(tl.uint32, bitcast=True)`")
    a, b = (convert(reinterpret(v, from_name(f"u{bits}")), uint64) for v in (a, b))
    if bits < 64:
        high = rshift(mul(a, b), bits)
    else:
        a0, a1, b0, b1 = (part(v) for v in (a, b) for part in (_lower, _upper))
        middle = add(mul(a1, b0), _upper(mul(a0, b0)))  # no sum leaves 64 bits
        other = add(mul(a0, b1), _lower(middle))
        high = add(add(mul(a1, b1), _upper(middle)), _upper(other))
    return convert(high, t)


def _lower(x: tensor) -> tensor:
    return and_(x, 0xFFFFFFFF)


def _upper(x: tensor) -> tensor:
    return rshift(x, 32)


@method("cdiv")
def cdiv(x: Any, div: Any) -> Any:
    """The quotient of two integers, rounded up: (x + div - 1) // div. On Python ints it gives an
    int, outside of kernels too."""
    x, div = unwrap(x), unwrap(div)
    if is_number(x) and is_number(div):
        if div == 0 or not (isinstance(x, int) and isinstance(div, int)):
            raise error(f"cdiv({shown(x)}, {shown(div)}): expected integers and a divisor that "
                        "is not 0", "for floats, round up by tl.ceil(x / y)")
        return -(-x // div)
    return floordiv(x + (div - 1), div)


cdiv.__tilec_builtin__ = True  # type: ignore[attr-defined]

__all__ = ["abs", "cdiv", "ceil", "cos", "div_rn", "erf", "exp", "exp2", "fdiv", "floor", "fma",
           "log", "log2", "rsqrt", "sin", "sqrt", "sqrt_rn", "tanh", "umulhi"]


def __getattr__(name: str) -> Any:
    """Triton's module has names of others, too: `tl.math.max` is `tl.max`, and what the language
    does not have is libdevice's."""
    for module in ("core", "extra.libdevice") if not name.startswith("_") else ():
        found = getattr(sys.modules[f"tilec.language.{module}"], name, None)
        if found is not None:
            return found
    raise AttributeError(name)
