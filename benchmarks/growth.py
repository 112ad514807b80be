"""How compile time grows with the size of a kernel: CPU time of each part of the compiler for
families of kernels that are alike but for a size. Compiled for sm_90a, never launched.

An exponent of 1 is linear; it is that of the last step, from the size before the last to the last.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks import common
from tilec.codegen.cubin import available
from tilec.compiler import Instrument, Stage, compile_module
from tilec.errors import TilecError
from tilec.runtime.aot import specialized
from tilec.runtime.kernel import CompiledKernel

PARTS = ("front", "passes", "llir", "ptx", "cubin")


@dataclass(frozen=True)
class Family:
    """Kernels that are alike but for a size. body: the lines of the kernel of a size, which takes
    pointers x and y, an integer n and a constexpr B; options: those of all of them."""

    body: Callable[[int], list[str]]
    sizes: tuple[int, ...]
    constexprs: Callable[[int], Mapping[str, int]] = lambda size: {"B": 1024}
    options: Mapping[str, int] = field(default_factory=dict)
    signature: Mapping[str, str] = field(default_factory=lambda: {
        "x": "*fp32:16", "y": "*fp32:16", "n": "i32:16"})


def straight(size: int) -> list[str]:
    """Elementwise ops, each of the one before."""
    return ["v = tl.load(x + tl.arange(0, B))",
            *(f"v = v * {i % 7 + 2}.0 + {i % 5 + 1}.0" for i in range(size // 2)),
            "tl.store(y + tl.arange(0, B), v)"]


def loads(size: int) -> list[str]:
    """Loads at addresses a run-time stride apart, and their sum."""
    return ["i = tl.arange(0, B)", "v = tl.load(x + i)",
            *(f"v += tl.load(x + {k} * n + i)" for k in range(1, size)), "tl.store(y + i, v)"]


def pairs(size: int) -> list[str]:
    """Loads, each of which is stored."""
    return ["i = tl.arange(0, B)",
            *(f"tl.store(y + {k} * n + i, tl.load(x + {k} * n + i) + 1.0)" for k in range(size))]


def static_range(size: int) -> list[str]:
    """A loop that is written out."""
    return ["i = tl.arange(0, B)", "v = tl.zeros((B,), tl.float32)",
            f"for k in tl.static_range({size}):",
            "    v += tl.load(x + k * n + i)", "    tl.store(y + k * n + i, v)"]


def unrolled(size: int) -> list[str]:
    """A loop with so many rounds in one."""
    return ["i = tl.arange(0, B)", "v = tl.zeros((B,), tl.float32)",
            f"for k in tl.range(0, n, 1, loop_unroll_factor={size}):",
            "    v += tl.load(x + k * n + i)", "    tl.store(y + k * n + i, v)"]


def tile(size: int) -> list[str]:
    """One load, sum and store of so many elements."""
    return ["i = tl.arange(0, B)", "tl.store(y + i, tl.load(x + i) + 1.0)"]


def softmax(size: int) -> list[str]:
    """A row of so many elements."""
    return ["i = tl.arange(0, B)", "v = tl.load(x + i)", "e = tl.exp(v - tl.max(v, 0))",
            "tl.store(y + i, e / tl.sum(e, 0))"]


def ifs(size: int) -> list[str]:
    """Branches within each other, with an else each."""
    lines = ["i, v = tl.arange(0, B), 0"]
    lines += ["    " * d + f"if n > {d}:\n" + "    " * (d + 1) + f"v += {d + 3}"
              for d in range(size)]
    lines += ["    " * d + "else:\n" + "    " * (d + 1) + f"v -= n + {d}"
              for d in reversed(range(size))]
    return [*"\n".join(lines).split("\n"), "tl.store(y + i, (v + i).to(tl.float32))"]


def nested(size: int) -> list[str]:
    """Loops within each other."""
    return ["s = 0", *("    " * d + f"for i{d} in range(n):" for d in range(size)),
            "    " * size + f"s += {' + '.join(f'i{d}' for d in range(size))}",
            "tl.store(y, s.to(tl.float32))"]


def in_a_row(size: int) -> list[str]:
    """Branches one after the other."""
    return ["v = n", *(line for d in range(size) for line in (f"if n > {d}:", f"    v += {d + 3}")),
            "tl.store(y, v.to(tl.float32))"]


def dots(size: int) -> list[str]:
    """Products in one loop, of tiles of their own."""
    lines = ["i = tl.arange(0, 64)", "acc = tl.zeros((64, 64), tl.float32)", "for k in range(n):"]
    for d in range(size):
        at = f"x + {d} * n + k * 64 + i[:, None] * 64 + i[None, :]"
        lines += [f"    a{d} = tl.load({at})", f"    acc = tl.dot(a{d}, a{d}, acc)"]
    return [*lines, "tl.store(y + i[:, None] * 64 + i[None, :], acc)"]


FAMILIES: dict[str, Family] = {
    "straight line": Family(straight, (10, 100, 1000, 4000)),
    "loads, one sum": Family(loads, (10, 100, 1000)),
    "load and store pairs": Family(pairs, (10, 100, 1000)),
    "static_range": Family(static_range, (10, 100, 1000)),
    "loop_unroll_factor": Family(unrolled, (8, 64, 512)),
    "elements of a tile": Family(tile, tuple(1 << k for k in (12, 14, 16, 17, 18, 20)),
                                 lambda size: {"B": size}),
    "elements of a softmax": Family(softmax, tuple(1 << k for k in (12, 14, 16, 17, 18)),
                                    lambda size: {"B": size}),
    "if/else, deep": Family(ifs, (1, 4, 8, 16, 32)),
    "ifs in a row": Family(in_a_row, (10, 100, 400)),
    "nested loops": Family(nested, (1, 5, 10, 14, 19)),
    "dots in one loop": Family(dots, (1, 4, 16, 64), signature={
        "x": "*bf16:16", "y": "*fp32:16", "n": "i32:16"}),
}


def kernel(name: str, size: int, folder: Path) -> CompiledKernel:
    """The kernel of a family, not compiled yet; its source goes to a file of `folder`."""
    family = FAMILIES[name]
    return written(family.body(size), family.signature,
                   folder / f"{''.join(filter(str.isalnum, name))}_{size}.py",
                   family.constexprs(size), family.options)


def written(body: Sequence[str], signature: Mapping[str, str], path: Path,
            constexprs: Mapping[str, int] = MappingProxyType({"B": 64}),
            options: Mapping[str, int] = MappingProxyType({})) -> CompiledKernel:
    """A kernel of these lines, not compiled yet; its source goes to `path`."""
    lines = "\n".join("    " + line for line in "\n".join(body).split("\n"))
    path.write_text("import tilec\nimport tilec.language as tl\n\n\n@tilec.jit\n"
                    f"def kernel(x, y, n, B: tl.constexpr):\n{lines}\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return specialized(module.kernel, signature, constexprs, "sm_90a", **options)


class Clock(Instrument):
    """CPU milliseconds of the parts of a compilation."""

    def __init__(self) -> None:
        self.ms = dict.fromkeys(PARTS, 0.0)
        self.now = time.process_time()

    def after(self, stage: Stage, seconds: float) -> None:
        """Count the time since the stage before."""
        part = stage.level if stage.level in PARTS else "passes" if stage.number else "front"
        now = time.process_time()
        self.ms[part] += (now - self.now) * 1e3
        self.now = now


def measure(made: CompiledKernel) -> tuple[dict[str, float], str]:
    """CPU milliseconds of each part, and why the kernel was refused, if it was."""
    clock, refusal = Clock(), ""
    try:
        compile_module(made.build, made.target, made.options, instruments=[clock],
                       stop_at="cubin" if available() else "ptx")
    except TilecError as e:
        refusal = e.message.partition("\n")[0]
    spent = (time.process_time() - clock.now) * 1e3
    clock.ms["passes"] += spent  # of a refusal, by the pass that it is of
    return clock.ms, refusal


def rows_of(name: str, sizes: Sequence[int], folder: Path) -> list[tuple[str, ...]]:
    """The table's rows of a family."""
    rows, before = [], (0, 0.0)
    for size in sizes:
        ms, refusal = measure(kernel(name, size, folder))
        total = sum(ms.values())
        exponent = f"{math.log(total / before[1]) / math.log(size / before[0]):.2f}" \
            if before[0] and not refusal else ""
        before = size, total
        rows.append((name, str(size), *(f"{ms[p]:.0f}" for p in PARTS), f"{total:.0f}",
                     refusal or exponent))
        print(*rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="families whose name contains this")
    parser.add_argument("--most", type=int, default=1 << 62, help="the largest size")
    common.add_output_flag(parser)
    flags = parser.parse_args()
    rows: list[tuple[Any, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        measure(kernel("straight line", 10, Path(folder)))  # libraries load
        for name in FAMILIES:
            if flags.only in name:
                sizes = [s for s in FAMILIES[name].sizes if s <= flags.most]
                rows += rows_of(name, sizes, Path(folder))
    body = "Milliseconds of CPU time, one run each; for sm_90a, 4 warps.\n\n"
    common.report("growth", "Growth of compile time", body + common.table(
        ["kernels", "size", *PARTS, "all", "exponent, or why it is refused"], rows), flags.output)


if __name__ == "__main__":
    main()
