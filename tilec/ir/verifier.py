"""Checks that a module is well formed: structure, types, dominance, and what its level demands."""

from __future__ import annotations

from tilec.errors import IRError
from tilec.ir import ops
from tilec.ir.accumulators import warpgroups, whole_warpgroups
from tilec.ir.attributes import MODULE, wrong, wrong_parameters
from tilec.ir.core import UNFIT, UNKNOWN, Block, Func, Module, Op, Value
from tilec.ir.fragment import fragment
from tilec.ir.layouts import RegisterLayout
from tilec.ir.ops.descriptors import DescriptorOp
from tilec.ir.ops.named_barriers import check_named_barriers
from tilec.ir.printer import print_op
from tilec.ir.types import MemDesc, Pointer, Scalar, Tensor, TensorMap
from tilec.ir.warps import hold_tiles


def verify(module: Module) -> None:
    """Raise IRError about the first op that is not well formed."""
    for name, value in module.attributes.items():
        message, advice = wrong(MODULE, name, value)
        if message:
            raise IRError(f"the module: {message}", None, advice)
    names = [func.name for func in module.funcs]
    for func in module.funcs:
        if names.count(func.name) > 1:
            raise IRError(f"two functions are called @{func.name}", func.loc)
        _Verifier(module, func).run()


def check_one_kernel(module: Module) -> None:
    """IRError unless the module has one function, which can be launched, as what is compiled must.
    """
    if len(module.funcs) != 1:
        names = ", ".join(f.name for f in module.funcs) or "none"
        raise IRError(f"a module of one function can be compiled, this one has {names}", None,
                      "take the others out, or name one to the tool with --func")
    for arg in module.funcs[0].args:
        if not isinstance(arg.type, Scalar | Pointer | TensorMap):
            raise IRError(f"parameter {arg!r}: a kernel is launched with numbers, pointers and "
                          "tensor maps")


class _Verifier:
    def __init__(self, module: Module, func: Func) -> None:
        self.module, self.func = module, func
        self.visible: set[Value] = set()
        self.num_warps = module.num_warps  # of the warp role around, if there is one

    def run(self) -> None:
        if self.func.body.owner is not self.func:
            raise IRError(f"@{self.func.name}: the body belongs to something else")
        for i, message in wrong_parameters(self.func):
            raise IRError(f"@{self.func.name}: parameter {self.func.args[i]!r}: {message}",
                          self.func.loc if self.func.loc is not UNKNOWN else None)
        self.block(self.func.body, ops.Return)
        check_named_barriers(self.func, self.num_warps)

    def fail(self, op: Op, message: str, advice: str = "") -> IRError:
        shown = print_op(op).splitlines()[0].strip()
        return IRError(f"{message}\n  in @{self.func.name}: {shown}",
                       op.loc if op.loc is not UNKNOWN else None, advice)

    def block(self, block: Block, terminator: type[Op] | None) -> None:
        added: list[Value] = list(block.args)
        self.visible.update(block.args)
        for arg in block.args:
            if arg.owner is not block:
                raise IRError(f"@{self.func.name}: a block argument belongs to another block")
            message = self.wrong_layout(arg)
            if isinstance(arg.type, MemDesc):
                message = "buffers are not handed on: use one from outside, by its index"
            if message:
                raise IRError(f"@{self.func.name}: block argument {arg!r}: {message}")
        if block.last is None or not block.last.terminator:
            raise IRError(f"@{self.func.name}: a block does not end with a terminator")
        for op in block:
            if op.parent is not block:
                raise self.fail(op, "the op's parent is another block")
            if op.terminator and op is not block.last:
                raise self.fail(op, "a terminator stands before the end of its block")
            self.op(op)
            self.visible.update(op.results)
            added += op.results
        if terminator is not None and not isinstance(block.last, terminator):
            raise self.fail(block.last, f"the block must end with {terminator.name}")
        self.visible.difference_update(added)

    def op(self, op: Op) -> None:
        for i, v in enumerate(op.operands):
            if v not in self.visible:
                raise self.fail(op, f"operand {i} ({v!r}) is not defined before its use")
            if (op, i) not in v.uses:
                raise self.fail(op, f"operand {i} ({v!r}) does not know this use")
        for name, value in op.attributes.items():
            field = op.attr_fields.get(name)
            message = f"there is no attribute `{name}`" if field is None else field.check(value)
            if message:
                raise self.fail(op, message)
        for name in op.required_attrs - op.attributes.keys():
            raise self.fail(op, f"attribute `{name}` is missing")
        for i, block in enumerate(op.regions):
            if block.owner is not op:
                raise self.fail(op, f"region {i} belongs to another op")
            last: type[Op] = ops.Condition if isinstance(op, ops.While) and i == 0 else ops.Yield
            outer = self.num_warps
            if isinstance(op, ops.WarpRole):
                self.num_warps = op.warps
            self.block(block, last)
            self.num_warps = outer
        try:
            op.merge_types(tuple(op.infer()), [r.type for r in op.results])
            op.check()
        except IRError as e:
            raise self.fail(op, e.message, e.advice) from None
        except UNFIT as e:
            raise self.fail(op, f"operands do not fit: {e}") from None
        self.level(op)

    def level(self, op: Op) -> None:
        if self.module.level == "tile" and isinstance(op, ops.ConvertLayout):
            raise self.fail(op, f"{op.name} stands at level tile, where tiles have no layouts")
        if not op.pure and not op.terminator and \
                any(isinstance(a, ops.Combining) for a in op.ancestors()):
            raise self.fail(op, "the region of a reduce or scan must be pure")
        if message := self.wrong_warps(op):
            raise self.fail(op, message)
        for r in op.results:
            if message := self.wrong_layout(r):
                raise self.fail(op, message)
            if isinstance(r.type, MemDesc) and isinstance(op, ops.ControlFlow):
                raise self.fail(op, "buffers are not handed on: use one from outside")
        if isinstance(op, DescriptorOp) and self.module.level == "lowered":
            raise self.fail(op, f"{op.name} stands at level lowered",
                            "the passes of level tile and gpu turn it into other accesses")

    def wrong_warps(self, op: Op) -> str:
        """What an op asks of the warps that run it and they do not have, or an empty string."""
        have = self.num_warps
        if isinstance(op, ops.Elect) and op.warp >= have:
            return f"warp is {op.warp}, there are {have} warps"
        if isinstance(op, ops.Warpgroups) and not whole_warpgroups(have):
            return f"{have} warps are not whole warpgroups"
        if isinstance(op, ops.TmaStore) and op.parts not in (1, warpgroups(have)):
            return f"parts is {op.parts}, there are {warpgroups(have)} warpgroups"
        if isinstance(op, ops.WarpSpecialize) and sum(r.warps for r in op.roles) != have:
            return f"the roles have {sum(r.warps for r in op.roles)} warps, there are {have}"
        return ""

    def wrong_layout(self, value: Value) -> str:
        """What is wrong with a tile's layout at the module's level, or an empty string."""
        if not isinstance(value.type, Tensor):
            return ""
        layout, level = value.type.layout, self.module.level
        if not hold_tiles(self.num_warps):
            return f"tiles are for 1, 2, 4, 8, 16 or 32 warps, here are {self.num_warps}"
        if level == "tile":
            return "" if layout is None else "a tile has a layout at level tile"
        if not isinstance(layout, RegisterLayout):
            return f"a tile has no register layout at level {level}"
        try:
            fragment(value.type.shape, layout)
        except ValueError as e:
            return str(e)
        if layout.num_warps != self.num_warps:
            where = "module" if self.num_warps == self.module.num_warps else "warp role"
            return f"the layout is for {layout.num_warps} warps, the {where} has {self.num_warps}"
        return ""
