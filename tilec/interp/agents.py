"""What agents know of each other: warp roles of a program, programs of a cluster.

An agent is one of these, a sort of what it does, an mbarrier, at which copies arrive, or a named
barrier. A clock says how far each agent is known to have come: a role or program by its barriers,
groups, phases and rounds by their number. Those who arrive at an mbarrier tell its phase what they
know, those who wait for the phase learn it; so it is with a named barrier and its rounds. Two
accesses of different agents to the same memory, one of them a write, are ordered if the later one
knows that the other agent has come as far as the earlier one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilec.interp.asynchrony import Asynchrony, Clock, End, Mbarriers, join
from tilec.interp.blame import VERBS, where
from tilec.interp.frame import Frame
from tilec.interp.waiting import Coroutine, Scheduler
from tilec.ir import ops
from tilec.ir.accumulators import WARPGROUP_WARPS
from tilec.ir.core import Op

if TYPE_CHECKING:
    from tilec.interp.buffers import View
    from tilec.interp.machine import Machine

PAUSES = 0.25  # how likely an agent is to let others run at an arrival or a wait
PUBLIC = "public"  # sort of an agent's accesses that only cluster barriers order for other programs


@dataclass
class Access:
    """An access to the part [low, high) of `space`: the stages of a buffer, or the bytes of a
    program's shared memory, for which its frame stands."""

    op: Op
    agent: Agent | None
    space: object
    low: int
    high: int
    writes: bool
    end: End


class History:
    """The accesses to shared memory that agents have in view of each other."""

    def __init__(self) -> None:
        self.accesses: list[Access] = []

    def record(self, new: Access) -> None:
        """Keep an access, in place of an earlier one of the same sort."""
        kind = new.space, new.low, new.high, new.writes, new.end[0]
        self.accesses = [a for a in self.accesses
                         if (a.space, a.low, a.high, a.writes, a.end[0]) != kind]
        self.accesses.append(new)


class Agent:
    """Warps that run an agent's ops. `now` is what all its threads know; `whole` what they knew at
    their last barrier; `elected` what one thread of a warp has learnt beside that; `time` counts
    its barriers and its arrivals at named ones.

    name: as messages have it. orders: what would order its accesses, and advice.
    """

    orders = "", ""

    def __init__(self, name: str, warps: int, history: History, turns: Scheduler,
                 random: np.random.Generator, asynchrony: list[Asynchrony]) -> None:
        self.name, self.warps, self.history, self.turns = name, warps, history, turns
        self.random, self.asynchrony = random, asynchrony
        self.time = 0
        self.now: Clock = {self: 0, self.sort(PUBLIC): 0}
        self.whole: Clock = {}
        self.elected: dict[int, Clock] = {}
        self.coroutine: Coroutine

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

    def tell(self, op: Op, barrier: Mbarriers, slot: int, remote: bool = False) -> None:
        """An arrival at an mbarrier: of each warpgroup, or of one thread, which of other warpgroups
        knows what it knew at the last barrier. remote: at another program's, to which it releases
        no stores, as it has the scope of the program."""
        clock: Clock = {}
        elect = _elect(op)
        if elect is None or self.warps <= WARPGROUP_WARPS:
            clock = self.known(op)
        else:
            join(clock, self.whole)
            join(clock, self.elected.get(elect.warp, {}))
        if remote:
            clock = {a: t for a, t in clock.items() if not isinstance(a, tuple) or a[0] != PUBLIC}
        join(barrier.told.setdefault(slot, {}), clock)

    def tell_all(self, told: Clock) -> None:
        """All its threads arrive at a named barrier: each vouches for what it has done."""
        self.time += 1
        told[self] = told[self.sort(PUBLIC)] = self.time
        for clock in (self.now, *self.elected.values()):
            join(told, clock)

    def sort(self, kind: str) -> object:
        """The agent of a sort of its accesses: its groups of "products" or "stores", or PUBLIC."""
        return kind, self

    def ended(self, kind: str, time: int) -> None:
        """It has waited for its groups up to this one."""
        join(self.now, {self.sort(kind): time})

    def barrier(self, whole: bool) -> None:
        """Its threads meet, or those of each of its warpgroups: they vouch for what all have done.
        """
        self.time += 1
        self.now[self] = self.now[self.sort(PUBLIC)] = self.time
        if whole or self.warps <= WARPGROUP_WARPS:
            for clock in self.elected.values():
                join(self.now, clock)
            self.whole = dict(self.now)

    def next_end(self, kind: str = "") -> End:
        """When what its threads do now is over: at their next barrier."""
        return self.sort(kind) if kind else self, self.time + 1

    # -- what it does -----------------------------------------------------------------------

    def access(self, m: Machine, frame: Frame, op: Op, view: View, writes: bool,
               end: End | None = None) -> None:
        """`op` begins to access a view of a buffer; it ends at once, or at `end`."""
        *_, root = frame.chain()
        places: list[tuple[object, int, int]] = \
            [(root, low, high) for low, high, _ in view.bytes(frame)] or \
            [(view.buffer, s, s + 1) for s in np.unique(view.place(frame)[1]).tolist()]
        for space, low, high in places:
            self.note(m, Access(op, self, space, low, high, writes,
                                end or self.next_end(PUBLIC if writes else "")))

    def scratch(self, m: Machine, frame: Frame, op: Op, low: int, high: int) -> None:
        """`op` uses scratch memory."""
        *_, root = frame.chain()
        self.note(m, Access(op, self, root, low, high, True, self.next_end()))

    def note(self, m: Machine, new: Access) -> None:
        """Record an access; InterpreterError if it is not ordered with another agent's."""
        known = self.known(new.op)
        own = (self, *map(self.sort, ("products", "stores", PUBLIC)))
        for old in self.history.accesses:
            agent, time = old.end
            apart = old.space is not new.space or old.high <= new.low or new.high <= old.low
            if apart or not (old.writes or new.writes) or agent in own or \
                    known.get(agent, 0) >= time:
                continue
            who = f" of {old.agent.name}" if old.agent is not None else ""
            orders, advice = self.orders
            raise m.error(
                new.op, f"{new.op.name} of {self.name} {VERBS[new.writes]} shared memory that "
                f"{old.op.name} at {where(old.op)}{who} {VERBS[old.writes]}, and no {orders} "
                "orders the two", advice)
        self.history.record(new)

    def pause(self) -> None:
        """Perhaps let others run."""
        if self.random.random() < PAUSES:
            self.turns.moved = True
            self.coroutine.give_way()

    def wait(self, op: Op, blocked: Callable[[], bool], lacks: Callable[[], str]) -> None:
        """Let others run as long as it is blocked; `lacks` says what it waits for."""
        self.pause()
        coroutine = self.coroutine
        while blocked():
            coroutine.blocked = op, lacks
            coroutine.give_way()
        if coroutine.blocked is not None:
            self.progress()
        coroutine.blocked = None

    def progress(self) -> None:
        """What it has waited for is there."""
        self.turns.moved = True


def _elect(op: Op) -> ops.Elect | None:
    return next((a for a in op.ancestors() if isinstance(a, ops.Elect)), None)
