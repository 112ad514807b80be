"""Issue loads early, so that their latencies overlap."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Block, Module, Op
from tilec.ir.scratch import tile_registers
from tilec.ir.types import Tensor, Type
from tilec.passes.base import Pass
from tilec.target import Target


class Reorder(Pass):
    """Move each load, with the pure ops that feed it, above work that does not: up to the first
    op of its block that writes, waits or speaks to the outside. No more of them come together
    than a thread has registers for.

    load a ; reduce a ; load b --> load a ; load b ; reduce a
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            _reorder(func.body)


def _reorder(block: Block) -> None:
    # The first op since the last fence that is worth overlapping with a load, and the registers of
    # what was loaded since.
    anchor: Op | None = None
    held = 0
    for op in block:
        for inner in op.regions:
            if not isinstance(op, ops.Combining):
                _reorder(inner)
        if isinstance(op, ops.Load) and not op.volatile:
            held += _registers(op.result.type)
            if held > Target.max_registers:
                anchor, held = None, _registers(op.result.type)
            elif anchor is not None:
                _hoist(op, anchor)
        elif op.effects - {"read"}:
            anchor, held = None, 0
        elif anchor is None and _waits(op, block):
            anchor = op


def _registers(t: Type) -> int:
    return tile_registers(t) if isinstance(t, Tensor) and t.layout is not None else 1


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
