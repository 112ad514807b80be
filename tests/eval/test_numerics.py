"""Arithmetic, casts and math of tilec.eval against exact references (Fraction, Python ints)."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tilec.eval import numerics as num
from tilec.eval.casts import bitcast, cast
from tilec.eval.dtypes import BF16, BOOL, E4M3, E5M2, F16, F32, F64, dtype_of, scalar_type
from tilec.eval.fma import fma
from tilec.eval.mathfns import math_function
from tilec.ir import types as ir

SIGNED = [np.dtype(f"i{b}") for b in (1, 2, 4, 8)]
UNSIGNED = [np.dtype(f"u{b}") for b in (1, 2, 4, 8)]
INTS = SIGNED + UNSIGNED
FLOATS = [F16, BF16, F32, F64]


def name_of(dtype):
    return dtype.name


def ints(dtype, n, seed):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    x = rng.integers(info.min, info.max, n, dtype=dtype, endpoint=True)
    edges = [info.min, info.max, 0, 1, info.max - 1, info.min + 1, 7]
    if info.min < 0:
        edges += [-1, -7]
    x[: len(edges)] = edges
    return rng.permutation(x)


def wrap(value, dtype):
    bits = dtype.itemsize * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value


def same(a, b):
    """Equal bits, any NaN being equal to any other."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype and a.shape == b.shape
    u = np.dtype(f"u{a.dtype.itemsize}")
    with np.errstate(all="ignore"):
        ok = (a.view(u) == b.view(u)) | ((a != a) & (b != b))
    assert ok.all(), (a[~ok][:5], b[~ok][:5])


@pytest.mark.parametrize("dtype", INTS, ids=name_of)
def test_integer_arithmetic_wraps_and_truncates(dtype):
    a, b = ints(dtype, 97, 1), ints(dtype, 97, 2)
    pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    for fn, ref in ((num.add, lambda x, y: x + y), (num.sub, lambda x, y: x - y),
                    (num.mul, lambda x, y: x * y)):
        assert fn(a, b).dtype == dtype
        assert fn(a, b).tolist() == [wrap(ref(x, y), dtype) for x, y in pairs]
    quotient, remainder = num.c_div(a, b), num.c_rem(a, b)
    for q, r, (x, y) in zip(quotient.tolist(), remainder.tolist(), pairs, strict=True):
        if y:
            want = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
            assert q == wrap(want, dtype) and r == x - want * y
        else:
            assert (q, r) == (0, 0)
    assert num.neg(a).tolist() == [wrap(-x, dtype) for x, _ in pairs]
    assert num.abs_(a).tolist() == [wrap(abs(x), dtype) for x, _ in pairs]


@pytest.mark.parametrize("dtype", INTS, ids=name_of)
def test_shifts_are_total(dtype):
    bits = dtype.itemsize * 8
    a = ints(dtype, 64, 3)
    for amount in (0, 1, bits - 1, bits, bits + 1, 100, *((-1,) if dtype.kind == "i" else ())):
        b = np.full(64, amount, dtype)
        inside = 0 <= amount < bits
        left = [wrap(int(x) << amount, dtype) if inside else 0 for x in a]
        right = [int(x) >> (amount if inside else bits) for x in a]
        assert num.shl(a, b).tolist() == left
        assert num.shr(a, b).tolist() == right


def test_bool_arithmetic_is_one_bit():
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    assert num.add(a, b).tolist() == [False, True, True, False]
    assert num.sub(a, b).tolist() == [False, True, True, False]
    assert num.mul(a, b).tolist() == [False, False, False, True]
    assert num.minimum(a, b).tolist() == [False, False, False, True]
    assert num.shl(a, b).tolist() == [False, False, True, False]
    assert num.c_div(a, b)[[1, 3]].tolist() == [False, True]
    for fn in (num.add, num.sub, num.mul, num.c_div, num.c_rem, num.shr, num.maximum):
        assert fn(a, b).dtype == BOOL


def test_every_value_of_the_narrow_floats_survives_widening():
    for dtype in (F16, BF16, E4M3, E5M2):
        count = 1 << (8 * dtype.itemsize)
        x = np.arange(count, dtype=f"u{dtype.itemsize}").view(dtype)
        for wide in (F32, F64):
            same(cast(cast(x, wide), dtype), cast(x, dtype) if dtype not in (E5M2,) else
                 np.where(np.isinf(x.astype(F32)), np.sign(x.astype(F32)) * 57344,
                          x.astype(F32)).astype(E5M2))


def nearest_even(value, dtype):
    """`value` (finite f64) rounded to a float dtype by search among its neighbours."""
    grid = GRIDS[dtype]
    i = int(np.clip(np.searchsorted(grid, value), 1, len(grid) - 1))
    low, high = Fraction(float(grid[i - 1])), Fraction(float(grid[i]))
    below, above = Fraction(float(value)) - low, high - Fraction(float(value))
    if below != above:
        return float(grid[i - 1] if below < above else grid[i])
    even = grid[i - 1:i + 1].astype(dtype).view(f"u{dtype.itemsize}") % 2 == 0
    return float(grid[i - 1] if even[0] else grid[i])


def _grid(dtype):
    with np.errstate(all="ignore"):
        bits = np.arange(1 << (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}")
        x = bits.view(dtype).astype(F64)
    return np.unique(x[np.isfinite(x)])


GRIDS = {d: _grid(d) for d in (F16, BF16, E4M3, E5M2)}


@pytest.mark.parametrize("dtype", list(GRIDS), ids=name_of)
def test_casts_to_narrow_floats_round_to_nearest_even(dtype):
    grid = GRIDS[dtype]
    rng = np.random.default_rng(6)
    middles = (grid[:-1] + grid[1:]) / 2
    x = np.concatenate([rng.choice(middles, 200), rng.choice(grid, 50) * 1.0001,
                        rng.choice(grid[np.abs(grid) < 1e-4], 50) * 0.7]).astype(F32)
    x = x[np.abs(x) <= grid[-1]]
    got = cast(x, dtype)
    assert got.astype(F64).tolist() == [nearest_even(v, dtype) for v in x]


@pytest.mark.parametrize("dtype", [F16, BF16], ids=name_of)
def test_round_toward_zero_never_grows_and_never_overflows(dtype):
    grid = GRIDS[dtype]
    rng = np.random.default_rng(7)
    x = np.concatenate([rng.choice(grid, 300) * 1.003, [3.4e38, -3.4e38, 1e-44, 0.0, -0.0]])
    for source in (F32, F64):
        xs = x.astype(source)
        xs = xs[np.isfinite(xs)]
        got = cast(xs, dtype, "rtz").astype(F64)
        index = np.searchsorted(grid, np.abs(xs.astype(F64)), side="right") - 1
        assert np.array_equal(got, np.copysign(grid[index], xs.astype(F64)))
    assert np.isinf(cast(np.array([np.inf], F32), dtype, "rtz")).all()
    assert np.isnan(cast(np.array([np.nan], F32), dtype, "rtz")).all()


def test_fp8_saturates():
    x = np.array([1e9, -1e9, np.inf, -np.inf, np.nan, 464.0, 449.0, 61440.0], F32)
    assert cast(x, E4M3).astype(F32)[:4].tolist() == [448, -448, 448, -448]
    assert cast(x, E5M2).astype(F32)[:4].tolist() == [57344, -57344, 57344, -57344]
    assert np.isnan(cast(x, E4M3).astype(F32)[4]) and np.isnan(cast(x, E5M2).astype(F32)[4])
    assert cast(x, E4M3).astype(F32)[5:].tolist() == [448, 448, 448]
    assert cast(x, E5M2).astype(F32)[7] == 57344
    assert cast(np.array([1000, -5], np.int32), E4M3).astype(F32).tolist() == [448, -5]
    with pytest.raises(ValueError, match="no round-toward-zero"):
        cast(x, E4M3, "rtz")


@pytest.mark.parametrize("source", [F16, BF16, F32, F64, E4M3, E5M2], ids=name_of)
@pytest.mark.parametrize("dtype", INTS, ids=name_of)
def test_float_to_int_saturates_and_nan_is_zero(source, dtype):
    info = np.iinfo(dtype)
    with np.errstate(all="ignore"):
        x = np.array([0.0, -0.5, 1.75, -1.75, 100.5, -100.5, 300, -300, 7e4, 3e9, -3e9, 1e19, -1e19,
                      2.0**63, 2.0**64, np.inf, -np.inf, np.nan]).astype(source)
    want = []
    for v in x.astype(F64).tolist():
        exact = 0 if math.isnan(v) else v if math.isinf(v) else math.trunc(v)
        want.append(int(min(max(exact, info.min), info.max)))
    assert cast(x, dtype).tolist() == want


def test_int_to_float_rounds_to_nearest():
    x = np.array([2**24 + 1, 2**24 + 3, -(2**31), 65519, 65520, 10**6], np.int32)
    assert cast(x, F32).tolist() == [2.0**24, 2.0**24 + 4, -(2.0**31), 65519, 65520, 10**6]
    assert cast(x, F16)[3:].tolist() == [65504, np.inf, np.inf]
    big = np.array([2**64 - 1, 2**63 + 1], np.uint64)
    assert cast(big, F32).tolist() == [2.0**64, 2.0**63]
    assert cast(np.array([257, 259], np.int64), BF16).astype(F32).tolist() == [256, 260]


def test_bool_and_integer_casts():
    x = np.array([0.0, -0.0, np.nan, 1e-30], F32)
    assert cast(x, BOOL).tolist() == [False, False, True, True]
    assert cast(np.array([0, 256], np.int32), BOOL).tolist() == [False, True]
    assert cast(np.array([True, False]), BF16).astype(F32).tolist() == [1, 0]
    assert cast(np.array([-1, 300], np.int32), np.dtype("u1")).tolist() == [255, 44]
    assert cast(np.array([-1], np.int8), np.dtype("u8")).tolist() == [2**64 - 1]
    assert cast(np.array([255], np.uint8), np.dtype("i4")).tolist() == [255]
    assert bitcast(np.array([1.0], F32), np.dtype("i4")).tolist() == [0x3F800000]
    with pytest.raises(ValueError, match="widths differ"):
        bitcast(np.array([1.0], F32), F16)


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=name_of)
def test_float_arithmetic_is_rounded_once(dtype):
    rng = np.random.default_rng(8)
    a, b = (cast(rng.standard_normal(500) * 10.0 ** rng.integers(-4, 4, 500), dtype)
            for _ in range(2))
    for fn, ref in ((num.add, Fraction.__add__), (num.sub, Fraction.__sub__),
                    (num.mul, Fraction.__mul__), (num.true_div, Fraction.__truediv__)):
        got = fn(a, b)
        assert got.dtype == dtype
        for g, x, y in zip(got, a, b, strict=True):
            assert_nearest(g, ref(Fraction(float(x)), Fraction(float(y))), dtype)


def assert_nearest(got, exact, dtype):
    """No neighbour of `got` is closer to `exact`; on a tie, `got` is even."""
    value = np.array([got], dtype)
    if not np.isfinite(value[0]):
        return
    bits = value.view(f"u{dtype.itemsize}")
    error = abs(Fraction(float(got)) - exact)
    for step in (1, -1):
        other = (bits + np.array(step).astype(bits.dtype)).view(dtype)[0]
        if np.isfinite(other):
            distance = abs(Fraction(float(other)) - exact)
            assert distance > error or (distance == error and bits[0] % 2 == 0)


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_fma_is_rounded_once(dtype):
    rng = np.random.default_rng(9)
    n = 600

    def draw(spread):
        return cast(rng.standard_normal(n) * 2.0 ** rng.integers(-spread, spread, n), dtype)

    a, b, c = draw(6), draw(6), draw(12)
    # Cancellation, and addends far below half an ulp of the product's midpoint.
    with np.errstate(all="ignore"):
        c[:200] = cast(-(a[:200].astype(F64) * b[:200].astype(F64)), dtype)
    ulp = np.array(2.0 ** -{F16: 10, BF16: 7, F32: 23, F64: 52}[dtype])
    a[200:300] = cast(1 + ulp * rng.integers(1, 50, 100), dtype)
    b[200:300] = cast(1 + ulp * rng.integers(1, 50, 100), dtype)
    tiny = 2.0 ** -(20.0 if dtype == F16 else 60.0)
    c[200:300] = cast(rng.choice([-1.0, 1.0], 100) * tiny, dtype)
    got = fma(a, b, c)
    assert got.dtype == dtype
    for g, x, y, z in zip(got, a, b, c, strict=True):
        assert_nearest(g, Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)), dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_fma_edges(dtype):
    inf, nan = np.inf, np.nan
    big = float(ml_dtypes.finfo(dtype).max)
    small = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    a = cast(np.array([inf, inf, 0.0, nan, big, -0.0, small, big, 1.0]), dtype)
    b = cast(np.array([1.0, 0.0, 5.0, 1.0, 2.0, 0.0, 0.5, 1.0, 1.0]), dtype)
    c = cast(np.array([-inf, 1.0, -0.0, 1.0, -big, -0.0, small, 0.0, -1.0]), dtype)
    got = fma(a, b, c).astype(F64)
    want = [nan, nan, 0.0, nan, big, -0.0, 2 * small, big, 0.0]
    for g, w in zip(got.tolist(), want, strict=True):
        assert (math.isnan(g) and math.isnan(w)) or (g == w and
                                                     math.copysign(1, g) == math.copysign(1, w))


def test_f64_fma_with_extreme_exponents():
    a = np.array([1e200, 1e-200, 1e300, 5e-324, 1e-160])
    b = np.array([1e150, 1e-150, 1e10, 0.5, 1e-160])
    c = np.array([-1e308, 1e-310, -1e305, 5e-324, 0.0])
    for g, x, y, z in zip(fma(a, b, c), a, b, c, strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        if abs(exact) > Fraction(np.finfo(F64).max):
            assert np.isinf(g)
        else:
            assert g == float(exact)


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_minimum_and_maximum(dtype):
    nan = np.nan
    a = cast(np.array([1.0, nan, nan, 0.0, -0.0, np.inf, -np.inf, 0.0, -nan]), dtype)
    b = cast(np.array([nan, 2.0, nan, -0.0, 0.0, 3.0, 3.0, nan, 0.0]), dtype)
    low = cast(np.array([1.0, 2.0, nan, -0.0, -0.0, 3.0, -np.inf, 0.0, 0.0]), dtype)
    high = cast(np.array([1.0, 2.0, nan, 0.0, 0.0, np.inf, 3.0, 0.0, 0.0]), dtype)
    same(num.minimum(a, b), low)
    same(num.maximum(a, b), high)
    any_nan = np.isnan(a.astype(F32)) | np.isnan(b.astype(F32))
    for fn, plain in ((num.minimum, low), (num.maximum, high)):
        same(fn(a, b, propagate_nan=True), np.where(any_nan, cast(np.array(nan), dtype), plain))


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("size", [1, 3, 16, 37])
def test_a_number_wins_over_a_signalling_nan(dtype, size):
    """Wherever it lies: numpy's vector loops and their remainders differ about it."""
    signalling = np.full(size, np.inf).astype(dtype)
    signalling.view(f"u{np.dtype(dtype).itemsize}")[...] += 1
    number = np.full(size, -20).astype(dtype)
    for fn in (num.minimum, num.maximum):
        same(fn(signalling, number), number)
        same(fn(number, signalling), number)
        with np.errstate(invalid="ignore"):
            assert np.isnan(fn(signalling, signalling)).all()


@pytest.mark.parametrize("dtype", [*FLOATS, E4M3, E5M2], ids=name_of)
def test_comparisons_are_ordered(dtype):
    a = cast(np.array([1.0, 2.0, np.nan, np.nan, 0.0, -1.0]), dtype)
    b = cast(np.array([2.0, 2.0, 1.0, np.nan, -0.0, -2.0]), dtype)
    want = {"lt": "100000", "le": "110010", "gt": "000001", "ge": "010011", "eq": "010010",
            "ne": "101101"}
    for predicate, bits in want.items():
        got = num.compare(a, b, predicate)
        assert got.dtype == BOOL and "".join(str(int(v)) for v in got) == bits


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_neg_abs_fmod_keep_signs(dtype):
    x = cast(np.array([0.0, -0.0, 5.5, -5.5, np.inf]), dtype)
    same(num.neg(x), cast(np.array([-0.0, 0.0, -5.5, 5.5, -np.inf]), dtype))
    same(num.abs_(x), cast(np.array([0.0, 0.0, 5.5, 5.5, np.inf]), dtype))
    y = cast(np.array([2.0, 2.0, 2.0, 2.0, 2.0]), dtype)
    same(num.c_rem(x, y), cast(np.array([0.0, -0.0, 1.5, -1.5, np.nan]), dtype))


REFERENCE = {"exp": math.exp, "exp2": lambda x: 2.0**x, "log": math.log, "log2": math.log2,
             "sin": math.sin, "cos": math.cos, "tanh": math.tanh, "erf": math.erf,
             "sqrt": math.sqrt, "rsqrt": lambda x: 1 / math.sqrt(x),
             "floor": lambda x: math.copysign(math.floor(x), x),
             "ceil": lambda x: math.copysign(math.ceil(x), x)}


@pytest.mark.parametrize("name", list(REFERENCE))
@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_math_functions(name, dtype):
    rng = np.random.default_rng(10)
    x = rng.standard_normal(400) * 10
    x = cast(np.abs(x) + 1e-3 if name in ("log", "log2", "sqrt", "rsqrt") else x, dtype)
    got = math_function(name, x)
    assert got.dtype == dtype
    want = np.array([REFERENCE[name](v) for v in x.astype(F64).tolist()])
    if dtype != F64:
        with np.errstate(all="ignore"):
            same(got, want.astype(F32).astype(dtype))
    else:
        np.testing.assert_allclose(got, want, rtol=4e-16, atol=1e-18)


def test_math_special_values():
    inf, nan = np.inf, np.nan

    def f32(*v):
        return np.array(v, F32)

    same(math_function("exp", f32(-inf, inf, nan, 0, 89)), f32(0, inf, nan, 1, inf))
    same(math_function("log", f32(0, -0.0, -1, inf, 1)), f32(-inf, -inf, nan, inf, 0))
    same(math_function("sqrt", f32(-0.0, -1, inf)), f32(-0.0, nan, inf))
    same(math_function("rsqrt", f32(0, -0.0, inf, -1)), f32(inf, -inf, 0, nan))
    same(math_function("sin", f32(inf, -0.0)), f32(nan, -0.0))
    same(math_function("tanh", f32(inf, -inf, -0.0, nan)), f32(1, -1, -0.0, nan))
    same(math_function("erf", f32(inf, -inf, -0.0, nan)), f32(1, -1, -0.0, nan))
    same(math_function("ceil", f32(-0.5, 2.1)), f32(-0.0, 3))


def test_dtype_tables():
    for t in ir.SCALARS.values():
        assert scalar_type(dtype_of(t)) == t
    assert dtype_of(ir.Tensor((4, 3), ir.Pointer(ir.bf16))) == np.dtype(np.int64)
    with pytest.raises(KeyError):
        scalar_type(np.complex64)
