"""What is loaded for the columns of a result of wgmma: once a warp, in few registers, and handed
around within it; right at every level for all dtypes, masks and sizes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.support.attention import through_shared
from tilec.ir import ops
from tilec.ir.conversion import Shared, plan_conversion
from tilec.ir.layouts import Mma, Slice, spread_over_lanes
from tilec.ir.parser import parse
from tilec.ir.scratch import tile_registers


@tilec.jit
def biased(a, b, bias, out, n_cols, LOOP: tl.constexpr):
    """out = a b + bias in each row, added LOOP times in a loop, or after it."""
    BM: tl.constexpr = a.block_shape[0]
    BK: tl.constexpr = a.block_shape[1]
    BN: tl.constexpr = b.block_shape[1]
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load([row, k]), b.load([k, col]), acc)
    columns = col + tl.arange(0, BN)
    for _ in range(LOOP):
        x = tl.load(bias + columns, mask=columns < n_cols, other=3)
        acc += x.to(tl.float32)[None, :]
    out.store([row, col], acc)


@pytest.mark.parametrize("level", ["tile", "gpu", "lowered", "ptx"])
@pytest.mark.parametrize(("element", "bn", "warps", "turns"), [
    (np.float32, 32, 4, 1), (np.float32, 64, 8, 2), (np.float32, 128, 4, 1),
    (np.float16, 64, 4, 1), (ml_dtypes.bfloat16, 128, 8, 1), (np.int8, 64, 4, 2),
    (np.int64, 32, 4, 1), (np.float64, 64, 8, 1), (np.float32, 16, 4, 1), (np.float32, 256, 4, 1),
])
@pytest.mark.sample(10)
def test_bias(element, bn, warps, turns, level, rng) -> None:
    """All numbers are whole and small, so that results are exact. Columns past the bias get 3."""
    m, n, k, known = 150, bn + 16, 96, bn + 5
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (k, n)))
    bias = rng.integers(-9, 10, known).astype(element)
    out = np.full((m, n), np.nan, np.float32)
    bm = 16 * warps
    args = [*(tilec.TensorDescriptor.from_tensor(x, block) for x, block in
              ((a, (bm, 32)), (b, (32, bn)))), bias,
            tilec.TensorDescriptor.from_tensor(out, (bm, bn)), known]
    made = biased.warmup(*args, LOOP=turns, grid=(1,), num_warps=warps, num_stages=2,
                         target="sm_90a")
    assert "gpu.wgmma(" in made.asm["gpu"]
    made.run(args, (tilec.cdiv(m, bm), tilec.cdiv(n, bn)), level)
    wide = np.concatenate([bias.astype(np.float64), np.full(n - known, 3.0)])
    want = a.astype(np.float64) @ b.astype(np.float64) + turns * wide
    np.testing.assert_array_equal(out, want)
    if 32 <= bn <= 128:
        load = next(op for op in parse(made.asm["gpu"]).walk() if isinstance(op, ops.Load))
        words = max(1, np.dtype(element).itemsize // 4) * max(2, bn // 32)
        assert tile_registers(load.result.type) <= words and not through_shared(made.asm["gpu"])


@pytest.mark.parametrize("warps", [(4, 1), (8, 1), (4, 2)])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("size", [8, 16, 32, 64, 128, 256])
def test_spread_over_lanes(size, dim, warps) -> None:
    """Warps hold the same elements, in fewer registers if lanes held copies; the way back stays
    within warps."""
    layout = Slice(Mma(3, warps, (64, 64)), dim)
    few, shape = spread_over_lanes(layout, (size,)), (size,)
    src, dst = few.to_linear(shape), layout.to_linear(shape)

    def held(linear, warp: int) -> set[int]:
        extent = dict(linear.in_sizes)
        return {linear.apply_packed(register=r, lane=lane, warp=warp)
                for r in range(extent["register"]) for lane in range(32)}

    for warp in range(warps[0] * warps[1]):
        assert held(src, warp) == held(dst, warp)
    found, had = (dict(x.in_sizes)["register"] for x in (src, dst))
    assert found <= had and (found == had or not all(dst.columns_of("lane")))
    assert not isinstance(plan_conversion(src, dst, 32), Shared)
