"""What NVIDIA GPUs have; Triton's `tl.extra.cuda`."""

from __future__ import annotations

from tilec.ir import ops
from tilec.language.context import current
from tilec.language.extra import libdevice
from tilec.language.values import builtin

__all__ = ["gdc_launch_dependents", "gdc_wait", "libdevice"]


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
