"""Scans at every level against numpy: all dtypes, axes and directions, odd extents, tuples of
several dtypes, functions that are not commutative.

Values of floats come from a wider type; how far a result may be is what docs/semantics.md,
section 7, says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.test_levels import BF16, FLOATS, INTS, poisoned, random

DTYPES = (np.bool_, *INTS, *FLOATS)
SHAPES = [(1,), (7,), (96,), (1000,), (1, 64), (16, 32), (24, 40), (5, 100), (64, 1), (128, 2),
          (2, 4, 8), (3, 6, 20)]
WARPS = (1, 2, 4, 8)
LEVELS = ("tile", "gpu", "lowered", "ptx")
Arrays = Sequence[np.ndarray]


def check(kernel: tilec.JITFunction, inputs: Arrays, outputs: Arrays, bounds: Arrays | None,
          constexprs: dict, warps: int = 4, target: str = "sm_90a",
          numbers: Sequence[int] = ()) -> None:
    """Run at every level; what is written is `outputs`, or within `bounds` of it. Parameters are
    inputs, outputs and numbers, in this order."""
    names = [p.name for p in kernel.params if not p.is_constexpr]
    args = [*inputs, *(poisoned(o.shape, o.dtype) for o in outputs), *numbers]
    made = kernel.warmup(*args, grid=(1,), num_warps=warps, target=target, **constexprs)
    for level in LEVELS:
        mine = [np.copy(a) if isinstance(a, np.ndarray) else a for a in args]
        made.run(dict(zip(names, mine, strict=True)), 1, level=level, seed=3)
        compare(mine[len(inputs):len(args) - len(numbers)], outputs, bounds, level)


def same_bits(x: np.ndarray) -> np.ndarray:
    """Floats as integers, so that zeros have signs, and all NaN as one."""
    if x.dtype.kind in "iub":
        return x
    return np.where(x != x, np.array(np.nan, x.dtype), x).view(f"i{x.itemsize}")


def compare(got: Arrays, want: Arrays, bounds: Arrays | None, what: str) -> None:
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        if bounds is None:
            np.testing.assert_array_equal(same_bits(x), same_bits(y), what)
        else:
            off = np.abs(x.astype(np.longdouble) - y.astype(np.longdouble))
            assert (off <= bounds[i]).all(), (what, float((off - bounds[i]).max()))


def scanned(step: Callable, arrays: Arrays, axis: int, reverse: bool) -> list[np.ndarray]:
    """One element after the other: step(values so far, the next ones)."""
    def turned(x: np.ndarray) -> np.ndarray:
        return np.flip(x, 0) if reverse else x

    parts = [turned(np.moveaxis(a, axis, 0)) for a in arrays]
    outs = [np.empty_like(p) for p in parts]
    sofar = [p[0] for p in parts]
    with np.errstate(all="ignore"):
        for i in range(len(parts[0])):
            sofar = [p[i] for p in parts] if not i else step(sofar, [p[i] for p in parts])
            for out, x in zip(outs, sofar, strict=True):
                out[i] = x
    return [np.moveaxis(turned(o), 0, axis) for o in outs]


def axes(shapes: Sequence[tuple[int, ...]]) -> list[tuple[tuple[int, ...], int]]:
    return [(s, a) for s in shapes for a in range(len(s))]


# -- by name --------------------------------------------------------------------------------------

@tilec.jit
def sums(x_ptr, o_ptr, S: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.reshape(tl.arange(0, tl.constexpr(S[0] * S[1] * S[2])), S)
    tl.store(o_ptr + at, tl.cumsum(tl.load(x_ptr + at), AXIS, REVERSE))


@tilec.jit
def products(x_ptr, o_ptr, S: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.reshape(tl.arange(0, tl.constexpr(S[0] * S[1] * S[2])), S)
    tl.store(o_ptr + at, tl.load(x_ptr + at).cumprod(AXIS, reverse=REVERSE))


def named(kernel: tilec.JITFunction, x: np.ndarray, axis: int, reverse: bool, wide: np.dtype,
          warps: int) -> None:
    """cumsum and cumprod: exact modulo 2^n, or within the bound of section 7."""
    add = kernel is sums
    cube = (1,) * (3 - x.ndim) + x.shape
    constexprs = {"S": cube, "AXIS": axis + 3 - x.ndim, "REVERSE": reverse}
    if wide.kind in "iub":
        y = x.astype(wide)
        out = scanned(lambda a, b: [(a[0] + b[0] if add else a[0] * b[0]).astype(wide)], [y], axis,
                      reverse)
        check(kernel, [x], out, None, constexprs, warps)
        return
    y = x.astype(np.longdouble)
    out = scanned(lambda a, b: [a[0] + b[0] if add else a[0] * b[0]], [y], axis, reverse)[0]
    size = scanned(lambda a, b: [a[0] + b[0]], [abs(y)], axis, reverse)[0] if add else abs(out)
    inner = np.dtype(np.float32) if wide.itemsize < 4 else wide
    n = x.shape[axis]
    bound = size * float(np.finfo(inner).eps) * (log2(n) + 16 if add else n)
    with np.errstate(all="ignore"):
        want = out.astype(wide)
    bound = bound + abs(want.astype(np.longdouble) - out)  # what rounding the result does
    if wide != inner:
        bound = bound + abs(out) * float(ml_dtypes.finfo(wide).eps)
    check(kernel, [x], [want], [bound], constexprs, warps)


def summed(dtype: np.dtype) -> np.dtype:
    if dtype == BF16:
        return np.dtype(np.float32)
    narrow = dtype.kind in "iub" and dtype.itemsize < 4
    return dtype if not narrow else np.dtype(np.int32 if dtype.kind == "i" else np.uint32)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("shape", "axis"), axes(SHAPES))
@pytest.mark.sample(9)
def test_cumsum(shape, axis, dtype, reverse, rng) -> None:
    x = random(rng, shape, dtype)
    named(sums, x, axis, reverse, summed(x.dtype), int(rng.choice(WARPS)))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("shape", "axis"), axes(SHAPES))
@pytest.mark.sample(6)
def test_cumprod(shape, axis, dtype, reverse, rng) -> None:
    x = random(rng, shape, dtype)
    if x.dtype.kind not in "iub":  # near 1, so that nothing overflows
        x = (1 + rng.uniform(-0.05, 0.05, shape)).astype(dtype)
    wide = np.dtype(np.float32) if x.dtype == BF16 else x.dtype
    named(products, x, axis, reverse, wide, int(rng.choice(WARPS)))


# -- by any function ------------------------------------------------------------------------------

@tilec.jit
def first(a, b):
    return a


@tilec.jit
def largest(a, b):
    if a > b:
        c = a
    else:
        c = b
    return c


@tilec.jit
def least(a, b):
    return tl.minimum(a, b)


@tilec.jit
def latest(a, b):
    return tl.where(b != 0, b, a)


@tilec.jit
def one_kernel(x_ptr, o_ptr, F: tl.constexpr, S: tl.constexpr, AXIS: tl.constexpr,
               REVERSE: tl.constexpr):
    at = tl.reshape(tl.arange(0, tl.constexpr(S[0] * S[1] * S[2])), S)
    tl.store(o_ptr + at, tl.associative_scan(tl.load(x_ptr + at), AXIS, F, REVERSE))


def of_bits(name: str) -> Callable:
    return lambda a, b: [getattr(np, name)(a[0], b[0])]


ONE = {"first": (first, lambda a, b: a), "largest": (largest, of_bits("maximum")),
       "latest": (latest, lambda a, b: [np.where(b[0] != 0, b[0], a[0])]),
       "least": (least, of_bits("minimum"))}
FEW = [(300,), (16, 32), (12, 17), (3, 6, 20)]


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", ONE)
@pytest.mark.sample(9)
def test_one_tile(name, dtype, reverse, rng) -> None:
    f, step = ONE[name]
    shape = FEW[int(rng.integers(len(FEW)))]
    axis = int(rng.integers(len(shape)))
    x = random(rng, shape, dtype)
    x[rng.random(shape) < 0.6] = 0
    out = scanned(step, [x], axis, reverse)
    cube = (1,) * (3 - x.ndim) + shape
    check(one_kernel, [x], out, None, {"F": f, "S": cube, "AXIS": axis - len(shape),
                                       "REVERSE": reverse}, int(rng.choice(WARPS)))


@tilec.jit
def affine(a, b, c, d):
    return a * c, c * b + d


@tilec.jit
def greatest(x, i, y, j):
    take = (x > y) | ((x == y) & (i < j))
    return tl.where(take, x, y), tl.where(take, i, j)


@tilec.jit
def segments(flag, x, starts, y):
    return flag | starts, tl.where(starts, y, x + y)


@tilec.jit
def two_kernel(x_ptr, y_ptr, p_ptr, q_ptr, F: tl.constexpr, S: tl.constexpr, AXIS: tl.constexpr,
               REVERSE: tl.constexpr):
    at = tl.reshape(tl.arange(0, tl.constexpr(S[0] * S[1])), S)
    p, q = tl.associative_scan((tl.load(x_ptr + at), tl.load(y_ptr + at)), AXIS, F, REVERSE)
    tl.store(p_ptr + at, p)
    tl.store(q_ptr + at, q)


def _greatest(a: Arrays, b: Arrays) -> list[np.ndarray]:
    take = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
    return [np.where(take, x, y) for x, y in zip(a, b, strict=True)]


# Of each: the function, the same in numpy, and the dtypes of two tiles.
TWO = {"affine": (affine, lambda a, b: [a[0] * b[0], b[0] * a[1] + b[1]], (np.int32, np.int32)),
       "narrow": (affine, lambda a, b: [a[0] * b[0], b[0] * a[1] + b[1]], (np.uint8, np.uint8)),
       "greatest": (greatest, _greatest, (np.float32, np.int32)),
       "of f16": (greatest, _greatest, (np.float16, np.int64)),
       "segments": (segments, lambda a, b: [a[0] | b[0], np.where(b[0], b[1], a[1] + b[1])],
                    (np.bool_, np.int16))}


@pytest.mark.parametrize("warps", WARPS)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(("shape", "axis"), axes([(16, 32), (12, 17), (3, 250), (70, 2)]))
@pytest.mark.parametrize("name", TWO)
@pytest.mark.sample(10)
def test_two_tiles(name, shape, axis, reverse, warps, rng) -> None:
    f, step, dtypes = TWO[name]
    x, y = (random(rng, shape, t) for t in dtypes)
    if name in ("greatest", "of f16"):
        x = np.round(x)  # with ties
    out = scanned(step, [x, y], axis, reverse)
    check(two_kernel, [x, y], out, None, {"F": f, "S": shape, "AXIS": axis, "REVERSE": reverse},
          warps)


# -- where tiles come from ------------------------------------------------------------------------

@tilec.jit
def masked_kernel(x_ptr, o_ptr, N: tl.constexpr, B: tl.constexpr, REVERSE: tl.constexpr):
    """The running sum of rows, a block at a time, and the sums of a broadcast column."""
    rows = tl.arange(0, 4)[:, None]
    before = tl.zeros((4, 1), tl.int32)
    for start in range(0, N, B):
        cols = start + tl.arange(0, B)[None, :]
        x = tl.load(x_ptr + rows * N + cols, mask=cols < N, other=0)
        sums = tl.cumsum(x, 1) + before
        before += tl.sum(x, 1, keep_dims=True)
        tl.store(o_ptr + rows * N + cols, sums, mask=cols < N)
    total = tl.cumsum(tl.broadcast_to(before, (4, 8)), 1, REVERSE)
    tl.store(o_ptr + 4 * N + rows * 8 + tl.arange(0, 8)[None, :], total)


@pytest.mark.parametrize(("n", "block", "warps"), [(37, 16, 1), (500, 96, 4), (64, 128, 8)])
def test_in_loops_and_of_broadcasts(n, block, warps, rng) -> None:
    x = rng.integers(-1000, 1000, (4, n)).astype(np.int32)
    total = x.sum(1, keepdims=True) * np.arange(8, 0, -1)
    out = np.concatenate([x.cumsum(1).reshape(-1), total.reshape(-1)]).astype(np.int32)
    check(masked_kernel, [x], [out], None, {"N": n, "B": block, "REVERSE": True}, warps)


@tilec.jit
def moved_kernel(x_ptr, o_ptr, t_ptr, M: tl.constexpr, N: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(o_ptr + tl.arange(0, M * N), tl.ravel(x).cumsum(reverse=REVERSE))
    tl.store(t_ptr + tl.trans(at), tl.cumsum(tl.trans(x), 1, REVERSE))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "warps"), [((64, 32), 4), ((8, 256), 8), ((12, 20), 2)])
def test_of_reshaped_and_transposed_tiles(shape, warps, reverse, rng) -> None:
    x = random(rng, shape, np.int32)
    out = [scanned(lambda a, b: [a[0] + b[0]], [x.reshape(-1)], 0, reverse)[0],
           scanned(lambda a, b: [a[0] + b[0]], [x], 0, reverse)[0]]
    check(moved_kernel, [x], out, None, {"M": shape[0], "N": shape[1], "REVERSE": reverse}, warps)


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_targets(target, rng) -> None:
    x, y = random(rng, (8, 100), np.int32), random(rng, (8, 100), np.int32)
    f, step, _ = TWO["affine"]
    check(two_kernel, [x, y], scanned(step, [x, y], 1, True), None,
          {"F": f, "S": (8, 100), "AXIS": 1, "REVERSE": True}, 4, target)
