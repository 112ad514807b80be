"""The barriers of a CTA, and the one of a cluster: who has arrived, and who waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.sim.errors import Fault

if TYPE_CHECKING:
    from tilec.sim.machine import Machine, Moves

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Barrier:
    """One CTA barrier: who arrived, who waits, and how many threads it expects (None: all).

    `members` are the lanes of its CTA; `row` is what comes before those who arrived (see
    sim/order.py), where that is kept.
    """

    members: Array
    arrived: Array
    expected: int | None = None
    row: Array | None = None
    waiting: list[tuple[int, Array, Callable[[Array], None] | None]] = field(default_factory=list)


class ClusterBarrier:
    """The barrier of all threads of a cluster (PTX ISA, barrier.cluster)."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def reset(self) -> None:
        """Nobody has arrived."""
        self.arrived = np.zeros(self.machine.lanes, bool)
        self.owing = self.arrived.copy()  # those who have arrived, but not waited yet
        self.row: Array | None = None
        self.past: Array | None = None

    def __str__(self) -> str:
        return (f"the cluster barrier has {int(np.count_nonzero(self.arrived))} of "
                f"{int(np.count_nonzero(self.machine.live))} threads")

    def arrive(self, mask: Array, releases: bool = True) -> None:
        """Threads arrive; Fault for one that has not waited since it did so before."""
        twice = np.flatnonzero(mask & self.owing)
        if len(twice):
            raise Fault("arrives again at the cluster barrier without a wait", int(twice[0]))
        self.arrived = self.arrived | mask
        self.owing = self.owing | mask
        order, threads = self.machine.order, np.flatnonzero(mask)
        if order is not None and not releases:
            threads = order.relaxed(threads)
        if order is not None and len(threads):
            self.row = order.release(threads, self.row)
        self.settle()

    def settle(self) -> None:
        """Complete the phase when every live thread has arrived."""
        if np.count_nonzero(self.arrived) and not np.count_nonzero(
                self.machine.live & ~self.arrived):
            self.arrived = np.zeros(self.machine.lanes, bool)
            self.past, self.row = self.row, None
            self.machine.wake(self)

    def wait(self, pc: int, mask: Array) -> Moves:
        """Threads whose phase is complete go on; the others wait at `pc`."""
        early = np.flatnonzero(mask & ~self.owing)
        if len(early):
            raise Fault("waits for the cluster barrier without having arrived", int(early[0]))
        late = mask & self.arrived
        if np.count_nonzero(late):
            self.machine.park(self, pc, late, "the cluster barrier")
        self.owing = self.owing & (late | ~mask)
        if self.machine.order is not None and self.past is not None:
            self.machine.order.acquire(np.flatnonzero(mask & ~late), self.past)
        return [(pc + 1, mask & ~late)]
