"""Running a compiled kernel on host arrays: through the interpreter or the PTX simulator, and
copying device arrays over and back for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import tilec
from tilec import knobs
from tilec.codegen.checks import REPORT_BYTES
from tilec.errors import LaunchError, SimulatorError, TilecError, did_you_mean, shown
from tilec.eval.casts import rounded
from tilec.eval.dtypes import dtype_of
from tilec.eval.inline_asm import EVALUATORS
from tilec.frontend.signature import ArgSpec, Spec
from tilec.ir.clusters import check_clusters
from tilec.ir.grids import extents_of
from tilec.ir.types import Pointer
from tilec.language import dtypes as dt
from tilec.runtime import checks, device, dlpack, inline_asm
from tilec.runtime.arguments import (
    Const,
    Key,
    array_behind,
    asking,
    constexpr_handler,
    described,
    handler_of,
    leaves,
    number_of,
    parts_of,
    place_of,
    points,
    short_name,
)

if TYPE_CHECKING:
    from tilec.runtime.kernel import CompiledKernel
    from tilec.sim import Counts

EVALUATORS.append(inline_asm.evaluate)


def check_grid(grid: Any) -> tuple[int, int, int]:
    """A grid as three extents; LaunchError if it is none."""
    x, y, z = (*extents_of(grid), 1, 1)[:3]
    return x, y, z


def order_arguments(kernel: CompiledKernel, args: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    """The run-time arguments in the order of the signature, tuples flattened.

    Constants may be among them, if they are those that the kernel was compiled for.
    """
    names = [p.name for p in kernel.fn.params]
    runtime = list(kernel.signature)
    if not isinstance(args, (Mapping, list, tuple)):
        raise LaunchError(f"`{kernel.name}` got {described(args)} as its arguments", None,
                          "pass them in a list, or in a dict by name")
    if not isinstance(args, Mapping):
        declared = [p.name for p in kernel.fn.params if not p.is_constexpr]
        order = next((o for o in (runtime, declared, names) if len(o) == len(args)), None)
        if order is None:
            raise LaunchError(f"`{kernel.name}` got {len(args)} arguments, expected "
                              f"{len(runtime)}: {', '.join(runtime)}", None,
                              "pass them in this order; constexprs may be left out")
        args = dict(zip(order, args, strict=True))
    for name in args:
        if name not in names:
            raise LaunchError(f"`{kernel.name}` has no parameter `{name}`", None,
                              did_you_mean(name, names) or f"it has {', '.join(names)}")
    for name, compiled in kernel.constexprs.items():
        if name in args and not _same(args[name], compiled):
            raise LaunchError(f"`{kernel.name}` was compiled for {name} = {shown(compiled)}, not "
                              f"{described(args[name])}", None, "compile it for these arguments")
    missing = [n for n in runtime if n not in args]
    if missing:
        raise LaunchError(f"`{kernel.name}` needs the arguments {', '.join(missing)}", None,
                          "give one for each run-time parameter")
    out: list[Any] = []
    for name, spec in kernel.signature.items():
        _flatten(spec, args[name], name, out)
    return out


def _same(given: Any, compiled: Any) -> bool:
    try:
        return bool(constexpr_handler(given)[0] == constexpr_handler(compiled)[0])
    except TilecError:  # an array, or whatever else cannot be a constant
        return False


def _flatten(spec: Spec, value: Any, name: str, out: list[Any]) -> None:
    if isinstance(spec, ArgSpec):
        out.append(value)
        return
    parts = parts_of(value)
    if parts is None or len(parts) != len(spec):
        raise LaunchError(f"argument `{name}` is {described(value)}, expected {len(spec)} values",
                          None, "pass a tuple, or a TensorDescriptor if it was compiled for one")
    for part, v in zip(spec, parts, strict=True):
        if isinstance(part, (ArgSpec, tuple)):
            _flatten(part, v, name, out)
        elif not _same(v, part):
            raise LaunchError(f"argument `{name}` has {described(v)}, where the kernel was "
                              f"compiled for {part.value!r}", None,
                              "compile it for these arguments")


def flat_arguments(key: Key, value: Any, passed: Any) -> list[Any]:
    """What a run on the CPU passes for one argument: arrays as they came, numbers as `passed`
    has them, constants not at all.

    key, passed: what its handler gave.
    """
    passes = [passed] if isinstance(key, Const) or parts_of(value) is None else passed
    return [v if place_of(k) is not None else p for (k, v), p in zip(opened(key, value), passes)
            if not isinstance(k, Const)]


def opened(key: Key, value: Any) -> list[tuple[Key, Any]]:
    """The parts of an argument with their keys: of a tuple, what is in it, however deep."""
    return list(zip(leaves(key), [value] if isinstance(key, Const) else _opened(value)))


def _opened(value: Any) -> list[Any]:
    parts = parts_of(value)
    return [value] if parts is None else [leaf for v in parts for leaf in _opened(v)]


def as_numpy(value: Any) -> Any:
    """A numpy view of a host array: a numpy array itself, or a CPU tensor's memory."""
    if points(value) and not _is_torch(value):
        return _pointed(value)
    if not _is_torch(value):
        return value if type(value).__module__ == "numpy" or not hasattr(value, "__dlpack__") \
            else dlpack.as_numpy(value)
    import ml_dtypes  # the dtypes that numpy itself lacks

    torch, plain = sys.modules["torch"], value.detach()
    odd = {"torch.bfloat16": ("int16", ml_dtypes.bfloat16),
           "torch.float8_e4m3fn": ("int8", ml_dtypes.float8_e4m3fn),
           "torch.float8_e5m2": ("int8", ml_dtypes.float8_e5m2)}.get(str(value.dtype))
    if odd is None:
        return plain.numpy()
    return plain.view(getattr(torch, odd[0])).numpy().view(odd[1])


def _pointed(value: Any) -> Any:
    """The memory from an object's address on, as an array; LaunchError if it is in no array that
    the object has."""
    import numpy as np  # a kernel on the CPU needs it anyway

    base, address = array_behind(value), value.data_ptr()
    if base is None:
        raise LaunchError(f"it is a {type(value).__name__} with an address, and no array that the "
                          "address is in", None, "keep the array as an attribute of the object")
    if _is_torch(base):
        storage, flat = base.untyped_storage(), base.new_empty(0, dtype=base.dtype)
        size = base.element_size()
        owner = as_numpy(flat.set_(storage, 0, (storage.nbytes() // size,), (1,)))
    else:
        owner = base
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
    memory = owner.ravel(order="K").view(np.uint8)
    at, dtype = address - memory.ctypes.data, numpy_dtype(short_name(value.dtype))
    if not 0 <= at <= memory.nbytes or not np.shares_memory(memory, owner) and memory.nbytes:
        raise LaunchError(f"it is a {type(value).__name__} with the address {address:#x}, which is "
                          "not in its array", None, "pass the array itself")
    return memory[at:memory.nbytes - (memory.nbytes - at) % dtype.itemsize].view(dtype)


def run_on_cpu(kernel: CompiledKernel, values: Sequence[Any], grid: tuple[int, int, int],
               level: str, seed: int | None = None) -> None:
    """Run at an IR level or in the PTX simulator; device arrays are copied over and back."""
    check_clusters(kernel.name, grid, kernel.options.num_ctas)
    mirror = _Mirror(values)
    _run(kernel, _typed_arguments(kernel, mirror, values), grid, level, _checked_seed(seed))
    mirror.copy_back()


def simulate(kernel: CompiledKernel, values: Sequence[Any], grid: tuple[int, int, int],
             seed: int | None, check: bool, count: bool) -> Counts | None:
    """Run in the PTX simulator with its checks and counters; arrays as in `run_on_cpu`."""
    check_clusters(kernel.name, grid, kernel.options.num_ctas)
    mirror = _Mirror(values)
    counts = _simulate(kernel, _typed_arguments(kernel, mirror, values), grid,
                       _checked_seed(seed), check, count)
    mirror.copy_back()
    return counts


def _checked_seed(seed: Any) -> int | None:
    if seed is None or type(seed) is int and seed >= 0:
        return seed
    raise LaunchError(f"seed is {shown(seed)}, expected an integer of 0 or more", None,
                      "leave it out for TILEC_SEED")


def _typed_arguments(kernel: CompiledKernel, mirror: _Mirror, values: Sequence[Any]) -> list[Any]:
    """Arrays on the host, and scalars as numpy's of the type of their parameter; LaunchError for
    one that its parameter cannot take."""
    out = []
    for (name, spec), value in zip(_leaves(kernel.signature), values, strict=True):
        try:
            out.append(mirror.host(value) if isinstance(spec.type, Pointer)
                       else rounded(number_of(value, spec.type), spec.type))
            if isinstance(spec.type, Pointer):
                _check_elements(out[-1], spec.type.pointee)
        except TilecError as e:
            raise LaunchError(f"argument `{name}`: {e.message}", None, e.advice) from None
    return out


def _leaves(specs: Mapping[str, Any]) -> Iterator[tuple[str, ArgSpec]]:
    """The run-time parameters, those in tuples by their index."""
    for name, spec in specs.items():
        if isinstance(spec, ArgSpec):
            yield name, spec
        elif isinstance(spec, tuple):
            yield from _leaves({f"{name}[{i}]": part for i, part in enumerate(spec)})


def _check_elements(array: Any, element: Any) -> None:
    dtype = getattr(array, "dtype", None)
    if not hasattr(array, "ctypes") or dtype is None:
        raise LaunchError(f"it is {described(array)}, expected an array", None,
                          "pass an array of numpy, torch or cupy")
    if dtype != dtype_of(element) and not (element.is_bool and dtype.itemsize == 1):
        held = short_name(dtype)
        raise LaunchError(f"it holds {held}, expected {dt.of_ir(element).short}", None,
                          f"convert the array, or compile the kernel for {held}")


class View(NamedTuple):
    """An array in device memory. strides: in bytes."""

    address: int
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def span(self) -> tuple[int, int]:
        """The first address, and the one past the last."""
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        return (self.address + sum(s for s in steps if s < 0),
                self.address + sum(s for s in steps if s > 0) + self.dtype.itemsize)


class _Mirror:
    """Host copies of device arrays, one for all that overlap, so that aliases stay aliases."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.storages: dict[int, tuple[Any, Any]] = {}
        spans: list[tuple[int, int]] = []
        for low, high in sorted(v.span() for v in map(_view, values) if v and 0 not in v.shape):
            if spans and low < spans[-1][1]:
                spans[-1] = spans[-1][0], max(high, spans[-1][1])
            else:
                spans.append((low, high))
        self.copies = [(low, device.read(low, high - low)) for low, high in spans]

    def host(self, value: Any) -> Any:
        """The host's view of one argument; other values as they are."""
        if _is_torch(value) and value.is_cuda:
            return self._tensor(value)
        view = _view(value)
        if view is None:
            return as_numpy(value)
        import numpy as np  # a kernel on the CPU needs it anyway

        if 0 in view.shape:
            return np.empty(view.shape, view.dtype)
        low, copy = next((low, copy) for low, copy in self.copies
                         if low <= view.span()[0] and view.span()[1] <= low + len(copy))
        return np.ndarray(view.shape, view.dtype, copy, view.address - low, view.strides)

    def _tensor(self, value: Any) -> Any:
        torch = sys.modules["torch"]
        storage = value.untyped_storage()
        _, copy = self.storages.setdefault(storage.data_ptr(), (storage, storage.cpu()))
        flat = torch.empty(0, dtype=value.dtype)
        flat.set_(copy, value.storage_offset(), value.shape, value.stride())
        return as_numpy(flat)

    def copy_back(self) -> None:
        """Write every copy to where it came from."""
        for storage, copy in self.storages.values():
            storage.copy_(copy)
        for address, data in self.copies:
            device.write(address, data)


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _view(value: Any) -> View | None:
    """What a device array says of itself; None for torch's, which copy themselves, and for all
    that is not on a device."""
    if _is_torch(value):
        return None
    with asking(value):
        return _described_view(value)


def _described_view(value: Any) -> View | None:
    strides: Any
    if hasattr(value, "__cuda_array_interface__"):
        interface = value.__cuda_array_interface__
        address, shape, strides = interface["data"][0], interface["shape"], interface.get("strides")
        own = getattr(value, "dtype", None)
        dtype = numpy_dtype(short_name(own)) if own is not None else _typed(interface["typestr"])
    elif hasattr(value, "__dlpack_device__") and not hasattr(value, "__array_interface__"):
        found = dlpack.read(value)
        if found.device is None:
            return None
        address, shape, strides = found.address, found.shape, found.strides
        dtype = numpy_dtype(found.short)
        strides = strides and [s * dtype.itemsize for s in strides]
    else:
        return None
    if not strides:
        strides = [prod(shape[i + 1:]) * dtype.itemsize for i in range(len(shape))]
    return View(address, dtype, tuple(shape), tuple(strides))


def device_view(value: Any) -> View | None:
    """What any device array, or tensor of torch, says of itself; None for other values."""
    if not _is_torch(value):
        return device_view(array_behind(value)) if points(value) else _view(value)
    size = value.element_size()
    return View(value.data_ptr(), numpy_dtype(short_name(value.dtype)), tuple(value.shape),
                tuple(s * size for s in value.stride()))


def geometry(value: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and strides, in elements, of an array anywhere."""
    view = device_view(value)
    array = as_numpy(value) if view is None else view
    if not hasattr(array, "ctypes") and view is None:
        raise LaunchError(f"found {described(value)}, expected an array", None,
                          "give an array of numpy, torch or cupy")
    size = array.dtype.itemsize
    if any(s % size for s in array.strides):
        raise LaunchError(f"an array has strides of {tuple(array.strides)} bytes, expected "
                          f"multiples of its element size, {size}", None, "copy it")
    shape = tuple(array.shape)
    if 0 in shape:  # such an array has no strides to speak of
        return shape, tuple(prod(shape[i + 1:]) for i in range(len(shape)))
    return shape, tuple(s // size for s in array.strides)


def span(value: Any) -> tuple[int, int]:
    """The first address of a device array, and the number of bytes that it spreads over."""
    view = device_view(value)
    assert view is not None
    if 0 in view.shape:
        return view.address, 0
    low, high = view.span()
    return low, high - low


def _typed(text: str) -> Any:
    import numpy as np  # loaded by whoever has such an object

    return np.dtype(text)


def numpy_dtype(short: str) -> Any:
    """The numpy or ml_dtypes dtype with a short name such as "bf16"."""
    import ml_dtypes
    import numpy as np  # a kernel on the CPU needs them anyway

    name = dt.from_name(short).numpy_name
    return np.dtype(getattr(ml_dtypes, name, name))


def _run(kernel: CompiledKernel, arrays: list[Any], grid: tuple[int, int, int], level: str,
         seed: int | None) -> None:
    if 0 in grid:  # nothing runs, but a kernel that does not compile says so
        kernel.level(level)
        return
    if level != "ptx":
        kernel, bound = kernel.bind_maps(arrays, level, grid)
        tilec.interp.run(kernel.upper.modules[level], kernel.name, bound, grid, seed)
        return
    _simulate(kernel, arrays, grid, seed, knobs.check == "1", False)


def _simulate(kernel: CompiledKernel, arrays: list[Any], grid: tuple[int, int, int],
              seed: int | None, check: bool, count: bool) -> Counts | None:
    import numpy as np  # the simulator needs it anyway

    report = np.zeros(REPORT_BYTES, np.uint8)
    if kernel.options.debug:
        arrays += checks.added_values(report, kernel.param_types, tilec.sim.AllocationEdge)
    kernel, bound = kernel.bind_maps(arrays, "ptx", grid)
    made = kernel.lower("ptx")
    try:
        counts = tilec.sim.run(made.ptx, made.name, bound, grid,
                               made.threads, shared_bytes=made.shared, seed=seed,
                               check=check, count=count)
    except SimulatorError as e:
        if made.edited is not None:
            e.message = f"{made.edited}: {e.message}"
        raise
    checks.raise_failed(made.checks, report.tobytes())
    return counts


def launch_on_device(kernel: CompiledKernel, values: Sequence[Any], grid: tuple[int, int, int],
                     stream: int | None = None, wait: bool = True) -> None:
    """Launch on the device where the arrays live, on its current stream or another, and wait for
    it if asked, or for checks. CheckError where a check of a debug compilation failed."""
    pairs = [handler_of(v)(v) for v in values]
    found = {place_of(key) for key, _ in pairs} - {None}
    if len(found) > 1 or not all(isinstance(p, int) for p in found):
        raise LaunchError("a cubin runs on device arrays of one GPU only", None,
                          "pass device arrays, or run at level ptx")
    index = next(iter(found), None)
    index = device.current_device() if index is None else index
    stream = device.current_stream(index) if stream is None else stream
    launch = partial(kernel.launcher(index).launch, grid, kernel.threads, kernel.shared, stream)
    passed = [value for _, value in pairs]
    if not kernel.options.debug:
        launch(passed)
        if wait:
            device.synchronize(index)
        return
    with device.DeviceBuffer.of(bytes(REPORT_BYTES), index) as report:
        launch(passed + checks.added_values(report.pointer, kernel.param_types,
                                            lambda i, end: _allocation(values[i])[end]))
        device.synchronize(index)
        checks.raise_failed(kernel.lower().checks, report.read())


def _allocation(value: Any) -> tuple[int, int]:
    """Where the memory behind a device array begins and ends; of what is none, all memory."""
    if _is_torch(value):
        storage = value.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    if _view(value) is None:
        return 0, (1 << 64) - 1
    low, size = span(value)
    return low, low + size
