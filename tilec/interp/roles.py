"""Warp roles: each a coroutine with barriers, groups and a shadow of its own, that gives way where
it waits for an mbarrier. A program with roles runs alone.

What mbarriers and named barriers order between roles is kept by clocks. An agent is a role, the
groups of its matrix products or of its TMA stores, an mbarrier, at which copies arrive, or a named
barrier. A clock says how far each agent is known to have come: a role by its barriers, groups,
phases and rounds by their number. Those who arrive at an mbarrier tell its phase what they know,
those who wait for the phase learn it; so it is with a named barrier and its rounds. Two
accesses of different agents to the same memory, one of them a write, are ordered if the later one
knows that the other agent has come as far as the earlier one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilec.errors import InterpreterError
from tilec.interp.asynchrony import WRITTEN, Asynchrony, Clock, End, Mbarriers, TmaCopy, join
from tilec.interp.blame import place
from tilec.interp.frame import Frame
from tilec.interp.machine import Machine, interp_rules
from tilec.interp.shadow import Shadow
from tilec.interp.waiting import Coroutine, Scheduler
from tilec.ir import ops
from tilec.ir.accumulators import WARPGROUP_WARPS
from tilec.ir.core import Op
from tilec.ir.printer import print_op

if TYPE_CHECKING:
    from tilec.interp.buffers import View

PAUSES = 0.25  # how likely a role is to let others run at an arrival or a wait
IDLE_ROUNDS = 2  # rounds in which every role waits in vain before it is a deadlock


@dataclass
class _Access:
    """An access to the part [low, high) of `space`: the stages of a buffer, or all bytes (None)."""

    op: Op
    role: Role | None
    space: object
    low: int
    high: int
    writes: bool
    end: End


class Role:
    """One role of a running program. `now` is what all its threads know; `whole` what they knew at
    their last barrier; `elected` what one thread of a warp has learnt beside that; `time` counts
    its barriers and its arrivals at named ones."""

    def __init__(self, roles: Roles, op: ops.WarpRole, first: int) -> None:
        self.roles, self.op = roles, op
        self.warps = range(first, first + op.warps)
        last = self.warps[-1]
        self.name = f"warp {first}" if first == last else f"warps {first} to {last}"
        self.time = 0
        self.now: Clock = {self: 0}
        for number, current in roles.m.asynchrony.rounds.items():
            self.now["named barrier", number] = current.number
        self.whole: Clock = {}
        self.elected: dict[int, Clock] = {}
        self.coroutine: Coroutine
        self.blocked: tuple[Op, Callable[[], str]] | None = None

    # -- what it knows ----------------------------------------------------------------------

    def known(self, op: Op) -> Clock:
        """What the threads that run `op` know."""
        elect = _elect(op)
        out = dict(self.now)
        if elect is not None:
            join(out, self.elected.get(elect.warp, {}))
        return out

    def learn(self, op: Op, clock: Clock) -> None:
        """The threads that run `op` have waited for what `clock` says."""
        elect = _elect(op)
        join(self.now if elect is None else self.elected.setdefault(elect.warp, {}), clock)

    def tell(self, op: Op, barrier: Mbarriers, slot: int) -> None:
        """An arrival at an mbarrier: of each warpgroup, or of one thread, which of other warpgroups
        knows what it knew at the last barrier."""
        told = barrier.told.setdefault(slot, {})
        elect = _elect(op)
        if elect is None or self.op.warps <= WARPGROUP_WARPS:
            join(told, self.known(op))
        else:
            join(told, self.whole)
            join(told, self.elected.get(elect.warp, {}))

    def tell_all(self, told: Clock) -> None:
        """All its threads arrive at a named barrier: each vouches for what it has done."""
        self.time += 1
        told[self] = self.time
        for clock in (self.now, *self.elected.values()):
            join(told, clock)

    def group(self, kind: str) -> object:
        """The agent of its groups of "products" or "stores"."""
        return kind, self

    def ended(self, kind: str, time: int) -> None:
        """It has waited for its groups up to this one."""
        join(self.now, {self.group(kind): time})

    def barrier(self, whole: bool) -> None:
        """Its threads meet, or those of each of its warpgroups: they vouch for what all have done.
        """
        self.time += 1
        self.now[self] = self.time
        if whole or self.op.warps <= WARPGROUP_WARPS:
            for clock in self.elected.values():
                join(self.now, clock)
            self.whole = dict(self.now)

    # -- what it does -----------------------------------------------------------------------

    def access(self, m: Machine, frame: Frame, op: Op, view: View, writes: bool,
               end: End | None = None) -> None:
        """`op` begins to access a view of a buffer; it ends at once, or at `end`."""
        places: list[tuple[object, int, int]] = \
            [(None, low, high) for low, high, _ in view.bytes(frame)] or \
            [(view.buffer, s, s + 1) for s in np.unique(view.place(frame)[1]).tolist()]
        for space, low, high in places:
            self.note(m, _Access(op, self, space, low, high, writes,
                                 end or (self, self.time + 1)))

    def scratch(self, m: Machine, op: Op, low: int, high: int) -> None:
        """`op` uses scratch memory."""
        self.note(m, _Access(op, self, None, low, high, True, (self, self.time + 1)))

    def note(self, m: Machine, new: _Access) -> None:
        """Record an access; InterpreterError if it is not ordered with another agent's."""
        known, own = self.known(new.op), (self, self.group("products"), self.group("stores"))
        for old in self.roles.history:
            agent, time = old.end
            apart = old.space is not new.space or old.high <= new.low or new.high <= old.low
            if apart or not (old.writes or new.writes) or agent in own or \
                    known.get(agent, 0) >= time:
                continue
            who = f" of {old.role.name}" if old.role is not None else ""
            raise m.error(
                new.op, f"{new.op.name} of {self.name} {_verb(new.writes)} shared memory that "
                f"{old.op.name} at {_where(old.op)}{who} {_verb(old.writes)}, and no mbarrier "
                "and no named barrier orders the two", "between them one must arrive at an "
                "mbarrier, after a barrier of its warps, or at a named barrier, and the other wait "
                "for it")
        self.roles.record(new)

    def pause(self) -> None:
        """Perhaps let other roles run."""
        if self.roles.random.random() < PAUSES:
            self.give_way()

    def give_way(self) -> None:
        """Let other roles run."""
        self.roles.moved = True
        self.coroutine.give_way()

    def wait(self, op: Op, blocked: Callable[[], bool], lacks: Callable[[], str]) -> None:
        """Let other roles run as long as it is blocked; `lacks` says what it waits for."""
        self.pause()
        while blocked():
            self.blocked = op, lacks
            self.coroutine.give_way()
        self.roles.moved |= self.blocked is not None
        self.blocked = None


class Roles(Scheduler):
    """The roles of one gpu.warp_specialize in one program."""

    def __init__(self, m: Machine, frame: Frame, op: ops.WarpSpecialize) -> None:
        super().__init__()
        assert m.copies is not None
        self.m, self.frame, self.op, self.random = m, frame, op, m.copies.random
        self.history: list[_Access] = []
        self.moved = False
        self.asynchrony = [m.asynchrony]  # of the program, and of each role
        self._enter()
        self.machines = [self._machine(role, first) for role, first in self._places()]

    def _places(self) -> list[tuple[ops.WarpRole, int]]:
        first = np.cumsum([0, *(r.warps for r in self.op.roles)]).tolist()
        return list(zip(self.op.roles, first, strict=False))

    def _enter(self) -> None:
        """All that came before, every role knows; but what is under way must be waited for."""
        m = self.m
        for reads in (m.asynchrony.products, m.asynchrony.stores):
            for use in reads.under_way:
                # Where insert_barriers puts the barriers, it puts one before the roles.
                if use.ended.all() and m.shadow is None and not use.buffer.explicit:
                    continue
                raise m.error(self.op, f"roles begin while {use.op.name} at {place(use.op)} may "
                              "still read shared memory",
                              "wait for its group, and put a gpu.barrier before the roles")
        for state in m.asynchrony.mbarriers.values():
            if not state.ready.all():
                raise m.error(self.op, "roles begin, and nothing says that the mbarriers which "
                              "they use have been set up", "a gpu.barrier must stand before")
            state.past = {slot: {(state, slot): int(phase)}
                          for slot, phase in enumerate(state.phase[0].tolist())}
        assert m.copies is not None
        for copied in m.copies.under_way:
            if isinstance(copied, TmaCopy):
                slot, low = int(copied.slots[0]), int(copied.low()[0])
                size = copied.view.buffer.size
                space, start, stop = (None, low, low + size) if low >= 0 else \
                    (copied.view.buffer, int(copied.stage[0]), int(copied.stage[0]) + 1)
                self.record(_Access(copied.op, None, space, start, stop, True,
                                    ((copied.barriers, slot), int(copied.phase[0]) + 1)))

    def _machine(self, op: ops.WarpRole, first: int) -> Machine:
        m = copy.copy(self.m)
        assert m.copies is not None
        m.role, m.num_warps = Role(self, op, first), op.warps
        m.shadow = None if m.shadow is None else Shadow(m.copies.root, m.shadow)
        m.asynchrony = Asynchrony(m.copies.root)
        m.asynchrony.mbarriers = self.m.asynchrony.mbarriers
        m.asynchrony.rounds = self.m.asynchrony.rounds
        self.asynchrony.append(m.asynchrony)
        return m

    def record(self, new: _Access) -> None:
        """Keep an access, in place of an earlier one of the same sort."""
        kind = new.space, new.low, new.high, new.writes, new.end[0]
        self.history = [a for a in self.history
                        if (a.space, a.low, a.high, a.writes, a.end[0]) != kind]
        self.history.append(new)

    def run(self) -> None:
        """Run all to their ends; raises what one of them raises, or for a deadlock."""
        waiting = []
        for number, m in enumerate(self.machines):
            assert m.role is not None
            m.role.coroutine = Coroutine(self, number, self._role)
            waiting.append(m.role.coroutine)
        idle = 0
        try:
            while waiting:
                self.moved = False
                for i in self.random.permutation(len(waiting)).tolist():
                    waiting[i].resume()
                    if (error := waiting[i].error) is not None:
                        raise error
                left = [c for c in waiting if not c.done]
                idle = 0 if self.moved or len(left) < len(waiting) else idle + 1
                waiting = left
                if waiting and idle == IDLE_ROUNDS:
                    raise self._deadlock()
        finally:
            self.stop(waiting)
        self._leave()

    def _role(self, number: int) -> None:
        m = self.machines[number]
        assert m.role is not None
        m.run_block(m.role.op.body, self.frame)
        for use in (*m.asynchrony.products.unfinished(), *m.asynchrony.stores.unfinished()):
            raise m.error(use.op, f"the role of {m.role.name} ends while this may still read "
                          "shared memory", "wait for its group in the role")

    def _leave(self) -> None:
        """All warps meet."""
        for own in self.asynchrony[1:]:
            for buffer, stored in own.stored.items():
                self.m.asynchrony.note_store(buffer, *np.nonzero(stored == WRITTEN))
        for state in self.m.asynchrony.mbarriers.values():
            state.past, state.told = {}, {}
        self.m.meet(self.frame)

    def _deadlock(self) -> InterpreterError:
        lines = []
        first: Op | None = None
        for m in self.machines:
            assert m.role is not None
            if m.role.blocked is not None:
                op, lacks = m.role.blocked
                first = first or op
                lines.append(f"{m.role.name} at {_where(op)}: {lacks()}")
        assert first is not None
        name = self.m.program_name(self.frame.programs[0])
        return self.m.error(
            first, f"{name} waits for ever, since no other role provides what its roles wait for:\n"
            "    " + "\n    ".join(lines),
            "check counts, expected bytes and parities, and that every role goes round as often")


def _elect(op: Op) -> ops.Elect | None:
    return next((a for a in op.ancestors() if isinstance(a, ops.Elect)), None)


def _where(op: Op) -> str:
    """An op's line, or in text without lines the op."""
    return place(op) if op.loc.line else f"`{print_op(op).strip().splitlines()[0]}`"


def _verb(writes: bool) -> str:
    return "writes" if writes else "reads"


@interp_rules(ops.WarpSpecialize)
def _(m: Machine, frame: Frame, op: ops.WarpSpecialize) -> None:
    Roles(m, frame, op).run()


@interp_rules(ops.WarpRole)
def _(m: Machine, frame: Frame, op: ops.WarpRole) -> None:
    m.run_block(op.body, frame)
