"""find_boxes: tiles of pointers that are boxes of a matrix become blocks, which TMA moves."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from tilec.ir import ops
from tilec.ir.boxes import find_box
from tilec.ir.core import Builder, Func, Module, Op, Value
from tilec.ir.forms import NoForm
from tilec.ir.ops.descriptors import DescriptorOp
from tilec.ir.origins import accessed, pointer_roots
from tilec.ir.remarks import remark
from tilec.ir.tensor_maps import TensorMaps
from tilec.ir.types import scalar_of, shape_of
from tilec.ir.unobserved import unobserved
from tilec.ir.wgmma import WGMMA_TARGET, blocks_for_tma, form_obstacle, source_of
from tilec.passes.base import Pass
from tilec.passes.dot_buffers import fills_zero
from tilec.passes.schedule import feeds_dot
from tilec.passes.store_by_tma import PASS_BYTES
from tilec.target import DEFAULT, Target

_RESERVE = 1024  # bytes of shared memory for mbarriers and alignment


@dataclass(frozen=True)
class FindBoxes(Pass):
    """Loads through pointers that feed dots of wgmma in their loops, where they are boxes of a
    matrix and TMA can bring them; and in such a kernel stores of boxes. Others stay as they are.
    loads, stores: which of them. flat: only in nests that are to be flattened, which run on from
    one tile into the next if TMA feeds them. The module's attribute find_boxes = false switches it
    off.

        %p = tile.addptr(..., %row * %stride + %column)     %x = tile.descriptor_load(%base, %m, %n,
        %x = tile.load(%p, %row < %m & %column < %n)   ->       %stride, 1, %row0, %column0)
    """

    loads: bool = True
    stores: bool = True
    flat: bool = False

    def run(self, module: Module) -> None:
        target = Target.parse(str(module.attributes.get("target", DEFAULT)))
        if target.name != WGMMA_TARGET or not module.attributes.get("find_boxes", True):
            return
        for func in module.funcs:
            loads = _operands(func, module.num_warps, target, self.flat) if self.loads else []
            if loads:
                stores = [op for op in func.walk() if isinstance(op, ops.Store) and self.stores]
                _Boxes(func, module, target, self.flat).run(loads, stores)


def _operands(func: Func, num_warps: int, target: Target, flat: bool) -> list[ops.Load]:
    """The loads through pointers that are operands of dots in their loops. flat: of loops in one
    that is to be flattened with them."""
    found: dict[ops.Load, None] = {}
    for dot in func.walk():
        loops = [a for a in dot.ancestors() if isinstance(a, ops.For)]
        if isinstance(dot, ops.Dot) and loops and loops[0].body is dot.parent and \
                (not flat or any(a.flatten for a in loops) and not any(a.unroll for a in loops)) \
                and not form_obstacle(dot, num_warps, target):
            for op, _ in map(source_of, (dot.a, dot.b)):
                if isinstance(op, ops.Load) and op.parent is dot.parent:
                    found[op] = None
    return list(found)


class _Block(NamedTuple):
    """A block that has taken the place of a load or a store, and the tile that the load gave."""

    op: ops.DescriptorLoad | ops.DescriptorStore
    tile: Value | None = None


class _Boxes:
    """Blocks take the place of accesses first; those that TMA will not move give it back. quiet:
    no remarks about these, since they are tried again."""

    def __init__(self, func: Func, module: Module, target: Target, quiet: bool) -> None:
        self.func, self.module, self.target, self.quiet = func, module, target, quiet
        self.made: dict[ops.Load | ops.Store, _Block] = {}

    def run(self, loads: list[ops.Load], stores: list[ops.Store]) -> None:
        """Find the boxes among these accesses."""
        accesses: list[ops.Load | ops.Store] = [*loads, *stores]
        for op in accesses:
            try:
                self.made[op] = self.load(op) if isinstance(op, ops.Load) else self.store(op)
                op.remove()
            except NoForm as e:
                self.refuse(op, f"this tile is no box for TMA: {e}")
        while wrong := self.wrong():
            for op, reason in wrong.items():
                self.refuse(op, f"this tile is a box, but TMA does not move it: {reason}")
                self.undo(op, self.made.pop(op))
        for op, (block, _) in self.made.items():
            remark(op, "tma", f"TMA moves this tile, a box of the matrix at `{block.base.name}`")
            op.erase()

    def refuse(self, op: Op, why: str) -> None:
        """Say why a load or a store stays."""
        if not self.quiet:
            remark(op, "tma", why)

    def load(self, op: ops.Load) -> _Block:
        """A block in the place of a load."""
        if op.volatile or op.cache == ".cv":
            raise NoForm("it is volatile")
        if not fills_zero(op):
            raise NoForm("its `other` is not zero")
        if any(not isinstance(user, ops.Dot | ops.Trans) for user in op.result.users):
            raise NoForm("something else than a dot looks at it")
        box = find_box(op.ptr, op.mask, self.func)
        if not all(unobserved(op.result, wrap, box.forms) for wrap in box.wraps):
            raise NoForm("its indices begin anew, and what is made of that is seen")
        places, shape = box.texts(self.func), shape_of(op.result.type)
        here = Builder(before=op, loc=op.loc)
        block = ops.DescriptorLoad(box.base, box.operands(here), places=places, narrow=box.narrow,
                                   block=box.block(shape), unit_dims=len(box.places) - 2)
        here.insert(block)
        block.result.name = op.result.name
        tile = here.emit(ops.Trans(block.result, order=(1, 0))) if box.turned else block.result
        op.result.replace_by(tile)
        return _Block(block, tile)

    def store(self, op: ops.Store) -> _Block:
        """A block in the place of a store."""
        box = find_box(op.ptr, op.mask, self.func)
        if box.turned or box.wraps:
            raise NoForm("its indices begin anew" if box.wraps else "its columns lie side by side")
        places = box.texts(self.func)
        here = Builder(before=op, loc=op.loc)
        block = ops.DescriptorStore(
            box.base, op.value, box.operands(here), places=places, narrow=box.narrow,
            block=box.block(shape_of(op.value.type)), unit_dims=len(box.places) - 2)
        here.insert(block)
        return _Block(block)

    def undo(self, op: ops.Load | ops.Store, block: _Block) -> None:
        """Give a load or a store its place back."""
        assert block.op.parent is not None
        block.op.parent.insert(op, block.op)
        if isinstance(op, ops.Load) and block.tile is not None:
            block.tile.replace_by(op.result)
            if block.tile.op is not None and block.tile.op is not block.op:
                block.tile.op.erase()
        block.op.erase()

    def wrong(self) -> dict[ops.Load | ops.Store, str]:
        """Blocks that TMA will not move, and why."""
        if not self.made:
            return {}
        maps = TensorMaps(self.func, self.target)
        kept = blocks_for_tma(self.func, self.module.num_warps, self.target)
        reasons = {op: maps.obstacle(block.op) or self.obstacle(block.op, kept, maps)
                   for op, block in self.made.items()}
        return {op: reason for op, reason in reasons.items() if reason}

    def obstacle(self, op: DescriptorOp, kept: set[Op], maps: TensorMaps) -> str:
        """Why TMA will not move a block that it could, or an empty string."""
        if op not in kept and isinstance(op, ops.DescriptorLoad):
            return "not all operands of its dot are boxes of tensors that the kernel only reads"
        if op not in kept:
            return "something else in the kernel touches its tensor" if kept else \
                "the operands of dots do not come by TMA"
        for index in maps.apart(op):
            # The launch compares blocks with blocks only.
            if not self._blocks_alone(self.func.args[index]):
                return f"it must keep its order with accesses through " \
                    f"`{self.func.args[index].name}`"
        if isinstance(op, ops.DescriptorStore):
            return "" if self._room(op) else "there is no room for it in shared memory"
        loop = op.parent and op.parent.parent_op
        assert isinstance(loop, ops.For)
        beside = [x for x in loop.body if isinstance(x, ops.Load) and
                  (loop.num_stages or feeds_dot(x))]
        return "its loop has other loads to be pipelined" if beside else ""

    def _blocks_alone(self, parameter: Value) -> bool:
        """Whether only blocks that were pointers are accessed through a parameter."""
        for op in self.func.walk():
            pointer = accessed(op)
            if pointer is not None and not (isinstance(op, DescriptorOp) and op.places):
                roots = pointer_roots(pointer, self.func)
                if roots is None or parameter in roots:
                    return False
        return True

    def _room(self, store: ops.DescriptorStore) -> bool:
        """Whether shared memory holds the buffers of a loop's loads and of a store."""
        default = int(self.module.attributes.get("num_stages", 3))
        used = min(_bytes(store.value), PASS_BYTES)
        for block, tile in self.made.values():
            loop = block.parent and block.parent.parent_op
            if tile is not None and isinstance(loop, ops.For):
                used += _bytes(tile) * (loop.num_stages or default)
        return used + _RESERVE <= self.target.max_shared


def _bytes(tile: Value) -> int:
    return prod(shape_of(tile.type)) * scalar_of(tile.type).bytes
