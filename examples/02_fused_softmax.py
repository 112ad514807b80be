"""Softmax over rows in one launch, in two ways.

One pass: a program holds its whole row in registers, so that the row is read once and written
once. This is as fast as a copy until the registers of an SM no longer hold enough rows to hide
the latency of memory.
Online: the row goes by in blocks, with a running maximum and a running sum in every lane; then it
goes by again, backwards, out of the cache. It takes rows of any length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import support

import tilec
import tilec.language as tl

NEG_INF = tl.constexpr(float("-inf"))
LOWEST = tl.constexpr(-3.4028234663852886e38)  # the lowest finite float32


@tilec.jit
def load_row(row_ptr, cols, n_cols, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(row_ptr + cols).to(tl.float32)
    return tl.load(row_ptr + cols, mask=cols < n_cols, other=NEG_INF).to(tl.float32)


@tilec.jit
def softmax_kernel(x_ptr, out_ptr, x_stride, out_stride, n_cols, BLOCK: tl.constexpr,
                   EVEN: tl.constexpr, RELOAD: tl.constexpr):
    """One program a row. EVEN says that n_cols == BLOCK, so that no lane needs a mask. RELOAD reads
    a row again, out of the cache, instead of holding it across the reductions: with fewer
    registers a thread, an SM has more rows in flight. Loads may be merged and moved, but not past
    a barrier."""
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


@tilec.jit
def online_softmax_kernel(x_ptr, out_ptr, x_stride, out_stride, n_cols, BLOCK: tl.constexpr):
    """One program a row, BLOCK columns at a time. Each lane keeps a maximum and a sum of its own
    columns; the lanes meet once, between the two loops."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    out_row = out_ptr + row * out_stride
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_row + cols, mask=cols < n_cols, other=NEG_INF).to(tl.float32)
    # Not -inf, where nothing was seen yet: -inf - -inf would be NaN.
    top = tl.maximum(x, LOWEST)
    total = tl.exp(x - top)
    for start in range(BLOCK, n_cols, BLOCK):
        x = tl.load(x_row + start + cols, mask=start + cols < n_cols,
                    other=NEG_INF).to(tl.float32)
        # Of the two factors exp(old - new) and exp(x - new), one is 1: one exp is enough.
        e = tl.exp(-tl.abs(x - top))
        total = tl.where(x > top, total * e + 1.0, total + e)
        top = tl.maximum(top, x)
    row_top = tl.max(top, 0)
    scale = 1.0 / tl.sum(total * tl.exp(top - row_top), 0)
    blocks = tl.cdiv(n_cols, BLOCK)
    for i in range(blocks):
        at = (blocks - 1 - i) * BLOCK + cols
        x = tl.load(x_row + at, mask=at < n_cols, other=NEG_INF).to(tl.float32)
        tl.store(out_row + at, tl.exp(x - row_top) * scale, mask=at < n_cols)


def softmax(x: Any, out: Any, num_warps: int | None = None, reload: bool = False,
            maxnreg: int = 0) -> Any:
    """out = softmax of each row of x, one pass; returns the compiled kernel.

    x, out: (rows, columns), columns contiguous. reload: see the kernel. maxnreg: most registers
    a thread, so that two programs of many warps fit an SM; 0 for no limit.
    """
    rows, cols = x.shape
    block = tilec.next_power_of_2(cols)
    warps = num_warps or min(32, max(1, block // 1024))
    return softmax_kernel[(rows,)](x, out, cols, cols, cols, BLOCK=block, EVEN=block == cols,
                                   RELOAD=reload, num_warps=warps, maxnreg=maxnreg)


def online_softmax(x: Any, out: Any, block: int = 4096, num_warps: int = 8) -> Any:
    """The same for rows of any length, `block` columns at a time."""
    rows, cols = x.shape
    return online_softmax_kernel[(rows,)](x, out, cols, cols, cols, BLOCK=block,
                                          num_warps=num_warps)


def reference(x: np.ndarray) -> np.ndarray:
    """Softmax of each row in float64."""
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


CASES = ((23, 781, "float32", 1e-6), (6, 4096, "bfloat16", 1e-2), (4, 1000, "float16", 1e-3))


def main(cases: Any = CASES) -> None:
    for rows, cols, dtype, tolerance in cases:
        values = support.normal(cols, rows, cols) * 3
        values[0, :10] = -np.inf
        x = support.array(values, dtype)
        expected = reference(support.host(x))
        for name, launch in (("one pass", lambda o, x=x: softmax(x, o)),
                             ("reloading", lambda o, x=x: softmax(x, o, reload=True)),
                             ("online", lambda o, x=x: online_softmax(x, o, block=256))):
            out = support.poisoned((rows, cols), dtype)
            launch(out)
            # Values are small where rows are long, so the rows are scaled before they are checked.
            support.check(f"softmax, {name}, {rows} x {cols} {dtype}, {support.place()}",
                          support.host(out) / expected.max(1, keepdims=True),
                          expected / expected.max(1, keepdims=True), tolerance)


if __name__ == "__main__":
    main()
