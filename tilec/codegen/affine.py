"""Lowering of index arithmetic: constant offsets of integer and pointer tiles are kept apart.

They end as immediates of addresses, so that a thread computes one address for all its registers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilec.codegen.context import CodeGen, compute, fragment_of, lower
from tilec.codegen.elementwise import lower_elementwise
from tilec.codegen.emit import POINTER, Reg
from tilec.codegen.values import Index, Tile, align, plan, take, uniform
from tilec.eval.dtypes import dtype_of
from tilec.ir import ops
from tilec.ir.axis import AxisInfo
from tilec.ir.core import Value
from tilec.ir.types import Scalar, Tensor, element_of, pointee_of, scalar_of


@lower(ops.Arange)
def _arange(cg: CodeGen, op: ops.Arange) -> None:
    frag = fragment_of(op.result)
    thread = cg.coordinate(frag, 0)
    bits = op.start
    for basis in (*frag.lane_bases, *frag.warp_bases):
        bits |= basis[0]
    registers = [at for at, in frag.register_coords]
    start = cg.e.int_op("add", thread, op.start)
    # The start's bits are disjoint from all others if no other place can set them.
    reach = (1 << (op.end - op.start - 1).bit_length()) - 1
    zeros = 0x7FFFFFFF & ~bits if op.start >= 0 and not op.start & reach else 0
    index = (0,) * len(registers) if len(registers) > 1 else None
    cg.env[op.result] = Tile(start, len(registers), index, _offsets(registers), zeros)


@lower(ops.Splat)
def _splat(cg: CodeGen, op: ops.Splat) -> None:
    zeros = _known_zeros(op.x, cg.axis.get(op.x))
    cg.env[op.result] = uniform(cg.scalar(op.x), fragment_of(op.result).num_registers, zeros)


@lower(ops.Constant)
def _constant(cg: CodeGen, op: ops.Constant) -> None:
    t = element_of(op.result.type)
    value = fp8_bits(float(op.value), t) if isinstance(t, Scalar) and t.is_float and t.bits == 8 \
        else op.value
    reg = cg.e.const(value, cg.element(op.result))
    if not isinstance(op.result.type, Tensor):
        cg.env[op.result] = reg
        return
    zeros = _known_zeros(op.result, cg.axis.get(op.result))
    cg.env[op.result] = uniform(reg, fragment_of(op.result).num_registers, zeros)


def fp8_bits(value: float, t: Scalar) -> int:
    """The byte of a value that `t` represents exactly."""
    return int(np.asarray(value, dtype_of(t)).view(np.uint8))


def _known_zeros(value: Value, info: AxisInfo) -> int:
    element = element_of(value.type)
    if not isinstance(element, Scalar) or element.is_float:
        return 0
    if info.constant is not None:
        return ~info.constant & ((1 << (element.bits - 1)) - 1)
    return info.all_divisor - 1


def _offsets(values: list[int]) -> Index:
    return tuple(values) if any(values) else None


def _separable(cg: CodeGen, *tiles: Tile) -> bool:
    """Whether keeping offsets apart leaves fewer distinct values than elements."""
    indices = tuple((t.index, None) for t in tiles)
    return len(plan(tiles[0].size, indices)[0]) < max(2, tiles[0].size)


def _sum(cg: CodeGen, op: Any, sign: int) -> bool:
    """Add or subtract tiles with their offsets apart; False if that gains nothing."""
    if not isinstance(op.result.type, Tensor) or scalar_of(op.result.type).is_float or \
            scalar_of(op.result.type).is_bool:
        return False
    a, b = cg.tile(op.lhs), cg.tile(op.rhs)
    if a.offset is None and b.offset is None or not _separable(cg, a, b):
        return False
    regs, index = align(cg.e, [replace(t, offset=None) for t in (a, b)])
    reg = cg.e.binary("add" if sign > 0 else "sub", *regs)
    offset = [a.offset_of(i) + sign * b.offset_of(i) for i in range(a.size)]
    cg.env[op.result] = Tile(reg, a.size, index, _offsets(offset), _sum_zeros(a, b, sign))
    return True


def _sum_zeros(a: Tile, b: Tile, sign: int) -> int:
    """Bits that stay zero: those below the lowest at which both may have a one."""
    both = ~a.zeros & ~b.zeros if sign > 0 else ~b.zeros
    low = both & -both
    below = low - 1 if low > 0 else -1
    return a.zeros & b.zeros & below if sign > 0 else a.zeros & below


@lower(ops.Add)
def _add(cg: CodeGen, op: ops.Add) -> None:
    if not _sum(cg, op, 1):
        lower_elementwise(cg, op)
        _note_zeros(cg, op.result)


@lower(ops.Sub)
def _sub(cg: CodeGen, op: ops.Sub) -> None:
    if not _sum(cg, op, -1):
        lower_elementwise(cg, op)
        _note_zeros(cg, op.result)


@lower(ops.Mul)
def _mul(cg: CodeGen, op: ops.Mul) -> None:
    factor = cg.axis.get(op.rhs).constant
    held = cg.env[op.lhs]
    if factor is not None and factor > 0 and isinstance(held, Tile) and held.offset is not None \
            and not scalar_of(op.result.type).is_float:
        reg = cg.e.binary("mul", held.reg, cg.e.const(factor, held.reg.elem, held.reg.n))
        offset = tuple(c * factor for c in held.offset)
        low = factor & -factor
        zeros = held.zeros << (low.bit_length() - 1) | (low - 1) if factor == low else low - 1
        zeros &= (1 << (held.reg.bits - 1)) - 1
        cg.env[op.result] = Tile(reg, held.size, held.index, offset, zeros)
        return
    lower_elementwise(cg, op)
    _note_zeros(cg, op.result)


def _note_zeros(cg: CodeGen, value: Value) -> None:
    """Remember divisibility, so that offsets added later are known not to carry."""
    held = cg.env[value]
    if isinstance(held, Tile):
        cg.env[value] = replace(held, zeros=_known_zeros(value, cg.axis.get(value)))


@lower(ops.Cast)
def _cast(cg: CodeGen, op: ops.Cast) -> None:
    """Widening an integer keeps offsets apart where adding them cannot carry."""
    src, dst = scalar_of(op.x.type), scalar_of(op.result.type)
    held = cg.env[op.x]
    widens = src.is_int and dst.is_int and not src.is_bool and dst.bits > src.bits
    if isinstance(held, Tile) and held.offset is not None and widens and held.offsets_are_bits:
        reg = cg.e.resize(held.reg, f"i{dst.bits}", src.is_signed)
        cg.env[op.result] = replace(held, reg=reg)
    else:
        lower_elementwise(cg, op)


@compute(ops.AddPtr)
def _add_scalars(cg: CodeGen, op: ops.AddPtr, pointer: Reg, offset: Reg) -> Reg:
    """An address whose offset LLVM does not relate to others, nor, of a scalar, its base: by
    intrinsics that are dropped when instructions are selected.

    NVPTX always runs straight-line strength reduction (SLSR). It compares an address with all
    earlier ones of the same base or offset: 1,000 loads and stores took 25 s, 23 of them here. And
    in LLVM 22 it looks through the sign extension of an offset: it takes x + 1 for the neighbour of
    x, where that wraps, too.
    """
    e, size = cg.e, pointee_of(op.ptr.type).bytes
    wide = e.resize(offset, "i64", scalar_of(op.offset.type).is_signed)
    if cg.axis.get(op.offset).constant is None and wide.ref.startswith("%"):
        wide = e.per_lane(lambda x: e.call("llvm.expect.i64", "i64", 0, (x, e.const(0, "i64"))),
                          wide)
        if not pointer.n:
            pointer = e.call("llvm.launder.invariant.group.p1", POINTER, 0, (pointer,))
    return e.new(f"getelementptr i{8 * size}, {pointer.type} {pointer.ref}, "
                 f"{wide.type} {wide.ref}", POINTER, pointer.n)


@lower(ops.AddPtr)
def _add_pointer(cg: CodeGen, op: ops.AddPtr) -> None:
    if not isinstance(op.result.type, Tensor):
        cg.env[op.result] = _add_scalars(cg, op, cg.scalar(op.ptr), cg.scalar(op.offset))
        return
    pointer, offset = cg.tile(op.ptr), cg.tile(op.offset)
    size = pointee_of(op.ptr.type).bytes
    if offset.offset is not None and offset.reg.bits < 64 and not offset.offsets_are_bits:
        # Adding could wrap before it is widened: add first.
        elements, index = plan(offset.size, (offset.form,))
        offset = Tile(take(cg.e, offset, elements), offset.size, index)
    regs, index = align(cg.e, [replace(t, offset=None) for t in (pointer, offset)])
    reg = _add_scalars(cg, op, *regs)
    offsets = [pointer.offset_of(i) + size * offset.offset_of(i) for i in range(offset.size)]
    cg.env[op.result] = Tile(reg, offset.size, index, _offsets(offsets))
