"""Mistakes at the explicit level, as in `tests/support/mistakes.py`."""

from __future__ import annotations

import numpy as np

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from tests.support.mistakes import COMPILE, MISTAKES, Call, mistake

_before = set(MISTAKES)
F32, F16 = np.float32, np.float16
describe = tilec.TensorDescriptor.from_tensor


def ring(rng: np.random.Generator, right: bool) -> Call:
    return (1,), [rng.standard_normal(900, F32), np.empty(900, F32), 900, 4], {"B": 256}


@mistake("no async_wait", ring, "may still be copying")
def no_wait(x, o, n, tiles, B: tl.constexpr, RIGHT: tl.constexpr):
    at = tl.arange(0, B)
    buffer = tlg.alloc_shared((B,), x.dtype.element_ty)
    for i in range(tiles):
        here = i * B + at
        tlg.async_copy(x + here, buffer, mask=here < n)
        tlg.async_commit()
        if RIGHT:
            tlg.async_wait()
        tlg.barrier()
        tl.store(o + here, buffer.load() * 2, mask=here < n)  # here
        tlg.barrier()


@mistake("waits for too few groups", ring, "may still be copying")
def too_few(x, o, n, tiles, B: tl.constexpr, RIGHT: tl.constexpr):
    at = tl.arange(0, B)
    slots = tlg.alloc_shared((B,), x.dtype.element_ty, stages=2)
    tlg.async_copy(x + at, slots[0], mask=at < n)
    tlg.async_commit()
    for i in range(tiles):
        ahead, here = (i + 1) * B + at, i * B + at
        tlg.async_copy(x + ahead, slots[(i + 1) % 2], mask=ahead < n)
        tlg.async_commit()
        tlg.async_wait(1 if RIGHT else 2)
        tlg.barrier()
        tl.store(o + here, slots[i % 2].load() * 2, mask=here < n)  # here
        tlg.barrier()
    tlg.async_wait()


@mistake("copy into the slot in use", ring, "may still be copying")
def slot_in_use(x, o, n, tiles, B: tl.constexpr, RIGHT: tl.constexpr):
    at = tl.arange(0, B)
    slots = tlg.alloc_shared((B,), x.dtype.element_ty, stages=2)
    tlg.async_copy(x + at, slots[0], mask=at < n)
    tlg.async_commit()
    for i in range(tiles):
        ahead, here = (i + 1) * B + at, i * B + at
        tlg.async_wait()
        tlg.barrier()
        tlg.async_copy(x + ahead, slots[(i + 1) % 2 if RIGHT else i % 2], mask=ahead < n)
        tlg.async_commit()
        tl.store(o + here, slots[i % 2].load() * 2, mask=here < n)  # here
        tlg.barrier()
    tlg.async_wait()


def blocks(rng: np.random.Generator, right: bool) -> Call:
    x = rng.standard_normal((64, 192), F32)
    return (1,), [describe(x, (64, 32)), np.empty((64, 192), F32)], {"STAGES": 2}


@tilec.jit
def put(o, k, tile):
    at = tl.arange(0, 64)[:, None] * 192 + k * 32 + tl.arange(0, 32)[None, :]
    tl.store(o + at, tile)


@mistake("no mbarrier wait", blocks, "may still be copying|poison")
def no_mbarrier_wait(x, o, STAGES: tl.constexpr, RIGHT: tl.constexpr):
    buffer, full = tlg.alloc_shared((64, 32), x.dtype), tlg.mbarrier()
    tlg.barrier()
    for k in range(6):
        if tlg.elect():
            full.expect(buffer.nbytes)
            tlg.tma.load(x, [0, k * 32], buffer, full)
        if RIGHT:
            full.wait(k & 1)
        put(o, k, buffer.load())  # here
        tlg.barrier()


@mistake("a phase that has passed", blocks, "may still be copying|poison")
def passed(x, o, STAGES: tl.constexpr, RIGHT: tl.constexpr):
    buffer, full = tlg.alloc_shared((64, 32), x.dtype), tlg.mbarrier()
    tlg.barrier()
    for k in range(6):
        if tlg.elect():
            full.expect(buffer.nbytes)
            tlg.tma.load(x, [0, k * 32], buffer, full)
        full.wait(k & 1 if RIGHT else (k & 1) ^ 1)
        put(o, k, buffer.load())  # here
        tlg.barrier()


@mistake("waits for ever, phase", blocks, "waits for ever")
def for_ever(x, o, STAGES: tl.constexpr, RIGHT: tl.constexpr):
    buffer, full = tlg.alloc_shared((64, 32), x.dtype), tlg.mbarrier()
    tlg.barrier()
    for k in range(6):
        if tlg.elect():
            full.expect(buffer.nbytes)
            tlg.tma.load(x, [0, k * 32], buffer, full)
        full.wait(k & 1)
        if not RIGHT:
            full.wait((k & 1) ^ 1)  # here
        put(o, k, buffer.load())
        tlg.barrier()


@mistake("waits for ever, bytes", blocks, "waits for ever")
def bytes_missing(x, o, STAGES: tl.constexpr, RIGHT: tl.constexpr):
    buffer, full = tlg.alloc_shared((64, 32), x.dtype), tlg.mbarrier()
    tlg.barrier()
    for k in range(6):
        if tlg.elect():
            full.expect(buffer.nbytes if RIGHT else buffer.nbytes + 16)
            tlg.tma.load(x, [0, k * 32], buffer, full)
        full.wait(k & 1)  # here
        put(o, k, buffer.load())
        tlg.barrier()


def copied(rng: np.random.Generator, right: bool) -> Call:
    x, o = rng.standard_normal((64, 64), F32), np.empty((64, 64), F32)
    return (1,), [x, describe(o, (64, 32))], {}


@mistake("TMA store without fence_async", copied, "fence_async")
def no_fence(x, o, RIGHT: tl.constexpr):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 32)[None, :]
    out = tlg.alloc_shared((64, 32), o.dtype)
    for k in tl.static_range(2):
        tlg.tma.store_wait(read=True)
        tlg.barrier()
        out.store(tl.load(x + at + k * 32))
        if RIGHT:
            tlg.fence_async()
        tlg.barrier()
        tlg.tma.store(o, [0, k * 32], out)  # here
        tlg.tma.store_commit()
    tlg.tma.store_wait(read=True)


@mistake("buffer refilled too early", copied, "may still read")
def too_early(x, o, RIGHT: tl.constexpr):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 32)[None, :]
    out = tlg.alloc_shared((64, 32), o.dtype)
    for k in tl.static_range(2):
        if RIGHT:
            tlg.tma.store_wait(read=True)
        tlg.barrier()
        out.store(tl.load(x + at + k * 32))  # here
        tlg.fence_async()
        tlg.barrier()
        tlg.tma.store(o, [0, k * 32], out)
        tlg.tma.store_commit()
    tlg.tma.store_wait(read=True)


def operands(rng: np.random.Generator, right: bool) -> Call:
    return (1,), [rng.standard_normal((64, 32), F32).astype(F16),
                  rng.standard_normal((32, 64), F32).astype(F16), np.empty((64, 64), F32)], {}


@mistake("product read before wgmma_wait", operands, "whose product no tlg.wgmma_wait", COMPILE)
def no_product_wait(a, b, o, RIGHT: tl.constexpr):
    i, j = tl.arange(0, 64), tl.arange(0, 32)
    left, right = tlg.alloc_shared((64, 32), tl.float16), tlg.alloc_shared((32, 64), tl.float16)
    left.store(tl.load(a + i[:, None] * 32 + j[None, :]))
    right.store(tl.load(b + j[:, None] * 64 + i[None, :]))
    tlg.fence_async()
    tlg.barrier()
    acc = tlg.wgmma(left, right, tl.zeros((64, 64), tl.float32), use_acc=False)
    if RIGHT:
        acc = tlg.wgmma_wait(0, acc)
    tl.store(o + i[:, None] * 64 + i[None, :], acc)  # here


@mistake("wgmma without fence_async", operands, "fence_async")
def product_unfenced(a, b, o, RIGHT: tl.constexpr):
    i, j = tl.arange(0, 64), tl.arange(0, 32)
    left, right = tlg.alloc_shared((64, 32), tl.float16), tlg.alloc_shared((32, 64), tl.float16)
    left.store(tl.load(a + i[:, None] * 32 + j[None, :]))
    right.store(tl.load(b + j[:, None] * 64 + i[None, :]))
    if RIGHT:
        tlg.fence_async()
    tlg.barrier()
    acc = tlg.wgmma(left, right, tl.zeros((64, 64), tl.float32), use_acc=False)  # here
    tl.store(o + i[:, None] * 64 + i[None, :], tlg.wgmma_wait(0, acc))


EXPLICIT = {name: m for name, m in MISTAKES.items() if name not in _before}
