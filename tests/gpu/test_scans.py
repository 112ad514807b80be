"""The kernels of tests/test_scans.py as cubins on the GPU, against numpy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest

import tilec
from tests import test_scans as scans
from tests.gpu.test_levels import OnDevice
from tests.test_levels import poisoned

pytestmark = pytest.mark.gpu
DIRECTIONS = (False, True)


def on_device(kernel: tilec.JITFunction, inputs: scans.Arrays, outputs: scans.Arrays,
              bounds: scans.Arrays | None, constexprs: dict, warps: int = 4,
              target: str = "", numbers: Sequence[int] = ()) -> None:
    """Like scans.check, for the level that only a GPU runs; always for the GPU that is there."""
    there = [OnDevice(a) for a in (*inputs, *(poisoned(o.shape, o.dtype) for o in outputs))]
    launch: Any = kernel[(1,)]
    launch(*there, *numbers, num_warps=warps, **constexprs)
    scans.compare([a.get() for a in there[len(inputs):]], outputs, bounds, "cubin")


@pytest.fixture(autouse=True)
def _check_on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "check", on_device)


@pytest.mark.parametrize("dtype", scans.DTYPES, ids=lambda d: np.dtype(d).name)
def test_sums_and_products(dtype, rng) -> None:
    for (shape, axis), reverse in zip(scans.axes(scans.SHAPES), cycle(DIRECTIONS)):
        scans.test_cumsum(shape, axis, dtype, reverse, rng)
        scans.test_cumprod(shape, axis, dtype, not reverse, rng)


@pytest.mark.parametrize("name", scans.ONE)
def test_one_tile(name, rng) -> None:
    for dtype, reverse in product(scans.DTYPES, DIRECTIONS):
        scans.test_one_tile(name, dtype, reverse, rng)


@pytest.mark.parametrize("name", scans.TWO)
def test_two_tiles(name, rng) -> None:
    shapes = scans.axes([(16, 32), (12, 17), (3, 250), (70, 2)])
    for ((shape, axis), reverse), warps in zip(product(shapes, DIRECTIONS), cycle(scans.WARPS)):
        scans.test_two_tiles(name, shape, axis, reverse, warps, rng)


def test_where_tiles_come_from(rng) -> None:
    for n, block, warps in ((37, 16, 1), (500, 96, 4), (64, 128, 8), (3000, 1024, 4)):
        scans.test_in_loops_and_of_broadcasts(n, block, warps, rng)
    for shape, warps in (((64, 32), 4), ((8, 256), 8), ((12, 20), 2)):
        for reverse in DIRECTIONS:
            scans.test_of_reshaped_and_transposed_tiles(shape, warps, reverse, rng)


@pytest.mark.parametrize("n", [4096, 8192])
def test_long_rows(n, rng) -> None:
    """As many elements as a row of a large kernel has, over 4 to 16 warps."""
    for dtype, warps, reverse in product((np.int32, np.float32), (4, 8, 16), DIRECTIONS):
        x = scans.random(rng, (n,), dtype)
        scans.named(scans.sums, x, 0, reverse, x.dtype, warps)
