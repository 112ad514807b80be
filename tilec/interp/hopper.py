"""Interpreter rules of what sm_90a has: who acts, mbarriers, TMA, wgmma.

A TMA load lands in the wait for its phase. A matrix product is computed when it begins, but poison
until a wait covers its group: its poison holds the group's number, above a bit for what is poison
by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tilec.eval.dtypes import F32, Array, dtype_of
from tilec.interp.agents import PUBLIC
from tilec.interp.asynchrony import (
    FENCED,
    NO_GROUP,
    TOLD,
    WRITTEN,
    End,
    Mbarriers,
    Reads,
    TmaCopy,
)
from tilec.interp.buffers import View
from tilec.interp.cluster import reach, view_in, visit
from tilec.interp.control import defined
from tilec.interp.frame import Data, Frame, union
from tilec.interp.machine import Machine, interp_rules
from tilec.interp.memory import AccessError
from tilec.interp.shadow import touch
from tilec.interp.shared import barriers_are_there, begin_write
from tilec.interp.touches import By
from tilec.ir import ops
from tilec.ir.accumulators import warpgroups
from tilec.ir.core import Op, Value
from tilec.ir.ops.hopper import WGMMA_K_BITS, TmaOp
from tilec.ir.types import MemDesc


# ---- who acts
@interp_rules(ops.Elect)
def _(m: Machine, frame: Frame, op: ops.Elect) -> None:
    if op.predicate is None:
        m.run_block(op.body, frame)
        return
    holds = defined(m, frame, op, op.predicate, "the predicate of this gpu.elect")
    rows = np.flatnonzero(np.broadcast_to(holds, (len(frame),)))
    if len(rows):
        m.run_block(op.body, frame if len(rows) == len(frame) else frame.narrow(rows))


@interp_rules(ops.WarpgroupBarrier)
def _(m: Machine, frame: Frame, op: ops.WarpgroupBarrier) -> None:
    m.asynchrony.barrier(frame, whole=False)
    if m.role is not None:
        m.role.barrier(whole=False)


@interp_rules(ops.FenceAsync)
def _(m: Machine, frame: Frame, op: ops.FenceAsync) -> None:
    m.asynchrony.advance(frame, WRITTEN, FENCED)


# ---- mbarriers
class _Barrier(NamedTuple):
    """An mbarrier in each of the frame's programs."""

    state: Mbarriers
    rows: Array
    slots: Array


def _barrier(m: Machine, frame: Frame, op: Op, value: Value, peer: Machine | None = None
             ) -> _Barrier:
    """An mbarrier, or that which lies there in another program of the cluster."""
    at = m if peer is None else peer
    view = view_in(m, op, value, at)
    rows, slots = view.place(frame if at is m else view.home)
    state = at.asynchrony.mbarriers.get(view.buffer)
    if state is None or not state.count[rows, slots].all():
        raise m.error(op, "this mbarrier has not been set up", "gpu.mbarrier_init does that")
    alone = m.role is m.member and any(isinstance(a, ops.Elect) for a in op.ancestors())
    if not (alone and at is m) and not state.ready[rows].all():
        raise m.error(op, "another thread has set up this mbarrier, and nothing says that it has "
                      "done so", "a gpu.barrier must stand between")
    return _Barrier(state, rows, slots)


@interp_rules(ops.MbarrierInit)
def _(m: Machine, frame: Frame, op: ops.MbarrierInit) -> None:
    buffer = m.buffers[op.barrier].buffer
    state = m.asynchrony.mbarriers.setdefault(buffer, Mbarriers(buffer))
    state.set_up(frame.index_in(buffer.home), op.count)
    if m.member is not None:
        state.follow()


@interp_rules(ops.MbarrierExpect)
def _(m: Machine, frame: Frame, op: ops.MbarrierExpect) -> None:
    bar = _barrier(m, frame, op, op.barrier)
    _arrive(m, op, bar, op.bytes)


def _arrive(m: Machine, op: Op, bar: _Barrier, more: int = 0, peer: Machine | None = None) -> None:
    """One arrival, at an mbarrier of its own or of another program, and `more` bytes to come."""
    if m.role is not None:
        m.role.pause()
        for slot in bar.slots.tolist():
            m.role.tell(op, bar.state, slot, peer not in (None, m))
    bar.state.arrive(bar.rows, bar.slots, 1, more)


@interp_rules(ops.MbarrierArrive)
def _(m: Machine, frame: Frame, op: ops.MbarrierArrive) -> None:
    bar = _barrier(m, frame, op, op.barrier)
    for _ in range(warpgroups(m.num_warps)):
        _arrive(m, op, bar)
    m.asynchrony.products.release(frame)


@interp_rules(ops.RemoteArrive)
def _(m: Machine, frame: Frame, op: ops.RemoteArrive) -> None:
    peer = reach(m, frame, op, op.rank)
    bar = _barrier(m, frame, op, op.barrier, peer)
    assert m.role is not None
    visit(m, op, peer, m.role.next_end(PUBLIC), _phase_end(bar))
    for _ in range(warpgroups(m.num_warps)):
        _arrive(m, op, bar, peer=peer)
    m.asynchrony.products.release(frame)


@interp_rules(ops.MbarrierWait)
def _(m: Machine, frame: Frame, op: ops.MbarrierWait) -> None:
    bar = _barrier(m, frame, op, op.barrier)
    parity = defined(m, frame, op, op.parity, "the parity of this wait")
    if (wrong := parity[parity & ~1 != 0]).size:
        raise m.error(op, f"the parity of this wait is {int(wrong[0])}, expected 0 or 1",
                      "the n-th phase of an mbarrier has the parity n & 1")

    def blocked() -> Array:
        """In which programs the phase has not ended, though all copies have landed."""
        if (waits := bar.state.phase[bar.rows, bar.slots] & 1 == parity).any():
            for copy in _counted(m, bar):
                copy.land(_of(bar, copy, frame, m, waits))
        return np.asarray(bar.state.phase[bar.rows, bar.slots] & 1 == parity)

    if m.role is not None:
        m.role.wait(op, lambda: bool(blocked().any()),
                    lambda: f"this phase of the mbarrier {_lacks(bar, 0)}")
        for slot in bar.slots.tolist():
            m.role.learn(op, bar.state.past[slot])
    elif (rows := np.flatnonzero(blocked())).size:
        raise m.error(
            op, f"{m.program_name(frame.programs[rows[0]])} waits for ever: this phase of the "
            f"mbarrier {_lacks(bar, int(rows[0]))}, which nothing before provides",
            "check its count, the bytes expected, and the parity")
    for copy in _counted(m, bar):
        over = copy.phase < bar.state.phase[copy.bar_rows, copy.slots]
        copy.keep(~(_of(bar, copy, frame, m) & over))
    m.copies.under_way = [c for c in m.copies.under_way if len(c.who)]


def _counted(m: Machine, bar: _Barrier) -> list[TmaCopy]:
    """The copies under way that the mbarriers of a buffer count."""
    return [c for c in m.copies.under_way if isinstance(c, TmaCopy) and c.barriers is bar.state]


def _of(bar: _Barrier, copy: TmaCopy, frame: Frame, m: Machine, which: Array | None = None
        ) -> Array:
    """Of a copy's programs, those in which it counts at this mbarrier, for those of the frame's
    programs that `which` marks."""
    slot = np.full(len(m.copies.root), -1)
    who = frame.index_in(m.copies.root)
    slot[who] = bar.slots if which is None else np.where(which, bar.slots, -1)
    return np.asarray(slot[copy.who] == copy.slots)


def _lacks(bar: _Barrier, row: int) -> str:
    """What the phase of an mbarrier waits for in a row of the frame."""
    at = bar.rows[row], bar.slots[row]
    arrivals, missing = bar.state.count[at] - bar.state.arrived[at], bar.state.bytes[at]
    lacks = f"lacks {max(0, arrivals)} arrivals and {max(0, missing)} bytes"
    return lacks if missing >= 0 else f"{lacks}, and got {-missing} bytes more than it expects"


# ---- TMA
class _Tile(NamedTuple):
    """Where a copy's elements are in global memory, [P or 1, *tile], and which are inside of the
    tensor."""

    address: Array
    inside: Array
    by: By


def _tile(m: Machine, frame: Frame, op: TmaOp, coordinates: Sequence[Value],
          shape: tuple[int, ...]) -> _Tile:
    tensor = m.maps[op.map]
    rank = len(coordinates)
    whole = (1,) * (rank - len(shape)) + shape
    address = np.full((1,) * (rank + 1), m.memory.address[op.map.name or str(op.map.index)])
    inside = np.ones((1,) * (rank + 1), bool)
    for d, (value, n) in enumerate(zip(coordinates, whole, strict=True)):
        start = defined(m, frame, op, value, "a coordinate of this copy").astype(np.int64)
        # An H200 ends a kernel for these, see tests/sim/forms/tensor.py.
        if isinstance(op, ops.TmaStore) and (start < 0).any():
            raise m.error(op, f"a store at coordinate {start.min()} of dimension {d}: those of "
                          "stores by TMA must not be negative, as those of loads may",
                          "begin the block inside of the tensor")
        if d == rank - 1 and (start * tensor.itemsize % 16).any():
            raise m.error(op, "the copy begins at a place in a row that is not a multiple of 16 "
                          "bytes", "TMA copies from and to such places only")
        at = start.reshape(-1, *(1,) * rank) + np.arange(n).reshape(n, *(1,) * (rank - 1 - d))
        address = address + at * tensor.strides[d]
        inside = inside & (at >= 0) & (at < tensor.shape[d])
    address = address.reshape(len(address), *shape)
    inside = np.broadcast_to(inside.reshape(-1, *shape), address.shape)
    who = frame.programs.reshape((-1,) + (1,) * len(shape))
    return _Tile(np.broadcast_to(address, (len(frame), *shape)),
                 np.broadcast_to(inside, (len(frame), *shape)), By(op, who, False))


def _phase_end(bar: _Barrier) -> End:
    """When the present phase of a program's mbarrier is over."""
    row, slot = int(bar.rows[0]), int(bar.slots[0])
    return (bar.state, slot), int(bar.state.phase[row, slot]) + 1


@interp_rules(ops.TmaLoad)
def _(m: Machine, frame: Frame, op: ops.TmaLoad) -> None:
    _load_into(m, frame, op, m, _content(m, frame, op))


@interp_rules(ops.TmaMulticast)
def _(m: Machine, frame: Frame, op: ops.TmaMulticast) -> None:
    mask = int(defined(m, frame, op, op.mask, "the mask of this copy")[0])
    if not 0 < mask < 1 << m.num_ctas:
        raise m.error(op, f"the mask of this copy is {mask:#b}, the cluster has {m.num_ctas} "
                      "programs", "bit r of the mask stands for the program of rank r")
    array = _content(m, frame, op)
    for rank in range(m.num_ctas):
        if mask >> rank & 1:
            peer = reach(m, frame, op, rank)
            _load_into(m, frame, op, peer, array)
            visit(m, op, peer, _phase_end(_barrier(m, frame, op, op.barrier, peer)))


def _content(m: Machine, frame: Frame, op: ops.TmaLoad | ops.TmaMulticast) -> Array:
    """What a load copies."""
    t = op.buffer.type
    assert isinstance(t, MemDesc)
    tile = _tile(m, frame, op, op.coordinates, t.shape)
    array = m.memory.load(*tile, dtype_of(t))
    return np.where(tile.inside, array, np.zeros(1, array.dtype))


def _load_into(m: Machine, frame: Frame, op: ops.TmaLoad | ops.TmaMulticast, peer: Machine,
               array: Array) -> None:
    """A load into a buffer of the program itself, or of another one of its cluster, begins."""
    bar, view = _barrier(m, frame, op, op.barrier, peer), view_in(m, op, op.buffer, peer)
    at = frame if peer is m else view.home
    if peer is m:
        begin_write(m, frame, op, view, _phase_end(bar))
    else:
        assert m.role is not None
        m.role.access(m, at, op, view, True, _phase_end(bar))
    rows, stage = view.place(at)
    view.buffer.poison[rows, stage] = True  # until it lands
    who = at.index_in(peer.copies.root)
    peer.copies.under_way.append(TmaCopy(
        op, view, who, rows, stage, np.full(len(who), NO_GROUP), view.stored(array),
        np.zeros(len(who), bool), bar.state, bar.rows, bar.slots,
        bar.state.phase[bar.rows, bar.slots], array[0].nbytes))


@interp_rules(ops.TmaStore)
def _(m: Machine, frame: Frame, op: ops.TmaStore) -> None:
    t, view = op.buffer.type, m.buffers[op.buffer]
    assert isinstance(t, MemDesc)
    _begin_read(m, frame, op, view, "stores")
    tile = _tile(m, frame, op, op.coordinates, t.shape)
    array, poison = view.read(frame)
    if poison is not None and (poison & tile.inside).any():
        raise m.error(op, f"this copies {int((poison & tile.inside).sum())} elements of the buffer "
                      "that are poison: nobody wrote them, or something poison was written")
    try:
        if op.reduce:
            m.memory.atomic(*tile, op.reduce, [array], False)
        else:
            m.memory.store(*tile, array)
    except AccessError as e:
        raise m.error(op, f"%{op.map.name} is a read-only array" if e.reason == "readonly" else
                      f"%{op.map.name} is {e.reason}") from None
    m.asynchrony.stores.begin(frame, op, view.buffer, *view.place(frame))


@interp_rules(ops.TmaStoreCommit)
def _(m: Machine, frame: Frame, op: ops.TmaStoreCommit) -> None:
    m.asynchrony.stores.commit(frame)


@interp_rules(ops.TmaStoreWait)
def _(m: Machine, frame: Frame, op: ops.TmaStoreWait) -> None:
    _wait_for_groups(m, frame, "stores", op.pending)


def _wait_for_groups(m: Machine, frame: Frame, kind: str, pending: int) -> None:
    """All but the newest groups of "stores" or "products" end."""
    reads: Reads = getattr(m.asynchrony, kind)
    reads.wait(frame, pending)
    if m.role is not None:
        m.role.ended(kind, int(reads.closed[0]) - pending)


def _begin_read(m: Machine, frame: Frame, op: Op, view: View, kind: str) -> None:
    """TMA or wgmma is about to read a buffer, in a group of "stores" or "products": what threads
    stored must have been fenced."""
    reads: Reads = getattr(m.asynchrony, kind)
    touch(m, frame, op, view, False, None if m.role is None else
          (m.role.sort(kind), int(reads.closed[0]) + 1))
    own, others = (TOLD, FENCED) if barriers_are_there(m, view) else (WRITTEN, WRITTEN)
    everyone = [m.asynchrony] if m.role is None else m.role.asynchrony
    for asynchrony in everyone:
        stored = asynchrony.stored.get(view.buffer)
        state = np.zeros(1) if stored is None else stored[view.place(frame)]
        if (state < (own if asynchrony is m.asynchrony else others)).all():
            continue
        lacks = "gpu.fence_async and a barrier" if (state == WRITTEN).any() else "barrier"
        raise m.error(op, f"{op.name} reads a buffer to which threads have stored",
                      f"put a {lacks} between")


# ---- wgmma
@interp_rules(ops.Wgmma)
def _(m: Machine, frame: Frame, op: ops.Wgmma) -> Sequence[Data]:
    a, b = (_operand(m, frame, op, v) for v in (op.a, op.b))
    c, poison_c = frame.get(op.c)
    if op.accumulate is not None:
        keep = defined(m, frame, op, op.accumulate, "the flag of this product")
        keep = keep.reshape(-1, 1, 1)
        c = np.where(keep, c, np.zeros(1, c.dtype))
        poison_c = None if poison_c is None else np.where(keep, poison_c, 0)
    step = WGMMA_K_BITS // (8 * b[0].dtype.itemsize)
    array = m.numbers.products(_as_read(a[0]), _as_read(b[0]), c, step)
    rows = None if a[1] is None else np.asarray(a[1].any(-1, keepdims=True))
    columns = None if b[1] is None else np.asarray(b[1].any(-2, keepdims=True))
    own = None if poison_c is None else (poison_c & 1) != 0
    group = m.asynchrony.products.commit(frame).reshape(-1, 1, 1) << 1
    found = union(rows, columns, own)
    return ((array, group if found is None else group | found),)


def _as_read(x: Array) -> Array:
    """An operand as tensor cores read it: of f32, the bits of tf32."""
    if x.dtype != F32:
        return x
    return np.asarray((np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(F32))


def _operand(m: Machine, frame: Frame, op: Op, value: Value) -> Data:
    if not isinstance(value.type, MemDesc):
        return frame.get(value)
    view = m.buffers[value]
    _begin_read(m, frame, op, view, "products")
    m.asynchrony.products.begin(frame, op, view.buffer, *view.place(frame))
    return view.read(frame)


@interp_rules(ops.WgmmaWait)
def _(m: Machine, frame: Frame, op: ops.WgmmaWait) -> Sequence[Data]:
    products = m.asynchrony.products
    _wait_for_groups(m, frame, "products", op.pending)
    last = (products.closed[frame.index_in(products.root)] - op.pending).reshape(-1, 1, 1)
    out: list[Data] = []
    for value in op.values:
        array, poison = frame.get(value)
        if poison is not None:
            early = np.where(poison >> 1 > last, poison, poison & 1)
            poison = early if (early > 1).any() else early != 0 if early.any() else None
        out.append((array, poison))
    return out
