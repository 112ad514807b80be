"""Host time of a launch: tilec's and Triton's add, beside torch.add. Needs a GPU and torch.

No synchronisation within a batch of calls; the kernel is shorter than its launch, so that the
queue never fills and only the host is timed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import common

N, BLOCK = 4096, 1024


def contenders(torch: Any) -> dict[str, Callable[[], Any]]:
    """What is called, by name; each is checked once."""
    x, y, out = (torch.randn(N, device="cuda") for _ in range(3))
    ours = common.load_example("01_vector_add").add_kernel
    grid = (N // BLOCK,)
    found: dict[str, Callable[[], Any]] = {
        "tilec add": lambda: ours[grid](x, y, out, N, BLOCK=BLOCK),
        "torch.add(out=)": lambda: torch.add(x, y, out=out),
    }
    if common.installed("triton"):
        from benchmarks.triton_kernels import add_kernel as theirs

        found["Triton add"] = lambda: theirs[grid](x, y, out, N, BLOCK=BLOCK)
    for name, call in found.items():
        out.fill_(float("nan"))
        call()
        assert torch.equal(out, x + y), name
    return found


def measure(torch: Any, calls: dict[str, Callable[[], Any]], batch: int, batches: int
            ) -> dict[str, float]:
    """Median microseconds a call; the contenders take turns."""
    order = list(calls)
    times: dict[str, list[float]] = {name: [] for name in order}
    shuffle = random.Random(0).shuffle
    for _ in range(batches):
        shuffle(order)
        for name in order:
            call = calls[name]
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(batch):
                call()
            times[name].append((time.perf_counter() - begin) * 1e6 / batch)
            torch.cuda.synchronize()
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=500, help="calls between synchronisations")
    parser.add_argument("--batches", type=int, default=40)
    common.add_output_flag(parser)
    flags = parser.parse_args()
    torch = common.torch_with_gpu()
    if torch is None:
        sys.exit("benchmarks.launch needs torch and a GPU")
    calls = contenders(torch)
    measure(torch, calls, flags.batch, 3)
    times = measure(torch, calls, flags.batch, flags.batches)
    base = times.get("Triton add", 0.0)
    rows = [(name, f"{t:.2f}", f"{t / base:.2f}" if base else "") for name, t in times.items()]
    body = ("3 pointers, 1 integer, 1 constexpr; no synchronisation within a batch; medians of "
            f"{flags.batches} batches of {flags.batch} calls.\n\n" +
            common.table(["call", "us", "/ Triton"], rows))
    common.report("launch", "Host time of a launch", body, flags.output)


if __name__ == "__main__":
    main()
