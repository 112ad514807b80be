"""Arguments of attention's kernels, forward and backward, and what their loops may not have."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilec
from tilec.ir import ops
from tilec.ir.conversion import Shared
from tilec.ir.parser import parse
from tilec.ir.scratch import move_plan
from tilec.ir.types import Tensor
from tilec.knobs import RUN_LEVELS

EXAMPLE = "11_descriptor_attention"
LEVELS = RUN_LEVELS[1:]


def inputs(rng: np.random.Generator, heads: int, shared: int, rows: int, columns: int, d: int,
           element: Any) -> list[np.ndarray]:
    """Random q, k and v: (heads, rows, d), and heads / shared of (columns, d)."""
    return [rng.standard_normal((n, m, d)).astype(np.float32).astype(element)
            for n, m in ((heads, rows), (heads // shared, columns), (heads // shared, columns))]


def described(arrays: list[np.ndarray], rows: tuple[int, ...]) -> list[Any]:
    """Descriptors of blocks of so many rows each of one head."""
    return [tilec.TensorDescriptor.from_tensor(x, (1, b, x.shape[2]))
            for x, b in zip(arrays, rows, strict=True)]


def through_shared(text: str) -> list[str]:
    """The conversions of a module that go through shared memory, and not within warps."""
    found = []
    for op in parse(text).walk():
        if isinstance(op, ops.ConvertLayout):
            src, dst = op.x.type, op.result.type
            assert isinstance(src, Tensor) and isinstance(dst, Tensor)
            if isinstance(move_plan(src, dst).plan, Shared):
                found.append(f"{src} to {dst}")
    return found


def barriers(text: str) -> list[ops.Barrier]:
    """The barriers of all warps in a module's loops of products."""
    loops = [op for op in parse(text).walk() if isinstance(op, ops.For)
             and any(isinstance(x, ops.Wgmma) for x in op.body)]
    assert loops
    return [op for loop in loops for op in loop.walk() if isinstance(op, ops.Barrier)]
