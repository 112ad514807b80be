"""Launching a loaded kernel: arguments are packed into a block whose addresses the driver
already has, so that a launch is one struct pack and one driver call.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tilec.errors import LaunchError
from tilec.eval.casts import rounded
from tilec.ir.clusters import check_clusters
from tilec.ir.types import f8e4m3, f8e5m2
from tilec.runtime import device
from tilec.runtime.maps import Grid, NoMap

# Parameter type -> struct code, each aligned to its size. bf16 and fp8 have no code: their bits go
# through `H` and `B`. i1 is a byte in PTX.
_CODES = {
    "i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q",
    "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp16": "e", "bf16": "H", "fp32": "f", "fp64": "d", "fp8e4nv": "B", "fp8e5": "B",
    "tensormap": "128s",
}
_POINTER = "Q"
# Fields of a CUlaunchConfig in the order of cuLaunchKernel's parameters.
_CONFIG = ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ",
           "sharedMemBytes", "hStream")
_MOST_ALIGNED = 64  # a tensor map; other parameters by their size


def _code(param: str) -> str:
    if param.startswith("*"):
        return _POINTER
    if param not in _CODES:
        raise LaunchError(f"`{param}` cannot be a kernel parameter",
                          advice="known: pointers, " + ", ".join(_CODES))
    return _CODES[param]


def _bf16_bits(value: float) -> int:
    """The bits of bfloat16(float32(value)), rounded to nearest even."""
    bits = int.from_bytes(struct.pack("<f", _to_fp32(value)), "little")
    if value != value:
        return (bits >> 16) | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _to_fp32(value: float) -> float:
    """`value` rounded to float32: infinity beyond its range, where struct raises instead."""
    return ctypes.c_float(value).value


def _to_fp16(value: float) -> float:
    """`value`, or the infinity that rounding to float16 makes of it."""
    return math.copysign(math.inf, value) if abs(value) >= 65520.0 else value


# Float values to what struct packs without raising.
_CONVERT: dict[str, Callable[[float], Any]] = {
    "fp16": _to_fp16, "bf16": _bf16_bits, "fp32": _to_fp32, "fp64": float,
    "fp8e4nv": lambda value: rounded(value, f8e4m3).tobytes()[0],
    "fp8e5": lambda value: rounded(value, f8e5m2).tobytes()[0],
}
_BITS = {"bf16", "fp8e4nv", "fp8e5"}  # whose values must not be packed as they are


class Packer:
    """The layout of a kernel's arguments: types to offsets, values to bytes.

    param_types: "*fp32" and the like for pointers (values are addresses), "i1".."i64",
    "u8".."u64", "fp8e4nv", "fp8e5", "fp16", "bf16", "fp32", "fp64" for scalars, "tensormap"
    (values are the 128 bytes of an encoded one); ":16" marks are ignored.
    """

    def __init__(self, param_types: Sequence[str]) -> None:
        self.types = tuple(t.split(":")[0] for t in param_types)
        codes = [_code(t) for t in self.types]
        # Native alignment ("@") would also use native sizes; so padding is written out.
        self.offsets: list[int] = []
        layout, at = "<", 0
        for code in codes:
            size = struct.calcsize("<" + code)
            pad = -at % min(size, _MOST_ALIGNED)
            layout += f"{pad}x{code}" if pad else code
            self.offsets.append(at + pad)
            at += pad + size
        self.struct = struct.Struct(layout)
        self._convert = not _BITS.isdisjoint(self.types)

    def pack_into(self, buffer: bytearray, values: Sequence[Any]) -> None:
        """Write `values` at the start of `buffer`; LaunchError for one that does not fit."""
        if not self._convert:
            try:
                self.struct.pack_into(buffer, 0, *values)
                return
            except (struct.error, OverflowError, TypeError):
                pass
        self.struct.pack_into(buffer, 0, *self._fit(values))

    def pack(self, values: Sequence[Any]) -> bytes:
        """The argument block, for tests and tools."""
        buffer = bytearray(self.struct.size)
        self.pack_into(buffer, values)
        return bytes(buffer)

    def _fit(self, values: Sequence[Any]) -> list[Any]:
        """The values as struct takes them; LaunchError names one that its type cannot hold."""
        if len(values) != len(self.types):
            raise LaunchError(f"{len(values)} values for {len(self.types)} kernel parameters")
        fitted = []
        for i, (value, kind) in enumerate(zip(values, self.types, strict=True)):
            try:
                value = _CONVERT[kind](float(value)) if kind in _CONVERT else value
                struct.pack("<" + _code(kind), value)
            except (struct.error, OverflowError, TypeError, ValueError):
                raise LaunchError(
                    f"argument {i} is {value!r}, which is not a value of type {kind}", None,
                    "pass a number that fits, or annotate the parameter with a wider type"
                ) from None
            fitted.append(value)
        return fitted


class _Block(NamedTuple):
    """One argument block: the bytes, and the array of their addresses that a launch is given."""

    data: bytearray
    address: int
    keep: Any


def _early_launch(cu: Any) -> Callable[..., Any]:
    """cuLaunchKernel with programmatic stream serialization: the grid may begin before the one
    before it in the stream has ended."""
    attribute = cu.CUlaunchAttribute()
    attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1

    @lru_cache(maxsize=64)  # to make one takes longer than to launch
    def config(*values: Any) -> Any:
        made = cu.CUlaunchConfig()
        for name, value in zip(_CONFIG, values, strict=True):
            setattr(made, name, value)
        made.attrs = [attribute]
        made.numAttrs = 1
        return made

    def launch(function: Any, *args: Any) -> Any:
        *values, arguments, extra = args
        return cu.cuLaunchKernelEx(config(*values), function, arguments, extra)

    return launch


def _checked(launch: Callable[..., Any], name: str, num_ctas: int) -> Callable[..., Any]:
    """`launch` over grids of whole clusters; LaunchError for others."""
    def checked(function: Any, x: int, *args: Any) -> Any:
        check_clusters(name, (x,), num_ctas)
        return launch(function, x, *args)

    return checked


class Launcher:
    """Launches one loaded kernel.

    function: the CUfunction of runtime.device.LoadedKernel. maps: make tensor maps of a launch's
    values and grid, which are passed after them. instead: what launches, with grid, stream and
    values, if one cannot be made and pointers will do. early: programmatic dependent launch.
    num_ctas: programs a cluster. Threads may share a launcher: each call takes a block of its own,
    which the driver has read by the time the call returns.
    """

    def __init__(self, function: Any, param_types: Sequence[str], device_index: int = 0,
                 maps: Sequence[Callable[[Sequence[Any], Grid], bytes]] = (), early: bool = False,
                 instead: Callable[[Grid, int, Sequence[Any]], None] | None = None,
                 name: str = "", num_ctas: int = 1) -> None:
        self.packer = Packer([*param_types, *("tensormap" for _ in maps)])
        self._maps, self._instead = maps, instead
        self.function = function
        self._device = device_index
        self._pack = self.packer.pack_into
        self._free: list[_Block] = []
        cu = device.driver()
        self._launch: Callable[..., Any] = _early_launch(cu) if early else cu.cuLaunchKernel
        if num_ctas > 1:
            self._launch = _checked(self._launch, name, num_ctas)
        self._success = cu.CUresult.CUDA_SUCCESS
        self._stream_type = cu.CUstream
        self._streams: dict[int, Any] = {}

    def pack(self, values: Sequence[Any]) -> bytes:
        """The bytes that a launch with `values` passes."""
        return self.packer.pack(values)

    def _new_block(self) -> _Block:
        data = bytearray(max(1, self.packer.struct.size))
        base = ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))
        addresses = (ctypes.c_void_p * max(1, len(self.packer.offsets)))(
            *(base + offset for offset in self.packer.offsets))
        return _Block(data, ctypes.addressof(addresses), addresses)

    def launch(self, grid: Grid, block: int, shared: int, stream: int,
               values: Sequence[Any]) -> None:
        """Start the kernel; returns before it has run.

        grid: CTAs in x, y, z (nothing happens where one is 0). block: threads a CTA. shared:
        bytes of dynamic shared memory. stream: a raw handle, 0 for the default stream.
        """
        if self._maps:
            if 0 in grid:
                return
            try:
                values = [*values, *(make(values, grid) for make in self._maps)]
            except NoMap:
                if self._instead is None:
                    raise
                return self._instead(grid, stream, values)
        try:
            arguments = self._free.pop()
        except IndexError:
            arguments = self._new_block()
        self._pack(arguments.data, values)
        handle = self._streams.get(stream)
        if handle is None:
            handle = self._streams[stream] = self._stream_type(stream)
        x, y, z = grid
        args = (self.function, x, y, z, block, 1, 1, shared, handle, arguments.address, 0)
        error = self._launch(*args)[0]
        if error is not self._success and error != self._success:
            self._retry(error, args)
        self._free.append(arguments)

    def _retry(self, error: Any, args: tuple[Any, ...]) -> None:
        """Launch again with the kernel's own context: this thread may have none, or another.
        Anything else is reported."""
        grid = args[1:4]
        if 0 in grid:
            return
        if error.name in ("CUDA_ERROR_INVALID_CONTEXT", "CUDA_ERROR_INVALID_HANDLE"):
            device.use(self._device)
            error = self._launch(*args)[0]
        if error.name == "CUDA_ERROR_INVALID_VALUE":
            raise LaunchError(
                f"the GPU refuses the launch of grid {grid}, {args[4]} threads and {args[7]} bytes "
                "of shared memory",
                advice="a grid may have 2**31 - 1 programs in x, 65535 in y and z")
        device.check(error, "cuLaunchKernel")
