"""The kernels of tests/test_levels.py as cubins on the GPU, against the tile level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
from tests import test_levels as levels
from tests.test_levels import *  # noqa: F403  (its tests, with `check` replaced below)
from tilec.runtime.device import DeviceBuffer

pytestmark = pytest.mark.gpu


class OnDevice:
    """A numpy array's copy in device memory."""

    def __init__(self, x: np.ndarray) -> None:
        self.like = x
        self.dtype = x.dtype
        self.buffer = DeviceBuffer.of(np.ascontiguousarray(x).view(np.uint8).tobytes())
        self.__cuda_array_interface__ = {
            "shape": x.shape, "typestr": "|V1", "data": (self.buffer.pointer, False), "version": 3}

    def get(self) -> np.ndarray:
        return np.frombuffer(bytes(self.buffer.read()), self.dtype).reshape(self.like.shape)


def on_device(kernel: tilec.JITFunction, args: list, grid: tuple[int, ...], constexprs: dict,
              warps: int = 4, exact: bool = True, target: str = "") -> None:
    """Like levels.check, for the level that only a GPU runs; always for the GPU that is there."""
    host = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    there = [OnDevice(a) if isinstance(a, np.ndarray) else a for a in args]
    names = [p.name for p in kernel.params if not p.is_constexpr]
    made: Any = kernel[grid](*there, num_warps=warps, **constexprs)
    made.run(dict(zip(names, host, strict=True)), grid, level="tile", seed=5)
    for want, got in zip(host, there, strict=True):
        if isinstance(got, OnDevice):
            levels.compare(got.get(), want, exact, "cubin")


@pytest.fixture(autouse=True)
def _check_on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "check", on_device)
