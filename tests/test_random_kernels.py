"""Random kernels through the whole compiler: every level leaves the same bits in memory."""

from __future__ import annotations

import importlib.util
import random
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
from tests.support.random_kernels import Argument, Kernel
from tilec.codegen.cubin import link

NUMPY: dict[str, Any] = {
    "bool": np.bool_, "bfloat16": ml_dtypes.bfloat16, "float8e4nv": ml_dtypes.float8_e4m3fn,
    "float8e5": ml_dtypes.float8_e5m2}
TARGETS = ("sm_80", "sm_89", "sm_90a", "sm_100a")
LINKED = 10  # one kernel in so many also becomes a cubin


def load(kernel: Kernel, folder: Path) -> tilec.JITFunction:
    path = folder / "random_kernel.py"
    path.write_text(kernel.source)
    spec = importlib.util.spec_from_file_location("random_kernel", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def array(argument: Argument, programs: int, rng: np.random.Generator) -> np.ndarray:
    dtype, n = np.dtype(NUMPY.get(argument.dtype, argument.dtype)), argument.size
    if argument.kind == "slots":
        return np.zeros(n, dtype)
    if argument.kind != "in":
        out = np.empty(n * programs, dtype)
        out.view(np.uint8)[...] = 1 if dtype.kind == "b" else 0xA5
        return out
    if dtype.kind == "b":
        return rng.integers(0, 2, n).astype(bool)
    if dtype.kind in "iu":
        low = -60 if dtype.kind == "i" else 0
        info = np.iinfo(dtype)
        wide = rng.random() < 0.4
        return rng.integers(info.min if wide else low, info.max if wide else 99, n, dtype)
    values = np.round(rng.standard_normal(n) * 8) / 4
    if rng.random() < 0.3:
        values[::7], values[3::11], values[5::13] = np.nan, np.inf, -0.0
    return values.astype(dtype)


def same(got: np.ndarray, want: np.ndarray) -> bool:
    if want.dtype.kind in "iub":
        return np.array_equal(got, want)
    x, y = got.astype(np.float64), want.astype(np.float64)
    return bool(np.all((x == y) & (np.signbit(x) == np.signbit(y)) | np.isnan(x) & np.isnan(y)))


def check(seed: int, statements: int, elements: int, folder: Path) -> None:
    kernel = Kernel(seed, statements, elements)
    rng, pick = np.random.default_rng(seed), random.Random(seed)
    programs = prod(kernel.grid)
    args = [array(a, programs, rng) for a in kernel.arguments]
    names = [*(a.name for a in kernel.arguments), "n"]
    n = pick.choice([0, 1, 7, 40, 64, 97, 1000])
    made = load(kernel, folder).warmup(*args, n, grid=kernel.grid, target=pick.choice(TARGETS),
                                       num_warps=pick.choice([1, 2, 4, 4, 8, 16, 32]))
    want: list[np.ndarray] = []
    for level, order in (("tile", 0), ("gpu", 1), ("lowered", 1), ("ptx", 1), ("ptx", 2)):
        got = [a.copy() for a in args]
        values = dict(zip(names, [*got, n], strict=True))
        made.run({k: values[k] for k in made.signature}, kernel.grid, level=level, seed=order)
        want = want or got
        for name, x, y in zip(names, got, want):
            assert same(x, y), f"{name} at level {level}, seed {seed}\n{kernel.source}"
    if seed % LINKED == 0:
        assert link(made.asm["ptx"], made.target, name=made.name).cubin


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(60))
def test_small(seed: int, tmp_path: Path) -> None:
    check(seed, 9, 512, tmp_path)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(1000, 1600))
def test_large(seed: int, tmp_path: Path) -> None:
    check(seed, 20, 4096, tmp_path)
