"""Where operands of dots for wgmma lie, and loops of two dots whose text is in an unusual order.
All numbers are whole and small, so that results are exact at every level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from tilec.knobs import RUN_LEVELS

LEVELS = RUN_LEVELS
d = tilec.TensorDescriptor.from_tensor


def exact(kernel: Any, args: list[Any], out: np.ndarray, want: np.ndarray, stages: int,
          **constants: Any) -> Any:
    """Run at every level, and give the kernel."""
    made = kernel.warmup(*args, **constants, grid=(1,), target="sm_90a", num_warps=4,
                         num_stages=stages)
    for level in LEVELS:
        out.view(np.uint8)[...] = 0xA5
        made.run(args, (1,), level, seed=stages)
        np.testing.assert_array_equal(out, want, f"{level}, {stages} stages")
    return made


@tilec.jit
def orders(q, k, v, out, lo, n, KIND: tl.constexpr, UNROLL: tl.constexpr):
    queries = q.load([0, 0])
    acc = tl.zeros((64, 64), tl.float32)
    row = tl.zeros((64,), tl.float32)
    at = lo
    for i in tl.range(lo, n, 32, loop_unroll_factor=UNROLL):
        if KIND == "v first":
            values = v.load([i, 0])
        s = tl.dot(queries, tl.trans(k.load([i, 0])))
        if KIND == "between needs the rest":
            s = tl.where(row[:, None] > 0, s, -s)
        s = tl.minimum(tl.maximum(s, -3.0), 3.0)
        if KIND != "v first":
            values = v.load([i, 0])
        acc = tl.dot(s.to(q.dtype), values, acc)
        row = tl.minimum(tl.maximum(tl.sum(acc, 1), -2.0), 2.0)
        at = i
    out.store([0, 0], acc + row[:, None] + at)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(("lo", "n"), [(0, 100), (3, 4), (5, 5)])
@pytest.mark.parametrize(("kind", "unroll"), [("v first", 1), ("between needs the rest", 1),
                                              ("plain", 2), ("plain", 3)])
@pytest.mark.sample(9)
def test_orders_of_a_chain(kind, unroll, lo, n, stages, rng) -> None:
    q, k, v = (rng.integers(-1, 2, (rows, 64)).astype(np.float16) for rows in (64, 100, 100))
    whole_k, whole_v = (np.vstack([x, np.zeros((60, 64))]).astype(np.float64) for x in (k, v))
    acc, row, at = np.zeros((64, 64)), np.zeros(64), lo
    for i in range(lo, n, 32):
        s = q.astype(np.float64) @ whole_k[i:i + 32].T
        if kind == "between needs the rest":
            s = np.where(row[:, None] > 0, s, -s)
        acc = acc + np.clip(s, -3, 3) @ whole_v[i:i + 32]
        row, at = np.clip(acc.sum(1), -2, 2), i
    out = np.empty((64, 64), np.float32)
    args = [*(d(x, (b, 64)) for x, b in ((q, 64), (k, 32), (v, 32), (out, 64))), lo, n]
    made = exact(orders, args, out, acc + row[:, None] + at, stages, KIND=kind, UNROLL=unroll)
    assert "gpu.wgmma(" in made.asm["gpu"]


@tilec.jit
def held(q_ptr, k, out, n, LAYOUT: tl.constexpr):
    """The first operand is read from a buffer of the author's, who then stores something else."""
    rows = tl.arange(0, 64)
    x = tl.load(q_ptr + rows[:, None] * 64 + tl.arange(0, 64)[None, :])
    if LAYOUT:
        buffer = tlg.alloc_shared((64, 64), tl.float16, tlg.Swizzled(1, 1, 1, (1, 0)))
    else:
        buffer = tlg.alloc_shared((64, 64), tl.float16)
    buffer.store(x)
    queries = buffer.load()
    buffer.store(x * 0.0)
    acc = tl.zeros((64, 32), tl.float32)
    for i in range(0, n, 32):
        acc = tl.dot(queries, tl.trans(k.load([i, 0])), acc)
    out.store([0, 0], acc)


@pytest.mark.parametrize("layout", [False, True])
def test_what_an_author_has_read_from_a_buffer(layout, rng) -> None:
    q, k = (rng.integers(-2, 3, (n, 64)).astype(np.float16) for n in (64, 96))
    out = np.empty((64, 32), np.float32)
    want = q.astype(np.float64) @ k.astype(np.float64).reshape(3, 32, 64).sum(0).T
    exact(held, [q, d(k, (32, 64)), d(out, (64, 32)), 96], out, want, 2, LAYOUT=layout)


@tilec.jit
def outside(q_ptr, k, out, m, n, STAGES: tl.constexpr):
    """The first operand is a tile that a pipelined loop around has copied."""
    total = tl.zeros((64, 32), tl.float32)
    for t in tl.range(0, m, 64, num_stages=STAGES):
        rows = t + tl.arange(0, 64)
        x = tl.load(q_ptr + rows[:, None] * 64 + tl.arange(0, 64)[None, :], rows[:, None] < m, 0.0)
        acc = tl.zeros((64, 32), tl.float32)
        for i in range(0, n, 32):
            acc = tl.dot(x, tl.trans(k.load([i, 0])), acc)
        total += acc
    out.store([0, 0], total)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_operand_of_a_pipelined_loop_around(stages, rng) -> None:
    q, k = (rng.integers(-2, 3, (n, 64)).astype(np.float16) for n in (200, 96))
    out = np.empty((64, 32), np.float32)
    each = np.vstack([q, np.zeros((56, 64))]).reshape(4, 64, 64).sum(0)
    want = each @ k.astype(np.float64).reshape(3, 32, 64).sum(0).T
    exact(outside, [q, d(k, (32, 64)), d(out, (64, 32)), 200, 96], out, want, 2, STAGES=stages)


def test_copies_have_come_when_the_program_ends(rng) -> None:
    """Where the loop has no round, nobody reads what TMA has brought for it."""
    q, k, v = (rng.integers(-1, 2, (64, 64)).astype(np.float16) for _ in range(3))
    out = np.empty((64, 64), np.float32)
    args = [*(d(x, (b, 64)) for x, b in ((q, 64), (k, 32), (v, 32), (out, 64))), 0, 0]
    made = exact(orders, args, out, np.zeros((64, 64)), 2, KIND="plain", UNROLL=1)
    end = made.asm["gpu"].rpartition("scf.if")[2].partition("} : ")[2]
    assert "gpu.mbarrier_wait(" in end


@tilec.jit
def used_twice(x, y, out, n):
    block = x.load([0, 0])
    acc = tl.zeros((64, 64), tl.float32)
    for i in range(0, n, 64):
        acc = tl.dot(block, y.load([i, 0]), acc)
    for i in range(0, n, 64):
        acc = tl.dot(block, y.load([i, 0]), acc * 2)
    out.store([0, 0], acc)


def test_a_block_is_waited_for_once(rng) -> None:
    """Beside those that each loop waits for in each round."""
    x, y = (rng.integers(-2, 3, (rows, 64)).astype(np.float16) for rows in (64, 128))
    first, last = (x.astype(np.float64) @ part for part in y.astype(np.float64).reshape(2, 64, 64))
    out = np.empty((64, 64), np.float32)
    args = [d(x, (64, 64)), d(y, (64, 64)), d(out, (64, 64)), 128]
    made = exact(used_twice, args, out, ((first + last) * 2 + first) * 2 + last, 2)
    assert made.asm["gpu"].count("gpu.mbarrier_wait(") == 3


@tilec.jit
def two_ways(a, b, out, sums, n):
    """One block for wgmma and for mma.sync, which threads read for themselves."""
    acc = tl.zeros((64, 64), tl.float32)
    few = tl.zeros((32, 64), tl.float32)
    for i in tl.range(0, n, 64, warp_specialize=True):
        y = b.load([i, 0])
        acc = tl.dot(a.load([0, i]), y, acc)
        few = tl.dot(tl.full((32, 64), 1.0, tl.float16), y, few)
    out.store([0, 0], acc)
    sums.store([0, 0], few)


@pytest.mark.parametrize("stages", [2, 3])
def test_roles_whose_block_threads_read_too(stages, rng) -> None:
    a, b = (rng.integers(-2, 3, s).astype(np.float16) for s in ((64, 304), (304, 64)))
    out, sums = np.empty((64, 64), np.float32), np.empty((32, 64), np.float32)
    args = [d(a, (64, 64)), d(b, (64, 64)), d(out, (64, 64)), d(sums, (32, 64)), 304]
    made = exact(two_ways, args, out, a.astype(np.float64) @ b.astype(np.float64), stages)
    np.testing.assert_array_equal(sums, np.repeat(b.astype(np.float64).sum(0)[None], 32, 0))
    assert "gpu.warp_role" in made.asm["gpu"]


@tilec.jit
def copies_after(a, b, p_ptr, out, n):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    buffer = tlg.alloc_shared((64, 64), tl.float32)
    acc = tl.zeros((64, 64), tl.float32)
    for i in tl.range(0, n, 64, warp_specialize=True):
        acc = tl.dot(a.load([0, i]), b.load([i, 0]), acc)
    tlg.async_copy(p_ptr + at, buffer)
    tlg.async_commit()
    tlg.async_wait(0)
    out.store([0, 0], acc + buffer.load())


def test_roles_beside_copies_of_the_author(rng) -> None:
    """A role may hold no cp.async: the loop keeps its warps."""
    a, b = (rng.integers(-2, 3, s).astype(np.float16) for s in ((64, 128), (128, 64)))
    p = rng.integers(-9, 9, (64, 64)).astype(np.float32)
    out = np.empty((64, 64), np.float32)
    args = [d(a, (64, 64)), d(b, (64, 64)), p, d(out, (64, 64)), 128]
    made = exact(copies_after, args, out, a.astype(np.float64) @ b.astype(np.float64) + p, 2)
    assert "gpu.warp_role" not in made.asm["gpu"]
