"""Arguments and results of the hand-written Hopper kernels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16


def _random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32).astype(BF16)


def gemm_args(m: int, n: int, k: int, seed: int) -> tuple[list[Any], np.ndarray]:
    """(arguments with a poisoned result, the product in f32)."""
    rng = np.random.default_rng(seed)
    a, b = _random(rng, m, k), _random(rng, k, n)
    c = np.full((m, n), np.nan, BF16)
    return [a, b, c, m, n, k], a.astype(np.float32) @ b.astype(np.float32)


def gemm(got: np.ndarray, want: np.ndarray, what: str) -> None:
    """A result is the product, rounded to bf16; k terms may be summed in any order."""
    bound = 2.0**-8 * np.abs(want) + 2e-6 * np.abs(want).max(initial=0.0) + 1e-5
    wrong = ~(np.abs(got - want) <= bound)
    assert not wrong.any(), f"{what}: {wrong.sum()} wrong, the first at {np.argwhere(wrong)[0]}"


def attention_args(heads: int, seq: int, seed: int) -> tuple[list[Any], np.ndarray]:
    """(arguments with a poisoned result, softmax(q k^T / sqrt(d)) v in f64)."""
    rng, d = np.random.default_rng(seed), 128
    q, k, v = (_random(rng, heads, seq, d) for _ in range(3))
    out = np.full((heads, seq, d), np.nan, BF16)
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2) / np.sqrt(d)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    want = p / p.sum(-1, keepdims=True) @ v.astype(np.float64)
    scale = float(np.float32(np.log2(np.e) / np.sqrt(d)))
    return [q, k, v, out, heads, seq, scale], want


def attention(got: np.ndarray, want: np.ndarray, what: str) -> None:
    """A result is the attention but for what rounding to bf16 does to it and to probabilities:
    2^-9 of each, of which sums of values with random signs keep little."""
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    most = np.abs(got - want).max() / np.abs(want).max()
    assert error < 5e-3 and most < 2e-2, f"{what}: off by {error:.1e}, at most {most:.1e}"
