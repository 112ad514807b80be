"""tile -> gpu: give every tile the layout that its op wants, or the default of its shape."""

from __future__ import annotations

from collections.abc import Mapping

from tilec.errors import CompilationError, IRError
from tilec.ir import ops
from tilec.ir.core import Block, Module, Value
from tilec.ir.layouts import Layout, default_blocked
from tilec.ir.types import Tensor, with_layout
from tilec.passes.base import Pass
from tilec.passes.layout.edits import legalize
from tilec.passes.layout.pins import pinned


class AssignLayouts(Pass):
    """Every tile gets a layout; ops that relate layouts get conversions around them. Assertions
    go, unless the module says `debug`: from here on the IR is what a GPU will run.

    tensor<64x1xf32> --> tensor<64x1xf32, #b0>
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            if not module.attributes.get("debug"):
                for op in list(func.walk()):
                    if isinstance(op, ops.Assert):
                        op.erase()
            try:
                pins = pinned(func, module.num_warps)
            except IRError as e:
                raise CompilationError(e.message, e.loc) from None
            _assign(func.body, module.num_warps, pins)
        module.attributes["level"] = "gpu"
        legalize(module)


def _assign(block: Block, num_warps: int, pins: Mapping[Value, Layout]) -> None:
    values = list(block.args)
    for op in block:
        values += op.results
        for inner in op.regions:
            _assign(inner, op.warps if isinstance(op, ops.WarpRole) else num_warps, pins)
    for v in values:
        if isinstance(v.type, Tensor):
            v.type = with_layout(v.type, pins.get(v) or default_blocked(v.type.shape, num_warps))
