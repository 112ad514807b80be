"""async_dots: dots that wgmma computes begin, and are waited for later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.ir import ops
from tilec.ir.buffers import buffer_users
from tilec.ir.core import Block, Builder, Module, Op, Value
from tilec.ir.ops.gpu import allocation
from tilec.ir.scratch import scratch_bytes
from tilec.ir.types import MemDesc, Tensor, i1, layout_of
from tilec.passes.base import Pass
from tilec.passes.dot_buffers import by_wgmma, stays_in_flight
from tilec.passes.fold import constant, make_constant
from tilec.passes.operands import Operands, just_after


class AsyncDots(Pass):
    """Dots of wgmma read their operands from shared memory and run beside what follows: in a loop
    that only sums, one more is begun before the last one is waited for.

    dot(shared_load(%a), shared_load(%b), %c) --> wgmma_wait(wgmma(%a, %b, %c)) {pending = 1}
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            dots = [op for op in func.walk() if isinstance(op, ops.Dot) and by_wgmma(op)]
            if not dots and not any(isinstance(op, ops.DescriptorLoad) for op in func.body):
                continue
            places = Operands(func, module.attributes.get("target"))
            blocks = dict.fromkeys(op.parent for op in dots)
            waits = {_begin(op, sum(x.parent is op.parent for x in dots) == 1, places)
                     for op in dots}
            places.finish()
            for block in blocks:
                assert block is not None
                _delay(block, waits)
            for op in func.walk():
                if isinstance(op, ops.MbarrierArrive):
                    op.set_operands([op.barrier])


def _begin(dot: ops.Dot, alone: bool, places: Operands) -> Op:
    """Make a product and a wait of a dot; the wait."""
    here = Builder(before=dot, loc=dot.loc)
    a, b = (places.of(v, dot, here) for v in (dot.a, dot.b))
    if any(isinstance(user, ops.SharedStore) and user.parent is dot.parent
           for v in (a, b) for user in _ring_users(v)):
        here.insert(ops.FenceAsync())
    # Of the buffers that this iteration reads, none is filled before the next one's products.
    sums = alone and stays_in_flight(dot) and all(
        places.keeps(v) or _filled_later(v, dot) for v in (a, b))
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
    assert waited.op is not None
    return waited.op


def _accumulator(dot: ops.Dot) -> Value:
    """What a dot adds to, in the layout that names its instruction; it may be in an equal one."""
    c, t = dot.c, dot.result.type
    if layout_of(c.type) == layout_of(t):
        return c
    return just_after(c).emit(ops.ConvertLayout(c, types=[t]))


def _delay(block: Block, waits: set[Op]) -> None:
    """Wait for the products that begin one after another when the last one has begun, just before
    something looks at one, or gives their buffers away. Products that read no carried value from
    registers go on while threads compute with the results of those before them: nothing may take
    its place meanwhile (C7513, C7515). They end before one begins that adds to what threads have
    made meanwhile, as ptxas would have them end (C7517). Products after which a slot of others is
    released go on, too: the schedule has what would take their operands' place come later."""
    held: list[ops.WgmmaWait] = []
    made = set[Op]()  # while they are under way
    lasting = set[Op]()  # of these, those that the schedule lets go on
    for op in block:
        if op in waits and isinstance(op, ops.WgmmaWait) and not op.pending:
            held.append(op)
        elif held and (not _passes(op, held, lasting) or _adds_to(op, made)):
            used = {v.op for v in op.operands}
            done = max((i + 1 for i, wait in enumerate(held) if wait in used), default=0)
            if done and isinstance(op, ops.MbarrierArrive):
                lasting |= set(held[done:])
            elif not done or not _computes(op, held[done:], lasting):
                done = len(held)
            _wait_before(op, held[:done], len(held) - done)
            held = held[done:]
        if held:
            made.add(op)
        else:
            made.clear()


def _adds_to(op: Op, made: set[Op]) -> bool:
    """Whether a product adds to what one of these ops gives, but for a constant."""
    return isinstance(op, ops.Wgmma) and op.c.op in made and not isinstance(op.c.op, ops.Constant)


def _computes(op: Op, held: Sequence[ops.WgmmaWait], lasting: set[Op]) -> bool:
    """Whether threads may compute with tiles while products are under way."""
    if lasting.issuperset(held):
        return op.pure and all(_keeps_step(x) for x in op.walk())
    return op.pure and not op.regions and \
        all(isinstance(x, ops.Wgmma) and not (isinstance(x.a.type, Tensor) and x.a.op is None)
            for wait in held for x in [wait.values[0].op])


def _keeps_step(op: Op) -> bool:
    """Whether all threads go the same way through an op, as ptxas can see: others make it serialise
    the products around (C7518)."""
    return isinstance(op, ops.Combining) and not scratch_bytes(op) or not op.regions or \
        isinstance(op, ops.If) and _from_indices(op.cond)


def _from_indices(value: Value) -> bool:
    """Whether a scalar is computed of parameters, program numbers and loops' indices alone."""
    work, seen = [value], set[Value]()
    while work:
        v = work.pop()
        if v in seen:
            continue
        seen.add(v)
        if v.op is not None:
            if not v.op.pure or v.op.regions or isinstance(v.type, Tensor):
                return False
            work += v.op.operands
        elif isinstance(v.owner, Block) and isinstance(v.owner.parent_op, ops.ControlFlow) and \
                (v.index or not isinstance(v.owner.parent_op, ops.For)):
            return False
    return True


def _passes(op: Op, held: Sequence[ops.WgmmaWait], lasting: set[Op]) -> bool:
    """Whether an op may run while products are under way."""
    looks = any(v.op in held for x in op.walk() for v in x.operands)
    tiles = any(isinstance(v.type, Tensor) for v in (*op.operands, *op.results))
    brings = isinstance(op, (ops.Wgmma, ops.MbarrierWait, ops.Elect, ops.Load)) or \
        isinstance(op, ops.MbarrierArrive) and op.after
    return not looks and bool(brings or op.pure and not tiles and not op.regions or
                              _computes(op, held, lasting))


def _wait_before(op: Op, held: Sequence[ops.WgmmaWait], pending: int) -> None:
    values = [v for wait in held for v in wait.values]
    made = ops.WgmmaWait(values, types=[v.type for v in values], pending=pending)
    Builder(before=op, loc=held[0].loc).insert(made)
    for wait, result in zip(held, made.results, strict=True):
        wait.replace_by([result])


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


def _sweep(reads: Sequence[Op | None]) -> None:
    """Remove reads that nobody uses any more, with what they were read through."""
    for op in reads:
        if op is not None and op.parent is not None and not any(r.uses for r in op.results):
            sources = [v.op for v in op.operands]
            if isinstance(op, (ops.SharedLoad, ops.Trans, ops.ConvertLayout, ops.DescriptorLoad)):
                op.erase()
                _sweep(sources)
