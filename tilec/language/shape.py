"""Functions that move elements and compute nothing: indexing with None, reshape, permute, ..."""

from __future__ import annotations

from math import prod
from typing import Any

from tilec.ir import ops
from tilec.ir import types as ir
from tilec.ir.core import Block
from tilec.language.casting import common_shape, splat, spread
from tilec.language.context import current, error
from tilec.language.creation import check_shape
from tilec.language.semantic import emit
from tilec.language.values import (
    builtin,
    const_int,
    const_ints,
    describe,
    method,
    tensor,
    to_tensor,
    unwrap,
    varargs,
)


def wrap_axis(axis: Any, rank: int, what: str) -> int:
    """An axis argument as 0 .. rank - 1; negative ones count from the end."""
    value = const_int(axis, f"the axis of {what}")
    if not -rank <= value < rank:
        if not rank:
            raise error(f"{what}: a scalar has no axis {value}",
                        "tl.full(shape, x, dtype) makes a tile of a scalar")
        raise error(f"{what}: axis {value} is out of range for {rank} dimensions",
                    f"expected {-rank} to {rank - 1}")
    return value % rank


def require_tile(x: Any, what: str) -> tensor:
    """`x`, if it is a tile or scalar tensor; CompilationError for anything else."""
    if not isinstance(x, tensor):
        raise error(f"{what}: expected a tile, found {describe(x)}",
                    "tl.full(shape, value, dtype) makes a tile of a number")
    return x


@method("__getitem__")
def index(x: tensor, key: Any) -> tensor:
    """`x[None, :]`: every None inserts a dimension of extent 1, every `:` keeps one.

    Errors: integers, slices with bounds, more `:` than dimensions.
    """
    keys = key if isinstance(key, tuple) else (key,)
    axes, kept = [], 0
    for i, k in enumerate(map(unwrap, keys)):
        if k is None:
            axes.append(i)
        elif isinstance(k, slice) and k.start is None and k.stop is None and k.step is None:
            kept += 1
        else:
            shown = "a slice with bounds" if isinstance(k, slice) else describe(k)
            raise error(f"cannot index {x} by {shown}: only `:` and `None` are possible",
                        "a tile's elements live in many threads; load the part that you need, or "
                        "reduce with a mask: tl.sum(tl.where(i == k, x, 0))")
    if kept > x.rank:
        raise error(f"{x} has {x.rank} dimensions, indexed by {kept} slices",
                    "write one `:` for each dimension")
    if not axes:
        return x
    # Dimensions that are not named follow, as in numpy.
    return insert_axes(x, axes)


def insert_axes(x: tensor, axes: list[int]) -> tensor:
    """Insert extents of 1 at `axes`, ascending positions in the result."""
    if not x.shape:
        return splat(x, (1,) * len(axes))
    handle, builder = x.handle, current().builder
    for axis in axes:
        handle = builder.emit(ops.ExpandDims(handle, axis=axis))
    return tensor(handle)


@method("expand_dims")
@builtin
def expand_dims(input: Any, axis: Any) -> tensor:
    """`input` with a dimension of extent 1 inserted at each of `axis`, one int or several; they
    count in the result, negative ones from its end."""
    x = to_tensor(input)
    given = const_ints(axis, "the axis of tl.expand_dims")
    rank = x.rank + len(given)
    axes = sorted(wrap_axis(a, rank, "tl.expand_dims") for a in given)
    if len(set(axes)) != len(axes):
        raise error(f"tl.expand_dims: axes {list(given)} name one place twice",
                    "every axis is a place in the result's shape")
    return insert_axes(x, axes)


@method("broadcast_to")
@builtin
def broadcast_to(input: Any, *shape: Any) -> tensor:
    """`input` repeated to `shape`, given as a tuple or as separate ints, by numpy's rules."""
    x = to_tensor(input)
    extents = check_shape(varargs(shape, "the shape of tl.broadcast_to"), "tl.broadcast_to")
    if common_shape("tl.broadcast_to", x.shape, extents) != extents:
        raise error(f"tl.broadcast_to: {x} does not broadcast to {list(extents)}",
                    "only extents of 1 repeat")
    return spread(x, extents)


@builtin
def broadcast(input: Any, other: Any) -> tuple[tensor, tensor]:
    """Both tiles, each broadcast to their common shape; dtypes stay."""
    a, b = to_tensor(input), to_tensor(other)
    shape = common_shape("tl.broadcast", a.shape, b.shape)
    return spread(a, shape), spread(b, shape)


def _reshape(x: tensor, extents: tuple[int, ...], what: str) -> tensor:
    if prod(extents) != x.numel:
        raise error(f"{what}: {x} has {x.numel} elements, shape {list(extents)} has "
                    f"{prod(extents)}", "the number of elements must stay")
    if x.shape == extents:
        return x
    if not x.shape:
        return splat(x, extents)
    if not extents:
        return item(x)
    return emit(ops.Reshape(x.handle, types=[ir.Tensor(extents, ir.element_of(x.handle.type))]))


@method("reshape")
@builtin
def reshape(input: Any, *shape: Any, can_reorder: bool = False) -> tensor:
    """The elements of `input`, in row-major order, as a tile of `shape` (a tuple, or separate
    ints) of as many elements. can_reorder: any order would do."""
    x = require_tile(input, "tl.reshape")
    return _reshape(x, check_shape(varargs(shape, "the shape of tl.reshape"), "tl.reshape"),
                    "tl.reshape")


@method("view")
@builtin
def view(input: Any, *shape: Any) -> tensor:
    """The same as `reshape`."""
    x = require_tile(input, "tl.view")
    return _reshape(x, check_shape(varargs(shape, "the shape of tl.view"), "tl.view"), "tl.view")


@method("ravel")
@builtin
def ravel(input: Any, can_reorder: bool = False) -> tensor:
    """The elements of `input` in row-major order, as a tile of one dimension."""
    x = require_tile(input, "tl.ravel")
    return _reshape(x, (x.numel,), "tl.ravel")


def _permute(x: tensor, order: tuple[int, ...], what: str) -> tensor:
    axes = tuple(wrap_axis(a, x.rank, what) for a in order)
    if sorted(axes) != list(range(x.rank)):
        raise error(f"{what}: {list(order)} does not permute the {x.rank} dimensions of {x}",
                    "name every dimension once")
    if axes == tuple(range(x.rank)):
        return x
    return emit(ops.Trans(x.handle, order=axes))


@method("permute")
@builtin
def permute(input: Any, *dims: Any) -> tensor:
    """`input` with its dimensions in another order: result dimension i is dimension dims[i].
    dims: a tuple, or separate ints."""
    x = require_tile(input, "tl.permute")
    return _permute(x, varargs(dims, "the dimensions of tl.permute"), "tl.permute")


@method("trans")
@builtin
def trans(input: Any, *dims: Any) -> tensor:
    """`permute`; without dims the last two dimensions are swapped."""
    x = require_tile(input, "tl.trans")
    if dims:
        return _permute(x, varargs(dims, "the dimensions of tl.trans"), "tl.trans")
    if x.rank < 2:
        raise error(f"tl.trans: {x} has {x.rank} dimensions, expected 2 or more",
                    "x[:, None] makes a column of a tile of one dimension")
    return _permute(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2), "tl.trans")


@method("item")
@builtin
def item(input: Any) -> tensor:
    """The only element of a tile of one element, as a scalar."""
    x = require_tile(input, "item")
    if x.numel != 1:
        raise error(f"item() of {x}: it has {x.numel} elements, expected 1",
                    "reduce it first, as by tl.sum")
    if not x.shape:
        return x
    flat = _reshape(x, (1,), "item")
    element = ir.element_of(x.handle.type)
    body = Block([element, element])
    body.insert(ops.Yield([body.args[0]]))
    return emit(ops.Reduce([flat.handle], axis=0, body=body))


tensor.T = property(lambda x: trans(x))  # type: ignore[attr-defined]
