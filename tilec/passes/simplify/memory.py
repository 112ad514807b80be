"""Patterns on masked memory accesses."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import ops
from tilec.ir.core import Builder, Value
from tilec.ir.rewriter import pattern
from tilec.passes.fold import is_false, is_true, make_constant

Values = Sequence[Value]


@pattern(ops.Load)
def load_mask(op: ops.Load, builder: Builder) -> Values | None:
    """load(p, true, other) -> load(p); load(p, false, other) -> other, and zeros, which stand for
    poison, without other"""
    if op.mask is None:
        return None
    if is_true(op.mask):
        op.set_operands([op.ptr])
        return ()
    if is_false(op.mask) and not op.volatile:
        return [op.other if op.other is not None else make_constant(builder, 0, op.result.type)]
    return None


@pattern(ops.Store)
def store_mask(op: ops.Store, builder: Builder) -> Values | None:
    """store(p, x, true) -> store(p, x); store(p, x, false) -> nothing"""
    if op.mask is None:
        return None
    if is_true(op.mask):
        op.set_operands([op.ptr, op.value])
        return ()
    if is_false(op.mask):
        op.erase()
        return ()
    return None


@pattern(ops.AtomicRmw)
def atomic_mask(op: ops.AtomicRmw, builder: Builder) -> Values | None:
    """atomic_rmw(p, x, true) -> atomic_rmw(p, x); with false -> zeros, which stand for poison"""
    if op.mask is None:
        return None
    if is_true(op.mask):
        op.set_operands([op.ptr, op.value])
        return ()
    return [make_constant(builder, 0, op.result.type)] if is_false(op.mask) else None


PATTERNS = (load_mask, store_mask, atomic_mask)
