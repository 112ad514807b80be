"""tilec-compile: compile a kernel of a Python file ahead of time, without a GPU."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilec.codegen.cubin import available
from tilec.errors import TilecError, ToolError, did_you_mean
from tilec.frontend.function import Function
from tilec.runtime.aot import compile as compile_kernel
from tilec.runtime.kernel import CompiledKernel
from tilec.runtime.maps import noted
from tilec.target import DEFAULT
from tilec.tools.command import tool

SUFFIXES = {"tile": "tile.tir", "gpu": "gpu.tir", "lowered": "lowered.tir", "llir": "ll",
            "ptx": "ptx", "cubin": "cubin"}


@tool("tilec-compile")
def main(argv: Sequence[str] | None = None) -> int:
    """The console entry; exit status 0, or 1 with a message on stderr."""
    args = _parser().parse_args(argv)
    kernel = _compile(args)
    written = write(kernel, Path(args.output))
    print("\n".join(str(p) for p in written))
    if not available():
        print("tilec-compile: no cubin, as nvJitLink is not installed (NVIDIA ships it for Linux "
              "and Windows: pip install cuda-python nvidia-nvjitlink)", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tilec-compile", description=__doc__)
    parser.add_argument("kernel", metavar="FILE.py:KERNEL")
    parser.add_argument("--signature", required=True, help=(
        'types in the order of the parameters, numbers for constexprs: "*fp32:16, *fp32, i32, '
        '1024"; or by name: "x_ptr=*fp32, n=i32, BLOCK=1024"'))
    parser.add_argument("--target", default=DEFAULT)
    parser.add_argument("--num-warps", type=int, default=4)
    parser.add_argument("--num-stages", type=int, default=3)
    parser.add_argument("--num-ctas", type=int, default=1, help="programs a cluster")
    parser.add_argument("-o", "--output", required=True, metavar="DIR")
    return parser


def _compile(args: argparse.Namespace) -> CompiledKernel:
    file, _, name = args.kernel.rpartition(":")
    if not file:
        raise ToolError(f"`{args.kernel}` names no kernel", None, "write it as FILE.py:KERNEL")
    fn = load(Path(file), name)
    signature, constexprs = split_signature(fn, args.signature)
    # Whoever launches these files has the author's arguments, and no other kernel for odd ones.
    return compile_kernel(fn, signature, constexprs, args.target, num_warps=args.num_warps,
                          num_stages=args.num_stages, num_ctas=args.num_ctas, find_boxes=False)


def load(path: Path, name: str) -> Function:
    """The jit function `name` of a Python file, which is executed. Raises ToolError."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ToolError(f"{path} is no Python file" if path.exists() else f"{path} is not there",
                        None, "name a .py file with a kernel in it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    folder = str(path.parent.resolve())
    if folder not in sys.path:  # as when the file is run as a script
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except TilecError:
        raise
    except (Exception, SystemExit) as e:  # the user's own file may raise anything
        raise ToolError(f"{path} fails when imported: {type(e).__name__}: {e}") from e
    finally:
        sys.path.pop(0)
    found = getattr(module, name, None)
    found = getattr(found, "base", found)  # of a kernel with a tuner around it
    if not isinstance(found, Function):
        kernels = [k for k, v in vars(module).items() if isinstance(v, Function)]
        raise ToolError(f"{path} has no kernel `{name}`", None, did_you_mean(name, kernels) or
                        f"it has {', '.join(kernels) or 'none'}")
    return found


def split_signature(fn: Function, text: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Types and constants out of a signature text. Raises ToolError."""
    outside = re.split(r",(?![^<]*>)", text)  # the commas in tensordesc<bf16[4, 8]> stay
    parts = [p.strip() for p in outside if p.strip()]
    signature: dict[str, str] = {}
    constexprs: dict[str, Any] = {}
    names = [p.name for p in fn.params]
    if len(parts) > len(names):
        raise ToolError(f"the signature has {len(parts)} entries, `{fn.name}` has "
                        f"{len(names)} parameters: {', '.join(names)}")
    for position, part in enumerate(parts):
        name, equals, value = part.partition("=")
        name, value = (name.strip(), value.strip()) if equals else (names[position], part)
        if name in signature or name in constexprs:
            raise ToolError(f"the signature gives `{name}` twice")
        try:
            constexprs[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two: nesting
            signature[name] = value
    return signature, constexprs


def write(kernel: CompiledKernel, folder: Path) -> list[Path]:
    """Write every level to `folder`; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for level, suffix in SUFFIXES.items():
        if level == "cubin" and not available():
            continue
        path = folder / f"{kernel.name}.{suffix}"
        content = kernel.asm[level]
        if level in ("llir", "ptx"):
            content = noted(content, kernel.maps, ";" if level == "llir" else "//")
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content)
        written.append(path)
    return written


if __name__ == "__main__":
    sys.exit(main())
