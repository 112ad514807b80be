"""Kernels at every level that a CPU runs, against arrays that numpy made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

import tilec

LEVELS = ("tile", "gpu", "lowered", "ptx")
DTYPES = [np.dtype(t) for t in (
    "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)]


def check(kernel: tilec.JITFunction, ins: Sequence[Any], wants: Sequence[np.ndarray],
          constexprs: dict[str, Any], warps: int = 4, target: str = "sm_90a",
          grid: tuple[int, ...] = (1,)) -> None:
    """Run at every level: poisoned outputs, the parameters after `ins`, come to hold what is
    wanted, bit for bit."""
    outs = [poisoned(w) for w in wants]
    made = kernel.warmup(*ins, *outs, grid=grid, num_warps=warps, target=target, **constexprs)
    for level in LEVELS:
        got = [out.copy() for out in outs]
        made.run([*ins, *got], grid, level=level, seed=5)
        for out, want in zip(got, wants, strict=True):
            same(out, want, level)


def poisoned(like: np.ndarray) -> np.ndarray:
    """An array of the same shape and dtype with nothing in it that anybody wants."""
    return np.full((*like.shape, like.itemsize), 0xA5, np.uint8).view(like.dtype)[..., 0]


def same(got: np.ndarray, want: np.ndarray, what: str) -> None:
    """The same bits, NaN's among them."""
    kind = f"u{want.itemsize}"
    np.testing.assert_array_equal(got.view(kind), np.ascontiguousarray(want).view(kind), what)


def bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Elements of any bits, NaN of all payloads among them: what only moves keeps them."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
