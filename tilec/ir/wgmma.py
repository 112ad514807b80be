"""Which dots wgmma can compute, and the layout of their results.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions", shapes and types.
"""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.layouts import Mma
from tilec.ir.ops.hopper import ACCUMULATORS, WGMMA_K_BITS
from tilec.ir.tensor_maps import TensorMaps
from tilec.ir.types import scalar_of, shape_of
from tilec.target import Target

ROWS, MAX_COLUMNS = 64, 256
WARPS = 4  # of a warpgroup


def block_of(value: Value) -> tuple[ops.DescriptorLoad | None, bool]:
    """(the load of a block that an operand is, whether it is transposed on the way)."""
    op, turned = value.op, False
    while isinstance(op, (ops.ConvertLayout, ops.Trans)):
        turned ^= isinstance(op, ops.Trans)
        op = op.x.op
    return (op if isinstance(op, ops.DescriptorLoad) else None), turned


def wgmma_layout(dot: ops.Dot, num_warps: int, target: Target, maps: TensorMaps) -> Mma | None:
    """The layout of the result of a dot whose operands TMA brings to shared memory in the dot's own
    loop; None where wgmma does not do it."""
    element = scalar_of(dot.a.type)
    shape = shape_of(dot.result.type)
    k = shape_of(dot.a.type)[-1]
    sixteen = element.bits == 16
    if target.name != "sm_90a" or len(shape) != 2 or num_warps % WARPS or shape[0] % ROWS or \
            k * element.bits % WGMMA_K_BITS or \
            scalar_of(dot.c.type) not in ACCUMULATORS.get(element.name, ()) or \
            element.name == "f32" and dot.input_precision != "tf32":
        return None
    for index, value in enumerate((dot.a, dot.b)):
        load, turned = block_of(value)
        along_k = turned == (index == 1)  # whether rows in memory run along k
        if load is None or load.parent is not dot.parent or load.padding != "zero" or \
                maps.obstacle(load) or not (along_k or sixteen) or \
                not isinstance(dot.parent and dot.parent.parent_op, ops.For):
            return None
    groups = num_warps // WARPS
    down = min(groups, shape[0] // ROWS)
    across = groups // down
    columns = shape[1] // across
    step = 8 if element.is_float else 16
    if groups % down or shape[0] % (ROWS * down) or shape[1] % across or columns % step:
        return None
    n = next((n for n in range(min(columns, MAX_COLUMNS), 0, -step) if columns % n == 0), 0)
    return Mma(3, (WARPS * down, across), (ROWS, n)) if n else None
