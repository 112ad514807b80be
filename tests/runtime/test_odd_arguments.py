"""Arguments and options of odd kinds are errors at the kernel's line; numbers of every dtype mean
the same at every level."""

from __future__ import annotations

import sys
import types
import warnings

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import from_text
from tilec import knobs
from tilec.errors import CompilationError, LaunchError, TilecError
from tilec.eval.casts import cast
from tilec.eval.dtypes import scalar_type
from tilec.runtime.launch import Packer


@tilec.jit
def plus(x, n):
    tl.store(x, n + 1)


@tilec.jit
def baked(x, B: tl.constexpr):
    tl.store(x, 1)


@tilec.jit
def moved(d):
    d.store([0, 0], d.load([0, 0]))


class Shaped:
    shape = property(lambda self: 1 / 0)


class NoText:
    def __repr__(self):
        raise RuntimeError("no text")


class NoHash:
    def __hash__(self):
        raise ValueError("no hash")


class NoIndex:
    def __index__(self):
        raise RuntimeError("no index")


class Raises:
    __cuda_array_interface__ = property(lambda self: 1 / 0)


def interface(value):
    return type("Odd", (), {"__cuda_array_interface__": value})()


class NoCapsule:
    def __init__(self, made=None):
        self.made = made

    def __dlpack__(self):
        if self.made is None:
            raise RuntimeError("not now")
        return self.made

    def __dlpack_device__(self):
        return 2, 0


class NoDevice:
    def __dlpack__(self):
        return 5


def nested(deep: int) -> tuple:
    value: tuple = ()
    for _ in range(deep):
        value = (value,)
    return value


ENDLESS: list = []
ENDLESS.append(ENDLESS)

# What no parameter takes, be it for arrays or numbers.
ODD = [
    Shaped, Shaped(), NoText(), NoHash(), NoIndex(), Raises(), NoCapsule(), NoCapsule(5),
    NoDevice(), interface({}), interface(5), interface({"data": None, "typestr": "<f4"}),
    interface({"data": (16, False), "typestr": "zz"}), interface({"data": ("a", 0)}), b"abc", "s",
    memoryview(b"abc"), memoryview(bytearray(2)), bytearray(4), 1j, {}, {1: 2}, {3}, object(), int,
    np.float32, print, range(3), iter(()), np.array(["a"]), np.array([None]), np.zeros(2, "M8[s]"),
    np.zeros(3, np.complex64), np.zeros(2, "V3"), np.zeros(2, [("a", "i4")]), np.datetime64(1, "s"),
    np.complex64(1), np.longdouble(1), np.str_("a"), np.zeros(2, np.longdouble), np.zeros(2, ">f4"),
    np.zeros(2, ml_dtypes.int4), 2**64, -2**64, 10**5000, sys, ..., type, np.zeros(2).flat,
    ENDLESS, [nested(40)], nested(5000),
]


def shown(value) -> str:
    """A test's name; without addresses, for all workers must give the same."""
    try:
        text = repr(value)
    except Exception:
        text = "0x"
    return type(value).__name__ if "0x" in text else f"{type(value).__name__} {text:.25}"


def refused(call, name: str, line: int, kinds=LaunchError) -> None:
    with pytest.raises(kinds) as e:
        call()
    assert e.value.loc is not None and e.value.loc.file == __file__ and e.value.loc.line == line
    assert name in e.value.message and len(str(e.value)) < 700
    assert e.value.advice


def line_of(kernel) -> int:
    return kernel.def_location.line


@pytest.mark.parametrize("level", ["tile", "ptx"])
@pytest.mark.parametrize("value", ODD, ids=shown)
def test_no_argument(value, level):
    with knobs.scope(run=level):
        if value not in (int, np.float32) if isinstance(value, type) else True:
            refused(lambda: plus[(1,)](np.zeros(1, np.float32), value), "`n`", line_of(plus))
        kinds = (LaunchError, CompilationError)  # a dtype is a constant, which stores nothing
        with pytest.raises(kinds) as e:
            plus[(1,)](value, 1)
        assert e.value.loc.file == __file__


@pytest.mark.parametrize("value", [NoHash(), memoryview(bytearray(2)), {}, {3}, bytearray(4),
                                   np.zeros(2), [[{}]], ENDLESS, nested(40), nested(5000)],
                         ids=shown)
def test_no_constant(value):
    refused(lambda: baked[(1,)](np.zeros(1, np.float32), B=value), "`B`", line_of(baked))


OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "debug", "launch_pdl", "find_boxes",
           "stream", "target")


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_odd_kinds(option):
    x = np.zeros(1, np.float32)
    for value in [*ODD, x, True if option in OPTIONS[:4] else 1.5, (), -1, "False", float("nan")]:
        if value is int or type(value) is int and option == "stream" and value >= 0:
            continue
        refused(lambda value=value: plus[(1,)](x, 1, **{option: value}), option.split("_")[0],
                line_of(plus))
        assert x == 0
    for value in (None, 0, 12, types.SimpleNamespace(cuda_stream=7)):
        plus[(1,)](x, 1, stream=value)
    assert x == 2


def test_an_option_that_was_fine_and_is_not_any_more():
    """The second call of a form reads its arguments without the checks of the first."""
    x = np.zeros(1, np.float32)
    stream = types.SimpleNamespace(ptr=1)
    plus[(1,)](x, 1, stream=stream)
    stream.ptr = -1
    refused(lambda: plus[(1,)](x, 1, stream=stream), "stream", line_of(plus))
    odd = interface({"data": (16, False), "typestr": "<f4", "shape": (1,)})
    with pytest.raises(TilecError):
        plus[(1,)](odd, 1)  # no device here
    type(odd).__cuda_array_interface__ = {}
    refused(lambda: plus[(1,)](odd, 1), "`x`", line_of(plus))


class FakeSparse:
    """As torch's sparse tensors and those without memory are."""

    device = types.SimpleNamespace(type="cpu")
    dtype = np.dtype(np.float32)

    def data_ptr(self):
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")


def test_a_tensor_without_memory(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=FakeSparse))
    for _ in range(2):
        refused(lambda: plus[(1,)](FakeSparse(), 1), "cannot be read as an array", line_of(plus))


SQUARE = np.zeros((4, 4), np.float32)
DESCRIPTORS = {
    "floats": lambda: tilec.TensorDescriptor((1.0, 1.0, 1.0), [4, 4], [4, 1], [4, 4]),
    "a number": lambda: tilec.TensorDescriptor(5, [4, 4], [4, 1], [4, 4]),
    "shape": lambda: tilec.TensorDescriptor(SQUARE, np.float32, [4, 1], [4, 4]),
    "shape of floats": lambda: tilec.TensorDescriptor(SQUARE, [4.0, 4], [4, 1], [4, 4]),
    "strides": lambda: tilec.TensorDescriptor(SQUARE, [4, 4], Shaped(), [4, 4]),
    "blocks": lambda: tilec.TensorDescriptor(SQUARE, [4, 4], [4, 1], moved),
    "padding": lambda: tilec.TensorDescriptor(SQUARE, [4, 4], [4, 1], [4, 4], []),
    "padding's name": lambda: tilec.TensorDescriptor(SQUARE, [4, 4], [4, 1], [4, 4], "one"),
    "from": lambda: tilec.TensorDescriptor.from_tensor(interface({}), [1, 1]),
    "extents": lambda: tilec.TensorDescriptor(SQUARE, [4, 2**31], [4, 1], [4, 4]),
}


@pytest.mark.parametrize("case", DESCRIPTORS)
def test_no_descriptor(case):
    with pytest.raises((LaunchError, CompilationError)) as e:
        moved[(1,)](DESCRIPTORS[case]())
    assert len(str(e.value)) < 700


def test_kernels_are_no_sequences():
    """Though they have a subscript that takes anything, which Python would call without end."""
    with pytest.raises(TypeError):
        list(plus)


KERNEL = tilec.compile(plus, {"x": "*fp32", "n": "i32"}, target="sm_90a")
RUNS = {
    "arguments": lambda: KERNEL.run(5, 1), "text": lambda: KERNEL.run("ab", 1),
    "level": lambda: KERNEL.run([np.zeros(1, np.float32), 1], 1, level=[]),
    "seed": lambda: KERNEL.run([np.zeros(1, np.float32), 1], 1, seed=-1),
    "seed's kind": lambda: KERNEL.run([np.zeros(1, np.float32), 1], 1, seed=1.5),
    "dtype": lambda: KERNEL.run([np.zeros(1, np.float64), 1], 1, level="ptx"),
    "number": lambda: KERNEL.run([np.zeros(1, np.float32), 2**31], 1, level="ptx"),
}


@pytest.mark.parametrize("case", RUNS)
def test_runs_of_odd_arguments(case):
    refused(RUNS[case], "", line_of(plus))


@pytest.mark.parametrize("given", [
    {"signature": 5}, {"signature": {"x": "*fp32"}, "constexprs": 5},
    {"signature": {"x": "*fp32", "n": ENDLESS}}, {"signature": {"x": "*fp32", "n": nested(400)}},
    {"signature": {"x": "*fp32"}, "constexprs": {"n": ENDLESS}},
    {"signature": {"x": "*fp32", "n": {}}}, {"signature": {"x": "*fp32", "n": 10**5000}},
    {"signature": {"x": "*fp32", "n": "i32"}, "target": np.zeros(2)},
    {"signature": {"x": "*fp32", "n": "i32"}, "target": 10**5000},
    {"signature": {"x": "*fp32", "n": "i32"}, "debug": np.zeros(2)},
    {"signature": {"x": "*fp32", "n": "i32"}, "num_warps": NoText()}], ids=shown)
def test_compiling_for_odd_types(given):
    with pytest.raises(TilecError):
        tilec.compile(plus, **given)
    with pytest.raises(TilecError):
        tilec.compile(5, {})


# -- numbers ----------------------------------------------------------------------------------

DTYPES = {"int1": np.bool_, "int8": np.int8, "int16": np.int16, "int32": np.int32,
          "int64": np.int64, "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32,
          "uint64": np.uint64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
          "float32": np.float32, "float64": np.float64, "float8e4nv": ml_dtypes.float8_e4m3fn,
          "float8e5": ml_dtypes.float8_e5m2}
SETTERS = {name: from_text(f"""
@tilec.jit
def put(x, a: tl.{name}):
    tl.store(x, a)
""") for name in DTYPES}
INTEGERS = [0, 1, -1, 16, 127, 128, -128, -129, 255, 256, 300, 2**15, -2**15 - 1, 2**16 - 1, 2**31,
            -2**31, 2**32, 2**63 - 1, 2**63, -2**63, 2**64 - 1, 2**64, True, np.int8(-3),
            np.uint64(2**63)]
FLOATS = [0.0, -0.0, 1.5, -2.25, 0.1, 1e9, -1e9, 448.0, 449.0, 465.0, 57344.0, 65519.9, 65520.0,
          1e-8, 6e-8, 1e39, 1e300, float("inf"), -float("inf"), float("nan"), 3, -7,
          np.float32(0.3), np.float16(2), ml_dtypes.bfloat16(1.25)]


@pytest.mark.parametrize("level", [*knobs.RUN_LEVELS, "packed"])
@pytest.mark.parametrize("name", DTYPES)
def test_a_number_of_every_dtype(name, level):
    """Exactly what a cast from a 64-bit number gives, and no warnings; else the same error."""
    dtype = np.dtype(DTYPES[name])
    real = dtype.kind not in "iub"
    for value in FLOATS if real else INTEGERS:
        bad = not (real or dtype.kind == "b") and not (
            np.iinfo(dtype).min <= int(value) <= np.iinfo(dtype).max)
        x = np.full(1, 99, np.uint64).view(np.uint8)[:dtype.itemsize].view(dtype)
        kernel = SETTERS[name]
        with warnings.catch_warnings(), knobs.scope(run="tile" if level == "packed" else level):
            warnings.simplefilter("error")
            if bad:
                with pytest.raises(LaunchError, match="argument `a`: it is .* takes an integer"):
                    kernel[(1,)](x, value)
                continue
            if level == "packed":
                number = float(value) if real else int(value)
                x = np.frombuffer(Packer([getattr(tl, name).short]).pack([number]), dtype)
            else:
                kernel[(1,)](x, value)
        wide = np.array(float(value) if real else int(value), np.float64 if real else None)
        want = cast(wide, dtype) if real else np.array(int(value)).astype(dtype)
        assert x[0].tobytes() == want.tobytes() or (x[0] != x[0] and want != want), (value, x, want)


def test_numbers_of_compiled_kernels():
    """Without the annotation, from the signature alone."""
    for name, dtype in DTYPES.items():
        dtype = np.dtype(dtype)
        t = getattr(tl, name).short
        kernel = tilec.compile(plus, {"x": "*fp64", "n": t}, target="sm_90a") \
            if dtype.kind != "b" and "8" not in t or t == "u8" else None
        for level in ("tile", "ptx") if kernel else ():
            x = np.full(1, np.nan)
            kernel.run([x, 3], 1, level)
            assert x == 4
    assert scalar_type(np.float32).name == "f32"
