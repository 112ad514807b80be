"""Issue loads early, so that their latencies overlap."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Block, Module, Op
from tilec.passes.base import Pass


class Reorder(Pass):
    """Move each load, with the pure ops that feed it, above work that does not: up to the first
    op of its block that writes, waits or speaks to the outside.

    load a ; reduce a ; load b --> load a ; load b ; reduce a
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            _reorder(func.body)


def _reorder(block: Block) -> None:
    # The first op since the last fence that is worth overlapping with a load.
    anchor: Op | None = None
    for op in block:
        for inner in op.regions:
            if not isinstance(op, ops.Reduce):
                _reorder(inner)
        if isinstance(op, ops.Load) and not op.volatile:
            if anchor is not None:
                _hoist(op, anchor)
        elif op.effects - {"read"}:
            anchor = None
        elif anchor is None and _waits(op, block):
            anchor = op


def _waits(op: Op, block: Block) -> bool:
    """Whether the op uses a loaded value or takes long: what should come after the loads."""
    return bool(op.regions) or any(isinstance(v.op, ops.Load) and v.op.parent is block
                                   for v in op.operands)


def _hoist(load: Op, anchor: Op) -> None:
    """Move `load` and what it needs before `anchor`, unless it depends on it."""
    wanted, needed = {load}, []
    op: Op | None = load
    while op is not anchor:
        assert op is not None
        if op in wanted:
            if not op.pure and not isinstance(op, ops.Load):
                return
            needed.append(op)
            wanted |= {v.op for inner in op.walk() for v in inner.operands if v.op is not None}
        op = op.prev
    if anchor not in wanted:
        for op in reversed(needed):
            op.move_before(anchor)
