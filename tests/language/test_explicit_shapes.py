"""Buffers of many shapes at the explicit level: TMA fills them as the buffer's layout has it, or
the kernel is refused; and parities that are none."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from tilec import CompilationError, TilecError
from tilec.knobs import RUN_LEVELS

LEVELS = RUN_LEVELS


@tilec.jit
def there_and_back(x, y, SHAPE: tl.constexpr, LAYOUT: tl.constexpr):
    buffer = tlg.alloc_shared(SHAPE, x.dtype, layout=LAYOUT)
    bar = tlg.mbarrier()
    tlg.barrier()
    if tlg.elect():
        bar.expect(buffer.nbytes)
        tlg.tma.load(x, [0, 0], buffer, bar)
    bar.wait(0)
    y.store([0, 0], buffer.load())


def check(shape: tuple[int, int], dtype: type, layout: object = None) -> None:
    x = np.random.default_rng(shape[0]).integers(-99, 99, shape).astype(dtype)
    y = np.empty_like(x)
    args = [tilec.TensorDescriptor.from_tensor(v, shape) for v in (x, y)]
    made = there_and_back.warmup(*args, SHAPE=shape, LAYOUT=layout, grid=(1,), target="sm_90a",
                                 num_warps=4)
    for level in LEVELS:
        y[...] = 77
        made.run(args, 1, level=level)
        np.testing.assert_array_equal(y, x, level)


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.float32])
@pytest.mark.parametrize("rows", [1, 4, 6, 12, 20, 64])
@pytest.mark.parametrize("row_bytes", [16, 32, 64, 128, 256, 384])
@pytest.mark.sample(27)
def test_the_layout_by_default(rows, row_bytes, dtype) -> None:
    shape = rows, row_bytes // np.dtype(dtype).itemsize
    if rows == 64 or shape[1] <= 256 and (row_bytes < 384 or rows == 1):
        check(shape, dtype)
    else:  # panels of so few rows do not begin at multiples of 128 bytes
        with pytest.raises(CompilationError, match=r"tlg\.tma\.load: (TMA copies|the elements of)"):
            check(shape, dtype)


@pytest.mark.parametrize("shape", [(64, 72), (8, 24), (16, 40)])
def test_rows_that_are_not_a_power_of_two(shape) -> None:
    check(shape, np.float16)
    with pytest.raises(CompilationError, match="do not lie as TMA writes them") as e:
        check(shape, np.float16, tlg.Swizzled(1, 1, 1, (1, 0)))
    assert e.value.advice.endswith("or leave out the layout of tlg.alloc_shared")


@pytest.mark.parametrize(("shape", "swizzle"), [((20, 64), 128), ((12, 32), 64), ((4, 128), 128)])
def test_swizzles_that_such_rows_do_not_have(shape, swizzle) -> None:
    with pytest.raises(CompilationError, match="do not lie as TMA writes them"):
        check(shape, np.float16, tlg.NvmmaShared(swizzle, False, 16))


@tilec.jit
def moved(x, y, SHAPE: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr):
    """A block of any rank, through a buffer of as many dimensions."""
    buffer = tlg.alloc_shared(SHAPE, x.dtype)
    bar = tlg.mbarrier()
    tlg.barrier()
    if tlg.elect():
        bar.expect(buffer.nbytes)
        tlg.tma.load(x, FROM, buffer, bar)
    bar.wait(0)
    tlg.tma.store(y, TO, buffer)
    tlg.tma.store_commit()
    tlg.tma.store_wait()


# (block, tensor, where the block is read, and where it is written)
RANKS = [((64,), (96,), (40,), (16,)), ((4, 64), (5, 72), (3, 16), (2, 8)),
         ((2, 4, 64), (3, 5, 64), (-1, 2, 0), (2, 0, 32)),
         ((3, 2, 4, 16), (4, 3, 9, 32), (1, -1, 6, 16), (0, 2, 1, 8)),
         ((3, 1, 2, 2, 16), (4, 2, 3, 5, 24), (2, 1, 0, 3, 0), (0, 0, 1, 4, 8)),
         ((1, 2, 16, 64), (2, 2, 24, 64), (1, 0, 8, 0), (0, 0, 4, 0))]


def block_moved(x: np.ndarray, y: np.ndarray, block: tuple[int, ...], source: tuple[int, ...],
                target: tuple[int, ...]) -> np.ndarray:
    """y after a block of x, zero outside of it, was written there as far as y goes."""
    want = y.copy()
    for index in np.ndindex(*block):
        there = tuple(np.add(index, target))
        here = tuple(np.add(index, source))
        if all(0 <= i < n for i, n in zip(there, y.shape, strict=True)):
            inside = all(0 <= i < n for i, n in zip(here, x.shape, strict=True))
            want[there] = x[here] if inside else 0
    return want


@pytest.mark.parametrize("dtype", [np.float16, np.int32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("block", "shape", "source", "target"), RANKS)
def test_blocks_of_any_rank(block, shape, source, target, dtype) -> None:
    rng = np.random.default_rng(len(block))
    x, start = (rng.integers(1, 99, shape).astype(dtype) for _ in range(2))
    y = start.copy()
    args = [tilec.TensorDescriptor.from_tensor(v, block) for v in (x, y)]
    made = moved.warmup(*args, SHAPE=block, FROM=source, TO=target, grid=(1,),
                        target="sm_90a", num_warps=4)
    want = block_moved(x, start, block, source, target)
    for level in LEVELS:
        y[...] = start
        made.run(args, 1, level=level)
        np.testing.assert_array_equal(y, want, level)


@tilec.jit
def small(x, y):
    a, b = tlg.alloc_shared((16,), tl.int8), tlg.alloc_shared((16,), tl.int8)
    bar = tlg.mbarrier()
    tlg.barrier()
    if tlg.elect():
        bar.expect(32)
        tlg.tma.load(x, [0], a, bar)
        tlg.tma.load(x, [16], b, bar)
    bar.wait(0)
    y.store([0], a.load() + 2 * b.load())


def test_buffers_smaller_than_what_tma_aligns() -> None:
    x, y = np.arange(32, dtype=np.int8), np.empty(16, np.int8)
    args = [tilec.TensorDescriptor.from_tensor(v, (16,)) for v in (x, y)]
    made = small.warmup(*args, grid=(1,), target="sm_90a", num_warps=4)
    for level in LEVELS:
        y[...] = 77
        made.run(args, 1, level=level)
        np.testing.assert_array_equal(y, x[:16] + 2 * x[16:], level)


@tilec.jit
def in_three(x_ptr, y_ptr):
    buffer = tlg.alloc_shared((1, 64, 64), tl.bfloat16)
    at = tl.arange(0, 64)[None, :, None] * 64 + tl.arange(0, 64)[None, None, :]
    buffer.store(tl.load(x_ptr + at))
    tlg.barrier()
    tl.store(y_ptr + at, buffer.load())


def test_three_dimensions_have_plain_rows() -> None:
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(ml_dtypes.bfloat16)
    y = np.full_like(x, np.nan)
    made = in_three.warmup(x, y, grid=(1,), target="sm_90a", num_warps=4)
    for level in LEVELS:
        y[...] = np.nan
        made.run([x, y], 1, level=level)
        np.testing.assert_array_equal(y, x, level)


@tilec.jit
def waits(y_ptr, n):
    bar = tlg.mbarrier()
    tlg.barrier()
    bar.arrive()
    bar.wait(n)
    tl.store(y_ptr, n)


@pytest.mark.parametrize("n", [2, 5, -2])
def test_a_parity_is_0_or_1(n) -> None:
    y = np.zeros(1, np.int32)
    made = waits.warmup(y, n, grid=(1,), target="sm_90a", num_warps=4)
    for level in LEVELS:
        with pytest.raises(TilecError, match=r"parity.* 0 or 1") as e:
            made.run([y, n], 1, level=level)
        assert e.value.loc is not None and e.value.loc.line == waits.fn.__code__.co_firstlineno + 5
        assert y[0] == 0
    made.run([y, 0], 1, level="lowered")
