"""cse: of equal pure ops keep the first, by value numbering along the dominator tree."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from tilec.ir.core import Block, Module, Op, Value
from tilec.passes.base import Pass

Scope = dict[Hashable, Op]
_ALL = 1 << 30  # levels of regions


class Cse(Pass):
    """Merge pure ops with equal operands, attributes and types. Loads stay: memory may change.

        %0 = tile.add(%x, %y) : i32            %0 = tile.add(%x, %y) : i32
        %1 = tile.add(%y, %x) : i32      ->    %2 = tile.mul(%0, %0) : i32
        %2 = tile.mul(%0, %1) : i32
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            _number(func.body, {})


def _number(block: Block, scope: Scope) -> bool:
    """Merge ops of a block with those in `scope`, which hold in it. Whether all of it is pure."""
    added: list[Hashable] = []
    pure = True

    def earlier(op: Op, levels: int) -> Op:
        key = _key(op, {}, levels)
        if key not in scope:
            scope[key] = op
            added.append(key)
        return scope[key]

    for op in block:
        inside = [_number(inner, {} if op.isolated else scope) for inner in op.regions]
        if not all(inside) or (op.class_effects if op.regions else op.effects):
            pure = False
        elif not op.terminator:
            first = earlier(op, 1)
            if first is not op and op.regions:  # which may differ further in
                earlier(first, _ALL)
                first = earlier(op, _ALL)
            if first is not op:
                op.replace_by(first.results)
    for key in added:
        del scope[key]
    return pure


def _key(op: Op, inner: dict[Value, int], levels: int) -> Hashable:
    """What tells an op from others; `inner` numbers the values of the regions around it.

    levels: how many levels of its regions count. One tells nearly all ops apart, and a nest in
    which every op looked into all levels would be gone through once a level.
    """
    operands: list[Hashable] = [inner.get(v, v) for v in op.operands]
    if op.commutative:
        operands.sort(key=lambda v: (0, v) if isinstance(v, int) else (1, id(v)))
    attributes = frozenset((name, _exact(value)) for name, value in op.attributes.items())
    regions = tuple(_region_key(block, inner, levels - 1) for block in op.regions if levels)
    return type(op), tuple(operands), attributes, tuple(r.type for r in op.results), regions


def _region_key(block: Block, inner: dict[Value, int], levels: int) -> Hashable:
    for arg in block.args:
        inner[arg] = len(inner)
    keys: list[Hashable] = [tuple(arg.type for arg in block.args)]
    for op in block:
        keys.append(_key(op, inner, levels))
        for result in op.results:
            inner[result] = len(inner)
    return tuple(keys)


def _exact(value: Any) -> Hashable:
    """An attribute as a key that tells 1, 1.0 and true, and 0.0 and -0.0 apart."""
    return type(value), repr(value) if isinstance(value, (float, tuple)) else value
