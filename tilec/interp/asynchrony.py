"""What is under way in a program beside cp.async: copies that an mbarrier counts, matrix products,
TMA stores. `interp/hopper.py` has the rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tilec.eval.dtypes import Array
from tilec.interp.buffers import Buffer, Copy
from tilec.interp.frame import Frame
from tilec.ir.core import Op

NO_GROUP = 1 << 62  # no wait for groups covers it
# What a buffer's threads have done since TMA and wgmma were last made to see their stores. TOLD:
# fenced, and arrived at a named barrier, so that others may know, but not each other.
CLEAN, TOLD, FENCED, WRITTEN = 0, 1, 2, 3


Clock = dict[object, int]
"""How far each agent is known to have come, see `interp/agents.py`."""
End = tuple[object, int]
"""When an access of an agent is over: the agent whose clock says so, and its time."""


def join(into: Clock, other: Clock) -> None:
    """Know what the other knows, too."""
    for agent, time in other.items():
        into[agent] = max(time, into.get(agent, 0))


@dataclass
class Round:
    """A round of a named barrier: how many were before it, the warps that have arrived, what they
    know (see `interp/roles.py`), and whether it has ended."""

    number: int = 0
    warps: set[int] = field(default_factory=set)
    told: Clock = field(default_factory=dict)
    over: bool = False


class Mbarriers:
    """The mbarriers of one buffer, [P, stages] each: phases ended, arrivals that a phase needs (0:
    not set up), arrivals and bytes of this phase. ready: whether all threads may use them, [P].

    While warp roles or the programs of a cluster run, `told` is what those who arrived at a slot's
    phase know, and `past` what those do who wait for phases that have ended."""

    def __init__(self, buffer: Buffer) -> None:
        self.told: dict[int, Clock] = {}
        self.past: dict[int, Clock] = {}
        shape = buffer.array.shape[:2]
        self.count, self.phase, self.arrived, self.bytes = (
            np.zeros(shape, np.int64) for _ in range(4))
        self.ready = np.zeros(shape[0], bool)

    def set_up(self, rows: Array, count: int) -> None:
        """Start all of an array anew."""
        for state, value in ((self.count, count), (self.phase, 0), (self.arrived, 0),
                             (self.bytes, 0)):
            state[rows] = value
        self.ready[rows] = False

    def follow(self) -> None:
        """Keep from now on what is known of each phase."""
        self.past = {slot: {(self, slot): int(phase)}
                     for slot, phase in enumerate(self.phase[0].tolist())}

    def arrive(self, rows: Array, slots: Array, arrivals: int, more: Array | int = 0) -> None:
        """Count arrivals and change the bytes still to come; phases that are complete end."""
        self.arrived[rows, slots] += arrivals
        self.bytes[rows, slots] += more
        done = (self.arrived[rows, slots] >= self.count[rows, slots]) & \
            (self.bytes[rows, slots] == 0)
        self.phase[rows[done], slots[done]] += 1
        self.arrived[rows[done], slots[done]] = 0
        if self.past:
            for row, slot in zip(rows[done].tolist(), slots[done].tolist(), strict=True):
                join(self.past[slot], self.told.pop(slot, {}))
                self.past[slot][self, slot] = int(self.phase[row, slot])


@dataclass
class TmaCopy(Copy):
    """A TMA load. Per program beside the rest: the row and slot of its mbarrier, and its phase."""

    PER_PROGRAM: ClassVar[tuple[str, ...]] = (*Copy.PER_PROGRAM, "bar_rows", "slots", "phase")
    barriers: Mbarriers
    bar_rows: Array
    slots: Array
    phase: Array
    size: int

    def land(self, which: Array) -> None:
        which = which & ~self.landed
        super().land(which)
        self.barriers.arrive(self.bar_rows[which], self.slots[which], 0, -self.size)


@dataclass
class Use:
    """A read of a buffer that goes on after its op: per program its row in the launch's frame and
    in the buffer's, stage and group; and whether a wait has covered it."""

    op: Op
    buffer: Buffer
    who: Array
    rows: Array
    stage: Array
    group: Array
    ended: Array

    def keep(self, which: Array) -> None:
        """Forget the programs that are not marked."""
        for name in ("who", "rows", "stage", "group", "ended"):
            setattr(self, name, getattr(self, name)[which])


@dataclass
class Reads:
    """Reads in groups, those of wgmma or those of TMA stores. closed: groups committed, [P]."""

    root: Frame
    closed: Array = field(init=False)
    under_way: list[Use] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.closed = np.zeros(len(self.root), np.int64)

    def begin(self, frame: Frame, op: Op, buffer: Buffer, rows: Array, stage: Array) -> None:
        """A read of a buffer's stage begins, in the group that is committed next."""
        who = frame.index_in(self.root)
        self.under_way.append(Use(op, buffer, who, rows, stage, self.closed[who],
                                  np.zeros(len(who), bool)))

    def commit(self, frame: Frame) -> Array:
        """Close a group; its number in each of the frame's programs, from 1."""
        who = frame.index_in(self.root)
        self.closed[who] += 1
        return self.closed[who]

    def wait(self, frame: Frame, pending: int) -> None:
        """All groups but the newest `pending` end."""
        waits = frame.mark_in(self.root)
        for use in self.under_way:
            use.ended |= waits[use.who] & (use.group < self.closed[use.who] - pending)

    def release(self, frame: Frame) -> None:
        """Others know what has ended."""
        told = frame.mark_in(self.root)
        for use in self.under_way:
            use.keep(~(use.ended & told[use.who]))
        self.under_way = [use for use in self.under_way if len(use.who)]

    def of(self, frame: Frame, buffer: Buffer, stage: Array, told: bool) -> Use | None:
        """A read of what the frame's programs are about to write that no wait covers, or, with
        `told`, that others do not know of."""
        who = frame.index_in(self.root)
        for use in self.under_way:
            _, mine, theirs = np.intersect1d(who, use.who, return_indices=True)
            if use.buffer is buffer and ((use.stage[theirs] == stage[mine]) &
                                         (told | ~use.ended[theirs])).any():
                return use
        return None

    def unfinished(self) -> list[Use]:
        """The reads that no wait has covered."""
        return [use for use in self.under_way if not use.ended.all()]


class Asynchrony:
    """All of it, for a group of programs, or for one warp role of a program."""

    def __init__(self, root: Frame) -> None:
        self.products, self.stores = Reads(root), Reads(root)
        self.mbarriers: dict[Buffer, Mbarriers] = {}
        self.rounds: dict[int, Round] = {}  # of named barriers
        self.stored: dict[Buffer, Array] = {}  # CLEAN to WRITTEN, [P, stages]

    def note_store(self, buffer: Buffer, rows: Array, stage: Array) -> None:
        """Threads have written to a buffer."""
        state = self.stored.setdefault(buffer, np.zeros(buffer.array.shape[:2], np.int8))
        state[rows, stage] = WRITTEN

    def advance(self, frame: Frame, old: int, new: int) -> None:
        """A fence or a barrier, in the frame's programs."""
        for buffer, state in self.stored.items():
            rows = frame.index_in(buffer.home) if buffer.home in frame.chain() else None
            if rows is not None:
                state[rows] = np.where(state[rows] == old, new, state[rows])

    def barrier(self, frame: Frame, whole: bool) -> None:
        """The threads meet: all of them, or those of each warpgroup."""
        self.advance(frame, FENCED, CLEAN)
        self.advance(frame, TOLD, CLEAN)
        self.stores.release(frame)
        if whole:
            self.products.release(frame)
            for buffer, mbarriers in self.mbarriers.items():
                mbarriers.ready[frame.index_in(buffer.home)] = True
