"""Tensor descriptors: a tensor in memory that is read and written in blocks. What lies outside of
it reads as padding and is never written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from tilec.ir import ops
from tilec.ir.core import Value
from tilec.language import dtypes as dt
from tilec.language.block_pointers import constant_of, scalars
from tilec.language.casting import cast, common_shape
from tilec.language.context import current, error
from tilec.language.creation import arange, check_shape
from tilec.language.memory import check_atomic, filled, load, pointee_of, store, writable
from tilec.language.semantic import emit, shapes_of
from tilec.language.shape import insert_axes
from tilec.language.values import builtin, const_value, constant, describe, tensor, unwrap

MOST_DIMENSIONS = 5
MAKE_DESCRIPTOR = "pass a tilec.TensorDescriptor, or make one by tl.make_tensor_descriptor"
PADDINGS = {"zero": 0, "nan": float("nan")}


@dataclass(frozen=True)
class DescriptorForm:
    """What is known at compile time of a descriptor. `check_form` gives one object for equal ones,
    since control flow compares such things by identity."""

    block_shape: tuple[int, ...]
    padding: str

    def __repr__(self) -> str:
        return f"blocks of {list(self.block_shape)} padded with {self.padding}"


_form = lru_cache(maxsize=None)(DescriptorForm)


class tensor_descriptor(NamedTuple):
    """A tensor of extents `shape` whose first element is at `base`, in blocks of
    form.block_shape. A tuple, so that control flow carries its parts: base is a scalar pointer,
    shape are int32 scalars, outer_strides int64 scalars, of all dimensions but the last, whose
    stride is 1."""

    base: tensor
    shape: tuple[tensor, ...]
    outer_strides: tuple[tensor, ...]
    form: DescriptorForm

    @property
    def dtype(self) -> dt.dtype:
        """The type of the tensor's elements."""
        return pointee_of(self.base)

    @property
    def strides(self) -> tuple[tensor, ...]:
        """How many elements apart neighbours are along each dimension: int64 scalars."""
        return (*self.outer_strides, constant(1, dt.int64))

    @property
    def block_shape(self) -> tuple[int, ...]:
        """The extents of a block."""
        return self.form.block_shape

    @builtin
    def load(self, offsets: Any) -> tensor:
        """The block that begins at `offsets`, an int32 for each dimension; elements outside of the
        tensor are what `padding_option` said."""
        place = self._place(offsets, "load")
        return emit(ops.DescriptorLoad(self.base.handle, place, block=self.block_shape,
                                       padding=self.form.padding))

    @builtin
    def store(self, offsets: Any, value: Any) -> None:
        """Write `value`, converted to the tensor's dtype and broadcast to the block, to the block
        that begins at `offsets`; elements outside of the tensor are left out."""
        block = self._block(value, "store")
        current().builder.insert(ops.DescriptorStore(
            self.base.handle, block, self._place(offsets, "store"), block=self.block_shape))

    @builtin
    def atomic_add(self, offsets: Any, value: Any) -> None:
        """Like `store`, but adds to what is there, element by element, atomically (relaxed, for the
        GPU). dtypes as for tl.atomic_add."""
        self._update("add", offsets, value)

    @builtin
    def atomic_max(self, offsets: Any, value: Any) -> None:
        """Like `atomic_add`, but the greater of the two stays."""
        self._update("max", offsets, value)

    @builtin
    def atomic_min(self, offsets: Any, value: Any) -> None:
        """Like `atomic_add`, but the lesser of the two stays."""
        self._update("min", offsets, value)

    @builtin
    def atomic_and(self, offsets: Any, value: Any) -> None:
        """Like `atomic_add`, but the bits that both have stay; 32- and 64-bit integers."""
        self._update("and", offsets, value)

    @builtin
    def atomic_or(self, offsets: Any, value: Any) -> None:
        """Like `atomic_and`, but sets the bits of `value`."""
        self._update("or", offsets, value)

    @builtin
    def atomic_xor(self, offsets: Any, value: Any) -> None:
        """Like `atomic_and`, but flips the bits of `value`."""
        self._update("xor", offsets, value)

    @builtin
    def gather(self, x_offsets: Any, y_offset: Any) -> tensor:
        """Rows of a matrix: a tile [n, block_shape[1]] whose row i is what the block at
        (x_offsets[i], y_offset) holds. The blocks have one row; x_offsets: an integer tile [n]."""
        pointers, inside = self._rows(x_offsets, y_offset, "gather")
        return load(pointers, inside, PADDINGS[self.form.padding])

    @builtin
    def scatter(self, value: Any, x_offsets: Any, y_offset: Any) -> None:
        """Write the rows of `value`, converted to the tensor's dtype and broadcast to
        [n, block_shape[1]], to where `gather` reads them; what lies outside of the tensor is left
        out."""
        pointers, inside = self._rows(x_offsets, y_offset, "scatter")
        store(pointers, value, inside)

    def _rows(self, x_offsets: Any, y_offset: Any, what: str) -> tuple[tensor, tensor]:
        """(pointers, which are inside) of the blocks at (x_offsets[i], y_offset)."""
        what = f"tl.tensor_descriptor.{what}"
        if len(self.block_shape) != 2 or self.block_shape[0] != 1:
            raise error(f"{what}: the blocks are {list(self.block_shape)}, expected one row",
                        "make the descriptor with block_shape=[1, columns]")
        if not isinstance(x_offsets, tensor) or len(x_offsets.shape) != 1 or \
                not x_offsets.dtype.is_int() or x_offsets.dtype.primitive_bitwidth > 32:
            raise error(f"{what}: x_offsets is {describe(x_offsets)}, expected a tile of rank 1 of "
                        "integers of 32 bits or fewer", "load the indices of the rows first")
        (start,) = scalars((y_offset,), dt.int32, f"the y_offset of {what}", 1)
        row: Any = insert_axes(cast(x_offsets, dt.int32), [1])
        column: Any = insert_axes(arange(0, self.block_shape[1]), [0])
        column = column + start
        height: Any
        width: Any
        height, width = self.shape
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        base: Any = self.base
        stride: Any = self.outer_strides[0]
        rows = base + cast(row, dt.int64) * stride
        return rows + column, inside

    def _update(self, kind: str, offsets: Any, value: Any) -> None:
        name = f"atomic_{kind}"
        check_atomic(kind, self.dtype, f"tl.tensor_descriptor.{name}")
        block = self._block(value, name)
        current().builder.insert(ops.DescriptorAtomic(
            self.base.handle, block, self._place(offsets, name), block=self.block_shape, kind=kind))

    def _place(self, offsets: Any, what: str) -> list[Value]:
        """The operands that describe the tensor and where the block begins."""
        at = block_offsets(self, offsets, f"tl.tensor_descriptor.{what}")
        return [x.handle for x in (*self.shape, *self.strides, *at)]

    def _block(self, value: Any, what: str) -> Value:
        """A value to be written, as a block."""
        what = f"tl.tensor_descriptor.{what}"
        writable(self.base, what)
        block = self.block_shape
        if common_shape(f"{what}, block and value", block, *shapes_of((value,))) != block:
            raise error(f"{what}: the value is {describe(value)}, the blocks are {list(block)}",
                        "the value must broadcast to the block")
        return filled(value, self.dtype, block)

    def __repr__(self) -> str:
        return f"descriptor of {self.dtype.name}{list(self.block_shape)} blocks"


def block_offsets(desc: tensor_descriptor, offsets: Any, what: str) -> tuple[tensor, ...]:
    """Where a block of `desc` begins, an int32 scalar for each dimension."""
    block, names = list(desc.block_shape), ", ".join("ijklm"[:len(desc.block_shape)])
    return scalars(offsets, dt.int32, f"the offsets of {what}", len(block), "the descriptor's "
                   f"blocks are {block}: write [{names}], an offset for each dimension")


def check_form(block_shape: Any, padding: Any, t: dt.dtype, what: str) -> DescriptorForm:
    """The form of a descriptor of a tensor of `t`; CompilationError for a block or padding that
    there is not."""
    block = check_shape(block_shape, what)
    if not 1 <= len(block) <= MOST_DIMENSIONS:
        raise error(f"{what}: the block has {len(block)} dimensions, expected 1 to "
                    f"{MOST_DIMENSIONS}", "tl.load(ptr + offset) reads one element")
    if padding not in PADDINGS:
        raise error(f"{what}: padding_option is {padding!r}, expected 'zero' or 'nan'",
                    "leave it out for zeros")
    if padding == "nan" and not t.is_floating():
        raise error(f"{what}: padding_option is 'nan' for {t}", "integers have no NaN; use 'zero'")
    return _form(block, padding)


@builtin
def make_tensor_descriptor(base: Any, shape: Any, strides: Any, block_shape: Any,
                           padding_option: str = "zero") -> tensor_descriptor:
    """A descriptor, for `load`, `store`, atomics, `gather` and `scatter`, of the tensor at `base`
    with extents `shape` and `strides`, in elements, in blocks of `block_shape`.

    base: a scalar pointer. shape: a tuple of 1 to 5 int32. strides: as many integers; the last
    one is the number 1. block_shape: a tuple of extents known at compile time. padding_option: what
    elements outside of the tensor read as, "zero" or "nan".
    """
    what = "tl.make_tensor_descriptor"
    if not isinstance(base, tensor) or not base.dtype.is_ptr() or base.shape:
        raise error(f"{what}: the base is {describe(base)}, expected a scalar pointer",
                    "give the pointer of the whole tensor, and where a block lies to its `load`")
    padding = const_value(padding_option, "padding_option")
    form = check_form(block_shape, padding, pointee_of(base), what)
    rank = len(form.block_shape)
    extents = scalars(shape, dt.int32, f"the shape of {what}", rank)
    steps = scalars(strides, dt.int64, f"the strides of {what}", rank)
    if constant_of(steps[-1]) != 1:
        raise error(f"{what}: the last stride is {describe(unwrap(strides)[-1])}, expected the "
                    "number 1", "neighbours along the last dimension lie side by side; order the "
                    "dimensions so, and write 1")
    return tensor_descriptor(base, extents, steps[:-1], form)


def _descriptor(x: Any, what: str) -> tensor_descriptor:
    if not isinstance(x, tensor_descriptor):
        raise error(f"{what}: found {describe(x)}, expected a tensor descriptor",
                    MAKE_DESCRIPTOR)
    return x


@builtin
def load_tensor_descriptor(desc: Any, offsets: Any) -> tensor:
    """desc.load(offsets)"""
    return _descriptor(desc, "tl.load_tensor_descriptor").load(offsets)


@builtin
def store_tensor_descriptor(desc: Any, offsets: Any, value: Any) -> None:
    """desc.store(offsets, value)"""
    _descriptor(desc, "tl.store_tensor_descriptor").store(offsets, value)
