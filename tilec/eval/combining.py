"""Reductions and scans of arrays along their last axis, by any function that combines elements.

parts: an array for each tile that is combined together; combine(left, right) gives as many.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilec.eval.dtypes import Array

Combine = Callable[[list[Array], list[Array]], list[Array]]


def reduced(parts: list[Array], combine: Combine) -> list[Array]:
    """Pairwise: halves against each other, odd ones out at the end."""
    odd: list[list[Array]] = []
    extent = parts[0].shape[-1]
    while extent > 1:
        half = extent // 2
        if extent % 2:
            odd.append([p[..., -1] for p in parts])
        parts = combine([p[..., :half] for p in parts], [p[..., half:2 * half] for p in parts])
        extent = half
    out = [p[..., 0] for p in parts]
    for extra in reversed(odd):
        out = combine(out, extra)
    return out


def scanned(parts: list[Array], combine: Combine) -> list[Array]:
    """Element i is elements 0 to i combined in their order: pairs are scanned, and what lies
    between is combined with the pairs before it."""
    extent = parts[0].shape[-1]
    if extent == 1:
        return parts
    last = scanned(combine([p[..., :-1:2] for p in parts], [p[..., 1::2] for p in parts]), combine)
    out = [np.array(p) for p in parts]
    for o, pair in zip(out, last, strict=True):
        o[..., 1::2] = pair
    if extent > 2:
        between = combine([p[..., :(extent - 1) // 2] for p in last], [p[..., 2::2] for p in parts])
        for o, b in zip(out, between, strict=True):
            o[..., 2::2] = b
    return out
