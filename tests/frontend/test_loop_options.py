"""Options of tl.range and tl.condition on the loops they make; tl.swizzle2d; hints that reach the
accesses."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.frontend.harness import build, execute, from_text, out_of
from tilec.errors import CompilationError
from tilec.frontend.function import function
from tilec.ir import ops


def loop_of(text):
    fn = from_text(f"@jit\ndef k(out, n):\n    a = n\n{text}    tl.store(out, a)\n")
    (loop,) = [op for op in build(fn, {"out": "*i32", "n": "i32"}).walk()
               if isinstance(op, ops.For | ops.While)]
    return loop


@pytest.mark.parametrize("options, attributes", [
    ("", {}),
    ("num_stages=None, flatten=False, loop_unroll_factor=None", {}),
    ("num_stages=3, loop_unroll_factor=2", {"num_stages": 3, "unroll": 2}),
    ("flatten=True", {"flatten": True}),
    ("disable_licm=True", {"disable_licm": True}),
    ("warp_specialize=True", {"warp_specialize": True}),
    ("disallow_acc_multi_buffer=True", {}),
])
def test_range(options, attributes):
    loop = loop_of(f"    for i in tl.range(0, n, 2, {options}):\n        a += i\n")
    assert loop.attributes == attributes
    mirrored = loop_of(f"    for i in tl.range(n, 0, -1, {options}):\n        a += i\n")
    assert mirrored.attributes == attributes


def test_condition():
    for options, attributes in (("", {}), (", disable_licm=True", {"disable_licm": True})):
        loop = loop_of(f"    while tl.condition(a > 5{options}):\n        a -= 2\n")
        assert loop.attributes == attributes

    @function
    def k(out, n):
        while tl.condition(n > 5, disable_licm=True):
            n -= 2
        tl.store(out, n)

    assert out_of(k, 12) == 4


@pytest.mark.parametrize("option", ["flatten", "disable_licm", "warp_specialize", "num_stages"])
def test_options_are_known_at_compile_time(option):
    with pytest.raises(CompilationError, match=option):
        loop_of(f"    for i in tl.range(n, {option}=n):\n        a += i\n")
    with pytest.raises(CompilationError, match=option):
        loop_of(f"    for i in tl.range(n, {option}='yes'):\n        a += i\n")


def test_stages_have_a_limit():
    with pytest.raises(CompilationError, match="num_stages of tl.range is 17, expected at most 16"):
        loop_of("    for i in tl.range(n, num_stages=17):\n        a += i\n")


def test_unrolling_has_a_limit():
    loop = "    for i in tl.range(n, loop_unroll_factor={}):\n        a += i\n"
    assert loop_of(loop.format(1024)).attributes == {"unroll": 1024}
    with pytest.raises(CompilationError, match="factor of tl.range is 1025, expected at most 1024"):
        loop_of(loop.format(1025))


@function
def swizzled(out, M, N, G: tl.constexpr):
    i, j = tl.program_id(0), tl.program_id(1)
    a, b = tl.swizzle2d(i, j, M, N, G)
    tl.store(out + a * N + b, i * N + j)


@pytest.mark.parametrize("m, n, g", [(4, 5, 2), (7, 3, 4), (1, 6, 3), (6, 1, 1), (3, 3, 8)])
def test_swizzle2d(m, n, g):
    out = np.full(m * n, -1, np.int32)
    execute(swizzled, out, m, n, grid=(m, n), G=g)
    # In the order of positions, rows go in groups of g, each walked column by column.
    places = [(a, b) for top in range(0, m, g) for b in range(n)
              for a in range(top, min(top + g, m))]
    want = np.zeros((m, n), np.int32)
    for position, place in enumerate(places):
        want[place] = position
    np.testing.assert_array_equal(out.reshape(m, n), want)


def test_swizzle2d_of_constants():
    @function
    def k(out):
        a, b = tl.swizzle2d(1, 0, 4, 4, 2)
        tl.store(out, a * 10 + b)

    assert out_of(k) == 2


HINTED = {
    "plain": ("start = tl.load(at)", "ld.global.b32", 9),
    "multiple_of": ("start = tl.multiple_of(tl.load(at), 16)", "ld.global.v4.b32", 2),
    "on the tile": ("start = tl.load(at)\n    i = tl.multiple_of(start + i, (16,))\n    start = 0",
                    "ld.global.v4.b32", 2),
    "max_contiguous": ("start = 0\n    i = tl.load(at + i)\n"
                       "    i = tl.max_contiguous(tl.multiple_of(i, (8,)), (8,))",
                       "ld.global.v4.b32", 4),
}


@pytest.mark.parametrize("name", HINTED)
def test_hints_reach_the_accesses(name):
    """An offset that nothing is known of: a promise makes the accesses 16 bytes wide."""
    line, wide, count = HINTED[name]
    fn = from_text(f"@jit\ndef k(at, x, out):\n    i = tl.arange(0, 1024)\n    {line}\n"
                   "    tl.store(out + tl.arange(0, 1024), tl.load(x + start + i))\n")
    kernel = tilec.compile(fn, {"at": "*i32:16", "x": "*fp32:16", "out": "*fp32:16"})
    assert kernel.asm["ptx"].count(wide) == count
