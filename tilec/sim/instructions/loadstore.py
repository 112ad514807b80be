"""ld and st of every space and width, prefetch, and copies of cache hints that change nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilec.sim.assign import assign, store
from tilec.sim.banks import wavefronts
from tilec.sim.checks import Written
from tilec.sim.decode import Decoder
from tilec.sim.errors import Fault, Unsupported
from tilec.sim.instructions.common import parts
from tilec.sim.machine import Array, Code, Mask
from tilec.sim.memory import GLOBAL_BASE, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, Space
from tilec.sim.ptx import TYPE_BYTES, Instr, Operand
from tilec.sim.rules import rule

Piece = tuple[Space, Array | None, Array]
"""Part of an access: its space, the lanes (None: all, in order) and their byte offsets."""
Locate = Callable[["Mask", int, bool], list[Piece]]

SPACES = ("global", "shared", "shared::cluster", "local", "const", "param")
_REGIONS = {SHARED_WINDOW >> 40: "shared", LOCAL_WINDOW >> 40: "local", PARAM_WINDOW >> 40: "param"}


def space_of(instr: Instr) -> str:
    """The state space that an instruction names, "generic" if none."""
    for modifier in instr.mods:
        name = modifier if modifier == "shared::cluster" else modifier.partition("::")[0]
        if name in SPACES:
            return name
    return "generic"


def raw(ty: str) -> str:
    """The bit type of a float type; integer types as they are."""
    return ty if ty[0] in "sub" and "f" not in ty else f"b{8 * TYPE_BYTES[ty]}"


def address(decoder: Decoder, operand: Operand) -> tuple[str | None, Callable[[], Array]]:
    """The space of a named variable (None for registers), and a function giving addresses."""
    base, offset = operand.items[0], operand.value
    array = None if base.kind == "imm" else decoder.register(base.name)
    if array is None:
        if base.kind == "imm":
            fixed = decoder.constant(base.value + offset, np.uint64)
            return None, lambda: fixed
        fixed = decoder.address_of(base.name, base.value + offset, np.uint64)
        return decoder.symbol(base.name)[0], lambda: fixed
    if offset == 0:
        return None, lambda: array
    plus = array.dtype.type(offset & ((1 << 8 * array.dtype.itemsize) - 1))
    return None, lambda: array + plus


def locator(decoder: Decoder, operand: Operand, space: str, instr: Instr,
            data: Written | None = None) -> Locate:
    """Checks an access and splits it by space; `mask` gives the active threads.

    `data` gives what the instruction stores. Shared-memory requests go to the run's `on_shared`, if
    it has one.
    """
    named, get = address(decoder, operand)
    if named is not None and space != "generic":
        # Parameters of calls lie in the thread's own memory.
        if named != space.partition("::")[0] and (named, space) != ("local", "param"):
            raise Unsupported(f"an access to .{space} that names a .{named} variable")
        space = named
    elif named is not None and named != "global":
        raise Unsupported("a generic access that names a variable")
    fixed = None if space == "generic" else decoder.spaces[space]
    own = space == "shared" and decoder.shared.ranks > 1
    watch = decoder.watch(instr, data)

    def locate(mask: Mask, width: int, writing: bool) -> list[Piece]:
        lanes = None if mask is None else np.flatnonzero(mask)
        values = get() if lanes is None else get()[lanes]
        target = fixed or (decoder.arena if int(values.min()) >= GLOBAL_BASE else None)
        if target is None:
            pieces = _split(decoder, values, lanes, width, writing)
        else:
            pieces = [(target, lanes, target.offsets(values, width, lanes, writing))]
            if own:
                check_own(decoder, *pieces[0])
        if watch is not None or decoder.on_shared is not None:
            for memory, some, offsets in pieces:
                who = np.arange(len(offsets)) if some is None else some
                if watch is not None:
                    watch(memory, who, offsets, width, writing)
                if decoder.on_shared is not None and memory is decoder.shared:
                    decoder.on_shared(instr, *wavefronts(
                        who, offsets, width, joins=instr.op not in ("atom", "red")))
        return pieces

    return locate


def check_own(decoder: Decoder, space: Space, lanes: Array | None, offsets: Array) -> None:
    """Fault where a .shared::cta access reaches another CTA of the cluster."""
    cta = decoder.machine.cta if lanes is None else decoder.machine.cta[lanes]
    stray = np.flatnonzero(offsets // decoder.shared.stride != cta)
    if len(stray):
        at = int(stray[0])
        raise Fault("a .shared access to the memory of another CTA: .shared::cluster reaches it",
                    at if lanes is None else int(lanes[at]))


def _split(decoder: Decoder, values: Array, lanes: Array | None, width: int,
           writing: bool) -> list[Piece]:
    """The pieces of a generic access whose lanes reach different spaces."""
    pieces: list[Piece] = []
    regions = values >> values.dtype.type(40)
    numbers = np.arange(len(values)) if lanes is None else lanes
    for region in np.unique(regions):
        chosen = np.flatnonzero(regions == region)
        mine, who = values[chosen], numbers[chosen]
        name = _REGIONS.get(int(region), "global")
        space = decoder.spaces[name]
        if name != "global":
            mine = mine - np.uint64(int(region) << 40)
        elif int(mine.min()) < GLOBAL_BASE:
            raise Fault(
                f"{'store to' if writing else 'read of'} address {int(mine[0]):#x}, which no "
                "memory has (a null or stray pointer)", int(who[0]))
        pieces.append((space, who, space.offsets(mine, width, who, writing)))
    return pieces


def vector_length(instr: Instr, *data: Operand) -> int:
    """2, 4 or 8 where .v2, .v4 or .v8 is written, else 1: so many registers has what moves."""
    count = next((int(m[1]) for m in instr.mods if m in ("v2", "v4", "v8")), 1)
    for operand in data:
        if len(parts(operand)) != count:
            raise Unsupported(f"{instr.op} of {count} with {len(parts(operand))} registers")
    return count


@rule("ld", "ldu")
def ld(decoder: Decoder, instr: Instr) -> Code:
    """Load one value or a vector; a destination wider than the type is extended."""
    d, a = instr.operands[:2]
    ty, count = raw(instr.type), vector_length(instr, d)
    if ty == "b128":
        raise Unsupported("128-bit scalar loads")
    targets = [decoder.dst(o, ty) for o in parts(d)]
    space = space_of(instr)
    if space == "param" and (uniform := _uniform(decoder, a)) is not None:
        return _load_uniform(decoder, targets, uniform, ty)
    locate = locator(decoder, a, space, instr)
    width = TYPE_BYTES[ty]
    kind = np.dtype(f"int{8 * width}") if ty[0] == "s" else None
    shift, total = width.bit_length() - 1, width * count

    def code(mask: Mask) -> None:
        for memory, lanes, offsets in locate(mask, total, False):
            view = memory.views[width]
            index = offsets >> offsets.dtype.type(shift)
            values = [view[index if i == 0 else index + index.dtype.type(i)] for i in range(count)]
            for target, value in zip(targets, values, strict=True):
                value = value if kind is None else value.view(kind)
                if lanes is None:
                    np.copyto(target, value, casting="unsafe")
                else:
                    target[lanes] = value

    return code


def _uniform(decoder: Decoder, operand: Operand) -> int | None:
    """The offset of a kernel parameter that is named directly; None for other addresses."""
    base = operand.items[0]
    if base.kind == "imm" or decoder.register(base.name) is not None:
        return None
    space, at = decoder.symbol(base.name)
    return at + operand.value if space == "param" else None


def _load_uniform(decoder: Decoder, targets: list[Array], offset: int, ty: str) -> Code:
    """Load kernel parameters: the same value for every thread."""
    width = TYPE_BYTES[ty]
    if offset < 0 or offset + width * len(targets) > decoder.param.size:
        raise Unsupported("a load outside the kernel's parameters")
    kind = np.dtype(f"{'int' if ty[0] == 's' else 'uint'}{8 * width}")
    pieces = [decoder.param.bytes[offset + i * width : offset + (i + 1) * width].view(kind)
              for i in range(len(targets))]

    def code(mask: Mask) -> None:
        for target, piece in zip(targets, pieces, strict=True):
            store(target, piece, mask)

    return code


@rule("st")
def st(decoder: Decoder, instr: Instr) -> Code:
    """Store one value or a vector."""
    a, b = instr.operands[:2]
    ty, count = raw(instr.type), vector_length(instr, b)
    if ty == "b128":
        raise Unsupported("128-bit scalar stores")
    ty = "b" + ty[1:]
    sources = [decoder.src(o, ty) for o in parts(b)] if b.kind == "vec" else \
        [decoder.bits(b, instr.type)]
    locate = locator(decoder, a, space_of(instr), instr,
                     lambda lanes: np.stack([s[lanes] for s in sources], axis=1).view(np.uint8))
    width = TYPE_BYTES[ty]
    shift, total = width.bit_length() - 1, width * count

    def code(mask: Mask) -> None:
        for memory, lanes, offsets in locate(mask, total, True):
            view = memory.views[width]
            index = offsets >> offsets.dtype.type(shift)
            for i, source in enumerate(sources):
                view[index + index.dtype.type(i)] = source if lanes is None else source[lanes]

    return code


@rule("prefetch", "prefetchu", "applypriority", "discard")
def prefetch(decoder: Decoder, instr: Instr) -> Code:
    """A hint; the address is not checked, as the hardware ignores bad ones."""
    return lambda mask: None


@rule("createpolicy")
def createpolicy(decoder: Decoder, instr: Instr) -> Code:
    """A cache policy: a value that only cache hints read."""
    target = decoder.dst(instr.operands[0], "b64")
    policy = decoder.constant(0x1000000000000000, np.uint64)
    return assign(target, lambda: policy)
