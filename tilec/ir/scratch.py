"""Scratch shared memory of CTA-atomic ops: how many bytes each needs, and how it is used.

The same plans serve the allocator and the code generator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from math import prod

from tilec.ir import ops
from tilec.ir.conversion import Plan, Shared, plan_conversion
from tilec.ir.core import Op
from tilec.ir.fragment import Fragment, fragment, odd_factors_stay, split_extent, storage_shape
from tilec.ir.layouts import Mma, slice_of
from tilec.ir.linear import tile_outs
from tilec.ir.types import Scalar, Tensor, Type, element_of, scalar_of, shape_of

ALIGN = 16
LANE_BITS = 5  # of the thread's index, below those of the warp


def align_up(size: int, align: int = ALIGN) -> int:
    """The next multiple of `align`."""
    return -(-size // align) * align


def scratch_bytes(op: Op) -> int:
    """Bytes of shared memory that `op` uses while it runs; 0 for most ops."""
    if isinstance(op, ops.Combining):
        return partial_areas(op)[1]
    if isinstance(op, (ops.ConvertLayout, ops.Reshape)):
        src, dst = op.x.type, op.result.type
        assert isinstance(src, Tensor) and isinstance(dst, Tensor)
        return move_scratch(src, dst)
    if isinstance(op, ops.Gather):
        return prod(shape_of(op.x.type)) * element_of(op.x.type).bytes
    if isinstance(op, ops.Histogram):
        return op.bins * element_of(op.result.type).bytes
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


# ---- reductions and scans
@dataclass(frozen=True)
class Partials:
    """Where warps that differ in these bits of the thread's index leave partial results in scratch.

    Element places[i] + (place of the thread) has 2**len(warps) of them, side by side; the thread's
    place is the XOR of thread_places over the set bits of its index. There are `elements` in all.
    """

    warps: tuple[int, ...]
    places: tuple[int, ...]
    thread_places: tuple[int, ...]
    elements: int


def _partials(frag: Fragment, axis: int, step: int, warps: tuple[int, ...],
              registers: Iterable[int]) -> Partials:
    """Partial results of each `step` elements along `axis`, which the given registers hold."""
    odd, pow2 = list(frag.odd), list(frag.pow2)
    odd[axis], pow2[axis], _ = split_extent(odd[axis] * pow2[axis] // step)

    def place(at: Sequence[int]) -> int:
        """Odd parts outermost, so that a thread's place is the XOR of its bits' places."""
        part = low = 0
        for d, c in enumerate(at):
            part = part * odd[d] + (c // step if d == axis else c) // pow2[d]
            low = low * pow2[d] + (c // step if d == axis else c) % pow2[d]
        return part * prod(pow2) + low

    return Partials(warps, tuple(place(frag.register_coords[r]) for r in registers),
                    tuple(map(place, (*frag.lane_bases, *frag.warp_bases))), prod(odd) * prod(pow2))


def _members(frag: Fragment, axis: int) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Other coordinates -> the registers that differ from each other along `axis` alone, in the
    order of their coordinates there."""
    groups: dict[tuple[int, ...], dict[int, int]] = {}
    for r, place in enumerate(frag.register_coords):
        at = list(place)
        along = at.pop(axis)
        groups.setdefault(tuple(at), {}).setdefault(along, r)
    return {at: tuple(found[c] for c in sorted(found)) for at, found in groups.items()}


@dataclass(frozen=True)
class ReducePlan:
    """A reduction along one axis of a fragment.

    members[i]: the source registers that make up result register i, in the order of their
    coordinates. lanes: index bits whose elements differ along the axis. partials: of the warps.
    """

    members: tuple[tuple[int, ...], ...]
    lanes: tuple[int, ...]
    partials: Partials


@lru_cache(maxsize=1024)
def reduce_plan(src: Tensor, axis: int) -> ReducePlan:
    """The plan for a tile of a type reduced along `axis`."""
    frag, groups = tile_fragment(src), _members(tile_fragment(src), axis)
    rest = tuple(n for d, n in enumerate(src.shape) if d != axis)
    if rest:
        assert src.layout is not None
        dst = fragment(rest, slice_of(src.layout, axis))
        groups = {at: groups[at] for at in dst.register_coords}
    warps = tuple(LANE_BITS + b for b, v in enumerate(frag.warp_bases) if v[axis])
    members = tuple(groups.values())
    return ReducePlan(members, tuple(b for b, v in enumerate(frag.lane_bases) if v[axis]),
                      _partials(frag, axis, frag.odd[axis] * frag.pow2[axis], warps,
                                (m[0] for m in members)))


@dataclass(frozen=True)
class Run:
    """Bits of the place along an axis that lie side by side, lowest first, and are bits of the
    register (then `bits` is empty), of the lane or of the warp; `size` places differ in them.
    partials: of warps."""

    bits: tuple[int, ...]
    size: int
    partials: Partials | None = None


@dataclass(frozen=True)
class ScanPlan:
    """A scan along one axis of a fragment.

    members[i]: registers that differ along the axis alone, in the order in which they are
    combined. runs: what the place along the axis is made of, the fastest first.
    """

    members: tuple[tuple[int, ...], ...]
    runs: tuple[Run, ...]


@lru_cache(maxsize=1024)
def scan_plan(src: Tensor, axis: int, reverse: bool) -> ScanPlan:
    """The plan for a scan of a tile of a type along `axis`."""
    frag = tile_fragment(src)
    members = [m[::-1] if reverse else m for m in _members(frag, axis).values()]
    holders: dict[int, tuple[str, int]] = {}  # (holder, its bit) of each bit of the coordinate
    for holder, first in (("register", 0), ("lane", 0), ("warp", LANE_BITS)):
        for bit, base in enumerate(frag.linear.bases_of(holder)):
            if base[axis]:
                holders[base[axis]] = holder, first + bit
    parts = [(*holders[c], 2) for c in sorted(holders)]
    if frag.odd[axis] > 1:
        parts.append(("register", 0, frag.odd[axis]))
    runs, step, registers = [], 1, 1
    for holder, group in groupby(parts, key=lambda part: part[0]):
        bits, sizes = zip(*(part[1:] for part in group))
        step *= prod(sizes)
        registers *= prod(sizes) if holder == "register" else 1
        partials = None
        if holder == "warp":
            partials = _partials(frag, axis, step, bits, (
                m[j] for j in range(0, len(members[0]), registers) for m in members))
        runs.append(Run(() if holder == "register" else bits, prod(sizes), partials))
    return ScanPlan(tuple(members), tuple(runs))


def partials_of(op: ops.Combining) -> list[Partials]:
    """What the op's warps leave in scratch: of a reduction at most once, of a scan for each run of
    the warps' bits."""
    src = op.inputs[0].type
    assert isinstance(src, Tensor)
    if isinstance(op, ops.Scan):
        runs = scan_plan(src, op.axis, op.reverse).runs
        return [run.partials for run in runs if run.partials is not None]
    partials = reduce_plan(src, op.axis).partials
    return [partials] if partials.warps else []


def partial_areas(op: ops.Combining) -> tuple[list[list[int]], int]:
    """(for each of `partials_of`: the byte offset of each operand's and, if padding counts, of the
    flags that tell it from elements; bytes in all)."""
    sizes = [element_of(v.type).bytes for v in op.inputs] + [1] * padding_counts(op)
    at, areas = 0, list[list[int]]()
    for partials in partials_of(op):
        areas.append([])
        for size in sizes:
            areas[-1].append(at)
            at += align_up((partials.elements << len(partials.warps)) * size)
    return areas, at


def padding_counts(op: ops.Combining) -> bool:
    """Whether elements beyond the extent are combined with others unless something marks them; a
    scan meets them last, but for one in reverse."""
    return op.axis in tile_fragment(op.inputs[0].type).padded_dims and \
        (op.reverse if isinstance(op, ops.Scan) else True)


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
