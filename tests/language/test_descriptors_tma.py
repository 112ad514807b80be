"""Plain kernels over descriptors on sm_90a, where TMA and wgmma take part or must not: odd loops,
blocks, tensors and stores, right at every level."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec.errors import InterpreterError, LaunchError
from tilec.knobs import RUN_LEVELS

LEVELS = RUN_LEVELS[1:]
OPTIONS = {"target": "sm_90a", "num_stages": 2}
describe = tilec.TensorDescriptor.from_tensor


@tilec.jit
def product(a, b, c, K, TIMES: tl.constexpr, INSIDE: tl.constexpr, TURNED: tl.constexpr):
    """The blocks at the origin. TIMES: how often c is stored; INSIDE: in each round, too."""
    BM: tl.constexpr = c.block_shape[0]
    BN: tl.constexpr = c.block_shape[1]
    BK: tl.constexpr = a.block_shape[1]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        if TURNED:
            acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
        else:
            acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
        if INSIDE:
            c.store([0, 0], acc)
    for i in tl.static_range(TIMES):
        c.store([0, 0], (acc * (i + 1)).to(c.dtype))


def operands(rng, block=(64, 64, 32), k=64, dtype=np.float32, turned=False):
    """Arrays and descriptors of one block of a product; and the product."""
    bm, bn, bk = block
    a, b = (rng.integers(-2, 3, s).astype(ml_dtypes.bfloat16) for s in ((bm, k), (k, bn)))
    want = a.astype(np.float32) @ b.astype(np.float32)
    if turned:
        b = np.ascontiguousarray(b.T)
    c = np.full((bm, bn), 7, dtype)
    return [describe(a, [bm, bk]), describe(b, [bn, bk] if turned else [bk, bn]),
            describe(c, [bm, bn])], want


def runs(args, want, wgmma=True, levels=LEVELS, **options):
    """Run and compare; whether wgmma multiplies is asserted, too."""
    kernel = product.warmup(*args, grid=(1,), **(OPTIONS | options))
    assert ("wgmma.mma_async" in kernel.asm["ptx"]) == wgmma
    c = args[2].base
    for level in levels:
        c[...] = 7
        kernel.run(args, 1, level=level)
        np.testing.assert_array_equal(c.astype(np.float32), want.astype(c.dtype).astype(np.float32))
    c[...] = 7
    kernel.simulate(args, 1)
    np.testing.assert_array_equal(c.astype(np.float32), want.astype(c.dtype).astype(np.float32))


@pytest.mark.parametrize("trips", [0, 1])
def test_a_loop_that_is_none(trips, rng):
    """One of a round, known when compiled, is gone before TMA could fill its buffers."""
    args, want = operands(rng, (64, 64, 64))
    kernel = fixed.warmup(*args, K=64 * trips, grid=(1,), **OPTIONS)
    assert "cp.async.bulk" not in kernel.asm["ptx"]
    for level in LEVELS:
        args[2].base[...] = 7
        kernel.run([*args, 64 * trips], 1, level=level)
        np.testing.assert_array_equal(args[2].base, want * trips)


@tilec.jit
def fixed(a, b, c, K: tl.constexpr):
    acc = tl.zeros(c.block_shape, tl.float32)
    for k in range(0, K, 64):
        acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
    c.store([0, 0], acc)


@pytest.mark.parametrize(("times", "inside"), [(2, False), (1, True), (0, True)])
def test_stores_to_one_place_keep_their_order(times, inside, rng):
    args, want = operands(rng, k=128)
    runs([*args, 128, times, inside, False], want * max(times, 1))


# block, turned, warps, whether wgmma does it (of 48 x 48 through pointers)
BLOCKS = [((64, 320, 32), False, 4, True), ((64, 272, 32), False, 4, True),
          ((64, 96, 32), True, 8, False), ((64, 192, 32), False, 8, False),
          ((128, 96, 32), False, 8, True), ((192, 24, 32), True, 4, True),
          ((64, 48, 48), True, 4, True), ((96, 64, 32), False, 4, False)]


@pytest.mark.parametrize(("block", "turned", "warps", "wgmma"), BLOCKS)
@pytest.mark.sample(2)
def test_odd_blocks(block, turned, warps, wgmma, rng):
    args, want = operands(rng, block, 2 * block[2], ml_dtypes.bfloat16, turned)
    runs([*args, 2 * block[2], 1, False, turned], want, wgmma, ("ptx",), num_warps=warps)


@pytest.mark.parametrize("dtype", [np.bool_, ml_dtypes.float8_e5m2])
def test_elements_of_odd_types_are_stored(dtype, rng):
    args, want = operands(rng, dtype=dtype)
    runs([*args, 64, 1, False, False], want)


def test_tensors_that_end_past_their_array(rng):
    args, _ = operands(rng)
    args[0] = tilec.TensorDescriptor(args[0].base, (1 << 20, 64), (64, 1), (64, 32))
    kernel = product.warmup(*args, 64, 1, False, False, grid=(1,), **OPTIONS)
    for level in LEVELS:
        with pytest.raises((LaunchError, InterpreterError), match="and ends 67104768 past it"):
            kernel.run([*args, 64, 1, False, False], 1, level=level)


def test_strides_that_tma_has_not(rng):
    """Every row is the first one."""
    args, _ = operands(rng)
    a, b, _ = (d.base.astype(np.float32) for d in args)
    args[0] = tilec.TensorDescriptor(args[0].base, (64, 64), (0, 1), (64, 32))
    runs([*args, 64, 1, False, False], np.broadcast_to(a[0] @ b, (64, 64)), False)


def test_empty_tensors(rng):
    """A tensor map has no extent of 0: a launch that TMA would serve is refused, and says why."""
    args, want = operands(rng)
    for empty in (np.zeros((0, 64), ml_dtypes.bfloat16), np.zeros((64, 0), ml_dtypes.bfloat16)):
        args[0] = describe(empty, [64, 32])
        assert args[0].strides == (empty.shape[1], 1)
    args[0] = describe(np.zeros((0, 64), ml_dtypes.bfloat16), [64, 32])
    kernel = product.warmup(*args, 64, 1, False, False, grid=(1,), **OPTIONS)
    for level in ("tile", *LEVELS):
        with pytest.raises(LaunchError, match=r"argument `a` .*extents from 1"):
            kernel.run([*args, 64, 1, False, False], 1, level=level)
        kernel.run([*args, 64, 1, False, False], 0, level=level)
    assert (args[2].base == 7).all()


@tilec.jit
def measured(a, b, p, rows, K):
    """The host computes extents as the kernel does, or leaves the tensor to the kernel."""
    c = tl.make_tensor_descriptor(p, [rows.to(tl.int32), 64], [64, 1], [64, 64])
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, K, 32):
        acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
    c.store([0, 0], acc)


def test_extents_from_floats(rng):
    (a, b, c), want = operands(rng)
    want[40:] = 7
    kernel = measured.warmup(a, b, c.base, 40.75, 64, grid=(1,), **OPTIONS)
    for level in LEVELS:
        c.base[...] = 7
        kernel.run([a, b, c.base, 40.75, 64], 1, level=level)
        np.testing.assert_array_equal(c.base, want)


@tilec.jit
def handed(a, b, c, ready, tiles, K, HELD: tl.constexpr):
    """Blocks of rows, each once another program says that it is there."""
    for i in tl.range(0, tiles, flatten=True):
        if HELD:
            tl.atomic_add(ready, 1, sem="acquire")
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, K, 32):
            acc = tl.dot(a.load([i * 64, k]), b.load([k, 0]), acc)
        c.store([i * 64, 0], acc)


@pytest.mark.parametrize("held", [True, False])
def test_no_copy_starts_before_an_acquire(held, rng):
    (a, b, c), want = operands(rng, (128, 64, 32))
    a, c = describe(a.base, [64, 32]), describe(c.base, [64, 64])
    args = [a, b, c, np.zeros(1, np.int32), 2, 64, held]
    kernel = handed.warmup(*args, grid=(1,), **OPTIONS)
    before = kernel.asm["gpu"].partition("scf.for")[0]
    outer = kernel.asm["gpu"].partition("scf.for")[2].partition("scf.for")[0]
    assert ("gpu.tma_load" in before) != held and ("gpu.tma_load" in outer) == held
    for level in LEVELS:
        c.base[...] = 7
        kernel.run(args, 1, level=level)
        np.testing.assert_array_equal(c.base, want)
