"""Kernels through the whole compiler: every level gives what the tile level gives.

The tile level is checked against numpy elsewhere; here layouts, conversions, scratch memory,
barriers and the PTX are, on odd extents, every dtype, and several numbers of warps.
"""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
FLOATS = (np.float16, BF16, np.float32, np.float64)
INTS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
# Relative error that two implementations of one function may have between them, per dtype.
CLOSE = {np.dtype(np.float16): 2e-3, np.dtype(BF16): 1.6e-2, np.dtype(np.float32): 2e-6,
         np.dtype(np.float64): 1e-13}


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)
    if kind == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    return (rng.standard_normal(shape) * 3).astype(kind)


def poisoned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    out = np.empty(shape, dtype)
    out.view(np.uint8)[...] = 0xA5
    return out


def check(kernel: tilec.JITFunction, args: list, grid: tuple[int, ...], constexprs: dict,
          warps: int = 4, exact: bool = True, target: str = "sm_90a") -> None:
    """Run at every level; all written arrays agree with the tile level's."""
    names = [p.name for p in kernel.params if not p.is_constexpr]
    results = {}
    made = kernel.warmup(*args, grid=grid, num_warps=warps, target=target, **constexprs)
    for level in ("tile", "gpu", "lowered", "ptx"):
        mine = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        made.run(dict(zip(names, mine, strict=True)), grid, level=level, seed=5)
        results[level] = [a for a in mine if isinstance(a, np.ndarray)]
    for level in ("gpu", "lowered", "ptx"):
        for got, want in zip(results[level], results["tile"], strict=True):
            compare(got, want, exact, level)


def compare(got: np.ndarray, want: np.ndarray, exact: bool, what: str) -> None:
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want, what)
        return
    tolerance = 0 if exact else CLOSE[want.dtype]
    with np.errstate(invalid="ignore"):  # signalling NaNs become quiet ones
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance,
                                   atol=tolerance * 1e-3, err_msg=what, equal_nan=True)


# -- elementwise ----------------------------------------------------------------------------------

@tilec.jit
def binary_kernel(x_ptr, y_ptr, o_ptr, n, F: tl.constexpr, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=1)
    y = tl.load(y_ptr + offs, mask=mask, other=1)
    tl.store(o_ptr + offs, F(x, y), mask=mask)


@tilec.jit
def add(x, y):
    return x + y


@tilec.jit
def sub_mul(x, y):
    return (x - y) * y


@tilec.jit
def min_max(x, y):
    return tl.minimum(x, y) - tl.maximum(y, x)


@tilec.jit
def select(x, y):
    return tl.where(x < y, x, tl.where(x == y, y, x + y))


@tilec.jit
def bits(x, y):
    return ((x & y) | (x ^ 3)) ^ ~y


@tilec.jit
def shifts(x, y):
    return (x << (y & 15)) + (x >> (y & 31))


@tilec.jit
def divide(x, y):
    d = tl.where(y == 0, 1, y)
    return x // d + x % d


@tilec.jit
def fused(x, y):
    return tl.fma(x, y, x) + tl.abs(y)


@pytest.mark.parametrize("dtype", FLOATS + INTS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("f", [add, sub_mul, min_max, select], ids=lambda f: f.name)
def test_arithmetic(f, dtype, rng) -> None:
    n, block = 210, 96
    x, y = random(rng, (n,), dtype), random(rng, (n,), dtype)
    y[::7] = x[::7]
    check(binary_kernel, [x, y, poisoned((n,), dtype), n], (3,), {"F": f, "B": block}, warps=2)


@pytest.mark.parametrize("dtype", INTS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("f", [bits, shifts, divide], ids=lambda f: f.name)
def test_integers(f, dtype, rng) -> None:
    n = 130
    x, y = random(rng, (n,), dtype), random(rng, (n,), dtype)
    y[::5] = 0
    check(binary_kernel, [x, y, poisoned((n,), dtype), n], (1,), {"F": f, "B": 160}, warps=1)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_fma(dtype, rng) -> None:
    x, y = random(rng, (77,), dtype), random(rng, (77,), dtype)
    check(binary_kernel, [x, y, poisoned((77,), dtype), 77], (1,), {"F": fused, "B": 77}, warps=4)


@tilec.jit
def unary_kernel(x_ptr, o_ptr, F: tl.constexpr, B: tl.constexpr):
    offs = tl.arange(0, B)
    tl.store(o_ptr + offs, F(tl.load(x_ptr + offs)))


@tilec.jit
def exps(x):
    return tl.exp(x) + tl.exp2(-x)


@tilec.jit
def logs(x):
    return tl.log(tl.abs(x) + 2) * tl.log2(tl.abs(x) + 3)


@tilec.jit
def roots(x):
    return tl.sqrt(tl.abs(x)) + tl.rsqrt(tl.abs(x) + 1)


@tilec.jit
def hyperbolic(x):
    return tl.math.tanh(x) + 2


@tilec.jit
def error_function(x):
    return tl.math.erf(x) + 2


@tilec.jit
def waves(x):
    return tl.sin(x) + tl.cos(x) + 3


@tilec.jit
def rounds(x):
    return tl.floor(x) + tl.ceil(x * 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("f", [exps, logs, roots, hyperbolic, error_function, waves, rounds],
                         ids=lambda f: f.name)
def test_functions(f, dtype, rng) -> None:
    x = random(rng, (200,), dtype)
    check(unary_kernel, [x, poisoned((200,), dtype)], (1,), {"F": f, "B": 200}, exact=False)


DTYPES = (np.bool_, *INTS, *FLOATS, E4M3, E5M2)


@tilec.jit
def cast_kernel(x_ptr, o_ptr, B: tl.constexpr, T: tl.constexpr):
    offs = tl.arange(0, B)
    tl.store(o_ptr + offs, tl.load(x_ptr + offs).to(T))


@pytest.mark.parametrize("src", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.sample(4)
def test_casts(src, rng) -> None:
    x = random(rng, (64,), src)
    if np.dtype(src).kind not in "iub":
        with np.errstate(over="ignore"):
            x[:8] = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e9, -1e9, 0.5]).astype(src)
    for dst in DTYPES:
        name = np.dtype(dst)
        check(cast_kernel, [x, poisoned((64,), dst)], (1,), {"B": 64, "T": name}, warps=1)


# -- reductions and shapes ------------------------------------------------------------------------

@tilec.jit
def reduce_kernel(x_ptr, sum_ptr, max_ptr, arg_ptr, M: tl.constexpr, N: tl.constexpr,
                  AXIS: tl.constexpr):
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + cols[None, :])
    left = tl.arange(0, N if AXIS == 0 else M)
    tl.store(sum_ptr + left, tl.sum(x, AXIS))
    tl.store(max_ptr + left, tl.max(x, AXIS))
    tl.store(arg_ptr + left, tl.argmin(x, AXIS))


SHAPES = [(1, 64), (16, 32), (24, 40), (5, 100), (64, 1), (128, 2)]


@pytest.mark.parametrize(("shape", "axis", "warps"),
                         [(s, a, w) for (s, a), w in zip(itertools.product(SHAPES, (0, 1)),
                                                         itertools.cycle((4, 1, 8, 2)))])
@pytest.mark.sample(3)
def test_reductions(shape, axis, warps, rng) -> None:
    for dtype in (np.int32, np.float32, np.int8):
        x = random(rng, shape, dtype)
        left = shape[1 - axis]
        wide = {np.int8: np.int32}.get(dtype, dtype)
        out = [poisoned((left,), wide), poisoned((left,), wide), poisoned((left,), np.int32)]
        # Sums of floats depend on the order of adding; small integers do not.
        if dtype is np.float32:
            x = np.round(x * 8)
        check(reduce_kernel, [x, *out], (1,), {"M": shape[0], "N": shape[1], "AXIS": axis}, warps)


@tilec.jit
def shape_kernel(x_ptr, t_ptr, r_ptr, p_ptr, M: tl.constexpr, N: tl.constexpr):
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + cols[None, :])
    tl.store(t_ptr + cols[:, None] * M + rows[None, :], tl.trans(x))
    flat = tl.arange(0, M * N)
    tl.store(r_ptr + flat, tl.reshape(x, (M * N,)) * 2)
    cube = tl.permute(tl.reshape(x, (M, N // 2, 2)), (2, 0, 1))
    at = tl.reshape(flat, (2, M, N // 2))
    tl.store(p_ptr + at, cube)


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.int32, np.float64],
                         ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("shape", "warps"), [((8, 8), 1), ((16, 64), 4), ((24, 40), 2),
                                              ((3, 96), 4), ((10, 14), 8)])
def test_shapes(shape, warps, dtype, rng) -> None:
    x = random(rng, shape, dtype)
    out = [poisoned((x.size,), dtype) for _ in range(3)]
    check(shape_kernel, [x, *out], (1,), {"M": shape[0], "N": shape[1]}, warps)


# -- memory and control ---------------------------------------------------------------------------

@tilec.jit
def loop_kernel(x_ptr, o_ptr, n, stride, B: tl.constexpr):
    offs = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    count = 0
    for start in range(0, n, B):
        x = tl.load(x_ptr + (start + offs) * stride, mask=start + offs < n, other=0.0)
        if tl.max(x, 0) > 2.0:
            total += x
            count += 1
        else:
            total -= x
    while count > 3:
        count -= 2
        total = total * 0.5
    tl.store(o_ptr + offs, total + count)


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
@pytest.mark.parametrize("stride", [1, 3])
def test_control_flow(stride, warps, rng) -> None:
    base = random(rng, (500 * 3,), np.float32)
    x = base[::stride][:500]
    view = np.lib.stride_tricks.as_strided(base, (500,), (4 * stride,))
    np.testing.assert_array_equal(x, view)
    check(loop_kernel, [base, poisoned((96,), np.float32), 500, stride], (1,), {"B": 96}, warps)


@tilec.jit
def trips_kernel(bounds_ptr, o_ptr, step, STEP: tl.constexpr):
    lo, hi = tl.load(bounds_ptr), tl.load(bounds_ptr + 1)
    count, last = 0, lo
    for i in range(lo, hi, STEP):
        count += 1
        last = i
    for _ in range(lo, hi, step):
        count += 100
    tl.store(o_ptr, count)
    tl.store(o_ptr + 1, last.to(tl.int32))


@pytest.mark.parametrize(("dtype", "lo", "hi", "step"), [
    (np.int32, 1 - 2**31, 2**31 - 1, 2**30), (np.int32, -2**31, 2**31 - 1, 2**31 - 1),
    (np.int32, -5, 9, 4), (np.int32, 7, -7, 2), (np.int64, 1 - 2**63, 2**63 - 1, 2**62),
    (np.uint32, 0, 2**32 - 1, 2**30), (np.uint32, 0, 2**32 - 1, 1431655766)])
def test_loops_whose_index_wraps(dtype, lo, hi, step) -> None:
    out = np.zeros(2, np.int32)
    bounds = np.array([lo, hi], dtype)
    check(trips_kernel, [bounds, out, step], (1,), {"STEP": step}, warps=1)


@tilec.jit
def atomic_kernel(x_ptr, bins_ptr, old_ptr, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0)
    tl.atomic_add(bins_ptr + (x & 7), x, mask=mask)
    old = tl.atomic_add(bins_ptr + 8, 1)
    tl.store(old_ptr + tl.program_id(0) + tl.zeros((1,), tl.int32), old * 0 + 7)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64],
                         ids=lambda d: np.dtype(d).name)
def test_atomics(dtype, rng) -> None:
    x = rng.integers(0, 1000, 300).astype(dtype)
    bins = np.zeros(9, dtype)
    check(atomic_kernel, [x, bins, poisoned((3,), dtype), 300], (3,), {"B": 128})


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_targets(target, rng) -> None:
    x, y = random(rng, (100,), BF16), random(rng, (100,), BF16)
    check(binary_kernel, [x, y, poisoned((100,), BF16), 100], (1,), {"F": sub_mul, "B": 128},
          target=target)
