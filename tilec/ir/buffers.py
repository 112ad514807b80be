"""Buffers in shared memory: their size, how registers map to them, and which layouts suit them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tilec.ir.axis import AxisAnalysis, low_bit
from tilec.ir.core import Value
from tilec.ir.fragment import Fragment, SharedTile, fragment, shared_tile
from tilec.ir.layouts import Layout, RegisterLayout, SwizzledShared
from tilec.ir.linear import LinearLayout
from tilec.ir.swizzle import VectorAccess, best_route, vector_width
from tilec.ir.types import MemDesc, Pointer, Scalar, Tensor, element_of

COPY_BYTES = (16, 8, 4)
ROW_BYTES = 128


def buffer_bytes(buffer: Value) -> int:
    """Bytes of a shared buffer, all its stages together."""
    t = buffer.type
    assert isinstance(t, MemDesc)
    return t.stages * stage_bytes(t)


def stage_bytes(t: MemDesc) -> int:
    """Bytes from one buffer of an array to the next."""
    return shared_tile(t.tile_shape, t.layout).num_elements * t.element.bytes


@lru_cache(maxsize=1024)
def access_map(frag: Fragment, buffer: SharedTile) -> LinearLayout:
    """(register, lane, warp) -> element offset, within one part of a buffer."""
    return frag.linear.invert_and_compose(buffer.linear)


# ---- asynchronous copies
def copy_access(ptr: Value, mask: Value | None, axis: AxisAnalysis, layout: Layout
                ) -> VectorAccess | None:
    """How cp.async moves the elements that a tile of pointers points to into a buffer: 4, 8 or 16
    bytes at once, side by side on both sides; None where fewer lie together.

    The order is of the registers of one part.
    """
    t = ptr.type
    assert isinstance(t, Tensor) and isinstance(t.element, Pointer) and t.layout is not None
    frag, size = fragment(t.shape, t.layout), t.element.pointee.bytes
    target = access_map(frag, shared_tile(t.shape, layout))
    best: VectorAccess | None = None
    for dim in range(len(t.shape)):
        limit = _run(ptr, mask, axis, frag, dim) * size
        for count in COPY_BYTES:
            if count <= limit and count > (best.width * size if best else 0):
                found = _joint(frag, dim, target, size, count)
                best = found or best
    return best


def can_async_copy(ptr: Value, mask: Value | None, axis: AxisAnalysis, layout: Layout) -> bool:
    """Whether `gpu.async_copy` may copy from these pointers into a buffer with this layout."""
    return copy_access(ptr, mask, axis, layout) is not None


def _run(ptr: Value, mask: Value | None, axis: AxisAnalysis, frag: Fragment, dim: int) -> int:
    """Elements along a dimension that lie side by side, aligned, under one mask."""
    info, element = axis.get(ptr), element_of(ptr.type)
    assert isinstance(element, Pointer)
    run = min(low_bit(info.contiguity[dim]), info.divisibility[dim] // element.pointee.bytes)
    if mask is not None:
        run = min(run, low_bit(axis.get(mask).constancy[dim]))
    return min(run, low_bit(frag.shape[dim])) if dim in frag.padded_dims else run


def _joint(frag: Fragment, dim: int, target: LinearLayout, size: int, count: int
           ) -> VectorAccess | None:
    """The access of `count` bytes that are side by side along `dim` and in the buffer."""
    width = count // size
    if width == 0:
        return None
    along = frag.linear.sublayout(("register", "lane", "warp"), (f"dim{dim}",))
    source = vector_width(along, size * 8, count)
    found = vector_width(target, size * 8, count)
    if source.width < width or found.width < width or source.order[:width] != found.order[:width]:
        return None
    return found


# ---- layouts
@lru_cache(maxsize=512)
def operand_layout(shape: tuple[int, ...], element: Scalar, order: tuple[int, ...],
                   readers: tuple[RegisterLayout, ...] = (),
                   writer: RegisterLayout | None = None) -> SwizzledShared:
    """The layout of a buffer for a tile that is written by 16-byte accesses along order[0] and read
    into `readers` (dot operands): of all swizzles the one with the fewest wavefronts.

    order: the dimensions, the one contiguous in global memory first.
    """
    tile = tuple(shared_tile(shape, SwizzledShared(1, 1, 1, order)).pow2)
    row = tile[order[0]] * element.bytes
    plain = SwizzledShared(1, 1, 1, order)
    if len(shape) < 2 or row < 2 * COPY_BYTES[0]:
        return plain
    sides = [fragment(shape, side) for side in (*readers, *([writer] if writer else []))]
    return min((plain, *_swizzles(row, element.bytes, order)),
               key=lambda layout: _cost(layout, sides, shape, element.bytes * 8))


def _swizzles(row: int, size: int, order: tuple[int, ...]) -> Sequence[SwizzledShared]:
    """Swizzles of chunks of 16 bytes, and of less, up to all banks' worth of them."""
    found = []
    for chunk in COPY_BYTES:
        phases = min(row, ROW_BYTES) // chunk
        if chunk >= size:
            found.append(SwizzledShared(chunk // size, max(1, ROW_BYTES // row), phases, order))
    return found


def _cost(layout: SwizzledShared, sides: Sequence[Fragment], shape: tuple[int, ...], bits: int
          ) -> tuple[int, int]:
    buffer = shared_tile(shape, layout)
    costs = [best_route(access_map(side, buffer), bits, True).cost for side in sides]
    return sum(c[0] for c in costs), sum(c[1] for c in costs)
