"""mbarrier objects: arrivals and bytes of asynchronous transactions that complete a phase.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". An object lives
beside the memory, where 8 bytes hold a mark; if the mark is gone, something wrote over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilec.sim.agents import Epoch
from tilec.sim.errors import Fault
from tilec.sim.machine import Array, Machine

if TYPE_CHECKING:
    from tilec.sim.decode import Decoder

LIMIT = (1 << 20) - 1
"""The largest arrival count and transaction count."""
_MARK = np.uint64(0x6D626172FFF86D62)


@dataclass(eq=False)
class MBarrier:
    """One mbarrier. `pending` arrivals and `bytes` of transactions are what its phase lacks.

    A state, as arrive returns it, is phase << 20 | pending arrivals before it. For sim/order.py
    the end of its present phase is an epoch of agent `agent` and `born` that of its initialisation;
    `row` is what comes before the arrivals at this phase, `past` before the end of the last one.
    """

    machine: Machine
    offset: int
    address: int
    expected: int
    pending: int
    bytes: int = 0
    phase: int = 0
    agent: int = 0
    clock: int = 0
    born: Epoch = (0, 0)
    row: Array | None = None
    past: Array | None = None

    def __post_init__(self) -> None:
        self.told = np.zeros(self.machine.lanes, bool)  # who waits for this phase and knows it

    @property
    def epoch(self) -> Epoch:
        """When the present phase ends."""
        return self.agent, self.clock

    def __str__(self) -> str:
        return (f"mbarrier {self.address:#x} is in phase {self.phase} (parity {self.phase & 1}) "
                f"and lacks {self.pending} of {self.expected} arrivals and {self.bytes} bytes")

    def state(self) -> int:
        """The state that an arrival returns."""
        return self.phase << 20 | self.pending

    def arrive(self, count: int, thread: int, complete: bool = True, drop: bool = False,
               after: Array | None = None) -> None:
        """`count` arrivals, before which `after` is; with `drop` later phases expect as many fewer.

        Fault where more arrive than the phase expects, or a phase ends that must not.
        """
        if not 1 <= count <= self.pending:
            raise Fault(f"{count} arrivals at an mbarrier that lacks {self.pending}: {self}",
                        thread)
        self.pending -= count
        if after is not None:
            self.row = after
        if drop:
            self.expected -= count
        if not complete and self.pending == 0:
            raise Fault(f".noComplete arrivals that complete the phase: {self}", thread)
        self.settle(thread)

    def transact(self, size: int, thread: int) -> None:
        """Expect `size` bytes, or with a negative size note that as many have come."""
        self.bytes += size
        if abs(self.bytes) > LIMIT:
            raise Fault(f"a transaction count beyond {LIMIT}: {self}", thread)
        self.settle(thread)

    def settle(self, thread: int) -> None:
        """Begin the next phase where nothing lacks any more, and wake those who wait."""
        if self.pending:
            return
        if self.bytes < 0:
            raise Fault(f"{-self.bytes} bytes more than expected have come: {self}", thread)
        if self.bytes == 0:
            self.phase += 1
            self.told = np.zeros(self.machine.lanes, bool)
            self.pending = self.expected
            order = self.machine.order
            if order is not None:
                self.past = order.fresh() if self.row is None else order.padded(self.row)
                self.past[self.agent] = order.base + 1 + self.clock
                self.clock, self.row = self.clock + 1, None
            self.machine.wake(self)


class MBarriers:
    """The mbarriers of shared memory, by byte offset in it."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.reset()

    def reset(self) -> None:
        """Forget the previous CTA."""
        self.objects: dict[int, MBarrier] = {}
        self.clocks: dict[int, int] = {}  # of places where there was one, by offset

    def init(self, at: int, count: int, thread: int) -> None:
        """Make an mbarrier of 8 bytes of shared memory."""
        if self._marked(at):
            raise Fault(f"mbarrier.init of a live mbarrier: {self.objects[at]}; mbarrier.inval "
                        "must come first", thread)
        if not 1 <= count <= LIMIT:
            raise Fault(f"an mbarrier for {count} arrivals: 1 to {LIMIT} are possible", thread)
        order = self.decoder.machine.order
        made = MBarrier(self.decoder.machine, at, self.decoder.shared.address(at), count, count)
        if self.decoder.checks is not None:
            made.agent = self.decoder.checks.agents.column(
                "a copy that the mbarrier at {:#x} counts", made.address)
            made.clock = self.clocks.get(at, 0)
        if order is not None:
            made.born = thread, int(order.own[thread])
        self.objects[at] = made
        self.decoder.shared.views[8][at >> 3] = _MARK

    def inval(self, at: int, thread: int) -> None:
        """The memory is free for other use."""
        self.clocks[at] = self.find(at, thread).clock
        del self.objects[at]
        self.decoder.shared.views[8][at >> 3] = ~np.uint64(0)

    def find(self, at: int, threads: int | Array) -> MBarrier:
        """The mbarrier at a byte offset, for these threads; Fault where there is none any more."""
        who = np.atleast_1d(threads)
        thread = int(who[0])
        if self._marked(at):
            found, order = self.objects[at], self.decoder.machine.order
            late = None if order is None else order.seen[who, found.born[0]] < found.born[1]
            if late is not None and late.any():
                thread, first = int(who[np.argmax(late)]), found.machine.thread_name(found.born[0])
                raise Fault(f"race: it uses the mbarrier at {found.address:#x}, which {first} "
                            "initialises with nothing that orders the two", thread)
            return found
        why = "has been overwritten" if at in self.objects else "was never initialised"
        where = self.decoder.shared.address(at)
        raise Fault(f"the mbarrier at shared address {where:#x} {why}", thread)

    def _marked(self, at: int) -> bool:
        return at in self.objects and self.decoder.shared.views[8][at >> 3] == _MARK
