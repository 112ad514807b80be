"""The GPU through cuda-python: devices, primary contexts, modules, memory, streams.

Nothing here touches a driver before the first call that needs one. When torch is loaded, its
current device and stream are the current ones. Source: CUDA driver API reference.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from dataclasses import dataclass
from typing import Any

from tilec.errors import DriverError
from tilec.target import Target

# cuda-python 13 and the cubins of nvJitLink 13 need the driver of CUDA 13.
MIN_CUDA = 13000
MIN_DRIVER = "R580"
# Shared memory that a kernel may use without asking for it.
DEFAULT_SHARED = 48 * 1024
JIT_LOG_BYTES = 1 << 16

_ADVICE = {
    "CUDA_ERROR_NO_DEVICE": "no NVIDIA GPU is visible; see CUDA_VISIBLE_DEVICES and nvidia-smi",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver was updated; restart the machine",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "run the kernel with TILEC_RUN=tile (or ptx) to have the "
    "access named; this process can no longer use the GPU",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "an argument is less aligned than the one that the kernel "
    "was compiled for, or a tl.multiple_of promises too much; TILEC_RUN=ptx names the access",
    "CUDA_ERROR_OUT_OF_MEMORY": "free device memory, or use smaller arrays",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the kernel was compiled for another GPU; leave out target=",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "use fewer warps or smaller tiles",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "the kernel ran into the display's time limit",
}


@functools.cache
def _bindings() -> Any:
    """cuda.bindings.driver, not initialised; DriverError where it is not installed."""
    try:
        from cuda.bindings import driver as bindings
    except ImportError:
        raise DriverError(
            "cuda-python is not installed, so tilec cannot use a GPU",
            advice="pip install cuda-python (Linux and Windows); without it, kernels run on the "
            "CPU with numpy arrays") from None
    return bindings


@functools.cache
def driver() -> Any:
    """cuda.bindings.driver after cuInit. DriverError without a driver, with one that is too old,
    or without a GPU."""
    cu = _bindings()
    try:
        (error,) = cu.cuInit(0)
        version_error, version = cu.cuDriverGetVersion()
    except RuntimeError as e:  # cuda-pathfinder found no libcuda
        raise DriverError(
            "no NVIDIA driver was found",
            advice=f"install driver {MIN_DRIVER} or later; without a GPU, kernels run on the CPU "
            f"with numpy arrays ({str(e).splitlines()[0]})") from None
    if version_error == cu.CUresult.CUDA_SUCCESS and version < MIN_CUDA:
        raise DriverError(
            f"the NVIDIA driver is too old: it supports CUDA {version // 1000}."
            f"{version % 1000 // 10}, tilec needs {MIN_CUDA // 1000}.{MIN_CUDA % 1000 // 10}",
            advice=f"install driver {MIN_DRIVER} or later")
    check(error, "cuInit")
    return cu


def check(error: Any, what: str) -> None:
    """DriverError for a CUresult other than success; `what` is the call that gave it."""
    cu = _bindings()
    if error == cu.CUresult.CUDA_SUCCESS:
        return
    name, text = error.name, ""
    _, described = cu.cuGetErrorString(error)
    if described:
        text = f": {described.decode()}"
    raise DriverError(f"{what} failed with {name}{text}", advice=_ADVICE.get(name, ""))


def _call(what: str, *args: Any) -> Any:
    """driver().<what>(*args), its status checked; the result, if any."""
    error, *results = getattr(driver(), what)(*args)
    check(error, what)
    return results[0] if results else None


@functools.cache
def gpu_available() -> bool:
    """Whether this process can launch kernels."""
    try:
        return bool(_call("cuDeviceGetCount") > 0)
    except DriverError:
        return False


def _torch_cuda() -> Any:
    """torch._C when torch is loaded and built for CUDA, else None."""
    torch = sys.modules.get("torch")
    core = getattr(torch, "_C", None)
    return core if hasattr(core, "_cuda_getCurrentRawStream") else None


def current_device() -> int:
    """The ordinal of the device to use: torch's, else that of the current context, else 0."""
    core = _torch_cuda()
    if core is not None:
        return int(core._cuda_getDevice())
    cu = driver()
    error, device = cu.cuCtxGetDevice()
    return int(device) if error == cu.CUresult.CUDA_SUCCESS else 0


# torch's own function, once torch is loaded: looking it up costs as much as calling it.
_stream_getter: Any = None


def current_stream(device: int) -> int:
    """The raw handle of torch's current stream on `device`; the default stream without torch."""
    global _stream_getter
    if _stream_getter is None:
        core = _torch_cuda()
        if core is None:
            return 0
        _stream_getter = core._cuda_getCurrentRawStream
    return int(_stream_getter(device))


@functools.cache
def primary_context(device: int) -> Any:
    """The primary context of a device, retained for the life of the process."""
    return _call("cuDevicePrimaryCtxRetain", _call("cuDeviceGet", device))


def use(device: int) -> None:
    """Make the device's primary context current in this thread."""
    _call("cuCtxSetCurrent", primary_context(device))


@functools.cache
def target_of(device: int) -> str:
    """The target to compile for: "sm_90a" for an H200. TilecError for a GPU tilec cannot serve."""
    attribute = driver().CUdevice_attribute
    handle = _call("cuDeviceGet", device)
    major, minor = (_call("cuDeviceGetAttribute", a, handle)
                    for a in (attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                              attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))
    # From Hopper on, the instructions that matter are in the architecture-specific target.
    suffix = "a" if major >= 9 else ""
    return Target.parse(f"sm_{major}{minor}{suffix}").name


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel in a device's memory. `function` is its CUfunction; `module` keeps it loaded."""

    function: Any
    module: Any
    name: str
    device: int
    shared: int


def load(cubin: bytes, name: str, shared: int, device: int | None = None) -> LoadedKernel:
    """Load `name` from a cubin on a device (the current one).

    shared: bytes of dynamic shared memory that it will be launched with.
    """
    where = current_device() if device is None else device
    use(where)
    return _loaded(_call("cuModuleLoadData", cubin), name, shared, where)


def load_ptx(ptx: str, name: str, shared: int, device: int | None = None
             ) -> tuple[LoadedKernel, str]:
    """Like `load`, from PTX, which the driver compiles; and the compiler's log."""
    where = current_device() if device is None else device
    use(where)
    option, log = driver().CUjit_option, bytearray(JIT_LOG_BYTES)
    module = _call("cuModuleLoadDataEx", ptx.encode() + b"\0", 3, [
        option.CU_JIT_INFO_LOG_BUFFER, option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
        option.CU_JIT_LOG_VERBOSE], [log, len(log), 1])
    return _loaded(module, name, shared, where), log.split(b"\0")[0].decode(errors="replace")


def _loaded(module: Any, name: str, shared: int, where: int) -> LoadedKernel:
    function = _call("cuModuleGetFunction", module, name.encode())
    if shared > DEFAULT_SHARED:
        attribute = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _call("cuFuncSetAttribute", function, attribute, shared)
    return LoadedKernel(function, module, name, where, shared)


def synchronize(device: int | None = None) -> None:
    """Wait for all work on a device; DriverError if a kernel failed."""
    use(current_device() if device is None else device)
    _call("cuCtxSynchronize")


class DeviceBuffer:
    """Device memory that is freed with the object. `pointer` is 0 for a size of 0."""

    def __init__(self, nbytes: int, device: int | None = None) -> None:
        self.nbytes = nbytes
        self.device = current_device() if device is None else device
        self.pointer = 0
        use(self.device)
        if nbytes:
            self.pointer = int(_call("cuMemAlloc", nbytes))

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview, device: int | None = None) -> DeviceBuffer:
        """A buffer with a copy of host bytes."""
        buffer = cls(memoryview(data).nbytes, device)
        write(buffer.pointer, data)
        return buffer

    def read(self) -> bytearray:
        """A host copy of the contents."""
        return read(self.pointer, self.nbytes)

    def free(self) -> None:
        """Give the memory back; may be called twice."""
        pointer, self.pointer = self.pointer, 0
        if pointer:
            use(self.device)
            _call("cuMemFree", pointer)

    def __enter__(self) -> DeviceBuffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def __del__(self) -> None:
        # After the driver or the interpreter has shut down the memory is gone anyway.
        if getattr(self, "pointer", 0) and not sys.is_finalizing():
            try:
                self.free()
            except DriverError:
                self.pointer = 0


def read(pointer: int, nbytes: int) -> bytearray:
    """A host copy of device memory; waits for the default stream."""
    data = bytearray(nbytes)
    if nbytes:
        host = ctypes.addressof((ctypes.c_char * nbytes).from_buffer(data))
        _call("cuMemcpyDtoH", host, pointer, nbytes)
    return data


def write(pointer: int, data: bytes | bytearray | memoryview) -> None:
    """Copy host bytes to device memory."""
    view = memoryview(data)
    if view.nbytes:
        if view.readonly or not view.c_contiguous:
            view = memoryview(bytearray(view.tobytes()))
        host = ctypes.addressof((ctypes.c_char * view.nbytes).from_buffer(view))
        _call("cuMemcpyHtoD", pointer, host, view.nbytes)


def copy(target: int, source: int, nbytes: int, stream: int) -> None:
    """Copy inside device memory, in the stream's order."""
    if nbytes:
        _call("cuMemcpyDtoDAsync", target, source, nbytes, stream)


def zero(pointer: int, nbytes: int, stream: int) -> None:
    """Set device memory to zero bytes, in the stream's order."""
    if nbytes:
        _call("cuMemsetD8Async", pointer, 0, nbytes, stream)


@functools.cache
def name_of(device: int) -> str:
    """The name of a GPU: "NVIDIA H200"."""
    name: bytes = _call("cuDeviceGetName", 128, _call("cuDeviceGet", device))
    return name.split(b"\0")[0].decode()


def attribute(device: int, name: str) -> int:
    """An attribute of a GPU, by its name in the driver API without CU_DEVICE_ATTRIBUTE_."""
    which = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(_call("cuDeviceGetAttribute", which, _call("cuDeviceGet", device)))


@functools.cache
def l2_bytes(device: int) -> int:
    """The size of a GPU's L2 cache."""
    return attribute(device, "L2_CACHE_SIZE")


@functools.cache
def multiprocessors(device: int) -> int:
    """How many multiprocessors a GPU has."""
    return attribute(device, "MULTIPROCESSOR_COUNT")


class Event:
    """A point in a stream's work, with its time. The device's context must be current."""

    def __init__(self) -> None:
        self._event = _call("cuEventCreate", 0)

    def record(self, stream: int) -> None:
        """Put the point after the work that is in the stream now."""
        _call("cuEventRecord", self._event, stream)

    def since(self, earlier: Event) -> float:
        """Milliseconds from another event, both of which the GPU has passed."""
        return float(_call("cuEventElapsedTime", earlier._event, self._event))

    def __del__(self) -> None:
        if hasattr(self, "_event") and not sys.is_finalizing():
            driver().cuEventDestroy(self._event)
