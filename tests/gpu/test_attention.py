"""Attention over descriptors (example 11) on the GPU against numpy in float64, with random extents,
heads, dtypes, tiles and stages."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from benchmarks.common import load_example
from tests.gpu.test_hopper import in_process
from tests.gpu.test_levels import OnDevice
from tilec import TensorDescriptor
from tilec.runtime import device

pytestmark = pytest.mark.gpu
BATCH = 25
# block of queries and keys, head dimension, warps, most stages
TILES = [(64, 64, 64, 4, 4), (128, 128, 128, 8, 2), (128, 64, 128, 8, 3), (64, 32, 32, 4, 4),
         (128, 64, 256, 8, 2), (128, 128, 64, 8, 3)]


def run(arrays: list[np.ndarray], block: tuple[int, int], warps: int, stages: int, causal: bool,
        times: int = 1) -> np.ndarray:
    """The last of `arrays`, the output."""
    there: list[Any] = [OnDevice(x) for x in arrays]
    heads, rows, d = arrays[0].shape
    described = [TensorDescriptor(x, h.shape, (h.shape[1] * d, d, 1), (1, b, d)) for x, h, b in zip(
        there, arrays, (block[0], block[1], block[1], block[0]))]
    kernel = load_example("11_descriptor_attention").attention_kernel
    for _ in range(times):
        made = kernel[(-(-rows // block[0]), heads)](
            *described, 1 / math.sqrt(d), SHARED=heads // len(arrays[1]), CAUSAL=causal,
            num_warps=warps, num_stages=stages)
    device.synchronize()
    assert "wgmma.mma_async" in made.asm["ptx"]
    return np.asarray(there[3].get())


def check(first: int) -> None:
    """A batch of random cases."""
    rng, example = np.random.default_rng(first), load_example("11_descriptor_attention")
    for number in range(first, first + BATCH):
        bm, bn, d, warps, most = TILES[number % len(TILES)]
        dtype = (np.float16, ml_dtypes.bfloat16)[int(rng.integers(2))]
        shared, causal = int(rng.integers(1, 4)), bool(rng.integers(2))
        heads, rows = shared * int(rng.integers(1, 4)), int(rng.integers(1, 600))
        columns = rows if causal else int(rng.integers(1, 600))
        arrays = [rng.standard_normal(s).astype(np.float32).astype(dtype) for s in (
            (heads, rows, d), (heads // shared, columns, d), (heads // shared, columns, d))]
        want = example.reference(*(x.astype(np.float64) for x in arrays), causal)
        got = run([*arrays, np.full((heads, rows, d), np.nan, dtype)], (bm, bn), warps,
                  int(rng.integers(1, most + 1)), causal)
        rough = 2e-2 if dtype is ml_dtypes.bfloat16 else 3e-3
        error = np.abs(got.astype(np.float64) - want).max()
        assert error <= rough, (number, heads, shared, rows, columns, d, causal, error)


@pytest.mark.parametrize("first", range(0, 4 * BATCH, BATCH))
def test_random(first: int) -> None:
    in_process(check, first)


def launches(count: int) -> None:
    """One launch after another."""
    rng, example = np.random.default_rng(count), load_example("11_descriptor_attention")
    arrays = [rng.standard_normal((2, 300, 128)).astype(np.float16) for _ in range(3)]
    got = run([*arrays, np.full((2, 300, 128), np.nan, np.float16)], (128, 128), 8, 2, True, count)
    want = example.reference(*(x.astype(np.float64) for x in arrays), True)
    np.testing.assert_allclose(got.astype(np.float64), want, 0, 3e-3)


def test_many_launches() -> None:
    in_process(launches, 10_000)
