"""ldmatrix, stmatrix and mma.sync: matrices spread over the registers of a warp.

Layouts are PTX's (PTX ISA, "Matrix Fragments"): with g = lane / 4 and t = lane % 4, a register of
a row-major operand holds row g (or g + 8) and consecutive columns from t times their number.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tilec.sim import floats
from tilec.sim.assign import store
from tilec.sim.decode import Decoder
from tilec.sim.errors import Unsupported
from tilec.sim.instructions.common import parts
from tilec.sim.instructions.loadstore import locator, space_of
from tilec.sim.machine import Array, Code, Mask
from tilec.sim.ptx import TYPE_BYTES, Instr
from tilec.sim.rules import rule

_DEPTHS = {
    "f16": (8, 16), "bf16": (8, 16), "tf32": (4, 8), "s8": (16, 32), "u8": (16, 32),
    "e4m3": (16, 32), "e5m2": (16, 32),
}
"""The k of m16n8k{k} for each operand type; f64 has m8n8k4."""
_RESULTS = {"f16": ("f16", "f32"), "s8": ("s32",), "u8": ("s32",), "f64": ("f64",),
            "e4m3": ("f16", "f32"), "e5m2": ("f16", "f32")}
_FORM = re.compile(r"sync\.aligned\.m(\d+)n8k(\d+)\.row\.col\.(?:satfinite\.)?"
                   r"(\w+)\.(\w+)\.(\w+)\.(\w+)")
_INTEGERS: dict[str, Any] = {"s8": np.int8, "u8": np.uint8, "s32": np.int32}
_MIXED = ({"s8", "u8"}, {"e4m3", "e5m2"})


@rule("ldmatrix", "stmatrix")
def move_matrix(decoder: Decoder, instr: Instr) -> Code:
    """Load or store 1, 2 or 4 matrices of 8 x 8 16-bit elements.

    Lane 8 m + r gives the address of row r of matrix m; lane l holds two neighbours of row l / 4,
    with .trans of column l / 4.
    """
    count = next((int(m[1]) for m in instr.mods if m in ("x1", "x2", "x4")), 0)
    if "m8n8" not in instr.mods or instr.type != "b16" or not count:
        raise Unsupported(f"this form of {instr.op}")
    loads = instr.op == "ldmatrix"
    registers, place = instr.operands if loads else instr.operands[::-1]
    if len(parts(registers)) != count:
        raise Unsupported(f"{instr.op}.x{count} with {len(parts(registers))} registers")
    view = decoder.dst if loads else decoder.src
    arrays = [view(o, "b32") for o in parts(registers)]
    machine, trans, shared = decoder.machine, "trans" in instr.mods, decoder.spaces["shared"]
    gives_row = machine.lane < 8 * count
    column = np.arange(8)

    def rows(lanes: Array) -> Array:
        """The rows for which these lanes give the address, as bytes."""
        tiles = np.stack(arrays).reshape(count, -1, 32).view(np.uint16).reshape(count, -1, 8, 8)
        tiles = tiles.swapaxes(2, 3) if trans else tiles
        return tiles[lanes % 32 // 8, lanes // 32, lanes % 8].view(np.uint8)

    locate = locator(decoder, place, space_of(instr), instr, rows)

    def body(mask: Mask) -> None:
        givers = gives_row if mask is None else gives_row & mask
        pieces = locate(givers, 16, not loads)
        if len(pieces) != 1 or pieces[0][0] is not shared:
            raise Unsupported(f"{instr.op} outside of shared memory")
        elements = shared.views[2]
        index = (pieces[0][2].astype(np.int64)[:, None] >> 1) + column
        if loads:
            lanes = slice(None) if mask is None else np.flatnonzero(mask)
            tiles = elements[index].reshape(-1, count, 8, 8)
            tiles = np.ascontiguousarray(tiles.swapaxes(2, 3) if trans else tiles)
            for i, array in enumerate(arrays):
                array[lanes] = tiles[:, i].reshape(-1).view(np.uint32)
            return
        elements[index] = rows(np.flatnonzero(givers)).view(np.uint16)

    return decoder.synced(decoder.constant(0xFFFFFFFF, np.uint32), body)


def elements(arrays: list[Array], ty: str) -> Array:
    """[register, warp, g, t, element] of registers: float64, or int64 for integer types."""
    raw = np.stack(arrays)
    if ty == "tf32":
        raw &= np.uint32(0xFFFFE000)
    integer = _INTEGERS.get(ty)
    values = raw.view(integer or floats.FORMATS[ty].kind)
    wide = values.astype(np.float64 if integer is None else np.int64)
    return wide.reshape(len(arrays), -1, 8, 4, values.size // raw.size)


def along_k(arrays: list[Array], ty: str, rows: int) -> Array:
    """[warp, row, k] of an a operand of `rows` times 8 rows; of b, whose rows are n, with 1."""
    x = elements(arrays, ty)
    x = x.reshape(-1, rows, *x.shape[1:]).transpose(2, 1, 3, 0, 4, 5)
    return x.reshape(len(x), 8 * rows, -1)


def along_n(arrays: list[Array], ty: str, rows: int) -> Array:
    """[warp, row, n] of a c operand of `rows` times 8 rows."""
    x = elements(arrays, ty)
    x = x.reshape(rows, -1, *x.shape[1:]).transpose(2, 0, 3, 4, 1, 5)
    return x.reshape(len(x), 8 * rows, 8)


def registers(tile: Array, ty: str) -> Array:
    """[register, lane] of a d operand from [warp, row, n]: the way back from `along_n`."""
    each = 2 if ty == "f16" else 1
    x = tile.reshape(len(tile), -1, 8, 4, 2 // each, each).transpose(1, 4, 0, 2, 3, 5)
    x = np.ascontiguousarray(x).reshape(-1, 32 * len(tile), each)
    return (x.view(np.uint32) if ty == "f16" else x)[:, :, 0]


@rule("mma")
def mma(decoder: Decoder, instr: Instr) -> Code:
    """mma.sync.aligned: d = a * b + c on 16 x 8 (f64: 8 x 8) tiles, one a warp.

    Products are exact. Integers wrap, or saturate with .satfinite. Floats are summed in float64,
    the products pairwise along k and then c, and rounded once, to nearest even, to d's type; the
    hardware's sums are coarser and in an order of its own. tf32 operands lose their low 13 bits.
    """
    m, k, types = _form(instr)
    rows, dtype = m // 8, types[0]
    view = [decoder.dst, decoder.src, decoder.src, decoder.src]
    held = [[get(o, ty if ty in ("f32", "f64", "s32") else "b32") for o in parts(operand)]
            for get, operand, ty in zip(view, instr.operands, types, strict=True)]
    a_bytes, result = TYPE_BYTES[types[1]], rows * (1 if dtype == "f16" else 2)
    word = 8 if dtype == "f64" else 4
    expected = [result, rows * k // 4 * a_bytes // word, k // 4 * a_bytes // word, result]
    if [len(arrays) for arrays in held] != expected:
        raise Unsupported(f"mma of this shape with other than {expected} registers")
    targets, a, b, c = held
    if decoder.moved is not None:
        return _mma_of_undefined(held, types, rows)

    def body(mask: Mask) -> None:
        left, right = along_k(a, types[1], rows), along_k(b, types[2], 1)
        total = (left[:, :, None] * right[:, None]).sum(axis=-1) + along_n(c, dtype, rows)
        if dtype != "s32":
            final = floats.typed(floats.narrow(total, dtype), dtype)
        elif "satfinite" in instr.mods:
            final = np.clip(total, -(2**31), 2**31 - 1).astype(np.int32)
        else:
            final = total.astype(np.int32)
        for target, value in zip(targets, registers(final, dtype), strict=True):
            store(target, value, mask)

    return decoder.synced(decoder.constant(0xFFFFFFFF, np.uint32), body)


def _mma_of_undefined(held: list[list[Array]], types: tuple[str, ...], rows: int) -> Code:
    """Code for undefined bits in place of values: a row of a and a column of b spoil results."""
    targets, a, b, c = held
    word = np.dtype(f"u{TYPE_BYTES[types[0]]}")

    def code(mask: Mask) -> None:
        left = (along_k(a, types[1], rows) != 0).any(axis=-1)
        right = (along_k(b, types[2], 1) != 0).any(axis=-1)
        unclear = left[:, :, None] | right[:, None] | (along_n(c, types[0], rows) != 0)
        bits = registers(unclear.astype(word) * word.type(np.iinfo(word).max), types[0])
        for target, value in zip(targets, bits, strict=True):
            store(target.view(f"u{target.itemsize}"), value, mask)

    return code


def _form(instr: Instr) -> tuple[int, int, tuple[str, ...]]:
    """m, k and the types of d, a, b, c; Unsupported for a form that is not there."""
    text = ".".join(instr.mods)
    if found := _FORM.fullmatch(text):
        m, k, types = int(found[1]), int(found[2]), found.groups()[2:]
        d, a, b, c = types
        known = m == 16 and k in _DEPTHS.get(a, ()) or (m, k, a) == (8, 4, "f64")
        if known and (a == b or {a, b} in _MIXED) and c == d and d in _RESULTS.get(a, ("f32",)):
            return m, k, types
    raise Unsupported(f"mma.{text}")
