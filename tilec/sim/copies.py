"""Asynchronous copies in flight: cp.async from global to shared memory, by groups of each thread.

A copy reads its source and writes shared memory at one moment between its issue and the wait that
covers it: without a seed at the wait, with one at a random moment, lane by lane. What reads the
destination too early finds there what was there before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tilec.sim.errors import Fault
from tilec.sim.machine import Array, Mask
from tilec.sim.mbarrier import MBarrier
from tilec.sim.ptx import Instr

if TYPE_CHECKING:
    from tilec.sim.decode import Decoder


class Batch(NamedTuple):
    """Copies that instruction `number` issued, a row a lane; `group` is the lane's group number.

    Lane i copies `filled[i]` of the `size` bytes from offset `source[i]` of global memory to
    offset `target[i]` of shared memory, and zeros behind them.
    """

    size: int
    number: int
    lanes: Array
    group: Array
    source: Array
    target: Array
    filled: Array

    def rows(self, chosen: Array) -> Batch:
        """The copies of some lanes."""
        return Batch(self.size, self.number, *(column[chosen] for column in self[2:]))


class Signal(NamedTuple):
    """Arrivals at mbarriers, a row a lane, when its copies before number `after` are done."""

    after: int
    lanes: Array
    barriers: Array
    instr: Instr


class Copies:
    """The copies of a CTA that have not happened yet."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.reset()

    def reset(self) -> None:
        """Forget the previous CTA."""
        self.committed = np.zeros(self.decoder.lanes, np.int64)  # groups, by thread
        self.pending: list[Batch] = []
        self.issued = 0
        self.signals: list[Signal] = []

    def issue(self, size: int, lanes: Array, source: Array, target: Array, filled: Array) -> None:
        """Copies that begin, as part of the groups that their threads commit next."""
        group = self.committed[lanes]
        self.pending.append(Batch(size, self.issued, lanes, group, source, target, filled))
        self.issued += 1
        self.drift()

    def signal(self, lanes: Array, barriers: Array, instr: Instr) -> None:
        """Arrive at the mbarriers at these offsets when the earlier copies of each lane are done.

        cp.async.mbarrier.arrive (PTX ISA).
        """
        self.signals.append(Signal(self.issued, lanes, barriers, instr))
        self.finish([np.zeros(len(batch.lanes), bool) for batch in self.pending])

    def commit(self, mask: Mask) -> None:
        """End the present group of each thread and begin another."""
        self.committed[self.decoder.machine.full(mask)] += 1
        self.drift()

    def wait(self, mask: Mask, newest: int | None) -> None:
        """Finish the groups of each thread but its `newest` last committed ones; None: all."""
        done = np.full(self.decoder.lanes, -1, np.int64)
        active = self.decoder.machine.full(mask)
        last = self.committed if newest is None else self.committed - newest - 1
        done[active] = last[active]
        checks = self.decoder.checks
        if checks is not None:
            checks.wait(np.flatnonzero(active & self.decoder.machine.live), last)
        self.finish([batch.group <= done[batch.lanes] for batch in self.pending])

    def drift(self) -> None:
        """With a seed, let some copies happen now."""
        machine = self.decoder.machine
        if machine.seeded and self.pending:
            share = float(machine.rng.choice([0.0, 0.1, 0.5, 1.0], p=[0.7, 0.1, 0.1, 0.1]))
            self.finish([machine.rng.random(len(b.lanes)) < share for b in self.pending])

    def finish(self, chosen: list[Array]) -> None:
        """Do the chosen copies of every batch, in the order of their issue."""
        left = []
        for batch, now in zip(self.pending, chosen, strict=True):
            if now.any():
                self._land(batch.rows(now))
            if not now.all():
                left.append(batch.rows(~now))
        self.pending = left
        if self.signals:
            self._arrive()

    def stir(self) -> bool:
        """Finish the copies that some mbarrier waits for."""
        if not self.signals:
            return False
        last = max(signal.after for signal in self.signals)
        self.finish([np.full(len(b.lanes), b.number < last) for b in self.pending])
        return True

    def _arrive(self) -> None:
        """Arrivals of those lanes whose copies before a signal are all done."""
        waiting = []
        for signal in self.signals:
            busy = [batch.lanes for batch in self.pending if batch.number < signal.after]
            late = np.isin(signal.lanes, np.concatenate(busy)) if busy else np.zeros(
                len(signal.lanes), bool)
            try:
                for lane, at in zip(signal.lanes[~late].tolist(), signal.barriers[~late].tolist(),
                                    strict=True):
                    self._arrive_one(self.decoder.mbarriers.find(at, lane), lane)
            except Fault as error:
                raise self.decoder.machine.located(error, signal.instr) from None
            if late.any():
                waiting.append(Signal(signal.after, signal.lanes[late], signal.barriers[late],
                                      signal.instr))
        self.signals = waiting

    def _arrive_one(self, barrier: MBarrier, lane: int) -> None:
        """A lane's copies so far come before its arrival; nothing else that it did need do so."""
        order, row = self.decoder.machine.order, None
        if order is not None:
            row = order.fresh() if barrier.row is None else order.padded(barrier.row)
            agent = order.lanes + lane
            row[agent] = max(row[agent], order.base + 1 + self.committed[lane])
        barrier.arrive(1, lane, after=row)

    def _land(self, batch: Batch) -> None:
        memory, shared = self.decoder.arena, self.decoder.shared
        if (batch.filled == batch.size).all():
            words = np.arange(batch.size // 4)
            found = memory.views[4][(batch.source[:, None] >> 2) + words]
            shared.views[4][(batch.target[:, None] >> 2) + words] = found
            return
        columns = np.arange(batch.size)
        inside = columns < batch.filled[:, None]
        source = np.where(inside, batch.source[:, None] + columns, 0)
        data = np.where(inside, memory.bytes[source], np.uint8(0))
        shared.bytes[batch.target[:, None] + columns] = data
