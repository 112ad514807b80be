"""Put barriers where one op's accesses to memory must see, or not disturb, another's."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir import ops
from tilec.ir.core import Block, Func, Module, Op
from tilec.ir.ops.base import ScratchOp
from tilec.ir.ops.memory import MemoryOp
from tilec.passes.base import Pass
from tilec.passes.global_accesses import Access, GlobalAccesses, forget
from tilec.passes.shared_accesses import Place, SharedState


@dataclass
class _Pending:
    """What was accessed since the last barrier: shared memory, and global memory."""

    shared: SharedState = field(default_factory=SharedState)
    outside: set[Access] = field(default_factory=set)

    def clear(self) -> None:
        self.shared.barrier()
        self.outside.clear()

    def copy(self) -> _Pending:
        return _Pending(self.shared.copy(), set(self.outside))

    def merge(self, other: _Pending) -> None:
        self.shared.merge(other.shared)
        self.outside |= other.outside

    def within(self, other: _Pending) -> bool:
        """Whether the other holds all of this."""
        return self.shared.within(other.shared) and self.outside <= other.outside


class InsertBarriers(Pass):
    """A barrier before an op that writes what was read or written, or reads what was written,
    since the last one; loops count their own previous iteration. What no other thread can have
    touched, needs none.

    shared_store(%b, %x) ; shared_load(%b) --> shared_store ; barrier ; shared_load
    async_wait ; shared_load(%b) of a copied buffer --> async_wait ; barrier ; shared_load
    wgmma(%a, %b) ; wgmma_wait ; async_copy(%b) --> wgmma ; wgmma_wait ; barrier ; async_copy
    store(%p, %x) ; load(%q), both made from one parameter --> store ; barrier ; load

    Barriers in a warp role are the role's own; so is a wait at a named barrier, since all of the
    role waits. Nothing is put between two roles: mbarriers and named barriers alone order those.
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            _Inserter(func).block(func.body, _Pending())


class _Inserter:
    """Walks one function and inserts."""

    def __init__(self, func: Func) -> None:
        self.accesses = GlobalAccesses(func)
        self.inserted: list[Op] = []

    def block(self, block: Block, pending: _Pending) -> None:
        """Insert in a block, entered with `pending`, and leave there what it ends with."""
        for op in block:
            if op.regions and not isinstance(op, ScratchOp):
                self._regions(op, pending)
            elif isinstance(op, (ops.Barrier, ops.NamedBarrierSync)):
                pending.clear()
            else:
                self._access(op, pending)

    def _regions(self, op: Op, pending: _Pending) -> None:
        if isinstance(op, ops.WarpSpecialize):
            self._roles(op, pending)
            return
        if isinstance(op, ops.If):
            arms = [pending.copy() for _ in op.regions]
            for block, arm in zip(op.regions, arms, strict=True):
                self.block(block, arm)
            pending.shared, pending.outside = SharedState(), set()
            for arm in arms:
                pending.merge(arm)
            return
        # A loop: what an iteration leaves pending meets the next one, so go round until nothing
        # grows. Each round places barriers anew: an early one can make later ones needless.
        entry = pending.copy()
        entry.shared = entry.shared.seen(Place.entering)
        before = len(self.inserted)
        while True:
            now = entry.copy()
            for block in op.regions:
                self.block(block, now)
            now.shared = now.shared.seen(Place.one_later)
            now.outside = forget(now.outside, op)
            if now.within(entry):
                break
            entry.merge(now)
            for barrier in self.inserted[before:]:
                barrier.erase()
            del self.inserted[before:]
        entry.shared = entry.shared.seen(Place.leaving)
        pending.merge(entry)

    def _roles(self, op: ops.WarpSpecialize, pending: _Pending) -> None:
        """What came before the roles, all warps know; at their end all warps meet."""
        if pending.shared.reads or pending.shared.writes or pending.outside:
            self._barrier_before(op, pending)
        for role in op.roles:
            self.block(role.body, pending.copy())
        pending.clear()

    def _barrier_before(self, op: Op, pending: _Pending) -> None:
        assert op.parent is not None
        self.inserted.append(op.parent.insert(ops.Barrier(loc=op.loc), op))
        pending.clear()

    def _access(self, op: Op, pending: _Pending) -> None:
        outside = self.accesses.of(op) if isinstance(op, MemoryOp) else None
        # All threads meet before a release and after an acquire.
        if isinstance(op, ops.Atomic) and op.releases:
            pending.outside.clear()
        if pending.shared.conflicts(op) or \
                outside is not None and any(map(outside.conflicts, pending.outside)):
            self._barrier_before(op, pending)
        if outside is not None:
            pending.outside.add(outside)
        if isinstance(op, ops.Atomic) and op.acquires:
            pending.outside.clear()
        if pending.shared.add(op):
            pending.outside.clear()
