"""Decide which loads of a loop start early, and how early: the schedule of a software pipeline.

The schedule is data: `num_stages` on the loop, `stage` and `op_order` on the ops of its body. It
prints, may be edited, and `pipeline` carries it out.
"""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Module
from tilec.ir.ops.base import Rearrange
from tilec.ir.origins import uses_in_block
from tilec.ir.remarks import remark
from tilec.passes.ahead import Rules
from tilec.passes.base import Pass
from tilec.passes.chain import chain_stages, overlap
from tilec.passes.expand import ahead_sources
from tilec.passes.load_nest import LoadNest, asking


class Schedule(Pass):
    """Loads that feed dots, and all loads of a loop whose author asked for stages, are buffered
    and start in the first stage; a load that gives another's address comes before it, in
    registers, and the two share the stages. Everything else runs in the last stage.

    for ... { load ; dot } --> for ... {num_stages = 3} { load {stage = 0, buffered} ; dot }
    """

    def run(self, module: Module) -> None:
        default = int(module.attributes.get("num_stages", 3))
        for func in module.funcs:
            around = LoadNest(func, module).loops[:-1] if asking(func) else []
            for op in list(func.walk()):
                if isinstance(op, ops.For):
                    _Scheduler(op, Rules(module, func, op)).run(op.num_stages or default,
                                                                op in around)
            if asking(func) and not (nest := LoadNest(func, module)).obstacle():
                overlap(nest.inner, nest.loads)


class _Scheduler:
    """givers: of a load, the loads that its address and mask need before. reasons: what `obstacle`
    found. levels: what `level` gave. All loads of a chain may depend on all those before."""

    def __init__(self, loop: ops.For, rules: Rules) -> None:
        self.loop, self.rules = loop, rules
        self.givers: dict[ops.Load, list[ops.Load]] = {}
        self.reasons: dict[tuple[ops.Load, int], str] = {}
        self.levels: dict[ops.Load, int] = {}

    def run(self, stages: int, outer: bool) -> None:
        """outer: whether TMA loads blocks in a loop inside, on which its own blocks wait."""
        asked = self.loop.num_stages > 0
        blocks = [op for op in self.loop.body if isinstance(op, ops.DescriptorLoad)]
        if blocks:
            if outer:
                self.loop.num_stages = 1
            else:
                self.blocks(blocks, stages)
            return
        loads = [op for op in self.loop.body if isinstance(op, ops.Load)
                 and (asked or feeds_dot(op))]
        self.loop.num_stages = 0
        if not loads or stages < 2:
            return
        reason = self.rules.of_loop(stages)
        if reason:
            remark(self.loop, "pipeline", f"not pipelined: {reason}")
            return
        early = []
        for load in loads:
            reason = self.rules.of_buffer(load) or self.obstacle(load, stages - 2)
            if reason:
                remark(load, "pipeline", f"this load is not pipelined: {reason}")
            else:
                early.append(load)
        if early:
            self.assign(early, stages)
            givers = {giver for load in early for giver in self.givers[load]}
            for load in early:
                load.buffered = load not in givers
            self.loop.num_stages = stages
            remark(self.loop, "pipeline", f"pipelined with {stages} stages", stages=stages)

    def blocks(self, loads: list[ops.DescriptorLoad], stages: int) -> None:
        """Copies by TMA: what is computed ahead is where they go."""
        reason = self.rules.of_loop(stages)
        if any(ahead_sources(self.loop, load.operands) for load in loads):
            reason = reason or "a block's place depends on what is not computed ahead"
        self.loop.num_stages = 1 if reason else stages
        chained = "" if reason or stages < 2 else chain_stages(self.loop, loads, stages, self.rules)
        for op in self.loop.body:
            if isinstance(op, ops.Load) and feeds_dot(op) and op.stage < 0:
                remark(op, "pipeline", "this load is not pipelined: TMA fills its loop's buffers")
        if reason:
            remark(self.loop, "pipeline", f"not pipelined: {reason}")
            return
        remark(self.loop, "pipeline", f"pipelined with {stages} stages{chained}", stages=stages)

    def assign(self, loads: list[ops.Load], stages: int) -> None:
        """Give loads, and those that they need before, the earliest stages: all that wait for each
        other share the stages before the last."""
        levels = 1 + max(map(self.level, loads))
        for load, level in self.levels.items():
            load.stage = level * ((stages - 1) // levels)

    def level(self, load: ops.Load) -> int:
        """How many loads wait for each other before this one does."""
        if load not in self.levels:
            self.levels[load] = max((self.level(g) + 1 for g in self.givers[load]), default=0)
        return self.levels[load]

    def obstacle(self, load: ops.Load, deep: int) -> str:
        """Why this load cannot start early, or an empty string; then it and those that it needs
        have their `givers`. deep: how many of these may wait for each other."""
        if (load, deep) not in self.reasons:
            self.reasons[load, deep] = self.rules.of_read(load) or self._missing(load, deep)
        return self.reasons[load, deep]

    def _missing(self, load: ops.Load, deep: int) -> str:
        """What of the address is not there early enough."""
        before = ahead_sources(self.loop, load.operands)
        found = [op for op in self.loop.body if isinstance(op, ops.Load) and op in before]
        if len(found) < len(before) or load in found:
            return "its address depends on what is not computed ahead, as a loop or an atomic"
        if found and not deep:
            return "its address comes from a load, for which the loop has a stage too few"
        self.givers[load] = found
        reasons = (self.obstacle(op, deep - 1) for op in found)
        return next((f"its address comes from a load, and {r}" for r in reasons if r), "")


def feeds_dot(load: ops.Load) -> bool:
    """Whether a value made of the load is an operand of a dot in the same block."""
    return any(isinstance(user, ops.Dot) and value in user.operands[:2]
               for value, user in uses_in_block(load.result, (ops.Elementwise, Rearrange)))
