"""dce: remove what no store, no branch and no other effect depends on."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import ops
from tilec.ir.core import Func, Module, Op, Value
from tilec.passes.base import Pass
from tilec.passes.regions import drop_carried, drop_initial, drop_passed, drop_yielded

# Effects that nobody notices once the result is gone. A volatile load also counts as a write.
UNNOTICED = frozenset({"read", "read_shared"})


class Dce(Pass):
    """Remove ops whose results nobody needs, loads among them, and carried values that only
    compute themselves.

        %0, %1 = scf.for(%lo, %hi, %s, %a, %b)        %0 = scf.for(%lo, %hi, %s, %a)
        { ^(%i: i32, %x: i32, %y: i32):               { ^(%i: i32, %x: i32):
          %2 = tile.add(%x, %i) : i32           ->      %2 = tile.add(%x, %i) : i32
          %3 = tile.mul(%y, %i) : i32                   scf.yield(%2) } : i32
          scf.yield(%2, %3) } : i32, i32
        (%1 is not used)
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            _Liveness(func).sweep()


class _Liveness:
    """Live ops and values, found backwards from ops with effects."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.ops: set[Op] = set()
        self.values: set[Value] = set()
        self.sources: dict[Value, list[Value]] = {}
        self.work: list[Value] = []
        roots = []
        for op in func.walk():
            if isinstance(op, ops.ControlFlow):
                for target, source in op.flow():
                    self.sources.setdefault(target, []).append(source)
            if (op.class_effects if op.regions else op.effects) - UNNOTICED:
                roots.append(op)
        for op in (*roots, func.body.terminator):
            self.need(op)
        while self.work:
            self.visit(self.work.pop())

    def need(self, op: Op) -> None:
        """Mark an op, the ends of its regions, and the ops around it."""
        if op in self.ops:
            return
        self.ops.add(op)
        around = op.parent.parent_op if op.parent is not None else None
        flows = isinstance(around if op.terminator else op, ops.ControlFlow)
        # What control flow hands on in its variadic operands is live if where it arrives is.
        reads = sum(not f.variadic for f in op.operand_fields) if flows else None
        self.work += op.operands[:reads]
        for block in op.regions:
            self.need(block.terminator)
        if around is not None:
            self.need(around)

    def visit(self, value: Value) -> None:
        if value in self.values:
            return
        self.values.add(value)
        owner = value.owner if isinstance(value.owner, Op) else value.owner.parent_op
        if owner is not None:
            self.need(owner)
        self.work += self.sources.get(value, [])

    def dead(self, *rows: Sequence[Value]) -> set[int]:
        """Indices at which no row has a live value."""
        return {i for i, column in enumerate(zip(*rows)) if self.values.isdisjoint(column)}

    def sweep(self) -> None:
        """Remove the dead."""
        dead = [op for op in self.func.walk() if op not in self.ops]
        for op in dead:
            op.drop()
        # Inner loops first: they may take what an outer one is about to drop.
        for op in reversed(list(self.func.walk())):
            if op not in self.ops:
                continue
            if isinstance(op, ops.For):
                drop_carried(op, self.dead(op.results, op.body.args[1:]))
            elif isinstance(op, ops.If):
                drop_yielded(op, self.dead(op.results))
            elif isinstance(op, ops.While):
                drop_passed(op, self.dead(op.results, op.after.args))
                drop_initial(op, self.dead(op.before.args))
        for op in reversed(dead):
            op.erase()
