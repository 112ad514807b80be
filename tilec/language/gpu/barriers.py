"""Who waits for whom: barriers of the program and of warpgroups, mbarriers, fences."""

from __future__ import annotations

from typing import Any

from tilec.ir import ops
from tilec.ir.buffers import mbarrier_type
from tilec.ir.core import Value
from tilec.ir.types import MemDesc
from tilec.language.context import current, error
from tilec.language.gpu.cluster import rank_of
from tilec.language.gpu.shared import element_at
from tilec.language.gpu.support import by_one_thread, need, need_warpgroups, parity
from tilec.language.values import Indexed, builtin, const_int, const_value, to_tensor


@builtin
def barrier() -> None:
    """All threads of the program, or in a role of the role, wait for each other (bar.sync)."""
    current().builder.insert(ops.Barrier())


@builtin
def warpgroup_barrier() -> None:
    """The threads of each warpgroup wait for each other, not for other warpgroups. Fewer than four
    warps are one warpgroup."""
    need_warpgroups("tlg.warpgroup_barrier")
    current().builder.insert(ops.WarpgroupBarrier())


@builtin
def fence_async() -> None:
    """What threads stored into buffers before may be read by TMA and wgmma after the next barrier
    (fence.proxy.async)."""
    need("fence.proxy.async", "tlg.fence_async")
    current().builder.insert(ops.FenceAsync())


class barrier_array(Indexed):
    """An mbarrier, or an array of them, whose elements are `barriers[i]`.

    An mbarrier counts arrivals and bytes. When those that its phase waits for are there, the phase
    ends and the next one begins; phases 0, 1, 2, ... are told apart by their parity.
    """

    def __init__(self, handle: Value) -> None:
        self.handle = handle

    @property
    def stages(self) -> int:
        """How many there are in the array; 1 for a single one."""
        t = self.handle.type
        assert isinstance(t, MemDesc)
        return t.stages

    @builtin
    def __getitem__(self, index: Any) -> barrier_array:
        """mbarrier `index`, an int32, of an array."""
        return barrier_array(element_at(self.handle, index, str(self)))

    @builtin
    def expect(self, nbytes: Any, pred: Any = None) -> None:
        """One thread arrives, if `pred` holds, and has the phase wait for `nbytes` of copies."""
        count = const_int(nbytes, "the bytes that an mbarrier expects")
        by_one_thread(ops.MbarrierExpect(self.one("expect"), bytes=count), pred, "expect")

    @builtin
    def arrive(self, rank: Any = None) -> None:
        """Each warpgroup arrives once; fewer than four warps are one. It vouches for products that
        a wait covers; for what its other threads did, a tlg.warpgroup_barrier must stand before.

        rank: an int32: at the mbarrier that lies there in the program of this rank of the cluster,
        to which it vouches for what was read of this program's own buffers, not for stores.
        """
        need_warpgroups("arrive")
        if current().one_thread:
            raise error("arrive: whole warpgroups arrive, not one thread",
                        "one thread arrives by `expect`; move this out of the `if tlg.elect()`")
        here = self.one("arrive")
        current().builder.insert(ops.MbarrierArrive(here) if rank is None else
                                 ops.RemoteArrive(here, rank_of(rank, "arrive")))

    @builtin
    def wait(self, phase: Any) -> None:
        """Wait until the phase of this parity, an integer scalar, has ended. On a new mbarrier a
        wait for parity 1 ends at once."""
        at = parity(to_tensor(phase), "wait")
        current().builder.insert(ops.MbarrierWait(self.one("wait"), at.handle))

    def one(self, what: str) -> Value:
        """The handle; CompilationError for an array."""
        t = self.handle.type
        assert isinstance(t, MemDesc)
        if t.staged:
            raise error(f"{what}: found an {self}, expected one mbarrier", "index it: barriers[i]")
        return self.handle

    def __str__(self) -> str:
        t = self.handle.type
        assert isinstance(t, MemDesc)
        return f"mbarrier array of {t.stages}" if t.staged else "mbarrier"

    __repr__ = __str__


@builtin
def mbarrier(count: Any = 1, stages: Any = None) -> barrier_array:
    """An mbarrier, or an array of `stages` of them, whose phases end after `count` arrivals and the
    bytes expected with them. One thread sets it up; others may use it after the next tlg.barrier.
    """
    need("mbarrier", "tlg.mbarrier")
    number = const_int(count, "the count of tlg.mbarrier")
    slots = 0 if const_value(stages, "stages") is None else const_int(stages, "stages")
    if stages is not None and slots < 1:
        raise error(f"tlg.mbarrier: stages is {slots}, expected 1 or more",
                    "leave it out for a single one")
    if current().one_thread:
        raise error("tlg.mbarrier: one thread alone cannot allocate", "make it before the `if`")
    alloc = ops.AllocShared(types=[mbarrier_type(slots)])
    made = barrier_array(current().builder.emit(alloc))
    by_one_thread(ops.MbarrierInit(made.handle, count=number), None, "tlg.mbarrier")
    return made
