"""call: inlined functions pass their parameters here; vprintf and __assertfail are built in."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.sim.decode import Decoder
from tilec.sim.errors import Fault, Unsupported
from tilec.sim.flow import called
from tilec.sim.machine import Array, Code, Mask
from tilec.sim.memory import GLOBAL_BASE, LOCAL_WINDOW
from tilec.sim.ptx import Instr, Operand
from tilec.sim.rules import rule

_CONVERSION = re.compile(r"%([-+ #0]*)(\d+|\*)?(?:\.(\d+|\*))?(hh|h|ll|l|j|z|t)?([a-zA-Z%])")


@rule("call")
def call(decoder: Decoder, instr: Instr) -> Code:
    """Jump into the inlined copy of a function, or run a system function."""
    name = called(instr)
    at = next(i for i, o in enumerate(instr.operands) if o.kind == "reg")
    following = instr.operands[at + 1 :]
    arguments = following[0].items if following and following[0].kind == "list" else ()
    if name == "vprintf":
        return _printf(decoder, arguments)
    if name == "__assertfail":
        return _assertfail(decoder, arguments)
    callee = decoder.callee()
    if callee is None:
        raise Unsupported(f"the function '{name}', which this PTX does not define")
    frame, start = callee
    function = decoder.module.functions[name]
    moves = [(decoder.symbol(a.name)[1], *decoder.call_parameter(frame, p))
             for a, p in zip(arguments, function.params, strict=True)]

    def code(mask: Mask) -> int:
        copy_locals(decoder, moves, mask)
        return start

    return code


def _parameter(decoder: Decoder, operand: Operand, width: int) -> Callable[[], Array]:
    """A function that gives a call parameter of every thread, as unsigned integers."""
    at = decoder.symbol(operand.name)[1]

    def values() -> Array:
        table = decoder.local.bytes.reshape(-1, decoder.local.stride)
        return np.ascontiguousarray(table[:, at : at + width]).view(f"u{width}").reshape(-1)

    return values


def read_string(decoder: Decoder, pointer: int) -> str:
    """A zero-terminated string in global memory."""
    owner = decoder.arena.owner(pointer)
    if owner is None or not owner.start <= pointer < owner.start + owner.size:
        raise Fault(f"a string at {pointer:#x}, which is outside every allocation")
    start = pointer - GLOBAL_BASE
    data = decoder.arena.bytes[start : owner.start + owner.size - GLOBAL_BASE].tobytes()
    return data.split(b"\0", 1)[0].decode("utf-8", "replace")


def _printf(decoder: Decoder, arguments: tuple[Operand, ...]) -> Code:
    """vprintf(format, buffer): print for every active thread, in thread order."""
    formats, buffers = (_parameter(decoder, argument, 8) for argument in arguments)

    def code(mask: Mask) -> None:
        for thread in np.flatnonzero(decoder.machine.full(mask)):
            data, pointer = b"", int(buffers()[thread])
            if pointer:
                start = int(thread) * decoder.local.stride
                end = start + decoder.local.stride
                data = decoder.local.bytes[start + pointer - LOCAL_WINDOW : end].tobytes()
            text = read_string(decoder, int(formats()[thread]))
            decoder.on_print(format_text(text, data, lambda p: read_string(decoder, p)))

    return code


def format_text(text: str, data: bytes, string_at: Callable[[int], str]) -> str:
    """C's printf of the packed arguments in `data`; `string_at` reads a %s argument."""
    at = 0

    def take(code: str) -> Any:
        nonlocal at
        size = struct.calcsize(code)
        at = -(-at // size) * size
        (value,) = struct.unpack_from("<" + code, data, at)
        at += size
        return value

    def convert(match: re.Match[str]) -> str:
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        width = str(take("i")) if width == "*" else width or ""
        precision = str(take("i")) if precision == "*" else precision
        spec = f"%{flags}{width}" + ("" if precision is None else f".{precision}")
        wide = length in ("l", "ll", "j", "z", "t")
        if kind in "di":
            return (spec + "d") % take("q" if wide else "i")
        if kind in "uxXo":
            return (spec + ("d" if kind == "u" else kind)) % take("Q" if wide else "I")
        if kind == "p":
            return (spec + "s") % f"{take('Q'):#x}"
        if kind == "c":
            return (spec + "c") % chr(take("i") & 255)
        if kind == "s":
            return (spec + "s") % string_at(take("Q"))
        return (spec + kind) % take("d")

    return _CONVERSION.sub(convert, text)


def _assertfail(decoder: Decoder, arguments: tuple[Operand, ...]) -> Code:
    """__assertfail(message, file, line, function, char size): the kernel's assertion is false."""
    values = [_parameter(decoder, a, width) for a, width in zip(arguments, (8, 8, 4, 8))]

    def code(mask: Mask) -> None:
        thread = int(np.flatnonzero(decoder.machine.full(mask))[0])
        text, file, line, function = (int(value()[thread]) for value in values)
        said, path, name = (read_string(decoder, p) for p in (text, file, function))
        raise Fault(f"assertion failed: {said} ({path}:{line}, in {name})", thread)

    return code


def leave(decoder: Decoder, after: int) -> Code:
    """`ret` of an inlined function: hand its return values to the caller and go on there."""
    number = decoder.entry.frame
    frame = decoder.flat.frames[number]
    assert frame.call is not None
    first = frame.call.operands[0]
    outer = first.items if first.kind == "list" and frame.kernel.returns else ()
    moves = []
    for operand, variable in zip(outer, frame.kernel.returns, strict=True):
        source, size = decoder.call_parameter(number, variable)
        decoder.frame = frame.caller
        target = decoder.symbol(operand.name, frame.call.scope)[1]
        decoder.frame = number
        moves.append((source, target, size))

    def code(mask: Mask) -> int:
        copy_locals(decoder, moves, mask)
        return after

    return code


def copy_locals(decoder: Decoder, moves: list[tuple[int, int, int]], mask: Mask) -> None:
    """Copy (from, to, bytes) within the local memory of the active threads."""
    table = decoder.local.bytes.reshape(-1, decoder.local.stride)
    active = decoder.machine.full(mask)
    for source, target, size in moves:
        table[active, target : target + size] = table[active, source : source + size]
