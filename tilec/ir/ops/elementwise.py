"""Ops that act on each element alone, on scalars and tiles alike. Meaning: docs/semantics.md."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilec.ir.core import Op, Value, attr, operand, operands
from tilec.ir.ops.base import ExplicitType
from tilec.ir.types import (
    Pointer,
    Scalar,
    Type,
    element_of,
    i1,
    layout_of,
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
            if not refines(other.type, first):
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


class Add(Binary, name="tile.add", commutative=True):
    """Sum; integers wrap."""


class Sub(Binary, name="tile.sub"):
    """Difference; integers wrap."""


class Mul(Binary, name="tile.mul", commutative=True):
    """Product; integers wrap."""


class Div(Binary, name="tile.div"):
    """Quotient; integers truncate toward zero. rounded: one of f32 is rounded correctly, too."""

    rounded: bool = attr(bool, False)


class Rem(Binary, name="tile.rem"):
    """Remainder with the sign of the dividend; `fmod` for floats."""


class Minimum(Binary, name="tile.minimum", commutative=True):
    """The smaller; of a NaN and a number the number, or NaN with propagate_nan."""

    propagate_nan: bool = attr(bool, False)


class Maximum(Binary, name="tile.maximum", commutative=True):
    """The larger; of a NaN and a number the number, or NaN with propagate_nan."""

    propagate_nan: bool = attr(bool, False)


class And(Binary, name="tile.and", commutative=True):
    """Bitwise and; logical and on i1."""

    domain = INT


class Or(Binary, name="tile.or", commutative=True):
    """Bitwise or; logical or on i1."""

    domain = INT


class Xor(Binary, name="tile.xor", commutative=True):
    """Bitwise exclusive or."""

    domain = INT


class Shl(Binary, name="tile.shl"):
    """Shift left; a count of the width or more gives 0."""

    domain = INT


class Shr(Binary, name="tile.shr"):
    """Shift right, arithmetic for signed types; a count of the width or more gives the fill."""

    domain = INT


PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")


class Cmp(Binary, name="tile.cmp"):
    """Comparison, signed or unsigned by type; floats are ordered, but `ne` is unordered."""

    predicate: str = attr(str, choices=PREDICATES)

    def infer(self) -> Sequence[Type]:
        (t,) = super().infer()
        return (with_element(t, i1),)


class Fma(Elementwise, name="tile.fma"):
    """a * b + c with one rounding (floats)."""

    domain = FLOAT
    a: Value = operand()
    b: Value = operand()
    c: Value = operand()


class Select(Elementwise, name="tile.select"):
    """`a` where the condition holds, else `b`; a, b may be pointers."""

    cond: Value = operand()
    a: Value = operand()
    b: Value = operand()

    def infer(self) -> Sequence[Type]:
        cond, a, b = (v.type for v in self.operands)
        if not refines(b, a):
            raise self.fail(f"arms differ: {a} and {b}")
        if not refines(cond, with_element(a, i1)):
            raise self.fail(f"condition is {cond}, expected {with_element(a, i1)}")
        return (a,)


class Neg(Unary, name="tile.neg"):
    """Negation; flips the sign bit of a float, wraps for integers."""


class Not(Unary, name="tile.not"):
    """Bitwise complement; logical not on i1."""

    domain = INT


class Abs(Unary, name="tile.abs"):
    """Absolute value; of the least signed integer, itself."""


class MathUnary(Unary):
    """Base of the float functions."""

    domain = FLOAT


class Exp(MathUnary, name="tile.exp"):
    """e to the x."""


class Exp2(MathUnary, name="tile.exp2"):
    """2 to the x."""


class Log(MathUnary, name="tile.log"):
    """Natural logarithm."""


class Log2(MathUnary, name="tile.log2"):
    """Logarithm to base 2."""


class Sin(MathUnary, name="tile.sin"):
    """Sine of radians."""


class Cos(MathUnary, name="tile.cos"):
    """Cosine of radians."""


class Tanh(MathUnary, name="tile.tanh"):
    """Hyperbolic tangent."""


class Erf(MathUnary, name="tile.erf"):
    """Error function."""


class Sqrt(MathUnary, name="tile.sqrt"):
    """Square root, correctly rounded."""


class Rsqrt(MathUnary, name="tile.rsqrt"):
    """1 / square root."""


class Floor(MathUnary, name="tile.floor"):
    """Largest integer not above x, as a float."""


class Ceil(MathUnary, name="tile.ceil"):
    """Smallest integer not below x, as a float."""


class Cast(ExplicitType, Elementwise, name="tile.cast"):
    """Conversion of numbers by value to the result type; rounding applies to float-to-float."""

    x: Value = operand()
    rounding: str = attr(str, "rtne", choices=("rtne", "rtz"))

    def infer(self) -> Sequence[Type]:
        self._check_domain(self.x.type)
        return (with_element(self.x.type, scalar_of(self.given())),)


class Bitcast(ExplicitType, Elementwise, name="tile.bitcast"):
    """The same bits as another type of equal width; pointers count as 64-bit integers."""

    x: Value = operand()

    def infer(self) -> Sequence[Type]:
        have, want = element_of(self.x.type), element_of(self.given())
        if have.bits != want.bits:
            raise self.fail(f"{have} has {have.bits} bits, {want} has {want.bits}")
        return (with_element(self.x.type, want),)


class AddPtr(Elementwise, name="tile.addptr"):
    """Pointer plus an offset in elements; the offset is any integer type, sign- or zero-extended
    to 64 bits by its type."""

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


class Hint(Elementwise, name="tile.hint"):
    """The operand unchanged, with what the author promises of it, per dimension: `divisibility`
    of the first element of every contiguous run, run length `contiguity`, and `constancy`, the
    length of runs of one value. An empty tuple promises nothing."""

    any_shape = False
    speculatable = False  # where the program does not come, the promise may not hold
    x: Value = operand()
    divisibility: tuple[int, ...] = attr(tuple, (), least=1)
    contiguity: tuple[int, ...] = attr(tuple, (), least=1)
    constancy: tuple[int, ...] = attr(tuple, (), least=1)

    def infer(self) -> Sequence[Type]:
        rank = max(1, len(shape_of(self.x.type)))
        for name in ("divisibility", "contiguity", "constancy"):
            promised = getattr(self, name)
            if len(promised) not in (0, rank):
                raise self.fail(f"{name} has {len(promised)} entries, the operand {rank} "
                                "dimensions")
        return (self.x.type,)


REGISTERS = {"h": 16, "r": 32, "l": 64, "f": 32, "d": 64}  # the bits of each constraint's register
_CONSTRAINT = re.compile(r"(=&?)?([hrlfd])|~\{\w+\}")
_REFERENCE = re.compile(r"\$(\$|\d+|\{\d+\}|)")


def asm_letters(constraints: str) -> tuple[list[str], list[str]]:
    """The register letters of inline PTX's outputs and inputs. ValueError where they are none."""
    outs: list[str] = []
    ins: list[str] = []
    for text in filter(None, map(str.strip, constraints.split(","))):
        found = _CONSTRAINT.fullmatch(text)
        if found is None or found[1] and ins:
            raise ValueError(f"`{text}` in the constraints \"{constraints}\" is not understood")
        if found[2]:
            (outs if found[1] else ins).append(found[2])
    return outs, ins


def packed(t: Type, pack: int) -> int:
    """How many elements share one register of inline PTX that takes `pack` at a time."""
    return min(max(32 // element_of(t).bits, 1), pack)


def asm_problem(asm: str, constraints: str, pack: int, ins: Sequence[Type], outs: Sequence[Type]
                ) -> str:
    """What is wrong with inline PTX's constraints or its references to operands; "" if nothing is.
    ins, outs: the types of its operands and results."""
    try:
        letters = asm_letters(constraints)
    except ValueError as e:
        return str(e)
    for what, types, found in zip(("results", "operands"), (outs, ins), letters):
        if any(element_of(t) == i1 for t in types):
            return f"one of its {what} is i1, which no register holds"
        if any(pack % packed(t, pack) for t in types):
            return f"pack is {pack}, no multiple of the elements that share a register of its " \
                f"{what}"
        bits = [element_of(t).bits * packed(t, pack)
                for t in types for _ in range(0, pack, packed(t, pack))]
        if len(found) != len(bits):
            return f"its {what} take {len(bits)} registers, the constraints \"{constraints}\" " \
                f"have {len(found)}"
        for letter, width in zip(found, bits):
            if REGISTERS[letter] < width or letter in "fd" and REGISTERS[letter] != width:
                return f"constraint `{letter}` is a register of {REGISTERS[letter]} bits, one of " \
                    f"its {what} has {width}"
    count = sum(map(len, letters))
    for name in _REFERENCE.findall(asm):
        if name != "$" and (not name or int(name.strip("{}")) >= count):
            return f"`${name}` in its text names none of its {count} operands"
    return ""


class InlineAsm(Op, name="tile.inline_asm"):
    """PTX of the author's, run for `pack` elements at a time. Elements of less than 32 bits come
    and go several to a register, the first one lowest, as far as `pack` goes."""

    inputs: tuple[Value, ...] = operands()
    asm: str = attr(str)
    constraints: str = attr(str)
    pack: int = attr(int, 1, least=1)
    is_pure: bool = attr(bool, True)

    @property
    def effects(self) -> frozenset[str]:
        """What it does beside its results nobody knows."""
        return frozenset() if self.is_pure else frozenset({"io"})

    def infer(self) -> Sequence[Type]:
        types = [v.type for v in self.results] or self.given_types
        if not types:
            raise self.fail("needs the types of its results")
        first = types[0]
        for t in (*types, *(v.type for v in self.inputs)):
            if (shape_of(t), layout_of(t)) != (shape_of(first), layout_of(first)):
                raise self.fail(f"is of {t} and of {first}, expected one shape and layout")
        if problem := asm_problem(self.asm, self.constraints, self.pack,
                                  [v.type for v in self.inputs], types):
            raise self.fail(problem)
        return tuple(types)
