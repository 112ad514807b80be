"""Library functions written in the kernel language itself."""

from __future__ import annotations

import sys
from typing import Any

from tilec.frontend.function import function
from tilec.language import math, reduction, selection
from tilec.language.values import constexpr_function


@function
def softmax(x, dim=None, keep_dims=False, ieee_rounding=False):
    """exp(x - max) / sum(exp(x - max)) along `dim`, the first dimension by default; float32 for
    narrower floats. keep_dims and ieee_rounding change nothing: the shape stays, and `/` is
    within 2 ulp."""
    if dim is None:
        dim = 0
    shifted = x - reduction.max(x, dim, keep_dims=True)
    e = math.exp(shifted)
    return e / reduction.sum(e, dim, keep_dims=True)


@function
def sigmoid(x):
    """1 / (1 + exp(-x)); float32 for narrower floats."""
    return 1 / (1 + math.exp(-x))


@function
def swizzle2d(i, j, size_i, size_j, size_g):
    """Where program (i, j) of a row-major size_i x size_j grid goes when rows are taken in groups
    of size_g and each group is walked column by column: the new (i, j). Programs that run at one
    time then share columns as well as rows."""
    position = i * size_j + j
    group = size_g * size_j
    first = position // group * size_g
    rows = selection.minimum(size_i - first, size_g)  # the last group may have fewer
    position = position % group
    return first + position % rows, position // rows


@constexpr_function
def _log2(n: int) -> int:
    """The exponent of a power of two; of other numbers, rounded down."""
    return n.bit_length() - 1


def __getattr__(name: str) -> Any:
    """Triton's module has names of others, too: `tl.standard.max` is `tl.max`."""
    return getattr(sys.modules["tilec.language.core"], name)
