"""What of Python kernels may use beside control flow: tuples, functions of constexprs, attributes
of types, the names that Triton's modules have."""

from __future__ import annotations

import types
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import from_text, rerun
from tilec import knobs

LEVELS = ("tile", "gpu", "lowered", "ptx")


class Pair(NamedTuple):
    data: Any
    count: Any = 3


class Nested(NamedTuple):
    pair: Pair
    scale: Any


# -- NamedTuples ------------------------------------------------------------------------------

@tilec.jit
def moved(pair, by):
    return Pair(pair.data + by, pair.count - 1)


@tilec.jit
def walk(nested, out, plain):
    tl.static_assert(isinstance(nested, Nested) and isinstance(nested.pair, Pair))
    tl.static_assert(isinstance(plain, tl.tuple) and not isinstance(plain, Pair))
    pair, total = nested.pair, 0.0
    while pair.count > 0:
        total += tl.load(pair.data) * nested.scale + plain[0]
        pair = moved(pair, 2)
        if total > 1000:
            pair = Pair(pair.data, 0)
    tl.store(out, total)
    tl.store(out + 1, pair.count)


@pytest.mark.parametrize("level", LEVELS)
def test_named_tuples_are_arguments_and_carried(level, rng):
    x = rng.random(20, np.float32)
    for count, scale, want in ((4, 3.0, 3 * x[:8:2].sum() + 4), (7, 1, x[:14:2].sum() + 7),
                               (1, 2.0, 2 * x[0] + 1)):
        out = np.full(2, np.nan, np.float32)
        with knobs.scope(run=level):
            walk[1](Nested(Pair(x, count), scale), out, (1, x))
        assert np.allclose(out, [want, 0], rtol=1e-6)


@tilec.jit
def fields(out, options: tl.constexpr):
    tl.store(out, options.data * 10 + options.count)


def test_named_tuples_are_constants():
    out = np.zeros(1, np.int32)
    first = fields[1](out, Pair(4))
    assert out[0] == 43 and fields[1](out, Pair(4, 3)) is first
    fields[1](out, Pair(5, 6))
    assert out[0] == 56
    with pytest.raises(tilec.CompilationError, match="has no attribute `data`"):
        fields[1](out, (4, 3))


def test_signatures_of_named_tuples():
    made = tilec.compile(fields_of, {"pair": Pair("*fp32", "i32"), "out": "*fp32"})
    x, out = np.arange(8, dtype=np.float32), np.zeros(1, np.float32)
    made[1](Pair(x, 5), out)
    assert out[0] == 5


@tilec.jit
def fields_of(pair, out):
    tl.store(out, tl.load(pair.data + pair.count))


# -- tuples, lists of arguments ---------------------------------------------------------------

@tilec.jit
def summed(first, *rest, scale=1):
    total = first
    for x in rest:
        total += x * scale
    return total, len(rest)


@tilec.jit
def forwarded(*xs):
    return summed(*xs, scale=10)


@tilec.jit
def lists(out, a, b):
    pairs = tl.tuple([(a, 1), (b, 2)])
    products = [x * k for x, k in pairs]
    every = [x * 100 + y for x, (y, _) in zip_all(products, pairs) if True]
    grown = [i * j for i in tl.static_range(1, 3) for j in range(3) if i + j != 2]
    p, n = forwarded(*products, a)
    q, none = summed(b)
    tl.static_assert(n == 2 and none == 0)
    tl.static_assert(grown == (0, 2, 2, 4))
    tl.store(out, p)
    tl.store(out + 1, q)
    tl.store(out + 2, every[0] + every[1] * 1000)


@tilec.jit
def zip_all(xs, ys):
    return [(xs[i], ys[i]) for i in range(len(xs))]


@pytest.mark.parametrize("level", LEVELS)
def test_lists_of_arguments_and_comprehensions(level):
    out = np.full(3, -1, np.int32)
    with knobs.scope(run=level):
        lists[1](out, 3, 5)
    assert out.tolist() == [3 + (10 + 3) * 10, 5, 303 + 1005 * 1000]


def test_names_of_a_comprehension_end_with_it():
    kernel = from_text("""
@tilec.jit
def k(out):
    i = 7
    xs = [i for i in (1, 2)]
    tl.store(out, i + xs[1])
    ys = [j for j in (1, 2)]
    tl.store(out, j)
""")
    with pytest.raises(tilec.CompilationError, match="`j` is used before|`j` is not defined"):
        kernel[1](np.zeros(1, np.int32))


def test_a_kernel_names_its_parameters():
    with pytest.raises(tilec.LaunchError, match=r"`summed` takes `\*rest`|as kernels do not") as e:
        forwarded[1](1, 2)
    assert "tuple" in e.value.advice and e.value.loc == forwarded.def_location


@pytest.mark.parametrize("call, message", [
    ("summed()", "needs a value for `first`"), ("summed(1, rest=2)", "has no parameter `rest`"),
    ("summed(1, 2, first=3)", "got `first` twice")])
def test_calls_that_do_not_fit(call, message):
    kernel = from_text(f"@tilec.jit\ndef k(out):\n    x = {call}\n", summed=summed)
    with pytest.raises(tilec.CompilationError, match=message):
        kernel[1](np.zeros(1, np.int32))


# -- functions of constexprs ------------------------------------------------------------------

@tilec.constexpr_function
def divisors(n, pair=None, least=1):
    assert n > 0, "only positive numbers"
    return [d for d in range(least, n + 1) if n % d == 0] + list(pair or ())


@tilec.jit
def listed(out, N: tl.constexpr):
    most = 6
    for d in divisors(N, pair=(most, 50), least=2):
        tl.store(out + d, d)
    tl.store(out, tilec.cdiv(N, 5) * 100 + tilec.next_power_of_2(N))


def test_functions_of_constexprs():
    out = np.zeros(60, np.int32)
    listed[1](out, N=12)
    assert np.flatnonzero(out).tolist() == [0, 2, 3, 4, 6, 12, 50] and out[0] == 316
    assert divisors(tl.constexpr(4), least=tl.constexpr(2)) == [2, 4]
    assert divisors.__name__ == "divisors" and tilec.next_power_of_2(5) == 8


def test_their_errors_are_the_authors():
    with pytest.raises(tilec.CompilationError, match="AssertionError: only positive") as e:
        listed[1](np.zeros(60, np.int32), N=-1)
    assert e.value.loc.line == listed.first_line + 3
    kernel = from_text("@tilec.jit\ndef k(out, n):\n    x = divisors(n)\n", divisors=divisors)
    with pytest.raises(tilec.CompilationError, match="known at compile time only, found a run-time "
                       "int32 scalar") as e:
        kernel[1](np.zeros(1, np.int32), 5)
    assert "tl.constexpr" in e.value.advice


def test_what_they_do_and_read_is_part_of_the_key():
    text = """
{head}
def plain(n):
    return [n + {add} for n in (n,)][0] + SHIFT
def around():
    inner = plain
    @tl.constexpr_function
    def choose(n):
        return inner(n) + settings.extra
    return choose
choose = around()
"""
    kernel_text = """
@tilec.jit
def k(out):
    tl.store(out, choose(1))
"""
    settings = types.ModuleType("settings")
    settings.extra = 100
    scope = {"tl": tl, "tilec": tilec, "__name__": "cells", "settings": settings}
    out = np.zeros(1, np.int32)
    exec(compile(text.format(head="SHIFT = 10", add=4), "<one>", "exec"), scope)
    kernel = rerun(kernel_text, "<cell>", scope)
    first = kernel[1](out)
    assert out[0] == 115 and kernel[1](out) is first
    exec(compile(text.format(head="", add=7), "<other>", "exec"), scope)
    kernel[1](out)
    assert out[0] == 118
    scope["SHIFT"] = 20
    kernel[1](out)
    assert out[0] == 128
    settings.extra = 200
    kernel[1](out)
    assert out[0] == 228


@tilec.jit
def chosen(out, F: tl.constexpr):
    tl.store(out, F(3))


def test_they_are_constants():
    kernels = []
    for add in (1, 2, 1):
        scope = {"tl": tl, "ADD": add}
        exec("@tl.constexpr_function\ndef f(n):\n    return n + ADD", scope)
        out = np.zeros(1, np.int32)
        kernels.append(chosen[1](out, F=scope["f"]))
        assert out[0] == 3 + add
    assert kernels[0].hash == kernels[2].hash != kernels[1].hash


# -- attributes and modules -------------------------------------------------------------------

@tilec.jit
def typed(x_ptr, out, n, N: tl.constexpr, T: tl.constexpr):
    at = tl.arange(0, N.value)
    block = tl.make_block_ptr(x_ptr, (N,), (1,), (0,), (N,), (0,))
    tl.static_assert(block.type.element_ty.element_ty == x_ptr.type.element_ty)
    tl.static_assert(block.type.element_ty.shape == (N,) and block.type.is_ptr())
    tl.static_assert(x_ptr.dtype.element_ty == tl.float32 and (x_ptr + at).type.is_block())
    tl.static_assert((x_ptr + at).type.element_ty.element_ty == (x_ptr + at).dtype.element_ty)
    x = tl.load(block).to(T.value)
    y = (tl.load(x_ptr + at) * 2).to(x.type)
    tl.static_assert(y.dtype == T and n.type == tl.int32)
    tl.store(block, tl.math.max(x + y, 0) + tl.standard.sum(x, 0) + tl.core.CONSTEXPR_0)
    wide = tl.core.get_int_dtype(64, signed=True)
    small = tl.core.get_int_dtype(bitwidth=8, signed=False)
    tl.static_assert(wide == tl.int64 and small == tl.uint8)
    tl.store(out, tl.math.cdiv(n.to(wide), tl.standard._log2(N)))


@pytest.mark.parametrize("level", LEVELS)
def test_attributes_of_types_and_names_of_modules(level, rng):
    x, out = rng.integers(-9, 9, 16).astype(np.float32), np.full(1, -1, np.int32)
    want = np.max(3 * x) + x.sum()
    with knobs.scope(run=level):
        typed[1](x, out, 21, N=16, T=tl.float32)
    assert (x == want).all() and out[0] == 6


@pytest.mark.parametrize("call, message", [
    ("tl.math.nothing(n)", "`tl.math` has no `nothing`"),
    ("tl.standard.maxx(n)", "`tl.standard` has no `maxx`"),
    ("n.value", "has no attribute `value`")])
def test_names_that_are_not_there(call, message):
    kernel = from_text(f"@tilec.jit\ndef k(out, n):\n    x = {call}\n")
    with pytest.raises(tilec.CompilationError, match=message):
        kernel[1](np.zeros(1, np.int32), 5)
