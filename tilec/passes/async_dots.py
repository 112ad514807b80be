"""async_dots: dots that wgmma computes begin, and are waited for later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.ir import ops
from tilec.ir.buffers import buffer_users
from tilec.ir.core import Builder, Module, Op, Value
from tilec.ir.ops.gpu import allocation
from tilec.ir.types import MemDesc
from tilec.passes.base import Pass
from tilec.passes.dot_buffers import a_in_registers, by_wgmma, stays_in_flight, wgmma_buffer


class AsyncDots(Pass):
    """Dots of wgmma read their operands from shared memory and run beside what follows: in a loop
    that only sums, one more is begun before the last one is waited for.

    dot(shared_load(%a), shared_load(%b), %c) --> wgmma_wait(wgmma(%a, %b, %c)) {pending = 1}
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            dots = [op for op in func.walk() if isinstance(op, ops.Dot) and by_wgmma(op)]
            for op in dots:
                _begin(op, sum(x.parent is op.parent for x in dots) == 1)


def _begin(dot: ops.Dot, alone: bool) -> None:
    here = Builder(before=dot, loc=dot.loc)
    a = dot.a if a_in_registers(dot) else _buffer(dot.a, here)
    b = _buffer(dot.b, here)
    if any(isinstance(user, ops.SharedStore) for v in (a, b) for user in _ring_users(v)):
        here.insert(ops.FenceAsync())
    # Of the buffers that this iteration reads, none is filled before the next one's products.
    sums = alone and stays_in_flight(dot) and all(_filled_later(v, dot) for v in (a, b))
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


def _filled_later(operand: Value, dot: ops.Dot) -> bool:
    """Whether an operand lies in a slot of several, and none of these is filled in the dot's round
    before the dot."""
    t = allocation(operand).result.type if isinstance(operand.type, MemDesc) else None
    fills = {x for user in _ring_users(operand) if isinstance(user, ops.AsyncCopy | ops.TmaLoad)
             for x in (user, *user.ancestors())}
    before = dot.prev
    while before is not None and before not in fills:
        before = before.prev
    return isinstance(t, MemDesc) and t.stages > 1 and before is None


def _ring_users(operand: Value) -> Iterator[Op]:
    """What uses the buffers among which an operand lies; nothing, if that is in registers."""
    return buffer_users(allocation(operand).result) if isinstance(operand.type, MemDesc) else \
        iter(())


def _buffer(value: Value, here: Builder) -> Value:
    """The buffer, or the view of one, that an operand of a dot was read from; a new one that it is
    stored to, if it was loaded to registers."""
    op = value.op
    if isinstance(op, ops.ConvertLayout):
        return _buffer(op.x, here)
    if isinstance(op, ops.Trans):
        return here.emit(ops.MemdescTrans(_buffer(op.x, here), order=op.order))
    if isinstance(op, ops.Load):
        buffer = here.emit(ops.AllocShared(types=[wgmma_buffer(op)]))
        here.insert(ops.SharedStore(buffer, op.result))
        return buffer
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
