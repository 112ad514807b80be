"""Helpers of the rewriting passes: constants, uniform tiles, rebuilding an op on other operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilec.eval.dtypes import dtype_of
from tilec.eval.rules import evaluate, exact
from tilec.ir import ops
from tilec.ir.core import Builder, Op, Value
from tilec.ir.types import Pointer, Scalar, Tensor, Type, element_of

Number = int | float | bool


def constant(value: Value) -> Number | None:
    """The number that a value is, or that fills it; None if it is not constant."""
    op = value.op
    if not isinstance(op, ops.Constant):
        return None
    number: Number = op.value
    return number


def is_constant(value: Value) -> bool:
    """Whether a value is a constant (a tile filled with one, too)."""
    return isinstance(value.op, ops.Constant)


def is_true(value: Value) -> bool:
    """Whether an i1 value is constantly true in all lanes."""
    return constant(value) is True


def is_false(value: Value) -> bool:
    """Whether an i1 value is constantly false in all lanes."""
    return constant(value) is False


def same_bits(a: Number, b: Number) -> bool:
    """Equality that tells 0.0 from -0.0 and calls NaN equal to itself."""
    return repr(a) == repr(b)


def wrap(number: int, element: Scalar | Pointer) -> Number:
    """An integer as the value of an integer type: modulo 2^width, signed by the type."""
    if isinstance(element, Pointer):
        signed = True
    elif element.is_bool:
        return bool(number & 1)
    else:
        signed = element.is_signed
    number &= (1 << element.bits) - 1
    return number - (1 << element.bits) if signed and number >> (element.bits - 1) else number


def make_constant(builder: Builder, number: Number, t: Type) -> Value:
    """A constant of type `t`; an integer for an integer type is wrapped to its range."""
    element = element_of(t)
    if isinstance(element, Scalar) and element.is_float:
        number = float(number)
    else:
        number = wrap(int(number), element)
    return builder.emit(ops.Constant(value=number, types=[t]))


def fold(op: Op) -> Number | None:
    """What an elementwise op on constants gives, by its eval rule.

    None where the rule is not exact, where the result is poison, and for a NaN, whose bits the
    text of a constant does not keep.
    """
    numbers = [constant(v) for v in op.operands]
    if any(n is None for n in numbers) or not exact(op):
        return None
    if isinstance(op, (ops.Div, ops.Rem)) and numbers[1] == 0:
        return None
    arrays = [np.array([n], dtype_of(v.type)) for n, v in zip(numbers, op.operands)]
    return _number(evaluate(op, *arrays)[0], element_of(op.result.type))


def _number(x: Any, element: Scalar | Pointer) -> Number | None:
    if isinstance(element, Scalar) and element.is_float:
        number = float(x)
        return None if number != number else number
    return bool(x) if isinstance(element, Scalar) and element.is_bool else int(x)


def uniform(value: Value) -> bool:
    """Whether all lanes of a tile are visibly one scalar: a splat or a constant tile."""
    return isinstance(value.op, (ops.Splat, ops.Constant)) and isinstance(value.type, Tensor)


def scalar_in(value: Value, builder: Builder) -> Value:
    """The scalar that fills a `uniform` tile."""
    if isinstance(value.op, ops.Splat):
        return value.op.x
    number = constant(value)
    assert number is not None
    return make_constant(builder, number, element_of(value.type))


def fill(scalar: Value, t: Type, builder: Builder) -> Value:
    """A value of type `t` filled with a scalar: a splat, a constant tile or the scalar itself."""
    if not isinstance(t, Tensor):
        return scalar
    number = constant(scalar)
    if number is not None:
        return make_constant(builder, number, t)
    return builder.emit(ops.Splat(scalar, types=[t]))


def rebuild(op: Op, operands: Sequence[Value], t: Type, builder: Builder) -> Value:
    """A copy of a region-free op with one result on other operands, of result type `t`."""
    return builder.emit(type(op)(operands, types=[t], loc=op.loc, **op.attributes))


def between_is_free_of(first: Op, last: Op, effects: frozenset[str]) -> bool:
    """Whether two ops of one block, in that order, have no op with such effects between them."""
    op = first.next
    while op is not None and op is not last:
        if op.effects & effects:
            return False
        op = op.next
    return op is last
