"""`do_bench`: how long a function's work takes on the GPU, by CUDA events."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tilec.errors import TilecError, ToolError, did_you_mean
from tilec.runtime import device

MODES: dict[str, Callable[[list[float]], Any]] = {
    "median": statistics.median, "mean": statistics.fmean, "min": min, "max": max, "all": list}
MOST_RUNS = 10_000  # of a function that does next to nothing


def do_bench(fn: Callable[[], Any], warmup: float = 25, rep: float = 100,
             grad_to_none: Sequence[Any] | None = None,
             quantiles: Sequence[float] | None = None, return_mode: str = "median", *,
             before: Callable[[], Any] | None = None, after: Callable[[], Any] | None = None,
             stream: int | None = None, index: int | None = None) -> Any:
    """Milliseconds that the GPU spends on what `fn` puts into the current stream.

    warmup, rep: about how many milliseconds to warm up and to measure for. grad_to_none: tensors
    whose `grad` is dropped before each run. quantiles: such as (0.5, 0.2, 0.8): gives a list of
    them, a number for one. return_mode: "median", "mean", "min", "max", "all". before, after:
    called before and after each run, not timed. stream, index: the raw stream and the device, if
    not the current ones. The L2 cache is overwritten before each run. DriverError without a GPU.
    """
    if return_mode not in MODES:
        raise TilecError(f"return_mode is {return_mode!r}, expected {', '.join(MODES)}", None,
                         did_you_mean(return_mode, MODES))
    for q in quantiles or ():
        if not 0 <= q <= 1:
            raise TilecError(f"a quantile is {q!r}, expected 0 to 1")
    where = device.current_device() if index is None else index
    queue = device.current_stream(where) if stream is None else stream
    # Twice the cache's size, since what replaces a line is not always the oldest.
    with device.DeviceBuffer(2 * device.l2_bytes(where), where) as flush:

        def measure(count: int) -> list[float]:
            pairs = [(device.Event(), device.Event()) for _ in range(count)]
            for begin, end in pairs:
                for x in grad_to_none or ():
                    x.grad = None
                if before is not None:
                    before()
                device.zero(flush.pointer, flush.nbytes, queue)
                begin.record(queue)
                fn()
                end.record(queue)
                if after is not None:
                    after()
            device.synchronize(where)
            return [end.since(begin) for begin, end in pairs]

        measure(1)  # compiles and loads what is not there yet
        once = max(statistics.median(measure(5)), 1e-6)
        measure(_count(warmup, once))
        times = measure(_count(rep, once))
    return _summary(times, quantiles, return_mode)


def do_bench_cudagraph(fn: Callable[[], Any], rep: float = 20,
                       grad_to_none: Sequence[Any] | None = None,
                       quantiles: Sequence[float] | None = None, return_mode: str = "median"
                       ) -> Any:
    """Like `do_bench`, of what torch captures of `fn` in a CUDA graph, so that launches cost next
    to nothing; rep: about how many milliseconds one replay is to take. ToolError without torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise ToolError("CUDA graphs are torch's here, and it is not loaded", None,
                        "import torch, or use tilec.testing.do_bench")
    with torch.cuda.stream(torch.cuda.Stream()):
        fn()  # compiles and loads what is not there yet
        for x in grad_to_none or ():
            x.grad = None
        count = _count(rep, max(do_bench(fn, 0, 0), 1e-6))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            for _ in range(count):
                for x in grad_to_none or ():
                    x.grad = None
                fn()
        replays = do_bench(graph.replay, 0, 10 * rep, return_mode="all")
    return _summary([t / count for t in replays], quantiles, return_mode)


def _summary(times: list[float], quantiles: Sequence[float] | None, return_mode: str) -> Any:
    if quantiles is None:
        return MODES[return_mode](times)
    found = [_quantile(sorted(times), q) for q in quantiles]
    return found[0] if len(found) == 1 else found


def _count(milliseconds: float, once: float) -> int:
    return min(MOST_RUNS, max(1, int(milliseconds / once)))


def _quantile(ordered: Sequence[float], q: float) -> float:
    """The value at a fraction `q` of sorted values, linear between them."""
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
