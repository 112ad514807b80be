"""What each op computes: one small rule an op, shared by the interpreter and constant folding.

A rule takes the op and its operands' arrays and gives the result's array. Arrays have the tile's
shape, after any number of leading program axes of extent 1 or P; so rules count axes from the end.
Memory, control flow and the grid are the interpreter's.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add
from typing import Any, NamedTuple

import numpy as np

from tilec.eval import numerics as num
from tilec.eval.casts import bitcast, cast
from tilec.eval.dtypes import F32, F64, Array, DType, dtype_of, is_float
from tilec.eval.fma import fma
from tilec.eval.mathfns import math_function
from tilec.ir import ops
from tilec.ir.core import Op
from tilec.ir.mma import instruction_of
from tilec.ir.ops.elementwise import MathUnary
from tilec.ir.rules import Rules
from tilec.ir.types import Type, pointee_of, scalar_of, shape_of

rule = Rules("eval")


class Numbers(NamedTuple):
    """A way to compute: the rules of ops, the numpy dtype of a type's elements, a number of the
    outside as such elements, and the products of tensor cores (see `instruction_products`)."""

    rules: Rules
    dtype_of: Callable[[Type], DType]
    number: Callable[[Array], Array]
    products: Callable[[Array, Array, Array, int], Array]


def evaluate(op: Op, *operands: Array) -> Array:
    """The result of `op` on its operands' arrays; KeyError if the op has no eval rule."""
    out: Array = rule[type(op)](op, *operands)
    return out


def exact(op: Op) -> bool:
    """Whether a GPU gives the bits of the eval rule, so that folding `op` changes no result."""
    if rule.get(type(op)) is None or isinstance(op, ops.Dot):
        return False
    if isinstance(op, MathUnary):
        return isinstance(op, (ops.Sqrt, ops.Floor, ops.Ceil))
    if isinstance(op, ops.Div):
        element = scalar_of(op.lhs.type)
        return not element.is_float or element.bits == 64 or op.rounded
    return not (isinstance(op, ops.Rem) and scalar_of(op.lhs.type).is_float)


# -- elementwise ------------------------------------------------------------------------------

def _by_operands(function: Callable[..., Array]) -> Callable[..., Array]:
    """The rule of an op whose attributes do not count."""
    return lambda op, *operands: np.asarray(function(*operands))


for _op, _function in (
        (ops.Add, num.add), (ops.Sub, num.sub), (ops.Mul, num.mul), (ops.Rem, num.c_rem),
        (ops.And, np.bitwise_and), (ops.Or, np.bitwise_or), (ops.Xor, np.bitwise_xor),
        (ops.Shl, num.shl), (ops.Shr, num.shr), (ops.Fma, fma), (ops.Neg, num.neg),
        (ops.Not, np.invert), (ops.Abs, num.abs_), (ops.Select, np.where), (ops.Hint, np.asarray),
        (ops.ConvertLayout, np.asarray), (ops.SetLayout, np.asarray)):
    rule(_op)(_by_operands(_function))


@rule(ops.Div)
def _(op: ops.Div, lhs: Array, rhs: Array) -> Array:
    return num.true_div(lhs, rhs) if is_float(lhs.dtype) else num.c_div(lhs, rhs)


@rule(ops.Minimum)
def _(op: ops.Minimum, lhs: Array, rhs: Array) -> Array:
    return num.minimum(lhs, rhs, op.propagate_nan)


@rule(ops.Maximum)
def _(op: ops.Maximum, lhs: Array, rhs: Array) -> Array:
    return num.maximum(lhs, rhs, op.propagate_nan)


@rule(ops.Cmp)
def _(op: ops.Cmp, lhs: Array, rhs: Array) -> Array:
    return num.compare(lhs, rhs, op.predicate)


@rule(MathUnary)
def _(op: MathUnary, x: Array) -> Array:
    return math_function(op.name.removeprefix("tile."), x)


@rule(ops.Cast)
def _(op: ops.Cast, x: Array) -> Array:
    return cast(x, dtype_of(op.result.type), op.rounding)


@rule(ops.Bitcast)
def _(op: ops.Bitcast, x: Array) -> Array:
    return bitcast(x, dtype_of(op.result.type))


@rule(ops.AddPtr)
def _(op: ops.AddPtr, ptr: Array, offset: Array) -> Array:
    return np.asarray(ptr + offset.astype(np.int64) * np.int64(pointee_of(op.ptr.type).bytes))


# -- shapes -----------------------------------------------------------------------------------

@rule(ops.Constant)
def _(op: ops.Constant) -> Array:
    t = op.result.type
    return np.broadcast_to(np.asarray(op.value, dtype_of(t)), shape_of(t))


@rule(ops.Arange)
def _(op: ops.Arange) -> Array:
    return np.arange(op.start, op.end, dtype=np.int32)


@rule(ops.Splat)
def _(op: ops.Splat, x: Array) -> Array:
    shape = shape_of(op.result.type)
    return np.broadcast_to(x.reshape(x.shape + (1,) * len(shape)), x.shape + shape)


@rule(ops.Broadcast)
def _(op: ops.Broadcast, x: Array) -> Array:
    shape = shape_of(op.result.type)
    return np.broadcast_to(x, x.shape[:x.ndim - len(shape)] + shape)


@rule(ops.ExpandDims)
def _(op: ops.ExpandDims, x: Array) -> Array:
    return np.expand_dims(x, op.axis - len(shape_of(op.result.type)))


@rule(ops.Reshape)
def _(op: ops.Reshape, x: Array) -> Array:
    leading = x.shape[:x.ndim - len(shape_of(op.x.type))]
    return x.reshape(leading + shape_of(op.result.type))


@rule(ops.Trans)
def _(op: ops.Trans, x: Array) -> Array:
    leading = x.ndim - len(op.order)
    return np.transpose(x, (*range(leading), *(leading + i for i in op.order)))


@rule(ops.Join)
def _(op: ops.Join, a: Array, b: Array) -> Array:
    return np.stack(np.broadcast_arrays(a, b), axis=-1)


@rule(ops.Split)
def _(op: ops.Split, x: Array) -> Array:
    return np.asarray(x[..., op.index])


@rule(ops.ExtractSlice)
def _(op: ops.ExtractSlice, x: Array) -> Array:
    part: tuple[Any, ...] = (..., *map(slice, op.start, map(add, op.start, op.shape)))
    return np.asarray(x[part])


@rule(ops.Gather)
def _(op: ops.Gather, x: Array, index: Array) -> Array:
    axis = op.axis - len(shape_of(op.x.type))
    inside = np.clip(index, 0, x.shape[axis] - 1).astype(np.int64)
    return np.take_along_axis(x, inside, axis)


@rule(ops.Histogram)
def _(op: ops.Histogram, x: Array) -> Array:
    rows = [row[(row >= 0) & (row < op.bins)] for row in x.reshape(-1, x.shape[-1])]
    counts = [np.bincount(row.astype(np.int64), minlength=op.bins) for row in rows]
    return np.array(counts, np.int32).reshape(*x.shape[:-1], op.bins)


# -- dot --------------------------------------------------------------------------------------

def round_to_tf32(x: Array) -> Array:
    """f32 rounded to 10 mantissa bits, ties away from zero; infinities and NaN kept."""
    bits = (x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), bits.view(F32), x)


@rule(ops.Dot)
@np.errstate(all="ignore")
def _(op: ops.Dot, a: Array, b: Array, c: Array) -> Array:
    if a.dtype == F32 and op.input_precision == "tf32":
        a, b = round_to_tf32(a), round_to_tf32(b)
    instruction = instruction_of(op)
    return instruction_products(a, b, c, a.shape[-1] if instruction is None else instruction.k)


@np.errstate(all="ignore")
def instruction_products(a: Array, b: Array, c: Array, step: int) -> Array:
    """a @ b + c, rounded after each instruction of `step` along k, so that a dot may be cut."""
    a, b = a.astype(F64), b.astype(F64)
    if not is_float(c.dtype):
        # Sums of 8-bit products stay below 2^53, so f64 holds them exactly before they wrap.
        return np.asarray(np.matmul(a, b).astype(np.int64).astype(c.dtype) + c)
    for k in range(0, a.shape[-1], step):
        # Contiguous, or numpy may sum in another order.
        left, right = map(np.ascontiguousarray, (a[..., k:k + step], b[..., k:k + step, :]))
        c = cast(np.asarray(np.matmul(left, right) + c.astype(F64)), c.dtype)
    return c


PLAIN = Numbers(rule, dtype_of, np.asarray, instruction_products)
