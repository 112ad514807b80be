"""Dots cut into steps along k give the bits that whole ones do, at every level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.passes.test_pipeline import before_schedule, pipelined
from tests.passes.test_pipeline import matmul as bounded
from tests.support.matmul import KINDS, WAYS, matmul, product, run_all
from tilec import JITFunction, compiler, knobs
from tilec.interp.run import run
from tilec.ir import ops
from tilec.ir.parser import parse
from tilec.ir.verifier import verify
from tilec.passes.allocate_shared import AllocateShared
from tilec.passes.insert_barriers import InsertBarriers
from tilec.passes.prefetch import Prefetch

WHOLE = tuple(step for step in compiler.PIPELINE if not isinstance(step.run, Prefetch))
# How much of k an instruction takes; multiply-adds stay whole.
STEPS = {"f16": 16, "f16_f16": 16, "bf16": 16, "tf32": 8, "tf32x3": 8, "f64": 4, "i8": 32,
         "e4m3": 16, "e5m2": 16}


def both(kernel: JITFunction, args: dict[str, Any], grid: tuple[int, ...],
         constexprs: dict[str, Any], steps: int, monkeypatch) -> list[dict[str, list[np.ndarray]]]:
    """The arrays after a run at each level, the kernel's only dot in `steps` and whole: of the
    same bits."""
    results: list[dict[str, list[np.ndarray]]] = []
    for pipeline, dots in ((compiler.PIPELINE, steps), (WHOLE, 1)):
        monkeypatch.setattr(compiler, "PIPELINE", pipeline)
        with knobs.scope(cache=False):
            made = JITFunction(kernel.fn).warmup(*args.values(), grid=grid, num_warps=2,
                                                 num_stages=2, target="sm_80", **constexprs)
            assert sum(isinstance(op, ops.Dot) for op in parse(made.asm["gpu"]).walk()) == dots
            results.append(run_all(made, args, grid))
    for level, got in results[0].items():
        for x, y in zip(got, results[1][level], strict=True):
            assert x.tobytes() == y.tobytes(), level
    return results


@pytest.mark.parametrize(("number", "kind"), list(enumerate(KINDS)), ids=list(KINDS))
@pytest.mark.sample(3)
def test_the_same_bits(number: int, kind: str, rng, monkeypatch) -> None:
    steps = 4 if number % 3 == 0 else 2
    p = product({"kind": kind, "block": (32, 48 if number % 2 else 32, steps * STEPS.get(kind, 8)),
                 "a": WAYS[number % 3], "b": WAYS[(number + 1) % 3], "edges": "exact", "steps": 3},
                rng)
    both(matmul, p.args, p.grid, p.constexprs, steps if kind in STEPS else 1, monkeypatch)


@tilec.jit
def batched(a_ptr, b_ptr, o_ptr, K, B: tl.constexpr, M: tl.constexpr, BK: tl.constexpr):
    rb, rm = tl.arange(0, B)[:, None, None], tl.arange(0, M)
    acc = tl.zeros((B, M, M), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(a_ptr + (rb * M + rm[None, :, None]) * K + rk[None, None, :])
        b = tl.load(b_ptr + (rb * K + rk[None, :, None]) * M + rm[None, None, :])
        acc = tl.dot(a, b, acc)
    tl.store(o_ptr + (rb * M + rm[None, :, None]) * M + rm[None, None, :], acc)


def test_batches(rng, monkeypatch) -> None:
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((3, 16, 96), (3, 96, 16)))
    args = {"a_ptr": a, "b_ptr": b, "o_ptr": np.zeros((3, 16, 16), np.float32), "K": 96}
    got, want = both(batched, args, (1,), {"B": 3, "M": 16, "BK": 32}, 2, monkeypatch)
    np.testing.assert_allclose(got["ptx"][-1], a.astype(float) @ b.astype(float), 1e-4, 1e-4)


@pytest.mark.parametrize("stages", [2, 3])
def test_one_barrier_is_still_enough(stages: int, rng) -> None:
    pointers = {"a_ptr": "*fp16:16", "b_ptr": "*fp16:16", "c_ptr": "*fp32:16"}
    module = before_schedule(bounded, pointers | {"M": "i32", "N": "i32:8", "K": "i32:8"},
                             {"BM": 32, "BN": 32, "BK": 64})
    whole = pipelined(module, stages)
    cut = whole.clone()
    for p in (Prefetch(), AllocateShared(), InsertBarriers()):
        p.run(cut)
        verify(cut)
    loop = next(op for op in cut.walk() if isinstance(op, ops.For))
    kinds = [type(op) for op in loop.body
             if isinstance(op, ops.Dot | ops.SharedLoad | ops.Barrier)]
    read = [ops.SharedLoad] * 2
    assert kinds == [ops.Barrier, *read, *[*read, ops.Dot] * 3, ops.Dot]
    m, n, k = 50, 40, 136
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    out = [np.full((m, n), np.nan, np.float32) for _ in range(2)]
    for each, c in zip((whole, cut), out, strict=True):
        run(each, "matmul", [a, b, c, m, n, k], (2, 2), seed=stages)
    np.testing.assert_array_equal(*out)
