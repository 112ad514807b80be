"""cp.async.bulk, .tensor, cp.reduce.async.bulk and their groups: copies of the asynchronous proxy.

PTX ISA, "Data Movement and Conversion Instructions: Bulk copy / Tensor copy". What they move is
checked where they are issued; when it moves is for sim/bulk.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.sim.bulk import READS, WRITES, Transfer
from tilec.sim.decode import Decoder
from tilec.sim.errors import Fault, Unsupported
from tilec.sim.instructions.atomics import update_of
from tilec.sim.instructions.loadstore import address
from tilec.sim.machine import Array, Code, Mask
from tilec.sim.mbarrier import MBarrier
from tilec.sim.memory import GLOBAL_BASE, PARAM_WINDOW, Space
from tilec.sim.ptx import TYPE_BYTES, Instr, Operand
from tilec.sim.tensormap import MAP_BYTES, Box, handle_number

_HINT = r"(?:\.L2::cache_hint)?"
_OP = r"(?P<op>add|min|max|inc|dec|and|or|xor)"
_SIGNAL = r"\.mbarrier::complete_tx::bytes"
_FORMS = {
    "load_box": rf"tensor\.(?P<rank>[1-5])d\.shared::(?:cluster|cta)\.global(?:\.tile)?{_SIGNAL}"
                rf"(?:\.multicast::cluster)?{_HINT}",
    "store_box": rf"tensor\.(?P<rank>[1-5])d\.global\.shared::cta(?:\.tile)?\.bulk_group{_HINT}",
    "reduce_box": rf"reduce\.tensor\.(?P<rank>[1-5])d\.global\.shared::cta\.{_OP}(?:\.tile)?"
                  rf"\.bulk_group{_HINT}",
    "prefetch": rf"prefetch\.(?:tensor\.(?P<rank>[1-5])d\.)?L2\.global(?:\.tile)?{_HINT}",
    "load": rf"shared::(?:cluster|cta)\.global{_SIGNAL}(?:\.multicast::cluster)?{_HINT}",
    "send": rf"shared::cluster\.shared::cta{_SIGNAL}",
    "store": rf"global\.shared::cta\.bulk_group{_HINT}",
    "reduce": rf"reduce\.global\.shared::cta\.bulk_group{_HINT}\.{_OP}(?P<noftz>\.noftz)?"
              r"\.(?P<ty>\w+)",
    "reduce_send": rf"reduce\.shared::cluster\.shared::cta{_SIGNAL}\.{_OP}\.(?P<ty>\w+)",
    "commit": r"commit_group",
    "wait": r"wait_group(?:\.read)?",
}
_REDUCED = {"add": "u32 s32 u64 f16 bf16 f32 f64", "min": "u32 s32 u64 s64 f16 bf16",
            "max": "u32 s32 u64 s64 f16 bf16", "inc": "u32", "dec": "u32",
            "and": "b32 b64 u32 s32 u64 s64", "or": "b32 b64 u32 s32 u64 s64",
            "xor": "b32 b64 u32 s32 u64 s64"}
"""Types that each reduction takes; tensor maps give the bitwise ones integers."""
Pieces = tuple[Space, Array, int]
"""A memory, byte offsets in it, and how many bytes there are at each."""
Begin = Callable[[int], tuple[Transfer, Pieces, list[Pieces]]]
"""From a thread to its transfer, what that reads, and what it writes."""


def bulk(decoder: Decoder, instr: Instr) -> Code:
    """A cp instruction with .async.bulk."""
    text = ".".join(m for m in instr.mods if m not in ("async", "bulk"))
    matches = {name: re.fullmatch(pattern, text) for name, pattern in _FORMS.items()}
    name, found = next(((n, m) for n, m in matches.items() if m), ("", None))
    if found is None:
        raise Unsupported(f"cp.{'.'.join(instr.mods)}")
    transfers = decoder.transfers
    if name == "commit":
        return transfers.commit
    if name == "wait":
        newest, read = instr.operands[0].value, "read" in instr.mods
        return lambda mask: transfers.wait(mask, newest, read)
    if name == "prefetch":
        return lambda mask: None
    groups = found.groupdict()
    if groups.get("op") and groups.get("ty"):
        _check_reduction(groups["op"], groups["ty"])
        halves = groups["op"] == "add" and groups["ty"] in ("f16", "bf16")
        if halves != bool(groups.get("noftz")):
            raise Unsupported(f"cp.{'.'.join(instr.mods)}: .noftz goes with .add of halves only")
    begin = _begin_box if groups.get("rank") else _begin_plain
    issue, pc = begin(decoder, instr, groups), decoder.pc

    def code(mask: Mask) -> None:
        for lane in np.flatnonzero(decoder.machine.full(mask)).tolist():
            transfer, source, targets = issue(lane)
            if decoder.checks is not None:
                _touch(decoder, pc, transfer, source, targets)
            if decoder.counters is not None:
                for pieces in (source, *targets):
                    decoder.counters.bulk(pc, *pieces, pieces is not source)
            transfers.issue(transfer)

    return code


def _touch(decoder: Decoder, pc: int, transfer: Transfer, source: Pieces,
           targets: list[Pieces]) -> None:
    """Tell the checks what a transfer reads and writes, and until when."""
    checks, lane = decoder.checks, transfer.thread
    assert checks is not None
    agents, who = checks.agents, np.array([lane])
    group = int(decoder.transfers.committed[lane])
    for barrier in transfer.barriers:
        if checks.order.announced[barrier.born[0]] < barrier.born[1]:
            first = decoder.machine.thread_name(barrier.born[0])
            raise Fault(f"missing fence.mbarrier_init: the async proxy signals the mbarrier at "
                        f"{barrier.address:#x}, which {first} initialises", lane)
    ends = [barrier.epoch for barrier in transfer.barriers]
    read = ends[0] if ends else (agents.column(READS, lane), group)
    agents.touch(pc, *source, who, read, False)
    for target, end in zip(targets, ends or [(agents.column(WRITES, lane), group)], strict=True):
        agents.touch(pc, *target, who, end, True, atomic=transfer.atomic)


def _check_reduction(op: str, ty: str, tensor: bool = False) -> None:
    if ty not in _REDUCED[op].split() or tensor and ty == "f64":
        raise Unsupported(f"a bulk {'tensor ' if tensor else ''}reduction {op} of .{ty}")


class Places:
    """Checked byte offsets of what bulk operands name, one thread at a time."""

    def __init__(self, decoder: Decoder, operand: Operand) -> None:
        self.decoder = decoder
        self.addresses = address(decoder, operand)[1]

    def address(self, lane: int) -> int:
        return int(self.addresses()[lane])

    def shared(self, lane: int, size: int, align: int, store: bool) -> int:
        """The offset of `size` bytes of shared memory; Fault out of bounds or misaligned."""
        start = self.address(lane)
        if start % align:
            raise Fault(f"misaligned shared address {start:#x}: a bulk copy needs a multiple of "
                        f"{align}", lane)
        ends = np.array([start, start + max(size, 1) - 1], np.uint64)
        who = np.array([lane, lane])
        return int(self.decoder.shared.offsets(ends, 1, who, store)[0])

    def arena(self, lane: int, size: int, store: bool) -> int:
        """The same of global memory, aligned to 16."""
        start = np.array([self.address(lane)], np.uint64)
        self.decoder.arena.check_aligned(start, 16, np.array([lane]))
        self.decoder.arena.check_each(start, max(size, 1), np.array([lane]), store)
        return int(start[0]) - GLOBAL_BASE

    def barrier(self, lane: int) -> MBarrier:
        """The mbarrier at the address."""
        return self.decoder.mbarriers.find(self.shared(lane, 8, 8, True), lane)

    def box(self, lane: int, rank: int) -> Box:
        """The tensor map whose handle lies at the address."""
        decoder, start = self.decoder, self.address(lane)
        parameter = start >> 40 == PARAM_WINDOW >> 40
        space = decoder.param if parameter else decoder.arena
        at = np.array([start - PARAM_WINDOW if parameter else start], np.uint64)
        if start % 64:
            raise Fault(f"a tensor map at {start:#x}, which must be a multiple of 64", lane)
        offset = int(space.offsets(at, 16, np.array([lane]), False)[0])
        data = space.bytes[offset : offset + MAP_BYTES].tobytes()
        box = decoder.tensor_maps[handle_number(data, len(decoder.tensor_maps), lane)]
        if len(box.map.shape) != rank:
            raise Fault(f"a {rank}d operation with a tensor map of {len(box.map.shape)} dimensions",
                        lane)
        return box


def _targets(decoder: Decoder, instr: Instr, operands: list[Operand]) -> Callable[
        [int, int, MBarrier], list[tuple[int, MBarrier]]]:
    """From the offset of a destination and its mbarrier, those in every CTA that gets the data."""
    if "multicast::cluster" not in instr.mods:
        return lambda lane, at, barrier: [(at, barrier)]
    chosen = decoder.src(operands[0], "u16")

    def each(lane: int, at: int, barrier: MBarrier) -> list[tuple[int, MBarrier]]:
        ranks = [rank for rank in range(16) if int(chosen[lane]) >> rank & 1]
        beyond = [rank for rank in ranks if rank >= decoder.shared.ranks]
        if beyond or not ranks:
            raise Fault(f"a multicast to CTAs {int(chosen[lane]):#06x} of a cluster of "
                        f"{decoder.shared.ranks}", lane)
        decoder.shared.check_there(np.array(ranks), np.full(len(ranks), lane))
        move = decoder.shared.in_cta
        return [(move(at, rank), decoder.mbarriers.find(move(barrier.offset, rank), lane))
                for rank in ranks]

    return each


def _begin_box(decoder: Decoder, instr: Instr, form: dict[str, Any]) -> Begin:
    """Copies and reductions of the box that a tensor map and coordinates give."""
    loads = "mbarrier::complete_tx::bytes" in instr.mods
    operands = list(instr.operands)
    where = operands.pop(0 if not loads else 1)
    shared, rank, op = Places(decoder, operands.pop(0)), int(form["rank"]), form.get("op")
    map_at, vector = Places(decoder, where), where.items[1]
    coordinates = [decoder.src(o, "s32") for o in vector.items]
    if len(coordinates) != rank:
        raise Unsupported(f"{len(coordinates)} coordinates of {rank} dimensions")
    signal = Places(decoder, operands.pop(0)) if loads else None
    targets = _targets(decoder, instr, operands)
    memory, space = decoder.arena, decoder.shared

    def issue(lane: int) -> tuple[Transfer, Pieces, list[Pieces]]:
        box = map_at.box(lane, rank)
        corner = np.array([int(values[lane]) for values in coordinates])
        box.check(corner, loads, lane)
        at = shared.shared(lane, box.span, 128, loads)
        width, start = box.width, shared.address(lane)
        relative = box.shared(start) - start
        index, inside = box.elements(corner, loads)
        view = memory.views[width]
        rows = relative[:: 16 // width]
        there: Pieces = memory, index[inside] * width, width
        if signal is not None:
            places = targets(lane, at, signal.barrier(lane))

            def fill(data: Array) -> None:
                for offset, _ in places:
                    space.views[width][(offset + relative) // width] = data

            transfer = Transfer(instr, lane, lambda: np.where(inside, view[index], box.fill), fill,
                                tuple(barrier for _, barrier in places), box.bytes)
            return transfer, there, [(space, offset + rows, 16) for offset, _ in places]
        update = None
        if op:
            _check_reduction(op, box.map.dtype, tensor=True)
            update = update_of(op, box.map.dtype)
        if not box.writable:
            raise Fault("a store through a tensor map whose array is read-only", lane)
        index = index[inside]

        def write(data: Array) -> None:
            view[index] = data if update is None else update(view[index], data)

        source = ((at + relative) // width)[inside]
        transfer = Transfer(instr, lane, lambda: space.views[width][source], write,
                            atomic=update is not None)
        return transfer, (space, at + rows, 16), [there]

    return issue


def _begin_plain(decoder: Decoder, instr: Instr, form: dict[str, Any]) -> Begin:
    """Copies and reductions of a row of bytes."""
    to, origin, length, *operands = instr.operands
    named = [m for m in instr.mods if m.startswith(("shared", "global"))]
    into_shared, from_global = named[0] != "global", named[1] == "global"
    target, source = Places(decoder, to), Places(decoder, origin)
    sizes = decoder.src(length, "u32")
    signal = Places(decoder, operands.pop(0)) if into_shared else None
    targets = _targets(decoder, instr, operands)
    op, ty = form.get("op"), form.get("ty")
    update = update_of(op, ty) if op and ty else None
    width = TYPE_BYTES[ty] if ty else 1
    reads = decoder.arena if from_global else decoder.shared
    writes = decoder.shared if into_shared else decoder.arena

    def issue(lane: int) -> tuple[Transfer, Pieces, list[Pieces]]:
        size = int(sizes[lane])
        if size % 16:
            raise Fault(f"a bulk copy of {size} bytes, which must be a multiple of 16", lane)
        if into_shared and not from_global and decoder.shared.ranks == 1:
            raise Fault("a bulk copy between shared memories in a launch without clusters, which "
                        "an H200 ends for an illegal instruction: use ld and st", lane)
        first = source.arena(lane, size, False) if from_global else source.shared(
            lane, size, 16, False)
        if signal is None:
            places: list[tuple[int, MBarrier | None]] = [(target.arena(lane, size, True), None)]
        else:
            places = [*targets(lane, target.shared(lane, size, 16, True), signal.barrier(lane))]

        def take() -> Array:
            return reads.bytes[first : first + size].copy()

        def put(data: Array) -> None:
            data = data.view(f"u{width}")
            for at, _ in places:
                there = writes.bytes[at : at + size].view(f"u{width}")
                there[:] = data if update is None else update(there.copy(), data)

        barriers = tuple(barrier for _, barrier in places if barrier is not None)
        chunks = np.arange(0, size, 16)
        return (Transfer(instr, lane, take, put, barriers, size, atomic=update is not None),
                (reads, first + chunks, 16), [(writes, at + chunks, 16) for at, _ in places])

    return issue
