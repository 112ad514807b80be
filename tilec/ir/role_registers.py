"""How the registers of a launch are shared between warps that compute and warps that load."""

from __future__ import annotations

from tilec.ir.ops.roles import launch_registers

LOADER_WARPS, LOADER_REGISTERS = 4, 24  # setmaxnreg is for whole warpgroups, and from 24 on


def role_registers(warps: int, limit: int = 0) -> int:
    """The most registers for each thread of a role of so many warps beside one that loads: where
    the launch has no limit of its own, that is a warpgroup, which leaves to the others what it can.
    Source: PTX ISA, "setmaxnreg"."""
    if limit:
        return min(limit, launch_registers(32 * (warps + 1)))
    all_warps = warps + LOADER_WARPS
    whole = all_warps * launch_registers(32 * all_warps)
    return min((whole - LOADER_WARPS * LOADER_REGISTERS) // warps, 256) // 8 * 8
