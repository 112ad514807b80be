"""Operations of random programs on memory, and products of matrices: their text and their meaning
in numpy, from docs/semantics.md, sections 8 and 9."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tests.fuzz import numerics as nu
from tests.fuzz.numerics import NUMPY, Reject, cast, constant, is_float
from tests.fuzz.ops import number, tile
from tests.fuzz.program import USED, Machine, Memory, Record, Value, op, value

ADDED = ("int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64")


# -- pointers -------------------------------------------------------------------------------------

def _mask(mask: Any, shape: tuple[int, ...]) -> np.ndarray:
    if mask is None or isinstance(mask, bool):
        return np.full(shape, mask is not False)
    if number(mask).dtype != "int1" or mask.poison.any():
        raise Reject("no mask")
    return np.broadcast_to(mask.x, shape)


def _pointer(p: Any) -> str:
    """What a tile of pointers points at."""
    if not isinstance(p, Value) or not p.dtype.startswith("*"):
        raise Reject("no pointer")
    return p.dtype[1:]


def _read(m: Machine, p: Value, on: np.ndarray, t: str) -> np.ndarray:
    out = np.zeros(p.shape, NUMPY[t])
    for i, here, at in m.lanes(p, on):
        if i in m.memory.bound and m.memory.bound[i][at].any():
            raise Reject("an approximate element")
        m.touch(i, at, writes=False)
        out[here] = m.memory.arrays[i][at]
    return out


@op("load", "tl.load({0}, mask={1}, other={2}{more})")
def _(m: Machine, p: Any, mask: Any, other: Any, more: str) -> Value:
    t = _pointer(p)
    parts = [v.shape for v in (mask, other) if isinstance(v, Value)]
    shape = np.broadcast_shapes(p.shape, *parts)
    if not p.shape and shape or (other is not None and mask is None):
        raise Reject("a tile beside a scalar pointer")
    p = p.moved(lambda x: np.broadcast_to(x, shape))
    on = _mask(mask, shape)
    out = _read(m, p, on, t)
    if other is None:
        return value(out, t, ~on)
    fill = constant(other, t) if not isinstance(other, Value) else \
        cast(number(other).x, other.dtype, t)
    bad = other.poison if isinstance(other, Value) else np.zeros((), bool)
    return value(np.where(on, out, fill), t, ~on & bad)


def _write(m: Machine, p: Value, on: np.ndarray, x: np.ndarray, v: Any) -> None:
    for i, here, at in m.lanes(p, on):
        m.touch(i, at, writes=True)
        array = m.memory.arrays[i]
        array[at] = x[here]
        bits = np.dtype(f"u{array.itemsize}")
        if (array[at].view(bits) != x[here].view(bits)).any():
            raise Reject("lanes store different values to one element")
        approximate = isinstance(v, Value) and v.bound is not None
        if approximate and i not in m.memory.bound:
            m.memory.bound[i] = np.zeros(array.shape)
            m.memory.exact[i] = np.zeros(array.shape)
        if i in m.memory.bound:
            for kept, part in ((m.memory.bound[i], v.bound if approximate else 0.0),
                               (m.memory.exact[i], v.exact if approximate else 0.0)):
                kept[at] = np.broadcast_to(part, p.shape)[here]


@op("store", "tl.store({0}, {1}, mask={2}{more})")
def _(m: Machine, p: Any, v: Any, mask: Any, more: str) -> None:
    t = _pointer(p)
    on = _mask(mask, p.shape)
    if isinstance(v, Value):
        if v.dtype.startswith("*") or v.bound is not None and v.dtype != t:
            raise Reject("a pointer, or a cast of a value that is known approximately")
        x, bad = cast(v.x, v.dtype, t), v.poison
    else:
        x, bad = constant(v, t), np.zeros((), bool)
    if (np.broadcast_to(bad, p.shape) & on).any():
        raise Reject("poison is stored")
    _write(m, p, on, np.broadcast_to(x, p.shape), v)


def _greater(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((a > b) | (a == b) & np.signbit(b), a, b) if a.dtype.kind not in "iu" else \
        np.maximum(a, b)


def _less(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((a < b) | (a == b) & np.signbit(a), a, b) if a.dtype.kind not in "iu" else \
        np.minimum(a, b)


def _swapped(old: np.ndarray, new: np.ndarray, expected: np.ndarray) -> np.ndarray:
    bits = f"u{old.itemsize}"
    return np.where(old.view(bits) == expected.view(bits), new, old)


UPDATES = {"add": np.add, "max": _greater, "min": _less, "and": np.bitwise_and,
           "or": np.bitwise_or, "xor": np.bitwise_xor, "xchg": lambda old, new: new,
           "cas": _swapped}
ALONE = ("xchg", "cas")  # which of several comes last shows


def atomics_of(t: str) -> list[str]:
    """The atomics that elements of a type have (docs/semantics.md, section 9)."""
    if t not in ADDED:
        return ["cas"] if t in ("int16", "uint16") else []
    if not is_float(t):
        return [*UPDATES]
    return ["add", "max", "min"] + (["xchg"] if nu.width(t) > 16 else []) + ["cas"]


def _atomic_text(p: str, v: str, other: str, kind: str, sem: str, scope: str, out: bool) -> str:
    if kind == "cas":
        return f'tl.atomic_cas({p}, {other}, {v}, sem="{sem}", scope="{scope}")'
    return f'tl.atomic_{kind}({p}, {v}, mask={other}, sem="{sem}", scope="{scope}")'


@op("atomic", _atomic_text)
def _(m: Machine, p: Any, v: Any, other: Any, kind: str, sem: str, scope: str, out: bool
      ) -> Value | None:
    """`other` is the mask, or what a compare-and-swap expects."""
    t = _pointer(p)
    if kind not in atomics_of(t):
        raise Reject("there is no such atomic")
    given = [number(v), number(other)] if kind == "cas" else [number(v)]
    on = _mask(None if kind == "cas" else other, p.shape)
    if any((np.broadcast_to(x.poison, p.shape) & on).any() for x in given):
        raise Reject("poison is given to an atomic")
    values = [np.broadcast_to(cast(x.x, x.dtype, t), p.shape) for x in given]
    found = np.zeros(p.shape, NUMPY[t])
    for i, here, at in m.lanes(p, on):
        found[here] = m.memory.arrays[i][at]
        update(m, i, at, [x[here] for x in values], t, kind, out)
    return value(found, t, ~on) if out else None


def update(m: Machine, i: int, at: np.ndarray, given: Sequence[np.ndarray], t: str, kind: str,
           out: bool) -> None:
    """Update elements where every order gives the same: nobody reads or writes beside, all do the
    same kind, and sums are exact."""
    memory, out = m.memory, out or kind in ALONE
    array = memory.arrays[i]
    touched = np.maximum(memory.reader[i][at], memory.writer[i][at])
    if (touched != -1).any():
        raise Reject("atomics and other accesses to one element")
    before, number = memory.claimed[i][at], [*UPDATES].index(kind)
    if ((before != -1) & (memory.kind[i][at] != number)).any():
        raise Reject("two kinds of atomics at one element")
    if out and (len(np.unique(at)) != at.size or (before != -1).any()):
        raise Reject("what an atomic finds is not determined")
    if m.claimed_by_others(i, at) and (out or (before >= USED).any()):
        raise Reject("another program updates an element whose old value was used")
    memory.claimed[i][at] = m.number + USED if out else np.where(
        before == -1, m.number, np.where(before % USED == m.number, before, -2))
    memory.kind[i][at] = number
    if is_float(t) and kind == "add":
        _check_sums(memory, i, at, given[0], t)
    if is_float(t) and kind in ("max", "min") and any(
            np.isnan(x.astype(np.float64)).any() for x in (given[0], array[at])):
        raise Reject("a NaN meets a number")
    with np.errstate(all="ignore"):
        if len(np.unique(at)) == at.size:
            array[at] = UPDATES[kind](array[at], *given)
            return
        meaning = UPDATES[kind]
        if isinstance(meaning, np.ufunc):
            meaning.at(array, at, given[0])
            return
        for lane in range(at.size):
            one = at[lane:lane + 1]
            array[one] = meaning(array[one], given[0][lane:lane + 1])


def _check_sums(memory: Memory, i: int, at: np.ndarray, x: np.ndarray, t: str) -> None:
    """Reject sums that depend on their order."""
    wide = np.abs(x.astype(np.float64))
    if (wide != np.round(wide)).any():
        raise Reject("fractions are added")
    np.add.at(memory.weight[i], at, wide)
    before = np.abs(memory.arrays[i][at].astype(np.float64))
    if not (before + memory.weight[i][at] <= 2.0 ** (nu.MANTISSA[t] - 1)).all():
        raise Reject("a sum depends on its order")


# -- records --------------------------------------------------------------------------------------

def _record(x: Any, form: str) -> Record:
    if not isinstance(x, Record) or x.form != form:
        raise Reject(f"no {form}")
    return x


def _lanes(r: Record, offsets: tuple[int, ...], checked: tuple[int, ...]
           ) -> tuple[Value, np.ndarray]:
    """The pointers of a block, and which are inside along the dimensions `checked`."""
    at, on = np.full((), r.base, np.int64), np.full(r.block, True)
    for d, (n, stride, extent) in enumerate(zip(r.block, r.strides, r.extents, strict=True)):
        index = (offsets[d] + np.arange(n)).reshape(
            [-1 if i == d else 1 for i in range(len(r.block))])
        at = at + index * stride
        if d in checked:
            on = on & (index >= 0) & (index < extent)
    return value(at, "*" + r.dtype, owner=np.full(r.block, r.owner)), on


def _integers(values: Any) -> tuple[int, ...]:
    return tuple(int(v.x) if isinstance(v, Value) else v for v in values)


def _tuple(parts: Any) -> str:
    return f"({', '.join(map(str, parts))}{',' if len(parts) == 1 else ''})"


def _descriptor_text(base: str, *shape: str, block: tuple[int, ...], padding: str) -> str:
    strides = [*(" * ".join(shape[d + 1:]) for d in range(len(shape) - 1)), "1"]
    more = f', padding_option="{padding}"' if padding != "zero" else ""
    return f"tl.make_tensor_descriptor({base}, {_tuple(shape)}, {_tuple(strides)}, " \
        f"{_tuple(block)}{more})"


@op("make_descriptor", _descriptor_text)
def _(m: Machine, base: Any, *shape: Any, block: tuple[int, ...], padding: str) -> Record:
    t, extents = _pointer(base), _integers(shape)
    strides = tuple(prod(extents[d + 1:]) for d in range(len(extents)))
    if padding == "nan" and not is_float(t):
        raise Reject("integers have no NaN")
    return Record("descriptor", int(base.owner), int(base.x), t, extents, strides,
                  (0,) * len(block), block, padding)


def read_block(m: Machine, d: Any, at: Any) -> Value:
    """The block of a descriptor at these offsets."""
    d = _record(d, "descriptor")
    p, on = _lanes(d, _integers(at), tuple(range(len(d.block))))
    fill = constant(float("nan") if d.padding == "nan" else 0, d.dtype)
    return value(np.where(on, _read(m, p, on, d.dtype), fill), d.dtype)


def write_block(m: Machine, d: Any, v: Any, at: Any, kind: str) -> None:
    """Store to the block of a descriptor at these offsets, or update it by a kind of atomic."""
    d, place = _record(d, "descriptor"), _integers(at)
    if min(place) < 0 or tile(v).poison.any() or v.dtype.startswith("*"):
        raise Reject("a block that begins before its tensor, or poison")
    if kind and kind not in atomics_of(d.dtype):
        raise Reject("no such atomic")
    p, on = _lanes(d, place, tuple(range(len(d.block))))
    x = np.broadcast_to(cast(v.x, v.dtype, d.dtype), d.block)
    if not kind:
        _write(m, p, on, x, v)
        return
    for i, here, where in m.lanes(p, on):
        update(m, i, where, [x[here]], d.dtype, kind, False)


def write_elements(m: Machine, i: int, at: np.ndarray, x: np.ndarray) -> None:
    """Elements of argument i that a template stores."""
    m.touch(i, at, writes=True)
    m.memory.arrays[i][at] = x


@op("descriptor_load", lambda d, *at, form: f"tl.load_tensor_descriptor({d}, [{', '.join(at)}])"
    if form else f"{d}.load([{', '.join(at)}])")
def _(m: Machine, d: Any, *at: Any, form: bool) -> Value:
    return read_block(m, d, at)


@op("descriptor_store", lambda d, v, *at, form: f"tl.store_tensor_descriptor({d}, "
    f"[{', '.join(at)}], {v})" if form else f"{d}.store([{', '.join(at)}], {v})")
def _(m: Machine, d: Any, v: Any, *at: Any, form: bool) -> None:
    write_block(m, d, v, at, "")


@op("descriptor_atomic",
    lambda d, v, *at, kind: f"{d}.atomic_{kind}([{', '.join(at)}], {v})")
def _(m: Machine, d: Any, v: Any, *at: Any, kind: str) -> None:
    write_block(m, d, v, at, kind)


def _rows(d: Record, rows: Any, column: int) -> tuple[Value, np.ndarray]:
    """The pointers of rows of a matrix, and which are inside."""
    if number(rows).x.ndim != 1 or rows.poison.any() or rows.dtype not in nu.INTS or \
            nu.width(rows.dtype) > 32 or len(d.block) != 2 or d.block[0] != 1:
        raise Reject("no rows")
    row = cast(rows.x, rows.dtype, "int32").astype(np.int64)[:, None]
    at = column + np.arange(d.block[1])[None, :]
    on = (row >= 0) & (row < d.extents[0]) & (at >= 0) & (at < d.extents[1])
    return value(d.base + row * d.strides[0] + at, "*" + d.dtype,
                 owner=np.full(on.shape, d.owner)), on


@op("gather", "{0}.gather({1}, {2})")
def _(m: Machine, d: Any, rows: Any, column: Any) -> Value:
    d, (column,) = _record(d, "descriptor"), _integers([column])
    p, on = _rows(d, rows, column)
    fill = constant(float("nan") if d.padding == "nan" else 0, d.dtype)
    return value(np.where(on, _read(m, p, on, d.dtype), fill), d.dtype)


@op("scatter", "{0}.scatter({1}, {2}, {3})")
def _(m: Machine, d: Any, v: Any, rows: Any, column: Any) -> None:
    d, (column,) = _record(d, "descriptor"), _integers([column])
    p, on = _rows(d, rows, column)
    if tile(v).poison.any() or v.dtype.startswith("*") or v.bound is not None:
        raise Reject("poison, or an approximate value, is scattered")
    _write(m, p, on, np.broadcast_to(cast(v.x, v.dtype, d.dtype), p.shape), v)


def _block_pointer_text(base: str, *rest: str, strides: Any, block: Any) -> str:
    n = len(block)
    order = _tuple([*range(n)][::-1])
    return f"tl.make_block_ptr({base}, {_tuple(rest[:n])}, {_tuple(strides)}, " \
        f"{_tuple(rest[n:])}, {_tuple(block)}, {order})"


@op("make_block_ptr", _block_pointer_text)
def _(m: Machine, base: Any, *rest: Any, strides: tuple[int, ...], block: tuple[int, ...]
      ) -> Record:
    n, values = len(block), _integers(rest)
    return Record("block_pointer", int(base.owner), int(base.x), _pointer(base), values[:n],
                  strides, values[n:], block)


@op("advance", lambda p, *by, form: f"{p}.advance({_tuple(by)})" if form else
    f"tl.advance({p}, {_tuple(by)})")
def _(m: Machine, p: Any, *by: Any, form: bool) -> Record:
    p = _record(p, "block_pointer")
    return replace(p, offsets=tuple(a + b for a, b in zip(p.offsets, _integers(by), strict=True)))


@op("block_load", lambda p, check, padding: f"tl.load({p}, boundary_check={_tuple(check)}"
    + (f', padding_option="{padding}")' if padding else ")"))
def _(m: Machine, p: Any, check: tuple[int, ...], padding: str) -> Value:
    p = _record(p, "block_pointer")
    at, on = _lanes(p, p.offsets, check)
    x = _read(m, at, on, p.dtype)
    if not padding:
        return value(x, p.dtype, ~on)
    if padding == "nan" and not is_float(p.dtype) or not check:
        raise Reject("no such padding")
    return value(np.where(on, x, constant(float("nan") if padding == "nan" else 0, p.dtype)),
                 p.dtype)


@op("block_store", lambda p, v, check: f"tl.store({p}, {v}, boundary_check={_tuple(check)})")
def _(m: Machine, p: Any, v: Any, check: tuple[int, ...]) -> None:
    p = _record(p, "block_pointer")
    at, on = _lanes(p, p.offsets, check)
    if (np.broadcast_to(tile(v).poison, p.block) & on).any():
        raise Reject("poison is stored")
    _write(m, at, on, np.broadcast_to(cast(number(v).x, v.dtype, p.dtype), p.block), v)


# -- products (section 8) -------------------------------------------------------------------------

SUM_BITS = {"float8e4nv": 13, "float8e5": 13, "float64": 53}  # of wgmma on fp8 the least


def matrix_product(a: Value, b: Value, acc: Value | None, out: str) -> Value:
    """a @ b + acc where every order and grouping of the sums gives the same."""
    x, y = a.x.astype(np.float64), b.x.astype(np.float64)
    shape = (*x.shape[:-1], y.shape[-1])
    start = np.zeros(shape) if acc is None else acc.x.astype(np.float64)
    if any(v is not None and (v.poison.any() or v.rounded) for v in (a, b, acc)):
        raise Reject("a product of poison, or with a rounded product")
    if out == "int32":
        total = np.matmul(a.x.astype(np.int64), b.x.astype(np.int64))
        first = 0 if acc is None else acc.x.astype(np.int64)
        return value((total + first).astype(np.int32), "int32")
    for z in (x, y, start):
        if not np.isfinite(z).all() or ((z == 0) & np.signbit(z)).any():
            raise Reject("infinities, NaN or -0.0 in a product")
    if a.dtype == "float32" and max(nu._span(x), nu._span(y)) > 2.0 ** 10:
        raise Reject("more bits than tf32 has")
    bits = min(SUM_BITS.get(a.dtype, 20), nu.MANTISSA[out])
    step = min(nu.unit(x) * nu.unit(y), nu.unit(start)) if start.any() else nu.unit(x) * nu.unit(y)
    most = np.matmul(np.abs(x), np.abs(y)) + np.abs(start)
    if (most / step > 2.0 ** bits).any() or (most > (3e4 if out == "float16" else 1e30)).any() \
            or step < 2.0 ** -20:
        raise Reject("a product depends on its order")
    return value(cast(np.matmul(x, y) + start, "float64", out), out)


@op("dot", lambda a, b, acc, out, precision: f"tl.dot({a}, {b}" +
    (f", {acc}" if acc != "None" else "") +
    (f', input_precision="{precision}"' if precision else "") +
    (", out_dtype=tl.float16)" if out == "float16" else ")"))
def _(m: Machine, a: Any, b: Any, acc: Any, out: str, precision: str) -> Value:
    if number(a).dtype != number(b).dtype or a.x.ndim != b.x.ndim or a.x.ndim not in (2, 3) or \
            acc is not None and number(acc).dtype != out:
        raise Reject("no such product")
    return matrix_product(a, b, acc, out)


@op("softmax_row", "tl.softmax({0}, 0)")
def _(m: Machine, a: Any) -> Value:
    """Within what section 6 gives exp, and sums in any order."""
    x = number(a).x.astype(np.float64)
    if a.dtype != "float32" or x.ndim != 1 or not np.isfinite(x).all() or a.poison.any():
        raise Reject("no row of numbers")
    e = np.exp(x - x.max())
    exact = e / e.sum()
    off = 2.0 ** -21 + np.abs(x - x.max()).max() * 2.0 ** -22 + x.size * 2.0 ** -23
    return value(exact.astype(np.float32), "float32", exact=exact,
                 bound=exact * off + 2.0 ** -126)


@op("sigmoid", "tl.sigmoid({0})")
def _(m: Machine, a: Any) -> Value:
    x = number(a).x.astype(np.float64)
    if a.dtype != "float32":
        raise Reject("float32 alone")
    exact = 1 / (1 + np.exp(-x))
    bound = exact * (2.0 ** -21 + np.nan_to_num(np.abs(x)) * 2.0 ** -22) + 2.0 ** -120
    return value(exact.astype(np.float32), "float32", a.poison, exact=exact,
                 bound=np.where(np.isfinite(bound), bound, 0))


