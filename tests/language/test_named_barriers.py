"""Named barriers between warp roles: the same values at every level, and mistakes named."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from tests.support.explicit import LEVELS, everywhere
from tilec.errors import CompilationError, InterpreterError, TilecError

describe = tilec.TensorDescriptor.from_tensor


# -- one buffer, full and empty -------------------------------------------------------------------

@tilec.jit
def produce(x, n, rounds, buffer, full, empty):
    """Doubled parts of x into the buffer, part after part."""
    B: tl.constexpr = buffer.shape[0]
    for i in range(rounds):
        at = i * B + tl.arange(0, B)
        part = tl.load(x + at, mask=at < n, other=0) * 2
        if i > 0:
            empty.sync()
        buffer.store(part)
        full.arrive()


@tilec.jit
def consume(y, total, n, rounds, buffer, full, empty):
    """The buffer's parts to y, and the sum of all that is in them to total."""
    B: tl.constexpr = buffer.shape[0]
    acc = tl.zeros((), y.dtype.element_ty)
    for i in range(rounds):
        at = i * B + tl.arange(0, B)
        full.sync()
        part = buffer.load()
        empty.arrive()
        tl.store(y + at, part, mask=at < n)
        acc += tl.sum(part, 0)
    tl.store(total, acc)


@tilec.jit
def handed_over(x, y, total, n, B: tl.constexpr, WARPS: tl.constexpr, GIVE: tl.constexpr,
                TAKE: tl.constexpr):
    buffer = tlg.alloc_shared((B,), y.dtype.element_ty)
    full, empty = tlg.named_barrier(WARPS[0] + WARPS[1]), tlg.named_barrier(WARPS[0] + WARPS[1])
    rounds = tl.cdiv(n, B)
    tlg.warp_specialize([(GIVE, (x, n, rounds, buffer, full, empty)),
                         (TAKE, (y, total, n, rounds, buffer, full, empty))], num_warps=WARPS)


def handing_over(args, warps, give=produce, take=consume):
    return handed_over.warmup(*args, B=128, WARPS=warps, GIVE=give, TAKE=take, grid=(1,),
                              target="sm_90a", num_warps=sum(warps))


@pytest.mark.parametrize("warps, dtype", [
    ((1, 1), np.float32), ((2, 1), np.int32), ((4, 2), np.float16), ((4, 8), np.float32)], ids=str)
def test_roles_hand_tiles_over(warps, dtype, rng):
    n = 613
    x = rng.integers(-9, 9, n).astype(dtype)
    y, total = np.empty(n, dtype), np.empty(1, dtype)
    args = [x, y, total, n]
    kernel = handing_over(args, warps)
    everywhere(kernel, args, 1, y, x * 2)
    for seed in range(4):
        for level in LEVELS:
            y[...], total[...] = -1, -1
            kernel.run(args, 1, level=level, seed=seed)
            np.testing.assert_array_equal(y, x * 2, level)
            assert total[0] == x.astype(np.float64).sum() * 2
    threads = 32 * sum(warps)
    for number in (15, 14):
        assert f"bar.sync {number}, {threads};" in kernel.asm["ptx"]
        assert f"bar.arrive {number}, {threads};" in kernel.asm["ptx"]
