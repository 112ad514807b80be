"""Kernels of plain `tl`, with descriptors (examples 09, 11, 12) and by pointers (examples 06,
07), of the explicit level (examples 10, 14, 15), and the hand-written ones of tests/lit/fixtures
beside cuBLAS, cuDNN and Triton: TFLOP/s, and ratios. Needs an H200 and torch. Then what
benchmarks.long_rows measures, into a file of its own. --only takes a regular expression.

Every contender is checked against torch in float32 on a poisoned output first. Products of 4096 and
below are replayed from a CUDA graph; larger ones and attention come in bursts.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import tilec
from benchmarks import common, long_rows, matmul
from benchmarks.matmul import TRITON_ATTENTION, TRITON_MATMUL, near
from benchmarks.memory_bound import Case, triton_kernels
from tilec.codegen import ptxas
from tilec.runtime.text import TextKernel

FIXTURES = common.ROOT / "tests" / "lit" / "fixtures"
# ws: warp specialisation. explicit: tilec.language.gpu, examples 10, 14 and 15.
OURS = ("plain tl", "plain tl ws", "explicit", "explicit ws", "gpu level", "gpu level ws",
        "cp.async")
PEERS = ("cuBLAS", "cuDNN", "FlashAttention-2", "Triton", "copy")
VENDOR = PEERS[:2]
Tile = tuple[tuple[int, int, int], int, int]
# Tile, warps, stages: the first whose tiles there are enough of for half of the multiprocessors.
POINTERS: tuple[Tile, ...] = (((128, 256, 64), 8, 3), ((128, 128, 64), 4, 3))
CALLS, REPS, REST_S = 20, 3, 0.1
# (m, n, k): squares, and how the rate depends on k.
MATMUL = ((8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (1536, 1536, 1536),
          (1024, 1024, 1024), (8192, 8192, 512), (8192, 8192, 1024), (8192, 8192, 2048),
          (8192, 8192, 4096), (8192, 8192, 16384))
BY_POINTERS = ((8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048))
# (heads, rows, head dimension, causal)
ATTENTION = ((128, 4096, 128, False), (128, 4096, 128, True), (32, 16384, 128, False),
             (32, 16384, 128, True), (512, 1024, 128, False), (128, 4096, 64, False),
             (128, 4096, 64, True), (64, 4096, 256, False), (64, 4096, 256, True))
# Head dimension -> blocks of queries and keys, warps, stages.
PLAIN_ATTENTION = {64: ((128, 64), 8, 4), 128: ((128, 128), 8, 2), 256: ((128, 64), 8, 2)}
# The same of the backward pass, which counts five products.
GRADIENTS = ((128, 4096, 128, False), (128, 4096, 128, True), (128, 4096, 64, False))
# For dq, and for dk and dv: blocks of queries and keys; warps; stages.
PLAIN_GRADIENTS = ((((128, 64), (64, 128)), 8, (3, 3)), (((128, 64), (64, 128)), 8, (3, 2)),
                   (((64, 64), (64, 64)), 4, (3, 3)))
TRITON_GRADIENTS = (((128, 32), 4, 5), ((128, 32), 8, 3), ((128, 64), 8, 3), ((128, 64), 8, 2),
                    ((64, 64), 4, 3))  # SIDE and STEP, warps, stages
EXPLICIT_GRADIENTS = {64: ((64, 128), (128, 128)), 128: ((64, 128),)}
GRAPH_FLOPS = 2 * 4096**3  # products up to this are replayed from a graph


def multiprocessors(torch: Any) -> int:
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def loaded(plain: str, ws: str) -> dict[str, TextKernel]:
    """Two fixtures, by the name that the table gives them."""
    return {name: tilec.load(FIXTURES / file)
            for name, file in zip(OURS[4:6], (plain, ws), strict=True)}


def tile_for(torch: Any, m: int, n: int, tiles: Sequence[Tile]) -> Tile:
    enough = multiprocessors(torch) // 2
    return next((p for p in tiles if tilec.cdiv(m, p[0][0]) * tilec.cdiv(n, p[0][1]) >= enough),
                tiles[-1])


def product_case(torch: Any, what: str, m: int, n: int, k: int) -> tuple[Case, list[Any]]:
    """(cuBLAS and Triton, [a, b, c])."""
    twin = triton_kernels()
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    case = Case(f"{what} bf16 {m}x{n}x{k}", 2 * m * n * k, lambda: c.fill_(math.nan),
                near(torch, a.float() @ b.float(), 5e-3))

    def theirs(_: int) -> Any:
        twin.matmul(a, b, c, *TRITON_MATMUL[0])
        return c

    case.run["cuBLAS"] = {"": lambda _: torch.matmul(a, b, out=c)}
    if twin is not None:
        case.run["Triton"] = {"": theirs}
    return case, [a, b, c]


def matmul_case(torch: Any, m: int, n: int, k: int) -> Case:
    kernels = loaded("gemm_a_branch.tir", "gemm_c_e2.tir")
    example = common.load_example("09_descriptor_matmul")
    by_hand = common.load_example("10_explicit_matmul")
    case, (a, b, c) = product_case(torch, "matmul", m, n, k)
    grid = example.support.programs(tilec.cdiv(m, 128) * tilec.cdiv(n, 256))

    def ours(name: str) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            kernels[name][grid](a, b, c, m, n, k)
            return c
        return launch

    def plain(ws: bool) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            example.matmul(a, b, c, ws=ws)
            return c
        return launch

    def explicit(_: int) -> Any:
        by_hand.matmul(a, b, c)
        return c

    case.run |= {name: {"": plain(name.endswith("ws"))} for name in OURS[:2]}
    case.run["explicit"] = {"": explicit}
    case.run |= {name: {"": ours(name)} for name in kernels}
    return case


def pointers_case(torch: Any, m: int, n: int, k: int) -> Case:
    example = common.load_example("06_matmul")
    case, (a, b, c) = product_case(torch, "by pointers", m, n, k)
    block, warps, stages = tile_for(torch, m, n, POINTERS)

    def plain(boxes: bool) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            example.matmul(a, b, c, block=block, num_warps=warps, num_stages=stages,
                           find_boxes=boxes)
            return c
        return launch

    case.run |= {name: {"": plain(name == "plain tl")} for name in ("plain tl", "cp.async")}
    return case


def decode_case(torch: Any, m: int, n: int, k: int) -> Case:
    """A product of few rows, which takes as long as reading b does; beside it a copy of half of b,
    which reads and writes as many bytes in all."""
    example = common.load_example("09_descriptor_matmul")
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    c, half = torch.empty(m, n, device="cuda", dtype=torch.bfloat16), b[:k // 2]
    other, right = torch.empty_like(half), near(torch, a.float() @ b.float(), 5e-3)
    case = Case(f"decode bf16 {m}x{n}x{k}", 2 * m * n * k, lambda: c.fill_(math.nan),
                lambda got: right(got) if got is c else torch.equal(got, half))

    def plain(_: int) -> Any:
        example.decode(a, b, c)
        return c

    case.run["plain tl"] = {"": plain}
    case.run["cuBLAS"] = {"": lambda _: torch.matmul(a, b, out=c)}
    case.run["copy"] = {"": lambda _: other.copy_(half)}
    return case


def fp8_case(torch: Any, m: int, n: int, k: int) -> Case:
    """e4m3 with a scale a tensor; the peer is cuBLAS, with fast accumulation as wgmma has it."""
    example = common.load_example("12_fp8_matmul")
    a, b = (torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn) for rows in (m, n))
    scales = [torch.full((1,), value, device="cuda") for value in (0.5, 0.25)]
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    case = Case(f"matmul e4m3 {m}x{n}x{k}", 2 * m * n * k, lambda: c.fill_(math.nan),
                near(torch, a.float() @ b.float().t() * 0.125, 1e-2))

    def plain(_: int) -> Any:
        example.fp8_matmul(a, b, c, *scales)
        return c

    case.run["plain tl"] = {"": plain}
    case.run["cuBLAS"] = {"": lambda _: torch._scaled_mm(
        a, b.t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=True, out=c)}
    return case


def attention_case(torch: Any, heads: int, n: int, d: int, causal: bool) -> Case:
    kernels, twin = loaded("attention_e1.tir", "attention_f3nf.tir"), triton_kernels()
    example = common.load_example("11_descriptor_attention")
    by_hand = common.load_example("14_explicit_attention")
    q, k, v = (torch.randn(heads, n, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out = torch.empty_like(q)
    sdpa, attention = torch.nn.functional.scaled_dot_product_attention, torch.nn.attention
    expected = sdpa(*(x[None, :4].float() for x in (q, k, v)), is_causal=causal)[0]
    case = Case(f"attention bf16 {heads}x{n}x{d}{' causal' if causal else ''}",
                4 * heads * n * n * d // (1 + causal),
                lambda: out.fill_(math.nan), lambda got: near(torch, expected, 1e-2)(got[:4]))
    scale = d**-0.5 * math.log2(math.e)
    grid = example.support.programs(heads * tilec.cdiv(n, 128))
    block, warps, stages = PLAIN_ATTENTION[d]

    def plain(ws: bool) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            example.attention(q, k, v, out, causal, block, warps, stages, ws=ws)
            return out
        return launch

    def explicit(ws: bool) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            by_hand.attention(q, k, v, out, causal, ws)
            return out
        return launch

    def ours(name: str) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            kernels[name][grid](q, k, v, out, heads, n, scale)
            return out
        return launch

    def theirs(block: tuple[int, int], warps: int, stages: int) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            twin.attention(q, k, v, out, causal, block, warps, stages)
            return out
        return launch

    def by_cudnn(_: int) -> Any:
        with attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION):
            return sdpa(q[None], k[None], v[None], is_causal=causal)[0]

    case.run |= {name: {"": plain(name.endswith("ws"))} for name in OURS[:2]}
    if d == 128:
        case.run |= {name: {"": explicit(name.endswith("ws"))} for name in OURS[2:4]}
    if d == 128 and not causal:
        case.run |= {name: {"": ours(name)} for name in kernels}
    case.run["cuDNN"] = {"": by_cudnn}
    if twin is not None:
        case.run["Triton"] = {"": theirs(*(TRITON_ATTENTION[2] if d < 256 else ((128, 64), 8, 2)))}
    return case


def pointers_attention_case(torch: Any, heads: int, n: int, d: int, causal: bool) -> Case:
    case = matmul.attention_case(torch, causal, heads, n, d)
    case.name = f"by pointers, {case.name}"
    case.run["plain tl"] = case.run.pop("tilec")
    return case


def gradients_case(torch: Any, heads: int, n: int, d: int, causal: bool) -> Case:
    twin, example = triton_kernels(), common.load_example("11_descriptor_attention")
    q, k, v, dout = (torch.randn(heads, n, d, device="cuda", dtype=torch.bfloat16)
                     for _ in range(4))
    out, *grads = (torch.empty_like(q) for _ in range(4))
    lse, delta = (torch.empty(heads, example.padded_rows(n), device="cuda") for _ in range(2))
    sdpa, attention = torch.nn.functional.scaled_dot_product_attention, torch.nn.attention
    leaves = [x[None, :4].float().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(sdpa(*leaves, is_causal=causal), leaves, dout[None, :4].float())

    def right(got: Any) -> bool:
        return all(near(torch, want[0], 1e-2)(x[:4]) for x, want in zip(got, expected, strict=True))

    case = Case(f"gradients bf16 {heads}x{n}x{d}{' causal' if causal else ''}",
                10 * heads * n * n * d // (1 + causal),
                lambda: [x.fill_(math.nan) for x in (*grads, delta)], right)
    example.attention(q, k, v, out, causal, *PLAIN_ATTENTION[d], lse=lse)

    def plain(options: tuple[Any, ...], ws: bool) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            example.gradients(q, k, v, out, dout, lse, delta, *grads, causal, *options, ws)
            return grads
        return launch

    def theirs(block: tuple[int, int], warps: int, stages: int) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            twin.attention_gradients(q, k, v, out, dout, lse, delta, *grads, causal, block, warps,
                                     stages)
            return grads
        return launch

    def by_torch(backend: Any) -> Callable[[int], Any]:
        inputs = [x[None].detach().requires_grad_() for x in (q, k, v)]
        with attention.sdpa_kernel(backend):
            result = sdpa(*inputs, is_causal=causal)
        return lambda _: [x[0] for x in torch.autograd.grad(result, inputs, dout[None],
                                                            retain_graph=True)]

    case.run |= {name: {str(option): plain(option, name.endswith("ws"))
                        for option in PLAIN_GRADIENTS} for name in OURS[:2]}
    by_hand, dq_sum = common.load_example("15_explicit_gradients"), torch.empty_like(q).float()

    def explicit(block: tuple[int, int]) -> Callable[[int], Any]:
        def launch(_: int) -> Any:
            by_hand.gradients(q, k, v, out, dout, lse, delta, dq_sum, *grads, causal, block)
            return grads
        return launch

    case.run["explicit"] = {str(block): explicit(block) for block in EXPLICIT_GRADIENTS[d]}
    case.run["cuDNN"] = {"": by_torch(attention.SDPBackend.CUDNN_ATTENTION)}
    case.run["FlashAttention-2"] = {"": by_torch(attention.SDPBackend.FLASH_ATTENTION)}
    if twin is not None:
        case.run["Triton"] = {str(option): theirs(*option) for option in TRITON_GRADIENTS}
    return case


def checked(torch: Any, case: Case) -> dict[str, Callable[[int], Any]]:
    """The contenders whose results are right, each with its best option; ours must be."""
    out = {}
    for family, options in case.run.items():
        right = {}
        for option, launch in options.items():
            case.poison()
            if case.verify(launch(0)):
                right[option] = launch
            else:
                print(f"{case.name}: {family} {option} is wrong", flush=True)
        if right:
            times = common.time_bursts(torch, right, 2, 3, 0) if len(right) > 1 else \
                dict.fromkeys(right, 0.0)
            out[family] = right[min(times, key=times.__getitem__)]
    return out


def replayed(torch: Any, launch: Callable[[int], Any]) -> Callable[[int], Any]:
    """CALLS launches as one CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(CALLS):
            launch(i)
    return lambda _: graph.replay()


def measured(torch: Any, case: Case, runs: int) -> list[str]:
    """One line of the table: medians of rates, and of ratios within a run."""
    contenders = checked(torch, case)
    small = case.traffic <= GRAPH_FLOPS
    launches = {name: replayed(torch, launch) for name, launch in contenders.items()} if small \
        else contenders
    rates = []
    for _ in range(runs):
        seconds = common.time_bursts(torch, launches, 1, REPS, 0.1) if small else \
            common.time_bursts(torch, launches, CALLS, REPS, REST_S)
        each = CALLS if small else 1
        rates.append({name: each * case.traffic / t / 1e12 for name, t in seconds.items()})

    def median(of: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(map(of, rates))

    to = [next(p for p in VENDOR if p in contenders),
          *(p for p in ("Triton", "copy") if p in contenders)]
    cells = [f"{median(lambda r, m=mine: r[m]):.0f}: " + ", ".join(
        f"{median(lambda r, m=mine, p=p: r[m] / r[p]):.3f}" for p in to)
        if mine in contenders else "" for mine in OURS]
    peers = [f"{median(lambda r, p=p: r[p]):.0f}" if p in contenders else "" for p in PEERS]
    return [case.name, *cells, *peers]


def assembler(file: str) -> str:
    """What makes a fixture's cubin here; where nvJitLink would leave out setmaxnreg, a launch has
    the driver make it."""
    linked = tilec.load(FIXTURES / file).compiled.linked
    assert linked is not None
    return "the driver's JIT" if linked.drops_setmaxnreg else linked.assembler


def main() -> None:
    parser = common.gpu_parser(__doc__)
    parser.add_argument("--runs", type=int, default=3, help="how often a case is measured")
    parser.add_argument("--without-ptxas", action="store_true",
                        help="kernels that use setmaxnreg are compiled by the driver")
    torch, flags = common.gpu_run(parser)
    if flags.without_ptxas:
        ptxas.find = lambda: None
    makers = [*((matmul_case, shape) for shape in MATMUL), (fp8_case, (8192, 8192, 8192)),
              (decode_case, (16, 8192, 8192)),
              *((pointers_case, shape) for shape in BY_POINTERS),
              *((attention_case, shape) for shape in ATTENTION),
              *((pointers_attention_case, shape) for shape in ATTENTION[:2]),
              *((gradients_case, shape) for shape in GRADIENTS)]
    rows: list[list[str]] = []
    for make, shape in makers:
        if re.search(flags.only, f"{make.__name__} {'x'.join(map(str, shape))}"):
            rows.append(measured(torch, make(torch, *shape), flags.runs))
            print(rows[-1], flush=True)
    body = (
        "TFLOP/s, and of tilec's after the colon the ratios to cuBLAS or cuDNN, to Triton, and to "
        "copy. Inputs N(0,1), contenders interleaved in random order, medians of "
        f"{flags.runs} runs, each the median of {REPS}: {CALLS} calls in a CUDA graph for products "
        f"up to 4096, else bursts of {CALLS}, {REST_S} s apart. tilec is compiled by nvJitLink, "
        f"attention with warp specialisation by {assembler('attention_f3nf.tir')}; plain tl has "
        "launch_pdl but for the products by pointers and attention. cp.async: by pointers without "
        "TMA, find_boxes=False. e4m3: cuBLAS is torch._scaled_mm with fast accumulation. decode: "
        "copy moves as many bytes as the product reads.\n\n" +
        common.table(["case", *OURS, *PEERS], rows))
    if rows:
        common.report("hopper", "Hopper kernels, of plain tl and at the gpu level", body,
                      flags.output, "-without_ptxas" if flags.without_ptxas else "")
    long_rows.measure(torch, flags)


if __name__ == "__main__":
    main()
