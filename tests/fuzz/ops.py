"""What a random program may do to tiles: each operation's text in a kernel and its meaning in
numpy, from docs/semantics.md. Shapes and reductions are in tests/fuzz/shape_ops.py; memory,
descriptors and products in tests/fuzz/memory_ops.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fuzz import numerics as nu
from tests.fuzz.numerics import FP8, INTS, NUMPY, Reject, cast, constant, is_float, width
from tests.fuzz.program import Machine, Value, op, value

BETWEEN = '''@tilec.jit
def between(x, y):
    low = tl.minimum(x, y)
    if False:
        low = x
    return tl.minimum(tl.maximum(x, low), tl.maximum(x, y))


'''


# -- operands -------------------------------------------------------------------------------------

def tile(v: Any) -> Value:
    """An operand with one value."""
    if not isinstance(v, Value) or v.bound is not None:
        raise Reject("not a tile with a determined value")
    return v


def number(v: Any) -> Value:
    """An operand that is no pointer."""
    if tile(v).dtype.startswith("*"):
        raise Reject("a pointer")
    return tile(v)


def common_type(values: Sequence[Any], divides: bool = False) -> str:
    tiles = [number(v).dtype for v in values if isinstance(v, Value)]
    t = tiles[0]
    if len(tiles) == 1 and divides and t in ("float16", "bfloat16"):
        t = "float32"
    for other in tiles[1:]:
        t = nu.promote(t, other, divides)
    for v in values:
        if not isinstance(v, Value):
            t = nu.with_literal(t, v, divides)
    return t


def common(values: Sequence[Any], divides: bool = False, fp8: bool = False
           ) -> tuple[str, list[np.ndarray], np.ndarray, bool]:
    """(type, elements in it, poison, whether one is a rounded product) of an operator's operands,
    promoted and broadcast."""
    t = common_type(values, divides)
    if t in FP8 and not fp8:
        raise Reject("no arithmetic on fp8")
    arrays = [cast(v.x, v.dtype, t) if isinstance(v, Value) else constant(v, t) for v in values]
    poison = np.zeros((), bool)
    for v in values:
        if isinstance(v, Value):
            poison = poison | v.poison
    arrays = [np.asarray(x) for x in np.broadcast_arrays(*arrays)]
    rounded = any(isinstance(v, Value) and v.rounded for v in values)
    return t, arrays, poison, rounded


# -- arithmetic -----------------------------------------------------------------------------------

def _additive(symbol: str, a: Any, b: Any) -> Value:
    for p, q, sign in ((a, b, 1), (b, a, 1 if symbol == "+" else 0)):
        if isinstance(p, Value) and p.dtype.startswith("*"):
            return _moved(p, q, sign if symbol == "+" or p is not a else -1)
    t, (x, y), poison, rounded = common((a, b))
    if rounded and is_float(t):
        raise Reject("a sum of a rounded product")
    return value(nu.arithmetic(symbol, x, y, t), t, poison)


def _moved(p: Value, offset: Any, sign: int) -> Value:
    if sign == 0:
        raise Reject("a pointer subtracted")
    if isinstance(offset, Value):
        if number(offset).dtype not in ("int1", *INTS):
            raise Reject("not an offset")
        at, poison = offset.x.astype(np.int64), offset.poison
    else:
        at, poison = np.int64(offset), np.zeros((), bool)
    x = p.x + sign * at
    return Value(x, p.dtype, np.broadcast_to(p.poison | poison, x.shape),
                 owner=np.broadcast_to(p.owner, x.shape))


@op("add", "{0} + {1}")
def _(m: Machine, a: Any, b: Any) -> Value:
    return _additive("+", a, b)


@op("sub", "{0} - {1}")
def _(m: Machine, a: Any, b: Any) -> Value:
    return _additive("-", a, b)


@op("mul", "{0} * {1}")
def _(m: Machine, a: Any, b: Any) -> Value:
    t, (x, y), poison, _ = common((a, b))
    out = nu.arithmetic("*", x, y, t)
    return value(out, t, poison, rounded=is_float(t) and nu.rounded_product(x, y, out))


@op("div_rn", lambda a, b, form: form.format(a, b))
def _(m: Machine, a: Any, b: Any, form: str) -> Value:
    t = common_type((a, b), divides=True)
    if not is_float(t) or t in FP8:
        raise Reject("not floats")
    x, y = (np.asarray(cast(v.x, v.dtype, t) if isinstance(v, Value) else constant(v, t))
            for v in (a, b))
    return value(x / y, t, *(v.poison for v in (a, b) if isinstance(v, Value)))


@op("truediv", lambda a, b, form: form.format(a, b))
def _(m: Machine, a: Any, b: Any, form: str) -> Value:
    t = common_type((a, b), divides=True)
    if t in FP8:
        raise Reject("no arithmetic on fp8")
    if not is_float(t) and "fdiv" in form:
        raise Reject("not floats")
    t = t if is_float(t) else "float32"
    x, y = (np.asarray(cast(v.x, v.dtype, t) if isinstance(v, Value) else constant(v, t))
            for v in (a, b))
    exact = x.astype(np.float64) / y.astype(np.float64)
    poison = [v.poison for v in (a, b) if isinstance(v, Value)]
    if t == "float64":
        return value(exact, t, *poison)
    out = exact.astype(np.float32)
    return value(out, t, *poison, exact=exact, bound=2 * nu.ulp32(exact))


def _whole(a: Any, b: Any) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
    signs = {v.dtype in nu.SIGNED for v in (a, b) if isinstance(v, Value)}
    if False in signs and any(isinstance(v, Value) and v.dtype == "int1" for v in (a, b)):
        raise Reject("a number beside a bool has a type of its own")
    t, (x, y), poison, _ = common((a, b))
    if t not in INTS or len(signs) > 1:
        raise Reject("not integers of one signedness")
    return t, x, y, poison | (y == 0)


@op("floordiv", "{0} // {1}")
def _(m: Machine, a: Any, b: Any) -> Value:
    t, x, y, poison = _whole(a, b)
    return value(nu.divide(x, y, t)[0], t, poison)


@op("mod", "{0} % {1}")
def _(m: Machine, a: Any, b: Any) -> Value:
    t, x, y, poison = _whole(a, b)
    return value(nu.divide(x, y, t)[1], t, poison)


@op("cdiv", "{form}({0}, {1})")
def _(m: Machine, a: Any, b: Any, form: str) -> Value:
    less = b - 1 if not isinstance(b, Value) else _additive("-", b, 1)
    t, x, y, poison = _whole(_additive("+", a, less), b)
    return value(nu.divide(x, y, t)[0], t, poison)


@op("bits", "{0} {symbol} {1}")
def _(m: Machine, a: Any, b: Any, symbol: str) -> Value:
    t, (x, y), poison, _ = common((a, b))
    if is_float(t):
        raise Reject("bits of floats")
    out = {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}[symbol](x, y)
    if t == "int1" and symbol != "^":
        # A side that is not poison and decides, decides.
        sides = [(z, v.poison if isinstance(v, Value) else False) for z, v in ((x, a), (y, b))]
        decided = np.zeros(out.shape, bool)
        for z, bad in sides:
            decided |= ~np.broadcast_to(bad, out.shape) & (z == (symbol == "|"))
        out = np.where(decided, symbol == "|", out)
        poison = poison & ~decided
    return value(out, t, poison)


@op("shift", "{0} {symbol} {1}")
def _(m: Machine, a: Any, b: Any, symbol: str) -> Value:
    t, (x, y), poison, _ = common((a, b))
    if is_float(t):
        raise Reject("shifts of floats")
    inner = t
    if symbol == ">>" and isinstance(a, Value) and t != "int1":  # the left side's sign decides
        signed = a.dtype in nu.SIGNED
        inner = ("" if signed else "u") + t.removeprefix("u")
    out = nu.shift(symbol == "<<", cast(x, t, inner), cast(y, t, inner), inner)
    return value(cast(out, inner, t), t, poison)


@op("invert", "~{0}")
def _(m: Machine, a: Any) -> Value:
    if is_float(number(a).dtype):
        raise Reject("bits of floats")
    return value(~a.x, a.dtype, a.poison)


@op("neg", "-{0}")
def _(m: Machine, a: Any) -> Value:
    t = number(a).dtype
    out = a.x if t == "int1" else -a.x
    return value(np.asarray(out).astype(NUMPY[t]), t, a.poison, rounded=a.rounded)


@op("abs", "{form}({0})")
def _(m: Machine, a: Any, form: str) -> Value:
    out = a.x if number(a).dtype == "int1" else np.abs(a.x)
    return value(np.asarray(out).astype(NUMPY[a.dtype]), a.dtype, a.poison, rounded=a.rounded)


@op("compare", "{0} {symbol} {1}")
def _(m: Machine, a: Any, b: Any, symbol: str) -> Value:
    t, (x, y), poison, _ = common((a, b))
    return value(nu.compare(symbol, x, y), "int1", poison)


def _nan(nan: bool) -> str:
    return ", propagate_nan=tl.PropagateNan.ALL" if nan else ""


@op("extreme", lambda a, b, name, nan: f"tl.{name}({a}, {b}{_nan(nan)})")
def _(m: Machine, a: Any, b: Any, name: str, nan: bool) -> Value:
    t, (x, y), poison, _ = common((a, b))
    return value(nu.extreme(name == "maximum", x, y, t, nan), t, poison)


@op("clamp", "tl.clamp({0}, {1}, {2})")
def _(m: Machine, a: Any, low: Any, high: Any) -> Value:
    t, (x, y, z), poison, _ = common((a, low, high))
    return value(nu.extreme(False, nu.extreme(True, x, y, t), z, t), t, poison)


@op("between", "between({0}, {1})", BETWEEN)
def _(m: Machine, a: Any, b: Any) -> Value:
    t, (x, y), poison, _ = common((a, b))
    if number(a).dtype != t or b.dtype != t or a.shape != b.shape:
        raise Reject("of one type")
    low = nu.extreme(False, x, y, t)
    out = nu.extreme(False, nu.extreme(True, x, low, t), nu.extreme(True, x, y, t), t)
    return value(out, t, poison)


@op("fma", "tl.fma({0}, {1}, {2})")
def _(m: Machine, a: Any, b: Any, c: Any) -> Value:
    t, (x, y, z), poison, rounded = common((a, b, c))
    if not is_float(t) or rounded:
        raise Reject("fma of what is no float")
    return value(nu.fused(x, y, z, t), t, poison)


@op("where", "tl.where({0}, {1}, {2})")
def _(m: Machine, c: Any, a: Any, b: Any) -> Value:
    cond = cast(number(c).x, c.dtype, "int1")
    if isinstance(a, Value) and a.dtype.startswith("*"):
        if tile(b).dtype != a.dtype:
            raise Reject("pointers of two types")
        t, arms, owner, rounded = a.dtype, (a.x, b.x), np.where(cond, a.owner, b.owner), False
    else:
        t, arms, _, rounded = common((a, b), fp8=True)
        owner = None
    bad = [v.poison if isinstance(v, Value) else np.zeros((), bool) for v in (a, b)]
    out = np.where(cond, *arms)
    return Value(out, t, np.broadcast_to(np.where(cond, *bad) | c.poison, out.shape), rounded,
                 owner=None if owner is None else np.broadcast_to(owner, out.shape))


@op("cast", lambda a, t, form: f"tl.cast({a}, tl.{t})" if form == "cast" else f"{a}.to(tl.{t}"
    + {"rtz": ', fp_downcast_rounding="rtz")', "bits": ", bitcast=True)"}.get(form, ")"))
def _(m: Machine, a: Any, t: str, form: str) -> Value:
    have = number(a).dtype
    if form == "bits":
        if width(have) != width(t) or is_float(have) and np.isnan(a.x.astype(np.float64)).any():
            raise Reject("bits of a NaN, or of another width")
        return value(a.x.view(NUMPY[t]), t, a.poison)
    if form == "rtz" and (not (is_float(have) and is_float(t)) or width(t) >= width(have)
                          or t in FP8):
        raise Reject("rtz is for narrower floats")
    return value(cast(a.x, have, t, form == "rtz"), t, a.poison, rounded=have == t and a.rounded)


@op("function", "{form}({0})")
def _(m: Machine, a: Any, form: str) -> Value:
    name = form.rpartition(".")[2]
    if not is_float(number(a).dtype) or a.dtype in FP8:
        raise Reject("a function of floats")
    x = a.x.astype(np.float64)
    if name in nu.EXACT:
        return value(cast(np.asarray(nu.EXACT[name](x)), "float64", a.dtype), a.dtype, a.poison)
    exact, bound = nu.function(name, x, a.dtype)
    return value(cast(exact, "float64", a.dtype), a.dtype, a.poison, exact=exact, bound=bound)


# -- where values come from -----------------------------------------------------------------------

@op("full", "tl.full({shape}, {x!r}, tl.{t})")
def _(m: Machine, shape: tuple[int, ...], x: Any, t: str) -> Value:
    return value(np.full(shape, constant(x, t)), t)


@op("splat", "tl.full({shape}, {0}, tl.{t})")
def _(m: Machine, a: Any, shape: tuple[int, ...], t: str) -> Value:
    if number(a).shape:
        raise Reject("not a scalar")
    return value(np.full(shape, cast(a.x, a.dtype, t)), t, np.full(shape, a.poison))


@op("zeros", "tl.zeros({shape}, tl.{t})")
def _(m: Machine, shape: tuple[int, ...], t: str) -> Value:
    return value(np.zeros(shape, NUMPY[t]), t)


@op("zeros_like", "tl.zeros_like({0})")
def _(m: Machine, a: Any) -> Value:
    return value(np.zeros(number(a).shape, NUMPY[a.dtype]), a.dtype)


@op("to_tensor", "tl.to_tensor({x!r})")
def _(m: Machine, x: Any) -> Value:
    return value(constant(x, nu.literal_type(x)), nu.literal_type(x))


@op("copy", "{0}")
def _(m: Machine, a: Any) -> Any:
    if isinstance(a, (int, float)):
        raise Reject("a number has no type of its own")
    return a


@op("arange", "tl.arange({lo}, {hi})")
def _(m: Machine, lo: int, hi: int) -> Value:
    return value(np.arange(lo, hi, dtype=np.int32), "int32")


def lanes_text(shape: tuple[int, ...], strides: tuple[int, ...], flip: tuple[int, ...]) -> str:
    """Row-major-like offsets of a tile's elements, a term for each dimension."""
    terms = []
    for d, (n, stride) in enumerate(zip(shape, strides, strict=True)):
        at = f"tl.arange(0, {n})" if d not in flip else f"({n - 1} - tl.arange(0, {n}))"
        if len(shape) > 1:
            at += "[" + ", ".join(":" if i == d else "None" for i in range(len(shape))) + "]"
        terms.append(at if stride == 1 else f"{at} * {stride}")
    return " + ".join(terms) or "tl.full((), 0, tl.int32)"


@op("lanes", lanes_text)
def _(m: Machine, shape: tuple[int, ...], strides: tuple[int, ...], flip: tuple[int, ...]) -> Value:
    out = np.zeros(shape, np.int32)
    for d, (n, stride) in enumerate(zip(shape, strides, strict=True)):
        at = np.arange(n)[::-1] if d in flip else np.arange(n)
        out = out + (at * stride).reshape([-1 if i == d else 1 for i in range(len(shape))])
    return value(np.asarray(out).astype(np.int32), "int32")


@op("program", "tl.program_id({axis})")
def _(m: Machine, axis: int) -> Value:
    return value(np.int32(m.program[axis]), "int32")


@op("programs", "tl.num_programs({axis})")
def _(m: Machine, axis: int) -> Value:
    return value(np.int32(m.grid[axis]), "int32")


@op("number", "tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)")
def _(m: Machine) -> Value:
    return value(np.int32(m.number), "int32")


@op("swizzle2d", "tl.swizzle2d({0}, {1}, {size_i}, {size_j}, {group})")
def _(m: Machine, i: Any, j: Any, size_i: int, size_j: int, group: int) -> tuple[Value, Value]:
    at = int(m_scalar(i)) * size_j + int(m_scalar(j))
    first = at // (group * size_j) * group
    rows = min(size_i - first, group)
    at %= group * size_j
    return tuple(value(np.int32(x), "int32")  # type: ignore[return-value]
                 for x in (first + at % rows, at // rows))


def m_scalar(v: Any) -> Any:
    """A determined non-negative integer scalar."""
    if not isinstance(v, Value):
        return v
    if number(v).shape or v.poison.any() or v.x < 0:
        raise Reject("not an index")
    return v.x


# -- promises and checks --------------------------------------------------------------------------

@op("multiple_of", "tl.multiple_of({0}, {n})")
def _(m: Machine, a: Any, n: int) -> Value:
    if number(a).shape or a.poison.any() or int(a.x) % n:
        raise Reject("a false hint")
    return a


@op("max_contiguous", "tl.max_contiguous({0}, {n})")
def _(m: Machine, a: Any, n: int) -> Value:
    x = number(a).x
    if x.ndim != 1 or x.size % n or a.poison.any() or (np.diff(x.reshape(-1, n)) != 1).any():
        raise Reject("a false hint")
    return a


@op("max_constancy", "tl.max_constancy({0}, {n})")
def _(m: Machine, a: Any, n: int) -> Value:
    x = number(a).x
    if x.ndim != 1 or x.size % n or a.poison.any() or (np.diff(x.reshape(-1, n)) != 0).any():
        raise Reject("a false hint")
    return a


@op("assume", "tl.assume({0} >= {n})")
def _(m: Machine, a: Any, n: int) -> None:
    if number(a).shape or a.poison.any() or a.x < n:
        raise Reject("a false promise")


@op("device_assert", 'tl.device_assert({0} == {0}, "equal")')
def _(m: Machine, a: Any) -> None:
    if is_float(number(a).dtype) or a.poison.any():
        raise Reject("NaN, or poison")


@op("debug_barrier", "tl.debug_barrier()")
def _(m: Machine) -> None:
    return None


@op("static_assert", 'tl.static_assert({n} > 0, "positive")')
def _(m: Machine, n: int) -> None:
    return None
