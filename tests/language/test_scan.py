"""Scans as authors write them: dtypes, defaults, the order of combining, and their errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.language.harness import LOC, evaluate, tracing
from tests.language.test_reduction import BF16, FLOATS, INTS, refused, values
from tilec.frontend.function import function


def wide(dtype):
    return dtype if dtype.itemsize >= 4 else np.dtype("int32" if dtype.kind == "i" else "uint32")


@pytest.mark.parametrize("dtype", INTS)
def test_integers(dtype):
    x = values(dtype, (5, 9))
    for axis in (0, 1, -1):
        sums, products = evaluate(lambda x, a=axis: (tl.cumsum(x, a), tl.cumprod(x, axis=a)), x)
        assert (sums.dtype, products.dtype) == (wide(x.dtype), x.dtype)
        np.testing.assert_array_equal(sums, x.cumsum(axis, dtype=sums.dtype))
        want = np.logical_and.accumulate(x, axis) if x.dtype == bool else \
            x.cumprod(axis, dtype=x.dtype)
        np.testing.assert_array_equal(products, want)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats(dtype):
    x = values(dtype, (3, 40), 1)
    sums, products = evaluate(lambda x: (x.cumsum(1), x.cumprod(1, reverse=True)), x)
    result = np.float32 if dtype == BF16 else dtype
    assert sums.dtype == products.dtype == result
    eps = float(ml_dtypes.finfo(np.dtype(result)).eps)
    exact = x.astype("f8")
    bound = 16 * eps * np.abs(exact).cumsum(1)
    assert (np.abs(sums.astype("f8") - exact.cumsum(1)) <= bound).all()
    want = exact[:, ::-1].cumprod(1)[:, ::-1]
    tiny = float(ml_dtypes.finfo(np.dtype(result)).smallest_subnormal)
    np.testing.assert_allclose(products.astype("f8"), want, rtol=64 * eps, atol=tiny)


def test_narrow_floats_are_carried_in_float32():
    x = np.full(4096, 1.0, np.float16)
    np.testing.assert_array_equal(evaluate(lambda x: tl.cumsum(x), x)[2047:4096:7],
                                  np.arange(2048, 4097, 7).astype(np.float16))
    x = np.array([300.0, 300.0, 1 / 300, 1 / 300], np.float16)  # inf * 0.003 in between
    assert np.isfinite(evaluate(lambda x: tl.cumprod(x), x)[3])


def test_dtype_is_what_the_input_is_cast_to():
    x = values("int8", (40,))
    got = evaluate(lambda x: (tl.cumsum(x, dtype=tl.int8), tl.cumsum(x, 0, False, tl.float64),
                              tl.cumsum(x, reverse=True, dtype=tl.bfloat16)), x)
    assert [g.dtype for g in got] == [np.int8, np.float64, BF16]
    np.testing.assert_array_equal(got[0], x.cumsum(dtype=np.int8))
    np.testing.assert_array_equal(got[1], x.cumsum(dtype="f8"))
    np.testing.assert_array_equal(got[2], x[::-1].cumsum(dtype="f8")[::-1].astype(BF16))


@function
def first(a, b):
    return a


@function
def last(a, b):
    return b


@function
def compose(a, b, c, d):
    return a * c, c * b + d


@function
def swapped(a, b, c, d):
    return b + d, a + c


@function
def wrong_type(a, b):
    return (a + b).to(tl.float64)


@function
def wrong_count(a, b):
    return a, b


def test_the_first_argument_comes_first():
    x = values("int32", (4, 7))
    got = evaluate(lambda x: (tl.associative_scan(x, 1, first), tl.associative_scan(x, 1, last),
                              x.associative_scan(1, first, reverse=True),
                              x.associative_scan(1, last, reverse=True)), x)
    for y, want in zip(got, (x[:, :1], x, x[:, -1:], x), strict=True):
        np.testing.assert_array_equal(y, np.broadcast_to(want, x.shape))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 13, 64, 100])
def test_a_recurrence(n, reverse):
    """y[i] = a[i] * y[i - 1] + b[i], modulo 2^32."""
    a, b = values("uint32", (n,), 1), values("uint32", (n,), 2)
    got = evaluate(lambda a, b: tl.associative_scan((a, b), 0, compose, reverse), a, b)
    y, want = np.uint32(0), np.zeros(n, np.uint32)
    with np.errstate(over="ignore"):
        for i in range(n)[::-1] if reverse else range(n):
            y = want[i] = a[i] * y + b[i]
    np.testing.assert_array_equal(got[1], want)


def test_one_tile_in_a_tuple_stays_in_one():
    x = values("int64", (5,))
    got = evaluate(lambda x: tl.associative_scan((x,), 0, tl.maximum), x)
    assert isinstance(got, tuple) and len(got) == 1
    np.testing.assert_array_equal(got[0], np.maximum.accumulate(x))


def test_nan_and_infinities_go_on_from_where_they_are():
    x = np.array([1, np.inf, 2, -np.inf, 3], np.float32)
    forward, backward = evaluate(lambda x: (tl.cumsum(x), tl.cumsum(x, reverse=True)), x)
    np.testing.assert_array_equal(forward, [1, np.inf, np.inf, np.nan, np.nan])
    np.testing.assert_array_equal(backward, [np.nan, np.nan, -np.inf, -np.inf, 3])


def test_a_scan_is_located_at_its_call():
    with tracing(((8,), tl.float32)) as (x,):
        op = tl.cumsum(x).handle.op
        assert (op.name, op.loc) == ("tile.scan", LOC)


@pytest.mark.parametrize(("fn", "found"), [
    (lambda x, h, n, p: tl.cumsum(x, 2), "tl.cumsum: axis 2 is out of range for 2 dimensions"),
    (lambda x, h, n, p: tl.cumprod(x, -3), "tl.cumprod: axis -3 is out of range"),
    (lambda x, h, n, p: tl.cumsum(x, "x"), "integer"),
    (lambda x, h, n, p: tl.cumsum(x, n), "compile time"),
    (lambda x, h, n, p: tl.cumsum(x, 0, n), "reverse has to be known at compile time"),
    (lambda x, h, n, p: tl.cumsum(3), "tl.cumsum: expected a tile, found"),
    (lambda x, h, n, p: tl.cumsum(n), "tl.cumsum: a scalar has no axis 0"),
    (lambda x, h, n, p: tl.cumprod(p), "takes numbers"),
    (lambda x, h, n, p: tl.cumsum(h.to(tl.float8e5)), "fp8e5"),
    (lambda x, h, n, p: tl.cumsum(x, dtype=tl.float8e4nv), "fp8e4nv"),
    (lambda x, h, n, p: tl.cumsum(x, dtype=3), "the dtype of tl.cumsum"),
    (lambda x, h, n, p: tl.associative_scan(x, None, first), "the axis of tl.associative_scan"),
    (lambda x, h, n, p: tl.associative_scan((x, h), 0, compose), "differ in shape"),
    (lambda x, h, n, p: tl.associative_scan((), 0, first), "tl.associative_scan: no tile"),
    (lambda x, h, n, p: tl.associative_scan(x, 0, max), "expected a @tilec.jit function"),
    (lambda x, h, n, p: tl.associative_scan(x, 0, wrong_type), "(fp64 scalar), expected (fp32"),
    (lambda x, h, n, p: tl.associative_scan(x, 0, wrong_count), "expected (fp32 scalar)"),
    (lambda x, h, n, p: tl.associative_scan((h, h.to(tl.int32)), 0, swapped),
     "gives (int32 scalar, fp16 scalar)"),
    (lambda x, h, n, p: x.associative_scan(0), "missing a required argument: 'combine_fn'")])
def test_refused(fn, found):
    types = (((2, 4), tl.float32), ((4,), tl.float16), tl.int32, tl.pointer_type(tl.float32))
    with tracing(*types) as args:
        refused(lambda: fn(*args), found)


# -- with line and caret --------------------------------------------------------------------------

@tilec.jit
def stores(a, b):
    tl.device_print("a", a)
    return a + b


@tilec.jit
def scans_by_stores(x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 8))
    y = tl.associative_scan(x, 0, stores)
    tl.store(x_ptr + tl.arange(0, 8), y)


@tilec.jit
def scans_axis_one(x_ptr):
    x = tl.cumsum(tl.load(x_ptr + tl.arange(0, 8)), axis=1)
    tl.store(x_ptr + tl.arange(0, 8), x)


@tilec.jit
def too_few(x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 8))
    tl.store(x_ptr, tl.associative_scan(x, combine_fn=stores))


@pytest.mark.parametrize(("kernel", "message", "shown", "advice"), [
    (scans_by_stores, "tl.device_print: stands in the combine function of a scan, which only "
     "computes", 'tl.device_print("a", a)', "before or after the scan"),
    (scans_axis_one, "axis 1 is out of range for 1 dimensions", "tl.cumsum(", "-1 to 0"),
    (too_few, "missing a required argument: 'axis'", "tl.associative_scan(x", "")])
def test_the_place_is_shown(kernel, message, shown, advice):
    with pytest.raises(tilec.CompilationError) as caught:
        tilec.compile(kernel, signature={"x_ptr": "*i32"}, target="sm_90a")
    text = str(caught.value)
    assert message in text and advice in text
    line, caret = next((a, b) for a, b in zip(text.split("\n"), text.split("\n")[1:])
                       if b.strip().startswith("^"))
    assert line[caret.index("^"):].startswith(shown), text
