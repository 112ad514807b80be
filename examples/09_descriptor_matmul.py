"""A persistent matrix product over tensor descriptors, which know where a tensor ends: there are no
pointers and no masks.

There is a program for each multiprocessor, and they share the tiles out among themselves.
`flatten` makes one loop of a program's tiles and their steps along k, so that the loads of the next
tile begin before this one is stored. With `WS` a warp of its own loads, to the same end.
"""

from __future__ import annotations

from typing import Any

import support

import tilec
import tilec.language as tl


@tilec.jit
def matmul_kernel(a, b, c, GROUP: tl.constexpr, WS: tl.constexpr = False):
    """c = a @ b, in tiles as large as the descriptors' blocks."""
    BM: tl.constexpr = a.block_shape[0]
    BK: tl.constexpr = a.block_shape[1]
    BN: tl.constexpr = b.block_shape[1]
    down, across = tl.cdiv(c.shape[0], BM), tl.cdiv(c.shape[1], BN)
    for tile in tl.range(tl.program_id(0), down * across, tl.num_programs(0), flatten=True,
                         warp_specialize=WS):
        pid_m, pid_n = tl.swizzle2d(tile // across, tile % across, down, across, GROUP)
        i, j = pid_m * BM, pid_n * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, a.shape[1], BK):
            acc = tl.dot(a.load([i, k]), b.load([k, j]), acc)
        c.store([i, j], acc)


@tilec.jit
def decode_kernel(a, b, c):
    """c = a @ b for an a of few rows: the tile is computed transposed, so that the columns of b,
    of which there are many, are the rows that tensor cores want at least 64 of."""
    BM: tl.constexpr = a.block_shape[0]
    BK: tl.constexpr = a.block_shape[1]
    BN: tl.constexpr = b.block_shape[1]
    j = tl.program_id(0) * BN
    acc = tl.zeros((BN, BM), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(b.load([k, j]).T, a.load([0, k]).T, acc)
    c.store([0, j], acc.T)


def matmul(a: Any, b: Any, c: Any, block: tuple[int, int, int] | None = None, num_warps: int = 8,
           num_stages: int = 3, ws: bool = False) -> Any:
    """c = a @ b for a (M, K), b (K, N), their rows contiguous; returns the kernel. Without a block
    a model of what each costs chooses it, with the warps and stages. ws: warps that only load."""
    if block is None:
        m, k = a.shape
        block, num_warps, num_stages = tilec.matmul_tile(m, b.shape[1], k, a.itemsize)
    bm, bn, bk = block
    tiles = tilec.cdiv(c.shape[0], bm) * tilec.cdiv(c.shape[1], bn)
    described = [tilec.TensorDescriptor.from_tensor(x, shape)
                 for x, shape in ((a, (bm, bk)), (b, (bk, bn)), (c, (bm, bn)))]
    return matmul_kernel[(support.programs(tiles),)](
        *described, GROUP=8, WS=ws, num_warps=num_warps, num_stages=num_stages,
        **support.overlapping())


def decode(a: Any, b: Any, c: Any, block: tuple[int, int] = (64, 128), num_stages: int = 5) -> Any:
    """c = a @ b for a (M, K) of few rows, b (K, N), as it is when tokens are decoded: reading b is
    all that takes time. Returns the kernel."""
    bn, bk = block
    bm = tilec.cdiv(a.shape[0], 16) * 16
    described = [tilec.TensorDescriptor.from_tensor(x, shape)
                 for x, shape in ((a, (bm, bk)), (b, (bk, bn)), (c, (bm, bn)))]
    return decode_kernel[(tilec.cdiv(c.shape[1], bn),)](
        *described, num_warps=4, num_stages=num_stages, **support.overlapping())


def main(m: int = 100, n: int = 160, k: int = 80) -> None:
    for dtype, tolerance in (("float16", 2e-3), ("bfloat16", 2e-2)):
        a = support.array(support.normal(0, m, k), dtype)
        b = support.array(support.normal(1, k, n), dtype)
        c = support.poisoned((m, n), dtype)
        matmul(a, b, c, block=(64, 32, 32))
        support.check(f"a @ b, {m} x {n} x {k} {dtype}, {support.place()}", c,
                      support.host(a) @ support.host(b), tolerance)
    a, b = (support.array(support.normal(seed, *shape), "bfloat16")
            for seed, shape in ((2, (13, 304)), (3, (304, n))))
    c = support.poisoned((13, n), "bfloat16")
    decode(a, b, c, num_stages=3)
    support.check(f"13 rows @ b, 13 x {n} x 304 bfloat16, {support.place()}", c,
                  support.host(a) @ support.host(b), 2e-2)


if __name__ == "__main__":
    main()
