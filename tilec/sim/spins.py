"""Finds out when threads only go round in loops in which nothing changes, as those do that wait for
another CTA: registers and memory of their CTA, and where its threads stand, are what they were."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.sim.ptx import Instr

if TYPE_CHECKING:
    from tilec.sim.machine import Machine

Array = np.ndarray[Any, Any]

_FIRST = 512  # jumps before the first look
_LEAST = 64  # states that one look compares, and one more for each _SHARE jumps before
_SHARE = 256


class Spins:
    """Looks at the states of a CTA, or cluster, more and more rarely the longer it runs.

    due: the jumps after which it looks, at every block. contents: registers and memory. state:
    stands for the loop in which it was found to go round.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.contents: Callable[[], Iterable[Array]] = lambda: ()
        self.reset()

    def reset(self) -> None:
        """A new CTA."""
        self.due = _FIRST
        self.found: dict[bytes, int] = {}
        self.state = b""
        self.at: list[int] = []

    def look(self, pc: int) -> bool:
        """The threads before `pc` are about to go on: whether all has been like this before."""
        if not self.found:
            self.machine.polled = None
        state = self._digest(pc)
        if state not in self.found:
            self.found[state] = pc
            if len(self.found) > _LEAST + self.machine.steps // _SHARE:
                self.found.clear()
                self.due = 2 * self.machine.steps
            return False
        states = list(self.found)
        circle = states[states.index(state):]
        self.state, self.at = min(circle), sorted(self.found[s] for s in circle)
        self.found.clear()
        self.due = self.machine.steps  # when it runs on, it is likely to wait again
        return True

    def _digest(self, pc: int) -> bytes:
        machine = self.machine
        made = hashlib.blake2b(repr([pc, *machine.pending, *machine.blocked,
                                     *machine.barriers]).encode(), digest_size=16)
        for mask in (*machine.pending.values(), *machine.blocked.values(),
                     *(barrier.arrived for barrier in machine.barriers.values()),
                     *(parked.mask for parked in machine.parked)):
            made.update(mask.data)
        for array in self.contents():
            made.update(array.data)
        return made.digest()

    def place(self, where: Sequence[Instr | None]) -> int:
        """The index of an instruction of the loop, one that reads global memory if there is any."""
        inside = [i for pc in self.at for i in self._block(pc, where)]
        return next((i for i in inside if (instr := where[i]) is not None and
                     instr.op in ("ld", "atom") and "global" in instr.mods), inside[0])

    @staticmethod
    def _block(pc: int, where: Sequence[Instr | None]) -> list[int]:
        """The instructions of the block that begins at `pc`."""
        out = []
        for i in range(pc + 1, len(where)):
            if where[i] is None:
                break
            out.append(i)
        return out
