"""Named barriers between warp roles: the same values at every level."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from tests.support.explicit import LEVELS, both, everywhere
from tilec.ir.remarks import recording

describe = tilec.TensorDescriptor.from_tensor


# -- one buffer, full and empty -------------------------------------------------------------------

@tilec.jit
def produce(x, n, rounds, buffer, full, empty):
    """Doubled parts of x into the buffer, part after part."""
    B: tl.constexpr = buffer.shape[0]
    for i in range(rounds):
        at = i * B + tl.arange(0, B)
        part = tl.load(x + at, mask=at < n, other=0) * 2
        if i > 0:
            empty.sync()
        buffer.store(part)
        full.arrive()


@tilec.jit
def consume(y, total, n, rounds, buffer, full, empty):
    """The buffer's parts to y, and the sum of all that is in them to total."""
    B: tl.constexpr = buffer.shape[0]
    acc = tl.zeros((), y.dtype.element_ty)
    for i in range(rounds):
        at = i * B + tl.arange(0, B)
        full.sync()
        part = buffer.load()
        empty.arrive()
        tl.store(y + at, part, mask=at < n)
        acc += tl.sum(part, 0)
    tl.store(total, acc)


@tilec.jit
def handed_over(x, y, total, n, B: tl.constexpr, WARPS: tl.constexpr, GIVE: tl.constexpr,
                TAKE: tl.constexpr):
    buffer = tlg.alloc_shared((B,), y.dtype.element_ty)
    full, empty = tlg.named_barrier(WARPS[0] + WARPS[1]), tlg.named_barrier(WARPS[0] + WARPS[1])
    rounds = tl.cdiv(n, B)
    tlg.warp_specialize([(GIVE, (x, n, rounds, buffer, full, empty)),
                         (TAKE, (y, total, n, rounds, buffer, full, empty))], num_warps=WARPS)


def handing_over(args, warps, give=produce, take=consume):
    return handed_over.warmup(*args, B=128, WARPS=warps, GIVE=give, TAKE=take, grid=(1,),
                              target="sm_90a", num_warps=sum(warps))


@pytest.mark.parametrize("warps, dtype, n", [
    ((1, 1), np.float32, 613), ((2, 1), np.int32, 613), ((4, 2), np.float16, 300),
    ((4, 8), np.float32, 613), ((2, 1), np.int32, 1)], ids=str)
@pytest.mark.sample(2)
def test_roles_hand_tiles_over(warps, dtype, n, rng):
    x = rng.integers(-9, 9, n).astype(dtype)
    y, total = np.empty(n, dtype), np.empty(1, dtype)
    args = [x, y, total, n]
    kernel = handing_over(args, warps)
    everywhere(kernel, args, 1, y, x * 2)
    for seed in range(4):
        for level in LEVELS:
            y[...], total[...] = -1, -1
            kernel.run(args, 1, level=level, seed=seed)
            np.testing.assert_array_equal(y, x * 2, level)
            assert total[0] == x.astype(np.float64).sum() * 2
    threads = 32 * sum(warps)
    for number in (15, 14) if n > 1 else ():  # of one round, passes leave out what it never does
        assert f"bar.sync {number}, {threads};" in kernel.asm["ptx"]
        assert f"bar.arrive {number}, {threads};" in kernel.asm["ptx"]


# -- to a role that stores by TMA -----------------------------------------------------------------

@tilec.jit
def make(x, rounds, out, full, empty):
    rows, columns = tl.arange(0, 64), tl.arange(0, 64)
    for i in range(rounds):
        at = (i * 64 + rows[:, None]) * 64 + columns[None, :]
        tile = tl.load(x + at) + i
        if i > 0:
            empty.sync()
        out.store(tile)
        tlg.fence_async()
        full.arrive()


@tilec.jit
def store(y, rounds, out, full, empty):
    for i in range(rounds):
        full.sync()
        tlg.tma.store(y, [i * 64, 0], out)
        tlg.tma.store_commit()
        tlg.tma.store_wait(read=True)
        empty.arrive()


@tilec.jit
def stored_by_a_role(x, y, rounds, MAKE: tl.constexpr):
    out = tlg.alloc_shared((64, 64), y.dtype)
    full, empty = tlg.named_barrier(5), tlg.named_barrier(5)
    tlg.warp_specialize([(MAKE, (x, rounds, out, full, empty)),
                         (store, (y, rounds, out, full, empty))], num_warps=[4, 1])


def storing(x, y, first=make):
    args = [x, describe(y, (64, 64)), len(x) // 64]
    return args, stored_by_a_role.warmup(*args, MAKE=first, grid=(1,), target="sm_90a", num_warps=5)


def test_a_role_stores_what_another_has_made(rng):
    """An arrival vouches for each thread's own fence: no barrier of the role comes before it."""
    x = rng.integers(-9, 9, (192, 64)).astype(np.float16)
    y = np.empty_like(x)
    args, kernel = storing(x, y)
    everywhere(kernel, args, 1, y, x + np.repeat(np.arange(3), 64)[:, None])


# -- ping-pong ------------------------------------------------------------------------------------

@tilec.jit
def compute(x, trace, rounds, box, mine, theirs, WHO: tl.constexpr):
    """In turns with the other role: the box's tile times 2 or plus 3; and how often it was so."""
    at = tl.arange(0, 128)
    for i in range(rounds):
        mine.sync()
        tile = box.load()
        tl.store(trace + (2 * i + WHO) * 128 + at, tile)
        if WHO == 0:
            tile = tile * 2
        else:
            tile = tile + 3
        box.store(tile)
        theirs.arrive()
    if WHO == 1:
        mine.sync()  # the first one's last word
        tl.store(x + at, box.load())


@tilec.jit
def begin(x, trace, rounds, box, first, second):
    box.store(tl.load(x + tl.arange(0, 128)))
    first.arrive()
    compute(x, trace, rounds, box, second, first, 1)


@tilec.jit
def go(x, trace, rounds, box, first, second):
    compute(x, trace, rounds, box, first, second, 0)
    first.sync()
    second.arrive()


@tilec.jit
def in_turns(x, trace, rounds, WARPS: tl.constexpr):
    box = tlg.alloc_shared((128,), tl.int32)
    first, second = tlg.named_barrier(2 * WARPS), tlg.named_barrier(2 * WARPS)
    tlg.warp_specialize([(go, (x, trace, rounds, box, first, second)),
                         (begin, (x, trace, rounds, box, first, second))],
                        num_warps=[WARPS, WARPS])


@pytest.mark.parametrize("warps", [1, 4])
def test_ping_pong(warps, rng):
    """Two roles that compute take turns, and each sees what the other has left."""
    rounds, start = 3, rng.integers(-99, 99, 128).astype(np.int32)
    want, value = [], start.astype(np.int64)
    for i in range(2 * rounds):
        want.append(value)
        value = value * 2 if i % 2 == 0 else value + 3
    x, trace = start.copy(), np.empty((2 * rounds, 128), np.int32)
    kernel = in_turns.warmup(x, trace, rounds, WARPS=warps, grid=(1,), target="sm_90a",
                             num_warps=2 * warps)
    for level in LEVELS:
        for seed in range(3):
            x[...], trace[...] = start, -1
            kernel.run([x, trace, rounds], 1, level=level, seed=seed)
            np.testing.assert_array_equal(trace, want, level)
            np.testing.assert_array_equal(x, value, level)


@tilec.jit
def multiply(x, y, out, rounds, mine, theirs, WHO: tl.constexpr):
    """rounds times x @ y, begun in turns with the other role, and under way beside its."""
    rows, columns = tl.arange(0, 64), tl.arange(0, 64)
    acc = tl.zeros((64, 64), tl.float32)
    for i in range(rounds):
        if i + WHO > 0:
            mine.sync()
        acc = tlg.wgmma(x, y, acc)
        theirs.arrive()
        acc = tlg.wgmma_wait(0, acc)
    tl.store(out + (WHO * 64 + rows[:, None]) * 64 + columns[None, :], acc)


@tilec.jit
def products_in_turns(a, b, out, rounds):
    x, y = both(a, b)
    first, second = tlg.named_barrier(8), tlg.named_barrier(8)
    tlg.warp_specialize([(multiply, (x, y, out, rounds, first, second, 0)),
                         (multiply, (x, y, out, rounds, second, first, 1))], num_warps=[4, 4])


def test_products_in_turns(rng):
    a, b = rng.integers(-3, 4, (2, 64, 64)).astype(np.float16)
    out = np.empty((128, 64), np.float32)
    args = [describe(a, (64, 64)), describe(b, (64, 64)), out, 3]
    kernel = products_in_turns.warmup(*args, grid=(1,), target="sm_90a", num_warps=8)
    want = 3 * (a.astype(np.float32) @ b.astype(np.float32))
    everywhere(kernel, args, 1, out, np.concatenate([want, want]))
    linked = kernel.lower().linked
    assert linked.advisories == [] and linked.n_spills == 0


@tilec.jit
def passes_on(x, log, rounds, bars, WHO: tl.constexpr):
    """Role WHO of a ring: adds 10 ** WHO to what the one before it has left in global memory."""
    at = tl.arange(0, 64)
    for i in range(rounds):
        if i + WHO > 0:
            bars[WHO].sync()
        tile = tl.load(x + at) + 10 ** WHO
        tl.store(log + (i * len(bars) + WHO) * 64 + at, tile)
        tl.store(x + at, tile)
        bars[(WHO + 1) % len(bars)].arrive()


@tilec.jit
def ring(x, log, rounds):
    bars = (tlg.named_barrier(3), tlg.named_barrier(3), tlg.named_barrier(2))
    tlg.warp_specialize([(passes_on, (x, log, rounds, bars, 0)),
                         (passes_on, (x, log, rounds, bars, 1)),
                         (passes_on, (x, log, rounds, bars, 2))], num_warps=[2, 1, 1])


def test_a_ring_of_roles(rng):
    """Barriers in a tuple. Each is for the two roles that come to it; the order goes through all.
    """
    start = rng.integers(-99, 99, 64).astype(np.int32)
    x, log = start.copy(), np.empty((9, 64), np.int32)
    kernel = ring.warmup(x, log, 3, grid=(1,), target="sm_90a", num_warps=4)
    want = start + np.cumsum([1, 10, 100] * 3)[:, None]
    for level in LEVELS:
        for seed in range(3):
            x[...], log[...] = start, -1
            kernel.run([x, log, 3], 1, level=level, seed=seed)
            np.testing.assert_array_equal(log, want, level)
            np.testing.assert_array_equal(x, want[-1], level)


# -- global memory, and all warps -----------------------------------------------------------------

@tilec.jit
def writes(x, y, n, told):
    at = tl.arange(0, 128)
    tl.store(y + at, tl.load(x + at, mask=at < n, other=0) + 1, mask=at < n)
    told.arrive()


@tilec.jit
def reads(y, z, n, told):
    at = tl.arange(0, 128)
    told.sync()
    tl.store(z + at, tl.load(y + n - 1 - at, mask=at < n) * 2, mask=at < n)


@tilec.jit
def by_global_memory(x, y, z, n):
    told = tlg.named_barrier(3)
    tlg.warp_specialize([(writes, (x, y, n, told)), (reads, (y, z, n, told))], num_warps=[2, 1])


def test_global_memory_is_ordered(rng):
    x, y, z = rng.integers(-99, 99, 101).astype(np.int32), *np.full((2, 101), -1, np.int32)
    args = [x, y, z, 101]
    kernel = by_global_memory.warmup(*args, grid=(1,), target="sm_90a", num_warps=3)
    for level in LEVELS:
        for seed in range(3):
            y[...] = z[...] = -1
            kernel.run(args, 1, level=level, seed=seed)
            np.testing.assert_array_equal(z, (x[::-1] + 1) * 2, level)


@tilec.jit
def reverses(x):
    """By a buffer, which all warps have filled when they go on."""
    buffer, filled = tlg.alloc_shared((256,), tl.int32), tlg.named_barrier(tlg.num_warps())
    at = tl.arange(0, 256)
    buffer.store(tl.load(x + at))
    filled.sync()
    tl.store(x + 255 - at, buffer.load() + tl.load(x + at))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_outside_of_roles_all_warps_wait(target, rng):
    start = rng.integers(-99, 99, 256).astype(np.int32)
    x = start.copy()
    kernel = reverses.warmup(x, grid=(3,), target=target, num_warps=4)
    assert "bar.sync 15, 128;" in kernel.asm["ptx"]
    for level in LEVELS:
        x[...] = start
        kernel.run([x], 1, level=level)
        np.testing.assert_array_equal(x, (2 * start)[::-1], level)


@tilec.jit
def after_a_loop(a, b, c):
    acc = tl.zeros((64, 64), tl.float32)
    for k in tl.range(0, a.shape[1], 64, warp_specialize=True):
        acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
    buffer = tlg.alloc_shared((64, 64), tl.float32)
    buffer.store(acc)
    tlg.named_barrier(tlg.num_warps()).sync()
    at = tl.arange(0, 64)
    tl.store(c + at[:, None] * 64 + at[None, :], buffer.load())


def test_a_loop_gets_no_warps_that_the_barrier_does_not_count(rng):
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((64, 192), (192, 64)))
    c = np.empty((64, 64), np.float32)
    args = [describe(a, (64, 64)), describe(b, (64, 64)), c]
    with recording() as remarks:
        kernel = after_a_loop.warmup(*args, grid=(1,), target="sm_90a", num_warps=4)
    everywhere(kernel, args, 1, c, a.astype(np.float32) @ b.astype(np.float32))
    assert kernel.threads == 128 and "wgmma" in kernel.asm["ptx"]
    assert any("named barriers, which count its warps" in r.message for r in remarks)
