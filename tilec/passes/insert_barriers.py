"""Put barriers where one op's shared accesses must see, or not disturb, another's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tilec.ir import ops
from tilec.ir.conversion import Shared
from tilec.ir.core import Block, Module, Op
from tilec.ir.ops.base import ScratchOp
from tilec.ir.scratch import move_plan, scratch_bytes
from tilec.ir.types import Tensor
from tilec.passes.allocate_shared import buffer_bytes
from tilec.passes.base import Pass

Range = tuple[int, int]


@dataclass
class _Pending:
    """Byte ranges accessed since the last barrier."""

    reads: set[Range] = field(default_factory=set)
    writes: set[Range] = field(default_factory=set)

    def clear(self) -> None:
        self.reads.clear()
        self.writes.clear()

    def copy(self) -> _Pending:
        return _Pending(set(self.reads), set(self.writes))

    def merge(self, other: _Pending) -> None:
        self.reads |= other.reads
        self.writes |= other.writes


@dataclass(frozen=True)
class InsertBarriers(Pass):
    """A barrier before an op that writes what was read or written, or reads what was written,
    since the last one; loops count their own previous iteration.

    shared_store(%b, %x) ; shared_load(%b) --> shared_store ; barrier ; shared_load
    """

    name: ClassVar[str] = "insert_barriers"

    def run(self, module: Module) -> None:
        for func in module.funcs:
            _block(func.body, _Pending())


def _block(block: Block, pending: _Pending) -> None:
    for op in block:
        if op.regions and not isinstance(op, ScratchOp):
            _regions(op, pending)
        elif isinstance(op, ops.Barrier):
            pending.clear()
        else:
            _access(op, pending)


def _regions(op: Op, pending: _Pending) -> None:
    if isinstance(op, ops.If):
        arms = [pending.copy() for _ in op.regions]
        for block, arm in zip(op.regions, arms, strict=True):
            _block(block, arm)
        pending.clear()
        for arm in arms:
            pending.merge(arm)
        return
    # A loop: what an iteration leaves pending meets the next one, so go round until nothing grows.
    entry = pending.copy()
    while True:
        pending.reads, pending.writes = set(entry.reads), set(entry.writes)
        for block in op.regions:
            _block(block, pending)
        if pending.reads <= entry.reads and pending.writes <= entry.writes:
            break
        entry.merge(pending)
    pending.merge(entry)


def _access(op: Op, pending: _Pending) -> None:
    reads, writes = _ranges(op)
    if _overlap(writes, pending.reads | pending.writes) or _overlap(reads, pending.writes):
        assert op.parent is not None
        op.parent.insert(ops.Barrier(loc=op.loc), op)
        pending.clear()
    if isinstance(op, ScratchOp) and writes:
        if has_internal_barrier(op):
            pending.clear()
        else:
            pending.writes |= writes
        pending.reads |= writes
        return
    pending.reads |= reads
    pending.writes |= writes


def has_internal_barrier(op: Op) -> bool:
    """Whether all threads of the CTA wait between the op's writing of scratch and its reading."""
    if isinstance(op, (ops.ConvertLayout, ops.Reshape)):
        src, dst = op.x.type, op.result.type
        assert isinstance(src, Tensor) and isinstance(dst, Tensor)
        plan = move_plan(src, dst).plan
        return not (isinstance(plan, Shared) and plan.warp_local)
    return True


def _ranges(op: Op) -> tuple[set[Range], set[Range]]:
    """(read, written) byte ranges; a scratch op writes its scratch, then reads it."""
    if isinstance(op, ScratchOp) and op.offset >= 0:
        return set(), {(op.offset, op.offset + scratch_bytes(op))}
    if isinstance(op, (ops.SharedLoad, ops.SharedStore)):
        alloc = op.buffer.op
        assert isinstance(alloc, ops.AllocShared), "a buffer does not come from alloc_shared"
        where = {(alloc.offset, alloc.offset + buffer_bytes(op.buffer))}
        return (where, set()) if isinstance(op, ops.SharedLoad) else (set(), where)
    return set(), set()


def _overlap(a: set[Range], b: set[Range]) -> bool:
    return any(x[0] < y[1] and y[0] < x[1] for x in a for y in b)
