"""Argument packing, and the launcher against a driver that only records what it is given."""

from __future__ import annotations

import ctypes
import math
import random
import struct
import threading
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from tilec.errors import DriverError, LaunchError
from tilec.runtime import device
from tilec.runtime.launch import Launcher, Packer

SIZES = {"i1": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "fp16": 2, "bf16": 2, "i32": 4, "u32": 4,
         "fp32": 4, "i64": 8, "u64": 8, "fp64": 8, "*fp32": 8}


def test_offsets_are_naturally_aligned():
    rng = random.Random(3)
    for _ in range(200):
        types = [rng.choice(list(SIZES)) for _ in range(rng.randrange(12))]
        packer = Packer(types)
        end = 0
        for kind, offset in zip(types, packer.offsets, strict=True):
            assert offset % SIZES[kind] == 0 and end <= offset < end + SIZES[kind]
            end = offset + SIZES[kind]
        assert packer.struct.size == end


def test_vector_add():
    packed = Packer(["*fp32:16", "*fp32:16", "*fp32", "i32"]).pack([1 << 40, 2, 3, 1000])
    assert packed == struct.pack("<QQQi", 1 << 40, 2, 3, 1000)


def test_padding_is_zero():
    assert Packer(["i1", "i64"]).pack([True, -1]) == b"\x01" + bytes(7) + b"\xff" * 8


@pytest.mark.parametrize(
    "kind, numpy_type",
    [("i8", np.int8), ("i16", np.int16), ("i32", np.int32), ("i64", np.int64), ("u8", np.uint8),
     ("u16", np.uint16), ("u32", np.uint32), ("u64", np.uint64)],
)
def test_integers(kind, numpy_type):
    info = np.iinfo(numpy_type)
    for value in (info.min, info.max, 0, 1):
        expected = np.array(value, numpy_type).tobytes()
        assert Packer([kind]).pack([int(value)]) == expected
        assert Packer([kind]).pack([numpy_type(value)]) == expected
    for value in (int(info.min) - 1, int(info.max) + 1):
        with pytest.raises(LaunchError, match=f"argument 0 is {value}.*{kind}"):
            Packer([kind]).pack([value])


FLOATS = [0.0, -0.0, 1.0, -1.5, 1 / 3, 1e-8, 1e-45, 6e-8, 65504.0, 65519.9, 65520.0, 7e4, -7e4,
          3.4e38, 3.39e38, 1e39, -1e300, math.inf, -math.inf, 1.00390625, 1.01171875, 2.0**-133]


@pytest.mark.parametrize(
    "kind, numpy_type",
    [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16), ("fp32", np.float32),
     ("fp64", np.float64)],
)
def test_floats_round_as_numpy_rounds(kind, numpy_type):
    rng = np.random.default_rng(5)
    values = FLOATS + (rng.standard_normal(300) * 10.0 ** rng.integers(-9, 9, 300)).tolist()
    packer = Packer([kind])
    with np.errstate(all="ignore"):
        for value in values:
            # bf16 goes by way of fp32, as everywhere else in tilec
            exact = np.float32(value) if kind == "bf16" else value
            assert packer.pack([value]) == np.array(exact).astype(numpy_type).tobytes(), value
    for nan in (math.nan, -math.nan):
        bits = np.frombuffer(packer.pack([nan]), numpy_type)
        assert np.isnan(bits.astype(np.float64)).all()


def test_float_parameters_take_ints_and_numpy_scalars():
    expected = struct.pack("<f4xd", 3.0, 2.0)
    assert Packer(["fp32", "fp64"]).pack([3, np.float32(2)]) == expected


def test_an_overflowing_float_leaves_the_others_alone():
    packed = Packer(["i32", "fp32", "bf16", "fp16"]).pack([7, 1e300, 1.0, -1e6])
    expected = struct.pack("<ifHe", 7, math.inf, 0x3F80, -math.inf)
    assert packed == expected


def test_wrong_kind_of_value():
    with pytest.raises(LaunchError, match="argument 1 is 'x'.*i32"):
        Packer(["*fp32", "i32"]).pack([0, "x"])
    with pytest.raises(LaunchError, match="argument 0 is 1.5.*i64"):
        Packer(["i64"]).pack([1.5])
    with pytest.raises(LaunchError, match="argument 1 is None.*bf16"):
        Packer(["i64", "bf16"]).pack([1, None])


def test_wrong_number_of_values():
    with pytest.raises(LaunchError, match="1 values for 2"):
        Packer(["i32", "i32"]).pack([1])


def test_unknown_type():
    with pytest.raises(LaunchError, match="fp8e4"):
        Packer(["fp8e4"])


def result(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name)


class FakeDriver:
    """Reads the parameters as the real driver does, through the array of addresses."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=result("CUDA_SUCCESS"))

    def __init__(self, sizes, errors=()):
        self.sizes, self.errors = sizes, list(errors)
        self.launches, self.contexts = [], []

    def CUstream(self, raw):
        return ("stream", raw)

    def cuLaunchKernel(self, f, gx, gy, gz, bx, by, bz, shared, stream, params, extra):
        error = self.errors.pop(0) if self.errors else self.CUresult.CUDA_SUCCESS
        if error is self.CUresult.CUDA_SUCCESS:
            table = (ctypes.c_void_p * len(self.sizes)).from_address(params)
            args = [ctypes.string_at(a or 0, n) for a, n in zip(table, self.sizes, strict=True)]
            self.launches.append((f, (gx, gy, gz), (bx, by, bz), shared, stream, args, extra))
        return (error,)

    def cuGetErrorString(self, error):
        return (self.CUresult.CUDA_SUCCESS, b"described")


@pytest.fixture
def fake(monkeypatch):
    def install(types, errors=()):
        driver = FakeDriver([SIZES[t] for t in types], errors)
        monkeypatch.setattr(device, "driver", lambda: driver)
        monkeypatch.setattr(device, "_bindings", lambda: driver)
        monkeypatch.setattr(device, "use", driver.contexts.append)
        return driver

    return install


def test_launch_passes_addresses_of_the_values(fake):
    types = ["*fp32", "i1", "i32", "bf16", "fp64"]
    driver = fake(types)
    launcher = Launcher("f", types)
    launcher.launch((2, 3, 4), 128, 1024, 77, [1 << 40, True, -5, 1.5, 0.1])
    ((f, grid, block, shared, stream, args, extra),) = driver.launches
    assert (f, grid, block, shared, extra) == ("f", (2, 3, 4), (128, 1, 1), 1024, 0)
    assert stream == ("stream", 77)
    assert args == [struct.pack("<Q", 1 << 40), b"\x01", struct.pack("<i", -5), b"\xc0\x3f",
                    struct.pack("<d", 0.1)]


def test_launch_without_parameters(fake):
    driver = fake([])
    Launcher("f", []).launch((1, 1, 1), 32, 0, 0, [])
    assert driver.launches[0][5] == []


class Attribute(SimpleNamespace):
    def __init__(self):
        super().__init__(id=None, value=SimpleNamespace())


class EarlyDriver(FakeDriver):
    """Has launches with attributes alone."""

    CUlaunchConfig, CUlaunchAttribute = SimpleNamespace, Attribute
    CUlaunchAttributeID = SimpleNamespace(
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION="serialization")

    def cuLaunchKernelEx(self, config, f, params, extra):
        (attribute,) = config.attrs
        assert config.numAttrs == 1 and attribute.id == "serialization"
        assert attribute.value.programmaticStreamSerializationAllowed == 1
        return super().cuLaunchKernel(
            f, config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX,
            config.blockDimY, config.blockDimZ, config.sharedMemBytes, config.hStream, params,
            extra)

    def cuLaunchKernel(self, *args):
        raise AssertionError("a launch without attributes")


def test_grids_of_whole_clusters(fake):
    driver, launcher = fake(["i32"]), Launcher("f", ["i32"], name="add", num_ctas=2)
    launcher.launch((4, 3, 1), 32, 0, 0, [1])
    with pytest.raises(LaunchError, match="`add` has a grid of 3 programs along axis 0, expected"):
        launcher.launch((3, 4, 1), 32, 0, 0, [1])
    assert len(driver.launches) == 1


def test_early_launch(monkeypatch):
    driver = EarlyDriver([4], [result("CUDA_ERROR_INVALID_CONTEXT")])
    for name in ("driver", "_bindings"):
        monkeypatch.setattr(device, name, lambda: driver)
    monkeypatch.setattr(device, "use", driver.contexts.append)
    launcher = Launcher("f", ["i32"], 3, early=True)
    for i in range(3):
        launcher.launch((2, 3, 1 + i % 2), 128, 1024, 77, [i])
    assert [(x[1], struct.unpack("<i", x[5][0])[0]) for x in driver.launches] == \
        [((2, 3, 1), 0), ((2, 3, 2), 1), ((2, 3, 1), 2)]
    assert driver.launches[0][:5] == ("f", (2, 3, 1), (128, 1, 1), 1024, ("stream", 77))
    assert driver.contexts == [3]


def test_blocks_are_reused(fake):
    driver = fake(["i32"])
    launcher = Launcher("f", ["i32"])
    for i in range(5):
        launcher.launch((1, 1, 1), 32, 0, 0, [i])
    assert [struct.unpack("<i", x[5][0])[0] for x in driver.launches] == list(range(5))
    assert len(launcher._free) == 1


def test_threads_do_not_mix_arguments(fake):
    types = ["i64", "i64"]
    driver = fake(types)
    launcher = Launcher("f", types)

    def work(base):
        for i in range(300):
            launcher.launch((1, 1, 1), 32, 0, base, [base + i, -(base + i)])

    threads = [threading.Thread(target=work, args=(1000 * k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(driver.launches) == 1200
    for x in driver.launches:
        a, b = (struct.unpack("<q", data)[0] for data in x[5])
        assert a == -b and a // 1000 * 1000 == x[4][1]


def test_empty_grid_is_no_launch(fake):
    driver = fake(["i32"], [result("CUDA_ERROR_INVALID_VALUE")])
    Launcher("f", ["i32"]).launch((4, 0, 1), 32, 0, 0, [1])
    assert driver.launches == []


def test_missing_context_is_made_current(fake):
    driver = fake(["i32"], [result("CUDA_ERROR_INVALID_CONTEXT")])
    Launcher("f", ["i32"], device_index=3).launch((1, 1, 1), 32, 0, 0, [1])
    assert driver.contexts == [3] and len(driver.launches) == 1


def test_refused_launch_shows_the_configuration(fake):
    fake(["i32"], [result("CUDA_ERROR_INVALID_VALUE")])
    with pytest.raises(LaunchError, match=r"(?s)grid \(1, 70000, 1\), 32 threads.*65535"):
        Launcher("f", ["i32"]).launch((1, 70000, 1), 32, 0, 0, [1])


def test_other_errors_carry_name_text_and_advice(fake):
    fake(["i32"], [result("CUDA_ERROR_ILLEGAL_ADDRESS")])
    with pytest.raises(DriverError, match="ILLEGAL_ADDRESS: described") as e:
        Launcher("f", ["i32"]).launch((1, 1, 1), 32, 0, 0, [1])
    assert "TILEC_RUN=tile" in str(e.value)
