"""Walks a hand-written Hopper kernel for one program: scalars are computed, tiles are not, and what
each copy, wait and matrix product touches is recorded and checked.

A copy lands at once. An error is a wait that nothing will end, and a copy into a buffer that a
matrix product or a store still reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilec.eval.rules import evaluate
from tilec.ir import ops
from tilec.ir.core import Block, Func, Op, Value
from tilec.ir.types import MemDesc, Scalar

Place = tuple[Value, int]  # a buffer and which one of its array


@dataclass
class Barrier:
    """An mbarrier: arrivals a phase needs, phases ended, arrivals and bytes missing from this."""

    count: int
    phase: int = 0
    arrivals: int = 0
    bytes: int = 0

    def settle(self) -> None:
        if self.arrivals >= self.count and self.bytes == 0:
            self.phase, self.arrivals = self.phase + 1, 0


@dataclass
class Walk:
    """A program's run. products: what a and b held, per wgmma; stores: (part of c, coordinates)."""

    grid: int
    program: int
    warpgroups: int = 2
    env: dict[Value, Any] = field(default_factory=dict)
    held: dict[Place, tuple[str, ...]] = field(default_factory=dict)
    barriers: dict[Place, Barrier] = field(default_factory=dict)
    groups: list[list[Place]] = field(default_factory=list)
    products: list[tuple[Any, Any, bool]] = field(default_factory=list)
    stores: list[tuple[int, ...]] = field(default_factory=list)
    loads: int = 0

    def run(self, func: Func, scalars: dict[str, Any]) -> Walk:
        self.block(func.body, [scalars.get(a.name) for a in func.args])
        return self

    def block(self, block: Block, args: Sequence[Any]) -> list[Any]:
        self.env.update(zip(block.args, args, strict=True))
        for op in block:
            if not op.terminator:
                self.op(op)
        return [self.env.get(v) for v in block.terminator.operands]

    def op(self, op: Op) -> None:
        values = [self.env.get(v) for v in op.operands]
        match op:
            case ops.For():
                lo, hi, step, *carried = values
                for i in range(int(lo), int(hi), int(step)):
                    carried = self.block(op.body, [np.int32(i), *carried])
                self.env.update(zip(op.results, carried, strict=True))
            case ops.Elect():
                if op.predicate is None or values[0]:
                    self.block(op.body, ())
            case ops.ProgramId():
                self.env[op.result] = np.int32(self.program if op.axis == 0 else 0)
            case ops.NumPrograms():
                self.env[op.result] = np.int32(self.grid)
            case ops.AllocShared():
                self.env[op.result] = (op.result, 0)
            case ops.MemdescIndex():
                self.env[op.result] = (values[0][0], int(values[1]))
            case ops.MemdescTrans() | ops.ExtractSlice():
                self.env[op.result] = values[0]
            case _ if op.pure and op.operands + op.results and all(
                    isinstance(v.type, Scalar) for v in (*op.operands, *op.results)):
                self.env[op.result] = evaluate(op, *values)
            case _:
                self.shared(op, values)

    def shared(self, op: Op, values: list[Any]) -> None:
        match op:
            case ops.MbarrierInit():
                t = op.barrier.type
                assert isinstance(t, MemDesc)
                for slot in range(t.stages):
                    self.barriers[values[0][0], slot] = Barrier(op.count)
            case ops.MbarrierExpect():
                self.barriers[values[0]].arrivals += 1
                self.barriers[values[0]].bytes += op.bytes
            case ops.MbarrierArrive():
                self.barriers[values[0]].arrivals += self.warpgroups
                self.barriers[values[0]].settle()
            case ops.MbarrierWait():
                ended = self.barriers[values[0]].phase & 1 != values[1]
                assert ended, f"%{op.barrier.name} never ends phase {values[1]}"
            case ops.TmaLoad():
                _, buffer, barrier, *at = values
                assert not any(buffer in group for group in self.groups), "read while refilled"
                self.held[buffer] = (op.map.name, *map(int, at))
                t = op.buffer.type
                assert isinstance(t, MemDesc)
                self.barriers[barrier].bytes -= t.shape[0] * t.shape[1] * t.element.bytes
                assert self.barriers[barrier].bytes >= 0
                self.barriers[barrier].settle()
                self.loads += 1
            case ops.Wgmma():
                read = [v for v in values[:2] if v is not None]
                self.groups.append(read)
                self.products.append((self.held.get(values[0]), self.held[values[1]],
                                      bool(values[3]) if len(values) > 3 else True))
            case ops.WgmmaWait():
                self.groups = self.groups[len(self.groups) - op.pending:] if op.pending else []
            case ops.TmaStore():
                self.stores.append(tuple(map(int, values[2:])))
