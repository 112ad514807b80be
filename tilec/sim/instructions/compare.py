"""Comparisons and selections: setp, set, selp, slct, testp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilec.sim.assign import assign, store
from tilec.sim.decode import Decoder
from tilec.sim.errors import Unsupported
from tilec.sim.floats import flush
from tilec.sim.instructions.common import bind, float_source, unary
from tilec.sim.machine import Array, Code, Mask
from tilec.sim.ptx import Instr, is_float
from tilec.sim.rules import rule

Compare = Callable[[Array, Array], Array]

_ORDERED: dict[str, Compare] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}
_BOOLEAN: dict[str, Compare] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def float_compare(name: str) -> Compare:
    """A comparison of floats: plain ones are false on NaN, those ending in u are true."""
    if name in ("num", "nan"):
        return lambda a, b: (np.isnan(a) | np.isnan(b)) == (name == "nan")
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
        x, y = (float_source(decoder, o, ty, "ftz" in instr.mods) for o in (a, b))
        return lambda: op(x(), y())
    if name not in _ORDERED:
        raise Unsupported(f"the comparison .{name}")
    ordered = _ORDERED[name]
    kind = "u" + ty[1:] if name in ("lo", "ls", "hi", "hs") else ty
    left, right = decoder.src(a, kind), decoder.src(b, kind)
    return lambda: ordered(left, right)


@rule("setp")
def setp(decoder: Decoder, instr: Instr) -> Code:
    """p = (a cmp b) [bool c], q = !(a cmp b) [bool c]; f16x2 sets p and q by halves."""
    result = _comparison(decoder, instr, instr.type)
    d = instr.operands[0]
    targets = [decoder.dst(o, "pred") for o in (d.items if d.kind == "pair" else (d,))]
    boolean = next((_BOOLEAN[m] for m in instr.mods[1:-1] if m in _BOOLEAN), None)
    packed = instr.type.endswith("x2")
    if boolean is None and len(targets) == 1 and not packed:
        return assign(targets[0], result)
    c = decoder.pred(instr.operands[3]) if boolean is not None else None

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
    c = decoder.pred(instr.operands[3]) if boolean is not None else None
    target = decoder.dst(instr.operands[0], dtype)
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
    target = decoder.dst(d, ty)
    x, y = decoder.src(a, ty), decoder.src(b, ty)
    p = decoder.pred(c)
    return assign(target, lambda: np.where(p(), x, y))


@rule("slct")
def slct(decoder: Decoder, instr: Instr) -> Code:
    """d = c >= 0 ? a : b; a NaN selects b."""
    dtype, ctype = instr.mods[-2:]
    target, x, y, z = bind(decoder, instr, dtype, dtype, dtype, ctype)
    flushed = "ftz" in instr.mods
    return assign(target, lambda: np.where((flush(z) if flushed else z) >= 0, x, y))


@rule("testp")
def testp(decoder: Decoder, instr: Instr) -> Code:
    """Test a float's class: finite, infinite, number, notanumber, normal, subnormal."""
    return unary(decoder, instr, _TESTS[instr.mods[0]], "pred")


_TESTS: dict[str, Callable[[Array], Array]] = {
    "finite": np.isfinite, "infinite": np.isinf, "notanumber": np.isnan,
    "number": lambda v: ~np.isnan(v),
    "normal": lambda v: np.isfinite(v) & ((np.abs(v) >= np.finfo(v.dtype).tiny) | (v == 0)),
    "subnormal": lambda v: (v != 0) & (np.abs(v) < np.finfo(v.dtype).tiny),
}
