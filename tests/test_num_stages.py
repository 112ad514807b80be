"""The depth of a pipeline changes no bit of a result, at any level, whatever the loop is like."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.support.matmul import KINDS, LEVELS, OUTS, matmul, product, run_all
from tests.test_dot import attention

STAGES = (1, 2, 3, 4)


def same_bits(kernel: tilec.JITFunction, args: dict[str, Any], constexprs: dict[str, Any],
              copied: int, grid: tuple[int, ...] = (1,), num_warps: int = 4,
              target: str = "sm_80", stages: str = "", later: int = 0) -> list[np.ndarray]:
    """Run with each number of stages and return the arrays of one run at the tile level.

    copied: loads that run ahead. later: those of them that wait for another load first. stages:
    the constexpr to vary instead of the option.
    """
    first: dict[str, list[np.ndarray]] = {}
    for n in STAGES:
        option = {stages: n} if stages else {"num_stages": n}
        made = kernel.warmup(*args.values(), grid=grid, num_warps=num_warps, target=target,
                             find_boxes=False, **constexprs, **option)
        ahead = made.asm["gpu"].count("gpu.async_copy(")
        assert ahead == copied * n * (n > 1) + later * (n - 1) * (n > 2), (n, ahead)
        results = run_all(made, args, grid)
        first = first or results
        for level in LEVELS:
            for got, want in zip(results[level], first[level], strict=True):
                assert got.tobytes() == want.tobytes(), (level, n)
    return first["tile"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sample(2)
def test_products(kind: str, rng) -> None:
    deep = KINDS[kind].operand in (np.int8, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    p = product({"kind": kind, "block": (32, 32, 32 if deep else 16), "a": "rows", "b": "rows",
                 "edges": "aligned", "steps": 7}, rng)
    *_, got = same_bits(matmul, p.args, p.constexprs, 2, num_warps=2)
    p.check(got, kind)


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["f16", "f32"])
@pytest.mark.sample(1)
def test_attention(dtype: Any, rng) -> None:
    rows, block, d = 32, 16, 16
    n = 5 * block - 3
    q, k, v = (rng.standard_normal((x, d)).astype(dtype) for x in (rows, n, n))
    out = np.full((rows, d), np.nan, np.float32)
    args = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "o_ptr": out, "N": n}
    *_, got = same_bits(attention, args, {"BM": rows, "BN": block, "D": d}, 2, num_warps=2)
    s = q.astype(np.float64) @ k.astype(np.float64).T
    p = np.exp2(s - s.max(1, keepdims=True))
    np.testing.assert_allclose(got, p @ v.astype(np.float64) / p.sum(1, keepdims=True), 2e-2, 2e-2)


# -- other loops --------------------------------------------------------------------------------

@tilec.jit
def sums(x_ptr, o_ptr, lo, hi, base, STEP: tl.constexpr, B: tl.constexpr, S: tl.constexpr):
    offs = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in tl.range(lo, hi, STEP, num_stages=S):
        total = total * 0.5 + tl.load(x_ptr + (base + i) * B + offs)
    tl.store(o_ptr + offs, total)


@pytest.mark.parametrize(("lo", "hi", "step"), [
    (0, 0, 1), (5, 2, 1), (3, 4, 1), (0, 2, 1), (0, 3, 1), (1, 9, 1), (0, 1, 4), (1, 6, 2),
    (-2, 9, 3)])
def test_few_iterations_and_other_steps(lo: int, hi: int, step: int, rng) -> None:
    block = 128
    x = rng.standard_normal((12, block)).astype(np.float32)
    out = np.full(block, np.nan, np.float32)
    want = np.zeros(block, np.float32)
    for i in range(lo, hi, step):
        want = want * np.float32(0.5) + x[i + 2]
    args = {"x_ptr": x, "o_ptr": out, "lo": lo, "hi": hi, "base": 2}
    *_, got = same_bits(sums, args, {"STEP": step, "B": block}, 1, stages="S")
    np.testing.assert_array_equal(got, want)


@tilec.jit
def extremes(x_ptr, o_ptr, lo, B: tl.constexpr, S: tl.constexpr):
    offs = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in tl.range(lo, 2147483647, 1, num_stages=S):
        total += tl.load(x_ptr + (i - lo) * B + offs)
    tl.store(o_ptr + offs, total)


def test_iterations_past_the_end_do_not_wrap_around(rng) -> None:
    x = rng.standard_normal((3, 128)).astype(np.float32)
    args = {"x_ptr": x, "o_ptr": np.zeros(128, np.float32), "lo": 2**31 - 4}
    *_, got = same_bits(extremes, args, {"B": 128}, 1, stages="S")
    np.testing.assert_array_equal(got, (x[0] + x[1]) + x[2])


@tilec.jit
def searched(x_ptr, o_ptr, n, B: tl.constexpr, S: tl.constexpr):
    offs = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in tl.range(0, n, num_stages=S):
        j = n
        while j != i:
            j -= 1
        total += tl.load(x_ptr + j * B + offs)
    tl.store(o_ptr + offs, total)


def test_loops_do_not_run_ahead(rng) -> None:
    """The one in here ends for none of the iterations past the last."""
    x = rng.integers(-9, 9, (3, 128)).astype(np.float32)
    args = {"x_ptr": x, "o_ptr": np.zeros(128, np.float32), "n": 3}
    *_, got = same_bits(searched, args, {"B": 128}, 0, stages="S")
    np.testing.assert_array_equal(got, x.sum(0))


@tilec.jit
def branched(x_ptr, i_ptr, o_ptr, n, B: tl.constexpr, S: tl.constexpr):
    """An address by way of branches, whose conditions are poison past the last iteration."""
    offs = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in tl.range(0, n, num_stages=S):
        at = tl.load(i_ptr + i)
        if 100 // (n - i) > 30:
            if at > 2:
                at = tl.sum(offs * at % (i + 1)) + 1
        else:
            at += tl.sum(offs % (i + 1))
        total = total * 0.5 + tl.load(x_ptr + at % 3 * B + offs)
    tl.store(o_ptr + offs, total)


@pytest.mark.parametrize("n", [2, 6])
def test_branches_run_ahead(n, rng) -> None:
    x = rng.standard_normal((3, 128)).astype(np.float32)
    table = np.array([5, 1, 0, 3, 2, 4], np.int32)
    args = {"x_ptr": x, "i_ptr": table, "o_ptr": np.zeros(128, np.float32), "n": n}
    same_bits(branched, args, {"B": 128}, 0, stages="S", later=1)


@tilec.jit
def strides(x_ptr, o_ptr, lo, hi, STEP: tl.constexpr, B: tl.constexpr, S: tl.constexpr):
    offs = tl.arange(0, B)
    total, at = tl.zeros((B,), tl.float32), x_ptr + offs
    for _ in tl.range(lo, hi, STEP, num_stages=S):
        total += tl.load(at)
        at += B
    tl.store(o_ptr + offs, total)


@pytest.mark.parametrize(("lo", "hi", "step"), [
    (2**31 - 18, 2**31 - 1, 2**30), (1 - 2**31, 2**31 - 1, 2**30), (3, 35, 2**31 - 1),
    (1 - 2**63, 2**63 - 1, 2**61)])
def test_large_steps(lo, hi, step, rng) -> None:
    """Some steps ahead may be more than an index holds; one that wraps may come to the start."""
    x = rng.integers(-9, 9, (8, 128)).astype(np.float32)
    want = x[:len(range(lo, hi, step))].sum(0)
    for n in (1, 2, 4):
        out = np.zeros(128, np.float32)
        args = {"x_ptr": x, "o_ptr": out, "lo": lo, "hi": hi}
        made = strides.warmup(*args.values(), grid=(1,), target="sm_80", STEP=step, B=128, S=n)
        for level in ("tile", "gpu", "lowered", "ptx"):
            out[:] = 0
            made.run(args, (1,), level=level, seed=n)
            np.testing.assert_array_equal(out, want, f"{level}, {n} stages")


@tilec.jit
def nested(a_ptr, b_ptr, w_ptr, o_ptr, tiles, K, BM: tl.constexpr, BK: tl.constexpr,
           S: tl.constexpr):
    """Both loops run ahead: the outer one's weights, the inner one's operands."""
    rm, rk = tl.arange(0, BM), tl.arange(0, BK)
    at = rm[:, None] * BM + rm[None, :]
    total = tl.zeros((BM, BM), tl.float32)
    for t in tl.range(0, tiles, num_stages=S):
        w = tl.load(w_ptr + t * BM * BM + at)
        acc = tl.zeros((BM, BM), tl.float32)
        for k in tl.range(0, K * (t % 3), BK, num_stages=S):
            a = tl.load(a_ptr + rm[:, None] * 2 * K + k + rk[None, :])
            b = tl.load(b_ptr + (k + rk[:, None]) * BM + rm[None, :])
            acc = tl.dot(a, b, acc)
        total += acc * w
    tl.store(o_ptr + at, total)


def test_nested_loops(rng) -> None:
    bm, k, tiles = 32, 32, 5
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((bm, 2 * k), (2 * k, bm)))
    w = rng.standard_normal((tiles, bm, bm)).astype(np.float32)
    args = {"a_ptr": a, "b_ptr": b, "w_ptr": w, "o_ptr": np.zeros((bm, bm), np.float32),
            "tiles": tiles, "K": k}
    *_, got = same_bits(nested, args, {"BM": bm, "BK": 16}, 3, stages="S")
    wide = [a[:, :k * n].astype(float) @ b[:k * n].astype(float) for n in (0, 1, 2)]
    np.testing.assert_allclose(got, sum(wide[t % 3] * w[t] for t in range(tiles)), 1e-4, 1e-4)


@tilec.jit
def gathered(x_ptr, i_ptr, y_ptr, o_ptr, n, BM: tl.constexpr, BK: tl.constexpr):
    """Rows that a table names are an operand: their loads wait for the table's."""
    rm, rk = tl.arange(0, BM), tl.arange(0, BK)
    acc = tl.zeros((BM, BM), tl.float32)
    for t in range(n):
        rows = tl.load(i_ptr + t * BM + rm)
        x = tl.load(x_ptr + rows[:, None] * BK + rk[None, :])
        y = tl.load(y_ptr + (t * BK + rk[:, None]) * BM + rm[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(o_ptr + rm[:, None] * BM + rm[None, :], acc)


def test_indirect_loads(rng) -> None:
    bm, bk, n = 32, 16, 5
    x = rng.standard_normal((50, bk)).astype(np.float16)
    y = rng.standard_normal((n, bk, bm)).astype(np.float16)
    table = rng.integers(0, 50, (n, bm)).astype(np.int32)
    args = {"x_ptr": x, "i_ptr": table, "y_ptr": y, "o_ptr": np.zeros((bm, bm), np.float32), "n": n}
    *_, got = same_bits(gathered, args, {"BM": bm, "BK": bk}, 1, later=1)
    np.testing.assert_allclose(got, sum(x[table[t]].astype(float) @ y[t].astype(float)
                                        for t in range(n)), 1e-4, 1e-4)


@tilec.jit
def twice(x_ptr, o_ptr, s_ptr, n, B: tl.constexpr, OUT: tl.constexpr):
    """One load is both operands, and a summand besides."""
    r = tl.arange(0, B)
    acc = tl.zeros((B, B), OUT)
    total = tl.zeros((B, B), OUT)
    for t in range(n):
        x = tl.load(x_ptr + t * B * B + r[:, None] * B + r[None, :])
        acc = tl.dot(x, tl.trans(x), acc)
        acc = tl.dot(tl.trans(x), x, acc)
        total += x
    tl.store(o_ptr + r[:, None] * B + r[None, :], acc)
    tl.store(s_ptr + r[:, None] * B + r[None, :], total)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64],
                         ids=["f16", "f32", "f64"])
@pytest.mark.sample(1)
def test_loads_used_twice(dtype: Any, rng) -> None:
    b, n = 32, 5
    x = rng.integers(-4, 5, (n, b, b)).astype(dtype)
    out = np.float64 if dtype is np.float64 else np.float32
    args = {"x_ptr": x, "o_ptr": np.zeros((b, b), out), "s_ptr": np.zeros((b, b), out), "n": n}
    _, got, total = same_bits(twice, args, {"B": b, "OUT": OUTS[out]}, 1)
    wide = x.astype(float)
    np.testing.assert_array_equal(got, (wide @ wide.swapaxes(1, 2) + wide.swapaxes(1, 2) @ wide
                                        ).sum(0))
    np.testing.assert_array_equal(total, wide.sum(0))


@pytest.mark.parametrize(("kind", "a", "b", "copied"), [
    ("f16", "rows", "columns", 0), ("i8", "rows", "rows", 0), ("e4m3", "columns", "columns", 0),
    ("tf32", "rows", "rows", 2)])
@pytest.mark.sample(2)
def test_narrow_loads(kind: str, a: str, b: str, copied: int, rng) -> None:
    """Rows of odd length: a thread reads an element at a time."""
    p = product({"kind": kind, "block": (32, 32, 32), "a": a, "b": b, "edges": "odd", "steps": 4},
                rng)
    *_, got = same_bits(matmul, p.args, p.constexprs, copied, num_warps=2)
    p.check(got, kind)


@tilec.jit
def described(a_ptr, b_ptr, o_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr,
              BK: tl.constexpr):
    """A product over descriptors, whose blocks end beyond their tensors."""
    a = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BM, BK])
    b = tl.make_tensor_descriptor(b_ptr, [K, N], [N, 1], [BK, BN])
    out = tl.make_tensor_descriptor(o_ptr, [M, N], [N, 1], [BM, BN])
    i = tl.program_id(0) * BM
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([i, k]), b.load([k, 0]), acc)
    out.store([i, 0], acc)


@pytest.mark.parametrize(("shape", "copied"), [((27, 16, 80), 2), ((27, 23, 45), 0)])
@pytest.mark.sample(1)
def test_descriptors(shape: tuple[int, int, int], copied: int, rng) -> None:
    m, n, k = shape
    a, b = (rng.integers(-4, 5, s).astype(np.float16) for s in ((m, k), (k, n)))
    args = {"a_ptr": a, "b_ptr": b, "o_ptr": np.full((m, n), np.nan, np.float32), "M": m, "N": n,
            "K": k}
    *_, got = same_bits(described, args, {"BM": 32, "BN": 32, "BK": 32}, copied,
                        grid=(tilec.cdiv(m, 32),), num_warps=2)
    np.testing.assert_array_equal(got, a.astype(float) @ b.astype(float))


@tilec.jit
def until(a_ptr, b_ptr, o_ptr, stop_ptr, K, BM: tl.constexpr, BK: tl.constexpr, S: tl.constexpr):
    """A while loop around one that runs ahead, with a dot of its own."""
    rm, rk = tl.arange(0, BM), tl.arange(0, BK)
    acc = tl.zeros((BM, BM), tl.float32)
    t = 0
    while tl.load(stop_ptr + t) == 0:
        a = tl.load(a_ptr + rm[:, None] * K + rk[None, :])
        b = tl.load(b_ptr + rk[:, None] * BM + rm[None, :])
        acc = tl.dot(a, b, acc)
        for k in tl.range(0, K, BK, num_stages=S):
            a = tl.load(a_ptr + rm[:, None] * K + k + rk[None, :])
            b = tl.load(b_ptr + (k + rk[:, None]) * BM + rm[None, :])
            acc = tl.dot(a, b, acc)
        t += 1
    tl.store(o_ptr + rm[:, None] * BM + rm[None, :], acc)


@pytest.mark.parametrize("times", [0, 1, 3])
def test_while_loops(times: int, rng) -> None:
    bm, bk, k = 32, 16, 80
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((bm, k), (k, bm)))
    stop = np.array([0] * times + [1], np.int32)
    args = {"a_ptr": a, "b_ptr": b, "o_ptr": np.zeros((bm, bm), np.float32), "stop_ptr": stop,
            "K": k}
    *_, got, _ = same_bits(until, args, {"BM": bm, "BK": bk}, 2, stages="S")
    wide = a.astype(float), b.astype(float)
    want = times * (wide[0] @ wide[1] + wide[0][:, :bk] @ wide[1][:bk])
    np.testing.assert_allclose(got, want, 1e-4, 1e-4)
