"""Many matrix products in one launch: batched (one shape) and grouped (each its own shape).

The grouped product finds its problem by walking a table of tile counts, so that products of any
shapes fill the machine together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import support

import tilec
import tilec.language as tl


@tilec.jit
def tile_product(a_ptr, b_ptr, c_ptr, m, n, k, pid_m, pid_n, BM: tl.constexpr, BN: tl.constexpr,
                 BK: tl.constexpr):
    """One tile of c = a @ b; all three contiguous, row by row."""
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        at = start + rk
        x = tl.load(a_ptr + rm[:, None] * k + at[None, :],
                    mask=(rm[:, None] < m) & (at[None, :] < k), other=0.0)
        y = tl.load(b_ptr + at[:, None] * n + rn[None, :],
                    mask=(at[:, None] < k) & (rn[None, :] < n), other=0.0)
        acc = tl.dot(x, y, acc)
    tl.store(c_ptr + rm[:, None] * n + rn[None, :], acc.to(c_ptr.dtype.element_ty),
             mask=(rm[:, None] < m) & (rn[None, :] < n))


@tilec.jit
def batched_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr,
                   BK: tl.constexpr):
    batch = tl.program_id(2).to(tl.int64)
    tile_product(a_ptr + batch * m * k, b_ptr + batch * k * n, c_ptr + batch * m * n, m, n, k,
                 tl.program_id(0), tl.program_id(1), BM, BN, BK)


@tilec.jit
def grouped_kernel(a_ptr, b_ptr, c_ptr, table_ptr, BM: tl.constexpr, BN: tl.constexpr,
                   BK: tl.constexpr):
    """table: for each problem (first tile of the next one, m, n, k, offsets of a, b and c)."""
    row = table_ptr
    first = tl.load(row) * 0
    last = tl.load(row)
    while tl.program_id(0) >= last:
        row += 7
        first = last
        last = tl.load(row)
    n = tl.load(row + 2).to(tl.int32)
    tile = (tl.program_id(0) - first).to(tl.int32)
    across = tl.cdiv(n, BN)
    tile_product(a_ptr + tl.load(row + 4), b_ptr + tl.load(row + 5), c_ptr + tl.load(row + 6),
                 tl.load(row + 1).to(tl.int32), n, tl.load(row + 3).to(tl.int32),
                 tile // across, tile % across, BM, BN, BK)


def batched(a: Any, b: Any, c: Any, block: tuple[int, int, int] = (64, 64, 32)) -> Any:
    """c[i] = a[i] @ b[i] for contiguous a (batch, m, k), b (batch, k, n)."""
    batch, m, k = a.shape
    n = b.shape[2]
    grid = (tilec.cdiv(m, block[0]), tilec.cdiv(n, block[1]), batch)
    return batched_kernel[grid](a, b, c, m, n, k, BM=block[0], BN=block[1], BK=block[2])


def plan(shapes: Sequence[tuple[int, int, int]], block: tuple[int, int, int]
         ) -> tuple[np.ndarray, int]:
    """(the table of a grouped product, number of tiles) for problems (m, n, k) laid end to end."""
    rows, tiles, a, b, c = [], 0, 0, 0, 0
    for m, n, k in shapes:
        tiles += tilec.cdiv(m, block[0]) * tilec.cdiv(n, block[1])
        rows.append((tiles, m, n, k, a, b, c))
        a, b, c = a + m * k, b + k * n, c + m * n
    return np.array(rows, np.int64), tiles


def main(batch: int = 3, block: tuple[int, int, int] = (32, 32, 32)) -> None:
    m, n, k = 50, 70, 40
    a = support.array(support.normal(0, batch, m, k), "float16")
    b = support.array(support.normal(1, batch, k, n), "float16")
    c = support.poisoned((batch, m, n), "float32")
    batched(a, b, c, block)
    support.check(f"{batch} products of {m} x {n} x {k}, {support.place()}", c,
                  support.host(a) @ support.host(b), 2e-3)

    shapes = ((20, 33, 64), (64, 16, 10), (5, 90, 70), (40, 40, 1))
    table, tiles = plan(shapes, block)
    a = support.array(support.normal(2, sum(m * k for m, _, k in shapes)), "float16")
    b = support.array(support.normal(3, sum(k * n for _, n, k in shapes)), "float16")
    c = support.poisoned(sum(m * n for m, n, _ in shapes), "float32")
    grouped_kernel[(tiles,)](a, b, c, support.array(table, "int64"), BM=block[0], BN=block[1],
                             BK=block[2])
    expected = [(support.host(a)[i:i + m * k].reshape(m, k) @
                 support.host(b)[j:j + k * n].reshape(k, n)).ravel()
                for _, m, n, k, i, j, _ in table.tolist()]
    support.check(f"{len(shapes)} products of different shapes in one launch of {tiles} programs, "
                  f"{support.place()}", c, np.concatenate(expected), 2e-3)


if __name__ == "__main__":
    main()
