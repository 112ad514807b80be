"""Assertions, printing, line information."""

import numpy as np
import pytest

from tests.codegen.kernels import FLAT, compiled, launch, pointers
from tilec import sim
from tilec.codegen.cubin import link
from tilec.codegen.llvm import emit_ptx
from tilec.codegen.lower import symbol, to_llir
from tilec.errors import CompilationError
from tilec.ir.parser import parse
from tilec.target import Target


def test_assert_names_the_message_and_stops() -> None:
    kind = f"tensor<100xi32, {FLAT}>"
    body = "\n".join([
        pointers("x", "i32", (100,), FLAT), f"%v = tile.load(%xp) : {kind}",
        f"%z = tile.constant() {{value = 0}} : {kind}",
        f'%c = tile.cmp(%v, %z) {{predicate = "gt"}} : tensor<100xi1, {FLAT}>',
        'tile.assert(%c) {message = "100% \\"positive\\""}',
        f"%w = tile.add(%v, %v) : {kind}", "tile.store(%xp, %w)"])
    x = np.ones(100, np.int32)
    launch("%x: ptr<i32>", body, [x])
    llir, _, ptx = compiled("%x: ptr<i32>", body, 2, "sm_90a")
    assert link(ptx, Target.parse("sm_90a"), name=llir.name).n_spills == 0
    assert (x == 2).all()
    x[99] = 0
    with pytest.raises(sim.SimError, match='100% "positive"'):
        launch("%x: ptr<i32>", body, [x])


def test_print() -> None:
    kind = f"tensor<3xi32, {FLAT}>"
    body = "\n".join([
        f"%v = tile.arange() {{start = 5, end = 8}} : {kind}",
        f"%f = tile.cast(%v) : tensor<3xbf16, {FLAT}>",
        f"%e = tile.cast(%v) : tensor<3xf8e4m3, {FLAT}>",
        'tile.print(%v) {prefix = "v"}', 'tile.print(%f) {prefix = "f"}',
        'tile.print(%e) {prefix = "e"}', 'tile.print(%v) {prefix = "h%", hex = true}',
        'tile.print(%n, %b) {prefix = "n"}', 'tile.print() {prefix = "here"}'])
    out = launch("%n: i64, %b: i1", body, [-3, 1])
    lines = sorted(out.splitlines())
    want = [f"pid (0, 0, 0) idx ({i}) v: {i + 5}" for i in range(3)]
    want += [f"pid (0, 0, 0) idx ({i}) {c}: {i + 5}" for i in range(3) for c in "fe"]
    want += [f"pid (0, 0, 0) idx ({i}) h%: 0x{i + 5:08x}" for i in range(3)]
    want += ["pid (0, 0, 0) idx () n (operand 0): -3", "pid (0, 0, 0) idx () n (operand 1): 1",
             "pid (0, 0, 0) idx () here"]
    assert lines == sorted(want)


LOCATED = """
module attributes {level = "lowered", target = "sm_90a", num_warps = 1} {
  func @k(%x: ptr<f32>) {
    %v = tile.load(%x) : f32 loc("/home/u/kern.py":12:3)
    %w = tile.exp(%v) : f32 loc("/home/u/lib.py":40:9 at "/home/u/kern.py":13:5)
    tile.store(%x, %w) loc("/home/u/kern.py":14:1)
    func.return() loc("/home/u/kern.py":15:1)
  } loc("/home/u/kern.py":10:1)
}
"""


def test_ptx_has_the_authors_lines() -> None:
    target = Target.parse("sm_90a")
    ptx = emit_ptx(to_llir(parse(LOCATED), target).text, target)
    assert '"/home/u/kern.py"' in ptx and '"/home/u/lib.py"' in ptx
    assert ".loc\t1 12 3" in ptx and ".loc\t1 14 1" in ptx
    assert ".loc\t2 40 9" in ptx


def test_same_text_twice() -> None:
    target = Target.parse("sm_90a")
    assert to_llir(parse(LOCATED), target) == to_llir(parse(LOCATED), target)


def test_assume_and_breakpoint_leave_nothing() -> None:
    body = "\n".join([
        "%z = tile.constant() {value = 0} : i32",
        '%c = tile.cmp(%n, %z) {predicate = "gt"} : i1', "tile.assume(%c)",
        "tile.breakpoint(%n) {names = [\"n\"]}"])
    _, _, ptx = compiled("%n: i32", body, 2, "sm_90a")
    assert "setp" not in ptx


def test_a_breakpoint_that_is_left_out_is_noted_once(capsys: pytest.CaptureFixture[str]) -> None:
    body = 'tile.breakpoint(%n) {names = ["n"]} loc("/home/u/kern.py":7:5)'
    for _ in range(2):
        compiled("%n: i32", body, 2, "sm_90a")
    assert capsys.readouterr().err == (
        "tilec: /home/u/kern.py:7:5: breakpoint() is left out of PTX; it acts where a kernel runs "
        "at tile, gpu or lowered (TILEC_RUN)\n")


def test_bf16_is_refused_where_there_is_none() -> None:
    with pytest.raises(CompilationError, match="bf16 needs sm_80"):
        compiled("%x: ptr<bf16>", "%v = tile.load(%x) : bf16\ntile.store(%x, %v)", 2, "sm_75")


def test_kernel_names_become_symbols() -> None:
    assert symbol("add_1") == "add_1" and symbol("größe") == "gr_f6__df_e"
