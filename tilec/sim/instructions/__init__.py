"""Instruction rules by topic; importing this package fills the table."""

from __future__ import annotations

from tilec.sim.instructions import (
    atomics,
    bits,
    calls,
    compare,
    control,
    convert,
    floating,
    integer,
    loadstore,
    move,
    warp,
)
from tilec.sim.instructions.table import RULES

__all__ = [
    "RULES", "atomics", "bits", "calls", "compare", "control", "convert", "floating", "integer",
    "loadstore", "move", "warp",
]  # fmt: skip
