"""Matrix product and attention on mma.sync beside cuBLAS, Triton and FlashAttention-2: TFLOP/s, and
ratios. Needs a GPU of sm_90 and torch.

tilec compiles for sm_90, which has no wgmma; benchmarks/hopper.py measures that.

Every contender is checked against torch on poisoned outputs first; then each family's options are
swept, and its best one takes part in the interleaved measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tilec
from benchmarks import common
from benchmarks.memory_bound import Case, best_options, triton_kernels

TARGET = "sm_90"
# (tile, warps, stages)
MATMUL = (((128, 128, 32), 4, 4), ((128, 128, 64), 4, 3), ((128, 128, 32), 4, 3),
          ((128, 256, 32), 8, 3), ((128, 256, 64), 8, 3), ((256, 128, 64), 8, 3))
TRITON_MATMUL = (((128, 256, 64), 8, 4), ((128, 256, 64), 8, 3), ((128, 128, 64), 4, 4))
ATTENTION = (((128, 64), 8, 2), ((64, 64), 4, 2), ((128, 64), 8, 3), ((128, 128), 8, 2))
TRITON_ATTENTION = (((128, 64), 4, 2), ((128, 64), 8, 3), ((128, 128), 8, 2))


def near(torch: Any, expected: Any, tolerance: float) -> Callable[[Any], bool]:
    """Whether the relative error, in the 2-norm, is below the tolerance; NaN is not."""
    def verify(got: Any) -> bool:
        error = (got.float() - expected).norm() / expected.norm()
        return bool(error < tolerance)
    return verify


def matmul_case(torch: Any, n: int) -> Case:
    example, twin = common.load_example("06_matmul"), triton_kernels()
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    case = Case(f"matmul bf16 {n}", 2 * n**3, lambda: c.fill_(math.nan),
                near(torch, a.float() @ b.float(), 5e-3))

    def ours(block: tuple[int, int, int], warps: int, stages: int) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            example.matmul(a, b, c, block=block, num_warps=warps, num_stages=stages)
            return c
        return launch

    def theirs(block: tuple[int, int, int], warps: int, stages: int) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            twin.matmul(a, b, c, block, warps, stages)
            return c
        return launch

    case.run["tilec"] = {f"{b}, {w} warps, {s} stages": ours(b, w, s) for b, w, s in MATMUL}
    if twin is not None:
        case.run["Triton"] = {f"{b}, {w} warps, {s} stages": theirs(b, w, s)
                              for b, w, s in TRITON_MATMUL}
    case.run["cuBLAS"] = {"": lambda _: torch.matmul(a, b, out=c)}
    return case


def attention_case(torch: Any, causal: bool, heads: int = 128, n: int = 4096, d: int = 128) -> Case:
    example, twin = common.load_example("07_attention"), triton_kernels()
    q, k, v = (torch.randn(heads, n, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out = torch.empty_like(q)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    few = [x[None, :4].float() for x in (q, k, v)]
    expected = sdpa(*few, is_causal=causal)[0]
    flops = 4 * heads * n * n * d // (2 if causal else 1)
    case = Case(f"attention bf16 {heads}x{n}x{d}{' causal' * causal}", flops,
                lambda: out.fill_(math.nan), lambda got: near(torch, expected, 1e-2)(got[:4]))

    def ours(block: tuple[int, int], warps: int, stages: int) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            example.attention(q, k, v, out, causal, block, warps, stages)
            return out
        return launch

    def theirs(block: tuple[int, int], warps: int, stages: int) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            twin.attention(q, k, v, out, causal, block, warps, stages)
            return out
        return launch

    def by_torch(backend: Any) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            with torch.nn.attention.sdpa_kernel(backend):
                return sdpa(q[None], k[None], v[None], is_causal=causal)[0]
        return launch

    backends = torch.nn.attention.SDPBackend
    case.run["tilec"] = {f"{b}, {w} warps, {s} stages": ours(b, w, s) for b, w, s in ATTENTION}
    if twin is not None:
        case.run["Triton"] = {f"{b}, {w} warps, {s} stages": theirs(b, w, s)
                              for b, w, s in TRITON_ATTENTION}
    case.run["FlashAttention-2"] = {"": by_torch(backends.FLASH_ATTENTION)}
    case.run["cuDNN"] = {"": by_torch(backends.CUDNN_ATTENTION)}
    return case


FAMILIES = ("cuBLAS", "FlashAttention-2", "cuDNN", "Triton", "tilec")


def row_of(case: Case, seconds: dict[str, float], chosen: dict[str, Any]) -> list[str]:
    """One line of the table: rates, then tilec's ratio to each peer."""
    rate = {f: case.traffic / t / 1e12 for f, t in seconds.items()}
    shown = []
    for f in FAMILIES:
        option = chosen[f][0] if f in chosen else ""
        shown.append(f"{rate[f]:.0f}" + (f" ({option})" if option else "") if f in rate else "")
    ratios = [f"{rate['tilec'] / rate[p]:.3f}" if p in rate and "tilec" in rate else ""
              for p in FAMILIES[:-1]]
    return [case.name, *shown, *ratios]


def main() -> None:
    torch, flags = common.gpu_run(common.gpu_parser(__doc__))
    makers = {"matmul bf16 4096": lambda: matmul_case(torch, 4096),
              "matmul bf16 8192": lambda: matmul_case(torch, 8192),
              "attention full": lambda: attention_case(torch, False),
              "attention causal": lambda: attention_case(torch, True)}
    rows: list[list[str]] = []
    notes: list[str] = []
    for name, make in makers.items():
        if flags.only in name:
            case = make()
            with tilec.knobs.scope(target=TARGET):
                chosen = best_options(torch, case, notes)
                contenders = {family: launch for family, (_, launch) in chosen.items()}
                seconds = common.time_bursts(torch, contenders, calls=10, reps=7, rest=0.1)
            rows.append(row_of(case, seconds, chosen))
            print(rows[-1], flush=True)
    header = ["case", *FAMILIES, *(f"tilec / {p}" for p in FAMILIES[:-1])]
    body = ("TFLOP/s (causal attention counts half the operations), inputs N(0,1). Bursts of 10 "
            "calls behind a spinning GPU, contenders interleaved in random order, medians. tilec "
            "uses mma.sync here, as FlashAttention-2 does; the others use wgmma.\n\n" +
            common.table(header, rows) + "\n\nOptions swept, in units of 10^9 operations a "
            "second:\n" + "\n".join(f"- {note}" for note in notes))
    common.report("matmul", "Matrix product and attention", body, flags.output)


if __name__ == "__main__":
    main()
