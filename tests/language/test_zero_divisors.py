"""What is divided by zero is poison that a `where` drops, at every level: code generation must not
conclude from a division that its divisor is none."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.support.explicit import LEVELS


@tilec.jit
def guarded(a_ptr, b_ptr, q_ptr, r_ptr, u, BLOCK: tl.constexpr):
    """Quotients and remainders of tiles and by a scalar, 7 where the divisor is 0."""
    at = tl.arange(0, BLOCK)
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    u = u.to(a.dtype)
    tl.store(q_ptr + at, tl.where(b == 0, 7, a // b))
    tl.store(r_ptr + at, tl.where(b == 0, 7, a % b))
    tl.store(q_ptr + BLOCK + at, tl.where(u == 0, 7, a // u))
    tl.store(r_ptr + BLOCK + at, tl.where(u == 0, 7, a % u))


def truncated(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """Quotients toward zero and what is left, 7 where b is 0; the least integer by -1 wraps."""
    bits, rows = 8 * a.itemsize, []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        quotient = (-1 if (x < 0) != (y < 0) else 1) * (abs(x) // abs(y)) if y else 7
        rows.append((quotient % 2**bits, (x - y * quotient if y else 7) % 2**bits))
    unsigned = np.dtype(f"u{a.itemsize}")
    return [np.array(column, unsigned).view(a.dtype) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32,
                                   np.int64, np.uint64])
@pytest.mark.parametrize("scalar", [0, 5])
def test_zero_divisors(dtype, scalar, rng):
    info = np.iinfo(dtype)
    a = rng.integers(info.min, info.max, 64, dtype, endpoint=True)
    b = rng.integers(max(info.min, -3), 4, 64, dtype)
    a[:4], b[:4] = [info.min, info.min, info.max, 0], np.array([-1, 0, 0, 0]).astype(dtype)
    q, r = np.empty(128, dtype), np.empty(128, dtype)
    want = [np.concatenate(x) for x in zip(truncated(a, b), truncated(
        a, np.full(64, scalar, dtype)), strict=True)]
    kernel = guarded.warmup(a, b, q, r, scalar, BLOCK=64, grid=(1,), target="sm_90a")
    for level in LEVELS:
        q[...] = r[...] = 99
        kernel.run([a, b, q, r, scalar], 1, level=level)
        np.testing.assert_array_equal(q, want[0], level)
        np.testing.assert_array_equal(r, want[1], level)
