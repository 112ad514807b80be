"""Arguments of attention's kernels, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilec


def inputs(rng: np.random.Generator, heads: int, shared: int, rows: int, columns: int, d: int,
           element: Any) -> list[np.ndarray]:
    """Random q, k and v: (heads, rows, d), and heads / shared of (columns, d)."""
    return [rng.standard_normal((n, m, d)).astype(np.float32).astype(element)
            for n, m in ((heads, rows), (heads // shared, columns), (heads // shared, columns))]


def described(arrays: list[np.ndarray], rows: tuple[int, ...]) -> list[Any]:
    """Descriptors of blocks of so many rows each of one head."""
    return [tilec.TensorDescriptor.from_tensor(x, (1, b, x.shape[2]))
            for x, b in zip(arrays, rows, strict=True)]
