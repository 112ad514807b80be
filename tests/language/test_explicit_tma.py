"""The explicit level's copies of rows, and sums in global memory, by TMA."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from tests.support.explicit import HOPPER, LEVELS, everywhere
from tilec.errors import CompilationError, TilecError
from tilec.sim import SimError

describe = tilec.TensorDescriptor.from_tensor


@tilec.jit
def added(x, out, SAME: tl.constexpr):
    """out += x, each program its block of x; all at one place if SAME."""
    rows: tl.constexpr = x.block_shape[0]
    buffer, ready = tlg.alloc_shared(x.block_shape, x.dtype), tlg.mbarrier()
    tlg.barrier()
    ready.expect(buffer.nbytes)
    tlg.tma.load(x, [tl.program_id(0) * rows, 0], buffer, ready)
    ready.wait(0)
    tlg.tma.atomic_add(out, [0 if SAME else tl.program_id(0) * rows, 0], buffer)
    tlg.tma.store_commit()
    tlg.tma.store_wait(read=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint32,
                                   np.int64])
@pytest.mark.parametrize("same", [False, True])
def test_atomic_add(dtype, same, rng):
    """Small integers, whose sums are exact in any order; the last block is ragged."""
    x = rng.integers(0, 9, (100, 48)).astype(dtype)
    begin = rng.integers(0, 9, (100, 48)).astype(dtype)
    blocks = np.zeros((128, 48)), np.zeros((128, 48))
    blocks[0][:100] = x
    if same:
        blocks[1][:32] = blocks[0].reshape(4, 32, 48).sum(0)
    else:
        blocks[1][...] = blocks[0]
    want = begin.astype(np.float64) + blocks[1][:100]
    out = np.empty_like(begin)
    args = [describe(x, (32, 48)), describe(out, (32, 48))]
    kernel = added.warmup(*args, SAME=same, grid=(4,), **HOPPER)
    for level in LEVELS:
        out[...] = begin
        kernel.run([*args], 4, level=level, seed=3)
        np.testing.assert_array_equal(out.astype(np.float64), want, level)
    assert "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add" in kernel.asm["ptx"]


@tilec.jit
def combined(x, out, KIND: tl.constexpr):
    """Each program combines its block of x with one block of out."""
    buffer, ready = tlg.alloc_shared(x.block_shape, x.dtype), tlg.mbarrier()
    tlg.barrier()
    ready.expect(buffer.nbytes)
    tlg.tma.load(x, [tl.program_id(0) * x.block_shape[0], 0], buffer, ready)
    ready.wait(0)
    if KIND == "max":
        tlg.tma.atomic_max(out, [0, 0], buffer)
    elif KIND == "min":
        tlg.tma.atomic_min(out, [0, 0], buffer)
    elif KIND == "and":
        tlg.tma.atomic_and(out, [0, 0], buffer)
    elif KIND == "or":
        tlg.tma.atomic_or(out, [0, 0], buffer)
    else:
        tlg.tma.atomic_xor(out, [0, 0], buffer)
    tlg.tma.store_commit()
    tlg.tma.store_wait(read=True)


KINDS = {"max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
         "xor": np.bitwise_xor}


@pytest.mark.parametrize(("kind", "dtype"), [
    *((k, t) for k in KINDS for t in (np.int32, np.uint32, np.uint64)),
    *((k, t) for k in ("max", "min") for t in (np.float16, ml_dtypes.bfloat16)),
    *((k, np.int64) for k in ("and", "or", "xor"))])
def test_atomics(kind, dtype, rng):
    low = -99 if np.dtype(dtype).kind != "u" else 0
    x, begin = (rng.integers(low, 99, (64, 32)).astype(dtype) for _ in range(2))
    want = begin.copy()
    for block in x.reshape(4, 16, 32):
        want[:16] = KINDS[kind](want[:16], block)
    out = np.empty_like(begin)
    args = [describe(x, (16, 32)), describe(out, (16, 32))]
    kernel = combined.warmup(*args, KIND=kind, grid=(4,), **HOPPER)
    for level in LEVELS:
        out[...] = begin
        kernel.run([*args], 4, level=level, seed=3)
        np.testing.assert_array_equal(out, want, level)
    assert f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{kind}" in kernel.asm["ptx"]


@tilec.jit
def mixed(out):
    """Of two programs one stores where the other adds."""
    buffer = tlg.alloc_shared(out.block_shape, out.dtype)
    buffer.store(tl.full(out.block_shape, 2, out.dtype))
    tlg.fence_async()
    tlg.barrier()
    if tl.program_id(0) == 0:
        tlg.tma.store(out, [0, 0], buffer)
    else:
        tlg.tma.atomic_add(out, [0, 0], buffer)
    tlg.tma.store_commit()
    tlg.tma.store_wait()


def test_a_store_beside_an_addition_is_a_race():
    out = np.ones((32, 32), np.float32)
    kernel = mixed.warmup(describe(out, (32, 32)), grid=(2,), **HOPPER)
    with pytest.raises(SimError, match="race: it writes"):
        kernel.run([describe(out, (32, 32))], 2, level="ptx", seed=0)


@tilec.jit
def stored(out, row, column):
    """Twos at a place of out."""
    buffer = tlg.alloc_shared(out.block_shape, out.dtype)
    buffer.store(tl.full(out.block_shape, 2, out.dtype))
    tlg.fence_async()
    tlg.barrier()
    tlg.tma.store(out, [row, column], buffer)  # stored
    tlg.tma.store_commit()
    tlg.tma.store_wait()


@pytest.mark.parametrize("level", LEVELS)
def test_stores_begin_inside(level):
    """A block may end after the tensor, and must not begin before it."""
    out = np.zeros((40, 64), np.float32)
    kernel = stored.warmup(describe(out, (32, 32)), 5, 5, grid=(1,), **HOPPER)
    kernel.run([describe(out, (32, 32)), 11, 48], 1, level=level)
    want = np.zeros((40, 64), np.float32)
    want[11:, 48:] = 2
    np.testing.assert_array_equal(out, want)
    for row, column, dim in ((-3, 32, 0), (8, -4, 1)):
        with pytest.raises(TilecError, match="must not be negative") as caught:
            kernel.run([describe(out, (32, 32)), row, column], 1, level=level)
        if level != "ptx":
            found = f"a store at coordinate {min(row, column)} of dimension {dim}"
            assert found in caught.value.message
            assert "buffer)  # stored" in str(caught.value)
        np.testing.assert_array_equal(out, want)


@tilec.jit
def spread(rows, columns, out, n, STAGES: tl.constexpr):
    """Sums of outer products of rows, (heads, n) in blocks of (1, 64), and columns, (n / 2,) in
    blocks of (32,)."""
    ring, ready = tlg.alloc_shared((64,), tl.float32, stages=STAGES), tlg.mbarrier(stages=STAGES)
    side = tlg.alloc_shared((32,), tl.float32)
    tlg.barrier()
    total = tl.zeros((32, 64), tl.float32)
    for i in range(n // 64):
        slot = i % STAGES
        ready[slot].expect(ring[slot].nbytes + side.nbytes)
        tlg.tma.load(rows, [tl.program_id(0), i * 64], ring[slot], ready[slot])
        tlg.tma.load(columns, [i * 32], side, ready[slot])
        ready[slot].wait(i // STAGES & 1)
        total += ring[slot].load()[None, :] * side.load()[:, None]
        tlg.barrier()
    at = tl.program_id(0) * 32 + tl.arange(0, 32)
    tl.store(out + at[:, None] * 64 + tl.arange(0, 64)[None, :], total)


def test_rows(rng):
    """Blocks of one dimension, in plain buffers; columns end in the middle of a block."""
    rows = rng.integers(-9, 9, (3, 256)).astype(np.float32)
    columns = rng.integers(-9, 9, 116).astype(np.float32)
    out = np.empty((3, 32, 64), np.float32)
    whole = np.zeros(128, np.float32)
    whole[:116] = columns
    want = np.einsum("hic,ir->hrc", rows.reshape(3, 4, 64), whole.reshape(4, 32))
    args = [describe(rows, (1, 64)), describe(columns, (32,)), out, 256]
    kernel = spread.warmup(*args, STAGES=2, grid=(3,), **HOPPER)
    everywhere(kernel, args, 3, out, want)
    assert "cp.async.bulk.tensor.1d" in kernel.asm["ptx"]


@tilec.jit
def wrong(a, b, c, d, HOW: tl.constexpr):
    """Each way of HOW is one mistake, marked by a comment."""
    block = tlg.alloc_shared((64, 64), a.dtype)
    bar = tlg.mbarrier()
    if HOW == "bytes":
        tlg.tma.atomic_add(a, [0, 0], block)  # bytes
    if HOW == "double":
        tlg.tma.atomic_add(c, [0, 0], tlg.alloc_shared((8, 16), tl.float64))  # double
    if HOW == "signed":
        tlg.tma.atomic_max(d, [0, 0], tlg.alloc_shared((8, 16), tl.int64))  # signed
    if HOW == "floats":
        tlg.tma.atomic_or(b, [0, 0], tlg.alloc_shared((1, 64), tl.float32))  # floats
    if HOW == "extents":
        tlg.tma.load(b, [0, 0], tlg.alloc_shared((32,), tl.float32), bar)  # extents
    if HOW == "flat":
        tlg.tma.load(a, [0, 0], tlg.alloc_shared((64,), a.dtype), bar)  # flat
    if HOW == "turned":
        layout: tl.constexpr = tlg.Swizzled(1, 1, 1, [0, 1])
        tlg.tma.load(a, [0, 0], tlg.alloc_shared((64, 64), a.dtype, layout=layout), bar)  # turned
    if HOW == "parts":
        tlg.tma.store(b, [0, 0], tlg.alloc_shared((128,), tl.float32))  # parts


SAID = {
    "bytes": "tlg.tma.atomic_add: there is no atomic add of int8",
    "double": "tlg.tma.atomic_add: TMA has no add of fp64",
    "signed": "tlg.tma.atomic_max: TMA has no max of int64",
    "floats": "tlg.tma.atomic_or: there is no atomic or of fp32",
    "extents": "tlg.tma.load: cannot copy blocks of [1, 64] with a fp32[32] buffer",
    "flat": "tlg.tma.load: cannot copy blocks of [64, 64] with a int8[64] buffer",
    "turned": "tlg.tma.load: TMA copies no tiles to or from a buffer with the layout",
    "parts": "tlg.tma.store: cannot copy blocks of [1, 64] with a fp32[128] buffer",
}


@pytest.mark.parametrize("how", SAID)
def test_mistakes(how):
    a, b, c = np.zeros((64, 64), np.int8), np.zeros((4, 64), np.float32), np.zeros((8, 16))
    args = (describe(a, (64, 64)), describe(b, (1, 64)), describe(c, (8, 16)),
            describe(c.astype(np.int64), (8, 16)))
    with pytest.raises(CompilationError) as caught:
        wrong.warmup(*args, HOW=how, grid=(1,), **HOPPER)
    assert SAID[how] in str(caught.value) and f"# {how}" in str(caught.value)
