"""Clusters and the control of a Hopper CTA: mapa, barrier.cluster, fences, setmaxnreg."""

from __future__ import annotations

import re

import numpy as np

from tilec.sim.assign import assign
from tilec.sim.decode import Decoder
from tilec.sim.errors import Fault, Unsupported
from tilec.sim.instructions.common import bind
from tilec.sim.machine import Code, Mask, Moves
from tilec.sim.memory import RANK_BITS
from tilec.sim.ptx import Instr
from tilec.sim.rules import rule

_SCOPE = r"(?:cta|cluster|gpu|sys)"
_HINTS = {
    "fence": rf"(?:(?:sc|acq_rel|acquire|release)\.)?{_SCOPE}"
             r"|(?:acquire\.sync_restrict::shared::cluster"
             r"|release\.sync_restrict::shared::cta)\.cluster"
             r"|mbarrier_init\.release\.cluster"
             r"|proxy\.(?:alias|async(?:\.global|\.shared::cta|\.shared::cluster)?)"
             r"|proxy\.async::generic\.(?:acquire\.sync_restrict::shared::cluster"
             r"|release\.sync_restrict::shared::cta)\.cluster"
             rf"|proxy\.tensormap::generic\.(?:acquire|release)\.{_SCOPE}",
    "membar": r"(?:level\.)?(?:cta|gl|sys)|proxy\.(?:alias|async(?:\.global|\.shared::cta)?)",
    "nanosleep": r"u32",
    "pmevent": r"|mask",
    "griddepcontrol": r"launch_dependents|wait",
}
_RANK = ((1 << 8) - 1) << RANK_BITS


@rule(*_HINTS)
def hint(decoder: Decoder, instr: Instr) -> Code:
    """Fences and hints: instructions already run in order, one after another."""
    text = ".".join(instr.mods)
    if not re.fullmatch(_HINTS[instr.op], text):
        raise Unsupported(f"{instr.op}.{text}")
    if instr.op == "nanosleep":
        decoder.src(instr.operands[0], "u32")
    machine = decoder.machine
    proxy, inits = text.startswith("proxy.async"), text.startswith("mbarrier_init")
    releases = instr.op in ("fence", "membar") and not text.startswith(("proxy", "acquire"))
    if not (proxy or releases):
        return lambda mask: None

    def fence(mask: Mask) -> None:
        order = machine.order
        if order is None:
            return
        threads = np.flatnonzero(machine.full(mask) & machine.live)
        if proxy:
            order.fence_proxy(threads)
        elif inits:
            order.fence_inits(threads)
        if releases:
            order.fences |= machine.full(mask)

    return fence


@rule("setmaxnreg")
def setmaxnreg(decoder: Decoder, instr: Instr) -> Code:
    """Change the registers that a warpgroup has."""
    if not re.fullmatch(r"(?:inc|dec)\.sync\.aligned\.u32", ".".join(instr.mods)):
        raise Unsupported(f"setmaxnreg.{'.'.join(instr.mods)}")
    count = instr.operands[0].value
    if not 24 <= count <= 256 or count % 8:
        raise Unsupported(f"setmaxnreg of {count} registers: a multiple of 8 from 24 to 256")
    machine, pc, more = decoder.machine, decoder.pc, instr.mods[0] == "inc"

    def code(mask: Mask) -> Moves:
        ready = machine.gate_warpgroups(pc, mask)
        return [(pc + 1, machine.registers.change(pc, ready, count, more))]

    return code


@rule("mapa")
def mapa(decoder: Decoder, instr: Instr) -> Code:
    """The address of a shared variable in another CTA of the cluster."""
    target, source, cta = bind(decoder, instr, instr.type, instr.type, "u32")
    kind, ranks = source.dtype.type, decoder.shared.ranks

    def code(mask: Mask) -> None:
        beyond = np.flatnonzero(decoder.machine.full(mask) & (cta >= ranks))
        if len(beyond):
            thread = int(beyond[0])
            raise Fault(f"mapa to CTA {int(cta[thread])} of a cluster of {ranks}", thread)
        move(mask)

    move = assign(target, lambda: (source & kind(~_RANK & (1 << 8 * source.itemsize) - 1))
                  | (cta.astype(kind) << kind(RANK_BITS)))
    return code


@rule("getctarank")
def getctarank(decoder: Decoder, instr: Instr) -> Code:
    """The rank of the CTA that a shared address belongs to."""
    target, source = bind(decoder, instr, "u32", instr.type)
    kind = source.dtype.type
    return assign(target, lambda: (source & kind(_RANK)) >> kind(RANK_BITS))


def cluster_barrier(decoder: Decoder, instr: Instr) -> Code:
    """barrier.cluster.arrive and .wait."""
    text = ".".join(instr.mods)
    if not re.fullmatch(r"cluster\.(?:arrive(?:\.release|\.relaxed)?|wait(?:\.acquire)?)"
                        r"(?:\.aligned)?", text):
        raise Unsupported(f"barrier.{text}")
    barrier, machine, pc = decoder.machine.cluster_barrier, decoder.machine, decoder.pc
    releases = "relaxed" not in instr.mods
    if "arrive" in instr.mods:
        def step(mask: Mask) -> Moves | None:
            barrier.arrive(machine.full(mask), releases)
            return None
    else:
        def step(mask: Mask) -> Moves | None:
            return barrier.wait(pc, machine.full(mask))

    if "aligned" not in instr.mods:
        return step

    def code(mask: Mask) -> Moves | None:
        ready = machine.gate(pc, mask, None)
        if not np.count_nonzero(ready):
            return []
        moves = step(ready)
        return [(pc + 1, ready)] if moves is None else moves

    return code
