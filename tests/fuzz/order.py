"""gather, flip and sorts in random programs: their text, their meaning in numpy (docs/semantics.md,
section 7), and how they are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.generate import Generator, Kinds
from tests.fuzz.numerics import FP8, INTS, Reject, is_float
from tests.fuzz.ops import number, tile
from tests.fuzz.program import Machine, Value, op, value


@op("take", "tl.gather({0}, {1}, {axis})")
def _(m: Machine, a: Any, index: Any, axis: int) -> Value:
    if number(index).dtype not in INTS:
        raise Reject("no indices")
    n = number(a).shape[axis]
    outside = (index.x < 0) | (index.x.astype(np.float64) >= n)
    at = np.where(outside, 0, index.x).astype(np.int64)
    return Value(np.take_along_axis(a.x, at, axis), a.dtype,
                 np.take_along_axis(a.poison, at, axis) | outside | index.poison, a.rounded)


@op("flip", "tl.flip({0}, {axis})")
def _(m: Machine, a: Any, axis: int) -> Value:
    return tile(a).moved(lambda x: np.flip(x, axis))


def _ordered(a: Any, axis: int) -> np.ndarray:
    """Ascending, NaN last, -0.0 before 0.0."""
    if a.dtype in FP8 or np.any(a.poison):
        raise Reject("what sorts take no element of")
    if not is_float(a.dtype):
        return np.sort(number(a).x, axis)
    wide = a.x.astype(np.float64)
    if np.isnan(wide).any():
        raise Reject("bits of a NaN")
    at = np.lexsort((~np.signbit(wide), wide), axis)
    return np.take_along_axis(a.x, at, axis)


@op("sort", lambda a, axis, down: f"tl.sort({a}, {axis}" + (", descending=True)" if down else ")"))
def _(m: Machine, a: Any, axis: int, down: bool) -> Value:
    out = _ordered(a, axis)
    return value(np.flip(out, axis) if down else out, a.dtype, rounded=a.rounded)


@op("topk", "tl.topk({0}, {k}, {axis})")
def _(m: Machine, a: Any, k: int, axis: int) -> Value:
    out = np.flip(_ordered(a, axis), axis)
    return value(np.take(out, range(k), axis), a.dtype, rounded=a.rounded)


@op("bitonic_merge", "tl.bitonic_merge({0}, {axis}, descending={down})")
def _(m: Machine, a: Any, axis: int, down: bool) -> Value:
    out, n = _ordered(a, axis), a.shape[axis]
    if n & n - 1 or not np.array_equal(out, a.x):  # ascending is bitonic, too
        raise Reject("no bitonic sequence")
    return value(np.flip(out, axis) if down else out, a.dtype, rounded=a.rounded)


@op("histogram", "tl.histogram({0}, {bins}, mask={1})")
def _(m: Machine, a: Any, mask: Any, bins: int) -> Value:
    if number(a).dtype not in INTS or len(a.shape) != 1:
        raise Reject("integers in one dimension")
    on = np.full(a.shape, True)
    if mask is not None:
        if number(mask).dtype != "int1" or mask.shape != a.shape or mask.poison.any():
            raise Reject("no mask")
        on = mask.x
    if (a.poison & on).any():
        raise Reject("poison is counted")
    x = a.x[on & (a.x >= 0)].astype(np.uint64)
    counts = np.bincount(x[x < bins].astype(np.int64), minlength=bins)
    return value(counts.astype(np.int32), "int32")


# -- drawing --------------------------------------------------------------------------------------

def order(g: Generator) -> None:
    rng = g.rng
    x = g.any(lambda v: bool(v.shape))
    v = g.value(x)
    axis = rng.randrange(len(v.shape))
    kind = rng.randrange(6)
    if kind == 0:
        g.put("flip", x, axis=axis)
    elif kind < 3:
        shape = tuple(rng.choice([n, 5, 16]) if d == axis else n for d, n in enumerate(v.shape))
        index = g.bounded(g.wrapping(shape), v.shape[axis]) if rng.random() < 0.8 else \
            g.put("mod", g.lanes(shape), v.shape[axis] + rng.choice([0, 0, 1]))
        g.put("take", x, index, axis=axis)
    elif v.shape[axis] <= 64:  # longer ones take long to compile
        if kind == 3:
            g.put("topk", x, k=rng.randint(1, v.shape[axis]), axis=axis)
            return
        out = g.put("sort", x, axis=axis, down=kind == 4 and rng.random() < 0.6)
        if v.shape[axis] & v.shape[axis] - 1 == 0:
            g.put("bitonic_merge", out, axis=axis, down=rng.random() < 0.5)


def count(g: Generator) -> None:
    x = g.any(lambda v: len(v.shape) == 1 and v.dtype in INTS)
    mask = g.mask(g.value(x).shape) if g.rng.random() < 0.5 else None
    g.put("histogram", x, mask, bins=g.rng.choice([1, 2, 8, 17, 128, 200]))


ORDER: Kinds = {order: 4, count: 2}
