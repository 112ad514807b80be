"""reorder_broadcast: compute on the small tile (or the scalar), then spread the result."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Builder, Module
from tilec.ir.rewriter import Values, pattern, rewrite
from tilec.ir.types import element_of, with_element
from tilec.passes.base import Pass
from tilec.passes.fold import fill, rebuild, scalar_in, uniform


@pattern(ops.Elementwise)
def splat_last(op: ops.Elementwise, builder: Builder) -> Values | None:
    """add(splat(a), splat(b)) -> splat(add(a, b)), constants counting as splats"""
    if not (op.any_shape and all(map(uniform, op.operands))):
        return None
    scalars = [scalar_in(v, builder) for v in op.operands]
    scalar = rebuild(op, scalars, element_of(op.result.type), builder)
    return [builder.emit(ops.Splat(scalar, types=[op.result.type]))]


@pattern(ops.Elementwise)
def mover_last(op: ops.Elementwise, builder: Builder) -> Values | None:
    """add(broadcast(x), splat(a)) -> broadcast(add(x, splat(a))), and so for expand_dims, where all
    operands that are not uniform are moved alike and from one shape"""
    movers = [v.op for v in op.operands if not uniform(v)]
    first = movers[0] if movers else None
    if not isinstance(first, (ops.Broadcast, ops.ExpandDims)) or not op.any_shape:
        return None
    small = first.x.type
    for m in movers:
        if not isinstance(m, type(first)) or m.attributes != first.attributes or \
                with_element(m.x.type, element_of(small)) != small:
            return None
    operands = [fill(scalar_in(v, builder), with_element(small, element_of(v.type)), builder)
                if uniform(v) else v.op.operands[0]  # type: ignore[union-attr]
                for v in op.operands]
    moved = rebuild(op, operands, with_element(small, element_of(op.result.type)), builder)
    return [builder.emit(type(first)(moved, types=[op.result.type], **first.attributes))]


PATTERNS = (splat_last, mover_last)


class ReorderBroadcast(Pass):
    """Move elementwise ops before the splat, broadcast or expand_dims of their operands.

        %0 = tile.splat(%a) : tensor<64xf32>           %0 = tile.add(%a, %b) : f32
        %1 = tile.splat(%b) : tensor<64xf32>     ->    %1 = tile.splat(%0) : tensor<64xf32>
        %2 = tile.add(%0, %1) : tensor<64xf32>
    """

    def run(self, module: Module) -> None:
        rewrite(module, PATTERNS)
