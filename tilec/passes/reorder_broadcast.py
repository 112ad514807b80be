"""reorder_broadcast: compute on the small tile (or the scalar), then spread the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilec.ir import ops
from tilec.ir.core import Builder, Module, Value
from tilec.ir.rewriter import pattern, rewrite
from tilec.ir.types import Tensor, element_of, with_element
from tilec.passes.base import Pass
from tilec.passes.fold import fill, rebuild, scalar_in, uniform

Values = Sequence[Value]


@pattern(ops.Elementwise)
def splat_last(op: ops.Elementwise, builder: Builder) -> Values | None:
    """add(splat(a), splat(b)) -> splat(add(a, b)), constants counting as splats"""
    if not (op.any_shape and all(map(uniform, op.operands))):
        return None
    scalars = [scalar_in(v, builder) for v in op.operands]
    scalar = rebuild(op, scalars, element_of(op.result.type), builder)
    return [builder.emit(ops.Splat(scalar, types=[op.result.type]))]


def _through(op: ops.Elementwise, mover: ops.Broadcast | ops.ExpandDims, builder: Builder) -> Value:
    """`op` on what `mover` moves, with uniform operands filled anew to that shape."""
    small = mover.x.type
    operands = [fill(scalar_in(v, builder), with_element(small, element_of(v.type)), builder)
                if uniform(v) else v.op.operands[0]  # type: ignore[union-attr]
                for v in op.operands]
    return rebuild(op, operands, with_element(small, element_of(op.result.type)), builder)


@pattern(ops.Elementwise)
def broadcast_last(op: ops.Elementwise, builder: Builder) -> Values | None:
    """add(broadcast(x), splat(a)) -> broadcast(add(x, splat(a))), where all operands that are not
    uniform are broadcast from one shape"""
    movers = [v.op for v in op.operands if not uniform(v)]
    first = movers[0] if movers else None
    if not isinstance(first, ops.Broadcast) or not op.any_shape:
        return None
    small = first.x.type
    assert isinstance(small, Tensor)
    for m in movers:
        if not isinstance(m, ops.Broadcast) or \
                with_element(m.x.type, small.element) != small:
            return None
    return [builder.emit(ops.Broadcast(_through(op, first, builder), types=[op.result.type]))]


@pattern(ops.Elementwise)
def expand_dims_last(op: ops.Elementwise, builder: Builder) -> Values | None:
    """add(expand_dims(x), splat(a)) -> expand_dims(add(x, splat(a))), where all operands that are
    not uniform are expanded at one axis"""
    movers = [v.op for v in op.operands if not uniform(v)]
    first = movers[0] if movers else None
    if not isinstance(first, ops.ExpandDims) or not op.any_shape:
        return None
    small = first.x.type
    assert isinstance(small, Tensor)
    for m in movers:
        if not isinstance(m, ops.ExpandDims) or m.axis != first.axis or \
                with_element(m.x.type, small.element) != small:
            return None
    return [builder.emit(ops.ExpandDims(_through(op, first, builder), axis=first.axis,
                                        types=[op.result.type]))]


PATTERNS = (splat_last, broadcast_last, expand_dims_last)


@dataclass(frozen=True)
class ReorderBroadcast(Pass):
    """Move elementwise ops before the splat, broadcast or expand_dims of their operands.

        %0 = tile.splat(%a) : tensor<64xf32>           %0 = tile.add(%a, %b) : f32
        %1 = tile.splat(%b) : tensor<64xf32>     ->    %1 = tile.splat(%0) : tensor<64xf32>
        %2 = tile.add(%0, %1) : tensor<64xf32>
    """

    name: ClassVar[str] = "reorder_broadcast"

    def run(self, module: Module) -> None:
        rewrite(module, PATTERNS)
