"""tilec-opt: read textual IR, run passes on it, print what comes out.

    tilec-opt add.tir --passes='canonicalize,unroll' --print-after-all

A line `// -----` splits a file into modules that are treated one by one.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from tilec.compiler import PIPELINE, stage_level
from tilec.errors import InternalError, TilecError
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.ir.verifier import verify
from tilec.passes.base import Pass, parse_pipeline
from tilec.target import Target
from tilec.tools.command import BUG, read_text, tool

SEPARATOR = re.compile(r"^// -{5,}[ \t]*$", re.MULTILINE)


@tool("tilec-opt")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; 0 if all went well, 1 after an error in the input, 2 for wrong usage."""
    options = _arguments().parse_args(argv)
    passes = parse_pipeline(options.passes)
    target = Target.parse(options.target).name if options.target else ""
    text, name = read_text(options.file), "<stdin>" if options.file == "-" else options.file
    printed, failed = [], 0
    for piece in split(text):
        try:
            printed.append(_process(piece, name, passes, target, options))
        except TilecError as e:
            failed = max(failed, BUG if isinstance(e, InternalError) else 1)
            print(e, file=sys.stderr)
    if not options.verify_only:
        sys.stdout.write("// -----\n".join(printed))
    return failed


def split(text: str) -> list[str]:
    """The modules of a file, each behind as many newlines as keep its line numbers right."""
    pieces, start = [], 0
    for match in [*SEPARATOR.finditer(text), None]:
        end = len(text) if match is None else match.start()
        pieces.append("\n" * text.count("\n", 0, start) + text[start:end])
        start = end if match is None else match.end()
    return pieces


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tilec-opt", description="Run passes on textual IR.")
    parser.add_argument("file", help="a .tir file, or - for the standard input")
    parser.add_argument("--passes", default="", metavar="a,b{x=1}",
                        help="passes in order, with options in braces")
    parser.add_argument("--print-after-all", action="store_true",
                        help="print the module after every pass to the standard error")
    parser.add_argument("--verify-only", action="store_true", help="print nothing if all is well")
    parser.add_argument("--target", default="", metavar="sm_XX",
                        help="set the module's target before the first pass")
    parser.add_argument("--locations", action="store_true", help="print source locations")
    return parser


def _process(text: str, name: str, passes: Sequence[Pass], target: str,
             options: argparse.Namespace) -> str:
    module = parse(text, name)
    if target:
        module.attributes["target"] = target
    verify(module)
    for p in passes:
        _run(p, module)
        if options.print_after_all:
            print(f"// after {p}\n{print_module(module, options.locations)}", file=sys.stderr)
    return print_module(module, options.locations)


def _run(p: Pass, module: Module) -> None:
    """One pass, and the verifier after it. A failure is an error of the input if the pass is made
    for another level; else it is tilec's own, and names the pass."""
    before, level = print_module(module), module.level
    try:
        p.run(module)
    except TilecError:
        raise
    except Exception as e:
        _expect_level(p, level)
        raise InternalError(f"pass `{p}` failed on\n{before}{type(e).__name__}: {e}", None,
                            f"run it alone with --passes='{p}'") from e
    try:
        verify(module)
    except TilecError as e:
        _expect_level(p, level)
        raise InternalError(f"pass `{p}` broke\n{before}{e}", None,
                            f"run it alone with --passes='{p}'") from e


def _expect_level(p: Pass, level: str) -> None:
    """Raise TilecError if the pipeline runs the pass, and at other levels only."""
    levels = {stage_level(i): None for i, step in enumerate(PIPELINE) if type(step.run) is type(p)}
    if levels and level not in levels:
        raise TilecError(f"pass `{p}` failed: the module is at level {level}, expected "
                         f"{' or '.join(levels)}", None,
                         "run the passes before it too, in the order of the pipeline") from None


if __name__ == "__main__":
    sys.exit(main())
