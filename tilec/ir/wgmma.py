"""Which dots wgmma can compute, the layouts of their results, and the blocks that TMA moves for it.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions", shapes and types.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.ir import ops
from tilec.ir.accumulators import WARPGROUP_WARPS, WGMMA_ROWS, accumulator_layout
from tilec.ir.core import Block, Func, Op, Value
from tilec.ir.descriptors import matrix_descriptor
from tilec.ir.fragment import shared_tile
from tilec.ir.layouts import Mma, NvmmaShared
from tilec.ir.ops.descriptors import DescriptorOp
from tilec.ir.ops.hopper import ACCUMULATORS, WGMMA_K_BITS, TmaOp
from tilec.ir.ops.memory import MemoryOp
from tilec.ir.origins import comes_from_dot, pointer_roots
from tilec.ir.tensor_maps import TensorMaps, block_layout
from tilec.ir.types import Scalar, scalar_of, shape_of
from tilec.ir.warps import role_of
from tilec.target import Target

WGMMA_TARGET = "sm_90a"
NO_INSTRUCTION = "no instruction fits its extents and warps"

def source_of(value: Value) -> tuple[Op | None, bool]:
    """(the op that made an operand, whether the operand is transposed on the way)."""
    op, turned = value.op, False
    while isinstance(op, (ops.ConvertLayout, ops.Trans)):
        turned ^= isinstance(op, ops.Trans)
        op = op.x.op
    return op, turned


def block_of(value: Value) -> tuple[ops.DescriptorLoad | None, bool]:
    """(the load of a block that an operand is, whether it is transposed on the way)."""
    op, turned = source_of(value)
    return (op if isinstance(op, ops.DescriptorLoad) else None), turned


def resident(value: Value, dot: ops.Dot) -> Value | None:
    """What an operand of a dot is, or is transposed from, if it was there before the dot's loop."""
    op = value.op
    while isinstance(op, (ops.ConvertLayout, ops.Trans)) and op.parent is dot.parent:
        value = op.x
        op = value.op
    block = value.owner if isinstance(value.owner, Block) else value.owner.parent
    loop = dot.parent.parent_op if dot.parent is not None else None
    around = [a.parent for a in loop.ancestors()] if loop is not None else []
    return value if block in [loop and loop.parent, *around] else None


def chained_operand(dot: ops.Dot) -> bool:
    """Whether operand a is made, element by element, of another dot's result in the same block: it
    stays in registers."""
    made = dot.a.op
    return scalar_of(dot.a.type).bits == 16 and made is not None and made.parent is dot.parent and \
        comes_from_dot(dot.a)


def wgmma_layout(dot: ops.Dot, num_warps: int, target: Target, maps: TensorMaps) -> Mma | None:
    """The layout of the result of a dot whose operands TMA brings to shared memory in the dot's own
    loop; None where wgmma does not do it."""
    return None if wgmma_obstacle(dot, num_warps, target, maps) else \
        result_layout(dot, num_warps, _readable)


def form_obstacle(dot: ops.Dot, num_warps: int, target: Target) -> str:
    """Why wgmma does not compute a dot, wherever its operands come from, or an empty string."""
    element, shape = scalar_of(dot.a.type), shape_of(dot.result.type)
    k = shape_of(dot.a.type)[-1]
    if target.name != WGMMA_TARGET:
        return f"the target is {target}, not {WGMMA_TARGET}"
    if len(shape) != 2 or shape[0] % WGMMA_ROWS:
        return f"the result is {list(shape)}, expected rows in multiples of {WGMMA_ROWS}"
    if role_of(dot) is not None:
        return "it stands in a warp role, whose author chooses: tlg.wgmma"
    if num_warps % WARPGROUP_WARPS:
        return f"there are {num_warps} warps, expected a multiple of {WARPGROUP_WARPS}"
    # wgmma cuts f32 operands off at tf32; they are to be rounded.
    if scalar_of(dot.c.type) not in ACCUMULATORS.get(element.name, ()) or element.name == "f32":
        return f"its types are {element} to {scalar_of(dot.c.type)}"
    if k * element.bits % WGMMA_K_BITS:
        return f"k is {k}, expected a multiple of {WGMMA_K_BITS // element.bits}"
    return ""


def wgmma_obstacle(dot: ops.Dot, num_warps: int, target: Target, maps: TensorMaps) -> str:
    """Why wgmma does not compute a dot of blocks, or an empty string."""
    if reason := form_obstacle(dot, num_warps, target):
        return reason
    loops = [isinstance(a, ops.For) for a in dot.ancestors()]
    if not loops or not all(loops):
        return "it is not in a `for` loop, or that is not in `for` loops alone"
    element = scalar_of(dot.a.type)
    for index, value in enumerate((dot.a, dot.b)):
        load, turned = block_of(value)
        along_k = turned == (index == 1)  # whether rows in memory run along k
        name = f"operand {'ab'[index]}"
        if index == 0 and chained_operand(dot) or resident(value, dot) is not None:
            continue
        if load is None or load.parent is not dot.parent:
            return f"{name} is no block that its loop loads through a descriptor"
        if load.padding != "zero":
            return f"{name} is padded with NaN"
        if reason := maps.obstacle(load):
            return f"TMA does not bring {name}: {reason}"
        if not along_k and element.bits != 16:
            return f"{name} has {element.bits} bits and is not contiguous along k"
    return "" if result_layout(dot, num_warps, _readable) else NO_INSTRUCTION


def result_layout(dot: ops.Dot, num_warps: int, readable: Callable[[Value, int, int], bool]
                  ) -> Mma | None:
    """The layout of a dot's result, if its operands can be read. readable: as `_readable`."""
    layout = accumulator_layout(scalar_of(dot.a.type), shape_of(dot.result.type), num_warps,
                                lambda n: readable(dot.b, 0, n))
    fits = layout is not None and (chained_operand(dot) or readable(dot.a, 1, WGMMA_ROWS))
    return layout if fits else None


def _readable(value: Value, k_dim: int, outer: int) -> bool:
    """Whether instructions that take `outer` of an operand's rows or columns can read it from the
    buffer that it lies in. k_dim: the operand's dimension that k runs along."""
    turned, shape = block_of(value)[1], shape_of(value.type)
    lies, element = shape[::-1] if turned else shape, scalar_of(value.type)
    layout = block_layout(lies, element)
    return layout is not None and has_descriptor(lies, element, layout, k_dim ^ turned, outer)


def has_descriptor(shape: tuple[int, ...], element: Scalar, layout: NvmmaShared, k_dim: int,
                   outer: int) -> bool:
    """Whether an instruction that takes `outer` of an operand's rows or columns can read it from a
    buffer, whose dimension `k_dim` k runs along."""
    return matrix_descriptor(shared_tile(shape, layout), element.bits, k_dim, outer,
                             WGMMA_K_BITS // element.bits) is not None


def by_author(func: Func) -> bool:
    """Whether a kernel itself says what TMA copies, or what its warps do."""
    return any(isinstance(op, (TmaOp, ops.WarpSpecialize)) for op in func.walk())


def blocks_for_tma(func: Func, num_warps: int, target: Target) -> set[Op]:
    """The loads and stores of blocks that TMA moves: operands of dots of wgmma, loaded in the dot's
    loop, before all loops or, in a nest that is to have warp roles, in a loop around it; and in a
    kernel that has such dots stores, each of a tensor that nothing else in the kernel writes or, if
    it is stored, reads. None in a kernel whose author sees to that."""
    if by_author(func):
        return set()
    maps = TensorMaps(func, target)
    dots = [op for op in func.walk()
            if isinstance(op, ops.Dot) and wgmma_layout(op, num_warps, target, maps)]
    loads = {load for op in dots for load in (block_of(op.a)[0], block_of(op.b)[0])
             if load is not None and (load.parent is op.parent or _outside(load, op, func) and
                                      not maps.obstacle(load) and load.padding == "zero")}
    stores = {op for op in func.walk() if isinstance(op, ops.DescriptorStore)
              and not maps.obstacle(op)}
    roots = [(op, pointer_roots(op.base if isinstance(op, DescriptorOp) else op.ptr, func))
             for op in func.walk() if isinstance(op, (DescriptorOp, MemoryOp))]

    def alone(op: DescriptorOp, with_these: set[Op], effects: set[str]) -> bool:
        return not any(other not in with_these and other.effects & effects and
                       (found is None or op.base in found) for other, found in roots)

    kept: set[Op] = {op for op in loads if alone(op, set(), {"write"})}
    if len(kept) < len(loads) or not loads:
        return set()  # the operands of a dot come together
    return kept | {op for op in stores if alone(op, set(stores), {"read", "write"})}


def _outside(load: Op, dot: Op, func: Func) -> bool:
    """Whether a block is loaded before all loops, or in a loop around a dot's own of which one has
    `warp_specialize`."""
    loops = [a for a in dot.ancestors() if isinstance(a, ops.For)]
    return load.parent is func.body or any(loop.warp_specialize for loop in loops) and \
        any(load.parent is loop.body for loop in loops)
