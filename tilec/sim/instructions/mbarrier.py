"""mbarrier.*: phases that arrivals and asynchronous transactions complete (see sim/mbarrier.py)."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tilec.sim.assign import assign
from tilec.sim.decode import Decoder
from tilec.sim.errors import Fault, Unsupported
from tilec.sim.instructions.common import bind
from tilec.sim.instructions.loadstore import locator, space_of
from tilec.sim.machine import Array, Code, Mask, Moves
from tilec.sim.mbarrier import MBarrier
from tilec.sim.ptx import Instr, Operand
from tilec.sim.rules import rule

_SPACE = r"(?:\.shared(?:::cta)?)?"
_ANY_SPACE = r"(?:\.shared(?:::cta|::cluster)?)?"
_FORMS = {
    "init": rf"init{_SPACE}\.b64",
    "inval": rf"inval{_SPACE}\.b64",
    "arrive": r"arrive(?:_drop)?(?:\.expect_tx)?(?:\.(?:release|relaxed)\.(?:cta|cluster))?"
              rf"{_ANY_SPACE}\.b64",
    "noComplete": r"arrive(?:_drop)?(?:\.noComplete(?:\.release\.cta)?|\.release\.cta\.noComplete)"
                  rf"{_SPACE}\.b64",
    "transact": rf"(?:expect_tx|complete_tx)(?:\.relaxed\.(?:cta|cluster))?{_ANY_SPACE}\.b64",
    "wait": r"(?:test_wait|try_wait)(?:\.parity)?(?:\.(?:acquire|relaxed)\.(?:cta|cluster))?"
            rf"{_SPACE}\.b64",
    "pending_count": r"pending_count\.b64",
}
_COUNT = np.uint64((1 << 20) - 1)
Places = Callable[[Mask], tuple[Array, Array]]


@rule("mbarrier")
def mbarrier(decoder: Decoder, instr: Instr) -> Code:
    """Every mbarrier operation of sm_90."""
    text = ".".join(instr.mods)
    form = next((name for name, pattern in _FORMS.items() if re.fullmatch(pattern, text)), "")
    if form in ("arrive", "noComplete"):
        return _arrive(decoder, instr)
    if form == "wait":
        return _wait(decoder, instr)
    if form == "pending_count":
        target, state = bind(decoder, instr, "b32", "b64")
        return assign(target, lambda: state & _COUNT)
    if not form:
        raise Unsupported(f"mbarrier.{text}")
    places = shared_places(decoder, instr.operands[0], instr)
    size = decoder.src(instr.operands[1], "u32") if len(instr.operands) > 1 else None
    table, sign = decoder.mbarriers, -1 if instr.mods[0] == "complete_tx" else 1

    def code(mask: Mask) -> None:
        for lane, at in each(places, mask):
            if size is None:
                table.inval(at, lane)
            elif form == "init":
                table.init(at, int(size[lane]), lane)
            else:
                table.find(at, lane).transact(sign * int(size[lane]), lane)

    return code


def shared_places(decoder: Decoder, operand: Operand, instr: Instr, width: int = 8) -> Places:
    """A function giving active lanes and the offsets of `width` bytes of shared memory each."""
    locate = locator(decoder, operand, space_of(instr), instr)

    def places(mask: Mask) -> tuple[Array, Array]:
        (memory, lanes, offsets), *others = locate(mask, width, True)
        if others or memory is not decoder.shared:
            raise Fault(f"{instr.op} at an address outside of shared memory",
                        int(np.flatnonzero(decoder.machine.full(mask))[0]))
        return np.arange(len(offsets)) if lanes is None else lanes, offsets.astype(np.int64)

    return places


def each(places: Places, mask: Mask) -> list[tuple[int, int]]:
    """(lane, offset) of every active lane, in order."""
    lanes, offsets = places(mask)
    return list(zip(lanes.tolist(), offsets.tolist(), strict=True))


def _arrive(decoder: Decoder, instr: Instr) -> Code:
    """arrive and arrive_drop, with .expect_tx and .noComplete; returns the state before it."""
    result, place, *rest = instr.operands
    state = None if result.kind == "sink" else decoder.dst(result, "b64")
    places = shared_places(decoder, place, instr)
    number = decoder.src(rest[0], "u32") if rest else decoder.constant(1, np.uint32)
    expects, drop = "expect_tx" in instr.mods, instr.mods[0] == "arrive_drop"
    complete, releases = "noComplete" not in instr.mods, "relaxed" not in instr.mods
    if not rest and (expects or not complete):
        raise Unsupported("this arrival without a count")
    table, pc = decoder.mbarriers, decoder.pc

    def code(mask: Mask) -> None:
        for lane, at in each(places, mask):
            barrier = table.find(at, lane)
            before = barrier.state()
            if expects:
                barrier.transact(int(number[lane]), lane)
            if decoder.checks is not None:
                decoder.checks.arrive(lane, at, pc)
            order, after = decoder.machine.order, None
            if order is not None and (releases or len(order.relaxed(np.array([lane])))):
                after = order.release(np.array([lane]), barrier.row)
            barrier.arrive(1 if expects else int(number[lane]), lane, complete, drop, after)
            if state is not None:
                state[lane] = before

    return code


def _wait(decoder: Decoder, instr: Instr) -> Code:
    """test_wait and try_wait: whether the phase of a state, or of a parity, is complete.

    try_wait suspends the thread, but only for a time: a thread that has to wait is told once, with
    a seed now and then, that the phase is not complete, so that a wait without a loop shows.
    """
    flag, place, phase = instr.operands[:3]
    target = decoder.dst(flag, "pred")
    places = shared_places(decoder, place, instr)
    parity = "parity" in instr.mods
    wanted = decoder.src(phase, "u32" if parity else "b64")
    machine, pc, table = decoder.machine, decoder.pc, decoder.mbarriers
    suspends = instr.mods[0] == "try_wait"
    acquires = "relaxed" not in instr.mods

    def code(mask: Mask) -> Moves | None:
        lanes, offsets = places(mask)
        keys = wanted[lanes]
        late: list[tuple[MBarrier, Array, int]] = []
        for at, key in sorted(set(zip(offsets.tolist(), keys.tolist(), strict=True))):
            mine = lanes[(offsets == at) & (keys == key)]
            barrier = table.find(at, mine)
            done = _complete(barrier, key, parity, int(mine[0]))
            target[mine] = done
            if done and acquires and machine.order is not None and barrier.past is not None:
                machine.order.acquire(mine, barrier.past)
            if not done:
                late.append((barrier, mine, key))
        if not late:
            return None
        if not suspends:
            machine.stall(late[0][0])
            return None
        return _suspend(decoder, late, mask, parity, pc)

    return code


def _suspend(decoder: Decoder, late: list[tuple[MBarrier, Array, int]], mask: Mask, parity: bool,
             pc: int) -> Moves:
    """Threads that wait are parked at `pc`, those that give up for now go on with the others."""
    machine = decoder.machine
    on = machine.full(mask).copy()
    for barrier, lanes, key in late:
        if machine.seeded:
            stays = np.full(len(lanes), machine.rng.random() < 0.75)
        else:
            stays = barrier.told[lanes]
        barrier.told[lanes] = True
        waiting = np.zeros(machine.lanes, bool)
        waiting[lanes[stays]] = True
        if stays.any():
            phase = f"the phase of parity {key}" if parity else f"phase {key >> 20}"
            machine.park(barrier, pc, waiting, f"the end of {phase}")
        on &= ~waiting
    return [(pc + 1, on)]


def _complete(barrier: MBarrier, key: int, parity: bool, thread: int) -> bool:
    """Whether the phase is over that has the parity, or that the state was taken in."""
    if parity:
        if key > 1:
            raise Fault(f"waits for parity {key}, which is 0 or 1", thread)
        return barrier.phase & 1 != key
    if not barrier.phase - 1 <= key >> 20 <= barrier.phase:
        raise Fault(f"waits with the state of phase {key >> 20}, which must be of the present or "
                    f"the previous phase: {barrier}", thread)
    return barrier.phase != key >> 20
