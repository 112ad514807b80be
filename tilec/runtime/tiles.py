"""Which tile a matrix product is best cut into: a cost model for kernels whose programs share the
tiles out, one program a multiprocessor, as examples/09_descriptor_matmul.py does.

Its constants were measured on an H200, in cycles; only what they compare to each other counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tilec.errors import LaunchError
from tilec.runtime import device
from tilec.runtime.aot import cdiv
from tilec.target import DEFAULT, Target

MULTIPROCESSORS = 132
STEP_BYTES = 128  # of k: a row of the widest swizzle
RESULT_BYTES = 32768  # the buffer that a result goes out through, at most
PRODUCT = 3700  # products of rows, columns and bytes of k that tensor cores compute in a cycle
L2_BYTES = 8000  # a cycle, from L2 to all multiprocessors
BESIDE = 0.25  # of a load's time, that products beside it lose
NARROW = 1.06  # how much longer products take whose columns are no whole rows of that swizzle
STEP = 230  # a step's waits and barriers, which shorter products do not hide
RESULT = 0.03  # a result's way out, for each of its elements
TILE = 3000  # a tile's beginning and end
STAGES = 4  # more keep no more products busy
# Rows and columns, and warps: near squares, which read the least, and what fills the last wave.
SHAPES = ((128, 256, 8), (256, 128, 8), (128, 192, 8), (128, 160, 8), (128, 128, 8), (64, 256, 4),
          (64, 128, 4), (128, 64, 8), (64, 64, 4))


class Tile(NamedTuple):
    """block: (rows, columns, k) of a tile; num_warps and num_stages: launch options."""

    block: tuple[int, int, int]
    num_warps: int
    num_stages: int


def matmul_tile(m: int, n: int, k: int, itemsize: int = 2, *, multiprocessors: int | None = None,
                target: str | Target | None = None) -> Tile:
    """The tile for an [m, k] by [k, n] product of elements of `itemsize` bytes (1, 2 or 4).

    multiprocessors, target: those of the current GPU; without one, an H200's. LaunchError for
    extents below 1 and elements of other sizes.
    """
    gpu = device.current_device() if device.gpu_available() else None
    if multiprocessors is None:
        multiprocessors = MULTIPROCESSORS if gpu is None else device.multiprocessors(gpu)
    if target is None:
        target = DEFAULT if gpu is None else device.target_of(gpu)
    if min(m, n, k, multiprocessors) < 1 or itemsize not in (1, 2, 4):
        raise LaunchError(f"matmul_tile got a product of {m} x {n} x {k}, {itemsize} bytes an "
                          f"element, on {multiprocessors} multiprocessors", None,
                          "extents are 1 or more, elements have 1, 2 or 4 bytes")
    room = (target if isinstance(target, Target) else Target.parse(target)).max_shared
    return min(_choices(itemsize, room),
               key=lambda tile: _cycles(tile, m, n, k, itemsize, multiprocessors))


def _choices(itemsize: int, room: int) -> Iterator[Tile]:
    """The tiles whose buffers fit."""
    for rows, columns, warps in SHAPES:
        result = min(RESULT_BYTES, rows * columns * 2)
        for step in (STEP_BYTES, 2 * STEP_BYTES):
            stages = min(STAGES, (room - result - 1024) // ((rows + columns) * step))
            if stages > 2 or step == STEP_BYTES and stages == 2:
                yield Tile((rows, columns, step // itemsize), warps, stages)


def _cycles(tile: Tile, m: int, n: int, k: int, itemsize: int, multiprocessors: int) -> float:
    """About how long the busiest program takes."""
    rows, columns, depth = tile.block
    tiles = cdiv(m, rows) * cdiv(n, columns)
    busy = min(multiprocessors, tiles)
    product = rows * columns * depth * itemsize / PRODUCT
    if columns * itemsize % STEP_BYTES:
        product *= NARROW
    load = (rows + columns) * depth * itemsize * busy / L2_BYTES
    step = max(product, load, STEP) + BESIDE * load
    return cdiv(tiles, multiprocessors) * (cdiv(k, depth) * step + RESULT * rows * columns + TILE)
