"""Logic, shifts, bit fields, byte permutation and counting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilec.sim.assign import assign, store
from tilec.sim.decode import Decoder
from tilec.sim.errors import Unsupported
from tilec.sim.instructions.common import binary, bind, bind_pair, unary
from tilec.sim.machine import Array, Code, Mask
from tilec.sim.ptx import Instr
from tilec.sim.rules import rule

_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@rule(*_LOGIC)
def logic(decoder: Decoder, instr: Instr) -> Code:
    """Bitwise and, or, exclusive or; of predicates too."""
    return binary(decoder, instr, _LOGIC[instr.op])


@rule("shl", "shr")
def shift(decoder: Decoder, instr: Instr) -> Code:
    """Shift by a 32-bit amount; amounts above the width act as the width."""
    ty = instr.type if instr.op == "shr" else "b" + instr.type[1:]
    target, x, amount = bind(decoder, instr, ty, ty, "u32")
    width = np.uint32(8 * x.dtype.itemsize)
    op = np.left_shift if instr.op == "shl" else np.right_shift
    last = width - np.uint32(1)

    def compute() -> Array:
        moved = op(x, np.minimum(amount, last).astype(x.dtype))
        return moved if x.dtype.kind == "i" else np.where(amount < width, moved, x.dtype.type(0))

    return assign(target, compute)


@rule("shf")
def funnel(decoder: Decoder, instr: Instr) -> Code:
    """Shift the 64-bit value b:a left (upper half kept) or right (lower half kept)."""
    target, low, high, amount = bind(decoder, instr, "b32", "b32", "b32", "b32")
    left, wrap = "l" in instr.mods, "wrap" in instr.mods

    def compute() -> Array:
        n = (amount & np.uint32(31)) if wrap else np.minimum(amount, np.uint32(32))
        n = n.astype(np.uint64)
        value = (high.astype(np.uint64) << np.uint64(32)) | low
        return (value << n) >> np.uint64(32) if left else value >> n

    return assign(target, compute)


def field_mask(length: Array, width: int) -> Array:
    """uint64 masks of `length` low ones, at most `width`."""
    n = np.minimum(length, width).astype(np.uint64)
    full = np.uint64(0xFFFFFFFFFFFFFFFF)
    return np.where(n >= 64, full, (np.uint64(1) << (n & np.uint64(63))) - np.uint64(1))


def check_field(instr: Instr) -> None:
    """Raise Unsupported for a position or a length, the last two operands, out of range."""
    for operand in instr.operands[-2:]:
        if operand.kind == "imm" and not 0 <= operand.value <= 255:
            raise Unsupported(f"{operand.value} where 0 to 255 is expected")


@rule("bfe")
def bfe(decoder: Decoder, instr: Instr) -> Code:
    """Extract `len` bits from position `pos`; the signed forms extend the top bit taken."""
    target, x, pos, length = bind(decoder, instr, instr.type, instr.type, "u32", "u32")
    check_field(instr)
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
    target, x, y, pos, length = bind(decoder, instr, ty, ty, ty, "u32", "u32")
    check_field(instr)
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
    target, pos, length = bind(decoder, instr, "b32", "u32", "u32")
    wrap = "wrap" in instr.mods

    def compute() -> Array:
        p, n = (pos & np.uint32(31), length & np.uint32(31)) if wrap else (pos, length)
        ones = field_mask(n, 32)
        return np.where(p < 32, ones << (p & np.uint32(31)).astype(np.uint64), np.uint64(0))

    return assign(target, compute)


@rule("szext")
def szext(decoder: Decoder, instr: Instr) -> Code:
    """Sign- or zero-extend the low b bits of a; .wrap or .clamp for amounts above 31."""
    target, x, amount = bind(decoder, instr, instr.type, "u32", "u32")
    wrap = "wrap" in instr.mods

    def compute() -> Array:
        n = amount & np.uint32(31) if wrap else np.minimum(amount, np.uint32(32))
        mask = field_mask(n, 32).astype(np.uint32)
        value = x & mask
        if instr.type == "s32":
            top = (x >> (np.maximum(n, np.uint32(1)) - np.uint32(1))) & np.uint32(1)
            value = np.where((n != 0) & (top != 0), value | ~mask, value)
        return value

    return assign(target.view(np.uint32), compute)


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


def reverse(x: Array) -> Array:
    """Bits in reverse order."""
    kind = x.dtype.type
    for step, mask in ((1, 0x55), (2, 0x33), (4, 0x0F)):
        pattern = kind(int.from_bytes(bytes([mask]) * x.itemsize, "little"))
        x = ((x >> kind(step)) & pattern) | ((x & pattern) << kind(step))
    return x.byteswap()


_UNARY: dict[str, Callable[[Array], Array]] = {
    "not": np.invert, "cnot": lambda x: x == 0, "brev": reverse,
}
_COUNTS = {"popc": bit_count, "clz": lambda x: 8 * x.itemsize - bit_length(x)}


@rule(*_UNARY)
def one_source(decoder: Decoder, instr: Instr) -> Code:
    """Complement (of predicates too), 1 where the source is zero, bits in reverse order."""
    return unary(decoder, instr, _UNARY[instr.op])


@rule(*_COUNTS)
def count(decoder: Decoder, instr: Instr) -> Code:
    """Number of one bits, or of leading zeros, as u32."""
    return unary(decoder, instr, _COUNTS[instr.op], "u32")


@rule("bfind")
def bfind(decoder: Decoder, instr: Instr) -> Code:
    """Position of the highest significant bit, 0xffffffff if none; .shiftamt counts from the top.

    For signed types of a negative value, the highest zero bit.
    """
    def find(x: Array) -> Array:
        value = np.where(x < 0, ~x, x) if x.dtype.kind == "i" else x
        found = bit_length(value.view(f"u{x.itemsize}")) - 1
        if "shiftamt" in instr.mods:
            return np.where(found >= 0, 8 * x.itemsize - 1 - found, -1)
        return found

    return unary(decoder, instr, find, "u32")


@rule("fns")
def fns(decoder: Decoder, instr: Instr) -> Code:
    """Position of the n-th one bit of a mask, counted from bit `base` up (n > 0) or down."""
    target, bits, start, number = bind(decoder, instr, "b32", "b32", "b32", "s32")

    def find(word: int, first: int, n: int) -> int:
        step = -1 if n < 0 else 1
        last = first + 1 if n == 0 else 32 if n > 0 else -1
        ones = [i for i in range(first, last, step) if 0 <= i < 32 and word >> i & 1]
        wanted = max(abs(n), 1) - 1
        return ones[wanted] if wanted < len(ones) else 0xFFFFFFFF

    def compute() -> Array:
        lanes = zip(bits.tolist(), start.tolist(), number.tolist(), strict=True)
        return np.array([find(*lane) for lane in lanes], np.uint32)

    return assign(target, compute)


@rule("lop3")
def lop3(decoder: Decoder, instr: Instr) -> Code:
    """Any logic function of three inputs, given by its truth table; .and/.or set a predicate."""
    combine = next((m for m in instr.mods if m in ("and", "or")), None)
    d, a, b, c, table = instr.operands[:5]
    target, flag = bind_pair(decoder, d, "b32")
    x, y, z = (decoder.src(o, "b32") for o in (a, b, c))
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
    if combine is None or flag is None:
        return write
    q = decoder.pred(instr.operands[5])
    join = np.logical_and if combine == "and" else np.logical_or

    def both(mask: Mask) -> None:
        nonzero = join(compute() != 0, q())
        write(mask)
        store(flag, nonzero, mask)

    return both


@rule("prmt")
def prmt(decoder: Decoder, instr: Instr) -> Code:
    """Pick four bytes of the eight in b:a by selector nibbles, or by a named mode."""
    target, x, y, selector = bind(decoder, instr, "b32", "b32", "b32", "b32")
    mode = instr.mods[-1] if instr.mods[-1] != "b32" else ""
    c = instr.operands[3]
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
