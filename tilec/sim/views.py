"""Numpy types of PTX types, and views of registers in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilec.sim.errors import Unsupported
from tilec.sim.machine import Array
from tilec.sim.ptx import TYPE_BYTES

UINT = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
INT = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_VALUES = {"pred": np.bool_, "f32": np.float32, "f64": np.float64}


def numpy_type(ty: str) -> Any:
    """The numpy type of a view: floats narrower than 32 bits and packed values stay raw bits."""
    if ty in _VALUES:
        return _VALUES[ty]
    if ty not in TYPE_BYTES or ty == "b128":
        raise Unsupported(f"operands of type .{ty}")
    return (INT if ty[0] == "s" and "x" not in ty else UINT)[TYPE_BYTES[ty]]


def as_type(array: Array, kind: Any) -> Array:
    """A register as a view of `kind`: same size reinterpreted, wider ones by their low bytes."""
    size = np.dtype(kind).itemsize
    if array.dtype == np.bool_ or kind is np.bool_:
        if array.dtype != kind:
            raise Unsupported("a predicate register mixed with a value")
        return array
    if array.dtype.itemsize == size:
        return array.view(kind)
    if array.dtype.itemsize < size:
        raise Unsupported("a register narrower than the instruction's type")
    return array.view(kind)[:: array.dtype.itemsize // size]
