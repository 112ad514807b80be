"""What memory is behind an array: an access outside of a view may still be inside of that."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilec.eval.dtypes import Array


def span_of(array: Array) -> tuple[int, int]:
    """First and past-the-last host address of an array of any strides."""
    low = high = int(array.ctypes.data)
    if array.size == 0:
        return low, low
    for extent, stride in zip(array.shape, array.strides, strict=True):
        low, high = low + min((extent - 1) * stride, 0), high + max((extent - 1) * stride, 0)
    return low, high + array.itemsize


def storage_of(array: Array) -> tuple[int, int]:
    """First and past-the-last host address of the memory that `array` is a view of: that of its
    outermost numpy base, of a tensor's storage, or of the buffer underneath. Of an array that owns
    its memory, and of one whose memory nothing is known of, its own span."""
    owner: Any = array
    while getattr(owner, "base", None) is not None:  # those of as_strided have an object between
        owner = owner.base
    low, high = span_of(array)
    if isinstance(owner, np.ndarray):
        start, end = span_of(owner)
    elif hasattr(owner, "untyped_storage"):
        storage = owner.untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    else:
        try:
            start, end = span_of(np.frombuffer(owner, np.uint8))
        except (TypeError, ValueError):
            return low, high
    return (min(low, start), max(high, end)) if end > start else (low, high)
