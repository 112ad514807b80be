"""find_boxes: tiles of pointers that are boxes of a matrix become blocks, which TMA moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tilec.ir import ops
from tilec.ir.boxes import find_box
from tilec.ir.core import Builder, Func, Module, Value
from tilec.ir.forms import NoForm
from tilec.ir.origins import accessed, pointer_roots
from tilec.ir.remarks import remark
from tilec.ir.tensor_maps import TensorMaps
from tilec.ir.types import shape_of
from tilec.ir.wgmma import WGMMA_TARGET, blocks_for_tma, form_obstacle, source_of
from tilec.passes.base import Pass
from tilec.passes.dot_buffers import fills_zero
from tilec.target import DEFAULT, Target


@dataclass(frozen=True)
class FindBoxes(Pass):
    """Loads through pointers that feed a dot of wgmma in its loop, where they are boxes of a matrix
    and TMA can bring them; and in such a kernel stores of boxes. Others stay as they are. loads,
    stores: which of them. The module's attribute find_boxes = false switches all of it off.

        %p = tile.addptr(..., %row * %stride + %column)     %x = tile.descriptor_load(%base, %m, %n,
        %x = tile.load(%p, %row < %m & %column < %n)   ->       %stride, 1, %row0, %column0)
    """

    loads: bool = True
    stores: bool = True

    def run(self, module: Module) -> None:
        target = Target.parse(str(module.attributes.get("target", DEFAULT)))
        if target.name != WGMMA_TARGET or not module.attributes.get("find_boxes", True):
            return
        for func in module.funcs:
            found = _operands(func, module.num_warps, target) if self.loads else []
            if found and _bring(func, found, module.num_warps, target) and self.stores:
                for op in [op for op in func.walk() if isinstance(op, ops.Store)]:
                    _store(func, op, target)


def _operands(func: Func, num_warps: int, target: Target) -> list[ops.Load]:
    """The loads through pointers that are operands of dots in their loops."""
    found: dict[ops.Load, None] = {}
    for dot in func.walk():
        if isinstance(dot, ops.Dot) and isinstance(dot.parent and dot.parent.parent_op, ops.For) \
                and not form_obstacle(dot, num_warps, target):
            for op, _ in map(source_of, (dot.a, dot.b)):
                if isinstance(op, ops.Load) and op.parent is dot.parent:
                    found[op] = None
    return list(found)


def _bring(func: Func, loads: list[ops.Load], num_warps: int, target: Target) -> bool:
    """Put blocks in the place of loads, as far as TMA will move them; whether it will any."""
    made: dict[ops.Load, _Block] = {}
    for load in loads:
        try:
            made[load] = _block(func, load)
        except NoForm as e:
            remark(load, "tma", f"this tile is no box for TMA: {e}")
    maps = TensorMaps(func, target)
    for load, block in list(made.items()):
        if apart := maps.apart(block.load):
            _undo(load, block, f"`{func.args[apart[0]].name}` is written before, or in a loop "
                  "around it")
            del made[load]
    kept = blocks_for_tma(func, num_warps, target) if made else set()
    for load, block in made.items():
        if block.load in kept:
            remark(load, "tma", f"TMA brings this tile, a box of what `{block.load.base.name}` "
                   "points to")
            load.erase()
        else:
            _undo(load, block, maps.obstacle(block.load) or "not all operands of its dot are boxes "
                  "of tensors that the kernel only reads")
    return any(block.load in kept for block in made.values())


class _Block(NamedTuple):
    """A block in the place of a load, and the tile that takes the place of the load's."""

    load: ops.DescriptorLoad
    tile: Value


def _block(func: Func, load: ops.Load) -> _Block:
    """A block in the place of a load, which stays without uses. NoForm where there is none."""
    if load.volatile or not fills_zero(load):
        raise NoForm("its `other` is not zero" if not load.volatile else "it is volatile")
    if any(not isinstance(user, ops.Dot | ops.Trans) for user in load.result.users):
        raise NoForm("something else than a dot looks at it")
    box = find_box(load.ptr, load.mask, func)
    places, shape = box.texts(func), shape_of(load.result.type)
    here = Builder(before=load, loc=load.loc)
    block = ops.DescriptorLoad(box.base, box.operands(here), places=places, narrow=box.narrow,
                               block=shape[::-1] if box.turned else shape)
    here.insert(block)
    block.result.name = load.result.name
    tile = here.emit(ops.Trans(block.result, order=(1, 0))) if box.turned else block.result
    load.result.replace_by(tile)
    return _Block(block, tile)


def _undo(load: ops.Load, block: _Block, reason: str) -> None:
    remark(load, "tma", f"this tile is a box, but TMA does not bring it: {reason}")
    block.tile.replace_by(load.result)
    if block.tile.op is not block.load and block.tile.op is not None:
        block.tile.op.erase()
    block.load.erase()


def _store(func: Func, store: ops.Store, target: Target) -> None:
    """Put the store of a block in the place of a store, if TMA can do it."""
    roots = [(op, pointer_roots(pointer, func)) for op in func.walk()
             if op is not store and (pointer := accessed(op)) is not None]
    try:
        box = find_box(store.ptr, store.mask, func)
        if box.turned or any(found is None or box.base in found for _, found in roots):
            raise NoForm("something else in the kernel touches its tensor")
        places = box.texts(func)
    except NoForm as e:
        remark(store, "tma", f"this tile is no box for TMA: {e}")
        return
    here = Builder(before=store, loc=store.loc)
    block = ops.DescriptorStore(box.base, store.value, box.operands(here), places=places,
                                narrow=box.narrow, block=shape_of(store.value.type))
    here.insert(block)
    maps = TensorMaps(func, target)
    reason = maps.obstacle(block) or ("the kernel reads or writes after it" if maps.apart(block)
                                      else "")
    remark(store, "tma", f"this tile is a box, but TMA does not store it: {reason}" if reason else
           f"TMA stores this tile, a box of what `{block.base.name}` points to")
    (block if reason else store).erase()
