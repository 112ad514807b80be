"""async_dots: dots that wgmma computes begin, and are waited for later."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import ops
from tilec.ir.core import Block, Builder, Module, Op, Value
from tilec.ir.layouts import DotOperand, Mma, same_layout
from tilec.ir.ops.gpu import allocation
from tilec.ir.tensor_maps import block_layout
from tilec.ir.types import MemDesc, Scalar, Tensor, i1, layout_of, linear_shape, scalar_of
from tilec.passes.base import Pass
from tilec.passes.fold import constant, make_constant


class AsyncDots(Pass):
    """Dots of wgmma read their operands from shared memory and run beside what follows: in a loop
    that only sums, one more is begun before the last one is waited for.

    dot(shared_load(%a), shared_load(%b), %c) --> wgmma_wait(wgmma(%a, %b, %c)) {pending = 1}
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            dots = [op for op in func.walk() if isinstance(op, ops.Dot) and _by_wgmma(op)]
            places, blocks = _Places(), dict.fromkeys(op.parent for op in dots)
            for op in dots:
                _begin(op, sum(x.parent is op.parent for x in dots) == 1, places)
            for block in blocks:
                assert block is not None
                _delay(block)


def _by_wgmma(op: ops.Dot) -> bool:
    layout = getattr(op.result.type, "layout", None)
    return getattr(layout, "version", 0) == 3


def _begin(dot: ops.Dot, alone: bool, places: _Places) -> None:
    here = Builder(before=dot, loc=dot.loc)
    a, b = (places.of(v, dot, here) for v in (dot.a, dot.b))
    # Of the buffers that this iteration reads, none is filled before the next one's products.
    sums = alone and _only_sums(dot) and all(map(_staged, (a, b)))
    fresh = [make_constant(here, False, i1)] if repr(constant(dot.c)) in ("0.0", "0") else []
    begun = here.emit(ops.Wgmma(a, b, _accumulator(dot), *fresh))
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


def _accumulator(dot: ops.Dot) -> Value:
    """What a dot adds to, in the layout that names its instruction; it may be in an equal one."""
    c, t = dot.c, dot.result.type
    if layout_of(c.type) == layout_of(t):
        return c
    return _just_after(c).emit(ops.ConvertLayout(c, types=[t]))


def _just_after(value: Value) -> Builder:
    """Inserts where a value is made."""
    first = value.owner.first if isinstance(value.owner, Block) else value.owner.next
    assert first is not None
    return Builder(before=first, loc=first.loc)


def _delay(block: Block) -> None:
    """Wait for the products that begin one after another when the last one has begun, just before
    something looks at one, or gives their buffers away."""
    held: list[ops.WgmmaWait] = []
    for op in block:
        if isinstance(op, ops.WgmmaWait) and isinstance(op.prev, ops.Wgmma) and not op.pending:
            held.append(op)
        elif held and not _passes(op, held):
            _wait_before(op, held)
            held = []


def _passes(op: Op, held: Sequence[ops.WgmmaWait]) -> bool:
    """Whether an op may run while products are under way."""
    looks = any(v.op in held for x in op.walk() for v in x.operands)
    tiles = any(isinstance(v.type, Tensor) for v in (*op.operands, *op.results))
    brings = isinstance(op, (ops.Wgmma, ops.MbarrierWait, ops.Elect))
    return not looks and (brings or op.pure and not tiles and not op.regions)


def _wait_before(op: Op, held: Sequence[ops.WgmmaWait]) -> None:
    values = [v for wait in held for v in wait.values]
    made = ops.WgmmaWait(values, types=[v.type for v in values])
    Builder(before=op, loc=held[0].loc).insert(made)
    for wait, result in zip(held, made.results, strict=True):
        wait.replace_by([result])


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


def _in_registers(dot: ops.Dot) -> bool:
    """Whether threads hold operand a as wgmma takes it."""
    a, mma = dot.a.type, layout_of(dot.result.type)
    assert isinstance(a, Tensor) and isinstance(mma, Mma)
    return scalar_of(a).bits == 16 and a.layout is not None and \
        same_layout(a.layout, DotOperand(mma, 0, 2), linear_shape(a.shape))


class _Places:
    """Where operands of dots lie; those that were there before the loop are stored for it once."""

    def __init__(self) -> None:
        self.stored: dict[Value, Value] = {}

    def of(self, value: Value, dot: ops.Dot, here: Builder) -> Value:
        """The buffer, or the view of one, that an operand was read from, or the operand itself if
        wgmma takes it from registers."""
        op = value.op
        if value is dot.a and _in_registers(dot):
            return value
        if isinstance(op, ops.SharedLoad):
            return op.buffer
        if isinstance(op, ops.ConvertLayout):
            return self.of(op.x, dot, here)
        if isinstance(op, ops.Trans):
            return here.emit(ops.MemdescTrans(self.of(op.x, dot, here), order=op.order))
        return self.store(value)

    def store(self, value: Value) -> Value:
        """A buffer with a value, written where the value is made."""
        if value not in self.stored:
            t = value.type
            assert isinstance(t, Tensor) and isinstance(t.element, Scalar)
            layout = block_layout(t.shape, t.element)
            assert layout is not None
            here = _just_after(value)
            buffer = here.emit(ops.AllocShared(types=[MemDesc(t.shape, t.element, layout)]))
            buffer.name = value.name
            if here.block is not None and here.block.parent_op is not None:
                # Products of the round before may still read it.
                here.insert(ops.Barrier())
            here.insert(ops.SharedStore(buffer, value))
            here.insert(ops.FenceAsync())
            here.insert(ops.Barrier())
            self.stored[value] = buffer
        return self.stored[value]


def _sweep(reads: Sequence[Op | None]) -> None:
    """Remove reads that nobody uses any more, with what they were read through."""
    for op in reads:
        if op is not None and op.parent is not None and not any(r.uses for r in op.results):
            sources = [v.op for v in op.operands]
            if isinstance(op, (ops.SharedLoad, ops.Trans, ops.ConvertLayout)):
                op.erase()
                _sweep(sources)
