"""Attention forward, full and causal: softmax(q k' / sqrt(d)) v without the matrix of scores.

A program owns BM rows of queries and walks over the keys in blocks, with a running maximum and a
running sum a row (online softmax). Scores never leave the registers: the layout of the first dot's
result is that of the second one's operand.
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
def attend(acc, top, total, q, k_ptr, v_ptr, lo, hi, rows, stride, n_ctx, scale,
           BN: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr):
    """One pass over the keys from lo to hi. scale: of the scores, for powers of two. MASKED: some
    of these scores do not count."""
    dims = tl.arange(0, D)
    for start in range(lo, hi, BN):
        cols = start + tl.arange(0, BN)
        inside = cols < n_ctx
        k = tl.load(k_ptr + cols[:, None] * stride + dims[None, :], mask=inside[:, None], other=0.0)
        v = tl.load(v_ptr + cols[:, None] * stride + dims[None, :], mask=inside[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k))
        if MASKED:
            valid = inside[None, :]
            if CAUSAL:
                valid = valid & (rows[:, None] >= cols[None, :])
            s = tl.where(valid, s, -1.0e30)
        # The scale comes after the maximum, so that scaling and subtraction are one fma.
        new_top = tl.maximum(top, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new_top[:, None])
        rescale = tl.exp2(top - new_top)
        total = total * rescale + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])
        top = new_top
    return acc, top, total


@tilec.jit
def attention_kernel(q_ptr, k_ptr, v_ptr, out_ptr, n_ctx, stride, head_stride, scale,
                     BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    """q, k, v, out: (heads, n_ctx, D); one program for BM rows of one head."""
    head = tl.program_id(1).to(tl.int64) * head_stride
    # The longest rows of a causal mask first: the short ones fill the end.
    block = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
    rows = block * BM + tl.arange(0, BM)
    dims = tl.arange(0, D)
    scale *= LOG2_E
    at = rows[:, None] * stride + dims[None, :]
    q = tl.load(q_ptr + head + at, mask=rows[:, None] < n_ctx, other=0.0)
    acc = tl.zeros((BM, D), tl.float32)
    top = tl.full((BM,), -1.0e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    # Blocks of keys that all rows see whole come first, then those on the diagonal or at the end.
    whole = n_ctx // BN * BN
    end = n_ctx
    if CAUSAL:
        whole = tl.minimum(whole, block * BM // BN * BN)
        end = tl.minimum(n_ctx, (block + 1) * BM)
    acc, top, total = attend(acc, top, total, q, k_ptr + head, v_ptr + head, 0, whole, rows, stride,
                             n_ctx, scale, BN, D, False, CAUSAL)
    acc, top, total = attend(acc, top, total, q, k_ptr + head, v_ptr + head, whole, end, rows,
                             stride, n_ctx, scale, BN, D, True, CAUSAL)
    out = acc / total[:, None]
    tl.store(out_ptr + head + at, out.to(q.dtype), mask=rows[:, None] < n_ctx)


def attention(q: Any, k: Any, v: Any, out: Any, causal: bool, block: tuple[int, int] = (128, 64),
              num_warps: int = 8, num_stages: int = 2) -> Any:
    """out = attention of q, k, v, all contiguous (heads, n_ctx, D); returns the kernel."""
    heads, n_ctx, d = q.shape
    grid = (tilec.cdiv(n_ctx, block[0]), heads)
    return attention_kernel[grid](q, k, v, out, n_ctx, d, n_ctx * d, 1.0 / math.sqrt(d),
                                  BM=block[0], BN=block[1], D=d, CAUSAL=causal,
                                  num_warps=num_warps, num_stages=num_stages)


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    """The same in float64."""
    s = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tril(np.ones(s.shape[1:], bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def main(heads: int = 2, n_ctx: int = 150, d: int = 32) -> None:
    for causal in (False, True):
        q, k, v = (support.array(support.normal(i, heads, n_ctx, d), "float16") for i in range(3))
        out = support.poisoned((heads, n_ctx, d), "float16")
        attention(q, k, v, out, causal, block=(64, 32))
        support.check(f"attention, {'causal' if causal else 'full'}, {heads} x {n_ctx} x {d} "
                      f"float16, {support.place()}", out,
                      reference(*map(support.host, (q, k, v)), causal), 3e-3)


if __name__ == "__main__":
    main()
