"""Mistakes that authors of kernels make, each in a kernel that is right with RIGHT=True: a table of
what names them. The line at fault is marked `# here` (several, where more than one is a right one).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilec
import tilec.language as tl

Call = tuple[tuple[int, ...], list[Any], dict[str, Any]]
LAUNCH, COMPILE, UNKNOWABLE = "launch", "compile", "not knowable"
F32 = np.float32


@dataclass(frozen=True)
class Mistake:
    """call(rng, right): grid, arguments and constexprs. by: what names it: an error or a note of a
    plain launch, an error of the compiler, or nothing, for the reason in words. words: a pattern of
    the error or note."""

    kernel: Any
    call: Callable[[np.random.Generator, bool], Call]
    words: str
    by: str = LAUNCH


MISTAKES: dict[str, Mistake] = {}


def mistake(name: str, call: Callable[[np.random.Generator, bool], Call], words: str,
            by: str = LAUNCH) -> Callable[[Any], Any]:
    """Put a function into the table, as a kernel."""
    def put(fn: Any) -> Any:
        kernel = tilec.jit(fn)
        MISTAKES[name] = Mistake(kernel, call, words, by)
        return kernel
    return put


def rows(rng: np.random.Generator, right: bool) -> Call:
    """Five programs over a matrix [37, 21], and a vector as long as its row."""
    return (5,), [rng.standard_normal((37, 21), F32), np.full((37, 21), np.nan, F32), 37, 21], {}


def flat(rng: np.random.Generator, right: bool) -> Call:
    return (7,), [rng.standard_normal(100, F32), np.full(100, np.nan, F32), 100], {"B": 16}


def one(rng: np.random.Generator, right: bool) -> Call:
    """One program over a vector of 50."""
    return (1,), [rng.standard_normal(50, F32), np.full(50, np.nan, F32), 50], {"B": 64}


# -- named before the table's time: bounds, poison, promises, compile time
@mistake("off-by-one mask", flat, "the mask tests n")
def off_by_one(x, o, n, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    mask = i < n if RIGHT else i <= n
    tl.store(o + i, tl.load(x + i, mask=mask, other=0.0), mask=mask)  # here


@mistake("no mask in the last block", flat, "there is no mask")
def no_mask(x, o, n, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    if RIGHT:
        v = tl.load(x + i, mask=i < n, other=0.0)
    else:
        v = tl.load(x + i)  # here
    tl.store(o + i, v, mask=i < n)


@mistake("int32 overflow of an offset", flat, "outside of every argument|before x")
def overflow(x, o, n, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    at = (i.to(tl.int64) if RIGHT else i) * 268435456  # from 8 * 2^28 on int32 is negative
    tl.store(o + i, tl.load(x + at, mask=at < n, other=0.0), mask=i < n)  # here


def inner(rng: np.random.Generator, right: bool) -> Call:
    a, b = rng.standard_normal((16, 40), F32), rng.standard_normal((40, 16), F32)
    return (1,), [a, b, np.empty((16, 16), F32), 40], {"B": 16}


@mistake("K no multiple of the block", inner, "past (a|b)")
def k_tail(a, b, c, K, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        pa, pb = a + i[:, None] * K + k + i[None, :], b + (k + i[:, None]) * B + i[None, :]
        if RIGHT:
            acc = tl.dot(tl.load(pa, mask=(k + i < K)[None, :], other=0.0),
                         tl.load(pb, mask=(k + i < K)[:, None], other=0.0), acc)
        else:
            acc = tl.dot(tl.load(pa), tl.load(pb), acc)  # here
    tl.store(c + i[:, None] * B + i[None, :], acc)


@mistake("rows' mask for columns", rows, "the mask tests M, which is 37")
def rows_mask(x, o, M, N, RIGHT: tl.constexpr):
    i, j = tl.program_id(0) * 8 + tl.arange(0, 8), tl.arange(0, 32)
    at = i[:, None] * N + j[None, :]
    if RIGHT:
        mask = (i < M)[:, None] & (j < N)[None, :]
    else:
        mask = (i < M)[:, None] & (j < M)[None, :]
    tl.store(o + at, tl.load(x + at, mask=mask, other=0.0), mask=mask)  # here


def described(rng: np.random.Generator, right: bool) -> Call:
    x = rng.standard_normal((20, 32), F32)
    strides = [32, 1] if right else [40, 1]
    desc = tilec.TensorDescriptor(x, [20, 32], strides, [8, 16])
    return (6,), [desc, np.empty((24, 32), F32)], {}


@mistake("descriptor with wrong strides", described, "compare its shape and strides|beyond|past|"
         "outside")
def wrong_strides(x, o, RIGHT: tl.constexpr):
    r, c = tl.program_id(0) // 2 * 8, tl.program_id(0) % 2 * 16
    at = (r + tl.arange(0, 8))[:, None] * 32 + c + tl.arange(0, 16)[None, :]
    tl.store(o + at, x.load([r, c]))  # here


@mistake("missing other", one, "no `other`")
def no_other(x, o, n, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.arange(0, B)
    if RIGHT:
        v = tl.load(x + i, mask=i < n, other=0.0)
    else:
        v = tl.load(x + i, mask=i < n)
    tl.store(o, tl.sum(v))  # here


def whole(rng: np.random.Generator, right: bool) -> Call:
    x = rng.integers(1, 9, 64).astype(np.int32)
    x[11] = 3 if right else 0
    return (1,), [x, np.empty(64, np.int32)], {"B": 64}


@mistake("integer division by zero", whole, "the division by zero")
def divided(x, o, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, 1000 // tl.load(x + i))  # here


@mistake("false multiple_of", lambda rng, right: (
    (1,), [rng.standard_normal(99, F32), np.empty(32, F32), 16 if right else 3], {"B": 32}),
    "this hint promises")
def false_hint(x, o, start, B: tl.constexpr, RIGHT: tl.constexpr):
    at = tl.multiple_of(start, 16)  # here
    tl.store(o + tl.arange(0, B), tl.load(x + at + tl.arange(0, B)))


@mistake("forgotten constexpr", one, "constexpr", COMPILE)
def no_constexpr(x, o, n, B: tl.constexpr, RIGHT: tl.constexpr):
    m = B if RIGHT else n
    i = tl.arange(0, m)  # here
    tl.store(o + i, tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


@mistake("loop bound is a tile", one, "tile", COMPILE)
def tile_bound(x, o, n, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.arange(0, B)
    s = 0.0
    for _ in range(n if RIGHT else i):  # here
        s += 1.0
    tl.store(o + i, s, mask=i < n)


@mistake("while on a tile", one, "tile", COMPILE)
def tile_while(x, o, n, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.arange(0, B)
    v = i
    while (tl.sum(v) < 4096) if RIGHT else (v < 64):  # here
        v += i
    tl.store(o + i, v.to(tl.float32), mask=i < n)


@mistake("accumulator never set", one, "acc", COMPILE)
def no_start(x, o, n, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.arange(0, B)
    if RIGHT:
        acc = tl.zeros((B,), tl.float32)
    for k in range(3):
        acc += tl.load(x + i, mask=i < n - k, other=0.0)  # here
    tl.store(o + i, acc, mask=i < n)


@mistake("swapped axes, not square", rows, "shape|broadcast", COMPILE)
def swapped(x, o, M, N, RIGHT: tl.constexpr):
    i, j = tl.program_id(0) * 8 + tl.arange(0, 8), tl.arange(0, 32)
    mask = (i < M)[:, None] & (j < N)[None, :]
    at = i[:, None] * N + j[None, :] if RIGHT else j[:, None] * N + i[None, :]
    tl.store(o + at, tl.load(x + at, mask=mask, other=0.0), mask=mask)  # here


# -- programs and lanes that meet
def summed(rng: np.random.Generator, right: bool) -> Call:
    return (7,), [rng.standard_normal(100, F32), np.zeros(1, F32), 100], {"B": 16}


@mistake("sum by load and store", summed, "without atomics")
def sum_by_store(x, o, n, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    s = tl.sum(tl.load(x + i, mask=i < n, other=0.0))
    if RIGHT:
        tl.atomic_add(o, s)
    else:
        tl.store(o, tl.load(o) + s)  # here


@mistake("last writer wins", summed, "without atomics")
def last_writer(x, o, n, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    top = tl.max(tl.load(x + i, mask=i < n, other=-float("inf")))
    if RIGHT:
        tl.store(o, top, mask=tl.program_id(0) == 0)
    else:
        tl.store(o, top)  # here


@mistake("histogram without atomics", lambda rng, right: (
    (1,), [rng.integers(0, 9, 64).astype(np.int32), np.zeros(9, np.int32)], {"B": 64}),
    "use tl.atomic_add")
def histogram(x, h, B: tl.constexpr, RIGHT: tl.constexpr):
    bins = tl.load(x + tl.arange(0, B))
    if RIGHT:
        tl.atomic_add(h + bins, 1)
    else:
        tl.store(h + bins, tl.load(h + bins) + 1)  # here


@mistake("weighted histogram without atomics", lambda rng, right: (
    (1,), [rng.integers(0, 9, 64).astype(np.int32), rng.standard_normal(64, F32),
           np.zeros(9, F32)], {"B": 64}), "more than once in one store")
def weights(x, w, h, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.arange(0, B)
    bins, values = tl.load(x + i), tl.load(w + i)
    if RIGHT:
        tl.atomic_add(h + bins, values)
    else:
        tl.store(h + bins, values)  # here


@mistake("wrong stride inside the array, of a store", rows, "more than once|without atomics")
def wrong_stride(x, o, M, N, RIGHT: tl.constexpr):
    i, j = tl.program_id(0) * 8 + tl.arange(0, 8), tl.arange(0, 32)
    mask = (i < M)[:, None] & (j < N)[None, :]
    v = tl.load(x + i[:, None] * N + j[None, :], mask=mask, other=0.0)
    stride = N if RIGHT else N - 4
    tl.store(o + i[:, None] * stride + j[None, :], v, mask=mask)  # here


@mistake("wrong stride inside the array, of a load", rows, "any element may be meant", UNKNOWABLE)
def wrong_load(x, o, M, N, RIGHT: tl.constexpr):
    i, j = tl.program_id(0) * 8 + tl.arange(0, 8), tl.arange(0, 32)
    mask = (i < M)[:, None] & (j < N)[None, :]
    v = tl.load(x + i[:, None] * (N if RIGHT else N - 4) + j[None, :], mask=mask, other=0.0)
    tl.store(o + i[:, None] * N + j[None, :], v, mask=mask)


def shifted(rng: np.random.Generator, right: bool) -> Call:
    x = rng.standard_normal(65, F32)
    return (1,), [x[:64], x[:64] if right else x[1:]], {"B": 64}


@mistake("overlapping arguments without debug_barrier", shifted, "put a tl.debug_barrier")
def overlapping(x, o, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, tl.load(x + i) * 2)  # here


@mistake("view that is not contiguous", lambda rng, right: (
    (1,), [rng.standard_normal(64, F32), np.zeros((64, 3), F32)[:, 1], 3 if right else 1],
    {"B": 64}), "between the elements of that view")
def strided(x, o, stride, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i * stride, tl.load(x + i))  # here


def grid_of_tiles(rng: np.random.Generator, right: bool) -> Call:
    return (3, 3), [rng.standard_normal((48, 48), F32), np.full((48, 48), np.nan, F32)], {}


@mistake("wrong program_id axis", grid_of_tiles, "none asks for tl.program_id")
def wrong_axis(x, o, RIGHT: tl.constexpr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    j = tl.program_id(1 if RIGHT else 0) * 16 + tl.arange(0, 16)
    at = i[:, None] * 48 + j[None, :]
    tl.store(o + at, tl.load(x + at) + 1)  # here


@mistake("axis 1 of a grid of one axis", lambda rng, right: (
    (1, 4) if right else (4,), [rng.standard_normal(64, F32), np.zeros(64, F32)], {"B": 16}),
    "none asks for tl.program_id")
def other_axis(x, o, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.program_id(1) * B + tl.arange(0, B)  # here
    tl.store(o + i, tl.load(x + i))


@mistake("swapped axes, square", grid_of_tiles, "that is how one transposes", UNKNOWABLE)
def transposed(x, o, RIGHT: tl.constexpr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    j = tl.program_id(1) * 16 + tl.arange(0, 16)
    at = i[:, None] * 48 + j[None, :]
    back = at if RIGHT else j[None, :] * 48 + i[:, None]
    tl.store(o + back, tl.load(x + at))


def kept(rng: np.random.Generator, right: bool) -> Call:
    out = np.zeros(64, F32) if right else rng.standard_normal(64, F32)
    return (4,), [rng.standard_normal(64, F32), out], {"B": 16}


@mistake("output not cleared", kept, "nothing wrote [0-9]+ elements")
def not_cleared(x, o, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(o + i, v, mask=v > 0)  # here


@mistake("sum onto an output not cleared", kept, "adding to what is there is what atomics are for",
         UNKNOWABLE)
def onto(x, o, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(o + i // 2, tl.load(x + i))


# -- numbers
@mistake("sums in fp16", lambda rng, right: (
    (1,), [np.ones(4096 * 64, np.float16), np.empty(64, F32)], {"B": 64}), "sum up in float32")
def half_sum(x, o, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.arange(0, B)
    acc = tl.zeros((B,), tl.float32 if RIGHT else tl.float16)
    for k in range(4096):
        acc += tl.load(x + k * B + i)  # here
    tl.store(o + i, acc)


@mistake("float mean of nothing", one, "0 / 0 gives NaN")
def empty_mean(x, o, n, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=0.0)
    picked = (v > 100).to(tl.float32)
    count = tl.sum(picked)
    if RIGHT:
        count = tl.maximum(count, 1.0)
    tl.store(o, tl.sum(v * picked) / count)  # here


@mistake("mean of rows, one of them empty", lambda rng, right: (
    (3,), [rng.standard_normal((3, 10), F32), np.array([4, 0, 10], np.int32), np.empty(3, F32)],
    {}), "0 / 0 gives NaN")
def empty_row(x, lengths, o, RIGHT: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, 16)
    n = tl.load(lengths + row)
    total = tl.sum(tl.load(x + row * 10 + i, mask=i < n, other=0.0), 0)
    tl.store(o + row, total / (tl.maximum(n, 1) if RIGHT else n))  # here


@mistake("row masked as a whole", lambda rng, right: (
    (1,), [rng.standard_normal((8, 20), F32), np.array([3, 20, 0, 7, 1, 9, 20, 5], np.int32),
           np.empty((8, 20), F32)], {}), "inf - inf gives NaN")
def masked_row(x, lengths, o, RIGHT: tl.constexpr):
    i, j = tl.arange(0, 8), tl.arange(0, 32)
    at = i[:, None] * 20 + j[None, :]
    inside = (j < 20)[None, :] & (i < 8)[:, None]
    s = tl.load(x + at, mask=inside, other=0.0)
    s = tl.where(j[None, :] < tl.load(lengths + i)[:, None], s, -float("inf"))
    top = tl.max(s, 1)
    if RIGHT:
        top = tl.where(top == -float("inf"), 0.0, top)
    e = tl.exp(s - top[:, None])  # here
    total = tl.sum(e, 1)
    if RIGHT:
        total = tl.where(total == 0.0, 1.0, total)
    tl.store(o + at, e / total[:, None], mask=inside)


@mistake("softmax padded with 0", one, "this sum takes in 14 masked-off lanes")
def padded(x, o, n, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=-float("inf") if RIGHT else 0.0)
    e = tl.exp(v - tl.max(v))
    tl.store(o + i, e / tl.sum(e), mask=i < n)  # here


@mistake("narrowing store", lambda rng, right: (
    (1,), [rng.integers(0, 500, 64).astype(np.int32), np.empty(64, np.int32 if right else np.int8)],
    {"B": 64}), "does not fit i8")
def narrowing(x, o, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, tl.load(x + i) * 2)  # here


@mistake("store that overflows fp16", lambda rng, right: (
    (1,), [rng.uniform(200, 400, 64).astype(F32), np.empty(64, np.float16)], {"B": 64}),
    "does not fit f16")
def overflowing(x, o, B: tl.constexpr, RIGHT: tl.constexpr):
    i, v = tl.arange(0, B), tl.load(x + tl.arange(0, B))
    tl.store(o + i, v if RIGHT else v * v)  # here


@mistake("pointer not advanced", inner, "advance the pointer")
def not_advanced(a, b, c, K, B: tl.constexpr, RIGHT: tl.constexpr):
    i = tl.arange(0, B)
    pa, pb = a + i[:, None] * K + i[None, :], b + i[:, None] * B + i[None, :]
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        left = tl.load(pa, mask=(k + i < K)[None, :], other=0.0)  # here
        acc = tl.dot(left, tl.load(pb, mask=(k + i < K)[:, None], other=0.0), acc)
        if RIGHT:
            pa += B
        pb += B * B
    tl.store(c + i[:, None] * B + i[None, :], acc)
