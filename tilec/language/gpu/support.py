"""What the builtins of the explicit level share."""

from __future__ import annotations

from typing import Any

from tilec.ir import ops
from tilec.ir.accumulators import WARPGROUP_WARPS, whole_warpgroups
from tilec.ir.core import Block, Op, Value
from tilec.ir.types import MemDesc
from tilec.language import dtypes as dt
from tilec.language.context import current, error
from tilec.language.values import describe, tensor


def need(instruction: str, what: str) -> None:
    """CompilationError if the target lacks an instruction that `what` becomes."""
    target = current().target
    if lack := target.lacks(instruction):
        raise error(f"{what} needs {lack.needs}, the target is {target}",
                    "write this kernel with tl alone for such a target")


def need_warpgroups(what: str, products: bool = False) -> None:
    """CompilationError if the warps, the kernel's or the role's, are not whole warpgroups. Fewer
    than four are one to all but products."""
    warps = current().num_warps
    if not whole_warpgroups(warps) or products and warps < WARPGROUP_WARPS:
        raise error(f"{what}: {warps} warps are not whole warpgroups of four",
                    "give the role num_warps of 4 or more" if current().in_role else
                    "launch with num_warps=4 or more")


def by_one_thread(op: Op, pred: Any, what: str) -> None:
    """Insert an op that one thread does, if `pred` holds."""
    context = current()
    if pred is not None and not (isinstance(pred, tensor) and not pred.shape and
                                 pred.dtype.is_bool()) and not isinstance(pred, bool):
        raise error(f"{what}: pred is {describe(pred)}, expected a scalar int1",
                    "compare: `k < n`")
    if pred is False:
        return
    condition = [pred.handle] if isinstance(pred, tensor) else []
    if context.one_thread and not condition:
        context.builder.insert(op)
        return
    body = Block()
    with context.inside(body):
        context.builder.insert(op)
        context.builder.insert(ops.Yield())
    if not context.one_thread:
        context.builder.insert(ops.Elect(*condition, body=body))
        return
    other = Block()
    with context.inside(other):
        context.builder.insert(ops.Yield())
    context.builder.insert(ops.If(*condition, then=body, orelse=other))


def parity(x: Any, what: str) -> tensor:
    """A phase as the i32 that a wait takes."""
    if isinstance(x, tensor) and not x.shape and x.dtype.is_int() and x.literal in (None, 0, 1):
        return x if x.dtype == dt.int32 else x.to(dt.int32)  # type: ignore[attr-defined]
    found = describe(x) if getattr(x, "literal", None) is None else f"the number {x.literal}"
    raise error(f"{what}: the phase is {found}, expected an integer scalar, 0 or 1",
                "phases alternate: `(n // stages) & 1` in round n of a ring")


class buffer_view:
    """What a value that stands for a buffer, or an array of them, says of it."""

    def __init__(self, handle: Value) -> None:
        self.handle = handle

    @property
    def memdesc(self) -> MemDesc:
        """The type in the IR."""
        t = self.handle.type
        assert isinstance(t, MemDesc)
        return t

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of one buffer."""
        return self.memdesc.tile_shape

    @property
    def dtype(self) -> dt.dtype:
        """The type of the elements."""
        return dt.of_ir(self.memdesc.element)
