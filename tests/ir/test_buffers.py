"""Layouts of shared buffers: bank conflicts counted word by word, from where elements lie."""

import itertools
from collections import Counter

import pytest

from tilec.ir.buffers import access_map, operand_layout
from tilec.ir.fragment import Fragment, SharedTile, fragment, shared_tile
from tilec.ir.layouts import Blocked, DotOperand, Mma, SwizzledShared
from tilec.ir.matrix import find_ldmatrix
from tilec.ir.swizzle import best_route
from tilec.ir.types import Scalar, bf16, f16, f32, f64, i8

SIZES = {1: i8, 2: f16, 4: f32, 8: f64}
BANKS = 32


def words(buffer: SharedTile, frag: Fragment, size: int, lane: int, registers: list[int]
          ) -> set[int]:
    """The 32-bit words that a lane of warp 0 touches."""
    found: set[int] = set()
    for r in registers:
        at = buffer.offset(frag.coords(r, lane, 0)) * size
        found.update(range(at // 4, (at + size - 1) // 4 + 1))
    return found


def degree(touched: set[int]) -> int:
    """Wavefronts that these words take, 1 being the least there can be."""
    per_bank = Counter(w % BANKS for w in touched)
    return max(per_bank.values())


def plain_degree(buffer: SharedTile, frag: Fragment, size: int, registers: list[int]) -> int:
    """Of one vector access, the most wavefronts of a group of lanes served at once."""
    lanes = 32 // max(1, size * len(registers) // 4)
    groups = [range(first, first + lanes) for first in range(0, 32, lanes)]
    return max(degree(set().union(*(words(buffer, frag, size, lane, registers) for lane in group)))
               for group in groups)


def matrix_degree(buffer: SharedTile, frag: Fragment, size: int, registers: list[int],
                  trans: bool) -> int:
    """Of one 8 x 8 matrix: the words of its 8 rows of 16 bytes are one wavefront."""
    touched = set().union(*(words(buffer, frag, size, lane, registers) for lane in range(32)))
    assert len(touched) <= 32
    # The 16 bytes of each row lie side by side.
    assert all({w & ~3, w & ~3 | 1, w & ~3 | 2, w & ~3 | 3} <= touched for w in touched)
    return degree(touched)


def worst(buffer: SharedTile, frag: Fragment, size: int) -> tuple[int, str]:
    """(conflict degree, how) of the best route between a fragment and a buffer."""
    access = access_map(frag, buffer)
    route = best_route(access, size * 8, True)
    if route.matrix is None:
        return max(plain_degree(buffer, frag, size, list(g)) for g in route.groups()), \
            f"{route.width * size} bytes"
    each = route.matrix.per_word
    order = route.order
    pieces = [list(order[i:i + each]) for i in range(0, len(order), each)]
    return max(matrix_degree(buffer, frag, size, p, route.matrix.trans) for p in pieces), \
        "matrix.trans" if route.matrix.trans else "matrix"


def writer(shape: tuple[int, int], size: int, order: tuple[int, int], warps: int) -> Blocked:
    """16 bytes a thread along order[0], as `coalesce` lays out loads."""
    vec = 16 // size
    extent = shape[order[0]] & -shape[order[0]]
    vec = min(vec, extent)
    lanes = min(32, max(1, extent // vec))
    fields = [[1, 1], [1, 1], [1, 1]]
    fields[0][order[0]] = vec
    fields[1][order[0]], fields[1][order[1]] = lanes, 32 // lanes
    fields[2][order[1]] = warps
    return Blocked(*(tuple(f) for f in fields), order)


SHAPES = [(64, 64), (128, 32), (16, 128), (96, 64), (64, 96), (192, 160), (32, 16), (48, 80)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
@pytest.mark.parametrize("shape", SHAPES)
def test_operands_meet_no_bank_twice(size: int, index: int, order: tuple[int, int],
                                     shape: tuple[int, int]) -> None:
    mma = Mma(2, (2, 2), (8, 8) if size == 8 else (16, 8))
    reader = DotOperand(mma, index, max(1, 4 // size))
    filler = writer(shape, size, order, 4)
    layout = operand_layout(shape, SIZES[size], order, (reader,), filler)
    buffer = shared_tile(shape, layout)
    stored, how = worst(buffer, fragment(shape, filler), size)
    loaded, read = worst(buffer, fragment(shape, reader), size)
    print(shape, order, layout, stored, how, loaded, read)
    assert (stored, loaded) == (1, 1), (str(layout), how, read)
