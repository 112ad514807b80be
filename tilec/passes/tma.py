"""Loads of blocks by TMA: a loop's copies go through a ring of buffers; one mbarrier a slot says
when its data is there. A slot is filled again at the end of the round after its own, when all warps
have passed a barrier. Where loads have stages of their own, each has a ring, and a second mbarrier
a slot says that it is empty: warpgroups do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilec.ir import ops
from tilec.ir.accumulators import WARPGROUP_WARPS
from tilec.ir.buffers import mbarrier_type
from tilec.ir.core import Block, Builder, Func, Module, Op, Value
from tilec.ir.origins import uses_in_block
from tilec.ir.remarks import remark
from tilec.ir.tensor_maps import TensorMaps, buffer_type
from tilec.ir.types import i32
from tilec.passes.allocate_shared import round_bytes
from tilec.passes.dot_buffers import by_wgmma
from tilec.passes.expand import Expander, carry, later, number, refuse
from tilec.passes.nest import Cursor, Nest, give

ON_THE_WAY = (ops.ConvertLayout, ops.Trans)  # from a buffer to a dot


@dataclass
class Ring:
    """The buffers of a loop's loads, `slots` of each, with their mbarriers, set up before `at`.
    consumers: how many warpgroups say by mbarriers `empty` when slots are free; 0 where barriers of
    the loop say that. spare: buffers of loops that begin once this one's has ended, of which it
    takes what it can use: the barrier after their setup orders its reads and their copies."""

    loads: Sequence[ops.DescriptorLoad]
    slots: int
    maps: TensorMaps
    at: Builder
    consumers: int = 0
    spare: list[Value] = field(default_factory=list)
    tensor_maps: list[Value] = field(default_factory=list)
    buffers: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        barriers = mbarrier_type(self.slots)
        self.full = self.at.emit(ops.AllocShared(types=[barriers]))
        self.full.name = "full"
        for load in self.loads:
            t = buffer_type(load, self.slots)
            buffer = next((b for b in self.spare if b.type == t), None)
            if buffer is None:
                buffer = self.at.emit(ops.AllocShared(types=[t], loc=load.loc))
                buffer.name = load.result.name
            else:
                self.spare.remove(buffer)
                assert buffer.op is not None and self.full.op is not None
                buffer.op.move_before(self.full.op)
            self.buffers.append(buffer)
            self.tensor_maps.append(self.maps.parameter(load))
        setup = Block()
        inside = Builder(setup, loc=self.at.loc)
        for tensor_map in dict.fromkeys(self.tensor_maps):
            inside.insert(ops.PrefetchTensormap(tensor_map))
        inside.insert(ops.MbarrierInit(self.full))
        if self.consumers:
            self.empty = self.at.emit(ops.AllocShared(types=[barriers]))
            self.empty.name = "empty"
            inside.insert(ops.MbarrierInit(self.empty, count=self.consumers))
        inside.insert(ops.Yield())
        self.setup = self.at.insert(ops.Elect(body=setup))
        self.at.insert(ops.Barrier())

    def set_up_with(self, other: Ring) -> None:
        """Leave the setup to the one of a ring that was made later, and the barrier after it."""
        there, barrier = Builder(before=other.setup.regions[0].first), self.setup.next
        for op in self.setup.regions[0]:
            if not op.terminator:
                there.insert(op.remove())
        assert barrier is not None
        barrier.erase()
        self.setup.erase()

    def slot(self, here: Builder, count: Value) -> tuple[Value, Value]:
        """(slot, parity of its phase) for the number of an iteration modulo twice the slots."""
        if self.slots == 1:
            return number(here, 0, i32), count
        limit = number(here, self.slots, i32)
        wrapped = here.emit(ops.Cmp(count, limit, predicate="ge"))
        return (here.emit(ops.Select(wrapped, here.emit(ops.Sub(count, limit)), count)),
                here.emit(ops.Select(wrapped, number(here, 1, i32), number(here, 0, i32))))

    def copies(self, here: Builder, slot: Value, offsets: Sequence[Sequence[Value]],
               predicate: Value | None = None, phase: Value | None = None) -> ops.Elect:
        """One thread starts the copies into a slot; with a phase, one of the last warpgroup, when
        the slot's phase of that parity has emptied it. The thread is named by elect.sync in its
        warp: of any other ptxas does not know that it is alone, and has each copy in a loop over
        the lanes."""
        body = Block()
        inside = Builder(body, loc=self.loads[0].loc)
        if phase is not None:
            inside.insert(ops.MbarrierWait(here.emit(ops.MemdescIndex(self.empty, slot)), phase))
        self.fill(here, slot, offsets, inside)
        inside.insert(ops.Yield())
        elect = ops.Elect(*([] if predicate is None else [predicate]), body=body, by="warp")
        if phase is not None:
            elect.warp = WARPGROUP_WARPS * (self.consumers - 1)
        here.insert(elect)
        return elect

    def fill(self, here: Builder, slot: Value, offsets: Sequence[Sequence[Value]],
             inside: Builder | None = None) -> None:
        """One thread, which runs `here`, or `inside`, starts the copies into a slot."""
        ready = here.emit(ops.MemdescIndex(self.full, slot))
        views = [here.emit(ops.MemdescIndex(b, slot)) for b in self.buffers]
        inside = inside or here
        inside.insert(ops.MbarrierExpect(ready, bytes=round_bytes(self.buffers, self.maps.target)))
        for load, tensor_map, view, at in zip(self.loads, self.tensor_maps, views, offsets,
                                              strict=True):
            inside.insert(ops.TmaLoad(tensor_map, view, ready, *at, loc=load.loc))

    def read(self, here: Builder, slot: Value, parity: Value) -> tuple[Op, list[Value]]:
        """Wait for a slot; users of the loads read it. The wait and what is read."""
        ready = here.emit(ops.MemdescIndex(self.full, slot))
        wait = here.insert(ops.MbarrierWait(ready, parity))
        views = [here.emit(ops.MemdescIndex(buffer, slot)) for buffer in self.buffers]
        reads = [here.emit(ops.SharedLoad(view, types=[load.result.type], loc=load.loc))
                 for load, view in zip(self.loads, views, strict=True)]
        for load, read in zip(self.loads, reads, strict=True):
            load.replace_by([read])
        return wait, reads


def load_by_tma(loop: ops.For, loads: Sequence[ops.DescriptorLoad], func: Func, module: Module,
                made: list[Ring]) -> None:
    """Make the loads of a loop copies that run num_stages - 1 iterations ahead; in a nest that is
    to be flattened, on into the next iterations of the outer loop. made: the rings of the
    function's other loops so far; this one's are added."""
    slots, maps = max(loop.num_stages, 1), TensorMaps(func, module.attributes.get("target"))
    nest = Nest(loop, [v for load in loads for v in load.parts()[2]])
    before = Builder(before=nest.outermost, loc=loop.loc)
    spare = _buffers_after(nest.outermost, made)
    staged = any(load.stage >= 0 for load in loads)
    flat = nest.flat and slots > 1 and not staged
    if nest.outers and nest.outers[-1].flatten:
        why = nest.reason or f"the loop inside has {'stages of its own' if staged else 'one stage'}"
        remark(nest.outers[-1], "loop", "its loads run on from one iteration into the next" if flat
               else f"not flattened: {why}", option="flatten")
        nest.outers[-1].flatten = False
    if staged:
        staging = StagedLoads(nest, loads, maps, before, module.num_warps // WARPGROUP_WARPS, spare)
        made += staging.rings.values()
        staging.use()
        return
    if flat:
        made.append(_run_on(nest, loads, slots, maps, before, spare))
        return
    expander = Expander(loop)
    count = expander.counter(2 * slots, nest.thread(number(before, 0, i32)))
    # With one slot nothing runs ahead: each load is copied, and waited for, where it stands.
    for part in [loads] if slots > 1 else [[load] for load in loads]:
        ring = Ring(part, slots, maps, before, spare=spare)
        made.append(ring)
        here = Builder(before=part[0], loc=part[0].loc)
        slot, parity = ring.slot(here, count)
        elect = ring.copies(here, slot, [load.parts()[2] for load in part])
        ring.read(here, slot, parity)
        if slots > 1:
            elect.stage, elect.op_order = 0, 2
    end = Builder(before=loop.body.terminator, loc=loads[0].loc)
    end.insert(ops.Barrier(op_order=int(slots > 1)))
    nest.tie(expander.run().results[count.index - 1])


def readers_of(load: ops.DescriptorLoad) -> list[Op]:
    """What uses a block in its loop, as it is or transposed."""
    return [op for _, op in uses_in_block(load.result, ON_THE_WAY)
            if not isinstance(op, ON_THE_WAY)]


def _buffers_after(loop: Op, rings: Sequence[Ring]) -> list[Value]:
    """The buffers of rings that are set up after a loop, in the block in which it stands."""
    found, op = dict[Value, None](), loop.next
    while op is not None:
        found |= dict.fromkeys(b for ring in rings if ring.setup is op for b in ring.buffers)
        op = op.next
    return list(found)


class StagedLoads:
    """The loads of a loop that have stages of their own: each has a ring, with as many slots as the
    stages from it to its last readers ask for. The first reader waits for it; at the end of the
    last one's round, warpgroups release what they have read."""

    def __init__(self, nest: Nest, loads: Sequence[ops.DescriptorLoad], maps: TensorMaps,
                 before: Builder, groups: int, spare: list[Value]) -> None:
        loop = nest.inner
        ahead = any(isinstance(op, ops.Dot) and 0 <= op.stage < loop.num_stages - 1
                    for op in loop.body)
        self.nest, self.loop, self.expander = nest, loop, Expander(loop, peel=ahead)
        self.readers = {load: readers_of(load) for load in loads}
        self.stages = {load: sorted(map(self.expander.stage_of, found))
                       for load, found in self.readers.items()}
        for load in loads:
            self._check(load)
        slots = {load: self.stages[load][-1] - load.stage + 1 for load in loads}
        self.counts = {n: self.expander.counter(2 * n, nest.thread(number(before, 0, i32)))
                       for n in dict.fromkeys(slots.values())}
        self.rings = {load: Ring([load], slots[load], maps, before, groups, spare)
                      for load in loads}

    def _check(self, load: ops.DescriptorLoad) -> None:
        stages = self.stages[load]
        if not all(isinstance(op, ops.Dot) and by_wgmma(op) for op in self.readers[load]):
            raise refuse(load, "has a stage of its own, which only operands of wgmma can have")
        if not stages or stages[0] <= load.stage:
            raise refuse(load, f"runs in stage {load.stage}, expected a stage before its readers', "
                         f"which are {sorted(set(stages))}")

    def use(self, elsewhere: bool = False) -> ops.For | ops.If:
        """Expand the loop; what it is a part of then. Copies run as far ahead as a load's stage
        says, in its `op_order`, or are started `elsewhere`: then, if dots run ahead, a slot is
        released as soon as the last products that read it have ended, in the load's `op_order`."""
        last = max(x.op_order for load in self.rings for x in (load, *self.readers[load])) + 1
        end = Builder(before=self.loop.body.terminator, loc=self.loop.loc)
        for load, ring in self.rings.items():
            first, final = self.stages[load][0], self.stages[load][-1]
            at = {s: [dot for dot in self.readers[load] if self.expander.stage_of(dot) == s]
                  for s in (first, final)}
            here = Builder(before=load, loc=load.loc)
            slot, parity = ring.slot(here, self.counts[ring.slots])
            if not elsewhere:
                used = here.emit(ops.Xor(parity, number(here, 1, i32)))
                elect = ring.copies(here, slot, [load.parts()[2]], phase=used)
                elect.stage, elect.op_order = load.stage, load.op_order
            empty = here.emit(ops.MemdescIndex(ring.empty, slot))
            release = ops.MbarrierArrive(empty, stage=final, op_order=last)
            if elsewhere and self.expander.peel:
                release.set_operands([empty, *(dot.results[0] for dot in at[final])])
                release.op_order = max(x.op_order for x in (load, *at[final])) + 1
            end.insert(release)
            wait, (read,) = ring.read(here, slot, parity)
            wait.stage, wait.op_order = first, min(dot.op_order for dot in at[first])
            for v, _ in uses_in_block(read, ON_THE_WAY):
                assert v.op is not None
                v.op.op_order = wait.op_order
        whole = self.expander.run()
        for count in self.counts.values():
            self.nest.tie(whole.results[count.index - 1])
        return whole


def _run_on(nest: Nest, loads: Sequence[ops.DescriptorLoad], slots: int, maps: TensorMaps,
            before: Builder, spare: list[Value]) -> Ring:
    """A cursor runs ahead over both loops; rounds are counted through both. Where the first copies
    go is computed first of all: a launch may overlap that with the grid before it."""
    outer, inner = nest.outers[0], nest.inner
    extent, ahead = 2 * slots, slots - 1
    places = [v for load in loads for v in load.parts()[2]]
    cursors = [nest.start(before)]
    for _ in range(ahead):
        cursors.append(nest.advance(before, cursors[-1], nest.following(before, cursors[-1])))
    ring = Ring(loads, slots, maps, before, spare=spare)

    def copies(here: Builder, slot: Value, cursor: Cursor) -> None:
        found = iter(nest.at(here, cursor, places))
        ring.copies(here, slot, [[next(found) for _ in load.block] for load in loads], cursor.runs)

    for t, cursor in enumerate(cursors[:-1]):
        copies(before, number(before, t, i32), cursor)
    cursor = cursors[-1]
    through = [carry(outer, v) for v in (number(before, 0, i32), *cursor.values())]
    following = nest.following(Builder(before=inner, loc=inner.loc), cursor.like(through[1:]))
    count, *now = (carry(inner, v) for v in through)
    cursor = cursor.like(now)
    here = Builder(before=loads[0], loc=loads[0].loc)
    end = Builder(before=inner.body.terminator, loc=loads[0].loc)
    ring.read(here, *ring.slot(here, count))
    end.insert(ops.Barrier())
    copies(end, ring.slot(end, later(end, count, ahead, extent))[0], cursor)
    cursor = nest.advance(end, cursor, following)
    give(inner, [later(end, count, 1, extent), *cursor.values()])
    give(outer, inner.results[-len(through):])
    return ring
