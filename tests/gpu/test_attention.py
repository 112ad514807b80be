"""Attention over descriptors (examples 11, 14 and 15) on the GPU against numpy in float64, with
random extents, heads, dtypes, tiles and stages."""

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
BATCH, FEW = 25, 8
# block of queries and keys, head dimension, warps, most stages
TILES = [(64, 64, 64, 4, 4), (128, 128, 128, 8, 2), (128, 64, 128, 8, 3), (64, 32, 32, 4, 4),
         (128, 64, 256, 8, 2), (128, 128, 64, 8, 3)]


def run(arrays: list[np.ndarray], block: tuple[int, int], warps: int, stages: int, causal: bool,
        times: int = 1, ws: bool = False) -> np.ndarray:
    """The last of `arrays`, the output. ws: warps of their own load the blocks, and few programs
    share the tiles."""
    there: list[Any] = [OnDevice(x) for x in arrays]
    heads, rows, d = arrays[0].shape
    described = [TensorDescriptor(x, h.shape, (h.shape[1] * d, d, 1), (1, b, d)) for x, h, b in zip(
        there, arrays, (block[0], block[1], block[1], block[0]))]
    kernel = load_example("11_descriptor_attention").attention_kernel
    grid = (-(-rows // block[0]), heads)
    for _ in range(times):
        made = kernel[(grid[0] * heads // 3 + 1,) if ws else grid](
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


def explicit(first: int) -> None:
    """Attention at the explicit level (example 14), with warp roles and without."""
    rng, example = np.random.default_rng(first), load_example("14_explicit_attention")
    for number in range(first, first + BATCH):
        block, d, warps = [((64, 64), 64, 4), ((128, 128), 128, 8), ((64, 128), 64, 4),
                           ((128, 128), 64, 8), ((64, 64), 128, 4)][number % 5]
        causal, roles, shared = number % 2 > 0, number % 4 > 1, int(rng.integers(1, 4))
        heads, rows, columns = (int(rng.integers(1, n)) for n in (12, 900, 900))
        outer, inner = (heads * shared, rows), (heads, columns)
        shapes = [outer, inner, inner, outer]
        arrays = [rng.standard_normal((*s, d)).astype(np.float16) for s in shapes]
        want = example.reference(*(x.astype(np.float64) for x in arrays[:3]), causal)
        arrays[3][...] = np.nan
        there: list[Any] = [OnDevice(x) for x in arrays]
        high = block[0], block[1], block[1], 64
        args = [TensorDescriptor(x, (*s, d), (s[1] * d, d, 1), (1, h, d))
                for x, s, h in zip(there, shapes, high)]
        how = {"SHARED": shared, "CAUSAL": causal, "GROUP": 8}
        kernel = example.by_roles_kernel if roles else example.one_role_kernel
        if roles:
            how |= {"WARPS": (warps, 4), "REGISTERS": (240, 24)}
        kernel[(int(rng.integers(1, 200)),)](*args, example.LOG2_E / math.sqrt(d), **how,
                                             num_warps=warps + 4 * roles)
        device.synchronize()
        error = np.abs(np.asarray(there[3].get()).astype(np.float64) - want).max()
        assert error <= 3e-3, (number, shapes, d, causal, roles, error)


@pytest.mark.parametrize("first", range(0, 4 * BATCH, BATCH))
def test_explicit(first: int) -> None:
    in_process(explicit, first)


def explicit_launches(count: int) -> None:
    """The persistent kernel with roles, one launch after another."""
    rng, example = np.random.default_rng(count), load_example("14_explicit_attention")
    arrays = [rng.standard_normal((2, 300, 128)).astype(np.float16) for _ in range(3)]
    there: list[Any] = [OnDevice(x) for x in [*arrays, np.full_like(arrays[0], np.nan)]]
    args = [TensorDescriptor(x, (2, 300, 128), (38400, 128, 1), (1, h, 128))
            for x, h in zip(there, (128, 128, 128, 64))]
    for _ in range(count):
        example.by_roles_kernel[(2,)](
            *args, example.LOG2_E / math.sqrt(128), SHARED=1, CAUSAL=True, GROUP=1, WARPS=(8, 4),
            REGISTERS=(240, 24), num_warps=12)
    device.synchronize()
    want = example.reference(*(x.astype(np.float64) for x in arrays), True)
    np.testing.assert_allclose(np.asarray(there[3].get()).astype(np.float64), want, 0, 3e-3)


def test_many_explicit_launches() -> None:
    in_process(explicit_launches, 10_000)


# (BM, BN) for dq, and for dk and dv; head dimension, warps, most stages
GRADIENT_TILES = [(((64, 64), (64, 64)), 64, 4, 3), (((128, 64), (64, 128)), 128, 8, 3),
                  (((128, 128), (64, 128)), 128, 8, 2), (((128, 64), (64, 128)), 64, 8, 3)]


def run_gradients(inputs: list[np.ndarray], sums: list[np.ndarray], causal: bool, tile: int,
                  stages: int, ws: bool) -> list[np.ndarray]:
    """dq, dk and dv. inputs: q, k, v, dout; sums: lse and delta; ws: by roles."""
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
                            CAUSAL=causal, WS=ws, num_warps=warps, num_stages=stages)
        assert made.asm["ptx"].count("wgmma.mma_async") >= 3
        assert ("warp_role" in made.asm["gpu"]) == (ws and stages > 1)

    launch(example.grad_queries_kernel, [*there, grads[0]], blocks[0],
           (-(-rows // blocks[0][0]), heads), (1, 2))
    launch(example.grad_keys_values_kernel, [*there, *grads[1:]], blocks[1],
           (-(-columns // blocks[1][1]), shared_heads), (1, 2, 4, 5))
    device.synchronize()
    return [np.asarray(x.get()) for x in grads]


def run_in_one_kernel(inputs: list[np.ndarray], sums: list[np.ndarray], causal: bool, stages: int
                      ) -> list[np.ndarray]:
    """The same by example 15."""
    example, d = load_example("15_explicit_gradients"), inputs[0].shape[-1]
    (heads, rows, _), (shared_heads, columns, _) = inputs[0].shape, inputs[1].shape
    q, k, v, dout = (OnDevice(x) for x in inputs)
    dk, dv = (OnDevice(np.full_like(x, np.nan)) for x in inputs[1:3])
    dq_sum = OnDevice(np.zeros((heads, rows, d), np.float32))

    def block(x: OnDevice, height: int) -> TensorDescriptor:
        n, m = (shared_heads, columns) if height == 128 else (heads, rows)
        return TensorDescriptor(x, (n, m, d), (m * d, d, 1), (1, height, d))

    numbers = [TensorDescriptor(OnDevice(x), x.shape, (x.shape[1], 1), (1, 64)) for x in sums]
    example.gradients_kernel[(-(-columns // 128), shared_heads)](
        block(q, 64), block(k, 128), block(v, 128), block(dout, 64), block(dq_sum, 64),
        block(dk, 128), block(dv, 128), *numbers, 1 / math.sqrt(d), SHARED=heads // shared_heads,
        CAUSAL=causal, STAGES=stages, num_warps=8)
    device.synchronize()
    dq = np.asarray(dq_sum.get()) / math.sqrt(d)
    return [dq, *(np.asarray(x.get()) for x in (dk, dv))]


def check_gradients(first: int) -> None:
    """A batch of random cases."""
    rng, example = np.random.default_rng(first), load_example("11_descriptor_attention")
    for number in range(first, first + FEW):
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
                            int(rng.integers(1, GRADIENT_TILES[tile][3] + 1)),
                            bool(rng.integers(2)))
        again = run_in_one_kernel(inputs, [lse, delta], causal, 3 + (d == 64 and number % 2))
        # p and its gradient are rounded to dtype, and so is what comes out.
        unit = 2 * (2.0**-8 if dtype is ml_dtypes.bfloat16 else 2.0**-11)
        masses = summed_magnitudes(*exact, p, delta[:, :rows], shared)
        for name, *both, want, mass in zip(("dq", "dk", "dv"), got, again,
                                           example.reference_gradients(*exact, causal), masses,
                                           strict=True):
            for x in both:
                excess = (np.abs(x.astype(np.float64) - want) - unit * mass).max()
                assert excess <= 1e-4, (name, number, heads, shared, rows, columns, d, causal,
                                        excess)


def summed_magnitudes(q: np.ndarray, k: np.ndarray, v: np.ndarray, dout: np.ndarray, p: np.ndarray,
                      delta: np.ndarray, shared: int) -> list[np.ndarray]:
    """dq, dk and dv, of products' magnitudes."""
    k, v = (np.repeat(x, shared, 0) for x in (k, v))
    ds = np.abs(p * (dout @ v.swapaxes(1, 2) - delta[..., None])) / math.sqrt(q.shape[-1])
    of_keys = [(ds.swapaxes(1, 2) @ np.abs(q)), (p.swapaxes(1, 2) @ np.abs(dout))]
    return [ds @ np.abs(k), *(x.reshape(-1, shared, *x.shape[1:]).sum(1) for x in of_keys)]


@pytest.mark.parametrize("first", range(0, 12 * FEW, FEW))
def test_random_gradients(first: int) -> None:
    in_process(check_gradients, first)
