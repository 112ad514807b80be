"""How each op relates the layouts of its operands and results, in both directions."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import ops
from tilec.ir.core import Op
from tilec.ir.fragment import fragment, odd_factors_stay
from tilec.ir.layouts import (
    DotOperand,
    Layout,
    Mma,
    Slice,
    join,
    reshape,
    same_layout,
    slice_of,
    split,
    transpose,
)
from tilec.ir.mma import default_k_width
from tilec.ir.rules import Rules
from tilec.ir.types import Tensor, layout_of, linear_shape, scalar_of, shape_of

Needs = Sequence[Layout | None]
MOST_COPIES = 2  # of what another layout holds: dots of few rows repeat some in their warps

# (op) -> the layout that each operand must have, given the op's result layouts (for an op without
# results: its first operand's). None: any layout, or not a tile.
needs_rule = Rules("operand layout")

# (op, operand layout) -> the layout of the results if an operand has this one. None: no opinion.
forward_rule = Rules("result layout")


@needs_rule(ops.Elementwise, ops.Broadcast, ops.Load, ops.Atomic)
def _same(op: Op) -> Needs:
    return [layout_of(op.result.type)] * len(op.operands)


@needs_rule(ops.InlineAsm)
def _inline_asm(op: ops.InlineAsm) -> Needs:
    return [layout_of(op.results[0].type)] * len(op.operands)


@needs_rule(ops.Store)
def _store(op: ops.Store) -> Needs:
    return [layout_of(op.ptr.type)] * len(op.operands)


@needs_rule(ops.Splat, ops.Constant, ops.Arange, ops.ProgramId, ops.NumPrograms, ops.ConvertLayout,
            ops.Assert, ops.Assume, ops.Print, ops.Breakpoint, ops.Barrier, ops.AllocShared,
            ops.GridDependencyWait, ops.GridDependencyLaunch, ops.Histogram,
            ops.MemdescIndex, ops.MemdescTrans, ops.SharedLoad, ops.SharedStore, ops.AsyncCommit,
            ops.AsyncWait, ops.Return, ops.WarpgroupBarrier, ops.NamedBarrier, ops.Elect,
            ops.MbarrierInit,
            ops.MbarrierExpect, ops.MbarrierArrive, ops.MbarrierWait, ops.TmaOp, ops.TmaStoreCommit,
            ops.TmaStoreWait, ops.FenceAsync, ops.WarpRole, ops.WarpSpecialize, ops.DescriptorOp,
            ops.ClusterRank, ops.RemoteArrive, ops.RemoteLoad)
def _any(op: Op) -> Needs:
    return [None] * len(op.operands)


@needs_rule(ops.AsyncCopy)
def _async_copy(op: ops.AsyncCopy) -> Needs:
    layout = layout_of(op.ptr.type)
    return [layout, None, layout][:len(op.operands)]


@needs_rule(ops.ExpandDims)
def _expand(op: ops.ExpandDims) -> Needs:
    layout = layout_of(op.result.type)
    return [None if layout is None else slice_of(layout, op.axis)]


@needs_rule(ops.Trans)
def _trans(op: ops.Trans) -> Needs:
    layout = layout_of(op.result.type)
    inverse = tuple(op.order.index(d) for d in range(len(op.order)))
    return [None if layout is None else
            transpose(layout, inverse, linear_shape(shape_of(op.result.type)))]


@needs_rule(ops.Reshape)
def _reshape(op: ops.Reshape) -> Needs:
    layout, src, dst = layout_of(op.result.type), shape_of(op.x.type), shape_of(op.result.type)
    if layout is None or not odd_factors_stay(src, dst):
        return [None]
    return [reshape(layout, linear_shape(dst), linear_shape(src))]


@needs_rule(ops.Join)
def _join(op: ops.Join) -> Needs:
    layout = layout_of(op.result.type)
    return [None if layout is None else op.operand_layout(layout)] * 2


@needs_rule(ops.Split)
def _split(op: ops.Split) -> Needs:
    """Where the operand has a layout that will do, it is kept."""
    layout, have = layout_of(op.result.type), layout_of(op.x.type)
    if layout is None:
        return [None]
    shape = linear_shape(shape_of(op.x.type))
    half = None if have is None else split(have, shape)
    if half is not None and same_layout(half, layout, shape[:-1]):
        return [have]
    return [join(layout, shape[:-1])]


@needs_rule(ops.Gather)
def _gather(op: ops.Gather) -> Needs:
    return [None, layout_of(op.result.type)]


@needs_rule(ops.Combining)
def _combining(op: ops.Combining) -> Needs:
    return [layout_of(op.inputs[0].type)] * len(op.operands)


@needs_rule(ops.Dot)
def _dot(op: ops.Dot) -> Needs:
    """Tensor cores: operands follow the result; where one has its layout already, its k_width is
    kept. Multiply-adds take any."""
    parent = layout_of(op.result.type)
    if not isinstance(parent, Mma) or parent.version == 3:
        # wgmma reads operands from shared memory, or a from registers.
        have = layout_of(op.a.type)
        return [have if isinstance(have, DotOperand) else None, None, parent]
    k_width = default_k_width(scalar_of(op.a.type))
    for index, value in ((1, op.b), (0, op.a)):
        have = layout_of(value.type)
        if isinstance(have, DotOperand) and (have.parent, have.op_index) == (parent, index):
            k_width = have.k_width
    return [DotOperand(parent, 0, k_width), DotOperand(parent, 1, k_width), parent]


@needs_rule(ops.Wgmma)
def _wgmma(op: ops.Wgmma) -> Needs:
    layout = layout_of(op.result.type)
    a = op.operand_layout(layout) if isinstance(layout, Mma) else None
    return [a, None, layout, None][:len(op.operands)]


@needs_rule(ops.SetLayout)
def _set_layout(op: ops.SetLayout) -> Needs:
    return [op.layout]


@needs_rule(ops.WgmmaWait)
def _wgmma_wait(op: ops.WgmmaWait) -> Needs:
    return [layout_of(r.type) for r in op.results]


@needs_rule(ops.ExtractSlice)
def _extract_slice(op: ops.ExtractSlice) -> Needs:
    return [layout_of(op.result.type)]


@needs_rule(ops.For)
def _for(op: ops.For) -> Needs:
    return [None] * 3 + [layout_of(a.type) for a in op.body.args[1:]]


@needs_rule(ops.While)
def _while(op: ops.While) -> Needs:
    return [layout_of(a.type) for a in op.before.args]


@needs_rule(ops.If)
def _if(op: ops.If) -> Needs:
    return [None]


@needs_rule(ops.Condition)
def _condition(op: ops.Condition) -> Needs:
    loop = op.parent.parent_op if op.parent is not None else None
    assert loop is not None
    return [None, *(layout_of(r.type) for r in loop.results)]


@needs_rule(ops.Yield)
def _yield(op: ops.Yield) -> Needs:
    outer = op.parent.parent_op if op.parent is not None else None
    assert outer is not None
    carried = outer.before.args if isinstance(outer, ops.While) else outer.results
    return [layout_of(v.type) for v in carried] if not isinstance(outer, ops.Combining) else \
        [None] * len(op.operands)


@forward_rule(Op)
def _no_opinion(op: Op, layout: Layout) -> Layout | None:
    return None


@forward_rule(ops.Elementwise, ops.InlineAsm, ops.ConvertLayout, ops.Scan)
def _keep(op: Op, layout: Layout) -> Layout | None:
    return layout


@forward_rule(ops.Broadcast)
def _broadcast_forward(op: ops.Broadcast, layout: Layout) -> Layout | None:
    """The operand's layout, unless its threads lie along extents of 1: they would hold copies of
    all that the operand is repeated to."""
    t = op.result.type
    assert isinstance(t, Tensor) and t.layout is not None
    held, now = (fragment(t.shape, x).num_registers for x in (layout, t.layout))
    return layout if held <= MOST_COPIES * now else None


@forward_rule(ops.ExpandDims)
def _expand_forward(op: ops.ExpandDims, layout: Layout) -> Layout | None:
    """Only a slice says where a broadcast should put its copies; another layout has no opinion."""
    return layout.parent if isinstance(layout, Slice) and layout.dim == op.axis else None


@forward_rule(ops.ExtractSlice)
def _extract_forward(op: ops.ExtractSlice, layout: Layout) -> Layout | None:
    return layout if op.held_in(layout) else None


@forward_rule(ops.Join)
def _join_forward(op: ops.Join, layout: Layout) -> Layout | None:
    return join(layout, linear_shape(shape_of(op.a.type)))


@forward_rule(ops.Split)
def _split_forward(op: ops.Split, layout: Layout) -> Layout | None:
    return split(layout, linear_shape(shape_of(op.x.type)))


@forward_rule(ops.Gather)
def _gather_forward(op: ops.Gather, layout: Layout) -> Layout | None:
    return layout if shape_of(op.x.type) == shape_of(op.index.type) else None


@forward_rule(ops.Reduce)
def _reduce_forward(op: ops.Reduce, layout: Layout) -> Layout | None:
    return slice_of(layout, op.axis)


@forward_rule(ops.Trans)
def _trans_forward(op: ops.Trans, layout: Layout) -> Layout | None:
    return transpose(layout, op.order, linear_shape(shape_of(op.x.type)))


@forward_rule(ops.Reshape)
def _reshape_forward(op: ops.Reshape, layout: Layout) -> Layout | None:
    src, dst = shape_of(op.x.type), shape_of(op.result.type)
    if not odd_factors_stay(src, dst):
        return None
    return reshape(layout, linear_shape(src), linear_shape(dst))
