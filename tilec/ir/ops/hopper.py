"""Ops of the `gpu` and `lowered` levels that sm_90a has: the copy engine (TMA), barriers in shared
memory (mbarriers), asynchronous matrix products (wgmma).

As everywhere, an op stands for what the whole CTA does. Where single threads act, `gpu.elect` or
the op itself says which. An mbarrier is a buffer of one i64, a ring of them an array of buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

from tilec.ir.accumulators import WGMMA_ROWS, accumulator_layout
from tilec.ir.core import Block, Op, Value, attr, operand, operands, region
from tilec.ir.descriptors import async_alignment, matrix_descriptor, tma_boxes
from tilec.ir.fragment import fragment, shared_tile
from tilec.ir.layout_base import SharedLayout
from tilec.ir.layouts import DotOperand, Layout, Mma, same_layout
from tilec.ir.ops.base import Anchor
from tilec.ir.ops.gpu import MemdescIndex, single_buffer
from tilec.ir.ops.memory import EVICTION
from tilec.ir.ops.scf import ControlFlow, Yield, innermost_loop
from tilec.ir.types import (
    MemDesc,
    Scalar,
    Tensor,
    TensorMap,
    Type,
    bf16,
    f16,
    f32,
    i1,
    i32,
    i64,
    linear_shape,
    shape_of,
    u32,
    u64,
)

# What orders shared memory beyond the op's own buffers: nothing moves across, nothing is removed.
SYNC = frozenset({"read_shared", "write_shared"})

# Accumulators that wgmma has for each type of operand (of f32 it drops what tf32 has no bits for).
ACCUMULATORS: dict[str, tuple[Scalar, ...]] = {
    "f16": (f32, f16), "bf16": (f32,), "f32": (f32,), "f8e4m3": (f32, f16), "f8e5m2": (f32, f16),
    "i8": (i32,), "u8": (i32,)}
WGMMA_K_BITS = 256  # one instruction's extent along k

# What TMA combines with what is there, and of which types: PTX ISA, "cp.reduce.async.bulk.tensor".
# A tensor map has no signed integers of 64 bits.
REDUCED: dict[str, tuple[Scalar, ...]] = {
    "add": (i32, u32, i64, u64, f16, bf16, f32),
    **dict.fromkeys(("max", "min"), (i32, u32, u64, f16, bf16)),
    **dict.fromkeys(("and", "or", "xor"), (i32, u32, i64, u64))}

REGISTERS_PER_SM, MAX_TMA_RANK = 65536, 5


# ---- who acts
class Elect(Op, name="gpu.elect"):
    """One thread of the CTA runs the region, if the predicate holds; the others go on at once.
    Waits in the region are those of the thread's warp.

    warp: whose thread it is. by: how the others leave it out: "thread", by a branch on the thread,
    or "warp", by a branch that is uniform in each warp, with one lane predicated inside: best
    between matrix products and shuffles, and for short rounds, as copies need no loop over lanes.
    """

    predicate: Value | None = operand(optional=True)
    body: Block = region()
    warp: int = attr(int, 0, least=0)
    by: str = attr(str, "thread", choices=("thread", "warp"))

    def infer(self) -> Sequence[Type]:
        if self.predicate is not None and self.predicate.type != i1:
            raise self.fail(f"predicate is {self.predicate.type}, expected i1")
        return ()

    def check(self) -> None:
        for op in self.body.walk():
            fits = op.pure or op.terminator or \
                isinstance(op, (OneThread, MbarrierWait, ControlFlow))
            if not fits or any(isinstance(v.type, Tensor) for v in (*op.operands, *op.results)):
                raise op.fail("needs more than one thread, and stands in a gpu.elect",
                              "move it out; one thread computes with scalars, deals with mbarriers "
                              "and begins copies by gpu.tma_load")
        if self.body.terminator.operands:
            raise self.fail("the region yields values")


class AsyncAccess(Op):
    """Base of ops by which something else than threads accesses shared memory, or says when."""


class OneThread(Op):
    """Base of ops that one thread does; they stand in a `gpu.elect`."""

    def check(self) -> None:
        if not any(isinstance(a, Elect) for a in self.ancestors()):
            raise self.fail("must stand in a gpu.elect")


class Warpgroups(Op):
    """Base of ops that each warpgroup (four warps) does by itself. Fewer than four warps, as of a
    small warp role, are one."""


class WarpgroupBarrier(Warpgroups, name="gpu.warpgroup_barrier", effects={"barrier"}):
    """The threads of each warpgroup wait for each other, not for other warpgroups (bar.sync on a
    barrier of the warpgroup's own)."""


# ---- mbarriers
def check_mbarrier(op: Op, value: Value, ring: bool = False) -> None:
    """Check that an operand is one mbarrier, or with `ring` also an array of them."""
    t = value.type
    if not isinstance(t, MemDesc) or (t.staged and not ring) or \
            (t.tile_shape, t.element) != ((1,), i64):
        raise op.fail(f"barrier is {t}, expected a buffer of one i64")


class MbarrierInit(OneThread, AsyncAccess, name="gpu.mbarrier_init", effects={"write_shared"}):
    """Set up an mbarrier, or all of an array, whose phases end after `count` arrivals and the
    bytes expected with them. Others may use it after the next `gpu.barrier`."""

    barrier: Value = operand()
    count: int = attr(int, 1, least=1, most=(1 << 20) - 1)

    def infer(self) -> Sequence[Type]:
        check_mbarrier(self, self.barrier, ring=True)
        return ()

    def check(self) -> None:
        super().check()
        if innermost_loop(self) is not None:
            raise self.fail("stands in a loop, and would set up an mbarrier that is in use",
                            "set it up before the loop")


class MbarrierExpect(OneThread, AsyncAccess, name="gpu.mbarrier_expect", effects=SYNC):
    """Arrive once, and have the phase wait for `bytes` more of copies (mbarrier.arrive.expect_tx).
    """

    barrier: Value = operand()
    bytes: int = attr(int)

    def infer(self) -> Sequence[Type]:
        check_mbarrier(self, self.barrier)
        if not 0 < self.bytes < 1 << 20:
            raise self.fail(f"bytes is {self.bytes}, expected 1 to {(1 << 20) - 1}")
        return ()


class MbarrierArrive(Warpgroups, AsyncAccess, name="gpu.mbarrier_arrive", effects=SYNC):
    """Each warpgroup arrives once, by its first thread. It vouches for wgmma that a wait covers;
    for the other threads' own accesses, a `gpu.warpgroup_barrier` must stand before.

    after: results of dots that have read what it releases. async_dots waits for these products, and
    maybe no others, and takes the operands out.
    """

    barrier: Value = operand()
    after: tuple[Value, ...] = operands()

    def infer(self) -> Sequence[Type]:
        check_mbarrier(self, self.barrier)
        return ()


class MbarrierWait(AsyncAccess, name="gpu.mbarrier_wait", effects=SYNC):
    """Each thread waits until the phase of this parity (i32, 0 or 1) has ended. On a new mbarrier,
    which is in phase 0, a wait for parity 1 ends at once."""

    barrier: Value = operand()
    parity: Value = operand()

    def infer(self) -> Sequence[Type]:
        check_mbarrier(self, self.barrier)
        if self.parity.type != i32:
            raise self.fail(f"parity is {self.parity.type}, expected i32")
        return ()


# ---- TMA
class TmaOp(AsyncAccess):
    """Base of ops on a tensor map; coordinates are in elements, in the order of its dimensions."""

    map: Value = operand()

    def map_type(self) -> TensorMap:
        """The tensor map's type."""
        t = self.map.type
        if not isinstance(t, TensorMap) or not isinstance(t.layout, SharedLayout) or \
                not t.layout.rank <= len(t.shape) <= MAX_TMA_RANK or \
                set(t.shape[:-t.layout.rank]) - {1}:
            raise self.fail(f"operand is {t}, expected a tensor map of rank 1 to {MAX_TMA_RANK}, "
                            f"with extents of 1 before the layout's dimensions")
        return t

    def check_copy(self, buffer: Value, coordinates: Sequence[Value], parts: int = 1) -> None:
        """Check that a buffer is `parts` of the map's tiles high, and the coordinates' types."""
        t, have = self.map_type(), single_buffer(self, buffer)
        rows, *rest = t.tile_shape
        want = MemDesc((rows * parts, *rest), t.element, t.layout)
        if have != want:
            raise self.fail(f"buffer is {have}, expected {want}")
        size = shared_tile(have.shape, have.layout).num_elements * have.element.bytes
        if isinstance(buffer.op, MemdescIndex) and size % async_alignment(have):
            raise self.fail(f"buffer is one of an array and has {size} bytes, expected a multiple "
                            f"of {async_alignment(have)}")
        try:
            tma_boxes(t, parts)
        except ValueError as e:
            raise self.fail(str(e)) from None
        types = [v.type for v in coordinates]
        if types != [i32] * len(t.shape):
            raise self.fail(f"coordinates are ({', '.join(map(str, types))}), expected "
                            f"{len(t.shape)} of i32")


class PrefetchTensormap(OneThread, TmaOp, name="gpu.prefetch_tensormap", effects={"io"}):
    """Bring a tensor map into the cache; a hint."""

    def infer(self) -> Sequence[Type]:
        self.map_type()
        return ()


class TmaLoad(OneThread, TmaOp, name="gpu.tma_load", effects={"read", "write_shared"}):
    """Begin to copy a tile into a buffer; elements outside of the tensor become zero. The data is
    there once a wait for the phase of the mbarrier that expects its bytes has ended."""

    buffer: Value = operand()
    barrier: Value = operand()
    coordinates: tuple[Value, ...] = operands()
    eviction: str = attr(str, "", choices=EVICTION)

    def infer(self) -> Sequence[Type]:
        self.check_copy(self.buffer, self.coordinates)
        check_mbarrier(self, self.barrier)
        return ()


class TmaStore(Warpgroups, TmaOp, name="gpu.tma_store", effects={"write", "read_shared"}):
    """Begin to copy a buffer into the tensor; elements outside of it are left out. What wrote the
    buffer must be followed by `gpu.fence_async` and a barrier.

    parts: the buffer is this many of the map's tiles high, and the first thread of warpgroup i
    copies tile i, so that only its own warpgroup must be done with it. reduce: combines them with
    what lies there, element by element, atomically (relaxed, for the GPU).
    """

    buffer: Value = operand()
    coordinates: tuple[Value, ...] = operands()
    parts: int = attr(int, 1, least=1)
    reduce: str = attr(str, "", choices=("", *REDUCED))

    @property
    def effects(self) -> frozenset[str]:
        return self.class_effects | ({"read"} if self.reduce else set())

    def infer(self) -> Sequence[Type]:
        if self.reduce and self.map_type().element not in REDUCED[self.reduce]:
            raise self.fail(f"TMA has no {self.reduce} for {self.map_type().element}")
        self.check_copy(self.buffer, self.coordinates, self.parts)
        return ()


class TmaStoreCommit(Op, name="gpu.tma_store_commit", effects=SYNC):
    """Close the group of TMA stores that a thread has begun since its last commit."""


class TmaStoreWait(Op, name="gpu.tma_store_wait", effects=SYNC):
    """Wait until at most the newest `pending` groups of TMA stores are under way; with `read`, only
    until the others have read their buffers. Each thread waits for its own: a barrier must follow
    before others write the buffers."""

    pending: int = attr(int, 0, least=0)
    read: bool = attr(bool, False)


class FenceAsync(Op, name="gpu.fence_async", effects=SYNC):
    """What each thread wrote to shared memory by ordinary stores may be read by TMA and wgmma
    after the next barrier (fence.proxy.async)."""


# ---- wgmma
class Wgmma(Anchor, AsyncAccess, name="gpu.wgmma", effects=SYNC):
    """Begin c + a @ b, or a @ b where `accumulate` is false, for [M, K] by [K, N]; a is a buffer or
    a tile in registers, b a buffer. Each op closes one group of matrix products.

    Until a `gpu.wgmma_wait` covers its group, the result is only good as the c of a further one,
    and the buffers and the registers of a are in use.
    """

    a: Value = operand()
    b: Value = operand()
    c: Value = operand()
    accumulate: Value | None = operand(optional=True)

    def infer(self) -> Sequence[Type]:
        a, b, c = self.a.type, single_buffer(self, self.b), self.c.type
        if not isinstance(a, (Tensor, MemDesc)) or not isinstance(c, Tensor):
            raise self.fail(f"operands are {a}, {b}, {c}, expected a tile or buffer, a buffer and "
                            f"a tile")
        if isinstance(a, MemDesc):
            single_buffer(self, self.a)
        if not (len(a.shape) == len(b.shape) == 2 and a.shape[1] == b.shape[0] and
                c.shape == (a.shape[0], b.shape[1]) and a.element == b.element):
            raise self.fail(f"cannot multiply {a} by {b} into {c}")
        if c.element not in ACCUMULATORS.get(str(b.element), ()):
            raise self.fail(f"no wgmma multiplies {b.element} into {c.element}")
        if self.accumulate is not None and self.accumulate.type != i1:
            raise self.fail(f"accumulate is {self.accumulate.type}, expected i1")
        if c.layout is not None:
            self._check_layouts(a, b, c)
        return (c,)

    def wanted_layout(self, num_warps: int) -> Layout | None:
        """That of an accumulator whose instructions can read the buffers."""
        a, b = self.a.type, self.b.type
        assert isinstance(b, MemDesc)
        k = WGMMA_K_BITS // b.element.bits

        def reads(t: Type, k_dim: int, outer: int) -> bool:
            return not isinstance(t, MemDesc) or matrix_descriptor(
                shared_tile(t.shape, t.layout), t.element.bits, k_dim, outer, k) is not None

        shape = shape_of(self.c.type)
        layout = accumulator_layout(b.element, shape, num_warps, lambda n: reads(b, 0, n))
        if not reads(a, 1, WGMMA_ROWS):
            raise self.fail(f"instructions cannot read a from {a}")
        if layout is None or b.shape[0] % k:
            raise self.fail(f"no instructions fit {shape[0]} x {shape[1]} x {b.shape[0]} for "
                            f"{num_warps} warps and b in {b}")
        return layout

    def operand_layout(self, layout: Mma) -> DotOperand:
        """What `a` has, if it is in registers."""
        assert isinstance(self.b.type, MemDesc)
        return DotOperand(layout, 0, max(1, 32 // self.b.type.element.bits))

    def _check_layouts(self, a: Tensor | MemDesc, b: MemDesc, c: Tensor) -> None:
        mma = c.layout
        if not isinstance(mma, Mma) or mma.version != 3:
            raise self.fail(f"accumulator is {c}, expected an nvidia_mma layout of version 3")
        m, n = mma.instr_shape[:2]
        k = WGMMA_K_BITS // b.element.bits
        if c.shape[0] % m or c.shape[1] % n or b.shape[0] % k:
            raise self.fail(f"{c.shape[0]} x {c.shape[1]} x {b.shape[0]} is not made of "
                            f"instructions of {m} x {n} x {k}")
        if isinstance(a, Tensor):
            want = self.operand_layout(mma)
            if a.layout is None or not same_layout(a.layout, want, linear_shape(a.shape)):
                raise self.fail(f"a has the layout {a.layout}, expected {want}")

    def check(self) -> None:
        for user, index in self.result.uses:
            if not (isinstance(user, (WgmmaWait, Yield, ControlFlow)) or
                    (isinstance(user, Wgmma) and index == 2)):
                raise user.fail(f"uses the result of the gpu.wgmma at {self.loc}, which is not "
                                f"there before a gpu.wgmma_wait")


class WgmmaWait(Op, name="gpu.wgmma_wait", effects=SYNC):
    """Wait until at most the newest `pending` groups of wgmma are under way. The operands, the
    accumulators of all groups begun, come back as the results; those of groups that have ended
    may be read, and the buffers of these groups be written, after a barrier if by others."""

    values: tuple[Value, ...] = operands()
    pending: int = attr(int, 0, least=0)

    def infer(self) -> Sequence[Type]:
        types = [v.type for v in self.values]
        if not types or not all(isinstance(t, Tensor) for t in types):
            raise self.fail(f"operands are ({', '.join(map(str, types))}), expected tiles")
        return types


class ExtractSlice(Anchor, name="gpu.extract_slice"):
    """The part of a tile that starts at `start` and has extents `shape`. The layout stays, and
    with it every element's thread: the tile must repeat its layout at steps of the part."""

    x: Value = operand()
    start: tuple[int, ...] = attr(tuple)
    shape: tuple[int, ...] = attr(tuple)

    def infer(self) -> Sequence[Type]:
        t = self.x.type
        if not isinstance(t, Tensor):
            raise self.fail(f"operand is {t}, expected a tile")
        inside = len(self.start) == len(self.shape) == t.rank and all(
            0 <= s and 0 < n and s + n <= e
            for s, n, e in zip(self.start, self.shape, t.shape, strict=True))
        if not inside:
            raise self.fail(f"the part {list(self.shape)} at {list(self.start)} is not in {t}")
        if t.layout is not None and not self.held_in(t.layout):
            raise self.fail(f"threads do not hold the part {list(self.shape)} at "
                            f"{list(self.start)} of {t} as they would hold it alone")
        return (Tensor(self.shape, t.element, t.layout),)

    def held_in(self, layout: Layout) -> bool:
        """Whether threads that hold the tile in this layout hold the part as they would alone."""
        try:
            whole, part = (fragment(s, layout) for s in (shape_of(self.x.type), self.shape))
        except ValueError:
            return False
        held = set(whole.register_coords)
        return (whole.lane_bases, whole.warp_bases) == (part.lane_bases, part.warp_bases) and all(
            tuple(map(add, self.start, at)) in held for at in part.register_coords)
