"""`python -m tests.fuzz`: draws kernels, runs them at every level that a CPU runs, or on the GPU,
and compares with numpy. A failure is shrunk and printed as a program."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import tilec
from tests.fuzz import ledger
from tests.fuzz.draws import generate
from tests.fuzz.program import Program
from tests.fuzz.run import CPU_LEVELS, Verdict, compiled, judged, kernel_of, order, passed, placed
from tests.fuzz.shrink import shrink
from tilec import knobs
from tilec.runtime.fingerprint import source_fingerprint

BATCH = 20  # programs a child runs


def seeds(args: argparse.Namespace, first: int) -> Iterator[int]:
    """Seeds from the first on, until the count or the time is reached."""
    end = time.monotonic() + 60 * args.minutes if args.minutes else None
    seed = first
    while (args.count is None or seed < first + args.count) and \
            (end is None or time.monotonic() < end):
        yield seed
        seed += 1


def draw(seed: int, args: argparse.Namespace) -> Program:
    program = generate(seed, args.size, args.elements)
    return replace(program, target="sm_90a") if args.gpu or args.compile_to else program


def shown(program: Program, verdict: Verdict, level: str) -> str:
    """A program that shows a failure when it is run from the repository's root."""
    arguments = ",\n    ".join(a.text() for a in program.used())
    wanted = [(name, k, want) for name, k, _, want in verdict.different]
    return f'''"""Seed {program.seed}: {verdict.kind} at {verdict.where or level}. {verdict.text}"""
{program.source()}

if __name__ == "__main__":
    from tests.fuzz.program import Argument
    from tests.fuzz.run import launch
    arguments = [
    {arguments}]
    got = launch(kernel, arguments, {program.grid}, {program.target!r}, {program.options},
                 level={level!r}, seed={order(program, level)},
                 constexprs={program.constexprs!r})
    for name, element, want in {wanted}:
        print(f"{{name}}[{{element}}] is {{got[name][element]}}, expected {{want}}")
'''


def failure(program: Program, verdict: Verdict, levels: tuple[str, ...], seconds: float) -> str:
    """A failure's text, the program shrunk for so long."""
    if verdict.kind == "mismatch":
        levels = (verdict.where,)

    def fails(candidate: Program) -> bool:
        return next(judged([candidate], levels)).same(verdict)

    small = shrink(program, fails, seconds) if seconds else program
    now = next(judged([small], levels))
    if not now.failed:
        small, now = program, verdict
    return shown(small, now, levels[-1])


def fuzz(args: argparse.Namespace) -> int:
    """Run what was asked for; the number of failures."""
    machine, levels = ("gpu", ("cubin",)) if args.gpu else ("cpu", CPU_LEVELS)
    path = Path(args.ledger)
    first = args.seed if args.seed is not None else ledger.next_seed(ledger.read(path), machine)
    run = ledger.Run(machine, " ".join(levels), first, 0, args.size, args.elements,
                     ledger.commit(), source_fingerprint()[:12])
    began, wanted, progress = time.monotonic(), seeds(args, first), sys.stderr
    while batch := [draw(seed, args) for seed in islice(wanted, BATCH)]:
        for program, verdict in zip(batch, judged(batch, levels), strict=True):
            run.count += 1
            run.verdicts[verdict.kind] = run.verdicts.get(verdict.kind, 0) + 1
            if verdict.failed:
                run.failed.append(program.seed)
                print(failure(program, verdict, levels, args.shrink), flush=True)
        print(f"{run.count} kernels, {run.verdicts}, {time.monotonic() - began:.0f} s",
              file=progress, flush=True)
    run.seconds = round(time.monotonic() - began)
    if not args.no_ledger:
        ledger.append(path, run)
    return len(run.failed)


def compile_to(args: argparse.Namespace) -> int:
    """Make cubins of the programs in a cache that a machine with a GPU then takes as its own, by
    TILEC_CACHE_DIR: programs are drawn from their seeds there again."""
    made = 0
    with knobs.scope(cache_dir=args.compile_to, verify=False):
        for seed in seeds(args, args.seed or 0):
            program = draw(seed, args)
            given = [passed(a, placed(x, a.shift)) for a, x in
                     zip(program.used(), program.initial(), strict=True)]
            try:
                compiled(kernel_of(program.source()), given, program.target, program.options,
                         program.constexprs).lower()
                made += 1
            except tilec.TilecError as e:
                print(f"seed {seed}: {e}", file=sys.stderr)
    print(f"{made} cubins in {args.compile_to}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long to go on")
    parser.add_argument("--count", type=int, help="how many kernels; 100 without --minutes")
    parser.add_argument("--seed", type=int, help="the first seed; by default the ledger's next")
    parser.add_argument("--size", type=int, default=9, help="statements a kernel")
    parser.add_argument("--elements", type=int, default=512, help="the most in a tile")
    parser.add_argument("--gpu", action="store_true", help="run on the GPU in use")
    parser.add_argument("--compile-to", metavar="FOLDER", help="only make cubins, in this cache")
    parser.add_argument("--shrink", type=float, default=120.0, help="seconds for each failure")
    parser.add_argument("--ledger", default=str(ledger.PATH), help="where runs are noted")
    parser.add_argument("--no-ledger", action="store_true", help="note nothing")
    parser.add_argument("--report", action="store_true", help="print the ledger as a table")
    args = parser.parse_args()
    if args.report:
        print(ledger.report(ledger.read(Path(args.ledger))))
        return 0
    if args.minutes is None and args.count is None:
        args.count = 100
    if args.compile_to:
        return compile_to(args)
    return 1 if fuzz(args) else 0


if __name__ == "__main__":
    sys.exit(main())
