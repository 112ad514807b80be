"""Layer norm and RMS norm, forward and backward, and as torch operators with autograd.

Backward: each program takes every num_programs-th row, so that it can add up its share of the
gradients of weight and bias in registers; a second kernel adds the programs' shares. No atomics,
hence the same bits in every run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import support

import tilec
import tilec.language as tl


@tilec.jit
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


@tilec.jit
def layer_norm_backward_kernel(x_ptr, w_ptr, mean_ptr, rstd_ptr, dy_ptr, dx_ptr, dw_ptr, db_ptr,
                               n_rows, n_cols, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, n_rows, tl.num_programs(0)):
        at = row.to(tl.int64) * n_cols + cols
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        xhat = tl.where(mask, (x - tl.load(mean_ptr + row)) * rstd, 0.0)
        g = dy * w
        along = tl.sum(g * xhat, 0) / n_cols
        tl.store(dx_ptr + at, (g - tl.sum(g, 0) / n_cols - xhat * along) * rstd, mask=mask)
        dw += dy * xhat
        db += dy
    tl.store(dw_ptr + program * n_cols + cols, dw, mask=mask)
    tl.store(db_ptr + program * n_cols + cols, db, mask=mask)


@tilec.jit
def read_row(row_ptr, cols, n_cols, EVEN: tl.constexpr, POLICY: tl.constexpr):
    if EVEN:
        return tl.load(row_ptr + cols, eviction_policy=POLICY).to(tl.float32)
    return tl.load(row_ptr + cols, mask=cols < n_cols, other=0.0,
                   eviction_policy=POLICY).to(tl.float32)


@tilec.jit
def rms_norm_kernel(x_ptr, w_ptr, out_ptr, rstd_ptr, n_cols, eps, BLOCK: tl.constexpr,
                    EVEN: tl.constexpr, RELOAD: tl.constexpr = False):
    """One program a row. EVEN says that n_cols == BLOCK, so that no lane needs a mask. RELOAD reads
    the row again, out of the cache, instead of holding it across the reduction: with fewer
    registers a thread, an SM has more rows in flight."""
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


@tilec.jit
def rms_norm_backward_kernel(x_ptr, w_ptr, rstd_ptr, dy_ptr, dx_ptr, dw_ptr, n_rows, n_cols,
                             BLOCK: tl.constexpr):
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, n_rows, tl.num_programs(0)):
        at = row.to(tl.int64) * n_cols + cols
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        xhat = x * rstd
        g = dy * w
        along = tl.sum(g * xhat, 0) / n_cols
        tl.store(dx_ptr + at, (g - xhat * along) * rstd, mask=mask)
        dw += dy * xhat
    tl.store(dw_ptr + program * n_cols + cols, dw, mask=mask)


@tilec.jit
def sum_rows_kernel(parts_ptr, out_ptr, n_rows, n_cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    """out = the sum over the rows of parts; a program takes COLS columns."""
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = tl.zeros((COLS,), tl.float32)
    for start in range(0, n_rows, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]
        part = tl.load(parts_ptr + rows[:, None] * n_cols + cols[None, :], mask=mask, other=0.0)
        total += tl.sum(part, 0)
    tl.store(out_ptr + cols, total, mask=cols < n_cols)


def _warps(block: int) -> int:
    return min(16, max(1, block // 512))


def layer_norm(x: Any, w: Any, b: Any, out: Any, mean: Any, rstd: Any, eps: float = 1e-5) -> Any:
    """out = (x - mean) / sqrt(var + eps) * w + b for each row of x.

    x, out: (rows, columns); w, b: (columns,); mean, rstd: (rows,) float32, written for backward.
    """
    rows, cols = x.shape
    block = tilec.next_power_of_2(cols)
    return layer_norm_kernel[(rows,)](x, w, b, out, mean, rstd, cols, eps, BLOCK=block,
                                      num_warps=_warps(block))


def rms_norm(x: Any, w: Any, out: Any, rstd: Any, eps: float = 1e-6,
             num_warps: int | None = None, reload: bool = False) -> Any:
    """out = x / sqrt(mean(x * x) + eps) * w for each row of x; rstd as for layer_norm, reload as in
    the kernel."""
    rows, cols = x.shape
    block = tilec.next_power_of_2(cols)
    return rms_norm_kernel[(rows,)](x, w, out, rstd, cols, eps, BLOCK=block, EVEN=block == cols,
                                    RELOAD=reload, num_warps=num_warps or _warps(block))


def sum_rows(parts: Any, out: Any) -> Any:
    """out = parts.sum(0), for float32 parts of shape (rows, columns)."""
    rows, cols = parts.shape
    return sum_rows_kernel[(tilec.cdiv(cols, 64),)](parts, out, rows, cols, ROWS=32, COLS=64)


def layer_norm_backward(x: Any, w: Any, mean: Any, rstd: Any, dy: Any, dx: Any, dw_parts: Any,
                        db_parts: Any, dw: Any, db: Any) -> None:
    """The gradients dx, dw, db. dw_parts, db_parts: (programs, columns) float32 scratch."""
    rows, cols = x.shape
    block = tilec.next_power_of_2(cols)
    layer_norm_backward_kernel[(dw_parts.shape[0],)](
        x, w, mean, rstd, dy, dx, dw_parts, db_parts, rows, cols, BLOCK=block,
        num_warps=_warps(block))
    sum_rows(dw_parts, dw)
    sum_rows(db_parts, db)


def rms_norm_backward(x: Any, w: Any, rstd: Any, dy: Any, dx: Any, dw_parts: Any, dw: Any) -> None:
    """The gradients dx, dw. dw_parts: (programs, columns) float32 scratch."""
    rows, cols = x.shape
    block = tilec.next_power_of_2(cols)
    rms_norm_backward_kernel[(dw_parts.shape[0],)](
        x, w, rstd, dy, dx, dw_parts, rows, cols, BLOCK=block, num_warps=_warps(block))
    sum_rows(dw_parts, dw)


# -- as torch operators -------------------------------------------------------------------------

def _programs(x: Any) -> int:
    """Programs of a backward launch: enough for every SM, and no more than there are rows."""
    return min(x.shape[0], 264)


def torch_layer_norm(torch: Any) -> Any:
    """`tilec_examples::layer_norm(x, weight, bias, eps)` with its gradient, as a torch operator
    that torch.compile sees through: returns (out, mean, rstd)."""
    op = torch.library.custom_op(
        "tilec_examples::layer_norm", mutates_args=(),
        schema="(Tensor x, Tensor weight, Tensor bias, float eps) -> (Tensor, Tensor, Tensor)",
    )(lambda x, weight, bias, eps: _layer_norm_forward(torch, x, weight, bias, eps))

    @op.register_fake
    def _(x: Any, weight: Any, bias: Any, eps: float) -> Any:
        rows = x.new_empty(x.shape[0], dtype=torch.float32)
        return torch.empty_like(x), rows, torch.empty_like(rows)

    def backward(ctx: Any, dy: Any, *_: Any) -> Any:
        x, weight, mean, rstd = ctx.saved_tensors
        dx = torch.empty_like(x)
        parts = x.new_empty((2, _programs(x), x.shape[1]), dtype=torch.float32)
        sums = x.new_empty((2, x.shape[1]), dtype=torch.float32)
        layer_norm_backward(x, weight, mean, rstd, dy.contiguous(), dx, parts[0], parts[1],
                            sums[0], sums[1])
        return dx, sums[0].to(weight.dtype), sums[1].to(weight.dtype), None

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], inputs[1], output[1], output[2])

    op.register_autograd(backward, setup_context=save)
    return op


def _layer_norm_forward(torch: Any, x: Any, weight: Any, bias: Any, eps: float) -> Any:
    x = x.contiguous()
    out = torch.empty_like(x)
    mean = x.new_empty(x.shape[0], dtype=torch.float32)
    rstd = torch.empty_like(mean)
    layer_norm(x, weight, bias, out, mean, rstd, eps)
    return out, mean, rstd


def torch_rms_norm(torch: Any) -> Any:
    """`tilec_examples::rms_norm(x, weight, eps)` with its gradient: returns (out, rstd)."""
    op = torch.library.custom_op(
        "tilec_examples::rms_norm", mutates_args=(),
        schema="(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    )(lambda x, weight, eps: _rms_norm_forward(torch, x, weight, eps))

    @op.register_fake
    def _(x: Any, weight: Any, eps: float) -> Any:
        return torch.empty_like(x), x.new_empty(x.shape[0], dtype=torch.float32)

    def backward(ctx: Any, dy: Any, *_: Any) -> Any:
        x, weight, rstd = ctx.saved_tensors
        dx = torch.empty_like(x)
        parts = x.new_empty((_programs(x), x.shape[1]), dtype=torch.float32)
        dw = x.new_empty(x.shape[1], dtype=torch.float32)
        rms_norm_backward(x, weight, rstd, dy.contiguous(), dx, parts, dw)
        return dx, dw.to(weight.dtype), None

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], inputs[1], output[1])

    op.register_autograd(backward, setup_context=save)
    return op


def _rms_norm_forward(torch: Any, x: Any, weight: Any, eps: float) -> Any:
    x = x.contiguous()
    out = torch.empty_like(x)
    rstd = x.new_empty(x.shape[0], dtype=torch.float32)
    rms_norm(x, weight, out, rstd, eps)
    return out, rstd


# -- checks -------------------------------------------------------------------------------------

def reference(x: np.ndarray, w: np.ndarray, b: np.ndarray, dy: np.ndarray, eps: float,
              centre: bool) -> tuple[np.ndarray, ...]:
    """out, dx, dw, db in float64; of RMS norm unless `centre`."""
    mean = x.mean(1, keepdims=True) * centre
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + eps)
    xhat = (x - mean) * rstd
    g = dy * w
    dx = rstd * (g - g.mean(1, keepdims=True) * centre - xhat * (g * xhat).mean(1, keepdims=True))
    return xhat * w + b * centre, dx, (dy * xhat).sum(0), dy.sum(0)


def check_kernels(rows: int, cols: int, dtype: str, tolerance: float) -> None:
    x = support.array(support.normal(0, rows, cols) + 0.5, dtype)
    w = support.array(support.normal(1, cols), dtype)
    b = support.array(support.normal(2, cols), dtype)
    dy = support.array(support.normal(3, rows, cols), dtype)
    values = [support.host(a) for a in (x, w, b, dy)]
    programs = 5
    what = f"{rows} x {cols} {dtype}, {support.place()}"

    out, dx = (support.poisoned((rows, cols), dtype) for _ in range(2))
    mean, rstd = (support.poisoned(rows, "float32") for _ in range(2))
    dw_parts, db_parts = (support.poisoned((programs, cols), "float32") for _ in range(2))
    dw, db = (support.poisoned(cols, "float32") for _ in range(2))
    layer_norm(x, w, b, out, mean, rstd, eps=1e-5)
    layer_norm_backward(x, w, mean, rstd, dy, dx, dw_parts, db_parts, dw, db)
    expected = reference(*values, eps=1e-5, centre=True)
    for name, got, good in zip(("out", "dx", "dw", "db"), (out, dx, dw, db), expected):
        support.check(f"layer norm {name}, {what}", got, good, tolerance)

    out, dx = (support.poisoned((rows, cols), dtype) for _ in range(2))
    rstd, dw = support.poisoned(rows, "float32"), support.poisoned(cols, "float32")
    dw_parts = support.poisoned((programs, cols), "float32")
    rms_norm(x, w, out, rstd, eps=1e-6)
    rms_norm_backward(x, w, rstd, dy, dx, dw_parts, dw)
    expected = reference(*values, eps=1e-6, centre=False)
    for name, got, good in zip(("out", "dx", "dw"), (out, dx, dw), expected):
        support.check(f"RMS norm {name}, {what}", got, good, tolerance)


def check_torch(torch: Any) -> None:
    """The operators under autograd, against torch's own."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    make = [torch.randn(s, device=device, requires_grad=True) for s in ((33, 300), (300,), (300,))]
    x, w, b = make
    dy = torch.randn(33, 300, device=device)
    pairs = (
        ("layer norm", torch_layer_norm(torch)(x, w, b, 1e-5)[0],
         torch.nn.functional.layer_norm(x, (300,), w, b, 1e-5), (x, w, b)),
        ("RMS norm", torch_rms_norm(torch)(x, w, 1e-6)[0],
         torch.nn.functional.rms_norm(x, (300,), w, 1e-6), (x, w)),
    )
    for name, ours, theirs, inputs in pairs:
        support.check(f"{name} as a torch operator", ours, support.host(theirs), 1e-5)
        got = torch.autograd.grad(ours, inputs, dy)
        expected = torch.autograd.grad(theirs, inputs, dy)
        for i, (g, e) in enumerate(zip(got, expected)):
            support.check(f"{name}, gradient of input {i}", g, support.host(e), 1e-4)


def main() -> None:
    check_kernels(23, 300, "float32", 2e-5)
    check_kernels(12, 512, "bfloat16", 3e-2)
    try:
        import torch
    except ImportError:
        print("torch is not installed: the operators are left out")
        return
    check_torch(torch)


if __name__ == "__main__":
    main()
