"""Issue loads early, so that their latencies overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilec.ir import ops
from tilec.ir.core import Block, Module, Op
from tilec.passes.base import Pass


@dataclass(frozen=True)
class Reorder(Pass):
    """Move each load, with the pure ops that feed it, above work that does not: up to the first
    op of its block that writes, waits or speaks to the outside.

    load a ; reduce a ; load b --> load a ; load b ; reduce a
    """

    name: ClassVar[str] = "reorder"

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
    needed: dict[Op, None] = {}
    if _collect(load, anchor, needed):
        for op in reversed(needed):
            op.move_before(anchor)


def _collect(op: Op, anchor: Op, needed: dict[Op, None]) -> bool:
    """Gather the ops between anchor and load that the load needs, users before producers."""
    if op is anchor:
        return False
    needed.pop(op, None)
    needed[op] = None
    for v in op.operands:
        source = v.op
        if source is None or source.parent is not anchor.parent or _before(source, anchor):
            continue
        if not source.pure and not isinstance(source, ops.Load):
            return False
        if not _collect(source, anchor, needed):
            return False
    return True


def _before(a: Op, b: Op) -> bool:
    """Whether `a` stands before `b` in their block."""
    op = b.prev
    while op is not None:
        if op is a:
            return True
        op = op.prev
    return False
