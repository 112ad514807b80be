"""A kernel with two mistakes that a GPU may hide, and what the interpreter says about each.

Each row of x is reduced to its mean. Both wrong kernels look right, and on a GPU they may even
give the right answer most of the time: the memory behind the array happens to be readable, and a
lane that was masked off happens to hold a zero. Run on numpy arrays, tilec names the line, the
program and the lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import support

import tilec
import tilec.language as tl
from tilec.errors import InterpreterError


@tilec.jit
def mean_wrong_mask(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    # Mistake: the mask is always true. A row reads into the next one, the last one past the end.
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < BLOCK, other=0.0)
    tl.store(out_ptr + row, tl.sum(x, 0) / n_cols)


@tilec.jit
def mean_no_other(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    # Mistake: the mask is right, but the lanes beyond the row have no value, and all lanes are
    # summed.
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols)
    tl.store(out_ptr + row, tl.sum(x, 0) / n_cols)


@tilec.jit
def mean(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
    tl.store(out_ptr + row, tl.sum(x, 0) / n_cols)


def message_of(kernel: Any, rows: int = 10, cols: int = 100) -> str:
    """What the interpreter says when it runs `kernel` on numpy arrays; "" if nothing is wrong."""
    x = support.normal(0, rows, cols).astype(np.float32)
    out = np.full(rows, np.nan, np.float32)
    try:
        with tilec.knobs.scope(run="tile"):  # the interpreter, whatever TILEC_RUN says
            kernel[(rows,)](x, out, cols, BLOCK=128)
    except InterpreterError as e:
        return str(e)
    return ""


def main(rows: int = 10, cols: int = 100) -> None:
    for kernel in (mean_wrong_mask, mean_no_other):
        message = message_of(kernel, rows, cols)
        assert message, f"{kernel.name}: the interpreter found nothing"
        print(f"-- {kernel.name}\n{message}\n")

    x = support.array(support.normal(1, rows, cols), "float32")
    out = support.poisoned(rows, "float32")
    mean[(rows,)](x, out, cols, BLOCK=128)
    support.check(f"mean of {rows} rows, {support.place()}", out, support.host(x).mean(1), 1e-6)


if __name__ == "__main__":
    main()
