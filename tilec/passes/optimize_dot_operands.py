"""Bring elementwise work on a dot's operand to after the change of layout, if that is smaller."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Builder, Module, Value
from tilec.ir.layouts import DotOperand
from tilec.ir.rewriter import Values, pattern, rewrite
from tilec.ir.types import element_of, layout_of, with_layout
from tilec.passes.base import Pass
from tilec.passes.fold import uniform


class OptimizeDotOperands(Pass):
    """The tile that is converted, and that a pipeline keeps in shared memory, is the narrow one
    that was loaded; what is computed from it, is computed in the layout that the dot reads.

    convert(cast(%x : f8 to f16)) --> cast(convert(%x))
    """

    def run(self, module: Module) -> None:
        rewrite(module, PATTERNS)


@pattern(ops.ConvertLayout)
def convert_before_elementwise(op: ops.ConvertLayout, builder: Builder) -> Values | None:
    """convert(f(%x, splat %s)) --> f(convert(%x), splat %s), for operands of dots: if one tile at
    most needs conversion, and it is no wider than the result."""
    layout, source = layout_of(op.result.type), op.x.op
    if not isinstance(layout, DotOperand) or not isinstance(source, ops.Elementwise) or \
            len(op.x.uses) > 1:
        return None
    tiles = [v for v in dict.fromkeys(source.operands) if not uniform(v)]
    if len(tiles) != 1 or element_of(tiles[0].type).bits > element_of(op.x.type).bits:
        return None
    mapping: dict[Value, Value] = {}
    for v in dict.fromkeys(source.operands):
        if v in tiles:
            mapping[v] = builder.emit(ops.ConvertLayout(v, types=[with_layout(v.type, layout)]))
        elif v.op is not None:
            copy = builder.insert(v.op.clone({}))
            copy.results[0].type = with_layout(v.type, layout)
            mapping[v] = copy.results[0]
    moved = builder.insert(source.clone(mapping))
    moved.results[0].type = op.result.type
    return moved.results


PATTERNS = (convert_before_elementwise,)
