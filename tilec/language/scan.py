"""Scans along an axis: the general `associative_scan`, and those with a name."""

from __future__ import annotations

from typing import Any

from tilec.ir import ops
from tilec.language import combine
from tilec.language import dtypes as dt
from tilec.language.casting import convert
from tilec.language.context import current
from tilec.language.reduction import (
    carried,
    combine_region,
    number_tile,
    sum_dtype,
    tiles_of_one_shape,
)
from tilec.language.shape import wrap_axis
from tilec.language.values import builtin, const_value, method, tensor


@method("associative_scan")
@builtin
def associative_scan(input: Any, axis: Any, combine_fn: Any, reverse: Any = False) -> Any:
    """Combine every element of `input` with all before it along `axis` by `combine_fn`, a jit
    function; with `reverse` with all after it, from the last one down.

    input: a tile, or a tuple of tiles of one shape, of which the result is one, too, of the same
    shape and dtypes; combine_fn(a, b) of two scalars gives one, or for n tiles
    combine_fn(a1, ..., an, b1, ..., bn) gives n. It must be associative; a comes before b in the
    order of the scan. Errors: shapes that differ, an axis that is out of range, a combine function
    that gives other types.
    """
    return _scan(input, axis, combine_fn, reverse, "tl.associative_scan")


def _scan(input: Any, axis: Any, combine_fn: Any, reverse: Any, what: str) -> Any:
    inputs = tiles_of_one_shape(input, what)
    op = ops.Scan([x.handle for x in inputs], axis=wrap_axis(axis, inputs[0].rank, what),
                  reverse=bool(const_value(reverse, "reverse")),
                  body=combine_region([x.dtype for x in inputs], combine_fn, what))
    results = tuple(map(tensor, current().builder.insert(op).results))
    return results if isinstance(input, (tuple, list)) else results[0]


def _widened(t: dt.dtype) -> dt.dtype:
    return dt.float32 if t == dt.bfloat16 else t


@method("cumsum")
@builtin
def cumsum(input: Any, axis: Any = 0, reverse: Any = False, dtype: Any = None) -> tensor:
    """The sums of the elements up to each one along `axis`, or with `reverse` from each one on.

    dtype: what `input` is cast to first, and the result's; by default integers narrower than 32
    bits become int32 or uint32 by signedness (bool: uint32), bfloat16 float32, others stay. float16
    is added up in float32, and each sum rounded once.
    """
    x = number_tile(input, "tl.cumsum")
    t = sum_dtype(_widened(x.dtype), dtype, "tl.cumsum")
    return convert(_scan(convert(convert(x, t), carried(t)), axis, combine.add, reverse,
                         "tl.cumsum"), t)


@method("cumprod")
@builtin
def cumprod(input: Any, axis: Any = 0, reverse: Any = False) -> tensor:
    """The products of the elements up to each one along `axis`, or with `reverse` from each one on.

    bfloat16 becomes float32, other dtypes stay. float16 is multiplied in float32, and each product
    rounded once.
    """
    x = number_tile(input, "tl.cumprod")
    t = _widened(x.dtype)
    return convert(_scan(convert(x, carried(t)), axis, combine.multiply, reverse, "tl.cumprod"), t)
