"""What operators compute: integer semantics, shifts, pointers, and which ops they become."""

from __future__ import annotations

import operator

import ml_dtypes
import numpy as np
import pytest

import tilec.language as tl
from tests.language.harness import LOC, evaluate, tracing
from tilec.errors import CompilationError
from tilec.ir import types as ir

INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
F32P = tl.pointer_type(tl.float32)


def integers(rng, dtype, n=40):
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, n, dtype=dtype, endpoint=True)
    x[:4] = [info.min, info.max, 0, 1]
    return x


def refused(fn):
    with pytest.raises(CompilationError) as caught:
        fn()
    assert caught.value.loc == LOC and caught.value.advice, caught.value.message
    return caught.value


@pytest.mark.parametrize("a", INTS)
def test_integers_wrap_and_truncate(a):
    rng = np.random.default_rng(1)
    for b in INTS:
        x, y = integers(rng, a), integers(rng, b)
        y[y == 0] = 3
        out = np.result_type(a, b) if (a[0] == b[0]) else max(
            (a, b), key=lambda t: (np.dtype(t).itemsize, t[0] == "u"))
        u, v = x.astype(out), y.astype(out)
        add, mul, xor = evaluate(lambda x, y: (x + y, x * y, x ^ y), x, y)
        np.testing.assert_array_equal(add, u + v)
        np.testing.assert_array_equal(mul, u * v)
        np.testing.assert_array_equal(xor, u ^ v)
        if a[0] == b[0]:
            quotient, rest = evaluate(lambda x, y: (x // y, x % y), x, y)
            want = [int(abs(p) // abs(q)) * (1 if (p < 0) == (q < 0) else -1)
                    for p, q in zip(map(int, u), map(int, v), strict=True)]
            bits = np.dtype(out).itemsize * 8
            wrapped = [w - (1 << bits) if w > np.iinfo(out).max else w for w in want]
            np.testing.assert_array_equal(quotient, np.array(wrapped, out))
            np.testing.assert_array_equal(rest, (u - np.array(wrapped, out) * v).astype(out))


@pytest.mark.parametrize("a", INTS)
def test_shifts_keep_the_sign_of_the_left_side(a):
    rng = np.random.default_rng(2)
    for b in INTS:
        bits = 8 * max(np.dtype(a).itemsize, np.dtype(b).itemsize)
        wide = np.dtype(f"{a.rstrip('0123456789')}{bits}")
        x = integers(rng, a)
        y = rng.integers(0, bits, len(x)).astype(b)
        left, right = evaluate(lambda x, y: (x << y, x >> y), x, y)
        np.testing.assert_array_equal(left.view(wide), x.astype(wide) << y.astype(wide))
        np.testing.assert_array_equal(right.view(wide), x.astype(wide) >> y.astype(wide))


def test_the_left_sides_sign_is_shifted_in_and_the_result_is_promoted():
    right = evaluate(lambda x, y: x >> y, np.int16(-16), np.uint16(4))
    assert (right.dtype, int(right)) == (np.uint16, 65535)
    right = evaluate(lambda x, y: x >> y, np.uint16(65520), np.int32(4))
    assert (right.dtype, int(right)) == (np.int32, 4095)


def test_number_on_the_left():
    x = np.array([1, 2, 7], np.int32)
    got = evaluate(lambda x: (10 - x, 100 // x, 100 % x, 1 << x, 256 >> x, 6 & x, 8 | x, 5 ^ x), x)
    for value, want in zip(got, (10 - x, 100 // x, 100 % x, 1 << x, 256 >> x, 6 & x, 8 | x, 5 ^ x),
                           strict=True):
        np.testing.assert_array_equal(value, want)
    np.testing.assert_array_equal(evaluate(lambda x: 1 / x, x), np.float32(1) / x.astype("f4"))


def test_comparisons_with_nan_and_mixed_signs():
    x = np.array([1.0, np.nan, -0.0], np.float32)
    y = np.array([np.nan, np.nan, 0.0], np.float32)
    got = evaluate(lambda x, y: (x == y, x != y, x < y, x <= y, x > y, x >= y), x, y)
    assert [list(g) for g in got] == [[False, False, True], [True, True, False], [False] * 3,
                                      [False, False, True], [False] * 3, [False, False, True]]
    a, b = np.array([-1], np.int32), np.array([1], np.uint32)
    assert evaluate(lambda a, b: a > b, a, b)[0]  # as unsigned numbers, as in C


def test_unary():
    x = np.array([-128, 127, 0], np.int8)
    neg, inverse, pos = evaluate(lambda x: (-x, ~x, +x), x)
    np.testing.assert_array_equal(neg, [-128, -127, 0])
    np.testing.assert_array_equal(inverse, [127, -128, -1])
    np.testing.assert_array_equal(pos, x)
    zero = evaluate(lambda x: -x, np.zeros(1, np.float32))
    assert np.signbit(zero[0])
    b = np.array([True, False])
    np.testing.assert_array_equal(evaluate(lambda b: ~b, b), ~b)


def test_logic():
    x = np.array([0, 2, 0, -1], np.int32)
    y = np.array([0.0, 0.0, np.nan, 1.0], np.float32)
    both, either = evaluate(lambda x, y: (x.logical_and(y), x.logical_or(y)), x, y)
    np.testing.assert_array_equal(both, [False, False, False, True])
    np.testing.assert_array_equal(either, [False, True, True, True])


def test_broadcasting():
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((3, 1)).astype("f4"), rng.standard_normal(5).astype("f4")
    s = np.float32(2.5)
    np.testing.assert_array_equal(evaluate(lambda x, y, s: x + y * s, x, y, s), x + y * s)
    with tracing(((3,), tl.float32), ((4,), tl.float32)) as (a, b):
        error = refused(lambda: a + b)
        assert "[3]" in error.message and "[4]" in error.message and "None" in error.advice
    with tracing(((2048, 1), tl.float32), ((1, 1024), tl.float32)) as (a, b):
        assert "elements" in refused(lambda: a + b).message


def test_a_number_becomes_one_constant_tile():
    with tracing(((8,), tl.float32)) as (x,):
        two = (x * 2).handle.op.operands[1]
        assert str(two.type) == "tensor<8xf32>" and two.op.value == 2.0


# -- pointers -------------------------------------------------------------------------------------

def test_pointer_arithmetic():
    with tracing(F32P, tl.int32, tl.uint8, ((4,), tl.int64), tl.int1) as (p, n, b, offs, c):
        assert (p + n).dtype == (n + p).dtype == (p - n).dtype == F32P
        assert (p + offs).shape == (4,) and (p + offs).dtype == F32P
        assert (p + b).handle.op.offset.type == ir.u8
        assert (p + c).handle.op.offset.type == ir.i32
        assert (p + (1 << 40)).handle.op.offset.type == ir.i64
        assert (p - 3).handle.op.offset.op.value == -3
        assert (p - b).handle.op.offset.type == ir.i64
        assert (p + offs - n).shape == (4,)


def test_pointer_offsets_are_exact():
    x = np.arange(300, dtype=np.float32)

    def kernel(x, back):
        p = x.handle.op.operands[0].op  # the reshape's load: its pointers
        pointers = tl.tensor(p.operands[0])
        return tl.load(pointers + 250 - back)

    np.testing.assert_array_equal(evaluate(kernel, x[:1], np.uint8(250)), x[:1])


@pytest.mark.parametrize("fn", [
    lambda p, q, f: p + q, lambda p, q, f: p - q, lambda p, q, f: p < q, lambda p, q, f: p == q,
    lambda p, q, f: p + f, lambda p, q, f: p - f, lambda p, q, f: p * 2, lambda p, q, f: p + 1.0,
    lambda p, q, f: 3 - p, lambda p, q, f: -p, lambda p, q, f: ~p, lambda p, q, f: p & 1,
    lambda p, q, f: p // 2, lambda p, q, f: p % 2, lambda p, q, f: p / 2, lambda p, q, f: p == 0,
    lambda p, q, f: tl.maximum(p, q), lambda p, q, f: tl.where(p, f, f)])
def test_what_pointers_cannot_do(fn):
    with tracing(F32P, F32P, tl.float32) as args:
        with pytest.raises(CompilationError) as caught:
            fn(*args)
        assert "pointer" in caught.value.message and caught.value.loc == LOC


def test_pointer_casts():
    with tracing(F32P, tl.int64, ((2,), tl.uint64)) as (p, n, u):
        assert p.to(tl.int64).dtype == tl.int64 and p.to(tl.uint64).dtype == tl.uint64
        assert n.to(F32P).dtype == F32P and u.to(F32P).shape == (2,)
        assert p.to(tl.pointer_type(tl.int8)).dtype.element_ty == tl.int8
        assert p.to(tl.int1).dtype == tl.int1
        refused(lambda: p.to(tl.int32))
        refused(lambda: p.to(tl.float32))
        null = tl.cast(0, F32P)
        assert null.dtype == F32P and null.handle.op.x.op.value == 0
        refused(lambda: null + p)


# -- what has no meaning --------------------------------------------------------------------------

@pytest.mark.parametrize(("fn", "found"), [
    (lambda x: x ** 2, "`**`"), (lambda x: 2 ** x, "`**`"), (lambda x: x @ x, "`@`"),
    (lambda x: x + None, "None"), (lambda x: x + "a", "'a'"), (lambda x: x + (1, 2), "(1, 2)"),
    (lambda x: bool(x), "truth value"), (lambda x: list(x), "iterate"),
    (lambda x: operator.setitem(x, 0, 1), "assign into"), (lambda x: x[0], "index"),
    (lambda x: x[1:2], "slice with bounds"), (lambda x: x[:, :, None], "in place 2"),
    (lambda x: ~x, "takes integers"), (lambda x: x & True, "takes integers"),
    (lambda x: x // 2, "takes integers"), (lambda x: operator.index(x), "compile time"),
    (lambda x: x == None, "None")])  # noqa: E711
def test_refused_on_a_float_tile(fn, found):
    with tracing(((8,), tl.float32)) as (x,):
        error = refused(lambda: fn(x))
        assert found in error.message


def test_outside_of_a_kernel():
    for fn in (lambda: tl.load(1), lambda: tl.arange(0, 8)):
        with pytest.raises(CompilationError, match="only be used inside a @tilec.jit kernel"):
            fn()
    assert tl.cdiv(7, 2) == 4 and tl.cdiv(-7, 2) == -3 and tl.cdiv(tl.constexpr(8), 2) == 4


def test_constexpr_wrapper():
    n = tl.constexpr(6)
    assert (n + 1, 1 - n, n // 4, -n, n == 6, n < 7, n << 1, hash(n), [0] * n) == (
        7, -5, 1, -6, True, True, 12, hash(6), [0] * 6)
    assert tl.constexpr(n).value == 6 and tl.constexpr((1, 2))[1] == 2
    assert not tl.constexpr(0) and tl.constexpr("ab").upper() == "AB"
    with tracing(((8,), tl.int8)) as (x,):
        assert (x + n).dtype == (n * x).dtype == tl.int8


def test_bf16_and_fp8_arrays():
    x = np.array([1.5, -2, 0.25], ml_dtypes.bfloat16)
    got = evaluate(lambda x: x * 3 + x, x)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got.astype("f4"), [6, -8, 1])
    y = np.array([1.5, -2, 448], ml_dtypes.float8_e4m3fn)
    got = evaluate(lambda y: (-y, tl.abs(y), y.to(tl.float32) * 2), y)
    np.testing.assert_array_equal(got[0].astype("f4"), [-1.5, 2, -448])
    np.testing.assert_array_equal(got[1].astype("f4"), [1.5, 2, 448])
    np.testing.assert_array_equal(got[2], [3, -4, 896])
