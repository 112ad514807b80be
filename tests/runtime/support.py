"""Kernels, fake device arrays and a fake driver for the runtime's tests."""

from __future__ import annotations

import itertools
import linecache

import numpy as np

import tilec
import tilec.language as tl
from tilec.runtime import device
from tilec.runtime.kernel import CompiledKernel

_count = itertools.count()


@tilec.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)


@tilec.jit
def scale(x_ptr, out_ptr, factor, N: tl.constexpr = 32):
    offs = tl.arange(0, N)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) * factor + 3.0)


def from_text(text, **outer):
    """The last kernel of a source text, as if it stood in a file; `outer` are its globals."""
    file = f"<launched {next(_count)}>"
    return rerun(text, file, {"tl": tl, "tilec": tilec, "__name__": "kernels", **outer})


def rerun(text, file, scope):
    """Execute a notebook cell: its text is registered, and its names land in `scope`."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec", dont_inherit=True), scope)
    return [x for x in scope.values() if isinstance(x, tilec.JITFunction) and x.file == file][-1]


def arrays(n=100, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal(n).astype(dtype) for _ in range(2))
    return x, y, np.full(n, np.nan).astype(dtype)


class Memory:
    """Stands in for a GPU's memory: host arrays by their address."""

    def __init__(self, monkeypatch):
        self.arrays = {}
        self.written = []
        monkeypatch.setattr(device, "read", self.read)
        monkeypatch.setattr(device, "write", self.write)
        monkeypatch.setattr(device, "gpu_available", lambda: True)
        monkeypatch.setattr(device, "current_device", lambda: 0)
        monkeypatch.setattr(device, "current_stream", lambda index: 0)
        monkeypatch.setattr(device, "target_of", lambda index: "sm_90a")

    def _bytes(self, address, nbytes):
        for base, raw in self.arrays.items():
            if base <= address and address + nbytes <= base + len(raw):
                return raw[address - base:address - base + nbytes]
        raise AssertionError(f"{address:#x}: no such memory")

    def read(self, address, nbytes):
        return bytearray(self._bytes(address, nbytes))

    def write(self, address, data):
        self.written.append(address)
        self._bytes(address, len(data))[:] = np.frombuffer(bytes(data), np.uint8)

    def array(self, host, address=None, **more):
        address = address or (0x1000 + 0x100000 * len(self.arrays))
        if host.base is None:
            self.arrays[address] = host.reshape(-1).view(np.uint8)
        return CudaArray(host, address, **more)


class CudaArray:
    """An array with __cuda_array_interface__, as cupy's have it."""

    def __init__(self, host, address, strides=None, dtype=None):
        if dtype is not None:
            self.dtype = dtype
        self.__cuda_array_interface__ = {
            "shape": host.shape, "typestr": host.dtype.str, "data": (address, False),
            "strides": strides, "version": 3}


class Launches:
    """Stands in for launchers: keeps what kernels are launched with."""

    def __init__(self, monkeypatch):
        self.calls = []
        monkeypatch.setattr(CompiledKernel, "launcher", lambda kernel, index: self)

    def launch(self, grid, block, shared, stream, values):
        self.calls.append((grid, block, shared, stream, list(values)))
