"""Decide which loads of a loop start early, and how early: the schedule of a software pipeline.

The schedule is data: `num_stages` on the loop and `stage` on loads. It prints, may be edited, and
`pipeline` carries it out.
"""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.axis import AxisAnalysis
from tilec.ir.core import Func, Module, Op, Value
from tilec.ir.ops.memory import MemoryOp
from tilec.ir.remarks import remark
from tilec.ir.types import Pointer, Tensor, element_of
from tilec.passes.base import Pass
from tilec.passes.coalesce import access_width
from tilec.passes.fold import constant
from tilec.passes.global_accesses import GlobalAccesses
from tilec.target import Target

COPY_BYTES = 4  # the least that one cp.async moves
FEEDS = (ops.Elementwise, ops.ConvertLayout, ops.Trans, ops.Reshape, ops.Broadcast, ops.ExpandDims)


class Schedule(Pass):
    """Loads that feed dots, and all loads of a loop whose author asked for stages, start in the
    first stage; everything else runs in the last.

    for ... { load ; dot } --> for ... {num_stages = 3} { load {stage = 0} ; dot }
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
        reason = self.loop_obstacle()
        if reason:
            remark(self.loop, "pipeline", f"not pipelined: {reason}")
            return
        accesses, axis = GlobalAccesses(self.func), AxisAnalysis(self.func)
        for load in loads:
            reason = self.load_obstacle(load, axis) or self.written(load, accesses)
            if reason:
                remark(load, "pipeline", f"this load is not pipelined: {reason}")
            else:
                load.stage = 0
                self.loop.num_stages = stages
        if self.loop.num_stages:
            remark(self.loop, "pipeline", f"pipelined with {stages} stages", stages=stages)

    def loop_obstacle(self) -> str:
        """Why nothing in this loop can start early, or an empty string."""
        target = self.module.attributes.get("target")
        step = constant(self.loop.step)
        if target is not None and Target.parse(target).sm < 80:
            return f"{target} has no asynchronous copies"
        if step is None or step <= 0:
            return "its step is not a positive constant"
        if any(isinstance(op, ops.Barrier) for op in self.loop.walk()):
            return "it has a debug_barrier, across which nothing moves"
        return ""

    def load_obstacle(self, load: ops.Load, axis: AxisAnalysis) -> str:
        """Why this load cannot be an asynchronous copy that starts early, or an empty string."""
        if not isinstance(load.ptr.type, Tensor):
            return "it is a scalar"
        if load.volatile:
            return "it is volatile"
        if load.other is not None and constant(load.other) != 0:
            return "its `other` is not zero, which is what a copy fills in"
        if ahead_slice(self.loop, [v for v in load.operands[:2]]) is None:
            return "its address depends on something that is not computed ahead, as a load"
        pointer = element_of(load.ptr.type)
        assert isinstance(pointer, Pointer)
        if self.width(load, axis) * pointer.pointee.bytes < COPY_BYTES:
            return f"a thread reads less than {COPY_BYTES} bytes at once"
        return ""

    def width(self, load: ops.Load, axis: AxisAnalysis) -> int:
        """Elements that one copy moves."""
        info = axis.get(load.ptr)
        best = 1
        for dim in range(len(info.contiguity)):
            width = access_width(load, info, dim, self.module.num_warps)
            if load.mask is not None:
                width = min(width, axis.get(load.mask).constancy[dim])
            best = max(best, width)
        return best

    def written(self, load: ops.Load, accesses: GlobalAccesses) -> str:
        """Why the loop's writes may change what the load reads, or an empty string."""
        for op in self.loop.walk():
            if isinstance(op, MemoryOp) and "write" in op.effects and op is not load and \
                    accesses.crosses(load, op, self.loop):
                return f"the loop may write to what it reads, at {op.loc}"
        return ""


def feeds_dot(load: Op) -> bool:
    """Whether a value made of the load is an operand of a dot in the same block."""
    work, seen = list(load.results), set(load.results)
    while work:
        value = work.pop()
        for user, index in value.uses:
            if user.parent is not load.parent:
                continue
            if isinstance(user, ops.Dot) and index < 2:
                return True
            if isinstance(user, FEEDS):
                work += [r for r in user.results if r not in seen]
                seen.update(user.results)
    return False


def ahead_slice(loop: ops.For, values: list[Value]) -> tuple[list[Op], set[int]] | None:
    """The ops of the loop's body that `values` are computed by, in order, and the indices of the
    carried values among their sources; None if one of them is not pure."""
    needed: set[Op] = set()
    carried: set[int] = set()
    work = list(values)
    end = loop.body.terminator
    while work:
        value = work.pop()
        if value.owner is loop.body:
            if value.index and value.index - 1 not in carried:
                carried.add(value.index - 1)
                work.append(end.operands[value.index - 1])
        elif value.op is not None and value.op.parent is loop.body and value.op not in needed:
            if not value.op.pure:
                return None
            needed.add(value.op)
            work += [v for op in value.op.walk() for v in op.operands]
    return [op for op in loop.body if op in needed], carried
