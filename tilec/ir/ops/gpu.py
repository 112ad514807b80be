"""Ops of the `gpu` and `lowered` levels: layout conversion, shared memory, barriers.

All are CTA-atomic: every thread of the CTA takes part at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir.core import Op, Value, attr, operand
from tilec.ir.fragment import fragment, is_part, shared_tile
from tilec.ir.layout_base import RegisterLayout, SharedLayout
from tilec.ir.layouts import Layout, same_layout
from tilec.ir.ops.base import Anchor, ExplicitType, Rearrange, ScratchOp
from tilec.ir.ops.memory import MemoryOp
from tilec.ir.types import (
    MemDesc,
    Tensor,
    Type,
    i32,
    layout_of,
    linear_shape,
    shape_of,
    with_layout,
)


class ConvertLayout(Rearrange, ScratchOp, ExplicitType, name="gpu.convert_layout"):
    """The same tile under another layout."""

    def infer(self) -> Sequence[Type]:
        src, dst = self.x.type, self.given()
        if not (isinstance(src, Tensor) and isinstance(dst, Tensor)) or \
                (src.shape, src.element) != (dst.shape, dst.element):
            raise self.fail(f"cannot convert {src} to {dst}")
        return (dst,)


class SetLayout(Rearrange, Anchor, name="gpu.set_layout"):
    """The same tile, in registers as its author wants it; passes keep this layout."""

    layout: Layout = attr(Layout)

    def infer(self) -> Sequence[Type]:
        t = self.x.type
        if not isinstance(t, Tensor) or not isinstance(self.layout, RegisterLayout):
            raise self.fail(f"{t} cannot have the layout {self.layout}")
        try:
            fragment(t.shape, self.layout)
        except ValueError as e:
            raise self.fail(str(e)) from None
        return (with_layout(t, None),)

    def check(self) -> None:
        for t in (self.x.type, self.result.type):
            have = layout_of(t)
            if have is not None and not same_layout(have, self.layout, linear_shape(shape_of(t))):
                raise self.fail(f"the tile is {t}, expected the layout {self.layout}")

    def wanted_layout(self, num_warps: int) -> Layout | None:
        assert isinstance(self.layout, RegisterLayout)
        if self.layout.num_warps != num_warps:
            raise self.fail(f"{self.layout} is for {self.layout.num_warps} warps, there are "
                            f"{num_warps}")
        return self.layout


class Barrier(Op, name="gpu.barrier", effects={"barrier"}):
    """All threads of the CTA wait for each other; shared and global accesses before it are
    visible after it (bar.sync 0). The author's `debug_barrier` is this op too."""


class GridDependencyWait(Op, name="gpu.grid_dependency_wait", effects={"barrier"}):
    """Wait until the grids before this one in the stream have ended and what they wrote is there
    (griddepcontrol.wait); at once if the launch was no programmatic dependent one."""


class GridDependencyLaunch(Op, name="gpu.grid_dependency_launch", effects={"barrier"}):
    """The grid after this one in the stream may begin, once all programs of this one have come here
    or have ended (griddepcontrol.launch_dependents). It sees this grid's writes after its own
    `gpu.grid_dependency_wait` only."""


class AllocShared(ExplicitType, name="gpu.alloc_shared", effects={"write_shared"}):
    """A buffer in shared memory, or an array of them (see MemDesc); `offset` in bytes is set by
    allocate_shared."""

    offset: int = attr(int, -1, least=-1)

    def infer(self) -> Sequence[Type]:
        t = self.given()
        if not isinstance(t, MemDesc):
            raise self.fail(f"result is {t}, expected a memdesc")
        if not isinstance(t.layout, SharedLayout):
            raise self.fail(f"{t.layout.name} is not a layout of shared memory")
        if len(t.shape) - t.layout.rank not in (0, 1):
            raise self.fail(f"{t} has a layout of rank {t.layout.rank}")
        try:
            shared_tile(t.tile_shape, t.layout)
        except ValueError as e:
            raise self.fail(str(e)) from None
        return (t,)


class MemdescIndex(Op, name="gpu.memdesc_index"):
    """One buffer of an array of buffers; the index must lie inside the array.

    ahead: if not -1, the index is (iteration + ahead) mod stages, where iteration counts those of
    the innermost loop from 0. Barriers that this makes needless are left out.
    """

    buffer: Value = operand()
    index: Value = operand()
    ahead: int = attr(int, -1, least=-1)

    def infer(self) -> Sequence[Type]:
        t = self.buffer.type
        if not (isinstance(t, MemDesc) and t.staged):
            raise self.fail(f"operand is {t}, expected an array of buffers")
        if self.index.type != i32:
            raise self.fail(f"index is {self.index.type}, expected i32")
        return (MemDesc(t.tile_shape, t.element, t.layout),)


class MemdescTrans(Op, name="gpu.memdesc_trans"):
    """A view of a buffer with its dimensions permuted: result dimension i is order[i]."""

    buffer: Value = operand()
    order: tuple[int, ...] = attr(tuple)

    def infer(self) -> Sequence[Type]:
        t = single_buffer(self, self.buffer)
        if sorted(self.order) != list(range(len(t.shape))):
            raise self.fail(f"order is {list(self.order)}, expected a permutation of "
                            f"{list(range(len(t.shape)))}")
        assert isinstance(t.layout, SharedLayout)
        return (MemDesc(tuple(t.shape[d] for d in self.order), t.element,
                        t.layout.permuted(self.order)),)


class SharedLoad(ExplicitType, name="gpu.shared_load", effects={"read_shared"}):
    """Read a buffer into a tile: all of it, or the part that starts at `offsets`, multiples of the
    part's extents, which divide the buffer's."""

    buffer: Value = operand()
    offsets: tuple[int, ...] = attr(tuple, ())

    def infer(self) -> Sequence[Type]:
        src, dst = single_buffer(self, self.buffer), self.given()
        if not isinstance(dst, Tensor) or src.element != dst.element or \
                not self.offsets and src.shape != dst.shape:
            raise self.fail(f"cannot load {dst} from {src}")
        if self.offsets and not is_part(src.shape, self.offsets, dst.shape):
            raise self.fail(f"{dst} at {list(self.offsets)} is no part of {src}")
        return (dst,)


class SharedStore(Op, name="gpu.shared_store", effects={"write_shared"}):
    """Write a tile into a whole buffer."""

    buffer: Value = operand()
    value: Value = operand()

    def infer(self) -> Sequence[Type]:
        dst, src = single_buffer(self, self.buffer), self.value.type
        if not isinstance(src, Tensor) or (src.shape, src.element) != (dst.shape, dst.element):
            raise self.fail(f"cannot store {src} into {dst}")
        return ()


class AsyncCopy(MemoryOp, name="gpu.async_copy", effects={"read", "write_shared"}):
    """Begin to copy what pointers point to into a whole buffer (cp.async); elements that are
    masked off become zero. The data is there once a `gpu.async_wait` covers the copy's group."""

    buffer: Value = operand()
    mask: Value | None = operand(optional=True)

    def infer(self) -> Sequence[Type]:
        dst, src = single_buffer(self, self.buffer), self._access(None)
        if not isinstance(src, Tensor) or (src.shape, src.element) != (dst.shape, dst.element):
            raise self.fail(f"cannot copy {src} into {dst}")
        return ()


class AsyncCommit(Op, name="gpu.async_commit", effects={"write_shared"}):
    """Close the group of asynchronous copies begun since the last commit (it may be empty)."""


class AsyncWait(Op, name="gpu.async_wait", effects={"read_shared", "write_shared"}):
    """Wait until at most the newest `pending` groups of asynchronous copies are under way. Each
    thread waits for its own copies; a barrier must follow before others read them."""

    pending: int = attr(int, 0, least=0)


def single_buffer(op: Op, buffer: Value) -> MemDesc:
    """The type of an operand that must be a single buffer."""
    t = buffer.type
    if not isinstance(t, MemDesc) or t.staged:
        raise op.fail(f"operand is {t}, expected a single buffer")
    return t


def allocation(buffer: Value) -> AllocShared:
    """The op that allocated what a buffer is a view of."""
    op = buffer.op
    while isinstance(op, (MemdescIndex, MemdescTrans)):
        op = op.buffer.op
    assert isinstance(op, AllocShared), "a buffer does not come from alloc_shared"
    return op
