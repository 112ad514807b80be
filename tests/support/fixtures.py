"""The hand-written kernels of tests/lit/fixtures, and what their arguments and results are."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import ml_dtypes
import numpy as np

from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.verifier import verify
from tilec.passes.allocate_shared import AllocateShared
from tilec.passes.insert_barriers import InsertBarriers

FOLDER = Path(__file__).parents[1] / "lit" / "fixtures"
MATMUL = "matmul_mma_pipelined.tir"


def fixture(name: str, lowered: bool = False) -> Module:
    """A fixture at the gpu level, or as the last passes lower it; a copy of its own."""
    return _fixture(name, lowered).clone()


@lru_cache(maxsize=16)
def _fixture(name: str, lowered: bool) -> Module:
    m = parse((FOLDER / name).read_text())
    verify(m)
    if lowered:
        for lowering in (AllocateShared(), InsertBarriers()):
            lowering.run(m)
        verify(m)
    return m


def matmul_case(k: int, seed: int = 0, m: int = 128, n: int = 64
                ) -> tuple[list, tuple[int, int], np.ndarray]:
    """(arguments, grid, the product) for the matmul fixture; the third argument is the result."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, k)).astype(ml_dtypes.bfloat16)
    b = rng.standard_normal((k, n)).astype(ml_dtypes.bfloat16)
    args = [a, b, np.full((m, n), np.nan, np.float32), n, k]
    return args, (m // 64, n // 64), a.astype(np.float32) @ b.astype(np.float32)
