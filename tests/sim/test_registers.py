"""setmaxnreg: warpgroups share out what the launch gives the CTA."""

from __future__ import annotations

import numpy as np
import pytest

from tests.sim.programs import program
from tilec import sim
from tilec.sim import SimError
from tilec.sim.registers import at_launch

SEEDS = pytest.mark.parametrize("seed", [None, 0, 1])


def change(kind: str, count: int) -> str:
    return f"setmaxnreg.{kind}.sync.aligned.u32 {count};"


def launch(first: str, others: str, seed: int | None, directive: str = ".minnctapersm 1") -> None:
    """Warpgroup 0 of three does `first`, the others `others`; then each thread stores its number.
    """
    text = program(f"setp.lt.u32 %p1, %t, 128; @%p1 bra FIRST; {others} bra.uni OUT; "
                   f"FIRST: {first} OUT: st.global.u32 [%o], %t;", "u64", 384)
    out = np.full(384, 0xDEAD, np.uint32)
    sim.run(text.replace("{\n", f"{directive}\n{{\n", 1), "k", [out], (1, 1, 1), seed=seed)
    assert out.tolist() == list(range(384))


@SEEDS
def test_what_one_gives_up_others_take(seed: int | None) -> None:
    """384 threads are launched with 168 registers each; 24 + 2 * 240 = 3 * 168."""
    launch(change("dec", 24), change("inc", 240), seed)
    launch(change("dec", 24) + change("inc", 168), change("inc", 240) + change("dec", 168), seed)


@SEEDS
@pytest.mark.parametrize(("first", "others", "directive"), [
    ("", change("inc", 176), ".minnctapersm 1"),
    (change("dec", 32), change("inc", 240), ".minnctapersm 1"),
    (change("dec", 24), change("inc", 240), ".maxnreg 160")])
def test_too_few_is_a_deadlock(first: str, others: str, directive: str, seed: int | None) -> None:
    with pytest.raises(SimError, match=r"deadlock(.|\n)*more registers a thread(.|\n)*in the pool"):
        launch(first, others, seed, directive)


@pytest.mark.parametrize(("kind", "count"), [("inc", 160), ("dec", 176)])
def test_the_wrong_way(kind: str, count: int) -> None:
    with pytest.raises(SimError, match=f"{kind} to {count} registers, where it has 168"):
        launch(change(kind, count), "", None)


def test_some_warps_of_a_warpgroup_are_not_enough() -> None:
    some = f"setp.lt.u32 %p2, %t, 96; @!%p2 bra SKIP; {change('dec', 24)} SKIP:"
    with pytest.raises(SimError, match="for other warps of their warpgroup that never come"):
        launch(some, "", None)


@pytest.mark.parametrize(("threads", "ctas", "limit", "registers"), [
    (384, 1, 0, 168), (256, 1, 0, 256), (128, 2, 0, 256), (384, 2, 0, 80), (384, 1, 128, 128),
    (512, 1, 0, 128), (128, 1, 255, 256), (288, 1, 0, 168)])
def test_at_launch(threads: int, ctas: int, limit: int, registers: int) -> None:
    assert at_launch(threads, ctas, limit) == registers
