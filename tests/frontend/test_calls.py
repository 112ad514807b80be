"""Calls of jit functions, names from outside, Python's built-ins, expressions; run and checked."""

import math
import types
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

import tilec.language as tl
from tests.frontend.harness import build, execute, from_text, out_of
from tilec.errors import CompilationError, Location
from tilec.frontend.build import build_module
from tilec.frontend.function import function
from tilec.ir import ops
from tilec.ir.printer import print_module

WIDTH: tl.constexpr = 8
HALF = tl.constexpr(0.5)
SHAPE = tl.constexpr((2, 4))
lib = types.ModuleType("lib")
lib.FACTOR = tl.constexpr(3)


@function
def scale(x, by=2, *, plus: tl.constexpr = 0):
    """Twice, or more."""
    by = by * 1
    return x * by + plus


@function
def relu(x):
    return tl.maximum(x, 0.0)


@function
def compose(x, f: tl.constexpr, g: tl.constexpr = None):
    x = f(x)
    return x if g is None else g(x)


lib.scale = scale


def test_defaults_and_keywords():
    @function
    def k(out, n):
        tl.store(out, scale(n))
        tl.store(out + 1, scale(n, 3))
        tl.store(out + 2, scale(by=n, x=4, plus=1))
        tl.store(out + 3, scale(*(n, 5), plus=WIDTH))
        tl.store(out + 4, lib.scale(n, plus=lib.FACTOR))

    assert out_of(k, 7, size=5) == [14, 21, 29, 43, 17]


def test_functions_as_constexprs_and_globals():
    @function
    def k(out, n, EPILOGUE: tl.constexpr):
        x = tl.arange(0, WIDTH) * HALF - 1.0
        tl.store(out + tl.arange(0, WIDTH), compose(x, EPILOGUE, scale))

    want = [2 * max(i * 0.5 - 1, 0) for i in range(8)]
    assert out_of(k, 1, EPILOGUE=relu, dtype=np.float32, size=8) == want


def test_closures():
    def make(f, width, const):
        @function
        def k(out):
            x = tl.arange(0, width)
            tl.store(out + x, f(x) + const)
        return k

    assert out_of(make(scale, 4, tl.constexpr(10)), size=4) == [10, 12, 14, 16]
    assert out_of(make(relu, 2, 0), size=2) == [0, 1]


def test_combine_functions_and_library_functions():
    @function
    def longer(a, i, b, j):
        take = (a > b) | ((a == b) & (i < j))
        return tl.where(take, a, b), tl.where(take, i, j)

    @function
    def k(x, out):
        offs = tl.arange(0, 8)
        v = tl.load(x + offs)
        best, at = tl.reduce((v, offs), 0, longer)
        tl.store(out, best)
        tl.store(out + 1, at)
        tl.store(out + 2, tl.sum(tl.softmax(v), axis=0))

    x = np.random.default_rng(0).standard_normal(8).astype(np.float32)
    out = np.zeros(3, np.float32)
    execute(k, x, out)
    assert out[0] == x.max() and out[1] == x.argmax() and abs(out[2] - 1) < 1e-6


def test_recursion_on_constexprs():
    @function
    def power(x, n: tl.constexpr):
        if n == 0:
            return 1
        half = power(x, n // 2)
        return half * half * x if n % 2 else half * half

    @function
    def k(out, x):
        tl.store(out, power(x, 13))

    assert out_of(k, 3) == 3 ** 13


def test_tuple_arguments_and_named_tuples():
    class Pair(NamedTuple):
        left: object
        right: object

    @function
    def add(pair):
        return pair.left + pair.right

    @function
    def k(out, sizes, NAMES: tl.constexpr):
        a, (b, c) = sizes
        tl.store(out, add(Pair(a, b * c)) + len(NAMES) + NAMES[1])

    assert out_of(k, (3, (4, 5)), NAMES=(7, 8)) == 3 + 20 + 2 + 8
    specs = {"out": "*i32", "sizes": (tl.constexpr(2), (tl.constexpr(None), "i32"))}
    with pytest.raises(CompilationError, match="None"):
        build(k, specs, NAMES=(1, 2))
    module = build(k, {"out": "*i32", "sizes": ("i32:16", ("i32", "i32"))}, NAMES=(1, 2))
    (func,) = module.funcs
    assert [a.name for a in func.args] == ["out", "sizes_0", "sizes_1_0", "sizes_1_1"]
    assert func.arg_attrs[1] == {"divisibility": 16}


def test_named_tuples_in_branches_and_loops():
    class State(NamedTuple):
        total: object
        kind: object

    @function
    def k(out, n):
        state = State(0, "sum")
        for i in range(n):
            if i != 2:
                state = State(state.total + i, state.kind)
        tl.static_assert(state.kind == "sum")
        tl.store(out, state.total)

    assert out_of(k, 5) == 8


def test_module_attributes_and_specialised_arguments():
    @function
    def k(x, y, n, s, B: tl.constexpr = 4):
        if y is not None:
            tl.store(y, n)
        tl.store(x, n * s + B)

    module = build_module(k, {"x": "*bf16:16", "n": "i32"}, {"y": None, "s": 1},
                          target="sm_80", num_warps=8)
    assert module.attributes == {"level": "tile", "target": "sm_80", "num_warps": 8}
    assert module.funcs[0].name == "k" and module.funcs[0].arg_attrs == [{"divisibility": 16}, {}]
    out = np.zeros(1, ml_dtypes.bfloat16)
    execute(k, out, 12, y=None, s=1)
    assert out[0] == 16


def test_python_builtins():
    @function
    def k(out, n, f, B: tl.constexpr):
        t = (n, 3, B)
        tl.store(out, min(n, 4))
        tl.store(out + 1, max(n, 3, B))
        tl.store(out + 2, max(B, 3) + abs(-B) + len(t) + int(2.7) + min((4, 5)))
        tl.store(out + 3, abs(n - 10))
        tl.static_assert(isinstance(n, tl.tensor) and not isinstance(B, tl.tensor))
        tl.static_assert(isinstance(B, tl.constexpr) and isinstance(t, (list, tuple)))
        tl.static_assert(hasattr(n, "dtype") and not hasattr(n, "nothing"))
        tl.static_assert(getattr(f, "dtype") == tl.float32)  # noqa: B009
        tl.static_assert(float(B) == 5.0 and bool(B) and str(B) == "5" and list(t)[2] == 5)
        tl.static_assert(f"{B:03d} {B!r} {tl.float32}" == "005 5 fp32")
        tl.static_assert(math.log2(8) == 3 and math.pi > 3 and "a".upper() == "A")
        tl.static_assert([2 * x for x in (1, B) if x > 1] == (10,))
        tl.static_assert(tuple(i * B for i in range(3)) == (0, 5, 10) and (*range(2),) == (0, 1))
        tl.static_assert(B in (4, 5) and 3 not in (4, 5) and (1, *t)[1] is not None)
        print("n is", n)
        print(n, f)

    assert out_of(k, 7, 2.0, B=5, size=4) == [4, 7, 5 + 5 + 3 + 2 + 4, 3]
    prints = [o for o in build(k, {"out": "*i32", "n": "i32", "f": "fp32"}, B=5).walk()
              if isinstance(o, ops.Print)]
    assert [(p.prefix, len(p.values)) for p in prints] == [("n is", 1), ("", 2)]


def test_annotated_assignments():
    @function
    def k(out, n):
        size: tl.constexpr = 2 + 2
        small: tl.int8 = n
        later: tl.int32
        later = size  # noqa: F841
        tl.static_assert(small.dtype == tl.int8)
        tl.store(out + tl.arange(0, size), small + size)

    assert out_of(k, 258, size=4) == [6] * 4


def test_literals_are_weak_inside_expressions_and_typed_when_assigned():
    @function
    def k(x, out):
        v = tl.load(x)
        tl.static_assert((v + 1.5).dtype == tl.float16)
        tl.static_assert((v + HALF).dtype == tl.float16)
        c = 1.5
        tl.static_assert((v + c).dtype == tl.float32)
        i = 1
        tl.static_assert(i.dtype == tl.int32 and i.shape == ())
        tl.store(out, v)

    build(k, {"x": "*fp16", "out": "*fp16"})


def test_assertions_at_run_time():
    @function
    def k(n):
        assert n > 0, "positive"
        assert n < 9

    for debug in (False, True):
        module = build_module(k, {"n": "i32"}, {}, target="sm_90a", options={"debug": debug})
        found = [o.message for o in module.walk() if isinstance(o, ops.Assert)]
        assert found == ["positive", "n < 9"]
        assert module.attributes.get("debug", False) is debug  # else they end at the tile level


def test_tile_subscripts_and_methods():
    @function
    def k(out):
        i, j = tl.arange(0, 2)[:, None], tl.arange(0, 4)[None, :]
        tile = (i * 4 + j).to(tl.int32)
        tl.store(out + tile, tile * 2 + SHAPE[0])

    assert out_of(k, size=8) == [2 * i + 2 for i in range(8)]


def test_values_carry_the_authors_names_and_places():
    @function
    def k(x_ptr, n):
        offs = tl.arange(0, 8)
        value = scale(tl.load(x_ptr + offs))
        for step in range(n):
            value += step
        tl.store(x_ptr + offs, value)

    module = build(k, {"x_ptr": "*i32", "n": "i32"})
    text = print_module(module)
    for name in ("%x_ptr", "%n", "%offs", "%value", "%step"):
        assert name in text
    load = next(o for o in module.walk() if isinstance(o, ops.Load))
    first = k.fn.__code__.co_firstlineno
    assert load.loc.file == __file__ and load.loc.line == first + 3 and load.loc.caller is None
    inlined = next(o for o in module.walk() if isinstance(o, ops.Mul))
    assert inlined.loc.line == scale.first_line + 4
    caller = inlined.loc.caller
    assert isinstance(caller, Location) and caller.line == first + 3 and caller.caller is None


def test_printing_is_deterministic_and_parses():
    from tilec.ir.parser import parse
    from tilec.ir.printer import equal

    @function
    def k(x, n):
        total = 0.0
        for i in range(n):
            if i > 2:
                total += tl.load(x + i)
        tl.store(x, total)

    specs = {"x": "*fp32", "n": "i32"}
    one, two = build(k, specs), build(k, specs)
    assert print_module(one, locations=True) == print_module(two, locations=True)
    assert equal(parse(print_module(one, locations=True)), one)


def test_delete_and_docstrings():
    fn = from_text('@jit\ndef k(out, n):\n    """Doc."""\n    "text"\n    x = n\n    del x\n'
                   "    pass\n    tl.store(out, n)\n")
    assert out_of(fn, 3) == 3


def test_a_global_changed_between_builds_is_seen():
    fn = from_text("N = tl.constexpr(3)\n@jit\ndef k(out):\n    tl.store(out, N)\n")
    assert out_of(fn) == 3
    fn.fn.__globals__["N"] = tl.constexpr(4)
    assert out_of(fn) == 4


def test_an_unassigned_cell():
    def make():
        @function
        def k(out):
            tl.store(out, late)
        if out_of is None:
            late = 1
        return k

    with pytest.raises(CompilationError, match="`late` of the enclosing function"):
        out_of(make())
