"""Grids: how many programs a launch may have. Source: CUDA C++ Programming Guide, "Compute
Capabilities", which gives all targets the same."""

from __future__ import annotations

import operator
from typing import Any

from tilec.errors import LaunchError, shown

MAX_GRID = ((1 << 31) - 1, 65535, 65535)


def extents_of(grid: Any) -> tuple[int, ...]:
    """The extents of a grid: an integer, or 1 to 3 of them in a tuple, list or array. 0 programs
    are none; LaunchError for whatever a GPU cannot launch, and for bools, which count nothing."""
    given = tuple(grid) if isinstance(grid, (tuple, list)) or getattr(grid, "ndim", 0) == 1 \
        else (grid,)
    try:
        extents = tuple(-1 if isinstance(g, bool) else operator.index(g) for g in given)
    except TypeError:
        extents = ()
    if not 1 <= len(extents) <= 3 or min(extents) < 0:
        raise LaunchError(f"grid is {shown(grid)}, expected 1 to 3 integers of 0 or more", None,
                          "write it as (n,), (x, y) or (x, y, z); tilec.cdiv gives integers")
    for axis, (n, most) in enumerate(zip(extents, MAX_GRID)):
        if n > most:
            raise LaunchError(f"grid is {shown(grid)}, which along axis {axis} is more than the "
                              f"{most} programs that a GPU takes", None,
                              "use more axes, or a program for several blocks")
    return extents
