"""Bulk copies in flight: cp.async.bulk and what else the asynchronous proxy does.

A transfer takes its data at one moment and puts it down at a later one, both between its issue and
the wait that covers them: without a seed as late as possible, with one at random moments. Those
that signal an mbarrier do both at once; without a seed when no thread can run any more. Those of a
bulk group wait for .wait_group.read and .wait_group, or the end of the grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilec.sim.errors import Fault
from tilec.sim.machine import Array, Mask
from tilec.sim.mbarrier import MBarrier
from tilec.sim.ptx import Instr

if TYPE_CHECKING:
    from tilec.sim.decode import Decoder


READS = "a bulk copy of thread {}, as its source,"
WRITES = "a bulk copy of thread {}"


@dataclass(slots=True, eq=False)
class Transfer:
    """One bulk operation that `thread` issued.

    `take` gives the data and `put` writes it. Afterwards `bytes` have come for each of `barriers`;
    without any it belongs to bulk group number `group` of the thread. `atomic`: a reduction.
    """

    instr: Instr
    thread: int
    take: Callable[[], Array]
    put: Callable[[Array], None]
    barriers: tuple[MBarrier, ...] = ()
    bytes: int = 0
    group: int = 0
    atomic: bool = False
    data: Array | None = None


class Transfers:
    """The bulk operations of a CTA that are not done yet, in the order of their issue."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.reset()

    def reset(self) -> None:
        """Forget the previous CTA."""
        self.committed = np.zeros(self.decoder.lanes, np.int64)  # bulk groups, by thread
        self.pending: list[Transfer] = []
        self.unread: list[Transfer] = []  # of bulk groups: nobody has waited for what they read

    def issue(self, transfer: Transfer) -> None:
        """A transfer that begins."""
        if not transfer.barriers:
            transfer.group = int(self.committed[transfer.thread])
            self.unread.append(transfer)
        self.pending.append(transfer)
        if self.decoder.machine.seeded:
            self.drift()

    def commit(self, mask: Mask) -> None:
        """End the present bulk group of each thread and begin another."""
        self.committed[self.decoder.machine.full(mask)] += 1

    def wait(self, mask: Mask, newest: int, read: bool) -> None:
        """Finish the groups of each thread but its `newest` last committed ones, or their reads."""
        waits = self.decoder.machine.full(mask)
        checks = self.decoder.checks
        if checks is not None:
            for thread in {number for what, number in checks.agents.columns if what == READS}:
                done = int(self.committed[thread]) - newest - 1
                for what in (READS,) if read else (READS, WRITES):
                    checks.agents.done(np.array([thread])[waits[[thread]]], what, thread, done)

        def covered(transfer: Transfer) -> bool:
            return bool(waits[transfer.thread]
                        and transfer.group < self.committed[transfer.thread] - newest)

        self.unread = [transfer for transfer in self.unread if not covered(transfer)]
        for transfer in self.pending.copy():
            if not transfer.barriers and covered(transfer):
                self.advance(transfer, read)

    def advance(self, transfer: Transfer, read: bool = False) -> None:
        """Take a transfer's data, and unless only `read` is due, put it down and signal."""
        try:
            if transfer.data is None:
                transfer.data = transfer.take()
            if read:
                return
            transfer.put(transfer.data)
            self.pending.remove(transfer)
            for barrier in transfer.barriers:
                barrier.transact(-transfer.bytes, transfer.thread)
        except Fault as error:
            raise self.decoder.machine.located(error, transfer.instr) from None

    def drift(self) -> None:
        """Let some transfers go on by a step."""
        rng = self.decoder.machine.rng
        if not self.pending or rng.random() < 0.7:
            return
        share = float(rng.choice([0.2, 0.6, 1.0]))
        order = [self.pending[at] for at in rng.permutation(len(self.pending)).tolist()]
        for transfer in order:
            if rng.random() < share:
                self.advance(transfer, not transfer.barriers and transfer.data is None)

    def stir(self) -> bool:
        """Finish one transfer that signals an mbarrier."""
        signalling = [transfer for transfer in self.pending if transfer.barriers]
        if not signalling:
            return False
        machine = self.decoder.machine
        chosen = int(machine.rng.integers(len(signalling))) if machine.seeded else 0
        self.advance(signalling[chosen])
        return True

    def finish(self) -> None:
        """The CTA has ended: writes to global memory come to an end too.

        Raises SimError where its shared memory is still being read or written.
        """
        for transfer in (*self.unread, *(t for t in self.pending if t.barriers)):
            raise self.decoder.machine.located(Fault(
                "the CTA ends while this operation may still use its shared memory: wait for it "
                "first", transfer.thread), transfer.instr)
        for transfer in self.pending.copy():
            self.advance(transfer)
