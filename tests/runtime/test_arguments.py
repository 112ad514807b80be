"""What arguments are specialised on."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec.language as tl
from tests.runtime.support import CudaArray, add, from_text
from tilec.errors import LaunchError
from tilec.frontend.signature import format_spec
from tilec.language import dtypes as dt
from tilec.language.values import constexpr
from tilec.runtime.arguments import (
    Const,
    as_plain,
    constant,
    constexpr_handler,
    handler_of,
    leaves,
    param_handler,
    place_of,
    spec_of,
    stand_in,
)

ONE, NONE = Const(int, 1), Const(type(None), None)


def key_of(value):
    return handler_of(value)(value)[0]


@pytest.mark.parametrize("value, key", [
    (None, NONE), (True, ("i1", False)), (False, ("i1", False)), (1, ONE), (0, ("i32", True)),
    (16, ("i32", True)), (-32, ("i32", True)), (17, ("i32", False)), (-1, ("i32", False)),
    (2**31 - 1, ("i32", False)), (-(2**31), ("i32", True)), (2**31, ("i64", True)),
    (2**31 + 1, ("i64", False)), (-(2**31) - 1, ("i64", False)), (-(2**63), ("i64", True)),
    (2**63 - 1, ("i64", False)), (2**63, ("u64", True)), (2**64 - 1, ("u64", False)),
    (1.0, ("fp32", False)), (0.0, ("fp32", False)), (float("nan"), ("fp32", False)),
    ((), ()), ((2, None, (1, 3.0)), (("i32", False), NONE, (ONE, ("fp32", False)))),
    ([16], (("i32", True),)),
])
def test_numbers(value, key):
    assert key_of(value) == key
    if isinstance(key, Const):
        assert key_of(value).kind is key.kind


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_integers_beyond_64_bits(value):
    with pytest.raises(LaunchError, match="does not fit into 64 bits"):
        key_of(value)


@pytest.mark.parametrize("value, key", [
    (np.int64(1), ONE), (np.uint8(32), ("i32", True)), (np.int64(2**40), ("i64", True)),
    (np.float64(2.5), ("fp32", False)), (np.float16(1), ("fp32", False)),
    (np.bool_(True), ("i1", False)), (ml_dtypes.bfloat16(1.5), ("fp32", False)),
])
def test_numpy_scalars(value, key):
    assert key_of(value) == key
    passed = handler_of(value)(value)[1]
    assert passed == value and type(passed) in (int, float, bool)


def test_subclasses_of_numbers():
    class Flags(int):
        pass

    assert key_of(Flags(16)) == ("i32", True) and key_of(Flags(1)) == ONE
    assert type(handler_of(Flags(3))(Flags(3))[1]) is int


DTYPES = {"bool": "i1", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
          "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "float16": "fp16",
          "float32": "fp32", "float64": "fp64", ml_dtypes.bfloat16: "bf16",
          ml_dtypes.float8_e4m3fn: "fp8e4nv", ml_dtypes.float8_e5m2: "fp8e5"}


@pytest.mark.parametrize("dtype, short", DTYPES.items(), ids=str)
def test_arrays_of_every_dtype(dtype, short):
    raw = np.zeros(256, np.uint8)
    start = -raw.ctypes.data % 16
    itemsize = np.dtype(dtype).itemsize
    aligned = raw[start:start + 64].view(dtype)
    unaligned = raw[start + itemsize:start + itemsize + 64].view(dtype)
    assert key_of(aligned) == (short, True, "numpy")
    assert key_of(unaligned) == (short, False, "numpy")
    assert handler_of(aligned)(aligned)[1] is aligned
    assert str(spec_of(key_of(aligned))) == f"*{short}:16"
    assert str(spec_of(key_of(unaligned), const=True)) == f"*k{short}"


def test_arrays_that_kernels_cannot_use():
    with pytest.raises(Exception, match="complex64"):
        key_of(np.zeros(3, np.complex64))
    with pytest.raises(LaunchError, match="bytes are swapped"):
        key_of(np.zeros(3, ">f4"))


def test_arrays_on_a_device():
    x = CudaArray(np.zeros(4, np.float32), 0x1010)
    assert handler_of(x)(x) == (("fp32", True, 0), 0x1010)
    x = CudaArray(np.zeros(4, np.uint16), 0x1012, dtype=np.dtype(ml_dtypes.bfloat16))
    x.device = type("Device", (), {"id": 3})()
    assert handler_of(x)(x) == (("bf16", False, 3), 0x1012)
    assert place_of(("bf16", False, 3)) == 3 and place_of(("i32", True)) is None


@pytest.mark.parametrize("value", ["text", {1: 2}, 1j, object()])
def test_what_is_no_argument(value):
    with pytest.raises(LaunchError, match=f"it is a {type(value).__name__}"):
        key_of(value)


def test_tuples_nest_and_flatten():
    x = np.zeros(4, np.float32)
    key, values = handler_of(())((x, (2, 1), None))
    assert leaves(key) == [key[0], ("i32", False), ONE, NONE]
    assert values[0] is x and values[1:] == (2, 1, None)
    spec = spec_of(((("i32", True), ONE), ("fp32", False, "numpy")))
    assert format_spec(spec) == "((i32:16, =1), *fp32)"


# -- constants --------------------------------------------------------------------------------

@pytest.mark.parametrize("given, value", [
    (3, 3), (True, True), (None, None), ("relu", "relu"), (0.5, 0.5), (constexpr(7), 7),
    (np.int32(4), 4), (np.bool_(False), False), (np.float32(0.5), 0.5),
    ([1, (2.0, None)], (1, (2.0, None))), (tl.float16, tl.float16), (np.float32, tl.float32),
    (np.dtype("int8"), tl.int8), (ml_dtypes.bfloat16, tl.bfloat16),
    (np.dtype(ml_dtypes.float8_e5m2), tl.float8e5), (ml_dtypes.bfloat16(2), 2.0),
    (np.float64("inf"), float("inf")),
])
def test_constants(given, value):
    key, _ = constexpr_handler(given)
    assert constant(key) == value and type(constant(key)) is type(value)
    assert hash(key) == hash(constexpr_handler(given)[0])


def test_constants_that_look_equal_are_told_apart():
    values = [1, True, 1.0, 0.0, -0.0, 0, False, "1", (1,), (True,), (1.0,), (-0.0,), (0.0,)]
    assert len({constexpr_handler(v)[0] for v in values}) == len(values)
    assert constexpr_handler(float("nan"))[0] == constexpr_handler(float("nan"))[0]


def test_constants_without_a_hash():
    with pytest.raises(LaunchError, match=r"a constexpr is \{1\}, which has no hash"):
        constexpr_handler({1})


def test_functions_are_keyed_by_their_source():
    text = "@tilec.jit\ndef helper(x):\n    return x + {}\n"
    one, two = from_text(text.format(1)), from_text(text.format(2))
    assert key_of(one) == Const(type(one).__mro__[1], (one, one.source_key()))
    assert key_of(one) != key_of(two) and constant(key_of(one)) is one
    assert key_of(one)[1][1] == from_text(text.format(1)).source_key()


# -- declarations -----------------------------------------------------------------------------

DECLARED = """
@tilec.jit(do_not_specialize=["a", 1, "t"], do_not_specialize_on_alignment=["b"])
def k(a, p, t, b, wide: tl.int64, half: "fp16", truth: tl.int1, const: tl.const, plain: "*fp32",
      odd: len, byte: "u8", C: tl.constexpr):
    pass
"""


def declared(name, value, text=DECLARED):
    param = next(p for p in from_text(text).params if p.name == name)
    return (param_handler(param) or handler_of(value))(value)


FUTURE = "from __future__ import annotations\n"


@pytest.mark.parametrize("text", [DECLARED, FUTURE + DECLARED], ids=["objects", "text"])
@pytest.mark.parametrize("name, value, key", [
    ("a", 1, ("i32", False)), ("a", 16, ("i32", False)), ("a", 2**40, ("i64", False)),
    ("a", np.int64(1), ("i32", False)), ("a", None, NONE), ("a", 2.0, ("fp32", False)),
    ("t", (1, 16), (("i32", False), ("i32", False))), ("b", 1, ONE), ("b", 16, ("i32", False)),
    ("wide", 1, ("i64", False)), ("wide", 32, ("i64", True)), ("wide", np.int8(3), ("i64", False)),
    ("wide", None, NONE), ("half", 2, ("fp16", False)), ("half", 0.5, ("fp16", False)),
    ("truth", 1, ("i1", False)), ("byte", 16, ("u8", True)), ("odd", 1, ONE),
    ("C", 1, ONE),
])
def test_declared_parameters(name, value, key, text):
    assert declared(name, value, text)[0] == key


def test_declared_pointers():
    x = np.zeros(16, np.float32)
    x = x[-x.ctypes.data % 16 // 4:]
    assert declared("p", x)[0] == ("fp32", False, "numpy")
    for name in ("const", "plain", "odd"):
        assert declared(name, x)[0] == ("fp32", True, "numpy")


def test_annotated_numbers_refuse_others():
    for name, value in (("wide", 2.5), ("half", "x"), ("wide", np.zeros(3))):
        with pytest.raises(LaunchError, match="where the type"):
            declared(name, value)


@pytest.mark.parametrize("given, short", [
    (np.float32, "fp32"), (tl.int8, "i8"), (np.dtype("uint16"), "u16"),
    (dt.pointer_type(tl.bfloat16), "bf16"), (ml_dtypes.float8_e4m3fn, "fp8e4nv"),
])
def test_dtypes_stand_for_arrays(given, short):
    assert key_of(stand_in(given)) == (short, True, "numpy")


@pytest.mark.parametrize("given", [3, None, "fp32", (1, 2), add, [4]])
def test_what_stands_for_itself(given):
    assert stand_in(given) is given


def test_plain_values():
    assert as_plain(np.str_("a")) == "a" and as_plain(add) is add
    assert as_plain(np.zeros(2)).shape == (2,)
