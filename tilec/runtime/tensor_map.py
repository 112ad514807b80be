"""Tensor maps on the host: what a launch is given for one, and how the driver encodes it.

Source: CUDA driver API, cuTensorMapEncodeTiled.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tilec import sim
from tilec.errors import LaunchError
from tilec.eval.dtypes import dtype_of
from tilec.ir.descriptors import tma_boxes
from tilec.ir.types import TensorMap
from tilec.runtime import device, host
from tilec.runtime.descriptors import TensorDescriptor

# CUtensorMapDataType of each element; fp8 counts as bytes. Signs make no difference to copies and
# additions, and TMA adds no INT64.
_TYPES = {"i8": "UINT8", "u8": "UINT8", "f8e4m3": "UINT8", "f8e5m2": "UINT8", "i16": "UINT16",
          "u16": "UINT16", "i32": "INT32", "u32": "UINT32", "i64": "UINT64", "u64": "UINT64",
          "f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "f64": "FLOAT64"}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
# The simulator calls them as PTX does.
_PTX_TYPES = {"UINT8": "u8", "UINT16": "u16", "UINT32": "u32", "INT32": "s32", "UINT64": "u64",
              "FLOAT16": "f16", "BFLOAT16": "bf16", "FLOAT32": "f32",
              "FLOAT64": "f64"}
_MOST_STRIDE = 1 << 40


def on_host(value: Any) -> Any:
    """The tensor that an array or a TensorDescriptor stands for, as a numpy array."""
    return value.as_numpy() if isinstance(value, TensorDescriptor) else host.as_numpy(value)


def in_simulator(value: Any, t: TensorMap, name: str) -> sim.TensorMap:
    """The simulator's record of the tensor map of a tensor in host memory. name: of the parameter;
    LaunchError as for a device."""
    array, boxes = on_host(value), tma_boxes(t)
    _check(array.ctypes.data, array.shape, array.strides, t, name)
    return sim.TensorMap(array, _PTX_TYPES[_TYPES[t.element.name]], array.shape[::-1],
                         array.strides[-2::-1], boxes.box[::-1], swizzle=boxes.swizzle)


def on_device(value: Any, t: TensorMap, name: str) -> bytes:
    """The 128 bytes of the tensor map that an array or a TensorDescriptor stands for. name: of the
    parameter; LaunchError says what about the tensor TMA cannot serve."""
    given = value.base if isinstance(value, TensorDescriptor) else value
    view = host.device_view(given)
    if view is None:
        raise LaunchError(f"argument `{name}` is a {type(given).__name__}, expected a device array "
                          "or a TensorDescriptor of one")
    size = t.element.bytes
    if view.dtype != dtype_of(t.element):
        raise LaunchError(f"argument `{name}` has elements of type {view.dtype}, expected "
                          f"{t.element}")
    shape, strides = view.shape, tuple(s // size for s in view.strides)
    if isinstance(value, TensorDescriptor):
        shape, strides = tuple(value.shape), tuple(value.strides)
        if value.block_shape and tuple(value.block_shape) != t.shape:
            raise LaunchError(f"argument `{name}` has blocks of {tuple(value.block_shape)}, the "
                              f"kernel copies {t.shape}")
    return encode(view.address, shape, strides, t, name)


@lru_cache(maxsize=4096)
def encode(address: int, shape: tuple[int, ...], strides: tuple[int, ...], t: TensorMap,
           name: str) -> bytes:
    """The tensor map for a tensor at an address; strides in elements."""
    size, cu = t.element.bytes, device.driver()
    _check(address, shape, [s * size for s in strides], t, name)
    boxes = tma_boxes(t)
    # One dimension has no stride, but the driver refuses a null pointer to them.
    outer = [cu.cuuint64_t(s * size) for s in reversed(strides[:-1])] or [cu.cuuint64_t(0)]
    error, made = cu.cuTensorMapEncodeTiled(
        getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[t.element.name]}"),
        len(shape), address, [cu.cuuint64_t(n) for n in reversed(shape)], outer,
        [cu.cuuint32_t(n) for n in reversed(boxes.box)], [cu.cuuint32_t(1)] * len(shape),
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[boxes.swizzle]}"),
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    device.check(error, "cuTensorMapEncodeTiled")
    return struct.pack("<16Q", *map(int, made.opaque))


def _check(address: int, shape: Sequence[int], strides: Sequence[int], t: TensorMap, name: str
           ) -> None:
    wrong = ""
    if len(shape) != len(t.shape) or len(strides) != len(shape):
        wrong = f"has the shape {tuple(shape)}, expected {len(t.shape)} dimensions"
    elif not all(1 <= n < 1 << 31 for n in shape):  # a kernel has them in 32 bits
        wrong = f"has the shape {tuple(shape)}, expected extents from 1 to 2**31 - 1"
    elif strides[-1] != t.element.bytes:
        wrong = f"has neighbours along the last dimension {strides[-1]} bytes apart, expected " \
            f"{t.element.bytes}"
    elif any(s % 16 or not 0 < s < _MOST_STRIDE for s in strides[:-1]):
        wrong = f"has strides of {tuple(strides)} bytes, expected multiples of 16 below 2**40"
    elif address % 16:
        wrong = "starts at an address that is not a multiple of 16"
    if wrong:
        raise LaunchError(f"argument `{name}` {wrong}", None,
                          "TMA copies no other tensors; copy it into one that fits"
                          if all(shape) else "do not launch for an empty tensor")
