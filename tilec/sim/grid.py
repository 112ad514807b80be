"""Runs the CTAs of a grid, or its clusters: one after another, but for those that wait for others.

One that only goes round in loops in which nothing changes is set aside, and another one begins.
When all have begun, those that are left take turns, until they end or none of them gets on.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from tilec.sim.decode import Decoder
from tilec.sim.errors import SimError
from tilec.sim.machine import place_of, positioned
from tilec.sim.ptx import Kernel
from tilec.sim.registers import at_launch
from tilec.sim.specials import Extents, set_cluster, set_grid, set_threads

PIECE = 1 << 20  # clusters whose order is held at a time
TOGETHER = 512  # clusters that may wait at a time
_IDLE = 4  # rounds in which nothing new happens before it is a deadlock


@dataclass(frozen=True)
class Launch:
    """What a grid is launched with: its extents in CTAs, the threads of a CTA, bytes of dynamic
    shared memory, and as for sim.run."""

    kernel: Kernel
    grid: Extents
    threads: int
    shared_bytes: int
    seed: int | None
    max_steps: int


class Grid:
    """The clusters of one launch. spare: decoders on which none runs; waiting: those that are set
    aside, with their places in the grid."""

    def __init__(self, decoder: Decoder, launch: Launch) -> None:
        self.first, self.launch = decoder, launch
        self.spare = [decoder]
        self.waiting: list[tuple[Decoder, Extents]] = []
        self.rng = np.random.default_rng(0 if launch.seed is None else launch.seed)
        self._prepare(decoder)
        if decoder.checks is not None:
            decoder.checks.reset()
        if decoder.counters is not None:
            decoder.counters.reset()

    def run(self) -> None:
        """Run all of them; SimError for what one does wrong, and for a deadlock."""
        for place in self._order():
            if len(self.waiting) == TOGETHER:
                self._take_turns(TOGETHER - 1)
            self._begin(place)
        self._take_turns(0)

    def _order(self) -> Iterator[Extents]:
        """The clusters, in order or, with a seed, in random order inside each PIECE."""
        sizes = self.launch.kernel.cluster
        x, y, z = (n // size for n, size in zip(self.launch.grid, sizes, strict=True))
        for start in range(0, x * y * z, PIECE):
            piece = list(range(start, min(start + PIECE, x * y * z)))
            if self.launch.seed is not None:
                self.rng.shuffle(piece)
            yield from ((n % x, n // x % y, n // (x * y)) for n in piece)

    def _prepare(self, decoder: Decoder) -> None:
        """Have a decoder run clusters of this launch."""
        launch, machine, specials = self.launch, decoder.machine, decoder.specials
        kernel = launch.kernel
        machine.rng, machine.seeded = self.rng, launch.seed is not None
        machine.stripes = min(2, machine.warps) if machine.seeded else 1
        machine.max_steps = launch.max_steps
        machine.spins.contents = lambda: chain(
            *decoder.pools.values(), (decoder.shared.bytes, decoder.local.bytes))
        machine.registers.launch = at_launch(launch.threads, kernel.minnctapersm, kernel.maxnreg)
        set_threads(specials, machine, kernel.reqntid or (launch.threads, 1, 1))
        set_grid(specials, machine, launch.grid, kernel.cluster)
        specials["%dynamic_smem_size"][:] = launch.shared_bytes
        specials["%total_smem_size"][:] = launch.shared_bytes + decoder.variables.static_shared

    def _begin(self, place: Extents) -> None:
        """Run a new cluster until it ends or is set aside."""
        if not self.spare:
            self.spare.append(self.first.beside())
            self._prepare(self.spare[0])
        decoder = self.spare.pop()
        set_cluster(decoder.specials, place, self.launch.kernel.cluster)
        decoder.shared.resize(decoder.variables.static_shared + self.launch.shared_bytes)
        decoder.local.bytes[:] = 0xFF
        decoder.clear_registers()
        for part in (decoder.mbarriers, decoder.copies, decoder.transfers, decoder.products):
            part.reset()
        if decoder.checks is not None:
            decoder.checks.begin(str(place))
        if decoder.undefined is not None:
            decoder.undefined.begin()
        decoder.machine.reset()
        self._resume(decoder, place)

    def _resume(self, decoder: Decoder, place: Extents) -> None:
        """Run a cluster until it ends or is set aside."""
        try:
            if not decoder.machine.run(decoder.code, decoder.where):
                self.waiting.append((decoder, place))
                return
            decoder.transfers.finish()
        except SimError as error:
            raise error.within(f"{self.launch.kernel.name}, {self._name(place)}") from None
        self.spare.append(decoder)

    def _take_turns(self, most: int) -> None:
        """Let those that wait run in turn until at most so many are left."""
        seen: set[tuple[bytes, int]] = set()
        idle = 0
        while len(self.waiting) > most:
            moved, ready = False, self.waiting
            self.waiting = []
            for decoder, place in ready:
                if decoder.checks is not None:
                    decoder.checks.resume(str(place))
                self._resume(decoder, place)
            memory = zlib.crc32(self.first.arena.bytes.data)
            for decoder, _ in self.waiting:
                state = decoder.machine.spins.state, memory
                moved |= state not in seen
                seen.add(state)
            idle = 0 if moved or len(self.waiting) < len(ready) else idle + 1
            if idle == _IDLE:
                raise self._deadlock()

    def _deadlock(self) -> SimError:
        """None of those that wait gets on: say where they are."""
        lines, first = [], None
        for decoder, place in self.waiting[:8]:
            pc = decoder.machine.spins.place(decoder.where)
            first = first or decoder.where[pc]
            polled = decoder.machine.polled
            lines.append(f"{self._name(place)} ({place_of(decoder.where[pc])})"
                         + (f"; {polled}" if polled is not None else ""))
        if len(self.waiting) > len(lines):
            lines.append(f"{len(self.waiting) - len(lines)} more")
        return positioned(
            f"{self.launch.kernel.name}: deadlock: nothing changes in the loops that go round, and "
            "no other CTA is left that could change it\n  " + "\n  ".join(lines), first)

    def _name(self, place: Extents) -> str:
        unit = "CTA" if math.prod(self.launch.kernel.cluster) == 1 else "cluster"
        return f"{unit} {place}"
