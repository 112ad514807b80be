"""`Function`: parameters, source, source key; signatures."""

import types

import pytest

import tilec.language as tl
from tests.frontend.harness import from_text
from tilec.errors import CompilationError
from tilec.frontend.function import MISSING, Function, function
from tilec.frontend.signature import ArgSpec, format_spec, parse_signature, parse_spec
from tilec.ir import types as ir


@function
def sample(x_ptr, n, flag: tl.int32 = 3, y: tl.const = None, BLOCK: tl.constexpr = 4):
    """Docs."""
    return x_ptr  # kept


def test_parameters():
    names = [p.name for p in sample.params]
    assert names == ["x_ptr", "n", "flag", "y", "BLOCK"]
    assert [p.is_constexpr for p in sample.params] == [False] * 4 + [True]
    assert [p.is_const for p in sample.params] == [False] * 3 + [True, False]
    assert sample.params[0].default is MISSING and sample.params[2].default == 3
    assert sample.params[2].annotation is tl.int32
    assert sample.__doc__ == "Docs." and sample.__name__ == sample.name == "sample"


def test_textual_annotations():
    fn = from_text("from __future__ import annotations\n@jit\n"
                   "def k(a: tl.const, B: tl.constexpr, c: 'tl.constexpr'):\n    pass\n")
    assert [p.is_constexpr for p in fn.params] == [False, True, True]
    assert fn.params[0].is_const


def test_do_not_specialize():
    fn = Function(sample.fn, do_not_specialize=["n"], do_not_specialize_on_alignment=[0])
    assert [p.do_not_specialize for p in fn.params] == [False, True, False, False, False]
    assert fn.params[0].do_not_specialize_on_alignment
    fn = Function(sample.fn, do_not_specialize=["nn"])  # says so, as a note
    assert not any(p.do_not_specialize for p in fn.params)


def test_source_is_the_function_with_its_decorators():
    assert sample.source.startswith("@function\ndef sample(")
    assert sample.source.endswith("return x_ptr  # kept\n")
    assert sample.tree.name == "sample"
    assert sample.tree.lineno == sample.first_line + 1


def helper_module(text):
    module = types.ModuleType("helper_module")
    fn = from_text(text)
    module.helper = fn
    return module


HELPER = "@jit\ndef helper(x):\n    return x + 1\n"
CALLER = "@jit\ndef k(p):\n    tl.store(p, helper(1))\n"


def test_key_follows_callees_bound_anew():
    fn = from_text(CALLER, helper=from_text(HELPER))
    before = fn.source_key()
    assert fn.source_key() == before
    fn.fn.__globals__["helper"] = from_text(HELPER)
    assert fn.source_key() == before
    fn.fn.__globals__["helper"] = from_text(HELPER.replace("1", "2"))
    assert fn.source_key() != before


def test_key_follows_callees_of_callees_and_modules():
    outer = "@jit\ndef k(p):\n    tl.store(p, lib.helper(1))\n"
    middle = from_text("@jit\ndef helper(x):\n    return inner(x)\n", inner=from_text(HELPER))
    lib = types.ModuleType("lib")
    lib.helper = middle
    fn = from_text(outer, lib=lib)
    before = fn.source_key()
    middle.fn.__globals__["inner"] = from_text(HELPER.replace("1", "2"))
    changed = fn.source_key()
    assert changed != before
    lib.helper = from_text(HELPER)
    assert fn.source_key() not in (before, changed)


def test_key_follows_constants_and_closures():
    text = "N = tl.constexpr(3)\n@jit\ndef k(p):\n    tl.store(p, N)\n"
    fn = from_text(text)
    before = fn.source_key()
    fn.fn.__globals__["N"] = tl.constexpr(4)
    assert fn.source_key() != before
    make = ("def make(c):\n    @jit\n    def k(p):\n        tl.store(p, c)\n    return k\n"
            "one, two, other = make(tl.constexpr(1)), make(tl.constexpr(1)), make(2)\n")
    scope = from_text(make).fn.__globals__
    keys = [scope[n].source_key() for n in ("one", "two", "other")]
    assert keys[0] == keys[1] != keys[2]


def test_key_is_the_same_for_the_same_text_and_differs_by_line():
    assert from_text(HELPER).source_key() == from_text(HELPER).source_key()
    assert from_text(HELPER).source_key() != from_text("\n" + HELPER).source_key()


def test_key_of_recursive_functions():
    fn = from_text("@jit\ndef k(x, n: tl.constexpr):\n    return k(x, n - 1)\n")
    assert len(fn.source_key()) == 64 and fn.source_key() == fn.source_key()


@pytest.mark.parametrize("given, spec", [
    ("*fp32", ArgSpec(ir.Pointer(ir.f32))), ("*fp32:16", ArgSpec(ir.Pointer(ir.f32), 16)),
    ("*kbf16", ArgSpec(ir.Pointer(ir.bf16, True))), ("i32", ArgSpec(ir.i32)),
    ("i32:16", ArgSpec(ir.i32, 16)), ("u1", ArgSpec(ir.i1)), ("i1", ArgSpec(ir.i1)),
    ("fp8e4nv", ArgSpec(ir.f8e4m3)), ("*fp8e5", ArgSpec(ir.Pointer(ir.f8e5m2))),
    ("fp16", ArgSpec(ir.f16)), ("u64", ArgSpec(ir.u64)), ("fp64", ArgSpec(ir.f64)),
    (tl.float32, ArgSpec(ir.f32)), (tl.pointer_type(tl.int8), ArgSpec(ir.Pointer(ir.i8))),
    (ir.i16, ArgSpec(ir.i16)), (ArgSpec(ir.u8), ArgSpec(ir.u8)),
    (("i32", "*fp16"), (ArgSpec(ir.i32), ArgSpec(ir.Pointer(ir.f16)))),
])
def test_specs(given, spec):
    assert parse_spec(given) == spec
    assert parse_spec(format_spec(spec)) == spec if not isinstance(spec, tuple) else True


@pytest.mark.parametrize("given", ["fp31", "", "*", "**fp32", "i32:0", "i32:x", "void", 3, None,
                                   tl.block_type(tl.int32, (4,))])
def test_specs_that_are_none(given):
    with pytest.raises(CompilationError, match="the type of `x`"):
        parse_spec(given, "x")


def test_signature_is_in_the_order_of_parameters():
    specs = parse_signature(sample, {"n": "i32", "x_ptr": "*fp32"})
    assert list(specs) == ["x_ptr", "n"]
