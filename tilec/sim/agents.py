"""The asynchronous operations among the agents of sim/order.py: what they touch, and who waits.

Each mbarrier is an agent whose clock is its phase: transfers that it counts are done when a wait
for the phase returns. The bulk groups of a thread are two, for what they read and what they write,
and the wgmma groups of a warpgroup one; their clock is the number of the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilec.sim.machine import Array
from tilec.sim.memory import Space
from tilec.sim.order import Access, Order
from tilec.sim.races import Shadow

if TYPE_CHECKING:
    from tilec.sim.checks import Checks

Epoch = tuple[int, int]
"""An agent's column and its clock, which counts from 0 at the beginning of the CTA."""
_MORE = 32  # columns to ask for at a time


class Agents:
    """The columns of the asynchronous agents of a kernel."""

    def __init__(self, checks: Checks) -> None:
        self.checks = checks
        self.columns: dict[tuple[str, int], int] = {}
        self.names: list[str] = []
        self.free: list[int] = []

    @property
    def order(self) -> Order:
        """The clocks."""
        return self.checks.order

    def column(self, what: str, number: int) -> int:
        """The column of an agent; `what` says with the number what does it, for messages."""
        found = self.columns.get((what, number))
        if found is not None:
            return found
        if not self.free:
            begin = len(self.names)
            first = self.order.agents(_MORE, lambda i: self.names[begin + i])
            self.names += [""] * _MORE
            self.free = [*range(first, first + _MORE)]
        self.names[len(self.columns)] = what.format(number)
        made = self.columns[what, number] = self.free.pop(0)
        return made

    def touch(self, at: int, space: Space, offsets: Array, width: int, threads: Array, end: Epoch,
              writes: bool, async_proxy: bool = True, atomic: bool = False) -> None:
        """Instruction `at` reads or writes `width` bytes at each offset.

        Reads come after what each of the threads did, writes after what the first did; they are
        over at the epoch `end`.
        """
        agent, clock = end
        checks, order = self.checks, self.order
        shadow: Shadow = checks.shared if space is checks.shared.space else checks.arena
        granule = shadow.granule
        index: Array = offsets.reshape(-1, 1).astype(np.int64) // granule
        index = np.unique(index) if width < granule else (
            index + np.arange(width // granule)).reshape(-1)
        when = order.base + 1 + clock
        order.newest = max(order.newest, when)
        first = Access(np.full(len(index), threads[0]), index, np.full(len(index), agent),
                       np.full(len(index), when), np.full(len(index), at, np.int32), async_proxy,
                       atomic)
        for thread in threads[1:]:
            shadow.check_load(first._replace(threads=np.full(len(index), thread)))
        if not writes:
            shadow.load(first)
            return
        shadow.store(first)
        undefined = checks.decoder.undefined
        if shadow is checks.shared and undefined is not None:
            undefined.define(offsets.reshape(-1), width)

    def done(self, threads: Array, what: str, number: int, clock: int) -> None:
        """Threads have waited for an agent, if there is one, up to a clock."""
        column = self.columns.get((what, number))
        if column is not None:
            self.order.complete(threads, column, self.order.base + 1 + clock)
