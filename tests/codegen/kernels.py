"""Kernels as `lowered` text, run in the PTX simulator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import ml_dtypes
import numpy as np

from tilec import sim
from tilec.codegen.llvm import emit_ptx
from tilec.codegen.lower import LLIR, to_llir
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.scratch import scratch_bytes
from tilec.ir.verifier import verify
from tilec.target import Target

DTYPES = {"i1": np.dtype(bool), "f16": np.dtype("f2"), "bf16": np.dtype(ml_dtypes.bfloat16),
          "f32": np.dtype("f4"), "f64": np.dtype("f8"),
          "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
          **{f"i{b}": np.dtype(f"i{b // 8}") for b in (8, 16, 32, 64)},
          **{f"u{b}": np.dtype(f"u{b // 8}") for b in (8, 16, 32, 64)}}
INTS = [n for n in DTYPES if n[0] in "iu" and n != "i1"]
FLOATS = ["f16", "bf16", "f32", "f64"]
FP8 = ["f8e4m3", "f8e5m2"]
TARGETS = ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"]
FLAT = "blocked<{sizePerThread = [2], threadsPerWarp = [32], warpsPerCTA = [2], order = [0]}>"


def blocked(size: Sequence[int], lanes: Sequence[int], warps: Sequence[int],
            order: Sequence[int]) -> str:
    """The text of a blocked layout."""
    return (f"blocked<{{sizePerThread = {list(size)}, threadsPerWarp = {list(lanes)}, "
            f"warpsPerCTA = {list(warps)}, order = {list(order)}}}>")


def module(params: str, body: str, warps: int = 2, name: str = "k") -> Module:
    """A verified kernel; scratch memory is handed out one piece after the other."""
    text = (f'module attributes {{level = "lowered", target = "sm_90a", num_warps = {warps}}} {{\n'
            f"func @{name}({params}) {{\n{body}\nfunc.return()\n}}\n}}\n")
    m = parse(text)
    at = 0
    for op in m.walk():
        if op.name == "gpu.alloc_shared":
            t = op.results[0].type
            op.attributes["offset"], at = at, at + 1024 * -(-t.element.bytes * 2 * int(
                np.prod([1 << (n - 1).bit_length() for n in t.shape])) // 1024)
            continue
        size = scratch_bytes(op)
        if size:
            op.attributes["offset"], at = at, at + -(-size // 16) * 16
    m.attributes["shared"] = at
    verify(m)
    return m


@lru_cache(maxsize=512)
def compiled(params: str, body: str, warps: int, target: str) -> tuple[LLIR, object, str]:
    """(LLVM IR, parsed PTX, its text)."""
    llir = to_llir(module(params, body, warps), Target.parse(target))
    ptx = emit_ptx(llir.text, Target.parse(target))
    return llir, sim.parse(ptx), ptx


def launch(params: str, body: str, args: Sequence[object], grid: int = 1, warps: int = 2,
           target: str = "sm_90a", seed: int | None = None) -> str:
    """Run in place; returns what was printed."""
    llir, parsed, _ = compiled(params, body, warps, target)
    out: list[str] = []
    sim.run(parsed, llir.name, args, (grid, 1, 1), shared_bytes=llir.shared_bytes, seed=seed,
            on_print=out.append, check=True)
    return "".join(out)


def pointers(name: str, dtype: str, shape: Sequence[int], layout: str) -> str:
    """IR that makes %<name>p, pointers to a row-major tile at %<name>."""
    dims = "x".join(map(str, shape))
    lines = []
    total = None
    stride = 1
    for d in reversed(range(len(shape))):
        sliced, kept = layout, d
        for other in reversed(range(len(shape))):
            if other != d:
                sliced = f"slice<{{parent = {sliced}, dim = {other}}}>"
        del kept
        v = f"{name}{d}"
        lines.append(f"%{v} = tile.arange() {{start = 0, end = {shape[d]}}} : "
                     f"tensor<{shape[d]}xi32, {sliced}>")
        current, extents = v, [shape[d]]
        text = sliced
        for axis in range(len(shape)):
            if axis == d:
                continue
            text = text[len("slice<{parent = "):text.rindex(", dim = ")]
            at = axis
            extents = extents[:at] + [1] + extents[at:]
            new = f"{v}e{axis}"
            lines.append(f"%{new} = tile.expand_dims(%{current}) {{axis = {at}}} : tensor<"
                         f"{'x'.join(map(str, extents))}xi32, {text}>")
            current = new
        if len(shape) > 1:
            lines.append(f"%{v}b = tile.broadcast(%{current}) : tensor<{dims}xi32, {layout}>")
            current = v + "b"
        lines += [f"%{v}s = tile.constant() {{value = {stride}}} : tensor<{dims}xi32, {layout}>",
                  f"%{v}m = tile.mul(%{current}, %{v}s) : tensor<{dims}xi32, {layout}>"]
        if total is None:
            total = f"{v}m"
        else:
            lines.append(f"%{v}t = tile.add(%{total}, %{v}m) : tensor<{dims}xi32, {layout}>")
            total = f"{v}t"
        stride *= shape[d]
    lines += [f"%{name}b = tile.splat(%{name}) : tensor<{dims}xptr<{dtype}>, {layout}>",
              f"%{name}p = tile.addptr(%{name}b, %{total}) : tensor<{dims}xptr<{dtype}>, {layout}>"]
    return "\n".join(lines)


def map_tiles(op: str, ins: Sequence[str], out: str, arrays: Sequence[np.ndarray],
              layout: str = FLAT, warps: int = 2, target: str = "sm_90a") -> np.ndarray:
    """What `op`, a text in %a0, %a1, ... (types left off), gives for whole arrays."""
    n = arrays[0].size
    lines, params = [], []
    for i, dtype in enumerate([*ins, out]):
        name = f"a{i}_" if i < len(ins) else "o_"
        params.append(f"%{name}: ptr<{dtype}> {{divisibility = 16}}")
        lines.append(pointers(name, dtype, (n,), layout))
        if i < len(ins):
            lines.append(f"%a{i} = tile.load(%{name}p) : tensor<{n}x{dtype}, {layout}>")
    lines.append(f"%o = {op} : tensor<{n}x{out}, {layout}>")
    lines.append("tile.store(%o_p, %o)")
    result = np.zeros(n, DTYPES[out])
    launch(", ".join(params), "\n".join(lines), [*arrays, result], 1, warps, target)
    return result


def samples(dtype: str, n: int, seed: int = 0) -> np.ndarray:
    """Random values with all the special ones among them."""
    rng = np.random.default_rng(seed)
    kind = DTYPES[dtype]
    if dtype == "i1":
        return rng.integers(0, 2, n).astype(bool)
    raw = rng.integers(0, 256, n * kind.itemsize, dtype=np.uint8).view(kind)
    if dtype[0] in "iu":
        info = np.iinfo(kind)
        special = [0, 1, info.max, info.min, 2, 7, info.max - 1]
        raw[::3] = rng.integers(0, 16, raw[::3].shape).astype(kind)
    else:
        scale = (rng.standard_normal(n) * 4).astype(kind)
        raw = np.where(rng.integers(0, 2, n).astype(bool), raw, scale)
        limits = [-0.0, 0.0, 1.0, -1.0, 0.5, 1.5, 2.5, 3.5, -2.5]
        if dtype != "f8e4m3":
            limits += [np.inf, -np.inf]
        special = [*limits, np.nan]
    values = np.array(special, dtype=np.float64 if dtype[0] == "f" or dtype == "bf16" else kind)
    where = rng.permutation(n)[:len(special)]
    with np.errstate(all="ignore"):
        raw[where] = values.astype(kind)
    return raw
