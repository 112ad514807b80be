"""Reductions and scans of arrays: every extent, in order, with few calls of the function."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.eval.combining import reduced, scanned


def spans(n: int) -> list[np.ndarray]:
    """Half-open spans [i, i + 1), of which only neighbours may be joined."""
    return [np.arange(n), np.arange(1, n + 1)]


def join(a: list[np.ndarray], b: list[np.ndarray]) -> list[np.ndarray]:
    np.testing.assert_array_equal(a[1], b[0])
    return [a[0], b[1]]


@pytest.mark.parametrize("n", [*range(1, 34), 100, 1000])
def test_a_scan_joins_neighbours_in_their_order(n: int) -> None:
    first, end = scanned(spans(n), join)
    assert not first.any()
    np.testing.assert_array_equal(end, np.arange(1, n + 1))


@pytest.mark.parametrize("n", [1, 2, 7, 64, 1000])
def test_calls_grow_with_the_logarithm(n: int) -> None:
    calls = []

    def add(a: list[np.ndarray], b: list[np.ndarray]) -> list[np.ndarray]:
        calls.append(a[0].size)
        return [a[0] + b[0]]

    x = np.random.default_rng(n).integers(-9, 9, (3, n))
    np.testing.assert_array_equal(scanned([x], add)[0], x.cumsum(1))
    assert len(calls) <= 2 * n.bit_length() and sum(calls) <= 2 * x.size
    calls.clear()
    np.testing.assert_array_equal(reduced([x], add)[0], x.sum(1))
    assert sum(calls) == 3 * (n - 1)
