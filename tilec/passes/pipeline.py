"""Carry out a schedule: buffered loads become asynchronous copies into shared memory, and each op
runs as far ahead as its stage says (see expand.py)."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Builder, Module, Op, Value
from tilec.passes.ahead import Rules, buffer_type, dot_reads
from tilec.passes.base import Pass
from tilec.passes.dot_buffers import stays_in_flight, wgmma_readers
from tilec.passes.expand import Expander, reading_stages, refuse
from tilec.passes.tma import Ring, load_by_tma


class Pipeline(Pass):
    """for i { x = load(p_i) {stage = 0, buffered} ; use(x) } {num_stages = 3} -->
    copy(p_0, buf[0]) ; copy(p_1, buf[1])
    for i { wait ; copy(p_(i+2), buf[(i+2) % 3]) ; x = shared_load(buf[i % 3]) ; use(x) }
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            loops = [op for op in func.walk() if isinstance(op, ops.For)]
            for loop in loops:  # all of them first: expanding one puts barriers into those around
                check_schedule(loop, Rules(module, func, loop))
            rings: list[Ring] = []
            for loop in reversed(loops):
                blocks = [op for op in loop.body if isinstance(op, ops.DescriptorLoad)]
                if blocks:
                    load_by_tma(loop, blocks, func, module, rings)
                elif early := _early(loop):
                    expander = Expander(loop)
                    for op in early:
                        if isinstance(op, ops.Load) and op.buffered:
                            _into_buffers(op, expander)
                    expander.run()
                loop.num_stages = 0


def _early(loop: ops.For) -> list[Op]:
    """The ops with a stage before the last."""
    return [op for op in loop.body if 0 <= op.stage < loop.num_stages - 1 and not op.terminator]


def check_schedule(loop: ops.For, rules: Rules) -> None:
    """Refuse what would compute something else, or cannot be."""
    early = _early(loop)
    blocks = any(isinstance(op, ops.DescriptorLoad) for op in loop.body)
    if (early or blocks and loop.num_stages > 1) and (reason := rules.of_loop(loop.num_stages)):
        raise refuse(loop, f"cannot be pipelined: {reason}")
    for load in (op for op in early if isinstance(op, ops.Load)):
        if load.buffered and (reason := rules.of_buffer(load)):
            raise refuse(load, f"cannot be buffered: {reason}")
        if reason := rules.of_read(load):
            raise refuse(load, f"cannot have a stage before the last: {reason}")


def _into_buffers(load: ops.Load, expander: Expander) -> None:
    """Make a load a copy into a buffer, and its users read the buffer: one more buffer than there
    are stages from the copy to its last use, since that use may still go on in the next round."""
    for op in {op for read in dot_reads(load) for op in read}:
        op.stage, op.op_order = -1, 0  # a dot reads the buffer itself, in its own stage
    readers = reading_stages(load, expander.last)
    if min(readers) <= load.stage:
        raise refuse(load, f"is buffered in stage {load.stage} and used in stage {min(readers)}, "
                        f"but takes a stage to arrive")
    slots = max(readers) - load.stage + 1
    buffer = expander.before.emit(ops.AllocShared(types=[buffer_type(load, slots)], loc=load.loc))
    buffer.name = load.result.name
    here = Builder(before=load, loc=load.loc)
    to, where = (here.emit(ops.MemdescIndex(buffer, expander.counter(slots), ahead=0))
                 for _ in range(2))
    mask = [] if load.mask is None else [load.mask]
    dots = list(wgmma_readers(load))
    expander.fenced |= bool(dots)
    # Where a product may be under way until the next one has begun, so is its use of the slot that
    # is to be filled.
    after = [dot.op_order + 1 for dot in dots if stays_in_flight(dot)]
    here.insert(ops.AsyncCopy(load.ptr, to, *mask, stage=load.stage,
                              op_order=max([load.op_order, *after])))
    assert where.op is not None
    expander.readers[where.op] = readers
    pending = min(readers) - load.stage - 1
    expander.pending = pending if expander.pending is None else min(pending, expander.pending)
    _read_from(load, where)


def _read_from(load: ops.Load, where: Value) -> None:
    """Users of the load read the buffer; a dot's operand in the layout that the dot wants."""
    for user, convert in dot_reads(load):
        view = where
        if isinstance(user, ops.Trans):
            view = Builder(before=user, loc=load.loc).emit(
                ops.MemdescTrans(where, order=user.order))
        read = ops.SharedLoad(view, types=[convert.result.type])
        convert.replace_by([Builder(before=convert, loc=load.loc).emit(read)])
        if user is not convert:
            user.erase()
    if load.result.uses:
        load.result.replace_by(Builder(before=load, loc=load.loc).emit(
            ops.SharedLoad(where, types=[load.result.type])))
    load.erase()
