"""Arrays known only through DLPack: capsules made here, byte by byte."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest

from tests.runtime.support import Launches, Memory, from_text
from tilec import knobs
from tilec.errors import LaunchError
from tilec.runtime import dlpack
from tilec.runtime.arguments import handler_of


class Array:
    """Has the two methods of DLPack, and nothing else."""

    def __init__(self, host, address, code, device=(2, 0), lanes=1, dense=False):
        self.host, self.device = host, device
        self.shape = (ctypes.c_int64 * host.ndim)(*host.shape)
        self.strides = (ctypes.c_int64 * host.ndim)(*(s // host.itemsize for s in host.strides))
        self.tensor = dlpack._Tensor(
            address - 8, *device, host.ndim, code, host.itemsize * 8, lanes,
            ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64)),
            None if dense else ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64)), 8)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


class Host:
    """An array of another library, on the host."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **more):
        return self.array.__dlpack__(**more)


@pytest.mark.parametrize("code, dtype, short", [
    (0, "int8", "i8"), (0, "int64", "i64"), (1, "uint16", "u16"), (2, "float16", "fp16"),
    (2, "float32", "fp32"), (2, "float64", "fp64"), (4, "uint16", "bf16"), (6, "bool", "i1"),
    (10, "uint8", "fp8e4nv"), (12, "uint8", "fp8e5"),
])
def test_types(code, dtype, short):
    host = np.zeros((3, 4), dtype)
    array = Array(host, 0x2000, code, (2, 3))
    assert dlpack.read(array) == (0x2000, short, 3, (3, 4), (4, 1))
    assert handler_of(array)(array) == ((short, True, 3), 0x2000)
    array = Array(host, 0x2004, code, (13, 0), dense=True)
    assert dlpack.read(array) == (0x2004, short, 0, (3, 4), None)
    assert handler_of(array)(array)[0] == (short, False, 0)


def test_what_kernels_cannot_use():
    host = np.zeros(3, np.float32)
    for array, message in ((Array(host, 16, 5), "code 5 of 32 bits"),
                           (Array(host, 16, 2, lanes=2), "code 2 of 32 bits"),
                           (Array(host, 16, 2, (10, 0)), "DLPack device 10")):
        with pytest.raises(LaunchError, match=message):
            handler_of(array)(array)


def test_launch_and_copies(monkeypatch):
    launches, memory = Launches(monkeypatch), Memory(monkeypatch)
    kernel = from_text("@tilec.jit\ndef k(x, N: tl.constexpr):\n    i = tl.arange(0, N)\n"
                       "    tl.store(x + i, tl.load(x + i) * 2)\n")
    data = np.arange(8).astype(ml_dtypes.bfloat16)
    memory.array(data, 0x3000)
    array = Array(data, 0x3000, 4)
    kernel[1](array, N=8)
    assert launches.calls == [((1, 1, 1), 128, 0, 0, [0x3000])]
    for dense in (False, True):
        with knobs.scope(run="tile"):
            kernel[1](Array(data, 0x3000, 4, dense=dense), N=8)
    assert data.astype(int).tolist() == [4 * i for i in range(8)]


def test_arrays_on_the_host():
    kernel = from_text("@tilec.jit\ndef k(x, out, N: tl.constexpr):\n    i = tl.arange(0, N)\n"
                       "    tl.store(out + i, tl.load(x + i) + 1)\n")
    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    kernel[1](Host(x), Host(out), N=8)
    assert np.array_equal(out, x + 1)


def test_host_arrays_that_numpy_cannot_view():
    class Refusing(Host):
        def __dlpack__(self, **more):
            raise BufferError("no export")

    kernel = from_text("@tilec.jit\ndef k(x):\n    pass\n")
    with pytest.raises(LaunchError, match="argument `x`: numpy cannot view it.*no export"):
        kernel[1](Refusing(np.zeros(3, np.float32)))
