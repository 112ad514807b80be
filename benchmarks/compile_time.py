"""Time from nothing to a result: first launch, a new constexpr value, a hit in the disk cache, and
`import tilec`, beside Triton where it is installed.

On a GPU machine torch and the CUDA context are loaded before the clock starts, and a launch ends
when the GPU is done. Elsewhere kernels are compiled only, for sm_90a.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks import common

COLS = 4096
ADD_N = 1 << 20
# The constexprs of the first launch, and those of the launch after it.
CONSTEXPRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "add": ({"BLOCK": 1024}, {"BLOCK": 2048}),
    f"softmax {COLS}": ({"BLOCK": COLS, "EVEN": True, "RELOAD": False},
                        {"BLOCK": COLS, "EVEN": False, "RELOAD": False}),
}
Step = Callable[[dict[str, Any]], Any]


# -- in the child: one process, two measurements -------------------------------------------------

def tilec_step(kernel: str, torch: Any) -> Step:
    """Function of the constexprs: compile `kernel` for them, and launch it where a GPU is."""
    module = common.load_example("01_vector_add" if kernel == "add" else "02_fused_softmax")
    fn = module.add_kernel if kernel == "add" else module.softmax_kernel
    args = arguments(kernel, torch)
    if torch is None:
        return lambda constexprs: fn.warmup(*args, **constexprs, grid=(1,))
    return lambda constexprs: fn[grid(kernel, constexprs)](*args, **constexprs)


def triton_step(kernel: str, torch: Any) -> Step:
    """The same for Triton's twin."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from benchmarks import triton_kernels

    fn = triton_kernels.add_kernel if kernel == "add" else triton_kernels.softmax_kernel
    args = arguments(kernel, torch)
    pointers, element = (3, "*fp32") if kernel == "add" else (2, "*bf16")

    def compile_only(constexprs: dict[str, Any]) -> None:
        signature = {p: element if i < pointers else "constexpr" if p in constexprs else "i32"
                     for i, p in enumerate(fn.arg_names)}
        aligned = {(i,): [["tt.divisibility", 16]] for i, t in enumerate(signature.values())
                   if t != "constexpr"}
        triton.compile(ASTSource(fn, signature, constexprs, aligned),
                       target=GPUTarget("cuda", 90, 32))

    if torch is None:
        return compile_only
    return lambda constexprs: fn[grid(kernel, constexprs)](*args, **constexprs)


def arguments(kernel: str, torch: Any) -> tuple[Any, ...]:
    """The run-time arguments."""
    if torch is None:
        import ml_dtypes
        import numpy as np

        dtype = np.float32 if kernel == "add" else ml_dtypes.bfloat16
        arrays: list[Any] = [np.zeros(64, dtype) for _ in range(3)]
    elif kernel == "add":
        arrays = [torch.zeros(ADD_N, device="cuda") for _ in range(3)]
    else:
        arrays = [torch.zeros(64, COLS, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    return (*arrays, ADD_N) if kernel == "add" else (*arrays[:2], COLS, COLS, COLS)


def grid(kernel: str, constexprs: dict[str, Any]) -> tuple[int]:
    return (ADD_N // constexprs["BLOCK"] if kernel == "add" else 64,)


def child(who: str, kernel: str) -> None:
    """Print two times in ms: imports and first launch; a launch with a new constexpr value."""
    torch = common.torch_with_gpu()
    arguments(kernel, torch)  # what arrays need is loaded before the clock starts
    step: Step | None = None
    times = []
    for constexprs in CONSTEXPRS[kernel]:
        if torch is not None:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        if step is None:
            step = (tilec_step if who == "tilec" else triton_step)(kernel, torch)
        step(constexprs)
        if torch is not None:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    print(json.dumps(times))


# -- in the parent -------------------------------------------------------------------------------

def environment() -> dict[str, str]:
    """The children's: modules come as byte code, as installed packages do, and are found where
    this process finds them."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return env | {"PYTHONPATH": os.pathsep.join([str(common.ROOT), *sys.path[1:]])}


def run_child(who: str, kernel: str, cache: str) -> tuple[float, float]:
    """The times of `child` in a fresh process with this disk cache."""
    env = environment() | {"TILEC_CACHE_DIR": cache, "TRITON_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, "-m", "benchmarks.compile_time", "--child", who, kernel],
                          capture_output=True, text=True, env=env, cwd=common.ROOT, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{who}, {kernel}:\n{done.stderr[-2000:]}")
    first, warm = json.loads(done.stdout.splitlines()[-1])
    return first, warm


def write_byte_code(contenders: list[str]) -> None:
    """One round of children that is not measured."""
    for who in contenders:
        with tempfile.TemporaryDirectory() as cache:
            run_child(who, next(iter(CONSTEXPRS)), cache)


def measure(kernel: str, contenders: list[str], count: int) -> dict[str, dict[str, float]]:
    """Medians of `count` in ms for each contender: cold, warm, hit. They take turns; one that
    fails is left out, with its error on stderr."""
    times: dict[str, dict[str, list[float]]] = {
        who: {"cold": [], "warm": [], "hit": []} for who in contenders}
    for _ in range(count):
        for who in list(times):
            try:
                with tempfile.TemporaryDirectory() as cache:
                    first, warm = run_child(who, kernel, cache)
                    hit = run_child(who, kernel, cache)[0]
            except (RuntimeError, subprocess.SubprocessError) as e:
                print(e, file=sys.stderr)
                del times[who]
                continue
            for key, value in (("cold", first), ("warm", warm), ("hit", hit)):
                times[who][key].append(value)
    return {who: {key: statistics.median(values) for key, values in found.items()}
            for who, found in times.items()}


def process_ms(code: str) -> float:
    """How long a fresh Python takes for `code`."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=common.ROOT, env=environment())
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3, help="measurements per figure")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    common.add_output_flag(parser)
    flags = parser.parse_args()
    if flags.child:
        child(*flags.child)
        return
    contenders = ["tilec"] + (["triton"] if common.installed("triton") else [])
    write_byte_code(contenders)
    rows = []
    for kernel in CONSTEXPRS:
        found = measure(kernel, contenders, flags.count)
        print(kernel, found, flush=True)
        for key, what in (("cold", "fresh process, cold cache"),
                          ("warm", "warm process, new constexpr value"),
                          ("hit", "fresh process, disk-cache hit")):
            ours, theirs = (found.get(who, {}).get(key) for who in ("tilec", "triton"))
            rows.append((kernel, what, *(f"{v:.0f}" if v else "" for v in (ours, theirs)),
                         f"{ours / theirs:.2f}" if ours and theirs else ""))
    for line in ("import tilec", "import tilec, tilec.language"):
        more = common.median_of(lambda code=line: process_ms(code) - process_ms("pass"), 9)
        rows.append((f"`{line}`", "more than Python itself", f"{more:.0f}", "", ""))
    gpu = common.torch_with_gpu() is not None
    where = "torch and the CUDA context are loaded before the clock starts; imports count, and a " \
        "launch ends when the GPU is done" if gpu else \
        "compiled for sm_90a, not launched; imports count"
    body = f"Milliseconds, medians of {flags.count}; {where}.\n\n" + common.table(
        ["kernel", "what", "tilec", "Triton", "tilec / Triton"], rows)
    common.report("compile_time", "Compile time", body, flags.output, "" if gpu else "-cpu")


if __name__ == "__main__":
    main()
