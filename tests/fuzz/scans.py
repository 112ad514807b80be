"""Scans in random programs: their text, their meaning in numpy (docs/semantics.md, section 7), one
element after the other, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fuzz import numerics as nu
from tests.fuzz.generate import Generator, Kinds
from tests.fuzz.numerics import FP8, INTS, NUMPY, Reject, cast, is_float
from tests.fuzz.ops import number
from tests.fuzz.program import Machine, Value, op, value
from tests.fuzz.shape_ops import SUMS

LATEST = '''@tilec.jit
def latest(a, b):
    return tl.where(b != 0, b, a)


'''
AFFINE = '''@tilec.jit
def affine(a, b, c, d):
    return a * c, c * b + d


'''
SEGMENTS = '''@tilec.jit
def segments(x, flag, y, starts):
    if starts:
        total = y
    else:
        total = x + y
    return total, flag | starts


'''


# -- the meaning ----------------------------------------------------------------------------------

def _scan(step: Callable[..., Sequence[Any]], parts: Sequence[np.ndarray], axis: int, reverse: bool
          ) -> list[np.ndarray]:
    def turned(x: np.ndarray) -> np.ndarray:
        return x[::-1] if reverse else x

    lines = [turned(np.moveaxis(p, axis, 0)) for p in parts]
    outs = [p.copy() for p in lines]
    for i in range(1, len(lines[0])):
        sofar = [o[i - 1] for o in outs]
        for o, x in zip(outs, step(*sofar, *[p[i] for p in lines]), strict=True):
            o[i] = x
    return [np.moveaxis(turned(o), 0, axis) for o in outs]


def _poison(axis: int, reverse: bool, *tiles: Value) -> np.ndarray:
    bad = np.any([np.broadcast_to(t.poison, t.shape) for t in tiles], 0)
    return _scan(lambda a, b: [a | b], [bad], axis, reverse)[0]


def _scanned(a: Any) -> Value:
    if not number(a).shape or a.dtype in FP8:
        raise Reject("no tile that is scanned")
    return a


def _rest(axis: int, reverse: bool, more: str = "") -> str:
    return f", {axis}{more}" + (f", reverse={reverse})" if reverse else ")")


def _carried(t: str) -> str:
    return "float64" if t == "float64" else "float32"


@op("cumsum", lambda a, axis, reverse, dtype, form: (f"tl.cumsum({a}, " if form else f"{a}.cumsum(")
    + f"axis={axis}, reverse={reverse}" + (f", dtype=tl.{dtype})" if dtype else ")"))
def _(m: Machine, a: Any, axis: int, reverse: bool, dtype: str | None, form: bool) -> Value:
    have = _scanned(a).dtype
    t = dtype or SUMS.get(have, "float32" if have == "bfloat16" else have)
    x, poison = cast(a.x, have, t), _poison(axis, reverse, a)
    if not is_float(t):
        add = np.bitwise_xor if t == "int1" else np.add
        return value(_scan(lambda a, b: [add(a, b)], [x], axis, reverse)[0], t, poison)
    if a.rounded or t in FP8:
        raise Reject("a sum of rounded products")
    wide = x.astype(np.float64)
    nu.exact_sum(wide, axis, nu.MANTISSA[_carried(t)])  # so that no sum depends on its order
    out = _scan(lambda a, b: [a + b], [wide], axis, reverse)[0]
    return value(cast(cast(out, "float64", _carried(t)), _carried(t), t), t, poison)


@op("cumprod", lambda a, axis, reverse: f"tl.cumprod({a}" + _rest(axis, reverse))
def _(m: Machine, a: Any, axis: int, reverse: bool) -> Value:
    t = _scanned(a).dtype
    poison = _poison(axis, reverse, a)
    if not is_float(t):
        times = np.bitwise_and if t == "int1" else np.multiply
        return value(_scan(lambda a, b: [times(a, b)], [a.x], axis, reverse)[0], t, poison)
    wide = a.x.astype(np.float64)
    fraction, exponent = np.frexp(wide)
    if not np.isin(np.abs(fraction), (0.0, 0.5)).all() or np.abs(exponent).sum(axis).max() > 120:
        raise Reject("a product depends on its order")
    out, inner = _scan(lambda a, b: [a * b], [wide], axis, reverse)[0], _carried(t)
    t = "float32" if t == "bfloat16" else t
    return value(cast(cast(out, "float64", inner), inner, t), t, poison)


@op("latest", lambda a, axis, reverse: f"tl.associative_scan({a}" +
    _rest(axis, reverse, ", latest"), LATEST)
def _(m: Machine, a: Any, axis: int, reverse: bool) -> Value:
    out = _scan(lambda a, b: [np.where(b != 0, b, a)], [_scanned(a).x], axis, reverse)[0]
    return value(out, a.dtype, _poison(axis, reverse, a), rounded=a.rounded)


@op("affine", lambda a, b, axis, reverse: f"tl.associative_scan(({a}, {b})" +
    _rest(axis, reverse, ", affine"), AFFINE)
def _(m: Machine, a: Any, b: Any, axis: int, reverse: bool) -> tuple[Value, Value]:
    if _scanned(a).dtype not in INTS or _scanned(b).type != a.type:
        raise Reject("integers of one type")
    outs = _scan(lambda a, b, c, d: [a * c, c * b + d], [a.x, b.x], axis, reverse)
    poison = _poison(axis, reverse, a, b)
    return value(outs[0], a.dtype, poison), value(outs[1], a.dtype, poison)


@op("segments", lambda a, b, axis, reverse: f"tl.associative_scan(({a}, {b})" +
    _rest(axis, reverse, ", segments"), SEGMENTS)
def _(m: Machine, a: Any, flags: Any, axis: int, reverse: bool) -> tuple[Value, Value]:
    if _scanned(a).dtype not in INTS or _scanned(flags).dtype != "int1" or flags.shape != a.shape:
        raise Reject("integers beside bools")
    outs = _scan(lambda x, f, y, s: [np.where(s, y, x + y), f | s], [a.x, flags.x], axis, reverse)
    poison = _poison(axis, reverse, a, flags)
    return value(outs[0].astype(NUMPY[a.dtype]), a.dtype, poison), value(outs[1], "int1", poison)


# -- drawing --------------------------------------------------------------------------------------

def scan(g: Generator) -> None:
    rng = g.rng
    x = g.any(lambda v: bool(v.shape) and v.dtype not in FP8)
    v = g.value(x)
    rest = {"axis": rng.randrange(len(v.shape)), "reverse": rng.random() < 0.4}
    kind = rng.randrange(6)
    if kind < 2:
        if is_float(v.dtype) and rng.random() < 0.5:
            x = g.put("function", g.put("clamp", x, -8.0, 8.0), form="tl.floor")
        dtype = rng.choice([None, None, None, "int64", "float32", "int32", "bfloat16"])
        g.put("cumsum", x, dtype=dtype, form=rng.random() < 0.7, **rest)
    elif kind == 2:
        if is_float(v.dtype):
            two = g.put("where", g.put("compare", x, 0, symbol=">"), 2.0, -0.5)
            x = g.put("cast", two, t=v.dtype, form="")
        g.put("cumprod", x, **rest)
    elif kind == 3 and v.dtype in INTS:
        g.put_two("affine", x, g.like(x), **rest)
    elif kind == 4 and v.dtype in INTS:
        flags = g.put("compare", g.like(x), rng.choice([0, 1, 5]), symbol=rng.choice(["==", ">"]))
        g.put_two("segments", x, flags, **rest)
    else:
        g.put("latest", x, **rest)


SCANS: Kinds = {scan: 8}
