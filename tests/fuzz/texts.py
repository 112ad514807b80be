"""Mutated IR, LLVM IR and PTX through everything that reads them.

    python -m tests.fuzz.texts --cases 3000 --seed 0
    python -m tests.fuzz.texts --file FAILURE.json

Each case runs in a worker process and has 10 s. IR is parsed, verified, printed and parsed again,
given to three passes, run as it is and at every level below. Two levels with different results are
`wrong`, but where the program has a race: where another seed gives another result at the first
level, or the simulator's check names one. An error at a lower level alone is `wrong` for tile IR;
gpu IR promises what only lower levels check (an asynchronous copy is waited for). PTX that the
simulator runs to its end while the assembler refuses it is `wrong` too. A program that runs for
long (its own loops may have no end) is stopped and counts as `long`; what compiles for long counts
as a `hang`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fuzz.texts_corpus import TARGET, Text, corpus
from tests.fuzz.texts_mutate import mutate
from tests.fuzz.texts_pool import FAILURES, Outcome, run_all, serve, table
from tilec import knobs, sim
from tilec.codegen.cubin import available, link
from tilec.codegen.llvm import emit_ptx
from tilec.compiler import compile_from
from tilec.errors import CompilationError, InternalError, OutOfResources, TilecError
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.printer import equal, print_module
from tilec.ir.verifier import verify
from tilec.passes.base import all_passes
from tilec.runtime.inputs import Inputs
from tilec.runtime.maps import noted, of_text
from tilec.runtime.validation import with_barriers
from tilec.sim.decode import Decoder
from tilec.target import Target
from tilec.tools import opt
from tilec.tools.case import Case
from tilec.tools.run import argument, execute, grid_of, kernel_of, typed

SHARES = {"tir": 6, "ptx": 3, "ll": 1}
LEVELS = ("tile", "gpu", "lowered", "ptx")
RUN_SECONDS = 2


class Long(BaseException):
    """A program ran for too long."""


class Wrong(Exception):
    """Two ways of running a program disagree."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise Long after RUN_SECONDS."""
    def stop(*_: object) -> None:
        raise Long

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, RUN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run(case: dict[str, Any]) -> Outcome:
    """One case, with whatever it raises as its outcome."""
    text = Text(case["kind"], case["name"], case["text"], tuple(case["args"]), case["grid"],
                case["shared"])
    check: Callable[[Text, random.Random], None] = {
        "tir": check_ir, "ptx": check_ptx, "ll": check_llvm}[text.kind]
    try:
        check(text, random.Random(case["seed"]))
    except Long:
        return Outcome("long")
    except Wrong as e:
        return Outcome("wrong", str(e))
    except InternalError as e:
        return Outcome("internal error", str(e))
    except TilecError as e:
        return Outcome("clean error", str(e))
    except BaseException:
        return Outcome("traceback", traceback.format_exc())
    return Outcome("accepted")


def check_ir(text: Text, rng: random.Random) -> None:
    """A module of any level. Raises what is wrong with it."""
    module = parse(text.text, "mutant.tir")
    verify(module)
    printed = print_module(module)
    if not equal(parse(printed), module):
        raise Wrong("the printed module is another one")
    late: TilecError | None = None
    for name in rng.sample(sorted(all_passes()), 3):
        try:
            opt._run(all_passes()[name](), parse(printed))
        except InternalError:
            raise
        except TilecError as e:
            late = e
    func = rng.choice(module.funcs).name if module.funcs else ""
    module = kernel_of(module, func)
    case = Case("", Inputs(typed(module.funcs[0], list(map(argument, text.args))),
                           grid_of(text.grid), 0))
    want: list[Any] | None = None
    runs = with_barriers(module) if unsettled(module) else module
    try:
        with limited():
            want = case.run(runs)
    except TilecError as e:
        late = e
    for level in LEVELS[LEVELS.index(module.level) + 1:]:
        try:
            lower(module.clone(), level, case, want, module)
        except InternalError:
            raise
        except (CompilationError, OutOfResources) as e:
            late = e
            break
    if late is not None:
        raise late


def unsettled(module: Module) -> bool:
    """Whether a lowered module may not have its barriers yet."""
    return module.level == "lowered" and not any(op.name == "gpu.barrier" for op in module.walk())


def lower(module: Module, level: str, case: Case, want: list[Any] | None, source: Module) -> None:
    """Compile down to a level, and compare what comes out with `want`, if there is that."""
    target = Target.parse(str(module.attributes.get("target", TARGET)))
    made = compile_from(module, target, level)
    if want is None or level == "ptx" and unsettled(source):
        return
    content: Any = noted(made.ptx, made.maps, "//") if level == "ptx" else module
    with limited():
        what = case.change(want, content, made.shared)
        if what and not racy(what, source, case, want, content, made.shared):
            raise Wrong(f"at level {level}, of {source.level}: {what}")


def racy(what: str, source: Module, case: Case, want: list[Any], content: Any, shared: int) -> bool:
    """Whether the program's result is up to the order of its threads or programs."""
    if "it fails: " in what and source.level != "tile" and "internal" not in what.lower():
        return True
    for seed in (1, 2):
        if replace(case, inputs=case.inputs._replace(seed=seed)).change(want, source):
            return True
    if not isinstance(content, str):
        return False
    try:
        with knobs.scope(check="1"):
            case.run(content, shared)
    except TilecError as e:
        return "race" in str(e) or "before it is written" in str(e)
    return False


def check_ptx(text: Text, rng: random.Random) -> None:
    """PTX in the simulator, beside the assembler."""
    arrays = list(map(argument, text.args))
    with limited(), knobs.scope(check=rng.random() < 0.5):
        execute(text.text, "", arrays, grid_of(text.grid), seed=0, shared=text.shared)
    if available() and not sim.unsupported(text.text):
        try:
            link(text.text, Target.parse(TARGET), name="mutant")
        except TilecError as e:
            if reached(text.text, str(e)):
                raise Wrong(f"the simulator runs what the assembler refuses: {e}") from None


def reached(text: str, message: str) -> bool:
    """Whether the program can come to a line that the assembler complains of, or to one that is no
    instruction."""
    (kernel,) = (module := sim.parse(text)).kernels.values()
    made = Decoder(module, kernel, 32).where
    decoded = {instr.line for instr in made if instr is not None}
    dead = {instr.line for instr in kernel.instrs} - decoded
    lines = set(map(int, re.findall(r"line (\d+)", message)))
    return not lines or not lines <= dead


def check_llvm(text: Text, rng: random.Random) -> None:
    """LLVM IR down to PTX, in the simulator."""
    ptx = noted(emit_ptx(text.text, Target.parse(TARGET), isolated=True), of_text(text.text), "//")
    arrays = list(map(argument, text.args))
    with limited():
        execute(ptx, "", arrays, grid_of(text.grid), seed=0, shared=text.shared)


def cases(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Seeded mutants of the corpus."""
    texts = corpus()
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        chosen = rng.choice(texts[kind])
        mutant = mutate(chosen.text, [t.text for t in texts[kind]], rng)
        yield chosen._replace(text=mutant)._asdict() | {"seed": f"{seed}/{number}"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases and print the table; 1 if there is a failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.texts", description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--file", help="run a saved case here, with its traceback")
    parser.add_argument("--out", default="fuzz-texts", help="folder of the failures' cases")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    os.environ["TILEC_VERIFY"] = "1"
    if args.worker:
        serve(run)
        return 0
    if args.file:
        outcome = run(json.loads(Path(args.file).read_text()))
        print(f"{outcome.kind}: {outcome.detail}")
        return int(outcome.kind in FAILURES)
    return report(run_all("tests.fuzz.texts", cases(args.cases, args.seed), args.jobs),
                  Path(args.out), list(SHARES))


def report(outcomes: Iterator[Outcome], folder: Path, sources: Sequence[str]) -> int:
    """Print failures as they come, then the table; 1 if there was one."""
    counts: Counter[tuple[str, str]] = Counter()
    for outcome in outcomes:
        counts[outcome.case["kind"], outcome.kind] += 1
        if outcome.kind in FAILURES:
            folder.mkdir(parents=True, exist_ok=True)
            name = f"{outcome.kind.replace(' ', '-')}-{outcome.case['seed'].replace('/', '-')}.json"
            (folder / name).write_text(json.dumps(outcome.case))
            last = outcome.detail.strip().splitlines()[-1:]
            print(f"{outcome.kind}: {folder / name} ({outcome.case['name']}) {' '.join(last)}",
                  flush=True)
    print(table(counts, sources))
    return int(any(counts[source, kind] for source in sources for kind in FAILURES))


if __name__ == "__main__":
    sys.exit(main())
