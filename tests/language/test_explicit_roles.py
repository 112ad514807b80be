"""Warp roles at the explicit level: the same bits at every level, mistakes at the author's line."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from benchmarks.common import load_example
from tests.support.explicit import LEVELS, everywhere
from tilec.errors import CompilationError, InterpreterError, TilecError

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


@pytest.mark.parametrize("warps", [(1, 1), (2, 1), (1, 2), (4, 2), (1, 4), (4, 8)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
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
    n = 104
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
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((64, 296), (296, 64)))
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
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((64, 296), (296, 64)))
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
    (False, 1, 70, 130), (True, 2, 130, 130), (True, 1, 70, 30), (True, 1, 40, 150)])
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


# -- mistakes -------------------------------------------------------------------------------------

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
def broken(x, y, total, n, FIRST: tl.constexpr):
    buffer = tlg.alloc_shared((128,), y.dtype.element_ty)
    full, empty = tlg.mbarrier(), tlg.mbarrier()
    tlg.barrier()
    tlg.warp_specialize([(FIRST, (x, n, 3, buffer, full, empty)),
                         (consume, (y, total, n, 3, buffer, full, empty))], num_warps=[4, 1])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("first, found", [
    (forgets, "no mbarrier orders the two|with nothing that orders the two"),
    (never, "waits for ever|deadlock: threads wait")],
    ids=["forgets", "never"])
def test_what_the_interpreter_and_the_simulator_find(first, found, level):
    x, y, total = np.ones(128, np.float32), np.zeros(384, np.float32), np.zeros(1, np.float32)
    kernel = broken.warmup(x, y, total, 384, FIRST=first, grid=(1,), target="sm_90a", num_warps=5)
    with pytest.raises(TilecError, match=found) as caught:
        kernel.run([x, y, total, 384], 1, level=level)
    if level != "ptx":
        assert isinstance(caught.value, InterpreterError) and caught.value.loc.file == __file__


@tilec.jit
def scalar(p, n):
    tl.store(p, n)


@tilec.jit
def gives(p):
    return tl.load(p)


@tilec.jit
def leaves(p, n):
    if n > 3:
        return
    tl.store(p, n)


@tilec.jit
def copies(p, buffer):
    tlg.async_copy(p + tl.arange(0, 64), buffer)  # copies


@tilec.jit
def sets_up():
    tlg.mbarrier()  # sets up


@tilec.jit
def nests(p, n):
    tlg.warp_specialize([(scalar, (p, n)), (scalar, (p, n))], num_warps=[2, 2])  # nests


@tilec.jit
def tiles(p):
    tl.store(p + tl.arange(0, 64), 1)  # three


@tilec.jit
def multiplies(block):
    acc = tl.zeros((64, 64), tl.float32)
    tlg.wgmma_wait(0, tlg.wgmma(block, block, acc))  # small


@tilec.jit
def elects(bar):
    if tlg.elect(warp=2):  # elects
        bar.expect(8)


@tilec.jit
def meets():
    tlg.warpgroup_barrier()  # six


@tilec.jit
def held():
    tlg.convert_layout(tl.arange(0, 64), tlg.Blocked([1], [32], [4], [0]))  # held


def plain(p):
    """Not of a kernel."""


@tilec.jit
def wrong(a, p, n, HOW: tl.constexpr):
    """Each way of HOW is one mistake, marked by a comment here or in a role."""
    block, row = tlg.alloc_shared((64, 64), tl.float16), tlg.alloc_shared((64,), tl.int32)
    bar = tlg.mbarrier()
    tlg.barrier()
    f = (scalar, (p, n))
    if HOW == "sum":
        tlg.warp_specialize([f, f], num_warps=[4, 8])  # sum
    if HOW == "length":
        tlg.warp_specialize([f, f], num_warps=[2, 2, 4])  # length
    if HOW == "regs length":
        tlg.warp_specialize([f, f], num_warps=[4, 4], regs=[24])  # regs length
    if HOW == "regs sum":
        tlg.warp_specialize([f, f], num_warps=[4, 4], regs=[256, 264])  # regs sum
    if HOW == "regs warps":
        tlg.warp_specialize([f, f], num_warps=[6, 2], regs=[24, 240])  # regs warps
    if HOW == "regs odd":
        tlg.warp_specialize([f, f], num_warps=[4, 4], regs=[25, 240])  # regs odd
    if HOW == "zero":
        tlg.warp_specialize([f, f], num_warps=[8, 0])  # zero
    if HOW == "run time":
        tlg.warp_specialize([f, f], num_warps=[n, 4])  # run time
    if HOW == "none":
        tlg.warp_specialize([], num_warps=[])  # none
    if HOW == "no pair":
        tlg.warp_specialize([scalar, scalar], num_warps=[4, 4])  # no pair
    if HOW == "descriptor":
        tlg.warp_specialize([(sets_up, a), f], num_warps=[4, 4])  # descriptor
    if HOW == "plain":
        tlg.warp_specialize([(plain, (p,)), f], num_warps=[4, 4])  # plain
    if HOW == "arguments":
        tlg.warp_specialize([(scalar, (p,)), f], num_warps=[4, 4])  # arguments
    if HOW == "tile":
        tile = (n, (tl.zeros((4, 4), tl.float32),))
        tlg.warp_specialize([(scalar, (p, tile)), f], num_warps=[4, 4])  # tile
    if HOW == "gives":
        tlg.warp_specialize([(gives, (p,)), f], num_warps=[4, 4])  # gives
    if HOW == "copies":
        tlg.warp_specialize([(copies, (p, row)), f], num_warps=[4, 4])
    if HOW == "sets up":
        tlg.warp_specialize([(sets_up, ()), f], num_warps=[4, 4])
    if HOW == "nests":
        tlg.warp_specialize([(nests, (p, n)), f], num_warps=[4, 4])
    if HOW == "three":
        tlg.warp_specialize([(tiles, (p,)), f], num_warps=[3, 5])
    if HOW == "outside":
        tl.store(p + tl.arange(0, 64), 1)  # outside
        tlg.warp_specialize([f, f], num_warps=[4, 8])
    if HOW == "small":
        tlg.warp_specialize([(multiplies, (block,)), f], num_warps=[2, 6])
    if HOW == "begins":
        tlg.warp_specialize([f, (multiplies, (block,))], num_warps=[2, 4])  # begins
    if HOW == "elects":
        tlg.warp_specialize([(elects, (bar,)), f], num_warps=[2, 6])
    if HOW == "six":
        tlg.warp_specialize([(meets, ()), f], num_warps=[6, 2])
    if HOW == "held":
        tlg.warp_specialize([(held, ()), f], num_warps=[2, 6])
    if HOW == "barriers":
        tlg.warp_specialize([f, f, f, f], num_warps=[8, 8, 8, 8])  # barriers
    if HOW == "one":
        if tlg.elect():
            tlg.warp_specialize([f, f], num_warps=[4, 4])  # one
    if HOW == "loop":
        for _ in range(n):
            tlg.warp_specialize([f, f], num_warps=[4, 4], regs=[24, 240])  # loop
    if HOW == "last":
        tlg.warp_specialize([f, f], num_warps=[4, 4], regs=[24, 240])  # last
        tl.store(p, 1)
    if HOW == "flight":
        acc = tlg.wgmma(block, block, tl.zeros((64, 64), tl.float32))
        tlg.warp_specialize([f, f], num_warps=[4, 4])  # flight
        tlg.wgmma_wait(0, acc)
    if HOW == "right":
        tlg.warp_specialize([f, (leaves, [p, n])], num_warps=[4, 4], regs=[24, 240])


MISTAKES = {
    "sum": "the roles have 12 warps, the kernel is launched with num_warps=8",
    "length": "num_warps is [2, 2, 4] for 2 roles",
    "regs length": "regs is [24] for 2 roles",
    "regs sum": "the roles have 66560 registers, a launch of 256 threads has 65536",
    "regs warps": "registers is 24 for 6 warps, expected a multiple of 8 from 24 to 256, for whole",
    "regs odd": "registers is 25 for 4 warps, expected a multiple of 8",
    "zero": "num_warps is [8, 0] and regs [0, 0], expected 1 or more",
    "run time": "num_warps has to be known at compile time, found a run-time int32 scalar",
    "none": "found () (tuple), expected a list of roles",
    "no pair": "expected a jit function and a tuple of its arguments",
    "descriptor": "expected a jit function and a tuple of its arguments",
    "plain": "expected a jit function and a tuple of its arguments",
    "arguments": "`scalar` needs a value for `n`",
    "tile": "`n` of `scalar` is a fp32[4, 4] tile, and roles take no tiles from outside",
    "gives": "`gives` returns int32 scalar, and roles return nothing",
    "copies": "gpu.async_copy: stands in a warp role: TMA copies there",
    "sets up": "gpu.mbarrier_init: stands in a warp role: mbarriers are set up before the roles",
    "nests": "tlg.warp_specialize: stands in a role of another one",
    "three": "works on a tile, and this role has 3 warps: tiles are for 1, 2, 4, 8, 16 or 32",
    "outside": "works on a tile, and outside of its roles the kernel has 12 warps",
    "small": "tlg.wgmma: 2 warps are not whole warpgroups of four",
    "begins": "the role begins with warp 2; for wgmma",
    "elects": "the warp of tlg.elect is 2, expected 0 to 1",
    "six": "tlg.warpgroup_barrier: 6 warps are not whole warpgroups",
    "held": "is for 4 warps, the role has 2",
    "barriers": "the roles need 12 barriers of their own, 7 are left",
    "one": "one thread alone has no warps to divide",
    "loop": "roles with registers of their own must be the function's last op",
    "last": "roles with registers of their own must be the function's last op",
    "flight": "divides the warps while the product of the accumulator `acc` is under way",
}
WARPS = {"outside": 12, "begins": 6, "barriers": 32}
LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("how", MISTAKES)
def test_mistakes(how):
    a, p = describe(np.zeros((64, 64), np.float16), (64, 64)), np.zeros(64, np.int32)
    with pytest.raises(CompilationError) as caught:
        wrong.warmup(a, p, 5, HOW=how, grid=(1,), target="sm_90a", num_warps=WARPS.get(how, 8))
    assert MISTAKES[how] in caught.value.message
    assert LINES[caught.value.loc.line - 1].endswith(f"# {how}"), caught.value


@pytest.mark.parametrize("options, found", [
    ({"num_warps": 8, "maxnreg": 128}, "maxnreg is 128, and roles have registers of their own"),
    ({"num_warps": 8, "target": "sm_80"}, "needs sm_90"),
    ({"num_warps": 12}, "the roles have 8 warps, the kernel is launched with num_warps=12")])
def test_options_that_do_not_fit_roles(options, found):
    a, p = describe(np.zeros((64, 64), np.float16), (64, 64)), np.zeros(64, np.int32)
    with pytest.raises(CompilationError, match=found):
        wrong.warmup(a, p, 5, HOW="right", grid=(1,), **{"target": "sm_90a", **options})


def test_only_roles_have_another_number_of_warps():
    with pytest.raises(CompilationError, match="num_warps is 3, expected 1, 2, 4, 8, 16 or 32"):
        scalar.warmup(np.zeros(1, np.int32), 5, grid=(1,), num_warps=3)
