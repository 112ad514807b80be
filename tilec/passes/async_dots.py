"""Dots that wgmma computes, and stores of blocks by TMA: both asynchronous, from and to buffers."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import ops
from tilec.ir.core import Builder, Module, Op, Value
from tilec.ir.tensor_maps import TensorMaps, buffer_type
from tilec.passes.base import Pass

WARPGROUP_WARPS = 4


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


class StoreByTma(Pass):
    """Stores of blocks that were left for TMA: registers go to a buffer, and one thread of each
    warpgroup starts the copy of its rows.

    descriptor_store(%p, %x, ...) -->
    shared_store(%b, %x) ; fence_async ; barrier ; tma_store(%map, %b, ...) ; wait
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            maps = TensorMaps(func, module.attributes.get("target"))
            stores = [op for op in func.walk() if isinstance(op, ops.DescriptorStore)]
            for op in stores:
                _store(op, maps, module.num_warps)
            if stores:  # shared memory must outlive the last one
                Builder(before=func.body.terminator, loc=stores[-1].loc).insert(
                    ops.TmaStoreWait(read=True))


def _store(op: ops.DescriptorStore, maps: TensorMaps, num_warps: int) -> None:
    parts = num_warps // WARPGROUP_WARPS
    parts = parts if len(op.block) == 2 and op.block[0] % (8 * parts) == 0 else 1
    chart = maps.parameter(op, op.block[0] // parts)
    here = Builder(before=op, loc=op.loc)
    buffer = here.emit(ops.AllocShared(types=[buffer_type(op)]))
    looped = ops.innermost_loop(op) is not None
    if looped:  # the last store must have read the buffer, while this iteration computed
        here.insert(ops.TmaStoreWait(read=True))
        here.insert(ops.Barrier())
    here.insert(ops.SharedStore(buffer, op.value))
    here.insert(ops.FenceAsync())
    here.insert(ops.Barrier())
    here.insert(ops.TmaStore(chart, buffer, *op.parts()[2], parts=parts))
    here.insert(ops.TmaStoreCommit())
    if not looped:
        here.insert(ops.TmaStoreWait(read=True))
    op.erase()
