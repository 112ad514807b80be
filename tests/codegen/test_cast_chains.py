"""Chains of casts whose integers have few significant bits: LLVM must not take them for exact."""

import numpy as np
import pytest

import tilec
import tilec.language as tl


@tilec.jit
def chained(x, o, STEP: tl.constexpr, FIRST: tl.constexpr, NARROW: tl.constexpr):
    i = tl.arange(0, 64)
    n = ((tl.load(x + i) & 63) * STEP).to(FIRST)
    tl.store(o + i, n.to(NARROW).to(o.dtype.element_ty))


@pytest.mark.parametrize("first", [tl.float32, tl.float16, tl.float64], ids=str)
@pytest.mark.parametrize(("source", "step"), [
    (np.int32, 1 << 25), (np.uint32, 1 << 12), (np.int64, 1 << 57), (np.int64, -(1 << 20)),
    (np.uint64, 1 << 14)])
def test_integers_that_overflow_f16_are_infinite_there(source, step, first, rng) -> None:
    x = rng.integers(0, 64, 64).astype(source)
    with np.errstate(all="ignore"):
        want = (x.astype(source) * np.array(step).astype(source)).astype(np.float64).astype(
            np.float16)
    assert np.isinf(want).any()
    for result in (np.float32, np.int64, np.float16):
        out = np.zeros(64, result)
        made = tilec.compile(chained, {"x": f"*{np.dtype(source).name}:16",
                                       "o": f"*{np.dtype(result).name}:16"},
                             {"STEP": step, "FIRST": first, "NARROW": tl.float16}, num_warps=1)
        made.run([x, out], 1, level="ptx")
        if result is np.int64:
            ends = np.iinfo(np.int64)
            right = np.where(want == np.inf, ends.max, np.where(
                want == -np.inf, ends.min, np.where(np.isinf(want), 0, want).astype(np.int64)))
        else:
            right = want.astype(result)
        np.testing.assert_array_equal(out, right)
