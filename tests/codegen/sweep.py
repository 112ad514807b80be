"""Compiles dots of every dtype, and tiles that go through shared memory, for targets; run as a
process of its own.

LLVM ends the process on what it cannot select, so each case is named before it is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import cycle, islice, product
from typing import Any

import tilec
import tilec.language as tl
from tests.codegen.kernels import DTYPES
from tilec import knobs

# operand, accumulator, input_precision
DOTS = [("fp16", "fp32", "tf32"), ("fp16", "fp16", "tf32"), ("bf16", "fp32", "tf32"),
        ("fp8e4nv", "fp32", "tf32"), ("fp8e4nv", "fp16", "tf32"),
        ("fp8e5", "fp32", "tf32"), ("fp32", "fp32", "tf32"), ("fp32", "fp32", "tf32x3"),
        ("fp32", "fp32", "ieee"), ("fp64", "fp64", "ieee"), ("i8", "i32", "tf32")]
SHAPES = [(16, 16, 16), (32, 32, 32), (64, 48, 32), (24, 40, 48)]
TILES = [(32, 64), (64, 16), (24, 40), (128, 8)]
NAMES = {"f16": "fp16", "f32": "fp32", "f64": "fp64", "f8e4m3": "fp8e4nv", "f8e5m2": "fp8e5"}


@tilec.jit
def dot(a_ptr, b_ptr, c_ptr, rounds, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
        A_COLUMNS: tl.constexpr, B_COLUMNS: tl.constexpr, PRECISION: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    acc = tl.zeros((M, N), c_ptr.dtype.element_ty)
    for i in range(rounds):
        if A_COLUMNS:
            a = tl.trans(tl.load(a_ptr + i * M * K + k[:, None] * M + m[None, :]))
        else:
            a = tl.load(a_ptr + i * M * K + m[:, None] * K + k[None, :])
        if B_COLUMNS:
            b = tl.trans(tl.load(b_ptr + i * K * N + n[:, None] * K + k[None, :]))
        else:
            b = tl.load(b_ptr + i * K * N + k[:, None] * N + n[None, :])
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=c_ptr.dtype.element_ty)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc)


@tilec.jit
def transpose(x_ptr, o_ptr, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :])
    tl.store(o_ptr + n[:, None] * M + m[None, :], tl.trans(x))


def cases() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], int]]:
    """(name, kernel, signature, constexprs, warps); the last vary with the case."""
    options = product(DOTS, SHAPES, (False, True), (False, True))
    for i, ((element, total, precision), (m, n, k), left, right) in enumerate(options):
        yield (f"dot {element} {total} {precision} {m}x{n}x{k} {left:d}{right:d}", dot,
               {"a_ptr": f"*{element}:16", "b_ptr": f"*{element}:16", "c_ptr": f"*{total}:16",
                "rounds": "i32"},
               {"M": m, "N": n, "K": k, "A_COLUMNS": left, "B_COLUMNS": right,
                "PRECISION": precision}, (1, 4, 2, 8)[i // 4 % 4])
    for i, (dtype, (m, n)) in enumerate(product(DTYPES, TILES)):
        kind = f"*{NAMES.get(dtype, dtype)}:16"
        yield (f"transpose {dtype} {m}x{n}", transpose, {"x_ptr": kind, "o_ptr": kind},
               {"M": m, "N": n}, (4, 1, 8, 2)[i % 4])


def main() -> None:
    """Every `step`th case, for the targets in turn; down to a cubin where "link" is given."""
    targets, step, *link = sys.argv[1:]
    turns = cycle(targets.split(","))
    with knobs.scope(cache=False):
        for name, kernel, signature, constexprs, warps in islice(cases(), 0, None, int(step)):
            target = next(turns)
            print(target, name, end=": ", flush=True)
            try:
                made = tilec.compile(kernel, signature, constexprs, target=target, num_warps=warps)
                made.lower("cubin" if link else "ptx")
            except tilec.CompilationError as refused:
                assert refused.loc is not None and __file__ in refused.loc.file
                print("refused,", refused.message, flush=True)
            else:
                print("ok", flush=True)


if __name__ == "__main__":
    main()
