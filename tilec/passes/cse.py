"""cse: of equal pure ops keep the first, by value numbering along the dominator tree."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from tilec.ir.core import Block, Module, Op, Value
from tilec.passes.base import Pass

Scope = dict[Hashable, Op]


class Cse(Pass):
    """Merge pure ops with equal operands, attributes and types. Loads stay: memory may change.

        %0 = tile.add(%x, %y) : i32            %0 = tile.add(%x, %y) : i32
        %1 = tile.add(%y, %x) : i32      ->    %2 = tile.mul(%0, %0) : i32
        %2 = tile.mul(%0, %1) : i32
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            _number(func.body, {})


def _number(block: Block, scope: Scope) -> None:
    """Merge ops of a block with those in `scope`, which hold in it."""
    added: list[Hashable] = []
    for op in block:
        for inner in op.regions:
            _number(inner, {} if op.isolated else scope)
        if not op.pure:
            continue
        key = _key(op, {})
        first = scope.setdefault(key, op)
        if first is op:
            added.append(key)
        else:
            op.replace_by(first.results)
    for key in added:
        del scope[key]


def _key(op: Op, inner: dict[Value, int]) -> Hashable:
    """What tells an op from others; `inner` numbers the values of the regions around it."""
    operands: list[Hashable] = [inner.get(v, v) for v in op.operands]
    if op.commutative:
        operands.sort(key=lambda v: (0, v) if isinstance(v, int) else (1, id(v)))
    attributes = frozenset((name, _exact(value)) for name, value in op.attributes.items())
    regions = tuple(_region_key(block, inner) for block in op.regions)
    return type(op), tuple(operands), attributes, tuple(r.type for r in op.results), regions


def _region_key(block: Block, inner: dict[Value, int]) -> Hashable:
    for arg in block.args:
        inner[arg] = len(inner)
    keys: list[Hashable] = [tuple(arg.type for arg in block.args)]
    for op in block:
        keys.append(_key(op, inner))
        for result in op.results:
            inner[result] = len(inner)
    return tuple(keys)


def _exact(value: Any) -> Hashable:
    """An attribute as a key that tells 1, 1.0 and true, and 0.0 and -0.0 apart."""
    return type(value), repr(value) if isinstance(value, (float, tuple)) else value
