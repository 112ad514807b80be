"""Give every dot the layouts of the tensor cores, or of fused multiply-adds where it must be."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import NamedTuple

from tilec.ir import ops
from tilec.ir.core import Builder, Module, Op, Value
from tilec.ir.fragment import storage_shape
from tilec.ir.layouts import Blocked, DotOperand, Layout, Mma, default_blocked
from tilec.ir.mma import THREADS_ALONG_K, MmaInstruction, default_k_width, instruction_of
from tilec.ir.origins import SAME_PLACES, comes_from_dot, uses_in_block
from tilec.ir.remarks import remark
from tilec.ir.tensor_maps import TensorMaps
from tilec.ir.types import linear_shape, scalar_of, shape_of, with_layout
from tilec.ir.warps import warps_of
from tilec.ir.wgmma import WGMMA_TARGET, chained_operand, source_of, wgmma_layout
from tilec.passes.base import Pass
from tilec.passes.dot_buffers import by_wgmma, pointer_layout, pointer_obstacle
from tilec.passes.layout.edits import convert, legalize, remove_identities
from tilec.target import DEFAULT, Target

Shape = tuple[int, ...]


class Choice(NamedTuple):
    """The layout of a dot's result, from which those of its operands follow, and why.

    k_width: of the operands, where it is not the one that follows, or of a where wgmma reads that
    from registers; else 0.
    """

    layout: Layout
    instruction: str
    reason: str
    k_width: int = 0


class AccelerateMatmul(Pass):
    """A dot's layouts say how it runs: nvidia_mma on the tensor cores, blocked by multiply-adds.

    dot(%a, %b, %c : #b0) --> convert(dot(convert(%a), convert(%b), convert(%c) : #mma) to #b0)
    """

    def run(self, module: Module) -> None:
        target = Target.parse(module.attributes.get("target", DEFAULT))
        for func in module.funcs:
            maps = TensorMaps(func, target)
            for op in func.walk():
                if isinstance(op, ops.Dot):
                    warps = warps_of(op, module.num_warps)
                    choice = _wgmma(op, warps, target, maps) or choose(op, warps, target)
                    reason = choice.reason
                    op.result.type = with_layout(op.result.type, choice.layout)
                    if target.name == WGMMA_TARGET and not by_wgmma(op):
                        obstacle = pointer_obstacle(op, warps, target, maps.axis)
                        reason += f"; not for wgmma: {obstacle}"
                    remark(op, "dot", f"{choice.instruction}: {reason}",
                           instruction=choice.instruction, layout=str(choice.layout))
                    _convert_operands(op, choice)
        legalize(module)
        remove_identities(module)


def _wgmma(op: ops.Dot, num_warps: int, target: Target, maps: TensorMaps) -> Choice | None:
    layout, reason = wgmma_layout(op, num_warps, target, maps), ""
    if layout is not None:
        reason = "TMA brings both operands to shared memory"
    else:
        layout = pointer_layout(op, num_warps, target, maps.axis)
        reason = "operands are copied to shared memory"
    if layout is None:
        return None
    m, n = layout.instr_shape[:2]
    k_width, made = 0, source_of(op.a)[0]
    if chained_operand(op) or isinstance(made, ops.Elementwise) and made.parent is op.parent:
        k_width, reason = default_k_width(scalar_of(op.a.type)), f"{reason}, a to registers"
    return Choice(layout, f"wgmma.mma_async.sync.aligned.m{m}n{n}", reason, k_width)


def choose(op: ops.Dot, num_warps: int, target: Target) -> Choice:
    """How a dot runs on a target."""
    shape = shape_of(op.result.type)
    instruction = instruction_of(op)
    if instruction is None:
        kind = f"{scalar_of(op.a.type)} to {scalar_of(op.c.type)}, {op.input_precision}"
        return _multiply_adds(shape, num_warps, f"no tensor core multiplies {kind}")
    if not target.has(instruction.name):
        return _multiply_adds(shape, num_warps, f"{target} has no {instruction.name}")
    low_k = linear_shape(shape_of(op.a.type))[-1]
    fewest = THREADS_ALONG_K * default_k_width(scalar_of(op.a.type))
    if low_k < fewest:
        return _multiply_adds(shape, num_warps, f"k = {shape_of(op.a.type)[-1]} is stored in parts "
                              f"of {low_k}, tensor cores take {fewest}")
    rows_only = _feeds_rows(op)
    warps = tile_warps(shape, num_warps, instruction, rows_only)
    why = "a reduction of its rows or a chained dot wants whole rows in a warp" if rows_only else \
        "near-square warp tiles read the least shared memory"
    return Choice(Mma(2, warps, (instruction.m, instruction.n)), instruction.name,
                  f"warps {'x'.join(map(str, warps))}, as {why}", _chained_k_width(op, low_k))


def _chained_k_width(op: ops.Dot, low_k: int) -> int:
    """Two, the neighbours in a row of a dot's result, where such a row becomes operand A.

    Any order of k will do as long as both operands agree, and in this one elements stay in their
    threads. The four bytes of an i8 register are neighbours, though.
    """
    element = scalar_of(op.a.type)
    fits = low_k >= 2 * THREADS_ALONG_K and (element.is_float or element.bits > 8)
    return 2 if fits and default_k_width(element) != 2 and comes_from_dot(op.a) else 0


def _convert_operands(op: ops.Dot, choice: Choice) -> None:
    builder = Builder(before=op, loc=op.loc)
    for index in ((0,) if by_wgmma(op) else (0, 1)) if choice.k_width else ():
        layout = DotOperand(choice.layout, index, choice.k_width)
        op.set_operand(index, convert(op.operands[index], layout, builder))


def tile_warps(shape: Shape, num_warps: int, instruction: MmaInstruction, rows_only: bool) -> Shape:
    """Warps along each dimension of the result.

    Least instructions a warp first (no idle copies), then, with rows_only, fewest warps along
    columns, then least operand elements a warp reads, then most warps along rows: long rows are
    stored in wide pieces.
    """
    whole = (*(1,) * (3 - len(shape)), *shape)
    grain = (1, instruction.m, instruction.n)

    def cost(warps: Shape) -> tuple[int, ...]:
        along = (*(1,) * (3 - len(shape)), *warps)
        batch, m, n = (odd * max(g, low // w) for odd, low, g, w in
                       zip(*storage_shape(whole), grain, along, strict=True))
        return (batch * m * n, along[2] if rows_only else 0, batch * (m + n), -along[1])

    powers = [1 << i for i in range(num_warps.bit_length())]
    options = [w for w in product(powers, repeat=len(shape)) if prod(w) == num_warps]
    return min(options, key=cost)


def _multiply_adds(shape: Shape, num_warps: int, reason: str) -> Choice:
    """A square of results a thread, so that it reads few operands for each."""
    low = linear_shape(shape)
    share = prod(low) // (32 * num_warps)
    side = 4 if share >= 16 else 2 if share >= 4 else 1
    spt = (*(1,) * (len(shape) - 2), *(min(side, n) for n in low[-2:]))
    layout: Blocked = default_blocked(shape, num_warps, spt)
    return Choice(layout, "fma", reason)


# -- what uses a dot ------------------------------------------------------------------------------

def _feeds_rows(op: ops.Dot) -> bool:
    """Whether the result is reduced along its columns, or is operand A of another dot, or the
    dot's own operand A comes from one; in one block, for the sake of what a loop does each turn."""
    uses = uses_in_block(op.result, SAME_PLACES)
    return any(_wants_rows(user, value) for value, user in uses) or comes_from_dot(op.a)


def _wants_rows(user: Op, value: Value) -> bool:
    if isinstance(user, ops.Reduce):
        return user.axis == len(shape_of(value.type)) - 1
    return isinstance(user, ops.Dot) and user.a is value
