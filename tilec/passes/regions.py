"""Helpers that change structured control flow: inlining a region, dropping carried values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from tilec.ir import ops
from tilec.ir.core import Block, Op, Value

T = TypeVar("T")


def without(items: Sequence[T], dead: Collection[int]) -> list[T]:
    """`items` but for those at the dead indices."""
    return [item for i, item in enumerate(items) if i not in dead]


def inline(block: Block, args: Sequence[Value], before: Op) -> list[Value]:
    """Move the ops of a region, but its terminator, to before an op; the terminator's operands.

    args replace the region's arguments. The emptied region is for the caller to erase.
    """
    for arg, value in zip(block.args, args, strict=True):
        arg.replace_by(value)
    for op in block:
        if not op.terminator:
            op.move_before(before)
    return list(block.terminator.operands)


def _drop_results(op: Op, dead: Collection[int]) -> None:
    op.results = without(op.results, dead)
    for i, result in enumerate(op.results):
        result.index = i


def _drop_args(block: Block, dead: Collection[int]) -> None:
    for i in sorted(dead, reverse=True):
        block.remove_arg(i)


def drop_carried(op: ops.For, dead: Collection[int]) -> None:
    """Remove carried values of a for, by index; results and arguments must be unused."""
    end = op.body.terminator
    end.set_operands(without(end.operands, dead))
    _drop_args(op.body, {i + 1 for i in dead})
    op.set_operands([*op.operands[:3], *without(op.init, dead)])
    _drop_results(op, dead)


def drop_yielded(op: ops.If, dead: Collection[int]) -> None:
    """Remove unused results of an if, by index."""
    for block in op.regions:
        end = block.terminator
        end.set_operands(without(end.operands, dead))
    _drop_results(op, dead)


def drop_passed(op: ops.While, dead: Collection[int]) -> None:
    """Remove what a while passes on from its first region, by index; results and the second
    region's arguments must be unused."""
    end = op.before.terminator
    end.set_operands([end.operands[0], *without(end.operands[1:], dead)])
    _drop_args(op.after, dead)
    _drop_results(op, dead)


def drop_initial(op: ops.While, dead: Collection[int]) -> None:
    """Remove unused arguments of a while's first region, by index."""
    end = op.after.terminator
    end.set_operands(without(end.operands, dead))
    _drop_args(op.before, dead)
    op.set_operands(without(op.operands, dead))
