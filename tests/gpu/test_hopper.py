"""The hand-written Hopper kernels as cubins on the GPU, against numpy, for many extents.

Each batch runs in a process of its own, which has a limited time: a kernel that hangs is a failure.
"""

from __future__ import annotations

import multiprocessing
from itertools import product
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

import tilec
from benchmarks.common import load_example
from tests.gpu.test_levels import OnDevice
from tests.support.fixtures import FOLDER
from tests.support.hopper import attention, attention_args, gemm, gemm_args
from tilec.codegen import ptxas
from tilec.runtime import device

pytestmark = pytest.mark.gpu
LIMIT_S = 90
# (m, n, k): one step, one tile, three tiles; ragged ones, whose rows are multiples of 16 bytes;
# fewer steps than slots of the ring; more tiles than programs.
GEMM = [(128, 256, 64), (256, 256, 128), (384, 768, 192), (1000, 1088, 1000), (1, 8, 8),
        (127, 264, 72), (129, 8, 520), (2048, 2048, 64), (2056, 1032, 328), (640, 4096, 1024),
        (4096, 4352, 128), (77, 4000, 2048), (1300, 1304, 1312)]
GRIDS = [1, 7, 132]
PERSISTENT = ["gemm_a_branch.tir", "gemm_c_e2.tir", "gemm_d_e2.tir", "attention_e1.tir",
              "attention_f3nf.tir"]
ATTENTION = [(2, 128), (1, 256), (3, 384), (2, 1), (1, 7), (2, 129), (1, 200), (4, 1000), (2, 1537),
             (1, 4096), (3, 2176)]


def on_gpu(name: str, args: list[Any], grid: Any) -> list[Any]:
    """What a fixture makes of copies of the arguments."""
    there = [OnDevice(a) if isinstance(a, np.ndarray) else a for a in args]
    tilec.load(FOLDER / name)[grid](*there)
    device.synchronize()
    return [a.get() if isinstance(a, OnDevice) else a for a in there]


def check_gemm(m: int, n: int, k: int) -> None:
    args, want = gemm_args(m, n, k, seed=m + n + k)
    for name, grid in product(("gemm_a_branch.tir", "gemm_c_e2.tir"), GRIDS):
        got = on_gpu(name, args, grid)[2].astype(np.float32)
        gemm(got, want, f"{name}: {m} x {n} x {k}, {grid} programs")


def check_attention(heads: int, seq: int) -> None:
    args, want = attention_args(heads, seq, seed=heads + seq)
    tiles = heads * tilec.cdiv(seq, 128)
    for name, grid in product(("attention_e1.tir", "attention_f3nf.tir"),
                              {min(tiles, n) for n in GRIDS}):
        got = on_gpu(name, args, grid)[3].astype(np.float32)
        attention(got, want, f"{name}: {heads} heads of {seq}, {grid} programs")


def by_the_driver() -> None:
    """Without ptxas the driver compiles a kernel with setmaxnreg, which its metadata says."""
    with mock.patch.object(ptxas, "find", lambda: None):
        args, want = attention_args(2, 1000, seed=5)
        there = [OnDevice(a) if isinstance(a, np.ndarray) else a for a in args]
        kernel = tilec.load(FOLDER / "attention_f3nf.tir")
        kernel[7](*there)
        device.synchronize()
    attention(there[3].get().astype(np.float32), want, "by the driver")
    linked = kernel.compiled.linked
    assert linked is not None and linked.assembler == "the driver's JIT"
    assert linked.advisories == [] and linked.n_spills == 0


def check_explicit(m: int, n: int, k: int) -> None:
    """Example 10, which stores rows of multiples of 16 elements."""
    example = load_example("10_explicit_matmul")
    args, want = gemm_args(m, n, k, seed=m + n + k)
    for grid in GRIDS:
        there = [OnDevice(a) for a in args[:3]]
        blocks = [tilec.TensorDescriptor(x, a.shape, (a.shape[1], 1), block) for x, a, block in zip(
            there, args, ((128, 64), (64, 256), (64, 128)))]
        example.matmul_kernel[(grid,)](*blocks, GROUP=8, STAGES=4, num_warps=8)
        device.synchronize()
        gemm(there[2].get().astype(np.float32), want, f"{m} x {n} x {k}, {grid} programs")


def launches(count: int, which: int) -> None:
    """A persistent kernel, launched again and again."""
    name = PERSISTENT[which]
    if name.startswith("attention"):
        args, want = attention_args(2, 300, seed=2)
    else:
        args, want = gemm_args(768, 768, 256, seed=1)  # an even number of tiles for clusters of two
    there = [OnDevice(a) if isinstance(a, np.ndarray) else a for a in args]
    kernel = tilec.load(FOLDER / name)
    for _ in range(count):
        kernel[6](*there)
    device.synchronize()
    got, check = (there[3], attention) if name.startswith("attention") else (there[2], gemm)
    check(got.get().astype(np.float32), want, f"{name} after many launches")


def launches_of_explicit(count: int) -> None:
    """Example 10."""
    example = load_example("10_explicit_matmul")
    args, want = gemm_args(640, 768, 256, seed=3)
    there = [OnDevice(a) for a in args[:3]]
    blocks = [tilec.TensorDescriptor(x, a.shape, (a.shape[1], 1), block) for x, a, block in zip(
        there, args, ((128, 64), (64, 256), (64, 128)))]
    for _ in range(count):
        example.matmul_kernel[(5,)](*blocks, GROUP=8, STAGES=4, num_warps=8)
    device.synchronize()
    gemm(there[2].get().astype(np.float32), want, "example 10 after many launches")


def launches_of_fp8(count: int) -> None:
    """Example 12; numbers are whole and small, so that sums are exact."""
    example = load_example("12_fp8_matmul")
    rng = np.random.default_rng(count)
    a, b = (rng.integers(-4, 5, (n, 256)).astype(ml_dtypes.float8_e4m3fn) for n in (640, 512))
    c, scales = np.full((640, 512), np.nan, np.float32), [np.full(1, s, np.float32) for s in (2, 4)]
    there: list[Any] = [OnDevice(x) for x in (a, b, c, *scales)]
    blocks = [tilec.TensorDescriptor(x, v.shape, (v.shape[1], 1), block) for x, v, block in zip(
        there, (a, b, c), ((128, 128), (256, 128), (128, 256)))]
    for _ in range(count):
        example.fp8_matmul_kernel[(5,)](*blocks, *there[3:], GROUP=8, num_warps=8, num_stages=3,
                                        launch_pdl=True)
    device.synchronize()
    want = 8 * (a.astype(np.float32) @ b.astype(np.float32).T)
    np.testing.assert_array_equal(there[2].get(), want)


def in_process(check: Any, *args: int) -> None:
    process = multiprocessing.get_context("spawn").Process(target=check, args=args)
    process.start()
    process.join(LIMIT_S)
    if process.is_alive():
        process.kill()
        pytest.fail(f"{check.__name__}{args} did not end in {LIMIT_S} s")
    assert process.exitcode == 0


@pytest.mark.parametrize("shape", GEMM, ids=str)
def test_gemm(shape: tuple[int, int, int]) -> None:
    in_process(check_gemm, *shape)


@pytest.mark.parametrize("shape", [s for s in GEMM if s[1] % 16 == 0], ids=str)
def test_explicit(shape: tuple[int, int, int]) -> None:
    in_process(check_explicit, *shape)


@pytest.mark.parametrize("shape", ATTENTION, ids=str)
def test_attention(shape: tuple[int, int]) -> None:
    in_process(check_attention, *shape)


def test_attention_by_the_driver() -> None:
    in_process(by_the_driver)


@pytest.mark.parametrize("which", range(len(PERSISTENT)), ids=PERSISTENT)
def test_ten_thousand_launches(which: int) -> None:
    in_process(launches, 10_000, which)


def test_ten_thousand_launches_of_examples() -> None:
    in_process(launches_of_explicit, 10_000)
    in_process(launches_of_fp8, 10_000)
