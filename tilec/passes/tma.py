"""Loads of blocks by TMA: a loop's copies go through a ring of buffers; one mbarrier a slot says
when its data is there. A slot is filled again at the end of the round after its own, when all warps
have passed a barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from tilec.ir import ops
from tilec.ir.core import Block, Builder, Func, Value
from tilec.ir.layouts import SwizzledShared
from tilec.ir.remarks import remark
from tilec.ir.tensor_maps import TensorMaps, buffer_type
from tilec.ir.types import MemDesc, i32, i64
from tilec.passes.expand import Expander, carry, later, number
from tilec.passes.nest import Cursor, Nest, give

_BARRIER = SwizzledShared(1, 1, 1, (0,))


@dataclass
class Ring:
    """The buffers of a loop's loads, `slots` of each, with their mbarriers, set up before `at`.
    consumers: warpgroups of a role that says by mbarriers `empty` when slots are free; 0 where
    loads and uses are one role's, whose barriers say that."""

    loads: Sequence[ops.DescriptorLoad]
    slots: int
    maps: TensorMaps
    at: Builder
    consumers: int = 0
    tensor_maps: list[Value] = field(default_factory=list)
    buffers: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.full = self.at.emit(ops.AllocShared(types=[MemDesc((self.slots, 1), i64, _BARRIER)]))
        self.full.name = "full"
        for load in self.loads:
            t = buffer_type(load, self.slots)
            self.buffers.append(self.at.emit(ops.AllocShared(types=[t], loc=load.loc)))
            self.buffers[-1].name = load.result.name
            self.tensor_maps.append(self.maps.parameter(load))
        setup = Block()
        inside = Builder(setup, loc=self.at.loc)
        for tensor_map in dict.fromkeys(self.tensor_maps):
            inside.insert(ops.PrefetchTensormap(tensor_map))
        inside.insert(ops.MbarrierInit(self.full))
        if self.consumers:
            self.empty = self.at.emit(ops.AllocShared(types=[self.full.type]))
            self.empty.name = "empty"
            inside.insert(ops.MbarrierInit(self.empty, count=self.consumers))
        inside.insert(ops.Yield())
        self.at.insert(ops.Elect(body=setup))
        self.at.insert(ops.Barrier())

    def slot(self, here: Builder, count: Value) -> tuple[Value, Value]:
        """(slot, parity of its phase) for the number of an iteration modulo twice the slots."""
        limit = number(here, self.slots, i32)
        wrapped = here.emit(ops.Cmp(count, limit, predicate="ge"))
        return (here.emit(ops.Select(wrapped, here.emit(ops.Sub(count, limit)), count)),
                here.emit(ops.Select(wrapped, number(here, 1, i32), number(here, 0, i32))))

    def copies(self, here: Builder, slot: Value, offsets: Sequence[Sequence[Value]],
               predicate: Value | None = None) -> ops.Elect:
        """One thread starts the copies into a slot."""
        body = Block()
        inside = Builder(body, loc=self.loads[0].loc)
        self.fill(here, slot, offsets, inside)
        inside.insert(ops.Yield())
        elect = here.insert(ops.Elect(*([] if predicate is None else [predicate]), body=body))
        assert isinstance(elect, ops.Elect)
        return elect

    def fill(self, here: Builder, slot: Value, offsets: Sequence[Sequence[Value]],
             inside: Builder | None = None) -> None:
        """One thread, which runs `here`, or `inside`, starts the copies into a slot."""
        ready = here.emit(ops.MemdescIndex(self.full, slot))
        views = [here.emit(ops.MemdescIndex(b, slot)) for b in self.buffers]
        inside = inside or here
        inside.insert(ops.MbarrierExpect(ready, bytes=sum(map(_bytes, views))))
        for load, tensor_map, view, at in zip(self.loads, self.tensor_maps, views, offsets,
                                              strict=True):
            inside.insert(ops.TmaLoad(tensor_map, view, ready, *at, loc=load.loc))

    def read(self, here: Builder, slot: Value, parity: Value) -> None:
        """Wait for a slot; users of the loads read it."""
        here.insert(ops.MbarrierWait(here.emit(ops.MemdescIndex(self.full, slot)), parity))
        views = [here.emit(ops.MemdescIndex(buffer, slot)) for buffer in self.buffers]
        reads = [here.emit(ops.SharedLoad(view, types=[load.result.type], loc=load.loc))
                 for load, view in zip(self.loads, views, strict=True)]
        for load, read in zip(self.loads, reads, strict=True):
            load.replace_by([read])


def _bytes(view: Value) -> int:
    t = view.type
    assert isinstance(t, MemDesc)
    return prod(t.tile_shape) * t.element.bytes


def load_by_tma(loop: ops.For, loads: Sequence[ops.DescriptorLoad], func: Func, target: object
                ) -> None:
    """Make the loads of a loop copies that run num_stages - 1 iterations ahead; in a nest that is
    to be flattened, on into the next iterations of the outer loop."""
    slots, maps = max(loop.num_stages, 1), TensorMaps(func, target)
    nest = Nest(loop, [v for load in loads for v in load.parts()[2]])
    before = Builder(before=nest.outermost, loc=loop.loc)
    flat = nest.flat and slots > 1
    if nest.outers and nest.outers[-1].flatten:
        remark(nest.outers[-1], "loop", "its loads run on from one iteration into the next" if flat
               else f"not flattened: {nest.reason or 'the loop inside has one stage'}",
               option="flatten")
        nest.outers[-1].flatten = False
    if flat:
        _run_on(nest, Ring(loads, slots, maps, before), before)
        return
    expander = Expander(loop)
    count = expander.counter(2 * slots, nest.thread(number(before, 0, i32)))
    # With one slot nothing runs ahead: each load is copied, and waited for, where it stands.
    for part in [loads] if slots > 1 else [[load] for load in loads]:
        ring = Ring(part, slots, maps, before)
        here = Builder(before=part[0], loc=part[0].loc)
        slot, parity = ring.slot(here, count)
        elect = ring.copies(here, slot, [load.parts()[2] for load in part])
        ring.read(here, slot, parity)
        if slots > 1:
            elect.stage, elect.op_order = 0, 2
    end = Builder(before=loop.body.terminator, loc=loads[0].loc)
    end.insert(ops.Barrier(op_order=int(slots > 1)))
    expander.run()
    nest.tie(loop.results[count.index - 1])


def _run_on(nest: Nest, ring: Ring, before: Builder) -> None:
    """A cursor runs ahead over both loops; rounds are counted through both."""
    outer, inner = nest.outers[0], nest.inner
    extent, ahead = 2 * ring.slots, ring.slots - 1
    places = [v for load in ring.loads for v in load.parts()[2]]

    def copies(here: Builder, slot: Value, cursor: Cursor) -> None:
        found = iter(nest.at(here, cursor, places))
        ring.copies(here, slot, [[next(found) for _ in load.block] for load in ring.loads],
                    cursor.runs)

    cursor = nest.start(before)
    for t in range(ahead):
        copies(before, number(before, t, i32), cursor)
        cursor = nest.advance(before, cursor, nest.following(before, cursor))
    through = [carry(outer, v) for v in (number(before, 0, i32), *cursor.values())]
    following = nest.following(Builder(before=inner, loc=inner.loc), cursor.like(through[1:]))
    count, *now = (carry(inner, v) for v in through)
    cursor = cursor.like(now)
    here = Builder(before=ring.loads[0], loc=ring.loads[0].loc)
    end = Builder(before=inner.body.terminator, loc=ring.loads[0].loc)
    ring.read(here, *ring.slot(here, count))
    end.insert(ops.Barrier())
    copies(end, ring.slot(end, later(end, count, ahead, extent))[0], cursor)
    cursor = nest.advance(end, cursor, following)
    give(inner, [later(end, count, 1, extent), *cursor.values()])
    give(outer, inner.results[-len(through):])
