"""Block pointers: a window that moves over a matrix in memory, rewritten to pointers and masks at
each load and store, so that nothing below the language knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from tilec.ir import ops
from tilec.language import dtypes as dt
from tilec.language.casting import cast
from tilec.language.context import error
from tilec.language.creation import arange, check_shape
from tilec.language.selection import maximum, minimum
from tilec.language.shape import insert_axes
from tilec.language.values import (
    builtin,
    const_ints,
    constant,
    describe,
    is_number,
    tensor,
    unwrap,
)


@dataclass(frozen=True)
class BlockForm:
    """What is known at compile time of a block pointer; one object for equal ones, since control
    flow compares such things by identity."""

    block_shape: tuple[int, ...]
    order: tuple[int, ...]

    def __repr__(self) -> str:
        return f"blocks of {list(self.block_shape)} in order {list(self.order)}"


_form = lru_cache(maxsize=None)(BlockForm)


class block_pointer(NamedTuple):
    """A window of form.block_shape at `offsets` of a matrix of extents `shape` and `strides`, in
    elements, whose first element is at `base`. A tuple, so that control flow carries its parts:
    base is a scalar pointer, shape and strides are int64 scalars, offsets int32 scalars."""

    base: tensor
    shape: tuple[tensor, ...]
    strides: tuple[tensor, ...]
    offsets: tuple[tensor, ...]
    form: BlockForm

    @property
    def dtype(self) -> dt.pointer_type:
        """The type of `base`."""
        t = self.base.dtype
        assert isinstance(t, dt.pointer_type)
        return t

    @property
    def type(self) -> dt.pointer_type:
        """A pointer to the type of its block."""
        return dt.pointer_type(dt.block_type(self.dtype.element_ty, self.block_shape))

    @property
    def block_shape(self) -> tuple[int, ...]:
        """The extents of the window."""
        return self.form.block_shape

    @builtin
    def advance(self, offsets: Any) -> block_pointer:
        """The window moved by `offsets`, one integer for each dimension."""
        by = scalars(offsets, dt.int32, "the offsets of tl.advance", len(self.offsets))
        # A loop does not carry an offset that stays the same value.
        moved = [a if constant_of(b) == 0 else _add(a, b)
                 for a, b in zip(self.offsets, by, strict=True)]
        return self._replace(offsets=tuple(moved))

    def __add__(self, other: Any) -> NoReturn:
        raise error(f"a {self} does not move by `+`", "tl.advance(p, (rows, columns)) moves it")

    def __repr__(self) -> str:
        return f"block pointer to {self.dtype.element_ty.name}{list(self.block_shape)}"


def scalars(values: Any, t: dt.dtype, what: str, rank: int,
            advice: str = "give one for each dimension of the block") -> tuple[tensor, ...]:
    """Integers as scalars of type `t`, one for each of `rank` dimensions."""
    values = unwrap(values)
    if not isinstance(values, (tuple, list)) or len(values) != rank:
        found = f"{len(values)}" if isinstance(values, (tuple, list)) else describe(values)
        raise error(f"{what}: found {found}, expected {rank} integers in a tuple", advice)
    return tuple(_scalar(unwrap(x), t, what) for x in values)


def _scalar(x: Any, t: dt.dtype, what: str) -> tensor:
    if is_number(x) and not isinstance(x, float):
        if t == dt.int32 and not -2**31 <= x < 2**31:
            raise error(f"{what}: {x} does not fit int32", "add what is more to the base pointer")
        return constant(x, t)
    if not isinstance(x, tensor) or x.shape or not x.dtype.is_int():
        raise error(f"{what}: found {describe(x)}, expected an integer scalar",
                    "every dimension has one number")
    if t == dt.int32 and x.dtype.primitive_bitwidth > 32:
        raise error(f"{what}: found {x}, expected 32 bits or fewer",
                    "convert it by `.to(tl.int32)`; add what is more to the base pointer")
    return cast(x, t)


def _add(a: Any, b: Any) -> tensor:
    result: tensor = a + b
    return result


def constant_of(x: tensor) -> int | None:
    """The value of a scalar that is a constant."""
    made = x.handle.op
    return int(made.value) if isinstance(made, ops.Constant) else None


@builtin
def make_block_ptr(base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any,
                   order: Any) -> block_pointer:
    """A block pointer, for `load`, `store` and `advance`: the window of `block_shape` at `offsets`
    of the matrix at `base` with extents `shape` and `strides`, all in elements.

    base: a scalar pointer. shape, strides, offsets: a tuple of integers, known at compile time or
    not; offsets have 32 bits. block_shape: a tuple of extents. order: the dimensions from the
    fastest in memory on; a hint, for the compiler finds out by itself.
    """
    if not isinstance(base, tensor) or not base.dtype.is_ptr() or base.shape:
        raise error(f"tl.make_block_ptr: the base is {describe(base)}, expected a scalar pointer",
                    "give the pointer of the whole matrix, and where the block lies as `offsets`")
    extents = check_shape(block_shape, "tl.make_block_ptr")
    rank = len(extents)
    if not rank:
        raise error("tl.make_block_ptr: the block has no dimension",
                    "tl.load(ptr + offset) reads one element")
    dims = const_ints(order, "the order of tl.make_block_ptr")
    if sorted(dims) != list(range(rank)):
        raise error(f"tl.make_block_ptr: order {list(dims)} does not name the {rank} dimensions of "
                    "the block once", "row-major is (1, 0), column-major (0, 1)")
    whole, steps = (scalars(x, dt.int64, f"the {name} of tl.make_block_ptr", rank)
                    for x, name in ((shape, "shape"), (strides, "strides")))
    start = scalars(offsets, dt.int32, "the offsets of tl.make_block_ptr", rank)
    return block_pointer(base, whole, steps, start, _form(extents, dims))


@builtin
def advance(base: Any, offsets: Any) -> block_pointer:
    """The block pointer `base` moved by `offsets`, one integer for each dimension."""
    if not isinstance(base, block_pointer):
        raise error(f"tl.advance: found {describe(base)}, expected a block pointer",
                    "tl.make_block_ptr makes one; an ordinary pointer moves by `+`")
    return base.advance(offsets)


def _index(x: block_pointer, dim: int) -> tensor:
    """0 .. extent - 1 along `dim`, as a tile that broadcasts to the block."""
    others = [d for d in range(len(x.block_shape)) if d != dim]
    return insert_axes(arange(0, x.block_shape[dim]), others)


def pointers(x: block_pointer) -> tensor:
    """The block's addresses. Only a scalar depends on the offsets: the tile is the same in every
    iteration of a loop."""
    start: Any = x.base
    tile: Any = None
    for d, (offset, stride) in enumerate(zip(x.offsets, x.strides, strict=True)):
        wide: Any = cast(offset, dt.int64)
        index: Any = cast(_index(x, d), dt.int64)
        start, term = start + wide * stride, index * stride
        tile = term if tile is None else tile + term
    result: tensor = start + tile
    return result


def inside(x: block_pointer, dims: Sequence[int]) -> tensor | None:
    """Which elements of the block lie within the matrix along `dims`; None for no dims."""
    mask: Any = None
    for d in dims:
        n = x.block_shape[d]
        offset: Any = x.offsets[d]
        extent: Any = x.shape[d]
        index: Any = _index(x, d)
        room = extent - cast(offset, dt.int64)
        # Cut to the block's extent, the bound fits int32, which tiles compare faster.
        part = index < cast(maximum(minimum(room, n), 0), dt.int32)
        start = constant_of(offset)
        if start is None or start < 0:
            part = part & (index >= maximum(minimum(-offset, n), 0))
        mask = part if mask is None else mask & part
    return mask
