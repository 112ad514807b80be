"""What keeps a loop's loads from starting early: `schedule` leaves such loads where they are, and
`pipeline` refuses them, since a schedule may be written by hand."""

from __future__ import annotations

from functools import cached_property

from tilec.ir import ops
from tilec.ir.axis import AxisAnalysis
from tilec.ir.buffers import can_async_copy, operand_layout
from tilec.ir.core import Func, Module, Op
from tilec.ir.layouts import Blocked, DotOperand, Layout, transpose
from tilec.ir.ops.memory import MemoryOp
from tilec.ir.role_registers import role_registers
from tilec.ir.types import (
    MemDesc,
    Scalar,
    Tensor,
    layout_of,
    linear_shape,
    pointee_of,
    scalar_of,
    shape_of,
)
from tilec.ir.warps import role_of
from tilec.passes.dot_buffers import fills_zero, wgmma_buffer, wgmma_readers
from tilec.passes.fold import constant
from tilec.passes.global_accesses import GlobalAccesses
from tilec.target import DEFAULT, Target

SHARED = {"read_shared", "write_shared"}  # effects that only an author's ops have here


class Rules:
    """Of one loop. Each method says what is wrong, or gives an empty string."""

    def __init__(self, module: Module, func: Func, loop: ops.For) -> None:
        self.module, self.func, self.loop = module, func, loop

    @cached_property
    def _accesses(self) -> GlobalAccesses:
        return GlobalAccesses(self.func)

    @cached_property
    def _axis(self) -> AxisAnalysis:
        return AxisAnalysis(self.func)

    def registers(self) -> int:
        """The most registers a thread can have, in a loop that asks for it beside a loader."""
        attributes, warps = self.module.attributes, self.module.num_warps
        asked = int(attributes.get("maxnreg", 0))
        most = Target.parse(attributes.get("target", DEFAULT)).registers(warps, asked)
        if any(isinstance(x, ops.For) and x.warp_specialize
               for x in (self.loop, *self.loop.ancestors())):
            most = min(most, role_registers(warps, asked))
        return most

    def of_loop(self, stages: int) -> str:
        """Why nothing in this loop can start early."""
        target = self.module.attributes.get("target")
        step = constant(self.loop.step)
        if target is not None and not Target.parse(target).has("cp.async"):
            return f"{target} has no asynchronous copies"
        if step is None or step <= 0:
            return "its step is not a positive constant"
        index = scalar_of(self.loop.lo.type)
        if int(step) * (stages - 1) >= 1 << (index.bits - 1):
            return f"{stages - 1} steps ahead is more than an {index} holds"
        return held(self.loop)

    def of_buffer(self, load: ops.Load) -> str:
        """Why this load cannot be an asynchronous copy."""
        if not isinstance(load.ptr.type, Tensor):
            return "it is a scalar"
        if not fills_zero(load):
            return "its `other` is not zero, which is what a copy fills in"
        if not can_async_copy(load.ptr, load.mask, self._axis, buffer_type(load, 2).layout):
            return "a thread has less than 4 bytes side by side to copy"
        return ""

    def of_read(self, load: ops.Load) -> str:
        """Why this load cannot be of an earlier iteration than what is around it."""
        if load.volatile:
            return "it is volatile"
        for op in self.loop.walk():
            if isinstance(op, MemoryOp) and "write" in op.effects and \
                    self._accesses.crosses(load, op, self.loop):
                return f"the loop may write to what it reads, at {op.loc}"
            # TMA moves blocks of elements that no op's lanes correspond to.
            if isinstance(op, ops.DescriptorStore) and \
                    pointee_of(op.base.type) == pointee_of(load.ptr.type):
                return f"the loop stores a block of such elements by TMA, at {op.loc}"
        return ""


def held(loop: ops.For) -> str:
    """Which op of a loop lets no load of a later iteration before it, or an empty string."""
    if any(isinstance(op, ops.Barrier) for op in loop.walk()):
        return "it has a debug_barrier, across which nothing moves"
    if any(isinstance(op, ops.Atomic) and op.acquires for op in loop.walk()):
        return "it has an atomic that acquires, before which no load may start"
    if role_of(loop) is not None:
        return "it stands in a warp role, where nothing copies by cp.async"
    explicit = next((op for op in loop.walk() if op.class_effects & SHARED or
                     isinstance(op, ops.WarpSpecialize)), None)
    return f"it has a {explicit.name}, across which nothing moves" if explicit else ""


def buffer_type(load: ops.Load, slots: int) -> MemDesc:
    """Buffers for a load's tile, one per slot, in the layout best for copies and dots, or the one
    that wgmma reads."""
    if any(wgmma_readers(load)):
        return wgmma_buffer(load, slots)
    t = load.result.type
    assert isinstance(t, Tensor) and isinstance(t.element, Scalar) and t.layout is not None
    order = t.layout.order if isinstance(t.layout, Blocked) else tuple(reversed(range(t.rank)))
    readers = [_reader_layout(*read) for read in dot_reads(load)]
    layout = operand_layout(t.shape, t.element, order, tuple(readers or [t.layout]), t.layout)
    return MemDesc((slots, *t.shape), t.element, layout)


def dot_reads(load: ops.Load) -> list[tuple[Op, ops.ConvertLayout]]:
    """Users of a load that lead to a dot's operand, directly or through a transpose, each with the
    conversion to the operand's layout."""
    found = []
    for user in load.result.users:
        convert: Op = user
        if isinstance(user, ops.Trans) and len(user.result.uses) == 1:
            convert = user.result.users[0]
        if isinstance(convert, ops.ConvertLayout) and \
                isinstance(layout_of(convert.result.type), DotOperand):
            found.append((user, convert))
    return found


def _reader_layout(user: Op, convert: ops.ConvertLayout) -> Layout:
    """In which layout of the loaded tile a dot reads it."""
    layout = layout_of(convert.result.type)
    assert layout is not None
    if not isinstance(user, ops.Trans):
        return layout
    back = tuple(user.order.index(d) for d in range(len(user.order)))
    return transpose(layout, back, linear_shape(shape_of(user.result.type)))
