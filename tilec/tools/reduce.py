"""tilec-reduce: shrink a kernel or module that fails to a small one that fails in the same way.

A failure is a pass that breaks, or whose result differs (as TILEC_VALIDATE finds it); with --level
a result at that level that is not the module's own; with --command, a command that ends with exit
status 0. What is left is written as .tir, and as Python where its ops have an author's spelling.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tilec.compiler import PIPELINE, compile_from, stage_level
from tilec.errors import (
    CompilationError,
    InternalError,
    IRError,
    OutOfResources,
    ScheduleError,
    TilecError,
)
from tilec.ir.core import Module
from tilec.ir.printer import print_module
from tilec.ir.verifier import verify
from tilec.knobs import RUN_LEVELS
from tilec.passes.base import Pass, parse_pipeline
from tilec.runtime.maps import noted
from tilec.runtime.validation import Tolerance, Validator
from tilec.target import DEFAULT, Target
from tilec.tools.bisect import (
    add_kernel_options,
    add_output_option,
    load_module,
    output_folder,
)
from tilec.tools.case import ULPS, function, made_case
from tilec.tools.command import tool
from tilec.tools.shrink import shrink
from tilec.tools.spell import module_of, spelled

SECONDS = 60  # that a command may take
How = Callable[[Module], str]  # in which way a module fails; empty if it does not


@tool("tilec-reduce", failure=2)
def main(argv: Sequence[str] | None = None) -> int:
    """The console entry; exit status 0 if what is left was written, 1 if the input does not fail,
    2 with a message on stderr if it cannot be read."""
    args = _parser().parse_args(argv)
    module = load_module(args, args.file)
    module.funcs = [function(module, args.func)]
    if args.target:
        module.attributes["target"] = Target.parse(args.target).name
    how = _how(args, module)
    failure = how(module)
    if not failure:
        print("tilec-reduce: nothing fails")
        return 1
    print(f"tilec-reduce: {_count(module)} ops: {failure}", flush=True)
    reduced = shrink(module, lambda m: how(m) == failure)
    paths = _write(reduced, lambda m: how(m) == failure, args)
    print(f"tilec-reduce: {_count(reduced)} ops are left, in {' and '.join(map(str, paths))}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tilec-reduce", description=__doc__)
    parser.add_argument("file", metavar="FILE.tir|FILE.py:KERNEL")
    parser.add_argument("--func", "--kernel", default="", help="the kernel (default: the only one)")
    add_kernel_options(parser)
    parser.add_argument("--passes", help="run these passes, not the pipeline from the file's level")
    parser.add_argument("--level", choices=RUN_LEVELS[1:], help="compare the result at this level")
    parser.add_argument("--command", help="a command, with {} for the file: status 0 if it fails")
    add_output_option(parser)
    return parser


def _how(args: argparse.Namespace, module: Module) -> How:
    if args.command:
        return lambda m: _by_command(m, args.command)
    if args.level:
        return lambda m: _at_level(m, args.level)
    start = next(i for i in range(len(PIPELINE) + 1) if stage_level(i) == module.level)
    passes = [s.run for s in PIPELINE[start:]] if args.passes is None else \
        parse_pipeline(args.passes)
    return lambda m: by_passes(m, passes)


def by_passes(module: Module, passes: Sequence[Pass]) -> str:
    """How the first pass that fails does so; empty if none does, or the module is refused."""
    module = module.clone()
    names = [p.name for p in passes]
    lacks = module.level != "lowered" or "insert_barriers" in names  # barriers of its own
    validator = Validator(module, module.funcs[0].name, lacks)
    for i, p in enumerate(passes):
        try:
            p.run(module)
            verify(module)
        except (CompilationError, OutOfResources, ScheduleError):
            return ""
        except Exception as e:
            return f"pass `{p.name}` breaks: {type(e).__name__}"
        found = validator.step(p, module, lacks and "insert_barriers" not in names[:i + 1])
        if found is not None:
            what = "computes" if "computes: " in found.message else "does"
            return f"pass `{p.name}` changes what the kernel {what}"
    return ""


def _at_level(module: Module, level: str) -> str:
    target = Target.parse(str(module.attributes.get("target", DEFAULT)))
    lowered = module.clone()
    try:
        case = made_case(module, "", None, Tolerance(ULPS), target)
        made = compile_from(lowered, target, level)
        content = noted(made.ptx, made.maps, "//") if level == "ptx" else lowered
        found = case.change(case.run(module), content, made.shared)
    except InternalError as e:
        return f"it does not compile to {level}: {e.message.partition(':')[0]}"
    except TilecError:
        return ""
    return "" if found is None else f"the result at level {level} differs"


def _by_command(module: Module, command: str) -> str:
    with tempfile.TemporaryDirectory(prefix="tilec-") as folder:
        path = Path(folder) / "reduced.tir"
        path.write_text(print_module(module, locations=True))
        try:
            ended = subprocess.run(command.replace("{}", shlex.quote(str(path))), shell=True,
                                   capture_output=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return ""
    return "" if ended.returncode else f"`{command}` ends with status 0"


def _count(module: Module) -> int:
    return sum(1 for _ in module.walk())


def _write(module: Module, fails: Callable[[Module], bool], args: argparse.Namespace) -> list[Path]:
    name = module.funcs[0].name
    words = [f"--{k}={v}" for k in ("passes", "level", "command")
             if (v := getattr(args, k)) is not None]
    folder = output_folder(args, args.file)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}-reduced.tir"]
    command = shlex.join(["tilec-reduce", str(paths[0]), *words])
    paths[0].write_text(f"// {command}\n{print_module(module, locations=True)}")
    python = spelled(module)
    try:
        if python is not None and fails(module_of(python, module)):
            paths.append(folder / f"{name}-reduced.py")
            command = shlex.join(["tilec-reduce", f"{paths[1]}:{name}", *words,
                                  f"--signature={python.signature}",
                                  f"--num-warps={module.num_warps}"])
            paths[1].write_text(f"# {command}\n{python.source}")
    except (TilecError, IRError):
        pass  # what an author can write differs from it: the .tir stands alone
    return paths


if __name__ == "__main__":
    sys.exit(main())
