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
def merge(top, total, other_top, other_total):
    e = tl.exp(-tl.abs(top - other_top))
    return (tl.maximum(top, other_top),
            tl.where(top > other_top, total + other_total * e, total * e + other_total))


@triton.jit
def load_block(row_ptr, start, N: tl.constexpr, PER: tl.constexpr, WIDTH: tl.constexpr,
               POLICY: tl.constexpr):
    cols = start + tl.arange(0, PER)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    if N % (PER * WIDTH) == 0:
        x = tl.load(row_ptr + cols, eviction_policy=POLICY)
    else:
        x = tl.load(row_ptr + cols, mask=cols < N, other=float("-inf"),
                    eviction_policy=POLICY)
    return x.to(tl.float32), cols


@triton.jit
def row_statistics(row_ptr, N: tl.constexpr, PER: tl.constexpr, WIDTH: tl.constexpr):
    x, _ = load_block(row_ptr, 0, N, PER, WIDTH, "evict_last")
    top = tl.maximum(tl.max(x, 0), LOWEST)
    total = tl.sum(tl.exp(x - top[None, :]), 0)
    for start in range(PER * WIDTH, N, PER * WIDTH):
        x, _ = load_block(row_ptr, start, N, PER, WIDTH, "evict_last")
        new = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new[None, :]), 0)
        top = new
    return tl.reduce((top, total), 0, merge)


@triton.jit
def write_exponentials(x_row, out_row, top, factor, N: tl.constexpr, PER: tl.constexpr,
                       WIDTH: tl.constexpr):
    BLOCK: tl.constexpr = PER * WIDTH
    for back in range(0, N, BLOCK):
        x, cols = load_block(x_row, (N - 1) // BLOCK * BLOCK - back, N, PER, WIDTH, "evict_first")
        if N % BLOCK == 0:
            tl.store(out_row + cols, tl.exp(x - top) * factor)
        else:
            tl.store(out_row + cols, tl.exp(x - top) * factor, mask=cols < N)


@triton.jit
def long_softmax_kernel(x_ptr, out_ptr, N: tl.constexpr, PER: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * N
    top, total = row_statistics(x_ptr + row, N, PER, WIDTH)
    tl.debug_barrier()
    write_exponentials(x_ptr + row, out_ptr + row, top, 1.0 / total, N, PER, WIDTH)


@triton.jit
def cross_entropy_kernel(x_ptr, label_ptr, loss_ptr, dx_ptr, scale, N: tl.constexpr,
                         GRAD: tl.constexpr, PER: tl.constexpr, WIDTH: tl.constexpr):
    """Every row counts."""
    row = tl.program_id(0).to(tl.int64) * N
    label = tl.load(label_ptr + tl.program_id(0))
    picked = tl.load(x_ptr + row + label).to(tl.float32)
    top, total = row_statistics(x_ptr + row, N, PER, WIDTH)
    tl.store(loss_ptr + tl.program_id(0), tl.log(total) + (top - picked))
    if GRAD:
        factor = scale / total
        tl.debug_barrier()
        write_exponentials(x_ptr + row, dx_ptr + row, top, factor, N, PER, WIDTH)
        tl.debug_barrier()
        tl.store(dx_ptr + row + label, tl.exp(picked - top) * factor - scale)


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
def read_row(row_ptr, cols, n_cols, EVEN: tl.constexpr, POLICY: tl.constexpr):
    if EVEN:
        return tl.load(row_ptr + cols, eviction_policy=POLICY).to(tl.float32)
    return tl.load(row_ptr + cols, mask=cols < n_cols, other=0.0,
                   eviction_policy=POLICY).to(tl.float32)


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, out_ptr, rstd_ptr, n_cols, eps, BLOCK: tl.constexpr,
                    EVEN: tl.constexpr, RELOAD: tl.constexpr = False):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    x = read_row(x_ptr + row * n_cols, cols, n_cols, EVEN, "evict_last" if RELOAD else "")
    rstd = tl.rsqrt(tl.sum(x * x, 0) / n_cols + eps)
    if RELOAD:
        tl.debug_barrier()
        x = read_row(x_ptr + row * n_cols, cols, n_cols, EVEN, "evict_first")
    w = read_row(w_ptr, cols, n_cols, EVEN, "evict_last" if RELOAD else "")
    y = x * rstd * w
    if EVEN:
        tl.store(out_ptr + row * n_cols + cols, y)
    else:
        tl.store(out_ptr + row * n_cols + cols, y, mask=cols < n_cols)
    tl.store(rstd_ptr + row, rstd)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, a_m, b_k, c_m, BM: tl.constexpr,
                  BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    across = tl.cdiv(N, BN)
    pid_m, pid_n = tl.swizzle2d(pid // across, pid % across, tl.cdiv(M, BM), across, GROUP)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a = a_ptr + rm[:, None] * a_m + rk[None, :]
    b = b_ptr + rk[:, None] * b_k + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a, mask=(rm[:, None] < M) & (rk[None, :] < K - k), other=0.0)
        y = tl.load(b, mask=(rk[:, None] < K - k) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc)
        a += BK
        b += BK * b_k
    tl.store(c_ptr + rm[:, None] * c_m + rn[None, :], acc.to(c_ptr.dtype.element_ty),
             mask=(rm[:, None] < M) & (rn[None, :] < N))


def matmul(a, b, c, block, warps, stages):
    (m, k), n = a.shape, b.shape[1]
    grid = (triton.cdiv(m, block[0]) * triton.cdiv(n, block[1]),)
    matmul_kernel[grid](a, b, c, m, n, k, a.stride(0), b.stride(0), c.stride(0), BM=block[0],
                        BN=block[1], BK=block[2], GROUP=8, num_warps=warps, num_stages=stages)


@triton.jit
def attend(acc, top, total, q, k_ptr, v_ptr, lo, hi, rows, stride, n_ctx, scale,
           BN: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr):
    dims = tl.arange(0, D)
    for start in range(lo, hi, BN):
        cols = start + tl.arange(0, BN)
        k = tl.load(k_ptr + cols[:, None] * stride + dims[None, :])
        v = tl.load(v_ptr + cols[:, None] * stride + dims[None, :])
        s = tl.dot(q, tl.trans(k))
        if MASKED:
            valid = (cols < n_ctx)[None, :]
            if CAUSAL:
                valid = valid & (rows[:, None] >= cols[None, :])
            s = tl.where(valid, s, -1.0e30)
        new_top = tl.maximum(top, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new_top[:, None])
        rescale = tl.exp2(top - new_top)
        total = total * rescale + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])
        top = new_top
    return acc, top, total


@triton.jit
def attention_kernel(q_ptr, k_ptr, v_ptr, out_ptr, n_ctx, stride, head_stride, scale,
                     BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    """Needs n_ctx divisible by BM and BN."""
    head = tl.program_id(1).to(tl.int64) * head_stride
    block = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
    rows = block * BM + tl.arange(0, BM)
    dims = tl.arange(0, D)
    scale *= 1.4426950408889634
    at = rows[:, None] * stride + dims[None, :]
    q = tl.load(q_ptr + head + at)
    acc = tl.zeros((BM, D), tl.float32)
    top = tl.full((BM,), -1.0e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    whole = n_ctx
    end = n_ctx
    if CAUSAL:
        whole = block * BM // BN * BN
        end = (block + 1) * BM
    acc, top, total = attend(acc, top, total, q, k_ptr + head, v_ptr + head, 0, whole, rows, stride,
                             n_ctx, scale, BN, D, False, CAUSAL)
    acc, top, total = attend(acc, top, total, q, k_ptr + head, v_ptr + head, whole, end, rows,
                             stride, n_ctx, scale, BN, D, True, CAUSAL)
    tl.store(out_ptr + head + at, (acc / total[:, None]).to(q.dtype))


def attention(q, k, v, out, causal, block, warps, stages):
    heads, n_ctx, d = q.shape
    attention_kernel[(triton.cdiv(n_ctx, block[0]), heads)](
        q, k, v, out, n_ctx, d, n_ctx * d, d**-0.5, BM=block[0], BN=block[1], D=d, CAUSAL=causal,
        num_warps=warps, num_stages=stages)


@triton.jit
def row_products_kernel(out_ptr, dout_ptr, delta_ptr, BM: tl.constexpr, D: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    at = rows[:, None] * D + tl.arange(0, D)[None, :]
    product = tl.load(out_ptr + at).to(tl.float32) * tl.load(dout_ptr + at)
    tl.store(delta_ptr + rows, tl.sum(product, 1))


@triton.jit
def add_queries(dk, dv, k, v, q_ptr, dout_ptr, lse_ptr, delta_ptr, lo, hi, cols, stride, scale,
                BM: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr):
    dims = tl.arange(0, D)
    for start in range(lo, hi, BM):
        rows = start + tl.arange(0, BM)
        at = rows[:, None] * stride + dims[None, :]
        q = tl.load(q_ptr + at)
        dout = tl.load(dout_ptr + at)
        p = tl.exp2(tl.dot(k, tl.trans(q)) * scale - tl.load(lse_ptr + rows)[None, :])
        if MASKED:
            p = tl.where(rows[None, :] >= cols[:, None], p, 0.0)
        dv = tl.dot(p.to(dout.dtype), dout, dv)
        dp = tl.dot(v, tl.trans(dout))
        ds = p * (dp - tl.load(delta_ptr + rows)[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk)
    return dk, dv


@triton.jit
def add_keys(dq, q, dout, lse, delta, k_ptr, v_ptr, lo, hi, rows, stride, scale,
             BN: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr):
    dims = tl.arange(0, D)
    for start in range(lo, hi, BN):
        cols = start + tl.arange(0, BN)
        at = cols[:, None] * stride + dims[None, :]
        k = tl.load(k_ptr + at)
        v = tl.load(v_ptr + at)
        p = tl.exp2(tl.dot(q, tl.trans(k)) * scale - lse[:, None])
        if MASKED:
            p = tl.where(rows[:, None] >= cols[None, :], p, 0.0)
        ds = p * (tl.dot(dout, tl.trans(v)) - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    return dq


@triton.jit
def attention_gradients_kernel(q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr,
                               dv_ptr, n_ctx, stride, scale, SIDE: tl.constexpr,
                               STEP: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    """One program for the keys and values, then the queries, of a block of SIDE; the other side
    comes in steps. Needs n_ctx divisible by SIDE."""
    first = tl.program_id(0) * SIDE
    head = tl.program_id(1).to(tl.int64) * n_ctx
    block = first + tl.arange(0, SIDE)
    dims = tl.arange(0, D)
    q_ptr += head * stride
    k_ptr += head * stride
    v_ptr += head * stride
    dout_ptr += head * stride
    lse_ptr += head
    delta_ptr += head
    log_scale = scale * 1.4426950408889634
    at = block[:, None] * stride + dims[None, :]
    k = tl.load(k_ptr + at)
    v = tl.load(v_ptr + at)
    dk = tl.zeros((SIDE, D), tl.float32)
    dv = tl.zeros((SIDE, D), tl.float32)
    whole = 0
    if CAUSAL:
        dk, dv = add_queries(dk, dv, k, v, q_ptr, dout_ptr, lse_ptr, delta_ptr, first, first + SIDE,
                             block, stride, log_scale, STEP, D, True)
        whole = first + SIDE
    dk, dv = add_queries(dk, dv, k, v, q_ptr, dout_ptr, lse_ptr, delta_ptr, whole, n_ctx, block,
                         stride, log_scale, STEP, D, False)
    tl.store(dk_ptr + head * stride + at, (dk * scale).to(k.dtype))
    tl.store(dv_ptr + head * stride + at, dv.to(k.dtype))
    q = tl.load(q_ptr + at)
    dout = tl.load(dout_ptr + at)
    lse = tl.load(lse_ptr + block)
    delta = tl.load(delta_ptr + block)
    dq = tl.zeros((SIDE, D), tl.float32)
    end = n_ctx
    if CAUSAL:
        dq = add_keys(dq, q, dout, lse, delta, k_ptr, v_ptr, first, first + SIDE, block, stride,
                      log_scale, STEP, D, True)
        end = first
    dq = add_keys(dq, q, dout, lse, delta, k_ptr, v_ptr, 0, end, block, stride, log_scale, STEP, D,
                  False)
    tl.store(dq_ptr + head * stride + at, (dq * scale).to(q.dtype))


def attention_gradients(q, k, v, out, dout, lse, delta, dq, dk, dv, causal, block, warps, stages):
    """lse: the logarithms to base 2 of the sums of exp(scale * q k'). block: SIDE and STEP."""
    heads, n_ctx, d = q.shape
    row_products_kernel[(heads * n_ctx // 128,)](out, dout, delta, BM=128, D=d)
    attention_gradients_kernel[(n_ctx // block[0], heads)](
        q, k, v, dout, lse, delta, dq, dk, dv, n_ctx, d, d**-0.5, SIDE=block[0], STEP=block[1],
        D=d, CAUSAL=causal, num_warps=warps, num_stages=stages)
