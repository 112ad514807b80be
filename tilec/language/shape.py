"""Functions that move elements and compute nothing: indexing with None, reshape, permute, ..."""

from __future__ import annotations

from math import prod
from typing import Any

from tilec.ir import ops
from tilec.ir import types as ir
from tilec.ir.core import Block
from tilec.language.casting import check_size, common_shape, splat, spread
from tilec.language.context import current, error
from tilec.language.creation import check_shape
from tilec.language.semantic import coerce, emit, moved_dtype, shapes_of
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
    """`x[None, :]`: a None in place i inserts an extent of 1 there; dimensions that are not named
    follow, and more `:` than dimensions say nothing.

    Errors: integers, slices with bounds, a None with fewer dimensions than places before it.
    """
    keys = key if isinstance(key, tuple) else (key,)
    axes: list[int] = []
    for i, k in enumerate(map(unwrap, keys)):
        if k is None and i > x.rank + len(axes):
            raise error(f"a None in place {i} of the index of {x}, which has {x.rank + len(axes)} "
                        "dimensions there", "write one `:` for each dimension before it")
        if k is None:
            axes.append(i)
        elif not isinstance(k, slice) or (k.start, k.stop, k.step) != (None, None, None):
            shown = "a slice with bounds" if isinstance(k, slice) else describe(k)
            raise error(f"cannot index {x} by {shown}: only `:` and `None` are possible",
                        "a tile's elements live in many threads; load the part that you need, or "
                        "reduce with a mask: tl.sum(tl.where(i == k, x, 0))")
    return insert_axes(x, axes) if axes else x


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
    ints) of as many elements. can_reorder changes nothing."""
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


@method("item", "_unsplat")
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


# -- join and split -------------------------------------------------------------------------------

@builtin
def join(a: Any, b: Any) -> tensor:
    """`a` and `b` along a new last dimension of extent 2; a tile of [2] of two scalars. They
    broadcast, and are promoted like the operands of `+`, or pointers of one type."""
    return _join(a, b, "tl.join")


def _join(a: Any, b: Any, what: str) -> tensor:
    t = moved_dtype(what, a, b)
    shape = common_shape(what, *shapes_of((a, b)))
    check_size((*shape, 2), what)
    x, y = (coerce(v, t, shape or (1,)) for v in (a, b))
    pairs = emit(ops.Join(x.handle, y.handle))
    return pairs if shape else _reshape(pairs, (2,), what)


@method("split")
@builtin
def split(a: Any) -> tuple[tensor, tensor]:
    """Both halves of a tile whose last extent is 2, a[..., 0] and a[..., 1]; of a tile of [2] two
    scalars."""
    x = require_tile(a, "tl.split")
    if not x.shape or x.shape[-1] != 2:
        raise error(f"tl.split: the last extent of {x} is not 2",
                    "x.reshape(..., 2) makes pairs of neighbours; tl.permute brings a dimension "
                    "to the end")
    pairs = x if x.rank > 1 else _reshape(x, (1, 2), "tl.split")
    low, high = (emit(ops.Split(pairs.handle, index=i)) for i in range(2))
    return (low, high) if x.rank > 1 else (item(low), item(high))


@builtin
def interleave(a: Any, b: Any) -> tensor:
    """The elements of `a` and `b` in turn along the last dimension, which has twice the extent; a
    tile of [2] of two scalars. They broadcast and are promoted as by `join`."""
    pairs = _join(a, b, "tl.interleave")
    *outer, _ = pairs.shape
    return _reshape(pairs, (*outer[:-1], 2 * outer[-1]) if outer else (2,), "tl.interleave")


@builtin
def cat(input: Any, other: Any, can_reorder: bool = False, dim: Any = 0) -> tensor:
    """`input` followed by `other`, a tile of the same shape, along `dim`. They are promoted as by
    `join`; the order of elements is kept, whatever can_reorder says."""
    x, y = require_tile(input, "tl.cat"), require_tile(other, "tl.cat")
    axis = wrap_axis(dim, x.rank, "tl.cat")
    if x.shape != y.shape:
        raise error(f"tl.cat: {x} and {y} differ in shape",
                    "tiles of one shape are put together; store others one after the other")
    pairs = _permute(_join(x, y, "tl.cat"), (*range(axis), x.rank, *range(axis, x.rank)), "tl.cat")
    return _reshape(pairs, (*x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1:]), "tl.cat")


tensor.T = property(lambda x: trans(x))  # type: ignore[attr-defined]
