"""gather, flip, sort and topk at every level against numpy: all dtypes, any dimension, odd extents,
NaN and signed zeros, indices of every width."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests import test_scans as scans
from tests.test_levels import E4M3, FLOATS, INTS, random

DTYPES = (np.bool_, *INTS, *FLOATS)
SHAPES = [(1,), (2,), (64,), (100,), (4, 32), (3, 20), (17, 8), (2, 3, 16)]
CASES = [(s, a) for s in SHAPES for a in range(len(s))]


def cube(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (3 - len(shape)) + shape


def check(kernel: tilec.JITFunction, inputs: scans.Arrays, outputs: scans.Arrays, constexprs: dict,
          warps: int) -> None:
    """Bit for bit, but for the payloads of NaN."""
    scans.check(kernel, inputs, outputs, None, constexprs, warps)


def special(rng: np.random.Generator, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """With ties, and among floats zeros of both signs, infinities and NaN of both signs."""
    x = random(rng, shape, dtype)
    if x.dtype.kind in "iub":
        x[rng.random(shape) < 0.3] = 1
        return x
    few = np.array([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, -np.nan]).astype(dtype)
    return np.where(rng.random(shape) < 0.4, few[rng.integers(0, 7, shape)], x)


# -- gather and flip ------------------------------------------------------------------------------

@tilec.jit
def gather_kernel(x_ptr, i_ptr, o_ptr, S: tl.constexpr, T: tl.constexpr, AXIS: tl.constexpr):
    x = tl.load(x_ptr + tl.reshape(tl.arange(0, tl.constexpr(S[0] * S[1] * S[2])), S))
    at = tl.reshape(tl.arange(0, tl.constexpr(T[0] * T[1] * T[2])), T)
    tl.store(o_ptr + at, tl.gather(x, tl.load(i_ptr + at), AXIS))


@pytest.mark.parametrize("count", [1, 40, 64])
@pytest.mark.parametrize("dtype", (*DTYPES, E4M3), ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("shape", "axis"), CASES)
@pytest.mark.sample(10)
def test_gather(shape, axis, dtype, count, rng) -> None:
    x = random(rng, shape, dtype)
    to = tuple(count if d == axis else n for d, n in enumerate(shape))
    kind = INTS[int(rng.integers(len(INTS)))]
    index = rng.integers(0, shape[axis], to).astype(kind)
    check(gather_kernel, [x.view(np.uint8) if dtype == E4M3 else x, index],
          [np.take_along_axis(x.view(np.uint8) if dtype == E4M3 else x, index.astype(int), axis)],
          {"S": cube(shape), "T": cube(to), "AXIS": axis - len(shape)},
          int(rng.choice(scans.WARPS)))


@tilec.jit
def flip_kernel(x_ptr, o_ptr, S: tl.constexpr, AXIS: tl.constexpr):
    at = tl.reshape(tl.arange(0, tl.constexpr(S[0] * S[1] * S[2])), S)
    tl.store(o_ptr + at, tl.flip(tl.load(x_ptr + at), AXIS))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("shape", "axis"), CASES)
@pytest.mark.sample(6)
def test_flip(shape, axis, dtype, rng) -> None:
    x = random(rng, shape, dtype)
    check(flip_kernel, [x], [np.flip(x, axis)], {"S": cube(shape), "AXIS": axis - len(shape)},
          int(rng.choice(scans.WARPS)))


# -- sort -----------------------------------------------------------------------------------------

@tilec.jit
def sort_kernel(x_ptr, o_ptr, S: tl.constexpr, AXIS: tl.constexpr, DOWN: tl.constexpr):
    at = tl.reshape(tl.arange(0, tl.constexpr(S[0] * S[1] * S[2])), S)
    tl.store(o_ptr + at, tl.sort(tl.load(x_ptr + at), AXIS, DOWN))


def in_order(x: np.ndarray, axis: int) -> np.ndarray:
    """Ascending, NaN last, -0.0 before 0.0."""
    if x.dtype.kind in "iub":
        return np.sort(x, axis)
    bits = scans.same_bits(x)
    most = np.array(np.iinfo(bits.dtype).max, bits.dtype)
    keys = np.sort(np.where(bits < 0, bits ^ most, bits), axis)
    return np.where(keys < 0, keys ^ most, keys).view(x.dtype)


@pytest.mark.parametrize("down", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("shape", "axis"), CASES)
@pytest.mark.sample(6)
def test_sort(shape, axis, dtype, down, rng) -> None:
    x = special(rng, shape, dtype)
    want = np.flip(in_order(x, axis), axis) if down else in_order(x, axis)
    check(sort_kernel, [x], [want], {"S": cube(shape), "AXIS": axis - len(shape), "DOWN": down},
          int(rng.choice(scans.WARPS)))


@tilec.jit
def topk_kernel(x_ptr, o_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.arange(0, M)[:, None]
    x = tl.load(x_ptr + rows * N + tl.arange(0, N)[None, :])
    tl.store(o_ptr + rows * K + tl.arange(0, K)[None, :], tl.topk(x, K))


@pytest.mark.parametrize("k", [1, 2, 5, 8, 16, 17])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("n", [17, 32, 64, 70])
@pytest.mark.sample(4)
def test_topk(n, dtype, k, rng) -> None:
    x = special(rng, (3, n), dtype)
    want = np.flip(in_order(x, 1), 1)[:, :k]
    check(topk_kernel, [x], [want], {"M": 3, "N": n, "K": k}, int(rng.choice(scans.WARPS)))


@tilec.jit
def merge_kernel(x_ptr, o_ptr, p_ptr, N: tl.constexpr):
    """Two sorted halves, and the order of the elements of a row, sorted as pairs."""
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    y = tl.where(at < N // 2, tl.sort(x), tl.flip(tl.sort(x)))
    half = tl.where(at < N // 2, tl.gather(y, at, 0), tl.gather(y, at, 0))
    tl.store(o_ptr + at, tl.bitonic_merge(half, descending=True))
    pairs = (x.to(tl.int64) << 32) | at
    tl.store(p_ptr + at, (tl.sort(pairs) & 0xFFFFFFFF).to(tl.int32))


@pytest.mark.parametrize(("n", "warps"), [(8, 1), (128, 4)])
def test_merges_and_pairs(n, warps, rng) -> None:
    x = rng.integers(-5, 5, n).astype(np.int32)
    up = np.sort(x)
    bitonic = np.concatenate([up[:n // 2], up[::-1][n // 2:]])
    order = np.argsort(x, kind="stable").astype(np.int32)
    check(merge_kernel, [x], [np.sort(bitonic)[::-1], order], {"N": n}, warps)


@tilec.jit
def row_kernel(x_ptr, o_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(o_ptr + at, tl.sort(tl.load(x_ptr + at)))


def test_a_sort_exchanges_without_conversions() -> None:
    """No tile changes its layout, and warps meet for each of the three steps that joins them: once
    for what they exchange, once before the next step that uses the place."""
    made = tilec.compile(row_kernel, {"x_ptr": "*i32:16", "o_ptr": "*i32:16"}, {"N": 512},
                         target="sm_90a")
    assert "convert_layout" not in made.asm["gpu"]
    assert 3 <= made.asm["ptx"].count("bar.sync") <= 6
    # Bits 2 to 6 of the index are the lane's; bit b is exchanged in 9 - b stages, in 4 registers.
    assert made.asm["ptx"].count("shfl.sync.bfly") == 4 * 25


# -- histogram ------------------------------------------------------------------------------------

@tilec.jit
def histogram_kernel(x_ptr, o_ptr, p_ptr, limit, N: tl.constexpr, BINS: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    to = tl.arange(0, BINS)
    tl.store(o_ptr + to, tl.histogram(x, BINS))
    some = tl.load(x_ptr + at, mask=at < limit)  # what is masked off counts nowhere
    tl.store(p_ptr + to, some.histogram(BINS, mask=at < limit))


@pytest.mark.parametrize("bins", [1, 2, 10, 64, 200, 300])
@pytest.mark.parametrize("dtype", INTS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("n", [1, 32, 100, 512, 1000])
@pytest.mark.sample(8)
def test_histogram(n, dtype, bins, rng) -> None:
    """Of elements that are negative or beyond the bins, too."""
    info = np.iinfo(dtype)
    x = rng.integers(max(-3, info.min), min(bins + 20, info.max), n, endpoint=True).astype(dtype)
    x[::7] = info.max
    x[::11] = info.min
    limit = n * 2 // 3
    counts = [np.bincount(y[(y >= 0) & (y < bins)].astype(int), minlength=bins).astype(np.int32)
              for y in (x, x[:limit])]
    kernel, warps = histogram_kernel, int(rng.choice(scans.WARPS))
    scans.check(kernel, [x], counts, None, {"N": n, "BINS": bins}, warps, numbers=[limit])


# -- what is refused ------------------------------------------------------------------------------

def test_poison_of_indices() -> None:
    """An index outside gives poison, which must not be stored; masked off, it may be anything."""
    x = np.arange(8, dtype=np.int32)
    index = np.array([3, -1, 8, 7], np.int32)
    made = gather_kernel.warmup(x, index, x[:4], grid=(1,), S=(1, 1, 8), T=(1, 1, 4), AXIS=2)
    with pytest.raises(tilec.TilecError, match="the value is poison in 2 elements"):
        made.run([x, index, np.zeros(4, np.int32)], 1, level="tile")

