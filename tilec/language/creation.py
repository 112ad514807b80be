"""Where values come from: the program's place in the grid, ranges, and constant tiles."""

from __future__ import annotations

from typing import Any

from tilec.ir import ops
from tilec.language import values
from tilec.language.casting import as_dtype, check_size, convert, splat
from tilec.language.context import error
from tilec.language.semantic import emit
from tilec.language.values import (
    builtin,
    const_int,
    const_ints,
    constant,
    describe,
    is_number,
    tensor,
)


def _axis(axis: Any, what: str) -> int:
    value = const_int(axis, f"the axis of {what}")
    if value not in (0, 1, 2):
        raise error(f"{what}: axis {value} is not 0, 1 or 2", "a grid has three axes")
    return value


@builtin
def program_id(axis: int) -> tensor:
    """This program's index along `axis` (0, 1 or 2) of the grid: an int32 scalar."""
    return emit(ops.ProgramId(axis=_axis(axis, "tl.program_id")))


@builtin
def num_programs(axis: int) -> tensor:
    """The grid's extent along `axis` (0, 1 or 2): an int32 scalar."""
    return emit(ops.NumPrograms(axis=_axis(axis, "tl.num_programs")))


def check_shape(shape: Any, what: str) -> tuple[int, ...]:
    """A shape argument as a tuple; CompilationError unless its extents are positive and few
    enough elements result."""
    extents = const_ints(shape, f"the shape of {what}")
    for n in extents:
        if n < 1:
            raise error(f"{what}: extent {n} in shape {list(extents)} is not positive",
                        "a tile has an element or more in each dimension")
    return check_size(extents, what)


@builtin
def arange(start: int, end: int) -> tensor:
    """start, start + 1, ..., end - 1: an int32 tile of shape [end - start], any positive extent.

    Both must be known at compile time.
    """
    low = const_int(start, "the start of tl.arange")
    high = const_int(end, "the end of tl.arange")
    if high <= low:
        raise error(f"tl.arange: end {high} is not above start {low}",
                    "the arguments are tl.arange(start, end), and a tile has an element or more")
    if not (-2**31 <= low and high <= 2**31):
        raise error(f"tl.arange: {low} to {high} does not fit int32",
                    "add the base to the range: `base + tl.arange(0, n)`")
    check_shape((high - low,), "tl.arange")
    return emit(ops.Arange(start=low, end=high))


@builtin
def full(shape: Any, value: Any, dtype: Any) -> tensor:
    """A tile of `shape` filled with `value`, a number or a scalar, converted to `dtype`.

    The shape () gives a scalar. Errors: a tile as value, a dtype that is none.
    """
    extents = check_shape(shape, "tl.full")
    t = as_dtype(dtype, "the dtype of tl.full")
    if is_number(value):
        return constant(value, t, extents)
    x = values.to_tensor(value)
    if x.shape:
        raise error(f"tl.full: found {x} as value, expected a number or a scalar",
                    "tl.broadcast_to repeats a tile")
    return splat(convert(x, t), extents)


@builtin
def zeros(shape: Any, dtype: Any) -> tensor:
    """A tile of `shape` filled with 0 of `dtype`."""
    extents = check_shape(shape, "tl.zeros")
    return constant(0, as_dtype(dtype, "the dtype of tl.zeros"), extents)


@builtin
def zeros_like(input: Any) -> tensor:
    """Zeros of the shape and dtype of `input`."""
    if not isinstance(input, tensor):
        raise error(f"tl.zeros_like: expected a tile, found {describe(input)}",
                    "tl.zeros(shape, dtype) takes a shape")
    return constant(0, input.dtype, input.shape)


@builtin
def to_tensor(x: Any) -> tensor:
    """`x`, a tile or scalar, as it is; a number as a scalar of its literal's type (`1` is int32,
    `1.0` float32)."""
    return values.to_tensor(x)
