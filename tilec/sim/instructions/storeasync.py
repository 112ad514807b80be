"""st.async and red.async: stores to shared memory of a cluster that an mbarrier counts."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tilec.sim.bulk import Transfer
from tilec.sim.decode import Decoder
from tilec.sim.errors import Fault, Unsupported
from tilec.sim.instructions.atomics import update_of
from tilec.sim.instructions.common import parts
from tilec.sim.instructions.loadstore import raw, vector_length
from tilec.sim.instructions.mbarrier import shared_places
from tilec.sim.machine import Array, Code, Mask
from tilec.sim.ptx import TYPE_BYTES, Instr
from tilec.sim.rules import rule

_ASYNC = r"(?:shared::cluster\.)?mbarrier::complete_tx::bytes\."
_ST_ASYNC = re.compile(r"async\.(?:weak\.)?" + _ASYNC + r"(?:v[24]\.)?(?:[bus](?:32|64)|f32|f64)")
_RED_ASYNC = re.compile(r"async\.relaxed\.cluster\." + _ASYNC + r"(?:(add)\.(?:[us]32|u64)"
                        r"|(inc|dec)\.u32|(min|max)\.[us]32|(and|or|xor)\.b32)")


@rule("st.async", "red.async")
def asynchronous(decoder: Decoder, instr: Instr) -> Code:
    """st.async and red.async: a store whose bytes an mbarrier of the same CTA counts."""
    form = (_ST_ASYNC if instr.op == "st" else _RED_ASYNC).fullmatch(".".join(instr.mods))
    if form is None:
        raise Unsupported(f"{instr.op}.{'.'.join(instr.mods)}")
    place, value, signal = instr.operands
    bits, width = "b" + raw(instr.type)[1:], TYPE_BYTES[instr.type]
    sources = [decoder.src(o, bits) for o in parts(value)]
    size = width * vector_length(instr, value)
    places = shared_places(decoder, place, instr, size)
    signals = shared_places(decoder, signal, instr)
    name = next((n for n in form.groups() if n), None) if instr.op == "red" else None
    update = update_of(name, instr.type) if name else None
    view, pc = decoder.shared, decoder.pc

    def put(first: int) -> Callable[[Array], None]:
        def write(data: Array) -> None:
            there = view.views[width][first // width : first // width + len(sources)]
            there[:] = data if update is None else update(there.copy(), data)

        return write

    def code(mask: Mask) -> None:
        lanes, offsets = places(mask)
        _, barriers = signals(mask)
        for lane, at, signal_at in zip(lanes.tolist(), offsets.tolist(), barriers.tolist(),
                                       strict=True):
            if at // view.stride != signal_at // view.stride:
                raise Fault(f"{instr.op}.async to one CTA with an mbarrier of another", lane)
            data = np.array([source[lane] for source in sources])
            barrier = decoder.mbarriers.find(signal_at, lane)
            if decoder.checks is not None:
                decoder.checks.agents.touch(pc, view, np.array([at]), size, np.array([lane]),
                                            barrier.epoch, True, async_proxy=False)
            decoder.transfers.issue(Transfer(
                instr, lane, lambda data=data: data, put(at),  # type: ignore[misc]
                (barrier,), size))

    return code
