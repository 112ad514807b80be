"""cp.async: copies from global to shared memory that complete at a wait (see sim/copies.py)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilec.sim.decode import Decoder
from tilec.sim.errors import Fault, Unsupported
from tilec.sim.instructions.bulk import bulk
from tilec.sim.instructions.loadstore import address, locator
from tilec.sim.instructions.mbarrier import shared_places
from tilec.sim.machine import Array, Code, Mask
from tilec.sim.ptx import Instr, Operand
from tilec.sim.rules import rule


@rule("cp")
def cp(decoder: Decoder, instr: Instr) -> Code:
    """cp.async.ca and .cg, .commit_group, .wait_group N, .wait_all and .mbarrier.arrive."""
    copies = decoder.copies
    if "bulk" in instr.mods:
        return bulk(decoder, instr)
    if instr.mods[:3] == ("async", "mbarrier", "arrive"):
        return _signal(decoder, instr)
    kind = instr.mods[1] if instr.mods[0] == "async" and len(instr.mods) > 1 else ""
    if instr.operands and kind in ("commit_group", "wait_all"):
        raise Unsupported(f"operands of cp.async.{kind}")
    if kind == "commit_group":
        return copies.commit
    if kind == "wait_group":
        (operand,) = instr.operands
        if operand.kind != "imm":
            raise Unsupported("cp.async.wait_group of anything but a number")
        newest = operand.value
        return lambda mask: copies.wait(mask, newest)
    if kind == "wait_all":
        def wait_all(mask: Mask) -> None:
            copies.wait(mask, None)
            copies.commit(mask)

        return wait_all
    if kind not in ("ca", "cg"):
        raise Unsupported(f"cp.{'.'.join(instr.mods[:2])}")
    return _copy(decoder, instr)


def _signal(decoder: Decoder, instr: Instr) -> Code:
    """cp.async.mbarrier.arrive: the thread's copies so far, when done, arrive at an mbarrier.

    The arrival is one more than the phase expects, unless .noinc says that it is counted already.
    """
    places = shared_places(decoder, instr.operands[0], instr)
    counted = "noinc" in instr.mods

    def code(mask: Mask) -> None:
        lanes, offsets = places(mask)
        if not counted:
            for lane, at in zip(lanes.tolist(), offsets.tolist(), strict=True):
                decoder.mbarriers.find(at, lane).pending += 1
        decoder.copies.signal(lanes, offsets, instr)

    return code


def _copy(decoder: Decoder, instr: Instr) -> Code:
    """cp.async [shared], [global], size{, bytes to copy | predicate that copies none}."""
    to, origin, size_operand, *rest = instr.operands
    if "L2::cache_hint" in instr.mods:
        rest = rest[:-1]
    size = size_operand.value
    if size not in ((16,) if instr.mods[1] == "cg" else (4, 8, 16)):
        raise Unsupported(f"cp.async.{instr.mods[1]} of {size} bytes")
    locate = locator(decoder, to, "shared", instr)
    addresses = address(decoder, origin)[1]
    byte_counts = _byte_counts(decoder, rest, size)
    checks = None if decoder.checks is None else decoder.checks.watch(instr)
    counts = None if decoder.counters is None else decoder.counters.watch(instr, decoder.pc)

    def code(mask: Mask) -> None:
        ((_, lanes, target),) = locate(mask, size, True)
        lanes = np.arange(len(target)) if lanes is None else lanes
        filled = byte_counts()[lanes]
        if int(filled.max()) > size:
            at = int(np.argmax(filled))
            raise Fault(f"cp.async copies {int(filled[at])} of {size} bytes", int(lanes[at]))
        source = _sources(decoder, addresses()[lanes], filled, size, lanes)
        reads = filled > 0
        if counts is not None and reads.any():
            counts(decoder.arena, lanes[reads], source[reads], size, False)
        if checks is not None:
            for count in np.unique(filled[reads]).tolist():
                some = filled == count
                checks(decoder.arena, lanes[some], source[some], count, False)
        decoder.copies.issue(size, lanes, source, target.astype(np.int64), filled)

    return code


def _byte_counts(decoder: Decoder, operands: list[Operand], size: int) -> Callable[[], Array]:
    """How many bytes each lane reads: the optional source size, or 0 where src is ignored."""
    if not operands:
        return lambda: decoder.constant(size, np.uint32)
    register = decoder.register(operands[0].name) if operands[0].kind == "reg" else None
    if register is not None and register.dtype == np.bool_:
        ignored = decoder.pred(operands[0])
        return lambda: np.where(ignored(), 0, size).astype(np.uint32)
    counts = decoder.src(operands[0], "u32")
    return lambda: counts


def _sources(decoder: Decoder, addresses: Array, filled: Array, size: int, lanes: Array) -> Array:
    """Checked byte offsets of the sources; a lane that reads nothing may point anywhere."""
    arena = decoder.arena
    if (filled == size).all():
        return arena.offsets(addresses, size, lanes, False).astype(np.int64)
    result = np.zeros(len(lanes), np.int64)
    reads = filled > 0
    if reads.any():
        first, who = addresses[reads], lanes[reads]
        arena.check_aligned(first, size, who)
        arena.offsets(first + (filled[reads] - np.uint32(1)), 1, who, False)
        result[reads] = arena.offsets(first, 1, who, False)
    return result
