"""store_by_tma: results go out through buffers, by TMA."""

from __future__ import annotations

from math import prod

from tilec.errors import IRError
from tilec.ir import ops
from tilec.ir.accumulators import WARPGROUP_WARPS
from tilec.ir.core import Builder, Module, Value
from tilec.ir.layouts import Mma, RegisterLayout
from tilec.ir.tensor_maps import TensorMaps, block_layout, buffer_type
from tilec.ir.types import Scalar, Tensor, i32, layout_of
from tilec.passes.base import Pass
from tilec.passes.expand import number

PASS_BYTES = 32768  # of a result in shared memory at once


class StoreByTma(Pass):
    """Stores of blocks that were left for TMA: a tile goes through a buffer, in passes that leave
    room for more stages of operands. Where warpgroups own rows, each stores its own. Stores may
    overlap, in a loop or of arrays that are one: each begins when those before it are complete.
    If blocks are the same or apart, one thread stores what may overlap: it waits as late as that.

    descriptor_store(%p, %x, ...) -->
    tma_store_wait ; barrier ; shared_store(%b, %x) ; fence_async ; warpgroup_barrier ;
    tma_store(%map, %b)
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            maps = TensorMaps(func, module.attributes.get("target"))
            stores = [op for op in func.walk() if isinstance(op, ops.DescriptorStore)]
            role = next((a for op in stores for a in op.ancestors()
                         if isinstance(a, ops.WarpRole)), None)
            for op in stores:
                first = op is stores[0] and ops.innermost_loop(op) is None
                apart = len(stores) == 1 and all(
                    maps.axis.get(v).divisibility[0] % n == 0
                    for v, n in zip(op.parts()[2], op.block, strict=True))
                _store(op, maps, first, apart)
            if stores:  # shared memory must outlive the last one
                end = (func if role is None else role).body.terminator
                Builder(before=end, loc=stores[-1].loc).insert(ops.TmaStoreWait(read=True))


def _store(op: ops.DescriptorStore, maps: TensorMaps, first: bool, apart: bool) -> None:
    layout = layout_of(op.value.type)
    assert isinstance(layout, RegisterLayout)
    num_warps = layout.num_warps
    groups = num_warps // WARPGROUP_WARPS
    own = isinstance(layout, Mma) and layout.version == 3 and \
        layout.warps_per_cta == (num_warps, 1) and op.block[-2] == 64 * groups
    meet = ops.WarpgroupBarrier if own else ops.Barrier
    here = Builder(before=op, loc=op.loc)
    *rows, last = op.parts()[2]
    pieces = _pieces(op, here)
    t = pieces[0].type
    assert isinstance(t, Tensor)
    chart = maps.parameter(op, (t.shape[0] // (groups if own else 1), *t.shape[1:]))
    buffer = here.emit(ops.AllocShared(types=[buffer_type(op, block=t.shape)]))
    for i, piece in enumerate(pieces):
        if i or apart and not first:  # parts lie side by side: only the buffer is waited for
            here.insert(ops.TmaStoreWait(read=True))
            here.insert(meet())
        elif not first:
            here.insert(ops.TmaStoreWait())
            here.insert(ops.Barrier())
        column = last if not i else here.emit(ops.Add(last, number(here, i * t.shape[-1], i32)))
        here.insert(ops.SharedStore(buffer, piece))
        here.insert(ops.FenceAsync())
        here.insert(meet())
        if apart and not first and not i:
            here.insert(ops.TmaStoreWait())
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
