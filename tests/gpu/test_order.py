"""The kernels of tests/test_order.py as cubins on the GPU, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests import test_order as order
from tests.gpu.test_scans import _check_on_device as _check_on_device

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", order.DTYPES, ids=lambda d: np.dtype(d).name)
def test_gather_and_flip(dtype, rng) -> None:
    for shape, axis in order.CASES:
        order.test_gather(shape, axis, dtype, int(rng.choice([1, 40, 64])), rng)
        order.test_flip(shape, axis, dtype, rng)


@pytest.mark.parametrize("dtype", order.DTYPES, ids=lambda d: np.dtype(d).name)
def test_sort_and_topk(dtype, rng) -> None:
    for i, (shape, axis) in enumerate(order.CASES):
        order.test_sort(shape, axis, dtype, bool(i % 2), rng)
    for n, k in ((17, 17), (32, 1), (64, 8), (70, 5)):
        order.test_topk(n, dtype, k, rng)


@pytest.mark.parametrize(("shape", "down"), [((2048,), False), ((3, 1000), True), ((4096,), True)])
def test_long_rows(shape, down, rng) -> None:
    order.test_sort(shape, len(shape) - 1, np.float32, down, rng)
    order.test_sort(shape, len(shape) - 1, np.int64, down, rng)


def test_merges_and_pairs(rng) -> None:
    for n, warps in ((8, 1), (128, 4), (1024, 8)):
        order.test_merges_and_pairs(n, warps, rng)


@pytest.mark.parametrize("dtype", order.INTS, ids=lambda d: np.dtype(d).name)
def test_histogram(dtype, rng) -> None:
    for n, bins in ((1, 1), (100, 10), (512, 300), (4096, 512), (1000, 64), (32, 2)):
        order.test_histogram(n, dtype, bins, rng)
