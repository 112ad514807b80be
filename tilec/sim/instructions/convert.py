"""cvt: between integers and floats of every width, packed forms, and the 8-bit float formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.sim import floats
from tilec.sim.assign import assign
from tilec.sim.decode import Decoder
from tilec.sim.errors import Unsupported
from tilec.sim.instructions.common import bind
from tilec.sim.machine import Array, Code
from tilec.sim.ptx import Instr
from tilec.sim.rules import rule

_FLOATS = ("f16", "bf16", "f32", "f64", "tf32")
_TO_INTEGRAL = {"rni": "n", "rzi": "z", "rmi": "m", "rpi": "p"}
_TO_FLOAT = {"rn": "n", "rz": "z", "rm": "m", "rp": "p", "rna": "na"}


@rule("cvt")
def cvt(decoder: Decoder, instr: Instr) -> Code:
    """d = a converted; packed forms put the first source in the upper half."""
    dtype, stype = instr.mods[-2:]
    if "pack" in instr.mods:
        return _pack_integers(decoder, instr)
    if dtype.endswith("x2") or stype.endswith("x2"):
        return _packed(decoder, instr, dtype, stype)
    target, x = bind(decoder, instr, dtype, stype)
    if dtype in _FLOATS and stype in _FLOATS:
        return assign(target, _float_to_float(instr, x, dtype, stype))
    if dtype in _FLOATS:
        return assign(target, _integer_to_float(instr, x, dtype))
    if stype in _FLOATS:
        return assign(target, _float_to_integer(instr, x, dtype, stype))
    if "sat" in instr.mods:
        return assign(target, lambda: _clamp(x, dtype))
    kind = integer_kind(dtype)
    return assign(target, lambda: x.astype(kind))


def integer_kind(ty: str) -> Any:
    """The numpy type of a PTX integer type."""
    return np.dtype(("int" if ty[0] == "s" else "uint") + ty[1:]).type


def _clamp(x: Array, ty: str) -> Array:
    """Integers saturated into another integer type."""
    kind = integer_kind(ty)
    info, source = np.iinfo(kind), np.iinfo(x.dtype)
    return np.clip(x, max(info.min, source.min), min(info.max, source.max)).astype(kind)


def _mode(instr: Instr, table: dict[str, str], default: str) -> str:
    return next((table[m] for m in instr.mods if m in table), default)


def _float_to_float(instr: Instr, x: Array, dtype: str, stype: str) -> Callable[[], Array]:
    """Float conversions, and rounding to an integral value within a type."""
    mods = instr.mods
    integral = _mode(instr, _TO_INTEGRAL, "")
    mode = _mode(instr, _TO_FLOAT, "n")
    ftz, sat, relu = "ftz" in mods, "sat" in mods, "relu" in mods
    satfinite = "satfinite" in mods

    def compute() -> Array:
        values = floats.widen(x, stype)
        if ftz and stype == "f32":
            values = floats.flush(values)
        if integral:
            values = floats.round_mode(values, integral)
        if sat:
            values = floats.saturate(values)
        if relu:
            values = floats.relu(values)
        result = floats.typed(floats.narrow(values, dtype, mode, satfinite), dtype)
        return floats.flush(result) if ftz and dtype == "f32" else result

    return compute


def _integer_to_float(instr: Instr, x: Array, dtype: str) -> Callable[[], Array]:
    """Integers to floats; 64-bit ones keep a sticky bit so that one rounding happens."""
    mode = _mode(instr, _TO_FLOAT, "n")
    sat = "sat" in instr.mods

    def compute() -> Array:
        if dtype == "f64" and mode != "n":
            return _directed_f64(x, mode)
        values = odd_float(x) if dtype != "f64" else x.astype(np.float64)
        if sat:
            values = floats.saturate(values)
        return floats.typed(floats.narrow(values, dtype, mode), dtype)

    return compute


def _directed_f64(x: Array, mode: str) -> Array:
    near = x.astype(np.float64)
    error = [(int(v) > int(n)) - (int(v) < int(n)) for v, n in zip(x, near, strict=True)]
    return floats.directed(near, np.array(error, np.float64), mode)


def odd_float(x: Array) -> Array:
    """Integers as float64, rounded to odd where they have more than 53 bits."""
    if x.dtype.itemsize < 8:
        return x.astype(np.float64)
    negative = x < 0
    size = np.where(negative, np.negative(x), x).view(np.uint64)
    low = np.uint64(0x7FF)
    sticky = (size & ~low) | np.where(size & low, np.uint64(0x800), np.uint64(0))
    exact = np.where(size >= np.uint64(1 << 53), sticky, size).astype(np.float64)
    return np.where(negative, -exact, exact)


def _float_to_integer(instr: Instr, x: Array, dtype: str, stype: str) -> Callable[[], Array]:
    """Round, then clamp to the type; NaN becomes 0, or the top bit for 64-bit types."""
    mode = _mode(instr, _TO_INTEGRAL, "z")
    kind = integer_kind(dtype)
    info = np.iinfo(kind)
    ftz = "ftz" in instr.mods and stype == "f32"
    wide = stype == "f64" or info.bits == 64
    missing = kind((info.min if info.min else 1 << (info.bits - 1)) if wide else 0)
    top = float(info.max)

    def compute() -> Array:
        values = floats.widen(x, stype)
        values = (floats.flush(values) if ftz else values).astype(np.float64)
        rounded = floats.round_mode(values, mode)
        below = rounded < top if info.bits == 64 else rounded <= top
        inside = (rounded >= float(info.min)) & below
        result = np.where(inside, rounded, 0.0).astype(kind)
        result = np.where(rounded >= top, kind(info.max), result)
        result = np.where(rounded < float(info.min), kind(info.min), result)
        return np.where(np.isnan(values), missing, result)

    return compute


def _packed(decoder: Decoder, instr: Instr, dtype: str, stype: str) -> Code:
    """Two values at a time: f16x2, bf16x2, e4m3x2 and e5m2x2 on either side."""
    to, source = dtype.removesuffix("x2"), stype.removesuffix("x2")
    if to not in floats.FORMATS or source not in floats.FORMATS:
        raise Unsupported(f"cvt from .{stype} to .{dtype}")
    mode, relu, narrow = _mode(instr, _TO_FLOAT, "n"), "relu" in instr.mods, to in ("e4m3", "e5m2")
    satfinite = narrow or "satfinite" in instr.mods
    target = decoder.dst(instr.operands[0], dtype)
    load = _pair_source(decoder, instr, stype, source)
    view = np.uint16 if narrow else np.uint32

    def compute() -> Array:
        values = load()
        if relu:
            values = floats.relu(values)
        return np.ascontiguousarray(floats.narrow(values, to, mode, satfinite)).view(view)

    return assign(target, compute)


def _pair_source(decoder: Decoder, instr: Instr, stype: str, source: str) -> Callable[[], Array]:
    """The source values, two a lane, lower half first."""
    operands = instr.operands[1:]
    if stype.endswith("x2"):
        x = decoder.src(operands[0], stype)
        narrow = np.uint8 if source in ("e4m3", "e5m2") else np.uint16
        return lambda: floats.widen(np.ascontiguousarray(x).view(narrow), source)
    high, low = (decoder.src(o, stype) for o in operands)
    return lambda: np.stack([low, high], axis=1).reshape(-1)


def _pack_integers(decoder: Decoder, instr: Instr) -> Code:
    """cvt.pack.sat: two s32 saturated to 2 to 16 bits into the low part of d, above them c."""
    names = [m for m in instr.mods if m not in ("pack", "sat")]
    bits, signed = int(names[0][1:]), names[0][0] == "s"
    x, y = (decoder.src(o, "s32") for o in instr.operands[1:3])
    rest = decoder.src(instr.operands[3], "b32") if len(instr.operands) > 3 else None
    target = decoder.dst(instr.operands[0], "b32")
    mask, shift = np.uint32((1 << bits) - 1), np.uint32(bits)
    least = -(1 << bits - 1) if signed else 0
    most = least + (1 << bits) - 1

    def compute() -> Array:
        low, high = (np.clip(v, least, most).astype(np.uint32) & mask for v in (y, x))
        result = low | (high << shift)
        if rest is not None and 2 * bits < 32:
            result = result | (rest << np.uint32(2 * bits))
        return result

    return assign(target, compute)
