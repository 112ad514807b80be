"""licm: loop-invariant code motion."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Block, Module, Op
from tilec.passes.base import Pass


class Licm(Pass):
    """Move pure ops whose operands come from outside a loop to before it.

    No pure op traps (an integer division by zero gives poison, which nobody reads unless the loop
    does), so an op may run although the loop does not. Loads stay, and so does everything in a
    loop with {disable_licm = true}.

        scf.for(...) { ^(%i: i32):                   %0 = tile.mul(%n, %m) : i32
          %0 = tile.mul(%n, %m) : i32          ->    scf.for(...) { ^(%i: i32):
          ...                                          ...
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            _visit(func.body)


def _visit(block: Block) -> None:
    """Hoist out of all loops of a block, innermost first, so that an op can go several levels."""
    for op in block:
        for inner in op.regions:
            _visit(inner)
        if isinstance(op, ops.For | ops.While) and not op.disable_licm:
            for inner in op.regions:
                _hoist(inner, op)


def _hoist(block: Block, loop: Op) -> None:
    moved = True
    inside = set(block.args) | {r for op in block for r in op.results}
    while moved:
        moved = False
        for op in block:
            # Control flow may cost more than a loop that skips it.
            if not (op.pure and op.speculatable) or (op.regions and not op.isolated):
                continue
            if not any(v in inside for inner in op.walk() for v in inner.operands):
                op.move_before(loop)
                inside.difference_update(op.results)
                moved = True
