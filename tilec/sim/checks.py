"""What `check=True` watches: races in shared and global memory, and uninitialised values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilec.sim.agents import Agents
from tilec.sim.errors import Fault
from tilec.sim.flow import Flat
from tilec.sim.machine import Array
from tilec.sim.memory import GLOBAL_BASE, SHARED_START, Space
from tilec.sim.order import Access, Order, spread
from tilec.sim.ptx import TYPE_BYTES, Instr
from tilec.sim.races import Shadow
from tilec.sim.syntax import known

if TYPE_CHECKING:
    from tilec.sim.decode import Decoder

Watch = Callable[[Space, Array, Array, int, bool], None]
"""Called before an access with (memory, threads, byte offsets, bytes, whether it writes)."""
Written = Callable[[Array], Array]
"""The bytes that the instruction stores for some threads, uint8 [threads, bytes]."""
_WHOLE = 16  # the widest granule
_PLAIN = ("ld", "ldu", "st", "atom", "red")
_STRONG = ("volatile", "relaxed", "acquire", "release", "acq_rel", "mmio")


class Checks:
    """The order of a kernel's accesses, and a shadow for each memory that its threads share."""

    def __init__(self, decoder: Decoder, flat: Flat, first: Checks | None) -> None:
        self.decoder = decoder
        self.order: Order = Order(decoder.lanes, decoder.where, decoder.machine.thread_name) \
            if first is None else first.order
        decoder.machine.order = self.order
        decoder.machine.on_end = self.end
        narrowest = granules(flat)
        self.shared = Shadow(self.order, decoder.shared, SHARED_START, narrowest["shared"])
        self.arena: Shadow = Shadow(self.order, decoder.arena, GLOBAL_BASE, narrowest["global"]) \
            if first is None else first.arena
        self.agents = Agents(self)

    def reset(self) -> None:
        """A new launch."""
        self.order.reset()
        self.arena.resize(len(self.decoder.arena.bytes))

    def begin(self, cta: str) -> None:
        """A new CTA, whose shared memory is there."""
        self.order.begin(cta)
        self.known, self.fences, self.turn = \
            self.order.known, self.order.fences, len(self.order.bases)
        self.shared.resize(len(self.decoder.shared.bytes))
        self.arena.log = []

    def resume(self, cta: str) -> None:
        """It runs on, after others did: as a CTA that comes after all that it has done itself."""
        self.order.begin(cta)
        self.known[self.turn - 1] = self.order.bases[self.turn]
        self.order.known, self.order.fences, self.turn = \
            self.known, self.fences, len(self.order.bases)
        self.arena.log = []

    def end(self, rank: int) -> None:
        """A CTA ends, and with it its shared memory."""
        memory, machine = self.decoder.shared, self.decoder.machine
        if memory.ranks > 1:
            low = memory.in_cta(0, rank) // self.shared.granule
            self.shared.end(np.flatnonzero(machine.cta == rank), low,
                            low + memory.stride // self.shared.granule)

    def arrive(self, lane: int, offset: int, at: int) -> None:
        """A thread arrives at an mbarrier. The CTA of one that is not its own has to be there;
        mbarriers order arrivals among themselves."""
        if offset // self.decoder.shared.stride != self.decoder.machine.cta[lane]:
            self.shared.log.append(spread(self.order, self.shared.granule, np.array([lane]),
                                          np.array([offset]), 1, at, atomic=True))

    def watch(self, instr: Instr, data: Written | None = None) -> Watch | None:
        """What looks at each access of an instruction before it happens.

        Those of mbarriers and asynchronous stores are for sim/agents.py.
        """
        if instr.op == "mbarrier" or "mbarrier" in str(instr.mods):
            return None
        order, at = self.order, self.decoder.pc
        by_memory = {id(s.space): s for s in (self.shared, self.arena)}
        atomic = instr.op in ("atom", "red") or not {*instr.mods}.isdisjoint(_STRONG)
        acquires = not {"acquire", "acq_rel"}.isdisjoint(instr.mods)
        releases = not {"release", "acq_rel"}.isdisjoint(instr.mods)
        copies = self.decoder.copies if instr.op == "cp" else None
        undefined = self.decoder.undefined
        assert undefined is not None

        def see(memory: Space, threads: Array, offsets: Array, width: int, writes: bool) -> None:
            shadow = by_memory.get(id(memory))
            if shadow is None:
                return
            agent = clock = None
            if copies is not None:
                agent = order.lanes + threads
                clock = order.base + 1 + copies.committed[threads]
            access = spread(order, shadow.granule, threads, offsets, width, at, agent, clock,
                            atomic=atomic)
            if instr.op in ("atom", "red") and shadow is self.shared:
                self.demand_written(access)
            if not writes:
                if not shadow.load(access).all() and shadow is self.shared:
                    undefined.wake()
            elif data is None:
                shadow.store(access)
            else:
                shadow.store(access, lambda: data(threads).reshape(-1, shadow.granule))
            if writes and shadow is self.shared and instr.op not in ("st", "stmatrix"):
                undefined.define(offsets, width)
            if acquires or releases:
                order.atomic(threads, [(memory.name, o) for o in offsets.tolist()], acquires,
                             releases)

        return see

    def demand_written(self, access: Access) -> None:
        """Fault where shared memory that an access needs was never written."""
        bad = self.shared.written[access.granule] == 0
        if bad.any():
            at = int(np.argmax(bad))
            raise Fault(f"uses {self.shared.where(access, at)}, which is uninitialised",
                        int(access.threads[at]))

    def wait(self, threads: Array, newest: Array) -> None:
        """Threads wait for their cp.async groups up to number `newest`, an entry a lane."""
        self.order.complete(threads, self.order.lanes + threads,
                            self.order.base + 1 + newest[threads])


def granules(flat: Flat) -> dict[str, int]:
    """Bytes of the narrowest access of a kernel to shared and to global memory, at most 16."""
    least = {"shared": _WHOLE, "global": _WHOLE}
    for entry in flat.entries:
        if entry.instr is None or not known(entry.instr.op, entry.instr.mods):
            continue
        for space, width in _widths(entry.instr):
            least[space] = min(least[space], width)
    return least


def _widths(instr: Instr) -> list[tuple[str, int]]:
    """(space, bytes) of the accesses of an instruction; None of those that no threads share."""
    spaces = [s for m in instr.mods if (s := m.partition("::")[0]) in ("shared", "global")]
    if instr.op == "cp" and len(instr.operands) > 2 and instr.mods[1] in ("ca", "cg"):
        size = instr.operands[2].value
        if size not in (4, 8, 16):
            return []  # refused where it is executed
        # One that fills with zeros may read any number of bytes.
        return [("shared", size), ("global", size if len(instr.operands) == 3 else 1)]
    if instr.op == "mbarrier":
        return [("shared", 8)]
    if instr.op not in _PLAIN or any(m.partition("::")[0] in ("local", "param", "const")
                                     for m in instr.mods):
        return []
    count = next((int(m[1]) for m in instr.mods if m in ("v2", "v4", "v8")), 1)
    width = min(TYPE_BYTES.get(instr.type, _WHOLE) * count, _WHOLE)
    return [(space, width) for space in spaces or ("shared", "global")]
