"""The simulator's counters beside those of Nsight Compute, for the same launches.

Needs a GPU, torch, and `ncu` with access to the GPU's counters. Counts are of accesses, which the
cubin has as the PTX does; both are totals of one launch.
"""

from __future__ import annotations

import argparse
import csv
import io
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import tilec
import tilec.language as tl
from benchmarks import common

# (space, accesses, what) of ours, Nsight Compute's. It counts cp.async as loads.
METRICS: dict[tuple[str, tuple[str, ...], str], str] = {
    ("global", ("load", "copy"), "requests"): "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    ("global", ("load", "copy"), "sectors"): "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    ("global", ("store",), "requests"): "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    ("global", ("store",), "sectors"): "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    ("global", ("atomic",), "requests"): "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum",
    ("shared", ("load",), "wavefronts"): "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    ("shared", ("load",), "conflicts"): "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    ("shared", ("store",), "wavefronts"): "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    ("shared", ("store",), "conflicts"):
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
}
MATRIX = "smsp__inst_executed_pipe_tensor.sum"  # which counts others, too, in kernels without any


@tilec.jit
def columns(x_ptr, o_ptr, N: tl.constexpr):
    """A column of a matrix: a sector an element."""
    rows = tl.arange(0, N)
    tl.store(o_ptr + rows, tl.load(x_ptr + rows * 64))


@tilec.jit
def turned(x_ptr, o_ptr, N: tl.constexpr):
    """A transposition, through shared memory."""
    rows, cols = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(o_ptr + cols * N + rows, tl.load(x_ptr + rows * N + cols))


@tilec.jit
def counted(x_ptr, bins_ptr, B: tl.constexpr):
    """Atomics whose results nobody uses."""
    tl.atomic_add(bins_ptr + tl.load(x_ptr + tl.arange(0, B)), 1, sem="relaxed")


Call = tuple[Any, list[Any], tuple[int, ...], dict[str, Any]]  # kernel, arguments, grid, options


def cases() -> dict[str, Call]:
    """The launches, with arrays in host memory."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float16)

    add, softmax, matmul, attention = (common.load_example(name) for name in (
        "01_vector_add", "02_fused_softmax", "06_matmul", "07_attention"))
    n, d = 256, 64
    f32 = rng.standard_normal(10_001).astype(np.float32)
    product = {"ACTIVATION": matmul.identity, "ACC": tl.float32, "BM": 128, "BN": 128, "BK": 64,
               "GROUP": 8, "num_warps": 4, "num_stages": 3, "target": "sm_90"}
    return {
        "add": (add.add_kernel, [f32, f32, f32.copy(), f32.size], (10,), {"BLOCK": 1024}),
        "column": (columns, [normal(128, 64), normal(128)], (1,), {"N": 128}),
        "transposition": (turned, [normal(64, 64), normal(64, 64)], (1,), {"N": 64}),
        "histogram": (counted, [np.arange(512, dtype=np.int32) // 8, np.zeros(64, np.int32)], (1,),
                      {"B": 512}),
        "softmax": (softmax.softmax_kernel, [normal(16, 1000), normal(16, 1000), 1000, 1000, 1000],
                    (16,), {"BLOCK": 1024, "EVEN": False, "RELOAD": False}),
        "matmul": (matmul.matmul_kernel, [normal(n, n), normal(n, n), normal(n, n), n, n, n,
                                          n, 1, n, 1, n, 1], (4,), product),
        "attention": (attention.attention_kernel,
                      [*(normal(2, n, d) for _ in range(4)), n, d, n * d, 0.125], (2, 2),
                      {"BM": 128, "BN": 64, "D": d, "CAUSAL": True, "num_warps": 8,
                       "num_stages": 2})}


def launch_all() -> None:
    """What runs under ncu: each case once."""
    import torch
    for kernel, args, grid, options in cases().values():
        there = [torch.from_numpy(a).cuda() if isinstance(a, np.ndarray) else a for a in args]
        kernel[grid](*there, **options)
        torch.cuda.synchronize()


def measured(names: list[str]) -> list[dict[str, int]]:
    """The counters of each launch, in order, by ncu."""
    command = ["ncu", "--csv", "--page", "raw", "--target-processes", "all", "-k",
               f"regex:^({'|'.join(names)})", "--metrics", ",".join((*METRICS.values(), MATRIX)),
               sys.executable, "-m", "benchmarks.counters", "--child"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=common.ROOT, timeout=300)
    text = "\n".join(line for line in done.stdout.splitlines() if line.startswith('"'))
    rows = list(csv.DictReader(io.StringIO(text)))[1:]  # the first one has the units
    if len(rows) != len(names):
        sys.exit(f"ncu counted {len(rows)} launches of {len(names)}:\n{done.stdout[-2000:]}"
                 f"{done.stderr[-2000:]}")
    missing = {*METRICS.values(), MATRIX} - {*rows[0]}
    if missing:
        print("this ncu does not give", *sorted(missing), file=sys.stderr)
    wanted: Callable[[str], bool] = {*METRICS.values(), MATRIX}.__contains__
    return [{k: int(float(v.replace(",", ""))) for k, v in row.items() if wanted(k)}
            for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    common.add_output_flag(parser)
    flags = parser.parse_args()
    if shutil.which("ncu") is None or common.torch_with_gpu() is None:
        sys.exit("benchmarks.counters needs Nsight Compute (ncu), torch and a GPU")
    if flags.child:
        launch_all()
        return
    made = cases()
    rows = []
    for (name, (kernel, args, grid, options)), found in zip(
            made.items(), measured([kernel.name for kernel, *_ in made.values()]), strict=True):
        compiled = kernel.warmup(*args, grid=grid, **options)
        names = [p.name for p in kernel.params if not p.is_constexpr]
        counts = compiled.simulate(dict(zip(names, args, strict=True)), grid, check=False)
        pairs = [(f"{space} {' and '.join(of)} {what}", found.get(metric),
                  sum(counts.memory.get((space, one), {}).get(what, 0) for one in of))
                 for (space, of, what), metric in METRICS.items()]
        if matrix := counts.classes.get("matrix", 0):
            pairs.append(("matrix instructions", found.get(MATRIX), matrix))
        rows += [[name, what, ours, theirs, "" if ours == theirs else "differs"]
                 for what, theirs, ours in pairs if ours or theirs]
    body = "Totals of one launch.\n\n" + common.table(
        ["kernel", "count", "simulator", "ncu", ""], rows)
    common.report("counters", "The simulator's counters and Nsight Compute's", body, flags.output)


if __name__ == "__main__":
    main()
