"""The interpreter beside Triton's: vector add, softmax and layer norm on the CPU.

Triton's interpreter does not run with every numpy, so it may live in an environment of its own:
--triton-python names that environment's Python (default: this one, if it has Triton).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common

ADD_N, ADD_BLOCK = 1 << 20, 1024
ROWS, COLS = 1024, 1000
KERNELS = ("vector add", "softmax", "layer norm")


def problem(kernel: str) -> tuple[list[np.ndarray], Callable[[list[np.ndarray]], np.ndarray], int]:
    """Arrays with poisoned outputs, the reference in float64, and which array is the output."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def nan(*shape: int) -> np.ndarray:
        return np.full(shape, np.nan, np.float32)

    if kernel == "vector add":
        return ([normal(ADD_N), normal(ADD_N), nan(ADD_N)],
                lambda a: a[0].astype(np.float64) + a[1], 2)
    if kernel == "softmax":
        return [normal(ROWS, COLS), nan(ROWS, COLS)], lambda a: softmax(a[0]), 1
    return ([normal(ROWS, COLS), normal(COLS), normal(COLS), nan(ROWS, COLS), nan(ROWS), nan(ROWS)],
            lambda a: layer_norm(*a[:3]), 3)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def layer_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    d = x.astype(np.float64) - x.astype(np.float64).mean(1, keepdims=True)
    return d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5) * w + b


def launch(kernel: str, kernels: Any, arrays: list[Any]) -> None:
    """One launch. kernels: has add_kernel, softmax_kernel and layer_norm_kernel."""
    if kernel == "vector add":
        kernels.add_kernel[(ADD_N // ADD_BLOCK,)](*arrays, ADD_N, BLOCK=ADD_BLOCK)
    elif kernel == "softmax":
        kernels.softmax_kernel[(ROWS,)](*arrays, COLS, COLS, COLS, BLOCK=1024, EVEN=False,
                                        RELOAD=False)
    else:
        kernels.layer_norm_kernel[(ROWS,)](*arrays, COLS, 1e-5, BLOCK=1024)


def measure(kernel: str, kernels: Any, wrap: Callable[[np.ndarray], Any], count: int) -> float:
    """Median seconds of a launch, checked."""
    arrays, reference, output = problem(kernel)
    wrapped = [wrap(a) for a in arrays]
    launch(kernel, kernels, wrapped)
    error = np.abs(arrays[output] - reference(arrays)).max()
    assert error < 1e-4, f"{kernel}: error {error}"
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        launch(kernel, kernels, wrapped)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


# -- Triton, in its own process ------------------------------------------------------------------

class HostTensor:
    """What Triton's interpreter asks of a CPU tensor, around a numpy array, without copies."""

    device = "cpu"

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.dtype = f"torch.{array.dtype}"

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def untyped_storage(self) -> HostTensor:
        return self

    def cpu(self) -> HostTensor:
        return self

    def new_empty(self, *_: Any, **__: Any) -> HostTensor:
        return HostTensor(self.array)

    def set_(self, storage: HostTensor, *_: Any) -> None:
        self.array = storage.array

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def copy_(self, other: HostTensor) -> None:
        """Nothing: both are one array."""


def triton_child(count: int) -> None:
    """Print Triton's times as JSON; runs with TRITON_INTERPRET=1."""
    import triton

    from benchmarks import triton_kernels

    print(json.dumps({"versions": f"Triton {triton.__version__}, numpy {np.__version__}",
                      **{k: measure(k, triton_kernels, HostTensor, count) for k in KERNELS}}))


def triton_times(python: Path | None, count: int) -> dict[str, Any]:
    """Triton's seconds per kernel; empty where there is no Triton."""
    if python is None:
        if not common.installed("triton"):
            return {}
        python = Path(sys.executable)
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([str(python), "-m", "benchmarks.interpreter", "--child", "--count",
                           str(count)], env=env, cwd=common.ROOT, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
        return {}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3, help="launches measured per kernel")
    parser.add_argument("--triton-python", type=Path, help="a Python that has Triton")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    common.add_output_flag(parser)
    flags = parser.parse_args()
    if flags.child:
        triton_child(flags.count)
        return
    modules = dict(zip(KERNELS, ("01_vector_add", "02_fused_softmax", "03_norms")))
    ours = {k: measure(k, common.load_example(modules[k]), lambda a: a, flags.count)
            for k in KERNELS}
    theirs = triton_times(flags.triton_python, flags.count)
    rows = [(k, f"{ours[k] * 1e3:.1f}", f"{theirs[k] * 1e3:.1f}" if k in theirs else "",
             f"{theirs[k] / ours[k]:.1f}" if k in theirs else "") for k in KERNELS]
    body = (f"Milliseconds a launch, medians of {flags.count}: add of {ADD_N} values, softmax and "
            f"layer norm of {ROWS} x {COLS}, float32, checked against float64. "
            f"{theirs.get('versions', 'No Triton')}.\n\n" +
            common.table(["kernel", "tilec", "Triton", "Triton / tilec"], rows))
    common.report("interpreter", "The interpreter", body, flags.output)


if __name__ == "__main__":
    main()
