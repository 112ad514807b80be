"""What tests of the explicit level share."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilec
import tilec.language.gpu as tlg
from tilec.knobs import RUN_LEVELS

LEVELS = RUN_LEVELS
HOPPER = {"target": "sm_90a", "num_warps": 4}


def everywhere(kernel: Any, args: list[Any], grid: Any, out: np.ndarray, want: np.ndarray) -> None:
    """`out`, one of the arguments' arrays, is `want` after a run at each level."""
    for level in LEVELS:
        out.view(np.uint8)[...] = 0xA5
        kernel.run(args, grid, level=level, seed=3)
        np.testing.assert_array_equal(out.astype(np.float64), want.astype(np.float64), level)


@tilec.jit
def both(a, b):
    """Buffers with a and b, brought by TMA."""
    x, y = tlg.alloc_shared((64, 64), a.dtype), tlg.alloc_shared((64, 64), b.dtype)
    ready = tlg.mbarrier()
    tlg.barrier()
    ready.expect(x.nbytes + y.nbytes)
    tlg.tma.load(a, [0, 0], x, ready)
    tlg.tma.load(b, [0, 0], y, ready)
    ready.wait(0)
    return x, y
