"""Rounds in which a branch is not taken get a loop of their own: the same results, also next to the
ends of what an i32 holds; other branches stay."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.ir import ops
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.verifier import verify
from tilec.passes.split_loop import split_loop
from tilec.runtime.text import TextKernel

MOST = 2**31 - 1


def program(condition: str, inside: str = "") -> Module:
    """x = 2 x + 1 where the condition holds, x + i elsewhere; in the end x and the last x of each
    kind are stored."""
    return parse(f"""
module attributes {{level = "tile"}} {{
  func @f(%out: ptr<i32>, %lo: i32, %hi: i32, %n: i32, %m: i32, %flag: i1) {{
    %one = tile.constant() {{value = 1}} : i32
    %step = tile.constant() {{value = 3}} : i32
    %five = tile.constant() {{value = 5}} : i32
    %minus = tile.constant() {{value = -1}} : i32
    %x9 = scf.for(%lo, %hi, %step, %one) {{ ^(%i: i32, %x: i32):
      %i5 = tile.add(%i, %five) : i32
      %i8 = tile.add(%i5, %step) : i32
      %less = tile.add(%i, %minus) : i32
      {inside}
      %c = {condition} : i1
      %y = scf.if(%c) {{
        %2 = tile.add(%x, %x) : i32
        %3 = tile.add(%2, %one) : i32
        scf.yield(%3)
      }}, {{
        %4 = tile.add(%x, %i) : i32
        scf.yield(%4)
      }} : i32
      scf.yield(%y)
    }} : i32
    tile.store(%out, %x9)
    func.return()
  }}
}}""")


COMPARE = 'tile.cmp({}) {{predicate = "{}"}}'
TAKEN_LATE = [
    (COMPARE.format("%i8, %n", "gt"), ""), (COMPARE.format("%i, %n", "ge"), ""),
    (COMPARE.format("%n, %i5", "lt"), ""), (COMPARE.format("%m, %i", "le"), ""),
    ("tile.not(%a)", f"%a = {COMPARE.format('%i5, %n', 'lt')} : i1"),
    ("tile.not(%b)", f"%a = {COMPARE.format('%i5, %n', 'le')} : i1\n"
     "%b = tile.and(%a, %flag) : i1"),
    ("tile.or(%a, %b)", f"%a = {COMPARE.format('%i, %n', 'gt')} : i1\n"
     f"%b = {COMPARE.format('%m, %i8', 'lt')} : i1"),
]


@pytest.mark.parametrize(("condition", "inside"), TAKEN_LATE, ids=range(len(TAKEN_LATE)))
def test_the_same_results(condition: str, inside: str, rng: np.random.Generator) -> None:
    plain, split = (program(condition, inside) for _ in range(2))
    loop = next(op for op in split.walk() if isinstance(op, ops.For))
    assert split_loop(loop)
    verify(split)
    first, second = [op for op in split.walk() if isinstance(op, ops.For)]
    assert [any(isinstance(op, ops.If) for op in x.body) for x in (first, second)] == [False, True]
    kernels = [TextKernel(module) for module in (plain, split)]
    ends = [*range(-9, 10, 3), MOST - 4, MOST, -MOST - 1, -MOST + 3]
    for lo, hi in ((0, 20), (-7, 9), (5, 5), (9, 2), (MOST - 20, MOST), (-MOST - 1, -MOST + 20)):
        for n, m in [(int(a), int(b)) for a, b in rng.choice(ends, (3, 2))] + [(lo, hi), (hi, lo)]:
            results = []
            for kernel in kernels:
                out = np.zeros(1, np.int32)
                kernel.run([out, lo, hi, n, m, bool(n % 2)], 1, "tile")
                results.append(out[0])
            assert results[0] == results[1], (lo, hi, n, m)


@pytest.mark.parametrize(("condition", "inside"), [
    (COMPARE.format("%i, %n", "lt"), ""), (COMPARE.format("%less, %n", "gt"), ""),
    (COMPARE.format("%x, %n", "ge"), ""), (COMPARE.format("%i, %n", "eq"), ""),
    ("tile.and(%a, %a)", f"%a = {COMPARE.format('%x, %n', 'gt')} : i1"),
    ("tile.or(%a, %a)", f"%a = {COMPARE.format('%i, %n', 'lt')} : i1")])
def test_other_branches_stay(condition: str, inside: str) -> None:
    module = program(condition, inside)
    assert not split_loop(next(op for op in module.walk() if isinstance(op, ops.For)))
    verify(module)
    assert sum(isinstance(op, ops.For) for op in module.walk()) == 1
