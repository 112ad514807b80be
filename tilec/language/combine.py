"""Combine functions of the reductions and scans that have a name, in the kernel language."""

from __future__ import annotations

from tilec.frontend.function import function
from tilec.language import selection


@function
def add(a, b):
    """a + b"""
    return a + b


@function
def multiply(a, b):
    """a * b"""
    return a * b


@function
def xor(a, b):
    """a ^ b"""
    return a ^ b


@function
def bitwise_or(a, b):
    """a | b"""
    return a | b


@function
def maximum(a, b):
    """The larger; a number wins over NaN."""
    return selection.maximum(a, b)


@function
def minimum(a, b):
    """The smaller; a number wins over NaN."""
    return selection.minimum(a, b)


@function
def _pick(first, a, i, b, j):
    """(a, i) where `first` holds or b is a NaN, else (b, j)."""
    if a.dtype.is_floating():
        first = first | (b != b)
    return selection.where(first, a, b), selection.where(first, i, j)


@function
def argmax_left(a, i, b, j):
    """The larger and its index; of equal ones the smaller index."""
    return _pick((a > b) | ((a == b) & (i < j)), a, i, b, j)


@function
def argmax_any(a, i, b, j):
    """The larger and its index; of equal ones either."""
    return _pick(a > b, a, i, b, j)


@function
def argmin_left(a, i, b, j):
    """The smaller and its index; of equal ones the smaller index."""
    return _pick((a < b) | ((a == b) & (i < j)), a, i, b, j)


@function
def argmin_any(a, i, b, j):
    """The smaller and its index; of equal ones either."""
    return _pick(a < b, a, i, b, j)
