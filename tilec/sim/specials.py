"""The special registers: threads, warps, CTAs, clusters and the grid."""

from __future__ import annotations

import math

import numpy as np

from tilec.sim.machine import Array, Machine
from tilec.sim.ptx import Kernel

Specials = dict[str, Array]
Extents = tuple[int, int, int]


def special_registers(machine: Machine, kernel: Kernel) -> Specials:
    """Arrays of the special registers; those of the grid and the thread are filled later."""
    lane = machine.lane
    bit = np.uint32(1) << lane
    below = bit - np.uint32(1)
    names = {
        "%laneid": lane,
        "%warpid": (machine.warp % (machine.cta_lanes // 32)).astype(np.uint32),
        "%lanemask_eq": bit, "%lanemask_lt": below, "%lanemask_le": below | bit,
        "%lanemask_gt": ~(below | bit), "%lanemask_ge": ~below,
    }
    fixed = {"%nwarpid": -(-machine.threads // 32), "%warpsize": 32, "WARP_SZ": 32, "%nsmid": 1,
             "%cluster_nctarank": math.prod(kernel.cluster)}
    for base in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid",
                 "cluster_nctaid"):
        fixed |= {f"%{base}.{axis}": 0 for axis in "xyz"}
    for name in ("smid", "gridid", "cluster_ctarank", "clock", "clock_hi", "clock64",
                 "globaltimer", "total_smem_size", "dynamic_smem_size"):
        fixed["%" + name] = 0
    for name, value in fixed.items():
        wide = name in ("%clock64", "%globaltimer")
        names[name] = np.full(machine.lanes, value, np.uint64 if wide else np.uint32)
    return names


def set_threads(specials: Specials, machine: Machine, shape: Extents) -> None:
    """The place of each thread in its CTA of `shape` threads."""
    lanes = np.arange(machine.lanes, dtype=np.uint32) % np.uint32(machine.cta_lanes)
    for axis, size in zip("xyz", shape, strict=True):
        specials[f"%tid.{axis}"][:] = lanes % np.uint32(size)
        specials[f"%ntid.{axis}"][:] = size
        lanes = lanes // np.uint32(size)


def set_grid(specials: Specials, machine: Machine, grid: Extents, cluster: Extents) -> None:
    """The extents of the grid, and the place of each CTA in its cluster of `cluster` CTAs."""
    rank = machine.cta.astype(np.uint32)
    specials["%cluster_ctarank"][:] = rank
    for axis, count, ctas in zip("xyz", grid, cluster, strict=True):
        specials[f"%nctaid.{axis}"][:] = count
        specials[f"%nclusterid.{axis}"][:] = count // ctas
        specials[f"%cluster_nctaid.{axis}"][:] = ctas
        specials[f"%cluster_ctaid.{axis}"][:] = rank % np.uint32(ctas)
        rank = rank // np.uint32(ctas)


def set_cluster(specials: Specials, number: Extents, cluster: Extents) -> None:
    """The CTAs are those of cluster `number`."""
    for axis, value, size in zip("xyz", number, cluster, strict=True):
        specials[f"%clusterid.{axis}"][:] = value
        specials[f"%ctaid.{axis}"][:] = value * size + specials[f"%cluster_ctaid.{axis}"]
