"""What atomics put in place of what they find, against plain Python."""

from __future__ import annotations

import itertools
import struct

import ml_dtypes
import numpy as np
import pytest

from tilec.eval.atomics import UPDATES, in_turn, order

FLOATS = {np.dtype(np.float16): "<e", np.dtype(np.float32): "<f", np.dtype(np.float64): "<d"}


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_order_is_that_of_numbers(dtype) -> None:
    """-inf < ... < -0.0 < 0.0 < ... < inf < NaN, and a NaN with its sign bit set below all."""
    values = [-np.inf, -3.5, -1.0, -2.0**-14, -0.0, 0.0, 2.0**-14, 1.0, 3.5, np.inf, np.nan]
    x = np.array(values).astype(dtype)
    assert (np.diff(order(x).astype(object)) > 0).all()
    negative = np.copysign(x[-1:], dtype.type(-1))
    assert order(negative)[0] < order(x)[0]
    bits = order(x)
    assert order(bits.view(dtype)).tobytes() == x.tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_order_is_that_of_python(dtype, rng) -> None:
    x = rng.integers(0, 256, (200, dtype.itemsize), np.uint8).view(dtype)[:, 0]
    x = x[np.isfinite(x)]
    keys = order(x)
    for i, j in itertools.product(range(0, len(x), 7), range(0, len(x), 5)):
        a, b = (struct.unpack(FLOATS[dtype], x[k].tobytes())[0] for k in (i, j))
        if a != b:
            assert (keys[i] < keys[j]) == (a < b)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64], ids=str)
def test_integers(dtype, rng) -> None:
    info = np.iinfo(dtype)
    old, new = (rng.integers(info.min, info.max, 40, dtype, endpoint=True) for _ in range(2))
    modulus = 1 << info.bits
    meaning = {"add": lambda a, b: a + b, "max": max, "min": min, "and": lambda a, b: a & b,
               "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "xchg": lambda a, b: b}
    for kind, python in meaning.items():
        got = UPDATES[kind](old, new)
        want = [python(a, b) % modulus for a, b in zip(old.tolist(), new.tolist())]
        assert [int(v) % modulus for v in got] == want, kind


def test_a_swap_compares_bits() -> None:
    old = np.array([0.0, -0.0, np.nan, 1.0], np.float32)
    compare = np.array([-0.0, -0.0, np.nan, 1.0], np.float32)
    got = UPDATES["cas"](old, compare, np.full(4, 9, np.float32))
    np.testing.assert_array_equal(got, [0, 9, 9, 9])
    assert not np.signbit(got[0])


@pytest.mark.parametrize("count", [1, 2, 37, 200])
def test_turns_have_each_element_once_and_keep_the_order_of_lanes(count, rng) -> None:
    index = rng.integers(0, 9, count)
    turns = list(in_turn(index))
    assert sorted(np.concatenate(turns).tolist()) == list(range(count))
    for lanes in turns:
        assert len(set(index[lanes].tolist())) == len(lanes)
    for element in set(index.tolist()):
        order_of = [int(lane) for lanes in turns for lane in lanes if index[lane] == element]
        assert order_of == sorted(order_of)
