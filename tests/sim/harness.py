"""Builds a kernel around a few PTX lines and runs them on arrays, one element a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tilec import sim

Array = np.ndarray[Any, Any]
LANES = 256
_BITS = {"pred": 8}
_WIDTHS = {"f16": (16, 5), "bf16": (16, 8), "f32": (32, 8), "f64": (64, 11), "e4m3": (8, 4),
           "e5m2": (8, 5)}
"""Bits of a float format, and of its exponent."""


class Form(NamedTuple):
    """An instruction form: its text over %a %b %c %g (sources) and %d %e (results).

    Types are b16, b32, b64, or pred; `reference` maps source bits (Python ints) to a result, or a
    tuple of results. `tolerance` is relative, on float results named by `kind`.
    """

    text: str
    outs: tuple[str, ...]
    ins: tuple[str, ...]
    reference: Any
    data: Any = None
    kind: str = ""
    tolerance: float = 0.0


def width(ty: str) -> int:
    """Bits of a harness type in memory."""
    return _BITS.get(ty) or int(ty[1:])


def kernel_text(text: str, outs: Sequence[str], ins: Sequence[str], block: int = LANES) -> str:
    """A kernel that loads each source, runs `text`, and stores each result."""
    names, results = "abcg", "de"
    params = ", ".join(f".param .u64 p{i}" for i in range(len(outs) + len(ins)))
    lines = [
        ".version 8.7", ".target sm_90a", ".address_size 64",
        f".visible .entry k({params})", f".reqntid {block}", "{",
        ".reg .b64 %t<8>; .reg .b16 %h<4>; .reg .pred %p, %q; .reg .b32 %tid;",
    ]  # fmt: skip
    lines += [f".reg .{ty} %{n};" for n, ty in zip(results, outs, strict=False)]
    lines += [f".reg .{ty} %{n};" for n, ty in zip(names, ins, strict=False)]
    lines.append("mov.u32 %tid, %tid.x; setp.lt.u32 %p, %tid, 7; setp.ge.u32 %q, %tid, 3;")
    for i, (name, ty) in enumerate(zip(names, ins, strict=False)):
        lines.append(f"ld.param.u64 %t0, [p{len(outs) + i}];")
        lines.append(f"mad.wide.u32 %t1, %tid, {width(ty) // 8}, %t0;")
        if ty == "pred":
            lines.append(f"ld.global.u8 %h0, [%t1]; setp.ne.u16 %{name}, %h0, 0;")
        else:
            lines.append(f"ld.global.b{width(ty)} %{name}, [%t1];")
    lines.append(text)
    for i, (name, ty) in enumerate(zip(results, outs, strict=False)):
        lines.append(f"ld.param.u64 %t0, [p{i}];")
        lines.append(f"mad.wide.u32 %t1, %tid, {width(ty) // 8}, %t0;")
        if ty == "pred":
            lines.append(f"selp.u16 %h0, 1, 0, %{name}; st.global.u8 [%t1], %h0;")
        else:
            lines.append(f"st.global.b{width(ty)} [%t1], %{name};")
    return "\n".join([*lines, "ret;", "}"])


def run_lines(
    text: str, outs: Sequence[str], inputs: Sequence[tuple[str, Array]], seed: int | None = None
) -> list[Array]:
    """Run `text` once per element of the inputs; results as unsigned integers."""
    lanes = len(inputs[0][1]) if inputs else LANES
    ptx = kernel_text(text, outs, [ty for ty, _ in inputs], lanes)
    results = [np.zeros(lanes, f"u{width(ty) // 8}") for ty in outs]
    arrays = [np.ascontiguousarray(a).view(f"u{width(ty) // 8}") for ty, a in inputs]
    sim.run(ptx, "k", [*results, *arrays], (1, 1, 1), seed=seed)
    return results


def integer_edges(bits: int) -> list[int]:
    """Small values, shift counts about a word's width, and the extremes."""
    return [0, 1, 2, 3, 31, 32, 33, (1 << bits - 1) - 1, 1 << bits - 1, (1 << bits) - 1,
            (1 << bits) - 2]  # fmt: skip


def integers(bits: int, seed: int) -> Array:
    """Edge values and random bits of all magnitudes, as unsigned integers."""
    rng = np.random.default_rng(seed)
    edges = integer_edges(bits)
    kind = np.dtype(f"u{bits // 8}")
    random = rng.integers(0, np.iinfo(np.uint64).max, LANES, dtype=np.uint64, endpoint=True)
    values = random.astype(kind) >> rng.integers(0, bits, LANES).astype(kind)
    negate = rng.random(LANES) < 0.3
    values = np.where(negate, ~values, values)
    at = rng.permutation(LANES)[: 2 * len(edges)]
    values[at] = np.array(edges * 2, dtype=np.uint64).astype(kind)
    return values.astype(kind)


def float_edges(fmt: str) -> list[int]:
    """Bits of zeros, ones, infinities, a NaN, subnormals, the smallest and largest values."""
    bits, exponent = _WIDTHS[fmt]
    fraction = bits - 1 - exponent
    one = ((1 << exponent - 1) - 1) << fraction
    infinity = ((1 << exponent) - 1) << fraction
    return [0, 1 << bits - 1, one, one | 1 << bits - 1, infinity, infinity | 1 << bits - 1,
            infinity | 1, 1, 2, (1 << fraction) - 1, 1 << fraction, infinity - 1, one + 1, one - 1,
            infinity - 1 | 1 << bits - 1]  # fmt: skip


def float_bits(fmt: str, seed: int) -> Array:
    """Bits of a float format: specials, subnormals, near values, and random ones."""
    rng = np.random.default_rng(seed)
    bits, exponent = _WIDTHS[fmt]
    fraction = bits - 1 - exponent
    one = ((1 << exponent - 1) - 1) << fraction
    edges = float_edges(fmt)
    values = rng.integers(0, np.iinfo(np.uint64).max, LANES, dtype=np.uint64, endpoint=True)
    values = (values >> np.uint64(64 - bits)).astype(np.uint64)
    # Half of the values lie near 1, where sums of two cancel and round.
    near = rng.random(LANES) < 0.5
    low = np.uint64((1 << bits - 5) - 1 if bits > 8 else 0x0F)
    values = np.where(near, (values & low & np.uint64((1 << fraction + 2) - 1)) + np.uint64(
        one - (1 << fraction)), values)  # fmt: skip
    sign = (rng.random(LANES) < 0.5).astype(np.uint64) << np.uint64(bits - 1)
    values = np.where(near, values | sign, values)
    at = rng.permutation(LANES)[: 3 * len(edges)]
    values[at] = np.array(edges * 3, dtype=np.uint64)
    return values.astype(f"u{bits // 8}")
