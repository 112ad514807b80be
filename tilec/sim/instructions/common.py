"""Operand views and result shapes that many instruction rules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.sim.assign import assign
from tilec.sim.floats import flush, widen

if TYPE_CHECKING:
    from tilec.sim.decode import Decoder
    from tilec.sim.machine import Code
    from tilec.sim.ptx import Instr, Operand, Scope

Array = np.ndarray[Any, Any]


def is_float(ty: str) -> bool:
    """Whether a PTX type is a float type, packed ones included."""
    return ty.lstrip("b").startswith("f")


def halves(ty: str) -> Any:
    """The numpy type of the two parts of u16x2 or s16x2."""
    return np.int16 if ty == "s16x2" else np.uint16


def binary(decoder: Decoder, instr: Instr, op: Callable[[Array, Array], Array]) -> Code:
    """d = op(a, b) on views of the instruction's type; packed types element by element."""
    ty = instr.type
    d, a, b = instr.operands
    target = decoder.dst(d, ty, instr.scope)
    x, y = decoder.src(a, ty, instr.scope), decoder.src(b, ty, instr.scope)
    if ty.endswith("x2"):
        kind = halves(ty)
        x, y = x.view(kind), y.view(kind)
        return assign(target, lambda: op(x, y).view(np.uint32))
    return assign(target, lambda: op(x, y))


def unary(decoder: Decoder, instr: Instr, op: Callable[[Array], Array]) -> Code:
    """d = op(a) on views of the instruction's type."""
    d, a = instr.operands
    target = decoder.dst(d, instr.type, instr.scope)
    x = decoder.src(a, instr.type, instr.scope)
    return assign(target, lambda: op(x))


def float_source(
    decoder: Decoder, operand: Operand, ty: str, scope: Scope, ftz: bool
) -> Callable[[], Array]:
    """A float operand as values; packed types give two values a lane."""
    array = decoder.src(operand, ty, scope)
    base = ty.removesuffix("x2")
    if ty.endswith("x2"):
        array = array.view(np.uint16 if base != "f32" else np.float32)
    if base in ("f32", "f64"):
        return (lambda: flush(array)) if ftz and base == "f32" else (lambda: array)
    return lambda: widen(np.ascontiguousarray(array), base)
