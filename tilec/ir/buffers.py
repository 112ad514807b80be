"""Buffers in shared memory: their size, how registers map to them, and which layouts suit them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from tilec.ir import ops
from tilec.ir.axis import AxisAnalysis
from tilec.ir.core import Op, Value
from tilec.ir.f2 import log2_exact
from tilec.ir.fragment import Fragment, SharedTile, fragment, shared_tile
from tilec.ir.layout_base import SharedLayout
from tilec.ir.layouts import Layout, SharedLinear, SwizzledShared
from tilec.ir.linear import LinearLayout, from_bases
from tilec.ir.ops.hopper import AsyncAccess
from tilec.ir.scratch import tile_fragment
from tilec.ir.swizzle import VectorAccess, best_route, swizzle_chunks, vector_width
from tilec.ir.types import MemDesc, Scalar, i64, pointee_of
from tilec.ir.vectors import access_limits, register_runs

COPY_BYTES = (16, 8, 4)
BANK_BYTES = 128


def buffer_bytes(buffer: Value) -> int:
    """Bytes of a shared buffer, all its stages together."""
    t = buffer.type
    assert isinstance(t, MemDesc)
    return t.stages * stage_bytes(t)


def mbarrier_type(slots: int = 0) -> MemDesc:
    """The type of an mbarrier, or of an array of them."""
    return MemDesc((*((slots,) if slots else ()), 1), i64, SwizzledShared(1, 1, 1, (0,)))


def stage_bytes(t: MemDesc) -> int:
    """Bytes from one buffer of an array to the next."""
    return shared_tile(t.tile_shape, t.layout).num_elements * t.element.bytes


def buffer_users(buffer: Value) -> Iterator[Op]:
    """The ops that use a buffer, or a view of it."""
    for user in buffer.users:
        yield user
        if isinstance(user, (ops.MemdescIndex, ops.MemdescTrans)):
            yield from buffer_users(user.result)


def is_asynchronous(buffer: Value) -> bool:
    """Whether TMA or mbarriers use an allocated buffer. Their waits and barriers are written out
    in the IR, and their accesses go on after the op."""
    return any(isinstance(user, AsyncAccess) and not isinstance(user, ops.Wgmma)
               for user in buffer_users(buffer))


def is_shared_around(buffer: Value) -> bool:
    """Whether other programs of the cluster read an allocated buffer, whenever they do."""
    return any(isinstance(user, ops.RemoteLoad) for user in buffer_users(buffer))


@lru_cache(maxsize=1024)
def access_map(frag: Fragment, buffer: SharedTile, start: tuple[int, ...] = ()) -> LinearLayout:
    """(register, lane, warp) -> element offset, within one part of a buffer.

    start: where in the buffer the fragment's tile begins, if it is smaller.
    """
    linear = frag.linear
    if start:
        low = [c % n for c, n in zip(start, buffer.pow2, strict=True)]
        linear = from_bases(dict(zip(linear.in_names, linear.bases, strict=True)),
                            buffer.linear.out_sizes, low)
    return linear.invert_and_compose(buffer.linear)


# ---- asynchronous copies
def copy_access(ptr: Value, mask: Value | None, axis: AxisAnalysis, layout: Layout
                ) -> VectorAccess | None:
    """How cp.async moves the elements that a tile of pointers points to into a buffer: 4, 8 or 16
    bytes at once, side by side on both sides; None where fewer lie together.

    The order is of the registers of one part.
    """
    frag, size = tile_fragment(ptr.type), pointee_of(ptr.type).bytes
    target = access_map(frag, shared_tile(frag.shape, layout))
    best: VectorAccess | None = None
    for dim in range(len(frag.shape)):
        limit = min(access_limits(ptr, mask, axis, dim).values()) * size
        for count in COPY_BYTES:
            if count <= limit and count > (best.width * size if best else 0):
                best = _joint(frag, dim, target, size, count) or best
    return best


def can_async_copy(ptr: Value, mask: Value | None, axis: AxisAnalysis, layout: Layout) -> bool:
    """Whether `gpu.async_copy` may copy from these pointers into a buffer with this layout."""
    return copy_access(ptr, mask, axis, layout) is not None


def _joint(frag: Fragment, dim: int, target: LinearLayout, size: int, count: int
           ) -> VectorAccess | None:
    """The access of `count` bytes that are side by side along `dim` and in the buffer."""
    width = count // size
    if width == 0:
        return None
    source, found = register_runs(frag, dim, width), vector_width(target, size * 8, count)
    if source.width < width or found.width < width or source.order[:width] != found.order[:width]:
        return None
    return found


# ---- layouts
@lru_cache(maxsize=512)
def operand_layout(shape: tuple[int, ...], element: Scalar, order: tuple[int, ...],
                   readers: tuple[Layout, ...] = (), writer: Layout | None = None
                   ) -> SharedLayout:
    """The layout of a buffer for a tile that `writer` fills, by 16-byte accesses along order[0],
    and that is read in the layouts `readers`: the swizzle with the fewest wavefronts, explicit
    bases where no regular one is as good.

    order: the dimensions, the one contiguous in global memory first. Readers are of the same shape.
    """
    best: SharedLayout = SwizzledShared(1, 1, 1, order)
    row = shared_tile(shape, best).pow2[order[0]] * element.bytes
    sides = [fragment(shape, side) for side in (*readers, *([] if writer is None else [writer]))]
    cost = _cost(best, sides, element)
    for layout in _swizzles(row, element.bytes, order) if len(shape) > 1 else ():
        if (other := _cost(layout, sides, element)) < cost:
            best, cost = layout, other
    if readers and writer is not None and row >= 16:
        made = _explicit(sides[-1], sides[0], order[0], element)
        return made if _cost(made, sides, element)[0] < cost[0] else best
    return best


def _swizzles(row: int, size: int, order: tuple[int, ...]) -> Iterator[SwizzledShared]:
    """Swizzles of rows of `row` bytes, by chunks of 16 bytes and more, over all the banks."""
    for chunk in (16, 32, 64):
        phases = min(row, BANK_BYTES) // chunk
        for rows in sorted({max(1, BANK_BYTES // row), 1, 2, 4}) if phases > 1 else ():
            yield SwizzledShared(chunk // size, rows, phases, order)


def _explicit(writer: Fragment, reader: Fragment, fastest: int, element: Scalar) -> SharedLinear:
    """Chunks of 16 bytes along a dimension, arranged for both sides."""
    src, dst = (side.linear.without_zero_bases("register") for side in (writer, reader))
    chunk = [src.pack([1 << bit if d == fastest else 0 for d in range(len(writer.shape))])
             for bit in range(log2_exact(16 // element.bytes))]
    flat = swizzle_chunks(src.flatten_outs(), dst.flatten_outs(), chunk, element.bytes * 8)
    return SharedLinear(flat.reshape_outs(src.out_sizes).bases_of("offset"))


def _cost(layout: SharedLayout, sides: Sequence[Fragment], element: Scalar) -> tuple[int, int]:
    """(wavefronts, instructions) of one warp, over all sides."""
    costs = [best_route(access_map(side, shared_tile(side.shape, layout)), element.bytes * 8,
                        True).cost for side in sides]
    return sum(c[0] for c in costs), sum(c[1] for c in costs)
