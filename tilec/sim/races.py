"""Races: the shadow of a memory, which knows who wrote and who read each granule last.

A granule is as many bytes as the narrowest access of the kernel to that memory has, so that every
access covers whole ones. A write that leaves the bytes as they are conflicts with nothing: threads
that hold the same value may all store it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilec.sim.errors import Fault
from tilec.sim.machine import Array
from tilec.sim.memory import Space
from tilec.sim.order import Access, Order, merged

Data = Callable[[], Array]
"""The bytes that an access writes, uint8 [entries, granule]."""


class Shadow:
    """Accesses to one memory, whose first byte has the address `start`."""

    def __init__(self, order: Order, space: Space, start: int, granule: int) -> None:
        self.order = order
        self.space = space
        self.start = start
        self.granule = granule
        order.forgetful.append(self.forget)
        self.resize(0)

    def resize(self, size: int) -> None:
        """Nothing was written to or read from the `size` bytes of the memory."""
        count = size // self.granule + 1
        # Clocks are 0 where there was no such access.
        self.writer, self.written, self.write_at = np.zeros((3, count), np.int32)
        self.read, self.read_at, self.past, self.past_at = np.zeros((4, count), np.int32)
        self.atomic = np.zeros(count, bool)
        self.mark = np.zeros(count, np.int32)  # during a store: 1 + the place in the access
        self.log: list[Access] = []

    def forget(self, row: Array) -> None:
        """Reads that `row` holds come before all that follows."""
        self.log = [a for a in self.log if (a.clock > row[a.agent]).any()]

    # What accesses do

    def load(self, a: Access) -> Array:
        """Note a read; returns the clocks of the writes that it sees, 0 where there is none."""
        index, base = a.granule, self.order.base
        written = self.check_load(a)
        if base:
            last = self.read[index]
            before = (last > 0) & (last <= base)
            if before.any():
                self.past[index[before]] = last[before]
                self.past_at[index[before]] = self.read_at[index[before]]
        if not a.atomic:
            self.read[index] = a.clock
            self.read_at[index] = a.at
            self.log.append(a)
        return written

    def check_load(self, a: Access) -> Array:
        """The checks of a read, and what `load` returns."""
        order, index = self.order, a.granule
        written: Array = self.written[index]
        late = order.late(a.threads, self.writer[index], written)
        if a.atomic:
            late &= ~self.atomic[index]
        if a.async_proxy:
            self._check_proxy(a, written)
        if late.any():
            self._race(a, int(np.argmax(late)), "reads", "writes", self.writer[index],
                       written, self.write_at[index])
        if order.base:
            foreign = order.unknown(written)
            if a.atomic:
                foreign &= ~self.atomic[index]
            if foreign.any():
                self._race(a, int(np.argmax(foreign)), "reads", "writes", self.writer[index],
                           written, self.write_at[index])
        return written

    def store(self, a: Access, data: Data | None = None) -> None:
        """Note a write of `data` (None: other bytes than there are now)."""
        index = a.granule
        written = self.written[index]
        if a.async_proxy:
            self._check_proxy(a, written)
        late = self.order.late(a.threads, self.writer[index], written)
        if self.order.base:
            late |= self.order.unknown(written)
        if a.atomic:
            late &= ~self.atomic[index]
        same: Array | None = None
        if late.any():
            same = self._same(a, data)
            if not same[late].all():
                self._race(a, int(np.argmax(late & ~same)), "writes", "writes", self.writer[index],
                           written, self.write_at[index])
        self.mark[index] = np.arange(1, len(index) + 1)
        if not a.atomic:
            self._check_twice(a, data)
        if self.read[index].any() or (self.order.base and self.past[index].any()):
            self._check_reads(a, data)
        self.mark[index] = 0
        if same is not None:  # the earlier of two equal writes stands
            a = a.some(~late)
            index = a.granule
        self.writer[index] = a.agent
        self.written[index] = a.clock
        self.write_at[index] = a.at
        self.atomic[index] = a.atomic
        self.read[index] = self.past[index] = 0

    def end(self, threads: Array, low: int, high: int) -> None:
        """Granules low to high end with the threads of their CTA: accesses by the threads of others
        come before."""
        reads = merged(self.log) if self.log else None
        if reads is not None:
            inside = (reads.granule >= low) & (reads.granule < high)
            self._check_end(threads, reads.agent[inside], reads.clock[inside], reads.at[inside],
                            "uses")
        self._check_end(threads, self.writer[low:high], self.written[low:high],
                        self.write_at[low:high], "writes")

    # Checks

    def _check_end(self, threads: Array, agent: Array, clock: Array, at: Array, verb: str) -> None:
        order = self.order
        late = (agent < order.lanes) & ~np.isin(agent, threads) & \
            (order.seen[threads].max(axis=0)[agent] < clock)
        if late.any():
            k = int(np.argmax(late))
            raise Fault("race: its CTA ends, and with it the shared memory that "
                        f"{order.describe(int(agent[k]), int(clock[k]))} {verb} with nothing that "
                        f"orders the two ({order.place(int(at[k]))})", int(threads[0]))

    def _same(self, a: Access, data: Data | None) -> Array:
        """Which granules a write leaves as they are."""
        if data is None:
            return np.zeros(len(a.granule), bool)
        held = self.space.bytes.reshape(-1, self.granule)[a.granule]
        return (held == data()).all(axis=1)

    def _check_twice(self, a: Access, data: Data | None) -> None:
        """Lanes that write one granule in one instruction."""
        other = self.mark[a.granule] - 1
        twice = other != np.arange(len(a.granule))
        if data is not None and twice.any():
            new = data()
            twice &= (new != new[other]).any(axis=1)
        # One agent's pieces of a bulk copy may repeat; those of two may not.
        twice &= a.agent != a.agent[other]
        if twice.any():
            self._race(a, int(np.argmax(twice)), "writes", "writes", a.agent[other],
                       a.clock[other], a.at)

    def _check_reads(self, a: Access, data: Data | None) -> None:
        """Reads since the last write that are not ordered before this one; `mark` is set."""
        log = self.log
        if log:
            everything = merged(log)
            position = self.mark[everything.granule] - 1
            hit = position >= 0
            reads, position = everything.some(hit), position[hit]
            late = self.order.late(a.threads[position], reads.agent, reads.clock)
            if late.any() and (bad := late & ~self._same(a, data)[position]).any():
                self._race(a.some(position), int(np.argmax(bad)), "writes", "reads", reads.agent,
                           reads.clock, reads.at)
            self.log = [everything.some(~hit)] if not hit.all() else []
        if self.order.base:
            for clock, at in ((self.past, self.past_at), (self.read, self.read_at)):
                foreign = self.order.unknown(clock[a.granule])
                if foreign.any() and (bad := foreign & ~self._same(a, data)).any():
                    self._race(a, int(np.argmax(bad)), "writes", "reads", None, clock[a.granule],
                               at[a.granule])

    def _check_proxy(self, a: Access, written: Array) -> None:
        """What the async proxy touches was written by it, or has been fenced since."""
        writer = self.writer[a.granule]
        missing = (writer < 2 * self.order.lanes) & (written > self.order.fenced[writer])
        if missing.any():
            k = int(np.argmax(missing))
            raise Fault(
                f"missing fence.proxy.async: the async proxy uses {self.where(a, k)}, which "
                f"{self.order.describe(int(writer[k]), int(written[k]))} writes through the "
                f"generic proxy ({self.order.place(int(self.write_at[a.granule[k]]))})",
                int(a.threads[k]))

    def _race(self, a: Access, k: int, does: str, did: str, agent: Array | None, clock: Array,
              at: Array) -> None:
        order = self.order
        other = f"a thread of CTA {order.ctas[order.cta(int(clock[k]))]}" if agent is None else \
            order.describe(int(agent[k]), int(clock[k]))
        mine = "" if a.agent[k] == a.threads[k] else \
            f" (as {order.describe(int(a.agent[k]), int(a.clock[k]))})"
        raise Fault(f"race: it {does}{mine} {self.where(a, k)}, which {other} {did} with nothing "
                    f"that orders the two ({order.place(int(at[k]))})", int(a.threads[k]))

    def where(self, a: Access, k: int) -> str:
        """The address of one entry, for messages."""
        address = self.start + int(a.granule[k]) * self.granule
        return f"{self.space.name} address {address:#x}{self.space.near(address)}"
