"""An independent PTX parser and SIMT simulator in numpy; it knows PTX and nothing of the compiler.

`parse` reads PTX text; `run` executes one of its kernels over a grid on host arrays, in place.
"""

from __future__ import annotations

from tilec.sim.counters import Counts
from tilec.sim.errors import SimError
from tilec.sim.launch import AllocationEdge, run, unsupported
from tilec.sim.parser import parse
from tilec.sim.ptx import Instr, Kernel, Module
from tilec.sim.tensormap import TensorMap

__all__ = ["AllocationEdge", "Counts", "Instr", "Kernel", "Module", "SimError", "TensorMap",
           "parse", "run", "unsupported"]
