"""What the parser keeps of a PTX text, and what it says of one that is not PTX."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.sim.programs import program
from tilec import sim
from tilec.codegen.cubin import available, link
from tilec.errors import TilecError
from tilec.target import Target

HEADER = ".version 8.6\n.target sm_90a\n.address_size 64\n"


def test_module_and_kernel() -> None:
    text = (
        HEADER
        + """
// a comment with { braces } and ; semicolons
.file 1 "/home/u/kern.py"
.extern .shared .align 1024 .b8 smem[];
.shared .align 8 .b8 fixed[24];
.visible .entry first(
    .param .u64 .ptr .global .align 16 first_param_0,
    .param .align 64 .b8 first_param_1[128],
    .param .f32 first_param_2
)
.maxntid 256, 1, 1
.reqntid 128, 2
.minnctapersm 1
{
    .reg .pred %p<3>; .reg .b32 %r<5>;
    .pragma "nounroll";
    /* a comment
       of two lines */
    .loc 1 10 7
    mov.b32 %r1, %r2;
    .loc 1 11 3, function_name $L__info_string0, inlined_at 1 30 5
$L__BB0_1:
    @!%p1 bra $L__BB0_1;
    ret;
}
.visible .entry second() { ret; }
.section .debug_str { .b8 0 }
"""
    )
    module = sim.parse(text)
    assert (module.version, module.target) == ("8.6", "sm_90a")
    assert list(module.kernels) == ["first", "second"]
    kernel = module.kernels["first"]
    assert kernel.reqntid == (128, 2, 1) and module.kernels["second"].reqntid is None
    assert [(v.name, v.type, v.size, v.align) for v in kernel.params] == [
        ("first_param_0", "u64", 8, 8), ("first_param_1", "b8", 128, 64),
        ("first_param_2", "f32", 4, 4),
    ]  # fmt: skip
    assert kernel.shared_bytes == 24
    assert kernel.files == {1: "/home/u/kern.py"}
    first, branch, last = kernel.instrs
    assert text.splitlines()[22].strip() == first.text
    assert (first.op, first.mods, first.line) == ("mov", ("b32",), 23)
    assert first.loc == ("/home/u/kern.py", 10, 7)
    assert (branch.op, branch.guard, branch.guard_negated) == ("bra", "%p1", True)
    assert branch.loc == ("/home/u/kern.py", 11, 3) and branch.line == 26
    assert last.op == "ret" and last.text == "ret;"


@pytest.mark.parametrize(("literal", "value"), [
    ("10", 10), ("-7", 2**32 - 7), ("0x1F", 31), ("017", 15), ("0b101", 5), ("42U", 42),
    ("0xFFFFFFFFU", 2**32 - 1), ("-0x10", 2**32 - 16), ("0f40490FDB", 0x40490FDB),
])  # fmt: skip
def test_literals(literal: str, value: int) -> None:
    out = np.zeros(64, np.uint32)
    ptx = program(f"mov.b32 %r1, {literal}; st.global.b32 [%o], %r1;", "u64")
    sim.run(ptx, "k", [out], (1, 1, 1))
    assert (out == value).all()


def test_float_literals_convert_to_the_type() -> None:
    out = np.zeros(64, np.float32)
    ptx = program(
        "mov.f32 %r1, 0d3FF8000000000000; add.f32 %r1, %r1, 2.5; st.global.b32 [%o], %r1;", "u64"
    )
    sim.run(ptx, "k", [out], (1, 1, 1))
    assert (out == 4.0).all()


def test_a_file_has_one_name() -> None:
    with pytest.raises(sim.SimError, match="a second .file 1"):
        sim.parse(HEADER + '.file 1 "a.py"\n.file 2 "b.py"\n.file 1 "c.py"\n')


@pytest.mark.parametrize(("body", "message"), [
    ("add.u32 %r1, , %r2;", "an operand is missing"),
    ("ld.global.u32 %r1, [%rd1+%r2+4];", "not an address"),
    ("add.u32 %r1, %r2, 12z;", "not a constant: '12z'"),
    ("123;", "not an instruction"),
    ("mov.b64 %rd1, 0x10000000000000000;", "an integer of more than 64 bits"),
    (".reg .f99 %f;", "not a register declaration"),
    (".texref .u32 x;", "not a declaration that the simulator knows"),
    ("bra nowhere;", "no label 'nowhere' in this scope"),
])  # fmt: skip
def test_errors_name_the_line(body: str, message: str) -> None:
    with pytest.raises(sim.SimError) as caught:
        sim.run(program(body, "u64"), "k", [np.zeros(64, np.uint32)], (1, 1, 1))
    assert message in str(caught.value)
    assert caught.value.ptx_line == 14


def test_unfinished_text() -> None:
    with pytest.raises(sim.SimError, match="expected ';' before the end of the text"):
        sim.parse(HEADER + ".visible .entry k() { ret")
    with pytest.raises(sim.SimError, match="has no closing brace"):
        sim.parse(HEADER + ".visible .entry k() { ret; ")
    with pytest.raises(sim.SimError, match="expected a directive, found 'hello'"):
        sim.parse(HEADER + "hello world")


def test_undeclared_names_fail_when_executed() -> None:
    out = np.zeros(64, np.uint32)
    for body in ("add.u32 %r1, %nope, 1;", "mov.u32 %r1, missing;", "ld.u32 %r1, [missing];"):
        with pytest.raises(sim.SimError, match="the undeclared name"):
            sim.run(program(body, "u64"), "k", [out], (1, 1, 1))
    for body in ("add.u32 %nope, %r1, 1;", "add.u64 %rd1, %r1, 1;", "add.f32 %r1, %p1, %r2;"):
        with pytest.raises(sim.SimError, match="the simulator does not know"):
            sim.run(program(body, "u64"), "k", [out], (1, 1, 1))


REFUSED = (
    *("add.s32 _, %r1, %r2;", "mov.b32 _, %r1;", "ld.global.u32 _, [%o];", "mov.b32 {_, _}, %r1;",
      "cvt.s32.s16 _, %h1;", "shfl.sync.idx.b32 _, %r1, 0, 31, -1;",
      "vote.sync.ballot.b32 _, %p1, -1;",
      "shfl.sync.idx.b32 _|%p2, %r1, 0, 31, -1;", "elect.sync %r4|_, -1;",
      "setp.eq.s32 _|_, %r1, 1;", "ld.global.v2.u32 {_, _}, [%o];"),
    *("add.s32 %r4, %r1, 0f3F800000;", "mov.u32 %r4, 0f3F800000;", "shl.b32 %r4, %r1, 0f00000001;",
      "setp.eq.s32 %p2, %r1, 0f3F800000;", "add.s64 %rd4, %rd1, 0d3FF0000000000000;",
      "st.global.u32 [%o], 0f3F800000;", "st.global.f32 [%o], 5;", "red.global.add.f32 [%o], 3;",
      "red.global.add.u32 [%o], 0f3F800000;"))
TAKEN = (
    *("setp.eq.s32 _, %r1, 1;", "setp.eq.s32 _|%p2, %r1, 1;", "atom.global.add.u32 _, [%o], 1;",
      "mov.b32 {%h1, _}, %r1;", "shfl.sync.idx.b32 %r4|_, %r1, 0, 31, -1;", "elect.sync _|%p2, -1;",
      "match.all.sync.b32 _|%p2, %r1, -1;", "lop3.b32 _, %r1, %r1, %r1, 0x40;"),
    *("mov.b32 %r4, 0f3F800000;", "selp.b32 %r4, 0f3F800000, %r1, %p1;", "st.global.f32 [%o], 1.5;",
      "st.global.b32 [%o], 0f3F800000;", "atom.global.exch.b32 %r4, [%o], 0f3F800000;"))


@pytest.mark.cubins
@pytest.mark.parametrize("body", [*REFUSED, *TAKEN])
def test_discarded_results_and_constants(body: str) -> None:
    """What ptxas takes and refuses, the simulator takes and refuses."""
    ptx = program(body, "u64")
    assert bool(sim.unsupported(ptx)) == (body in REFUSED)
    if available():
        try:
            link(ptx, Target.parse("sm_90a"), name="operands")
        except TilecError:
            assert body in REFUSED
        else:
            assert body in TAKEN


@pytest.mark.parametrize(("line", "message"), [
    (".target sm_90a, debug", "there is no .section"), (".target sm_90a, sm_80", "no value"),
    (".target sm_90a debug", "no value"), (".target sm_90a\n.address_size 64 8", "no value")])
def test_targets(line: str, message: str) -> None:
    with pytest.raises(sim.SimError, match=message) as caught:
        sim.parse(f".version 8.6\n{line}\n")
    assert caught.value.ptx_line == 1 + len(line.splitlines())


def test_recursion_is_refused() -> None:
    function = ".func f() { call.uni f; ret; }"
    with pytest.raises(sim.SimError, match="a function that calls itself"):
        sim.run(program("call.uni f;", "u64", 64, function), "k", [np.zeros(64)], (1, 1, 1))


def test_long_text_parses_fast() -> None:
    lines = "\n".join(
        f"    fma.rn.f32 %r{i % 30}, %r{i % 31}, %r{i % 29}, 0f{i:08X};" for i in range(10000)
    )
    start = time.process_time()
    module = sim.parse(program(lines, "u64"))
    assert len(module.kernels["k"].instrs) > 10000
    # A bound far above what it takes (0.15 s), against anything quadratic.
    assert time.process_time() - start < 5
