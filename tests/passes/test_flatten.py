"""Flattened nests compute what nests do, whatever the trip counts; those that cannot be are left
alone, with a reason."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.support.matmul import run_all
from tilec.ir.remarks import recording


@tilec.jit
def nest(x_ptr, o_ptr, lo, hi, m, n, B: tl.constexpr, STEP: tl.constexpr, FLAT: tl.constexpr):
    """Both loops carry values, and what the inner one starts from depends on the outer one."""
    offs = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    count = 0
    for i in tl.range(lo, hi, STEP, flatten=FLAT):
        at = x_ptr + (i + 7) % 7 * B + offs
        part = tl.zeros((B,), tl.float32) + i
        for k in tl.range(m, n, 2, num_stages=3):
            part = part * 0.5 + tl.load(at) * k
            at += B
        total = total * 0.25 + part
        tl.store(o_ptr + (count + 1) * B + offs, part)
        count += 1
    tl.store(o_ptr + offs, total)
    tl.store(o_ptr + 10 * B + offs, offs * 0 + count)


@pytest.mark.parametrize(("lo", "hi", "step"), [(0, 4, 1), (-3, 5, 3), (2, 2, 1), (3, 1, 1)])
@pytest.mark.parametrize(("m", "n"), [(0, 5), (0, 2), (-3, 4), (0, 0), (4, -1)])
@pytest.mark.sample(5)
def test_same_bits(lo, hi, step, m, n, rng) -> None:
    block = 64
    x = rng.standard_normal((20, block)).astype(np.float32)
    results = []
    for flat in (False, True):
        out = np.full((11, block), np.nan, np.float32)
        args = {"x_ptr": x, "o_ptr": out, "lo": lo, "hi": hi, "m": m, "n": n}
        made = nest.warmup(*args.values(), grid=(1,), num_warps=1, target="sm_80", B=block,
                           STEP=step, FLAT=flat)
        assert made.asm["tile"].count("scf.for") == (3 if flat else 2) - flat
        results += [got[1] for got in run_all(made, args, (1,)).values()]
    for got in results:
        assert got.tobytes() == results[0].tobytes()
    assert results[0][10, 0] == len(range(lo, hi, step))


@tilec.jit
def stepped(o_ptr, lo, hi, n, step, FLAT: tl.constexpr):
    """How often the inner loop runs is known at run time alone, and what stands before it ends
    for no other index than those of the outer loop."""
    total = 0
    for i in tl.range(lo, hi, flatten=FLAT):
        j = hi
        while j != i:
            j -= 1
        part = total + j
        for k in range(0, n, step):
            part = part * 3 + k
        total = part + 1
        tl.store(o_ptr + i, total)


@pytest.mark.parametrize(("lo", "hi", "step"), [(0, 3, -1), (0, 3, 0), (0, 3, 3), (2, -9, 1)])
def test_steps_and_nests_without_rounds(lo, hi, step) -> None:
    want, total = np.full(4, -1, np.int32), 0
    for i in range(lo, hi):
        total += i
        for k in range(0, 7, step) if step > 0 else ():
            total = total * 3 + k
        total += 1
        want[i] = total
    args = {"o_ptr": np.full(4, -1, np.int32), "lo": lo, "hi": hi, "n": 7, "step": step}
    made = stepped.warmup(*args.values(), grid=(1,), num_warps=1, target="sm_80", FLAT=True)
    assert made.asm["tile"].count("scf.while") == 3  # before, in each, and without rounds
    for level, (got,) in run_all(made, args, (1,)).items():
        np.testing.assert_array_equal(got, want, level)


@tilec.jit
def persistent(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
               FLAT: tl.constexpr):
    across = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * across, tl.num_programs(0),
                         flatten=FLAT):
        rm = tile // across * BM + tl.arange(0, BM)
        rn = tile % across * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            rk = k + tl.arange(0, BK)
            a = tl.load(a_ptr + rm[:, None] * K + rk[None, :],
                        (rm[:, None] < M) & (rk[None, :] < K), other=0.0)
            b = tl.load(b_ptr + rk[:, None] * N + rn[None, :],
                        (rk[:, None] < K) & (rn[None, :] < N), other=0.0)
            acc = tl.dot(a, b, acc)
        tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc, (rm[:, None] < M) & (rn[None, :] < N))


@pytest.mark.parametrize("programs", [1, 3, 9])
@pytest.mark.parametrize("k", [16, 80])
@pytest.mark.sample(2)
def test_persistent_products_load_ahead_across_tiles(programs, k, rng) -> None:
    m, n = 57, 80
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    results = []
    for flat in (False, True):
        c = np.full((m, n), np.nan, np.float32)
        args = {"a_ptr": a, "b_ptr": b, "c_ptr": c, "M": m, "N": n, "K": k}
        made = persistent.warmup(*args.values(), grid=(programs,), num_warps=2, target="sm_80",
                                 BM=32, BN=32, BK=16, FLAT=flat)
        text = made.asm["gpu"]
        # The first copies are those of the first tile; flat, no others wait for what they fill.
        assert (text.index("gpu.async_copy(") < text.index("scf.for(")) == flat
        results += [got[2] for got in run_all(made, args, (programs,)).values()]
    for got in results:
        assert got.tobytes() == results[0].tobytes()
    np.testing.assert_allclose(results[0], a.astype(float) @ b.astype(float), 1e-3, 1e-3)


@tilec.jit
def not_flat(x_ptr, n, CASE: tl.constexpr):
    for i in tl.range(0, n, flatten=True):
        if CASE == "no inner":
            tl.store(x_ptr, i)
        elif CASE == "load before":
            x = tl.load(x_ptr)
            for _ in range(n):
                x += 1
            tl.store(x_ptr, x)
        elif CASE == "steps":
            for j in range(0, n, i + 1):
                tl.store(x_ptr + j, i)
        elif CASE == "triangle":
            for j in range(i):
                tl.store(x_ptr + j, i)


@pytest.mark.parametrize(("case", "reason"), [
    ("no inner", "it has no loops directly inside"), ("load before", "tile.load before the inner"),
    ("triangle", "the inner loop's bounds change"), ("steps", "the inner loop's bounds change")])
def test_what_stays_a_nest_says_why(case, reason) -> None:
    with recording() as remarks:
        not_flat.warmup(np.zeros(8, np.int32), 3, grid=(1,), CASE=case)
    assert any(reason in r.message for r in remarks if r.kind == "loop")
