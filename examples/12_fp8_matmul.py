"""A persistent matrix product of 8-bit floats (e4m3) with one scale a tensor, as inference has it:
c = (a @ b.T) * scale_a * scale_b in bfloat16.

Tensor cores want both operands of 8 bits contiguous along k, so b is (N, K), as weights are stored.
The scales are applied once to the sum, which tensor cores carry to about 14 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import support

import tilec
import tilec.language as tl

LARGEST = 448.0  # of e4m3


@tilec.jit
def fp8_matmul_kernel(a, b, c, scale_a_ptr, scale_b_ptr, GROUP: tl.constexpr):
    """c = (a @ b.T) * scale_a * scale_b, in tiles as large as the descriptors' blocks."""
    BM: tl.constexpr = a.block_shape[0]
    BK: tl.constexpr = a.block_shape[1]
    BN: tl.constexpr = b.block_shape[0]
    scale = tl.load(scale_a_ptr) * tl.load(scale_b_ptr)
    down, across = tl.cdiv(c.shape[0], BM), tl.cdiv(c.shape[1], BN)
    for tile in tl.range(tl.program_id(0), down * across, tl.num_programs(0), flatten=True):
        pid_m, pid_n = tl.swizzle2d(tile // across, tile % across, down, across, GROUP)
        i, j = pid_m * BM, pid_n * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, a.shape[1], BK):
            acc = tl.dot(a.load([i, k]), b.load([j, k]).T, acc)
        c.store([i, j], acc * scale)


def fp8_matmul(a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any,
               block: tuple[int, int, int] | None = None, num_warps: int = 8,
               num_stages: int = 4) -> Any:
    """c = (a @ b.T) * scale_a * scale_b for e4m3 a (M, K), b (N, K), their rows contiguous, and
    scales of one float32 each; returns the kernel. Without a block a model of what each costs
    chooses it, with the warps and stages."""
    if block is None:
        m, k = a.shape
        block, num_warps, num_stages = tilec.matmul_tile(m, b.shape[0], k, a.itemsize)
    bm, bn, bk = block
    tiles = tilec.cdiv(c.shape[0], bm) * tilec.cdiv(c.shape[1], bn)
    described = [tilec.TensorDescriptor.from_tensor(x, shape)
                 for x, shape in ((a, (bm, bk)), (b, (bn, bk)), (c, (bm, bn)))]
    return fp8_matmul_kernel[(support.programs(tiles),)](
        *described, scale_a, scale_b, GROUP=8, num_warps=num_warps, num_stages=num_stages,
        **support.overlapping())


def quantized(values: np.ndarray) -> tuple[Any, Any]:
    """(values as e4m3, the scale that gives them back): the largest becomes the largest of e4m3."""
    scale = float(np.abs(values).max()) / LARGEST
    return (support.array(values / scale, "float8_e4m3fn"),
            support.array(np.array([scale]), "float32"))


def main(m: int = 100, n: int = 160, k: int = 208) -> None:
    (a, scale_a), (b, scale_b) = (quantized(support.normal(seed, rows, k))
                                  for seed, rows in ((0, m), (1, n)))
    c = support.poisoned((m, n), "bfloat16")
    fp8_matmul(a, b, c, scale_a, scale_b, block=(64, 32, 64))
    expected = support.host(a) @ support.host(b).T * support.host(scale_a) * support.host(scale_b)
    support.check(f"scaled a @ b.T, {m} x {n} x {k} e4m3, {support.place()}", c, expected, 2e-2)


if __name__ == "__main__":
    main()
