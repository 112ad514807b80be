"""The model that chooses the tiles of a matrix product."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
from tilec.errors import LaunchError
from tilec.runtime.tiles import SHAPES, Tile
from tilec.target import Target


def waste(m: int, n: int, tile: Tile, multiprocessors: int) -> float:
    """Of what the multiprocessors could compute in the time, the part that is not the product's."""
    rows, columns, _ = tile.block
    rounds = tilec.cdiv(tilec.cdiv(m, rows) * tilec.cdiv(n, columns), multiprocessors)
    return 1 - m * n / (rounds * multiprocessors * rows * columns)


def test_sizes_that_were_measured() -> None:
    """On an H200 no other of these tiles was faster."""
    found = {n: tilec.matmul_tile(n, n, n).block[:2]
             for n in (1024, 1280, 1536, 2048, 2560, 3072, 4096, 8192)}
    assert found == {1024: (64, 128), 1280: (128, 128), 1536: (128, 160), 2048: (128, 256),
                     2560: (128, 256), 3072: (128, 192), 4096: (128, 256), 8192: (128, 256)}
    assert tilec.matmul_tile(1024, 1024, 1024) == ((64, 128, 64), 4, 4)
    assert tilec.matmul_tile(512, 512, 4096) == ((64, 64, 128), 4, 4)
    assert tilec.matmul_tile(8192, 8192, 512).block == (128, 256, 64)
    assert tilec.matmul_tile(8192, 8192, 8192, 1) == ((128, 256, 128), 8, 4)


@pytest.mark.parametrize("seed", range(40))
def test_any_problem_gets_a_tile_that_fits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n, k = (int(2 ** rng.uniform(0, 15)) for _ in range(3))
    itemsize, processors = int(rng.choice([1, 2, 4])), int(rng.integers(1, 200))
    for target in ("sm_80", "sm_89", "sm_90a"):
        tile = tilec.matmul_tile(m, n, k, itemsize, multiprocessors=processors, target=target)
        rows, columns, depth = tile.block
        assert (rows, columns, tile.num_warps) in SHAPES and 2 <= tile.num_stages <= 4
        assert depth * itemsize in (128, 256)
        held = tile.num_stages * (rows + columns) * depth * itemsize
        assert held < Target.parse(target).max_shared
        # No other of the shapes leaves much less idle.
        if k > 2000 and target == "sm_90a" and itemsize == 2:
            best = min(waste(m, n, Tile((r, c, 64), w, 3), processors) for r, c, w in SHAPES)
            assert waste(m, n, tile, processors) < best + 0.35


def test_target_may_be_an_object_and_is_an_h200_without_a_gpu() -> None:
    assert tilec.matmul_tile(777, 999, 555) == tilec.matmul_tile(
        777, 999, 555, 2, multiprocessors=132, target=Target.parse("sm_90a"))


@pytest.mark.parametrize("problem", [(0, 4, 4), (4, -1, 4), (4, 4, 0), (4, 4, 4, 3)])
def test_what_is_no_product_is_refused(problem: tuple[int, ...]) -> None:
    with pytest.raises(LaunchError, match="matmul_tile got a product of"):
        tilec.matmul_tile(*problem)


