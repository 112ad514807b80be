"""Atomics of every kind and dtype as cubins on the GPU, against numpy; programs that wait for each
other there; the atomics of descriptors, by pointers and by TMA."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import pytest

import tilec
from tests.gpu.test_levels import OnDevice
from tests.language import test_waiting as waiting
from tests.language.test_atomics import (
    DTYPES,
    SCOPES,
    SEMS,
    TYPES,
    bits,
    equal,
    expected,
    poisoned,
    random,
    scalars,
    tiles,
)
from tests.language.test_descriptors import COMBINED, clipped, combine, put
from tests.language.test_explicit_tma import KINDS, combined
from tests.support.explicit import HOPPER

pytestmark = pytest.mark.gpu
CASES = [(kind, dtype) for kind, dtypes in TYPES.items() for dtype in dtypes]
COMMUTING = [c for c in CASES if c[0] not in ("xchg", "cas")]


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_tiles(kind, dtype, used, rng) -> None:
    """Each lane has an element of its own; extents, orders and scopes at random."""
    for block in (32, 96, 256):
        n = int(rng.integers(1500, 4000))
        grid = -(-n // block)
        x0, v = random(rng, dtype, n + 300 + grid * block), random(rng, dtype, n)
        slots = rng.permutation(n + 90)[:n].astype(np.int32)
        c = np.where(rng.random(n) < 0.6, x0[slots], v)
        want, old = expected(kind, x0, slots, c, v)
        x, o = OnDevice(x0), OnDevice(poisoned(n, dtype))
        tiles[(grid,)](x, OnDevice(slots), OnDevice(c), OnDevice(v), o, n, KIND=kind, USED=used,
                       B=block, SEM=str(rng.choice(SEMS)), SCOPE=str(rng.choice(SCOPES[::2])),
                       num_warps=int(rng.choice([1, 2, 4])))
        equal(x.get()[:n + 100], want[:n + 100], "memory")
        equal(o.get(), old if used else poisoned(n, dtype), "old values")


@pytest.mark.parametrize(("kind", "dtype"), COMMUTING)
def test_lanes_and_programs_that_meet(kind, dtype, rng) -> None:
    """Thousands of lanes update a few elements, whose results no order changes."""
    block, grid, few = 128, 60, 11
    n = block * grid - 37
    x0, v = random(rng, dtype, n + 400 + block, True), random(rng, dtype, n, True)
    if kind == "add" and dtype in ("f16", "bf16"):
        v[:] = np.where(rng.random(n) < 0.02, v, 0)  # sums that the type holds
    slots = rng.integers(0, few, n).astype(np.int32)
    want, _ = expected(kind, x0, slots, v, v)
    x, there = OnDevice(x0), OnDevice(v)
    tiles[(grid,)](x, OnDevice(slots), there, there, OnDevice(v), n, KIND=kind, SEM="relaxed",
                   SCOPE="gpu", USED=False, B=block)
    equal(x.get()[:few], want[:few], "memory")


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_scalars(kind, dtype, used, rng) -> None:
    n = 300
    x0, v = random(rng, dtype, n), random(rng, dtype, n)
    c = np.where(rng.random(n) < 0.5, x0, v)
    want, old = expected(kind, x0, np.arange(n), c, v)
    if kind != "cas":
        want[1], old[1] = x0[1], poisoned(1, dtype)[0]
    x, o = OnDevice(x0), OnDevice(poisoned(n, dtype))
    scalars[(n,)](x, OnDevice(c), OnDevice(v), o, KIND=kind, SEM=str(rng.choice(SEMS)),
                  SCOPE="gpu", USED=used)
    equal(x.get(), want, "memory")
    equal(o.get(), old if used else poisoned(n, dtype), "old values")


@pytest.mark.parametrize("dtype", ["i32", "u64", "f32", "f64"])
def test_what_xchg_takes_out_is_what_went_in(dtype, rng) -> None:
    n, few, block = 5000, 3, 64
    x0, v = random(rng, dtype, n + 400 + block), random(rng, dtype, n)
    slots = rng.integers(0, few, n).astype(np.int32)
    x, o, there = OnDevice(x0), OnDevice(poisoned(n, dtype)), OnDevice(v)
    tiles[(-(-n // block),)](x, OnDevice(slots), there, there, o, n, KIND="xchg", SEM="acq_rel",
                             SCOPE="gpu", USED=True, B=block)
    x, o = x.get(), o.get()
    for s in range(few):
        went_in = [*bits(v[slots == s]).tolist(), *bits(x0[s:s + 1]).tolist()]
        came_out = [*bits(o[slots == s]).tolist(), *bits(x[s:s + 1]).tolist()]
        assert Counter(went_in) == Counter(came_out)


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_where_a_nan_meets_a_number_either_stays(kind, dtype, rng) -> None:
    n = 64
    nan = np.full(n, np.nan).astype(DTYPES[dtype])
    x0, v = random(rng, dtype, n + 400), random(rng, dtype, n)
    x0[:n:3], v[1::3] = nan[:n:3], nan[1::3]
    slots = np.arange(n, dtype=np.int32)
    x, there = OnDevice(x0), OnDevice(v)
    tiles[(1,)](x, OnDevice(slots), there, there, OnDevice(v), n, KIND=kind, SEM="relaxed",
                SCOPE="gpu", USED=False, B=64)
    got = x.get()
    assert ((bits(got[:n]) == bits(x0[:n])) | (bits(got[:n]) == bits(v))).all()
    equal(got[2:n:3], expected(kind, x0, slots, v, v)[0][2:n:3], "memory")


# -- programs that wait for each other ------------------------------------------------------------

@pytest.mark.parametrize("num_warps", [1, 4, 8])
@pytest.mark.parametrize("kernel", [waiting.locked, waiting.exchanged], ids=["cas", "xchg"])
def test_a_lock(kernel, num_warps) -> None:
    """More programs than multiprocessors; all fit beside each other."""
    n, want = 300, np.int64(0)
    for _ in range(n):
        want = (3 * want + 1) % 2**32
    lock, x = OnDevice(np.zeros(1, np.int32)), OnDevice(np.zeros(500, np.int32))
    kernel[(n,)](lock, x, N=500, num_warps=num_warps)
    assert lock.get()[0] == 0
    np.testing.assert_array_equal(x.get().view(np.uint32), want)


def test_partial_sums_under_locks(rng) -> None:
    x = rng.integers(-9, 9, (400, 1000)).astype(np.float32)
    groups = 16
    partial, lock, count = (OnDevice(a) for a in (
        np.full((groups, 1000), np.nan, np.float32), *np.zeros((2, groups), np.int32)))
    waiting.normed[(400,)](lock, count, OnDevice(x), partial, N=1000, GROUPS=groups)
    np.testing.assert_array_equal(partial.get(), [2 * x[g::groups].sum(0) for g in range(groups)])


def test_tickets() -> None:
    counter, turn = (OnDevice(np.zeros(1, np.int32)) for _ in range(2))
    order = OnDevice(np.full(200, -1, np.int32))
    waiting.ticket[(200,)](counter, turn, order, N=1)
    assert sorted(order.get().tolist()) == list(range(200)) and turn.get()[0] == 200


@pytest.mark.parametrize("down", [False, True])
def test_turns(down) -> None:
    n, want = 100, np.int64(0)
    for i in reversed(range(n)) if down else range(n):
        want = (2 * want + i) % 2**32
    turn, x = OnDevice(np.zeros(1, np.int32)), OnDevice(np.zeros(333, np.int32))
    waiting.in_turn[(n,)](turn, x, DOWN=down, N=333)
    np.testing.assert_array_equal(x.get().view(np.uint32), want)


def test_a_barrier_of_the_grid() -> None:
    n, width, count = 128, 256, 5
    x, y = (OnDevice(np.full((count, n, width), -1, np.int32)) for _ in range(2))
    waiting.rounds[(n,)](OnDevice(np.zeros(1, np.int32)), x, y, N=width, ROUNDS=count)
    me, r = (np.arange(n) + 1) % n, np.arange(count)
    np.testing.assert_array_equal(
        y.get(), me[None, :, None] * 1000 + r[:, None, None] * 100 + np.arange(width))


def test_a_flag_that_is_loaded() -> None:
    x, out = OnDevice(np.zeros(240, np.int32)), OnDevice(np.zeros((99, 240), np.int32))
    waiting.flagged[(100,)](OnDevice(np.zeros(1, np.int32)), x, out, N=240)
    np.testing.assert_array_equal(out.get(), np.broadcast_to(np.arange(240) * 7, (99, 240)))


# -- descriptors ----------------------------------------------------------------------------------

@pytest.mark.parametrize(("kind", "dtype"), [
    (kind, dtype) for kind in COMBINED for dtype in (np.int32, np.uint32, np.int64, np.uint64,
                                                     np.float16, ml_dtypes.bfloat16, np.float32)
    if kind in ("max", "min") or np.dtype(dtype).kind in "iu"])
def test_descriptors(kind, dtype, rng) -> None:
    low = -50 if np.dtype(dtype).kind != "u" else 0
    dst, values = (rng.integers(low, 50, shape).astype(dtype) for shape in ((25, 70), (16, 32)))
    want, (whole, part) = dst.copy(), clipped((25, 70), (23, -1), (16, 32))
    want[whole] = COMBINED[kind](want[whole], values[part])
    out = OnDevice(dst)
    combine[(4,)](out, 25, 70, OnDevice(values), KIND=kind, BM=16, BN=32)
    np.testing.assert_array_equal(out.get(), want)


@pytest.mark.parametrize(("kind", "dtype"), [
    *((k, t) for k in KINDS for t in (np.int32, np.uint32, np.uint64)),
    *((k, t) for k in ("max", "min") for t in (np.float16, ml_dtypes.bfloat16)),
    *((k, np.int64) for k in ("and", "or", "xor"))])
def test_by_tma(kind, dtype, rng) -> None:
    low = -99 if np.dtype(dtype).kind != "u" else 0
    x, begin = (rng.integers(low, 99, (160, 32)).astype(dtype) for _ in range(2))
    want = begin.copy()
    for block in x.reshape(10, 16, 32):
        want[:16] = KINDS[kind](want[:16], block)
    out = OnDevice(begin)
    described = [tilec.TensorDescriptor(a, (160, 32), (32, 1), (16, 32))
                 for a in (OnDevice(x), out)]
    combined[(10,)](*described, KIND=kind, num_warps=HOPPER["num_warps"])
    np.testing.assert_array_equal(out.get(), want)


@pytest.mark.parametrize("y", [0, 5, -3])
def test_scatter(y, rng) -> None:
    src, dst = rng.standard_normal((64, 32)).astype(np.float32), np.zeros((50, 40), np.float16)
    rows, want = (rng.permutation(70)[:64] - 5).astype(np.int32), dst.copy()
    for i, row in enumerate(rows.tolist()):
        for j in range(32):
            if 0 <= row < 50 and 0 <= y + j < 40:
                want[row, y + j] = src[i, j]
    out = OnDevice(dst)
    put[(1,)](out, OnDevice(rows), OnDevice(src), 50, 40, y, R=64, B=32)
    np.testing.assert_array_equal(out.get(), want)
