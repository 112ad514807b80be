"""Asynchronous copies in flight: cp.async from global to shared memory, by groups of each thread.

A copy reads its source and writes shared memory at one moment between its issue and the wait that
covers it: without a seed at the wait, with one at a random moment, lane by lane. What reads the
destination too early finds there what was there before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tilec.sim.machine import Array, Mask

if TYPE_CHECKING:
    from tilec.sim.decode import Decoder


class Batch(NamedTuple):
    """Copies that one instruction issued, a row a lane; `group` is the lane's group number.

    Lane i copies `filled[i]` of the `size` bytes from offset `source[i]` of global memory to
    offset `target[i]` of shared memory, and zeros behind them.
    """

    size: int
    lanes: Array
    group: Array
    source: Array
    target: Array
    filled: Array


class Copies:
    """The copies of a CTA that have not happened yet."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.reset()

    def reset(self) -> None:
        """Forget the previous CTA."""
        self.committed = np.zeros(self.decoder.lanes, np.int64)  # groups, by thread
        self.pending: list[Batch] = []
        self.decoder.machine.drift = None

    def issue(self, size: int, lanes: Array, source: Array, target: Array, filled: Array) -> None:
        """Copies that begin, as part of the groups that their threads commit next."""
        group = self.committed[lanes]
        self.pending.append(Batch(size, lanes, group, source, target, filled))
        machine = self.decoder.machine
        machine.drift = self.drift if machine.seeded else None
        self.drift()

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
                self._land(Batch(batch.size, *(column[now] for column in batch[1:])))
            if not now.all():
                left.append(Batch(batch.size, *(column[~now] for column in batch[1:])))
        self.pending = left
        if not left:
            self.decoder.machine.drift = None

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
