"""The fuzzer in CI: fixed seeds at every level, each kind of product and explicit kernel, planted
faults that it finds and shrinks, and that it draws the whole language."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilec.language as tl
import tilec.language.gpu as tlg
from tests.fuzz import __main__ as command
from tests.fuzz import ledger
from tests.fuzz.draws import KINDS, generate
from tests.fuzz.generate import Generator
from tests.fuzz.numerics import NUMPY, cast, divide, promote, shift
from tests.fuzz.products import PRODUCTS
from tests.fuzz.program import Argument, Let, Program, Reject, walk
from tests.fuzz.run import CPU_LEVELS, Verdict, judged
from tests.fuzz.shrink import shrink
from tilec.codegen import elementwise
from tilec.ir import ops

CHUNK = 10


def check(programs: list[Program]) -> None:
    failures = [command.shown(p, v, CPU_LEVELS[-1])
                for p, v in zip(programs, judged(programs), strict=True) if v.failed]
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("first", range(100, 200, CHUNK))
def test_seeds(first: int) -> None:
    check([generate(seed) for seed in range(first, first + CHUNK)])


def drawn(draw: Any, seed: int) -> Program:
    """A program of one draw alone."""
    while True:
        g = Generator(seed, KINDS)
        if g.attempt(draw):
            return g.program
        seed += 1000


@pytest.mark.parametrize("draw", PRODUCTS, ids=lambda f: f.__name__)
def test_products_and_explicit_kernels(draw: Any) -> None:
    check([drawn(draw, seed) for seed in (1, 2)])


@pytest.mark.full
@pytest.mark.parametrize("first", range(10_000, 10_600, CHUNK))
def test_large(first: int) -> None:
    check([generate(seed, 20, 4096) for seed in range(first, first + CHUNK)])


# -- the language enters it -----------------------------------------------------------------------

TYPES_AND_VALUES = {
    "PropagateNan", "block_pointer", "block_type", "builtin", "const", "constexpr",
    "constexpr_function", "core", "dtype", "extra", "math", "pi32_t", "pointer_type", "random",
    "standard", "tensor", "tensor_descriptor", "tuple", "void"}
EXEMPT = TYPES_AND_VALUES | {
    "device_print": "prints, and changes no value; tests/language",
    "static_print": "prints while compiling; tests/language"}.keys()
EXPLICIT_EXEMPT = {
    "Linear", "Mma", "DotOperand", "Slice",  # layouts that a convert_layout would have to fit
    "NvmmaShared", "SharedLinear",  # tests/language/test_explicit.py stores and loads through each
    "barrier_array", "buffer_ring", "remote_buffer", "shared_buffer",  # types of values
    "cluster_size", "num_warps",  # known at compile time, as the templates' parameters are
    "extract_slice"}  # of accumulators; tests/language/test_explicit.py


def test_every_public_name_is_drawn_or_exempt() -> None:
    text = "\n".join(drawn(draw, seed).source() for draw in PRODUCTS for seed in range(6))
    for seed in range(24):
        g = Generator(seed, KINDS, elements=128)
        for draw in [*KINDS, *g.rng.choices([*KINDS], [*KINDS.values()], k=6 * len(KINDS))]:
            g.attempt(draw)
        text += g.program.source()
    found = {*re.findall(r"\btl\.(?:math\.)?(\w+)", text)}
    assert {*tl.__all__} - found - EXEMPT == set()
    found = {*re.findall(r"\btlg\.(\w+)", text)}
    assert {*tlg.__all__} - found - EXPLICIT_EXEMPT == set()


# -- planted faults -------------------------------------------------------------------------------

def first_failure(seeds: range) -> tuple[Program, Verdict]:
    programs = [generate(seed) for seed in seeds]
    return next((p, v) for p, v in zip(programs, judged(programs)) if v.failed)


def test_a_planted_fault_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A maximum is its first operand in the generated code."""
    monkeypatch.setitem(elementwise.compute._rules, ops.Maximum, lambda cg, op, a, b: a)
    monkeypatch.setattr(elementwise.compute, "_found", {})
    program, verdict = first_failure(range(100, 120))
    assert verdict.kind == "mismatch" and verdict.where == "ptx"
    small = shrink(program, lambda c: next(judged([c], ("ptx",))).same(verdict), 15)
    assert re.search("maximum|clamp|max|between", small.source())
    assert len([*walk(small.body)]) < 0.7 * len([*walk(program.body)])


@pytest.mark.parametrize(("plant", "kind"), [
    ("import os\nos._exit(3)", "death"), ("while True: pass", "hang"), ("1 / 0", "internal")])
def test_every_end_of_a_child_is_a_verdict(plant: str, kind: str,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict names the case, and the cases after it run."""
    right = generate(101)
    text, bad = right.source(), replace(right)
    monkeypatch.setattr(Program, "source", lambda self: plant if self is bad else text)
    cases = [right, bad, replace(right)]
    kinds = [v.kind for v in judged(cases, ("tile",), 3)]
    assert kinds == ["right", kind, "right"]


# -- the meaning ----------------------------------------------------------------------------------

def test_numbers_of_the_document() -> None:
    def of(*x: Any, t: str = "int8") -> np.ndarray:
        return np.array(x, NUMPY[t])

    assert [x.tolist() for x in divide(of(-7, 7, -128), of(2, -2, -1), "int8")] == [
        [-3, -3, -128], [-1, 1, 0]]
    assert shift(False, of(-16), of(9), "int8").tolist() == [-1]
    assert shift(True, of(1), of(8), "int8").tolist() == [0]
    assert promote("bfloat16", "float16") == "float16" and promote("uint16", "int32") == "int32"
    assert promote("bfloat16", "int32") == "float32" and promote("int16", "uint16") == "uint16"
    wide = of(np.nan, 1e9, -300.7, 0.9, t="float32")
    assert cast(wide, "float32", "int8").tolist() == [0, 127, -128, 0]
    assert cast(wide, "float32", "float8e4nv").astype(np.float32).tolist()[1] == 448.0
    assert cast(of(65519.0, t="float32"), "float32", "float16", True).tolist() == [65504.0]


def program_of(*body: Let, grid: tuple[int, int] = (1, 1)) -> Program:
    arguments = [Argument("x", "float32", 64, "whole"), Argument("o", "float32", 64, "poison")]
    return Program(arguments, list(body), grid)


def let(op: str, names: str, *args: Any, **attrs: Any) -> Let:
    return Let(op, tuple(names.split()), args, attrs)


def test_what_has_no_one_meaning_is_rejected() -> None:
    at = let("lanes", "i", shape=(64,), strides=(1,), flip=())
    to = let("add", "p", "o", "i")
    some = let("compare", "m", "i", 32, symbol="<")
    of = let("add", "q", "x", "i")
    load = let("load", "v", "q", "m", None, more="")
    store = let("store", "", "p", "v", None, more="")
    assert program_of(at, to, some, of, load, replace(store, args=("p", "v", "m"))).expected()
    for body, grid in (((at, to, some, of, load, store), (1, 1)),  # poison is stored
                       ((at, to, some, of, load, replace(store, args=("p", "v", "m"))), (2, 1)),
                       ((at, let("add", "p", "o", "i"), let("add", "p2", "p", 1),
                         let("store", "", "p2", 1.0, None, more="")), (1, 1))):  # outside
        with pytest.raises(Reject):
            program_of(*body, grid=grid).expected()


# -- the command ----------------------------------------------------------------------------------

def test_runs_add_up_in_the_ledger(tmp_path: Any, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ledger.jsonl"
    for _ in range(2):
        monkeypatch.setattr("sys.argv", ["fuzz", "--count", "3", "--ledger", str(path)])
        assert command.main() == 0
    assert [(r.first, r.count) for r in ledger.read(path)] == [(0, 3), (3, 3)]
    monkeypatch.setattr("sys.argv", ["fuzz", "--report", "--ledger", str(path)])
    assert command.main() == 0
    assert "| 6 | 6 | 0 | 0 |" in capsys.readouterr().out


def test_cubins_are_made_ahead(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz", "--count", "3", "--seed", "100", "--compile-to",
                                     str(tmp_path)])
    assert command.main() == 0
    assert len([*tmp_path.rglob("cubin")]) == 3


def test_a_failure_prints_as_a_program_that_shows_it(tmp_path: Any) -> None:
    program = program_of(let("lanes", "i", shape=(64,), strides=(1,), flip=()),
                         let("add", "p", "o", "i"),
                         let("store", "", "p", 1.0, None, more=""))
    wrong = Verdict("mismatch", "ptx", "o[3] is 1.0, expected 2.0", (("o", 3, "1.0", "2.0"),))
    text = command.shown(program, wrong, "ptx")
    path = tmp_path / "shown.py"
    path.write_text(text)
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True,
                          env=os.environ | {"PYTHONPATH": root})
    assert done.stdout == "o[3] is 1.0, expected 2.0\n"
