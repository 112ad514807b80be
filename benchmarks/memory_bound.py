"""Vector add, softmax and RMS norm beside Triton, torch and torch.compile, and a copy: GB/s of
useful traffic, and ratios. Needs a GPU and torch.

Every contender is checked against torch in float32 on poisoned outputs first; then each family's
options are swept, and its best one takes part in the interleaved measurement.
"""

from __future__ import annotations

import argparse
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tilec
from benchmarks import common

SOFTMAX_SHAPES = ((65536, 1024), (16384, 4096), (8192, 8192), (4096, 32768))
RMS_SHAPES = ((32768, 2048), (16384, 4096), (8192, 8192))
ADD_SIZE = 1 << 28
WARPS = (1, 2, 4, 8, 16, 32)
# (warps, most registers a thread) of the softmax that reads its row again.
RELOADING = ((16, 0), (16, 64), (32, 0), (32, 32))
# (columns at a time, warps) of the softmax in two passes, for rows too long for registers.
ONLINE = ((4096, 8), (8192, 8), (8192, 16))
LONG_ROW = 16384
PEERS = ("torch", "torch.compile", "Triton", "Triton, reloading", "Triton, two passes")
ROTATE_BYTES = 512 << 20  # argument sets rotate through this much: far more than the L2 holds
COPY_BYTES = 1 << 31

Launch = Callable[[int], Any]


@dataclass
class Case:
    """One kernel at one shape.

    traffic: useful bytes. run: family -> option -> function of the call number, which returns the
    output. poison: spoils the outputs. verify: whether an output of argument set 0 is right.
    """

    name: str
    traffic: int
    poison: Callable[[], None]
    verify: Callable[[Any], bool]
    run: dict[str, dict[str, Launch]] = field(default_factory=dict)


def sets_of(traffic: int) -> int:
    """How many argument sets to rotate through."""
    return max(1, math.ceil(ROTATE_BYTES / traffic))


def compiled_by_torch(torch: Any, fn: Callable[..., Any], args: list[tuple[Any, ...]]) -> Launch:
    torch._dynamo.reset()
    compiled = torch.compile(fn, dynamic=False)
    return lambda i: compiled(*args[i % len(args)])


def triton_kernels() -> Any:
    """The module of Triton kernels, or None without Triton."""
    if not common.installed("triton"):
        return None
    from benchmarks import triton_kernels as kernels

    return kernels


# -- cases --------------------------------------------------------------------------------------

def add_case(torch: Any, n: int) -> Case:
    example, twin = common.load_example("01_vector_add"), triton_kernels()
    x, y, out = (torch.randn(n, device="cuda") for _ in range(3))
    case = Case(f"add f32 {n}", 12 * n, lambda: out.fill_(math.nan),
                lambda got: torch.equal(got, x + y))

    def ours(block: int, warps: int) -> Launch:
        def launch(_: int) -> Any:
            example.add(x, y, out, block, warps)
            return out
        return launch

    def theirs(block: int, warps: int) -> Launch:
        def launch(_: int) -> Any:
            twin.add_kernel[(tilec.cdiv(n, block),)](x, y, out, n, BLOCK=block, num_warps=warps)
            return out
        return launch

    options = [(b, w) for b in (1024, 2048, 4096) for w in (4, 8)]
    case.run["tilec"] = {f"block {b}, {w} warps": ours(b, w) for b, w in options}
    if twin is not None:
        case.run["Triton"] = {f"block {b}, {w} warps": theirs(b, w) for b, w in options}
    case.run["torch"] = {"": lambda _: torch.add(x, y, out=out)}
    case.run["torch.compile"] = {"": compiled_by_torch(torch, lambda a, b: a + b, [(x, y)])}
    return case


def warps_for(cols: int) -> tuple[int, ...]:
    """Numbers of warps that leave a thread between 8 and 128 columns."""
    return tuple(w for w in WARPS if 8 <= cols // (32 * w) <= 128)


def named(warps: int, maxnreg: int) -> str:
    return f"{warps} warps" + (f", {maxnreg} registers" if maxnreg else "")


def close_to(torch: Any, expected: Any, relative: float = 2.0**-7) -> Callable[[Any], bool]:
    """Whether bf16 values are the rounded `expected`, give or take one rounding."""
    def verify(got: Any) -> bool:
        error = (got.float() - expected).abs()
        return bool((error <= expected.abs() * relative + 1e-6).all())  # NaN compares false
    return verify


def softmax_case(torch: Any, rows: int, cols: int) -> Case:
    example, twin = common.load_example("02_fused_softmax"), triton_kernels()
    traffic = 4 * rows * cols
    args = [tuple(torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            for _ in range(sets_of(traffic))]
    case = Case(f"softmax bf16 {rows}x{cols}", traffic, lambda: args[0][1].fill_(math.nan),
                close_to(torch, torch.softmax(args[0][0].float(), -1)))

    def one_pass(warps: int, reload: bool = False, maxnreg: int = 0) -> Launch:
        def launch(i: int) -> Any:
            x, out = args[i % len(args)]
            example.softmax(x, out, warps, reload, maxnreg)
            return out
        return launch

    def online(block: int, warps: int) -> Launch:
        def launch(i: int) -> Any:
            x, out = args[i % len(args)]
            example.online_softmax(x, out, block, warps)
            return out
        return launch

    def triton_one_pass(warps: int, reload: bool = False, maxnreg: int = 0) -> Launch:
        def launch(i: int) -> Any:
            x, out = args[i % len(args)]
            twin.softmax_kernel[(rows,)](x, out, cols, cols, cols, BLOCK=cols, EVEN=True,
                                         RELOAD=reload, num_warps=warps, maxnreg=maxnreg or None)
            return out
        return launch

    def triton_online(block: int, warps: int) -> Launch:
        def launch(i: int) -> Any:
            x, out = args[i % len(args)]
            twin.online_softmax_kernel[(rows,)](x, out, cols, cols, cols, BLOCK=block,
                                                num_warps=warps)
            return out
        return launch

    long_options, reloading = (ONLINE, RELOADING) if cols >= LONG_ROW else ((), ())
    case.run["tilec"] = {f"{w} warps": one_pass(w) for w in warps_for(cols)}
    case.run["tilec"] |= {f"reloading, {named(w, r)}": one_pass(w, True, r) for w, r in reloading}
    case.run["tilec"] |= {f"two passes, block {b}, {w} warps": online(b, w)
                          for b, w in long_options}
    if twin is not None:
        case.run["Triton"] = {f"{w} warps": triton_one_pass(w) for w in warps_for(cols)}
        if long_options:
            case.run["Triton, reloading"] = {named(w, r): triton_one_pass(w, True, r)
                                             for w, r in reloading}
            case.run["Triton, two passes"] = {f"block {b}, {w} warps": triton_online(b, w)
                                              for b, w in long_options}
    case.run["torch"] = {"": lambda i: torch.softmax(args[i % len(args)][0], -1)}
    case.run["torch.compile"] = {"": compiled_by_torch(
        torch, lambda x: torch.softmax(x, -1), [a[:1] for a in args])}
    return case


def rms_case(torch: Any, rows: int, cols: int) -> Case:
    example, twin = common.load_example("03_norms"), triton_kernels()
    traffic = 4 * rows * cols
    eps = 1e-6
    w = torch.randn(cols, device="cuda", dtype=torch.bfloat16)
    rstd = torch.empty(rows, device="cuda")
    args = [tuple(torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            for _ in range(sets_of(traffic))]
    norm = torch.nn.functional.rms_norm
    case = Case(f"rmsnorm bf16 {rows}x{cols}", traffic, lambda: args[0][1].fill_(math.nan),
                close_to(torch, norm(args[0][0].float(), (cols,), w.float(), eps)))

    def ours(warps: int, reload: bool) -> Launch:
        def launch(i: int) -> Any:
            x, out = args[i % len(args)]
            example.rms_norm(x, w, out, rstd, eps, warps, reload)
            return out
        return launch

    def theirs(warps: int, reload: bool) -> Launch:
        def launch(i: int) -> Any:
            x, out = args[i % len(args)]
            twin.rms_norm_kernel[(rows,)](x, w, out, rstd, cols, eps, BLOCK=cols, EVEN=True,
                                          RELOAD=reload, num_warps=warps)
            return out
        return launch

    options = {"reloading, " * reload + f"{n} warps": (n, reload)
               for n in warps_for(cols) for reload in (False, True)}
    case.run["tilec"] = {name: ours(*option) for name, option in options.items()}
    if twin is not None:
        case.run["Triton"] = {name: theirs(*option) for name, option in options.items()}
    case.run["torch"] = {"": lambda i: norm(args[i % len(args)][0], (cols,), w, eps)}
    case.run["torch.compile"] = {"": compiled_by_torch(
        torch, lambda x: norm(x, (cols,), w, eps), [a[:1] for a in args])}
    return case


def cases(torch: Any, only: str, quick: bool) -> Iterator[Case]:
    """The cases whose name contains `only`, made when asked for."""
    makers: list[tuple[str, Callable[[], Case]]] = [
        (f"add f32 {ADD_SIZE}", lambda: add_case(torch, ADD_SIZE))]
    makers += [(f"softmax bf16 {r}x{c}", lambda r=r, c=c: softmax_case(torch, r, c))
               for r, c in SOFTMAX_SHAPES]
    makers += [(f"rmsnorm bf16 {r}x{c}", lambda r=r, c=c: rms_case(torch, r, c))
               for r, c in RMS_SHAPES]
    if quick:
        makers = [makers[0], makers[2], makers[4], makers[6]]
    for name, make in makers:
        if only in name:
            yield make()


# -- measuring ----------------------------------------------------------------------------------

def best_options(torch: Any, case: Case, notes: list[str]) -> dict[str, tuple[str, Launch]]:
    """The fastest correct option of each family; what fails is noted."""
    chosen = {}
    for family, options in case.run.items():
        good = {}
        for option, launch in options.items():
            case.poison()
            try:
                right = case.verify(launch(0))
                torch.cuda.synchronize()
            except Exception as e:  # a contender that fails must not end the run
                print(f"{case.name}, {family}, {option}:", file=sys.stderr)
                traceback.print_exc(limit=-3)
                notes.append(f"{case.name}, {family}, {option}: {type(e).__name__}")
                continue
            if right:
                good[option] = launch
            else:
                notes.append(f"{case.name}, {family}, {option}: **wrong result**")
        if len(good) > 1:
            times = common.time_bursts(torch, good, calls=10, reps=5, rest=0)
            swept = sorted(times.items(), key=lambda item: item[1])
            notes.append(f"{case.name}, {family}: " + "; ".join(
                f"{o} {case.traffic / t / 1e9:.0f}" for o, t in swept))
            chosen[family] = swept[0][0], good[swept[0][0]]
        elif good:
            chosen[family] = next(iter(good.items()))
    return chosen


def row_of(case: Case, seconds: dict[str, float], chosen: dict[str, tuple[str, Launch]],
           peers: Sequence[str] = PEERS, copied: int = 2 * COPY_BYTES) -> list[str]:
    """One line of the table. copied: how many bytes the contender "copy" reads and writes."""
    copy = copied / seconds["copy"] / 1e9
    rate = {f: case.traffic / t / 1e9 for f, t in seconds.items() if f != "copy"}

    def shown(family: str) -> str:
        if family not in rate:
            return ""
        option = chosen[family][0]
        return f"{rate[family]:.0f}" + (f" ({option})" if option else "")

    def ratio(over: float) -> str:
        return f"{rate['tilec'] / over:.3f}" if "tilec" in rate and over else ""

    best = max((rate[p] for p in peers if p in rate), default=0)
    return [case.name, f"{copy:.0f}", *(shown(p) for p in peers), shown("tilec"), ratio(best),
            ratio(rate.get("Triton", 0)), ratio(copy)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four cases, few repetitions")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    common.add_output_flag(parser)
    flags = parser.parse_args()
    torch = common.torch_with_gpu()
    if torch is None:
        sys.exit("benchmarks.memory_bound needs torch and a GPU")
    torch.manual_seed(0)
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    rows, notes = [], []
    for case in cases(torch, flags.only, flags.quick):
        chosen = best_options(torch, case, notes)
        contenders = {family: launch for family, (_, launch) in chosen.items()}
        contenders["copy"] = lambda _: target.copy_(source)
        seconds = common.time_bursts(torch, contenders, reps=5 if flags.quick else 15)
        rows.append(row_of(case, seconds, chosen))
        print(rows[-1], flush=True)
    header = ["kernel", "copy of 2 GiB", *PEERS, "tilec", "tilec / best peer", "tilec / Triton",
              "tilec / copy"]
    body = ("GB/s of useful traffic, inputs N(0,1). Bursts of 20 calls behind a spinning GPU, "
            "contenders interleaved in random order, medians; arguments rotate through more than "
            "the L2 holds.\n\n" + common.table(header, rows) +
            "\n\nOptions swept, GB/s:\n" + "\n".join(f"- {note}" for note in notes))
    common.report("memory_bound", "Memory-bound kernels", body, flags.output)


if __name__ == "__main__":
    main()
