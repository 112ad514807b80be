"""The persistent matrix product of example 09, with everything that the compiler arranged there
written out: buffers in shared memory, copies by TMA, mbarriers, asynchronous products.

Read it beside example 09. `tl` says what is computed; `tlg`, the explicit level, says how a Hopper
GPU goes about it. Both mix freely in one kernel, which still runs on a CPU, level by level, where
the interpreter finds a wait that is missing or never ends.
"""

from __future__ import annotations

from typing import Any

import support

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg


@tilec.jit
def corner(tile, down, across, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """The row and the column where a tile of the result begins.

    Tiles are numbered down bands GROUP tiles high, so that those in flight at one time share rows
    of a and columns of b in the L2 cache. For a number beyond the last tile this is anything.
    """
    band = tile // (GROUP * across) * GROUP
    height = tl.minimum(down - band, GROUP)
    within = tile % (GROUP * across)
    return (band + within % height) * BM, within // height * BN


@tilec.jit
def fetch(a, b, row, col, k, a_slot, b_slot, ready, wanted):
    """One thread starts both copies into a slot of the ring, and says how many bytes will come."""
    if tlg.elect(wanted):
        ready.expect(a_slot.nbytes + b_slot.nbytes)
        tlg.tma.load(a, [row, k], a_slot, ready)
        tlg.tma.load(b, [k, col], b_slot, ready)


@tilec.jit
def matmul_kernel(a, b, c, GROUP: tl.constexpr, STAGES: tl.constexpr):
    """c = a @ b, in tiles of a's block's rows and b's block's columns; see `matmul`."""
    # 1. What there is to do. A program takes every num_programs-th tile.
    BM: tl.constexpr = a.block_shape[0]
    BK: tl.constexpr = a.block_shape[1]
    BN: tl.constexpr = b.block_shape[1]
    WIDTH: tl.constexpr = c.block_shape[1]  # columns of a result that go out at once
    down, across = tl.cdiv(c.shape[0], BM), tl.cdiv(c.shape[1], BN)
    tiles, steps = down * across, tl.cdiv(a.shape[1], BK)
    stride = tl.num_programs(0)

    # 2. A ring of STAGES slots for operands, and a buffer for results. Of each slot an mbarrier
    #    says when its data is there. None says that a slot is free, since the barrier of the whole
    #    program in each step does.
    a_ring = tlg.alloc_shared((BM, BK), a.dtype, stages=STAGES)
    b_ring = tlg.alloc_shared((BK, BN), b.dtype, stages=STAGES)
    out = tlg.alloc_shared((BM, WIDTH), c.dtype)
    full = tlg.mbarrier(stages=STAGES)
    if tlg.elect():
        tlg.tma.prefetch(a, a_ring)
        tlg.tma.prefetch(b, b_ring)
        tlg.tma.prefetch(c, out)

    # 3. The loads run STAGES - 1 steps ahead and have a cursor of their own: the tile, the step in
    #    it, the tile's corner. Near the end of a tile the cursor is in the next one already, so
    #    that the ring never runs dry. The thread that has set up the mbarriers may use them at
    #    once; the others wait.
    tile, step = tl.program_id(0), 0
    row, col = corner(tile, down, across, BM, BN, GROUP)
    for slot in range(STAGES - 1):
        fetch(a, b, row, col, step * BK, a_ring[slot], b_ring[slot], full[slot], tile < tiles)
        step += 1
        ends = step == steps
        next_row, next_col = corner(tile + stride, down, across, BM, BN, GROUP)
        step, tile = tl.where(ends, 0, step), tl.where(ends, tile + stride, tile)
        row, col = tl.where(ends, next_row, row), tl.where(ends, next_col, col)
    tlg.barrier()

    # 4. Tile after tile. `slot` and `phase` go round the ring: the phase of an mbarrier alternates
    #    between 0 and 1 with every use.
    slot, phase = 0, 0
    for mine in range(tl.program_id(0), tiles, stride):
        # In the steps of one tile the cursor enters a new one exactly once. The corner of that is
        # computed here, where no product is under way.
        next_row, next_col = corner(tile + stride, down, across, BM, BN, GROUP)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(steps):
            # 5. The steady state: two products under way, and no branch but the one thread's.
            full[slot].wait(phase)
            acc = tlg.wgmma(a_ring[slot], b_ring[slot], acc, use_acc=k > 0)
            # With this step's product under way, the one before it has ended: here, and after the
            # barrier everywhere. So its slot is free.
            acc = tlg.wgmma_wait(1, acc)
            tlg.barrier()
            free = tl.where(slot == 0, STAGES, slot) - 1
            fetch(a, b, row, col, step * BK, a_ring[free], b_ring[free], full[free], tile < tiles)
            step += 1
            ends = step == steps
            step, tile = tl.where(ends, 0, step), tl.where(ends, tile + stride, tile)
            row, col = tl.where(ends, next_row, row), tl.where(ends, next_col, col)
            slot += 1
            phase = tl.where(slot == STAGES, phase ^ 1, phase)
            slot = tl.where(slot == STAGES, 0, slot)
        result = tlg.wgmma_wait(0, acc).to(c.dtype)

        # 6. The result goes out through shared memory, WIDTH columns at a time, while the next
        #    tile's first loads are under way. Each warpgroup has its own rows of the buffer: it
        #    waits until its last store has read them, fills them, and its first thread stores them.
        #    Ordinary stores are seen by the copy engine after a fence and a barrier.
        i, j = corner(mine, down, across, BM, BN, GROUP)
        for start in tl.static_range(0, BN, WIDTH):
            tlg.tma.store_wait(read=True)
            tlg.warpgroup_barrier()
            out.store(tlg.extract_slice(result, [0, start], [BM, WIDTH]))
            tlg.fence_async()
            tlg.warpgroup_barrier()
            tlg.tma.store(c, [i, j + start], out)
            tlg.tma.store_commit()
    # 7. Shared memory must outlive the last store's reading of it.
    tlg.tma.store_wait(read=True)


def described(a: Any, b: Any, c: Any, block: tuple[int, int, int], num_warps: int, width: int
              ) -> list[Any]:
    """The descriptors: blocks of operands, and of the result what one warpgroup stores at once."""
    bm, bn, bk = block
    shapes = (a, (bm, bk)), (b, (bk, bn)), (c, (bm // (num_warps // 4), min(width, bn)))
    return [tilec.TensorDescriptor.from_tensor(x, shape) for x, shape in shapes]


def matmul(a: Any, b: Any, c: Any, block: tuple[int, int, int] = (128, 256, 64),
           num_warps: int = 8, num_stages: int = 4, width: int = 128) -> Any:
    """c = a @ b for a (M, K), b (K, N), their rows contiguous; returns the kernel.

    num_warps: four for each 64 rows of the block. width: columns of a result stored at once.
    """
    tiles = tilec.cdiv(c.shape[0], block[0]) * tilec.cdiv(c.shape[1], block[1])
    return matmul_kernel[(support.programs(tiles),)](
        *described(a, b, c, block, num_warps, width), GROUP=8, STAGES=num_stages,
        num_warps=num_warps)


def main(m: int = 200, n: int = 160, k: int = 80) -> None:
    for dtype, tolerance in (("float16", 2e-3), ("bfloat16", 2e-2)):
        a = support.array(support.normal(0, m, k), dtype)
        b = support.array(support.normal(1, k, n), dtype)
        c = support.poisoned((m, n), dtype)
        matmul(a, b, c, block=(64, 64, 32), num_warps=4, width=32)
        support.check(f"a @ b, {m} x {n} x {k} {dtype}, {support.place()}", c,
                      support.host(a) @ support.host(b), tolerance)


if __name__ == "__main__":
    main()
