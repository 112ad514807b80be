"""Attention forward over tensor descriptors: full and causal, with fewer heads of keys than of
queries (GQA) if wanted.

On Hopper, TMA brings the blocks, wgmma multiplies them, and the loop is rotated: the scores of a
block begin together with the product of the block before it, so that the tensor cores work while
threads compute exponentials. Nothing here says so; it is one plain loop.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import support

import tilec
import tilec.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@tilec.jit
def attention_kernel(q, k, v, out, scale, SHARED: tl.constexpr, CAUSAL: tl.constexpr):
    """softmax(scale * q k') v. q, out: (heads, rows, D) in blocks (1, BM, D); k, v:
    (heads / SHARED, columns, D) in blocks (1, BN, D). One program for BM rows of one head."""
    BM: tl.constexpr = q.block_shape[1]
    BN: tl.constexpr = k.block_shape[1]
    D: tl.constexpr = q.block_shape[2]
    head = tl.program_id(1)
    # The longest rows of a causal mask first: the short ones fill the end.
    block = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
    first = block * BM
    scale *= LOG2_E
    queries = q.load([head, first, 0]).reshape(BM, D)
    acc = tl.zeros((BM, D), tl.float32)
    top = tl.full((BM,), -1.0e30, tl.float32)
    # Sums of each eighth column: threads need not exchange them in every round.
    total = tl.zeros((BM, 8), tl.float32)
    end = k.shape[1]
    seen = end  # by all rows
    if CAUSAL:
        end = tl.minimum(end, first + BM)
        seen = tl.minimum(seen, first + 1)
    for start in range(0, end, BN):
        keys = k.load([head // SHARED, start, 0]).reshape(BN, D)
        s = tl.dot(queries, tl.trans(keys))
        if start + BN > seen:  # on the diagonal, or at the end
            columns = start + tl.arange(0, BN)[None, :]
            valid = columns < k.shape[1]
            if CAUSAL:
                valid = valid & (first + tl.arange(0, BM)[:, None] >= columns)
            s = tl.where(valid, s, -1.0e30)
        # The scale comes after the maximum, so that scaling and subtraction are one fma.
        new_top = tl.maximum(top, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new_top[:, None])
        rescale = tl.exp2(top - new_top)
        total = total * rescale[:, None] + tl.sum(p.reshape(BM, BN // 8, 8), 1)
        values = v.load([head // SHARED, start, 0]).reshape(BN, D)
        acc = tl.dot(p.to(v.dtype), values, acc * rescale[:, None])
        top = new_top
    inverse = 1.0 / tl.sum(total, 1)
    out.store([head, first, 0], (acc * inverse[:, None]).reshape(1, BM, D))


def attention(q: Any, k: Any, v: Any, out: Any, causal: bool, block: tuple[int, int] = (128, 128),
              num_warps: int = 8, num_stages: int = 2) -> Any:
    """out = attention of q, out (heads, rows, D) and k, v (fewer heads or as many, columns, D), all
    contiguous; returns the kernel."""
    heads, rows, d = q.shape
    described = [tilec.TensorDescriptor.from_tensor(x, (1, block[x is k or x is v], d))
                 for x in (q, k, v, out)]
    return attention_kernel[(tilec.cdiv(rows, block[0]), heads)](
        *described, 1.0 / math.sqrt(d), SHARED=heads // k.shape[0], CAUSAL=causal,
        num_warps=num_warps, num_stages=num_stages)


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    """The same in float64."""
    k, v = (np.repeat(x, len(q) // len(k), 0) for x in (k, v))
    s = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tril(np.ones(s.shape[1:], bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def main(heads: int = 4, shared: int = 2, n_ctx: int = 150, d: int = 64) -> None:
    for causal in (False, True):
        q, k, v = (support.array(support.normal(i, heads // (shared if i else 1), n_ctx, d),
                                 "bfloat16") for i in range(3))
        out = support.poisoned((heads, n_ctx, d), "bfloat16")
        attention(q, k, v, out, causal, block=(64, 64), num_warps=4)
        support.check(f"attention, {'causal' if causal else 'full'}, {heads} x {n_ctx} x {d} "
                      f"bfloat16, {support.place()}", out,
                      reference(*map(support.host, (q, k, v)), causal), 2e-2)


if __name__ == "__main__":
    main()
