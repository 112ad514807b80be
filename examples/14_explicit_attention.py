"""Attention with everything written out that example 11 leaves to the compiler, in two schedules.

With roles, one warpgroup only loads, and two compute with the registers that it does without.
They hold the scores of one block and a product under way side by side: while the product of one
block's probabilities with its values still runs, threads make probabilities of the next block's
scores. Without roles, one warp of those that compute starts the copies, and threads wait for both
products. In both, keys go from the last block to the first, so that the block with the end of the
keys, or with the diagonal of a causal mask, is the first one, and the others need no mask.

Read example 10 before this one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import support

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg

LOG2_E = 1.4426950408889634


class Ring(NamedTuple):
    """Two slots for blocks, or one, and of each an mbarrier that says when its block is there, and
    one that says when all who compute are done with it."""

    slots: Any
    full: Any
    empty: Any


@tilec.jit
def make_ring(desc, users, STAGES: tl.constexpr):
    """A ring for blocks of a descriptor, that `users` warpgroups use."""
    slots = tlg.alloc_shared(desc.block_shape[1:], desc.dtype, stages=STAGES)
    return Ring(slots, tlg.mbarrier(stages=STAGES), tlg.mbarrier(users, stages=STAGES))


@tilec.jit
def to_and_fro(tile, tiles):
    """Tiles are dealt out to programs from the first to the last, then from the last to the first:
    who got a long one gets a short one. A round that lacks tiles goes forward."""
    programs, begin = tl.num_programs(0), tile - tl.program_id(0)
    back = (begin // programs % 2 == 1) & (begin + programs <= tiles)
    return tl.where(back, begin + programs - 1 - tl.program_id(0), tile)


@tilec.jit
def place(tile, q, k, CAUSAL: tl.constexpr, GROUP: tl.constexpr):
    """A tile's head, its first row, and how many blocks of keys its rows see.

    A causal mask gives tiles different lengths: the longest come first. GROUP heads go at a time,
    so that their keys stay in the L2 cache. For a number beyond the last tile this is anything.
    """
    BM: tl.constexpr = q.block_shape[1]
    BN: tl.constexpr = k.block_shape[1]
    tl.static_assert(not CAUSAL or BN % BM == 0, "the diagonal must end in the last block of keys")
    blocks = tl.cdiv(q.shape[1], BM)
    head, block, end = tile // blocks, tile % blocks, k.shape[1]
    if CAUSAL:
        tile = to_and_fro(tile, q.shape[0] * blocks)
        band = tile // (GROUP * blocks) * GROUP
        height = tl.minimum(q.shape[0] - band, GROUP)
        within = tile % (GROUP * blocks)
        head, block = band + within % height, blocks - 1 - within // height
        end = tl.minimum(end, (block + 1) * BM)
    return head, block * BM, tl.cdiv(end, BN)


@tilec.jit
def turn(n):
    """The slot of block n of all that go through a ring of two, and the parity of its phase."""
    return n & 1, n >> 1 & 1


@tilec.jit
def fetch(desc, offsets, slot, full, empty, free):
    """One thread: wait until a slot is free, then start the copy into it."""
    empty.wait(free)
    full.expect(slot.nbytes)
    tlg.tma.load(desc, offsets, slot, full)


@tilec.jit
def fetch_block(desc, head, start, ring, n):
    """The same for block n of all that go through a ring."""
    slot, phase = turn(n)
    fetch(desc, [head, start, 0], ring.slots[slot], ring.full[slot], ring.empty[slot], phase ^ 1)


@tilec.jit
def begin_scores(queries, keys, n, acc):
    """Begin queries @ keys' for block n of the keys, once it is there."""
    slot, phase = turn(n)
    keys.full[slot].wait(phase)
    return tlg.wgmma(queries, keys.slots[slot].T, acc, use_acc=False)


@tilec.jit
def begin_sums(p, values, n, acc):
    """Begin acc + p @ values for block n of the values, once it is there."""
    slot, phase = turn(n)
    values.full[slot].wait(phase)
    return tlg.wgmma(p, values.slots[slot], acc)


@tilec.jit
def release(ring, n):
    """This warpgroup is done with block n of a ring."""
    slot, _ = turn(n)
    ring.empty[slot].arrive()


@tilec.jit
def mask(s, first, start, end, CAUSAL: tl.constexpr):
    """Scores of rows from `first` and of columns from `start`, without those that no row sees.
    In the first block every row sees a column, so that its maximum is a number."""
    columns = start + tl.arange(0, s.shape[1])[None, :]
    valid = columns < end
    if CAUSAL:
        valid = valid & (first + tl.arange(0, s.shape[0])[:, None] >= columns)
    return tl.where(valid, s, -float("inf"))


@tilec.jit
def probabilities(s, top, scale):
    """2 ** (scale * (s - top)), and its sums over every eighth column: those of a row are in four
    threads, which need not exchange anything until the end."""
    p = tl.exp2(s * scale - (top * scale)[:, None])
    return p, tl.sum(p.reshape(s.shape[0], s.shape[1] // 8, 8), 1)


@tilec.jit
def write(out, head, first, acc, inverse, buffer):
    """Store acc * inverse through the buffer, of which each warpgroup has its own rows."""
    result = (acc * inverse[:, None]).to(out.dtype)
    tlg.tma.store_wait(read=True)  # the last tile's rows have left the buffer
    tlg.warpgroup_barrier()
    buffer.store(result)
    tlg.fence_async()
    tlg.warpgroup_barrier()
    tlg.tma.store(out, [head, first, 0], buffer)
    tlg.tma.store_commit()


# -- with roles -----------------------------------------------------------------------------------

@tilec.jit
def load(q, k, v, queries, keys, values, tiles, SHARED: tl.constexpr, CAUSAL: tl.constexpr,
         GROUP: tl.constexpr):
    """The role that loads: one thread, as far ahead as the rings have room."""
    BN: tl.constexpr = k.block_shape[1]
    if tlg.elect():
        number, base = 0, 0  # of the tile, and of its first block, among all of the program's
        for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
            head, first, count = place(tile, q, k, CAUSAL, GROUP)
            fetch(q, [head, first, 0], queries.slots, queries.full, queries.empty, number & 1 ^ 1)
            for j in range(count):
                start = (count - 1 - j) * BN
                fetch_block(k, head // SHARED, start, keys, base + j)
                fetch_block(v, head // SHARED, start, values, base + j)
            number += 1
            base += count


@tilec.jit
def compute(q, k, out, queries, keys, values, buffer, tiles, scale, CAUSAL: tl.constexpr,
            GROUP: tl.constexpr):
    """The role that computes. Layouts, warpgroups and barriers are those of its own warps."""
    BM: tl.constexpr = q.block_shape[1]
    BN: tl.constexpr = k.block_shape[1]
    none = tl.zeros((BM, BN), tl.float32)
    number, base = 0, 0
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), disable_licm=True):
        head, first, count = place(tile, q, k, CAUSAL, GROUP)
        # 1. The first block, the one with a mask, before the loop.
        queries.full.wait(number & 1)
        s = tlg.wgmma_wait(0, begin_scores(queries.slots, keys, base, none))
        release(keys, base)
        s = mask(s, first, (count - 1) * BN, k.shape[1], CAUSAL)
        top = tl.max(s, 1)
        p, total = probabilities(s, top, scale)
        p = p.to(q.dtype)
        acc = tl.zeros((BM, q.block_shape[2]), tl.float32)
        for j in range(base + 1, base + count):
            # 2. Scores of this block and sums of the block before begin back to back.
            s = begin_scores(queries.slots, keys, j, none)
            acc = begin_sums(p, values, j - 1, acc)
            # 3. The scores are there first: probabilities are made while the other product runs.
            s, acc = tlg.wgmma_wait(1, s, acc)
            release(keys, j)
            new_top = tl.maximum(top, tl.max(s, 1))
            rescale = tl.exp2((top - new_top) * scale)
            made, sums = probabilities(s, new_top, scale)
            total = total * rescale[:, None] + sums
            top = new_top
            # 4. That product reads p from registers until here, so the new p is made after it.
            acc = tlg.wgmma_wait(0, acc)
            release(values, j - 1)
            p = made.to(q.dtype)
            acc *= rescale[:, None]
        # 5. The last product. Nothing reads the queries any more.
        queries.empty.arrive()
        last = base + count - 1
        acc = begin_sums(p, values, last, acc)
        inverse = 1.0 / tl.sum(total, 1)
        acc = tlg.wgmma_wait(0, acc)
        release(values, last)
        write(out, head, first, acc, inverse, buffer)
        number += 1
        base += count
    tlg.tma.store_wait(read=True)


@tilec.jit
def by_roles_kernel(q, k, v, out, scale, SHARED: tl.constexpr, CAUSAL: tl.constexpr,
                    GROUP: tl.constexpr, WARPS: tl.constexpr, REGISTERS: tl.constexpr):
    """softmax(scale * q k') v; see `attention`. WARPS, REGISTERS: of those that compute, and of
    those that load."""
    BM: tl.constexpr = q.block_shape[1]
    queries = make_ring(q, WARPS[0] // 4, None)
    keys = make_ring(k, WARPS[0] // 4, 2)
    values = make_ring(v, WARPS[0] // 4, 2)
    buffer = tlg.alloc_shared((BM, q.block_shape[2]), out.dtype)
    if tlg.elect():
        tlg.tma.prefetch(q, queries.slots)
        tlg.tma.prefetch(k, keys.slots)
        tlg.tma.prefetch(v, values.slots)
        tlg.tma.prefetch(out, buffer)
    tlg.barrier()
    tiles = q.shape[0] * tl.cdiv(q.shape[1], BM)
    tlg.warp_specialize(
        [(compute, (q, k, out, queries, keys, values, buffer, tiles, scale, CAUSAL, GROUP)),
         (load, (q, k, v, queries, keys, values, tiles, SHARED, CAUSAL, GROUP))],
        num_warps=WARPS, regs=REGISTERS)


# -- without roles --------------------------------------------------------------------------------

@tilec.jit
def one_role_kernel(q, k, v, out, scale, SHARED: tl.constexpr, CAUSAL: tl.constexpr,
                    GROUP: tl.constexpr):
    """The same, where a warp of those that compute starts the copies, one block ahead."""
    BM: tl.constexpr = q.block_shape[1]
    BN: tl.constexpr = k.block_shape[1]
    # Of the last warpgroup, which lags behind: where it waits for slots, they are free already.
    ISSUER: tl.constexpr = tlg.num_warps() - 4
    queries = make_ring(q, tlg.num_warps() // 4, None)
    keys = make_ring(k, tlg.num_warps() // 4, 2)
    values = make_ring(v, tlg.num_warps() // 4, 2)
    buffer = tlg.alloc_shared((BM, q.block_shape[2]), out.dtype)
    tiles = q.shape[0] * tl.cdiv(q.shape[1], BM)
    head, first, count = place(tl.program_id(0), q, k, CAUSAL, GROUP)
    if tlg.elect(tl.program_id(0) < tiles):
        start = (count - 1) * BN
        fetch(q, [head, first, 0], queries.slots, queries.full, queries.empty, 1)
        fetch_block(k, head // SHARED, start, keys, 0)
        fetch_block(v, head // SHARED, start, values, 0)
        tlg.tma.prefetch(out, buffer)
    tlg.barrier()
    none = tl.zeros((BM, BN), tl.float32)
    number, base = 0, 0
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), disable_licm=True):
        # 1. The first block. While its scores are computed, the second block's keys are loaded.
        queries.full.wait(number & 1)
        s = begin_scores(queries.slots, keys, base, none)
        if tlg.elect(count > 1, warp=ISSUER, by="warp"):
            fetch_block(k, head // SHARED, (count - 2) * BN, keys, base + 1)
        s = tlg.wgmma_wait(0, s)
        release(keys, base)
        s = mask(s, first, (count - 1) * BN, k.shape[1], CAUSAL)
        top = tl.max(s, 1)
        p, total = probabilities(s, top, scale)
        p = p.to(q.dtype)
        acc = tl.zeros((BM, q.block_shape[2]), tl.float32)
        for j in range(1, count):
            # 2. Both products, and while they run, keys of the next block and values of this one.
            n = base + j
            s = begin_scores(queries.slots, keys, n, none)
            acc = begin_sums(p, values, n - 1, acc)
            start = (count - 1 - j) * BN
            if tlg.elect(j + 1 < count, warp=ISSUER, by="warp"):
                fetch_block(k, head // SHARED, start - BN, keys, n + 1)
            if tlg.elect(warp=ISSUER, by="warp"):
                fetch_block(v, head // SHARED, start, values, n)
            # 3. Wait for both. The other warpgroup has its own products meanwhile.
            s, acc = tlg.wgmma_wait(0, s, acc)
            release(keys, n)
            release(values, n - 1)
            new_top = tl.maximum(top, tl.max(s, 1))
            rescale = tl.exp2((top - new_top) * scale)
            p, sums = probabilities(s, new_top, scale)
            total = total * rescale[:, None] + sums
            top = new_top
            p = p.to(q.dtype)
            acc *= rescale[:, None]
        # 4. The last product, and while it runs, the next tile's first blocks.
        queries.empty.arrive()
        last = base + count - 1
        acc = begin_sums(p, values, last, acc)
        following = tile + tl.num_programs(0)
        next_head, next_first, next_count = place(following, q, k, CAUSAL, GROUP)
        if tlg.elect(following < tiles, warp=ISSUER, by="warp"):
            start = (next_count - 1) * BN
            fetch(q, [next_head, next_first, 0], queries.slots, queries.full, queries.empty,
                  number & 1)
            fetch_block(k, next_head // SHARED, start, keys, last + 1)
            fetch_block(v, next_head // SHARED, start, values, last + 1)
        inverse = 1.0 / tl.sum(total, 1)
        acc = tlg.wgmma_wait(0, acc)
        release(values, last)
        write(out, head, first, acc, inverse, buffer)
        head, first, count = next_head, next_first, next_count
        number += 1
        base = last + 1
    tlg.tma.store_wait(read=True)


def attention(q: Any, k: Any, v: Any, out: Any, causal: bool, ws: bool = True,
              block: tuple[int, int] = (128, 128), num_warps: int = 8) -> Any:
    """out = attention of q, out (heads, rows, D) and k, v (fewer heads or as many, columns, D), all
    contiguous; returns the kernel.

    ws: with warp roles. block: rows, 64 for every four warps, and keys, a multiple of the rows
    where the mask is causal. num_warps: that compute.
    """
    heads, rows, d = q.shape
    bm, bn = block
    shapes = (q, bm), (k, bn), (v, bn), (out, bm // (num_warps // 4))
    args = [*(tilec.TensorDescriptor.from_tensor(x, (1, n, d)) for x, n in shapes),
            LOG2_E / math.sqrt(d)]
    blocks = tilec.cdiv(rows, bm)
    programs = support.programs(heads * blocks)
    # Of a causal mask, two rounds are one band, so that every program gets as much; if that does
    # not come out even, each tile gets a program, and the GPU starts the next one where one ends.
    group, rest = divmod(2 * programs, blocks)
    if causal and rest:
        group, programs = 8, heads * blocks
    grid, how = (programs,), {"SHARED": heads // k.shape[0], "CAUSAL": causal, "GROUP": group}
    if not ws:
        return one_role_kernel[grid](*args, **how, num_warps=num_warps)
    return by_roles_kernel[grid](*args, **how, WARPS=(num_warps, 4), REGISTERS=(240, 24),
                                 num_warps=4 + num_warps)


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    """The same in float64."""
    k, v = (np.repeat(x, len(q) // len(x), 0) for x in (k, v))
    s = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tril(np.ones(s.shape[1:], bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def main(heads: int = 3, rows: int = 150, columns: int = 170, d: int = 64) -> None:
    for causal in (False, True):
        for ws in (True, False):
            q, k, v = (support.array(support.normal(i, heads, n, d), "bfloat16")
                       for i, n in enumerate((rows, columns, columns)))
            out = support.poisoned((heads, rows, d), "bfloat16")
            attention(q, k, v, out, causal, ws, block=(64, 64), num_warps=4)
            support.check(
                f"{'causal' if causal else 'full'}, {'with' if ws else 'without'} roles, {heads} x "
                f"{rows} x {columns} x {d} bfloat16, {support.place()}", out,
                reference(*map(support.host, (q, k, v)), causal), 2e-2)


if __name__ == "__main__":
    main()
