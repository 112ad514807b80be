"""Regions of elementwise ops lowered at any vector width, and what is known of their operation."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen.context import CodeGen, compute
from tilec.codegen.emit import Reg
from tilec.ir import ops
from tilec.ir.core import Block, Op, Value
from tilec.ir.types import Scalar, scalar_of


def inline(cg: CodeGen, block: Block, args: Sequence[Reg]) -> list[Reg]:
    """What the region yields for these arguments, all of one width."""
    n = args[0].n
    if n and not _is_elementwise(block):
        lanes = [inline(cg, block, [cg.e.lane(a, i) for a in args]) for i in range(n)]
        return [cg.e.build(column) for column in zip(*lanes, strict=True)]
    cg.env.update(zip(block.args, args, strict=True))
    if not n:
        return [cg.scalar(v) for v in cg.block(block)]
    inside = set(block.args)

    def get(value: Value) -> Reg:
        reg = cg.scalar(value)
        return reg if value in inside else cg.e.splat(reg, n)

    for op in block:
        if op.terminator:
            return [get(v) for v in op.operands]
        if isinstance(op, ops.Constant):
            cg.op(op)
            continue
        cg.e.dbg = cg.debug.at(op.loc)
        cg.env[op.results[0]] = compute[type(op)](cg, op, *map(get, op.operands))
        inside.add(op.results[0])
    raise AssertionError("block without terminator")


def _is_elementwise(block: Block) -> bool:
    return all(isinstance(op, (ops.Elementwise, ops.Constant)) or op.terminator for op in block)


def single_op(block: Block) -> Op | None:
    """The op of a region that only applies one commutative op to its two arguments."""
    first, last = block.first, block.last
    if len(block.args) != 2 or first is None or first.next is not last or last is None:
        return None
    fits = set(first.operands) == set(block.args) and list(last.operands) == first.results
    return first if fits else None


def identity(op: Op | None) -> int | float | bool | None:
    """The neutral element of a combining op; None if there is none or it is not known."""
    if op is None:
        return None
    found = _identity(type(op), scalar_of(op.results[0].type))
    if isinstance(op, (ops.Minimum, ops.Maximum)) and op.propagate_nan and found is not None:
        return -_INF if isinstance(op, ops.Maximum) else _INF
    return found


_INF = float("inf")


def _identity(kind: type[Op], t: Scalar) -> int | float | bool | None:
    known: dict[type[Op], int | float | bool]
    if t.is_float:
        # A number wins over NaN, so NaN is neutral and keeps a row of NaNs one.
        known = {ops.Add: -0.0, ops.Mul: 1.0, ops.Minimum: float("nan"),
                 ops.Maximum: float("nan")}
        return known.get(kind)
    if t.is_bool:
        known = {ops.Add: False, ops.Mul: True, ops.Minimum: True, ops.Maximum: False,
                 ops.And: True, ops.Or: False, ops.Xor: False}
        return known.get(kind)
    ones = (1 << (t.bits - 1)) - 1
    low, high = (-ones - 1, ones) if t.is_signed else (0, 2 * ones + 1)
    known = {ops.Add: 0, ops.Mul: 1, ops.Minimum: high, ops.Maximum: low, ops.And: -1, ops.Or: 0,
             ops.Xor: 0}
    return known.get(kind)
