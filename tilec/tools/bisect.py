"""tilec-bisect: find the first pass, or step of code generation, that changes a result; or say
whether two kernels compute the same (--same). Without --arg the inputs are made from the
signature."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tilec.codegen.llvm import emit_ptx
from tilec.compiler import PIPELINE, Compiled, Options, PassFailure, Stage, stage_level, stages
from tilec.errors import (
    CompilationError,
    InternalError,
    IRError,
    OutOfResources,
    ToolError,
)
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.ir.verifier import verify
from tilec.passes.base import Pass, parse_pipeline
from tilec.runtime.aot import specialized
from tilec.runtime.inputs import Inputs
from tilec.runtime.maps import noted
from tilec.runtime.validation import Tolerance, with_barriers
from tilec.target import DEFAULT, Target
from tilec.tools.case import ULPS, Case, function, made_case
from tilec.tools.command import read_text, tool
from tilec.tools.compile import load, split_signature
from tilec.tools.run import add_launch_options, argument, grid_of, kernel_of, typed

COMPARED = 4  # inputs that two kernels are compared on


class Change(NamedTuple):
    """Where a result changes. step: "pass `cse`" or the like; passes: in pipeline text, empty for
    code generation; before: the module that it is given."""

    number: int
    step: str
    passes: str
    what: str
    before: str


@tool("tilec-bisect", failure=2)
def main(argv: Sequence[str] | None = None) -> int:
    """The console entry; exit status 0 if no step changes the result, 1 if one does, 2 with a
    message on stderr if the input cannot be run."""
    args = _parser().parse_args(argv)
    if len(args.file) != 1 + args.same:
        count = len(args.file)
        raise ToolError(f"{count} {'file is' if count == 1 else 'files are'} named, expected "
                        f"{1 + args.same}", None,
                        "--same compares two kernels; without it one is followed")
    module = load_module(args, args.file[0])
    target = Target.parse(args.target or str(module.attributes.get("target", DEFAULT)))
    cases = _cases(args, module, target)
    if args.same:
        return _compare(cases, module, load_module(args, args.file[1]))
    found = bisect(module, target, cases[0], args.passes)
    if found is None:
        print("tilec-bisect: no step changes the result")
        return 0
    path, command = _write(found, module, args)
    print(f"tilec-bisect: {found.step} changes the result: {found.what}\n"
          f"its input is in {path}; to see it again:\n  {command}")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tilec-bisect", description=__doc__)
    parser.add_argument("file", metavar="FILE.tir|FILE.py:KERNEL", nargs="+")
    parser.add_argument("--same", action="store_true", help="compare the results of two kernels: "
                        "bit for bit, and but for roundings and the order of sums")
    add_launch_options(parser, grid=None)
    add_kernel_options(parser)
    parser.add_argument("--passes", help="run these passes, not the pipeline from the file's level")
    parser.add_argument("--rtol", type=float, default=None, help="relative error that floats may "
                        "have (default: 32 units of the last place, 2 for 8 and 16 bits)")
    parser.add_argument("--atol", type=float, default=None,
                        help="absolute error (default: RTOL times the largest element)")
    add_output_option(parser)
    return parser


def add_output_option(parser: argparse.ArgumentParser) -> None:
    """Where files are written."""
    parser.add_argument("-o", "--output", metavar="DIR", help="for the files that are written "
                        "(default: the folder of the first input)")


def output_folder(args: argparse.Namespace, source: str) -> Path:
    """The folder for what comes of `source`, FILE.tir or FILE.py:KERNEL."""
    return Path(source).parent if args.output is None else Path(args.output)


def add_kernel_options(parser: argparse.ArgumentParser) -> None:
    """How FILE.py:KERNEL is specialised, and the target."""
    parser.add_argument("--signature", help="of FILE.py:KERNEL, as in tilec-compile")
    parser.add_argument("--num-warps", type=int, default=4, help="of FILE.py:KERNEL")
    parser.add_argument("--num-ctas", type=int, default=1, help="of FILE.py:KERNEL")
    parser.add_argument("--num-stages", type=int, default=3, help="of FILE.py:KERNEL")
    parser.add_argument("--target", default=None, help=f"(default: the module's, or {DEFAULT})")


def load_module(args: argparse.Namespace, source: str) -> Module:
    """The module in FILE.tir or of FILE.py:KERNEL. Raises TilecError."""
    file, _, name = source.rpartition(":")
    if file.endswith(".py"):
        if args.signature is None:
            raise ToolError(f"{source} needs its --signature")
        fn = load(Path(file), name)
        signature, constexprs = split_signature(fn, args.signature)
        return specialized(fn, signature, constexprs, args.target, num_warps=args.num_warps,
                           num_stages=args.num_stages, num_ctas=args.num_ctas).build()
    if not source.endswith(".tir"):
        raise ToolError(f"{source}: expected a .tir file or FILE.py:KERNEL")
    module = parse(read_text(source), source)
    verify(module)
    return kernel_of(module, args.func)


def _cases(args: argparse.Namespace, module: Module, target: Target) -> list[Case]:
    """The one that is given; else one made for bisection, some for a comparison."""
    tolerance = Tolerance(ULPS, args.rtol, args.atol)
    func = function(module, args.func)
    if args.arg or not func.args:
        given = typed(func, list(map(argument, args.arg)))
        return [Case(args.func, Inputs(given, grid_of(args.grid or "1"), args.seed), tolerance)]
    first = args.seed or 0
    made = [made_case(module, args.func, seed, tolerance, None if args.same else target)
            for seed in range(first, first + (COMPARED if args.same else 1))]
    return made if args.grid is None else \
        [replace(c, inputs=c.inputs._replace(grid=grid_of(args.grid))) for c in made]


def _compare(cases: Sequence[Case], a: Module, b: Module) -> int:
    found = [case.same(a, b) for case in cases]
    bits, ring = (next(filter(None, column), None) for column in zip(*found))
    if ring:
        print(f"tilec-bisect: the kernels compute something else: {(bits or ring).what}")
    elif bits:
        print(f"tilec-bisect: the kernels compute the same but for roundings: {bits.what}")
    else:
        print("tilec-bisect: the kernels compute the same, bit for bit")
    return int(ring is not None)


def bisect(module: Module, target: Target, case: Case, passes: str | None = None) -> Change | None:
    """The first step after which the result changes, None if none does; prints a line for each.

    module: is transformed. passes: to run instead of the pipeline from the module's level on.
    Raises TilecError where the module as it is fails on this input.
    """
    chosen = [s.run for s in PIPELINE] if passes is None else parse_pipeline(passes)
    made = Compiled(target, Options())
    given = module.level
    want: list[Any] | None = None
    before = llir = ""
    try:
        for number, name, level, content in _steps(module, target, passes, chosen, made):
            if level == "llir":
                llir = str(content)
                continue
            runs: Any = noted(content, made.maps, "//") if isinstance(content, str) else content
            if level == "lowered" and not _settled(given, chosen[:number], chosen[number:]):
                runs = with_barriers(runs)
            found = None if want is None else case.change(want, runs, made.shared)
            want = case.run(runs) if want is None else want
            print(f"{number:02} {name:28} {level:8} {'CHANGED' if found else 'same'}")
            if found and level == "ptx":
                plain = noted(emit_ptx(llir, target, opt_level=0, isolated=True), made.maps, "//")
                culprit = "llir" if case.change(want, plain, made.shared) else "ptx"
                return Change(number, f"code generation ({culprit})", "", found.what, before)
            if found:
                assert isinstance(runs, Module)
                what = found.what + case.blamed(parse(before), runs, found)
                return Change(number, f"pass `{name}`", str(chosen[number - 1]), what, before)
            if isinstance(content, Module):
                before = print_module(content, locations=True)
    except (PassFailure, InternalError, IRError) as e:
        if isinstance(e, PassFailure) and e.index <= len(chosen):
            at = chosen[e.index - 1]
            return Change(e.index, f"pass `{at.name}`", str(at), str(e), before)
        return Change(len(PIPELINE) + 1, "code generation", "", str(e), before)
    return None


def _steps(module: Module, target: Target, passes: str | None, chosen: Sequence[Pass],
           made: Compiled) -> Iterator[Stage]:
    given = module.level
    start = next(i for i in range(len(PIPELINE) + 1) if stage_level(i) == given)
    if passes is not None:
        yield Stage(0, "input", module.level, module)
        for i, p in enumerate(chosen, 1):
            try:
                p.run(module)
                verify(module)
            except (CompilationError, OutOfResources):
                raise
            except Exception as e:
                raise PassFailure(i, f"pass `{p.name}`", e) from e
            yield Stage(i, p.name, module.level, module)
        if module.level != "lowered" or not _settled(given, chosen, ()):
            return
        start = len(PIPELINE)
    for stage in stages(module, target, start=start, stop_at="ptx", keep=made, verify_all=True):
        if passes is None or stage.number > start:
            yield stage


def _settled(given: str, done: Sequence[Pass], rest: Sequence[Pass]) -> bool:
    """Whether a lowered module, made of one at level `given`, has its barriers."""
    before, after = (any(p.name == "insert_barriers" for p in part) for part in (done, rest))
    return not after and (before or given == "lowered")


def _write(found: Change, module: Module, args: argparse.Namespace) -> tuple[Path, str]:
    """Leave the reproducer; its path and the command that shows the change."""
    name = found.passes.partition("{")[0] or "codegen"
    folder = output_folder(args, args.file[0])
    path = folder / f"{module.funcs[0].name}-before-{found.number:02}-{name}.tir"
    words = ["tilec-bisect", str(path), f"--passes={found.passes}"]
    words += [f"--arg={a}" for a in args.arg]
    words += [f"--{k}={getattr(args, k)}"
              for k in ("grid", "func", "seed", "target", "rtol", "atol")
              if getattr(args, k) not in (None, "")]
    command = shlex.join(words)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"// {command}\n{found.before}")
    return path, command


if __name__ == "__main__":
    sys.exit(main())
