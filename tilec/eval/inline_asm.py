"""Inline PTX: computed by whoever knows PTX, who says so here (the runtime, by the simulator)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilec.errors import InterpreterError
from tilec.eval.dtypes import Array
from tilec.eval.rules import rule
from tilec.ir import ops
from tilec.ir.types import shape_of

# (op, operands of a shape, the shape) -> the results; the first one is asked.
EVALUATORS: list[Callable[[ops.InlineAsm, Sequence[Array], tuple[int, ...]], Sequence[Array]]] = []


@rule(ops.InlineAsm)
def _inline_asm(op: ops.InlineAsm, *operands: Array) -> tuple[Array, ...]:
    if not EVALUATORS:
        raise InterpreterError("nothing here runs inline PTX", op.loc, "import tilec.runtime")
    shape = np.broadcast_shapes((1, *shape_of(op.results[0].type)), *(x.shape for x in operands))
    return tuple(EVALUATORS[0](op, [np.broadcast_to(x, shape) for x in operands], shape))
