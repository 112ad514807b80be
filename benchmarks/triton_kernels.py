"""Triton twins of the examples' kernels: the same algorithm, in Triton's words. Needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234663852886e38)  # the lowest finite float32


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def load_row(row_ptr, cols, n_cols, EVEN: tl.constexpr):
    if EVEN:
        x = tl.load(row_ptr + cols)
    else:
        x = tl.load(row_ptr + cols, mask=cols < n_cols, other=float("-inf"))
    return x.to(tl.float32)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, x_stride, out_stride, n_cols, BLOCK: tl.constexpr,
                   EVEN: tl.constexpr, RELOAD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    x_row = x_ptr + row * x_stride
    x = load_row(x_row, cols, n_cols, EVEN)
    top = tl.max(x, 0)
    if RELOAD:
        tl.debug_barrier()
        x = load_row(x_row, cols, n_cols, EVEN)
    e = tl.exp(x - top)
    scale = 1.0 / tl.sum(e, 0)
    if RELOAD:
        tl.debug_barrier()
        e = tl.exp(load_row(x_row, cols, n_cols, EVEN) - top)
    if EVEN:
        tl.store(out_ptr + row * out_stride + cols, e * scale)
    else:
        tl.store(out_ptr + row * out_stride + cols, e * scale, mask=cols < n_cols)


@triton.jit
def online_softmax_kernel(x_ptr, out_ptr, x_stride, out_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    out_row = out_ptr + row * out_stride
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_row + cols, mask=cols < n_cols, other=float("-inf")).to(tl.float32)
    top = tl.maximum(x, LOWEST)
    total = tl.exp(x - top)
    for start in range(BLOCK, n_cols, BLOCK):
        x = tl.load(x_row + start + cols, mask=start + cols < n_cols,
                    other=float("-inf")).to(tl.float32)
        e = tl.exp(-tl.abs(x - top))
        total = tl.where(x > top, total * e + 1.0, total + e)
        top = tl.maximum(top, x)
    row_top = tl.max(top, 0)
    scale = 1.0 / tl.sum(total * tl.exp(top - row_top), 0)
    blocks = tl.cdiv(n_cols, BLOCK)
    for i in range(blocks):
        at = (blocks - 1 - i) * BLOCK + cols
        x = tl.load(x_row + at, mask=at < n_cols, other=float("-inf")).to(tl.float32)
        tl.store(out_row + at, tl.exp(x - row_top) * scale, mask=at < n_cols)


@triton.jit
def layer_norm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, mean_ptr, rstd_ptr, n_cols, eps,
                      BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + cols, mask=mask).to(tl.float32)
    b = tl.load(b_ptr + cols, mask=mask).to(tl.float32)
    mean = tl.sum(x, 0) / n_cols
    d = tl.where(mask, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(d * d, 0) / n_cols + eps)
    tl.store(out_ptr + row * n_cols + cols, d * rstd * w + b, mask=mask)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, out_ptr, rstd_ptr, n_cols, eps, BLOCK: tl.constexpr,
                    EVEN: tl.constexpr, LATE: tl.constexpr = False):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    if EVEN:
        x = tl.load(x_ptr + row * n_cols + cols).to(tl.float32)
    else:
        x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 0) / n_cols + eps)
    if LATE:
        tl.debug_barrier()
    if EVEN:
        w = tl.load(w_ptr + cols).to(tl.float32)
    else:
        w = tl.load(w_ptr + cols, mask=cols < n_cols).to(tl.float32)
    y = x * rstd * w
    if EVEN:
        tl.store(out_ptr + row * n_cols + cols, y)
    else:
        tl.store(out_ptr + row * n_cols + cols, y, mask=cols < n_cols)
    tl.store(rstd_ptr + row, rstd)
