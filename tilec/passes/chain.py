"""The schedule of a loop in which one dot's result is an operand of another, as in attention: the
first dot of an iteration begins together with the second one of the iteration before, so that the
tensor cores work while threads do what lies between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilec.ir import ops
from tilec.ir.core import Op
from tilec.ir.scratch import tile_registers
from tilec.ir.types import Tensor
from tilec.ir.wgmma import chained_operand
from tilec.passes.ahead import Rules
from tilec.passes.dot_buffers import by_wgmma
from tilec.passes.expand import ahead_sources
from tilec.passes.tma import readers_of

# Where ops stand in a round (op_order); slots are released after all of it. Where a role of its own
# starts the copies, slots are released after COPIES and REST instead, and ops come AFTER that.
FIRST, SECOND, COPIES, _, BETWEEN, REST, _, AFTER = range(1, 9)
BESIDE = SECOND  # where second dots come later
# Registers a thread for other things than the tiles that `_registers` counts.
SPARE = 48
# Loads into so many registers a thread or fewer run a round ahead where dots run in turn.
FEW = 4


def chain_stages(loop: ops.For, loads: list[ops.DescriptorLoad], slots: int, rules: Rules) -> str:
    """Give the ops of a loop their stages; what a remark says of them. It is empty if the loop has
    no such dots, does more than to read and compute, or if not only dots of wgmma read the blocks.

    loads: all that the loop reads by TMA. slots: how many blocks of each are in shared memory.
    Copies come first, slots - 1 rounds before their readers: first dots and what uses their
    results run in the last stage but one, second dots and what uses theirs in the last one. Where
    that cannot be, all but copies and small reads runs in the last stage.
    """
    dots = [op for op in loop.body if isinstance(op, ops.Dot)]
    second = [dot for dot in dots if by_wgmma(dot) and chained_operand(dot)]
    reads = [op for op in loop.body if isinstance(op, ops.Load)]
    more = any(not (op.pure or op.terminator or op in loads or op in reads) for op in loop.body)
    if not second or more or not all(isinstance(r, ops.Dot) and by_wgmma(r)
                                     for load in loads for r in readers_of(load)):
        return ""
    late = _users(loop, second)
    first = [dot for dot in dots if dot not in late]
    early = _users(loop, first) - late
    needed = _needed(loop, [*first, *reads])
    then = _needed(loop, [dot for dot in dots if dot in late])
    if _registers(loop, first, second, reads) > rules.registers() - SPARE or \
            rules.of_loop(slots + 1) or _obstacle(loop, reads, early, late, needed, then, rules):
        _in_turn(loop, loads, late, needed, then)
        for read in reads:
            t = read.result.type
            few = not isinstance(t, Tensor) or tile_registers(t) <= FEW
            if few and not _stays(loop, read, rules):
                read.stage = slots - 2
        loop.num_stages = slots
        return "; its first dots begin together, and second ones when their operands are made"
    for op in (*reads, *early):
        op.stage = slots - 1
        op.op_order = FIRST if op in needed else BETWEEN
    for op in late:
        op.stage = slots
        op.op_order = SECOND if op in then else REST
    for load in loads:
        load.stage = int(all(r in late for r in readers_of(load)))
        load.op_order = COPIES
    _rearrange(loop)
    loop.num_stages = slots + 1
    return "; first dots begin beside the second ones of the round before"


def _obstacle(loop: ops.For, reads: Sequence[ops.Load], early: set[Op], late: set[Op],
              needed: set[Op], then: set[Op], rules: Rules) -> str:
    """Why the second dots of a round cannot run beside the first ones of the next."""
    if any(isinstance(x, ops.For | ops.While) for op in loop.body for x in op.walk()):
        return "there is a loop in it"
    for read in reads:
        if reason := _stays(loop, read, rules):
            return reason
    given = {arg for arg, v in zip(loop.body.args[1:], loop.body.terminator.operands, strict=True)
             if v.op in late}
    if any(v in given for op in needed for x in op.walk() for v in x.operands):
        return "a first dot needs what a second one gave"
    rest = {arg for arg, v in zip(loop.body.args[1:], loop.body.terminator.operands, strict=True)
            if v.op in late - then}
    if any(v in rest for op in _needed(loop, early) for x in op.walk() for v in x.operands):
        return "what lies between the dots needs what follows from a second one"
    return ""


def _stays(loop: ops.For, read: ops.Load, rules: Rules) -> str:
    """Why a load cannot run a round ahead, or an empty string."""
    return rules.of_read(read) or (
        "a load's place depends on what is not computed ahead"
        if ahead_sources(loop, read.operands) else "")


def overlap(loop: ops.For, loads: Iterable[ops.DescriptorLoad]) -> None:
    """Change the orders of a loop whose copies a role of its own starts, if its second dots run
    beside first ones: threads compute with the results of the first while the second still run.
    What takes the place of the operands that these read from registers is made after them. Where
    dots run in turn, what is only combined with the last first dot's result is made after the
    second dots that begin before it, for which it would take registers."""
    dots = [op for op in loop.body if isinstance(op, ops.Dot)]
    late = {dot for dot in dots if dot.stage == loop.num_stages - 1}
    if not late or len(late) == len(dots):
        for op in reversed([op for op in loop.body if op.op_order == BESIDE and op not in dots]):
            users = [user for r in op.results for user in r.users]
            if all(user.parent is loop.body and user.op_order == BETWEEN for user in users):
                op.op_order = BETWEEN
        return
    given = {arg for arg, v in zip(loop.body.args[1:], loop.body.terminator.operands, strict=True)
             if v.op is not None and v.op.stage == loop.num_stages - 1}
    held = [op for op in loop.body if any(v in given for x in op.walk() for v in x.operands)]
    for dot in late:
        made = dot.a.op
        while made is not None and made.parent is loop.body:
            held.append(made)
            made = made.x.op if isinstance(made, ops.ConvertLayout) else None
    held += [op for op in loop.body if op.op_order == REST]
    for op in _users(loop, held):
        if op.op_order in (BETWEEN, REST):
            op.op_order = AFTER
    for load in loads:
        if not late.isdisjoint(readers_of(load)):
            load.op_order = REST


def _in_turn(loop: ops.For, loads: list[ops.DescriptorLoad], late: set[Op], needed: set[Op],
             then: set[Op]) -> None:
    """First dots and reads together, and each second dot when what it multiplies is made: the first
    of them while the last first dot still runs. What does not need that one's result comes before
    the copies: ptxas moves waits up over arithmetic, but not over products, nor over the branch in
    which one warp starts the copies."""
    first = [op for op in loop.body if isinstance(op, ops.Dot) and op not in late]
    after = _users(loop, first[-1:])
    for op in loop.body:
        if op in loads:
            op.stage, op.op_order = 0, COPIES
        elif op in needed:
            op.op_order = FIRST
        elif not op.terminator:
            op.op_order = REST + 1 if op not in then else BESIDE if op not in after else \
                REST if op in late else BETWEEN
    _rearrange(loop)


def _rearrange(loop: ops.For) -> None:
    """Give the text of a loop the order in which an iteration runs: blocks are waited for when they
    are first read, and waits may not change places."""
    place: dict[Op | None, tuple[int, int]] = {}
    for op in loop.body:
        users = readers_of(op) if isinstance(op, ops.DescriptorLoad) else [op]
        own = min(((x.stage, x.op_order) for x in users), default=(-1, 0))
        place[op] = max([own, *(place.get(v.op, own) for x in op.walk() for v in x.operands)])
    end = loop.body.terminator
    for op in sorted((op for op in loop.body if op is not end), key=place.__getitem__):
        op.move_before(end)


def _registers(loop: ops.For, first: Sequence[ops.Dot], second: Sequence[ops.Dot],
               reads: Sequence[ops.Load]) -> int:
    """Registers a thread for what is alive while first and second dots run together: what the loop
    carries, results of the first, operands of the second, and what the iteration to come reads."""
    values = [*loop.results, *(dot.result for dot in first), *(dot.a for dot in second),
              *(read.result for read in reads)]
    return sum(tile_registers(v.type) for v in values if isinstance(v.type, Tensor))


def loop_registers(loop: ops.For) -> int:
    """Registers a thread for what is alive at once in a loop of dots that has its schedule: if all
    run in turn, operands of second dots take the place of what first ones gave."""
    dots = [op for op in loop.body if isinstance(op, ops.Dot)]
    second = [dot for dot in dots if by_wgmma(dot) and chained_operand(dot)]
    late = _users(loop, second)
    return _registers(loop, [dot for dot in dots if second and dot not in late],
                      [dot for dot in second if dot.stage >= 0],
                      [op for op in loop.body if isinstance(op, ops.Load)])


def _users(loop: ops.For, start: Iterable[Op]) -> set[Op]:
    """Ops of the body, and those of it that use their results in the same iteration."""
    found, work = set[Op](), list(start)
    while work:
        op = work.pop()
        while op.parent is not loop.body:
            assert op.parent is not None and op.parent.parent_op is not None
            op = op.parent.parent_op
        if op not in found and not op.terminator:
            found.add(op)
            work += [user for r in op.results for user in r.users]
    return found


def _needed(loop: ops.For, dots: Iterable[Op]) -> set[Op]:
    """Dots, and the ops of the body that they need in the same iteration."""
    found, work = set[Op](), list(dots)
    while work:
        op = work.pop()
        if op.parent is loop.body and op not in found:
            found.add(op)
            work += [v.op for x in op.walk() for v in x.operands if v.op is not None]
    return found
