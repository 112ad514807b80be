"""tl.dot through the whole compiler against numpy in f64: a covering set of matrix products, and
what is around dots in a kernel: reductions of rows, chains, batches, reused operands."""

from __future__ import annotations

import itertools
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl

LEVELS = ("tile", "gpu", "lowered", "ptx")
# name -> operand dtype, result dtype, precision, tolerance relative to sum |a * b|
KINDS: dict[str, tuple[Any, Any, str, float]] = {
    "f16": (np.float16, np.float32, "tf32", 2.0**-21),
    "f16_f16": (np.float16, np.float16, "tf32", 2.0**-9),
    "bf16": (ml_dtypes.bfloat16, np.float32, "tf32", 2.0**-21),
    "tf32": (np.float32, np.float32, "tf32", 2.0**-10),
    "tf32x3": (np.float32, np.float32, "tf32x3", 2.0**-20),
    "ieee": (np.float32, np.float32, "ieee", 2.0**-21),
    "f64": (np.float64, np.float64, "tf32", 2.0**-50),
    "i8": (np.int8, np.int32, "tf32", 0.0),
    "e4m3": (ml_dtypes.float8_e4m3fn, np.float32, "tf32", 2.0**-21),
    "e5m2": (ml_dtypes.float8_e5m2, np.float16, "tf32", 2.0**-9),
}
OUTS = {np.float32: tl.float32, np.float16: tl.float16, np.float64: tl.float64,
        np.int32: tl.int32}
BLOCKS = [(32, 64, 32), (16, 8, 32), (48, 80, 16), (96, 24, 16), (16, 160, 16), (17, 19, 21)]
MORE_BLOCKS = [(16, 16, 16), (64, 32, 16), (16, 24, 48), (64, 16, 64), (192, 16, 16), (64, 64, 32)]
FACTORS: dict[str, list[Any]] = {
    "kind": list(KINDS), "block": BLOCKS, "num_warps": [1, 2, 4, 8, 16],
    "num_stages": [1, 2, 3, 4], "a": ["rows", "columns", "trans"],
    "b": ["rows", "columns", "trans"], "ragged": [False, True],
    "target": ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"]}


def pairwise(factors: dict[str, list[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Rows in which every two values of two factors meet; the best of a few random rows each."""
    rng = np.random.default_rng(seed)
    names = list(factors)
    wanted = {(m, i, n, j) for m, n in itertools.combinations(range(len(names)), 2)
              for i in range(len(factors[names[m]])) for j in range(len(factors[names[n]]))}

    def met(row: list[int]) -> set[tuple[int, int, int, int]]:
        return {(m, row[m], n, row[n]) for m, n in itertools.combinations(range(len(row)), 2)}

    rows = []
    while wanted:
        m, i, n, j = min(wanted)
        best: list[int] = []
        for _ in range(40):
            row = [int(rng.integers(len(factors[name]))) for name in names]
            row[m], row[n] = i, j
            if not best or len(met(row) & wanted) > len(met(best) & wanted):
                best = row
        wanted -= met(best)
        rows.append({name: factors[name][k] for name, k in zip(names, best, strict=True)})
    return rows


@tilec.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, sam, sak, sbk, sbn, BM: tl.constexpr, BN: tl.constexpr,
           BK: tl.constexpr, TA: tl.constexpr, TB: tl.constexpr, RAGGED: tl.constexpr,
           P: tl.constexpr, OUT: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), OUT)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        if TA:
            a_mask = (rm[None, :] < M) & (rk[:, None] < K) if RAGGED else None
            a = tl.trans(tl.load(a_ptr + rm[None, :] * sam + rk[:, None] * sak, a_mask,
                                 other=0 if RAGGED else None))
        else:
            a_mask = (rm[:, None] < M) & (rk[None, :] < K) if RAGGED else None
            a = tl.load(a_ptr + rm[:, None] * sam + rk[None, :] * sak, a_mask,
                        other=0 if RAGGED else None)
        if TB:
            b_mask = (rk[None, :] < K) & (rn[:, None] < N) if RAGGED else None
            b = tl.trans(tl.load(b_ptr + rk[None, :] * sbk + rn[:, None] * sbn, b_mask,
                                 other=0 if RAGGED else None))
        else:
            b_mask = (rk[:, None] < K) & (rn[None, :] < N) if RAGGED else None
            b = tl.load(b_ptr + rk[:, None] * sbk + rn[None, :] * sbn, b_mask,
                        other=0 if RAGGED else None)
        acc = tl.dot(a, b, acc, input_precision=P, out_dtype=OUT)
    c_mask = (rm[:, None] < M) & (rn[None, :] < N) if RAGGED else None
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc, c_mask)


def operand(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    if dtype is np.int8:
        return rng.integers(-128, 127, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


def close(got: np.ndarray, a: np.ndarray, b: np.ndarray, tolerance: float, what: str) -> None:
    """got == a @ b within `tolerance` of the sum of the products' sizes."""
    if got.dtype.kind == "i":
        np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64), what)
        return
    a, b = a.astype(np.float64), b.astype(np.float64)
    error = np.abs(got.astype(np.float64) - a @ b)
    assert (error <= tolerance * (np.abs(a) @ np.abs(b))).all(), (what, error.max())


def run_all(made: Any, args: dict[str, Any], grid: tuple[int, ...]) -> dict[str, list[np.ndarray]]:
    """Copies of the arrays after a run at each level."""
    out = {}
    for level in LEVELS:
        mine = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
        made.run(mine, grid, level=level, seed=7)
        out[level] = [v for v in mine.values() if isinstance(v, np.ndarray)]
    return out


def shown(config: dict[str, Any]) -> str:
    return "-".join("x".join(map(str, v)) if isinstance(v, tuple) else str(v)
                    for v in config.values())


CONFIGS = [pytest.param(c, id=shown(c)) for c in pairwise(FACTORS)] + [
    pytest.param(c, id=shown(c), marks=pytest.mark.full)
    for c in pairwise({**FACTORS, "block": MORE_BLOCKS}, 1)]


@pytest.mark.parametrize("config", CONFIGS)
def test_matmul(config: dict[str, Any]) -> None:
    dtype, result, precision, tolerance = KINDS[config["kind"]]
    bm, bn, bk = config["block"]
    m, n, k = (max(1, bm - 3), bn - 5, 2 * bk - 3) if config["ragged"] else (bm, bn, 2 * bk)
    rng = np.random.default_rng(m * n + k)
    a, b = operand(rng, (m, k), dtype), operand(rng, (k, n), dtype)
    a_held, b_held = (x if config[v] == "rows" else np.ascontiguousarray(x.T)
                      for v, x in (("a", a), ("b", b)))
    args = {"a_ptr": a_held, "b_ptr": b_held, "c_ptr": np.zeros((m, n), result), "M": m, "N": n,
            "K": k, "sam": k if config["a"] == "rows" else 1,
            "sak": 1 if config["a"] == "rows" else m,
            "sbk": n if config["b"] == "rows" else 1, "sbn": 1 if config["b"] == "rows" else k}
    made = matmul.warmup(
        *args.values(), grid=(1, 1), num_warps=config["num_warps"],
        num_stages=config["num_stages"], target=config["target"], BM=bm, BN=bn, BK=bk,
        TA=config["a"] == "trans", TB=config["b"] == "trans", RAGGED=config["ragged"], P=precision,
        OUT=OUTS[result])
    for level, (_, _, got) in run_all(made, args, (1, 1)).items():
        close(got, a, b, tolerance, level)


# -- what is around dots ------------------------------------------------------------------------

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


def test_loops_convert_operands_alone() -> None:
    """The accumulator stays where the dot leaves it, wherever it comes from."""
    half, single = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float32)
    product = matmul.warmup(half, half, single, 64, 64, 64, 64, 1, 64, 1, grid=(1, 1), num_warps=4,
                            num_stages=1, BM=64, BN=64, BK=32, TA=False, TB=False, RAGGED=True,
                            P="tf32", OUT=tl.float32)
    loaded = accumulate_into_loaded.warmup(half, single, single, 3, grid=(1,), num_stages=1, BM=64,
                                           BK=32)
    for made in (product, loaded):
        loop, conversions = loop_of(made)
        assert re.search(r"%acc\w*: tensor<64x64xf32, #n0>", loop)
        assert len(conversions) == 2
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
