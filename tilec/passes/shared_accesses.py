"""Which accesses to shared memory may meet: buffers by stage, scratch, copies under way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tilec.ir import ops
from tilec.ir.buffers import buffer_bytes
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
        return replace(self, stage=None, moving=False) if self.moving else \
            self if self.stage is None else replace(self, moving=True)

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
    loop = _loop(view)
    if view.ahead >= 0 and loop is not None and loop is _loop(op):
        return replace(place, stages=stages, stage=view.ahead % stages, moving=True)
    if isinstance(view.index.op, ops.Constant):
        return replace(place, stages=stages, stage=int(view.index.op.value) % stages)
    return replace(place, stages=stages, stage=None)


def _loop(op: Op) -> Op | None:
    """The innermost loop around an op."""
    return next((a for a in op.ancestors() if isinstance(a, (ops.For, ops.While))), None)


@dataclass
class SharedState:
    """Accesses since the last barrier, and asynchronous copies under way, each with the number of
    commits since it began."""

    reads: set[Place] = field(default_factory=set)
    writes: set[Place] = field(default_factory=set)
    copies: set[tuple[Place, int]] = field(default_factory=set)

    def barrier(self) -> None:
        """All threads meet; copies stay under way."""
        self.reads.clear()
        self.writes.clear()

    def copy(self) -> SharedState:
        return SharedState(set(self.reads), set(self.writes), set(self.copies))

    def merge(self, other: SharedState) -> None:
        self.reads |= other.reads
        self.writes |= other.writes
        self.copies |= other.copies

    def within(self, other: SharedState) -> bool:
        """Whether the other holds all of this."""
        return self.reads <= other.reads and self.writes <= other.writes and \
            self.copies <= other.copies

    def entering(self) -> SharedState:
        """As the first iteration of a loop sees it."""
        return SharedState({p.entering() for p in self.reads}, {p.entering() for p in self.writes},
                           {(p.entering(), n) for p, n in self.copies})

    def leaving(self) -> SharedState:
        """As what follows the loop sees it."""
        return SharedState({p.leaving() for p in self.reads}, {p.leaving() for p in self.writes},
                           {(p.leaving(), n) for p, n in self.copies})

    def one_later(self) -> SharedState:
        """As the next iteration sees it."""
        return SharedState({p.one_later() for p in self.reads},
                           {p.one_later() for p in self.writes},
                           {(p.one_later(), n) for p, n in self.copies})

    def conflicts(self, op: Op) -> bool:
        """Whether the op must not follow these accesses without a barrier."""
        if isinstance(op, ops.SharedLoad):
            return _meet([place_of(op, op.buffer)], self.writes)
        if isinstance(op, (ops.SharedStore, ops.AsyncCopy)):
            return _meet([place_of(op, op.buffer)], self.reads | self.writes)
        scratch = _scratch(op)
        return scratch is not None and _meet([scratch], self.reads | self.writes)

    def add(self, op: Op) -> bool:
        """Note what the op does; whether all threads of the CTA meet inside of it."""
        if isinstance(op, ops.SharedLoad):
            self.reads.add(place_of(op, op.buffer))
        elif isinstance(op, ops.SharedStore):
            self.writes.add(place_of(op, op.buffer))
        elif isinstance(op, ops.AsyncCopy):
            self.copies.add((place_of(op, op.buffer), 0))
        elif isinstance(op, ops.AsyncCommit):
            self.copies = {(p, min(n + 1, MAX_GROUPS)) for p, n in self.copies}
        elif isinstance(op, ops.AsyncWait):
            done = {(p, n) for p, n in self.copies if n > min(op.pending, MAX_GROUPS - 1)}
            self.copies -= done
            self.writes |= {p for p, _ in done}
        scratch = _scratch(op)
        if scratch is None:
            return False
        # It writes its scratch, then reads it.
        meets = meets_inside(op)
        if meets:
            self.barrier()
        else:
            self.writes.add(scratch)
        self.reads.add(scratch)
        return meets


def _scratch(op: Op) -> Place | None:
    if not isinstance(op, ScratchOp) or op.offset < 0:
        return None
    size = scratch_bytes(op)
    return Place(op.offset, op.offset + size) if size else None


def _meet(places: Iterable[Place], others: Iterable[Place]) -> bool:
    return any(p.meets(q) for p in places for q in others)
