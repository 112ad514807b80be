"""Idioms of public Triton kernels that lean on what Triton lets pass."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec import knobs

LEVELS = ("tile", "gpu", "lowered", "ptx")


@tilec.jit
def like_options(out, n, num_stages: tl.constexpr, num_warps: tl.constexpr = 4):
    for i in tl.range(0, n, num_stages=num_stages):
        tl.store(out + i, num_stages * 100 + num_warps * 10 + i)


@pytest.mark.parametrize("level", LEVELS)
def test_parameters_named_like_options_are_both(level):
    with knobs.scope(run=level):
        out = np.full(7, -1, np.int32)
        kernel = like_options[1](out, 5, num_stages=2, num_warps=8)
        assert out.tolist() == [280, 281, 282, 283, 284, -1, -1]
        assert (kernel.options.num_stages, kernel.options.num_warps) == (2, 8)
        kernel = like_options[1](out, 5, 3)  # by position: a parameter alone
        assert out.tolist() == [340, 341, 342, 343, 344, -1, -1]
        assert kernel.options.num_warps == 4


@tilec.jit
def take(x_ptr, at: tl.constexpr, LIMIT: tl.constexpr):
    return tl.load(x_ptr + at, mask=at < LIMIT, other=7)


@tilec.jit
def taken(x_ptr, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, take(x_ptr, at, n) + take(x_ptr, 1, 2))


@pytest.mark.parametrize("level", LEVELS)
def test_constexpr_parameters_of_helpers_take_tensors(level, rng):
    x, out = rng.integers(-99, 99, 16, np.int32), np.full(16, -1, np.int32)
    with knobs.scope(run=level):
        taken[1](x, out, 11, BLOCK=16)
    assert np.array_equal(out, np.where(np.arange(16) < 11, x, 7) + x[1])


@tilec.jit
def scaled(x_ptr, weight_ptr, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    if weight_ptr:
        x *= tl.load(weight_ptr + at)
    tl.store(out + at, x)


@pytest.mark.parametrize("level", LEVELS)
def test_a_pointer_is_a_condition(level, rng):
    x, w = rng.random((2, 8), np.float32)
    with knobs.scope(run=level):
        for weight, want in ((w, x * w), (None, x)):
            out = np.full(8, np.nan, np.float32)
            scaled[1](x, weight, out, BLOCK=8)
            assert np.array_equal(out, want)


@tilec.heuristics({"BACKWARD": lambda a: bool(a["BACKWARD"]), "SIZE": lambda a: 4 + a["BACKWARD"]})
@tilec.jit
def guessed(out, BACKWARD: tl.constexpr, SIZE: tl.constexpr):
    tl.static_assert(BACKWARD is True or BACKWARD is False)
    tl.store(out, SIZE)


def test_a_heuristic_replaces_what_is_given_by_name():
    out = np.zeros(1, np.int32)
    for given, want in ((3, 5), (0, 4), (True, 5)):
        guessed[1](out, BACKWARD=given)
        assert out[0] == want
    guessed[1](out, BACKWARD=1, SIZE=99)
    assert out[0] == 5


@tilec.jit
def rounded(out, n, N: tl.constexpr):
    at = tl.arange(0, tilec.next_power_of_2(N))
    tl.store(out + at, tilec.cdiv(at - n, 3) + tilec.cdiv(N, 2) * 100)


@pytest.mark.parametrize("level", LEVELS)
def test_host_functions_in_kernels(level):
    out = np.full(16, -1, np.int32)
    with knobs.scope(run=level):
        rounded[1](out, 7, N=11)
    # As `//` does, the quotient goes toward zero.
    want = [int((i - 7 + 2) / 3) + 600 for i in range(16)]
    assert out.tolist() == want


def test_the_power_of_2_of_what_is_not_known():
    @tilec.jit
    def k(out, n):
        tl.store(out, tilec.next_power_of_2(n))

    with pytest.raises(tilec.CompilationError, match="at compile time only, found") as e:
        k[1](np.zeros(1, np.int32), 5)
    assert e.value.loc.file == __file__ and "tl.constexpr" in e.value.advice


def test_names_that_are_no_parameters_are_noted(capsys):
    @tilec.jit(do_not_specialize=["n", "absent"])
    def k(out, n):
        tl.store(out, n)

    assert "`k` has no parameter `absent` to leave unspecialised" in capsys.readouterr().err
    out = np.zeros(1, np.int32)
    k[1](out, 1)
    assert out[0] == 1


@tilec.jit
def doubled(x):
    return x * 2


@tilec.jit
def idle(x_ptr, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    from_here = x_ptr + at * n
    tl.multiple_of(from_here, 16)
    tl.max_constancy(tl.multiple_of(n, 4), 1)
    x = tl.load(from_here)
    if BLOCK > 4:
        n % 3
    x.to(tl.float16)
    doubled(x)
    n == 4  # noqa: B015
    x  # noqa: B018
    "a text"
    tl.static_assert(BLOCK == 8)
    tl.multiple_of(at + 1, 1)
    x = doubled(x)
    tl.store(out + at, x, mask=at < n)


@pytest.mark.parametrize("level", LEVELS)
def test_statements_without_effect_change_nothing(level, rng):
    x, out = rng.random(64, np.float32), np.full(8, -1, np.float32)
    with knobs.scope(run=level):
        idle[1](x, out, 4, BLOCK=8)
    assert np.array_equal(out, np.where(np.arange(8) < 4, 2 * x[::4][:8], -1))


def test_statements_without_effect_are_remarks(capfd):
    with knobs.scope(remarks="1"):
        kernel = tilec.compile(idle, {"x_ptr": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 8})
    first = idle.first_line + 8
    lines = [int(line.split(":")[1]) for line in capfd.readouterr().err.splitlines()
             if "statement: this has no effect" in line]
    assert lines == [first, *range(first + 1, first + 5), first + 7]
    text = kernel.asm["tile"]
    assert "{divisibility = [16]}" in text and "{divisibility = [4]}" in text


def test_a_hint_as_a_statement_is_checked():
    out = np.zeros(8, np.float32)
    with pytest.raises(tilec.InterpreterError, match="multiple") as e:
        idle[1](np.zeros(65, np.float32), out, 3, BLOCK=8)
    assert e.value.loc.line == idle.first_line + 4


@tilec.jit
def promised(x_ptr, out, n, flag):
    rows = x_ptr + n
    for i in range(2):
        if i == flag:
            tl.multiple_of(rows, 8)
        tl.store(out + i, tl.load(rows + i))
        rows += 2
    tl.store(out + 2, tl.load(rows))


@pytest.mark.parametrize("level", LEVELS)
def test_hints_as_statements_in_branches_and_loops(level, rng):
    x, out = rng.random(64, np.float32), np.full(3, -1, np.float32)
    with knobs.scope(run=level):
        promised[1](x, out, 6, 1)
    assert np.array_equal(out, [x[6], x[9], x[10]])


def test_a_limit_of_256_registers():
    kernel = tilec.compile(doubled_all, {"x_ptr": "*fp32"}, target="sm_90a", maxnreg=256)
    assert kernel.n_regs <= 255


@tilec.jit
def doubled_all(x_ptr):
    at = x_ptr + tl.arange(0, 128)
    tl.store(at, doubled(tl.load(at)))
