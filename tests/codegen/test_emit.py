"""Constants and distinct-value bookkeeping, below the level of ops."""

import ml_dtypes
import numpy as np
import pytest

from tests.codegen.kernels import DTYPES
from tilec.codegen.affine import fp8_bits
from tilec.codegen.elementwise import run_index
from tilec.codegen.emit import Emit, Reg, literal, literal_bits
from tilec.codegen.memory import constant_words
from tilec.codegen.values import Tile, align, beside, plan, remap, uniform
from tilec.ir.fragment import fragment
from tilec.ir.layouts import Blocked
from tilec.ir.types import SCALARS

FLOATS = {"half": np.float16, "bfloat": ml_dtypes.bfloat16, "float": np.float32,
          "double": np.float64}


@pytest.mark.parametrize("elem", FLOATS)
def test_float_literals_round_as_numpy_does(elem: str) -> None:
    kind = np.dtype(FLOATS[elem])
    values = [0.0, -0.0, 1.0, 1 / 3, -2.7182818, 1e-8, 65519.0, 65520.0, 70000.0, 3.3895e38, 3.4e38,
              1e39, -1e39, float("inf"), float("-inf"), 6e-8, 1e-45, 1e-40]
    for v in values:
        with np.errstate(all="ignore"):
            want = int(np.array(v).astype(kind).view(f"u{kind.itemsize}"))
            if elem == "bfloat":
                # By way of f32, as all conversions from f64 to bf16.
                want = int(np.array(v).astype(np.float32).astype(kind).view("u2"))
        assert literal_bits(literal(v, elem), elem) == want, v
    nan = literal_bits(literal(float("nan"), elem), elem)
    assert nan is not None
    assert np.isnan(np.array([nan], f"u{kind.itemsize}").view(kind).astype(np.float64))[0]


def test_integer_literals() -> None:
    assert literal(200, "i8") == "-56" and literal(-1, "i32") == "-1"
    assert literal(True, "i1") == "true"
    assert literal_bits("-56", "i8") == 200 and literal_bits("%v3", "i8") is None


@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])
def test_fp8_constants(name: str) -> None:
    t = SCALARS[name]
    every = np.arange(256, dtype=np.uint8).view(DTYPES[name]).astype(np.float64)
    for byte, value in enumerate(every):
        if not np.isnan(value):
            assert fp8_bits(float(value), t) == byte
    assert np.isnan(every[fp8_bits(float("nan"), t)])


def test_words_of_repeated_constants() -> None:
    e = Emit()
    assert constant_words(e.const(1.0, "half", 8)) == [0x3C003C00] * 4
    assert constant_words(e.const(-1, "i8", 2)) == [0xFFFF]
    assert constant_words(e.const(1.5, "double", 2)) == [0x3FF8000000000000] * 2
    assert constant_words(e.const(True, "i1", 4)) == [0x01010101]
    assert constant_words(Reg("%v1", "float", 4)) is None


def test_ops_run_once_per_distinct_combination() -> None:
    elements, index = plan(8, (((0, 0, 0, 0, 1, 1, 1, 1), None), (None, None)))
    assert elements == tuple(range(8)) and index is None
    elements, index = plan(8, (((0, 0, 0, 0, 1, 1, 1, 1), None), ((0, 1) * 4, None)))
    assert elements == (0, 1, 4, 5) and index == (0, 1, 0, 1, 2, 3, 2, 3)
    e = Emit()
    regs, index = align(e, [uniform(Reg("%a", "i32"), 4), uniform(Reg("%b", "i32"), 4)])
    assert regs == [Reg("%a", "i32"), Reg("%b", "i32")] and index == (0,) * 4 and not e.lines


def test_renaming_registers_costs_nothing() -> None:
    e = Emit()
    tile = Tile(Reg("%a", "i32", 4), 4, None, (0, 1, 2, 3))
    back = remap(e, remap(e, tile, (3, 2, 1, 0)), (3, 2, 1, 0))
    assert back == tile or back.form == tile.form
    assert not e.lines
    assert remap(e, tile, (0, 0, 1, 1)).offset == (0, 0, 1, 1)


def test_what_is_left_out_is_not_held() -> None:
    e = Emit()
    half = remap(e, Tile(Reg("%a", "i32", 4), 4), (2, 3, 3, 3))
    assert (half.reg.lanes, half.index) == (2, (0, 1, 1, 1))
    one = remap(e, Tile(Reg("%a", "i32", 4), 4), (3, 3))
    assert (one.reg.n, one.index) == (0, (0, 0))
    assert align(e, (one, uniform(Reg("%b", "i32"), 2)))[0] == [one.reg, Reg("%b", "i32")]


def test_tiles_beside_each_other() -> None:
    e = Emit()
    a, b = Tile(Reg("%a", "i32", 2), 2, None, (0, 8)), uniform(Reg("%b", "i32"), 2)
    both = beside(e, a, b)
    assert (both.reg.lanes, both.size) == (3, 4)
    assert (both.index, both.offset) == ((0, 1, 2, 2), (0, 8, 0, 0))


def test_runs_of_masks() -> None:
    frag = fragment((1024,), Blocked((8,), (32,), (2,), (0,)))
    assert run_index(frag, (8,)) == (0,) * 8 + (1,) * 8
    assert run_index(frag, (4,)) == (0,) * 4 + (1,) * 4 + (2,) * 4 + (3,) * 4
    assert run_index(frag, (1024,)) == (0,) * 16
