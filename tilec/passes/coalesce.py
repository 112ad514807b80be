"""Give loads, stores and atomics layouts in which a warp touches consecutive addresses, 16 bytes
a thread where alignment allows."""

from __future__ import annotations

from math import prod

from tilec.ir import ops
from tilec.ir.axis import AxisAnalysis, AxisInfo, low_bit
from tilec.ir.core import Builder, Module, Op
from tilec.ir.layouts import Layout, default_blocked
from tilec.ir.swizzle import MAX_ACCESS_BYTES
from tilec.ir.types import Tensor, linear_shape, pointee_of, with_layout
from tilec.ir.warps import warps_of
from tilec.passes.base import Pass
from tilec.passes.layout.edits import convert, legalize

Group = tuple[tuple[int, ...], tuple[int, ...], int]


class Coalesce(Pass):
    """Accesses of one shape and order, by as many warps, share one layout: the widest that any of
    them can use, so that values flow between them without conversion.

    load(%p : #default) --> convert(load(convert(%p : #wide)))
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            analysis = AxisAnalysis(func)
            accesses = [(op, _order(analysis.get(op.operands[0])), warps_of(op, module.num_warps))
                        for op in func.walk()
                        if isinstance(op, (ops.Load, ops.Store, ops.AtomicRmw, ops.AsyncCopy))
                        and isinstance(op.operands[0].type, Tensor)]
            widest: dict[Group, int] = {}
            for op, order, warps in accesses:
                group = (_tile(op).shape, order, warps)
                width = access_width(op, analysis.get(op.operands[0]), order[0], warps)
                widest[group] = max(widest.get(group, 1), width)
            for op, order, warps in accesses:
                shape = _tile(op).shape
                wide = widest[shape, order, warps]
                spt = tuple(wide if d == order[0] else 1 for d in range(len(shape)))
                _retarget(op, default_blocked(shape, warps, spt, order))
        legalize(module)


def _tile(op: Op) -> Tensor:
    t = op.operands[0].type
    assert isinstance(t, Tensor)
    return t


def _order(info: AxisInfo) -> tuple[int, ...]:
    """Dimensions from the most contiguous; ties keep the last dimension fastest."""
    dims = range(len(info.contiguity))
    return tuple(sorted(dims, key=lambda d: (-info.contiguity[d], -d)))


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


def _retarget(op: Op, layout: Layout) -> None:
    """Move the access to `layout`; its users see the old layout through a conversion."""
    builder = Builder(before=op, loc=op.loc)
    op.set_operand(0, convert(op.operands[0], layout, builder))
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
