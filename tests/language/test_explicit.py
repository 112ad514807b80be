"""The explicit level, `tlg`, mixed with `tl`: the same bits at every level."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from benchmarks.common import load_example
from tests.support.explicit import HOPPER, LEVELS, both, everywhere
from tests.support.fixtures import FOLDER
from tests.support.hopper import gemm, gemm_args
from tilec.errors import InterpreterError, LaunchError

BF16 = ml_dtypes.bfloat16
describe = tilec.TensorDescriptor.from_tensor


# -- layouts, buffers, asynchronous copies --------------------------------------------------------

@tilec.jit
def turned(x_ptr, y_ptr, sx, LAYOUT: tl.constexpr, SHARED: tl.constexpr):
    """y = 2 * x^T + 1, through a buffer."""
    rows, columns = tl.arange(0, 64), tl.arange(0, 32)
    buffer = tlg.alloc_shared((64, 32), tl.float32, layout=SHARED)
    buffer.store(tl.load(x_ptr + rows[:, None] * sx + columns[None, :]))
    y = tlg.convert_layout(buffer.T.load() * 2, LAYOUT)
    tl.store(y_ptr + columns[:, None] * 64 + rows[None, :], y + 1)


REGISTERS = [
    tlg.Blocked([1, 2], [2, 16], [4, 1], [1, 0]),
    tlg.Mma(version=2, warps_per_cta=[2, 2], instr_shape=[16, 8]),
    tlg.Linear(register=[[0, 1], [16, 0]], lane=[[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
               warp=[[8, 0], [0, 8]]),
]


@pytest.mark.parametrize("layout", REGISTERS, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("shared", [None, tlg.Swizzled(4, 1, 8, [1, 0]),
                                    tlg.NvmmaShared(64, False, 32)], ids=str)
@pytest.mark.sample(3)
def test_layouts_and_views(layout, shared, rng):
    x, y = rng.standard_normal((64, 40)).astype(np.float32), np.empty((32, 64), np.float32)
    kernel = turned.warmup(x, y, 40, LAYOUT=layout, SHARED=shared, grid=(1,), **HOPPER)
    everywhere(kernel, [x, y, 40], 1, y, x[:, :32].T * np.float32(2) + np.float32(1))
    assert str(layout) in kernel.asm["lowered"]


def test_a_layout_asked_for_stays(rng):
    """Although a store next to it wants another, and the loop could do without."""
    @tilec.jit
    def summed(x_ptr, y_ptr, n, LAYOUT: tl.constexpr):
        at = tl.arange(0, 256)
        acc = tl.zeros((256,), tl.float32)
        for i in range(n):
            acc = tlg.convert_layout(acc + tl.load(x_ptr + i * 256 + at), LAYOUT)
        tl.store(y_ptr + at, acc)

    layout = tlg.Blocked([2], [32], [4], [0])
    x, y = rng.integers(-9, 9, (5, 256)).astype(np.float32), np.empty(256, np.float32)
    kernel = summed.warmup(x, y, 5, LAYOUT=layout, grid=(1,), **HOPPER)
    everywhere(kernel, [x, y, 5], 1, y, x.sum(0))
    assert "gpu.set_layout" in kernel.asm["lowered"]


@tilec.jit
def doubled(x_ptr, y_ptr, n, tiles, BLOCK: tl.constexpr):
    """y = 2 * x through a ring of two buffers, the copies one tile ahead."""
    at = tl.arange(0, BLOCK)
    ring = tlg.alloc_shared((BLOCK,), x_ptr.dtype.element_ty, stages=2)
    tlg.async_copy(x_ptr + at, ring[0], mask=at < n)
    tlg.async_commit()
    for i in range(tiles):
        ahead = (i + 1) * BLOCK + at
        tlg.async_copy(x_ptr + ahead, ring[(i + 1) % 2], mask=ahead < n)
        tlg.async_commit()
        tlg.async_wait(1)
        tlg.barrier()
        here = i * BLOCK + at
        tl.store(y_ptr + here, ring[i % 2].load() * 2, mask=here < n)
    tlg.async_wait()


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_async_copies(dtype, rng):
    n = 900
    x, y = rng.integers(-99, 99, n).astype(dtype), np.empty(n, dtype)
    kernel = doubled.warmup(x, y, n, 4, BLOCK=256, grid=(1,), target="sm_80", num_warps=2)
    everywhere(kernel, [x, y, n, 4], 1, y, x * 2)
    assert "cp.async" in kernel.asm["ptx"]


# -- mbarriers, TMA, wgmma ------------------------------------------------------------------------

@tilec.jit
def product(a, b, c, STAGES: tl.constexpr, TURNED: tl.constexpr):
    """c = a @ b, or a @ b^T; a ring with one mbarrier a slot."""
    BM: tl.constexpr = c.block_shape[0]
    BN: tl.constexpr = c.block_shape[1]
    BK: tl.constexpr = a.block_shape[1]
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    steps = tl.cdiv(a.shape[1], BK)
    a_ring = tlg.alloc_shared(a.block_shape, a.dtype, stages=STAGES)
    b_ring = tlg.alloc_shared(b.block_shape, b.dtype, stages=STAGES)
    out = tlg.alloc_shared((BM, BN), c.dtype)
    full = tlg.mbarrier(stages=STAGES)
    tlg.barrier()
    for s in range(STAGES - 1):
        if tlg.elect(s < steps):
            full[s].expect(a_ring.nbytes + b_ring.nbytes)
            tlg.tma.load(a, [i, s * BK], a_ring[s], full[s])
            tlg.tma.load(b, [j, s * BK] if TURNED else [s * BK, j], b_ring[s], full[s])
    acc = tl.zeros((BM, BN), tl.float32)
    for s in range(steps):
        slot = s % STAGES
        full[slot].wait(s // STAGES & 1)
        right = b_ring[slot].T if TURNED else b_ring[slot]
        acc = tlg.wgmma(a_ring[slot], right, acc, use_acc=s > 0)
        acc = tlg.wgmma_wait(1, acc)
        tlg.barrier()
        ahead = s + STAGES - 1
        if tlg.elect(ahead < steps):
            free = ahead % STAGES
            full[free].expect(a_ring.nbytes + b_ring.nbytes)
            tlg.tma.load(a, [i, ahead * BK], a_ring[free], full[free])
            tlg.tma.load(b, [j, ahead * BK] if TURNED else [ahead * BK, j], b_ring[free],
                         full[free])
    acc = tlg.wgmma_wait(0, acc)
    out.store(acc)
    tlg.fence_async()
    tlg.barrier()
    tlg.tma.store(c, [i, j], out)
    tlg.tma.store_commit()
    tlg.tma.store_wait(read=True)


@pytest.mark.parametrize("dtype, block, num_warps, turned", [
    (BF16, (64, 64, 64), 4, False), (np.float16, (128, 32, 32), 8, True),
    (np.float16, (64, 128, 64), 8, False)])
def test_product(dtype, block, num_warps, turned, rng):
    m, n, k = 100, 160, 200
    bm, bn, bk = block
    a, b = (rng.integers(-3, 4, s).astype(dtype) for s in ((m, k), (k, n)))
    want = (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
    if turned:
        b = np.ascontiguousarray(b.T)
    c = np.empty((m, n), dtype)
    args = [describe(a, (bm, bk)), describe(b, (bn, bk) if turned else (bk, bn)),
            describe(c, (bm, bn))]
    grid = (-(-m // bm), -(-n // bn))
    kernel = product.warmup(*args, STAGES=3, TURNED=turned, grid=grid, target="sm_90a",
                            num_warps=num_warps)
    everywhere(kernel, args, grid, c, want)
    assert "wgmma.mma_async" in kernel.asm["ptx"] and "stmatrix" in kernel.asm["ptx"]
    assert "gpu.convert_layout" not in kernel.asm["lowered"]


def test_stored_rows_are_whole_chunks():
    """Known when launched at the latest: of rows of 24 elements, 20 are the tensor's."""
    rows, odd = np.zeros((64, 24), np.float16), np.zeros((64, 64), np.float16)
    for width, refused in ((24, False), (20, True)):
        c = tilec.TensorDescriptor(rows, (64, width), (24, 1), (64, 64))
        args = [describe(odd, (64, 64)), describe(odd, (64, 64)), c]
        kernel = product.warmup(*args, STAGES=2, TURNED=False, grid=(1, 1), **HOPPER)
        for level in LEVELS:
            if refused:
                with pytest.raises(LaunchError, match="`c` has rows of 40 bytes"):
                    kernel.run(args, (1, 1), level=level)
            else:
                kernel.run(args, (1, 1), level=level)


@tilec.jit
def typed(a_ptr, b_ptr, c_ptr, sums, N: tl.constexpr, SUM: tl.constexpr, REGISTERS: tl.constexpr):
    """c = a @ b^T + sums, both contiguous along k; a from a buffer or from registers."""
    rows, columns, inner = tl.arange(0, 128), tl.arange(0, N), tl.arange(0, 64)
    a = tl.load(a_ptr + rows[:, None] * 64 + inner[None, :])
    left = tlg.alloc_shared((128, 64), a_ptr.dtype.element_ty)
    right = tlg.alloc_shared((N, 64), a_ptr.dtype.element_ty)
    left.store(a)
    right.store(tl.load(b_ptr + columns[:, None] * 64 + inner[None, :]))
    tlg.fence_async()
    tlg.barrier()
    at = rows[:, None] * N + columns[None, :]
    acc = tlg.wgmma(a if REGISTERS else left, right.T, tl.load(sums + at).to(SUM))
    tl.store(c_ptr + at, tlg.wgmma_wait(0, acc))


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("operand, total, SUM", [
    (np.int8, np.int32, tl.int32), (np.uint8, np.int32, tl.int32),
    (ml_dtypes.float8_e4m3fn, np.float32, tl.float32), (np.float32, np.float32, tl.float32),
    (ml_dtypes.float8_e5m2, np.float16, tl.float16), (np.float16, np.float16, tl.float16)])
@pytest.mark.sample(3)
def test_types_of_products(operand, total, SUM, registers, rng):
    low, n = 0 if operand is np.uint8 else -3, 64 if operand is np.float32 else 48
    a, b = (rng.integers(low, 4, s).astype(operand) for s in ((128, 64), (n, 64)))
    sums, c = rng.integers(-9, 9, (128, n)).astype(total), np.empty((128, n), total)
    args = [a, b, c, sums]
    kernel = typed.warmup(*args, N=n, SUM=SUM, REGISTERS=registers, grid=(1,), target="sm_90a",
                          num_warps=8)
    want = a.astype(np.float64) @ b.astype(np.float64).T + sums.astype(np.float64)
    everywhere(kernel, args, 1, c, want)
    assert "wgmma.mma_async" in kernel.asm["ptx"]


@tilec.jit
def batches(x, y):
    """y = x + 1, blocks of one matrix of each of three dimensions."""
    buffer = tlg.alloc_shared((32, 64), x.dtype)
    ready = tlg.mbarrier()
    tlg.barrier()
    i = tl.program_id(0)
    ready.expect(buffer.nbytes)
    tlg.tma.load(x, [i, -8, 0], buffer, ready)
    ready.wait(0)
    found = buffer.load() + 1
    tlg.barrier()
    buffer.store(found)
    tlg.fence_async()
    tlg.barrier()
    tlg.tma.store(y, [i, 8, 64], buffer)
    tlg.tma.store_commit()
    tlg.tma.store_wait(read=True)


def test_blocks_of_three_dimensions_and_ends_of_tensors(rng):
    x = rng.integers(-9, 9, (3, 20, 40)).astype(np.float16)
    y = np.full((3, 36, 96), 7, np.float16)
    args = [describe(x, (1, 32, 64)), describe(y, (1, 32, 64))]
    kernel = batches.warmup(*args, grid=(3,), **HOPPER)
    want = np.full_like(y, 7)
    moved = np.zeros((3, 32, 64), np.float16)
    moved[:, 8:28, :40] = x
    want[:, 8:36, 64:96] = moved[:, :28, :32] + 1
    for level in LEVELS:
        y[...] = 7
        kernel.run(args, 3, level=level)
        np.testing.assert_array_equal(y, want, level)


@tilec.jit
def from_registers(a_ptr, b_ptr, c_ptr):
    """c = relu(a) @ b; a goes from pointers to registers, b through a plain store to a buffer."""
    rows, inner, columns = tl.arange(0, 64), tl.arange(0, 32), tl.arange(0, 64)
    a = tl.maximum(tl.load(a_ptr + rows[:, None] * 32 + inner[None, :]), 0.0).to(tl.float16)
    b = tlg.alloc_shared((32, 64), tl.float16)
    b.store(tl.load(b_ptr + inner[:, None] * 64 + columns[None, :]))
    tlg.fence_async()
    tlg.barrier()
    acc = tlg.wgmma(a, b, tl.zeros((64, 64), tl.float32), use_acc=False)
    acc = tlg.wgmma_wait(0, acc)
    left = tlg.extract_slice(acc, [0, 0], [64, 32])
    right = tlg.extract_slice(acc, [0, 32], [64, 32])
    at = rows[:, None] * 32 + inner[None, :]
    tl.store(c_ptr + at, left - right)


def test_a_from_registers_and_parts_of_tiles(rng):
    a, b = rng.integers(-4, 5, (64, 32)), rng.integers(-4, 5, (32, 64))
    whole = np.maximum(a, 0) @ b
    a, b, c = a.astype(np.float16), b.astype(np.float16), np.empty((64, 32), np.float32)
    kernel = from_registers.warmup(a, b, c, grid=(1,), **HOPPER)
    everywhere(kernel, [a, b, c], 1, c, whole[:, :32] - whole[:, 32:])
    assert kernel.asm["ptx"].count("wgmma.mma_async") == 2


@tilec.jit
def rotated(a, b, c_ptr, d_ptr, n):
    """c and d: sums of a @ b and of a @ b^T, each read while the other's next is under way."""
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    left, right = both(a, b)
    zero = tl.zeros((64, 64), tl.float32)
    seen, total = zero, zero
    for _ in range(n):
        one = tlg.wgmma(left, right, zero, use_acc=False)
        two = tlg.wgmma(left, right.T, zero, use_acc=False)
        one, two = tlg.wgmma_wait(1, one, two)
        seen += one
        total += tlg.wgmma_wait(0, two)
    tl.store(c_ptr + at, seen)
    tl.store(d_ptr + at, total)


def test_a_product_is_read_while_the_next_one_is_under_way(rng):
    a, b = (rng.integers(-3, 4, (64, 64)).astype(BF16) for _ in range(2))
    c, d = (np.empty((64, 64), np.float32) for _ in range(2))
    args = [describe(a, (64, 64)), describe(b, (64, 64)), c, d, 3]
    kernel = rotated.warmup(*args, grid=(1,), **HOPPER)
    a, b = a.astype(np.float32), b.astype(np.float32)
    everywhere(kernel, args, 1, c, 3 * (a @ b))
    everywhere(kernel, args, 1, d, 3 * (a @ b.T))


@tilec.jit
def replaced(a, b, c_ptr, n):
    """c = n * (a @ b); the product that a round reads was begun by the one before, in one place."""
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    left, right = both(a, b)
    total = tl.zeros((64, 64), tl.float32)
    product = tlg.wgmma(left, right, total, use_acc=False)
    for _ in range(n):
        product = tlg.wgmma_wait(0, product)
        total += product
        product = tlg.wgmma(left, right, product, use_acc=False)
    if n > 100:
        product = tlg.wgmma(left, right, product)
    product = tlg.wgmma_wait(0, product)
    tl.store(c_ptr + at, total)


def test_a_product_in_the_place_of_the_one_before(rng):
    a, b = (rng.integers(-3, 4, (64, 64)).astype(BF16) for _ in range(2))
    c = np.empty((64, 64), np.float32)
    args = [describe(a, (64, 64)), describe(b, (64, 64)), c, 3]
    kernel = replaced.warmup(*args, grid=(1,), **HOPPER)
    everywhere(kernel, args, 1, c, 3 * (a.astype(np.float32) @ b.astype(np.float32)))


@tilec.jit
def guarded(x_ptr, y_ptr, a, LACKS: tl.constexpr):
    """y = x + a, a by TMA into a buffer and out again; LACKS names what is left out."""
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    buffer = tlg.alloc_shared((64, 64), tl.float16)
    ready = tlg.mbarrier()
    if LACKS != "barrier":
        tlg.barrier()
    ready.expect(buffer.nbytes)
    tlg.tma.load(a, [0, 0], buffer, ready)
    if LACKS != "wait":
        ready.wait(0)
    sums = buffer.load() + tl.load(x_ptr + at)
    tlg.barrier()
    buffer.store(sums)
    if LACKS != "fence":
        tlg.fence_async()
    tlg.barrier()
    tlg.tma.store(a, [0, 0], buffer)
    tlg.tma.store_commit()
    if LACKS != "store_wait":
        tlg.tma.store_wait()
    tlg.barrier()
    buffer.store(sums)
    tl.store(y_ptr + at, sums)


FOUND = {"barrier": "another thread has set up this mbarrier",
         "wait": "poison|may still be copying",
         "fence": "gpu.tma_store reads a buffer to which threads have stored",
         "store_wait": "gpu.shared_store writes a buffer that gpu.tma_store"}
AT_TILE = {"fence": "tlg.tma.store reads a buffer to which threads have stored",
           "store_wait": "buffer.store writes a buffer that tlg.tma.store"}  # in the author's words


@pytest.mark.parametrize("level", LEVELS[:3])
@pytest.mark.parametrize("lacks", [None, *FOUND])
def test_the_interpreter_finds_what_is_missing(level, lacks, rng):
    x, a = (rng.integers(-9, 9, (64, 64)).astype(np.float16) for _ in range(2))
    y, want = np.full_like(x, np.nan), x + a
    args = [x, y, describe(a, (64, 64))]
    kernel = guarded.warmup(*args, LACKS=lacks, grid=(1,), **HOPPER)
    if lacks is None:
        kernel.run(args, 1, level=level)
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(a, want)
        return
    found = (FOUND | AT_TILE if level == "tile" else FOUND)[lacks]
    with pytest.raises(InterpreterError, match=found) as caught:
        kernel.run(args, 1, level=level)
    assert level != "tile" or "gpu." not in str(caught.value)
    assert caught.value.loc.file == __file__


@tilec.jit
def beside_a_dot(a, b, c, p_ptr):
    """One product by wgmma of blocks that TMA brings, one by tl.dot of blocks of a descriptor."""
    block = tlg.alloc_shared(a.block_shape, a.dtype)
    other = tlg.alloc_shared(b.block_shape, b.dtype)
    ready = tlg.mbarrier()
    tlg.barrier()
    ready.expect(block.nbytes + other.nbytes)
    tlg.tma.load(a, [0, 0], block, ready)
    tlg.tma.load(b, [0, 0], other, ready)
    acc = tl.zeros(c.block_shape, tl.float32)
    for k in range(0, a.shape[1], a.block_shape[1]):
        acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
    ready.wait(0)
    first = tlg.wgmma_wait(0, tlg.wgmma(block, other, acc))
    c.store([0, 0], first)


def test_automatic_passes_leave_explicit_kernels_alone(rng):
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((64, 128), (128, 64)))
    c = np.empty((64, 64), np.float32)
    args = [describe(a, (64, 64)), describe(b, (64, 64)), describe(c, (64, 64))]
    kernel = beside_a_dot.warmup(*args, None, grid=(1,), **HOPPER)
    a, b = a.astype(np.float32), b.astype(np.float32)
    everywhere(kernel, [*args, None], 1, c, a @ b + a[:, :64] @ b[:64])
    assert kernel.asm["ptx"].count("cp.async.bulk.tensor") == 2
    assert "cp.async.cg" in kernel.asm["ptx"]


@pytest.mark.parametrize("shape, programs", [((130, 272, 136), 1), ((300, 512, 40), 2)], ids=str)
def test_example_10_does_what_the_hand_written_ir_does(shape, programs):
    """The same bits as the .tir file whose kernel it is, and products in the same number of
    instructions; several tiles a program, one and more steps along k."""
    example = load_example("10_explicit_matmul")
    args, want = gemm_args(*shape, 5)
    by_hand = tilec.load(FOLDER / "gemm_a_branch.tir")
    by_hand.run(args, programs, "gpu")
    given = example.described(*args[:3], (128, 256, 64), 8, 128)
    kernel = example.matmul_kernel.warmup(*given, GROUP=8, STAGES=4, grid=(1,), target="sm_90a",
                                          num_warps=8)
    expected = args[2].copy()
    gemm(expected.astype(np.float32), want, "by hand")
    everywhere(kernel, given, programs, args[2], expected)
    for text in (kernel.asm["ptx"], by_hand.compiled.ptx):
        assert text.count("wgmma.mma_async") == 4 and text.count("wgmma.commit_group") == 1


# -- emit_pipeline --------------------------------------------------------------------------------

@tilec.jit
def multiply(k, blocks, acc, i, j):
    acc = tlg.wgmma(blocks[0], blocks[1], acc, use_acc=k > 0)
    return tlg.wgmma_wait(1, acc)


@tilec.jit
def of_step(k, i, j):
    return [i, k * 32], [k * 32, j]


@tilec.jit
def pipelined(a, b, c, STAGES: tl.constexpr):
    """c = a @ b, tile after tile with one ring."""
    across = tl.cdiv(c.shape[1], 64)
    ring = tlg.make_ring((a, b), STAGES)
    for tile in range(tl.program_id(0), tl.cdiv(c.shape[0], 64) * across, tl.num_programs(0)):
        i, j = tile // across * 64, tile % across * 64
        acc = tl.zeros((64, 64), tl.float32)
        acc, ring = tlg.emit_pipeline(multiply, of_step, tl.cdiv(a.shape[1], 32), (a, b), ring, acc,
                                      args=(i, j))
        c.store([i, j], tlg.wgmma_wait(0, acc))


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("k", [32, 200])
@pytest.mark.sample(2)
def test_emit_pipeline(stages, k, rng):
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((140, k), (k, 72)))
    c = np.empty((140, 72), np.float32)
    args = [describe(a, (64, 32)), describe(b, (32, 64)), describe(c, (64, 64))]
    kernel = pipelined.warmup(*args, STAGES=stages, grid=(2,), **HOPPER)
    everywhere(kernel, args, 2, c, a.astype(np.float32) @ b.astype(np.float32))


@tilec.jit
def add_rows(k, blocks, sums):
    """A step with ordinary reads of the blocks, and two values carried."""
    x = blocks[0].load()
    return sums[0] + tl.sum(x, 1), tl.maximum(sums[1], tl.max(x, 1))


@tilec.jit
def block_at(k):
    return ([0, k * 64],)


@tilec.jit
def rows(x, sum_ptr, max_ptr):
    ring = tlg.make_ring((x,), 3)
    start = tl.zeros((32,), tl.float32), tl.full((32,), float("-inf"), tl.float32)
    (total, most), _ = tlg.emit_pipeline(add_rows, block_at, x.shape[1] // 64, (x,), ring, start)
    tl.store(sum_ptr + tl.arange(0, 32), total)
    tl.store(max_ptr + tl.arange(0, 32), most)


def test_emit_pipeline_without_products(rng):
    x = rng.integers(-9, 9, (32, 320)).astype(np.float32)
    total, most = np.empty(32, np.float32), np.empty(32, np.float32)
    args = [describe(x, (32, 64)), total, most]
    kernel = rows.warmup(*args, grid=(1,), **HOPPER)
    everywhere(kernel, args, 1, total, x.sum(1))
    everywhere(kernel, args, 1, most, x.max(1))
