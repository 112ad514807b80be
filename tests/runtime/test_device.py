"""The device layer against a stand-in for cuda-python: errors, contexts, memory, torch."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import pytest

from tilec.codegen.cubin import LinkResult
from tilec.compiler import Compiled, Options
from tilec.errors import DriverError, TilecError
from tilec.ir.remarks import recording
from tilec.runtime import device
from tilec.runtime.loading import load
from tilec.target import Target

CACHED = (device._bindings, device.driver, device.gpu_available, device.primary_context,
          device.target_of)


def code(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name)


OK = code("CUDA_SUCCESS")
MAJOR, MINOR, MAX_SHARED = "major", "minor", "max shared"


class FakeCuda:
    """Host memory plays the device's; every call is recorded."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=OK)
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=MINOR,
    )
    CUjit_option = SimpleNamespace(
        CU_JIT_INFO_LOG_BUFFER="log", CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES="size",
        CU_JIT_LOG_VERBOSE="verbose")
    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=MAX_SHARED
    )

    def __init__(self, version=13000, init=OK, count=2, capability=(9, 0)):
        self.version, self.init, self.count, self.capability = version, init, count, capability
        self.calls, self.memory, self.current = [], {}, None

    def cuInit(self, flags):
        if isinstance(self.init, Exception):
            raise self.init
        return (self.init,)

    def cuDriverGetVersion(self):
        return OK, self.version

    def cuGetErrorString(self, error):
        return OK, b"what it means"

    def cuDeviceGetCount(self):
        return OK, self.count

    def cuDeviceGet(self, i):
        return OK, f"device {i}"

    def cuDeviceGetAttribute(self, attribute, handle):
        return OK, self.capability[0 if attribute == MAJOR else 1]

    def cuDevicePrimaryCtxRetain(self, handle):
        self.calls.append(("retain", handle))
        return OK, f"context of {handle}"

    def cuCtxSetCurrent(self, context):
        self.current = context
        return (OK,)

    def cuCtxGetDevice(self):
        return (OK, 1) if self.current else (code("CUDA_ERROR_INVALID_CONTEXT"), None)

    def cuCtxSynchronize(self):
        return (code("CUDA_ERROR_MISALIGNED_ADDRESS"),)

    def cuModuleLoadData(self, cubin):
        if cubin == b"bad":
            return code("CUDA_ERROR_NO_BINARY_FOR_GPU"), None
        return OK, ("module", cubin)

    def cuModuleLoadDataEx(self, ptx, count, options, values):
        assert count == len(options) == len(values) and ptx.endswith(b"\0")
        self.calls.append(("jit", ptx[:-1]))
        if ptx == b"bad\0":
            return code("CUDA_ERROR_UNSUPPORTED_PTX_VERSION"), None
        given = dict(zip(options, values, strict=True))
        text = b"Compiling entry function 'k'\nUsed 168 registers"
        assert given["size"] == len(given["log"]) and given["verbose"] == 1
        given["log"][:len(text)] = text
        return OK, ("module", ptx)

    def cuModuleGetFunction(self, module, name):
        return OK, ("function", name)

    def cuFuncSetAttribute(self, function, attribute, value):
        self.calls.append(("attribute", attribute, value))
        return (OK,)

    def cuMemAlloc(self, n):
        block = ctypes.create_string_buffer(n)
        self.memory[ctypes.addressof(block)] = block
        return OK, ctypes.addressof(block)

    def cuMemFree(self, pointer):
        del self.memory[pointer]
        return (OK,)

    def cuMemcpyHtoD(self, to, start, n):
        ctypes.memmove(to, start, n)
        return (OK,)

    def cuMemcpyDtoH(self, to, start, n):
        ctypes.memmove(to, start, n)
        return (OK,)


def forget() -> None:
    for f in CACHED:
        if hasattr(f, "cache_clear"):
            f.cache_clear()


@pytest.fixture
def cuda(monkeypatch):
    def install(**options):
        fake = FakeCuda(**options)
        monkeypatch.setattr(device, "_bindings", lambda: fake)
        return fake

    monkeypatch.setitem(sys.modules, "torch", None)
    forget()
    yield install
    monkeypatch.undo()
    forget()


def test_no_driver(cuda):
    cuda(init=RuntimeError("libcuda not found\nlong text"))
    assert device.gpu_available() is False
    with pytest.raises(DriverError, match=r"no NVIDIA driver(?s:.*)R580.*libcuda not found\)$"):
        device.driver()


def test_old_driver(cuda):
    cuda(version=12040)
    assert device.gpu_available() is False
    with pytest.raises(DriverError, match=r"supports CUDA 12\.4, tilec needs 13\.0(?s:.*)R580"):
        device.driver()


def test_no_gpu(cuda):
    cuda(init=code("CUDA_ERROR_NO_DEVICE"))
    assert device.gpu_available() is False
    with pytest.raises(DriverError, match=r"NO_DEVICE: what it means(?s:.*)nvidia-smi"):
        device.driver()


def test_missing_package(monkeypatch):
    forget()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    try:
        with pytest.raises(DriverError, match="pip install cuda-python"):
            device.driver()
        assert device.gpu_available() is False
    finally:
        forget()


def test_gpu_available(cuda):
    cuda()
    assert device.gpu_available() is True


@pytest.mark.parametrize(
    "capability, name",
    [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a"),
     ((12, 0), "sm_120a")],
)
def test_target_of(cuda, capability, name):
    cuda(capability=capability)
    assert device.target_of(0) == name


def test_gpu_that_tilec_does_not_know(cuda):
    cuda(capability=(6, 1))
    with pytest.raises(TilecError, match="sm_61"):
        device.target_of(0)


def test_current_device_follows_the_context(cuda):
    fake = cuda()
    assert device.current_device() == 0
    device.use(1)
    assert fake.current == "context of device 1"
    assert device.current_device() == 1
    assert device.current_stream(1) == 0


def test_torch_decides_when_it_is_loaded(cuda, monkeypatch):
    cuda()
    core = SimpleNamespace(
        _cuda_getDevice=lambda: 3, _cuda_getCurrentRawStream=lambda d: 1000 + d
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=core))
    monkeypatch.setattr(device, "_stream_getter", None)
    assert device.current_device() == 3
    assert device.current_stream(3) == 1003


def test_torch_without_cuda_is_ignored(cuda, monkeypatch):
    cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=SimpleNamespace()))
    assert (device.current_device(), device.current_stream(0)) == (0, 0)


def test_load(cuda):
    fake = cuda()
    kernel = device.load(b"elf", "k", 48 * 1024, device=1)
    assert (kernel.function, kernel.device, kernel.shared) == (("function", b"k"), 1, 49152)
    assert fake.calls == [("retain", "device 1")]
    device.load(b"elf", "k", 48 * 1024 + 16, device=1)
    assert fake.calls[1:] == [("attribute", MAX_SHARED, 49168)]  # the context is retained once


def linked(assembler: str, log: str = "(C7504) 'setmaxnreg' ignored") -> LinkResult:
    return LinkResult(b"elf", log, 90, 8, 16, 0, assembler)


def made(found: LinkResult, ptx: str = "ptx") -> Compiled:
    return Compiled(Target.parse("sm_90a"), Options(), "k", ptx=ptx, shared=65536, linked=found)


def test_the_driver_compiles_what_nvjitlink_cannot(cuda):
    fake = cuda()
    compiled = made(linked("nvJitLink 13.0"))
    with recording() as remarks:
        kernel = load(compiled, 1)
    assert kernel.function == ("function", b"k")
    assert fake.calls[1:] == [("jit", b"ptx"), ("attribute", MAX_SHARED, 65536)]
    log = "Compiling entry function 'k'\nUsed 168 registers"
    assert compiled.linked == LinkResult(b"elf", log, 168, 0, 0, 0, "the driver's JIT")
    assert [r.kind for r in remarks] == ["assembler"]
    assert remarks[0].data == {"assembler": "the driver's JIT"}


@pytest.mark.parametrize("found", [linked("ptxas 13.0.88", ""), linked("nvJitLink 13.0", "")])
def test_other_cubins_are_loaded_as_they_are(cuda, found):
    fake, compiled = cuda(), made(found)
    load(compiled, 0)
    assert compiled.linked is found and "jit" not in [name for name, *_ in fake.calls]


def test_a_driver_that_does_not_know_the_ptx(cuda):
    """The cubin is loaded after all, without setmaxnreg, and a remark says so."""
    fake, compiled = cuda(), made(linked("nvJitLink 13.0"), "bad")
    with recording() as remarks:
        kernel = load(compiled, 0)
    assert kernel.module == ("module", b"elf") and ("jit", b"bad") in fake.calls
    assert compiled.linked.assembler == "nvJitLink 13.0"
    assert "UNSUPPORTED_PTX_VERSION" in remarks[0].message
    assert "leaves out setmaxnreg" in remarks[0].message


def test_load_of_a_foreign_cubin(cuda):
    cuda()
    with pytest.raises(DriverError, match=r"NO_BINARY_FOR_GPU(?s:.*)leave out target="):
        device.load(b"bad", "k", 0)


def test_synchronize_reports_a_failed_kernel(cuda):
    cuda()
    with pytest.raises(DriverError, match=r"MISALIGNED(?s:.*)multiple_of"):
        device.synchronize()


@pytest.mark.parametrize("data", [b"", b"abc", bytearray(range(200)), memoryview(b"x" * 17)])
def test_buffers_hold_what_was_copied(cuda, data):
    fake = cuda()
    with device.DeviceBuffer.of(data) as buffer:
        assert buffer.read() == bytes(data)
        assert (buffer.pointer == 0) == (len(data) == 0)
        device.write(buffer.pointer, bytes(len(data)))
        assert buffer.read() == bytes(len(data))
    assert fake.memory == {}
    buffer.free()


def test_write_of_a_strided_view(cuda):
    cuda()
    buffer = device.DeviceBuffer(5)
    device.write(buffer.pointer, memoryview(b"a.b.c.d.e.")[::2])
    assert buffer.read() == b"abcde"


def test_memory_is_freed_with_the_object(cuda):
    fake = cuda()
    buffer = device.DeviceBuffer(64)
    assert len(fake.memory) == 1
    del buffer
    assert fake.memory == {}
