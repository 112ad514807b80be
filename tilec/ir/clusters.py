"""Clusters of programs: how many there may be in one, and over which grids."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.errors import LaunchError

CLUSTER_SIZES = (1, 2, 4, 8)  # 8 is what every GPU grants (CUDA C++ Programming Guide)


def check_clusters(name: str, grid: Sequence[int], num_ctas: int) -> None:
    """LaunchError if a grid does not consist of clusters of so many programs along axis 0."""
    if grid[0] % num_ctas:
        raise LaunchError(
            f"`{name}` has a grid of {grid[0]} programs along axis 0, expected a multiple of "
            f"num_ctas, which is {num_ctas}", None,
            "launch more programs, which have nothing to do, or a smaller num_ctas")
