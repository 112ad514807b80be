"""gather, flip and sorts as authors write them, and their errors."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.language.harness import evaluate, tracing
from tests.language.test_reduction import refused, values


def test_gather_has_the_shape_of_its_index():
    x = values("float32", (4, 6), 1)
    index = np.random.default_rng(2).integers(0, 4, (9, 6))
    for kind in (np.int8, np.uint16, np.int64):
        got = evaluate(lambda x, i: tl.gather(x, i, 0), x, index.astype(kind))
        np.testing.assert_array_equal(got, np.take_along_axis(x, index, 0))


def test_flip_and_sort_take_the_last_dimension():
    x = values("int16", (3, 5, 6), 2)
    got = evaluate(lambda x: (tl.flip(x), x.flip(0), tl.sort(x), x.sort(1, descending=True),
                              tl.topk(x, 4), tl.topk(x, k=2, dim=0)), x)
    up = np.sort(x, 2)
    for y, want in zip(got, (x[..., ::-1], x[::-1], up, -np.sort(-x.astype("i4"), 1),
                             up[..., ::-1][..., :4], np.sort(x, 0)[::-1][:2]), strict=True):
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, want)


def test_nan_is_the_greatest_and_zeros_have_an_order():
    x = np.array([np.nan, 1, -0.0, -np.inf, 0.0, -np.nan, np.inf, -0.0], np.float16)
    up, best = evaluate(lambda x: (tl.sort(x), tl.topk(x, 3)), x)
    np.testing.assert_array_equal(up, [-np.inf, 0, 0, 0, 1, np.inf, np.nan, np.nan])
    assert np.signbit(up[1:4]).tolist() == [True, True, False]
    np.testing.assert_array_equal(best, [np.nan, np.nan, np.inf])


@pytest.mark.parametrize("descending", [False, True])
def test_a_merge_of_what_goes_up_and_down(descending):
    x = np.array([[1, 4, 6, 9, 8, 3, 2, 0], [7, 5, 1, 0, 2, 3, 8, 9]], np.int32)
    got = evaluate(lambda x: tl.bitonic_merge(x, 1, descending), x)
    want = np.sort(x, 1)
    np.testing.assert_array_equal(got, want[:, ::-1] if descending else want)


def test_a_histogram_counts_what_is_in_its_bins():
    x = np.array([3, 0, -1, 3, 7, 4, 100, 3], np.int8)
    got = evaluate(lambda x: (tl.histogram(x, 5), x.histogram(num_bins=4, mask=x < 3),
                              tl.histogram(x.to(tl.uint8), 256),
                              tl.histogram(x > 3, 2, mask=x > 0)), x)
    assert all(g.dtype == np.int32 for g in got)
    assert got[0].tolist() == [1, 0, 0, 3, 1] and got[1].tolist() == [1, 0, 0, 0]
    assert got[2].sum() == 8 and got[2][255] == 1 and got[3].tolist() == [3, 3]


@pytest.mark.parametrize(("fn", "found"), [
    (lambda x, h, n, p: tl.histogram(x, 5), "takes integers in one dimension, found fp32[2, 4]"),
    (lambda x, h, n, p: tl.histogram(x.to(tl.int32), 5), "in one dimension, found int32[2, 4]"),
    (lambda x, h, n, p: tl.histogram(n, 5), "in one dimension, found int32 scalar"),
    (lambda x, h, n, p: tl.histogram(tl.arange(0, 8), n), "compile time"),
    (lambda x, h, n, p: tl.histogram(tl.arange(0, 8), 0), "num_bins is 0, expected 1 to"),
    (lambda x, h, n, p: tl.histogram(tl.arange(0, 8), 5, mask=tl.arange(0, 4) > 0), "shape"),
    (lambda x, h, n, p: tl.gather(x, h, 0), "the index is fp16[2, 5] tile, expected integers"),
    (lambda x, h, n, p: tl.gather(x, x > 0, 0), "the index is int1[2, 4] tile, expected integers"),
    (lambda x, h, n, p: tl.gather(x, h.to(tl.int32), 0), "differ in another extent than that of"),
    (lambda x, h, n, p: tl.gather(x, tl.arange(0, 4), 0), "differ in another extent"),
    (lambda x, h, n, p: tl.gather(x, h.to(tl.int32), 2), "axis 2 is out of range"),
    (lambda x, h, n, p: tl.gather(3, h, 0), "tl.gather: expected a tile"),
    (lambda x, h, n, p: tl.gather(x, 0, 0), "tl.gather: expected a tile"),
    (lambda x, h, n, p: tl.flip(x, 3), "tl.flip: axis 3 is out of range"),
    (lambda x, h, n, p: tl.flip(n), "a scalar has no axis"),
    (lambda x, h, n, p: tl.sort(x, n), "compile time"),
    (lambda x, h, n, p: tl.sort(x, descending=n), "descending has to be known"),
    (lambda x, h, n, p: tl.sort(h.to(tl.float8e5)), "fp8e5"),
    (lambda x, h, n, p: tl.sort(p), "takes numbers"),
    (lambda x, h, n, p: tl.topk(x, 5), "k is 5, expected 1 to 4"),
    (lambda x, h, n, p: tl.topk(x, 0), "k is 0, expected 1 to 4"),
    (lambda x, h, n, p: tl.topk(x, n), "compile time"),
    (lambda x, h, n, p: tl.bitonic_merge(h), "5 elements lie along axis 1 of"),
    (lambda x, h, n, p: tl.bitonic_merge(h, dim=-3), "axis -3 is out of range")])
def test_refused(fn, found):
    types = (((2, 4), tl.float32), ((2, 5), tl.float16), tl.int32, tl.pointer_type(tl.float32))
    with tracing(*types) as args:
        refused(lambda: fn(*args), found)


@tilec.jit
def too_many(x_ptr):
    at = tl.arange(0, 8)
    x = tl.load(x_ptr + at)
    tl.store(x_ptr + at, tl.topk(x, 9))


def test_the_place_is_shown():
    with pytest.raises(tilec.CompilationError) as caught:
        tilec.compile(too_many, signature={"x_ptr": "*i32"}, target="sm_90a")
    text = str(caught.value)
    line, caret = text.split("\n")[1:3]
    assert line[caret.index("^"):].startswith("tl.topk(x, 9)") and "tl.sort gives all" in text
