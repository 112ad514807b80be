"""Time from nothing to a result: first launch, a new constexpr value, a hit in the disk cache, and
`import tilec`, beside Triton where it is installed; and to the verdict that a kernel is too large.

On a GPU machine torch and the CUDA context are loaded before the clock starts, and a launch ends
when the GPU is done. Elsewhere kernels are compiled only, for sm_90a.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import tilec
from benchmarks import common

N, COLS, ROWS = 1 << 20, 4096, 64  # of add; of softmax
SIZE = 2048  # of the matrix product
HEADS, CONTEXT, DIM = 4, 1024, 128
Step = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Case:
    """A kernel of examples/<example>.py that has a twin in triton_kernels: of the same name, or
    called `twin`.

    dtype, shapes: of the arrays it takes, and `scalars` follow. other: dtypes of the arrays that
    have another. order: of tilec's arrays; the twin takes the first `twin_takes`. then: tilec's
    second kernel, where the twin does all in one. ours: arguments that the twin does without.
    constexprs: those of the first launch, and those of the launch after it, if there is one.
    programs: the number of programs for given constexprs. too_large: constexprs that take more
    shared memory than there is. described: of a kernel that takes descriptors of the first arrays,
    their blocks, and what it takes for scalars and constexprs.
    """

    example: str
    kernel: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    scalars: tuple[int | float, ...]
    constexprs: tuple[dict[str, Any], ...]
    programs: Callable[[dict[str, Any]], tuple[int, ...]]
    options: dict[str, int] = field(default_factory=dict)
    ours: Callable[[Any], tuple[tuple[int | float, ...], dict[str, Any]]] | None = None
    too_large: dict[str, Any] = field(default_factory=dict)
    described: tuple[tuple[tuple[int, ...], ...], tuple[int | float, ...],
                     tuple[dict[str, Any], ...]] | None = None
    own_options: dict[str, int] = field(default_factory=dict)  # tilec's, beside or instead
    twin: str = ""
    other: dict[int, str] = field(default_factory=dict)
    order: tuple[int, ...] = ()
    twin_takes: int | None = None
    then: Case | None = None

    def dtype_of(self, index: int) -> str:
        """The dtype of an array."""
        return self.other.get(index, self.dtype)


def matmul_arguments(example: Any) -> tuple[tuple[int | float, ...], dict[str, Any]]:
    """tilec's kernel takes all strides, an activation and a type to sum in."""
    return (SIZE, SIZE, SIZE, *(SIZE, 1) * 3), {"ACTIVATION": example.identity,
                                                "ACC": example.tl.float32}


def descriptor_attention(dim: int, step: int, stages: int, roles: bool) -> Case:
    """step: keys at a time. roles: warps of their own load."""
    arrays = (HEADS, CONTEXT, dim)
    both = {"BM": 128, "BN": step, "D": dim, "CAUSAL": True}
    return Case(
        "11_descriptor_attention", "attention_kernel", "bfloat16", (arrays,) * 4,
        (CONTEXT, dim, CONTEXT * dim, 0.125), (both, both | {"CAUSAL": False}),
        lambda c: (CONTEXT // 128, HEADS), {"num_warps": 8, "num_stages": stages},
        described=(((1, 128, dim), *((1, step, dim),) * 2, (1, 128, dim)), (0.125,), tuple(
            {"SHARED": 1, "CAUSAL": causal, "WS": roles} for causal in (True, False))))


def descriptor_gradients(roles: bool) -> Case:
    """Both kernels."""
    arrays, both = (HEADS, CONTEXT, DIM), {"SIDE": 128, "STEP": 32, "D": DIM}

    def case(kernel: str, order: tuple[int, ...], rows: tuple[int, ...], **more: Any) -> Case:
        return Case(
            "11_descriptor_attention", kernel, "bfloat16",
            (*(arrays,) * 4, *((HEADS, CONTEXT),) * 2, *(arrays,) * 3), (CONTEXT, DIM, 0.125),
            tuple(both | {"CAUSAL": causal} for causal in (True, False)),
            lambda c: (CONTEXT // 128, HEADS), {"num_warps": 8, "num_stages": 3},
            described=(tuple((1, n, DIM) for n in rows), (0.125,), tuple(
                {"SHARED": 1, "CAUSAL": causal, "WS": roles} for causal in (True, False))),
            twin="attention_gradients_kernel", other={4: "float32", 5: "float32"}, order=order,
            **more)

    return case("grad_queries_kernel", (0, 1, 2, 3, 6, 4, 5), (128, 64, 64, 128, 128), then=case(
        "grad_keys_values_kernel", (0, 1, 2, 3, 7, 8, 4, 5), (64, 128, 128, 64, 128, 128)))


def long_rows(kernel: str, arrays: int, vectors: dict[int, str], scalars: tuple[float, ...],
              more: dict[str, Any]) -> Case:
    """Kernels of example 13 whose twin is of the same kind. vectors: dtypes of the arrays, by their
    places, that have an element a row."""
    shapes = tuple((ROWS,) if i in vectors else (ROWS, 32768) for i in range(arrays))
    both = LONG | more
    return Case(
        "13_long_rows", f"{kernel}_kernel", "bfloat16", shapes, scalars, (both, both | {"PER": 4}),
        lambda c: (ROWS,), {"num_warps": 16, "maxnreg": 64},
        lambda example: (scalars, {"X": (32768, 1), "OUT": (32768, 1)}
                         | ({"IGNORE": -100} if more else {})),
        twin={"softmax": "long_softmax_kernel"}.get(kernel, ""), other=vectors)


MATMUL = {"BM": 128, "BN": 128, "BK": 64, "GROUP": 8}
WIDE = MATMUL | {"BN": 256}
ATTENTION = {"BM": 128, "BN": 64, "D": DIM, "CAUSAL": True}
FP8 = WIDE | {"BK": 128}
LONG = {"N": 32768, "PER": 8, "WIDTH": 4096}
CASES = {
    "add": Case("01_vector_add", "add_kernel", "float32", ((N,),) * 3, (N,),
                ({"BLOCK": 1024}, {"BLOCK": 2048}), lambda c: (N // c["BLOCK"],)),
    f"softmax {COLS}": Case(
        "02_fused_softmax", "softmax_kernel", "bfloat16", ((ROWS, COLS),) * 2, (COLS,) * 3,
        ({"BLOCK": COLS, "EVEN": True, "RELOAD": False},
         {"BLOCK": COLS, "EVEN": False, "RELOAD": False}), lambda c: (ROWS,)),
    "matmul 128x128x64": Case(
        "06_matmul", "matmul_kernel", "bfloat16", ((SIZE, SIZE),) * 3, (SIZE,) * 6,
        (MATMUL, MATMUL | {"GROUP": 4}), lambda c: ((SIZE // 128) ** 2,),
        {"num_warps": 8, "num_stages": 3}, matmul_arguments,
        MATMUL | {"BM": 256, "BN": 256, "BK": 128}),
    "attention 128x64x128 causal": Case(
        "07_attention", "attention_kernel", "bfloat16", ((HEADS, CONTEXT, DIM),) * 4,
        (CONTEXT, DIM, CONTEXT * DIM, 0.125), (ATTENTION, ATTENTION | {"BN": 32}),
        lambda c: (CONTEXT // c["BM"], HEADS), {"num_warps": 8, "num_stages": 3},
        too_large=ATTENTION | {"BM": 256, "BN": 256}),
    "descriptor matmul 128x256x64": Case(
        "09_descriptor_matmul", "matmul_kernel", "bfloat16", ((SIZE, SIZE),) * 3, (SIZE,) * 6,
        (WIDE, WIDE | {"GROUP": 4}), lambda c: (132,), {"num_warps": 8, "num_stages": 3},
        described=(((128, 64), (64, 256), (128, 256)), (), ({"GROUP": 8}, {"GROUP": 4}))),
    "descriptor attention 128x128x128 causal": descriptor_attention(DIM, 128, 2, False),
    "descriptor attention 128x128x128 causal, by roles": descriptor_attention(DIM, 128, 2, True),
    "descriptor attention 128x64x64 causal": descriptor_attention(64, 64, 4, False),
    "descriptor attention 128x64x256 causal": descriptor_attention(256, 64, 2, False),
    "descriptor gradients, two kernels, causal": descriptor_gradients(False),
    "descriptor gradients, two kernels, causal, by roles": descriptor_gradients(True),
    "explicit matmul 128x256x64": Case(
        "10_explicit_matmul", "matmul_kernel", "bfloat16", ((SIZE, SIZE),) * 3, (SIZE,) * 6,
        (WIDE, WIDE | {"GROUP": 4}), lambda c: (128,), {"num_warps": 8, "num_stages": 3},
        described=(((128, 64), (64, 256), (64, 128)), (),
                   ({"GROUP": 8, "STAGES": 4}, {"GROUP": 4, "STAGES": 4}))),
    "explicit attention 128x128x128 causal": Case(
        "14_explicit_attention", "by_roles_kernel", "bfloat16", ((HEADS, CONTEXT, DIM),) * 4,
        (CONTEXT, DIM, CONTEXT * DIM, 0.125),
        (ATTENTION | {"BN": 128}, ATTENTION | {"BN": 128, "CAUSAL": False}),
        lambda c: (CONTEXT // 128, HEADS), {"num_warps": 8, "num_stages": 2},
        described=((*((1, 128, DIM),) * 3, (1, 64, DIM)), (0.125,), tuple(
            {"SHARED": 1, "CAUSAL": causal, "GROUP": 8, "WARPS": (8, 4), "REGISTERS": (240, 24)}
            for causal in (True, False))),
        own_options={"num_warps": 12}, twin="attention_kernel"),
    "explicit gradients 64x128x128 causal": Case(
        "15_explicit_gradients", "gradients_kernel", "bfloat16",
        (*((HEADS, CONTEXT, DIM),) * 4, *((HEADS, CONTEXT),) * 2, *((HEADS, CONTEXT, DIM),) * 4),
        (CONTEXT, DIM, 0.125),
        ({"SIDE": 128, "STEP": 32, "D": DIM, "CAUSAL": True},
         {"SIDE": 128, "STEP": 32, "D": DIM, "CAUSAL": False}),
        lambda c: (CONTEXT // 128, HEADS), {"num_warps": 8, "num_stages": 3},
        described=(((1, 64, DIM), *((1, 128, DIM),) * 2, *((1, 64, DIM),) * 2,
                    *((1, 128, DIM),) * 2, *((1, 64),) * 2), (0.125,), tuple(
            {"SHARED": 1, "CAUSAL": causal, "STAGES": 3} for causal in (True, False))),
        twin="attention_gradients_kernel", twin_takes=9,
        other=dict.fromkeys((4, 5, 9), "float32"), order=(0, 1, 2, 3, 9, 7, 8, 4, 5)),
    "fp8 matmul 128x256x128": Case(
        "12_fp8_matmul", "fp8_matmul_kernel", "float8_e4m3fn", (*((SIZE, SIZE),) * 3, (1,), (1,)),
        (SIZE,) * 6, (FP8, FP8 | {"GROUP": 4}), lambda c: (128,),
        {"num_warps": 8, "num_stages": 3}, twin="matmul_kernel", twin_takes=3,
        other={2: "bfloat16", 3: "float32", 4: "float32"},
        described=(((128, 128), (256, 128), (128, 256)), (), ({"GROUP": 8}, {"GROUP": 4}))),
    "decode 16x64x128": Case(
        "09_descriptor_matmul", "decode_kernel", "bfloat16", ((16, SIZE), (SIZE, SIZE), (16, SIZE)),
        (16, SIZE, SIZE, SIZE, SIZE, SIZE), ({"BM": 16, "BN": 64, "BK": 128, "GROUP": 8},),
        lambda c: (SIZE // 64,), {"num_warps": 4, "num_stages": 5}, twin="matmul_kernel",
        described=(((16, 128), (128, 64), (16, 64)), (), ({},))),
    "long softmax 32768": long_rows("softmax", 2, {}, (), {}),
    "long cross-entropy 32768": long_rows(
        "cross_entropy", 4, {1: "int64", 2: "float32"}, (1.0,), {"GRAD": False}),
}


# -- in the child: one process, two measurements -------------------------------------------------

def tilec_step(case: Case, torch: Any) -> Step:
    """Function of the constexprs: compile the kernels for them, and launch them where a GPU is."""
    steps = [kernel_step(x, torch) for x in (case, case.then) if x is not None]
    return lambda constexprs: [step(constexprs) for step in steps]


def kernel_step(case: Case, torch: Any) -> Step:
    """The same for the first kernel."""
    example = common.load_example(case.example)
    fn = getattr(example, case.kernel)
    scalars, more = case.ours(example) if case.ours else (case.scalars, {})
    args: list[Any] = arrays(case, torch)
    given = more | case.options | case.own_options
    args = [args[i] for i in case.order] or args
    own = dict(zip(map(str, case.constexprs), case.constexprs, strict=True))
    if case.described:
        blocks, scalars, mine = case.described
        shapes = [case.shapes[i] for i in case.order] or case.shapes
        args[:len(blocks)] = [tilec.TensorDescriptor(x, shape, strides_of(shape), block)
                              for x, shape, block in zip(args, shapes, blocks)]
        own = dict(zip(own, mine, strict=True))
    args += scalars
    if torch is None:
        return lambda constexprs: fn.warmup(*args, **own.get(str(constexprs), constexprs), **given,
                                            grid=(1,))
    return lambda constexprs: fn[case.programs(constexprs)](
        *args, **own.get(str(constexprs), constexprs), **given)


def strides_of(shape: tuple[int, ...]) -> list[int]:
    """Those of a contiguous array."""
    return [math.prod(shape[i + 1:]) for i in range(len(shape))]


def triton_step(case: Case, torch: Any) -> Step:
    """The same for Triton's twin."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from benchmarks import triton_kernels

    fn = getattr(triton_kernels, case.twin or case.kernel)
    taken = range(len(case.shapes))[:case.twin_takes]
    args = (*arrays(case, torch)[:len(taken)], *case.scalars)
    names = {"float32": "*fp32", "bfloat16": "*bf16", "float8_e4m3fn": "*fp8e4nv", "int64": "*i64"}
    elements = [names[case.dtype_of(i)] for i in taken]

    def compile_only(constexprs: dict[str, Any]) -> None:
        types = elements + ["fp32" if isinstance(x, float) else "i32" for x in case.scalars]
        signature = dict(zip(fn.arg_names, types)) | dict.fromkeys(constexprs, "constexpr")
        aligned = {(i,): [["tt.divisibility", 16]] for i, t in enumerate(signature.values())
                   if t not in ("constexpr", "fp32")}
        triton.compile(ASTSource(fn, signature, constexprs, aligned), options=dict(case.options),
                       target=GPUTarget("cuda", 90, 32))

    if torch is None:
        return compile_only
    return lambda constexprs: fn[case.programs(constexprs)](*args, **constexprs, **case.options)


def arrays(case: Case, torch: Any) -> list[Any]:
    """The array arguments. Where nothing is launched only their types matter."""
    if torch is not None:
        return [torch.zeros(shape, device="cuda", dtype=getattr(torch, case.dtype_of(i)))
                for i, shape in enumerate(case.shapes)]
    import ml_dtypes
    import numpy as np

    names = [case.dtype_of(i) for i in range(len(case.shapes))]
    return [np.zeros(64, np.dtype(getattr(ml_dtypes, name, name))) for name in names]


def child(who: str, kernel: str) -> None:
    """Print times in ms: imports and first launch; a launch with a new constexpr value; tilec's
    refusal of a kernel that is too large, if the case has one."""
    torch = common.torch_with_gpu()
    case = CASES[kernel]
    arrays(case, torch)  # what arrays need is loaded before the clock starts
    step: Step | None = None
    times = []
    for constexprs in case.constexprs:
        if torch is not None:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        if step is None:
            step = (tilec_step if who == "tilec" else triton_step)(case, torch)
        step(constexprs)
        if torch is not None:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    if who == "tilec" and case.too_large and step is not None:
        begin = time.perf_counter()
        try:
            step(case.too_large)
        except common.tilec.OutOfResources:
            times.append((time.perf_counter() - begin) * 1e3)
        else:
            raise AssertionError(f"{case.too_large} fit")
    print(json.dumps(times))


# -- in the parent -------------------------------------------------------------------------------

def environment() -> dict[str, str]:
    """The children's: modules come as byte code, as installed packages do, and are found where
    this process finds them."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return env | {"PYTHONPATH": os.pathsep.join([str(common.ROOT), *sys.path[1:]])}


def run_child(who: str, kernel: str, cache: str) -> list[float]:
    """The times of `child` in a fresh process with this disk cache."""
    env = environment() | {"TILEC_CACHE_DIR": cache, "TRITON_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, "-m", "benchmarks.compile_time", "--child", who, kernel],
                          capture_output=True, text=True, env=env, cwd=common.ROOT, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{who}, {kernel}:\n{done.stderr[-2000:]}")
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times


def write_byte_code(contenders: list[str]) -> None:
    """One round of children that is not measured."""
    for who in contenders:
        with tempfile.TemporaryDirectory() as cache:
            run_child(who, next(iter(CASES)), cache)


def measure(kernel: str, contenders: list[str], count: int, hits: bool
            ) -> dict[str, dict[str, float]]:
    """Medians of `count` in ms for each contender: cold, warm, hit if `hits` and, where it is
    measured, verdict. They take turns; one that fails is left out, with its error on stderr."""
    times: dict[str, dict[str, list[float]]] = {who: {} for who in contenders}
    for _ in range(count):
        for who in list(times):
            try:
                with tempfile.TemporaryDirectory() as cache:
                    found = dict(zip(("cold", "warm", "verdict"), run_child(who, kernel, cache)))
                    if hits:
                        found["hit"] = run_child(who, kernel, cache)[0]
            except (RuntimeError, subprocess.SubprocessError) as e:
                print(e, file=sys.stderr)
                del times[who]
                continue
            for key, value in found.items():
                times[who].setdefault(key, []).append(value)
    return {who: {key: statistics.median(values) for key, values in by_key.items()}
            for who, by_key in times.items()}


def process_ms(code: str) -> float:
    """How long a fresh Python takes for `code`."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=common.ROOT, env=environment())
    return (time.perf_counter() - begin) * 1e3


def rows_of(kernel: str, found: dict[str, dict[str, float]]) -> list[tuple[str, ...]]:
    """The table's rows of what `measure` found."""
    rows = []
    for key, what in (("cold", "fresh process, cold cache"),
                      ("warm", "warm process, new constexpr value"),
                      ("hit", "fresh process, disk-cache hit"),
                      ("verdict", "warm process, OutOfResources for larger tiles")):
        ours, theirs = (found.get(who, {}).get(key) for who in ("tilec", "triton"))
        if ours or theirs:
            rows.append((kernel, what, *(f"{v:.0f}" if v else "" for v in (ours, theirs)),
                         f"{ours / theirs:.2f}" if ours and theirs else ""))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    parser.add_argument("--count", type=int, default=3, help="measurements per figure")
    parser.add_argument("--jobs", type=int, default=1, help="kernels measured at a time")
    parser.add_argument("--no-hits", action="store_true", help="leave out hits in the disk cache")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    common.add_output_flag(parser)
    flags = parser.parse_args()
    if flags.child:
        child(*flags.child)
        return
    contenders = ["tilec"] + (["triton"] if common.installed("triton") else [])
    write_byte_code(contenders)
    rows: list[tuple[str, ...]] = []
    names = [name for name in CASES if flags.only in name]
    with ThreadPoolExecutor(flags.jobs) as pool:
        for kernel, found in zip(names, pool.map(
                lambda name: measure(name, contenders, flags.count, not flags.no_hits), names)):
            print(kernel, found, flush=True)
            rows += rows_of(kernel, found)
    for line in ("import tilec", "import tilec, tilec.language"):
        more = common.median_of(lambda code=line: process_ms(code) - process_ms("pass"), 9)
        rows.append((f"`{line}`", "more than Python itself", f"{more:.0f}", "", ""))
    gpu = common.torch_with_gpu() is not None
    where = "torch and the CUDA context are loaded before the clock starts; imports count, and a " \
        "launch ends when the GPU is done" if gpu else \
        "compiled for sm_90a, not launched; imports count"
    at_once = f"; {flags.jobs} kernels at a time on {os.cpu_count()} cores" * (flags.jobs > 1)
    body = f"Milliseconds, medians of {flags.count}; {where}{at_once}.\n\n" + common.table(
        ["kernel", "what", "tilec", "Triton", "tilec / Triton"], rows)
    common.report("compile_time", "Compile time", body, flags.output, "" if gpu else "-cpu")


if __name__ == "__main__":
    main()
