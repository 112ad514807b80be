"""Which accesses to shared memory may meet: buffers by stage, scratch, copies under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tilec.ir import ops
from tilec.ir.buffers import buffer_bytes, is_asynchronous
from tilec.ir.core import Op, Value
from tilec.ir.ops.base import ScratchOp
from tilec.ir.ops.gpu import allocation
from tilec.ir.scratch import meets_inside, scratch_bytes
from tilec.ir.types import MemDesc

# Groups of copies that are told apart; an older one counts as done at the next wait.
MAX_GROUPS = 32


@dataclass(frozen=True)
class Place:
    """Bytes [low, high), or one of the equal stages that they are cut into.

    stage: None is any; with `moving` it is (iteration of the innermost loop + stage) mod stages.
    """

    low: int
    high: int
    stages: int = 1
    stage: int | None = 0
    moving: bool = False

    def meets(self, other: Place) -> bool:
        """Whether the two may have a byte in common."""
        if self.high <= other.low or other.high <= self.low:
            return False
        same = (self.low, self.high, self.stages) == (other.low, other.high, other.stages)
        if not same or self.stage is None or other.stage is None or self.moving != other.moving:
            return True
        return (self.stage - other.stage) % self.stages == 0

    def entering(self) -> Place:
        """Seen from the first iteration of a loop."""
        return self.leaving() if self.moving or self.stage is None else replace(self, moving=True)

    def leaving(self) -> Place:
        """Seen from after the loop: nobody knows how often it went round."""
        return replace(self, stage=None, moving=False) if self.moving else self

    def one_later(self) -> Place:
        """Seen from the loop's next iteration."""
        if not self.moving or self.stage is None:
            return self
        return replace(self, stage=(self.stage - 1) % self.stages)


def place_of(op: Op, buffer: Value) -> Place:
    """The bytes that `op` accesses: a buffer, or the stage that it is a view of."""
    alloc, view = allocation(buffer), buffer.op
    while isinstance(view, ops.MemdescTrans):
        view = view.buffer.op
    place = Place(alloc.offset, alloc.offset + buffer_bytes(alloc.result))
    if not isinstance(view, ops.MemdescIndex):
        return place
    t = alloc.result.type
    assert isinstance(t, MemDesc)
    stages = t.stages
    loop = ops.innermost_loop(view)
    if view.ahead >= 0 and loop is not None and loop is ops.innermost_loop(op):
        return replace(place, stages=stages, stage=view.ahead % stages, moving=True)
    if isinstance(view.index.op, ops.Constant):
        return replace(place, stages=stages, stage=int(view.index.op.value) % stages)
    return replace(place, stages=stages, stage=None)


@dataclass
class SharedState:
    """Accesses since the last barrier, and asynchronous copies and reads by wgmma under way, each
    with the number of commits since it began."""

    reads: set[Place] = field(default_factory=set)
    writes: set[Place] = field(default_factory=set)
    copies: set[tuple[Place, int]] = field(default_factory=set)
    products: set[tuple[Place, int]] = field(default_factory=set)

    def barrier(self) -> None:
        """All threads meet; what is under way stays so."""
        self.reads.clear()
        self.writes.clear()

    def copy(self) -> SharedState:
        return SharedState(set(self.reads), set(self.writes), set(self.copies),
                           set(self.products))

    def merge(self, other: SharedState) -> None:
        self.reads |= other.reads
        self.writes |= other.writes
        self.copies |= other.copies
        self.products |= other.products

    def within(self, other: SharedState) -> bool:
        """Whether the other holds all of this."""
        return self.reads <= other.reads and self.writes <= other.writes and \
            self.copies <= other.copies and self.products <= other.products

    def seen(self, move: Callable[[Place], Place]) -> SharedState:
        """As another point of the program sees it: after Place.entering, leaving or one_later."""
        return SharedState(set(map(move, self.reads)), set(map(move, self.writes)),
                           {(move(p), n) for p, n in self.copies},
                           {(move(p), n) for p, n in self.products})

    def conflicts(self, op: Op) -> bool:
        """Whether the op must not follow these accesses without a barrier."""
        only_reads = isinstance(op, (ops.SharedLoad, ops.Wgmma))
        others = self.writes if only_reads else self.reads | self.writes
        return any(place.meets(other) for place in _accessed(op) for other in others)

    def add(self, op: Op) -> bool:
        """Note what the op does; whether all threads of the CTA meet inside of it."""
        places = set(_accessed(op))
        if isinstance(op, ops.AsyncCommit):
            self.copies = _committed(self.copies)
        elif isinstance(op, ops.AsyncWait):
            self.copies, done = _ended(self.copies, op.pending)
            self.writes |= done
        elif isinstance(op, ops.Wgmma):
            self.products = _committed(self.products | {(p, 0) for p in places})
        elif isinstance(op, ops.WgmmaWait):
            self.products, done = _ended(self.products, op.pending)
            self.reads |= done
        elif isinstance(op, ops.AsyncCopy):
            self.copies |= {(p, 0) for p in places}
        elif isinstance(op, ScratchOp) and places:
            # It writes its scratch, then reads it.
            meets = meets_inside(op)
            if meets:
                self.barrier()
            else:
                self.writes |= places
            self.reads |= places
            return meets
        elif isinstance(op, ops.SharedLoad):
            self.reads |= places
        else:
            self.writes |= places
        return False


def _committed(groups: set[tuple[Place, int]]) -> set[tuple[Place, int]]:
    return {(p, min(n + 1, MAX_GROUPS)) for p, n in groups}


def _ended(groups: set[tuple[Place, int]], pending: int
           ) -> tuple[set[tuple[Place, int]], set[Place]]:
    """What is still under way after a wait for all but the newest groups, and what is not."""
    done = {(p, n) for p, n in groups if n > min(pending, MAX_GROUPS - 1)}
    return groups - done, {p for p, _ in done}


def _accessed(op: Op) -> list[Place]:
    """The buffers or scratch that an op reads or writes; but for buffers that TMA uses, whose
    barriers are written out."""
    if isinstance(op, ScratchOp) and op.offset >= 0 and (size := scratch_bytes(op)):
        return [Place(op.offset, op.offset + size)]
    buffers: list[Value] = []
    if isinstance(op, (ops.SharedLoad, ops.SharedStore, ops.AsyncCopy)):
        buffers = [op.buffer]
    elif isinstance(op, ops.Wgmma):
        buffers = [v for v in (op.a, op.b) if isinstance(v.type, MemDesc)]
    return [place_of(op, v) for v in buffers if not is_asynchronous(allocation(v).result)]
