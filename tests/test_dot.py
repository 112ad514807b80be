"""What is around dots in a kernel, through the whole compiler against numpy in f64: reductions of
rows, chains, batches, reused operands. Plain products are in test_matmul.py."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.support.matmul import KINDS, close, matmul, operand, run_all


@tilec.jit
def attention(q_ptr, k_ptr, v_ptr, o_ptr, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rd = tl.arange(0, D)
    q = tl.load(q_ptr + rm[:, None] * D + rd[None, :])
    high = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in range(0, N, BN):
        rn = n + tl.arange(0, BN)
        k = tl.load(k_ptr + rn[:, None] * D + rd[None, :], rn[:, None] < N, other=0)
        s = tl.where(rn[None, :] < N, tl.dot(q, tl.trans(k)), float("-inf"))
        higher = tl.maximum(high, tl.max(s, 1))
        p = tl.exp2(s - higher[:, None])
        scale = tl.exp2(high - higher)
        total = total * scale + tl.sum(p, 1)
        v = tl.load(v_ptr + rn[:, None] * D + rd[None, :], rn[:, None] < N, other=0)
        acc = tl.dot(p.to(v.dtype), v, acc * scale[:, None])
        high = higher
    tl.store(o_ptr + rm[:, None] * D + rd[None, :], acc / total[:, None])


@pytest.mark.parametrize(("dtype", "num_warps", "bm", "bn", "d"), [
    (np.float16, 4, 64, 32, 32), (ml_dtypes.bfloat16, 2, 32, 48, 16), (np.float32, 4, 64, 16, 24),
    (np.float16, 8, 64, 32, 16)])
def test_attention(dtype: Any, num_warps: int, bm: int, bn: int, d: int) -> None:
    rng = np.random.default_rng(bm + bn + d)
    n = 2 * bn + 5
    q, k, v = (rng.standard_normal((rows, d)).astype(dtype) for rows in (bm, n, n))
    out = np.zeros((bm, d), np.float32)
    made = attention.warmup(q, k, v, out, n, grid=(1,), num_warps=num_warps, target="sm_80",
                            BM=bm, BN=bn, D=d)
    s = q.astype(np.float64) @ k.astype(np.float64).T
    p = np.exp2(s - s.max(1, keepdims=True))
    want = p @ v.astype(np.float64) / p.sum(1, keepdims=True)
    args = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "o_ptr": out, "N": n}
    for level, (*_, got) in run_all(made, args, (1,)).items():
        np.testing.assert_allclose(got, want, 2e-2, 2e-2, err_msg=level)


@tilec.jit
def batched(a_ptr, b_ptr, o_ptr, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
            K: tl.constexpr, P: tl.constexpr):
    rb, rk = tl.arange(0, B)[:, None, None], tl.arange(0, K)
    rm, rn = tl.arange(0, M)[None, :, None], tl.arange(0, N)[None, None, :]
    a = tl.load(a_ptr + (rb * M + rm) * K + rk[None, None, :])
    b = tl.load(b_ptr + (rb * K + rk[None, :, None]) * N + rn)
    tl.store(o_ptr + (rb * M + rm) * N + rn, tl.dot(a, b, input_precision=P))


@pytest.mark.parametrize("kind", ["f16", "tf32", "ieee"])
@pytest.mark.parametrize(("shape", "num_warps"), [
    ((2, 16, 16, 16), 4), ((3, 16, 8, 32), 2), ((5, 32, 24, 24), 4), ((4, 8, 8, 8), 8),
    ((1, 16, 16, 16), 16)])
@pytest.mark.sample(4)
def test_batched(kind: str, shape: tuple[int, ...], num_warps: int) -> None:
    dtype, result, precision, tolerance = KINDS[kind]
    batch, m, n, k = shape
    rng = np.random.default_rng(batch)
    a, b = operand(rng, (batch, m, k), dtype), operand(rng, (batch, k, n), dtype)
    args = {"a_ptr": a, "b_ptr": b, "o_ptr": np.zeros((batch, m, n), result)}
    made = batched.warmup(*args.values(), grid=(1,), num_warps=num_warps, B=batch, M=m, N=n, K=k,
                          P=precision)
    assert ("mma.sync" in made.asm["ptx"]) == (kind != "ieee")
    for level, (*_, got) in run_all(made, args, (1,)).items():
        close(got, a, b, tolerance, level)


@tilec.jit
def accumulate_into_loaded(a_ptr, c_ptr, o_ptr, n, BM: tl.constexpr, BK: tl.constexpr):
    rm, rk = tl.arange(0, BM), tl.arange(0, BK)
    at = rm[:, None] * BM + rm[None, :]
    acc = tl.load(c_ptr + at)
    for _ in range(n):
        a = tl.load(a_ptr + rm[:, None] * BK + rk[None, :])
        acc = tl.dot(a, tl.trans(a), acc)
    tl.store(o_ptr + at, acc + tl.load(c_ptr + at))


def test_one_operand_twice_and_a_loaded_accumulator() -> None:
    rng = np.random.default_rng(0)
    a, c = operand(rng, (32, 16), np.float16), operand(rng, (32, 32), np.float32)
    args = {"a_ptr": a, "c_ptr": c, "o_ptr": np.zeros_like(c), "n": 3}
    made = accumulate_into_loaded.warmup(*args.values(), grid=(1,), BM=32, BK=16)
    wide = a.astype(np.float64)
    for level, (*_, got) in run_all(made, args, (1,)).items():
        np.testing.assert_allclose(got, 3 * wide @ wide.T + 2 * c, 1e-5, 1e-4, err_msg=level)


# -- what the passes leave ----------------------------------------------------------------------

def loop_of(made: Any) -> tuple[str, list[str]]:
    """The line of the only loop at level gpu, and the conversions in it."""
    lines = made.asm["gpu"].splitlines()
    start = next(i for i, line in enumerate(lines) if "scf.for(" in line)
    end = next(i for i in range(start, len(lines)) if lines[i].startswith("    }"))
    return lines[start], [line for line in lines[start:end] if "convert_layout" in line]


@pytest.mark.parametrize(("target", "converted"), [("sm_90", 2), ("sm_90a", 0)])
def test_loops_convert_operands_alone(target: str, converted: int) -> None:
    """The accumulator stays where the dot leaves it, wherever it comes from; what wgmma reads is
    not converted."""
    half, single = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float32)
    product = matmul.warmup(half, half, single, 64, 64, 64, 64, 1, 64, 1, grid=(1, 1), num_warps=4,
                            num_stages=1, target=target, BM=64, BN=64, BK=32, TA=False, TB=False,
                            RAGGED=True, P="tf32", OUT=tl.float32)
    loaded = accumulate_into_loaded.warmup(half, single, single, 3, grid=(1,), num_stages=1,
                                           target=target, BM=64, BK=32)
    for made in (product, loaded):
        loop, conversions = loop_of(made)
        assert re.search(r"%acc\w*: tensor<64x64xf32, #n\d>", loop)
        assert len(conversions) == converted
        assert all(re.search(r"#d[01]>$", line) for line in conversions)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.float8_e5m2, np.float32], ids=str)
def test_attention_converts_keys_and_values_alone(dtype: Any) -> None:
    """Probabilities are operand A where they are; the query is converted before the loop."""
    x, out = np.zeros((64, 32), dtype), np.zeros((64, 32), np.float32)
    made = attention.warmup(x, x, x, out, 64, grid=(1,), num_warps=4, num_stages=1, target="sm_80",
                            BM=64, BN=32, D=32)
    _, conversions = loop_of(made)
    assert len(conversions) == 2
    # No data cross warps: a warp has whole rows.
    assert "warpsPerCTA = [4, 1]" in made.asm["gpu"] and "[2, 2]" not in made.asm["gpu"]


@tilec.jit
def reduced(a_ptr, b_ptr, r_ptr, c_ptr, i_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rm, rn, rk = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + rm[:, None] * K + rk[None, :])
    b = tl.load(b_ptr + rk[:, None] * N + rn[None, :])
    x = tl.dot(a, b)
    tl.store(r_ptr + rm, tl.sum(x, 1))
    tl.store(c_ptr + rn, tl.max(x, 0))
    tl.store(i_ptr + rm, tl.argmax(x, 1))


@pytest.mark.parametrize(("shape", "num_warps"), [((32, 32, 16), 4), ((48, 40, 32), 2),
                                                  ((17, 9, 16), 4), ((16, 64, 16), 8)])
@pytest.mark.sample(2)
def test_reductions_of_a_result(shape: tuple[int, int, int], num_warps: int) -> None:
    """Slices of a dot's layout, along both of its dimensions."""
    m, n, k = shape
    rng = np.random.default_rng(m)
    a, b = (rng.integers(-8, 9, s).astype(np.float16) for s in ((m, k), (k, n)))
    want = a.astype(np.float32) @ b.astype(np.float32)
    args = {"a_ptr": a, "b_ptr": b, "r_ptr": np.zeros(m, np.float32),
            "c_ptr": np.zeros(n, np.float32), "i_ptr": np.zeros(m, np.int32)}
    made = reduced.warmup(*args.values(), grid=(1,), num_warps=num_warps, M=m, N=n, K=k)
    for level, (_, _, rows, columns, index) in run_all(made, args, (1,)).items():
        np.testing.assert_array_equal(rows, want.sum(1), level)
        np.testing.assert_array_equal(columns, want.max(0), level)
        np.testing.assert_array_equal(index, want.argmax(1), level)
