"""Ranges of what a kernel computes, against every number that it might."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
import pytest

from tilec.errors import LaunchError
from tilec.runtime.ranges import Range, of_texts


def truncated(a: int, b: int) -> int:
    return int(a / b)


def remainder(a: int, b: int) -> int:
    return a - b * truncated(a, b)


MEANING: dict[str, Any] = {"+": operator.add, "-": operator.sub, "*": operator.mul,
                           "//": truncated, "%": remainder, "min": min, "max": max}


@pytest.mark.parametrize("sign", MEANING)
def test_every_number_is_in_its_range(sign: str, rng) -> None:
    text = f"{sign}(t0, t1)" if sign.isalpha() else f"t0 {sign} t1"
    for _ in range(60):
        a, b = rng.integers(-9, 10, 2)
        m, n = rng.integers(1, 7, 2)
        ranges = of_texts(["p0 + $3", "p1 + $5", text])
        values, grid = {3: int(a), 5: int(b)}, (int(m), int(n), 1)
        if sign in ("//", "%") and 0 in range(b, b + n):
            with pytest.raises(ZeroDivisionError):
                ranges(values, grid)
            continue
        *_, found = ranges(values, grid)
        numbers = [MEANING[sign](int(x), int(y)) for x, y in itertools.product(
            range(a, a + m), range(b, b + n))]
        assert found.low <= min(numbers) and max(numbers) <= found.high
        if sign in ("+", "-", "*", "//", "min", "max"):
            assert (found.low, found.high) == (min(numbers), max(numbers))


def test_indices() -> None:
    ranges = of_texts(["index(0, $0, 64)", "index(p0, $0, n0)", "index(4, 2, 1)", "t0 * -1 + n2",
                        "index(5, $0, 4)", "index(5, $0 - 2, 4)"])
    found = ranges({0: 130}, (4, 1, 5))
    assert found == [Range(0, 128), Range(0, 129), Range(4, 4), Range(-123, 5), Range(5, 129),
                     Range(5, 125)]


def test_programs_in_groups() -> None:
    """Each grid that has a program a tile and no more, and one that has more."""
    texts = ["p0 // $1", "t0 * $1", "p0 % $1", "t1 + t2", "$1 * 8", "t3 // t4", "t3 % t4",
             "t5 * 8", "$0 - t7", "min(t8, 8)", "t6 // t9"]
    ranges = of_texts(texts)
    for down, across in np.ndindex(40, 7):
        grid = ((down + 1) * (across + 1), 1, 1)
        assert ranges({0: down + 1, 1: across + 1}, grid)[-1].low == 0
    for rows, programs in ((8, 64), (9, 128)):
        with pytest.raises(ZeroDivisionError):  # a group of no rows
            ranges({0: rows, 1: 4}, (programs, 1, 1))


def test_what_is_refused() -> None:
    for text in ("__import__('os')", "v[0]", "p0 ** 2", "q0", "p0 +", "p3", "t0", "min(p0)"):
        with pytest.raises(LaunchError, match="is no expression over parameters"):
            of_texts([text])({}, (1, 1, 1))
    for value in (1 << 31, -(1 << 31) - 1, 70_000):
        with pytest.raises(OverflowError):
            of_texts(["$0 * $0"])({0: value}, (1, 1, 1))
