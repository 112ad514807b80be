"""Matrix product with an activation fused into its end, in float16, bfloat16 and int8.

Programs take tiles in groups of rows, so that those that run at one time share rows of A and
columns of B in the L2 cache. The activation is a jit function that the caller chooses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import support

import tilec
import tilec.language as tl


@tilec.jit
def identity(x):
    return x


@tilec.jit
def relu(x):
    return tl.maximum(x, 0.0)


@tilec.jit
def silu(x):
    return x * tl.sigmoid(x)


@tilec.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, a_m, a_k, b_k, b_n, c_m, c_n,
                  ACTIVATION: tl.constexpr, ACC: tl.constexpr, BM: tl.constexpr,
                  BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """c = activation(a @ b), one BM x BN tile a program."""
    pid_m, pid_n = tl.swizzle2d(tl.program_id(0) // tl.cdiv(N, BN),
                                tl.program_id(0) % tl.cdiv(N, BN),
                                tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a = a_ptr + rm[:, None] * a_m + rk[None, :] * a_k
    b = b_ptr + rk[:, None] * b_k + rn[None, :] * b_n
    acc = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        x = tl.load(a, mask=(rm[:, None] < M) & (rk[None, :] < K - k), other=0)
        y = tl.load(b, mask=(rk[:, None] < K - k) & (rn[None, :] < N), other=0)
        acc = tl.dot(x, y, acc)
        a += BK * a_k
        b += BK * b_k
    out = ACTIVATION(acc).to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + rm[:, None] * c_m + rn[None, :] * c_n, out,
             mask=(rm[:, None] < M) & (rn[None, :] < N))


def strides(x: Any) -> tuple[int, ...]:
    """Strides in elements."""
    return x.stride() if hasattr(x, "stride") else tuple(s // x.itemsize for s in x.strides)


def matmul(a: Any, b: Any, c: Any, activation: Any = identity,
           block: tuple[int, int, int] = (128, 128, 64), num_warps: int = 4,
           num_stages: int = 3, find_boxes: bool = True) -> Any:
    """c = activation(a @ b) for a (M, K), b (K, N) of any strides; returns the kernel. find_boxes:
    tiles go by TMA where that can be."""
    (m, k), n = a.shape, b.shape[1]
    acc = tl.int32 if "int8" in str(a.dtype) else tl.float32
    grid = (tilec.cdiv(m, block[0]) * tilec.cdiv(n, block[1]),)
    return matmul_kernel[grid](a, b, c, m, n, k, *strides(a), *strides(b), *strides(c),
                               ACTIVATION=activation, ACC=acc, BM=block[0], BN=block[1],
                               BK=block[2], GROUP=8, num_warps=num_warps, num_stages=num_stages,
                               find_boxes=find_boxes)


def main(m: int = 100, n: int = 150, k: int = 70) -> None:
    for dtype, activation, out, tolerance in (("float16", relu, "float16", 2e-3),
                                              ("bfloat16", silu, "bfloat16", 2e-2),
                                              ("int8", identity, "int32", 0)):
        scale = 20 if dtype == "int8" else 1
        a = support.array(support.normal(0, m, k) * scale, dtype)
        b = support.array(support.normal(1, n, k) * scale, dtype).T
        c = support.poisoned((m, n), out)
        matmul(a, b, c, activation, block=(64, 64, 32))
        x = support.host(a) @ support.host(b)
        expected = x / (1 + np.exp(-x)) if activation is silu else \
            np.maximum(x, 0) if activation is relu else x
        support.check(f"{activation.name}(a @ b), {m} x {n} x {k} {dtype}, {support.place()}", c,
                      expected, tolerance)


if __name__ == "__main__":
    main()
