"""How many warps run an op: those of the program, or of the warp role around it."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Func, Op
from tilec.ir.types import Tensor

MAX_WARPS = 32  # of a CTA


def role_of(op: Op) -> ops.WarpRole | None:
    """The warp role that an op stands in, if it stands in one."""
    return next((a for a in op.ancestors() if isinstance(a, ops.WarpRole)), None)


def warps_of(op: Op, num_warps: int) -> int:
    """How many warps run an op of a kernel of `num_warps`."""
    role = role_of(op)
    return num_warps if role is None else role.warps


def hold_tiles(warps: int) -> bool:
    """Whether there are layouts for so many warps."""
    return warps & (warps - 1) == 0


def check_tiles(func: Func, num_warps: int) -> None:
    """IRError at the first op that works on a tile where the warps are no power of two."""
    for op in func.walk():
        tiles = (v for v in (*op.operands, *op.results) if isinstance(v.type, Tensor))
        warps = warps_of(op, num_warps)
        if not hold_tiles(warps) and any(tiles):
            where = "this role has" if role_of(op) else "outside of its roles the kernel has"
            error = op.fail(f"works on a tile, and {where} {warps} warps: tiles are for 1, 2, 4, "
                            "8, 16 or 32")
            error.advice = "compute with tiles in a role of so many warps"
            raise error
