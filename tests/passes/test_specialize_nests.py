"""Blocks from loops around the one whose blocks warps of their own load: the same bits as without,
at every level; where roles cannot be, one thread of all brings them."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from benchmarks.common import load_example
from tests.support.attention import EXAMPLE, LEVELS, described, inputs
from tests.support.faults import all_of
from tilec.ir import ops
from tilec.ir.parser import parse
from tilec.ir.remarks import recording

HEADS, ROWS, COLUMNS = 3, 100, 112


@tilec.jit
def nested(q, k, w, out, total, hi, WS: tl.constexpr, CARRIED: tl.constexpr):
    """Of each head, q by all of k up to hi and by the head's w, and the sums of q's rows. w is
    loaded in the outer one of three loops, q in the middle one. CARRIED: so is k's place."""
    for head in tl.range(tl.program_id(0), q.shape[0], tl.num_programs(0), warp_specialize=WS):
        weights = w.load([head, 0, 0]).reshape(32, 64)
        for first in range(0, q.shape[1], 64):
            queries = q.load([head, first, 0]).reshape(64, 64)
            acc = tl.zeros((64, 32), tl.float32)
            place = 0
            for i in range(0, hi, 32):
                acc = tl.dot(queries, tl.trans(k.load([place if CARRIED else i, 0])), acc)
                place += 32
            acc = tl.dot(queries, tl.trans(weights), acc)
            out.store([head, first, 0], acc.reshape(1, 64, 32))
            rows = first + tl.arange(0, 64)
            tl.store(total + head * q.shape[1] + rows, tl.sum(queries.to(tl.float32), 1),
                     rows < q.shape[1])


@pytest.mark.parametrize(("hi", "stages", "warps", "carried", "programs"), [
    (112, 3, 4, False, 2), (0, 2, 4, False, 1), (30, 2, 8, False, 4), (112, 1, 4, False, 2),
    (112, 3, 4, True, 2)])
@pytest.mark.sample(2)
def test_three_loops(hi, stages, warps, carried, programs, rng) -> None:
    """All numbers are whole, so that results are exact."""
    q, k, w = (rng.integers(-3, 4, shape).astype(np.float16) for shape in (
        (HEADS, ROWS, 64), (COLUMNS, 64), (HEADS, 32, 64)))
    wide = np.zeros((128, 64))
    wide[:COLUMNS] = k
    want = q @ (wide.reshape(4, 32, 64)[:-(-hi // 32)].sum(0) + w.astype(np.float64)
                ).swapaxes(1, 2)
    out, total = np.empty((HEADS, ROWS, 32), np.float32), np.empty((HEADS, ROWS), np.float32)
    args = [*(tilec.TensorDescriptor.from_tensor(x, block) for x, block in (
        (q, (1, 64, 64)), (k, (32, 64)), (w, (1, 32, 64)), (out, (1, 64, 32)))), total, hi]
    with recording() as remarks:
        made = nested.warmup(*args, WS=True, CARRIED=carried, grid=(1,), num_warps=warps,
                             num_stages=stages, target="sm_90a")
        text = made.asm["gpu"]
    assert not any(r.kind == "tma" for r in remarks)
    (remark,) = {r.message for r in remarks if r.data.get("option") == "warp_specialize"}
    roles = len(all_of(parse(text), ops.WarpRole))
    why = "a block's place depends on what a loop carries" if carried else \
        "its loads are not pipelined" if stages == 1 else ""
    assert remark == (f"its warps are not specialized: {why}" if why else
                      "a warp of its own loads the blocks")
    assert roles == (0 if why else 2)
    assert text.count("gpu.tma_load(") == 3 + (not roles and stages - 1)
    for seed, level in enumerate(("tile", *LEVELS)):
        out[:], total[:] = np.nan, np.nan
        made.run(args, (programs,), level, seed=seed)
        np.testing.assert_array_equal(out, want, level)
        np.testing.assert_array_equal(total, q.astype(np.float32).sum(2), level)


@pytest.mark.parametrize("causal", [False, True])
def test_chained_dots_without_room_for_roles(causal, rng) -> None:
    """Few registers: all warps wait for the queries of each tile, which one thread brings."""
    attention = load_example(EXAMPLE)
    arrays = inputs(rng, 2, 2, 150, 150, 64, np.float16)
    results = {}
    for ws, level in [(ws, level) for ws in (False, True) for level in LEVELS]:
        out = np.full((2, 150, 64), np.nan, np.float16)
        args = [*described([*arrays, out], (128, 64, 64, 128)), 0.125]
        made = attention.attention_kernel.warmup(
            *args, SHARED=2, CAUSAL=causal, WS=ws, grid=(1,), num_warps=8, num_stages=2,
            maxnreg=72, target="sm_90a")
        text = made.asm["gpu"]
        assert "warp_role" not in text and text.count("gpu.tma_load(") == 5
        made.run(args, (3,) if ws else (2, 2), level, seed=2)
        results[ws, level] = out.tobytes()
    assert all(results[True, level] == results[False, level] for level in LEVELS)
    assert np.isfinite(out.astype(np.float32)).all()
