"""Tensor maps: what cp.async.bulk.tensor knows of a tensor, as a record in place of 128 bytes.

A kernel gets a TensorMap for a `.param .align 64 .b8 [128]` parameter; the bytes there then hold a
handle. The rules checked here are those of cuTensorMapEncodeTiled (CUDA driver API, Tensor Map
Object Management) and of PTX ISA, "Tensors"; interleaved layouts and im2col are not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilec.sim.errors import Fault, SimError

Array = np.ndarray[Any, Any]

MAP_BYTES = 128
_HANDLE = b"tilecMAP"
_WIDTHS = {"u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "bf16": 2,
           "f32": 4, "f64": 8}
_NANS = {"f16": 0x7FF7, "bf16": 0x7FF7, "f32": 0x7FF77FF7, "f64": 0x7FF77FF77FF77FF7}
"""What an H200 fills with (the ISA: "a special NaN called OOB-NaN")."""


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A tensor in global memory and the box of it that one instruction moves.

    The tensor starts at the first element of `array`. All tuples have the innermost dimension
    first, as the driver takes them: `shape` in elements, `strides` in bytes and without the
    innermost, `box` and `element_strides` (all 1 by default) in elements. `dtype` is a PTX type
    (fp8 is u8), `swizzle` 0, 32, 64 or 128 bytes, `fill` what loads put outside of the tensor,
    "zero" or "nan". Raises SimError where the driver would not encode it.
    """

    array: Array
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: int = 0
    fill: str = "zero"

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.shape))
        for fine, rule in self.rules():
            if not fine:
                raise SimError(f"tensor map of shape {self.shape}, strides {self.strides}, box "
                               f"{self.box}, .{self.dtype}: {rule}")

    def rules(self) -> list[tuple[bool, str]]:
        """The driver's conditions, each with what it asks."""
        rank, width = len(self.shape), _WIDTHS.get(self.dtype, 0)
        inner = self.box[0] * width if self.box else 0
        return [
            (width > 0, f"a type must be one of {', '.join(_WIDTHS)}"),
            (1 <= rank <= 5, "a tensor has 1 to 5 dimensions"),
            (len(self.strides) == rank - 1, "there must be a stride for every dimension but the "
             "innermost"),
            (len(self.box) == rank == len(self.element_strides), "box and element strides must "
             "have as many dimensions as the shape"),
            (all(1 <= extent <= 1 << 32 for extent in self.shape), "extents lie in 1 to 2^32"),
            (all(0 <= s < 1 << 40 and s % 16 == 0 for s in self.strides),
             "strides must be multiples of 16 bytes below 2^40"),
            (all(1 <= extent <= 256 for extent in self.box), "a box has 1 to 256 elements along "
             "each dimension"),
            (all(1 <= step <= 8 for step in self.element_strides), "element strides lie in 1 to 8"),
            (inner % 16 == 0, f"the innermost extent of the box has {inner} bytes, which must be a "
             "multiple of 16"),
            (self.swizzle in (0, 32, 64, 128), "the swizzle must be 0, 32, 64 or 128 bytes"),
            (not self.swizzle or inner <= self.swizzle, f"the innermost extent of the box has "
             f"{inner} bytes, more than a swizzle of {self.swizzle} spans"),
            (self.fill == "zero" or self.fill == "nan" and self.dtype in _NANS,
             'fill is "zero", or "nan" for float types'),
        ]

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return _WIDTHS[self.dtype]

    @property
    def reach(self) -> int:
        """Bytes from the first element to the end of the last."""
        steps = (self.width, *self.strides)
        return sum((n - 1) * s for n, s in zip(self.shape, steps, strict=True)) + self.width


class Box:
    """A tensor map whose tensor lies at byte `start` of the arena: where a box's elements are.

    `bytes` is what a load adds to an mbarrier, `span` the shared memory that a box covers. Rows
    shorter than the swizzle are spread to its width (CUDA programming guide, "TMA swizzle").
    """

    def __init__(self, tensor_map: TensorMap, start: int, writable: bool = True) -> None:
        self.map, self.start, self.writable = tensor_map, start, writable
        self.width = tensor_map.width
        extents = [-(-n // step) for n, step in zip(tensor_map.box, tensor_map.element_strides,
                                                    strict=True)]
        extents[0] = tensor_map.box[0]  # the innermost element stride has no effect
        steps = np.array([1, *tensor_map.element_strides[1:]])[:, None]
        index = np.indices(extents[::-1]).reshape(len(extents), -1)[::-1]
        self.index = index * steps
        self.shape = np.array(tensor_map.shape)[:, None]
        self.steps = np.array([self.width, *tensor_map.strides])
        self.offsets = (self.index * self.steps[:, None]).sum(axis=0)
        pitch = max(extents[0] * self.width, tensor_map.swizzle)
        rows = index.shape[1] // extents[0]
        self.inside_box = (np.arange(rows)[:, None] * pitch
                           + np.arange(extents[0]) * self.width).reshape(-1)
        self.bytes = index.shape[1] * self.width
        self.span = rows * pitch
        self.fill = _NANS[tensor_map.dtype] if tensor_map.fill == "nan" else 0

    def check(self, corner: Array, load: bool, thread: int) -> None:
        """Fault where an H200 ends the kernel for an illegal instruction."""
        start = int(corner[0]) * self.width
        if start % 16:
            raise Fault(f"misaligned tensor copy: it starts at byte {start} of the innermost "
                        f"dimension (coordinate {int(corner[0])} of .{self.map.dtype}), which must "
                        "be a multiple of 16", thread)
        if not load and (corner < 0).any():
            raise Fault(f"a tensor store at coordinates {tuple(corner.tolist())}: those of stores "
                        "must not be negative, as those of loads may", thread)

    def elements(self, corner: Array, load: bool = True) -> tuple[Array, Array]:
        """Element indices into a view of the arena, and which elements lie in the tensor. A store
        writes whole chunks of 16 bytes, beyond the end of a row too, as an H200 does."""
        at, shape = self.index + corner[:, None], self.shape
        if not load:
            shape = shape.copy()
            shape[0] = -(-shape[0] * self.width // 16) * 16 // self.width
        inside = ((at >= 0) & (at < shape)).all(axis=0)
        offsets = self.start + int((corner * self.steps).sum()) + self.offsets
        return np.where(inside, offsets, 0) // self.width, inside

    def shared(self, address: int) -> Array:
        """Shared addresses of the elements of a box that is written to `address`."""
        return swizzled(address + self.inside_box, self.map.swizzle)


def swizzled(addresses: Array, swizzle: int) -> Array:
    """Shared addresses with their 16-byte chunks exchanged within rows of `swizzle` bytes.

    Address bits 4 and up are flipped by those from 7 on: one bit for 32 bytes, 2 for 64, 3 for 128.
    """
    if not swizzle:
        return addresses
    return addresses ^ (((addresses >> 7) & (swizzle // 16 - 1)) << 4)


def handle(number: int) -> bytes:
    """The 128 bytes that stand for tensor map `number` of a launch."""
    return (_HANDLE + number.to_bytes(8, "little")).ljust(MAP_BYTES, b"\0")


def handle_number(data: bytes, count: int, thread: int) -> int:
    """The number of the tensor map that the bytes stand for; Fault where they are none."""
    number = int.from_bytes(data[8:16], "little")
    if data[:8] != _HANDLE or number >= count:
        raise Fault("the address does not hold a tensor map: give the kernel a "
                    "tilec.sim.TensorMap for a parameter of 128 bytes aligned to 64", thread)
    return number
