"""Comparisons and selections: setp, set, selp, slct, testp."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.sim.assign import assign, store
from tilec.sim.errors import Unsupported
from tilec.sim.floats import flush
from tilec.sim.instructions.common import float_source, is_float
from tilec.sim.instructions.table import rule

if TYPE_CHECKING:
    from tilec.sim.decode import Decoder
    from tilec.sim.machine import Code, Mask
    from tilec.sim.ptx import Instr

Array = np.ndarray[Any, Any]
Compare = Callable[[Array, Array], Array]

_ORDERED: dict[str, Compare] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_BOOLEAN: dict[str, Compare] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor,
}  # fmt: skip


def float_compare(name: str) -> Compare:
    """A comparison of floats: plain ones are false on NaN, those ending in u are true."""
    if name == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if name == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    if name == "ne":
        return lambda a, b: (a < b) | (a > b)
    if name in ("equ", "neu", "ltu", "leu", "gtu", "geu"):
        op = _ORDERED[name[:2]]
        return lambda a, b: op(a, b) | np.isnan(a) | np.isnan(b)
    return _ORDERED[name]


def _comparison(decoder: Decoder, instr: Instr, ty: str) -> Callable[[], Array]:
    """The result of a compared with b; for packed types two results a lane."""
    a, b = instr.operands[1:3]
    name = instr.mods[0]
    if is_float(ty):
        op = float_compare(name)
        x = float_source(decoder, a, ty, instr.scope, "ftz" in instr.mods)
        y = float_source(decoder, b, ty, instr.scope, "ftz" in instr.mods)
        return lambda: op(x(), y())
    if name not in _ORDERED:
        raise Unsupported(f"the comparison .{name}")
    ordered = _ORDERED[name]
    kind = "u" + ty[1:] if name in ("lo", "ls", "hi", "hs") else ty
    left, right = decoder.src(a, kind, instr.scope), decoder.src(b, kind, instr.scope)
    return lambda: ordered(left, right)


@rule("setp")
def setp(decoder: Decoder, instr: Instr) -> Code:
    """p = (a cmp b) [bool c], q = !(a cmp b) [bool c]; f16x2 sets p and q by halves."""
    result = _comparison(decoder, instr, instr.type)
    d = instr.operands[0]
    targets = [decoder.dst(o, "pred", instr.scope) for o in (d.items if d.kind == "pair" else (d,))]
    boolean = next((_BOOLEAN[m] for m in instr.mods[1:-1] if m in _BOOLEAN), None)
    packed = instr.type.endswith("x2")
    if boolean is None and len(targets) == 1 and not packed:
        return assign(targets[0], result)
    c = decoder.pred(instr.operands[3], instr.scope) if boolean is not None else None

    def code(mask: Mask) -> None:
        value = result()
        parts = [value[0::2], value[1::2]] if packed else [value, ~value]
        if boolean is not None and c is not None:
            other = c()
            parts = [boolean(part, other) for part in parts]
        for target, part in zip(targets, parts, strict=False):
            store(target, part, mask)

    return code


@rule("set")
def set_(decoder: Decoder, instr: Instr) -> Code:
    """Like setp with an integer (all ones) or float (1.0) result."""
    dtype, stype = instr.mods[-2:]
    result = _comparison(decoder, instr, stype)
    boolean = next((_BOOLEAN[m] for m in instr.mods[1:-2] if m in _BOOLEAN), None)
    c = decoder.pred(instr.operands[3], instr.scope) if boolean is not None else None
    target = decoder.dst(instr.operands[0], dtype, instr.scope)
    ones = {"f32": 1.0, "f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80}
    one = ones.get(dtype, -1 if dtype[0] == "s" else 0xFFFFFFFF)
    if instr.type.endswith("x2"):
        half = np.uint16(one if is_float(dtype) else 0xFFFF)
        return assign(target, lambda: (result() * half).astype(np.uint16).view(np.uint32))

    def compute() -> Array:
        value = result()
        if boolean is not None and c is not None:
            value = boolean(value, c())
        return np.where(value, target.dtype.type(one), target.dtype.type(0))

    return assign(target, compute)


@rule("selp")
def selp(decoder: Decoder, instr: Instr) -> Code:
    """d = c ? a : b."""
    d, a, b, c = instr.operands
    ty = instr.type
    target = decoder.dst(d, ty, instr.scope)
    x, y = decoder.src(a, ty, instr.scope), decoder.src(b, ty, instr.scope)
    p = decoder.pred(c, instr.scope)
    return assign(target, lambda: np.where(p(), x, y))


@rule("slct")
def slct(decoder: Decoder, instr: Instr) -> Code:
    """d = c >= 0 ? a : b; a NaN selects b."""
    dtype, ctype = instr.mods[-2:]
    d, a, b, c = instr.operands
    target = decoder.dst(d, dtype, instr.scope)
    x, y = decoder.src(a, dtype, instr.scope), decoder.src(b, dtype, instr.scope)
    z = decoder.src(c, ctype, instr.scope)
    flushed = "ftz" in instr.mods
    return assign(target, lambda: np.where((flush(z) if flushed else z) >= 0, x, y))


@rule("testp")
def testp(decoder: Decoder, instr: Instr) -> Code:
    """Test a float's class: finite, infinite, number, notanumber, normal, subnormal."""
    ty = instr.type
    target = decoder.dst(instr.operands[0], "pred", instr.scope)
    x = decoder.src(instr.operands[1], ty, instr.scope)
    tiny = np.finfo(x.dtype).tiny
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda v: ~np.isnan(v),
        "notanumber": np.isnan,
        "normal": lambda v: np.isfinite(v) & ((np.abs(v) >= tiny) | (v == 0)),
        "subnormal": lambda v: (v != 0) & (np.abs(v) < tiny),
    }
    test = tests[instr.mods[0]]
    return assign(target, lambda: test(x))
