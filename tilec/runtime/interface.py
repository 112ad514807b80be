"""`KernelInterface`: what is launched by `kernel[grid](...)`, a kernel or what wraps one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


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
