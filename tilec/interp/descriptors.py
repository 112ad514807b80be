"""Interpreter rules of blocks of described tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilec.eval.dtypes import Array, dtype_of
from tilec.interp.effects import MemoryAccess
from tilec.interp.frame import Data, Frame
from tilec.interp.machine import Machine, interp_rules
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.types import pointee_of


class BlockAccess(MemoryAccess):
    """Operands of a descriptor op, checked for poison: addresses, and which are inside."""

    active: Array

    def __init__(self, m: Machine, frame: Frame, op: ops.DescriptorOp) -> None:
        self.m, self.frame, self.op = m, frame, op
        self.ptr = op.base
        for value in (op.base, *op.place):
            self._refuse(frame.get(value)[1], None, value, "its place is poison")
        rank, rows = len(op.block), max(len(frame.get(v)[0]) for v in op.operands)

        def scalars(value: Value) -> Array:
            return frame.get(value)[0].astype(np.int64).reshape(-1, *(1,) * rank)

        address, active = scalars(op.base), np.ones((), bool)
        for d, (extent, stride, offset) in enumerate(zip(*op.parts(), strict=True)):
            index = np.arange(op.block[d]).reshape(-1, *(1,) * (rank - 1 - d)) + scalars(offset)
            address = address + index * scalars(stride) * pointee_of(op.base.type).bytes
            active = active & (index >= 0) & (index < scalars(extent))
        shape, tile = (rows, *op.block), (rows, *op.block[op.unit_dims:])
        self.address = np.broadcast_to(address, shape).reshape(tile)
        self.active = np.broadcast_to(active, shape).reshape(tile)
        self._settle(rows)

    def blame(self, elements: int) -> tuple[str, str]:
        return ("the descriptor says that they belong to the tensor",
                "compare its shape and strides with the array's")


@interp_rules(ops.DescriptorLoad)
def _(m: Machine, frame: Frame, op: ops.DescriptorLoad) -> Sequence[Data]:
    access, dtype = BlockAccess(m, frame, op), dtype_of(op.result.type)
    array = access.run(m.memory.load, dtype)
    fill = m.numbers.number(np.array(np.nan if op.padding == "nan" else 0).astype(dtype))
    return ((np.where(access.active, array, fill), None),)


@interp_rules(ops.DescriptorStore, ops.DescriptorAtomic)
def _(m: Machine, frame: Frame, op: ops.DescriptorStore | ops.DescriptorAtomic) -> None:
    access = BlockAccess(m, frame, op)
    if isinstance(op, ops.DescriptorAtomic):
        access.apart()
    # TMA will do this store: all others are rewritten to pointers.
    elif any((frame.get(v)[0] < 0).any() for v in op.parts()[2]):
        raise m.error(op, "a block is stored that begins before its tensor, which TMA cannot do",
                      "begin it inside, or store through pointers and a mask")
    value = access.value(op.value)
    if isinstance(op, ops.DescriptorAtomic):
        access.run(m.memory.atomic, op.kind, [value], False)
    else:
        access.run(m.memory.store, value)
