"""Operand views and result shapes that many instruction rules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.sim.assign import assign
from tilec.sim.decode import Decoder
from tilec.sim.floats import flush, widen
from tilec.sim.machine import Array, Code
from tilec.sim.ptx import Instr, Operand


def parts(operand: Operand) -> tuple[Operand, ...]:
    """The registers of a vector operand, or the one register."""
    return operand.items if operand.kind == "vec" else (operand,)


def bind(decoder: Decoder, instr: Instr, *types: str) -> list[Array]:
    """The destination and the sources of an instruction as views of these types, in order.

    Raises ValueError where it has more or fewer operands.
    """
    pairs = list(zip(instr.operands, types, strict=True))
    for operand, ty in pairs:
        if ty == instr.type:
            decoder.check_kind(operand, ty)
    return [decoder.dst(*pairs[0]), *(decoder.src(o, ty) for o, ty in pairs[1:])]


def bind_pair(decoder: Decoder, operand: Operand, ty: str) -> tuple[Array, Array | None]:
    """A destination of the form d|p: the value, and the predicate if it is there."""
    parts = operand.items if operand.kind == "pair" else (operand,)
    flag = decoder.dst(parts[1], "pred") if len(parts) > 1 else None
    return decoder.dst(parts[0], ty), flag


def binary(decoder: Decoder, instr: Instr, op: Callable[[Array, Array], Array]) -> Code:
    """d = op(a, b) on views of the instruction's type; packed types element by element."""
    ty = instr.type
    target, x, y = bind(decoder, instr, ty, ty, ty)
    if ty.endswith("x2"):
        kind: Any = np.int16 if ty == "s16x2" else np.uint16
        x, y = x.view(kind), y.view(kind)
        return assign(target, lambda: op(x, y).view(np.uint32))
    return assign(target, lambda: op(x, y))


def unary(decoder: Decoder, instr: Instr, op: Callable[[Array], Array], ty: str = "") -> Code:
    """d = op(a) on a view of the instruction's type; `ty` is the result's, if another."""
    target, x = bind(decoder, instr, ty or instr.type, instr.type)
    return assign(target, lambda: op(x))


def float_source(decoder: Decoder, operand: Operand, ty: str, ftz: bool) -> Callable[[], Array]:
    """A float operand as values; packed types give two values a lane."""
    array = decoder.src(operand, ty)
    base = ty.removesuffix("x2")
    if ty.endswith("x2"):
        array = array.view(np.uint16 if base != "f32" else np.float32)
    wide = base in ("f32", "f64")

    def load() -> Array:
        values = array if wide else widen(np.ascontiguousarray(array), base)
        return flush(values, base) if ftz else values

    return load
