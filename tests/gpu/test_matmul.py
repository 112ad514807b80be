"""Random matrix products as cubins on the GPU, against numpy in f64: some 400 configurations.

Compiling takes most of the time, so that a few processes share the work.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest

import tilec
from tests.gpu.test_levels import OnDevice
from tests.support.matmul import EDGES, KINDS, WAYS, matmul, product, shown

pytestmark = pytest.mark.gpu
COUNT, SEED = 320, 2
COUNT_FOR_WGMMA = 64
LIMIT_S = 100  # for all of them
PROCESSES = min(8, os.cpu_count() or 1)
FACTORS: dict[str, list[Any]] = {
    "kind": list(KINDS), "num_warps": [1, 2, 4, 8, 16], "num_stages": [1, 2, 3, 4], "a": WAYS,
    "b": WAYS, "edges": list(EDGES), "steps": [1, 2, 3, 5, 9],
    "programs": [(1, 1), (3, 2), (2, 5)]}
M_EXTENTS = [16, 32, 48, 64, 96, 128, 160, 17]
N_EXTENTS = [8, 16, 32, 64, 80, 96, 128, 192, 19]
K_EXTENTS = [16, 32, 48, 64, 21]
F8_BY_WGMMA = 2.0**-11  # how far sums of f8 products may be off there
MOST = 64  # elements of a tile of the result, a thread: more would spill
# What wgmma takes, but for 8-bit operands that are not contiguous along k.
FOR_WGMMA: dict[str, list[Any]] = FACTORS | {
    "kind": ["f16", "f16_f16", "bf16", "i8", "e4m3", "e5m2"], "num_warps": [4, 8],
    "edges": ["exact", "aligned"]}
EXTENTS = M_EXTENTS, N_EXTENTS, K_EXTENTS
EXTENTS_FOR_WGMMA = [64, 128, 192], [16, 32, 64, 96, 128, 192], [32, 64, 96, 128]


def drawn(rng: np.random.Generator, factors: dict[str, list[Any]] = FACTORS,
          extents: tuple[list[int], ...] = EXTENTS) -> dict[str, Any]:
    """A random configuration."""
    config = {name: values[rng.integers(len(values))] for name, values in factors.items()}
    while True:
        m, n, k = (int(rng.choice(along)) for along in extents)
        if m * n <= MOST * 32 * config["num_warps"]:
            return config | {"block": (m, n, k)}


CONFIGS = [drawn(np.random.default_rng([SEED, i])) for i in range(COUNT)] + [
    drawn(np.random.default_rng([SEED, COUNT + i]), FOR_WGMMA, EXTENTS_FOR_WGMMA)
    for i in range(COUNT_FOR_WGMMA)]


def check(number: int) -> None:
    """Compile, launch and check one configuration; one that does not fit has fewer stages."""
    config = CONFIGS[number]
    p = product(config, np.random.default_rng(number))
    there = [OnDevice(x) if isinstance(x, np.ndarray) else x for x in p.args.values()]
    for stages in (config["num_stages"], 1):
        try:
            made = matmul[p.grid](*there, num_warps=config["num_warps"], num_stages=stages,
                                  **p.constexprs)
            break
        except tilec.OutOfResources:
            if stages == 1:
                raise
    result = there[2]
    assert isinstance(result, OnDevice)
    if config["kind"] in ("e4m3", "e5m2") and "wgmma" in made.asm["ptx"]:
        p = p._replace(tolerance=max(p.tolerance, F8_BY_WGMMA))
    p.check(result.get(), f"{config}")


@pytest.fixture(scope="module")
def checks() -> Iterator[tuple[float, list[Future[None]]]]:
    """The checks of all configurations, under way, and when they have to be done."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, context) as pool:
        yield time.monotonic() + LIMIT_S, [pool.submit(check, i) for i in range(len(CONFIGS))]
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("number", range(len(CONFIGS)), ids=[shown(c) for c in CONFIGS])
def test_random(number: int, checks: tuple[float, list[Future[None]]]) -> None:
    deadline, futures = checks
    futures[number].result(max(0.0, deadline - time.monotonic()))
