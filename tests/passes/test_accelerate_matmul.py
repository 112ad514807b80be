"""How dots are laid out: warps over the result, and what chains and reductions ask for."""

from __future__ import annotations

import re
from math import prod

import pytest

from tilec.ir import ops, remarks
from tilec.ir.core import Module
from tilec.ir.layouts import Blocked, DotOperand, Mma
from tilec.ir.mma import MmaInstruction, instruction_of
from tilec.ir.parser import parse
from tilec.ir.types import layout_of, shape_of
from tilec.ir.verifier import verify
from tilec.passes.accelerate_matmul import AccelerateMatmul, choose, tile_warps
from tilec.passes.assign_layouts import AssignLayouts
from tilec.passes.remove_layout_conversions import RemoveLayoutConversions
from tilec.target import Target


def product(a: str, b: str, c: str, rest: str = "", warps: int = 4, target: str = "sm_80",
            precision: str = "tf32") -> Module:
    one, zero = ("1", "0") if "xi" in a else ("1.0", "0.0")
    m = parse(f"""
module attributes {{level = "tile", target = "{target}", num_warps = {warps}}} {{
  func @k() {{
    %a = tile.constant() {{value = {one}}} : tensor<{a}>
    %b = tile.constant() {{value = {one}}} : tensor<{b}>
    %c = tile.constant() {{value = {zero}}} : tensor<{c}>
    %d = tile.dot(%a, %b, %c) {{input_precision = "{precision}"}} : tensor<{c}>
    {rest}
    func.return()
  }}
}}""")
    verify(m)
    return m


def dots(m: Module) -> list[ops.Dot]:
    return [op for op in m.walk() if isinstance(op, ops.Dot)]


def instruction() -> MmaInstruction:
    (dot,) = dots(product("16x16xf16", "16x8xf16", "16x8xf32"))
    found = instruction_of(dot)
    assert found is not None
    return found


@pytest.mark.parametrize(("shape", "warps", "want"), [
    ((128, 128), 4, (2, 2)), ((128, 128), 8, (4, 2)), ((128, 256), 8, (2, 4)),
    ((256, 128), 8, (4, 2)), ((64, 64), 1, (1, 1)), ((16, 256), 4, (1, 4)),
    ((256, 8), 4, (4, 1)), ((96, 96), 4, (2, 2)), ((160, 48), 4, (2, 2)),
    ((8, 64, 64), 4, (4, 1, 1)), ((2, 64, 64), 8, (2, 2, 2))])
def test_warps_read_the_least(shape: tuple[int, ...], warps: int, want: tuple[int, ...]) -> None:
    assert tile_warps(shape, warps, instruction(), rows_only=False) == want


@pytest.mark.parametrize(("shape", "warps", "want"), [
    ((128, 128), 4, (4, 1)), ((128, 64), 8, (8, 1)), ((64, 128), 8, (4, 2)),
    ((16, 64), 4, (1, 4)), ((96, 64), 2, (2, 1))])
def test_rows_stay_whole_as_long_as_no_warp_idles(shape: tuple[int, ...], warps: int,
                                                  want: tuple[int, ...]) -> None:
    assert tile_warps(shape, warps, instruction(), rows_only=True) == want


@pytest.mark.parametrize("shape", [(1, 1), (16, 8), (48, 80), (17, 19), (3, 16, 24)])
@pytest.mark.parametrize("warps", [1, 2, 4, 8, 16, 32])
def test_all_warps_are_used_up(shape: tuple[int, ...], warps: int) -> None:
    assert prod(tile_warps(shape, warps, instruction(), False)) == warps


MAXIMUM = """%m = tile.reduce(%e) {axis = AXIS} { ^(%x: f32, %y: f32):
      %z = tile.maximum(%x, %y) : f32
      scf.yield(%z)
    } : tensor<64xf32>"""


@pytest.mark.parametrize(("rest", "rows"), [
    ("", False),
    ("%e = tile.exp2(%d) : tensor<64x64xf32>\n" + MAXIMUM.replace("AXIS", "1"), True),
    ("%e = tile.exp2(%d) : tensor<64x64xf32>\n" + MAXIMUM.replace("AXIS", "0"), False),
    ("%e = tile.cast(%d) : tensor<64x64xf16>\n"
     "%f = tile.dot(%e, %e, %d) : tensor<64x64xf32>", True),
    ("%e = tile.cast(%d) : tensor<64x64xf16>\n%t = tile.trans(%e) {order = [1, 0]} : "
     "tensor<64x64xf16>\n%f = tile.dot(%t, %e, %d) : tensor<64x64xf32>", False)])
def test_what_wants_whole_rows(rest: str, rows: bool) -> None:
    m = product("64x32xf16", "32x64xf16", "64x64xf32", rest)
    for dot in dots(m):
        layout = choose(dot, 4, Target.parse("sm_90a")).layout
        assert isinstance(layout, Mma)
        assert layout.warps_per_cta == ((4, 1) if rows else (2, 2))


@pytest.mark.parametrize(("a", "b", "c", "precision", "target", "reason"), [
    ("32x32xf32", "32x32xf32", "32x32xf32", "ieee", "sm_90a", "no tensor core multiplies f32"),
    ("32x32xi32", "32x32xi32", "32x32xi32", "tf32", "sm_90a", "no tensor core multiplies i32"),
    ("32x32xf16", "32x32xf16", "32x32xf32", "tf32", "sm_75", "sm_75 has no mma.sync"),
    ("32x4xf16", "4x32xf16", "32x32xf32", "tf32", "sm_80", "parts of 4"),
    ("32x40xi8", "40x32xi8", "32x32xi32", "tf32", "sm_80", "parts of 8"),
    ("32x2xf64", "2x32xf64", "32x32xf64", "tf32", "sm_80", "parts of 2")])
def test_multiply_adds_where_it_must_be(a: str, b: str, c: str, precision: str, target: str,
                                        reason: str) -> None:
    (dot,) = dots(product(a, b, c, target=target, precision=precision))
    choice = choose(dot, 4, Target.parse(target))
    assert isinstance(choice.layout, Blocked) and choice.instruction == "fma"
    assert reason in choice.reason


@pytest.mark.parametrize(("element", "k_width"), [("f16", 2), ("bf16", 2), ("f32", 2),
                                                  ("f8e5m2", 2), ("f64", 2)])
def test_result_becomes_an_operand_where_it_is(element: str, k_width: int) -> None:
    """No conversion is left between the dots of a chain, whatever the element."""
    total = "f64" if element == "f64" else "f32"
    cast = "" if element == total else f"%e = tile.cast(%d) : tensor<64x64x{element}>\n"
    m = product(f"64x32x{element}", f"32x64x{element}", f"64x64x{total}",
                f"%o = tile.constant() {{value = 1.0}} : tensor<64x64x{element}>\n{cast}"
                f"%f = tile.dot(%{'e' if cast else 'd'}, %o, %d) : tensor<64x64x{total}>")
    for p in (AssignLayouts(), AccelerateMatmul(), RemoveLayoutConversions()):
        p.run(m)
        verify(m)
    first, second = dots(m)
    assert layout_of(second.a.type) == layout_of(first.result.type)
    assert layout_of(second.b.type) == DotOperand(layout_of(second.result.type), 1, k_width)
    assert not any(isinstance(op, ops.ConvertLayout) for op in m.walk())


def test_remarks_say_why() -> None:
    m = product("64x32xf16", "32x64xf16", "64x64xf32", warps=2)
    AssignLayouts().run(m)
    with remarks.recording() as said:
        AccelerateMatmul().run(m)
    (remark,) = [r for r in said if r.kind == "dot"]
    assert re.match(r"mma\.sync\S+f16\.f16\.f32: warps 2x1, ", remark.message)
    assert shape_of(dots(m)[0].result.type) == (64, 64)
