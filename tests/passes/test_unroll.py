"""Unrolled loops run the same turns, at the ends of the bounds' types too."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.interp.run import run
from tilec.ir import ops
from tilec.ir.parser import parse
from tilec.ir.verifier import verify
from tilec.passes.unroll import Unroll

TEXT = """module {{ func @k(%lo: {t}, %hi: {t}) {{
  %step = tile.constant() {{value = {step}}} : {t}
  {bounds}
  %r = scf.for(%{lo}, %{hi}, %step, %lo) {{unroll = {unroll}}} {{ ^(%i: {t}, %acc: {t}):
    tile.print(%i, %acc)
    %next = tile.xor(%acc, %i) : {t}
    scf.yield(%next)
  }} : {t}
  tile.print(%r)
  func.return()
}} }}"""
RANGES = {"i8": (-128, 127), "u8": (0, 255), "i32": (-2**31, 2**31 - 1), "u64": (0, 2**64 - 1)}


def turns(text: str, lo: int, hi: int, unroll: bool) -> list[str]:
    module = parse(text)
    if unroll:
        Unroll().run(module)
        verify(module)
        assert not any(isinstance(op, ops.For) and op.unroll for op in module.walk())
    lines: list[str] = []
    run(module, "k", [lo, hi], 1, seed=0, on_print=lines.append)
    return lines


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("t", RANGES)
def test_same_turns(t: str, known: bool, rng: np.random.Generator) -> None:
    least, most = RANGES[t]
    for _ in range(25):
        base = [least, most - 24, max(least, -5)][int(rng.integers(3))]
        lo, hi = (base + int(rng.integers(0, 25)) for _ in range(2))
        bounds = f"%a = tile.constant() {{value = {lo}}} : {t}\n" \
                 f"%b = tile.constant() {{value = {hi}}} : {t}" if known else ""
        text = TEXT.format(t=t, step=int(rng.integers(1, 5)), unroll=int(rng.integers(1, 9)),
                           bounds=bounds, lo="a" if known else "lo", hi="b" if known else "hi")
        assert turns(text, lo, hi, True) == turns(text, lo, hi, False), text


def test_from_one_end_of_the_type_to_the_other() -> None:
    # hi - lo does not fit the signed type here.
    text = TEXT.format(t="i8", step=100, unroll=2, bounds="", lo="lo", hi="hi")
    rolled = turns(text, -128, 127, False)
    assert len(rolled) == 4 and rolled == turns(text, -128, 127, True)
