"""The language through the front end: whole kernels, run by the interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec.errors import CompilationError
from tilec.frontend.build import build_module
from tilec.frontend.function import Function, function
from tilec.interp.run import run
from tilec.ir.verifier import verify
from tilec.language import dtypes as dt

WIDTH = tl.constexpr(3)


def launch(fn, args, grid=(1,), **constexprs):
    """Compile for the arguments (numpy arrays and numbers) and run; arrays are written in place."""
    kernel = fn if isinstance(fn, Function) else Function(fn)
    specs = {}
    for p, a in zip(kernel.params, args, strict=False):
        if isinstance(a, np.ndarray):
            specs[p.name] = "*" + dt.from_any(a.dtype).short
        else:
            specs[p.name] = "i32" if isinstance(a, int) else "fp32"
    module = build_module(kernel, specs, constexprs, target="sm_90a", options={"debug": True})
    verify(module)
    run(module, kernel.name, args, grid)


def softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + offs, mask=offs < columns, other=-float("inf"))
    tl.store(out_ptr + row * columns + offs, tl.softmax(x), mask=offs < columns)


@pytest.mark.parametrize("columns", [1, 37, 96])
def test_softmax(columns):
    x = np.random.default_rng(0).standard_normal((5, columns)).astype(np.float32)
    out = np.zeros_like(x)
    launch(softmax_kernel, [x.reshape(-1), out.reshape(-1), columns], (5,), BLOCK=96)
    e = np.exp(x.astype("f8"))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-6)


@function
def relu(x):
    return tl.maximum(x, 0)


@function
def scaled(x, factor=2.0):
    return x * factor


def chain_kernel(x_ptr, out_ptr, n, EPILOGUE: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    x = EPILOGUE(scaled(x) + tl.sigmoid(x))
    tl.store(out_ptr + offs, x, mask)


def test_functions_as_constexprs():
    x = np.random.default_rng(1).standard_normal(100).astype(ml_dtypes.bfloat16)
    out = np.zeros(100, np.float32)
    launch(chain_kernel, [x, out, 100], (4,), EPILOGUE=relu, BLOCK=32)
    wide = x.astype("f8")
    np.testing.assert_allclose(out, np.maximum(wide * 2 + 1 / (1 + np.exp(-wide)), 0), rtol=1e-5,
                               atol=1e-6)


def literals_kernel(x_ptr, out_ptr):
    one = 1  # int32 from here on, and a number where one is needed
    rows: tl.constexpr = 4
    x = tl.load(x_ptr + tl.arange(0, rows * one))
    tl.store(out_ptr + tl.arange(0, 4), x + one + tl.zeros([rows], tl.int8))
    tl.store(out_ptr + tl.arange(4, 8), tl.sum(x) // -2)
    tl.store(out_ptr + tl.arange(8, 12), x >> WIDTH)
    tl.store(out_ptr + tl.arange(12, 16), tl.where(x > 100, 1, 0) + (x == 0))


def test_literals_and_constexprs():
    x = np.array([-128, 127, 0, -6], np.int8)
    out = np.zeros(16, np.int64)
    launch(literals_kernel, [x, out])
    np.testing.assert_array_equal(out[:4], x.astype("i8") + 1)
    assert set(out[4:8]) == {3}  # -7 // -2, toward zero
    np.testing.assert_array_equal(out[8:12], x >> 3)
    np.testing.assert_array_equal(out[12:], [0, 1, 1, 0])


@function
def later(a, i, b, j):
    first = i > j
    return tl.where(first, a, b), tl.where(first, i, j)


def reductions_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    offs = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + offs)
    value, index = tl.reduce((x, offs), 1, later)
    rows = tl.arange(0, M)
    tl.store(out_ptr + rows, value)
    tl.store(out_ptr + M + rows, tl.argmax(x, axis=1))
    tl.store(out_ptr + 2 * M + rows, x.trans().min(0))
    most, place = tl.max(x, 1, return_indices=True)
    tl.store(out_ptr + 3 * M + rows, most * 10 + place + index)
    tl.static_assert(x.shape[0] == M and x.dtype == tl.float32)


def test_reductions():
    x = np.random.default_rng(2).integers(0, 5, (6, 10)).astype(np.float32)
    out = np.zeros((4, 6), np.float32)
    launch(reductions_kernel, [x.reshape(-1), out.reshape(-1)], M=6, N=10)
    np.testing.assert_array_equal(out[0], x[:, -1])
    np.testing.assert_array_equal(out[1], x.argmax(1))
    np.testing.assert_array_equal(out[2], x.min(1))
    np.testing.assert_array_equal(out[3], x.max(1) * 10 + x.argmax(1) + np.arange(6) * 10 + 9)


def loop_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, n, BLOCK, num_stages=2):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + offs, mask=offs < n, other=0)
    for i in tl.static_range(3):
        total = tl.fma(total, 1.0, i)
    tl.store(out_ptr, tl.sum(total))
    tl.atomic_add(out_ptr, 0.5)
    tl.device_assert(n > 0, "n is positive")


def test_loops():
    x = np.random.default_rng(3).integers(0, 9, 1000).astype(np.float32)
    out = np.zeros(1, np.float32)
    launch(loop_kernel, [x, out, 1000], BLOCK=96)
    assert out[0] == x.sum() + 96 * 3 + 0.5


def addresses_kernel(x_ptr, addresses_ptr):
    element: tl.constexpr = x_ptr.dtype.element_ty
    address = tl.load(addresses_ptr) + x_ptr.to(tl.int64)
    p = address.to(tl.pointer_type(element))
    tl.store(p + 1, tl.load(p) + x_ptr.dtype.element_ty.primitive_bitwidth)


def test_pointers_made_of_integers():
    x = np.array([5.0, 0.0], np.float64)
    launch(addresses_kernel, [x, np.zeros(1, np.int64)])
    assert x[1] == 69


# -- errors ---------------------------------------------------------------------------------------

def bad_shapes(x_ptr, out_ptr):
    a = tl.load(x_ptr + tl.arange(0, 8))
    b = tl.load(x_ptr + tl.arange(0, 16))
    tl.store(out_ptr, tl.sum(a + b))


def bad_combine(x_ptr, out_ptr):
    x = tl.load(x_ptr + tl.arange(0, 8))
    tl.store(out_ptr, tl.reduce(x, 0, widen))


@function
def widen(a, b):
    return (a + b).to(tl.float64)


def bad_inside(x_ptr, out_ptr):
    tl.store(out_ptr, tl.softmax(tl.load(x_ptr)))


def bad_keyword(x_ptr, out_ptr):
    tl.store(out_ptr, tl.load(x_ptr, masked=True))


def bad_mask(x_ptr, out_ptr):
    offs = tl.arange(0, 8)
    tl.store(out_ptr + offs, 1.0, mask=offs)


def bad_call(x_ptr, out_ptr):
    x = tl.load(x_ptr)
    tl.store(out_ptr, x(3))


@pytest.mark.parametrize(("fn", "line", "caret", "found", "advice"), [
    (bad_shapes, 3, "a + b", "[8] and [16]", "extents must be equal"),
    (bad_combine, 2, "tl.reduce(x, 0, widen)", "fp64 scalar", "cast its result"),
    (bad_keyword, 1, "tl.load(x_ptr, masked=True)", "masked", "the signature is tl.load(pointer"),
    (bad_mask, 2, "tl.store(out_ptr + offs, 1.0, mask=offs)", "expected int1", "compare"),
    (bad_call, 2, "x(3)", "cannot be called", ""),
    (bad_inside, 1, "tl.softmax(tl.load(x_ptr))", "scalar has no axis", "makes a tile")])
def test_errors_show_the_line(fn, line, caret, found, advice):
    with pytest.raises(CompilationError) as caught:
        launch(fn, [np.zeros(16, np.float32), np.zeros(16, np.float32)])
    error = caught.value
    site = error.loc.chain()[-1]
    assert (site.file, site.line) == (__file__, fn.__code__.co_firstlineno + line)
    assert found in error.message and advice in str(error), str(error)
    assert caret in str(error) and "^" * len(caret) in str(error)


def test_importing_the_language_loads_nothing_heavy():
    code = "import sys, tilec.language; print(*{'numpy', 'lark', 'llvmlite'} & set(sys.modules))"
    root = Path(__file__).parents[2]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True,
                         check=True)
    assert out.stdout.strip() == ""


@tilec.jit
def literals(out_ptr, x_ptr):
    tl.store(out_ptr, 0.1)
    tl.store(out_ptr + 1, tl.load(x_ptr, mask=tl.load(x_ptr) > 1.0, other=0.1))
    tl.atomic_add(out_ptr + 2, 0.1)
    tl.store(out_ptr + 3, tl.full((), 0.1, tl.float64))
    tl.store(out_ptr + 4, tl.load(x_ptr) + 0.1)
    tl.store(out_ptr + 5, 1e300)


@pytest.mark.parametrize("level", ["tile", "ptx"])
def test_a_number_that_is_stored_has_the_type_of_its_literal(level):
    out = np.zeros(6)
    with tilec.knobs.scope(run=level):
        literals[(1,)](out, np.zeros(1))
    assert out.tolist() == [float(np.float32(0.1))] * 3 + [0.1, 0.1, 1e300]
