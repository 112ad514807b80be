"""Patterns on elementwise ops: constant folding, identities, comparisons, selects, casts."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Builder
from tilec.ir.ops.elementwise import Binary, Unary
from tilec.ir.rewriter import Values, pattern
from tilec.ir.types import Scalar, element_of, f8e5m2, i1, scalar_of, with_element
from tilec.passes.fold import (
    Number,
    constant,
    fold,
    is_constant,
    is_false,
    is_true,
    make_constant,
    rebuild,
    same_bits,
)

SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
# Right operands that change nothing, for integers and for floats; -1 stands for all ones.
# x + 0.0 is not among them: it turns -0.0 into 0.0.
NEUTRAL: dict[type[ops.Elementwise], tuple[int, float | None]] = {
    ops.Add: (0, -0.0), ops.Sub: (0, 0.0), ops.Mul: (1, 1.0), ops.Div: (1, 1.0),
    ops.And: (-1, None), ops.Or: (0, None), ops.Xor: (0, None), ops.Shl: (0, None),
    ops.Shr: (0, None)}
# Right operands of integers that decide the result: (operand, result).
ABSORBING: dict[type[ops.Elementwise], tuple[int, int]] = {
    ops.Mul: (0, 0), ops.And: (0, 0), ops.Or: (-1, -1), ops.Rem: (1, 0)}


def _is_int(number: Number | None, want: int, element: Scalar) -> bool:
    """Whether a constant of an integer type has the bits of `want`."""
    mask = (1 << element.bits) - 1
    return number is not None and int(number) & mask == want & mask


@pattern(ops.Elementwise)
def fold_constants(op: ops.Elementwise, builder: Builder) -> Values | None:
    """add(2, 3) -> 5"""
    if not all(map(is_constant, op.operands)):
        return None
    number = fold(op)
    return None if number is None else [make_constant(builder, number, op.result.type)]


@pattern(Binary)
def constants_right(op: Binary, builder: Builder) -> Values | None:
    """add(2, x) -> add(x, 2); cmp lt (2, x) -> cmp gt (x, 2)"""
    if not is_constant(op.lhs) or is_constant(op.rhs):
        return None
    if isinstance(op, ops.Cmp):
        op.predicate = SWAPPED[op.predicate]
    elif not op.commutative:
        return None
    op.set_operands([op.rhs, op.lhs])
    return ()


@pattern(Binary)
def neutral_operand(op: Binary, builder: Builder) -> Values | None:
    """x + 0, x * 1, x | 0, x << 0, x & -1 ... -> x"""
    number, neutral = constant(op.rhs), NEUTRAL.get(type(op))
    if number is None or neutral is None:
        return None
    element = scalar_of(op.rhs.type)
    same = neutral[1] is not None and same_bits(number, neutral[1]) if element.is_float \
        else _is_int(number, neutral[0], element)
    return [op.lhs] if same else None


@pattern(Binary)
def absorbing_operand(op: Binary, builder: Builder) -> Values | None:
    """x * 0, x & 0, x % 1 -> 0 and x | -1 -> -1, for integers"""
    number, absorbing = constant(op.rhs), ABSORBING.get(type(op))
    element = element_of(op.rhs.type)
    if number is None or absorbing is None or not isinstance(element, Scalar) \
            or element.is_float or not _is_int(number, absorbing[0], element):
        return None
    return [make_constant(builder, absorbing[1], op.result.type)]


@pattern(Binary)
def same_operands(op: Binary, builder: Builder) -> Values | None:
    """x & x, x | x, min(x, x), max(x, x) -> x; x - x, x ^ x -> 0 for integers"""
    if op.lhs is not op.rhs:
        return None
    if isinstance(op, (ops.And, ops.Or, ops.Minimum, ops.Maximum)):
        return [op.lhs]
    if isinstance(op, (ops.Sub, ops.Xor)) and scalar_of(op.lhs.type).is_int:
        return [make_constant(builder, 0, op.result.type)]
    return None


@pattern(Binary)
def gather_constants(op: Binary, builder: Builder) -> Values | None:
    """(x + 2) + 3 -> x + 5, for the commutative ops of integers, which are associative too"""
    inner = op.lhs.op
    if not op.commutative or not is_constant(op.rhs) or type(inner) is not type(op) \
            or inner.attributes != op.attributes or scalar_of(op.lhs.type).is_float:
        return None
    assert isinstance(inner, Binary)
    if not is_constant(inner.rhs):
        return None
    both = type(op)(inner.rhs, op.rhs, loc=op.loc, **op.attributes)
    number = fold(both)
    both.drop()
    if number is None:
        return None
    return [rebuild(op, [inner.lhs, make_constant(builder, number, op.rhs.type)], op.result.type,
                    builder)]


@pattern(ops.Cmp)
def compare_with_itself(op: ops.Cmp, builder: Builder) -> Values | None:
    """x == x, x <= x, x >= x -> true; x != x, x < x, x > x -> false, for integers"""
    if op.lhs is not op.rhs or scalar_of(op.lhs.type).is_float:
        return None
    return [make_constant(builder, op.predicate in ("eq", "le", "ge"), op.result.type)]


@pattern(ops.Not)
def not_of_compare(op: ops.Not, builder: Builder) -> Values | None:
    """not(a < b) -> a >= b for integers; of floats only not(a == b) -> a != b and back"""
    inner = op.x.op
    if not isinstance(inner, ops.Cmp):
        return None
    if scalar_of(inner.lhs.type).is_float and inner.predicate not in ("eq", "ne"):
        return None
    return [builder.emit(ops.Cmp(inner.lhs, inner.rhs, predicate=NEGATED[inner.predicate],
                                 types=[op.result.type]))]


@pattern(Unary)
def twice_undone(op: Unary, builder: Builder) -> Values | None:
    """neg(neg(x)), not(not(x)) -> x"""
    if isinstance(op, (ops.Neg, ops.Not)) and isinstance(inner := op.x.op, type(op)):
        return [inner.x]
    return None


@pattern(ops.Select)
def select_known(op: ops.Select, builder: Builder) -> Values | None:
    """select(true, a, b) -> a; select(false, a, b) -> b; select(c, a, a) -> a"""
    if op.a is op.b or is_true(op.cond):
        return [op.a]
    return [op.b] if is_false(op.cond) else None


@pattern(ops.Select)
def select_of_bools(op: ops.Select, builder: Builder) -> Values | None:
    """select(c, true, false) -> c; select(c, false, true) -> not(c)"""
    if is_true(op.a) and is_false(op.b):
        return [op.cond]
    if is_false(op.a) and is_true(op.b):
        return [builder.emit(ops.Not(op.cond))]
    return None


@pattern(ops.Select)
def select_not(op: ops.Select, builder: Builder) -> Values | None:
    """select(not(c), a, b) -> select(c, b, a)"""
    inner = op.cond.op
    if not isinstance(inner, ops.Not):
        return None
    op.set_operands([inner.x, op.b, op.a])
    return ()


def holds_all(wide: Scalar, narrow: Scalar) -> bool:
    """Whether every value of `narrow` is a value of `wide`."""
    if narrow.is_float:
        return wide.is_float and wide.mantissa >= narrow.mantissa and \
            wide.bits - wide.mantissa >= narrow.bits - narrow.mantissa
    digits = narrow.bits - narrow.is_signed
    if wide.is_float:
        # An f16's largest power of two is 2^15, an fp8's 2^8 or 2^15: their digits bound them.
        return wide.mantissa + 1 >= digits
    return wide.bits - wide.is_signed >= digits and (wide.is_signed or not narrow.is_signed)


@pattern(ops.Cast)
def cast_to_itself(op: ops.Cast, builder: Builder) -> Values | None:
    """cast(x) to the type of x -> x"""
    return [op.x] if op.x.type == op.result.type else None


@pattern(ops.Cast)
def cast_of_cast(op: ops.Cast, builder: Builder) -> Values | None:
    """cast(cast(x: A) : B) : C -> cast(x) : C where B holds every A, or all three are integers
    and C keeps no bit that B dropped; but not where the short way rounds or saturates otherwise"""
    inner = op.x.op
    if not isinstance(inner, ops.Cast):
        return None
    a, b, c = (scalar_of(v.type) for v in (inner.x, inner.result, op.result))
    if holds_all(b, a):
        # A float that holds an integer saturates where an integer cast would wrap.
        if b.is_float and a.is_int and (op.rounding != "rtne" or
                                        c.is_int and not holds_all(c, a)):
            return None
        # What comes from another type saturates in an fp8, infinities too; what was one stays.
        if a == c == f8e5m2:
            return None
    elif not (a.is_int and b.is_int and c.is_int and 1 < c.bits <= b.bits):
        return None
    rounding = "rtne" if holds_all(c, a) else op.rounding
    return [builder.emit(ops.Cast(inner.x, rounding=rounding, types=[op.result.type]))]


@pattern(ops.Bitcast)
def bitcast_chain(op: ops.Bitcast, builder: Builder) -> Values | None:
    """bitcast(x) to the type of x -> x; bitcast(bitcast(x)) -> bitcast(x)"""
    if op.x.type == op.result.type:
        return [op.x]
    inner = op.x.op
    if isinstance(inner, ops.Bitcast):
        return [rebuild(op, [inner.x], op.result.type, builder)]
    return None


@pattern(ops.AddPtr)
def addptr_zero(op: ops.AddPtr, builder: Builder) -> Values | None:
    """addptr(p, 0) -> p"""
    return [op.ptr] if constant(op.offset) == 0 else None


@pattern(ops.AddPtr)
def addptr_of_addptr(op: ops.AddPtr, builder: Builder) -> Values | None:
    """addptr(addptr(p, 2), 3) -> addptr(p, 5), and of any offsets that are 64 bits wide: a sum of
    narrower ones might wrap where the pointer does not"""
    inner = op.ptr.op
    if not isinstance(inner, ops.AddPtr):
        return None
    first, second = constant(inner.offset), constant(op.offset)
    element = scalar_of(op.offset.type)
    if first is not None and second is not None:
        total, limit = int(first) + int(second), 1 << (element.bits - 1)
        if not (-limit if element.is_signed else 0) <= total < limit:
            return None
        offset = make_constant(builder, total, op.offset.type)
    elif element.bits == 64 and inner.offset.type == op.offset.type:
        offset = builder.emit(ops.Add(inner.offset, op.offset))
    else:
        return None
    return [builder.emit(ops.AddPtr(inner.ptr, offset, types=[op.result.type]))]


@pattern(Binary)
def bool_compare(op: Binary, builder: Builder) -> Values | None:
    """c == true, c != false -> c; c == false, c != true -> not(c), for i1"""
    if not isinstance(op, ops.Cmp) or scalar_of(op.lhs.type) != i1 or \
            op.predicate not in ("eq", "ne") or not is_constant(op.rhs):
        return None
    if is_true(op.rhs) == (op.predicate == "eq"):
        return [op.lhs]
    return [builder.emit(ops.Not(op.lhs, types=[with_element(op.lhs.type, i1)]))]


PATTERNS = (fold_constants, constants_right, neutral_operand, absorbing_operand, same_operands,
            gather_constants, compare_with_itself, bool_compare, not_of_compare, twice_undone,
            select_known, select_of_bools, select_not, cast_to_itself, cast_of_cast, bitcast_chain,
            addptr_zero, addptr_of_addptr)
