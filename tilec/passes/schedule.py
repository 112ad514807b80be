"""Decide which loads of a loop start early, and how early: the schedule of a software pipeline.

The schedule is data: `num_stages` on the loop, `stage` and `op_order` on the ops of its body. It
prints, may be edited, and `pipeline` carries it out.
"""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.axis import AxisAnalysis
from tilec.ir.buffers import can_async_copy
from tilec.ir.core import Func, Module
from tilec.ir.ops.base import Rearrange
from tilec.ir.ops.memory import MemoryOp
from tilec.ir.origins import uses_in_block
from tilec.ir.remarks import remark
from tilec.ir.types import Tensor, scalar_of
from tilec.passes.base import Pass
from tilec.passes.expand import ahead_sources
from tilec.passes.fold import constant
from tilec.passes.global_accesses import GlobalAccesses
from tilec.passes.pipeline import buffer_type
from tilec.target import Target


class Schedule(Pass):
    """Loads that feed dots, and all loads of a loop whose author asked for stages, are buffered
    and start in the first stage; a load that gives another's address comes a stage before it, in
    registers. Everything else runs in the last stage.

    for ... { load ; dot } --> for ... {num_stages = 3} { load {stage = 0, buffered} ; dot }
    """

    def run(self, module: Module) -> None:
        default = int(module.attributes.get("num_stages", 3))
        for func in module.funcs:
            for op in list(func.walk()):
                if isinstance(op, ops.For):
                    _Scheduler(module, func, op).run(op.num_stages or default)


class _Scheduler:
    def __init__(self, module: Module, func: Func, loop: ops.For) -> None:
        self.module, self.func, self.loop = module, func, loop

    def run(self, stages: int) -> None:
        asked = self.loop.num_stages > 0
        loads = [op for op in self.loop.body if isinstance(op, ops.Load)
                 and (asked or feeds_dot(op))]
        self.loop.num_stages = 0
        if not loads or stages < 2:
            return
        reason = self.loop_obstacle(stages)
        if reason:
            remark(self.loop, "pipeline", f"not pipelined: {reason}")
            return
        self.accesses, self.axis = GlobalAccesses(self.func), AxisAnalysis(self.func)
        givers: dict[ops.Load, list[ops.Load]] = {}
        for load in loads:
            reason = self.buffer_obstacle(load) or self.obstacle(load, stages - 2, givers)
            if reason:
                remark(load, "pipeline", f"this load is not pipelined: {reason}")
            else:
                self.assign(load, givers)
                load.buffered = True
                self.loop.num_stages = stages
        for giver in {g for load in loads if load.buffered for g in givers[load]}:
            giver.buffered = False
        if self.loop.num_stages:
            remark(self.loop, "pipeline", f"pipelined with {stages} stages", stages=stages)

    def assign(self, load: ops.Load, givers: dict[ops.Load, list[ops.Load]]) -> int:
        """Give a load, and those that it needs before, the earliest stages; its stage."""
        load.stage = max((self.assign(g, givers) + 1 for g in givers[load]), default=0)
        return load.stage

    def loop_obstacle(self, stages: int) -> str:
        """Why nothing in this loop can start early, or an empty string."""
        target = self.module.attributes.get("target")
        step = constant(self.loop.step)
        if target is not None and Target.parse(target).sm < 80:
            return f"{target} has no asynchronous copies"
        if step is None or step <= 0:
            return "its step is not a positive constant"
        index = scalar_of(self.loop.lo.type)
        if int(step) * (stages - 1) >= 1 << (index.bits - 1):
            return f"{stages - 1} steps ahead is more than an {index} holds"
        if any(isinstance(op, ops.Barrier) for op in self.loop.walk()):
            return "it has a debug_barrier, across which nothing moves"
        if any(isinstance(op, ops.AtomicRmw) and op.acquires for op in self.loop.walk()):
            return "it has an atomic that acquires, before which no load may start"
        return ""

    def buffer_obstacle(self, load: ops.Load) -> str:
        """Why this load cannot be an asynchronous copy, or an empty string."""
        if not isinstance(load.ptr.type, Tensor):
            return "it is a scalar"
        if load.other is not None and repr(constant(load.other)) not in ("0", "0.0", "False"):
            return "its `other` is not zero, which is what a copy fills in"
        if not can_async_copy(load.ptr, load.mask, self.axis, buffer_type(load, 2).layout):
            return "a thread has less than 4 bytes side by side to copy"
        return ""

    def obstacle(self, load: ops.Load, deep: int, givers: dict[ops.Load, list[ops.Load]]) -> str:
        """Why this load cannot start early, or an empty string; then `givers` has the loads that
        its address and mask need before, and theirs. deep: how many of these may wait for each
        other."""
        if load.volatile:
            return "it is volatile"
        for op in self.loop.walk():
            if isinstance(op, MemoryOp) and "write" in op.effects and \
                    self.accesses.crosses(load, op, self.loop):
                return f"the loop may write to what it reads, at {op.loc}"
        before = ahead_sources(self.loop, load.operands)
        found = [op for op in self.loop.body if isinstance(op, ops.Load) and op in before]
        if len(found) < len(before) or load in found:
            return "its address depends on what is not computed ahead, as a loop or an atomic"
        if found and not deep:
            return "its address comes from a load, for which the loop has a stage too few"
        givers[load] = found
        reasons = (self.obstacle(op, deep - 1, givers) for op in found)
        return next((f"its address comes from a load, and {r}" for r in reasons if r), "")




def feeds_dot(load: ops.Load) -> bool:
    """Whether a value made of the load is an operand of a dot in the same block."""
    return any(isinstance(user, ops.Dot) and value in user.operands[:2]
               for value, user in uses_in_block(load.result, (ops.Elementwise, Rearrange)))
