"""Carry out a schedule: buffered loads become asynchronous copies into shared memory, and each op
runs as far ahead as its stage says (see expand.py)."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.buffers import operand_layout
from tilec.ir.core import Builder, Module, Op, Value
from tilec.ir.layouts import Blocked, DotOperand, Layout, transpose
from tilec.ir.types import MemDesc, Scalar, Tensor, layout_of, linear_shape, shape_of
from tilec.passes.base import Pass
from tilec.passes.expand import Expander, floats


class Pipeline(Pass):
    """for i { x = load(p_i) {stage = 0, buffered} ; use(x) } {num_stages = 3} -->
    copy(p_0, buf[0]) ; copy(p_1, buf[1])
    for i { wait ; copy(p_(i+2), buf[(i+2) % 3]) ; x = shared_load(buf[i % 3]) ; use(x) }
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            for loop in reversed([op for op in func.walk() if isinstance(op, ops.For)]):
                if any(0 <= op.stage < loop.num_stages - 1 for op in loop.body):
                    expander = Expander(loop)
                    for op in list(loop.body):
                        if isinstance(op, ops.Load) and 0 <= op.stage < expander.last and \
                                op.buffered:
                            _into_buffers(op, expander)
                    expander.run()
                loop.num_stages = 0


def _into_buffers(load: ops.Load, expander: Expander) -> None:
    """Make a load a copy into a buffer, and its users read the buffer: one more buffer than there
    are stages from the copy to its last use, since that use may still go on in the next round."""
    readers = _reading_stages(load, expander.last)
    if min(readers) <= load.stage:
        raise load.fail(f"is buffered in stage {load.stage} and used in stage {min(readers)}, "
                        f"but takes a stage to arrive")
    slots = max(readers) - load.stage + 1
    buffer = expander.before.emit(ops.AllocShared(types=[buffer_type(load, slots)], loc=load.loc))
    buffer.name = load.result.name
    here = Builder(before=load, loc=load.loc)
    to, where = (here.emit(ops.MemdescIndex(buffer, expander.counter(slots), ahead=0))
                 for _ in range(2))
    mask = [] if load.mask is None else [load.mask]
    here.insert(ops.AsyncCopy(load.ptr, to, *mask, stage=load.stage, op_order=load.op_order))
    assert where.op is not None
    expander.readers[where.op] = readers
    pending = min(readers) - load.stage - 1
    expander.pending = pending if expander.pending is None else min(pending, expander.pending)
    _read_from(load, where)


def _reading_stages(load: ops.Load, last: int) -> set[int]:
    """The stages in which a load's value is used."""
    found, work = set[int](), [load.result]
    while work:
        for user in work.pop().users:
            while user.parent is not load.parent:
                assert user.parent is not None and user.parent.parent_op is not None
                user = user.parent.parent_op
            if floats(user):
                work += user.results
            else:
                found.add(user.stage if 0 <= user.stage < last else last)
    return found or {last}


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


def dot_reads(load: ops.Load) -> list[tuple[Op, ops.ConvertLayout]]:
    """Users of a load that lead to a dot's operand, directly or through a transpose, each with the
    conversion to the operand's layout."""
    found = []
    for user in load.result.users:
        convert: Op = user
        if isinstance(user, ops.Trans) and len(user.result.uses) == 1:
            convert = user.result.users[0]
        if isinstance(convert, ops.ConvertLayout) and \
                isinstance(layout_of(convert.result.type), DotOperand):
            found.append((user, convert))
    return found


def buffer_type(load: ops.Load, slots: int) -> MemDesc:
    """Buffers for a load's tile, one per slot, in the layout best for copies and dots."""
    t = load.result.type
    assert isinstance(t, Tensor) and isinstance(t.element, Scalar) and t.layout is not None
    order = t.layout.order if isinstance(t.layout, Blocked) else tuple(reversed(range(t.rank)))
    readers = [reader_layout(*read) for read in dot_reads(load)]
    layout = operand_layout(t.shape, t.element, order, tuple(readers or [t.layout]), t.layout)
    return MemDesc((slots, *t.shape), t.element, layout)


def reader_layout(user: Op, convert: ops.ConvertLayout) -> Layout:
    """In which layout of the loaded tile a dot reads it."""
    layout = layout_of(convert.result.type)
    assert layout is not None
    if not isinstance(user, ops.Trans):
        return layout
    back = tuple(user.order.index(d) for d in range(len(user.order)))
    return transpose(layout, back, linear_shape(shape_of(user.result.type)))
