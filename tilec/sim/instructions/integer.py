"""Integer arithmetic; the opcodes that floats have too go on to their rules by type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.sim.assign import assign, store
from tilec.sim.decode import Decoder
from tilec.sim.errors import Unsupported
from tilec.sim.instructions.common import binary, bind, unary
from tilec.sim.machine import Array, Code, Mask
from tilec.sim.ptx import Instr
from tilec.sim.rules import rule

_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def saturating(values: Array, kind: Any) -> Array:
    """Clamp wide integers into `kind`."""
    info = np.iinfo(kind)
    return np.clip(values, info.min, info.max).astype(kind)


@rule("add", "sub")
def add(decoder: Decoder, instr: Instr) -> Code:
    """d = a + b or a - b, wrapping; .sat for s32; .cc sets the carry or borrow."""
    if "cc" in instr.mods:
        return carrying(decoder, instr)
    op = np.add if instr.op == "add" else np.subtract
    if "sat" in instr.mods:
        return binary(decoder, instr, lambda a, b: saturating(op(a.astype(np.int64), b), np.int32))
    return binary(decoder, instr, op)


@rule("addc", "subc")
def carrying(decoder: Decoder, instr: Instr) -> Code:
    """add.cc, sub.cc, and addc and subc, which take the carry or borrow in as well."""
    ty = "u" + instr.type[1:]
    target, x, y = bind(decoder, instr, ty, ty, ty)
    carry, sets, takes = decoder.carry, "cc" in instr.mods, instr.op.endswith("c")

    def code(mask: Mask) -> None:
        extra = carry.astype(x.dtype) if takes else x.dtype.type(0)
        if instr.op.startswith("sub"):
            result = x - y - extra
            out = (x < y) | ((x == y) & (extra != 0))
        else:
            result, out = _with_carry(x, y, extra)
        store(target, result, mask)
        if sets:
            store(carry, out, mask)

    return code


def _with_carry(x: Array, y: Array, extra: Array) -> tuple[Array, Array]:
    """x + y + extra (0 or 1) of unsigned values, and whether it wrapped."""
    result = x + y + extra
    return result, (result < x) | ((result == x) & (extra != 0) & (y != 0))


def high_product(a: Array, b: Array) -> Array:
    """The upper half of the product of two 16-, 32- or 64-bit integers."""
    size = a.dtype.itemsize
    if size < 8:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return (a.astype(wide) * b.astype(wide) >> wide(8 * size)).astype(a.dtype)
    x, y = a.view(np.uint64), b.view(np.uint64)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    xl, xh, yl, yh = x & low, x >> shift, y & low, y >> shift
    middle = xh * yl + (xl * yl >> shift)
    other = xl * yh + (middle & low)
    result = xh * yh + (middle >> shift) + (other >> shift)
    if a.dtype.kind == "i":
        result = result - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return result.view(a.dtype)


@rule("mul", "mul24")
def mul(decoder: Decoder, instr: Instr) -> Code:
    """.lo, .hi and .wide products; mul24 takes the low 24 bits of its sources."""
    product, ty = _product(instr)
    target, x, y = bind(decoder, instr, ty, instr.type, instr.type)
    return assign(target, lambda: product(x, y))


@rule("mad", "mad24")
def mad(decoder: Decoder, instr: Instr) -> Code:
    """d = a * b + c with the .lo, .hi or .wide product; .sat with .hi.s32."""
    if "cc" in instr.mods:
        return madc(decoder, instr)
    product, ty = _product(instr)
    target, x, y, z = bind(decoder, instr, ty, instr.type, instr.type, ty)
    if "sat" in instr.mods:
        return assign(target, lambda: saturating(product(x, y).astype(np.int64) + z, np.int32))
    return assign(target, lambda: product(x, y) + z)


@rule("madc")
def madc(decoder: Decoder, instr: Instr) -> Code:
    """mad.cc and madc: multiply-add in an extended-precision chain."""
    ty = "u" + instr.type[1:]
    product, _ = _product(instr)
    target, x, y, z = bind(decoder, instr, ty, instr.type, instr.type, ty)
    carry, sets, takes = decoder.carry, "cc" in instr.mods, instr.op == "madc"

    def code(mask: Mask) -> None:
        extra = carry.astype(z.dtype) if takes else z.dtype.type(0)
        result, out = _with_carry(product(x, y).view(z.dtype), z, extra)
        store(target, result, mask)
        if sets:
            store(carry, out, mask)

    return code


def _product(instr: Instr) -> tuple[Callable[[Array, Array], Array], str]:
    """The product function of mul or mad, and the PTX type of its result."""
    ty = instr.type
    if instr.op.endswith("24"):
        shift = 8
        wide_kind: Any = np.int64 if ty == "s32" else np.uint64

        def low24(a: Array, b: Array) -> Array:
            up = a.dtype.type(shift)
            wide = ((a << up) >> up).astype(wide_kind) * ((b << up) >> up).astype(wide_kind)
            return (wide >> wide_kind(16) if "hi" in instr.mods else wide).astype(a.dtype)

        return low24, ty
    if "wide" in instr.mods:
        wide = _WIDER[ty]
        kind: Any = {"u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64}[wide]
        return (lambda a, b: a.astype(kind) * b.astype(kind)), wide
    if "hi" in instr.mods:
        return high_product, ty
    return np.multiply, ty


@rule("div")
def div(decoder: Decoder, instr: Instr) -> Code:
    """Division toward zero; by zero gives all ones, as the hardware's sequence does."""
    return binary(decoder, instr, _quotient)


@rule("rem")
def rem(decoder: Decoder, instr: Instr) -> Code:
    """Remainder with the sign of the dividend; by zero gives all ones, as div does."""
    return binary(decoder, instr, _remainder)


def _remainder(a: Array, b: Array) -> Array:
    return np.where(b == 0, ~a.dtype.type(0), np.fmod(a, np.where(b == 0, b.dtype.type(1), b)))


def _quotient(a: Array, b: Array) -> Array:
    safe = np.where(b == 0, b.dtype.type(1), b)
    q = a // safe
    if a.dtype.kind == "i":
        q = q + ((q * safe != a) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, ~a.dtype.type(0), q)


@rule("abs", "neg")
def sign(decoder: Decoder, instr: Instr) -> Code:
    """Absolute value and negation, wrapping."""
    return unary(decoder, instr, np.abs if instr.op == "abs" else np.negative)


@rule("min", "max")
def minmax(decoder: Decoder, instr: Instr) -> Code:
    """Minimum or maximum; .relu clamps signed results at zero."""
    op = np.minimum if instr.op == "min" else np.maximum
    if "relu" in instr.mods:
        return binary(decoder, instr, lambda a, b: np.maximum(op(a, b), 0).astype(a.dtype))
    return binary(decoder, instr, op)


@rule("sad")
def sad(decoder: Decoder, instr: Instr) -> Code:
    """d = |a - b| + c."""
    target, x, y, z = bind(decoder, instr, *[instr.type] * 4)
    return assign(target, lambda: np.where(x < y, y - x, x - y) + z)


@rule("dp4a", "dp2a")
def dot_product(decoder: Decoder, instr: Instr) -> Code:
    """Sum of products of four bytes (dp4a), or of two halves with two bytes (dp2a.lo/.hi)."""
    types = [m for m in instr.mods if m in ("u32", "s32")]
    if len(types) != 2:
        raise Unsupported(f"{instr.op} with these types")
    wide = "s32" if "s32" in types else "u32"
    target, x, y, z = bind(decoder, instr, wide, "u32", "u32", wide)
    left_kind, right_kind = ("i" if ty == "s32" else "u" for ty in types)
    right: Array = y.view(f"{right_kind}1").reshape(-1, 4)
    if instr.op == "dp4a":
        left: Array = x.view(f"{left_kind}1").reshape(-1, 4)
    else:
        left = x.view(f"{left_kind}2").reshape(-1, 2)
        right = right[:, 2:] if "hi" in instr.mods else right[:, :2]
    return assign(target, lambda: (left.astype(np.int64) * right).sum(axis=1) + z.astype(np.int64))
