"""TILEC_STRICT=0, for existing code: masked-off lanes without `other` are 0, hints are not checked;
what strictness refuses names the switch."""

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec.errors import InterpreterError

LEVELS = ("tile", "gpu", "lowered", "ptx")


@tilec.jit
def totals(x, o, n, W: tl.constexpr, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    block = tl.make_block_ptr(x, (n,), (1,), (row * W,), (B,), (0,))
    tl.store(o + 2 * row, tl.sum(tl.load(x + row * W + i, mask=i < W)))
    tl.store(o + 2 * row + 1, tl.sum(tl.load(block, boundary_check=(0,)) + 1))


@tilec.jit
def hinted(x, o, n, B: tl.constexpr):
    i = tl.max_contiguous(tl.multiple_of(tl.arange(0, B) % n, B), B)
    tl.store(o + tl.arange(0, B), tl.load(x + i))


def launch_totals(level: str, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal(3 * 21).astype(np.float32)
    out = np.full(6, np.nan, np.float32)
    with tilec.knobs.scope(run=level):
        totals[(3,)](x, out, x.size, W=21, B=32)
    wide = np.append(x, np.zeros(32)).astype(np.float64)
    want = [s for r in range(3) for s in (wide[21 * r:21 * r + 21].sum(),
                                          wide[21 * r:21 * r + 32].sum() + 32)]
    return out, np.array(want)


@pytest.mark.parametrize("level", LEVELS)
def test_masked_off_lanes_are_zero(level: str) -> None:
    with tilec.knobs.scope(strict=False):
        out, want = launch_totals(level)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


def test_refusals_name_the_switch() -> None:
    with pytest.raises(InterpreterError, match="TILEC_STRICT=0"):
        launch_totals("tile")
    x = np.arange(16, dtype=np.float32)
    with pytest.raises(InterpreterError, match="TILEC_STRICT=0"):
        hinted[(1,)](x, np.zeros(16, np.float32), 7, B=16)


@pytest.mark.parametrize("level", ["tile", "gpu", "lowered"])
def test_false_hints_pass(level: str) -> None:
    x, out = np.random.default_rng(3).standard_normal(16).astype(np.float32), np.zeros(16, "f4")
    with tilec.knobs.scope(strict="0", run=level):
        hinted[(1,)](x, out, 7, B=16)
    np.testing.assert_array_equal(out, x[np.arange(16) % 7])


def test_what_is_compiled_does_not_depend_on_it() -> None:
    made = []
    for strict in (True, False):
        with tilec.knobs.scope(strict=strict, cache=False):
            spec = {"x": "*fp32:16", "o": "*fp32:16", "n": "i32"}
            made.append(tilec.compile(totals, spec, {"W": 21, "B": 32}).asm["ptx"])
    assert made[0] == made[1]


def test_division_by_zero_stays_an_error() -> None:
    @tilec.jit
    def ratio(x, o, B: tl.constexpr):
        i = tl.arange(0, B)
        tl.store(o + i, 12 // tl.load(x + i))

    with tilec.knobs.scope(strict=False), pytest.raises(InterpreterError, match="by zero") \
            as error:
        ratio[(1,)](np.arange(8, dtype=np.int32), np.zeros(8, np.int32), B=8)
    assert "STRICT" not in str(error.value)
