"""Instruction rules by topic; importing this package fills the tables of tilec.sim.rules."""

from __future__ import annotations

import importlib

for _topic in ("asynccopy", "atomics", "bits", "bulk", "calls", "cluster", "compare", "control",
               "convert", "floating", "integer", "loadstore", "matrix", "mbarrier", "move",
               "storeasync", "warp", "wgmma"):
    importlib.import_module(f"{__name__}.{_topic}")
