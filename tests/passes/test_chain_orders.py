"""Chained dots in any order, whose blocks are loaded in another order than they are used, or twice:
they compile, with the same values at every level."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec.ir.parser import parse
from tilec.knobs import RUN_LEVELS
from tilec.runtime.text import TextKernel

LEVELS = RUN_LEVELS


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
@pytest.mark.sample(5)
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
def two_of_each(q, k, v, x, y, bias, out, other, n, HOW: tl.constexpr):
    """Two first dots and two second ones, each of a block of its own. turned: what needs the last
    first dot comes first in the text; mixed: a second dot comes before a first one; biased: a first
    dot adds to what is loaded."""
    BM: tl.constexpr = q.block_shape[0]
    BN: tl.constexpr = k.block_shape[0]
    D: tl.constexpr = k.block_shape[1]
    queries = q.load([0, 0])
    a = tl.zeros((BM, D), tl.float32)
    b = tl.zeros((BM, D), tl.float32)
    for i in tl.range(0, n, BN):
        s = tl.dot(queries, tl.trans(k.load([i, 0])))
        if HOW == "biased":
            columns = i + tl.arange(0, BN)
            s += tl.load(bias + columns, columns < n, other=0.0)[None, :]
        if HOW == "mixed":
            a = tl.dot(tl.maximum(s, 0.0).to(q.dtype), x.load([i, 0]), a)
        t = tl.dot(queries, tl.trans(v.load([i, 0])))
        if HOW != "turned":
            b = tl.dot(tl.maximum(t, 0.0).to(q.dtype), y.load([i, 0]), b)
        if HOW != "mixed":
            a = tl.dot(tl.maximum(s, 0.0).to(q.dtype), x.load([i, 0]), a)
        if HOW == "turned":
            b = tl.dot(tl.maximum(t, 0.0).to(q.dtype), y.load([i, 0]), b)
    out.store([0, 0], a)
    other.store([0, 0], b)


@pytest.mark.parametrize("how", ["plain", "turned", "mixed", "biased"])
@pytest.mark.parametrize(("d", "step", "stages", "warps", "registers"), [
    (64, 32, 2, 4, 0), (64, 32, 3, 4, 128), (64, 64, 2, 8, 160), (128, 64, 2, 8, 0)])
@pytest.mark.sample(4)
def test_products_in_any_order(how, d, step, stages, warps, registers) -> None:
    """All numbers are whole and small. No product is held up by ptxas (C75xx)."""
    rng, rows, n = np.random.default_rng(d + stages), 16 * warps, 2 * step + 6
    q, *blocks = (rng.integers(-2, 3, (m, d)).astype(np.float16) for m in (rows, n, n, n, n))
    bias = rng.integers(-3, 4, n).astype(np.float32)
    got = [np.full((rows, d), np.nan, np.float32) for _ in range(2)]
    described = [tilec.TensorDescriptor.from_tensor(z, (m, d)) for z, m in (
        (q, rows), *((z, step) for z in blocks), *((z, rows) for z in got))]
    args = [*described[:5], bias, *described[5:], n]
    made = two_of_each.warmup(*args, HOW=how, grid=(1,), target="sm_90a", num_warps=warps,
                              num_stages=stages, maxnreg=registers)
    k, v, x, y = (z.astype(np.float64) for z in blocks)
    s = q.astype(np.float64) @ k.T + (bias if how == "biased" else 0)
    want = [np.maximum(s, 0) @ x, np.maximum(q.astype(np.float64) @ v.T, 0) @ y]
    for level in LEVELS:
        for z in got:
            z[...] = np.nan
        made.run(args, 1, level=level)
        for z, right in zip(got, want, strict=True):
            np.testing.assert_array_equal(z, right, level)
    linked = TextKernel(parse(made.asm["gpu"])).compiled.linked
    assert linked is not None and "tile.dot" not in made.asm["gpu"]
    assert linked.n_spills or not linked.advisories


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
@pytest.mark.sample(2)
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
