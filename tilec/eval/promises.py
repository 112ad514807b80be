"""What a hint promises of the values it is given, and whether they keep it."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np

from tilec.eval.dtypes import Array
from tilec.ir import ops
from tilec.ir.types import Tensor


def broken_promise(op: ops.Hint, array: Array, runs: Sequence[int], known: Sequence[int]) -> str:
    """The promise of a hint that `array` ([P, ...]) breaks; empty if it keeps them all.
    runs: the length of a contiguous run along each axis. known: that of one by what the compiler
    knows, if no integer in it wraps; it takes from a divisor that none does between multiples."""
    rank = array.ndim - 1
    for kind, step in (("contiguity", 1), ("constancy", 0)):
        for axis, run in enumerate(getattr(op, kind)[:rank]):
            if not _grows(array, axis, run, step * _unit(op)):
                return f"{kind} {run} along axis {axis}"
    for axis, divisor in enumerate(op.divisibility[:max(rank, 1)]):
        run = runs[axis] if axis < len(runs) else 1
        first = array if rank == 0 else np.moveaxis(array, axis + 1, -1)[..., ::run]
        if divisor > 1 and (first.astype(np.int64) % divisor).any():
            return f"divisibility by {divisor} along axis {axis}"
        group = gcd(known[axis], divisor // _unit(op)) if rank else 1
        if not op.contiguity and not _grows(array, axis, group, _unit(op)):
            return f"divisibility by {divisor} along axis {axis}, so that integers wrap only " \
                "between multiples of it"
    return ""


def _grows(array: Array, axis: int, run: int, step: int) -> bool:
    """Whether aligned runs along an axis of the tile grow by `step` an element."""
    if run < 2 or array.shape[axis + 1] < 2:
        return True
    moved = np.moveaxis(array, axis + 1, -1)
    inside = np.arange(1, moved.shape[-1]) % run != 0
    return not (np.diff(moved.astype(np.int64), axis=-1)[..., inside] != step).any()


def _unit(op: ops.Hint) -> int:
    element = op.x.type.element if isinstance(op.x.type, Tensor) else op.x.type
    pointee = getattr(element, "pointee", None)
    return 1 if pointee is None else int(pointee.bytes)
