"""What NVIDIA GPUs have; Triton's `tl.extra.cuda`."""

from __future__ import annotations

from typing import Any

from tilec.ir import ops
from tilec.language.context import current
from tilec.language.dtypes import int32, int64
from tilec.language.extra import libdevice
from tilec.language.inline_asm import inline_asm_elementwise
from tilec.language.values import builtin

__all__ = ["gdc_launch_dependents", "gdc_wait", "globaltimer", "libdevice", "num_threads",
           "num_warps", "smid"]


@builtin
def globaltimer() -> Any:
    """The GPU's clock in nanoseconds, an int64 (PTX ISA, special registers: %globaltimer)."""
    return inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], int64, False, 1)


@builtin
def smid() -> Any:
    """The number of the multiprocessor that the program runs on, an int32 (PTX ISA: %smid)."""
    return inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], int32, False, 1)


@builtin
def gdc_wait() -> None:
    """Wait until the grids before this one in the stream have ended and what they wrote is there;
    at once unless the launch has launch_pdl=True. Needs sm_90."""
    current().builder.insert(ops.GridDependencyWait())


@builtin
def gdc_launch_dependents() -> None:
    """Let the next grid in the stream begin, if it has launch_pdl=True, once all programs of this
    one have come here or have ended. What this grid writes is there for it after its own
    `gdc_wait`. Needs sm_90."""
    current().builder.insert(ops.GridDependencyLaunch())


@builtin
def num_warps() -> int:
    """How many warps run the program; known at compile time."""
    return current().num_warps


@builtin
def num_threads() -> int:
    """How many threads run the program; known at compile time."""
    return 32 * current().num_warps
