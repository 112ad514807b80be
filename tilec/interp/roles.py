"""Warp roles: each a coroutine with barriers, groups and a shadow of its own, that gives way where
it waits for an mbarrier. A program with roles runs alone, or with those of its cluster.

What mbarriers and named barriers order between roles is kept by clocks, see `interp/agents.py`.
"""

from __future__ import annotations

import copy

import numpy as np

from tilec.errors import InterpreterError
from tilec.interp.agents import PUBLIC, Access, Agent, History
from tilec.interp.asynchrony import WRITTEN, Asynchrony, TmaCopy, join
from tilec.interp.blame import place, where
from tilec.interp.frame import Frame
from tilec.interp.machine import Machine, interp_rules
from tilec.interp.shadow import Shadow
from tilec.interp.waiting import Coroutine, Scheduler
from tilec.ir import ops
from tilec.ir.core import Op

IDLE_ROUNDS = 2  # rounds in which every role waits in vain before it is a deadlock


class Role(Agent):
    """One role of a running program."""

    orders = "mbarrier and no named barrier", (
        "between them one must arrive at an mbarrier, after a barrier of its warps, or at a named "
        "barrier, and the other wait for it")

    def __init__(self, roles: Roles, op: ops.WarpRole, first: int) -> None:
        last = first + op.warps - 1
        name = f"warp {first}" if first == last else f"warps {first} to {last}"
        around = roles.m.member
        super().__init__(name if around is None else f"{around.name}, {name},", op.warps,
                         roles.history, roles, roles.random, roles.asynchrony)
        self.op, self.around = op, around
        self.warp_numbers = range(first, last + 1)
        for number, current in roles.m.asynchrony.rounds.items():
            self.now["named barrier", number] = current.number
        if around is not None:  # it knows all that came before the roles
            join(self.now, around.now)
            join(self.now, dict(map(around.next_end, ("", PUBLIC))))

    def progress(self) -> None:
        super().progress()
        if self.around is not None:
            self.around.progress()


class Roles(Scheduler):
    """The roles of one gpu.warp_specialize in one program."""

    def __init__(self, m: Machine, frame: Frame, op: ops.WarpSpecialize) -> None:
        super().__init__()
        self.m, self.frame, self.op, self.random = m, frame, op, m.copies.random
        self.history = History() if m.member is None else m.member.history
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
            if m.member is None:
                state.follow()
        for copied in m.copies.under_way:
            if isinstance(copied, TmaCopy):
                slot, low = int(copied.slots[0]), int(copied.low()[0])
                size = copied.view.buffer.size
                space, start, stop = (m.copies.root, low, low + size) if low >= 0 else \
                    (copied.view.buffer, int(copied.stage[0]), int(copied.stage[0]) + 1)
                self.history.record(Access(copied.op, None, space, start, stop, True,
                                           ((copied.barriers, slot), int(copied.phase[0]) + 1)))

    def _machine(self, op: ops.WarpRole, first: int) -> Machine:
        m = copy.copy(self.m)
        m.role, m.num_warps = Role(self, op, first), op.warps
        m.shadow = None if m.shadow is None else Shadow(m.copies.root, m.shadow)
        m.asynchrony = Asynchrony(m.copies.root)
        m.asynchrony.mbarriers = self.m.asynchrony.mbarriers
        m.asynchrony.rounds = self.m.asynchrony.rounds
        self.asynchrony.append(m.asynchrony)
        return m

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
                if self.m.member is not None and len(left) < len(waiting):
                    self.m.member.progress()
                idle = 0 if self.moved or len(left) < len(waiting) else idle + 1
                waiting = left
                if waiting and idle == IDLE_ROUNDS:
                    idle = self._idle()
        finally:
            self.stop(waiting)
        self._leave()

    def _idle(self) -> int:
        """All roles wait: for ever, unless other programs of the cluster provide something."""
        around = self.m.member
        if around is None:
            raise self._deadlock()
        around.coroutine.blocked = self._waiting()[0].coroutine.blocked
        around.coroutine.give_way()
        around.coroutine.blocked = None
        return IDLE_ROUNDS - 1

    def _waiting(self) -> list[Role]:
        """The roles that are blocked."""
        roles = [m.role for m in self.machines if isinstance(m.role, Role)]
        return [r for r in roles if r.coroutine.blocked is not None]

    def _role(self, number: int) -> None:
        m = self.machines[number]
        assert isinstance(m.role, Role)
        m.run_block(m.role.op.body, self.frame)
        for use in (*m.asynchrony.products.unfinished(), *m.asynchrony.stores.unfinished()):
            raise m.error(use.op, f"the role of {m.role.name} ends while this may still read "
                          "shared memory", "wait for its group in the role")

    def _leave(self) -> None:
        """All warps meet."""
        for own in self.asynchrony[1:]:
            for buffer, stored in own.stored.items():
                self.m.asynchrony.note_store(buffer, *np.nonzero(stored == WRITTEN))
        if self.m.member is None:
            for state in self.m.asynchrony.mbarriers.values():
                state.past, state.told = {}, {}
        else:
            for m in self.machines:
                assert m.role is not None
                m.role.barrier(whole=True)
                join(self.m.member.now, m.role.now)
        self.m.meet(self.frame)

    def _deadlock(self) -> InterpreterError:
        lines = []
        first: Op | None = None
        for role in self._waiting():
            assert role.coroutine.blocked is not None
            op, lacks = role.coroutine.blocked
            first = first or op
            lines.append(f"{role.name} at {where(op)}: {lacks()}")
        assert first is not None
        name = self.m.program_name(self.frame.programs[0])
        return self.m.error(
            first, f"{name} waits for ever, since no other role provides what its roles wait for:\n"
            "    " + "\n    ".join(lines),
            "check counts, expected bytes and parities, and that every role goes round as often")


@interp_rules(ops.WarpSpecialize)
def _(m: Machine, frame: Frame, op: ops.WarpSpecialize) -> None:
    Roles(m, frame, op).run()


@interp_rules(ops.WarpRole)
def _(m: Machine, frame: Frame, op: ops.WarpRole) -> None:
    m.run_block(op.body, frame)
