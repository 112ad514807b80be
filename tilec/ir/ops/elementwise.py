"""Ops that act on each element alone, on scalars and tiles alike. Meaning: docs/semantics.md."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir.core import Op, Value, attr, operand
from tilec.ir.ops.base import ExplicitType
from tilec.ir.types import (
    Pointer,
    Scalar,
    Type,
    element_of,
    i1,
    refines,
    scalar_of,
    shape_of,
    with_element,
)

NUMBER, INT, FLOAT = "a number", "an integer", "a float"


class Elementwise(Op):
    """Base: operands of one type, the result of that type too. `domain` limits the elements.

    any_shape: whether the op on scalars is the op on tiles filled with them, attributes and all.
    """

    domain = NUMBER
    any_shape = True

    def infer(self) -> Sequence[Type]:
        first = self.operands[0].type
        for other in self.operands[1:]:
            if other.type != first and not refines(other.type, first):
                raise self.fail(f"operand types differ: {first} and {other.type}")
        self._check_domain(first)
        return (first,)

    def _check_domain(self, t: Type) -> None:
        element = element_of(t)
        ok = isinstance(element, Scalar) and (
            self.domain == NUMBER or element.is_int == (self.domain == INT))
        if not ok:
            raise self.fail(f"operand is {t}, expected {self.domain}")


class Unary(Elementwise):
    """Base of ops with one operand."""

    x: Value = operand()


class Binary(Elementwise):
    """Base of ops with two operands."""

    lhs: Value = operand()
    rhs: Value = operand()


class Add(Binary, commutative=True):
    """Sum; integers wrap."""

    name = "tile.add"


class Sub(Binary):
    """Difference; integers wrap."""

    name = "tile.sub"


class Mul(Binary, commutative=True):
    """Product; integers wrap."""

    name = "tile.mul"


class Div(Binary):
    """Quotient; integers truncate toward zero."""

    name = "tile.div"


class Rem(Binary):
    """Remainder with the sign of the dividend; `fmod` for floats."""

    name = "tile.rem"


class Minimum(Binary, commutative=True):
    """The smaller; of a NaN and a number the number, or NaN with propagate_nan."""

    name = "tile.minimum"
    propagate_nan: bool = attr(bool, False)


class Maximum(Binary, commutative=True):
    """The larger; of a NaN and a number the number, or NaN with propagate_nan."""

    name = "tile.maximum"
    propagate_nan: bool = attr(bool, False)


class And(Binary, commutative=True):
    """Bitwise and; logical and on i1."""

    name = "tile.and"
    domain = INT


class Or(Binary, commutative=True):
    """Bitwise or; logical or on i1."""

    name = "tile.or"
    domain = INT


class Xor(Binary, commutative=True):
    """Bitwise exclusive or."""

    name = "tile.xor"
    domain = INT


class Shl(Binary):
    """Shift left; a count of the width or more gives 0."""

    name = "tile.shl"
    domain = INT


class Shr(Binary):
    """Shift right, arithmetic for signed types; a count of the width or more gives the fill."""

    name = "tile.shr"
    domain = INT


PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")


class Cmp(Binary):
    """Comparison, signed or unsigned by type; floats are ordered, but `ne` is unordered."""

    name = "tile.cmp"
    predicate: str = attr(str, choices=PREDICATES)

    def infer(self) -> Sequence[Type]:
        (t,) = super().infer()
        return (with_element(t, i1),)


class Fma(Elementwise):
    """a * b + c with one rounding (floats)."""

    name = "tile.fma"
    domain = FLOAT
    a: Value = operand()
    b: Value = operand()
    c: Value = operand()


class Select(Elementwise):
    """`a` where the condition holds, else `b`; a, b may be pointers."""

    name = "tile.select"
    cond: Value = operand()
    a: Value = operand()
    b: Value = operand()

    def infer(self) -> Sequence[Type]:
        cond, a, b = (v.type for v in self.operands)
        if a != b and not refines(b, a):
            raise self.fail(f"arms differ: {a} and {b}")
        if cond != with_element(a, i1) and not refines(cond, with_element(a, i1)):
            raise self.fail(f"condition is {cond}, expected {with_element(a, i1)}")
        return (a,)


class Neg(Unary):
    """Negation; flips the sign bit of a float, wraps for integers."""

    name = "tile.neg"


class Not(Unary):
    """Bitwise complement; logical not on i1."""

    name = "tile.not"
    domain = INT


class Abs(Unary):
    """Absolute value; of the least signed integer, itself."""

    name = "tile.abs"


class MathUnary(Unary):
    """Base of the float functions."""

    domain = FLOAT


class Exp(MathUnary):
    """e to the x."""

    name = "tile.exp"


class Exp2(MathUnary):
    """2 to the x."""

    name = "tile.exp2"


class Log(MathUnary):
    """Natural logarithm."""

    name = "tile.log"


class Log2(MathUnary):
    """Logarithm to base 2."""

    name = "tile.log2"


class Sin(MathUnary):
    """Sine of radians."""

    name = "tile.sin"


class Cos(MathUnary):
    """Cosine of radians."""

    name = "tile.cos"


class Tanh(MathUnary):
    """Hyperbolic tangent."""

    name = "tile.tanh"


class Erf(MathUnary):
    """Error function."""

    name = "tile.erf"


class Sqrt(MathUnary):
    """Square root, correctly rounded."""

    name = "tile.sqrt"


class Rsqrt(MathUnary):
    """1 / square root."""

    name = "tile.rsqrt"


class Floor(MathUnary):
    """Largest integer not above x, as a float."""

    name = "tile.floor"


class Ceil(MathUnary):
    """Smallest integer not below x, as a float."""

    name = "tile.ceil"


class Cast(ExplicitType, Elementwise):
    """Conversion of numbers by value to the result type; rounding applies to float-to-float."""

    name = "tile.cast"
    x: Value = operand()
    rounding: str = attr(str, "rtne", choices=("rtne", "rtz"))

    def infer(self) -> Sequence[Type]:
        self._check_domain(self.x.type)
        return (with_element(self.x.type, scalar_of(self.given())),)


class Bitcast(ExplicitType, Elementwise):
    """The same bits as another type of equal width; pointers count as 64-bit integers."""

    name = "tile.bitcast"
    x: Value = operand()

    def infer(self) -> Sequence[Type]:
        have, want = element_of(self.x.type), element_of(self.given())
        if have.bits != want.bits:
            raise self.fail(f"{have} has {have.bits} bits, {want} has {want.bits}")
        return (with_element(self.x.type, want),)


class AddPtr(Elementwise):
    """Pointer plus an offset in elements; the offset is any integer type, sign- or zero-extended
    to 64 bits by its type."""

    name = "tile.addptr"
    ptr: Value = operand()
    offset: Value = operand()

    def infer(self) -> Sequence[Type]:
        pointee = element_of(self.ptr.type)
        if not isinstance(pointee, Pointer):
            raise self.fail(f"operand is {self.ptr.type}, expected a pointer")
        if shape_of(self.ptr.type) != shape_of(self.offset.type) or \
                scalar_of(self.offset.type).is_float or not refines(
                    self.offset.type, with_element(self.ptr.type, element_of(self.offset.type))):
            raise self.fail(f"offset is {self.offset.type}, expected integers of the shape and "
                            f"layout of {self.ptr.type}")
        return (self.ptr.type,)


class Hint(Elementwise):
    """The operand unchanged, with what the author promises of it, per dimension: `divisibility`
    of the first element of every contiguous run, run length `contiguity`, and `constancy`, the
    length of runs of one value. An empty tuple promises nothing."""

    name = "tile.hint"
    any_shape = False
    speculatable = False  # where the program does not come, the promise may not hold
    x: Value = operand()
    divisibility: tuple[int, ...] = attr(tuple, ())
    contiguity: tuple[int, ...] = attr(tuple, ())
    constancy: tuple[int, ...] = attr(tuple, ())

    def infer(self) -> Sequence[Type]:
        return (self.x.type,)
