"""parse(print(m)) == m, errors with their place, and the grammar under lark's strict mode."""

from __future__ import annotations

import random
import re
from pathlib import Path

import lark
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.lit import FILES
from tests.support.random_ir import Generator
from tilec.errors import IRError
from tilec.ir import parser
from tilec.ir.core import Module
from tilec.ir.parser import parse, parse_layout, parse_type
from tilec.ir.printer import equal, print_module
from tilec.ir.types import SCALARS, Pointer, Tensor, Token, f32
from tilec.ir.verifier import verify
from tilec.tools.opt import split


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_round_trip(rng: random.Random) -> None:
    module = Generator(rng).module()
    verify(module)
    for locations in (False, True):
        text = print_module(module, locations)
        again = parse(text)
        verify(again)
        assert equal(module, again)
        assert print_module(again, locations) == text
    bare = print_module(module, names=False)
    assert print_module(parse(bare), names=False) == bare


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_clone_prints_the_same(rng: random.Random) -> None:
    module = Generator(rng).module()
    assert print_module(module.clone(), locations=True) == print_module(module, locations=True)


@pytest.mark.parametrize("start", ["start", "layout", "type"])
def test_grammar_is_lalr_without_conflicts(start: str) -> None:
    grammar = Path(parser.__file__).with_name("tilec.lark").read_text()
    lark.Lark(grammar, parser="lalr", start=start, strict=True)


@pytest.mark.parametrize("t", [*SCALARS.values(), *map(Pointer, SCALARS.values()),
                               Pointer(f32, const=True), Token(), Tensor((3, 1, 96), f32),
                               Tensor((1000,), Pointer(f32))], ids=str)
def test_types(t: object) -> None:
    assert parse_type(str(t)) == t


def test_layouts_print_as_aliases() -> None:
    text = "blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>"
    layout = parse_layout(text)
    assert str(layout) == text
    module = parse(f"#x = {text}\nmodule attributes {{level = \"gpu\", num_warps = 4}} {{\n"
                   "func @k(%n: i32) { %0 = tile.splat(%n) : tensor<8xi32, #x>\n"
                   f"%1 = tile.splat(%n) : tensor<8xi32, {text}> tile.print(%0, %1)\n"
                   "func.return() } }")
    verify(module)
    printed = print_module(module)
    assert printed.startswith(f"#b0 = {text}\nmodule attributes {{level = \"gpu\", num_warps = 4}}")
    assert printed.count("tensor<8xi32, #b0>") == 2 and equal(module, parse(printed))


def test_names_stay_unique_and_readable() -> None:
    module = parse("module { func @k(%x: i32) { %y = tile.neg(%x) : i32 tile.print(%y)\n"
                   "func.return() } }")
    func = module.funcs[0]
    for op in func.walk():
        for r in op.results:
            r.name = "x"
    text = print_module(module)
    assert "func @k(%x: i32)" in text and "%x_1 = tile.neg(%x) : i32" in text
    assert "%0 = tile.neg" not in text and "%1 = tile.neg(%0)" in print_module(module, names=False)


def test_equality_ignores_names_and_locations_alone() -> None:
    def module(name: str, by: str) -> Module:
        return parse(f"module {{ func @k(%{name}: i32) {{ tile.print(%{name}) {{prefix = \"{by}\"}}"
                     " func.return() } }", filename=name)

    assert equal(module("a", "p"), module("b", "p"))
    assert not equal(module("a", "p"), module("a", "q"))


BAD = {
    "module { func @k() { %0 = tile.addd() : i32 } }": (1, "no op `tile.addd`", "tile.add"),
    "module {\nfunc @k(%n: i32) { %0 = tile.neg(%m) : i32 } }": (2, "%m is not defined", ""),
    "module { func @k(%n: i32, %n: i32) { } }": (1, "%n is defined twice", ""),
    "module { func @k(%n: i33) { } }": (1, "there is no type `i33`", "did you mean `i32`"),
    "module { func @k(%n: i32) { %0 = tile.neg(%n) {by = 1} : i32 } }":
        (1, "tile.neg has no attribute `by`", ""),
    "module { func @k(%n: i32) {\n\n%0 = tile.add(%n) : i32 } }":
        (3, "tile.add has 1 operands, expected 2", ""),
    "module { func @k(%n: i32) { %0 = tile.neg(%n) : f32 } }":
        (1, "result type is f32, expected i32", ""),
    "module { func @k(%n: i32) { tile.neg(%n) : i32 } }": (1, "0 are named", ""),
    "module { func @k(%n: i32) { %0 = tile.neg(%n) } }": (1, "0 result types given", ""),
    "module { func @k(%n: i32) { %0 = tile.cmp(%n, %n) {predicate = \"no\"} : i1 } }":
        (1, "expected one of eq, ne", ""),
    "module { func @k() { %0 = tile.constant() {value = 128} : i8 } }":
        (1, "value 128 does not fit i8", ""),
    "module { func @k() { %0 = tile.constant() {value = -1} : u32 } }":
        (1, "value -1 does not fit u32", ""),
    "module { func @k() { %0 = tile.constant() {value = 1} : f32 } }":
        (1, "value 1 does not fit f32", ""),
    "module { func @k(%n: tensor<0xi32>) { } }": (1, "is not a tile", ""),
    "module { func @k(%n: tensor<4xi32, #b>) { } }": (1, "#b is not defined", ""),
    "module { func @k(%c: i1) { scf.if(%c) { scf.yield() } } }":
        (1, "scf.if has 1 regions, expected 2", ""),
    "module { func @k(%c: i1) { scf.if(%c) { }, { scf.yield() } } }":
        (1, "must end with a terminator", ""),
    "module { func @k(%n: i32) { %0 = tile.neg(%n : i32 } }": (1, "unexpected `:`", ""),
    "module { func @k(%n: i32) {": (1, "unexpected the end of the text", ""),
    "module { ? }": (1, "unexpected `?`", ""),
}


@pytest.mark.parametrize("text", BAD)
def test_errors_name_the_place(text: str) -> None:
    line, message, advice = BAD[text]
    with pytest.raises(IRError) as e:
        parse(text, "bad.tir")
    assert message in e.value.message and e.value.loc is not None
    assert (e.value.loc.file, e.value.loc.line) == ("bad.tir", line)
    assert advice in e.value.advice and "^" in str(e.value)


def test_operands_that_infer_does_not_expect() -> None:
    with pytest.raises(IRError, match="operands do not fit"):
        parse("module { func @k(%n: i32) { %0 = tile.reduce() {axis = 0} { ^(%a: i32, %b: i32):\n"
              "scf.yield(%a) } : i32 func.return() } }")


def test_values_of_a_region_end_with_it() -> None:
    with pytest.raises(IRError, match="%a is not defined here"):
        parse("module { func @k(%c: i1, %n: i32) {\n"
              "scf.if(%c) { %a = tile.neg(%n) : i32 scf.yield() }, { scf.yield() }\n"
              "tile.print(%a) func.return() } }")


TOKEN = re.compile(r'"[^"]*"|[%#@]?[\w.$]+|\s+|.')
TEXTS = [TOKEN.findall(re.sub(r"//.*", "", piece)) for path in FILES if "tools" not in path.parts
         for piece in split(path.read_text(encoding="utf-8"))]


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_damaged_text_gives_an_error_or_a_module(rng: random.Random) -> None:
    tokens = list(rng.choice(TEXTS))
    for _ in range(rng.randint(1, 2)):
        i, other = rng.randrange(len(tokens)), rng.choice(rng.choice(TEXTS))
        tokens[i] = rng.choice(["", other, tokens[rng.randrange(len(tokens))]])
    try:
        verify(parse("".join(tokens)))
    except IRError as e:
        assert e.message
