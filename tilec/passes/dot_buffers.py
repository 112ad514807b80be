"""Dots of wgmma whose operands come through pointers: which these are, and the buffers in shared
memory that it reads. Nothing here asks for num_stages, on which no result may depend.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir import ops
from tilec.ir.axis import AxisAnalysis
from tilec.ir.buffers import can_async_copy
from tilec.ir.core import Value
from tilec.ir.layouts import Blocked, DotOperand, Mma, NvmmaShared, same_layout
from tilec.ir.mma import default_k_width
from tilec.ir.ops.base import Rearrange
from tilec.ir.origins import uses_in_block, walk_back
from tilec.ir.types import MemDesc, Scalar, Tensor, layout_of, linear_shape, scalar_of, shape_of
from tilec.ir.wgmma import (
    NO_INSTRUCTION,
    form_obstacle,
    has_descriptor,
    result_layout,
    source_of,
)
from tilec.passes.fold import constant
from tilec.target import Target


def swizzled(load: ops.Load) -> NvmmaShared | None:
    """The layout in which wgmma reads a loaded tile: the widest swizzle of rows that lie as in
    global memory; None where rows are too short."""
    t = load.result.type
    if not isinstance(t, Tensor) or t.rank != 2 or not isinstance(t.element, Scalar):
        return None
    turned = isinstance(t.layout, Blocked) and t.layout.order[0] == 0
    row = t.shape[0 if turned else 1] * t.element.bytes
    width = next((s for s in (128, 64, 32, 16) if row % s == 0), 0)
    return NvmmaShared(width if width > 16 else 0, turned, t.element.bits) if width else None


def pointer_layout(dot: ops.Dot, num_warps: int, target: Target, axis: AxisAnalysis) -> Mma | None:
    """The layout of the result of a dot that wgmma computes of tiles loaded through pointers; None
    where it does not."""
    return None if pointer_obstacle(dot, num_warps, target, axis) else \
        result_layout(dot, num_warps, _readable)


def pointer_obstacle(dot: ops.Dot, num_warps: int, target: Target, axis: AxisAnalysis) -> str:
    """Why wgmma does not compute a dot of tiles loaded through pointers, or an empty string."""
    if reason := form_obstacle(dot, num_warps, target):
        return reason
    if not isinstance(dot.parent and dot.parent.parent_op, ops.For):
        return "it does not stand in a `for` loop"
    if _chained(dot):
        return "another dot gives its operands or takes its result"
    for index, value in enumerate((dot.a, dot.b)):
        name, (load, turned) = f"operand {'ab'[index]}", source_of(value)
        if load is None or load.parent is not dot.parent:
            return f"{name} does not come from its own loop"
        if index == 0 and isinstance(load, ops.Elementwise):
            continue  # read from registers
        if not isinstance(load, ops.Load):
            return f"{name} comes from {load.name}, not from a load"
        layout, k_dim = swizzled(load), (1 - index) ^ turned
        if not fills_zero(load):
            return f"the `other` of {name} is not zero"
        if layout is None or not can_async_copy(load.ptr, load.mask, axis, layout):
            return f"of {name} a thread has less than 4 bytes side by side to copy"
        if scalar_of(value.type).bits != 16 and layout.dims_from_fastest[0] != k_dim:
            return f"{name} has {scalar_of(value.type).bits} bits and is not contiguous along k"
    return "" if result_layout(dot, num_warps, _readable) else NO_INSTRUCTION


def fills_zero(load: ops.Load) -> bool:
    """Whether elements that are masked off are zero, or nobody cares."""
    other = load.other
    while other is not None and isinstance(other.op, ops.ConvertLayout):
        other = other.op.x
    return other is None or repr(constant(other)) in ("0", "0.0", "False")


def _chained(dot: ops.Dot) -> bool:
    def here(v: Value) -> bool:
        return v.op is not None and v.op.parent is dot.parent

    return any(isinstance(v.op, ops.Dot) for x in (dot.a, dot.b) for v in walk_back(x, here)) or \
        any(isinstance(user, ops.Dot) and value in user.operands[:2] for value, user in
            uses_in_block(dot.result, (ops.Elementwise, Rearrange)))


def _readable(value: Value, k_dim: int, outer: int) -> bool:
    """Whether instructions that take `outer` of an operand's rows or columns can read it; k_dim:
    the operand's dimension that k runs along."""
    load, turned = source_of(value)
    if not isinstance(load, ops.Load):
        return True  # from registers
    layout = swizzled(load)
    return layout is not None and has_descriptor(
        shape_of(load.result.type), scalar_of(load.result.type), layout, k_dim ^ turned, outer)


def by_wgmma(dot: ops.Dot) -> bool:
    """Whether wgmma is to compute a dot."""
    layout = layout_of(dot.result.type)
    return isinstance(layout, Mma) and layout.version == 3


def a_in_registers(dot: ops.Dot) -> bool:
    """Whether wgmma reads operand a of a dot from registers: threads hold it as it wants it."""
    a, mma = dot.a.type, layout_of(dot.result.type)
    assert isinstance(a, Tensor) and isinstance(mma, Mma)
    want = DotOperand(mma, 0, default_k_width(scalar_of(a)))
    return a.layout is not None and same_layout(a.layout, want, linear_shape(a.shape))


def stays_in_flight(dot: ops.Dot) -> bool:
    """Whether a product need not be waited for before the next one begins: it adds to a value that
    its loop carries, nothing else there looks at that, and no registers are read."""
    loop = dot.parent.parent_op if dot.parent is not None else None
    if not isinstance(loop, ops.For) or dot.c.owner is not loop.body or a_in_registers(dot):
        return False
    if any(isinstance(op, ops.MbarrierArrive) for op in loop.body):
        return False  # each round says that it is done with its buffers
    end = loop.body.terminator
    return list(dot.result.uses) == [(end, dot.c.index - 1)] and len(dot.c.uses) == 1


def wgmma_readers(load: ops.Load) -> Iterator[ops.Dot]:
    """The dots of wgmma that read a loaded tile from shared memory."""
    for value, user in uses_in_block(load.result, (ops.ConvertLayout, ops.Trans)):
        if isinstance(user, ops.Dot) and by_wgmma(user) and \
                (value is user.b or value is user.a and not a_in_registers(user)):
            yield user


def wgmma_buffer(load: ops.Load, slots: int = 0) -> MemDesc:
    """A buffer in which wgmma reads a loaded tile, or an array of them."""
    t, layout = load.result.type, swizzled(load)
    assert isinstance(t, Tensor) and isinstance(t.element, Scalar) and layout is not None
    return MemDesc((*((slots,) if slots else ()), *t.shape), t.element, layout)
