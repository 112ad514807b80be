"""Kernels loaded from .tir files, and the tensor maps that their launches encode."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import driver as cu

import tilec
from tests.support.fixtures import FOLDER
from tests.support.hopper import attention, attention_args, gemm, gemm_args
from tilec.errors import IRError, LaunchError
from tilec.ir.layouts import NvmmaShared, SwizzledShared
from tilec.ir.types import Scalar, TensorMap, bf16, f8e4m3, f32
from tilec.runtime import device, tensor_map

BF16 = np.dtype(ml_dtypes.bfloat16)
PLAIN = SwizzledShared(1, 1, 1, (1, 0))


class There:
    """What a device array says of itself."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...] | None = None,
                 address: int = 4096, dtype: Any = BF16) -> None:
        self.dtype = np.dtype(dtype)
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "|V1", "strides": strides,
                                         "data": (address, False), "version": 3}


class Driver:
    """cuda.bindings.driver, with an encoder that records its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(cu, name)

    def cuTensorMapEncodeTiled(self, *args: Any) -> tuple[Any, Any]:
        self.calls.append(args)
        made = cu.CUtensorMap()
        made.opaque = [cu.cuuint64_t(7 * i) for i in range(16)]
        return cu.CUresult.CUDA_SUCCESS, made


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setattr(device, "driver", lambda: fake)
    tensor_map.encode.cache_clear()
    return fake


def nvmma(swizzle: int, bits: int = 16) -> NvmmaShared:
    return NvmmaShared(swizzle, False, bits)


@pytest.mark.parametrize(("shape", "tile", "layout", "element", "want"), [
    ((1000, 1088), (64, 256), nvmma(128), bf16, ([1088, 1000], [2176], [64, 64], "BFLOAT16", 3)),
    ((2, 300, 128), (1, 64, 128), nvmma(128), bf16,
     ([128, 300, 2], [256, 76800], [64, 64, 1], "BFLOAT16", 3)),
    ((64, 64), (32, 32), nvmma(64), bf16, ([64, 64], [128], [32, 32], "BFLOAT16", 2)),
    ((64, 64), (32, 16), nvmma(32), bf16, ([64, 64], [128], [16, 32], "BFLOAT16", 1)),
    ((256, 512), (128, 128), nvmma(128, 8), f8e4m3, ([512, 256], [512], [128, 128], "UINT8", 3)),
    ((64, 100), (16, 64), PLAIN, f32, ([100, 64], [400], [64, 16], "FLOAT32", 0)),
])
def test_encoding(driver: Driver, shape: tuple[int, ...], tile: tuple[int, ...], layout: Any,
                  element: Scalar, want: tuple[list[int], list[int], list[int], str, int]) -> None:
    dtype = {"bf16": BF16, "f32": np.float32, "f8e4m3": ml_dtypes.float8_e4m3fn}[element.name]
    t = TensorMap(tile, element, layout)
    made = tensor_map.on_device(There(shape, dtype=dtype), t, "x")
    assert made == struct.pack("<16Q", *(7 * i for i in range(16)))
    kind, rank, address, extents, strides, box, steps, _, swizzle, promotion, fill = driver.calls[0]
    assert (list(map(int, extents)), list(map(int, strides)), list(map(int, box)),
            kind.name.rpartition("TYPE_")[2], int(swizzle)) == want
    assert (rank, address, int(promotion), int(fill)) == (len(shape), 4096, 2, 0)
    assert list(map(int, steps)) == [1] * rank
    tensor_map.on_device(There(shape, dtype=dtype), t, "x")
    assert len(driver.calls) == 1  # the second is from the cache


@pytest.mark.parametrize(("value", "message"), [
    (There((64,)), "has the shape (64,), expected 2 dimensions"),
    (There((64, 4)), "strides of (8, 2) bytes, expected multiples of 16"),
    (There((64, 64), (2, 128)), "neighbours along the last dimension 128 bytes apart, expected 2"),
    (There((64, 64), address=4104), "an address that is not a multiple of 16"),
    (There((0, 64)), "expected extents from 1"),
    (There((64, 64), dtype=np.float16), "elements of type float16, expected bf16"),
    (3, "is a int, expected a device array"),
    (np.zeros((64, 64)), "is a ndarray, expected a device array"),
])
def test_tensors_that_tma_does_not_copy(driver: Driver, value: Any, message: str) -> None:
    with pytest.raises(LaunchError) as caught:
        tensor_map.on_device(value, TensorMap((64, 64), bf16, nvmma(128)), "amap")
    assert message in str(caught.value) and "`amap`" in str(caught.value)
    assert driver.calls == []


def test_a_descriptor_has_a_shape_and_strides_of_its_own(driver: Driver) -> None:
    t = TensorMap((64, 64), bf16, nvmma(128))
    given = tilec.TensorDescriptor(There((64, 512)), (60, 100), (1024, 1), (64, 64))
    tensor_map.on_device(given, t, "x")
    assert list(map(int, driver.calls[0][3])) == [100, 60]
    assert list(map(int, driver.calls[0][4])) == [2048]
    wrong = tilec.TensorDescriptor(There((64, 512)), (60, 100), (1024, 1), (64, 32))
    with pytest.raises(LaunchError, match=r"blocks of \(64, 32\), the kernel copies \(64, 64\)"):
        tensor_map.on_device(wrong, t, "x")


# ---- running
@pytest.mark.parametrize("name", ["gemm_a_branch.tir", "gemm_c_e2.tir", "gemm_d_e2.tir"])
def test_gemm_at_every_level(name: str) -> None:
    kernel = tilec.load(FOLDER / name)
    results = []
    for level, seed in itertools.product(("gpu", "lowered", "ptx"), (3, None)):
        args, want = gemm_args(130, 264, 136 if seed else 328, seed=1)
        kernel.run(args, 2, level, seed=seed)
        gemm(args[2].astype(np.float32), want, level)
        results.append(args[2].tobytes())
    assert results[0] == results[2]


@pytest.mark.parametrize("name", ["attention_e1.tir", "attention_f3nf.tir"])
def test_attention_at_every_level(name: str) -> None:
    kernel = tilec.load(FOLDER / name)
    for level, (heads, seq) in itertools.product(("gpu", "lowered", "ptx"), ((1, 200), (2, 385))):
        args, want = attention_args(heads, seq, seed=seq)
        kernel.run(args, heads, level, seed=3)
        attention(args[3].astype(np.float32), want, level)


@pytest.mark.parametrize("level", ["lowered", "ptx"])
def test_descriptors_of_host_arrays(level: str) -> None:
    """A product of parts of larger arrays; what lies outside of them stays as it is."""
    rng = np.random.default_rng(0)
    big = [rng.standard_normal((96, 160)).astype(np.float32).astype(BF16) for _ in range(3)]
    kept = big[2].copy()
    shapes = [(40, 72), (72, 88), (40, 88)]
    given = [tilec.TensorDescriptor(x[4:], shape, (160, 1))
             for x, shape in zip(big, shapes, strict=True)]
    tilec.load(FOLDER / "gemm_a_branch.tir").run([*given, 40, 88, 72], 1, level)
    want = big[0][4:44, :72].astype(np.float32) @ big[1][4:76, :88].astype(np.float32)
    gemm(big[2][4:44, :88].astype(np.float32), want, level)
    big[2][4:44, :88] = kept[4:44, :88]
    assert big[2].tobytes() == kept.tobytes()


def test_what_a_file_may_get_wrong(tmp_path: Path) -> None:
    path = tmp_path / "k.tir"
    path.write_text("module {")
    with pytest.raises(IRError, match="k.tir"):
        tilec.load(path)
    kernel = tilec.load(FOLDER / "gemm_a_branch.tir")
    with pytest.raises(LaunchError, match="got 1 arguments, expected 6: amap, bmap, cmap, m, n, k"):
        kernel.run([1], 1)
    args, _ = gemm_args(8, 8, 8, seed=0)
    with pytest.raises(LaunchError, match="cannot run at level `tile`"):
        kernel.run(args, 1, "tile")
    with pytest.raises(LaunchError, match="argument amap has the shape"):
        kernel.run([args[0][0], *args[1:]], 1)


@pytest.mark.parametrize(("name", "total"), [("gemm_a_branch.tir", 256), ("gemm_c_e2.tir", 384)])
def test_launch(name: str, total: int, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver is given: three maps, 64 bytes aligned, then the numbers."""
    from tilec.runtime import text

    launched: list[Any] = []

    class Launcher:
        def __init__(self, function: Any, types: list[str], index: int, maps: list[Any],
                     early: bool, name: str, num_ctas: int) -> None:
            assert not early and num_ctas == 1
            launched.append(types)

        def launch(self, *args: Any) -> None:
            launched.append(args)

    monkeypatch.setattr(text, "Launcher", Launcher)
    monkeypatch.setattr(device, "current_device", lambda: 0)
    monkeypatch.setattr(device, "current_stream", lambda index: 5)
    monkeypatch.setattr(device, "load", lambda *args: type("Loaded", (), {"function": 1}))
    kernel = tilec.load(FOLDER / name)
    kernel[3](There((40, 72)), There((72, 88)), There((40, 88)), 40, 88, 72)
    types, (grid, threads, shared, stream, values) = launched
    assert types == ["tensormap"] * 3 + ["i32"] * 3
    assert (grid, threads, shared, stream) == ((3, 1, 1), total, kernel.compiled.shared, 5)
    assert [len(v) for v in values[:3]] == [128] * 3 and values[3:] == [40, 88, 72]


def test_a_gpu_is_given_device_arrays() -> None:
    kernel = tilec.load(FOLDER / "matmul_mma_pipelined.tir")
    x = np.zeros((64, 64), np.float32)
    with pytest.raises(LaunchError, match="expected a device array of type"):
        kernel[1](*(x for _ in kernel.params))
