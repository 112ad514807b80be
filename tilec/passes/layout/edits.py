"""Retyping values and then making the module right again by inserting conversions."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Block, Builder, Module, Op, Value
from tilec.ir.layouts import Layout, same_layout
from tilec.ir.types import Tensor, layout_of, linear_shape, shape_of, with_layout
from tilec.passes.layout.rules import needs_rule


def fits(value: Value, layout: Layout) -> bool:
    """Whether the tile already has this layout (as a linear layout)."""
    have = layout_of(value.type)
    return have is not None and same_layout(have, layout, linear_shape(shape_of(value.type)))


def convert(value: Value, layout: Layout, builder: Builder) -> Value:
    """`value` under another layout."""
    if fits(value, layout):
        return value
    out = builder.emit(ops.ConvertLayout(value, types=[with_layout(value.type, layout)]))
    out.name = value.name
    return out


def legalize(module: Module) -> None:
    """Insert conversions wherever an operand lacks the layout that its op needs.

    Values may have been retyped at will before; results whose layout follows from the operands'
    (Combining) or from a region's arguments (For, While) are set here.
    """
    for func in module.funcs:
        _legalize_block(func.body)


def _legalize_block(block: Block) -> None:
    made: dict[tuple[Value, Layout], Value] = {}
    for op in block:
        _derive_results(op)
        for i, layout in enumerate(needs_rule[type(op)](op)):
            value = op.operands[i]
            if layout is None or not isinstance(value.type, Tensor) or fits(value, layout):
                continue
            key = (value, layout)
            if key not in made:
                made[key] = convert(value, layout, Builder(before=op, loc=op.loc))
            op.set_operand(i, made[key])
        if isinstance(op, ops.Combining):
            _derive_results(op)
        for inner in op.regions:
            _legalize_block(inner)


def _derive_results(op: Op) -> None:
    if isinstance(op, ops.Combining):
        for r, v in zip(op.results, op.inputs, strict=True):
            r.type = op.result_type(v.type)
    elif isinstance(op, ops.For):
        for r, a in zip(op.results, op.body.args[1:], strict=True):
            r.type = a.type
    elif isinstance(op, ops.While):
        for r, a in zip(op.results, op.after.args, strict=True):
            r.type = a.type


def remove_identities(module: Module) -> None:
    """Erase conversions to the layout a tile already has, and skip over chains of them."""
    for op in list(module.walk()):
        if not isinstance(op, ops.ConvertLayout):
            continue
        source = op.x
        while isinstance(source.op, ops.ConvertLayout):
            source = source.op.x
        if source is not op.x:
            op.set_operand(0, source)
        layout = layout_of(op.result.type)
        assert layout is not None
        if fits(source, layout) or not op.result.uses:
            op.replace_by([source])
