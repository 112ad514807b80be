"""Products over descriptors, which TMA and wgmma compute, on the GPU against numpy in float64, with
random extents, dtypes, tiles, stages and numbers of programs."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.gpu.test_hopper import in_process
from tests.gpu.test_levels import OnDevice
from tests.language.test_explicit_shapes import RANKS, block_moved, moved
from tilec import TensorDescriptor
from tilec.runtime import device

pytestmark = pytest.mark.gpu
BATCH = 25


@tilec.jit
def product(a, b, c, TURNED: tl.constexpr, FLAT: tl.constexpr, WS: tl.constexpr = False):
    BM: tl.constexpr = a.block_shape[0]
    BK: tl.constexpr = a.block_shape[1]
    BN: tl.constexpr = c.block_shape[1]
    across = tl.cdiv(c.shape[1], BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(c.shape[0], BM) * across, tl.num_programs(0),
                         flatten=FLAT, warp_specialize=WS):
        i, j = tile // across * BM, tile % across * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, a.shape[1], BK):
            if TURNED:
                y = tl.trans(b.load([j, k]))
            else:
                y = b.load([k, j])
            acc = tl.dot(a.load([i, k]), y, acc)
        c.store([i, j], acc)


def check(first: int) -> None:
    """A batch of random products; each kind of tile and type is compiled once."""
    rng = np.random.default_rng(first)
    for number in range(first, first + BATCH):
        dtype = (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)[number % 3]
        turned = bool(rng.integers(2)) or number % 3 == 2
        bm, bn, bk = ((64, 64, 64), (128, 128, 64), (128, 256, 64), (64, 192, 32))[number % 4]
        m, n, k = (int(x) for x in rng.integers(1, (700, 45, 60)) * (1, 16, 16))
        a, b = (rng.standard_normal(s).astype(dtype)
                for s in ((m, k), (n, k) if turned else (k, n)))
        out = np.full((m, n), np.nan, np.float32)
        there = [OnDevice(x) for x in (a, b, out)]
        described = [tilec.TensorDescriptor(x, h.shape, (h.shape[1], 1), s) for x, h, s in zip(
            there, (a, b, out), ((bm, bk), (bn, bk) if turned else (bk, bn), (bm, bn)))]
        made = product[(int(rng.integers(1, 140)),)](
            *described, TURNED=turned, FLAT=bool(rng.integers(2)), WS=bool(rng.integers(2)),
            num_warps=4 * max(1, bm // 64), num_stages=int(rng.integers(1, 4 if bn > 128 else 5)),
            launch_pdl=number // 12 % 2 == 1)
        device.synchronize()
        assert "wgmma.mma_async" in made.asm["ptx"]
        x, y = a.astype(np.float64), b.astype(np.float64)
        y = y.T if turned else y
        # wgmma keeps about 14 bits of a sum of fp8 products.
        limit = 2.0**-11 if dtype is ml_dtypes.float8_e4m3fn else 2.0**-20
        error = np.abs(there[2].get() - x @ y)
        assert (error <= limit * (np.abs(x) @ np.abs(y))).all(), (number, m, n, k)


@pytest.mark.parametrize("first", range(0, 8 * BATCH, BATCH))
def test_products(first: int) -> None:
    in_process(check, first)


def launches(count: int) -> None:
    """The persistent example, launched again and again."""
    rng = np.random.default_rng(count)
    a, b = (rng.standard_normal((512, 512)).astype(np.float16) for _ in range(2))
    want = a.astype(np.float64) @ b.astype(np.float64)
    for ws in (False, True):
        there: list[Any] = [OnDevice(x) for x in (a, b, np.full(want.shape, np.nan, np.float32))]
        described = [tilec.TensorDescriptor(x, (512, 512), (512, 1), s)
                     for x, s in zip(there, ((128, 64), (64, 128), (128, 128)))]
        for _ in range(count):
            product[(5,)](*described, TURNED=False, FLAT=True, WS=ws, num_warps=8, num_stages=3)
        device.synchronize()
        np.testing.assert_allclose(there[2].get(), want, 1e-3, 1e-3)


def test_many_launches() -> None:
    in_process(launches, 10_000)


def chain(count: int) -> None:
    """Launches that overlap, each of which reads what the one before wrote: columns in new order,
    exactly."""
    rng = np.random.default_rng(count)
    order = rng.permutation(512)
    x, turn = rng.standard_normal((512, 512)).astype(np.float16), np.eye(512, dtype=np.float16)
    there: list[Any] = [OnDevice(v) for v in (x, np.full_like(x, np.nan), turn[:, order])]
    now, then, by = ([tilec.TensorDescriptor(v, (512, 512), (512, 1), block) for block in blocks]
                     for v, blocks in zip(there, (((64, 64), (64, 128)),) * 2 + (((64, 128),),)))
    places = np.arange(512)
    for _ in range(count):
        product[(32,)](now[0], by[0], then[1], TURNED=False, FLAT=True, num_warps=4, num_stages=4,
                       launch_pdl=True)
        now, then, places = then, now, places[order]
    device.synchronize()
    np.testing.assert_array_equal(there[count % 2].get(), x[:, places])


def ranks(first: int) -> None:
    """Blocks of one to five dimensions, moved by the explicit level."""
    for block, shape, source, target in RANKS:
        rng = np.random.default_rng(first)
        x, y = (rng.integers(1, 99, shape).astype(np.float16) for _ in range(2))
        there = [OnDevice(a) for a in (x, y)]
        args = [TensorDescriptor(a, shape, [math.prod(shape[i + 1:]) for i in range(len(shape))],
                                 block) for a in there]
        moved[(1,)](*args, SHAPE=block, FROM=source, TO=target, num_warps=4)
        device.synchronize()
        np.testing.assert_array_equal(there[1].get(), block_moved(x, y, block, source, target))


def test_blocks_of_any_rank() -> None:
    in_process(ranks, 1)


def test_launches_that_overlap() -> None:
    in_process(chain, 1001)
