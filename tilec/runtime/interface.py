"""`KernelInterface`: what is launched by `kernel[grid](...)`, a kernel or what wraps one; and what
a compiled kernel says of itself to those who ask as Triton's users do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tilec.target import Target


class KernelInterface:
    """Base of kernels and of their wrappers, an author's own among them. A subclass has `run`; a
    wrapper has what it wraps as `fn`."""

    fn: Any

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch over `grid`, or only compile if `warmup`."""
        raise NotImplementedError

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> Any:
        """Compile for these arguments (arrays, or dtypes in their place), without launching."""
        return self.run(*args, grid=grid, warmup=True, **kwargs)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """`kernel[grid]`: grid is 1 to 3 integers, or a function of the bound arguments."""
        return partial(self.run, grid=grid, warmup=False)

    __iter__ = None  # as the subscript of a class that takes any would give one without end

    def __class_getitem__(cls, item: Any) -> type:
        return cls  # `KernelInterface[T]`


class GPUTarget(NamedTuple):
    """A GPU by its kind ("cuda", or "cpu" where there is none), its compute capability (90), and
    the threads of a warp."""

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
