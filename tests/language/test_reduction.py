"""Reductions against numpy: every dtype, axis and shape, ties, NaN, tuples, and their errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec.language as tl
from tests.language.harness import LOC, evaluate, tracing
from tilec.errors import CompilationError
from tilec.frontend.function import function

BF16 = ml_dtypes.bfloat16
INTS = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = [np.float16, BF16, np.float32, np.float64]
SHAPES = [(1,), (7,), (96,), (4, 5), (3, 2, 6)]


def values(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


def axes(shape):
    return [None, *range(-len(shape), len(shape))]


def refused(fn, found=""):
    with pytest.raises(CompilationError) as caught:
        fn()
    assert caught.value.loc == LOC and caught.value.advice, caught.value.message
    assert found in caught.value.message
    return caught.value


@pytest.mark.parametrize("dtype", INTS)
def test_integer_sum(dtype):
    x = values(dtype, (4, 5))
    wide = x.dtype if x.dtype.itemsize >= 4 else \
        np.dtype("int32" if x.dtype.kind == "i" else "uint32")
    for axis in axes(x.shape):
        got = evaluate(lambda x, axis=axis: tl.sum(x, axis), x)
        assert got.dtype == wide
        np.testing.assert_array_equal(got, x.sum(axis, dtype=wide))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_sum(dtype, shape):
    x = values(dtype, shape, 1)
    for axis in axes(shape):
        got = evaluate(lambda x, axis=axis: x.sum(axis), x)
        assert got.dtype == x.dtype
        eps = float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(got.astype("f8"), x.astype("f8").sum(axis), rtol=eps,
                                   atol=8 * eps if dtype in (np.float32, np.float64) else eps)


def test_narrow_floats_add_up_in_float32():
    x = np.full(4096, 1.0, BF16)  # in bf16 the sum would stop at 256
    assert evaluate(lambda x: tl.sum(x), x) == 4096
    assert evaluate(lambda x: tl.sum(x, dtype=tl.float16), x) == 4096


def test_sum_dtype():
    x = values("int8", (40,))
    got = evaluate(lambda x: (tl.sum(x, dtype=tl.int8), tl.sum(x, dtype=tl.float32)), x)
    assert [g.dtype for g in got] == ["int8", "float32"]
    assert got[0] == x.sum(dtype=np.int8) and got[1] == x.sum(dtype=np.int64)


def _extreme_dtype(dtype):
    if dtype.itemsize >= 4:
        return dtype
    return np.dtype("float32" if dtype.kind not in "iub" or dtype == BF16 else "int32")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", INTS + FLOATS)
def test_max_and_min(dtype, shape):
    x = values(dtype, shape, 2)
    for axis in axes(shape):
        high, low = evaluate(lambda x, axis=axis: (tl.max(x, axis), x.min(axis)), x)
        assert high.dtype == low.dtype == _extreme_dtype(x.dtype)
        np.testing.assert_array_equal(high, x.max(axis).astype(high.dtype))
        np.testing.assert_array_equal(low, x.min(axis).astype(low.dtype))


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64", np.float16, BF16, np.float32])
def test_arg_extremes_take_the_leftmost_of_ties(dtype):
    for shape in SHAPES:
        x = (values("int32", shape, 3) % 3).astype(dtype)  # many ties
        for axis in axes(shape):
            most, least, pair = evaluate(
                lambda x, axis=axis: (tl.argmax(x, axis), x.argmin(axis),
                                      tl.max(x, axis, return_indices=True)[1]), x)
            assert most.dtype == least.dtype == np.int32
            wide = x.astype("f8")
            np.testing.assert_array_equal(most, wide.argmax(axis))
            np.testing.assert_array_equal(least, wide.argmin(axis))
            np.testing.assert_array_equal(pair, most)


def test_return_indices_gives_values_too():
    x = values(np.float16, (5, 6), 4)
    value, index = evaluate(lambda x: tl.max(x, 1, return_indices=True), x)
    assert (value.dtype, index.dtype) == (np.float16, np.int32)
    np.testing.assert_array_equal(value, x.max(1))
    value, index = evaluate(lambda x: tl.min(x, 0, return_indices=True), x.astype(BF16))
    assert value.dtype == np.float32
    np.testing.assert_array_equal(index, x.astype(BF16).astype("f4").argmin(0))


def test_any_of_the_ties():
    x = np.array([2, 7, 7, 1, 7], np.int32)
    got = evaluate(lambda x: (tl.argmax(x, 0, tie_break_left=False),
                              tl.argmin(-x, 0, tie_break_left=False)), x)
    assert all(x[i] == 7 for i in got)


@pytest.mark.parametrize("left", [True, False])
def test_nan_loses(left):
    nan = np.nan
    x = np.array([[nan, 3, nan, 5], [1, nan, nan, nan], [nan, nan, 2, -1]], np.float32)
    got = evaluate(lambda x: (tl.max(x, 1), tl.min(x, 1), tl.argmax(x, 1, left),
                              tl.argmin(x, 1, left), tl.max(x, 1, True, left)[0],
                              tl.argmax(x, None, left)), x)
    for value, want in zip(got, ([5, 1, 2], [3, 1, -1], [3, 0, 2], [1, 0, 3], [5, 1, 2], 3),
                           strict=True):
        np.testing.assert_array_equal(value, want)
    alone = np.full(5, nan, np.float32)
    high, low, where = evaluate(lambda x: (tl.max(x), tl.min(x), tl.argmax(x, 0, left)), alone)
    assert np.isnan(high) and np.isnan(low) and 0 <= where < 5


def test_reduce_or():
    rng = np.random.default_rng(8)
    for dtype in (np.int8, np.uint16, np.int32, np.uint64, np.bool_):
        x = (rng.random((5, 9)) < 0.1) if dtype is np.bool_ else \
            rng.integers(0, 1 << 7, (5, 9)).astype(dtype)
        rows, whole = evaluate(lambda x: (tl.reduce_or(x, 1), x.reduce_or()), x)
        np.testing.assert_array_equal(rows, np.bitwise_or.reduce(x, 1))
        assert whole == np.bitwise_or.reduce(x, None) and rows.dtype == x.dtype


def test_xor_sum():
    for dtype in INTS:
        x = values(dtype, (4, 6), 5)
        got = evaluate(lambda x: (tl.xor_sum(x, 0), x.xor_sum()), x)
        assert got[0].dtype == x.dtype
        np.testing.assert_array_equal(got[0], np.bitwise_xor.reduce(x, 0))
        np.testing.assert_array_equal(got[1], np.bitwise_xor.reduce(x, None))


def test_keep_dims():
    x = values(np.float32, (3, 4), 6)
    got = evaluate(lambda x: (tl.max(x, 1, keep_dims=True), tl.sum(x, 0, keep_dims=True),
                              tl.sum(x, keep_dims=True), tl.argmax(x, 1, keep_dims=True),
                              tl.argmin(x, None, keep_dims=True)), x)
    assert [g.shape for g in got] == [(3, 1), (1, 4), (1, 1), (3, 1), (1, 1)]
    np.testing.assert_array_equal(got[0], x.max(1, keepdims=True))
    np.testing.assert_array_equal(got[3], x.argmax(1, keepdims=True))


# -- reduce with a function of the author's -----------------------------------------------------

@function
def longest(a, b):
    return tl.where(tl.abs(a) >= tl.abs(b), a, b)


@function
def welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    delta = mean_b - mean_a
    n = n_a + n_b
    weight = tl.where(n == 0.0, 0.0, n_b / n)
    return mean_a + delta * weight, m2_a + m2_b + delta * delta * n_a * weight, n


@function
def wrong_type(a, b):
    return (a + b).to(tl.float64)


@function
def wrong_count(a, b):
    return a, b


def test_reduce_by_any_function():
    x = values(np.float32, (5, 9), 7)
    for axis in (0, 1):
        got = evaluate(lambda x, axis=axis: tl.reduce(x, axis, longest), x)
        want = np.take_along_axis(x, np.abs(x).argmax(axis, keepdims=True), axis).squeeze(axis)
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(evaluate(lambda x: x.reduce(None, tl.maximum), x), x.max())


def test_reduce_of_a_tuple():
    x = values(np.float32, (4, 33), 8)
    mean, m2, n = evaluate(
        lambda x: tl.reduce((x, tl.zeros_like(x), tl.full(x.shape, 1.0, tl.float32)), 1, welford),
        x)
    np.testing.assert_allclose(mean, x.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(m2 / n, x.astype("f8").var(1), rtol=1e-5)
    np.testing.assert_array_equal(n, [33] * 4)


def test_a_reduce_op_is_located_at_its_call():
    with tracing(((8,), tl.float32)) as (x,):
        op = tl.sum(x).handle.op
        assert (op.name, op.loc) == ("tile.reduce", LOC)


@pytest.mark.parametrize(("fn", "found"), [
    (lambda x, h, n, p: tl.sum(x, 2), "axis 2 is out of range"),
    (lambda x, h, n, p: tl.max(x, -3), "axis -3 is out of range"),
    (lambda x, h, n, p: tl.argmax(x, "x"), "integer"),
    (lambda x, h, n, p: tl.argmax(x), "missing a required argument"),
    (lambda x, h, n, p: tl.sum(x, n), "compile time"),
    (lambda x, h, n, p: tl.sum(3), "expected a tile"),
    (lambda x, h, n, p: tl.sum(p), "takes numbers"),
    (lambda x, h, n, p: tl.sum(h.to(tl.float8e5)), "fp8e5"),
    (lambda x, h, n, p: tl.sum(x, dtype=3), "dtype"),
    (lambda x, h, n, p: tl.sum(n, 0), "scalar has no axis"),
    (lambda x, h, n, p: tl.argmax(n, None), "no axis"),
    (lambda x, h, n, p: tl.xor_sum(x), "takes integers"),
    (lambda x, h, n, p: tl.reduce_or(x), "takes integers"),
    (lambda x, h, n, p: tl.reduce((x, h), 0, longest), "differ in shape"),
    (lambda x, h, n, p: tl.reduce((), 0, longest), "no tile"),
    (lambda x, h, n, p: tl.reduce(x, 0, lambda a, b: a), "@tilec.jit function"),
    (lambda x, h, n, p: tl.reduce(x, 0, wrong_type), "(fp64 scalar), expected (fp32 scalar)"),
    (lambda x, h, n, p: tl.reduce(x, 0, wrong_count), "expected (fp32 scalar)")])
def test_refused(fn, found):
    types = (((2, 4), tl.float32), ((4,), tl.float16), tl.int32, tl.pointer_type(tl.float32))
    with tracing(*types) as args:
        refused(lambda: fn(*args), found)
