"""Pipelined loops compute what they computed before, bit for bit, whatever the trip count."""

from __future__ import annotations

import numpy as np
import pytest

import tilec.language as tl
from tilec.compiler import PIPELINE
from tilec.frontend.build import build_module
from tilec.frontend.function import function
from tilec.interp.run import run
from tilec.ir import ops
from tilec.ir.core import Module
from tilec.ir.verifier import verify
from tilec.passes.allocate_shared import AllocateShared
from tilec.passes.insert_barriers import InsertBarriers
from tilec.passes.pipeline import Pipeline
from tilec.passes.schedule import Schedule


@function
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a = a_ptr + rm[:, None] * K + rk[None, :]
    b = b_ptr + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a, mask=(rm[:, None] < M) & (rk[None, :] + k < K), other=0.0)
        y = tl.load(b, mask=(rk[:, None] + k < K) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc)
        a += BK
        b += BK * N
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn < N)[None, :])


@function
def sums(x_ptr, y_ptr, o_ptr, n, B: tl.constexpr, S: tl.constexpr):
    offs = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in tl.range(0, n, B, num_stages=S):
        x = tl.load(x_ptr + i + offs, mask=i + offs < n)
        y = tl.load(y_ptr + i + offs, mask=i + offs < n, other=0.0)
        total += tl.where(i + offs < n, x, 0.0) * y
    tl.store(o_ptr + offs, total)


@function
def not_ahead(x_ptr, i_ptr, o_ptr, n, B: tl.constexpr, S: tl.constexpr):
    """A gather, a loop that writes what it reads, a byte-wide load and one with another fill."""
    offs = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in tl.range(0, n, 1, num_stages=S):
        at = tl.load(i_ptr + i * B + offs)
        total += tl.load(x_ptr + at)
        total += tl.load(o_ptr + offs)
        tl.store(o_ptr + offs, total)
    for i in tl.range(0, n, 1, num_stages=S):
        total += tl.load(x_ptr + offs, mask=offs < n - i, other=1.0)
        total += tl.load(x_ptr + offs, mask=offs < n - i, other=-0.0)  # a copy fills in +0.0
    tl.store(o_ptr + offs, total)


@function
def guarded(x_ptr, lock_ptr, o_ptr, n, B: tl.constexpr, SEM: tl.constexpr):
    offs = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in tl.range(0, n, num_stages=3):
        tl.atomic_add(lock_ptr, 0, sem=SEM)
        total += tl.load(x_ptr + i * B + offs)
    tl.store(o_ptr + offs, total)


def before_schedule(fn, specs, constants, warps=4) -> Module:
    """The module at the place of the pipeline where `schedule` stands."""
    module = build_module(fn, specs, constants, target="sm_80", num_warps=warps)
    for step in PIPELINE:
        if step.level == "lowered" or isinstance(step.run, Schedule):
            break
        step.run.run(module)
    return module


def pipelined(module: Module, stages: int) -> Module:
    module = module.clone()
    module.attributes["num_stages"] = stages
    for p in (Schedule(), Pipeline()):
        p.run(module)
        verify(module)
    return module


def copies(module: Module) -> int:
    return sum(isinstance(op, ops.AsyncCopy) for op in module.walk())


@pytest.mark.parametrize("k", [0, 1, 31, 32, 33, 64, 95, 97, 160])
def test_matmul(k, rng) -> None:
    m, n = 50, 40
    pointers = {"a_ptr": "*fp16:16", "b_ptr": "*fp16:16", "c_ptr": "*fp32:16"}
    module = before_schedule(matmul, pointers | {"M": "i32", "N": "i32:8", "K": "i32:8"},
                             {"BM": 32, "BN": 32, "BK": 32})
    k8 = -(-k // 8) * 8
    a, b = rng.standard_normal((m, k8)).astype(np.float16), \
        rng.standard_normal((k8, n)).astype(np.float16)
    results = []
    for stages in (1, 2, 3, 4):
        changed = pipelined(module, stages)
        assert copies(changed) == (0 if stages == 1 else 2 * stages)
        c = np.full((m, n), np.nan, np.float32)
        run(changed, "matmul", [a, b, c, m, n, k8], (2, 2), seed=stages)
        results.append(c)
    for c in results:
        np.testing.assert_array_equal(c, results[0])
    np.testing.assert_allclose(results[0], a.astype(float) @ b.astype(float), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n", [0, 7, 128, 129, 700])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_any_load_of_a_loop_with_stages(stages, n, rng) -> None:
    module = before_schedule(sums, {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "o_ptr": "*fp32:16",
                                    "n": "i32"}, {"B": 128, "S": stages})
    x, y = rng.standard_normal((2, 700)).astype(np.float32)
    out = [np.full(128, np.nan, np.float32) for _ in range(2)]
    changed = pipelined(module, 3)
    assert copies(changed) == 2 * stages
    for each, o in zip((module, changed), out):
        run(each, "sums", [x, y, o, n], (1,))
    np.testing.assert_array_equal(out[0], out[1])


def test_what_cannot_run_ahead_stays(rng) -> None:
    module = before_schedule(not_ahead, {"x_ptr": "*fp32:16", "i_ptr": "*i32:16",
                                         "o_ptr": "*fp32:16", "n": "i32"}, {"B": 64, "S": 3})
    changed = pipelined(module, 3)
    loads = [op for op in changed.walk() if isinstance(op, ops.Load)]
    assert copies(changed) == 3 and len(loads) == 4  # of five, the index tile alone runs ahead
    x = rng.standard_normal(64).astype(np.float32)
    index = rng.integers(0, 64, (5, 64)).astype(np.int32)
    out = [np.ones(64, np.float32) for _ in range(2)]
    for each, o in zip((module, changed), out):
        run(each, "not_ahead", [x, index, o, 5], (1,))
    np.testing.assert_array_equal(out[0], out[1])


@pytest.mark.parametrize("sem", ["relaxed", "release", "acquire", "acq_rel"])
def test_no_load_starts_before_an_acquire(sem) -> None:
    module = before_schedule(guarded, {"x_ptr": "*fp32:16", "lock_ptr": "*i32:16",
                                       "o_ptr": "*fp32:16", "n": "i32"}, {"B": 128, "SEM": sem})
    assert (copies(pipelined(module, 3)) == 0) == (sem in ("acquire", "acq_rel"))


@pytest.mark.parametrize("stages", [(0, 1), (1, 0), (1, 1), (0, 2), (2, 2)])
@pytest.mark.parametrize("n", [0, 128, 257, 700])
def test_edited_schedule(stages, n, rng) -> None:
    module = before_schedule(sums, {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "o_ptr": "*fp32:16",
                                    "n": "i32"}, {"B": 128, "S": 3})
    changed = module.clone()
    Schedule().run(changed)
    for op, stage in zip((op for op in changed.walk() if isinstance(op, ops.Load)), stages,
                         strict=True):
        op.stage = stage
    for p in (Pipeline(), AllocateShared(), InsertBarriers()):
        p.run(changed)
        verify(changed)
    assert copies(changed) == sum(3 - s for s in stages if s < 2)
    x, y = rng.standard_normal((2, 700)).astype(np.float32)
    out = [np.full(128, np.nan, np.float32) for _ in range(2)]
    for each, o in zip((module, changed), out):
        run(each, "sums", [x, y, o, n], (1,), seed=n)
    np.testing.assert_array_equal(out[0], out[1])
