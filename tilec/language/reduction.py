"""Reductions along an axis: the general `reduce`, and those with a name."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tilec.frontend.function import Function
from tilec.ir import ops
from tilec.ir.core import Block
from tilec.language import combine
from tilec.language import dtypes as dt
from tilec.language.casting import as_dtype, convert, spread
from tilec.language.context import current, error
from tilec.language.creation import arange
from tilec.language.semantic import add, mul, refuse_fp8
from tilec.language.shape import insert_axes, require_tile, wrap_axis
from tilec.language.values import builtin, const_value, describe, method, tensor, unwrap


def combine_region(dtypes: Sequence[dt.dtype], combine_fn: Any, what: str) -> Block:
    """The region of a reduction or scan: `combine_fn` on scalars, its value checked and yielded."""
    context = current()
    scalars = [t.ir for t in dtypes]
    body = Block([*scalars, *scalars])  # type: ignore[list-item]
    args = [tensor(a) for a in body.args]
    with context.inside(body):
        if getattr(combine_fn, "__tilec_builtin__", False):
            out = combine_fn(*args)
        elif isinstance(combine_fn, Function):
            out = context.call(combine_fn, tuple(args), {})
        else:
            raise error(f"{what}: the combine function is {describe(combine_fn)}, expected a "
                        "@tilec.jit function", "decorate it with @tilec.jit")
        results = [unwrap(v) for v in (out if isinstance(out, (tuple, list)) else (out,))]
        _check_combined(results, dtypes, what)
        context.builder.insert(ops.Yield([v.handle for v in results]))
    return body


def _check_combined(results: Sequence[Any], dtypes: Sequence[dt.dtype], what: str) -> None:
    """CompilationError unless a combine function gave one scalar of each dtype."""
    if len(results) == len(dtypes) and all(
            isinstance(v, tensor) and v.type == t for v, t in zip(results, dtypes, strict=True)):
        return
    want = ", ".join(f"{t} scalar" for t in dtypes)
    raise error(f"{what}: the combine function gives ({', '.join(map(describe, results))}), "
                f"expected ({want})", "it takes two values (or two groups of values) and gives "
                "one of the same types; cast its result by `.to(...)`")


def tiles_of_one_shape(input: Any, what: str) -> list[tensor]:
    """The tiles that are combined together, one or a tuple of them; CompilationError if they differ
    in shape."""
    many = isinstance(input, (tuple, list))
    tiles = [require_tile(x, what) for x in map(unwrap, input if many else (input,))]
    if not tiles:
        raise error(f"{what}: no tile is given", "pass a tile, or a tuple of tiles")
    for x in tiles:
        if x.shape != tiles[0].shape:
            raise error(f"{what}: the tiles differ in shape: {tiles[0]} and {x}",
                        "broadcast them first: tl.broadcast(x, y)")
    return tiles


def _reduce(inputs: Sequence[tensor], axis: int | None, combine_fn: Any) -> list[tensor]:
    """Reduce along `axis`, or for None along all, the last one first: that costs no reshape, and
    the order is free."""
    values = list(inputs)
    axes = [axis] if axis is not None else [*range(values[0].rank)][::-1]
    for one in axes:
        body = combine_region([x.dtype for x in values], combine_fn, "tl.reduce")
        op = current().builder.insert(ops.Reduce([x.handle for x in values], axis=one, body=body))
        values = [tensor(r) for r in op.results]
    return values


def _keep(x: tensor, shape: tuple[int, ...], axis: int | None) -> tensor:
    """A reduced value with extents of 1 where `shape` was reduced."""
    return insert_axes(x, [axis] if axis is not None else [*range(len(shape))])


@method("reduce")
@builtin
def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: bool = False) -> Any:
    """Combine the elements of `input` along `axis` by `combine_fn`, a jit function.

    input: a tile, or a tuple of tiles of one shape; combine_fn(a, b) of two scalars gives one, or
    for n tiles combine_fn(a1, ..., an, b1, ..., bn) gives n. It must be associative and
    commutative: the order is unspecified. axis: an int, or None to reduce all elements.
    The axis disappears (a tile of one dimension gives a scalar), or with keep_dims stays with
    extent 1. Errors: shapes that differ, an axis that is out of range, a combine function that
    gives other types.
    """
    inputs = tiles_of_one_shape(input, "tl.reduce")
    shape = inputs[0].shape
    wrapped: int | None = None
    if const_value(axis, "the axis of tl.reduce") is not None:
        wrapped = wrap_axis(axis, len(shape), "tl.reduce")
    results = _reduce(inputs, wrapped, combine_fn)
    if const_value(keep_dims, "keep_dims") and shape:
        results = [_keep(x, shape, wrapped) for x in results]
    return tuple(results) if isinstance(input, (tuple, list)) else results[0]


def number_tile(input: Any, what: str) -> tensor:
    """`input`, if it is a tile of numbers that can be computed with; else CompilationError."""
    x = require_tile(input, what)
    if x.dtype.is_ptr():
        raise error(f"{what} takes numbers, found {x}", "load what the pointers point at first")
    refuse_fp8(what, x.dtype)
    return x


@method("sum")
@builtin
def sum(input: Any, axis: Any = None, keep_dims: bool = False, dtype: Any = None) -> tensor:
    """The sum along `axis` (None: of all elements); see `reduce` for the shape.

    dtype: what `input` is cast to first; by default integers narrower than 32 bits become int32
    or uint32 by signedness (bool: uint32), others stay. float16 and bfloat16 are added up in
    float32 and rounded once.
    """
    x = number_tile(input, "tl.sum")
    t = sum_dtype(x.dtype, dtype, "tl.sum")
    return convert(reduce(convert(convert(x, t), carried(t)), axis, combine.add, keep_dims), t)


def sum_dtype(have: dt.dtype, dtype: Any, what: str) -> dt.dtype:
    """The dtype of a sum of elements of type `have`, for which the author may have asked."""
    t = have
    if dtype is not None:
        t = as_dtype(dtype, f"the dtype of {what}")
    elif t.is_int() and t.primitive_bitwidth < 32:
        t = dt.int32 if t.is_int_signed() else dt.uint32
    refuse_fp8(what, t)
    return t


def carried(t: dt.dtype) -> dt.dtype:
    """The dtype in which partial sums and products are carried for results of type `t`."""
    return dt.float32 if t.is_floating() and t.primitive_bitwidth < 32 else t


def _widened(x: tensor) -> tensor:
    """What max and min compute in: types narrower than 32 bits become float32 or int32."""
    if x.dtype.primitive_bitwidth >= 32:
        return x
    return convert(x, dt.float32 if x.dtype.is_floating() else dt.int32)


def indices(shape: tuple[int, ...], axis: int | None) -> tensor:
    """The index along `axis` of every element, or for None the index in row-major order: int32."""
    out = None
    for i in range(len(shape)) if axis is None else (axis,):
        others = [j for j in range(len(shape)) if j != i]
        index = insert_axes(arange(0, shape[i]), others)
        stride = prod(shape[i + 1:]) if axis is None else 1
        index = mul(index, stride) if stride > 1 else index
        out = index if out is None else add(out, index)
    assert out is not None
    return spread(out, shape)


def _with_index(x: tensor, axis: Any, combine_fn: Any, keep_dims: Any,
                what: str) -> tuple[tensor, tensor]:
    """Extreme values and their indices along `axis`; the index in row-major order for None."""
    if x.dtype == dt.bfloat16:
        x = convert(x, dt.float32)
    shape = x.shape
    if not shape:
        raise error(f"{what}: {x} has no axis", "a scalar is its own extreme, at no index")
    wrapped: int | None = None
    if const_value(axis, f"the axis of {what}") is not None:
        wrapped = wrap_axis(axis, x.rank, what)
    value, index = _reduce([x, indices(shape, wrapped)], wrapped, combine_fn)
    if const_value(keep_dims, "keep_dims"):
        return _keep(value, shape, wrapped), _keep(index, shape, wrapped)
    return value, index


@method("max")
@builtin
def max(input: Any, axis: Any = None, return_indices: bool = False,
        return_indices_tie_break_left: bool = True, keep_dims: bool = False) -> Any:
    """The greatest element along `axis` (None: of all); see `reduce` for the shape.

    A number wins over NaN. float16 and bfloat16 give float32, narrow integers int32. With
    return_indices a tuple of value and int32 index (then only bfloat16 changes its dtype); of
    equal elements the first one's index, or any with return_indices_tie_break_left=False.
    """
    x = number_tile(input, "tl.max")
    if const_value(return_indices, "return_indices"):
        left = const_value(return_indices_tie_break_left, "return_indices_tie_break_left")
        return _with_index(x, axis, combine.argmax_left if left else combine.argmax_any,
                           keep_dims, "tl.max")
    return reduce(_widened(x), axis, combine.maximum, keep_dims)


@method("min")
@builtin
def min(input: Any, axis: Any = None, return_indices: bool = False,
        return_indices_tie_break_left: bool = True, keep_dims: bool = False) -> Any:
    """The least element along `axis`; see `max`."""
    x = number_tile(input, "tl.min")
    if const_value(return_indices, "return_indices"):
        left = const_value(return_indices_tie_break_left, "return_indices_tie_break_left")
        return _with_index(x, axis, combine.argmin_left if left else combine.argmin_any,
                           keep_dims, "tl.min")
    return reduce(_widened(x), axis, combine.minimum, keep_dims)


@method("argmax")
@builtin
def argmax(input: Any, axis: Any, tie_break_left: bool = True, keep_dims: bool = False) -> tensor:
    """The int32 index of the greatest element along `axis` (None: of all, in row-major order).

    Of equal elements the first one's, or with tie_break_left=False any of them; a NaN never wins
    against a number.
    """
    return max(input, axis, True, tie_break_left, keep_dims)[1]


@method("argmin")
@builtin
def argmin(input: Any, axis: Any, tie_break_left: bool = True, keep_dims: bool = False) -> tensor:
    """The int32 index of the least element along `axis`; see `argmax`."""
    return min(input, axis, True, tie_break_left, keep_dims)[1]


@method("xor_sum")
@builtin
def xor_sum(input: Any, axis: Any = None, keep_dims: bool = False) -> tensor:
    """The exclusive or of integers along `axis` (None: of all); the dtype stays."""
    x = number_tile(input, "tl.xor_sum")
    if not x.dtype.is_int():
        raise error(f"tl.xor_sum takes integers, found {x}",
                    "reinterpret the bits first, as by `.to(tl.int32, bitcast=True)`")
    return reduce(x, axis, combine.xor, keep_dims)


@method("reduce_or")
@builtin
def reduce_or(input: Any, axis: Any = None, keep_dims: bool = False) -> tensor:
    """The bits that any of the integers along `axis` (None: of all) has; the dtype stays."""
    x = number_tile(input, "tl.reduce_or")
    if not x.dtype.is_int():
        raise error(f"tl.reduce_or takes integers, found {x}",
                    "compare with 0 first, as by `x != 0`")
    return reduce(x, axis, combine.bitwise_or, keep_dims)
