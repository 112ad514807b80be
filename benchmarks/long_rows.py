"""Softmax, RMS norm and cross-entropy of long rows (example 13) beside Triton, torch, torch.compile
and a copy of the same bytes: GB/s of useful traffic, and ratios. Needs a GPU and torch.

A copy reads and writes what a kernel has to at least. The loss alone is only read for: it stands
beside a kernel that reads the same bytes, and takes their maximum as integers. Contenders are
checked, swept and measured as in benchmarks.memory_bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import tilec
import tilec.language as tl
from benchmarks import common
from benchmarks.memory_bound import (
    Case,
    Launch,
    best_options,
    close_to,
    compiled_by_torch,
    row_of,
    sets_of,
    triton_kernels,
)

SHAPE = (4096, 32768)
LONGER, FEW = (1024, 128256), (32, 128256)
# (warps, accesses of 16 bytes a thread makes at a time, most registers a thread, programs a row)
How = tuple[int, int, int, int]
WHOLE = ((16, 8, 64, 1), (32, 4, 32, 1))
BLOCKS = ((32, 4, 64, 1), (16, 8, 128, 1))
CLUSTERS = ((16, 4, 32, 8), (8, 8, 64, 8), (16, 4, 64, 8))
PEERS = ("torch", "torch.compile", "Triton")
REPS = 7
# torch saves the logarithm of a probability as bf16 for the gradient: at -10, an error of 0.03.
GRADIENT_TOLERANCE = 2.0**-4


@tilec.jit
def read_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64) * BLOCK
    tl.store(out_ptr + tl.program_id(0), tl.max(tl.load(x_ptr + block + tl.arange(0, BLOCK)), 0))


def reading(torch: Any, args: list[tuple[Any, ...]]) -> Launch:
    """Reads the first of each argument set."""
    block = 8192
    inputs = [x.view(torch.int32).flatten() for x, *_ in args]
    out = torch.empty(len(inputs[0]) // block, device="cuda", dtype=torch.int32)
    return lambda i: read_kernel[(len(out),)](inputs[i % len(inputs)], out, BLOCK=block,
                                              num_warps=8)


def copying(args: list[tuple[Any, ...]]) -> Launch:
    """Copies the first of each argument set to the second."""
    return lambda i: args[i % len(args)][1].copy_(args[i % len(args)][0])


def argument_sets(torch: Any, rows: int, cols: int, traffic: int) -> list[tuple[Any, Any]]:
    """(input, output), as many as it takes to outgrow the cache."""
    return [(torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16),
             torch.empty(rows, cols, device="cuda", dtype=torch.bfloat16))
            for _ in range(sets_of(traffic))]


def options(cols: int, clusters: bool = True) -> dict[str, How]:
    """By name, what is swept."""
    long = BLOCKS + CLUSTERS * clusters
    return {f"{w} warps, {a} accesses, {r} registers" + f", {p} programs a row" * (p > 1):
            (w, a, r, p) for w, a, r, p in (WHOLE if cols <= SHAPE[1] else long)}


def in_triton(how: How) -> dict[str, int]:
    """The same option for a Triton twin, which has no clusters."""
    warps, accesses, registers, _ = how
    return {"PER": accesses, "WIDTH": 256 * warps, "num_warps": warps, "maxnreg": registers}


# -- cases, each with its copy ------------------------------------------------------------------

def softmax_case(torch: Any, rows: int, cols: int) -> tuple[Case, Launch]:
    example, twin = common.load_example("13_long_rows"), triton_kernels()
    args = argument_sets(torch, rows, cols, 4 * rows * cols)
    case = Case(f"softmax bf16 {rows}x{cols}", 4 * rows * cols,
                lambda: args[0][1].fill_(math.nan),
                close_to(torch, torch.softmax(args[0][0].float(), -1)))

    def ours(how: How) -> Launch:
        def launch(i: int) -> Any:
            x, out = args[i % len(args)]
            example.softmax(x, out, how)
            return out
        return launch

    def theirs(how: How) -> Launch:
        def launch(i: int) -> Any:
            x, out = args[i % len(args)]
            twin.long_softmax_kernel[(rows,)](x, out, cols, **in_triton(how))
            return out
        return launch

    case.run["tilec"] = {name: ours(how) for name, how in options(cols).items()}
    if twin is not None:
        case.run["Triton"] = {name: theirs(how) for name, how in options(cols, False).items()}
    case.run["torch"] = {"": lambda i: torch.softmax(args[i % len(args)][0], -1)}
    case.run["torch.compile"] = {"": compiled_by_torch(
        torch, lambda x: torch.softmax(x, -1), [a[:1] for a in args])}
    return case, copying(args)


def rms_case(torch: Any, rows: int, cols: int) -> tuple[Case, Launch]:
    example, twin = common.load_example("13_long_rows"), triton_kernels()
    eps, norm = 1e-6, torch.nn.functional.rms_norm
    w = torch.randn(cols, device="cuda", dtype=torch.bfloat16)
    rstd = torch.empty(rows, device="cuda")
    args = argument_sets(torch, rows, cols, 4 * rows * cols)
    case = Case(f"rmsnorm bf16 {rows}x{cols}", 4 * rows * cols,
                lambda: args[0][1].fill_(math.nan),
                close_to(torch, norm(args[0][0].float(), (cols,), w.float(), eps)))

    def ours(how: How) -> Launch:
        def launch(i: int) -> Any:
            x, out = args[i % len(args)]
            example.rms_norm(x, w, out, eps, how)
            return out
        return launch

    def theirs(warps: int, maxnreg: int) -> Launch:
        block = tilec.next_power_of_2(cols)

        def launch(i: int) -> Any:
            x, out = args[i % len(args)]
            twin.rms_norm_kernel[(rows,)](x, w, out, rstd, cols, eps, BLOCK=block,
                                          EVEN=block == cols, RELOAD=True, num_warps=warps,
                                          maxnreg=maxnreg)
            return out
        return launch

    case.run["tilec"] = {name: ours(how) for name, how in options(cols).items()}
    if twin is not None:
        case.run["Triton"] = {f"{w} warps, {r} registers": theirs(w, r)
                              for w, _, r, _ in options(cols, False).values()}
    case.run["torch"] = {"": lambda i: norm(args[i % len(args)][0], (cols,), w, eps)}
    case.run["torch.compile"] = {"": compiled_by_torch(
        torch, lambda x: norm(x, (cols,), w, eps), [a[:1] for a in args])}
    return case, copying(args)


def loss_case(torch: Any, rows: int, cols: int) -> tuple[Case, Launch]:
    """The loss of each row; the outputs of `args` stay unused."""
    example, twin = common.load_example("13_long_rows"), triton_kernels()
    entropy = torch.nn.functional.cross_entropy
    args = argument_sets(torch, rows, cols, 2 * rows * cols)
    label = torch.randint(0, cols, (rows,), device="cuda")
    loss = torch.empty(rows, device="cuda")
    case = Case(f"cross-entropy bf16 {rows}x{cols}", 2 * rows * cols,
                lambda: loss.fill_(math.nan),
                close_to(torch, entropy(args[0][0].float(), label, reduction="none")))

    def ours(how: How) -> Launch:
        def launch(i: int) -> Any:
            example.cross_entropy(args[i % len(args)][0], label, loss, how=how)
            return loss
        return launch

    def theirs(how: How) -> Launch:
        def launch(i: int) -> Any:
            twin.cross_entropy_kernel[(rows,)](args[i % len(args)][0], label, loss, loss, 1.0, cols,
                                               False, **in_triton(how))
            return loss
        return launch

    case.run["tilec"] = {name: ours(how) for name, how in options(cols).items()}
    if twin is not None:
        case.run["Triton"] = {name: theirs(how) for name, how in options(cols, False).items()}
    case.run["torch"] = {"": lambda i: entropy(args[i % len(args)][0], label, reduction="none")}
    case.run["torch.compile"] = {"": compiled_by_torch(
        torch, lambda x: entropy(x, label, reduction="none"), [a[:1] for a in args])}
    return case, reading(torch, args)


def gradient_case(torch: Any, rows: int, cols: int) -> tuple[Case, Launch]:
    """The loss and its gradient: one kernel here and in Triton, two and more in torch."""
    example, twin = common.load_example("13_long_rows"), triton_kernels()
    entropy = torch.nn.functional.cross_entropy
    args = argument_sets(torch, rows, cols, 4 * rows * cols)
    label = torch.randint(0, cols, (rows,), device="cuda")
    loss, ones = torch.empty(rows, device="cuda"), torch.ones(rows, device="cuda")
    expected = torch.softmax(args[0][0].float(), -1)
    expected[torch.arange(rows, device="cuda"), label] -= 1.0
    case = Case(f"cross-entropy and gradient bf16 {rows}x{cols}", 4 * rows * cols,
                lambda: args[0][1].fill_(math.nan),
                close_to(torch, expected, GRADIENT_TOLERANCE))

    def ours(how: How) -> Launch:
        def launch(i: int) -> Any:
            x, dx = args[i % len(args)]
            example.cross_entropy(x, label, loss, dx, how=how)
            return dx
        return launch

    def theirs(how: How) -> Launch:
        def launch(i: int) -> Any:
            x, dx = args[i % len(args)]
            twin.cross_entropy_kernel[(rows,)](x, label, loss, dx, 1.0, cols, True,
                                               **in_triton(how))
            return dx
        return launch

    def by_autograd(forward: Callable[[int], Any]) -> Launch:
        def launch(i: int) -> Any:
            found = forward(i)
            return torch.autograd.grad(found, inputs[i % len(inputs)][0], ones.to(found.dtype))[0]
        return launch

    inputs = [(x.detach().requires_grad_(),) for x, _ in args]
    case.run["tilec"] = {name: ours(how) for name, how in options(cols).items()}
    if twin is not None:
        case.run["Triton"] = {name: theirs(how) for name, how in options(cols, False).items()}
    case.run["torch"] = {"": by_autograd(
        lambda i: entropy(inputs[i % len(inputs)][0], label, reduction="none"))}
    case.run["torch.compile"] = {"": by_autograd(compiled_by_torch(
        torch, lambda x: entropy(x, label, reduction="none"), inputs))}
    return case, copying(args)


MAKERS = (("softmax", softmax_case, SHAPE), ("rmsnorm", rms_case, SHAPE),
          ("softmax", softmax_case, LONGER), ("softmax", softmax_case, FEW),
          ("cross-entropy", loss_case, SHAPE), ("cross-entropy and gradient", gradient_case, SHAPE),
          ("cross-entropy and gradient", gradient_case, LONGER),
          ("cross-entropy and gradient", gradient_case, FEW))


def cases(torch: Any, only: str) -> Iterator[tuple[Case, Launch]]:
    """The cases whose name contains `only`, made when asked for."""
    for name, make, (rows, cols) in MAKERS:
        if only in f"{name} bf16 {rows}x{cols}":
            yield make(torch, rows, cols)


def measure(torch: Any, flags: Any) -> None:
    """Measure and report, if any case is asked for."""
    rows: list[list[str]] = []
    notes: list[str] = []
    for case, copy in cases(torch, flags.only):
        chosen = best_options(torch, case, notes)
        contenders = {family: launch for family, (_, launch) in chosen.items()} | {"copy": copy}
        seconds = common.time_bursts(torch, contenders, reps=REPS)
        rows.append(row_of(case, seconds, chosen, PEERS, case.traffic))
        print(rows[-1], flush=True)
    if not rows:
        return
    header = ["kernel", "copy of the same bytes", *PEERS, "tilec", "tilec / best peer",
              "tilec / Triton", "tilec / copy"]
    body = ("GB/s of useful traffic, inputs N(0,1): what is read once and written once. Beside the "
            "loss alone the copy is a kernel that only reads. Bursts of 20 calls behind a spinning "
            f"GPU, contenders interleaved in random order, medians of {REPS}; arguments rotate "
            "through more than the L2 holds.\n\n" + common.table(header, rows) +
            "\n\nOptions swept, GB/s:\n" + "\n".join(f"- {note}" for note in notes))
    common.report("long_rows", "Long rows", body, flags.output)


def main() -> None:
    measure(*common.gpu_run(common.gpu_parser(__doc__)))


if __name__ == "__main__":
    main()
