"""The layouts of accumulators of wgmma.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions", shapes and types.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.ir.layouts import Mma
from tilec.ir.types import Scalar

WGMMA_ROWS, MAX_COLUMNS = 64, 256
WARPGROUP_WARPS = 4


def whole_warpgroups(warps: int) -> bool:
    """Whether so many warps are whole warpgroups, or fewer than four, which count as one."""
    return warps < WARPGROUP_WARPS or warps % WARPGROUP_WARPS == 0


def warpgroups(warps: int) -> int:
    """How many warpgroups so many warps are."""
    return max(1, warps // WARPGROUP_WARPS)


def accumulator_layout(element: Scalar, shape: tuple[int, ...], num_warps: int,
                       readable: Callable[[int], bool]) -> Mma | None:
    """The layout of a result of this shape: warpgroups along rows, then along columns; the widest
    instructions that there are. None where none fits.

    element: of the operands. readable: whether instructions of so many columns can read operand b.
    """
    if len(shape) != 2 or num_warps % WARPGROUP_WARPS:
        return None
    groups = num_warps // WARPGROUP_WARPS
    down = min(groups, shape[0] // WGMMA_ROWS)
    if not down or groups % down or shape[0] % (WGMMA_ROWS * down):
        return None
    across = groups // down
    columns = shape[1] // across
    step = 8 if element.is_float else 16
    low = shape[1] & -shape[1]  # odd extents are stored in parts of so many columns
    if shape[1] % across or columns % step or across > 1 and low != shape[1]:
        return None
    n = next((n for n in range(min(columns, MAX_COLUMNS), 0, -step)
              if (n == columns or low % n == 0) and readable(n)), 0)
    return Mma(3, (WARPGROUP_WARPS * down, across), (WGMMA_ROWS, n)) if n else None
