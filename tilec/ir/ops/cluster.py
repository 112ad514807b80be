"""Ops of the `gpu` and `lowered` levels for clusters: programs that run at the same time on
neighbouring multiprocessors, and reach each other's shared memory.

A cluster has `num_ctas` programs (of the module's attribute), consecutive along axis 0 of the grid.
A program's place in it is its rank. Source: PTX ISA, "Cluster of Cooperative Thread Arrays".
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir.core import Op, Value, attr, operand, operands
from tilec.ir.ops.base import ExplicitType
from tilec.ir.ops.gpu import Barrier, single_buffer
from tilec.ir.ops.hopper import (
    SYNC,
    AsyncAccess,
    OneThread,
    TmaOp,
    Warpgroups,
    check_mbarrier,
)
from tilec.ir.ops.memory import EVICTION
from tilec.ir.ops.roles import WarpRole
from tilec.ir.types import Tensor, Type, i32


class ClusterRank(Op, name="gpu.cluster_rank"):
    """The program's place in its cluster, an i32 from 0 to num_ctas - 1."""

    def infer(self) -> Sequence[Type]:
        return (i32,)


class ClusterBarrier(Barrier, name="gpu.cluster_barrier", effects={"barrier"}):
    """All threads of all programs of the cluster wait for each other; accesses before it to shared
    memory, of any program of the cluster, are over after it (barrier.cluster)."""

    def check(self) -> None:
        if any(isinstance(a, WarpRole) for a in self.ancestors()):
            raise self.fail("stands in a role, and is for all threads of the program")


class RemoteLoad(ExplicitType, name="gpu.remote_load", effects=SYNC):
    """Read a whole buffer of the program of this rank (i32) into a tile: the one that lies where
    `buffer` does here. A `gpu.cluster_barrier` must stand between what filled it and this, and one
    between this and what fills it again, or the program's end."""

    buffer: Value = operand()
    rank: Value = operand()

    def infer(self) -> Sequence[Type]:
        src, dst = single_buffer(self, self.buffer), self.given()
        if not isinstance(dst, Tensor) or (src.shape, src.element) != (dst.shape, dst.element):
            raise self.fail(f"cannot load {dst} from {src}")
        if self.rank.type != i32:
            raise self.fail(f"rank is {self.rank.type}, expected i32")
        return (dst,)


class RemoteArrive(Warpgroups, AsyncAccess, name="gpu.remote_arrive", effects=SYNC):
    """As `gpu.mbarrier_arrive`, at the mbarrier that lies where this one does here in the program
    of this rank (i32). There it vouches for reads of this program's own buffers alone."""

    barrier: Value = operand()
    rank: Value = operand()

    def infer(self) -> Sequence[Type]:
        check_mbarrier(self, self.barrier)
        if self.rank.type != i32:
            raise self.fail(f"rank is {self.rank.type}, expected i32")
        return ()


class TmaMulticast(OneThread, TmaOp, name="gpu.tma_multicast", effects={"read", "write_shared"}):
    """Begin to copy a tile into the buffers of all programs of the cluster whose rank's bit is set
    in `mask` (i32): in each, the buffer and the mbarrier that lie where these lie here. Each
    mbarrier must expect the bytes. Else it is `gpu.tma_load`."""

    buffer: Value = operand()
    barrier: Value = operand()
    mask: Value = operand()
    coordinates: tuple[Value, ...] = operands()
    eviction: str = attr(str, "", choices=EVICTION)

    def infer(self) -> Sequence[Type]:
        self.check_copy(self.buffer, self.coordinates)
        check_mbarrier(self, self.barrier)
        if self.mask.type != i32:
            raise self.fail(f"mask is {self.mask.type}, expected i32")
        return ()
