"""What atomics put in place of what they find (docs/semantics.md, section 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tilec.eval.dtypes import Array, DType, is_float, uint_like

Update = Callable[..., Any]
"""(what is found, what is given...) -> what is put there, element by element."""


def order(x: Array) -> Array:
    """Integers in the order of numbers, for floats that of their bits: -0.0 is less than 0.0, NaN
    are beyond the infinities. Applied to what it gives, as bits, it gives the bits back."""
    if not is_float(x.dtype):
        return x
    bits = x.view(f"i{x.itemsize}")
    return np.asarray(bits ^ (bits >> (8 * x.itemsize - 1)) & np.iinfo(bits.dtype).max)


def same_bits(x: Array, y: Array) -> Array:
    """Where two arrays hold the same."""
    kind = uint_like(x.dtype)
    return np.asarray(x.view(kind) == y.view(kind))


_OF_INTEGERS: dict[str, Update] = {"max": np.maximum, "min": np.minimum}
UPDATES: dict[str, Update] = {
    "add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "max": lambda old, new: np.where(order(new) > order(old), new, old),
    "min": lambda old, new: np.where(order(new) < order(old), new, old),
    "xchg": lambda old, new: new,
    "cas": lambda old, compare, new: np.where(same_bits(old, compare), new, old),
}


def update_of(kind: str, dtype: DType) -> Update:
    """What an atomic of a kind does to elements of `dtype`; a ufunc where numpy has it."""
    known = None if is_float(dtype) else _OF_INTEGERS.get(kind)
    return UPDATES[kind] if known is None else known


def in_turn(index: Array) -> Iterator[Array]:
    """Lanes of which each has another element, by `index`: the first ones that have theirs, then
    the second ones, and so on."""
    by_element = np.argsort(index, kind="stable")
    ordered = index[by_element]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    counts = np.diff(np.append(first, len(index)))
    turn = np.arange(len(index)) - np.repeat(first, counts)
    lanes = by_element[np.argsort(turn, kind="stable")]
    yield from np.split(lanes, np.cumsum(np.bincount(turn))[:-1])
