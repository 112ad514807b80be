"""Steps of loops: Python's meaning where they are constants; where they are known at run time only,
what does not count up is an error, not another number of rounds in silence."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec import knobs
from tilec.errors import CheckError, CompilationError, InterpreterError

LEVELS = knobs.RUN_LEVELS


@tilec.jit
def baked(out, lo, hi, S: tl.constexpr):
    n, total = 0, 0
    for i in range(lo, hi, S):
        n += 1
        total = total * 3 + i
    tl.store(out, n)
    tl.store(out + 1, total)


@tilec.jit(do_not_specialize=("step",))
def given(out, lo, hi, step):
    n, total = 0, 0
    for i in range(lo, hi, step):
        n += 1
        total = total * 3 + i
    tl.store(out, n)
    tl.store(out + 1, total)


@tilec.jit
def folded(out, n):
    step = tl.minimum(n, 0) * 0 - 2
    for _ in range(n, 0, step):
        tl.store(out, 1)


@tilec.jit
def unsigned(out, hi: tl.uint32, step: tl.uint32):
    n = 0
    for _ in range(0, hi, step):
        n += 1
    tl.store(out, n)


@tilec.jit
def persistent(out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    for at in range(tl.program_id(0), n, tl.num_programs(0)):
        tl.store(out + at * B + i, at + i)


def rounds(lo: int, hi: int, step: int) -> list[int]:
    total = 0
    for i in range(lo, hi, step):
        total = total * 3 + i
    return [len(range(lo, hi, step)), (total + 2**31) % 2**32 - 2**31]


BOUNDS = [(0, 7), (7, 0), (-5, 3), (3, -5), (2, 2), (-7, 8)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("step", [-7, -3, -1, 1, 2, 5])
def test_steps(step, level):
    for lo, hi in BOUNDS:
        want, out = rounds(lo, hi, step), np.full(2, -99, np.int32)
        with knobs.scope(run=level):
            baked[(1,)](out, lo, hi, S=step)
            assert out.tolist() == want
            if step > 0 or lo <= hi:
                out[:] = -99
                given[(1,)](out, lo, hi, step)
                assert out.tolist() == want


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("lo, hi, step", [(7, 0, -1), (0, 7, 0), (7, 0, 0), (3, -5, -100)])
def test_steps_that_do_not_count_up(lo, hi, step, level, debug):
    out = np.full(2, -99, np.int32)
    with knobs.scope(run=level):
        if level == "ptx" and not debug:  # as on a GPU
            given[(1,)](out, lo, hi, step)
            assert out.tolist() == [0, 0]
            return
        with pytest.raises((InterpreterError, CheckError), match="step of") as e:
            given[(1,)](out, lo, hi, step, debug=debug)
    assert e.value.loc.line == given.def_location.line + 2 and "for i in range" in str(e.value)
    # A kernel with checks goes on, like one on a GPU; what failed is raised when it has ended.
    assert out.tolist() == ([0, 0] if level == "ptx" else [-99, -99])


def test_one_that_becomes_a_constant_is_an_error_too():
    for level in LEVELS[:3]:
        with knobs.scope(run=level), pytest.raises(InterpreterError, match="step of this loop"):
            folded[(1,)](np.zeros(1, np.int32), 5)


def test_a_constant_zero_is_refused():
    with pytest.raises(CompilationError, match="must not be 0"):
        baked[(1,)](np.zeros(2, np.int32), 0, 5, S=0)


@pytest.mark.parametrize("level", LEVELS[:3])
def test_unsigned_steps(level):
    out = np.zeros(1, np.int32)
    with knobs.scope(run=level):
        unsigned[(1,)](out, 4000000000, 1000000000)
        assert out == 4
        with pytest.raises(InterpreterError, match="step of this loop is 0"):
            unsigned[(1,)](out, 5, 0)


def test_a_step_of_all_programs_is_as_it_was():
    out = np.full(40, -1, np.int32)
    kernel = persistent[(3,)](out, 5, B=8)
    np.testing.assert_array_equal(out, (np.arange(5)[:, None] + np.arange(8)).ravel())
    assert "assert" not in kernel.asm["tile"]
