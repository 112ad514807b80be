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
        times: int = 1, ws: bool = False) -> np.ndarray:
    """The last of `arrays`, the output. ws: warps of their own load the blocks."""
    there: list[Any] = [OnDevice(x) for x in arrays]
    heads, rows, d = arrays[0].shape
    described = [TensorDescriptor(x, h.shape, (h.shape[1] * d, d, 1), (1, b, d)) for x, h, b in zip(
        there, arrays, (block[0], block[1], block[1], block[0]))]
    kernel = load_example("11_descriptor_attention").attention_kernel
    for _ in range(times):
        made = kernel[(-(-rows // block[0]), heads)](
            *described, 1 / math.sqrt(d), SHARED=heads // len(arrays[1]), CAUSAL=causal, WS=ws,
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
                  int(rng.integers(1, most + 1)), causal, ws=bool(rng.integers(2)))
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
    want = example.reference(*(x.astype(np.float64) for x in arrays), True)
    for ws in (False, True):
        got = run([*arrays, np.full((2, 300, 128), np.nan, np.float16)], (128, 128), 8, 2, True,
                  count, ws)
        np.testing.assert_allclose(got.astype(np.float64), want, 0, 3e-3)


def test_many_launches() -> None:
    in_process(launches, 10_000)


# (BM, BN) for dq, and for dk and dv; head dimension, warps, most stages
GRADIENT_TILES = [(((64, 64), (64, 64)), 64, 4, 3), (((128, 64), (64, 128)), 128, 8, 2),
                  (((128, 128), (64, 128)), 128, 8, 2), (((128, 64), (64, 128)), 64, 8, 3)]


def run_gradients(inputs: list[np.ndarray], sums: list[np.ndarray], causal: bool, tile: int,
                  stages: int) -> list[np.ndarray]:
    """dq, dk and dv. inputs: q, k, v, dout; sums: lse and delta."""
    blocks, d, warps, _ = GRADIENT_TILES[tile]
    example = load_example("11_descriptor_attention")
    (heads, rows, _), (shared_heads, columns, _) = inputs[0].shape, inputs[1].shape
    there: list[Any] = [OnDevice(x) for x in inputs]
    grads: list[Any] = [OnDevice(np.full_like(x, np.nan)) for x in inputs[:3]]
    more = [OnDevice(x) for x in sums]

    def launch(kernel: Any, given: list[Any], block: tuple[int, int], grid: tuple[int, int],
               of_keys: tuple[int, ...]) -> None:
        described = []
        for i, x in enumerate(given):
            shape = inputs[i in of_keys].shape
            described.append(TensorDescriptor(x, shape, (shape[1] * d, d, 1),
                                              (1, block[i in of_keys], d)))
        made = kernel[grid](*described, *more, 1 / math.sqrt(d), SHARED=heads // shared_heads,
                            CAUSAL=causal, num_warps=warps, num_stages=stages)
        assert made.asm["ptx"].count("wgmma.mma_async") >= 3

    launch(example.grad_queries_kernel, [*there, grads[0]], blocks[0],
           (-(-rows // blocks[0][0]), heads), (1, 2))
    launch(example.grad_keys_values_kernel, [*there, *grads[1:]], blocks[1],
           (-(-columns // blocks[1][1]), shared_heads), (1, 2, 4, 5))
    device.synchronize()
    return [np.asarray(x.get()) for x in grads]


def check_gradients(first: int) -> None:
    """A batch of random cases."""
    rng, example = np.random.default_rng(first), load_example("11_descriptor_attention")
    for number in range(first, first + BATCH):
        tile = number % len(GRADIENT_TILES)
        d, dtype = GRADIENT_TILES[tile][1], (np.float16, ml_dtypes.bfloat16)[int(rng.integers(2))]
        shared, causal = int(rng.integers(1, 4)), bool(rng.integers(2))
        heads, rows = shared * int(rng.integers(1, 4)), int(rng.integers(2, 600))
        columns = rows if causal else int(rng.integers(2, 600))
        inputs = [rng.standard_normal(s).astype(np.float32).astype(dtype) for s in (
            (heads, rows, d), *((heads // shared, columns, d),) * 2, (heads, rows, d))]
        exact = [x.astype(np.float64) for x in inputs]
        p = example.weights(exact[0], exact[1], causal)
        s = exact[0] @ np.repeat(exact[1], shared, 0).swapaxes(1, 2) / math.sqrt(d)
        size = (heads, example.padded_rows(rows))
        lse, delta = np.full(size, np.inf, np.float32), np.zeros(size, np.float32)
        lse[:, :rows] = (s[..., 0] - np.log(p[..., 0])) / math.log(2)
        delta[:, :rows] = (exact[3] * (p @ np.repeat(exact[2], shared, 0))).sum(-1)
        got = run_gradients(inputs, [lse, delta], causal, tile,
                            int(rng.integers(1, GRADIENT_TILES[tile][3] + 1)))
        # p and its gradient are rounded to dtype, and so is what comes out.
        unit = 2 * (2.0**-8 if dtype is ml_dtypes.bfloat16 else 2.0**-11)
        masses = summed_magnitudes(*exact, p, delta[:, :rows], shared)
        for name, x, want, mass in zip(("dq", "dk", "dv"), got, example.reference_gradients(
                *exact, causal), masses, strict=True):
            excess = (np.abs(x.astype(np.float64) - want) - unit * mass).max()
            assert excess <= 1e-4, (name, number, heads, shared, rows, columns, d, causal, excess)


def summed_magnitudes(q: np.ndarray, k: np.ndarray, v: np.ndarray, dout: np.ndarray, p: np.ndarray,
                      delta: np.ndarray, shared: int) -> list[np.ndarray]:
    """dq, dk and dv, of products' magnitudes."""
    k, v = (np.repeat(x, shared, 0) for x in (k, v))
    ds = np.abs(p * (dout @ v.swapaxes(1, 2) - delta[..., None])) / math.sqrt(q.shape[-1])
    of_keys = [(ds.swapaxes(1, 2) @ np.abs(q)), (p.swapaxes(1, 2) @ np.abs(dout))]
    return [ds @ np.abs(k), *(x.reshape(-1, shared, *x.shape[1:]).sum(1) for x in of_keys)]


@pytest.mark.parametrize("first", range(0, 4 * BATCH, BATCH))
def test_random_gradients(first: int) -> None:
    in_process(check_gradients, first)
