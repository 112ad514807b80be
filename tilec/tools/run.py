"""tilec-run: run textual IR of any level, LLVM IR and PTX included, on the CPU."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilec import knobs, sim
from tilec.codegen.llvm import emit_ptx
from tilec.codegen.lower import symbol
from tilec.compiler import compile_from
from tilec.errors import SimulatorError, ToolError, did_you_mean
from tilec.eval.dtypes import DType, dtype_of
from tilec.interp.run import run as interpret
from tilec.ir.core import Func, Module
from tilec.ir.parser import parse
from tilec.ir.tensor_maps import recipes
from tilec.ir.types import SCALARS, Scalar
from tilec.ir.verifier import verify
from tilec.knobs import RUN_LEVELS
from tilec.language.dtypes import from_name
from tilec.runtime.maps import makers, noted, of_text
from tilec.target import DEFAULT, Target
from tilec.tools.command import number, read_text, tool

MAX_SHARED, MAX_THREADS = 1 << 18, 1024  # of a CTA, more bytes than any target has
MAX_ARRAY = 1 << 30  # bytes
MAX_RANK = 8
MAX_PROGRAMS = 1 << 24  # that a CPU comes to the end of

ARG_HELP = """an argument, in order: a number (7, 0.5, true), an array SHAPE:DTYPE[:FILL] such as
16x64:fp32:0 (FILL: a seed for normally distributed or, for integers, uniform values in -100..100;
zeros; ones; arange; nan), or @FILE.npy"""


@tool("tilec-run")
def main(argv: Sequence[str] | None = None) -> int:
    """The console entry; exit status 0, or 1 with a message on stderr."""
    args = _parser().parse_args(argv)
    arrays = [argument(text) for text in args.arg]
    before = copied(arrays)
    run_file(Path(args.file), args.func, arrays, args.grid, seed=args.seed, target=args.target,
             shared=args.shared, threads=args.threads, level=args.level)
    show(before, arrays, args.all)
    if args.save:
        saved: dict[str, Any] = {f"arg{i}": a for i, a in enumerate(arrays)
                                 if isinstance(a, np.ndarray)}
        np.savez(args.save, **saved)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tilec-run", description=__doc__)
    parser.add_argument("file", help="a .tir, .ll or .ptx file")
    add_launch_options(parser)
    parser.add_argument("--shared", type=number(0, MAX_SHARED), default=None,
                        help="bytes of dynamic shared memory (.ll, .ptx; default: the most)")
    parser.add_argument("--threads", type=number(1, MAX_THREADS), default=None,
                        help="threads a CTA (.ll, .ptx without .reqntid)")
    parser.add_argument("--target", default=DEFAULT, help="for .ll and --level")
    parser.add_argument("--level", choices=RUN_LEVELS[1:], default=None,
                        help="compile a .tir file down to this level before running it")
    parser.add_argument("--save", metavar="FILE.npz", help="save all arrays")
    parser.add_argument("--all", action="store_true", help="print arrays that did not change too")
    return parser


def add_launch_options(parser: argparse.ArgumentParser, grid: str | None = "1") -> None:
    """What to run, and on what: --func, --arg, --grid (with this default), --seed."""
    parser.add_argument("--func", "--kernel", default="", help="the kernel (default: the only one)")
    parser.add_argument("--arg", action="append", default=[], metavar="ARG", help=ARG_HELP)
    parser.add_argument("--grid", default=grid, help="programs, such as 8 or 8,2,1")
    parser.add_argument("--seed", type=number(0, (1 << 63) - 1), default=None,
                        help="of the order of programs, warps")


def copied(arrays: Sequence[Any]) -> list[Any]:
    """The arguments, with copies of the arrays."""
    return [a.copy() if isinstance(a, np.ndarray) else a for a in arrays]


def show(before: Sequence[Any], after: Sequence[Any], everything: bool = False) -> None:
    """Print the arrays that have changed, or every one."""
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        if isinstance(new, np.ndarray) and (everything or old.tobytes() != new.tobytes()):
            print(f"arg {i}: {'x'.join(map(str, new.shape))} {new.dtype}\n{new}")


def run_file(path: Path, func: str, arrays: Sequence[Any], grid: str, *, seed: int | None = None,
             target: str = DEFAULT, shared: int | None = None, threads: int | None = None,
             level: str | None = None) -> None:
    """Run one file on `arrays`, in place. Raises TilecError."""
    if path.suffix not in (".tir", ".ll", ".ptx"):
        raise ToolError(f"{path}: expected a .tir, .ll or .ptx file")
    if level and path.suffix != ".tir":
        raise ToolError(f"{path}: --level is for .tir files")
    extents = grid_of(grid)
    chosen = Target.parse(target)
    text = read_text(path)
    if path.suffix == ".tir":
        module = parse(text, str(path))
        verify(module)
        if level is not None:
            module = kernel_of(module, func)
        if level != "ptx":
            if level is not None:
                compile_from(module, chosen, level)
            execute(module, func, arrays, extents, seed=seed)
            return
        arrays = typed(module.funcs[0], arrays)
        made = compile_from(module, chosen, level)
        text, func = noted(made.ptx, made.maps, "//"), func and symbol(func)
        shared = made.shared if shared is None else shared
    elif path.suffix == ".ll":
        text = noted(emit_ptx(text, chosen, isolated=True), of_text(text), "//")
    try:
        execute(text, func, arrays, extents, seed=seed, threads=threads,
                shared=chosen.max_shared if shared is None else shared)
    except SimulatorError as e:
        e.message = f"{path}: {e.message}"
        raise


def typed(func: Func, args: Sequence[Any]) -> list[Any]:
    """The arguments, with numbers for float parameters narrower than 32 bits in their type, which
    PTX does not name."""
    out = list(args)
    with np.errstate(over="ignore"):
        for i, parameter in enumerate(func.args[:len(out)]):
            t = parameter.type
            narrow = isinstance(t, Scalar) and t.is_float and t.bits < 32
            if narrow and isinstance(out[i], int | float):
                out[i] = dtype_of(t).type(out[i])
    return out


def execute(content: Module | str, func: str, arrays: Sequence[Any], grid: tuple[int, int, int], *,
            seed: int | None = None, threads: int | None = None, shared: int = 0,
            notes: bool = True) -> None:
    """Run a module, or PTX, on `arrays`, in place; `notes` says whether the interpreter makes some.
    Raises TilecError."""
    if isinstance(content, Module):
        name = pick(func, [f.name for f in content.funcs])
        made = recipes(next(f for f in content.funcs if f.name == name))
        maps = [maker.on_host(arrays, grid) for maker in makers(made)]
        interpret(content, name, [*arrays, *maps], grid, seed, notes=notes)
    else:
        parsed = sim.parse(content)
        maps = [maker.in_simulator(arrays, grid) for maker in makers(of_text(content))]
        sim.run(parsed, pick(func, list(parsed.kernels)), [*arrays, *maps], grid, threads,
                shared_bytes=shared, seed=seed, check=knobs.check == "1")


def kernel_of(module: Module, func: str) -> Module:
    """A module of the function `func` alone, or of the only one. Raises ToolError."""
    name = pick(func, [f.name for f in module.funcs])
    return Module([f for f in module.funcs if f.name == name], module.attributes)


def pick(func: str, names: list[str]) -> str:
    """`func`, or the only name where it is empty. Raises ToolError."""
    if not func and len(names) == 1:
        return names[0]
    if func not in names:
        wanted = f"no kernel `{func}`" if func else "no kernel is named" if names else "no kernel"
        raise ToolError(f"{wanted}; the file has {', '.join(names) or 'none'}", None,
                        did_you_mean(func, names) or (names and "name one with --func") or "")
    return func


def grid_of(text: str) -> tuple[int, int, int]:
    """The extents that a --grid stands for. Raises ToolError."""
    try:
        parts = tuple(int(p) for p in text.replace("x", ",").split(","))
    except ValueError:
        parts = ()
    if not 1 <= len(parts) <= 3 or min(parts) < 0:
        raise ToolError(f"--grid is {text!r}, expected 1 to 3 numbers such as 8,2")
    x, y, z = (*parts, 1, 1)[:3]
    if x * y * z > MAX_PROGRAMS:
        raise ToolError(f"--grid is {text!r}: {x * y * z} programs, at most {MAX_PROGRAMS} run "
                        "on a CPU")
    return x, y, z


def argument(text: str) -> Any:
    """The value that an --arg stands for. Raises ToolError, naming the form expected."""
    if text.startswith("@"):
        return _loaded(text)
    if ":" not in text:
        return _number(text)
    shape_text, _, rest = text.partition(":")
    dtype_text, _, fill = rest.partition(":")
    try:
        shape = tuple(int(n) for n in shape_text.split("x"))
    except ValueError:
        shape = (-1,)
    if min(shape) < 0:
        raise ToolError(f"--arg {text}: `{shape_text}` is no shape", None,
                        "write it as 16x64:fp32:0")
    element = SCALARS.get(dtype_text) or from_name(dtype_text).ir
    if not isinstance(element, Scalar):
        raise ToolError(f"--arg {text}: no array has elements of type `{dtype_text}`")
    if len(shape) > MAX_RANK or math.prod(shape) * element.bytes > MAX_ARRAY:
        raise ToolError(f"--arg {text}: expected at most {MAX_RANK} dimensions and "
                        f"{MAX_ARRAY >> 20} MiB")
    return filled(shape, dtype_of(element), fill or "0")


def _loaded(text: str) -> Any:
    try:
        array = np.load(text[1:])
    except OSError:
        raise
    except Exception as e:  # the file may hold anything, and numpy has many words for it
        raise ToolError(f"--arg {text}: {e}") from None
    if not isinstance(array, np.ndarray):
        raise ToolError(f"--arg {text}: expected a .npy file, with one array")
    return array


def _number(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (lambda t: int(t, 0), float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise ToolError(f"--arg {text}: no number, no SHAPE:DTYPE:FILL, no @FILE")


def filled(shape: tuple[int, ...], dtype: DType, fill: str) -> Any:
    """An array with the content that a FILL word or seed stands for."""
    match fill:
        case "zeros" | "ones":
            return np.full(shape, fill == "ones").astype(dtype)
        case "arange":
            return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
        case "nan" if dtype.kind not in "iub":
            return np.full(shape, np.nan).astype(dtype)
    try:
        rng = np.random.default_rng(int(fill))
    except ValueError:
        raise ToolError(f"`{fill}` fills no array", None,
                        "give a seed, zeros, ones, arange or nan") from None
    if dtype.kind in "iub":
        low = 0 if dtype.kind in "ub" else -100
        return rng.integers(low, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


if __name__ == "__main__":
    sys.exit(main())
