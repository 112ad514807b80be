"""async_dots: dots that wgmma computes begin, and are waited for later."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import ops
from tilec.ir.core import Builder, Module, Op, Value
from tilec.ir.ops.gpu import allocation
from tilec.ir.types import MemDesc
from tilec.passes.base import Pass


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
    if any(isinstance(op, ops.MbarrierArrive) for op in loop.body):
        return False  # each round says that it is done with its buffers
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
