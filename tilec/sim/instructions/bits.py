"""Logic, shifts, bit fields, byte permutation and counting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.sim.assign import assign
from tilec.sim.instructions.common import binary, unary
from tilec.sim.instructions.table import rule

if TYPE_CHECKING:
    from tilec.sim.decode import Decoder
    from tilec.sim.machine import Code
    from tilec.sim.ptx import Instr

Array = np.ndarray[Any, Any]


@rule("and")
def and_(decoder: Decoder, instr: Instr) -> Code:
    """Bitwise and; of predicates too."""
    return binary(decoder, instr, np.bitwise_and)


@rule("or")
def or_(decoder: Decoder, instr: Instr) -> Code:
    """Bitwise or; of predicates too."""
    return binary(decoder, instr, np.bitwise_or)


@rule("xor")
def xor(decoder: Decoder, instr: Instr) -> Code:
    """Bitwise exclusive or; of predicates too."""
    return binary(decoder, instr, np.bitwise_xor)


@rule("not")
def not_(decoder: Decoder, instr: Instr) -> Code:
    """Bitwise complement; of predicates too."""
    return unary(decoder, instr, np.invert)


@rule("cnot")
def cnot(decoder: Decoder, instr: Instr) -> Code:
    """1 where the source is zero, else 0."""
    return unary(decoder, instr, lambda a: a == 0)


@rule("shl", "shr")
def shift(decoder: Decoder, instr: Instr) -> Code:
    """Shift by a 32-bit amount; amounts above the width act as the width."""
    ty = instr.type if instr.op == "shr" else "b" + instr.type[1:]
    d, a, b = instr.operands
    target = decoder.dst(d, ty, instr.scope)
    x = decoder.src(a, ty, instr.scope)
    amount = decoder.src(b, "u32", instr.scope)
    width = np.uint32(8 * x.dtype.itemsize)
    op = np.left_shift if instr.op == "shl" else np.right_shift
    last = width - np.uint32(1)
    if x.dtype.kind == "i":
        return assign(target, lambda: op(x, np.minimum(amount, last).astype(x.dtype)))
    return assign(
        target,
        lambda: np.where(
            amount < width, op(x, np.minimum(amount, last).astype(x.dtype)), x.dtype.type(0)
        ),
    )


@rule("shf")
def funnel(decoder: Decoder, instr: Instr) -> Code:
    """Shift the 64-bit value b:a left (upper half kept) or right (lower half kept)."""
    d, a, b, c = instr.operands
    target = decoder.dst(d, "b32", instr.scope)
    low, high, amount = (decoder.src(o, "b32", instr.scope) for o in (a, b, c))
    left, wrap = "l" in instr.mods, "wrap" in instr.mods

    def compute() -> Array:
        n = (amount & np.uint32(31)) if wrap else np.minimum(amount, np.uint32(32))
        n = n.astype(np.uint64)
        value = (high.astype(np.uint64) << np.uint64(32)) | low
        if left:
            return (value << n) >> np.uint64(32)
        return value >> n

    return assign(target, compute)


def field_mask(length: Array, width: int) -> Array:
    """uint64 masks of `length` low ones, at most `width`."""
    n = np.minimum(length, width).astype(np.uint64)
    full = np.uint64(0xFFFFFFFFFFFFFFFF)
    return np.where(n >= 64, full, (np.uint64(1) << (n & np.uint64(63))) - np.uint64(1))


@rule("bfe")
def bfe(decoder: Decoder, instr: Instr) -> Code:
    """Extract `len` bits from position `pos`; the signed forms extend the top bit taken."""
    ty = instr.type
    d, a, b, c = instr.operands
    target = decoder.dst(d, ty, instr.scope)
    x = decoder.src(a, ty, instr.scope)
    pos, length = (decoder.src(o, "u32", instr.scope) for o in (b, c))
    width = 8 * x.dtype.itemsize
    signed = x.dtype.kind == "i"

    def compute() -> Array:
        p, n = pos & np.uint32(0xFF), length & np.uint32(0xFF)
        bits = x.view(np.uint32 if width == 32 else np.uint64).astype(np.uint64)
        shifted = np.where(p < width, bits >> (p & np.uint32(63)).astype(np.uint64), np.uint64(0))
        mask = field_mask(n, width)
        value = shifted & mask
        if signed:
            top = np.minimum(p + n - np.uint32(1), np.uint32(width - 1)).astype(np.uint64)
            sign = (n != 0) & (((bits >> top) & np.uint64(1)) != 0)
            inside = np.minimum(n, np.maximum(np.int64(width) - p.astype(np.int64), 0))
            value = np.where(sign, value | ~field_mask(inside, width), value)
        return value

    return assign(target.view(np.uint32 if width == 32 else np.uint64), compute)


@rule("bfi")
def bfi(decoder: Decoder, instr: Instr) -> Code:
    """Insert `len` low bits of a into b at position `pos`."""
    ty = instr.type
    f, a, b, c, d = instr.operands
    target = decoder.dst(f, ty, instr.scope)
    x, y = decoder.src(a, ty, instr.scope), decoder.src(b, ty, instr.scope)
    pos, length = (decoder.src(o, "u32", instr.scope) for o in (c, d))
    width = 8 * x.dtype.itemsize

    def compute() -> Array:
        p = pos & np.uint32(0xFF)
        at = (p & np.uint32(63)).astype(np.uint64)
        mask = field_mask(length & np.uint32(0xFF), width)
        mask = np.where(p < width, mask << at, np.uint64(0))
        moved = x.astype(np.uint64) << at
        return (y.astype(np.uint64) & ~mask) | (moved & mask)

    return assign(target, compute)


@rule("bmsk")
def bmsk(decoder: Decoder, instr: Instr) -> Code:
    """A mask of b ones from bit a; .clamp or .wrap for amounts above 31."""
    d, a, b = instr.operands
    target = decoder.dst(d, "b32", instr.scope)
    pos, length = (decoder.src(o, "u32", instr.scope) for o in (a, b))
    wrap = "wrap" in instr.mods

    def compute() -> Array:
        p, n = (pos & np.uint32(31), length & np.uint32(31)) if wrap else (pos, length)
        ones = field_mask(n, 32)
        return np.where(p < 32, ones << (p & np.uint32(31)).astype(np.uint64), np.uint64(0))

    return assign(target, compute)


@rule("szext")
def szext(decoder: Decoder, instr: Instr) -> Code:
    """Sign- or zero-extend the low b bits of a; .wrap or .clamp for amounts above 31."""
    ty = instr.type
    d, a, b = instr.operands
    target = decoder.dst(d, ty, instr.scope)
    x = decoder.src(a, "u32", instr.scope)
    amount = decoder.src(b, "u32", instr.scope)
    wrap = "wrap" in instr.mods

    def compute() -> Array:
        n = amount & np.uint32(31) if wrap else np.minimum(amount, np.uint32(32))
        mask = field_mask(n, 32).astype(np.uint32)
        value = x & mask
        if ty == "s32":
            top = (x >> (np.maximum(n, np.uint32(1)) - np.uint32(1))) & np.uint32(1)
            value = np.where((n != 0) & (top != 0), value | ~mask, value)
        return value

    return assign(target.view(np.uint32), compute)


@rule("popc")
def popc(decoder: Decoder, instr: Instr) -> Code:
    """Count of one bits, as u32."""
    return _count(decoder, instr, bit_count)


@rule("clz")
def clz(decoder: Decoder, instr: Instr) -> Code:
    """Count of leading zeros, as u32."""
    width = int(instr.type[1:])
    return _count(decoder, instr, lambda x: width - bit_length(x))


def _count(decoder: Decoder, instr: Instr, op: Any) -> Code:
    d, a = instr.operands
    target = decoder.dst(d, "u32", instr.scope)
    x = decoder.src(a, instr.type, instr.scope)
    return assign(target, lambda: op(x))


def bit_count(x: Array) -> Array:
    """Number of one bits of each element."""
    rows = np.ascontiguousarray(x).view(np.uint8).reshape(x.size, x.dtype.itemsize)
    return np.unpackbits(rows, axis=1).sum(axis=1)


def bit_length(x: Array) -> Array:
    """Position of the highest one bit plus 1, 0 for zero."""
    value = x.astype(np.uint64)
    result = np.zeros(value.shape, np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        high = value >> np.uint64(step)
        some = high != 0
        result += np.where(some, step, 0)
        value = np.where(some, high, value)
    return result + (value != 0)


@rule("bfind")
def bfind(decoder: Decoder, instr: Instr) -> Code:
    """Position of the highest significant bit, 0xffffffff if none; .shiftamt counts from the top.

    For signed types of a negative value, the highest zero bit.
    """
    d, a = instr.operands
    target = decoder.dst(d, "u32", instr.scope)
    x = decoder.src(a, instr.type, instr.scope)
    width = 8 * x.dtype.itemsize
    unsigned = np.uint32 if width == 32 else np.uint64

    def compute() -> Array:
        value = np.where(x < 0, ~x, x) if x.dtype.kind == "i" else x
        found = bit_length(value.view(unsigned)) - 1
        if "shiftamt" in instr.mods:
            return np.where(found >= 0, width - 1 - found, -1)
        return found

    return assign(target, compute)


@rule("fns")
def fns(decoder: Decoder, instr: Instr) -> Code:
    """Position of the n-th one bit of a mask, counted from bit `base` up (n > 0) or down."""
    d, mask, base, offset = instr.operands
    target = decoder.dst(d, "b32", instr.scope)
    bits, start = decoder.src(mask, "b32", instr.scope), decoder.src(base, "b32", instr.scope)
    count = decoder.src(offset, "s32", instr.scope)

    def find(word: int, first: int, n: int) -> int:
        step = -1 if n < 0 else 1
        last = first + 1 if n == 0 else 32 if n > 0 else -1
        ones = [i for i in range(first, last, step) if 0 <= i < 32 and word >> i & 1]
        wanted = max(abs(n), 1) - 1
        return ones[wanted] if wanted < len(ones) else 0xFFFFFFFF

    def compute() -> Array:
        lanes = zip(bits.tolist(), start.tolist(), count.tolist(), strict=True)
        return np.array([find(*lane) for lane in lanes], np.uint32)

    return assign(target, compute)


@rule("brev")
def brev(decoder: Decoder, instr: Instr) -> Code:
    """Bits in reverse order."""
    width = int(instr.type[1:])

    def reverse(x: Array) -> Array:
        kind = x.dtype.type
        for step, mask in ((1, 0x55), (2, 0x33), (4, 0x0F)):
            pattern = kind(int.from_bytes(bytes([mask]) * (width // 8), "little"))
            x = ((x >> kind(step)) & pattern) | ((x & pattern) << kind(step))
        return x.byteswap()

    return unary(decoder, instr, reverse)


@rule("lop3")
def lop3(decoder: Decoder, instr: Instr) -> Code:
    """Any logic function of three inputs, given by its truth table; .and/.or set a predicate."""
    combine = next((m for m in instr.mods if m in ("and", "or")), None)
    operands = instr.operands
    d, a, b, c, table = operands[:5]
    pair = d.items if d.kind == "pair" else (d,)
    target = decoder.dst(pair[0], "b32", instr.scope)
    x, y, z = (decoder.src(o, "b32", instr.scope) for o in (a, b, c))
    code = table.value

    def compute() -> Array:
        result = np.zeros_like(x)
        for index in range(8):
            if code >> index & 1:
                term = x if index & 4 else ~x
                term = term & (y if index & 2 else ~y)
                result = result | (term & (z if index & 1 else ~z))
        return result

    write = assign(target, compute)
    if combine is None:
        return write
    flag = decoder.dst(pair[1], "pred", instr.scope)
    q = decoder.pred(operands[5], instr.scope)
    join = np.logical_and if combine == "and" else np.logical_or

    def both(mask: Array | None) -> None:
        nonzero = join(compute() != 0, q())
        write(mask)
        np.copyto(flag, nonzero, where=True if mask is None else mask)

    return both


@rule("prmt")
def prmt(decoder: Decoder, instr: Instr) -> Code:
    """Pick four bytes of the eight in b:a by selector nibbles, or by a named mode."""
    d, a, b, c = instr.operands
    target = decoder.dst(d, "b32", instr.scope)
    x, y, selector = (decoder.src(o, "b32", instr.scope) for o in (a, b, c))
    mode = instr.mods[-1] if instr.mods[-1] != "b32" else ""
    if c.kind == "imm" and not mode:
        return assign(target, lambda: _fixed_permute(x, y, c.value))
    rows = np.arange(decoder.lanes)

    def compute() -> Array:
        pool = np.concatenate([_as_bytes(x), _as_bytes(y)], axis=1)
        picks = _selectors(selector, mode)
        result = np.empty((len(rows), 4), np.uint8)
        for i in range(4):
            byte = pool[rows, picks[i] & np.uint32(7)]
            sign = np.where(byte & np.uint8(0x80), np.uint8(0xFF), np.uint8(0))
            result[:, i] = np.where(picks[i] & np.uint32(8), sign, byte)
        return result.view(np.uint32).reshape(-1)

    return assign(target, compute)


def _as_bytes(x: Array) -> Array:
    """uint32 values as rows of four bytes."""
    return np.ascontiguousarray(x).view(np.uint8).reshape(-1, 4)


def _fixed_permute(x: Array, y: Array, selector: int) -> Array:
    """prmt with a constant selector: four strided byte copies."""
    sources = (_as_bytes(x), _as_bytes(y))
    result = np.empty((len(x), 4), np.uint8)
    for i in range(4):
        pick = selector >> 4 * i & 15
        byte = sources[pick >> 2 & 1][:, pick & 3]
        result[:, i] = np.where(byte & np.uint8(0x80), 0xFF, 0) if pick & 8 else byte
    return result.view(np.uint32).reshape(-1)


_PRMT_MODES = {
    "f4e": [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
    "b4e": [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
    "rc8": [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]],
    "ecl": [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]],
    "ecr": [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
    "rc16": [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
}
"""Bytes picked, lowest first, by mode and by the two low selector bits."""


def _selectors(selector: Array, mode: str) -> list[Array]:
    """Four arrays of selector nibbles, lowest byte first."""
    if mode:
        table = np.array(_PRMT_MODES[mode], np.uint32)[selector & np.uint32(3)]
        return [table[:, i] for i in range(4)]
    return [(selector >> np.uint32(4 * i)) & np.uint32(15) for i in range(4)]
