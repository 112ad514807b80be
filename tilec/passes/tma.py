"""Blocks of described tensors move by TMA: loads of a loop through a ring of buffers that one
mbarrier a slot guards, stores through a buffer."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import ops
from tilec.ir.core import Block, Builder, Func, Module, Op, Value
from tilec.ir.layouts import SwizzledShared
from tilec.ir.tensor_maps import TensorMaps, buffer_type
from tilec.ir.types import MemDesc, i32, i64
from tilec.passes.base import Pass
from tilec.passes.expand import Expander

_BARRIER = SwizzledShared(1, 1, 1, (0,))
WARPGROUP_WARPS = 4


class StoreByTma(Pass):
    """Stores of blocks that were left for TMA: registers go to a buffer, and one thread of each
    warpgroup starts the copy of its rows.

    descriptor_store(%p, %x, ...) -->
    shared_store(%b, %x) ; fence_async ; barrier ; tma_store(%map, %b, ...) ; wait
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            maps = TensorMaps(func, module.attributes.get("target"))
            for op in list(func.walk()):
                if isinstance(op, ops.DescriptorStore):
                    _store(op, maps, module.num_warps)


def _store(op: ops.DescriptorStore, maps: TensorMaps, num_warps: int) -> None:
    parts = num_warps // WARPGROUP_WARPS
    parts = parts if len(op.block) == 2 and op.block[0] % (8 * parts) == 0 else 1
    chart = maps.parameter(op, op.block[0] // parts)
    here = Builder(before=op, loc=op.loc)
    buffer = here.emit(ops.AllocShared(types=[buffer_type(op)]))
    here.insert(ops.SharedStore(buffer, op.value))
    here.insert(ops.FenceAsync())
    here.insert(ops.Barrier())
    here.insert(ops.TmaStore(chart, buffer, *op.parts()[2], parts=parts))
    here.insert(ops.TmaStoreCommit())
    here.insert(ops.TmaStoreWait(read=True))
    if ops.innermost_loop(op) is not None:
        here.insert(ops.Barrier())  # the next iteration's store writes the buffer
    op.erase()


def load_by_tma(loads: Sequence[ops.DescriptorLoad], func: Func, expander: Expander,
                target: object) -> None:
    """Make the loads of a loop, which start in one stage, copies into buffers. A slot is filled
    again at the end of the round after its own, when all warps have passed a barrier."""
    last, first, loop = expander.last, loads[0], expander.loop
    slots = max(last, 0) + 1
    maps = TensorMaps(func, target)
    here, before = Builder(before=first, loc=first.loc), expander.before
    count = expander.counter(2 * slots)
    limit = here.emit(ops.Constant(value=slots, types=[i32]))
    wrapped = here.emit(ops.Cmp(count, limit, predicate="ge"))
    slot = here.emit(ops.Select(wrapped, here.emit(ops.Sub(count, limit)), count))
    parity = here.emit(ops.Select(wrapped, *(here.emit(ops.Constant(value=v, types=[i32]))
                                             for v in (1, 0))))
    full = before.emit(ops.AllocShared(types=[MemDesc((slots, 1), i64, _BARRIER)]))
    full.name = "full"
    ready = here.emit(ops.MemdescIndex(full, slot))
    copies = Block()
    inside = Builder(copies, loc=first.loc)
    views, total, charts = [], 0, []
    for load in loads:
        buffer = before.emit(ops.AllocShared(types=[buffer_type(load, slots)], loc=load.loc))
        buffer.name = load.result.name
        views.append(here.emit(ops.MemdescIndex(buffer, slot, loc=load.loc)))
        charts.append(maps.parameter(load))
        t = views[-1].type
        assert isinstance(t, MemDesc)
        total += _bytes(t)
    inside.insert(ops.MbarrierExpect(ready, bytes=total))
    for load, view, chart in zip(loads, views, charts, strict=True):
        inside.insert(ops.TmaLoad(chart, view, ready, *load.parts()[2], loc=load.loc))
    inside.insert(ops.Yield())
    setup = Block()
    for op in (*(ops.PrefetchTensormap(m) for m in dict.fromkeys(charts)),
               ops.MbarrierInit(full), ops.Yield()):
        Builder(setup, loc=loop.loc).insert(op)
    before.insert(ops.Elect(body=setup))
    before.insert(ops.Barrier())
    here.insert(ops.Elect(body=copies))
    _order(here, ready, parity, expander)
    for load, view in zip(loads, views, strict=True):
        load.replace_by([Builder(before=load, loc=load.loc).emit(
            ops.SharedLoad(view, types=[load.result.type]))])


def _order(here: Builder, ready: Value, parity: Value, expander: Expander) -> None:
    """Wait where the loads stood; free the slots at the end of a round, and fill them after."""
    elect = here.before.prev if here.before is not None else None
    assert isinstance(elect, ops.Elect)
    end = Builder(before=expander.body.terminator, loc=elect.loc)
    here.insert(ops.MbarrierWait(ready, parity))
    if expander.last > 0:
        elect.stage, elect.op_order = 0, 2
        end.insert(ops.Barrier(op_order=1))
    else:
        end.insert(ops.Barrier())


def _bytes(t: MemDesc) -> int:
    size = t.element.bytes
    for n in t.tile_shape:
        size *= n
    return size


class AsyncDots(Pass):
    """Dots of wgmma read their operands from shared memory and run beside what follows: in a loop
    that only sums, one more is begun before the last one is waited for.

    dot(shared_load(%a), shared_load(%b), %c) --> wgmma_wait(wgmma(%a, %b, %c)) {pending = 1}
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            dots = [op for op in func.walk() if isinstance(op, ops.Dot) and _by_wgmma(op)]
            for op in dots:
                _begin(op, sum(x.parent is op.parent for x in dots) == 1)


def _by_wgmma(op: ops.Dot) -> bool:
    layout = getattr(op.result.type, "layout", None)
    return getattr(layout, "version", 0) == 3


def _begin(dot: ops.Dot, alone: bool) -> None:
    sums = alone and _only_sums(dot)
    here = Builder(before=dot, loc=dot.loc)
    begun = here.emit(ops.Wgmma(_buffer(dot.a, here), _buffer(dot.b, here), dot.c))
    begun.name = dot.result.name
    waited = here.emit(ops.WgmmaWait([begun], types=[begun.type], pending=int(sums)))
    loop, index = dot.parent and dot.parent.parent_op, -1
    reads = [dot.a.op, dot.b.op]
    if sums:
        assert isinstance(loop, ops.For)
        index = dot.c.index - 1
        result = loop.results[index]
        uses = list(result.uses)
        done = Builder(before=loop.next, loc=dot.loc).emit(
            ops.WgmmaWait([result], types=[result.type]))
        for user, at in uses:
            user.set_operand(at, done)
    dot.replace_by([waited])
    _sweep(reads)


def _only_sums(dot: ops.Dot) -> bool:
    """Whether the dot adds to a value that its loop carries, and nothing else there looks at it."""
    loop = dot.parent.parent_op if dot.parent is not None else None
    if not isinstance(loop, ops.For) or dot.c.owner is not loop.body:
        return False
    end = loop.body.terminator
    return list(dot.result.uses) == [(end, dot.c.index - 1)] and len(dot.c.uses) == 1


def _buffer(value: Value, here: Builder) -> Value:
    """The buffer, or the view of one, that an operand of a dot was read from."""
    op = value.op
    if isinstance(op, ops.ConvertLayout):
        op = op.x.op
    if isinstance(op, ops.Trans):
        return here.emit(ops.MemdescTrans(_buffer(op.x, here), order=op.order))
    if not isinstance(op, ops.SharedLoad):
        assert value.op is not None
        raise value.op.fail("wgmma reads this operand from shared memory, where it does not lie")
    return op.buffer


def _sweep(reads: Sequence[Op | None]) -> None:
    """Remove reads that nobody uses any more, with what they were read through."""
    for op in reads:
        if op is not None and op.parent is not None and not any(r.uses for r in op.results):
            sources = [v.op for v in op.operands]
            if isinstance(op, (ops.SharedLoad, ops.Trans, ops.ConvertLayout)):
                op.erase()
                _sweep(sources)
