"""Numpy dtypes of the IR's element types, and what numpy does not say about the small floats.

Pointers are int64 byte addresses.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tilec.ir import types as ir

Array = np.ndarray[Any, Any]
DType = np.dtype[Any]

F16: DType = np.dtype(np.float16)
BF16: DType = np.dtype(ml_dtypes.bfloat16)
F32: DType = np.dtype(np.float32)
F64: DType = np.dtype(np.float64)
E4M3: DType = np.dtype(ml_dtypes.float8_e4m3fn)
E5M2: DType = np.dtype(ml_dtypes.float8_e5m2)
BOOL: DType = np.dtype(np.bool_)

FLOATS = (F16, BF16, F32, F64, E4M3, E5M2)
FP8_MAX = {E4M3: np.float32(448), E5M2: np.float32(57344)}

_NUMPY: dict[str, DType] = {"i1": BOOL, "f8e4m3": E4M3, "f8e5m2": E5M2, "f16": F16, "bf16": BF16,
                            "f32": F32, "f64": F64,
                            **{f"i{b}": np.dtype(f"int{b}") for b in (8, 16, 32, 64)},
                            **{f"u{b}": np.dtype(f"uint{b}") for b in (8, 16, 32, 64)}}
_IR = {dtype: ir.SCALARS[name] for name, dtype in _NUMPY.items()}


def dtype_of(t: ir.Type) -> DType:
    """The numpy dtype of a scalar, pointer, tensor or buffer type."""
    element = t.element if isinstance(t, (ir.Tensor, ir.MemDesc)) else t
    if isinstance(element, ir.Pointer):
        return np.dtype(np.int64)
    assert isinstance(element, ir.Scalar), f"{t} has no numpy dtype"
    return _NUMPY[element.name]


def scalar_type(dtype: Any) -> ir.Scalar:
    """The IR type of a numpy dtype; raises KeyError for one that has none (complex, object)."""
    return _IR[np.dtype(dtype)]


def is_float(dtype: DType) -> bool:
    """Whether `dtype` is one of the floats, fp8 and bf16 included."""
    return dtype in FLOATS


def bits_of(dtype: DType) -> int:
    """Width in bits; 1 for bool."""
    return 1 if dtype == BOOL else dtype.itemsize * 8


def uint_like(dtype: DType) -> DType:
    """The unsigned integer dtype of the same width."""
    return np.dtype(f"u{dtype.itemsize}")
