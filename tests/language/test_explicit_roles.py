"""Warp roles at the explicit level: the same bits at every level."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from benchmarks.common import load_example
from tests.support.explicit import LEVELS, everywhere
from tilec.errors import InterpreterError, TilecError

BF16 = ml_dtypes.bfloat16
describe = tilec.TensorDescriptor.from_tensor


# -- TMA, wgmma and registers ---------------------------------------------------------------------

@tilec.jit
def load(a, b, i, j, steps, a_ring, b_ring, full, empty):
    STAGES: tl.constexpr = full.stages
    BK: tl.constexpr = a.block_shape[1]
    if tlg.elect():
        for s in range(steps):
            slot = s % STAGES
            empty[slot].wait(s // STAGES & 1 ^ 1)
            full[slot].expect(a_ring.nbytes + b_ring.nbytes)
            tlg.tma.load(a, [i, s * BK], a_ring[slot], full[slot])
            tlg.tma.load(b, [s * BK, j], b_ring[slot], full[slot])


@tilec.jit
def multiply(steps, a_ring, b_ring, full, empty, out, done):
    STAGES: tl.constexpr = full.stages
    acc = tl.zeros((out.shape[0], out.shape[1]), tl.float32)
    for s in range(steps):
        slot = s % STAGES
        full[slot].wait(s // STAGES & 1)
        acc = tlg.wgmma(a_ring[slot], b_ring[slot], acc, use_acc=s > 0)
        acc = tlg.wgmma_wait(0, acc)
        empty[slot].arrive()
    out.store(acc)
    tlg.fence_async()
    tlg.warpgroup_barrier()
    done.arrive()


@tilec.jit
def store(c, i, j, out, done):
    done.wait(0)
    tlg.tma.store(c, [i, j], out)
    tlg.tma.store_commit()
    tlg.tma.store_wait(read=True)


@tilec.jit
def product(a, b, c, STAGES: tl.constexpr, WARPS: tl.constexpr, REGS: tl.constexpr):
    """c = a @ b: one role multiplies, one loads, one stores."""
    BM: tl.constexpr = c.block_shape[0]
    BN: tl.constexpr = c.block_shape[1]
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    steps = tl.cdiv(a.shape[1], a.block_shape[1])
    a_ring = tlg.alloc_shared(a.block_shape, a.dtype, stages=STAGES)
    b_ring = tlg.alloc_shared(b.block_shape, b.dtype, stages=STAGES)
    out = tlg.alloc_shared((BM, BN), c.dtype)
    full = tlg.mbarrier(stages=STAGES)
    empty = tlg.mbarrier(WARPS[0] // 4, stages=STAGES)
    done = tlg.mbarrier(WARPS[0] // 4)
    tlg.barrier()
    tlg.warp_specialize([(multiply, (steps, a_ring, b_ring, full, empty, out, done)),
                         (load, (a, b, i, j, steps, a_ring, b_ring, full, empty)),
                         (store, (c, i, j, out, done))],
                        num_warps=WARPS, regs=REGS)


@pytest.mark.parametrize("warps, regs, dtype", [
    ((4, 1, 1), None, BF16), ((8, 2, 3), None, np.float16), ((4, 4, 4), (240, 24, 24), BF16)],
    ids=str)
def test_product(warps, regs, dtype, rng):
    m, n, k, bm = 100, 160, 200, 16 * warps[0]
    a, b = (rng.integers(-3, 4, s).astype(dtype) for s in ((m, k), (k, n)))
    c = np.empty((m, n), dtype)
    args = [describe(a, (bm, 64)), describe(b, (64, 64)), describe(c, (bm, 64))]
    grid = (-(-m // bm), 3)
    kernel = product.warmup(*args, STAGES=3, WARPS=warps, REGS=regs, grid=grid, target="sm_90a",
                            num_warps=sum(warps))
    want = (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
    everywhere(kernel, args, grid, c, want)
    assert kernel.threads == 32 * sum(warps)
    for number in regs or ():
        assert f".sync.aligned.u32 {number};" in kernel.asm["ptx"]
    assert ("setmaxnreg" in kernel.asm["ptx"]) == (regs is not None)


# -- tiles in roles -------------------------------------------------------------------------------

@tilec.jit
def produce(x, n, rounds, buffer, full, empty):
    """Doubled parts of x into the buffer, part after part."""
    B: tl.constexpr = buffer.shape[0]
    for i in range(rounds):
        at = i * B + tl.arange(0, B)
        empty.wait(i & 1 ^ 1)
        buffer.store(tl.load(x + at, mask=at < n, other=0) * 2)
        tlg.warpgroup_barrier()
        full.arrive()


@tilec.jit
def consume(y, total, n, rounds, buffer, full, empty):
    """The buffer's parts to y, and the sum of all that is in them to total."""
    B: tl.constexpr = buffer.shape[0]
    acc = tl.zeros((), y.dtype.element_ty)
    for i in range(rounds):
        at = i * B + tl.arange(0, B)
        full.wait(i & 1)
        part = buffer.load()
        tlg.warpgroup_barrier()
        empty.arrive()
        tl.store(y + at, part, mask=at < n)
        acc += tl.sum(part, 0)
    tl.store(total, acc)


@tilec.jit
def handed_over(x, y, total, n, B: tl.constexpr, WARPS: tl.constexpr):
    buffer = tlg.alloc_shared((B,), y.dtype.element_ty)
    full, empty = tlg.mbarrier(max(1, WARPS[0] // 4)), tlg.mbarrier(max(1, WARPS[1] // 4))
    tlg.barrier()
    rounds = tl.cdiv(n, B)
    tlg.warp_specialize([(produce, (x, n, rounds, buffer, full, empty)),
                         (consume, (y, total, n, rounds, buffer, full, empty))], num_warps=WARPS)


@pytest.mark.parametrize("warps, dtype", [
    ((1, 1), np.float32), ((2, 1), np.int32), ((1, 2), np.float32), ((4, 2), np.int32),
    ((1, 4), np.int32), ((4, 8), np.float32)], ids=str)
def test_roles_hand_tiles_over(warps, dtype, rng):
    """Few warps arrive once, as a warpgroup does; accesses and sums are those of each role."""
    n = 613
    x = rng.integers(-99, 99, n).astype(dtype)
    y, total = np.empty(n, dtype), np.empty(1, dtype)
    args = [x, y, total, n]
    kernel = handed_over.warmup(*args, B=128, WARPS=warps, grid=(1,), target="sm_90a",
                                num_warps=sum(warps))
    everywhere(kernel, args, 1, y, x * 2)
    everywhere(kernel, args, 1, total, x[None].sum(1) * 2)


@tilec.jit
def gram(x, y, n):
    """y = x x', by a loop that outside of roles would be a pipeline of asynchronous copies."""
    rows, columns = tl.arange(0, 64), tl.arange(0, 32)
    acc = tl.zeros((64, 64), tl.float32)
    for k in tl.range(0, n, 32, num_stages=3):
        inside = (k + columns < n)[None, :]
        part = tl.load(x + rows[:, None] * n + k + columns[None, :], mask=inside, other=0)
        acc = tl.dot(part, tl.trans(part), acc)
    tl.store(y + rows[:, None] * 64 + rows[None, :], acc)


@tilec.jit
def sums(x, y, n):
    """Sums along rows, and then along columns."""
    rows, columns = tl.arange(0, 64), tl.arange(0, 128)
    tile = tl.load(x + rows[:, None] * n + columns[None, :], mask=(columns < n)[None, :], other=0)
    tile = tile.to(tl.float32)
    tl.store(y + rows, tl.sum(tile, 1))
    tl.store(y + 64 + columns, tl.sum(tile, 0), mask=columns < n)


@tilec.jit
def side_by_side(x, y, z, n, WARPS: tl.constexpr):
    tlg.warp_specialize([(gram, (x, y, n)), (sums, (x, z, n))], num_warps=WARPS)


@pytest.mark.parametrize("warps, dtype", [
    ((4, 1), np.float16), ((1, 4), np.float16), ((8, 2), np.float32)], ids=str)
def test_what_tl_computes_in_roles(warps, dtype, rng):
    """Dots, reductions and masked accesses, each with the layouts and the scratch of its role."""
    n = 72
    x = rng.integers(-3, 4, (64, n)).astype(dtype)
    y, z = np.empty((64, 64), np.float32), np.empty(64 + n, np.float32)
    args = [x, y, z, n]
    kernel = side_by_side.warmup(*args, WARPS=warps, grid=(1,), target="sm_90a",
                                 num_warps=sum(warps))
    x = x.astype(np.float32)
    everywhere(kernel, args, 1, y, x @ x.T)
    everywhere(kernel, args, 1, z, np.concatenate([x.sum(1), x.sum(0)]))
    for instruction, found in (("mma.sync", True), ("cp.async", False), ("wgmma", False)):
        assert (instruction in kernel.asm["ptx"]) == found, instruction


@tilec.jit
def add(y, by, B: tl.constexpr):
    at = tl.arange(0, B) + by * B
    tl.store(y + at, tl.load(y + at) + by + tlg.num_warps())


@tilec.jit
def between(x, y, n, B: tl.constexpr):
    """Roles in a loop and in a branch, with work of all warps between."""
    at = tl.arange(0, 2 * B)
    tl.store(y + at, tl.load(x + at))
    for _ in range(n):
        tlg.warp_specialize([(add, (y, 0, B)), (add, (y, 1, B))], num_warps=[2, 2])
        tl.store(y + at, tl.load(y + at) * 2)
    if n > 2:
        tlg.warp_specialize([(add, (y, 1, B)), (add, (y, 0, B))], num_warps=[2, 2])


def test_roles_in_loops_and_branches(rng):
    """All warps meet where roles end. Outside, tiles are held by all."""
    x, y = rng.integers(-99, 99, 256).astype(np.int32), np.empty(256, np.int32)
    by = np.repeat([0, 1], 128) + 2
    for n in (2, 3):
        kernel = between.warmup(x, y, n, B=128, grid=(1,), target="sm_90a", num_warps=4)
        want = x.copy()
        for _ in range(n):
            want = (want + by) * 2
        everywhere(kernel, [x, y, n], 1, y, want + by * (n > 2))


@tilec.jit
def step(k, blocks, acc):
    acc = tlg.wgmma(blocks[0], blocks[1], acc, use_acc=k > 0)
    return tlg.wgmma_wait(1, acc)


@tilec.jit
def place(k):
    return [0, k * 64], [k * 64, 0]


@tilec.jit
def pipelined(a, b, c, ring):
    at = tl.arange(0, 64)
    acc = tl.zeros((64, 64), tl.float32)
    acc, ring = tlg.emit_pipeline(step, place, tl.cdiv(a.shape[1], 64), (a, b), ring, acc)
    tl.store(c + at[:, None] * 64 + at[None, :], tlg.wgmma_wait(0, acc))


@tilec.jit
def through_a_buffer(x):
    """x + its sum, by a buffer of the role's own."""
    buffer, at = tlg.alloc_shared((128,), tl.float32), tl.arange(0, 128)
    buffer.store(tl.load(x + at))
    tl.store(x + at, buffer.load() + tl.sum(buffer.load(), 0))


@tilec.jit
def beside_a_pipeline(a, b, c, x):
    ring = tlg.make_ring((a, b), 3)
    tlg.warp_specialize([(pipelined, (a, b, c, ring)), (through_a_buffer, (x,))], num_warps=[4, 2])


def test_a_pipeline_and_a_buffer_in_roles(rng):
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((64, 304), (304, 64)))
    c, x = np.empty((64, 64), np.float32), np.arange(128, dtype=np.float32)
    args = [describe(a, (64, 64)), describe(b, (64, 64)), c, x]
    kernel = beside_a_pipeline.warmup(*args, grid=(1,), target="sm_90a", num_warps=6)
    for level in LEVELS:
        c[...], x[...] = np.nan, np.arange(128)
        kernel.run(args, 1, level=level)
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32), level)
        np.testing.assert_array_equal(x, np.arange(128) + 128 * 127 / 2, level)


@tilec.jit
def after_a_loop(a, b, c, y):
    """A product of all warps by an automatic pipeline, and then roles."""
    at = tl.arange(0, 64)
    acc = tl.zeros((64, 64), tl.float32)
    for k in tl.range(0, a.shape[1], 64, warp_specialize=True):
        acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
    tl.store(c + at[:, None] * 64 + at[None, :], acc)
    tlg.warp_specialize([(add, (y, 0, 64)), (add, (y, 1, 64))], num_warps=[2, 2])


def test_roles_after_an_automatic_pipeline(rng):
    """Which leaves the warps to the author, and lets the roles begin when its products have ended.
    """
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((64, 304), (304, 64)))
    c, y = np.empty((64, 64), np.float32), np.zeros(128, np.int32)
    args = [describe(a, (64, 64)), describe(b, (64, 64)), c, y]
    kernel = after_a_loop.warmup(*args, grid=(1,), target="sm_90a", num_warps=4)
    for level in LEVELS:
        c[...], y[...] = np.nan, 0
        kernel.run(args, 1, level=level)
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32), level)
        np.testing.assert_array_equal(y, np.repeat([2, 3], 64), level)
    assert "wgmma" in kernel.asm["ptx"] and kernel.threads == 128


# -- attention ------------------------------------------------------------------------------------

EXAMPLE = load_example("14_explicit_attention")


@pytest.mark.parametrize("ws", [True, False])
@pytest.mark.parametrize("causal, heads, rows, columns", [
    (False, 1, 70, 130), (True, 2, 70, 130), (True, 1, 70, 30)])
@pytest.mark.sample(2)
def test_attention(ws, causal, heads, rows, columns):
    """Ragged blocks, fewer keys than queries and more, several tiles a program."""
    q, k, v = (EXAMPLE.support.normal(i, heads, n, 64).astype(np.float16)
               for i, n in enumerate((rows, columns, columns)))
    out = np.empty(q.shape, np.float16)
    kernel = EXAMPLE.attention(q, k, v, out, causal, ws, block=(64, 64), num_warps=4)
    want = EXAMPLE.reference(*(x.astype(np.float64) for x in (q, k, v)), causal)
    described = [describe(x, (1, 64, 64)) for x in (q, k, v, out)]
    for level in LEVELS:
        out[...] = np.nan
        kernel.run([*described, EXAMPLE.LOG2_E / 8], 2, level=level, seed=5)
        np.testing.assert_allclose(out.astype(np.float64), want, rtol=2e-3, atol=2e-3,
                                   err_msg=level)


# -- what is missing ------------------------------------------------------------------------------

@tilec.jit
def forgets(x, n, rounds, buffer, full, empty):
    for i in range(rounds):
        empty.wait(i & 1 ^ 1)
        buffer.store(tl.load(x + tl.arange(0, 128)))
        full.arrive()  # no barrier


@tilec.jit
def never(x, n, rounds, buffer, full, empty):
    for i in range(rounds):
        empty.wait(i & 1)  # never ends
        full.arrive()


@tilec.jit
def takes(part, ready, y, WAITS: tl.constexpr):
    if WAITS:
        ready.wait(0)
    at = tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(y + at, part.load())


@tilec.jit
def begun_before(x, y, WAITS: tl.constexpr):
    """A copy that begins before the roles that wait for it."""
    part, ready = tlg.alloc_shared((32, 32), x.dtype), tlg.mbarrier()
    tlg.barrier()
    ready.expect(part.nbytes)
    tlg.tma.load(x, [8, 32], part, ready)
    tlg.warp_specialize([(takes, (part, ready, y, True)), (takes, (part, ready, y + 1024, WAITS))],
                        num_warps=[1, 1])


@pytest.mark.parametrize("level", LEVELS)
def test_each_role_waits_for_a_copy(level, rng):
    """Even if another has: nothing orders its accesses and the copy."""
    x, y = rng.standard_normal((40, 64)).astype(np.float32), np.empty((2, 32, 32), np.float32)
    right, wrong = (begun_before.warmup(describe(x, (32, 32)), y, WAITS=waits, grid=(1,),
                                        target="sm_90a", num_warps=2) for waits in (True, False))
    for seed in range(4):
        y[...] = np.nan
        right.run([describe(x, (32, 32)), y], 1, level=level, seed=seed)
        np.testing.assert_array_equal(y, np.broadcast_to(x[8:, 32:], (2, 32, 32)))
        with pytest.raises(TilecError, match="orders the two|race|uninitialised"):
            wrong.run([describe(x, (32, 32)), y], 1, level=level, seed=seed)


@tilec.jit
def broken(x, y, total, n, FIRST: tl.constexpr):
    buffer = tlg.alloc_shared((128,), y.dtype.element_ty)
    full, empty = tlg.mbarrier(), tlg.mbarrier()
    tlg.barrier()
    tlg.warp_specialize([(FIRST, (x, n, 3, buffer, full, empty)),
                         (consume, (y, total, n, 3, buffer, full, empty))], num_warps=[4, 1])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("first, found", [
    (forgets, "no named barrier orders the two|with nothing that orders the two"),
    (never, "waits for ever|deadlock: threads wait")],
    ids=["forgets", "never"])
def test_what_the_interpreter_and_the_simulator_find(first, found, level):
    x, y, total = np.ones(128, np.float32), np.zeros(384, np.float32), np.zeros(1, np.float32)
    kernel = broken.warmup(x, y, total, 384, FIRST=first, grid=(1,), target="sm_90a", num_warps=5)
    with pytest.raises(TilecError, match=found) as caught:
        kernel.run([x, y, total, 384], 1, level=level)
    if level != "ptx":
        assert isinstance(caught.value, InterpreterError) and caught.value.loc.file == __file__
