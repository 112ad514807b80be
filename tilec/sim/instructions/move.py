"""mov with packing and unpacking, special registers, cvta, isspacep and address arithmetic."""

from __future__ import annotations

import numpy as np

from tilec.sim.assign import assign, store
from tilec.sim.decode import Decoder
from tilec.sim.errors import Unsupported
from tilec.sim.instructions.common import bind
from tilec.sim.machine import Array, Code, Mask
from tilec.sim.memory import (
    GLOBAL_BASE,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    RANK_BITS,
    SHARED_WINDOW,
    WINDOW_BYTES,
)
from tilec.sim.ptx import Instr
from tilec.sim.rules import rule

WINDOWS = {
    "shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW, "global": 0, "const": 0,
}
"""What cvta adds to an address of each space to make it generic."""

@rule("mov")
def mov(decoder: Decoder, instr: Instr) -> Code:
    """Copy a register, constant, address or special register; pack or unpack a vector."""
    d, a = instr.operands
    ty = instr.type
    if d.kind == "vec" and a.kind == "vec":
        raise Unsupported("mov between vectors")
    if d.kind == "vec":
        return _unpack(decoder, instr)
    if a.kind == "vec":
        return _pack(decoder, instr)
    target = decoder.dst(d, ty)
    if a.kind == "reg" and a.name in ("%clock", "%clock64", "%globaltimer", "%clock_hi"):
        return _clock(decoder, target)
    source = decoder.src(a, ty)
    return assign(target, lambda: source)


def _clock(decoder: Decoder, target: Array) -> Code:
    """A counter that rises with every read."""
    machine = decoder.machine

    def code(mask: Mask) -> None:
        machine.steps += 1
        store(target, target.dtype.type(machine.steps), mask)

    return code


def _pack(decoder: Decoder, instr: Instr) -> Code:
    """The parts of the source vector, lowest first, become one register."""
    d, a = instr.operands
    bits = int(instr.type[1:])
    part = bits // len(a.items)
    sources = [decoder.src(o, f"b{part}") for o in a.items]
    target = decoder.dst(d, instr.type)
    kind = target.dtype.type

    def compute() -> Array:
        result = sources[0].astype(kind)
        for i, source in enumerate(sources[1:], 1):
            result |= source.astype(kind) << kind(i * part)
        return result

    return assign(target, compute)


def _unpack(decoder: Decoder, instr: Instr) -> Code:
    """One register becomes the parts of the destination vector, lowest first."""
    d, a = instr.operands
    bits = int(instr.type[1:])
    part = bits // len(d.items)
    source = decoder.src(a, instr.type)
    targets = [(i, decoder.dst(o, f"b{part}"))
               for i, o in enumerate(d.items) if o.kind != "sink"]
    kind = source.dtype.type
    mask_bits = kind((1 << part) - 1)

    def code(mask: Mask) -> None:
        value = source.copy()
        for i, target in targets:
            store(target, (value >> kind(i * part)) & mask_bits, mask)

    return code


@rule("cvta")
def cvta(decoder: Decoder, instr: Instr) -> Code:
    """Between an address of a space and the generic address; also of a variable's name."""
    space = next((s for m in instr.mods if (s := m.partition("::")[0]) in WINDOWS), None)
    if space is None:
        raise Unsupported("cvta of this space")
    a = instr.operands[1]
    ty = "u64" if instr.type.endswith("64") else "u32"
    target, source = bind(decoder, instr, ty, ty)
    window = WINDOWS[space]
    if a.kind in ("reg", "sym") and decoder.register(a.name) is None:
        window = WINDOWS[decoder.symbol(a.name)[0]]
    if "to" in instr.mods:
        return assign(target, lambda: source - np.uint64(window))
    return assign(target, lambda: source + np.uint64(window))


@rule("isspacep")
def isspacep(decoder: Decoder, instr: Instr) -> Code:
    """Whether a generic address lies in the window of a space."""
    space = instr.mods[0].partition("::")[0]
    target, address = bind(decoder, instr, "pred", "u64")
    low = WINDOWS[space]
    if space in ("global", "const"):
        writable = space == "global"
        arena = decoder.arena

        def inside(value: int) -> bool:
            owner = arena.owner(value)
            return value >= GLOBAL_BASE and (owner is None or not owner.constant) == writable

        def compute() -> Array:
            return np.array([inside(value) for value in address.tolist()])

        return assign(target, compute)
    cta = decoder.machine.cta.astype(np.uint64)
    own = instr.mods[0] == "shared::cta" and decoder.shared.ranks > 1

    def within() -> Array:
        rank = (address >> np.uint64(RANK_BITS)) & np.uint64(0xFF)
        found = (address >= low) & (address < low + WINDOW_BYTES)
        return found & (rank == cta) if own else found

    return assign(target, within)
