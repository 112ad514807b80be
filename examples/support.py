"""What every example needs: arrays on the GPU if torch sees one, numpy arrays otherwise, and a
check against a float64 reference.
"""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np

import tilec
from tilec import knobs
from tilec.target import DEFAULT, Target

NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
         "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "int8": np.int8, "int32": np.int32,
         "int64": np.int64, "uint8": np.uint8}


@functools.cache
def torch_gpu() -> Any:
    """The torch module if it is installed and sees a GPU, else None."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def array(values: np.ndarray, dtype: str) -> Any:
    """`values` as a `dtype` array where the kernels run: a torch tensor on the GPU, or numpy."""
    torch = torch_gpu()
    if torch is None:
        return np.ascontiguousarray(values.astype(NUMPY[dtype]))
    if dtype in ("bfloat16", "float8_e4m3fn"):  # numpy has none of its own, so torch rounds
        return torch.from_numpy(values.astype(np.float32)).to("cuda", getattr(torch, dtype))
    return torch.from_numpy(np.ascontiguousarray(values.astype(NUMPY[dtype]))).cuda()


def poisoned(shape: int | tuple[int, ...], dtype: str) -> Any:
    """An output full of NaN (99 for integers): what a kernel forgets to write shows."""
    return array(np.full(shape, 99.0 if "int" in dtype else np.nan), dtype)


def host(a: Any) -> np.ndarray:
    """The values as a float64 numpy array."""
    if not isinstance(a, np.ndarray):
        a = a.detach().double().cpu().numpy()
    return a.astype(np.float64)


def normal(seed: int, *shape: int) -> np.ndarray:
    """Standard normal float64 values."""
    return np.random.default_rng(seed).standard_normal(shape)


def check(what: str, got: Any, expected: np.ndarray, tolerance: float) -> None:
    """Print the largest error relative to max(1, |expected|); AssertionError if it is too large."""
    values = host(got)
    assert values.shape == expected.shape, f"{what}: shape {values.shape}, not {expected.shape}"
    error = np.abs(values - expected) / np.maximum(1.0, np.abs(expected))
    worst = float(error.max()) if error.size else 0.0
    assert worst <= tolerance, f"{what}: error {worst:.3g}, more than {tolerance:.3g}"
    print(f"{what}: ok (error {worst:.1e})")


@functools.cache
def multiprocessors() -> int:
    """Those of the GPU; on a CPU a few."""
    torch = torch_gpu()
    return 4 if torch is None else torch.cuda.get_device_properties(0).multi_processor_count


def programs(tiles: int) -> int:
    """How many programs share the tiles of a persistent kernel: as few as need no more rounds than
    one a multiprocessor would. A GPU at the limit of its power clocks the higher the fewer work."""
    return tilec.cdiv(tiles, tilec.cdiv(max(tiles, 1), multiprocessors()))


@functools.cache
def target() -> Target:
    """What the GPU can do, or without one the target."""
    torch = torch_gpu()
    if torch is None:
        return Target.parse(knobs.target or DEFAULT)
    major, minor = torch.cuda.get_device_capability()
    return Target.parse(f"{major}{minor}")


def overlapping() -> dict[str, bool]:
    """Launch options: a kernel may begin while the one before it ends, if the GPU can do that."""
    return {"launch_pdl": target().has("griddepcontrol")}


def place() -> str:
    """Where the kernels of this run execute, for the examples to print."""
    return "on the CPU, interpreted" if torch_gpu() is None else "on the GPU"
