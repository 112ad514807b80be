"""Running a compiled kernel on host arrays: through the interpreter or the PTX simulator, and
copying device arrays over and back for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tilec
from tilec.errors import LaunchError
from tilec.frontend.signature import ArgSpec, Spec
from tilec.runtime import device
from tilec.runtime.arguments import ArrayOnDevice, handler_of, places

if TYPE_CHECKING:
    from tilec.runtime.kernel import CompiledKernel


def check_grid(grid: int | Sequence[int]) -> tuple[int, int, int]:
    """A grid as three extents; LaunchError if it is none."""
    extents = (grid,) if isinstance(grid, int) else tuple(grid)
    try:
        whole = tuple(int(g.__index__()) for g in extents)
    except AttributeError:
        raise LaunchError(f"grid is {grid!r}, expected 1 to 3 integers") from None
    if not 1 <= len(whole) <= 3 or min(whole) < 0:
        raise LaunchError(f"grid is {grid!r}, expected 1 to 3 extents of 0 or more")
    x, y, z = (*whole, 1, 1)[:3]
    return x, y, z


def order_arguments(kernel: CompiledKernel, args: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    """The run-time arguments in the order of the signature, tuples flattened."""
    names = [p.name for p in kernel.fn.params]
    if not isinstance(args, Mapping):
        runtime = [n for n in names if n in kernel.signature]
        declared = [p.name for p in kernel.fn.params if not p.is_constexpr]
        for order in (runtime, declared, names):
            if len(order) == len(args):
                args = dict(zip(order, args, strict=True))
                break
        else:
            raise LaunchError(f"`{kernel.name}` got {len(args)} arguments, expected "
                              f"{len(runtime)}: {', '.join(runtime)}")
    missing = [n for n in kernel.signature if n not in args]
    if missing:
        raise LaunchError(f"`{kernel.name}` needs the arguments {', '.join(missing)}")
    out: list[Any] = []
    for name, spec in kernel.signature.items():
        _flatten(spec, args[name], name, out)
    return out


def _flatten(spec: Spec, value: Any, name: str, out: list[Any]) -> None:
    if isinstance(spec, ArgSpec):
        out.append(value)
        return
    if not isinstance(value, (tuple, list)) or len(value) != len(spec):
        raise LaunchError(f"argument `{name}` is {value!r}, expected {len(spec)} values")
    for part, v in zip(spec, value, strict=True):
        if isinstance(part, (ArgSpec, tuple)) and not hasattr(part, "kind"):
            _flatten(part, v, name, out)


def as_numpy(value: Any) -> Any:
    """A numpy view of a host array: a numpy array itself, or a CPU tensor's memory."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    import ml_dtypes  # the dtypes that numpy itself lacks

    plain = value.detach()
    odd = {"torch.bfloat16": ("int16", ml_dtypes.bfloat16),
           "torch.float8_e4m3fn": ("int8", ml_dtypes.float8_e4m3fn),
           "torch.float8_e5m2": ("int8", ml_dtypes.float8_e5m2)}.get(str(value.dtype))
    if odd is None:
        return plain.numpy()
    return plain.view(getattr(torch, odd[0])).numpy().view(odd[1])


def run_on_cpu(kernel: CompiledKernel, values: Sequence[Any], grid: tuple[int, int, int],
               level: str, seed: int | None = None) -> None:
    """Run at an IR level or in the PTX simulator; device arrays are copied over and back."""
    mirror = _Mirror()
    arrays = [mirror.host(v) for v in values]
    _run(kernel, arrays, grid, level, seed)
    mirror.copy_back()


class _Mirror:
    """Host copies of device arrays, one per allocation, so that aliases stay aliases."""

    def __init__(self) -> None:
        self.copies: dict[int, tuple[Any, Any]] = {}

    def host(self, value: Any) -> Any:
        """The host's view of one argument; other values as they are."""
        if isinstance(value, ArrayOnDevice):
            value = value.owner
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor) and value.is_cuda:
            storage = value.untyped_storage()
            _, copy = self.copies.setdefault(storage.data_ptr(), (storage, storage.cpu()))
            flat = torch.empty(0, dtype=value.dtype)
            flat.set_(copy, value.storage_offset(), value.shape, value.stride())
            return as_numpy(flat)
        if hasattr(value, "__cuda_array_interface__"):
            return self._by_interface(value)
        return as_numpy(value)

    def _by_interface(self, value: Any) -> Any:
        import numpy as np  # loaded by whoever has such an object

        interface = value.__cuda_array_interface__
        shape, address = interface["shape"], interface["data"][0]
        own = getattr(value, "dtype", None)
        dtype = np.dtype(interface["typestr"]) if own is None else np.dtype(own)
        strides = interface.get("strides") or np.empty(shape, dtype).strides
        span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + dtype.itemsize
        if min(shape, default=1) == 0:
            return np.empty(shape, dtype)
        _, copy = self.copies.setdefault(address, (address, device.read(address, span)))
        return np.ndarray(shape, dtype, copy, 0, strides)

    def copy_back(self) -> None:
        """Write every copy to where it came from."""
        for original, copy in self.copies.values():
            if isinstance(original, int):
                device.write(original, copy)
            else:
                original.copy_(copy)


def _run(kernel: CompiledKernel, arrays: list[Any], grid: tuple[int, int, int], level: str,
         seed: int | None) -> None:
    if level == "ptx":
        made = kernel.lower("ptx")
        tilec.sim.run(made.ptx, kernel.name, arrays, grid, 32 * kernel.num_warps,
                shared_bytes=made.shared, seed=seed)
    else:
        tilec.interp.run(kernel.upper.modules[level], kernel.name, arrays, grid, seed)


def launch_on_device(kernel: CompiledKernel, values: Sequence[Any], grid: tuple[int, int, int]
                     ) -> None:
    """Launch on the device where the arrays live, on its current stream, and wait for it."""
    keys, flat = [], []
    for v in values:
        key, value = handler_of(type(v), v)(v)
        keys.append(key)
        flat.append(value.address if isinstance(value, ArrayOnDevice) else value)
    found: set[Any] = set().union(*map(places, keys), set())
    if len(found) > 1 or not all(isinstance(p, int) for p in found):
        raise LaunchError("a cubin runs on device arrays of one GPU only", None,
                          "pass device arrays, or run at level ptx")
    index = next(iter(found), None)
    index = device.current_device() if index is None else index
    kernel.launcher(index).launch(grid, 32 * kernel.num_warps, kernel.shared,
                                  device.current_stream(index), flat)
    device.synchronize(index)
