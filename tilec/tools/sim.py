"""tilec-sim: run PTX in the simulator, with its checks and counters."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tilec import sim
from tilec.errors import SimulatorError, ToolError
from tilec.runtime.maps import makers, of_text
from tilec.target import DEFAULT, Target
from tilec.tools.command import number, read_text, tool
from tilec.tools.run import (
    MAX_SHARED,
    MAX_THREADS,
    add_launch_options,
    argument,
    copied,
    grid_of,
    pick,
    show,
)


@tool("tilec-sim")
def main(argv: Sequence[str] | None = None) -> int:
    """The console entry; exit status 0, or 1 with a message on stderr."""
    args = _parser().parse_args(argv)
    arrays = [argument(text) for text in args.arg]
    before = copied(arrays)
    counts = simulate(Path(args.file), args, arrays)
    if args.count != "json":
        show(before, arrays)
    if counts is not None:
        print(counts.json() if args.count == "json" else counts.table(args.by))
    return 0


def simulate(path: Path, args: argparse.Namespace, arrays: Sequence[object]) -> sim.Counts | None:
    """Run the file on `arrays`, in place. Raises TilecError, which names the file."""
    if path.suffix in (".tir", ".ll"):
        raise ToolError(f"{path}: expected a .ptx file", None, f"`tilec-run {path}` runs it")
    text = read_text(path)
    try:
        module, grid = sim.parse(text), grid_of(args.grid)
        maps = [maker.in_simulator(arrays, grid) for maker in makers(of_text(text))]
        return sim.run(module, pick(args.func, list(module.kernels)), [*arrays, *maps],
                       grid, args.block, args.shared, args.seed, check=args.check,
                       count=args.count is not None)
    except SimulatorError as e:
        e.message = f"{path}: {e.message}"
        raise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tilec-sim", description=__doc__)
    parser.add_argument("file", help="a .ptx file")
    add_launch_options(parser)
    parser.add_argument("--block", type=number(1, MAX_THREADS), default=None,
                        help="threads a CTA (default: what .reqntid says)")
    parser.add_argument("--shared", type=number(0, MAX_SHARED),
                        default=Target.parse(DEFAULT).max_shared,
                        help="bytes of dynamic shared memory (default: the most)")
    parser.add_argument("--check", action="store_true",
                        help="report races and uses of uninitialised values as well")
    parser.add_argument("--count", nargs="?", const="table", choices=("table", "json"),
                        help="print instructions and memory traffic, by line")
    parser.add_argument("--by", choices=("python", "ptx"), default="python",
                        help="the lines of the table: of the source, or of the PTX")
    return parser


if __name__ == "__main__":
    sys.exit(main())
