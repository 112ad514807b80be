"""A matrix product whose kernel takes every operand dtype, transposition, extent and precision,
with its check against numpy in f64: within what docs/semantics.md section 8 allows."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import tilec
import tilec.language as tl
from tilec.knobs import RUN_LEVELS

LEVELS = RUN_LEVELS


class Kind(NamedTuple):
    """Operand and result dtypes, and how far from the exact sum, relative to sum |a * b|."""

    operand: Any
    result: Any
    precision: str
    tolerance: float


KINDS = {
    "f16": Kind(np.float16, np.float32, "tf32", 2.0**-21),
    "f16_f16": Kind(np.float16, np.float16, "tf32", 2.0**-9),
    "bf16": Kind(ml_dtypes.bfloat16, np.float32, "tf32", 2.0**-21),
    "tf32": Kind(np.float32, np.float32, "tf32", 2.0**-10),
    "tf32x3": Kind(np.float32, np.float32, "tf32x3", 2.0**-20),
    "ieee": Kind(np.float32, np.float32, "ieee", 2.0**-21),
    "f64": Kind(np.float64, np.float64, "tf32", 2.0**-50),
    "i8": Kind(np.int8, np.int32, "tf32", 0.0),
    "e4m3": Kind(ml_dtypes.float8_e4m3fn, np.float32, "tf32", 2.0**-21),
    "e5m2": Kind(ml_dtypes.float8_e5m2, np.float16, "tf32", 2.0**-9),
}
OUTS = {np.float32: tl.float32, np.float16: tl.float16, np.float64: tl.float64,
        np.int32: tl.int32}
# What a configuration says of an operand: how it lies in memory, and how it is read.
WAYS = ["rows", "columns", "trans"]
# How much the extents lack of a multiple of the tiles'.
EDGES = {"exact": (0, 0, 0), "aligned": (16, 16, 16), "odd": (3, 5, 3)}


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


class Product(NamedTuple):
    """One product ready to run. args: of `matmul`, by name; a, b: the operands as matrices."""

    args: dict[str, Any]
    grid: tuple[int, int]
    constexprs: dict[str, Any]
    a: np.ndarray
    b: np.ndarray
    tolerance: float

    def check(self, got: np.ndarray, what: str) -> None:
        close(got, self.a, self.b, self.tolerance, what)


def product(config: dict[str, Any], rng: np.random.Generator) -> Product:
    """kind; block: extents of the tiles; a, b: one of WAYS; edges: one of EDGES, with masks where
    tiles do not divide; steps: iterations; programs: of the grid, (1, 1) by default."""
    kind = KINDS[config["kind"]]
    bm, bn, bk = config["block"]
    gm, gn = config.get("programs", (1, 1))
    m, n, k = (whole - lack if whole > lack else whole for whole, lack in zip(
        (gm * bm, gn * bn, config["steps"] * bk), EDGES[config["edges"]], strict=True))
    a, b = operand(rng, (m, k), kind.operand), operand(rng, (k, n), kind.operand)
    a_held, b_held = (x if config[v] == "rows" else np.ascontiguousarray(x.T)
                      for v, x in (("a", a), ("b", b)))
    a_rows, b_rows = config["a"] == "rows", config["b"] == "rows"
    c = np.zeros((m, n), kind.result)
    c.view(np.uint8)[...] = 0xA5
    args = {"a_ptr": a_held, "b_ptr": b_held, "c_ptr": c, "M": m, "N": n, "K": k,
            "sam": k if a_rows else 1, "sak": 1 if a_rows else m,
            "sbk": n if b_rows else 1, "sbn": 1 if b_rows else k}
    constexprs = {"BM": bm, "BN": bn, "BK": bk, "TA": config["a"] == "trans",
                  "TB": config["b"] == "trans", "RAGGED": config["edges"] != "exact",
                  "P": kind.precision, "OUT": OUTS[kind.result]}
    return Product(args, (gm, gn), constexprs, a, b, kind.tolerance)


def run_all(made: Any, args: dict[str, Any], grid: tuple[int, ...]) -> dict[str, list[np.ndarray]]:
    """Copies of the arrays after a run at each level."""
    out = {}
    for level in LEVELS:
        mine = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
        made.run(mine, grid, level=level, seed=7)
        out[level] = [v for v in mine.values() if isinstance(v, np.ndarray)]
    return out


def shown(config: dict[str, Any]) -> str:
    """A test's name."""
    return "-".join("x".join(map(str, v)) if isinstance(v, tuple) else str(v)
                    for v in config.values())
