"""What a random program may do to the dimensions of tiles: shapes and reductions, as in ops.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz import numerics as nu
from tests.fuzz.numerics import FP8, INTS, NUMPY, Reject, cast, is_float
from tests.fuzz.ops import common, number, tile
from tests.fuzz.program import Machine, Value, op, value

BEST = {**dict.fromkeys(("int1", "int8", "int16", "uint8", "uint16"), "int32"),
        "float16": "float32", "bfloat16": "float32"}
SUMS = {"int8": "int32", "int16": "int32", "int1": "uint32", "uint8": "uint32",
        "uint16": "uint32"}


PICK = '''@tilec.jit
def pick(a, b, c, d):
    return a ^ c, tl.maximum(b, d)


'''
TIMES = '''@tilec.jit
def times(a, b):
    return a * b


'''


# -- shape ----------------------------------------------------------------------------------------

def _of(a: Any) -> Value:
    if not isinstance(a, Value):
        raise Reject("no tile")
    return a


@op("expand_dims", lambda a, axis, rank: f"tl.expand_dims({a}, {axis})" if rank is None else
    f"{a}[" + ", ".join("None" if d == axis else ":" for d in range(rank)) + "]")
def _(m: Machine, a: Any, axis: int, rank: int | None) -> Value:
    if rank is not None and not axis < rank or axis > _of(a).x.ndim:
        raise Reject("another rank")
    return _of(a).moved(lambda x: np.expand_dims(x, axis))


@op("broadcast_to", "{form}({0}, {shape})")
def _(m: Machine, a: Any, shape: tuple[int, ...], form: str) -> Value:
    return _of(a).moved(lambda x: np.broadcast_to(x, shape))


@op("broadcast", "tl.broadcast({0}, {1})")
def _(m: Machine, a: Any, b: Any) -> tuple[Value, Value]:
    shape = np.broadcast_shapes(_of(a).shape, _of(b).shape)
    return tuple(v.moved(lambda x: np.broadcast_to(x, shape))  # type: ignore[return-value]
                 for v in (a, b))


@op("reshape", "{form}({0}, {shape})")
def _(m: Machine, a: Any, shape: tuple[int, ...], form: str) -> Value:
    return _of(a).moved(lambda x: x.reshape(shape))


@op("ravel", "tl.ravel({0})")
def _(m: Machine, a: Any) -> Value:
    if not _of(a).shape:
        raise Reject("a scalar")
    return a.moved(lambda x: x.reshape(-1))


@op("permute", "{form}({0}, {order})")
def _(m: Machine, a: Any, order: tuple[int, ...], form: str) -> Value:
    return _of(a).moved(lambda x: x.transpose(order))


@op("trans", "{form}({0})")
def _(m: Machine, a: Any, form: str) -> Value:
    return _of(a).moved(lambda x: x.swapaxes(-1, -2))


def _beside(a: Any, b: Any) -> Value:
    """Two tiles along a new last axis."""
    owner = None
    if isinstance(a, Value) and a.dtype.startswith("*"):
        if tile(b).dtype != a.dtype:
            raise Reject("pointers of two types")
        t, parts, rounded = a.dtype, (a.x, b.x), False
        owner = np.stack(np.broadcast_arrays(a.owner, b.owner), -1)
    else:
        t, parts, _, rounded = common((a, b), fp8=True)
    bad = [v.poison if isinstance(v, Value) else np.zeros((), bool) for v in (a, b)]
    x = np.stack(np.broadcast_arrays(*parts), -1)
    poison = np.stack([np.broadcast_to(p, x.shape[:-1]) for p in bad], -1)
    return Value(x, t, poison, rounded, owner=owner)


@op("join", "tl.join({0}, {1})")
def _(m: Machine, a: Any, b: Any) -> Value:
    return _beside(a, b)


@op("interleave", "tl.interleave({0}, {1})")
def _(m: Machine, a: Any, b: Any) -> Value:
    return _beside(a, b).moved(lambda x: x.reshape(*x.shape[:-2], -1))


@op("cat", "tl.cat({0}, {1}, dim={dim})")
def _(m: Machine, a: Any, b: Any, dim: int) -> Value:
    if tile(a).shape != tile(b).shape or dim >= a.x.ndim:
        raise Reject("another shape")
    return _beside(a, b).moved(lambda x: np.concatenate([x[..., 0], x[..., 1]], dim))


@op("split", lambda a, form: form.format(a))
def _(m: Machine, a: Any, form: str) -> tuple[Value, Value]:
    if _of(a).shape[-1:] != (2,):
        raise Reject("no pairs")
    return a.moved(lambda x: x[..., 0]), a.moved(lambda x: x[..., 1])


@op("item", "{0}.item()")
def _(m: Machine, a: Any) -> Value:
    return _of(a).moved(lambda x: x.reshape(()))


# -- reductions (section 7) -----------------------------------------------------------------------

def _rest(axis: int | None, keep: bool, extra: str = "") -> str:
    return f", {axis}{extra}" + (", keep_dims=True)" if keep else ")")


def _axis(a: Any, axis: int | None) -> tuple[Any, np.ndarray]:
    """The axes of numpy, and whether a result is poison."""
    if not number(a).shape or a.dtype in FP8:
        raise Reject("no tile that is reduced")
    return (tuple(range(a.x.ndim)) if axis is None else axis), a.poison


@op("sum", lambda a, axis, keep, dtype: f"tl.sum({a}" + _rest(
    axis, keep, f", dtype=tl.{dtype}" if dtype else ""))
def _(m: Machine, a: Any, axis: int | None, keep: bool, dtype: str | None) -> Value:
    axes, bad = _axis(a, axis)
    t = dtype or SUMS.get(a.dtype, a.dtype)
    x = cast(a.x, a.dtype, t)
    poison = bad.any(axes, keepdims=keep)
    if not is_float(t):
        total = np.bitwise_xor.reduce(x, axes, keepdims=keep) if t == "int1" else \
            x.sum(axes, dtype=NUMPY[t], keepdims=keep)
        return value(np.asarray(total), t, poison)
    if a.rounded or t in FP8:
        raise Reject("a sum of rounded products")
    inner = "float64" if t == "float64" else "float32"
    out = nu.exact_sum(x.astype(np.float64), axes, nu.MANTISSA[inner])
    out = np.expand_dims(out, axes) if keep else out
    return value(cast(np.asarray(cast(out, "float64", inner)), inner, t), t, poison)


@op("reduce_or", lambda a, axis, keep: f"tl.reduce_or({a}" + _rest(axis, keep))
def _(m: Machine, a: Any, axis: int | None, keep: bool) -> Value:
    axes, bad = _axis(a, axis)
    if is_float(a.dtype):
        raise Reject("or of floats")
    return value(np.bitwise_or.reduce(a.x, axes, keepdims=keep), a.dtype,
                 bad.any(axes, keepdims=keep))


@op("xor_sum", lambda a, axis, keep: f"tl.xor_sum({a}" + _rest(axis, keep))
def _(m: Machine, a: Any, axis: int | None, keep: bool) -> Value:
    axes, bad = _axis(a, axis)
    if is_float(a.dtype):
        raise Reject("xor of floats")
    return value(np.bitwise_xor.reduce(a.x, axes, keepdims=keep), a.dtype,
                 bad.any(axes, keepdims=keep))


def _order(x: np.ndarray, most: bool) -> np.ndarray:
    """Keys whose maximum is the extreme: numbers over NaN, and +0.0 over -0.0."""
    if x.dtype.kind in "biu":
        wide = x.astype(object)
        return wide if most else -wide
    wide = x.astype(np.float64)
    return np.where(np.isnan(wide), -np.inf, wide if most else -wide)


def _extreme(a: Value, axis: int | None, most: bool, t: str, keep: bool) -> np.ndarray:
    x = cast(a.x, a.dtype, t)
    flat = np.moveaxis(x, axis, -1) if axis is not None else x.reshape(1, -1)
    out = flat[..., 0]
    for i in range(1, flat.shape[-1]):
        out = nu.extreme(most, out, flat[..., i], t)
    if axis is None:
        return out.reshape((1,) * x.ndim if keep else ())
    return np.expand_dims(out, axis) if keep else out


def _index(a: Value, axis: int | None, most: bool, left: bool, keep: bool) -> np.ndarray:
    """The first index of the extreme; Reject where more than one would do, or none does."""
    key = _order(a.x, most)
    if axis is None:
        key = key.reshape(-1)
    along = 0 if axis is None else axis
    if is_float(a.dtype):
        wide = a.x.astype(np.float64)
        zeros = (wide == 0).any() and len({*np.signbit(wide[wide == 0]).tolist()}) > 1
        if np.isnan(wide).any() and (np.isinf(wide).any() or np.isnan(wide).all(along).any()) \
                or zeros:
            raise Reject("the index of a NaN or of one of two zeros")
    best = key.max(along, keepdims=True)
    if not left and ((key == best).sum(along) > 1).any():
        raise Reject("any of several indices")
    out = np.argmax(key == best, along).astype(np.int32)
    if keep:
        return out.reshape((1,) * a.x.ndim) if axis is None else np.expand_dims(out, along)
    return np.asarray(out)


@op("best", lambda a, axis, keep, name: f"tl.{name}({a}" + _rest(axis, keep))
def _(m: Machine, a: Any, axis: int | None, keep: bool, name: str) -> Value:
    axes, bad = _axis(a, axis)
    t = BEST.get(a.dtype, a.dtype)
    return value(_extreme(a, axis, name == "max", t, keep), t, bad.any(axes, keepdims=keep))


@op("arg", lambda a, axis, keep, name, left: f"tl.{name}({a}" + _rest(
    axis, keep, "" if left else ", tie_break_left=False"))
def _(m: Machine, a: Any, axis: int | None, keep: bool, name: str, left: bool) -> Value:
    axes, bad = _axis(a, axis)
    return value(_index(a, axis, name == "argmax", left, keep), "int32",
                 bad.any(axes, keepdims=keep))


@op("best_index", lambda a, axis, keep, name: f"tl.{name}({a}" + _rest(
    axis, keep, ", return_indices=True"))
def _(m: Machine, a: Any, axis: int | None, keep: bool, name: str) -> tuple[Value, Value]:
    axes, bad = _axis(a, axis)
    t = "float32" if a.dtype == "bfloat16" else a.dtype
    poison = bad.any(axes, keepdims=keep)
    return (value(_extreme(a, axis, name == "max", t, keep), t, poison),
            value(_index(a, axis, name == "max", True, keep), "int32", poison))


@op("reduce_pair", lambda a, b, axis, keep: f"tl.reduce(({a}, {b})" + _rest(axis, keep, ", pick"),
    PICK)
def _(m: Machine, a: Any, b: Any, axis: int | None, keep: bool) -> tuple[Value, Value]:
    axes, _ = _axis(a, axis)
    if a.dtype not in INTS or number(b).dtype != a.dtype or a.shape != b.shape:
        raise Reject("integers of one type")
    poison = (a.poison | b.poison).any(axes, keepdims=keep)
    return (value(np.bitwise_xor.reduce(a.x, axes, keepdims=keep), a.dtype, poison),
            value(b.x.max(axes, keepdims=keep), a.dtype, poison))


@op("reduce_times", lambda a, axis, keep: f"tl.reduce({a}" + _rest(axis, keep, ", times"), TIMES)
def _(m: Machine, a: Any, axis: int | None, keep: bool) -> Value:
    axes, bad = _axis(a, axis)
    if a.dtype not in INTS:
        raise Reject("a product of floats")
    return value(np.multiply.reduce(a.x, axes, dtype=NUMPY[a.dtype], keepdims=keep), a.dtype,
                 bad.any(axes, keepdims=keep))
