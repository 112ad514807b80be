"""Functions that put the elements of tiles in another order, or count them."""

from __future__ import annotations

from typing import Any

from tilec.ir import ops
from tilec.language import dtypes as dt
from tilec.language.casting import convert
from tilec.language.context import error
from tilec.language.reduction import indices
from tilec.language.selection import where
from tilec.language.semantic import emit, sub
from tilec.language.shape import require_tile, wrap_axis
from tilec.language.values import builtin, const_int, const_value, describe, method, tensor


@method("gather")
@builtin
def gather(src: Any, index: Any, axis: Any) -> tensor:
    """The element of `src` at each place of `index`, but for the coordinate along `axis`, which is
    the index there: shape of `index`, dtype of `src`.

    index: a tile of integers with the rank of `src`, and its extents but for that along `axis`.
    What an index outside of 0 .. extent - 1 gives must not be used.
    """
    x, at = require_tile(src, "tl.gather"), require_tile(index, "tl.gather")
    along = wrap_axis(axis, x.rank, "tl.gather")
    if not at.dtype.is_int() or at.dtype.is_bool():
        raise error(f"tl.gather: the index is {describe(at)}, expected integers",
                    "cast it, as by `.to(tl.int32)`")
    if _others(x, along) != _others(at, along) or x.rank != at.rank:
        raise error(f"tl.gather: {x} and its index, {at}, differ in another extent than that of "
                    f"axis {along}", "broadcast them first: tl.broadcast_to(index, shape)")
    return emit(ops.Gather(x.handle, at.handle, axis=along))


def _others(x: tensor, axis: int) -> tuple[int, ...]:
    return x.shape[:axis] + x.shape[axis + 1:]


@method("histogram")
@builtin
def histogram(input: Any, num_bins: Any, mask: Any = None) -> tensor:
    """How many elements of a tile of one dimension are 0, 1, ..., num_bins - 1: int32[num_bins].

    input: integers, of which others count nowhere; mask: those with a false one do not either.
    """
    x, bins = require_tile(input, "tl.histogram"), const_int(num_bins, "num_bins")
    if not x.dtype.is_int() or x.rank != 1:
        raise error(f"tl.histogram takes integers in one dimension, found {x}",
                    "cast them, as by `.to(tl.int32)`; tl.ravel(x) has one dimension")
    if not 0 < bins <= ops.MAX_ELEMENTS:
        raise error(f"tl.histogram: num_bins is {bins}, expected 1 to {ops.MAX_ELEMENTS}",
                    "count in several passes")
    if mask is not None:
        x = convert(x, dt.int32) if x.dtype.primitive_bitwidth < 32 else x
        none = -1 if x.dtype.is_int_signed() else (1 << x.dtype.primitive_bitwidth) - 1
        x = where(mask, x, none)
    return emit(ops.Histogram(x.handle, bins=bins))


def dimension(dim: Any, x: tensor, what: str) -> int:
    """A dimension argument as 0 .. rank - 1; None is the last one."""
    last = const_value(dim, f"the dimension of {what}") is None
    return wrap_axis(-1 if last else dim, x.rank, what)


@method("flip")
@builtin
def flip(x: Any, dim: Any = None) -> tensor:
    """The elements along `dim`, the last dimension by default, in reverse."""
    tile = require_tile(x, "tl.flip")
    axis = dimension(dim, tile, "tl.flip")
    index = sub(tile.shape[axis] - 1, indices(tile.shape, axis))
    return emit(ops.Gather(tile.handle, index.handle, axis=axis))
