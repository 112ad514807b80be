"""The functions of the language against numpy: math, casts, selection, shapes, memory, hints."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.language.harness import LOC, evaluate, plain_call, tracing
from tilec.errors import CompilationError, CompileTimeAssertionError, InterpreterError
from tilec.ir import ops
from tilec.language import dtypes as dt

BF16 = ml_dtypes.bfloat16
F32P = tl.pointer_type(tl.float32)
FLOATS = [np.float16, BF16, np.float32, np.float64]


def refused(fn, found=""):
    with pytest.raises(CompilationError) as caught:
        fn()
    assert caught.value.loc == LOC and caught.value.advice, caught.value.message
    assert found in caught.value.message
    return caught.value


# -- math -----------------------------------------------------------------------------------------

MATH = {"exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sin": np.sin,
        "cos": np.cos, "tanh": np.tanh, "erf": np.vectorize(math.erf), "sqrt": np.sqrt,
        "rsqrt": lambda x: 1 / np.sqrt(x), "floor": np.floor, "ceil": np.ceil}


@pytest.mark.parametrize("name", MATH)
@pytest.mark.parametrize("dtype", FLOATS)
def test_math(name, dtype):
    x = np.random.default_rng(4).uniform(0.1, 5, 33).astype(dtype)
    got = evaluate(getattr(tl, name), x)
    assert got.dtype == x.dtype
    eps = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(got.astype("f8"), MATH[name](x.astype("f8")), rtol=eps, atol=eps)
    assert getattr(tl.math, name) is getattr(tl, name)
    np.testing.assert_array_equal(evaluate(lambda x: getattr(x, name)(), x), got)


@pytest.mark.parametrize("name", MATH)
def test_math_takes_floats(name):
    with tracing(((8,), tl.int32), tl.float8e5) as (n, f):
        assert ".to(tl.float32)" in refused(lambda: getattr(tl, name)(n), "int32[8]").advice
        refused(lambda: getattr(tl, name)(f), "fp8e5")
        assert getattr(tl, name)(2).dtype == tl.float32


def test_abs_and_fma():
    x = np.array([-128, -5, 7], np.int8)
    np.testing.assert_array_equal(evaluate(tl.abs, x), np.abs(x))
    u = np.array([200, 3], np.uint8)
    np.testing.assert_array_equal(evaluate(tl.abs, u), u)
    y = np.array([-0.0, -2.5, np.inf], np.float16)
    assert not np.signbit(evaluate(tl.abs, y)).any()
    a = np.array([1 + 2.0**-12], np.float32)
    got = evaluate(lambda a: tl.fma(a, a, -1.0), a)
    np.testing.assert_array_equal(got, (a.astype("f8")**2 - 1).astype("f4"))
    with tracing(((8,), tl.int32), F32P) as (n, p):
        refused(lambda: tl.fma(n, n, n), "int32[8]")
        refused(lambda: tl.abs(p), "pointer")


def test_cdiv():
    x = np.array([1, 8, 9, 0], np.int32)
    np.testing.assert_array_equal(evaluate(lambda x: tl.cdiv(x, 8), x), [1, 1, 2, 0])
    np.testing.assert_array_equal(evaluate(lambda x: x.cdiv(x + 1), x), [1, 1, 1, 0])
    with tracing():
        refused(lambda: tl.cdiv(1.0, 2), "cdiv(1.0, 2)")


# -- casts ----------------------------------------------------------------------------------------

def test_casts_between_all_numbers():
    for a in dt.ALL:
        with tracing(((4,), a), a) as (tile, scalar):
            for b in dt.ALL:
                assert (tile.to(b).dtype, tile.to(b).shape) == (b, (4,))
                assert scalar.to(b).type == b
                if a.primitive_bitwidth == b.primitive_bitwidth:
                    assert tile.to(b, bitcast=True).dtype == b
                else:
                    refused(lambda b=b: tile.to(b, bitcast=True), "bits")


def test_cast_values():
    x = np.array([-1.5, 300.7, np.nan, 2.0**40], np.float32)
    to8, to_u8, to_bool = evaluate(lambda x: (x.to(tl.int8), x.to(tl.uint8), x.to(tl.int1)), x)
    np.testing.assert_array_equal(to8, [-1, 127, 0, 127])
    np.testing.assert_array_equal(to_u8, [0, 255, 0, 255])
    np.testing.assert_array_equal(to_bool, [True] * 4)
    y = np.array([1 + 2.0**-11 + 2.0**-20, -(1 + 2.0**-11 + 2.0**-20), 65535], np.float32)
    near, toward_zero = evaluate(lambda y: (y.to(tl.float16),
                                     tl.cast(y, tl.float16, fp_downcast_rounding="rtz")), y)
    np.testing.assert_array_equal(near.astype("f4"), [1 + 2.0**-10, -1 - 2.0**-10, np.inf])
    np.testing.assert_array_equal(toward_zero.astype("f4"), [1, -1, 65504])
    bits = evaluate(lambda y: y.to(tl.int32, bitcast=True), y)
    np.testing.assert_array_equal(bits, y.view(np.int32))


def test_casts_of_numbers():
    got = evaluate(lambda x: (tl.cast(300, tl.uint8), tl.cast(-1, tl.uint16), tl.cast(2.7, tl.int8),
                              tl.cast(1e9, tl.int16), tl.cast(math.nan, tl.int32),
                              tl.cast(0.1, tl.float16), tl.cast(3, tl.int1)), np.zeros(1, "f4"))
    assert [v.item() for v in got] == [44, 65535, 2, 32767, 0, float(np.float16(0.1)), True]


def test_cast_spellings():
    with tracing(((4,), tl.float32)) as (x,):
        for spelling in ("float16", "fp16", np.float16, np.dtype("f2"), tl.constexpr(tl.float16)):
            assert x.to(spelling).dtype == tl.float16
        assert x.cast(BF16).dtype == tl.bfloat16
        # Where nothing is converted, there is nothing to round, as in a kernel for any dtype.
        assert x.to(tl.float32, fp_downcast_rounding="rtne").handle is x.handle


def test_casts_refused():
    with tracing(((4,), tl.float32), ((4,), tl.int32), ((4,), tl.float16),
                 ((4,), tl.bfloat16)) as (x, n, h, b):
        refused(lambda: x.to(tl.float16, fp_downcast_rounding="up"), "'up'")
        refused(lambda: h.to(tl.float32, fp_downcast_rounding="rtz"), "fp16 to fp32")
        refused(lambda: h.to(tl.bfloat16, fp_downcast_rounding="rtz"), "fp16 to bf16")
        refused(lambda: b.to(tl.float16, fp_downcast_rounding="rtne"), "bf16 to fp16")
        refused(lambda: n.to(tl.float16, fp_downcast_rounding="rtne"), "int32 to fp16")
        refused(lambda: x.to(tl.float8e5, fp_downcast_rounding="rtz"), "nearest even")
        refused(lambda: x.to(3), "dtype")
        refused(lambda: x.to(tl.void), "void")
        with pytest.raises(CompilationError) as caught:
            x.to("float17")
        assert "did you mean" in caught.value.advice


# -- selection ------------------------------------------------------------------------------------

def test_where_drops_the_other_arm():
    c = np.array([True, False, True])
    x = np.array([1.0, np.nan, 3.0], np.float32)
    np.testing.assert_array_equal(evaluate(lambda c, x: tl.where(c, x, 0), c, x), [1, 0, 3])
    n = np.array([2, 0, -1], np.int32)
    np.testing.assert_array_equal(evaluate(lambda n: tl.where(n, 1, 2), n), [1, 2, 1])
    got = evaluate(lambda c, x: tl.where(c[:, None], x[None, :], -1.0), c, x)
    np.testing.assert_array_equal(got, np.where(c[:, None], x[None, :], -1))
    with tracing(F32P, ((4,), tl.int1)) as (p, c):
        assert tl.where(c, p, p + 1).dtype == F32P
        refused(lambda: tl.where(c, p, 0), "pointers of one type")
        refused(lambda: tl.where(p, 1, 2), "bool or a number")


def test_minimum_maximum_clamp():
    x = np.array([np.nan, 1, -0.0, 5], np.float32)
    y = np.array([2, np.nan, 0.0, 4], np.float32)
    low, high, low_nan, high_nan = evaluate(
        lambda x, y: (tl.minimum(x, y), tl.maximum(x, y),
                      tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL),
                      tl.maximum(x, y, True)), x, y)
    np.testing.assert_array_equal(low, [2, 1, -0.0, 4])
    np.testing.assert_array_equal(high, [2, 1, 0.0, 5])
    assert np.signbit(low[2]) and not np.signbit(high[2])
    np.testing.assert_array_equal(low_nan, [np.nan, np.nan, 0, 4])
    np.testing.assert_array_equal(high_nan, [np.nan, np.nan, 0, 5])
    n = np.array([-5, 3, 90], np.int16)
    np.testing.assert_array_equal(evaluate(lambda n: tl.clamp(n, 0, 10), n), [0, 3, 10])
    with tracing(((4,), tl.float32)) as (t,):
        refused(lambda: tl.maximum(t, t, "all"), "'all'")


# -- shapes ---------------------------------------------------------------------------------------

def test_shape_ops():
    x = np.arange(2 * 3 * 5, dtype=np.int32).reshape(2, 3, 5)
    cases = {
        lambda t: t[None]: x[None], lambda t: t[:, None]: x[:, None],
        lambda t: t[:, :, None, :, None]: x[:, :, None, :, None],
        lambda t: t[:]: x, lambda t: tl.expand_dims(t, -1): x[..., None],
        lambda t: t.expand_dims((0, -1)): x[None, ..., None],
        lambda t: t.reshape(5, 6): x.reshape(5, 6), lambda t: tl.reshape(t, (30,)): x.reshape(30),
        lambda t: tl.view(t, [6, 5]): x.reshape(6, 5), lambda t: t.ravel(): x.ravel(),
        lambda t: t.permute(2, 0, 1): x.transpose(2, 0, 1),
        lambda t: tl.permute(t, (1, 0, -1)): x.transpose(1, 0, 2),
        lambda t: t.T: x.swapaxes(1, 2), lambda t: tl.trans(t): x.swapaxes(1, 2),
        lambda t: t.trans(2, 1, 0): x.T, lambda t: tl.trans(t, (0, 1, 2)): x,
        lambda t: tl.broadcast_to(t[:, :, None], 2, 3, 4, 5):
            np.broadcast_to(x[:, :, None], (2, 3, 4, 5)),
        lambda t: t.broadcast_to((7, 2, 3, 5)): np.broadcast_to(x, (7, 2, 3, 5)),
        lambda t: tl.broadcast(t, tl.arange(0, 5))[1]: np.broadcast_to(np.arange(5), (2, 3, 5)),
    }
    for fn, want in cases.items():
        got = evaluate(fn, x)
        assert got.shape == want.shape
        np.testing.assert_array_equal(got, want)


def test_scalars_and_single_elements():
    s = np.float32(3)
    assert evaluate(lambda s: s[None, None], s).shape == (1, 1)
    assert evaluate(lambda s: tl.broadcast_to(s, 3), s).tolist() == [3, 3, 3]
    assert evaluate(lambda t: t.item() + 1, np.full((1, 1), 4, np.int32)) == 5
    assert evaluate(lambda t: t.reshape(()), np.full(1, 4, np.int32)).shape == ()


def test_attributes():
    with tracing(((2, 4), tl.bfloat16), F32P) as (x, p):
        assert (x.shape, x.numel, x.rank, len(x), x.dtype) == ((2, 4), 8, 2, 2, tl.bfloat16)
        assert x.type.is_block() and x.type.scalar == tl.bfloat16 and x.type.shape == (2, 4)
        assert p.dtype.element_ty == tl.float32 and p.shape == () and p.type == F32P
        assert (str(x), str(p)) == ("bf16[2, 4] tile", "pointer<fp32> scalar")


@pytest.mark.parametrize("fn", [
    lambda x: x.reshape(3, 3), lambda x: x.reshape(0, 8), lambda x: x.permute(0, 0),
    lambda x: x.permute(0), lambda x: x.trans(0, 2), lambda x: tl.trans(x.ravel()),
    lambda x: tl.expand_dims(x, 3), lambda x: tl.expand_dims(x, (0, 0)),
    lambda x: x.broadcast_to(2, 8), lambda x: x.broadcast_to(4), lambda x: x.item(),
    lambda x: tl.reshape(3, 1), lambda x: x.reshape(x.item, 2), lambda x: x[None, 0],
    lambda x: tl.zeros((2, -1), tl.float32), lambda x: tl.zeros((2048, 1024), tl.float32),
    lambda x: tl.full((2,), x, tl.float32), lambda x: tl.arange(4, 4), lambda x: tl.arange(0, 1.5),
    lambda x: tl.zeros(4), lambda x: tl.zeros((4,), tl.float32, 1), lambda x: tl.zeros((4,), 7),
    lambda x: tl.arange(0, 1 << 40), lambda x: tl.program_id(3), lambda x: tl.program_id("x")])
def test_shapes_refused(fn):
    with tracing(((2, 4), tl.float32)) as (x,):
        refused(lambda: fn(x))


def test_creation():
    got = evaluate(lambda x: (tl.arange(5, 101), tl.zeros((3,), tl.float16),
                              tl.full([2], 7.9, tl.int8),
                              tl.full((2, 2), x, tl.float64), tl.zeros_like(x[None]),
                              tl.full((), -1, tl.uint8), tl.program_id(0), tl.num_programs(2)),
                   np.float32(2.5))
    want = [np.arange(5, 101), np.zeros(3), np.full(2, 7), np.full((2, 2), 2.5), np.zeros(1), 255,
            0, 1]
    types = ["i4", "f2", "i1", "f8", "f4", "u1", "i4", "i4"]
    for g, w, t in zip(got, want, types, strict=True):
        assert g.dtype == np.dtype(t)
        np.testing.assert_array_equal(g, w)


def test_run_time_extents_are_refused():
    with tracing(tl.int32) as (n,):
        for fn in (lambda: tl.arange(0, n), lambda: tl.zeros((n,), tl.float32)):
            assert "tl.constexpr" in refused(fn, "known at compile time").advice
        four = tl.to_tensor(4)  # as `n = 4` in a kernel
        assert tl.arange(0, four).shape == tl.zeros([four], tl.int8).shape == (4,)


# -- memory ---------------------------------------------------------------------------------------

def test_load_broadcasts_mask_and_other():
    with tracing(F32P, tl.int32) as (p, n):
        column, row = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
        x = tl.load(p + column * 8 + row, column < n, 1)
        assert (x.shape, x.dtype) == ((4, 8), tl.float32)
        assert x.handle.op.other.op.value == 1.0
        assert tl.load(p + row, mask=column < n, other=n).shape == (4, 8)
        assert tl.load(p).type == tl.float32
        assert tl.load(p, n > 0, 0).type == tl.float32
        x = tl.load(p, cache_modifier=".cg", eviction_policy="evict_first", volatile=True)
        op = x.handle.op
        assert (op.cache, op.eviction, op.volatile, op.mask) == (".cg", "evict_first", True, None)
        assert tl.load(p + row, mask=True, other=0.0).handle.op.mask is None
        assert tl.load(p + row, mask=False, other=2).handle.op.mask.op.value is False


def test_store_converts_and_broadcasts():
    with tracing(tl.pointer_type(tl.uint8), tl.pointer_type(tl.int1)) as (p, b):
        offs = tl.arange(0, 4)
        tl.store(p + offs, 1.5, mask=offs < 3, cache_modifier=".cs", eviction_policy="evict_last")
        op = p.handle.users[-1].result.users[-1].result.users[-1]
        assert isinstance(op, ops.Store) and op.value.op.value == 1 and op.cache == ".cs"
        tl.store(p + offs[:, None] + offs, offs)
        tl.store(b + offs, offs)
        tl.store(p, True)
        assert tl.load(b + offs).dtype == tl.int1


@pytest.mark.parametrize(("fn", "found"), [
    (lambda p, k, n, x: tl.load(x), "expected a pointer"),
    (lambda p, k, n, x: tl.load(n), "expected a pointer"),
    (lambda p, k, n, x: tl.load(3), "expected a pointer"),
    (lambda p, k, n, x: tl.load(p, other=0), "without `mask`"),
    (lambda p, k, n, x: tl.load(p, mask=x < 1), "the pointer is a scalar"),
    (lambda p, k, n, x: tl.load(p + tl.arange(0, 8), mask=x), "expected int1"),
    (lambda p, k, n, x: tl.load(p + tl.arange(0, 4), mask=x < 1), "do not broadcast"),
    (lambda p, k, n, x: tl.load(p, cache_modifier=".xx"), "'.xx'"),
    (lambda p, k, n, x: tl.load(p, eviction_policy="never"), "'never'"),
    (lambda p, k, n, x: tl.load(p, boundary_check=(0,)), "boundary_check"),
    (lambda p, k, n, x: tl.store(k, 1.0), "cannot write through"),
    (lambda p, k, n, x: tl.store(p, x), "the pointer is a scalar"),
    (lambda p, k, n, x: tl.store(p + tl.arange(0, 8)[None, :], x[:, None]), "value and pointer"),
    (lambda p, k, n, x: tl.store(p, p), "cannot cast"),
    (lambda p, k, n, x: tl.store(p, None), "expected a tile or a number"),
    (lambda p, k, n, x: tl.store(p), "missing a required argument"),
    (lambda p, k, n, x: tl.atomic_add(k, 1.0), "cannot write through"),
    (lambda p, k, n, x: tl.atomic_add(p, x), "the pointer is a scalar"),
    (lambda p, k, n, x: tl.atomic_add(p, 1, sem="now"), "'now'"),
    (lambda p, k, n, x: tl.atomic_add(p.to(tl.pointer_type(tl.int8)), 1), "int8"),
    (lambda p, k, n, x: tl.atomic_add(p.to(tl.pointer_type(tl.float8e5)), 1), "fp8e5")])
def test_memory_refused(fn, found):
    types = (F32P, tl.pointer_type(tl.float32, const=True), tl.int64, ((8,), tl.float32))
    with tracing(*types) as args:
        refused(lambda: fn(*args), found)


def test_atomic_add():
    with tracing(tl.pointer_type(tl.uint64), F32P) as (p, f):
        op = tl.atomic_add(p + tl.arange(0, 4), 1, sem="relaxed", scope="cta").handle.op
        assert (op.kind, op.sem, op.scope, op.value.op.value) == ("add", "relaxed", "cta", 1)
        assert tl.atomic_add(f, 2, mask=True).type == tl.float32


# -- hints, assertions, printing ------------------------------------------------------------------

def test_hints():
    with tracing(((4, 8), tl.int32), tl.int32) as (x, n):
        assert tl.multiple_of(x, (1, 8)).handle.op.divisibility == (1, 8)
        assert tl.max_contiguous(x, [1, 8]).handle.op.contiguity == (1, 8)
        assert tl.max_constancy(x, (4, 1)).handle.op.constancy == (4, 1)
        assert tl.multiple_of(n, 16).handle.op.divisibility == (16,)
        assert tl.multiple_of(16, 16) == 16
        assert tl.multiple_of(tl.to_tensor(32), 16).literal == 32
        refused(lambda: tl.multiple_of(x, 8), "1 values are given")
        refused(lambda: tl.max_contiguous(n, 0), "positive")
        refused(lambda: tl.max_constancy(n, n), "compile time")


def test_assume_and_barrier():
    with tracing(tl.int32, ((8,), tl.int1)) as (n, m):
        tl.assume(n > 0)
        tl.assume(True)
        tl.debug_barrier()
        names = [op.name for op in n.handle.owner]
        assert names[-2:] == ["tile.assume", "gpu.barrier"]
        refused(lambda: tl.assume(False), "false at compile time")
        refused(lambda: tl.assume(m), "expected a scalar")


def test_device_assert():
    x = np.array([1, 0, 1], np.int32)
    with pytest.raises(InterpreterError, match="positive"):
        evaluate(lambda x: (tl.device_assert(x > 0, "positive"), x)[1], x)
    evaluate(lambda x: (tl.device_assert(x > 0, "positive", mask=x != 0), x)[1], x)


def test_static_assert_and_print(capsys):
    with tracing(((8,), tl.float32), tl.int32) as (x, n):
        tl.static_assert(x.shape[0] == 8, "eight")
        tl.static_assert(tl.to_tensor(1))
        with pytest.raises(CompileTimeAssertionError, match="static assertion failed: eight"):
            tl.static_assert(x.shape[0] == 9, "eight")
        refused(lambda: tl.static_assert(n > 0), "compile time")
        tl.static_print("x is", x, tl.constexpr(3), tl.float32, sep="|")
    assert capsys.readouterr().out == "x is|fp32[8] tile|3|fp32\n"


def test_device_print():
    with tracing(((8,), tl.float32)) as (x,):
        tl.device_print("x =", x, 3, hex=True)
        op = x.handle.users[-1]
        assert (op.name, op.prefix, op.hex, len(op.values)) == ("tile.print", "x =", True, 2)
        refused(lambda: tl.device_print(x), "expected a string")


# -- the rest -------------------------------------------------------------------------------------

def test_dot():
    a = np.random.default_rng(5).standard_normal((16, 32)).astype(np.float16)
    b = np.random.default_rng(6).standard_normal((32, 8)).astype(np.float16)
    got = evaluate(lambda a, b: (tl.dot(a, b), tl.dot(a, b, acc=tl.full((16, 8), 1, tl.float32)),
                                 tl.dot(a, b, out_dtype=tl.float16)), a, b)
    want = a.astype("f8") @ b.astype("f8")
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1], want + 1, rtol=1e-5, atol=1e-6)
    assert got[2].dtype == np.float16
    n = np.random.default_rng(7).integers(-9, 9, (2, 4, 32)).astype(np.int8)
    got = evaluate(lambda n: tl.dot(n, n.permute(0, 2, 1)), n)
    np.testing.assert_array_equal(got, n.astype("i4") @ n.astype("i4").transpose(0, 2, 1))


def test_dot_refused():
    types = (((16, 32), tl.float16), ((32, 8), tl.float16), ((32, 8), tl.bfloat16))
    with tracing(*types) as (a, b, c):
        refused(lambda: tl.dot(a, c), "bf16[32, 8]")
        refused(lambda: tl.dot(a, a), "columns")
        refused(lambda: tl.dot(a, b.ravel()), "dimensions")
        refused(lambda: tl.dot(a, b, acc=tl.zeros((16, 8), tl.float16)), "expected fp32[16, 8]")
        refused(lambda: tl.dot(a, b, out_dtype=tl.int32), "out_dtype")
        refused(lambda: tl.dot(a, b, input_precision="bf16x3"), "bf16x3")
        refused(lambda: tl.dot(a, b, input_precision="ieee", allow_tf32=True), "both")
        refused(lambda: tl.dot(a, b, allow_tf32="no"), "allow_tf32")
        refused(lambda: tl.dot(a, b, max_num_imprecise_acc=0.5), "max_num_imprecise_acc")
        refused(lambda: tl.dot(a, b, acc=0), "the number 0")
        half = tl.zeros((16, 8), tl.float16)
        assert "out_dtype=tl.float16" in refused(lambda: tl.dot(a, b, half), "fp16").advice
        refused(lambda: tl.dot(c.T, c, out_dtype=tl.float16), "expected fp32")
        batch = tl.zeros((4, 16, 32), tl.float16)
        refused(lambda: tl.dot(batch, tl.zeros((2, 32, 8), tl.float16)), "batch")
        flags = tl.zeros((16, 16), tl.uint8)
        refused(lambda: tl.dot(flags, flags), "uint8[16, 16]")


@pytest.mark.parametrize("dtype, out_dtype, result", [
    (tl.int8, None, tl.int32), (tl.int8, tl.int32, tl.int32), (tl.int8, tl.float32, tl.int32),
    (tl.int8, tl.int8, tl.int32),
    (tl.float64, None, tl.float64), (tl.float64, tl.float64, tl.float64),
    (tl.float32, None, tl.float32), (tl.bfloat16, tl.float32, tl.float32),
    (tl.float16, tl.float16, tl.float16), (tl.float8e5, tl.float16, tl.float16),
    (tl.float8e4nv, None, tl.float32)])
def test_dot_result(dtype, out_dtype, result):
    with tracing(((16, 32), dtype), ((32, 16), dtype)) as (a, b):
        given = {} if out_dtype is None else {"out_dtype": out_dtype}
        assert tl.dot(a, b, **given).dtype == result
        acc = tl.zeros((16, 16), result)
        assert tl.dot(a, b, acc, max_num_imprecise_acc=32, **given).shape == (16, 16)
        if dtype != tl.int8:  # whose products have one type, whatever is asked for
            refused(lambda: tl.dot(a, b, out_dtype=tl.int8), "out_dtype")


def test_dot_of_any_rank():
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-4, 5, s).astype(np.float16) for s in ((2, 3, 16, 16), (2, 3, 16, 16)))
    acc = rng.integers(-4, 5, (2, 3, 16, 16)).astype(np.float32)
    got = evaluate(lambda a, b, c: tl.dot(a, b, c), a, b, acc)
    np.testing.assert_array_equal(got, a.astype("f4") @ b.astype("f4") + acc)
    np.testing.assert_array_equal(evaluate(lambda a, b: tl.dot(a, b), a, b),
                                  a.astype("f4") @ b.astype("f4"))
    with tracing(((2, 3, 16, 16), tl.float16), ((3, 2, 16, 16), tl.float16)) as (a, b):
        refused(lambda: tl.dot(a, b), "batch")


@pytest.mark.parametrize("options, precision", [
    ({}, "tf32"), ({"allow_tf32": True}, "tf32"), ({"allow_tf32": False}, "ieee"),
    ({"input_precision": "tf32x3"}, "tf32x3"), ({"input_precision": "ieee"}, "ieee"),
    ({"input_precision": None, "allow_tf32": None}, "tf32")])
def test_dot_precision(options, precision):
    with tracing(((16, 32), tl.float32), ((32, 16), tl.float32)) as (a, b):
        assert tl.dot(a, b, **options).handle.op.input_precision == precision


def test_ranges():
    loop = tl.range(4, num_stages=3, loop_unroll_factor=2)
    assert (loop.lo, loop.hi, loop.step) == (0, 4, 1)
    assert loop.attributes == {"num_stages": 3, "unroll": 2, "flatten": False,
                               "disable_licm": False, "warp_specialize": False}
    with tracing(tl.int32) as (n,):
        loop = tl.range(1, n, 2)
        assert (loop.lo, loop.hi, loop.step) == (1, n, 2)
        assert loop.attributes["num_stages"] == 0
        refused(lambda: tl.static_range(n), "compile time")
        refused(lambda: tl.static_range(0, 4, 0), "step")
        refused(lambda: iter(tl.range(4)), "for")
        unrolled = tl.static_range(8, 0, -2)
        assert (unrolled.lo, unrolled.hi, unrolled.step) == (8, 0, -2)


def test_softmax_and_sigmoid():
    x = np.random.default_rng(8).standard_normal((4, 7)).astype(np.float32)
    e = np.exp(x.astype("f8"))
    for dim in (0, 1):
        got = evaluate(lambda x, dim=dim: plain_call(tl.softmax, (x, dim), {}), x)
        np.testing.assert_allclose(got, e / e.sum(dim, keepdims=True), rtol=1e-6)
    got = evaluate(lambda x: plain_call(tl.sigmoid, (x,), {}), x)
    np.testing.assert_allclose(got, 1 / (1 + 1 / e), rtol=1e-6)


def test_the_names_that_authors_see():
    assert set(dir(tl)) >= {"load", "store", "float32", "constexpr", "math", "core", "softmax"}
    assert "semantic" not in dir(tl) and "builtin" in dir(tl.core)
    assert all(hasattr(tl, name) for name in dir(tl))
    assert all(getattr(tl, name).__doc__ for name in dir(tl) if callable(getattr(tl, name)))


def test_to_tensor_gives_a_number_the_type_of_its_literal() -> None:
    @tilec.jit
    def kernel(o, wide):
        tl.store(o, tl.to_tensor(3) // 2)
        tl.store(wide, tl.to_tensor(0.1))
        tl.store(o + 1, tl.to_tensor(tl.load(o)))

    out, wide = np.zeros(2, np.int32), np.zeros(1)
    kernel[(1,)](out, wide)
    assert out.tolist() == [1, 1] and wide[0] == np.float32(0.1)
