"""Patterns on masked memory accesses."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Builder
from tilec.ir.ops.memory import MemoryOp
from tilec.ir.rewriter import Values, pattern
from tilec.passes.fold import is_false, is_true, make_constant


@pattern(MemoryOp)
def mask_true(op: MemoryOp, builder: Builder) -> Values | None:
    """load(p, true, other) -> load(p); store(p, x, true) -> store(p, x); atomics too"""
    if op.mask is None or not is_true(op.mask):
        return None
    op.set_operands(op.operands[:1 if isinstance(op, ops.Load) else 2])
    return ()


@pattern(MemoryOp)
def mask_false(op: MemoryOp, builder: Builder) -> Values | None:
    """load(p, false, other) -> other; atomics, and loads without other -> zeros, which stand for
    poison; store(p, x, false) -> nothing"""
    if op.mask is None or not is_false(op.mask) or isinstance(op, ops.AsyncCopy) or \
            isinstance(op, ops.Load) and op.volatile:
        return None
    if isinstance(op, ops.Store):
        op.erase()
        return ()
    if isinstance(op, ops.Load) and op.other is not None:
        return [op.other]
    return [make_constant(builder, 0, op.result.type)]


PATTERNS = (mask_true, mask_false)
