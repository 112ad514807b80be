"""Mistakes at the explicit level are found when a kernel is compiled, at the author's line."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg
from tests.support.explicit import HOPPER
from tilec.errors import CompilationError

describe = tilec.TensorDescriptor.from_tensor


@tilec.jit
def wrong(a, p_ptr, n, HOW: tl.constexpr):
    """Each way of HOW is one mistake, marked by a comment."""
    block = tlg.alloc_shared((64, 64), tl.float16)
    bar = tlg.mbarrier()
    zero = tl.zeros((64, 64), tl.float32)
    if HOW == "block":
        tlg.tma.load(a, [0, 0], tlg.alloc_shared((64, 32), tl.float16), bar)  # block
    if HOW == "dtype":
        tlg.tma.load(a, [0, 0], tlg.alloc_shared((64, 64), tl.bfloat16), bar)  # dtype
    if HOW == "tile":
        tlg.wgmma(block, block.load(), zero)  # tile
    if HOW == "shapes":
        tlg.wgmma(block, block, tl.zeros((64, 32), tl.float32))  # shapes
    if HOW == "layout":
        plain = tlg.alloc_shared((64, 64), tl.float16, layout=tlg.Swizzled(1, 1, 1, [1, 0]))
        tlg.wgmma(block, plain, zero)  # layout
    if HOW == "rows":
        short = tlg.alloc_shared((32, 64), tl.float16)
        tlg.wgmma(short, block, tl.zeros((32, 64), tl.float32))  # rows
    if HOW == "early":
        early = tlg.wgmma(block, block, zero)
        tl.store(p_ptr, tl.sum(early))  # early
    if HOW == "later":
        for _ in range(n):
            zero = tlg.wgmma(block, block, zero)
            zero = tlg.wgmma_wait(1, zero)
        tl.store(p_ptr, tl.sum(zero))  # later
    if HOW == "one of two":
        first = tlg.wgmma(block, block, zero)
        second = tlg.wgmma(block, block, zero)
        first, second = tlg.wgmma_wait(1, first, second)
        tl.store(p_ptr, tl.sum(first) + tl.sum(second))  # one of two
    if HOW == "again":
        first = tlg.wgmma(block, block, zero)
        _ = tlg.wgmma_wait(0, first)
        tl.store(p_ptr, tl.sum(first))  # again
    if HOW == "twice":
        first = tlg.wgmma(block, block, zero)
        _ = tlg.wgmma(block, block, first)
        _ = tlg.wgmma(block, block, first)  # twice
    if HOW == "each round":
        first = tlg.wgmma(block, block, zero)
        for _ in range(n):
            _ = tlg.wgmma_wait(0, tlg.wgmma(block, block, first))  # each round
    if HOW == "one of them":
        first, second = tlg.wgmma(block, block, zero), tlg.wgmma(block, block, zero)
        _ = tlg.wgmma_wait(0, first if n > 3 else second)  # one of them
    if HOW == "exchanged":
        first, second = zero, zero
        for _ in range(n):  # exchanged
            first, second = second, tlg.wgmma(block, block, first)
        first, second = tlg.wgmma_wait(0, first, second)
    if HOW == "new":
        first = zero
        for _ in range(n):  # new
            _ = tlg.wgmma_wait(0, first)
            first = tlg.wgmma(block, block, zero)
        _ = tlg.wgmma_wait(0, first)
    if HOW == "warps":
        tlg.convert_layout(zero, tlg.Blocked([1, 1], [1, 32], [8, 1], [1, 0]))  # warps
    if HOW == "rank":
        tlg.convert_layout(zero, tlg.Blocked([1], [32], [4], [0]))  # rank
    if HOW == "fields":
        tlg.Blocked([1, 1], [1, 33], [4, 1], [1, 0])  # fields
    if HOW == "no shared":
        tlg.alloc_shared((64, 64), tl.float16, layout=tlg.Mma(3, [4, 1], [64, 64]))  # no shared
    if HOW == "ring":
        tlg.alloc_shared((64, 64), tl.float16, stages=2).load()  # ring
    if HOW == "thread":
        if tlg.elect():
            block.load()  # thread
    if HOW == "else":
        if tlg.elect():
            bar.expect(8)
        else:
            bar.wait(0)  # else
    if HOW == "value":
        x = 1 if tlg.elect() else 2  # value
    if HOW == "assigned":
        x = 1
        if tlg.elect():
            x = n
        tl.store(p_ptr, x)  # assigned
    if HOW == "arrive":
        if tlg.elect():
            bar.arrive()  # arrive
    if HOW == "pred":
        bar.expect(8, pred=n)  # pred
    if HOW == "pointer":
        tlg.tma.load(p_ptr, [0, 0], block, bar)  # pointer
    if HOW == "offsets":
        tlg.tma.load(a, [0], block, bar)  # offsets
    if HOW == "moved":
        moved = tl.make_tensor_descriptor(p_ptr + n, [n, n], [64, 1], [64, 64])
        tlg.tma.load(moved, [0, 0], block, bar)  # moved
    if HOW == "phase":
        bar.wait(2)  # phase
    if HOW == "no extents":
        tlg.alloc_shared((), tl.float16)  # no extents
    if HOW == "index":
        tlg.alloc_shared((64, 64), tl.float16, stages=2)[2].load()  # index
    if HOW == "single":
        block[0].load()  # single
    if HOW == "slice":
        tlg.extract_slice(zero, [0, 32], [64, 64])  # slice
    if HOW == "swizzle":
        short = tlg.alloc_shared((4, 64), tl.float16, stages=2)
        rows = tl.make_tensor_descriptor(p_ptr, [n, n], [64, 1], [4, 64])
        tlg.tma.load(rows, [0, 0], short[1], bar)  # swizzle
    if HOW == "warp":
        if tlg.elect(warp=4):  # warp
            bar.expect(8)
    if HOW == "init":
        for _ in range(n):
            tlg.mbarrier()  # init
    if HOW == "carried":
        held = block
        for _ in range(n):
            held = held.T  # carried


MISTAKES = {
    "block": "tlg.tma.load: cannot copy blocks of [64, 64] with a fp16[64, 32] buffer",
    "dtype": "tlg.tma.load: found a bf16[64, 64] buffer for a tensor of fp16",
    "tile": "tlg.wgmma, b: found fp16[64, 64] tile, expected a buffer in shared memory",
    "shapes": "cannot multiply a fp16[64, 64] buffer by a fp16[64, 64] buffer into a fp32[64, 32]",
    "layout": "no instructions fit 64 x 64 x 64 for 4 warps and b in memdesc<64x64xf16, swizzled_s",
    "rows": "no instructions fit 32 x 64 x 64 for 4 warps",
    "early": "uses the accumulator `early`, whose product no tlg.wgmma_wait has covered",
    "later": "uses the accumulator `zero`, whose product no tlg.wgmma_wait has covered",
    "one of two": "uses the accumulator `second`, whose product no tlg.wgmma_wait has covered",
    "again": "uses the accumulator `first` again, which belongs to the tlg.wgmma_wait at",
    "twice": "uses the accumulator `first` again, which belongs to the tlg.wgmma at",
    "each round": "takes the accumulator `first` in each round",
    "one of them": "`if`: would have to copy the accumulator `second`",
    "exchanged": "`for`: would have to copy the accumulator",
    "new": "`for`: would have to copy the accumulator `first`",
    "warps": "is for 8 warps, the kernel has 4",
    "rank": "has rank 1, the shape",
    "fields": "tlg.Blocked: blocked: threadsPerWarp must hold powers of two, got 33",
    "no shared": "expected one of shared memory",
    "ring": "load: found a fp16[64, 64] buffer array of 2, expected one buffer",
    "thread": "buffer.load: needs more than one thread, and stands in a tlg.elect",
    "else": "`else` of tlg.elect() is not supported",
    "value": "tlg.elect() is not a value",
    "assigned": "`x` is assigned by one thread alone",
    "arrive": "arrive: whole warpgroups arrive, not one thread",
    "pred": "expect: pred is int32 scalar, expected a scalar int1",
    "pointer": "tlg.tma.load: found pointer<fp16> scalar",
    "offsets": "the offsets of tlg.tma.load: found 1, expected 2 integers",
    "moved": "TMA cannot serve this tensor: the tensor does not begin where a parameter points to",
    "phase": "wait: the phase is the number 2, expected an integer scalar, 0 or 1",
    "no extents": "of shape [], expected numbers, in one dimension or more",
    "index": "the index 2 into fp16[64, 64] buffer array of 2 is not in 0 to 1",
    "single": "cannot index one fp16[64, 64] buffer",
    "slice": "[64, 64] at [0, 32] is no part of a fp32[64, 64] tile",
    "swizzle": "has 512 bytes, expected a multiple of 1024",
    "warp": "the warp of tlg.elect is 4, expected 0 to 3",
    "init": "tlg.mbarrier: stands in a loop, and would set up an mbarrier that is in use",
    "carried": "`held`",
}


@pytest.mark.parametrize("how", MISTAKES)
def test_mistakes_are_found_where_they_are(how):
    a, p = describe(np.zeros((64, 64), np.float16), (64, 64)), np.zeros(64, np.float16)
    with pytest.raises(CompilationError) as caught:
        wrong.warmup(a, p, 5, HOW=how, grid=(1,), **HOPPER)
    assert MISTAKES[how] in caught.value.message
    assert caught.value.loc.caret().splitlines()[0].endswith(f"  # {how}")


@tilec.jit
def nothing(k, blocks, carry):
    return carry


@tilec.jit
def origin(k):
    return ([0, 0],)


@tilec.jit
def mispiped(a, n, HOW: tl.constexpr):
    if HOW == "one":
        tlg.make_ring(a, 2)  # one
    if HOW == "stages":
        tlg.make_ring((a,), 1)  # stages
    if HOW == "others":
        ring = tlg.make_ring((a, a), 2)
        tlg.emit_pipeline(nothing, origin, n, (a,), ring, n)  # others
    if HOW == "in a loop":
        for _ in range(n):
            tlg.make_ring((a,), 2)  # in a loop


@pytest.mark.parametrize("how, message", [
    ("one", "expected a tuple of descriptors"), ("stages", "stages is 1, expected 2 or more"),
    ("others", "the ring is for other descriptors"), ("in a loop", "stands in a loop")])
def test_mistakes_with_pipelines(how, message):
    a = describe(np.zeros((64, 64), np.float16), (64, 64))
    with pytest.raises(CompilationError, match=message) as caught:
        mispiped.warmup(a, 5, HOW=how, grid=(1,), **HOPPER)
    assert f"# {how}" in str(caught.value)


@tilec.jit
def meeting(x, y):
    tlg.barrier()  # meeting
    return x + y


@tilec.jit
def reduced(p_ptr):
    tl.store(p_ptr, tl.reduce(tl.zeros((64,), tl.float32), 0, meeting))


def test_a_combine_function_only_computes():
    with pytest.raises(CompilationError, match="tlg.barrier: stands in the combine") as caught:
        reduced.warmup(np.zeros(1, np.float32), grid=(1,), **HOPPER)
    assert "# meeting" in caught.value.loc.caret()


@pytest.mark.parametrize("target, how, message", [
    ("sm_80", "block", "tlg.mbarrier needs sm_90a, the target is sm_80"),
    ("sm_90", "shapes", "tlg.mbarrier needs sm_90a, the target is sm_90")])
def test_older_targets(target, how, message):
    a, p = describe(np.zeros((64, 64), np.float16), (64, 64)), np.zeros(64, np.float16)
    with pytest.raises(CompilationError, match=message) as caught:
        wrong.warmup(a, p, 5, HOW=how, grid=(1,), target=target)
    assert "tlg." in caught.value.loc.caret()
