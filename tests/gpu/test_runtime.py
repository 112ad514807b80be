"""Device and launcher on a real GPU: one hand-written kernel, arguments of every scalar type."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tilec.codegen import cubin, llvm
from tilec.errors import LaunchError
from tilec.runtime import device
from tilec.runtime.launch import Launcher
from tilec.target import Target

pytestmark = pytest.mark.gpu

# out[i] = x[i] * scale + add for i < n, four kinds of parameter; uses dynamic shared memory.
KERNEL = """
@smem = external addrspace(3) global [0 x i8], align 16
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
define ptx_kernel void @k(i1 %on, ptr addrspace(1) %x, ptr addrspace(1) %o, i32 %n, double %add,
    half %scale) "nvvm.reqntid"="128" {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %c = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %b = mul i32 %c, 128
  %i = add i32 %b, %t
  %in = icmp slt i32 %i, %n
  %go = and i1 %in, %on
  br i1 %go, label %body, label %done
body:
  %p = getelementptr float, ptr addrspace(1) %x, i32 %i
  %q = getelementptr float, ptr addrspace(1) %o, i32 %i
  %v = load float, ptr addrspace(1) %p
  %s = getelementptr float, ptr addrspace(3) @smem, i32 %t
  store volatile float %v, ptr addrspace(3) %s
  %w = load volatile float, ptr addrspace(3) %s
  %f = fpext half %scale to float
  %m = fmul float %w, %f
  %d = fptrunc double %add to float
  %r = fadd float %m, %d
  store float %r, ptr addrspace(1) %q
  br label %done
done:
  ret void
}
"""
TYPES = ["i1", "*fp32", "*fp32", "i32", "fp64", "fp16"]


@pytest.fixture(scope="module")
def launcher():
    target = Target.parse(device.target_of(0))
    image = cubin.link(llvm.emit_ptx(KERNEL, target), target, name="k").cubin
    return Launcher(device.load(image, "k", 65536, device=0).function, TYPES, device_index=0)


def run(launcher, n, on=True, grid=None):
    x = np.arange(n, dtype=np.float32)
    with device.DeviceBuffer.of(x.tobytes(), 0) as a, device.DeviceBuffer.of(bytes(4 * n), 0) as b:
        grid = grid or (-(-n // 128), 1, 1)
        launcher.launch(grid, 128, 65536, 0, [on, a.pointer, b.pointer, n, 0.25, 1.5])
        device.synchronize(0)
        return x, np.frombuffer(bytes(b.read()), np.float32)


def test_launch(launcher):
    x, out = run(launcher, 1000)
    assert (out == x * np.float32(1.5) + np.float32(0.25)).all()
    _, out = run(launcher, 1000, on=False)
    assert (out == 0).all()


def test_empty_grid(launcher):
    _, out = run(launcher, 10, grid=(0, 1, 1))
    assert (out == 0).all()


def test_grid_that_is_too_large(launcher):
    with pytest.raises(LaunchError, match="65535"):
        run(launcher, 10, grid=(1, 70000, 1))


def test_thread_without_a_context(launcher):
    results = []
    buffer = device.DeviceBuffer.of(np.ones(128, np.float32).tobytes(), 0)

    def work():
        values = [True, buffer.pointer, buffer.pointer, 128, 1.0, 1.0]
        launcher.launch((1, 1, 1), 128, 65536, 0, values)
        device.synchronize(0)
        results.append(np.frombuffer(bytes(buffer.read()), np.float32))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(results) == 1 and (results[0] == 2).all()
