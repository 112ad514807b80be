"""Functions that put the elements of tiles in another order."""

from __future__ import annotations

from typing import Any

from tilec.ir import ops
from tilec.language.context import error
from tilec.language.reduction import indices
from tilec.language.semantic import emit, sub
from tilec.language.shape import require_tile, wrap_axis
from tilec.language.values import builtin, const_value, describe, method, tensor


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
