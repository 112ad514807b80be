"""Instructions among the lanes of a warp: shfl, vote, match, redux, elect, activemask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.sim.assign import store
from tilec.sim.decode import Decoder
from tilec.sim.errors import Unsupported
from tilec.sim.floats import canonical
from tilec.sim.instructions.bits import bit_count
from tilec.sim.instructions.common import bind, bind_pair
from tilec.sim.machine import Array, Code, Machine, Mask
from tilec.sim.ptx import Instr
from tilec.sim.rules import rule

_FIVE = np.uint32(31)


@rule("shfl")
def shfl(decoder: Decoder, instr: Instr) -> Code:
    """Exchange registers between lanes; the predicate says whether the source was in range."""
    mode = next((m for m in instr.mods if m in ("up", "down", "bfly", "idx")), "")
    if "sync" not in instr.mods or not mode:
        raise Unsupported("shfl without .sync")
    d, a, b, c, members = instr.operands
    target, flag = bind_pair(decoder, d, "b32")
    x, offset, clamp = (decoder.src(o, "b32") for o in (a, b, c))
    machine = decoder.machine
    constant = b.kind == c.kind == "imm"
    fixed = shuffle_sources(machine, mode, offset, clamp) if constant else None

    def body(mask: Mask) -> None:
        source, inside = fixed or shuffle_sources(machine, mode, offset, clamp)
        store(target, x[source], mask)
        if flag is not None:
            store(flag, inside, mask)

    return decoder.synced(decoder.src(members, "b32"), body)


def shuffle_sources(machine: Machine, mode: str, offset: Array,
                    clamp: Array) -> tuple[Array, Array]:
    """For every lane the lane it reads, and whether that was in range (else it reads itself)."""
    lane = machine.lane
    b, c = offset & _FIVE, clamp & _FIVE
    segment = (clamp >> np.uint32(8)) & _FIVE
    low = lane & segment
    high = low | (c & ~segment)
    if mode == "up":
        source = lane.astype(np.int64) - b
        inside = source >= high
    else:
        if mode == "down":
            source = lane.astype(np.int64) + b
        elif mode == "bfly":
            source = (lane ^ b).astype(np.int64)
        else:
            source = (low | (b & ~segment)).astype(np.int64)
        inside = source <= high
    source = np.where(inside, source, lane)
    return machine.warp * 32 + source, inside


@rule("vote")
def vote(decoder: Decoder, instr: Instr) -> Code:
    """all, any, uni and ballot over the member lanes."""
    mode = instr.mods[1] if instr.mods[0] == "sync" else ""
    if not mode:
        raise Unsupported("vote without .sync")
    d, a, members = instr.operands
    flag = decoder.pred(a)
    mask_of = decoder.src(members, "b32")
    target = decoder.dst(d, "b32" if mode == "ballot" else "pred")
    machine = decoder.machine

    def body(mask: Mask) -> None:
        active = machine.full(mask)
        yes = machine.warp_bits(active & flag())[machine.warp] & mask_of
        present = machine.warp_bits(active)[machine.warp] & mask_of
        if mode == "ballot":
            result = yes
        elif mode == "all":
            result = yes == present
        elif mode == "any":
            result = yes != 0
        else:
            result = (yes == present) | (yes == 0)
        store(target, result, mask)

    return decoder.synced(mask_of, body)


@rule("activemask")
def activemask(decoder: Decoder, instr: Instr) -> Code:
    """The lanes of the warp that execute this together."""
    target = decoder.dst(instr.operands[0], "b32")
    machine = decoder.machine
    return lambda mask: store(target, machine.warp_bits(machine.full(mask))[machine.warp], mask)


@rule("elect")
def elect(decoder: Decoder, instr: Instr) -> Code:
    """Choose the lowest member lane: its number, and a predicate true there alone."""
    d, members = instr.operands
    mask_of = decoder.src(members, "b32")
    target, flag = bind_pair(decoder, d, "b32")
    machine = decoder.machine

    def body(mask: Mask) -> None:
        present = machine.warp_bits(machine.full(mask))[machine.warp] & mask_of
        lowest = bit_count((present & (~present + np.uint32(1))) - np.uint32(1))
        store(target, lowest, mask)
        if flag is not None:
            store(flag, machine.lane == lowest, mask)

    return decoder.synced(mask_of, body)


def _by_mask(machine: Machine, mask: Mask, mask_of: Array, each: Callable[[Array], None]) -> None:
    """Call `each` with the lane numbers of every set that shares a warp and a member mask."""
    active = np.flatnonzero(machine.full(mask))
    keys = machine.warp[active].astype(np.uint64) << np.uint64(32) | mask_of[active]
    for key in np.unique(keys):
        each(active[keys == key])


_REDUX: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}
_FLOAT_REDUX: dict[str, Any] = {"min": np.fmin, "max": np.fmax}


@rule("redux")
def redux(decoder: Decoder, instr: Instr) -> Code:
    """Reduce over the member lanes: add, min, max, and, or, xor; min and max of f32 too."""
    mode, ty = instr.mods[1], instr.type
    target, x, mask_of = bind(decoder, instr, ty, ty, "b32")
    op = (_FLOAT_REDUX if ty == "f32" and "NaN" not in instr.mods else _REDUX)[mode]
    absolute = "abs" in instr.mods
    machine = decoder.machine
    everyone = instr.operands[2].kind == "imm" and bool((mask_of == 0xFFFFFFFF).all())

    def body(mask: Mask) -> None:
        values = np.abs(x) if absolute else x.copy()
        if ty == "f32":
            canonical(values)  # numpy lets a signalling NaN win
        if mask is None and everyone and ty != "f32":
            target[:] = op.reduce(values.reshape(-1, 32), axis=1).repeat(32)
            return

        def each(lanes: Array) -> None:
            result = op.reduce(values[lanes])
            target[lanes] = canonical(np.array([result]))[0] if ty == "f32" else result

        _by_mask(machine, mask, mask_of, each)

    return decoder.synced(mask_of, body)


@rule("match")
def match(decoder: Decoder, instr: Instr) -> Code:
    """Lanes with an equal value: match.any their mask, match.all the members' mask or 0."""
    mode = instr.mods[0]
    d, a, members = instr.operands
    x = decoder.src(a, instr.type)
    mask_of = decoder.src(members, "b32")
    target, flag = bind_pair(decoder, d, "b32")
    machine = decoder.machine

    def body(mask: Mask) -> None:
        values = x.copy()

        def each(lanes: Array) -> None:
            same = values[lanes][:, None] == values[lanes][None, :]
            bits = np.uint64(1) << (lanes % 32).astype(np.uint64)
            if mode == "any":
                target[lanes] = (same * bits[None, :]).sum(axis=1).astype(np.uint32)
                return
            equal = bool(same.all())
            target[lanes] = np.uint32(bits.sum()) if equal else np.uint32(0)
            if flag is not None:
                flag[lanes] = equal

        _by_mask(machine, mask, mask_of, each)

    return decoder.synced(mask_of, body)
