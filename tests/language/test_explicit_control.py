"""Control flow, and plain tl that passes transform, around ops of the explicit level."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from tests.support.explicit import HOPPER, both, everywhere

describe = tilec.TensorDescriptor.from_tensor


@tilec.jit
def places():
    return tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]


@tilec.jit
def unrolled(a, b, p_ptr, c_ptr, n):
    x, y = both(a, b)
    acc = tl.zeros((64, 64), tl.float32)
    for _ in tl.range(n, loop_unroll_factor=2, num_stages=3):
        acc = tlg.wgmma_wait(1, tlg.wgmma(x, y, acc))
    tl.store(c_ptr + places(), tlg.wgmma_wait(0, acc))


@tilec.jit
def flattened(a, b, p_ptr, c_ptr, n):
    """A nest that asks for what would copy a product under way: it stays a nest."""
    x, y = both(a, b)
    total = tl.zeros((64, 64), tl.float32)
    for _ in tl.range(n, flatten=True):
        acc = tl.zeros((64, 64), tl.float32)
        for _ in tl.range(2):
            acc = tlg.wgmma_wait(1, tlg.wgmma(x, y, acc))
        total += tlg.wgmma_wait(0, acc)
    tl.store(c_ptr + places(), total)


@tilec.jit
def by_condition(a, b, p_ptr, c_ptr, n):
    """A `while`, an `if` and a product under way through both."""
    x, y = both(a, b)
    acc, i = tl.zeros((64, 64), tl.float32), 0
    while i < n:
        if i != 2:
            acc = tlg.wgmma(x, y, acc)
        i += 1
    tl.store(c_ptr + places(), tlg.wgmma_wait(0, acc))


@tilec.jit
def beside_loads(a, b, p_ptr, c_ptr, n):
    """Loads that feed a dot, which a pipeline would start early, beside a buffer that changes."""
    x = tlg.alloc_shared((64, 64), tl.float32)
    acc = tl.zeros((64, 64), tl.float32)
    for i in tl.range(n, num_stages=3):
        acc = tl.dot(tl.load(p_ptr + places()), tl.load(p_ptr + places()), acc)
        x.store(acc * 0 + i)
        acc += x.T.load()
    tl.store(c_ptr + places(), acc)


@tilec.jit
def again(a, b, p_ptr, c_ptr, n):
    """Products that add to what pointers give, and to a tile with a layout of the author's."""
    x, y = both(a, b)
    acc = tlg.wgmma_wait(0, tlg.wgmma(x, y, tl.load(p_ptr + places()).to(tl.float32)))
    acc = tlg.convert_layout(acc, tlg.Blocked([1, 4], [2, 16], [4, 1], [1, 0]))
    acc = tlg.wgmma_wait(0, tlg.wgmma(x, y, acc))
    tl.store(c_ptr + places(), tl.sum(acc, 1)[:, None] + tl.zeros((64, 64), tl.float32))


WANTED = {
    unrolled: lambda ab, pp, p, n: n * ab,
    flattened: lambda ab, pp, p, n: 2 * n * ab,
    by_condition: lambda ab, pp, p, n: (n - (n > 2)) * ab,
    beside_loads: lambda ab, pp, p, n: n * pp + n * (n - 1) // 2,
    again: lambda ab, pp, p, n: np.repeat((2 * ab + p).sum(1, keepdims=True), 64, 1),
}


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("kernel", WANTED, ids=lambda k: k.name)
@pytest.mark.sample(4)
def test_control_flow(kernel, n, rng):
    a, b, p = (rng.integers(-3, 4, (64, 64)).astype(np.float16) for _ in range(3))
    c = np.empty((64, 64), np.float32)
    args = [describe(a, (64, 64)), describe(b, (64, 64)), p, c, n]
    made = kernel.warmup(*args, grid=(1,), **HOPPER)
    given = args[:-1] if n == 1 else args  # a 1 is a constant
    a, b, p = (x.astype(np.float32) for x in (a, b, p))
    everywhere(made, given, 1, c, WANTED[kernel](a @ b, p @ p, p, n))
    if kernel is beside_loads:
        assert "cp.async.cg" not in made.asm["ptx"]


@tilec.jit
def with_empty(a, b, c_ptr, STAGES: tl.constexpr, BY: tl.constexpr):
    """c = a @ b; a slot is filled again when both warpgroups have arrived, not all threads met."""
    steps = a.shape[1] // 64
    x = tlg.alloc_shared((128, 64), a.dtype, stages=STAGES)
    y = tlg.alloc_shared((64, 64), b.dtype, stages=STAGES)
    full, empty = tlg.mbarrier(stages=STAGES), tlg.mbarrier(count=2, stages=STAGES)
    tlg.barrier()
    for s in range(STAGES):
        if tlg.elect(s < steps, warp=5, by=BY):
            full[s].expect(x.nbytes + y.nbytes)
            tlg.tma.load(a, [0, s * 64], x[s], full[s])
            tlg.tma.load(b, [s * 64, 0], y[s], full[s])
    acc, slot, phase = tl.zeros((128, 64), tl.float32), 0, 0
    for s in range(steps):
        full[slot].wait(phase)
        acc = tlg.wgmma_wait(0, tlg.wgmma(x[slot], y[slot], acc))
        empty[slot].arrive()
        following = s + STAGES
        if tlg.elect(following < steps, warp=5, by=BY):
            empty[slot].wait(phase)
            full[slot].expect(x.nbytes + y.nbytes)
            tlg.tma.load(a, [0, following * 64], x[slot], full[slot])
            tlg.tma.load(b, [following * 64, 0], y[slot], full[slot])
        slot += 1
        phase = tl.where(slot == STAGES, phase ^ 1, phase)
        slot = tl.where(slot == STAGES, 0, slot)
    at = tl.arange(0, 128)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(c_ptr + at, acc)


@pytest.mark.parametrize("by", ["thread", "warp"])
@pytest.mark.parametrize("stages, steps", [(1, 3), (2, 5), (3, 2)])
@pytest.mark.sample(2)
def test_a_ring_with_two_barriers_a_slot(stages, steps, by, rng):
    k = 64 * steps
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((128, k), (k, 64)))
    c = np.empty((128, 64), np.float32)
    args = [describe(a, (128, 64)), describe(b, (64, 64)), c]
    made = with_empty.warmup(*args, STAGES=stages, BY=by, grid=(1,), target="sm_90a", num_warps=8)
    everywhere(made, args, 1, c, a.astype(np.float32) @ b.astype(np.float32))
