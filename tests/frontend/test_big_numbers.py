"""Integers and sequences at compile time that no type and no memory holds."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec.errors import CompilationError


@tilec.jit
def added(x, o):
    i = tl.arange(0, 4)
    tl.store(o + i, tl.load(x + i) + 10 ** 400)
    tl.store(o + 4 + i, tl.load(x + i) - 10 ** 400)
    tl.store(o + 8 + i, tl.full((4,), 2 ** 4000, tl.float32))


def test_floats_overflow_to_infinity() -> None:
    out = np.zeros(12, np.float32)
    added[(1,)](np.array([1, -2, np.inf, 3e38], np.float32), out)
    np.testing.assert_array_equal(out[:4], np.inf)
    np.testing.assert_array_equal(out[4:], [-np.inf, -np.inf, np.nan, -np.inf] + [np.inf] * 4)


@tilec.jit
def power(o):
    tl.store(o, 10 ** 10 ** 9)


@tilec.jit
def shift(o):
    tl.store(o, 1 << 10 ** 12)


@tilec.jit
def bound(o):
    for _ in range(10 ** 5000):
        tl.store(o, 1)


@tilec.jit
def items(o):
    many = (1, 2) * 10 ** 9
    tl.store(o, many[0])


@tilec.jit
def comprehension(o):
    many = [i + 1 for i in range(10 ** 12)]
    tl.store(o, many[0])


@pytest.mark.parametrize(("kernel", "message", "column"), [
    (power, "an integer of more than 4096 bits", 17), (shift, "more than 4096 bits", 17),
    (bound, "an integer of more than 4096 bits", 20), (items, "more than 1048576 items", 12),
    (comprehension, "more than 1048576 items", 13)])
def test_what_no_memory_holds(kernel: tilec.JITFunction, message: str, column: int) -> None:
    with pytest.raises(CompilationError, match=message) as caught:
        kernel[(1,)](np.zeros(1, np.int32))
    assert caught.value.loc is not None and caught.value.loc.col + 1 >= column
