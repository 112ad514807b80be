"""Chained dots whose blocks are loaded in another order than they are used, or twice: they compile,
with the same values at every level."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl

LEVELS = ("tile", "gpu", "lowered", "ptx")


@tilec.jit
def load_both(k, v, i, SWAPPED: tl.constexpr):
    """A block of each, that of v loaded first if swapped."""
    if SWAPPED:
        z = v.load([i, 0])
        y = k.load([i, 0])
    else:
        y = k.load([i, 0])
        z = v.load([i, 0])
    return y, z


@tilec.jit
def used_twice(q, k, v, p_ptr, out, n, D: tl.constexpr, BN: tl.constexpr, SWAPPED: tl.constexpr):
    """Both blocks are operands of second dots, one of the first."""
    x = q.load([0, 0])
    a = tl.zeros((64, D), tl.float32)
    b = tl.zeros((64, D), tl.float32)
    for i in range(0, n, BN):
        y, z = load_both(k, v, i, SWAPPED)
        s = tl.dot(x, tl.trans(z)).to(tl.bfloat16)
        a = tl.dot(s, z, a)
        b = tl.dot(s, y, b)
    out.store([0, 0], a + 2.0 * b)


@tilec.jit
def late_vector(q, k, v, p_ptr, out, n, D: tl.constexpr, BN: tl.constexpr, SWAPPED: tl.constexpr):
    """A row of numbers is loaded after both blocks, of which the later used comes first if
    swapped."""
    x = q.load([0, 0])
    a = tl.zeros((64, D), tl.float32)
    for i in range(0, n, BN):
        at = i + tl.arange(0, BN)
        y, z = load_both(k, v, i, SWAPPED)
        s = tl.dot(x, tl.trans(y))
        s -= tl.load(p_ptr + at, at < n, other=0.0)[None, :]
        a = tl.dot(s.to(tl.bfloat16), z, a)
    out.store([0, 0], a)


@pytest.mark.parametrize("kernel", [used_twice, late_vector], ids=lambda k: k.__name__)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("d", "step", "stages", "registers"), [
    (64, 32, 1, 0), (64, 32, 2, 0), (64, 32, 3, 128), (128, 64, 2, 0), (128, 64, 2, 128)])
def test_any_order_of_loads(kernel, swapped, d, step, stages, registers) -> None:
    n = 2 * step + 6
    rng = np.random.default_rng(stages + registers)
    q, k, v = (rng.integers(-2, 3, (rows, d)).astype(ml_dtypes.bfloat16) for rows in (64, n, n))
    p = rng.integers(-3, 4, n).astype(np.float32)
    out = np.full((64, d), np.nan, np.float32)
    args = [*(tilec.TensorDescriptor.from_tensor(x, (rows, d))
              for x, rows in ((q, 64), (k, step), (v, step))), p,
            tilec.TensorDescriptor.from_tensor(out, (64, d)), n]
    made = kernel.warmup(*args, D=d, BN=step, SWAPPED=swapped, grid=(1,), target="sm_90a",
                         num_warps=4, num_stages=stages, maxnreg=registers)
    if stages > 1:
        assert "gpu.tma_load" in made.asm["gpu"]
    fq, fk, fv = (x.astype(np.float32) for x in (q, k, v))
    if kernel is used_twice:
        s = (fq @ fv.T).astype(ml_dtypes.bfloat16).astype(np.float32)
        want = s @ fv + 2 * (s @ fk)
    else:
        want = (fq @ fk.T - p).astype(ml_dtypes.bfloat16).astype(np.float32) @ fv
    for level in LEVELS:
        out[...] = np.nan
        made.run(args, 1, level=level)
        np.testing.assert_array_equal(out, want, level)


@tilec.jit
def backwards(q, k, p_ptr, out_ptr, n, D: tl.constexpr, BN: tl.constexpr):
    """Of each block of q, chained products with all blocks of k, the last one first."""
    for tile in tl.range(tl.program_id(0), tl.cdiv(n, 64), tl.num_programs(0), flatten=True):
        rows = tile * 64 + tl.arange(0, 64)
        x = q.load([tile * 64, 0])
        p = tl.load(p_ptr + rows, rows < n, other=0.0)
        a = tl.zeros((64, D), tl.float32)
        b = tl.zeros((64, D), tl.float32)
        c = tl.zeros((64, D), tl.float32)
        for t in tl.range(tl.cdiv(k.shape[0], BN) - 1, -1, -1, warp_specialize=True):
            y = k.load([t * BN, 0])
            s = tl.dot(x, tl.trans(y))
            a += tl.dot((s + t).to(tl.bfloat16), y)
            b += tl.dot((s - p[:, None]).to(tl.bfloat16), y)
            c += tl.dot((s - 1.0).to(tl.bfloat16), y)
        at = rows[:, None] * D + tl.arange(0, D)[None, :]
        tl.store(out_ptr + at, a + 2.0 * b + 3.0 * c, rows[:, None] < n)


@pytest.mark.parametrize("registers", [0, 96, 128])
@pytest.mark.parametrize("stages", [2, 3])
def test_addresses_that_are_computed_in_each_round(registers, stages) -> None:
    rng = np.random.default_rng(registers)
    q, k = (rng.integers(-2, 3, (rows, 64)).astype(ml_dtypes.bfloat16) for rows in (150, 200))
    out = np.full((150, 64), np.nan, np.float32)
    p = rng.integers(-3, 4, 150).astype(np.float32)
    args = [*(tilec.TensorDescriptor.from_tensor(x, (64, 64)) for x in (q, k)), p, out, 150]
    made = backwards.warmup(*args, D=64, BN=64, grid=(2,), target="sm_90a", num_warps=4,
                            num_stages=stages, maxnreg=registers)
    assert "gpu.tma_load" in made.asm["gpu"]
    fq, fk = (x.astype(np.float32) for x in (q, k))
    want = np.zeros_like(out)
    for t in range(4):
        block = fk[64 * t:64 * t + 64]
        for scale, shift in ((1, t), (2, -p[:, None]), (3, -1)):
            s = (fq @ block.T + shift).astype(ml_dtypes.bfloat16).astype(np.float32)
            want += scale * (s @ block)
    for level in LEVELS:
        out[...] = np.nan
        made.run(args, 2, level=level)
        np.testing.assert_array_equal(out, want, level)
