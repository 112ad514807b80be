"""The kernels of the examples that TMA and wgmma serve, as they are launched on an H200: right at
every level and in the simulator with its checks, on shapes that no tile divides."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
from benchmarks.common import load_example
from tilec.knobs import RUN_LEVELS

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
LEVELS = RUN_LEVELS[1:]
OPTIONS = {"target": "sm_90a", "launch_pdl": True}


@pytest.fixture(scope="module")
def products() -> ModuleType:
    return load_example("09_descriptor_matmul")


def aligned(values: np.ndarray, dtype: Any) -> np.ndarray:
    """A copy whose address is a multiple of 16, as device memory's are."""
    flat = np.empty(values.size * np.dtype(dtype).itemsize + 16, np.uint8)
    start = -flat.ctypes.data % 16
    out = flat[start:len(flat) - 16 + start].view(dtype).reshape(values.shape)
    out[...] = values.astype(np.float32).astype(dtype)
    return out


def check(kernel: Any, args: list[Any], grid: int, c: np.ndarray, want: np.ndarray,
          products: int, **options: Any) -> None:
    """Run everywhere. products: how many wgmma there are a step."""
    made = kernel.warmup(*args, grid=(grid,), **OPTIONS, **options)
    assert made.asm["ptx"].count("wgmma.mma_async") == products
    assert made.asm["ptx"].count("griddepcontrol.wait") == 1
    linked = made.lower().linked
    assert linked is not None and linked.n_spills == 0 and linked.advisories == []
    for level in LEVELS:
        c[...] = np.nan
        made.run(args, grid, level)
        close(c, want, level)
    c[...] = np.nan
    made.simulate(args, grid)
    close(c, want, "simulator")


def close(c: np.ndarray, want: np.ndarray, what: str) -> None:
    bound = 2.0**-8 * np.abs(want) + 1e-5 * np.abs(want).max()
    assert (np.abs(c.astype(np.float64) - want) <= bound).all(), what


def tensors(rng: np.random.Generator, dtype: Any, *shapes: tuple[int, int]) -> list[np.ndarray]:
    return [aligned(rng.standard_normal(shape), dtype) for shape in shapes]


def described(*pairs: tuple[np.ndarray, tuple[int, int]]) -> list[Any]:
    return [tilec.TensorDescriptor.from_tensor(x, block) for x, block in pairs]


@pytest.mark.parametrize("m, n, k, block, stages", [
    (1, 80, 208, (64, 128), 9), (13, 144, 144, (128, 64), 3), (16, 64, 48, (64, 64), 2),
    (29, 208, 336, (64, 128), 5)])
@pytest.mark.sample(2)
def test_few_rows(products: ModuleType, m: int, n: int, k: int, block: tuple[int, int],
                  stages: int, rng: np.random.Generator) -> None:
    """The tile is computed transposed; its rows are columns of b, its columns rows of a."""
    a, b = tensors(rng, BF16, (m, k), (k, n))
    c, (bn, bk), bm = aligned(np.zeros((m, n)), BF16), block, tilec.cdiv(m, 16) * 16
    args = described((a, (bm, bk)), (b, (bk, bn)), (c, (bm, bn)))
    check(products.decode_kernel, args, tilec.cdiv(n, bn), c,
          a.astype(np.float64) @ b.astype(np.float64), bk // 16 * (bn // 64),
          num_warps=4, num_stages=stages)


@pytest.mark.parametrize("m, n, k, grid, stages", [
    (144, 272, 304, 2, 4), (100, 528, 128, 3, 3), (8, 16, 16, 1, 2)])
def test_eight_bits_with_scales(m: int, n: int, k: int, grid: int, stages: int,
                                rng: np.random.Generator) -> None:
    kernel = load_example("12_fp8_matmul").fp8_matmul_kernel
    a, b = tensors(rng, E4M3, (m, k), (n, k))
    c, scales = aligned(np.zeros((m, n)), BF16), [aligned(np.array([s]), np.float32)
                                                  for s in (0.37, -1.9)]
    args = [*described((a, (128, 128)), (b, (256, 128)), (c, (128, 256))), *scales]
    want = a.astype(np.float64) @ b.astype(np.float64).T * np.prod(scales, dtype=np.float64)
    check(kernel, args, grid, c, want, 4, GROUP=8, num_warps=8, num_stages=stages)


@pytest.mark.parametrize("m, n, k, grid", [(144, 304, 272, 2), (72, 96, 528, 3), (264, 144, 64, 1)])
@pytest.mark.parametrize("size", [(1024, 1024, 1024), (1536, 1536, 1536), (8192, 8192, 512)],
                         ids=lambda size: size[0])
@pytest.mark.sample(3)
def test_tiles_that_the_model_chooses(products: ModuleType, size: tuple[int, int, int], m: int,
                                      n: int, k: int, grid: int, rng: np.random.Generator) -> None:
    """Those for large problems, on small ones."""
    (bm, bn, bk), warps, stages = tilec.matmul_tile(*size)
    a, b = tensors(rng, BF16, (m, k), (k, n))
    c = aligned(np.zeros((m, n)), BF16)
    args = described((a, (bm, bk)), (b, (bk, bn)), (c, (bm, bn)))
    check(products.matmul_kernel, args, grid, c, a.astype(np.float64) @ b.astype(np.float64),
          bk // 16, GROUP=8, num_warps=warps, num_stages=stages)
