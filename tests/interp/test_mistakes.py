"""Mistakes of kernels' authors (tests/support/mistakes.py): what names each, at which line, and
that kernels without them hear nothing."""

import inspect
import re

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.support.mistakes import COMPILE, LAUNCH, MISTAKES, UNKNOWABLE, Mistake
from tests.support.mistakes_explicit import EXPLICIT
from tilec.errors import CompilationError, InterpreterError, TilecError

ALL = MISTAKES | EXPLICIT
NAMED_BY = {name: m.by for name, m in ALL.items()}


def marked(m: Mistake) -> set[int]:
    """The lines of a kernel that are marked."""
    lines, first = inspect.getsourcelines(m.kernel.fn)
    return {first + i for i, line in enumerate(lines) if "# here" in line}


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the interpreter notes, each time."""
    found: list[str] = []
    monkeypatch.setattr("tilec.interp.machine.note", lambda key, text: found.append(text))
    return found


def launch(m: Mistake, right: bool, seed: int = 0, level: str = "tile") -> None:
    grid, args, options = m.call(np.random.default_rng(11), right)
    with tilec.knobs.scope(seed=seed, run=level):
        m.kernel[grid](*args, **options, RIGHT=right)


def line_of(text: str) -> int:
    found = re.match(r"[^\n]*?\.py:(\d+)", text)
    assert found is not None, text
    return int(found[1])


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("name", [n for n, by in NAMED_BY.items() if by in (LAUNCH, COMPILE)])
def test_a_plain_launch_names_it(name: str, seed: int, notes: list[str]) -> None:
    m = ALL[name]
    try:
        launch(m, False, seed)
    except TilecError as e:
        assert isinstance(e, CompilationError) or m.by == LAUNCH
        notes.append(str(e))
    told = [text for text in notes if re.search(m.words, text)]
    assert told, notes
    assert line_of(told[0]) in marked(m), told[0]


@pytest.mark.parametrize("level", ["tile", "lowered"])
@pytest.mark.parametrize("name", ALL)
def test_right_kernels_hear_nothing(name: str, level: str, notes: list[str]) -> None:
    launch(ALL[name], True, level=level)
    assert notes == []


@pytest.mark.parametrize("name", [n for n, by in NAMED_BY.items() if by == UNKNOWABLE])
def test_nobody_can_know(name: str, notes: list[str]) -> None:
    """Silence, as long as it is listed so."""
    launch(ALL[name], False)
    assert notes == []


def test_how_many_are_named() -> None:
    named = [n for n, by in NAMED_BY.items() if by in (LAUNCH, COMPILE)]
    assert len(named) >= 36 and len(ALL) - len(named) <= 3


@tilec.jit
def quiet(x, y, low, top, n, B: tl.constexpr):
    """Casts that are meant, integers with a neutral `other`, elements written twice alike."""
    i = tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=-1000)
    tl.store(low + i, (v * 3).to(tl.int8), mask=i < n)
    tl.store(top, tl.max(v))
    tl.store(y + i // 2, tl.load(x + i // 2, mask=i // 2 < n, other=0), mask=i // 2 < n)


def test_what_is_meant_is_not_noted(notes: list[str]) -> None:
    x = np.random.default_rng(5).integers(-900, -100, 50).astype(np.int32)
    low, top = np.zeros(50, np.int8), np.zeros(1, np.int32)
    quiet[(1,)](x, np.zeros(50, np.int32), low, top, 50, B=64)
    assert notes == [] and top[0] == x.max()
    np.testing.assert_array_equal(low, (x * 3).astype(np.int8))


@pytest.mark.parametrize("level", ["tile", "gpu", "lowered"])
def test_what_a_pass_adds_to_a_mask_is_not_blamed(level: str, notes: list[str]) -> None:
    """Loads that begin some rounds ahead are masked by the loop's bound."""
    m = MISTAKES["K no multiple of the block"]
    grid, args, options = m.call(np.random.default_rng(1), False)
    with tilec.knobs.scope(run=level), pytest.raises(InterpreterError) as error:
        m.kernel[grid](*args, **options, RIGHT=False, num_stages=3)
    assert error.value.message.endswith("there is no mask")


@tilec.jit
def grows(x, o, n, B: tl.constexpr, SQUARES: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    for _ in range(n):
        v = tl.fma(v, v, v) if SQUARES else v + v
    tl.store(o + i, v)


@pytest.mark.parametrize("squares", [False, True])
def test_what_a_loop_adds_to_itself_in_16_bits(squares: bool, rng: np.random.Generator,
                                               notes: list[str]) -> None:
    x = (rng.integers(-8, 8, 32) / 8).astype(np.float16)
    out, want = np.full_like(x, np.nan), x.astype(np.float64)
    for _ in range(2):
        want = want * want + want if squares else 2 * want
    with tilec.knobs.scope(run="tile"):
        grows[(1,)](x, out, 2, B=32, SQUARES=squares)
    np.testing.assert_allclose(out.astype(np.float64), want, rtol=2e-3, atol=1e-3)
    assert not notes
