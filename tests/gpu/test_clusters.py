"""Clusters on the GPU: cubins against numpy, in processes of their own with limited time."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
from tests.gpu.test_hopper import in_process, on_gpu
from tests.gpu.test_levels import OnDevice
from tests.support.clusters import product, softmax
from tests.support.hopper import gemm, gemm_args
from tilec.runtime import device

pytestmark = pytest.mark.gpu


def check_roles(m: int, n: int, k: int) -> None:
    args, want = gemm_args(m, n, k, seed=m + n + k)
    for grid in (2, 6, 132):
        gemm(on_gpu("gemm_d_e2.tir", args, grid)[2].astype(np.float32), want, f"{grid} programs")


def check_product(size: int) -> None:
    rng = np.random.default_rng(size)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((1000, 520), (520, 1088)))
    want = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    for num_warps, stages in ((4, 4), (8, 3)):
        bm = 16 * num_warps
        there = [OnDevice(x) for x in (a, b, np.full(want.shape, np.nan, np.float16))]
        blocks = [tilec.TensorDescriptor(x, s.shape, (s.shape[1], 1), block) for x, s, block in zip(
            there, (a, b, want), ((bm, 64), (64, 128), (bm, 128)))]
        grid = tilec.cdiv(tilec.cdiv(1000, bm), size) * size, tilec.cdiv(1088, 128)
        product[grid](*blocks, STAGES=stages, num_warps=num_warps, num_ctas=size)
        device.synchronize()
        np.testing.assert_array_equal(there[2].get(), want)


def check_softmax(size: int) -> None:
    rng = np.random.default_rng(size)
    for rows, columns in ((1, 5), (33, 8192), (132, 1000 * size + 7)):
        x = (4 * rng.standard_normal((rows, columns))).astype(np.float32)
        e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        given, there = OnDevice(x), OnDevice(np.full_like(x, np.nan))
        softmax[(rows * size,)](given, there, columns, num_ctas=size, BLOCK=max(
            128, tilec.next_power_of_2(tilec.cdiv(columns, size))))
        device.synchronize()
        np.testing.assert_allclose(there.get(), e / e.sum(1, keepdims=True), 1e-5, 1e-9)


@pytest.mark.parametrize("shape", [(256, 256, 64), (130, 264, 72), (1000, 1088, 1000),
                                   (1024, 4096, 4096)], ids=str)
def test_product_by_roles(shape: tuple[int, int, int]) -> None:
    in_process(check_roles, *shape)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_product(size: int) -> None:
    in_process(check_product, size)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_softmax(size: int) -> None:
    in_process(check_softmax, size)
