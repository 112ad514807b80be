"""What a compiled kernel says of itself to those who ask as Triton's users do."""

from __future__ import annotations

from typing import NamedTuple

from tilec.target import Target


class GPUTarget(NamedTuple):
    """A GPU by its kind: "cuda", its compute capability (90), and the threads of a warp."""

    backend: str
    arch: int
    warp_size: int

    @classmethod
    def of(cls, target: Target) -> GPUTarget:
        """That of sm_90a is ("cuda", 90, 32)."""
        return cls("cuda", target.sm, 32)


class Metadata(NamedTuple):
    """`kernel.metadata`. shared: bytes of shared memory; hash: of source, types, constants, target
    and options. Scratch in global memory and tensor memory there is none."""

    name: str
    hash: str
    target: GPUTarget
    num_warps: int
    num_stages: int
    num_ctas: int
    shared: int
    maxnreg: int | None
    debug: bool
    launch_pdl: bool
    cluster_dims: tuple[int, int, int]
    warp_size: int = 32
    tmem_size: int = 0
    global_scratch_size: int = 0
    profile_scratch_size: int = 0
    launch_cooperative_grid: bool = False
