"""Integer arithmetic, and the opcodes that integers share with floats (add, sub, mul, min ...)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.sim.assign import assign
from tilec.sim.errors import Unsupported
from tilec.sim.instructions import floating
from tilec.sim.instructions.common import binary, is_float, unary
from tilec.sim.instructions.table import rule

if TYPE_CHECKING:
    from tilec.sim.decode import Decoder
    from tilec.sim.machine import Code
    from tilec.sim.ptx import Instr

Array = np.ndarray[Any, Any]

_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def saturating(values: Array, kind: Any) -> Array:
    """Clamp wide integers into `kind`."""
    info = np.iinfo(kind)
    return np.clip(values, info.min, info.max).astype(kind)


@rule("add")
def add(decoder: Decoder, instr: Instr) -> Code:
    """d = a + b, wrapping; .sat for s32; .cc sets the carry."""
    if is_float(instr.type):
        return floating.arithmetic(decoder, instr)
    if "cc" in instr.mods:
        return _carrying(decoder, instr, subtract=False, carry_in=False)
    if "sat" in instr.mods:
        return binary(decoder, instr, lambda a, b: saturating(a.astype(np.int64) + b, np.int32))
    return binary(decoder, instr, np.add)


@rule("sub")
def sub(decoder: Decoder, instr: Instr) -> Code:
    """d = a - b, wrapping; .sat for s32; .cc sets the borrow."""
    if is_float(instr.type):
        return floating.arithmetic(decoder, instr)
    if "cc" in instr.mods:
        return _carrying(decoder, instr, subtract=True, carry_in=False)
    if "sat" in instr.mods:
        return binary(decoder, instr, lambda a, b: saturating(a.astype(np.int64) - b, np.int32))
    return binary(decoder, instr, np.subtract)


@rule("addc")
def addc(decoder: Decoder, instr: Instr) -> Code:
    """d = a + b + carry."""
    return _carrying(decoder, instr, subtract=False, carry_in=True)


@rule("subc")
def subc(decoder: Decoder, instr: Instr) -> Code:
    """d = a - b - borrow."""
    return _carrying(decoder, instr, subtract=True, carry_in=True)


def _carrying(decoder: Decoder, instr: Instr, subtract: bool, carry_in: bool) -> Code:
    ty = "u" + instr.type[1:]
    d, a, b = instr.operands
    target = decoder.dst(d, ty, instr.scope)
    x, y = decoder.src(a, ty, instr.scope), decoder.src(b, ty, instr.scope)
    carry, sets = decoder.carry, "cc" in instr.mods

    def code(mask: Array | None) -> None:
        extra = carry.astype(x.dtype) if carry_in else x.dtype.type(0)
        if subtract:
            result = x - y - extra
            out = (x < y) | ((x == y) & (extra != 0))
        else:
            result = x + y + extra
            out = (result < x) | ((result == x) & (extra != 0) & (y != 0))
        where = True if mask is None else mask
        np.copyto(target, result, where=where, casting="unsafe")
        if sets:
            np.copyto(carry, out, where=where)

    return code


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
    if is_float(instr.type):
        return floating.arithmetic(decoder, instr)
    product, ty = _product(instr)
    d, a, b = instr.operands
    target = decoder.dst(d, ty, instr.scope)
    x = decoder.src(a, instr.type, instr.scope)
    y = decoder.src(b, instr.type, instr.scope)
    return assign(target, lambda: product(x, y))


@rule("mad", "mad24")
def mad(decoder: Decoder, instr: Instr) -> Code:
    """d = a * b + c with the .lo, .hi or .wide product; .sat with .hi.s32."""
    if is_float(instr.type):
        return floating.fused(decoder, instr)
    if "cc" in instr.mods:
        return madc(decoder, instr)
    product, ty = _product(instr)
    d, a, b, c = instr.operands
    target = decoder.dst(d, ty, instr.scope)
    x = decoder.src(a, instr.type, instr.scope)
    y = decoder.src(b, instr.type, instr.scope)
    z = decoder.src(c, ty, instr.scope)
    if "sat" in instr.mods:
        return assign(target, lambda: saturating(product(x, y).astype(np.int64) + z, np.int32))
    return assign(target, lambda: product(x, y) + z)


@rule("madc")
def madc(decoder: Decoder, instr: Instr) -> Code:
    """mad.cc and madc: multiply-add in an extended-precision chain."""
    ty = "u" + instr.type[1:]
    d, a, b, c = instr.operands
    product, _ = _product(instr)
    x = decoder.src(a, instr.type, instr.scope)
    y = decoder.src(b, instr.type, instr.scope)
    z = decoder.src(c, ty, instr.scope)
    target = decoder.dst(d, ty, instr.scope)
    carry, sets, takes = decoder.carry, "cc" in instr.mods, instr.op == "madc"

    def code(mask: Array | None) -> None:
        part = product(x, y).view(z.dtype)
        extra = carry.astype(z.dtype) if takes else z.dtype.type(0)
        result = part + z + extra
        out = (result < part) | ((result == part) & (extra != 0) & (z != 0))
        where = True if mask is None else mask
        np.copyto(target, result, where=where, casting="unsafe")
        if sets:
            np.copyto(carry, out, where=where)

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
    if is_float(instr.type):
        return floating.divide(decoder, instr)
    return binary(decoder, instr, _quotient)


@rule("rem")
def rem(decoder: Decoder, instr: Instr) -> Code:
    """Remainder with the sign of the dividend; by zero gives the dividend."""
    return binary(
        decoder, instr, lambda a, b: np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b)))
    )


def _quotient(a: Array, b: Array) -> Array:
    safe = np.where(b == 0, b.dtype.type(1), b)
    q = a // safe
    if a.dtype.kind == "i":
        q = q + ((q * safe != a) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, ~a.dtype.type(0), q)


@rule("abs")
def absolute(decoder: Decoder, instr: Instr) -> Code:
    """Absolute value; of the least integer, itself."""
    if is_float(instr.type):
        return floating.sign_op(decoder, instr)
    return unary(decoder, instr, np.abs)


@rule("neg")
def negate(decoder: Decoder, instr: Instr) -> Code:
    """Negation, wrapping."""
    if is_float(instr.type):
        return floating.sign_op(decoder, instr)
    return unary(decoder, instr, np.negative)


@rule("min", "max")
def minmax(decoder: Decoder, instr: Instr) -> Code:
    """Minimum or maximum; .relu clamps signed results at zero."""
    if is_float(instr.type):
        return floating.minmax(decoder, instr)
    op = np.minimum if instr.op == "min" else np.maximum
    if "relu" in instr.mods:
        return binary(decoder, instr, lambda a, b: np.maximum(op(a, b), 0).astype(a.dtype))
    return binary(decoder, instr, op)


@rule("sad")
def sad(decoder: Decoder, instr: Instr) -> Code:
    """d = |a - b| + c."""
    d, a, b, c = instr.operands
    target = decoder.dst(d, instr.type, instr.scope)
    x, y, z = (decoder.src(o, instr.type, instr.scope) for o in (a, b, c))
    return assign(target, lambda: np.where(x < y, y - x, x - y) + z)


@rule("dp4a", "dp2a")
def dot_product(decoder: Decoder, instr: Instr) -> Code:
    """Sum of products of four bytes (dp4a), or of two halves with two bytes (dp2a.lo/.hi)."""
    types = [m for m in instr.mods if m in ("u32", "s32")]
    if len(types) != 2:
        raise Unsupported(f"{instr.op} with these types")
    d, a, b, c = instr.operands
    signed = "s32" in types
    target = decoder.dst(d, "s32" if signed else "u32", instr.scope)
    x, y = decoder.src(a, "u32", instr.scope), decoder.src(b, "u32", instr.scope)
    z = decoder.src(c, "s32" if signed else "u32", instr.scope)
    bytes_y: Array = y.view(np.int8 if types[1] == "s32" else np.uint8).reshape(-1, 4)
    if instr.op == "dp4a":
        left: Array = x.view(np.int8 if types[0] == "s32" else np.uint8).reshape(-1, 4)
        right = bytes_y
    else:
        left = x.view(np.int16 if types[0] == "s32" else np.uint16).reshape(-1, 2)
        right = bytes_y[:, 2:] if "hi" in instr.mods else bytes_y[:, :2]
    return assign(target, lambda: (left.astype(np.int64) * right).sum(axis=1) + z.astype(np.int64))
