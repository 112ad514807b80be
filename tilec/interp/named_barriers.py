"""Interpreter rules of named barriers.

Whoever arrives must know that the round before has ended: else an arrival may count in that one,
and how the warps' turns fall would decide.
"""

from __future__ import annotations

from tilec.interp.asynchrony import FENCED, TOLD, Round
from tilec.interp.frame import Frame
from tilec.interp.machine import Machine, interp_rules
from tilec.interp.roles import Role
from tilec.ir import ops


@interp_rules(ops.NamedBarrierArrive)
def _(m: Machine, frame: Frame, op: ops.NamedBarrierArrive) -> None:
    assert isinstance(m.role, Role)
    m.role.pause()
    _arrive(m, m.role, op)
    m.asynchrony.advance(frame, FENCED, TOLD)


@interp_rules(ops.NamedBarrierSync)
def _(m: Machine, frame: Frame, op: ops.NamedBarrierSync) -> None:
    m.meet(frame)
    if not isinstance(m.role, Role):
        current = m.asynchrony.rounds.get(op.barrier)
        if current is not None and current.warps:
            raise m.error(op, "all warps come to this named barrier, at which "
                          f"{len(current.warps)} have arrived before in a round that never ended",
                          "make another named barrier for code outside of roles")
        return
    mine = _arrive(m, m.role, op)
    m.role.wait(op, lambda: not mine.over, lambda: _lacks(mine, op))
    m.role.learn(op, mine.told)
    m.role.whole = dict(m.role.now)


def _arrive(m: Machine, role: Role, op: ops.NamedBarrier) -> Round:
    """A role arrives; the round in which that counts."""
    agent, rounds = ("named barrier", op.barrier), m.asynchrony.rounds
    mine = rounds.setdefault(op.barrier, Round())
    if not mine.warps.isdisjoint(role.warp_numbers) or role.now.get(agent, 0) < mine.number:
        raise m.error(op, f"{op.name} of {role.name} arrives, and nothing says that the round "
                      "before has ended",
                      "wait at another one in between: two, as full and empty, take turns")
    mine.warps.update(role.warp_numbers)
    role.tell_all(mine.told)
    if len(mine.warps) > op.warps:
        raise m.error(op, f"{len(mine.warps)} warps arrive in a round of a named barrier that is "
                      f"for {op.warps}", "num_warps counts the warps of all roles that come to it")
    if len(mine.warps) == op.warps:
        mine.over, mine.told[agent] = True, mine.number + 1
        rounds[op.barrier] = Round(mine.number + 1)
    return mine


def _lacks(current: Round, op: ops.NamedBarrier) -> str:
    """What a round waits for."""
    return f"this round of the named barrier lacks {op.warps - len(current.warps)} of " \
        f"{op.warps} warps"
