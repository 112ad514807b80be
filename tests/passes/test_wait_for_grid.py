"""Programmatic dependent launch: where a kernel waits for the grids before it."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.docs.test_snippets import ROOT
from tilec.codegen.lower import to_llir
from tilec.errors import CompilationError
from tilec.ir import ops
from tilec.ir.parser import parse
from tilec.ir.printer import equal, print_module
from tilec.ir.verifier import verify
from tilec.target import Target

WAIT, LAUNCH = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"
# What accesses global memory, in PTX; TMA too.
ACCESS = re.compile(r"(?:ld|st|atom|red)\.global|cp\.async\.(?!bulk\.(?:commit|wait))")


@tilec.jit
def plain(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) < 100:
        x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
        tl.store(y_ptr + offs, 2 * x, mask=offs < n)


@tilec.jit
def by_hand(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    tl.store(y_ptr + offs, x + tl.load(y_ptr + offs, mask=offs < n), mask=offs < n)


@tilec.jit
def matmul(a, b, c):
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load([tl.program_id(0) * 64, k]), b.load([k, 0]), acc)
    c.store([tl.program_id(0) * 64, 0], acc.to(tl.float16))


FLAT = {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "n": "i32"}
TILES = dict.fromkeys("abc", "tensordesc<fp16[64, 64]>:16")


@pytest.mark.parametrize("kernel, signature, constexprs", [
    (plain, FLAT, {"BLOCK": 128}), (matmul, TILES, {})], ids=["pointers", "tma"])
def test_wait_comes_before_the_first_access(kernel, signature, constexprs) -> None:
    made = tilec.compile(kernel, signature, constexprs, launch_pdl=True)
    ptx = made.asm["ptx"]
    assert ptx.count(WAIT) == ptx.count(LAUNCH) == 1
    first = ACCESS.search(ptx)
    assert first is not None and ptx.index(WAIT) < ptx.index(LAUNCH) < first.start()
    labels = [line.strip() for line in ptx[:ptx.index(WAIT)].splitlines() if "$L__BB" in line]
    assert len(labels) in (0, 2)  # one branch at most, round the setting up, which ends before
    without = tilec.compile(kernel, signature, constexprs)
    assert "griddepcontrol" not in without.asm["ptx"] and without.hash != made.hash


def test_setting_up_comes_before_the_wait() -> None:
    ptx = tilec.compile(matmul, TILES, launch_pdl=True).asm["ptx"]
    for part in ("mbarrier.init", "prefetch.tensormap", "bar.sync"):
        assert ptx.index(part) < ptx.index(WAIT), part


def test_what_the_author_wrote_stays() -> None:
    for options in ({}, {"launch_pdl": True}):
        ptx = tilec.compile(by_hand, FLAT, {"BLOCK": 128}, **options).asm["ptx"]
        assert ptx.count(WAIT) == ptx.count(LAUNCH) == 1
        order = [ACCESS.search(ptx).start(), ptx.index(LAUNCH), ptx.index(WAIT),
                 ptx.index("st.global")]
        assert order == sorted(order)


@pytest.mark.parametrize("kernel, added", [(plain, 1), (by_hand, 2)])
def test_levels(kernel, added) -> None:
    made = tilec.compile(kernel, FLAT, {"BLOCK": 128}, launch_pdl=True)
    x = np.random.default_rng(3).standard_normal(333).astype(np.float32)
    for level in ("tile", "gpu", "lowered", "ptx"):
        y = x * 3 if added == 2 else np.full_like(x, np.nan)
        made.run([x, y, 333], 3, level)
        np.testing.assert_array_equal(y, x + 3 * x if added == 2 else 2 * x)


def test_text_of_both_ops() -> None:
    module = parse("""module attributes {level = "tile", num_warps = 4} {
  func @k() {
    gpu.grid_dependency_wait()
    gpu.grid_dependency_launch()
    func.return()
  }
}""")
    verify(module)
    assert equal(module, parse(print_module(module)))
    assert [type(op) for op in module.walk()][:2] == \
        [ops.GridDependencyWait, ops.GridDependencyLaunch]


def test_a_kernel_of_text_is_launched_early_if_it_says_so(tmp_path) -> None:
    text = (ROOT / "tests/lit/fixtures/gemm_a_branch.tir").read_text()
    path = tmp_path / "k.tir"
    path.write_text(text.replace("attributes {", "attributes {launch_pdl = true, "))
    kernel = tilec.load(path)
    assert kernel.compiled.options.launch_pdl and kernel.compiled.ptx.count(WAIT) == 1


def test_a_lowered_kernel_that_does_not_wait_is_refused() -> None:
    module = parse("""module attributes {level = "lowered", num_warps = 4, launch_pdl = true} {
  func @k(%p: ptr<f32>, %v: f32, %c: i1) {
    scf.if(%c) { gpu.grid_dependency_wait() scf.yield() }, { scf.yield() }
    tile.store(%p, %v)
    func.return()
  }
}""")
    with pytest.raises(CompilationError, match="@k has launch_pdl, but does not wait"):
        to_llir(module, Target.parse("sm_90a"))


def test_older_targets_are_refused() -> None:
    with pytest.raises(CompilationError, match=r"`plain`: launch_pdl needs sm_90 or later.*sm_80"):
        tilec.compile(plain, FLAT, {"BLOCK": 128}, "sm_80", launch_pdl=True)
    with pytest.raises(CompilationError, match=r"grid_dependency_launch needs sm_90 or") as caught:
        tilec.compile(by_hand, FLAT, {"BLOCK": 128}, "sm_80")
    assert "gdc_launch_dependents()" in str(caught.value)


@pytest.mark.parametrize("kernel, signature, constexprs, order", [
    (plain, FLAT, {"BLOCK": 128}, "ACQBULK PREEXIT LDG STG"),
    (matmul, TILES, {}, "ACQBULK PREEXIT UTMALDG UTMASTG"),
    (by_hand, FLAT, {"BLOCK": 128}, "LDG PREEXIT ACQBULK LDG STG")], ids=lambda v: "")
def test_machine_code_keeps_the_order(kernel, signature, constexprs, order) -> None:
    sass = tilec.compile(kernel, signature, constexprs, launch_pdl=True).asm["sass"]
    found = re.findall(r"ACQBULK|PREEXIT|LDG|STG|UTMALDG|UTMASTG", sass)
    assert [name for i, name in enumerate(found) if found[i - 1:i] != [name]] == order.split()
