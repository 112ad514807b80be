"""The explicit level: `import tilec.language.gpu as tlg`, beside `tl`, in one kernel.

Layouts, shared memory, mbarriers, copies by TMA, products by wgmma and warp roles, as the author
says; what is written with `tl` is compiled as ever. docs/hopper.md has a section about it.
"""

from __future__ import annotations

from tilec.language.control import elect
from tilec.language.gpu import tma
from tilec.language.gpu.barriers import (
    barrier,
    fence_async,
    mbarrier,
    warpgroup_barrier,
)
from tilec.language.gpu.cluster import (
    cluster_barrier,
    cluster_rank,
    cluster_size,
    remote_buffer,
)
from tilec.language.gpu.layouts import (
    Blocked,
    DotOperand,
    Linear,
    Mma,
    NvmmaShared,
    SharedLinear,
    Slice,
    Swizzled,
    convert_layout,
    num_warps,
)
from tilec.language.gpu.pipeline import buffer_ring, emit_pipeline, make_ring
from tilec.language.gpu.products import extract_slice, wgmma, wgmma_wait
from tilec.language.gpu.roles import warp_specialize
from tilec.language.gpu.shared import (
    alloc_shared,
    async_commit,
    async_copy,
    async_wait,
    shared_buffer,
)

__all__ = [
    "Blocked", "DotOperand", "Linear", "Mma", "NvmmaShared", "SharedLinear", "Slice", "Swizzled",
    "alloc_shared", "async_commit", "async_copy", "async_wait", "barrier", "buffer_ring",
    "cluster_barrier", "cluster_rank", "cluster_size",
    "convert_layout", "elect", "emit_pipeline", "extract_slice", "fence_async", "make_ring",
    "mbarrier", "num_warps", "remote_buffer", "shared_buffer", "tma", "warp_specialize",
    "warpgroup_barrier", "wgmma", "wgmma_wait",
]


def __dir__() -> list[str]:
    """The author's names, without the modules that define them: what suggestions are made of."""
    return __all__
