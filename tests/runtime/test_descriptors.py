"""TensorDescriptor as an argument: what is specialised on, values at every level, refusals."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import Launches, Memory
from tilec.errors import CompilationError, LaunchError
from tilec.frontend.signature import ArgSpec, format_spec, parse_spec
from tilec.ir import types as ir
from tilec.knobs import RUN_LEVELS
from tilec.language.descriptors import DescriptorForm
from tilec.runtime.arguments import Const, handler_of, leaves, spec_of

LEVELS = RUN_LEVELS


@tilec.jit
def copy(x, y, scale):
    """y = x * scale, one row of blocks a program; blocks of y say how large."""
    at = tl.program_id(0) * y.block_shape[0]
    for j in range(0, y.shape[1], y.block_shape[1]):
        y.store([at, j], x.load([at, j]) * scale)


def describe(x, block=(4, 8), padding="zero"):
    return tilec.TensorDescriptor.from_tensor(x, block, padding)


def test_key_and_values():
    x = np.zeros((6, 48), np.float16)[:, :33]
    key, values = handler_of(describe(x))(describe(x))
    assert key == (("fp16", True, "numpy"), (("i32", False), ("i32", False)), (("i64", True),),
                   Const(DescriptorForm, DescriptorForm((4, 8), "zero")))
    assert values[0] is x and values[1:4] == (6, 33, 48) and len(values) == len(leaves(key))
    text = format_spec(spec_of(key))
    assert text == "(*fp16:16, (i32, i32), (i64:16), =blocks of [4, 8] padded with zero)"


def test_parameters_have_tritons_names():
    x = np.zeros((6, 48), np.float16)
    by_name = tilec.TensorDescriptor.from_tensor(tensor=x, block_shape=[4, 8], padding="nan")
    again = tilec.TensorDescriptor(base=x, shape=[6, 48], strides=[48, 1], block_shape=[4, 8],
                                   padding="nan")
    assert by_name.base is again.base is x
    assert by_name.read() == again.read() == describe(x, padding="nan").read()


def test_launch_on_a_gpu(monkeypatch):
    launches, memory = Launches(monkeypatch), Memory(monkeypatch)
    x = memory.array(np.zeros((8, 64), np.float32), strides=(320, 4))
    y = memory.array(np.zeros((8, 32), np.float32))
    copy[(2,)](describe(x), describe(y, padding="nan"), 5)
    (_, _, _, _, values), = launches.calls
    at = [a.__cuda_array_interface__["data"][0] for a in (x, y)]
    assert values == [at[0], 8, 64, 80, at[1], 8, 32, 32, 5]


def test_host_copies_of_device_arrays(monkeypatch, rng):
    memory = Memory(monkeypatch)
    x, y = rng.integers(0, 9, (4, 16)).astype(np.float32), np.zeros((4, 16), np.float32)
    with tilec.knobs.scope(run="tile"):
        copy[(1,)](describe(memory.array(x)), describe(memory.array(y)), 3)
    np.testing.assert_array_equal(y, 3 * x)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["f32", "bf16"])
def test_launch_with_strides_between_rows(dtype, rng):
    whole = rng.integers(-50, 50, (11, 40)).astype(dtype)
    x, y = whole[:, 3:24], np.full((11, 30), 7, dtype)
    want = np.zeros((11, 30), dtype)
    want[:, :21] = x * dtype(2)
    made = copy[(3,)](describe(x), describe(y), 2)
    np.testing.assert_array_equal(y, want)
    assert copy[(3,)](describe(x), describe(y), 2) is made
    assert copy[(3,)](describe(x, (8, 8)), describe(y, (8, 8)), 2) is not made
    for level in LEVELS:
        y[:] = 7
        made.run([describe(x), describe(y), 2], 3, level=level)
        np.testing.assert_array_equal(y, want, err_msg=level)


@tilec.jit
def chosen(pair, out, flag):
    if flag > 0:
        x = pair[0]
    else:
        x = pair[1]
    out.store([0], x.load([0]))


def test_in_tuples_with_padding_and_rank_1(rng):
    a, b = (rng.integers(0, 9, 5).astype(np.float32) for _ in range(2))
    for flag, source in ((1, a), (0, b)):
        out = np.zeros(8, np.float32)
        pair = (describe(a, [8], "nan"), describe(b, [8], "nan"))
        chosen[(1,)](pair, describe(out, [8]), flag)
        np.testing.assert_array_equal(out, [*source, np.nan, np.nan, np.nan])


def test_attributes_may_change(rng):
    x, y = rng.integers(0, 9, (6, 16)).astype(np.int32), np.zeros((6, 16), np.int32)
    d, out = describe(x), describe(y)
    copy[(2,)](d, out, 1)
    d.block_shape = out.block_shape = [2, 4]
    d.shape = (3, 16)
    made = copy[(3,)](d, out, 1)
    np.testing.assert_array_equal(y[:4], np.where(np.arange(4)[:, None] < 3, x[:4], 0))
    assert "blocks of [2, 4]" in repr(made)


def test_signatures():
    spec = parse_spec("tensordesc<bf16[128, 64], nan>:16")
    pointer, shape, strides, form = spec
    assert pointer == ArgSpec(ir.Pointer(ir.bf16), 16)
    assert shape == (ArgSpec(ir.i32), ArgSpec(ir.i32, 16)) and strides == (ArgSpec(ir.i64, 16),)
    assert form.value == DescriptorForm((128, 64), "nan")
    text = "tensordesc<fp32[4, 8]>"
    kernel = tilec.compile(copy, {"x": text, "y": text, "scale": "i32"})
    x, y = np.ones((4, 9), np.float32), np.zeros((4, 9), np.float32)
    kernel.run([describe(x), describe(y), 3], 1, level="ptx")
    assert (y == 3).all()
    with pytest.raises(LaunchError, match=r"has blocks of \[4, 4\].*blocks of \[4, 8\]"):
        kernel.run([describe(x, (4, 4)), describe(y), 3], 1)


@pytest.mark.parametrize("text, message", [
    ("tensordesc<foo[4]>", "no type"), ("tensordesc<fp32[4,]>", "no type"),
    ("tensordesc<fp32[0]>", "not positive"), ("tensordesc<fp32[1, 1, 1, 1, 1, 1]>", "6 dimensions"),
    ("tensordesc<i32[4], nan>", "'nan' for int32"), ("tensordesc<fp32[4], one>", "'one'"),
    ("tensordesc<fp32[4]>:x", "no divisor"),
])
def test_wrong_signatures(text, message):
    with pytest.raises(CompilationError, match=message):
        parse_spec(text, "x")


X = np.zeros((4, 8), np.float32)
D = tilec.TensorDescriptor


@pytest.mark.parametrize("make, message", [
    (lambda: describe(X.T), "expected 1 as the last one"),
    (lambda: describe(X, [4]), "equal numbers of dimensions"),
    (lambda: D(X, [4, 8], [8], [4, 8]), "equal numbers of dimensions"),
    (lambda: D(X, [4, 8], [8, 1]), "0 dimensions, expected 1 to 5"),
    (lambda: D(X, [-4, 8], [8, 1], [4, 8]), "expected extents from 0"),
    (lambda: D(X, [1 << 31, 8], [8, 1], [4, 8]), "expected extents from 0"),
    (lambda: D(X, [4, 8], [1 << 63, 1], [4, 8]), "expected 64 bits"),
    (lambda: describe(X, [4, 0]), "not positive"),
    (lambda: describe(X, [4, 8], "one"), "'one'"),
    (lambda: describe(X.view(np.int32), [4, 8], "nan"), "'nan' for int32"),
    (lambda: D(3, [4, 8], [8, 1], [4, 8]), "expected one of an array"),
    (lambda: D(X, [4.5, 8], [8, 1], [4, 8]), "the shape of a TensorDescriptor"),
    (lambda: describe([1, 2], [2]), "expected an array"),
])
def test_refused(make, message):
    with pytest.raises(LaunchError, match=message):
        copy[(1,)](make(), describe(X.copy()), 1)
