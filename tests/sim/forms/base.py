"""An instruction form: a small kernel around it, its seeded inputs, and how its results compare.

Forms are run by a GPU (tests/sim/record.py) and by the simulator (tests/sim/test_recorded.py); only
the GPU's results are stored, so everything here must be the same on every machine.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.sim.harness import LANES, float_bits, float_edges, integer_edges, integers

Array = np.ndarray[Any, Any]
HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n"
POISON = 0xA5


class Match(NamedTuple):
    """How a result of the simulator may differ from the GPU's.

    Without a format not at all. With one, NaNs are alike, and other values of the format lie
    within `ulp` units in the last place, or within `relative` or `absolute`, of the GPU's; the
    signs agree, of zeros too, unless there is an absolute bound. Where the result is open for some
    inputs, `defined` tells from the inputs for which it is not.
    """

    fmt: str = ""
    ulp: int = 0
    relative: float = 0.0
    absolute: float = 0.0
    defined: Callable[[Sequence[Array]], Array] | None = None


BITS = Match()


class Form(NamedTuple):
    """One entry of the catalogue.

    `text` is the kernel (and what it needs at module scope), its entry named `entry`; its
    parameters are the addresses of the outputs, then of the inputs, then tensor maps over inputs
    or outputs. `outputs` are what the results hold before. A form with a `fault` ends in an error:
    that is the pattern of the simulator's message.
    """

    name: str
    text: str
    outputs: tuple[Array, ...]
    inputs: tuple[Array, ...]
    match: tuple[Match, ...]
    block: int
    grid: int = 1
    shared: int = 0
    maps: tuple[Any, ...] = ()
    fault: str = ""

    @property
    def entry(self) -> str:
        return entry_name(self.name)

    @property
    def checksum(self) -> int:
        """Changes with the kernel and with what it reads."""
        arrays = b"".join(np.ascontiguousarray(a).tobytes() for a in self.outputs + self.inputs)
        return zlib.crc32(arrays, zlib.crc32((self.text + repr(self.maps)).encode()))


def entry_name(name: str) -> str:
    """The name as a PTX identifier."""
    return "f_" + re.sub(r"\W", "_", name.replace("::", "_"))


def seed_of(*parts: Any) -> int:
    """A seed that depends on names alone."""
    return zlib.crc32(repr(parts).encode())


# -- inputs --------------------------------------------------------------------------------------

INTEGERS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
FLOATS = ("f16", "bf16", "f32", "f64", "e4m3", "e5m2")
KIND = {"u8": "i8", "s8": "i8", "b8": "i8", "u16": "i16", "s16": "i16", "b16": "i16", "u32": "i32",
        "s32": "i32", "b32": "i32", "u64": "i64", "s64": "i64", "b64": "i64", "u16x2": "i32",
        "s16x2": "i32", "tf32": "f32"}
"""The kind of data of a PTX type; the float types name their own."""
NEAR = {"f32tiny": 0x00800000, "f32unit": 0x3F7FFFF8, "f16tiny": 0x0400, "f16unit": 0x3BF8}
"""Floats from the smallest normal on, and just below 1: eight of each."""
_COUNTS = [0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 255, 256, 1 << 31, (1 << 32) - 1]


def kind_of(ty: str) -> str:
    return KIND.get(ty, ty)


def register_type(kind: str) -> str:
    """The register that holds a kind of data: "b32" for f32, f16x2 and counts."""
    if kind == "pred":
        return kind
    bits = 32 if kind in ("count", "angle") else width(kind)
    return f"b{max(bits, 16)}"


def width(kind: str) -> int:
    """Bits of a kind of data in memory."""
    if kind == "pred":
        return 8
    if kind in ("count", "angle"):
        return 32
    base, packed, _ = kind.partition("x2")
    base = base[:3] if kind in NEAR else base.removesuffix("c")
    bits = INTEGERS.get(base) or {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}.get(base, 8)
    return 2 * bits if packed else bits


def values(kind: str, seed: int, lanes: int = LANES) -> Array:
    """Seeded data: edge values of the kind in half of the lanes, others between them.

    Beside the types: pred, count (shift counts and field positions), angle (f32 for sin), those of
    NEAR, and f16c, f32c, f64c (floats near halves and near the limits of the integer types).
    """
    rng = np.random.default_rng(seed)
    if kind == "pred":
        return rng.integers(0, 2, lanes).astype(np.uint8)
    if kind == "count":
        return rng.choice(np.array(_COUNTS + list(range(40)), np.uint32), lanes)
    if kind == "angle":
        return rng.uniform(-300, 300, lanes).astype(np.float32).view(np.uint32)
    if kind in NEAR:
        return (NEAR[kind] + rng.integers(0, 8, lanes)).astype(f"u{width(kind) // 8}")
    if kind.endswith("x2"):
        pair = [values(kind[:-2], seed + 1 + i, lanes) for i in range(2)]
        return np.stack(pair, axis=1).reshape(-1).view(f"u{2 * pair[0].itemsize}")
    if kind.endswith("c"):
        return _convertible(kind[:-1], rng, lanes)
    bits = INTEGERS.get(kind)
    if bits == 8:
        return rng.integers(0, 256, lanes).astype(np.uint8)
    drawn = integers(bits, seed) if bits else float_bits(kind, seed)
    edges = np.array(integer_edges(bits) if bits else float_edges(kind), np.uint64)
    drawn = np.resize(drawn, lanes)
    return np.where(rng.random(lanes) < 0.4, rng.choice(edges, lanes).astype(drawn.dtype), drawn)


def _convertible(fmt: str, rng: np.random.Generator, lanes: int) -> Array:
    """Floats whose conversion to integers rounds, ties, overflows or is undefined."""
    limits = [2.0**e for e in (7, 8, 15, 16, 31, 32, 63, 64)]
    near = [limit + d for limit in limits for d in (-1.5, -1, -0.5, 0, 0.5, 1)]
    small = [n + d for n in (0, 1, 2, 3, 100) for d in (0, 0.25, 0.5, 0.75)]
    special = [np.inf, np.nan, 1e-40, 3e38]
    drawn = rng.choice(near + small + special, lanes) * rng.choice([1.0, -1.0], lanes)
    kind: Any = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[fmt]
    with np.errstate(over="ignore"):
        held = drawn.astype(kind)
    held[np.isnan(held)] = np.nan  # one NaN, whatever the machine's conversion makes of it
    return held.view(f"u{held.itemsize}")


def poison(kind: str, count: int = LANES) -> Array:
    """An output's contents before the run."""
    return np.full(count * width(kind) // 8, POISON, np.uint8).view(f"u{width(kind) // 8}")


# -- kernels -------------------------------------------------------------------------------------

def kernel(name: str, body: str, outputs: Sequence[Array], inputs: Sequence[Array],
           block: int, grid: int = 1, outside: str = "", maps: int = 0,
           attributes: str = "") -> str:
    """An entry with the usual registers.

    %t is the thread, %g the thread of the grid, %l the lane. %O0.. and %I0.. are the addresses of
    outputs and inputs, %o0.. and %i0.. of the part of each that belongs to this thread; %M0.. are
    the addresses of tensor maps.
    """
    arrays = [("O", "o", i, a) for i, a in enumerate(outputs)]
    arrays += [("I", "i", i, a) for i, a in enumerate(inputs)]
    params = [f".param .u64 p{i}" for i in range(len(arrays))]
    params += [f".param .align 64 .b8 m{i}[128]" for i in range(maps)]
    lines = [
        f".visible .entry {entry_name(name)}({', '.join(params)}) .reqntid {block} {attributes}",
        "{", ".reg .pred %p<16>; .reg .b16 %h<64>; .reg .b32 %r<300>; .reg .b64 %w<64>;",
        ".reg .f32 %f<300>; .reg .f64 %fd<16>; .reg .b32 %t, %g, %l;",
        ".reg .b64 %O<8>, %o<8>, %I<8>, %i<8>, %M<8>;",
        f"mov.u32 %t, %tid.x; mov.u32 %g, %ctaid.x; mad.lo.u32 %g, %g, {block}, %t;",
        "mov.u32 %l, %laneid;",
    ]  # fmt: skip
    for number, (base, mine, i, array) in enumerate(arrays):
        lines.append(f"ld.param.u64 %{base}{i}, [p{number}];")
        lines.append(f"mad.wide.u32 %{mine}{i}, %g, {array.nbytes // (block * grid)}, %{base}{i};")
    for i in range(maps):
        lines.append(f"mov.b64 %M{i}, m{i}; cvta.param.u64 %M{i}, %M{i};")
    return "\n".join([outside, *lines, body, "ret;", "}", ""])


def lanes(name: str, text: str, ins: str, outs: str, match: Match | None = None) -> Form:
    """A form that each lane executes by itself.

    `ins` and `outs` are kinds of data; `text` names the sources %a, %b, %c, %e and the results
    %d, %q.
    """
    sources, results = ins.split(), outs.split()
    lines = []
    for n, kind in zip("abce", sources, strict=False):
        lines.append(f".reg .{register_type(kind)} %{n};")
    for n, kind in zip("dq", results, strict=False):
        lines.append(f".reg .{register_type(kind)} %{n};")
    for i, (n, kind) in enumerate(zip("abce", sources, strict=False)):
        if kind == "pred":
            lines.append(f"ld.global.u8 %h0, [%i{i}]; setp.ne.u16 %{n}, %h0, 0;")
        else:
            lines.append(f"ld.global.b{width(kind)} %{n}, [%i{i}];")
    lines.append(text)
    for i, (n, kind) in enumerate(zip("dq", results, strict=False)):
        if kind == "pred":
            lines.append(f"selp.u16 %h0, 1, 0, %{n}; st.global.u8 [%o{i}], %h0;")
        else:
            lines.append(f"st.global.b{width(kind)} [%o{i}], %{n};")
    inputs = tuple(values(kind, seed_of(name, i)) for i, kind in enumerate(sources))
    return special(name, "\n".join(lines), [poison(kind) for kind in results], inputs, block=LANES,
                   match=[match or default_match(kind) for kind in results])


def default_match(kind: str) -> Match:
    """The bits, but that the payload of a double's NaN is open."""
    return Match("f64") if kind == "f64" else BITS


def any_nan(kind: str) -> Match:
    """The bits, but that any NaN will do.

    PTX ISA, "Floating Point Instructions": programs should not rely on which NaN comes out; neg and
    abs say so once more.
    """
    return Match(kind.removesuffix("x2"))


def special(name: str, body: str, outputs: Sequence[Array], inputs: Sequence[Array] = (),
            block: int = 32, grid: int = 1, outside: str = "", shared: int = 0,
            match: Sequence[Match] | None = None, maps: Sequence[Any] = (),
            attributes: str = "", fault: str = "") -> Form:
    """A form with a kernel body of its own (see `kernel` for the registers)."""
    text = kernel(name, body, outputs, inputs, block, grid, outside, len(maps), attributes)
    return Form(name, text, tuple(outputs), tuple(inputs),
                tuple(match or [BITS] * len(outputs)), block, grid, shared, tuple(maps), fault)


# -- comparison ----------------------------------------------------------------------------------

def differences(got: Array, want: Array, match: Match, inputs: Sequence[Array] = ()) -> Array:
    """Flat indices of elements (of the format, else of the array) that do not match."""
    got, want = got.reshape(-1), want.reshape(-1)
    if match.defined is not None:
        keep = np.flatnonzero(match.defined(inputs))
        return np.asarray(keep[differences(got[keep], want[keep], match._replace(defined=None))])
    if not match.fmt:
        return np.flatnonzero(got != want)
    with np.errstate(invalid="ignore"):  # numpy's word for signalling NaNs
        x, y = (as_float(a, match.fmt) for a in (got, want))
    bits = {"f64": 64, "f32": 32}.get(match.fmt, 16)
    steps = [_ordinal(a.view(f"u{bits // 8}"), bits) for a in (got, want)]
    with np.errstate(all="ignore"):
        near = np.abs(x - y) <= np.maximum(match.absolute, match.relative * np.abs(y))
    near |= np.abs(steps[0] - steps[1]) <= match.ulp
    if match.absolute == 0:
        near &= np.signbit(x) == np.signbit(y)
    near &= np.isfinite(x) & np.isfinite(y) | (x == y)
    return np.flatnonzero(~(near | np.isnan(x) & np.isnan(y)))


def as_float(array: Array, fmt: str) -> Array:
    """The bits of a format as float64."""
    if fmt == "bf16":
        words = array.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return words.view(np.float32).astype(np.float64)
    return array.view({"f16": np.float16, "f32": np.float32, "f64": np.float64}[fmt]).astype(float)


def _ordinal(bits: Array, size: int) -> Array:
    """Integers in the order of the floats, as Python's for f64: exact differences."""
    sign = 1 << size - 1
    number = bits.astype(object) if size == 64 else bits.astype(np.int64)
    return np.where(number >= sign, sign - 1 - number, number)
