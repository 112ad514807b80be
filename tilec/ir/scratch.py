"""Scratch shared memory of CTA-atomic ops: how many bytes each needs, and how it is used.

The same plans serve the allocator and the code generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tilec.ir import ops
from tilec.ir.conversion import Plan, Shared, plan_conversion
from tilec.ir.core import Op
from tilec.ir.fragment import Fragment, fragment, odd_factors_stay, storage_shape
from tilec.ir.layouts import Mma, slice_of
from tilec.ir.linear import tile_outs
from tilec.ir.types import Scalar, Tensor, Type, element_of, scalar_of, shape_of

ALIGN = 16


def align_up(size: int, align: int = ALIGN) -> int:
    """The next multiple of `align`."""
    return -(-size // align) * align


def scratch_bytes(op: Op) -> int:
    """Bytes of shared memory that `op` uses while it runs; 0 for most ops."""
    if isinstance(op, ops.Reduce):
        return reduce_scratch(op)
    if isinstance(op, (ops.ConvertLayout, ops.Reshape)):
        src, dst = op.x.type, op.result.type
        assert isinstance(src, Tensor) and isinstance(dst, Tensor)
        return move_scratch(src, dst)
    if isinstance(op, ops.Atomic):
        return atomic_scratch(op)
    if isinstance(op, ops.Dot):
        return dot_areas(op)[3]
    return 0


def meets_inside(op: Op) -> bool:
    """Whether all threads of the CTA wait between the op's writing of scratch and its reading."""
    if isinstance(op, (ops.ConvertLayout, ops.Reshape)):
        src, dst = op.x.type, op.result.type
        assert isinstance(src, Tensor) and isinstance(dst, Tensor)
        plan = move_plan(src, dst).plan
        return not (isinstance(plan, Shared) and plan.warp_local)
    return True


def tile_fragment(t: Type) -> Fragment:
    """The fragment of a tensor type that has a layout."""
    assert isinstance(t, Tensor) and t.layout is not None, f"{t} has no layout"
    return fragment(t.shape, t.layout)


def tile_registers(t: Tensor) -> int:
    """Registers a thread that hold its elements of a tile."""
    bits = t.element.bits if isinstance(t.element, Scalar) else 64
    return -(-tile_fragment(t).num_registers * bits // 32)


# ---- reductions
@dataclass(frozen=True)
class ReducePlan:
    """A reduction along one axis of a fragment.

    members[i]: the source registers that make up result register i, in the order of their
    coordinates. lanes, warps: index bits whose elements differ along the axis. In scratch, element
    places[i] + (place of the thread) has 2**len(warps) partial results, side by side; the thread's
    place is the XOR of thread_places over the set bits of its index. There are `elements` in all.
    """

    members: tuple[tuple[int, ...], ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    places: tuple[int, ...]
    thread_places: tuple[int, ...]
    elements: int


@lru_cache(maxsize=1024)
def reduce_plan(src: Tensor, axis: int) -> ReducePlan:
    """The plan for a tile of a type reduced along `axis`."""
    frag = tile_fragment(src)
    groups: dict[tuple[int, ...], dict[int, int]] = {}
    for r, place in enumerate(frag.register_coords):
        at = list(place)
        along = at.pop(axis)
        groups.setdefault(tuple(at), {}).setdefault(along, r)
    order = list(groups)
    rest = [d for d in range(len(src.shape)) if d != axis]
    if rest:
        assert src.layout is not None
        dst = fragment(tuple(src.shape[d] for d in rest), slice_of(src.layout, axis))
        order = list(dst.register_coords)

    def flat(at: tuple[int, ...]) -> int:
        """Odd parts outermost, so that a thread's place is the XOR of its bits' places."""
        part = low = 0
        for c, d in zip(at, rest, strict=True):
            part = part * frag.odd[d] + c // frag.pow2[d]
            low = low * frag.pow2[d] + c % frag.pow2[d]
        return part * prod(frag.pow2[d] for d in rest) + low

    threads = (*frag.lane_bases, *frag.warp_bases)
    return ReducePlan(
        members=tuple(tuple(groups[at][c] for c in sorted(groups[at])) for at in order),
        lanes=tuple(b for b, v in enumerate(frag.lane_bases) if v[axis]),
        warps=tuple(b for b, v in enumerate(frag.warp_bases) if v[axis]),
        places=tuple(map(flat, order)),
        thread_places=tuple(flat(tuple(v[d] for d in rest)) for v in threads),
        elements=prod(frag.odd[d] * frag.pow2[d] for d in rest),
    )


def reduce_areas(op: ops.Reduce) -> tuple[list[int], int]:
    """(byte offset of each operand's partial results, bytes in all)."""
    src = op.inputs[0].type
    assert isinstance(src, Tensor)
    plan = reduce_plan(src, op.axis)
    count = plan.elements << len(plan.warps)
    at, offsets = 0, []
    for v in op.inputs:
        offsets.append(at)
        at += align_up(count * element_of(v.type).bytes)
    if needs_flags(src, op.axis):
        offsets.append(at)
        at += align_up(count)
    return offsets, at


def needs_flags(src: Tensor, axis: int) -> bool:
    """Whether elements beyond the extent take part unless something marks them."""
    return axis in tile_fragment(src).padded_dims


def reduce_scratch(op: ops.Reduce) -> int:
    """Bytes for the partial results of warps; 0 when the axis lies within each warp."""
    src = op.inputs[0].type
    assert isinstance(src, Tensor)
    return reduce_areas(op)[1] if reduce_plan(src, op.axis).warps else 0


# ---- moves
@dataclass(frozen=True)
class MovePlan:
    """A change of layout or shape.

    plan moves each of the `parts` odd parts to the one of the same number. When it is None,
    everything goes through row-major memory instead.
    """

    plan: Plan | None
    parts: int = 1


@lru_cache(maxsize=1024)
def move_plan(src: Tensor, dst: Tensor) -> MovePlan:
    """How the elements of a tile reach the registers of another with equal row-major order."""
    a, b = tile_fragment(src), tile_fragment(dst)
    if src.shape != dst.shape and not odd_factors_stay(src.shape, dst.shape):
        return MovePlan(None)
    bits = 8 * src.element.bytes
    linear = a.linear if a.pow2 == b.pow2 else a.linear.reshape_outs(tile_outs(b.pow2))
    # Odd parts are numbered row-major on both sides, and a reshape keeps row-major order.
    return MovePlan(plan_conversion(linear, b.linear, bits), prod(a.odd))


def move_scratch(src: Tensor, dst: Tensor) -> int:
    """Bytes that a change of layout or shape needs."""
    found = move_plan(src, dst)
    if found.plan is None:
        return prod(src.shape) * src.element.bytes
    return found.plan.bytes if isinstance(found.plan, Shared) else 0


# ---- dots
def dot_areas(op: ops.Dot) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
    """How a dot without tensor cores keeps its operands in scratch: bytes from element to element
    along each dimension of a, which lies there from 0 on, and of b; where b begins; bytes in all.

    Rows of a and columns of b are innermost, so that a thread reads neighbours at once. All
    extents but k are as they are stored, so that elements beyond them have a place.
    """
    t = op.result.type
    assert isinstance(t, Tensor)
    if isinstance(t.layout, Mma):
        return (), (), 0, 0
    size = sum_bytes(op)
    odd, low = storage_shape(t.shape)
    *batch, m, n = (o * p for o, p in zip(odd, low, strict=True))
    k = shape_of(op.a.type)[-1]
    step_a, step_b = align_up(m * size) + ALIGN, align_up(n * size) + ALIGN
    of_a, of_b = k * step_a, k * step_b
    strides_a = (*(of_a for _ in batch), size, step_a)
    strides_b = (*(of_b for _ in batch), step_b, size)
    start = prod(batch) * of_a
    return strides_a, strides_b, start, start + prod(batch) * of_b


def sum_bytes(op: ops.Dot) -> int:
    """Bytes of what multiply-adds carry sums in: the result's type, for floats at least f32."""
    t = scalar_of(op.result.type)
    return max(t.bytes, 4) if t.is_float else t.bytes


# ---- atomics
def atomic_scratch(op: ops.Atomic) -> int:
    """Bytes through which copies of an atomic's results reach the threads that did not make it."""
    if not op.result.uses:
        return 0
    t = op.result.type
    if not isinstance(t, Tensor):
        return element_of(t).bytes
    frag = tile_fragment(t)
    shared = frag.free_masks["lane"] | frag.free_masks["warp"]
    return prod(frag.odd) * prod(frag.pow2) * t.element.bytes if shared else 0
