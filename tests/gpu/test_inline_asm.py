"""Inline PTX on the GPU, against numpy; and sines of large numbers."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.codegen.test_elementwise import below_two_pi
from tests.gpu.test_levels import OnDevice
from tests.language import test_inline_asm as inline

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", inline.CASES)
def test_values(case: str, rng: np.random.Generator) -> None:
    of, to, asm, constraints, pack, meaning = inline.CASES[case]
    x, y = inline.drawn(rng, of), inline.drawn(rng, of)
    with np.errstate(over="ignore"):
        want = np.asarray(meaning(x, y))
    for block in (32, 512):
        out = OnDevice(np.full(inline.N + 3, 99).astype(want.dtype))
        kept = out.get()[inline.N:]
        inline.one[(-(-inline.N // block),)](OnDevice(x), OnDevice(y), out, inline.N, ASM=asm,
                                             CONSTRAINTS=constraints, TO=to, PACK=pack, B=block)
        np.testing.assert_array_equal(out.get()[:inline.N], want)
        np.testing.assert_array_equal(out.get()[inline.N:], kept)


def test_several_results_and_scalars(rng: np.random.Generator) -> None:
    x, j = rng.integers(-2**31, 2**31, 19).astype(np.int32), np.arange(4, dtype=np.int32)
    out = [OnDevice(np.full((19, 4), 7, t)) for t in (np.int32, np.int32, np.int64)]
    inline.several[(1,)](OnDevice(x), *out, 19, B=32)
    want = x[:, None] + j, x[:, None] - j, x[:, None].astype(np.int64) * j
    for got, exact in zip(out, want):
        np.testing.assert_array_equal(got.get(), exact)
    counts, bits = OnDevice(np.full(9, 7, np.int32)), rng.integers(0, 2**32, 9, np.uint32)
    inline.scalars[(9,)](OnDevice(bits), counts, 9)
    np.testing.assert_array_equal(counts.get(), [bin(v).count("1") + 5 for v in bits.tolist()])


@tilec.jit
def sines(x, s, c, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, i < n, other=0.0)
    tl.store(s + i, tl.sin(v), i < n)
    tl.store(c + i, tl.cos(v), i < n)


@pytest.mark.parametrize(("dtype", "highest", "bound"), [("f4", 128, 2.0**-22),
                                                         ("f8", 1024, 2.0**-48)])
def test_sines_of_large_arguments(dtype: str, highest: int, bound: float,
                                  rng: np.random.Generator) -> None:
    x = (rng.uniform(0.5, 1, 3000) * 2.0 ** rng.uniform(-3, highest, 3000)).astype(dtype)
    x[:4] = [np.finfo(dtype).max, 65536, 65537, 1e22]
    x *= rng.choice([-1, 1], 3000).astype(dtype)
    found = [OnDevice(np.full(3000, 9, dtype)) for _ in range(2)]
    sines[(6,)](OnDevice(x), *found, 3000, B=512)
    for got, exact in zip(found, (np.sin, np.cos)):
        assert np.abs(got.get() - exact(below_two_pi(x))).max() <= bound
