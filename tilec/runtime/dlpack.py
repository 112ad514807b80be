"""Reads arrays through the DLPack protocol, without the library that they come from.

Source: DLPack's `dlpack.h` (DLTensor, DLManagedTensor), ABI version 0.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from tilec.errors import LaunchError

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_TYPES = {
    (0, 8): "i8", (0, 16): "i16", (0, 32): "i32", (0, 64): "i64",
    (1, 8): "u8", (1, 16): "u16", (1, 32): "u32", (1, 64): "u64",
    (2, 16): "fp16", (2, 32): "fp32", (2, 64): "fp64", (4, 16): "bf16", (6, 8): "i1",
    (10, 8): "fp8e4nv", (12, 8): "fp8e5",
}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )


class Array(NamedTuple):
    """An array seen through DLPack. device: a CUDA index, or None on the host, of which nothing
    else is read. strides: in elements; None for a dense array."""

    address: int = 0
    short: str = ""
    device: int | None = None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None


def read(value: Any) -> Array:
    """What `value.__dlpack__()` says; LaunchError for a type or device that kernels cannot use."""
    kind, index = value.__dlpack_device__()
    if kind in (CPU, CUDA_HOST):
        return Array()
    if kind not in (CUDA, CUDA_MANAGED):
        raise LaunchError(f"it is on DLPack device {int(kind)}, expected the CPU or CUDA", None,
                          "move it there")
    capsule = value.__dlpack__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer_of(capsule, b"dltensor"))
    short = _TYPES.get((tensor.code, tensor.bits))
    if short is None or tensor.lanes != 1:
        raise LaunchError(f"its DLPack type is code {tensor.code} of {tensor.bits} bits, which "
                          "kernels cannot use", None, "convert it to a type that tl has")
    n = tensor.ndim
    strides = tuple(tensor.strides[:n]) if tensor.strides else None
    return Array((tensor.data or 0) + tensor.byte_offset, short, index, tuple(tensor.shape[:n]),
                 strides)


def as_numpy(value: Any) -> Any:
    """A numpy view of an array on the host; LaunchError where numpy cannot make one."""
    import numpy as np  # a kernel on the CPU needs it anyway

    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as e:
        raise LaunchError(f"numpy cannot view it through DLPack: {e}", None,
                          "pass it as a numpy array") from None
