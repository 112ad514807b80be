"""Structured control flow and the function terminator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilec.ir.core import Block, Op, Value, attr, operand, operands, region
from tilec.ir.types import Scalar, Type, i1, refines

MAX_STAGES = 16  # of a software pipeline


def _same(op: Op, what: str, have: Sequence[Value], want: Sequence[Type]) -> None:
    types = [v.type for v in have]
    ok = len(types) == len(want) and all(map(refines, types, want))
    if not ok:
        shown = ["(" + ", ".join(map(str, ts)) + ")" for ts in (types, want)]
        raise op.fail(f"{what} is {shown[0]}, expected {shown[1]}")


class ControlFlow(Op):
    """Base of ops whose results and region arguments are values handed on from elsewhere.

    loop: whether its regions may run more than once.
    """

    loop: ClassVar[bool] = False

    def flow(self) -> list[tuple[Value, Value]]:
        """Pairs (to, from): a result or region argument, and a value that it may take."""
        raise NotImplementedError(self.name)


def innermost_loop(op: Op) -> ControlFlow | None:
    """The loop around an op, the innermost of several."""
    return next((a for a in op.ancestors() if isinstance(a, ControlFlow) and a.loop), None)


class For(ControlFlow, name="scf.for"):
    """for i in range(lo, hi, step), with carried values; the region takes i and them, and yields
    them. A step of zero or less runs nothing.

    The attributes are the author's wishes: num_stages of a software pipeline and iterations to
    unroll (0: left open), flatten the nest of this loop and the one in it, disable_licm, give
    the loads in it warps of their own (warp_specialize).
    """

    loop = True
    lo: Value = operand()
    hi: Value = operand()
    step: Value = operand()
    init: tuple[Value, ...] = operands()
    body: Block = region()
    num_stages: int = attr(int, 0, least=0, most=MAX_STAGES)
    unroll: int = attr(int, 0, least=0)
    flatten: bool = attr(bool, False)
    disable_licm: bool = attr(bool, False)
    warp_specialize: bool = attr(bool, False)

    def infer(self) -> Sequence[Type]:
        iv = self.lo.type
        if not isinstance(iv, Scalar) or iv.is_float or \
                not iv == self.hi.type == self.step.type == self.body.args[0].type:
            raise self.fail(f"bounds are {iv}, {self.hi.type}, {self.step.type}, expected one "
                            f"integer type")
        types = [v.type for v in self.init]
        _same(self, "region arguments", self.body.args[1:], types)
        _same(self, "yield", self.body.terminator.operands, types)
        return types

    def flow(self) -> list[tuple[Value, Value]]:
        nexts = self.body.terminator.operands
        return [(to, source) for targets in (self.body.args[1:], self.results)
                for sources in (self.init, nexts) for to, source in zip(targets, sources)]


class While(ControlFlow, name="scf.while"):
    """Run `before`; while its condition holds, pass its values to `after`, whose yield goes to
    `before` again. The results are the condition's values."""

    loop = True
    init: tuple[Value, ...] = operands()
    before: Block = region()
    after: Block = region()
    disable_licm: bool = attr(bool, False)

    def infer(self) -> Sequence[Type]:
        types = [v.type for v in self.init]
        _same(self, "region arguments", self.before.args, types)
        _same(self, "yield", self.after.terminator.operands, types)
        passed = [v.type for v in self.before.terminator.operands[1:]]
        _same(self, "second region's arguments", self.after.args, passed)
        return passed

    def flow(self) -> list[tuple[Value, Value]]:
        nexts, passed = self.after.terminator.operands, self.before.terminator.operands[1:]
        return [*zip(self.before.args, self.init), *zip(self.before.args, nexts),
                *zip(self.after.args, passed), *zip(self.results, passed)]


class If(ControlFlow, name="scf.if"):
    """Run one of two regions; the results are what it yields."""

    cond: Value = operand()
    then: Block = region()
    orelse: Block = region()

    def infer(self) -> Sequence[Type]:
        if self.cond.type != i1:
            raise self.fail(f"condition is {self.cond.type}, expected i1")
        types = [v.type for v in self.then.terminator.operands]
        _same(self, "else yield", self.orelse.terminator.operands, types)
        return types

    def flow(self) -> list[tuple[Value, Value]]:
        return [pair for block in self.regions
                for pair in zip(self.results, block.terminator.operands)]


class Yield(Op, name="scf.yield", terminator=True):
    """End of a region: its values."""

    values: tuple[Value, ...] = operands()


class Condition(Op, name="scf.condition", terminator=True):
    """End of a while's first region: the condition, then the values passed on."""

    cond: Value = operand()
    values: tuple[Value, ...] = operands()

    def infer(self) -> Sequence[Type]:
        if self.cond.type != i1:
            raise self.fail(f"condition is {self.cond.type}, expected i1")
        return ()


class Return(Op, name="func.return", terminator=True):
    """End of a kernel."""
