"""Buffers in shared memory: allocation, views, loads and stores, asynchronous copies to them."""

from __future__ import annotations

from math import prod
from typing import Any

from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.descriptors import tma_boxes
from tilec.ir.layouts import Layout, NvmmaShared, SharedLayout, plain_rows
from tilec.ir.tensor_maps import block_layout
from tilec.ir.types import MemDesc, Scalar, Tensor, TensorMap
from tilec.language import dtypes as dt
from tilec.language.block_pointers import constant_of, scalars
from tilec.language.casting import as_dtype, common_shape
from tilec.language.context import current, error
from tilec.language.creation import check_shape
from tilec.language.gpu.cluster import rank_of, remote_buffer
from tilec.language.gpu.support import buffer_view, need
from tilec.language.memory import filled, mask_of, pointee_of, pointer_of
from tilec.language.semantic import emit, shapes_of
from tilec.language.values import (
    Indexed,
    builtin,
    const_int,
    const_ints,
    const_value,
    describe,
    tensor,
)


class shared_buffer(buffer_view, Indexed):
    """A buffer in shared memory, or an array of them, whose elements `buffer[i]` are buffers.

    Between a store and a load by other threads the compiler puts barriers itself, unless TMA, wgmma
    or mbarriers use the buffer: then they are the author's. So are those of the cluster, where
    other programs read it.
    """

    @property
    def stages(self) -> int:
        """How many buffers there are in the array; 1 for a single one."""
        return self.memdesc.stages

    @property
    def layout(self) -> Layout:
        """Where in the buffer elements lie."""
        return self.memdesc.layout

    @property
    def nbytes(self) -> int:
        """Bytes of one buffer: what a copy by TMA brings."""
        return prod(self.shape) * self.memdesc.element.bytes

    @builtin
    def __getitem__(self, index: Any) -> shared_buffer:
        """Buffer `index`, an int32 below `stages`, of an array."""
        return shared_buffer(element_at(self.handle, index, str(self)))

    @property
    def T(self) -> shared_buffer:
        """A view of a buffer of two dimensions with these swapped."""
        return self.trans(1, 0)

    @builtin
    def trans(self, *order: Any) -> shared_buffer:
        """A view of a buffer whose dimension i is dimension order[i] of this one."""
        dims = const_ints(order[0] if len(order) == 1 else order, "the order of trans")
        self.check_single("trans")
        if sorted(dims) != list(range(len(self.shape))):
            raise error(f"the order {list(dims)} of a {self} is no permutation of its dimensions",
                        f"expected each of 0 to {len(self.shape) - 1} once")
        op = ops.MemdescTrans(self.handle, order=dims)
        return shared_buffer(current().builder.emit(op))

    @builtin
    def load(self) -> tensor:
        """The content, as a tile in registers."""
        self.check_single("load")
        t = Tensor(self.shape, self.memdesc.element)
        return emit(ops.SharedLoad(self.handle, types=[t]))

    @builtin
    def store(self, value: Any) -> None:
        """Fill the buffer with `value`, converted to its dtype and broadcast to its shape."""
        self.check_single("store")
        if common_shape(f"store to a {self}", self.shape, *shapes_of((value,))) != self.shape:
            raise error(f"cannot store {describe(value)} into a {self}",
                        "the value must broadcast to the buffer's shape")
        block = filled(value, self.dtype, self.shape)
        current().builder.insert(ops.SharedStore(self.handle, block))

    @builtin
    def at(self, rank: Any) -> remote_buffer:
        """The buffer that lies here in the program of this rank, an int32, of the cluster."""
        self.check_single("at")
        return remote_buffer(self.handle, rank_of(rank, "at"))

    def check_single(self, what: str) -> None:
        """CompilationError for an array of buffers."""
        if self.memdesc.staged:
            raise error(f"{what}: found a {self}, expected one buffer", "index it: buffer[i]")

    def __str__(self) -> str:
        array = f" array of {self.stages}" if self.memdesc.staged else ""
        return f"{self.dtype.name}{list(self.shape)} buffer{array}"

    __repr__ = __str__


def element_at(array: Value, index: Any, what: str) -> Value:
    """One buffer of an array."""
    t = array.type
    assert isinstance(t, MemDesc)
    if not t.staged:
        raise error(f"cannot index one {what}",
                    "allocate an array of them: stages=n")
    (at,) = scalars((index,), dt.int32, f"the index into {what}", 1)
    known = constant_of(at)
    if known is not None and not 0 <= known < t.stages:
        raise error(f"the index {known} into {what} is not in 0 to {t.stages - 1}",
                    f"slots are used in turn: `i % {t.stages}`; or allocate more by stages=n")
    return current().builder.emit(ops.MemdescIndex(array, at.handle))


def buffer_of(x: Any, what: str, shape: tuple[int, ...] | None = None) -> shared_buffer:
    """`x`, if it is a single buffer (of this shape); CompilationError for anything else."""
    if not isinstance(x, shared_buffer):
        raise error(f"{what}: found {describe(x)}, expected a buffer in shared memory",
                    "tlg.alloc_shared makes one, and its `store` fills it with a tile")
    x.check_single(what)
    if shape is not None and x.shape != shape:
        raise error(f"{what}: found a {x}, expected the shape {list(shape)}",
                    "buffer and block must have equal extents")
    return x


@builtin
def alloc_shared(shape: Any, dtype: Any, layout: Any = None, stages: Any = None) -> shared_buffer:
    """A buffer of this shape, or an array of `stages` of them, not initialised.

    layout: tlg.Swizzled, NvmmaShared or SharedLinear; by default, for two dimensions, the widest
    swizzle that TMA and wgmma have for such rows, or panels of 16 bytes where TMA can fill no
    other; else plain rows.
    """
    extents = check_shape(shape, "tlg.alloc_shared")
    element = as_dtype(dtype, "the dtype of tlg.alloc_shared").ir
    if not isinstance(element, Scalar) or not extents:
        raise error(f"tlg.alloc_shared: found {describe(dtype)} of shape {list(extents)}, expected "
                    "numbers, in one dimension or more", "write tlg.alloc_shared((64, 64), "
                    "tl.float16); for one number the shape is (1,)")
    layout = const_value(layout, "the layout of tlg.alloc_shared")
    if layout is None:
        layout = _default_layout(extents, element)
    if not isinstance(layout, SharedLayout):
        raise error(f"tlg.alloc_shared: the layout is {describe(layout)}, expected one of shared "
                    "memory", "tlg.Swizzled, NvmmaShared and SharedLinear make them")
    if layout.rank != len(extents):
        raise error(f"tlg.alloc_shared: {layout} is for {layout.rank} dimensions, the buffer has "
                    f"{len(extents)}", "leave the layout out for the default")
    count = () if const_value(stages, "stages") is None else (const_int(stages, "stages"),)
    if count and count[0] < 1:
        raise error(f"tlg.alloc_shared: stages is {count[0]}, expected 1 or more",
                    "leave it out for a single buffer")
    op = ops.AllocShared(types=[MemDesc((*count, *extents), element, layout)])
    return shared_buffer(current().builder.emit(op))


def _default_layout(extents: tuple[int, ...], element: Scalar) -> SharedLayout:
    plain = plain_rows(len(extents))
    if len(extents) != 2:
        return plain
    found: list[SharedLayout | None] = [block_layout(extents, element), plain]
    if element.bits >= 8:
        found.append(NvmmaShared(0, False, element.bits))
    for layout in found:
        try:
            if layout is not None:
                tma_boxes(TensorMap(extents, element, layout))
                return layout
        except ValueError:
            continue
    return plain


# -- asynchronous copies --------------------------------------------------------------------------

@builtin
def async_copy(pointer: Any, buffer: Any, mask: Any = None) -> None:
    """Begin to copy what a tile of pointers points at into a buffer of its shape (cp.async, 4 to 16
    bytes at once); elements where `mask` is false become zero.

    The copy belongs to the group that the next tlg.async_commit closes, and is there after a
    tlg.async_wait for it.
    """
    need("cp.async", "tlg.async_copy")
    pointer = pointer_of(pointer, "tlg.async_copy")
    target = buffer_of(buffer, "tlg.async_copy", pointer.shape)
    if target.dtype != pointee_of(pointer):
        raise error(f"tlg.async_copy: cannot copy {pointee_of(pointer)} into a {target}",
                    "copies convert nothing: load the tile, and store it by the buffer's `store`")
    masked = mask_of(mask, pointer.shape, "tlg.async_copy")
    current().builder.insert(ops.AsyncCopy(pointer.handle, target.handle, masked))


@builtin
def async_commit() -> None:
    """Close the group of asynchronous copies begun since the last commit."""
    need("cp.async", "tlg.async_commit")
    current().builder.insert(ops.AsyncCommit())


@builtin
def async_wait(pending: Any = 0) -> None:
    """Wait until at most the newest `pending` groups of asynchronous copies are under way."""
    need("cp.async", "tlg.async_wait")
    current().builder.insert(ops.AsyncWait(pending=const_int(pending, "pending")))
