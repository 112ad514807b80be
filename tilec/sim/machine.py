"""The state of one running CTA: which threads stand where, barriers, and who waits for whom.

Threads that stand at the same instruction run as one group, whatever warps they belong to. The
group at the earliest instruction runs first, so that diverged threads meet again; barriers and
warp-synchronous instructions hold threads until those they name have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tilec.errors import Location
from tilec.sim.barriers import Barrier, ClusterBarrier
from tilec.sim.errors import Fault, SimError, Unsupported
from tilec.sim.ptx import Instr, align_up
from tilec.sim.registers import Registers
from tilec.sim.spins import Spins

if TYPE_CHECKING:
    from tilec.sim.order import Order

Array = np.ndarray[Any, Any]
Mask = Array | None
"""Active threads; None means every lane."""
Moves = list[tuple[int, Mask]]
"""Where threads go next: (instruction index, threads)."""
Code = Callable[[Mask], "int | Moves | None"]

_FAIR = 4096  # blocks that one group may run while others could
_NOWHERE = 1 << 60
_REASONS = dict.fromkeys(
    ("bar", "barrier"), "diverged at a barrier that whole warps must reach together"
) | dict.fromkeys(
    ("wgmma", "setmaxnreg"), "for other warps of their warpgroup that never come")


class Engine(Protocol):
    """Operations that go on beside the threads, such as copies in flight."""

    def drift(self) -> None:
        """Let some of them happen now; asked only with a seed."""

    def stir(self) -> bool:
        """Let one happen that may wake a thread; False if there is none. No thread can run."""


@dataclass(slots=True, eq=False)
class Parked:
    """Threads that wait before instruction `pc` for `event`, whose str says how it stands."""

    event: object
    pc: int
    mask: Array
    wanted: str


class Machine:
    """Scheduling state for the CTAs of a cluster, of `threads` threads each.

    The lanes of a CTA are padded to whole warps, or in a cluster to whole warpgroups where there
    is one; those of CTA 0 come first.
    """

    def __init__(self, threads: int, ranks: int = 1) -> None:
        self.threads = threads
        self.cta_lanes = align_up(threads, 128 if ranks > 1 and threads > 128 else 32)
        self.lanes = self.cta_lanes * ranks
        self.cta = np.arange(self.lanes) // self.cta_lanes
        self.warps = self.lanes // 32
        self.lane = np.arange(self.lanes, dtype=np.uint32) % np.uint32(32)
        self.warp = np.arange(self.lanes) // 32
        self.ones = np.ones(self.lanes, bool)
        self.gone = np.zeros(ranks, bool)  # the CTAs whose threads have all exited
        self.rng = np.random.default_rng(0)
        self.seeded = False
        self.stripes = 1
        self.engines: list[Engine] = []
        self.max_steps = 0
        self.cluster_barrier = ClusterBarrier(self)
        self.registers = Registers(self)
        self.spins = Spins(self)
        self.order: Order | None = None
        self.on_end: Callable[[int], None] | None = None  # called with the rank of each CTA
        self.reset()

    def reset(self) -> None:
        """Forget the previous CTA."""
        self.live = np.arange(self.lanes) % self.cta_lanes < self.threads
        self.whole: tuple[Mask, Array, bool] = (None, self.live, True)
        self.gone[:] = False
        self.pending: dict[tuple[int, int], Array] = {}
        self.blocked: dict[int, Array] = {}
        self.barriers: dict[tuple[int, int], Barrier] = {}  # by number and CTA
        self.parked: list[Parked] = []
        self.polled: object = None
        self.cluster_barrier.reset()
        self.registers.reset()
        self.low = _NOWHERE
        self.budget = _FAIR
        self.steps = 0
        self.turn = 0, 0  # the group that ran last while they were watched
        self.spins.reset()
        order = self.rng.permutation(self.warps) if self.stripes > 1 else np.arange(self.warps)
        self.stripe = (order % self.stripes)[self.warp]
        self.add(0, self.live.copy())

    def run(self, code: Sequence[Code], where: Sequence[Instr | None]) -> bool:
        """Run every thread to its exit, or until all that have not only go round in loops in which
        nothing changes: whether all have.

        Raises SimError with the position of the instruction that failed.
        """
        pc = 0
        try:
            while (picked := self.pick(where)) is not None:
                pc, mask = picked
                while True:
                    result = code[pc](mask)
                    if result is None:
                        pc += 1
                    elif result.__class__ is int:
                        pc = result
                        self.jumped()
                    else:
                        for target, threads in result:  # type: ignore[union-attr]
                            self.add(target, threads)
                        self.jumped()
                        break
        except SimError:
            raise
        except (Fault, Unsupported) as error:
            raise self.located(error, where[pc]) from None
        except Exception as error:  # a mistake of the simulator's own: say which instruction
            error.add_note(f"in {place_of(where[pc])}")
            raise
        return not np.count_nonzero(self.live)

    def jumped(self) -> None:
        """Count a jump; Fault if there were too many."""
        self.steps += 1
        if self.steps >= self.spins.due:
            self.budget = 0  # the group is looked at before each block
        if self.steps > self.max_steps:
            raise Fault(f"more than {self.max_steps} jumps in one CTA: an endless loop"
                        + (f"; {self.polled}" if self.polled is not None else ""))

    def located(self, error: Fault | Unsupported, instr: Instr | None) -> SimError:
        """The fault as an error with thread and position."""
        message = str(error)
        if isinstance(error, Fault) and error.thread is not None:
            message = f"{self.thread_name(error.thread)}: {message}"
        return positioned(message, instr)

    def thread_name(self, lane: int) -> str:
        """How messages name the thread in a lane."""
        cta, thread = divmod(lane, self.cta_lanes)
        where = f" of CTA {cta} of the cluster" if self.lanes > self.cta_lanes else ""
        return f"thread {thread} (warp {thread // 32}){where}"

    def full(self, mask: Mask) -> Array:
        """A mask as an array."""
        return self.ones if mask is None else mask

    def everyone(self, mask: Mask) -> bool:
        """Whether the threads are all that live."""
        return mask is None or bool(np.array_equal(mask, self.live))

    def whole_warps(self, mask: Mask) -> bool:
        """Whether every warp of the mask is there with all its live lanes."""
        if mask is None:
            return True
        if mask is not self.whole[0] or self.live is not self.whole[1]:
            bits = self.warp_bits(mask)
            complete = bool(((bits == 0) | (bits == self.warp_bits(self.live))).all())
            self.whole = (mask, self.live, complete)
        return self.whole[2]

    def add(self, pc: int, mask: Mask) -> None:
        """Threads `mask` stand before instruction `pc` and can run."""
        threads = self.full(mask)
        for stripe in range(self.stripes):
            part = threads if self.stripes == 1 else threads & (self.stripe == stripe)
            if not np.count_nonzero(part):
                continue
            there = self.pending.get((stripe, pc))
            self.pending[stripe, pc] = part if there is None else there | part

    def park(self, event: object, pc: int, mask: Array, wanted: str) -> None:
        """Threads wait before `pc` until something wakes those that wait for `event`."""
        for parked in self.parked:
            if parked.event is event and (parked.pc, parked.wanted) == (pc, wanted):
                parked.mask = parked.mask | mask
                return
        self.parked.append(Parked(event, pc, mask, wanted))

    def stall(self, event: object) -> None:
        """The running group polls an event in vain: let others run, or what is under way."""
        self.budget, self.polled = 0, event
        if not self.pending:
            any(engine.stir() for engine in self.engines)

    def wake(self, event: object) -> None:
        """Threads that wait for `event` try again."""
        woken = [parked for parked in self.parked if parked.event is event]
        for parked in woken:
            self.parked.remove(parked)
            self.add(parked.pc, parked.mask)
            self.low = min(self.low, parked.pc)

    def pick(self, where: Sequence[Instr | None]) -> tuple[int, Mask] | None:
        """Take the group to run next; None when every thread has exited, or the others only go
        round."""
        pending = self.pending
        while not pending:
            if not np.count_nonzero(self.live):
                return None
            if not any(engine.stir() for engine in self.engines):
                raise self.deadlock(where)
        if self.steps >= self.spins.due:
            return self.watched()
        if self.stripes == 1:
            stripe, first = 0, self.budget > 0
            self.budget = _FAIR
        else:
            stripe = int(self.rng.choice(sorted({s for s, _ in pending})))
            first = bool(self.rng.random() < 0.98)
            self.budget = int(self.rng.integers(1, 8))
        mine = sorted(k for k in pending if k[0] == stripe)
        key = mine[0] if first else mine[-1]
        mask = pending.pop(key)
        self.low = mine[1][1] if first and len(mine) > 1 else _NOWHERE
        return key[1], None if np.count_nonzero(mask) == self.lanes else mask

    def watched(self) -> tuple[int, Mask] | None:
        """The next group in turn, for one block; None if they only go round."""
        keys = sorted(self.pending)
        key = next((k for k in keys if k > self.turn), keys[0])
        if self.spins.look(key[1]) and not any(engine.stir() for engine in self.engines):
            return None
        self.turn, self.budget, self.low = key, 1, _NOWHERE
        mask = self.pending.pop(key)
        return key[1], None if np.count_nonzero(mask) == self.lanes else mask

    def join(self, pc: int) -> Code:
        """The code at a block's start: let others catch up where they stand before it."""

        def code(mask: Mask) -> Moves | None:
            if self.seeded:
                for engine in self.engines:
                    engine.drift()
            if pc < self.low and self.budget > 0:
                self.budget -= 1
                return None
            return [(pc, mask)]

        return code

    def retire(self, mask: Mask) -> Moves:
        """Threads exit; those who waited for them are tried again."""
        self.live = self.live & ~self.full(mask)
        ended = (np.bincount(self.cta, self.live, len(self.gone)) == 0) & ~self.gone
        self.gone |= ended
        if self.on_end is not None:
            for rank in np.flatnonzero(ended).tolist():
                self.on_end(rank)
        moves: Moves = [(pc, threads) for pc, threads in self.blocked.items()]
        self.blocked.clear()
        for barrier in list(self.barriers.values()):
            moves += self.released(barrier)
        self.cluster_barrier.settle()
        return moves

    def warp_bits(self, mask: Array) -> Array:
        """The mask as one uint32 per warp, lane 0 the lowest bit."""
        packed = np.packbits(mask.reshape(self.warps, 32), axis=1, bitorder="little")
        return packed.view(np.uint32).reshape(self.warps)

    def gate(self, pc: int, mask: Mask, members: Array | None) -> Array:
        """Threads of `mask` (and those waiting at `pc`) whose `members` have all arrived.

        `members` is a uint32 lane mask per thread, None for every live lane of the warp. The others
        stay blocked at `pc`.
        """
        threads = self.full(mask)
        if pc in self.blocked:
            threads = threads | self.blocked.pop(pc)
        alive = self.warp_bits(self.live)[self.warp]
        here = self.warp_bits(threads)[self.warp]
        needed = alive if members is None else members & alive
        if members is not None:
            outside = threads & (((members >> self.lane) & np.uint32(1)) == 0)
            if np.count_nonzero(outside):
                thread = int(np.flatnonzero(outside)[0])
                raise Fault(
                    f"executes a warp instruction whose member mask {int(members[thread]):#010x} "
                    "does not hold its own lane", thread)
        ready = threads & ((needed & ~here) == 0)
        waiting = threads & ~ready
        if np.count_nonzero(waiting):
            self.blocked[pc] = waiting
        return ready

    def gate_warpgroups(self, pc: int, mask: Mask) -> Array:
        """Like `gate`, for all lanes of the four warps of a warpgroup; none may have exited. Warps
        beyond the last warpgroup of a CTA wait for ever."""
        if self.cta_lanes % 128 and self.lanes > self.cta_lanes:
            raise Fault(f"a CTA of {self.threads} threads has no warpgroup of 128")
        threads = self.full(mask)
        if pc in self.blocked:
            threads = threads | self.blocked.pop(pc)
        there = np.zeros(align_up(self.lanes, 128), bool)
        there[: self.lanes] = threads
        missing = (~there).reshape(-1, 128).any(axis=1).repeat(128)[: self.lanes]
        waiting = threads & missing
        if np.count_nonzero(waiting):
            self.blocked[pc] = waiting
        return threads & ~missing

    def arrive(self, number: int, cta: int, mask: Array, expected: int | None, wait_at: int | None,
               finish: Callable[[Array], None] | None = None) -> Moves:
        """Threads of a CTA arrive at its barrier `number`.

        With `wait_at` they wait there until it completes. `finish` is called with all threads that
        arrived, before any of them goes on.
        """
        barrier = self.barriers.get((number, cta))
        if barrier is None:
            barrier = self.barriers[number, cta] = Barrier(
                self.cta == cta, np.zeros(self.lanes, bool), expected)
        if barrier.expected != expected:
            raise Fault(
                f"barrier {number} is used with {expected or 'all'} threads while it already "
                f"waits for {barrier.expected or 'all'}", int(np.flatnonzero(mask)[0]))
        twice = barrier.arrived & mask
        if np.count_nonzero(twice):
            raise Fault(f"arrives again at barrier {number}, which it has not left",
                        int(np.flatnonzero(twice)[0]))
        barrier.arrived = barrier.arrived | mask
        if self.order is not None:
            barrier.row = self.order.release(np.flatnonzero(mask), barrier.row)
        if wait_at is not None:
            barrier.waiting.append((wait_at, mask, finish))
        return self.released(barrier)

    def arrived(self, barrier: Barrier) -> int:
        """Threads counted so far: 32 for each warp whose live lanes have all arrived."""
        missing = self.warp_bits(self.live & ~barrier.arrived)
        return 32 * int(np.count_nonzero((self.warp_bits(barrier.arrived) != 0) & (missing == 0)))

    def released(self, barrier: Barrier) -> Moves:
        """Complete the barrier when enough threads are there; the moves of those who waited."""
        if barrier.expected is None:
            if np.count_nonzero(self.live & barrier.members & ~barrier.arrived):
                return []
        else:
            count = self.arrived(barrier)
            if count > barrier.expected:
                raise Fault(f"{count} threads arrive at a barrier for {barrier.expected}")
            if count < barrier.expected:
                return []
        for key, other in list(self.barriers.items()):
            if other is barrier:
                del self.barriers[key]
        for _, mask, finish in barrier.waiting:
            if finish is not None:
                finish(barrier.arrived)
            if self.order is not None and barrier.row is not None:
                self.order.acquire(np.flatnonzero(mask), barrier.row)
        if (self.order is not None and barrier.row is not None and barrier.expected is None
                and self.lanes == self.cta_lanes):
            self.order.settle(barrier.row)
        return [(at + 1, mask) for at, mask, _ in barrier.waiting]

    def meet(self) -> None:
        """All threads of each CTA have passed one of its barriers, for the order of accesses."""
        assert self.order is not None
        if self.lanes == self.cta_lanes:
            self.order.full_barrier(np.flatnonzero(self.live))
            return
        for cta in range(self.lanes // self.cta_lanes):
            threads = np.flatnonzero(self.live & (self.cta == cta))
            if len(threads):
                self.order.barrier(threads)

    def deadlock(self, where: Sequence[Instr | None]) -> SimError:
        """Nothing can run, but threads have not exited: say who waits where."""
        lines, first = [], None
        for (number, _), barrier in sorted(self.barriers.items(), key=lambda item: item[0]):
            members = int(np.count_nonzero(self.live & barrier.members))
            needs = barrier.expected or f"all {members} live"
            for pc, mask, _ in barrier.waiting:
                first = first or where[pc]
                lines.append(
                    f"{self.describe(mask)} at barrier {number} ({place_of(where[pc])}), which "
                    f"needs {needs} threads and has {int(np.count_nonzero(barrier.arrived))}")
        for pc, mask in sorted(self.blocked.items()):
            instr = where[pc]
            first = first or instr
            reason = _REASONS.get(instr.op if instr else "",
                                  "for lanes of their member mask that never come")
            lines.append(f"{self.describe(mask)} {reason} ({place_of(instr)})")
        for parked in self.parked:
            first = first or where[parked.pc]
            lines.append(f"{self.describe(parked.mask)} for {parked.wanted} "
                         f"({place_of(where[parked.pc])}); {parked.event}")
        ctas = self.lanes // self.cta_lanes
        exited = int(self.threads * ctas - np.count_nonzero(self.live))
        if exited:
            lines.append(f"{exited} threads have exited")
        return positioned("deadlock: threads wait\n  " + "\n  ".join(lines), first)

    def describe(self, mask: Array) -> str:
        """Threads as text: whole warps by number, partial ones with their lanes.

        In a cluster the number has the rank of the CTA before it, as in 1:4.
        """
        whole, parts = [], []
        bits, alive = self.warp_bits(mask), self.warp_bits(self.live)
        for warp in np.flatnonzero(bits).tolist():
            cta, number = divmod(warp, self.cta_lanes // 32)
            name = f"{cta}:{number}" if self.lanes > self.cta_lanes else str(number)
            if bits[warp] == alive[warp]:
                whole.append(name)
            else:
                parts.append(f"warp {name} lanes {int(bits[warp]):#010x}")
        if whole:
            parts.insert(0, f"warp{'s' if len(whole) > 1 else ''} {', '.join(whole)}")
        return "; ".join(parts)


def place_of(instr: Instr | None) -> str:
    """A short position for messages that name several."""
    if instr is None:
        return "end of the kernel"
    source = f"{instr.loc.file}:{instr.loc.line}, " if instr.loc else ""
    text = " ".join(instr.text.split())
    short = text if len(text) < 100 else f"{text[:60]} ... {text[-30:]}"
    return f"{source}PTX line {instr.line}: {short}"


def positioned(message: str, instr: Instr | None) -> SimError:
    """A SimError at the instruction."""
    if instr is None:
        return SimError(message)
    loc = None
    if instr.loc is not None:
        loc = Location(instr.loc.file, instr.loc.line, max(instr.loc.column - 1, 0))
    text = " ".join(instr.text.split())
    return SimError(message, ptx_line=instr.line, ptx_column=instr.column, ptx_text=text, loc=loc)
