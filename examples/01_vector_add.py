"""The smallest kernel: out = x + y, one tile a program."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import support

import tilec
import tilec.language as tl

TOLERANCE = {"float32": 1e-7, "bfloat16": 2**-8, "int32": 0}


@tilec.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)


def add(x: Any, y: Any, out: Any, block: int = 1024, num_warps: int = 4) -> Any:
    """out = x + y for arrays of one shape and dtype; returns the compiled kernel."""
    n = x.size if isinstance(x.size, int) else x.numel()
    return add_kernel[(tilec.cdiv(n, block),)](x, y, out, n, BLOCK=block, num_warps=num_warps)


def main(n: int = 5000, dtypes: Sequence[str] = tuple(TOLERANCE)) -> None:
    for dtype in dtypes:
        x = support.array(support.normal(0, n) * 10, dtype)
        y = support.array(support.normal(1, n) * 10, dtype)
        out = support.poisoned(n, dtype)
        add(x, y, out)
        support.check(f"add of {n} {dtype} values, {support.place()}", out,
                      support.host(x) + support.host(y), TOLERANCE[dtype])


if __name__ == "__main__":
    main(dtypes=sys.argv[1:] or tuple(TOLERANCE))
