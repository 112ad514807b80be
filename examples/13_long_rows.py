"""Softmax, RMS norm and cross-entropy of rows as long as a vocabulary, at the speed of a copy.

A program takes a row and reads it twice, the second time out of the cache, while memory serves
other programs. That needs few registers (64 in each of 512 threads for a row of 64 KiB), so that
two such programs fit a multiprocessor: while one reduces its row, the other's comes in. What is
read first is to stay in the cache, what is read again may go.

A block of a row is a tile of two dimensions, PER x WIDTH, of which a thread holds whole columns.
To reduce it along these moves nothing, and the threads meet once a row. Longer rows go by in
several blocks, and the second time backwards, what is in the cache first.

Where there are fewer rows than multiprocessors, as when the next token is sampled, a cluster of
programs shares a row: each reduces a part, and reads the others' results from their shared memory.
With more rows clusters cost more than they give: their programs read, wait and write together.

A row of -inf gives NaN, as in torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import support

import tilec
import tilec.language as tl
import tilec.language.gpu as tlg

NEG_INF = tl.constexpr(float("-inf"))
LOWEST = tl.constexpr(-3.4028234663852886e38)  # the lowest finite float32
IGNORE = -100  # the label of a row that does not count

# Most warps of a program, how many accesses of 16 bytes a thread makes at a time, the most
# registers that it may take, and most programs a row: of rows up to 64 KiB, of longer ones, and
# where there are few rows of at least 16 KiB.
How = tuple[int, int, int, int]
WHOLE, BLOCKS, SHARED = (16, 8, 64, 1), (32, 4, 64, 1), (8, 8, 64, 8)

# Constexprs below. N: columns of a row. X, OUT: strides of rows and of columns, in elements.
# PER, WIDTH: a block's shape. SPAN: as from `span`.


@tilec.jit
def columns(start, STRIDES: tl.constexpr, PER: tl.constexpr, WIDTH: tl.constexpr):
    """The numbers of a block's columns, and their places in a row."""
    cols = start + tl.arange(0, PER)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    return cols, cols.to(tl.int64) * STRIDES[1]


@tilec.jit
def row_number():
    """Which row this program works on, alone or with its cluster."""
    return tl.program_id(0) // tlg.cluster_size()


@tilec.jit
def row_of(ptr, STRIDES: tl.constexpr):
    """Where this program's row begins."""
    return ptr + row_number().to(tl.int64) * STRIDES[0]


@tilec.jit
def span(N: tl.constexpr, BLOCK: tl.constexpr):
    """Columns of a program's part of a row, whole blocks."""
    return tl.cdiv(N, tlg.cluster_size() * BLOCK) * BLOCK


@tilec.jit
def part_begin(SPAN: tl.constexpr):
    """The first column of this program's part of its row."""
    begin = 0
    if tlg.cluster_size() > 1:
        begin = tlg.cluster_rank() * SPAN
    return begin


@tilec.jit
def load(row, start, fill, N: tl.constexpr, X: tl.constexpr, PER: tl.constexpr,
         WIDTH: tl.constexpr, POLICY: tl.constexpr):
    """A block of a row as float32, with `fill` after the row's end."""
    element: tl.constexpr = row.dtype.element_ty
    tl.static_assert(element.is_floating() and element.primitive_bitwidth <= 32,
                     "rows of float16, bfloat16 or float32 are expected")
    cols, at = columns(start, X, PER, WIDTH)
    if N % (tlg.cluster_size() * PER * WIDTH) == 0:
        x = tl.load(row + at, eviction_policy=POLICY)
    else:
        x = tl.load(row + at, mask=cols < N, other=fill, eviction_policy=POLICY)
    return x.to(tl.float32)


@tilec.jit
def store(row, start, value, N: tl.constexpr, OUT: tl.constexpr, PER: tl.constexpr,
          WIDTH: tl.constexpr):
    cols, at = columns(start, OUT, PER, WIDTH)
    if N % (tlg.cluster_size() * PER * WIDTH) == 0:
        tl.store(row + at, value)
    else:
        tl.store(row + at, value, mask=cols < N)


@tilec.jit
def merge(top, total, other_top, other_total):
    """Maxima of two parts of a row, and sums of exp(x - maximum), of both parts together."""
    # Of the factors exp(top - new) and exp(other_top - new), one is 1: one exp is enough.
    e = tl.exp(-tl.abs(top - other_top))
    return (tl.maximum(top, other_top),
            tl.where(top > other_top, total + other_total * e, total * e + other_total))


@tilec.jit
def of_cluster(top, total):
    """Maximum and sum of a row, from those of each program's part."""
    if tlg.cluster_size() > 1:
        tops, totals = tlg.alloc_shared((1,), tl.float32), tlg.alloc_shared((1,), tl.float32)
        tops.store(top)
        totals.store(total)
        tlg.cluster_barrier()
        tops_of_all, totals_of_all = tops.at(0).load(), totals.at(0).load()
        for rank in tl.static_range(1, tlg.cluster_size()):
            tops_of_all, totals_of_all = merge(tops_of_all, totals_of_all, tops.at(rank).load(),
                                               totals.at(rank).load())
        tlg.cluster_barrier()  # no program ends, with its memory, while others read there
        top, total = tl.max(tops_of_all, 0), tl.sum(totals_of_all, 0)
    return top, total


@tilec.jit
def statistics(row, begin, N: tl.constexpr, X: tl.constexpr, PER: tl.constexpr,
               WIDTH: tl.constexpr, SPAN: tl.constexpr):
    """A row's maximum, and the sum of exp(x - maximum)."""
    x = load(row, begin, NEG_INF, N, X, PER, WIDTH, "evict_last")
    # Not -inf, where nothing else was seen yet: -inf - -inf would be NaN.
    top = tl.maximum(tl.max(x, 0), LOWEST)
    total = tl.sum(tl.exp(x - top[None, :]), 0)
    for past in range(PER * WIDTH, SPAN, PER * WIDTH):
        x = load(row, begin + past, NEG_INF, N, X, PER, WIDTH, "evict_last")
        new = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new[None, :]), 0)
        top = new
    top, total = tl.reduce((top, total), 0, merge)
    return of_cluster(top, total)


@tilec.jit
def softmax_kernel(x_ptr, out_ptr, N: tl.constexpr, X: tl.constexpr, OUT: tl.constexpr,
                   PER: tl.constexpr, WIDTH: tl.constexpr):
    BLOCK: tl.constexpr = PER * WIDTH
    SPAN: tl.constexpr = span(N, BLOCK)
    x_row, out_row, begin = row_of(x_ptr, X), row_of(out_ptr, OUT), part_begin(SPAN)
    top, total = statistics(x_row, begin, N, X, PER, WIDTH, SPAN)
    scale = 1.0 / total
    tl.debug_barrier()  # the loads below are not to be merged with those above
    for back in range(0, SPAN, BLOCK):
        start = begin + (SPAN - BLOCK) - back
        x = load(x_row, start, NEG_INF, N, X, PER, WIDTH, "evict_first")
        store(out_row, start, tl.exp(x - top) * scale, N, OUT, PER, WIDTH)


@tilec.jit
def rms_norm_kernel(x_ptr, w_ptr, out_ptr, eps, N: tl.constexpr, X: tl.constexpr,
                    OUT: tl.constexpr, PER: tl.constexpr, WIDTH: tl.constexpr):
    BLOCK: tl.constexpr = PER * WIDTH
    SPAN: tl.constexpr = span(N, BLOCK)
    x_row, out_row, begin = row_of(x_ptr, X), row_of(out_ptr, OUT), part_begin(SPAN)
    squares = tl.zeros((WIDTH,), tl.float32)
    for past in range(0, SPAN, BLOCK):
        x = load(x_row, begin + past, 0.0, N, X, PER, WIDTH, "evict_last")
        squares += tl.sum(x * x, 0)
    _, total = of_cluster(0.0, tl.sum(squares, 0))
    rstd = tl.rsqrt(total / N + eps)
    tl.debug_barrier()
    for back in range(0, SPAN, BLOCK):
        start = begin + (SPAN - BLOCK) - back
        x = load(x_row, start, 0.0, N, X, PER, WIDTH, "evict_first")
        w = load(w_ptr, start, 0.0, N, (0, 1), PER, WIDTH, "evict_last")
        store(out_row, start, x * rstd * w, N, OUT, PER, WIDTH)


@tilec.jit
def cross_entropy_kernel(x_ptr, label_ptr, loss_ptr, dx_ptr, scale, N: tl.constexpr,
                         X: tl.constexpr, OUT: tl.constexpr, IGNORE: tl.constexpr,
                         GRAD: tl.constexpr, PER: tl.constexpr, WIDTH: tl.constexpr):
    """Without GRAD only the loss is stored."""
    BLOCK: tl.constexpr = PER * WIDTH
    SPAN: tl.constexpr = span(N, BLOCK)
    x_row, begin = row_of(x_ptr, X), part_begin(SPAN)
    label = tl.load(label_ptr + row_number())
    counts = label != IGNORE
    tl.device_assert((label >= 0) & (label < N) | (label == IGNORE), "label out of range")
    picked = tl.load(x_row + label * X[1], mask=counts, other=0.0).to(tl.float32)
    top, total = statistics(x_row, begin, N, X, PER, WIDTH, SPAN)
    loss = tl.log(total) + (top - picked)
    tl.store(loss_ptr + row_number(), tl.where(counts, loss, 0.0), mask=begin == 0)
    if GRAD:
        dx_row = row_of(dx_ptr, OUT)
        factor = tl.where(counts, scale / total, 0.0)
        tl.debug_barrier()  # dx may lie where x does: all threads have `picked` now
        for back in range(0, SPAN, BLOCK):
            start = begin + (SPAN - BLOCK) - back
            x = load(x_row, start, NEG_INF, N, X, PER, WIDTH, "evict_first")
            store(dx_row, start, tl.exp(x - top) * factor, N, OUT, PER, WIDTH)
        # Once more for one column costs less than a comparison for each.
        if tlg.cluster_size() > 1:
            counts &= (label >= begin) & (label < begin + SPAN)
        tl.store(dx_row + label * OUT[1], tl.exp(picked - top) * factor - scale, mask=counts)


# -- launches -----------------------------------------------------------------------------------

def strides(x: Any) -> tuple[int, int]:
    """Of rows and of columns, in elements."""
    if isinstance(x, np.ndarray):
        return x.strides[0] // x.itemsize, x.strides[1] // x.itemsize
    return x.stride(0), x.stride(1)


def launch(kernel: Any, x: Any, args: tuple[Any, ...], out: Any, how: How | None,
           **more: Any) -> Any:
    """`kernel` of `args` over the rows of x, with the constexprs and options that all here take."""
    lanes, (rows, cols) = 16 // x.itemsize, x.shape
    if how is None:
        few = rows < support.multiprocessors() and cols >= 1024 * lanes
        how = SHARED if few and support.target().has("barrier.cluster") else \
            WHOLE if cols <= 32 * lanes * WHOLE[0] * WHOLE[1] else BLOCKS
    most, accesses, registers, programs = how
    block = min(tilec.next_power_of_2(tilec.cdiv(cols, programs)), 32 * lanes * most * accesses)
    warps = max(1, block // (32 * lanes * accesses))
    width = min(block, 32 * lanes * warps)
    programs = min(programs, tilec.next_power_of_2(tilec.cdiv(cols, block)))
    return kernel[(rows * programs,)](
        *args, N=cols, X=strides(x), OUT=strides(out), PER=block // width, WIDTH=width,
        num_warps=warps, maxnreg=registers, num_ctas=programs, **more)


def softmax(x: Any, out: Any, how: How | None = None) -> Any:
    """out = softmax of each row of x; returns the kernel.

    x, out: (rows, columns) of float16, bfloat16 or float32, with any strides; out may be x.
    """
    return launch(softmax_kernel, x, (x, out), out, how)


def rms_norm(x: Any, w: Any, out: Any, eps: float = 1e-6, how: How | None = None) -> Any:
    """out = x / sqrt(mean(x * x) + eps) * w for each row of x; w: (columns,), contiguous; the rest
    as for `softmax`."""
    return launch(rms_norm_kernel, x, (x, w, out, eps), out, how)


def cross_entropy(x: Any, label: Any, loss: Any, dx: Any = None, scale: float = 1.0,
                  how: How | None = None) -> Any:
    """loss[i] = log(sum(exp(x[i]))) - x[i, label[i]], and dx = scale * the gradient of their sum.

    x, dx: as x and out of `softmax`; without dx there is no gradient. label: (rows,) integers, of
    which IGNORE gives no loss and no gradient; loss: (rows,) float32.
    """
    out = x if dx is None else dx
    return launch(cross_entropy_kernel, x, (x, label, loss, out, scale), out, how, IGNORE=IGNORE,
                  GRAD=dx is not None)


# -- checks -------------------------------------------------------------------------------------

def softmax_reference(x: np.ndarray) -> np.ndarray:
    """Of each row, in float64."""
    with np.errstate(invalid="ignore"):  # a row of -inf
        e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def entropy_reference(p: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Loss and gradient for the probabilities p."""
    counts, one = label != IGNORE, np.arange(p.shape[1]) == label[:, None]
    loss = -np.log(p, where=one, out=np.zeros_like(p)).sum(1)
    return loss, (p - one) * counts[:, None]


def check_kernels(rows: int, cols: int, dtype: str, tolerance: float, pitch: int = 0,
                  how: How | None = None) -> None:
    """pitch: columns of the array that the rows are cut out of; as many as they have if 0."""
    def cut(values: np.ndarray) -> Any:
        return support.array(values, dtype)[:, :cols]

    shape = rows, pitch or cols
    x = cut(support.normal(cols, *shape) * 3)
    w = support.array(support.normal(1, cols), dtype)
    label = np.random.default_rng(rows).integers(0, cols, rows)
    label[rows // 2] = IGNORE
    where = support.array(label, "int64")
    values = support.host(x)
    p = softmax_reference(values)
    expected, gradient = entropy_reference(p, label)
    rstd = 1 / np.sqrt((values * values).mean(1, keepdims=True) + 1e-6)
    what = f"{rows} x {cols} {dtype}, {support.place()}"

    out, norm, dx = (cut(np.full(shape, np.nan)) for _ in range(3))
    loss, alone = (support.poisoned(rows, "float32") for _ in range(2))
    softmax(x, out, how)
    rms_norm(x, w, norm, how=how)
    cross_entropy(x, where, alone, how=how)
    cross_entropy(x, where, loss, dx, 0.5, how)
    # Values are small where rows are long, so the rows are scaled before they are checked.
    most = p.max(1, keepdims=True)
    support.check(f"softmax, {what}", support.host(out) / most, p / most, tolerance)
    support.check(f"RMS norm, {what}", norm, values * rstd * support.host(w), tolerance)
    for name, got in (("cross-entropy", alone), ("cross-entropy with gradient", loss)):
        support.check(f"{name}, {what}", got, expected, 1e-5)
    support.check(f"gradient, {what}", support.host(dx) / most, gradient / 2 / most, tolerance)
    cross_entropy(x, where, loss, x, 0.5, how)  # in place
    np.testing.assert_array_equal(support.host(x), support.host(dx))


def check_edges() -> None:
    """Rows of -inf in part or in whole, and rows that are the columns of an array."""
    for cols in (300, 20000):
        values = support.normal(0, 3, cols)
        values[0, 7:] = -np.inf
        values[1] = -np.inf
        x, out = support.array(values.T, "float32").T, support.poisoned((cols, 3), "float32").T
        softmax(x, out)
        got, good = support.host(out), softmax_reference(support.host(x))
        assert np.isnan(got[1]).all(), "a row of -inf"
        support.check(f"softmax of rows with -inf, 3 x {cols}", got[::2], good[::2], 1e-6)


def main() -> None:
    check_kernels(7, 1000, "float32", 1e-5)
    check_kernels(9, 781, "float16", 2e-3, pitch=800)
    check_kernels(6, 32768, "bfloat16", 2e-2)
    check_kernels(3, 20000, "float32", 1e-5)  # clusters share them, where there are clusters
    check_kernels(2, 40000, "float16", 2e-3, how=BLOCKS)
    check_edges()


if __name__ == "__main__":
    main()
