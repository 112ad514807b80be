"""Lowering of clusters: ranks, barriers, reads of other programs' shared memory.

Source: PTX ISA, "mapa", "barrier.cluster", and the state space .shared::cluster.
"""

from __future__ import annotations

from tilec.codegen.context import CodeGen, lower
from tilec.codegen.emit import CLUSTER, Reg
from tilec.codegen.shared import load_buffer
from tilec.ir import ops


@lower(ops.ClusterRank)
def _rank(cg: CodeGen, op: ops.ClusterRank) -> None:
    cg.env[op.result] = cg.special("cluster.ctarank")


@lower(ops.ClusterBarrier)
def _barrier(cg: CodeGen, op: ops.ClusterBarrier) -> None:
    cg.e.asm("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;", "",
             (), (), convergent=True)


@lower(ops.RemoteLoad)
def _load(cg: CodeGen, op: ops.RemoteLoad) -> None:
    base = cg.scalar(op.buffer)
    there = cg.e.call("llvm.nvvm.mapa.shared.cluster", CLUSTER, 0, (base, cg.scalar(op.rank)))
    load_buffer(cg, op, there)


def remote(cg: CodeGen, address: Reg, rank: Reg) -> Reg:
    """The address of the same byte of shared memory in the program of this rank."""
    return cg.e.asm("mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", (address, rank), ("i32",),
                    effects=False)[0]
