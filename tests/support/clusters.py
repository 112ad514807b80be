"""Kernels whose programs work together in clusters."""

from __future__ import annotations

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg


@tilec.jit
def softmax(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    """Softmax of rows, one row a cluster: each program has a part of the row in registers, and its
    part's maximum and sum in shared memory, where all of them read it."""
    size = tlg.cluster_size()
    row = tl.program_id(0) // size
    at = tlg.cluster_rank() * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    top = tl.maximum(tl.max(x), -1.0e30)  # of a part beyond the row's end
    e = tl.exp(x - top)
    tops, sums = tlg.alloc_shared((1,), tl.float32), tlg.alloc_shared((1,), tl.float32)
    tops.store(top)
    sums.store(tl.sum(e))
    tlg.cluster_barrier()
    highest = tl.full((1,), -1.0e30, tl.float32)
    for rank in tl.static_range(size):
        highest = tl.maximum(highest, tops.at(rank).load())
    total = tl.zeros((1,), tl.float32)
    for rank in tl.static_range(size):
        total += sums.at(rank).load() * tl.exp(tops.at(rank).load() - highest)
    tlg.cluster_barrier()
    y = e * (tl.exp(top - highest) / total)
    tl.store(y_ptr + row * columns + at, y, mask=at < columns)


@tilec.jit
def fetch(a, b, i, j, step, a_slot, b_slot, full):
    """One thread starts the copies of a step: its program's block of a, and if it is its program's
    turn the block of b, for all. Every program expects both."""
    size = tlg.cluster_size()
    k = step * a.block_shape[1]
    full.expect(a_slot.nbytes + b_slot.nbytes)
    tlg.tma.load(a, [i, k], a_slot, full, eviction_policy="evict_first")
    tlg.tma.load(b, [k, j], b_slot, full, pred=step % size == tlg.cluster_rank(),
                 multicast=(1 << size) - 1, eviction_policy="evict_last")


@tilec.jit
def product(a, b, c, STAGES: tl.constexpr):
    """c = a @ b, clusters of programs along the rows, which share the blocks of b."""
    BM: tl.constexpr = c.block_shape[0]
    BN: tl.constexpr = c.block_shape[1]
    size = tlg.cluster_size()
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    steps = tl.cdiv(a.shape[1], a.block_shape[1])
    a_ring = tlg.alloc_shared(a.block_shape, a.dtype, stages=STAGES)
    b_ring = tlg.alloc_shared(b.block_shape, b.dtype, stages=STAGES)
    out = tlg.alloc_shared((BM, BN), c.dtype)
    full = tlg.mbarrier(stages=STAGES)
    empty = tlg.mbarrier(size * (tlg.num_warps() // 4), stages=STAGES)
    tlg.cluster_barrier()
    for s in tl.static_range(STAGES - 1):
        if tlg.elect(s < steps):
            fetch(a, b, i, j, s, a_ring[s], b_ring[s], full[s])
    acc = tl.zeros((BM, BN), tl.float32)
    for s in range(steps):
        slot, ahead = s % STAGES, s + STAGES - 1
        full[slot].wait(s // STAGES & 1)
        acc = tlg.wgmma(a_ring[slot], b_ring[slot], acc, use_acc=s > 0)
        acc = tlg.wgmma_wait(1, acc)
        # The slot of the step before is free here, and may be filled once it is free everywhere.
        free = ahead % STAGES
        if s > 0:
            for rank in tl.static_range(size):
                empty[free].arrive(rank=rank)
        if tlg.elect(ahead < steps):
            if s > 0:
                empty[free].wait((s - 1) // STAGES & 1)
            fetch(a, b, i, j, ahead, a_ring[free], b_ring[free], full[free])
    out.store(tlg.wgmma_wait(0, acc))
    tlg.fence_async()
    tlg.barrier()
    tlg.tma.store(c, [i, j], out)
    tlg.tma.store_commit()
    tlg.tma.store_wait(read=True)
    tlg.cluster_barrier()
