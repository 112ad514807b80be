"""What is mutated: the golden tests' modules, every stage of a few kernels, their LLVM IR, PTX."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import tilec
import tilec.language as tl
from tilec.compiler import stages
from tilec.errors import TilecError
from tilec.ir.core import Func
from tilec.ir.parser import parse
from tilec.ir.types import Pointer, Scalar, TensorMap
from tilec.runtime.maps import noted
from tilec.target import Target
from tilec.tools.opt import split

GOLDEN = Path(__file__).parents[1] / "lit"
TARGET = "sm_90a"


class Text(NamedTuple):
    """kind: "tir", "ll" or "ptx"; args: as tilec-run takes them."""

    kind: str
    name: str
    text: str
    args: tuple[str, ...]
    grid: str
    shared: int = 0


@tilec.jit
def scaled(x, y, n, s, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.store(y + i, tl.load(x + i, mask=m, other=0.0) * s + i, mask=m)


@tilec.jit
def softmax(x, y, n, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * n + i, mask=i < n, other=float("-inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * n + i, e / tl.sum(e, axis=0), mask=i < n)


@tilec.jit
def product(a, b, c, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BK)
    acc = tl.zeros([M, N], tl.float32)
    for at in range(0, K, BK):
        p = tl.load(a + i[:, None] * K + (at + k)[None, :])
        q = tl.load(b + (at + k)[:, None] * N + j[None, :])
        acc = tl.dot(p, q, acc)
    tl.store(c + i[:, None] * N + j[None, :], acc)


@tilec.jit
def described(x, y, h, w, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [h, w], [w, 1], [B, B])
    sink = tl.make_tensor_descriptor(y, [h, w], [w, 1], [B, B])
    at = [tl.program_id(0) * B, tl.program_id(1) * B]
    sink.store(at, source.load(at) + 1)


@tilec.jit
def counted(x, bins, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=0)
    steps = 0
    while steps < 3:
        if steps % 2 == 0:
            tl.atomic_add(bins + (v & 7), 1, mask=i < n)
        steps += 1


KERNELS: tuple[tuple[Any, dict[str, str], dict[str, int], tuple[str, ...], str], ...] = (
    (scaled, {"x": "*fp32:16", "y": "*fp32:16", "n": "i32", "s": "fp32"}, {"B": 128},
     ("200:fp32:1", "200:fp32:2", "200", "1.5"), "2"),
    (softmax, {"x": "*fp16:16", "y": "*fp16:16", "n": "i32:16"}, {"B": 64},
     ("3x48:fp16:1", "3x48:fp16:2", "48"), "3"),
    (product, {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "K": "i32:16"},
     {"M": 32, "N": 32, "BK": 16}, ("32x64:fp16:1", "64x32:fp16:2", "32x32:fp32:3", "64"), "1"),
    (described, {"x": "*i32:16", "y": "*i32:16", "h": "i32", "w": "i32:16"}, {"B": 16},
     ("20x32:i32:1", "20x32:i32:2", "20", "32"), "2,2"),
    (counted, {"x": "*i32:16", "bins": "*i32:16", "n": "i32"}, {"B": 64},
     ("100:i32:1", "8:i32:zeros", "100"), "2"))


@cache
def corpus() -> dict[str, list[Text]]:
    """All texts by kind."""
    found: dict[str, list[Text]] = {"tir": list(golden()), "ll": [], "ptx": []}
    for kernel, signature, constexprs, args, grid in KERNELS:
        made = tilec.compile(kernel, signature, constexprs, target=TARGET, num_warps=2)
        lowered = made.lower("ptx")
        for stage in stages(made.build(), Target.parse(TARGET), stop_at="lowered"):
            found["tir"].append(Text("tir", f"{kernel.__name__}/{stage.file}",
                                     re.sub(r" loc\(.*\)$", "", stage.text, flags=re.M), args,
                                     grid))
        for kind, last, comment in (("ll", lowered.llir_text, ";"), ("ptx", lowered.ptx, "//")):
            found[kind].append(Text(kind, f"{kernel.__name__}.{kind}",
                                    noted(last, lowered.maps, comment), args, grid,
                                    lowered.shared))
    return found


def golden() -> Iterator[Text]:
    """The modules of tests/lit with arguments that fit their signatures; small ones."""
    for path in sorted(GOLDEN.rglob("*.tir")):
        for i, piece in enumerate(split(path.read_text(encoding="utf-8"))):
            text = "\n".join(x for x in piece.splitlines() if not x.startswith("//"))
            if len(text) > 6000:
                continue
            try:
                funcs = parse(text).funcs
            except TilecError:
                continue
            name = f"{path.relative_to(GOLDEN)}#{i}"
            yield Text("tir", name, text, arguments(funcs[0]) if funcs else (), "1")


def arguments(func: Func) -> tuple[str, ...]:
    """Arguments for a kernel that nobody knows."""
    out = []
    for i, (arg, have) in enumerate(zip(func.args, func.arg_attrs, strict=True)):
        t = arg.type
        if isinstance(t, Pointer):
            out.append(f"65536:{t.pointee}:{i}")
        elif isinstance(t, TensorMap) and "base" not in have:
            out.append(f"{'x'.join(str(4 * n) for n in t.shape)}:{t.element}:{i}")
        elif isinstance(t, Scalar):
            out.append("1.5" if t.is_float else "true" if t.is_bool else "64")
    return tuple(out)
