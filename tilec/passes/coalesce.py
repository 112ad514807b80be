"""Give loads, stores and atomics layouts in which a warp touches consecutive addresses, 16 bytes
a thread where alignment allows; and loads of buffers at the explicit level, where that of the
buffer does."""

from __future__ import annotations

from math import prod

from tilec.ir import ops
from tilec.ir.axis import AxisAnalysis, AxisInfo, low_bit
from tilec.ir.buffers import access_map
from tilec.ir.core import Builder, Module, Op, Value
from tilec.ir.fragment import fragment, shared_tile
from tilec.ir.layouts import Layout, SharedLayout, default_blocked
from tilec.ir.swizzle import MAX_ACCESS_BYTES, vector_width
from tilec.ir.types import MemDesc, Tensor, linear_shape, pointee_of, scalar_of, with_layout
from tilec.ir.warps import warps_of
from tilec.passes.base import Pass
from tilec.passes.layout.edits import convert, legalize

Group = tuple[tuple[int, ...], tuple[int, ...], int]
BY_POINTER = (ops.Load, ops.Store, ops.Atomic, ops.AsyncCopy)
OF_BUFFER = (ops.SharedLoad, ops.RemoteLoad)


class Coalesce(Pass):
    """Accesses of one shape and order, by as many warps, share one layout: the widest that any of
    them can use, so that values flow between them without conversion. Loads of buffers have no say
    beside accesses by pointers: a store that is not aligned would no longer be one row of a warp.

    load(%p : #default) --> convert(load(convert(%p : #wide)))
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            analysis = AxisAnalysis(func)
            accesses = [(op, _order(op, analysis), warps_of(op, module.num_warps))
                        for op in func.walk() if isinstance(op, (*BY_POINTER, *OF_BUFFER))
                        and isinstance(_moved(op).type, Tensor)]
            widest: dict[Group, tuple[bool, int]] = {}  # whether by pointers, and the width
            for op, order, warps in accesses:
                group = (_tile(op).shape, order, warps)
                found = (True, access_width(op, analysis.get(op.operands[0]), order[0], warps)) \
                    if isinstance(op, BY_POINTER) else (False, _buffer_width(op, order, warps))
                widest[group] = max(widest.get(group, found), found)
            for op, order, warps in accesses:
                shape = _tile(op).shape
                _retarget(op, _layout(shape, warps, widest[shape, order, warps][1], order))
        legalize(module)


def _moved(op: Op) -> Value:
    """The value whose layout says which thread accesses what."""
    return op.operands[0] if isinstance(op, BY_POINTER) else op.result


def _tile(op: Op) -> Tensor:
    t = _moved(op).type
    assert isinstance(t, Tensor)
    return t


def _layout(shape: tuple[int, ...], warps: int, width: int, order: tuple[int, ...]) -> Layout:
    """One in which each thread has `width` elements in a row along the first dimension of order."""
    return default_blocked(shape, warps, tuple(width if d == order[0] else 1
                                               for d in range(len(shape))), order)


def _order(op: Op, analysis: AxisAnalysis) -> tuple[int, ...]:
    """Dimensions from the most contiguous; ties keep the last dimension fastest."""
    if isinstance(op, OF_BUFFER):
        return _buffer_layout(op).dims_from_fastest
    info = analysis.get(op.operands[0])
    dims = range(len(info.contiguity))
    return tuple(sorted(dims, key=lambda d: (-info.contiguity[d], -d)))


def _buffer_layout(op: Op) -> SharedLayout:
    t = op.operands[0].type
    assert isinstance(t, MemDesc) and isinstance(t.layout, SharedLayout)
    return t.layout


def access_width(op: Op, info: AxisInfo, dim: int, num_warps: int) -> int:
    """Elements along `dim` that one thread may access at once: a power of two, at most 16 bytes.

    No wider than what leaves every thread something to do.
    """
    t = _tile(op)
    size = pointee_of(t).bytes
    threads = 32 * num_warps
    share = max(1, prod(linear_shape(t.shape)) // threads)
    limits = (MAX_ACCESS_BYTES // size, info.divisibility[dim] // size, info.contiguity[dim],
              linear_shape(t.shape)[dim], share)
    return min(map(low_bit, limits))


def _buffer_width(op: Op, order: tuple[int, ...], warps: int) -> int:
    """Elements of a buffer that one thread may read at once, as `access_width`."""
    t, layout = _tile(op), _buffer_layout(op)
    bits = 8 * scalar_of(t).bytes
    width = max(1, min(8 * MAX_ACCESS_BYTES // bits,
                       low_bit(max(1, prod(linear_shape(t.shape)) // (32 * warps)))))
    while width > 1:
        frag = fragment(t.shape, _layout(t.shape, warps, width, order))
        if vector_width(access_map(frag, shared_tile(t.shape, layout)), bits).width >= width:
            break
        width //= 2
    return width


def _retarget(op: Op, layout: Layout) -> None:
    """Move the access to `layout`; its users see the old layout through a conversion."""
    if isinstance(op, BY_POINTER):
        op.set_operand(0, convert(op.operands[0], layout, Builder(before=op, loc=op.loc)))
    for r in op.results:
        old = r.type
        assert isinstance(old, Tensor) and old.layout is not None
        users = list(r.uses)
        r.type = with_layout(old, layout)
        if users:
            back = convert(r, old.layout, Builder(before=op.next, loc=op.loc))
            if back is not r:
                for user, index in users:
                    user.set_operand(index, back)
