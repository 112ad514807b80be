"""Patterns on ops that move elements: splat, broadcast, expand_dims, reshape, trans, conversion."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Builder, Op
from tilec.ir.rewriter import Pattern, Values, pattern
from tilec.ir.types import Tensor
from tilec.passes.fold import constant, fill, make_constant, rebuild, scalar_in, uniform


@pattern(ops.Splat)
def splat_of_constant(op: ops.Splat, builder: Builder) -> Values | None:
    """splat(2) -> a tile of 2"""
    number = constant(op.x)
    return None if number is None else [make_constant(builder, number, op.result.type)]


def move_uniform(op: Op, builder: Builder) -> Values | None:
    """broadcast(splat(x)) -> splat(x), and so for every op that only moves elements"""
    x = op.operands[0]
    if not uniform(x):
        return None
    return [fill(scalar_in(x, builder), op.result.type, builder)]


def move_chain(op: Op, builder: Builder) -> Values | None:
    """broadcast(x) to the type of x -> x; broadcast(broadcast(x)) -> broadcast(x), and so for
    reshape, which takes in an expand_dims too, and convert_layout"""
    x = op.operands[0]
    if x.type == op.results[0].type:
        return [x]
    inner = x.op
    if isinstance(inner, type(op)) or isinstance(op, ops.Reshape) and \
            isinstance(inner, ops.ExpandDims):
        return [builder.emit(type(op)(inner.operands[0], types=[op.results[0].type]))]
    return None


@pattern(ops.ExpandDims)
def expand_dims_of_broadcast(op: ops.ExpandDims, builder: Builder) -> Values | None:
    """expand_dims(broadcast(x)) -> broadcast(expand_dims(x)), so that broadcasts come last and
    meet each other"""
    inner = op.x.op
    if not isinstance(inner, ops.Broadcast):
        return None
    t, small = op.result.type, inner.x.type
    assert isinstance(t, Tensor) and isinstance(small, Tensor)
    shape = (*small.shape[:op.axis], 1, *small.shape[op.axis:])
    x = rebuild(op, [inner.x], Tensor(shape, t.element, t.layout), builder)
    return [builder.emit(ops.Broadcast(x, types=[t]))]


@pattern(ops.Reshape)
def reshape_to_expand_dims(op: ops.Reshape, builder: Builder) -> Values | None:
    """reshape from [4, 8] to [4, 1, 8] -> expand_dims, which never moves data between threads"""
    src, dst = op.x.type, op.result.type
    assert isinstance(src, Tensor) and isinstance(dst, Tensor)
    if dst.layout is not None or dst.rank != src.rank + 1:
        return None
    for axis, extent in enumerate(dst.shape):
        if extent == 1 and dst.shape[:axis] + dst.shape[axis + 1:] == src.shape:
            return [builder.emit(ops.ExpandDims(op.x, axis=axis))]
    return None


@pattern(ops.Trans)
def trans_chain(op: ops.Trans, builder: Builder) -> Values | None:
    """trans(x) in the order 0, 1, ... -> x; trans(trans(x)) -> one trans"""
    if op.order == tuple(range(len(op.order))) and op.x.type == op.result.type:
        return [op.x]
    inner = op.x.op
    if not isinstance(inner, ops.Trans):
        return None
    order = tuple(inner.order[i] for i in op.order)
    if order == tuple(range(len(order))) and inner.x.type == op.result.type:
        return [inner.x]
    return [builder.emit(ops.Trans(inner.x, order=order, types=[op.result.type]))]


@pattern(ops.Split)
def split_of_join(op: ops.Split, builder: Builder) -> Values | None:
    """split(join(a, b)) -> a, or b"""
    inner = op.x.op
    if not isinstance(inner, ops.Join) or inner.operands[op.index].type != op.result.type:
        return None
    return [inner.operands[op.index]]


@pattern(ops.Join)
def join_of_split(op: ops.Join, builder: Builder) -> Values | None:
    """join of both halves of x -> x"""
    a, b = op.a.op, op.b.op
    if not isinstance(a, ops.Split) or not isinstance(b, ops.Split) or a.x is not b.x or \
            (a.index, b.index) != (0, 1) or a.x.type != op.result.type:
        return None
    return [a.x]


PATTERNS = (
    splat_of_constant,
    *(Pattern(root, move_uniform) for root in (ops.Broadcast, ops.ExpandDims, ops.Reshape,
                                               ops.Trans, ops.Split, ops.ConvertLayout)),
    *(Pattern(root, move_chain) for root in (ops.Broadcast, ops.Reshape, ops.ConvertLayout)),
    expand_dims_of_broadcast, reshape_to_expand_dims, trans_chain, split_of_join,
    join_of_split,
)
