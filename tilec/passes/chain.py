"""The schedule of a loop in which one dot's result is an operand of another, as in attention: the
first dot of an iteration begins together with the second one of the iteration before, so that the
tensor cores work while threads do what lies between the two.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilec.ir import ops
from tilec.ir.core import Op
from tilec.ir.layouts import Mma
from tilec.ir.types import layout_of
from tilec.ir.wgmma import chained_operand
from tilec.passes.tma import readers_of

# Where ops stand in a round (op_order); slots are released after the copies.
FIRST, SECOND, COPIES, _, BETWEEN, REST = range(1, 7)


def chain_stages(loop: ops.For, loads: list[ops.DescriptorLoad], slots: int) -> str:
    """Give the ops of a loop their stages; why there are none to give, or an empty string.

    loads: all that the loop reads, by TMA. slots: how many blocks of each are in shared memory.
    Copies come first, slots - 1 rounds before their readers: first dots and what uses their
    results run in the last stage but one, second dots and what uses theirs in the last one.
    """
    dots = [op for op in loop.body if isinstance(op, ops.Dot)]
    second = [dot for dot in dots if _by_wgmma(dot) and chained_operand(dot)]
    if not second:
        return "no dot's result is an operand of another"
    late = _users(loop, second)
    early = _users(loop, [dot for dot in dots if dot not in late]) - late
    first, then = (_needed(loop, [dot for dot in dots if (dot in late) == kind])
                   for kind in (False, True))
    if reason := _obstacle(loop, loads, late, first):
        return reason
    for op in early:
        op.stage = slots - 1
        op.op_order = FIRST if op in first else BETWEEN
    for op in late:
        op.stage = slots
        op.op_order = SECOND if op in then else REST
    for load in loads:
        load.stage = int(any(r in late for r in readers_of(load)))
        load.op_order = COPIES
    loop.num_stages = slots + 1
    return ""


def _obstacle(loop: ops.For, loads: list[ops.DescriptorLoad], late: set[Op], first: set[Op]
              ) -> str:
    """Why the second dots of a round cannot run beside the first ones of the next."""
    if any(not op.pure and op not in loads and not op.terminator for op in loop.body):
        return "the loop does more than to read and compute"
    if any(isinstance(x, ops.For | ops.While) for op in loop.body for x in op.walk()):
        return "there is a loop in it"
    for load in loads:
        readers = readers_of(load)
        if any(not isinstance(r, ops.Dot) or not _by_wgmma(r) for r in readers):
            return "not only dots read the blocks"
        if len({r in late for r in readers}) > 1:
            return "first and second dots read the same block"
    given = {arg for arg, v in zip(loop.body.args[1:], loop.body.terminator.operands, strict=True)
             if v.op in late}
    if any(v in given for op in first for x in op.walk() for v in x.operands):
        return "a first dot needs what a second one gave"
    return ""


def _by_wgmma(dot: ops.Dot) -> bool:
    layout = layout_of(dot.result.type)
    return isinstance(layout, Mma) and layout.version == 3


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
