"""atom and red: lanes act one after another, in seeded random order where a seed is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.sim import floats
from tilec.sim.decode import Decoder
from tilec.sim.errors import Unsupported
from tilec.sim.instructions.common import parts
from tilec.sim.instructions.loadstore import Piece, locator, raw, space_of, vector_length
from tilec.sim.machine import Array, Code, Mask
from tilec.sim.ptx import TYPE_BYTES, Instr, is_float
from tilec.sim.rules import rule

Update = Callable[[Array, Array], Array]
"""New bits from the bits in memory and the operand's bits."""
_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def _wrapping_add(old: Array, new: Array) -> Array:
    return old + new


WRAPPING_ADD: Update = _wrapping_add
"""Integer addition, whose order no result shows unless old values are asked for."""


def _signed(op: Callable[[Array, Array], Array], ty: str) -> Update:
    kind = np.dtype(f"{'int' if ty[0] == 's' else 'uint'}{ty[1:]}")
    return lambda old, new: op(old.view(kind), new.view(kind)).view(old.dtype)


def _float_update(name: str, ty: str, ftz: bool) -> Update:
    """add, min or max of a float type, packed ones by parts."""
    base = ty.removesuffix("x2")
    part = floats.FORMATS[base].bits

    def op(x: Array, y: Array) -> Array:
        return x + y if name == "add" else floats.extreme(x, y, name == "max")

    def update(old: Array, new: Array) -> Array:
        x, y = floats.widen(old.view(part), base), floats.widen(new.view(part), base)
        if ftz and base == "f32":
            return floats.narrow(floats.flush(op(floats.flush(x), floats.flush(y))), base)
        return floats.narrow(op(x, y), base).view(old.dtype)

    return update


def update_of(name: str, ty: str, ftz: bool = False) -> Update:
    """The update function of an operation; with ftz adds of f32 flush subnormals."""
    if name == "exch":
        return lambda old, new: new
    if is_float(ty):
        if name not in ("add", "min", "max"):
            raise Unsupported(f"atomic {name} of .{ty}")
        return _float_update(name, ty, ftz and name == "add")
    if name == "inc":
        return lambda old, new: np.where(old >= new, 0, old + old.dtype.type(1)).astype(old.dtype)
    if name == "dec":
        return lambda old, new: np.where((old == 0) | (old > new),
                                         new, old - old.dtype.type(1)).astype(old.dtype)
    if name == "add":
        return WRAPPING_ADD
    table: dict[str, Any] = {
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
        "min": np.minimum, "max": np.maximum,
    }
    return _signed(table[name], ty if name in ("min", "max") else "u" + ty[1:])


@rule("atom", "red")
def atom(decoder: Decoder, instr: Instr) -> Code:
    """Read, update and write one value, or the elements of a vector; atom returns the old value."""
    operands = list(instr.operands)
    result = operands.pop(0) if instr.op == "atom" else None
    name = next((m for m in instr.mods if m in _OPERATIONS), "")
    if not name:
        raise Unsupported(f"this form of {instr.op}")
    ty = instr.type
    if ty == "b128":
        raise Unsupported("128-bit atomics")
    bits, width = "b" + raw(ty)[1:], TYPE_BYTES[ty]
    count = vector_length(instr, operands[1], *([] if result is None else [result]))
    sources = [decoder.bits(o, ty if count == 1 else bits) for o in parts(operands[1])]
    swap = decoder.src(operands[2], bits) if name == "cas" else None
    targets: list[Array | None] = [None] * count
    if result is not None:
        targets = [decoder.dst(o, bits) for o in parts(result)]
    locate = locator(decoder, operands[0], space_of(instr), instr)
    updates: list[Update | None] = [None, None]
    if name != "cas":  # only adds to global memory flush
        updates = [update_of(name, ty, ftz) for ftz in (True, False)]
    shift = width.bit_length() - 1

    def code(mask: Mask) -> None:
        for piece in locate(mask, width * count, True):
            memory, lanes, offsets = piece
            update = updates[memory.name == "shared"]
            index = offsets.astype(np.int64) >> shift
            for i in range(count):
                _apply(decoder, (memory, lanes, index + i), width, sources[i], swap, targets[i],
                       update)

    return code


def _apply(decoder: Decoder, piece: Piece, width: int, source: Array, swap: Array | None,
           target: Array | None, update: Update | None) -> None:
    """Update one element per lane; `piece` holds element indices in place of byte offsets."""
    memory, lanes, index = piece
    view = memory.views[width]
    who = np.arange(len(index)) if lanes is None else lanes
    mine = source[who]
    other = None if swap is None else swap[who]
    if target is None and update is WRAPPING_ADD:
        np.add.at(view, index, mine)
        return
    old = np.empty(len(index), view.dtype)
    if len(np.unique(index)) == len(index):
        batches = [slice(None)] if len(index) else []
    else:
        batches = [slice(k, k + 1) for k in range(len(index))]
        if decoder.machine.seeded:
            batches = [batches[k] for k in decoder.machine.rng.permutation(len(batches))]
    for batch in batches:
        at = index[batch]
        before = view[at]
        old[batch] = before
        if update is not None:
            view[at] = update(before, mine[batch])
        elif other is not None:
            view[at] = np.where(before == mine[batch], other[batch], before)
    if target is not None:
        target[who] = old
