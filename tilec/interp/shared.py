"""Interpreter rules of shared memory: buffers, views, asynchronous copies, barriers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

import numpy as np

from tilec.eval.dtypes import dtype_of
from tilec.interp.asynchrony import End
from tilec.interp.blame import place
from tilec.interp.buffers import Buffer, View
from tilec.interp.control import defined
from tilec.interp.effects import MemoryAccess
from tilec.interp.frame import Data, Frame
from tilec.interp.machine import Machine, interp_rules
from tilec.interp.shadow import destroy_others, touch
from tilec.ir import ops
from tilec.ir.buffers import is_asynchronous, stage_bytes
from tilec.ir.core import Op
from tilec.ir.types import MemDesc, shape_of


@interp_rules(ops.AllocShared)
def _(m: Machine, frame: Frame, op: ops.AllocShared) -> None:
    t = op.result.type
    assert isinstance(t, MemDesc)
    shape = (len(frame), t.stages, *t.tile_shape)
    data = np.zeros(shape, m.numbers.dtype_of(t)), np.ones(shape, bool)
    buffer = Buffer(frame, data, op.offset, stage_bytes(t), is_asynchronous(op.result))
    m.buffers[op.result] = View(buffer, frame, np.zeros(1, np.int64), tuple(range(t.layout.rank)))


@interp_rules(ops.MemdescIndex)
def _(m: Machine, frame: Frame, op: ops.MemdescIndex) -> None:
    whole = m.buffers[op.buffer]
    index = defined(m, frame, op, op.index, "the index of this buffer").astype(np.int64)
    stages = whole.buffer.array.shape[1]
    bad = (index < 0) | (index >= stages)
    if bad.any():
        raise m.error(op, f"the index is {index[bad][0]}, there are {stages} buffers")
    m.buffers[op.result] = View(whole.buffer, frame, index, whole.order)


@interp_rules(ops.MemdescTrans)
def _(m: Machine, frame: Frame, op: ops.MemdescTrans) -> None:
    view = m.buffers[op.buffer]
    order = tuple(view.order[d] for d in op.order)
    m.buffers[op.result] = View(view.buffer, view.home, view.stage, order)


@interp_rules(ops.SharedStore)
def _(m: Machine, frame: Frame, op: ops.SharedStore) -> None:
    view = m.buffers[op.buffer]
    begin_write(m, frame, op, view)
    m.asynchrony.note_store(view.buffer, *view.place(frame))
    view.write(frame, frame.get(op.value))


@interp_rules(ops.SharedLoad)
def _(m: Machine, frame: Frame, op: ops.SharedLoad) -> Sequence[Data]:
    view = m.buffers[op.buffer]
    touch(m, frame, op, view, False)
    array, poison = view.read(frame)
    if op.offsets:
        ends = map(add, op.offsets, shape_of(op.result.type))
        part = (slice(None), *map(slice, op.offsets, ends))
        array, poison = array[part], None if poison is None else poison[part]
    return ((array, poison),)


@interp_rules(ops.Barrier)
def _(m: Machine, frame: Frame, op: ops.Barrier) -> None:
    m.meet(frame)
    m.memory.barrier(frame.programs)


@interp_rules(ops.GridDependencyWait, ops.GridDependencyLaunch, ops.PrefetchTensormap)
def _(m: Machine, frame: Frame, op: Op) -> None:
    """One grid runs after another, and a hint changes nothing."""


# -- asynchronous copies ----------------------------------------------------------------------

@interp_rules(ops.AsyncCopy)
def _(m: Machine, frame: Frame, op: ops.AsyncCopy) -> None:
    access, view = MemoryAccess(m, frame, op, None), m.buffers[op.buffer]
    array = access.run(m.memory.load, dtype_of(op.buffer.type))
    if access.active is not None:
        array = np.where(access.active, array, np.zeros(1, array.dtype))
    begin_write(m, frame, op, view)
    m.copies.begin(frame, op, view, array)


@interp_rules(ops.AsyncCommit)
def _(m: Machine, frame: Frame, op: ops.AsyncCommit) -> None:
    m.copies.commit(frame)


@interp_rules(ops.AsyncWait)
def _(m: Machine, frame: Frame, op: ops.AsyncWait) -> None:
    ended = m.copies.wait(frame, op.pending)
    for copy in ended:
        m.asynchrony.note_store(copy.view.buffer, copy.rows, copy.stage)
    if m.shadow is not None:
        m.shadow.landed(ended)


def barriers_are_there(m: Machine, view: View) -> bool:
    """Whether the IR has the barriers between threads that use a buffer: insert_barriers adds them
    but for those that TMA uses."""
    return m.shadow is not None or view.buffer.explicit


def begin_write(m: Machine, frame: Frame, op: Op, view: View,
                end: End | None = None) -> None:
    """Threads, or TMA for them, begin to write a buffer; TMA is done at `end`, see `Role`."""
    touch(m, frame, op, view, True, end)
    for low, high, part in view.bytes(frame):
        destroy_others(m, frame.narrow(part), view.buffer, low, high)
    for reads in (m.asynchrony.products, m.asynchrony.stores):
        use = reads.of(frame, view.buffer, view.place(frame)[1], barriers_are_there(m, view))
        if use is not None:
            told = use.ended.all()
            raise m.error(
                op, f"{op.name} writes a buffer that {use.op.name} at {place(use.op)} "
                f"{'has read, which other threads do not know' if told else 'may still read'}",
                "put a barrier, or for wgmma an arrival at an mbarrier, between" if told else
                "no wait in between covers its group")
