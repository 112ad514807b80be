"""A stand-in for a GPU, whose launches run in the interpreter on host memory that plays the
device's, and kernels to tune on it; no real time is measured."""

from __future__ import annotations

import numpy as np

import tilec
from tests.runtime.support import Memory, from_text
from tilec.runtime import device, host
from tilec.runtime.kernel import CompiledKernel, param_types

TEXT = """
@tilec.jit
def accumulate(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, tl.load(out_ptr + i, mask=i < n) + x, mask=i < n)
"""
CONFIGS = [(32, 1), (64, 2), (128, 4)]


class Gpu(Memory):
    """A GPU whose kernels run in the interpreter. launched: (name, constexprs, num_warps, grid)."""

    def __init__(self, monkeypatch):
        super().__init__(monkeypatch)
        self.launched, self.copies, self.freed, self.count, gpu = [], [], 0, 0, self

        class Buffer:
            def __init__(self, nbytes, index):
                raw = np.zeros(nbytes, np.uint8)
                self.nbytes, self.pointer = nbytes, gpu.array(raw).at

            def free(self):
                del gpu.arrays[self.pointer]
                gpu.freed += 1

        for name, stand_in in {
            "DeviceBuffer": Buffer, "use": lambda index: None, "copy": self.copy,
            "zero": self.zero, "synchronize": lambda index=None: None,
            "name_of": lambda index: "Stand-in",
        }.items():
            monkeypatch.setattr(device, name, stand_in)
        monkeypatch.setattr(CompiledKernel, "launcher", lambda kernel, index: Launcher(gpu, kernel))

    def array(self, raw, **more):
        self.count += 1
        made = super().array(raw, 0x100000 * self.count, **more)
        made.at = made.__cuda_array_interface__["data"][0]
        return made

    def copy(self, target, source, nbytes, stream):
        self.copies.append((target, source, nbytes, stream))
        self._bytes(target, nbytes)[:] = self._bytes(source, nbytes)

    def zero(self, pointer, nbytes, stream):
        self._bytes(pointer, nbytes)[:] = 0


class Launcher:
    def __init__(self, gpu, kernel):
        self.gpu, self.kernel = gpu, kernel

    def launch(self, grid, block, shared, stream, values):
        kernel = self.kernel
        self.gpu.launched.append((kernel.name, kernel.constexprs, kernel.num_warps, grid))
        args = []
        for value, kind in zip(values, param_types(kernel.signature.values()), strict=True):
            if kind.startswith("*"):
                value = self.gpu.arrays[value].view(host.numpy_dtype(kind[1:]))
            args.append(value)
        host.run_on_cpu(kernel, args, grid, "tile")


class Clock:
    """In place of do_bench: runs a function twice, and gives the time that the last launch is to
    take by the value of a constexpr."""

    def __init__(self, gpu, times, name="BLOCK"):
        self.gpu, self.times, self.name, self.calls = gpu, times, name, 0

    def __call__(self, fn, quantiles):
        self.calls += 1
        for _ in range(2):
            fn()
        t = self.times[self.gpu.launched[-1][1][self.name]]
        return [t, t, t + 0.5]


def configs(pairs=CONFIGS, **more):
    return [tilec.Config({"BLOCK": b}, num_warps=w, **more) for b, w in pairs]


def tuned(gpu, times=None, text=TEXT, key=("n",), chosen=None, **options):
    clock = Clock(gpu, times or {32: 3.0, 64: 1.0, 128: 2.0})
    options.setdefault("do_bench", clock)
    return tilec.autotune(chosen or configs(), list(key), **options)(from_text(text)), clock


def device_arrays(gpu, n=100):
    x, out = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    return gpu.array(x), gpu.array(out), x, out


def blocks(meta):
    return (tilec.cdiv(meta["n"], meta["BLOCK"]),)
