"""Branches, exits and CTA barriers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.sim.assign import store
from tilec.sim.decode import Decoder
from tilec.sim.errors import Fault, Unsupported
from tilec.sim.instructions.calls import leave
from tilec.sim.instructions.cluster import cluster_barrier
from tilec.sim.machine import Array, Code, Mask, Moves
from tilec.sim.ptx import Instr
from tilec.sim.rules import rule


@rule("bra")
def bra(decoder: Decoder, instr: Instr) -> Code:
    """Jump; threads whose guard differs part, and meet again at the earliest common block."""
    target = decoder.target(instr.operands[0].name)
    if instr.guard is None:
        return lambda mask: target
    guard, following, lanes = decoder.guard(instr), decoder.pc + 1, decoder.lanes

    def code(mask: Mask) -> int | Moves | None:
        taken = guard() if mask is None else guard() & mask
        count = np.count_nonzero(taken)
        if count == 0:
            return None
        if count == (lanes if mask is None else np.count_nonzero(mask)):
            return target
        rest = ~taken if mask is None else mask & ~taken
        return [(target, taken.copy() if mask is None else taken), (following, rest)]

    return code


@rule("brx")
def brx(decoder: Decoder, instr: Instr) -> Code:
    """Jump through a table of labels."""
    index = decoder.src(instr.operands[0], "u32")
    names = instr.scope.find_table(instr.operands[1].name)
    if names is None:
        raise Unsupported(f"a branch through '{instr.operands[1].name}', which is no label list")
    targets = [decoder.target(name) for name in names]
    machine = decoder.machine

    def code(mask: Mask) -> Moves:
        active = machine.full(mask)
        beyond = active & (index >= len(targets))
        if np.count_nonzero(beyond):
            thread = int(np.flatnonzero(beyond)[0])
            raise Fault(f"branch index {int(index[thread])} of {len(targets)} targets", thread)
        return [(targets[i], active & (index == i)) for i in np.unique(index[active]).tolist()]

    return code


@rule("ret")
def ret(decoder: Decoder, instr: Instr) -> Code:
    """Leave a function, or the kernel."""
    after = decoder.after_call()
    if after is not None:
        return leave(decoder, after)
    return exit_(decoder, instr)


@rule("exit")
def exit_(decoder: Decoder, instr: Instr) -> Code:
    """The thread ends."""
    machine = decoder.machine
    return lambda mask: machine.retire(mask)


@rule("trap", "brkpt")
def trap(decoder: Decoder, instr: Instr) -> Code:
    """The kernel fails here."""
    machine = decoder.machine

    def code(mask: Mask) -> None:
        raise Fault(f"executes {instr.op}", int(np.flatnonzero(machine.full(mask))[0]))

    return code


@rule("bar", "barrier")
def barrier(decoder: Decoder, instr: Instr) -> Code:
    """bar.sync, .arrive, .red and .warp.sync, and barrier.cluster."""
    mods = [m for m in instr.mods if m != "cta"]
    if "warp" in mods:
        return _warp_barrier(decoder, instr)
    if "cluster" in mods:
        return cluster_barrier(decoder, instr)
    aligned = instr.op == "bar" or "aligned" in mods
    operation = next((m for m in mods if m in ("sync", "arrive", "red")), "sync")
    operands = list(instr.operands)
    result = operands.pop(0) if operation == "red" else None
    flag = decoder.pred(operands.pop()) if operation == "red" else None
    number = decoder.src(operands[0], "u32")
    count = decoder.src(operands[1], "u32") if len(operands) > 1 else None
    machine, pc = decoder.machine, decoder.pc
    wait_at = None if operation == "arrive" else pc
    finish: Callable[[Array], None] | None = None
    if result is not None and flag is not None:
        finish = _reduction(decoder, instr, result, flag)

    only = operands[0].value
    plain = operation == "sync" and count is None and operands[0].kind == "imm" and only < 16

    def code(mask: Mask) -> Moves | None:
        if plain and machine.everyone(mask) and all(n != only for n, _ in machine.barriers):
            if machine.order is not None:
                machine.meet()
            return None
        threads = machine.gate(pc, mask, None) if aligned else machine.full(mask).copy()
        moves: Moves = []
        for cta, use, expected in _uses(threads, machine.cta, number, count):
            chosen = threads & (number == use) & (machine.cta == cta)
            if count is not None:
                chosen &= count == expected
                if expected % 32 or expected == 0:
                    raise Fault(f"a barrier for {expected} threads: not a multiple of 32")
            if use > 15:
                raise Fault(f"barrier {use}: a CTA has barriers 0 to 15")
            limit = None if count is None else expected
            moves += machine.arrive(use, cta, chosen, limit, wait_at, finish)
            if wait_at is None:
                moves.append((pc + 1, chosen))
        return moves

    return code


def _uses(threads: Array, cta: Array, number: Array,
          count: Array | None) -> list[tuple[int, int, int]]:
    """The distinct (CTA, barrier, thread count) of the threads."""
    which = number[threads].tolist()
    counts = [0] * len(which) if count is None else count[threads].tolist()
    return sorted(set(zip(cta[threads].tolist(), which, counts, strict=True)))


def _reduction(decoder: Decoder, instr: Instr, result: Any,
               flag: Callable[[], Array]) -> Callable[[Array], None]:
    """Called when the barrier completes: combine the predicates of all that arrived."""
    kind = next(m for m in instr.mods if m in ("popc", "and", "or"))
    target = decoder.dst(result, "u32" if kind == "popc" else "pred")

    def finish(arrived: Array) -> None:
        values = flag()[arrived]
        total = np.count_nonzero(values)
        value = {"popc": total, "and": total == len(values), "or": total > 0}[kind]
        store(target, np.asarray(value), arrived)

    return finish


def _warp_barrier(decoder: Decoder, instr: Instr) -> Code:
    """bar.warp.sync: wait for the lanes of the member mask."""
    members = decoder.src(instr.operands[0], "u32")
    machine = decoder.machine

    def body(mask: Mask) -> None:
        if machine.order is not None:
            machine.order.warp_barrier(machine.full(mask) & machine.live)

    return decoder.synced(members, body)
