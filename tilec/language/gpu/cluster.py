"""Clusters: `num_ctas` programs that run at the same time and reach each other's shared memory.

Source: PTX ISA, "Cluster of Cooperative Thread Arrays".
"""

from __future__ import annotations

from typing import Any, NoReturn

from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.types import Tensor
from tilec.language import dtypes as dt
from tilec.language.block_pointers import constant_of, scalars
from tilec.language.context import current, error
from tilec.language.gpu.support import buffer_view, need
from tilec.language.semantic import emit
from tilec.language.values import builtin, const_value, tensor


@builtin
def cluster_size() -> int:
    """How many programs a cluster has, the launch option num_ctas; known at compile time."""
    return _size()


@builtin
def cluster_rank() -> tensor:
    """The program's place in its cluster: an int32 scalar from 0 to tlg.cluster_size() - 1. It is
    the program's index along axis 0 modulo the size."""
    need("barrier.cluster", "tlg.cluster_rank")
    return emit(ops.ClusterRank())


@builtin
def cluster_barrier() -> None:
    """All threads of all programs of the cluster wait for each other. Accesses to shared memory
    before it are over after it: what was stored may be read by others."""
    need("barrier.cluster", "tlg.cluster_barrier")
    if current().one_thread:
        raise error("tlg.cluster_barrier: all threads of the cluster must come to it",
                    "move it out of the `if tlg.elect()`")
    if current().in_role:
        raise error("tlg.cluster_barrier: stands in a role, and all threads of the cluster must "
                    "come to it", "put it before or after the tlg.warp_specialize")
    current().builder.insert(ops.ClusterBarrier())


class remote_buffer(buffer_view):
    """The buffer of another program of the cluster that lies where `buffer` does here."""

    def __init__(self, handle: Value, rank: Value) -> None:
        super().__init__(handle)
        self.rank = rank

    @builtin
    def load(self) -> tensor:
        """The content, as a tile in registers. A tlg.cluster_barrier must stand between what filled
        the buffer and this, and one between this and what fills it again, or the end."""
        t = Tensor(self.shape, self.memdesc.element)
        return emit(ops.RemoteLoad(self.handle, self.rank, types=[t]))

    @builtin
    def store(self, value: Any) -> NoReturn:
        """CompilationError: a program stores into its own buffers."""
        raise error(f"cannot store into a {self}: there are no stores to other programs",
                    "store into the program's own buffer, and let the others load it, by "
                    "buffer.at(rank).load() after a tlg.cluster_barrier")

    def __str__(self) -> str:
        return f"remote {self.dtype.name}{list(self.shape)} buffer"

    __repr__ = __str__


def _size() -> int:
    return int(current().options.get("num_ctas", 1))


def rank_of(x: Any, what: str) -> Value:
    """A rank, an int32 below the cluster's size."""
    need("barrier.cluster", what)
    (rank,) = scalars((x,), dt.int32, f"the rank of {what}", 1)
    known, size = constant_of(rank), _size()
    if known is not None and not 0 <= known < size:
        raise error(f"{what}: the rank is {known}, the cluster has {size} programs",
                    "launch with num_ctas=2 or more" if size == 1 else "ranks count from 0")
    return rank.handle


def mask_of_ranks(x: Any, what: str) -> Value:
    """A mask of ranks, an int32, rank r's bit being 1 << r."""
    (mask,) = scalars((x,), dt.int32, f"the mask of {what}", 1)
    known, size = constant_of(mask), _size()
    if known is not None and not 0 < known < 1 << size:
        raise error(f"{what}: multicast is {known:#b}, the cluster has {size} programs",
                    "bit r stands for the program of rank r: (1 << tlg.cluster_size()) - 1 for all")
    return mask.handle


def eviction_of(x: Any, what: str) -> str:
    """An eviction policy's name; empty for the default."""
    found = const_value(x, "eviction_policy") or ""
    if found not in ops.EVICTION:
        known = ", ".join(repr(c) for c in ops.EVICTION if c)
        raise error(f"{what}: eviction_policy is {found!r}, expected one of {known}",
                    "leave it out for the default")
    return str(found)
