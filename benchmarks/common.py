"""What the benchmarks share: the examples' kernels, interleaved GPU timing, result files."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import tilec

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
RESULTS = Path(__file__).resolve().parent / "results"

SPIN_CYCLES = 4_000_000  # about 2 ms: enough to queue a burst of launches behind
REST_S = 0.05


def load_example(name: str) -> ModuleType:
    """The module examples/<name>.py."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    key = "example_" + name
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, EXAMPLES / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    return sys.modules[key]


def installed(module: str) -> bool:
    """Whether `module` can be imported."""
    return importlib.util.find_spec(module) is not None


def torch_with_gpu() -> Any:
    """The torch module, with its CUDA context made; None without torch or a GPU."""
    if not installed("torch"):
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    return torch


# -- timing -------------------------------------------------------------------------------------

def time_bursts(torch: Any, contenders: dict[str, Callable[[int], Any]], calls: int = 20,
                reps: int = 15, rest: float = REST_S, seed: int = 0) -> dict[str, float]:
    """Median seconds per call of each contender on the GPU.

    A burst is `calls` calls between two CUDA events; the contenders take turns, in an order drawn
    anew for each round. The GPU spins until all calls of a burst are queued, so that no launch
    time is counted. Contenders get the number of the call, to rotate their arguments by.
    """
    order = list(contenders)
    shuffle = random.Random(seed).shuffle
    times: dict[str, list[float]] = {name: [] for name in order}
    for name in order:
        contenders[name](0)
    torch.cuda.synchronize()
    for _ in range(reps):
        shuffle(order)
        for name in order:
            if rest:
                time.sleep(rest)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(SPIN_CYCLES)
            begin.record()
            for i in range(calls):
                contenders[name](i)
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e-3 / calls)
    return {name: statistics.median(values) for name, values in times.items()}


def median_of(measure: Callable[[], float], count: int) -> float:
    """The median of `count` measurements."""
    return statistics.median(measure() for _ in range(count))


# -- results ------------------------------------------------------------------------------------

def versions() -> str:
    """One line on the software and hardware in use."""
    parts = [f"Python {platform.python_version()}, tilec {tilec.__version__}"]
    for name in ("torch", "triton", "numpy", "llvmlite"):
        try:
            parts.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join([*parts, machine()])


def machine() -> str:
    """The GPU and its driver, or the number of CPU cores where there is none."""
    try:
        query = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=30, check=True)
        name, driver = query.stdout.splitlines()[0].split(", ")
        return f"{name}, driver {driver}"
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return f"no GPU, {platform.machine()}"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def add_output_flag(parser: argparse.ArgumentParser) -> None:
    """--output: where the result file goes."""
    parser.add_argument("--output", type=Path, default=RESULTS,
                        help="folder of the result file (default: benchmarks/results)")


def gpu_parser(description: str | None) -> argparse.ArgumentParser:
    """Of a benchmark that needs a GPU: it takes --only and --output."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    add_output_flag(parser)
    return parser


def gpu_run(parser: argparse.ArgumentParser) -> tuple[Any, Any]:
    """(torch, flags); the process ends where there is no torch or no GPU."""
    flags = parser.parse_args()
    torch = torch_with_gpu()
    if torch is None:
        parser.exit(1, "this benchmark needs torch and a GPU\n")
    torch.manual_seed(0)
    return torch, flags


def report(name: str, title: str, body: str, folder: Path, suffix: str = "") -> None:
    """Print the result, and write it to <folder>/<date>-<name><suffix>.md, with the command that
    made it, the date and the versions."""
    date = time.strftime("%Y-%m-%d", time.gmtime())
    hidden = ("--output", "--triton-python")  # with the paths that follow them
    flags = " ".join(a for a in sys.argv[1:] if "/" not in a and a not in hidden)
    command = f"python -m benchmarks.{name} {flags}".rstrip()
    text = f"# {title}\n\n`{command}`, {date}. {versions()}.\n\n{body}\n"
    print(text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{date}-{name}{suffix}.md").write_text(text)
