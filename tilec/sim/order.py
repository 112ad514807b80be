"""Which memory accesses are ordered, by vector clocks; two that conflict and are not are a race.

An agent is whatever makes accesses in an order of its own: each thread of a CTA, the cp.async
groups of each thread, and what else asks for columns (an mbarrier, the bulk groups of a thread).
`Order.seen[t, a]` is the newest clock of agent a that comes before what thread t does next; an
access of a at clock c is ordered before it iff seen[t, a] >= c (Flanagan and Freund, "FastTrack").
Clocks go on rising from CTA to CTA, so that a clock tells its CTA.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilec.sim.machine import Array, place_of
from tilec.sim.ptx import Instr

Threads = Array
"""Threads as their numbers, in rising order."""


class Sync(NamedTuple):
    """What an atomic operation on one place releases to the next: a row of clocks of the CTA that
    did it, and for every CTA that is ordered before it the newest clock."""

    cta: int
    row: Array
    known: dict[int, int]


class Order:
    """The clocks of the threads of a CTA, or of a cluster, of which `name` gives the names.

    `where` says which instruction has which index.
    """

    def __init__(self, lanes: int, where: Sequence[Instr | None],
                 name: Callable[[int], str]) -> None:
        self.lanes = lanes
        self.where = where
        self.names: list[tuple[int, Callable[[int], str]]] = [
            (0, name), (lanes, lambda i: f"a cp.async of {name(i)}")]
        self.columns = 2 * lanes
        self.forgetful: list[Callable[[Array], None]] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything, for a new launch."""
        self.bases: list[int] = []
        self.ctas: list[str] = []
        self.syncs: dict[tuple[str, int], Sync] = {}
        self.newest = 0
        self.seen = np.zeros((self.lanes, self.columns), np.int32)

    def begin(self, cta: str) -> None:
        """A new CTA: its accesses are ordered after nothing but the launch."""
        self.base = max(self.newest, int(self.seen.max()))
        self.bases.append(self.base)
        self.ctas.append(cta)
        self.known: dict[int, int] = {}
        self.seen = np.full((self.lanes, self.columns), self.base, np.int32)
        self.own = self.seen.reshape(-1)[:: self.columns + 1]  # the clock of each thread
        self.own += 1
        self.fenced = np.full(self.columns, self.base, np.int32)
        self.announced = self.fenced.copy()
        self.fences = np.zeros(self.lanes, bool)

    def agents(self, count: int, name: Callable[[int], str]) -> int:
        """Columns for `count` more agents, of which `name` says what they are: the first one.

        Their clocks begin at `base + 1`, as those of cp.async groups do.
        """
        first = self.columns
        self.columns += count
        self.names.append((first, name))
        if self.bases:
            more = np.full((self.lanes, count), self.base, np.int32)
            self.seen = np.concatenate([self.seen, more], axis=1)
            self.own = self.seen.reshape(-1)[:: self.columns + 1][: self.lanes]
            self.fenced = np.concatenate([self.fenced, more[0]])
            self.announced = np.concatenate([self.announced, more[0]])
        return first

    # What orders

    def release(self, threads: Threads, row: Array | None = None) -> Array:
        """All that is ordered before these threads' next step, and before `row`, as a row.

        What the threads do from here on is not part of it.
        """
        joined: Array = self.seen[threads].max(axis=0)
        if row is not None:
            np.maximum(joined, self.padded(row), out=joined)
        self.own[threads] += 1
        return joined

    def relaxed(self, threads: Threads) -> Threads:
        """Those of the threads whose relaxed arrival releases, since a fence came before it."""
        released = threads[self.fences[threads]]
        self.fences[threads] = False
        return released

    def acquire(self, threads: Threads, row: Array) -> None:
        """What these threads do next comes after all that `row` holds."""
        self.seen[threads] = np.maximum(self.seen[threads], self.padded(row))

    def fresh(self) -> Array:
        """A row that orders nothing."""
        return np.full(self.columns, self.base, np.int32)

    def padded(self, row: Array) -> Array:
        """A row of before the newest agents were added, with their columns."""
        more = self.columns - len(row)
        return np.concatenate([row, self.fresh()[:more]]) if more else row

    def barrier(self, threads: Threads) -> Array:
        """Each of the threads waits for all of them; what comes before all, as a row."""
        row: Array = self.seen[threads].max(axis=0)
        self.seen[threads] = row
        self.own[threads] = row[threads] + 1
        return row

    def warp_barrier(self, mask: Array) -> None:
        """Each thread of the mask waits for those of its warp."""
        for warp in np.unique(np.flatnonzero(mask) // 32):
            self.barrier(32 * warp + np.flatnonzero(mask[32 * warp : 32 * warp + 32]))

    def full_barrier(self, threads: Threads) -> None:
        """All live threads wait for each other."""
        self.settle(self.barrier(threads))

    def settle(self, row: Array) -> None:
        """All live threads have acquired `row`: the reads that it holds conflict with nothing."""
        row = self.padded(row)
        for forget in self.forgetful:
            forget(row)

    def complete(self, threads: Threads, agent: Array | int, clock: Array | int) -> None:
        """What these threads do next comes after `clock` of an agent (one each, or one for all)."""
        self.seen[threads, agent] = np.maximum(self.seen[threads, agent], clock)

    def fence_proxy(self, threads: Threads) -> None:
        """fence.proxy.async: what the threads know of the generic proxy, the async proxy sees."""
        self.fenced = self.release(threads, self.fenced)
        self.fence_inits(threads)

    def fence_inits(self, threads: Threads) -> None:
        """fence.mbarrier_init: mbarriers whose initialisation the threads know, it sees too."""
        self.announced = self.release(threads, self.announced)

    def atomic(self, threads: Threads, places: list[tuple[str, int]], acquires: bool,
               releases: bool) -> None:
        """Threads that act on one place each with acquire or release semantics."""
        groups: dict[tuple[str, int], list[int]] = {}
        for thread, key in zip(threads.tolist(), places, strict=True):
            groups.setdefault(key, []).append(thread)
        here = len(self.bases) - 1
        for key, members in groups.items():
            who, found = np.array(members), self.syncs.get(key)
            if found is not None and acquires:
                if found.cta == here:
                    self.acquire(who, found.row[: self.columns])
                for cta, clock in found.known.items():
                    self.known[cta] = max(clock, self.known.get(cta, 0))
            if releases:
                mine = found is not None and found.cta == here
                row = self.release(who, found.row if found is not None and mine else None)
                known = dict(found.known) if found is not None else {}
                for cta, clock in (*self.known.items(), (here, int(row[: self.lanes].max()))):
                    known[cta] = max(clock, known.get(cta, 0))
                self.syncs[key] = Sync(here, row, known)

    # What is asked

    def late(self, threads: Threads, agent: Array, clock: Array) -> Array:
        """Which of the agents' accesses are not ordered before the threads' next step."""
        flat: Array = self.seen.reshape(-1).take(threads * self.columns + agent)
        return flat < clock

    def unknown(self, clock: Array) -> Array:
        """Which accesses of earlier CTAs, by clock (0: none), nothing orders before this CTA."""
        earlier = (clock > 0) & (clock <= self.base)
        for cta in {self.cta(c) for c in np.unique(clock[earlier]).tolist()} & self.known.keys():
            low = self.bases[cta]
            earlier &= (clock <= low) | (clock > self.known[cta])
        return earlier

    def cta(self, clock: int) -> int:
        """The CTA that made an access at this clock, counted in the order in which they ran."""
        return bisect.bisect_left(self.bases, clock) - 1

    def describe(self, agent: int, clock: int) -> str:
        """An agent as text, with its CTA if that is another one."""
        first, name = max((n for n in self.names if n[0] <= agent), key=lambda n: n[0])
        cta = self.cta(clock)
        return name(agent - first) + (
            "" if cta == len(self.bases) - 1 else f" of CTA {self.ctas[cta]}")

    def place(self, at: int) -> str:
        """The source and PTX line of an instruction."""
        return place_of(self.where[at])


class Access(NamedTuple):
    """Granules of memory touched by one instruction, an entry for each granule of each lane.

    What the lane's thread did before is ordered before it; it counts as done by `agent` at `clock`.
    `at` is the index of the instruction; `async_proxy` says whether it is made through that.
    """

    threads: Array
    granule: Array
    agent: Array
    clock: Array
    at: Array
    async_proxy: bool = False
    atomic: bool = False

    def some(self, chosen: Array) -> Access:
        """Those entries alone."""
        return self._replace(threads=self.threads[chosen], granule=self.granule[chosen],
                             agent=self.agent[chosen], clock=self.clock[chosen],
                             at=self.at[chosen])


def merged(accesses: list[Access]) -> Access:
    """The entries of several accesses as those of one."""
    threads, granule, agent, clock, at = (
        np.concatenate(column) for column in zip(*(a[:5] for a in accesses)))
    return Access(threads, granule, agent, clock, at)


def spread(order: Order, granule: int, threads: Array, offsets: Array, width: int, at: int,
           agent: Array | int | None = None, clock: Array | int | None = None,
           async_proxy: bool = False, atomic: bool = False) -> Access:
    """An access of `width` bytes by each of the threads; by default these are its agents."""
    who = threads.astype(np.int64)
    doer: Any = who if agent is None else np.broadcast_to(agent, who.shape)
    when: Any = order.own[who] if clock is None else np.broadcast_to(clock, who.shape)
    index = offsets.astype(np.int64) // granule
    count = max(width // granule, 1)
    if clock is not None:
        order.newest = max(order.newest, int(when.max(initial=0)))
    if count > 1:
        index = (index[:, None] + np.arange(count)).reshape(-1)
        who, doer, when = (np.repeat(a, count) for a in (who, doer, when))
    return Access(who, index, doer, when, np.full(len(index), at, np.int32), async_proxy, atomic)
