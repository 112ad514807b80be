"""Dots that wgmma computes, and stores of blocks by TMA: both asynchronous, from and to buffers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilec.errors import IRError
from tilec.ir import ops
from tilec.ir.core import Builder, Module, Op, Value
from tilec.ir.layouts import Mma
from tilec.ir.ops.gpu import allocation
from tilec.ir.tensor_maps import TensorMaps, block_layout, buffer_type
from tilec.ir.types import MemDesc, Scalar, Tensor, i32, layout_of
from tilec.passes.base import Pass
from tilec.passes.expand import number

WARPGROUP_WARPS = 4
PASS_BYTES = 32768  # of a result in shared memory at once


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
    here = Builder(before=dot, loc=dot.loc)
    a, b = _buffer(dot.a, here), _buffer(dot.b, here)
    # Of the buffers that this iteration reads, none is filled before the next one's products.
    sums = alone and _only_sums(dot) and all(map(_staged, (a, b)))
    begun = here.emit(ops.Wgmma(a, b, dot.c))
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


def _staged(buffer: Value) -> bool:
    t = allocation(buffer).result.type
    return isinstance(t, MemDesc) and t.stages > 1


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
        return _buffer(op.x, here)
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
    """Stores of blocks that were left for TMA: a tile goes through a buffer, in passes that leave
    room for more stages of operands. Where warpgroups own rows, each stores its own, and waits for
    no other.

    descriptor_store(%p, %x, ...) -->
    tma_store_wait ; shared_store(%b, %x) ; fence_async ; warpgroup_barrier ; tma_store(%map, %b)
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
    groups, layout = num_warps // WARPGROUP_WARPS, layout_of(op.value.type)
    own = isinstance(layout, Mma) and layout.version == 3 and \
        layout.warps_per_cta == (num_warps, 1) and op.block[0] == 64 * groups
    meet = ops.WarpgroupBarrier if own else ops.Barrier
    here = Builder(before=op, loc=op.loc)
    *rows, last = op.parts()[2]
    pieces = _pieces(op, here)
    t = pieces[0].type
    assert isinstance(t, Tensor)
    chart = maps.parameter(op, (t.shape[0] // (groups if own else 1), *t.shape[1:]))
    buffer = here.emit(ops.AllocShared(types=[buffer_type(op, block=t.shape)]))
    for i, piece in enumerate(pieces):
        if i or ops.innermost_loop(op) is not None:
            here.insert(ops.TmaStoreWait(read=True))
            here.insert(meet())
        column = last if not i else here.emit(ops.Add(last, number(here, i * t.shape[-1], i32)))
        here.insert(ops.SharedStore(buffer, piece))
        here.insert(ops.FenceAsync())
        here.insert(meet())
        here.insert(ops.TmaStore(chart, buffer, *rows, column, parts=groups if own else 1))
        here.insert(ops.TmaStoreCommit())
    op.erase()


def _pieces(op: ops.DescriptorStore, here: Builder) -> list[Value]:
    """The tile to store, cut along its rows into parts of PASS_BYTES if threads hold such parts."""
    t = op.value.type
    assert isinstance(t, Tensor) and isinstance(t.element, Scalar)
    columns = t.shape[-1]
    while prod(t.shape[:-1]) * columns * t.element.bytes > PASS_BYTES and columns % 2 == 0:
        columns //= 2
    shape = (*t.shape[:-1], columns)
    starts = [(*(0,) * (t.rank - 1), c) for c in range(0, t.shape[-1], columns)]
    if len(starts) == 1 or block_layout(shape, t.element) is None:
        return [op.value]
    try:
        return [here.emit(ops.ExtractSlice(op.value, start=start, shape=shape))
                for start in starts]
    except IRError:  # threads do not hold the parts as they would hold them alone
        return [op.value]
