"""What a kernel needs of a target, judged before any code is generated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tilec.errors import OutOfResources
from tilec.ir import ops
from tilec.ir.core import UNKNOWN, Func, Module, Op, Value
from tilec.ir.ops.base import Rearrange
from tilec.ir.ops.memory import MemoryOp
from tilec.ir.remarks import recorded, remark
from tilec.ir.scratch import tile_fragment, tile_registers
from tilec.ir.types import Scalar, Tensor
from tilec.target import Target

# What a thread may hold at once, in registers and as elements of one tile. Beyond the 255 registers
# that there are, values spill, which costs the assembler more than linear time: on sm_90a with four
# warps a softmax of 2^15, 2^16 and 2^17 elements (256, 512 and 1024 registers) takes 0.4, 1.6 and
# 4.4 s, and a product of 256 x 256 x 256 in float32 with eight warps (768 registers) 11 s.
MOST_REGISTERS, MOST_ELEMENTS = 640, 1024
_LISTED = 6


def check_resources(module: Module, target: Target) -> None:
    """OutOfResources for more threads or shared memory than a CTA can have, and for tiles that are
    far too large for its threads. Registers are but estimated, and may spill: somewhat too many
    make a remark."""
    threads = module.num_warps * target.warp_size
    if threads > target.max_threads:
        raise OutOfResources("threads", threads, target.max_threads,
                             f"  {module.num_warps} warps of {target.warp_size} threads",
                             module.funcs[0].loc)
    shared = int(module.attributes.get("shared", 0))
    if shared > target.max_shared:
        raise OutOfResources("shared memory", shared, target.max_shared, loc=module.funcs[0].loc)
    for func in module.funcs:
        _refuse_large(func)
        most, op, tiles = peak_registers(func)
        if most > MOST_REGISTERS:
            raise _too_many("registers a thread", most, MOST_REGISTERS, tiles)
        if op is not None and recorded():
            limit = next((a.registers for a in op.ancestors() if isinstance(a, ops.WarpRole)
                          and a.registers), target.registers(
                              module.num_warps, int(module.attributes.get("maxnreg", 0))))
            if most > limit:
                remark(op, "pressure", f"tiles hold about {most} registers a thread here, of "
                       f"{limit}, and may spill; smaller tiles or more warps hold fewer",
                       registers=most, limit=limit)


def _refuse_large(func: Func) -> None:
    """OutOfResources where an op that costs instructions for every element of a thread has a tile
    of too many."""
    for op in func.walk():
        if isinstance(op, MemoryOp | ops.SharedLoad | ops.SharedStore | ops.Combining | ops.Dot |
                      ops.ConvertLayout | ops.Gather | ops.Histogram):
            for value in (*op.results, *op.operands):
                if not isinstance(value.type, Tensor):
                    continue
                elements = tile_fragment(value.type).num_registers
                if elements > MOST_ELEMENTS:
                    raise _too_many("elements of a tile a thread", elements, MOST_ELEMENTS,
                                    [value], [op])


def _too_many(resource: str, required: int, limit: int, tiles: Sequence[Value],
              places: Sequence[Op] = ()) -> OutOfResources:
    """An error that names what a thread holds too much of, the largest tiles first. places: ops
    that it may be shown at, before those that make the tiles."""
    lines = ["  registers  elements  tile"]
    for value in tiles[:_LISTED]:
        assert isinstance(value.type, Tensor)
        shape = f"{value.type.element}[{', '.join(map(str, value.type.shape))}]"
        lines.append(f"  {tile_registers(value.type):9}  "
                     f"{tile_fragment(value.type).num_registers:8}  "
                     f"{f'`{value.name}`, ' * bool(value.name)}{shape}")
    made = (value.op for value in tiles if value.op is not None)
    error = OutOfResources(
        resource, required, limit, "\n".join(lines),
        next((op.loc for op in (*places, *made) if op.loc is not UNKNOWN), None))
    error.advice = "give the kernel more warps (`num_warps`), or use smaller tiles"
    return error


class Peak(NamedTuple):
    """The most registers a thread that hold data at once, the op at which they do, and the tiles
    that they hold, the largest first."""

    registers: int
    op: Op | None
    tiles: list[Value]


def peak_registers(func: Func) -> Peak:
    """How many registers a thread needs at least for its data.

    Data are tiles that were loaded, and what is computed of them; addresses, masks and constants
    mostly fold into instructions and are left out. Values live from their op to their last use in
    the order of the text, those used in a loop until its end. What only rearranges a tile is the
    same registers, and elementwise ops free those of an operand as they fill those of the result.
    """
    order = list(func.walk())
    number = {op: i for i, op in enumerate(order)}
    end = {around: i for i, op in enumerate(order) for around in (op, *op.ancestors())}

    def ends(value: Value) -> Iterator[int]:
        for user in value.users:
            at = _at_level(value, user)
            if at is not user:
                yield end[at]
            elif isinstance(user, Rearrange):
                yield from ends(user.result)
            else:
                yield number[user] - _takes_over(user, value)

    lives: list[tuple[int, int, int, Value]] = []  # registers, first and last op
    change: dict[int, int] = {}
    for value, start in _data(order):
        if isinstance(value.op, Rearrange):
            continue
        last = max(ends(value), default=start)
        assert isinstance(value.type, Tensor)
        size = tile_registers(value.type)
        lives.append((size, start, last, value))
        change[start] = change.get(start, 0) + size
        change[last + 1] = change.get(last + 1, 0) - size
    most, live, at = 0, 0, 0
    for i in sorted(change):
        live += change[i]
        if live > most:
            most, at = live, i
    if not most:
        return Peak(0, None, [])
    held = sorted((x for x in lives if x[1] <= at <= x[2]), key=lambda x: -x[0])
    return Peak(most, order[min(at, len(order) - 1)], [x[3] for x in held])


def _data(order: list[Op]) -> Iterator[tuple[Value, int]]:
    """Tiles of data, each with the number of the op at which it begins."""
    data: set[Value] = set()
    for i, op in enumerate(order):
        sources = isinstance(op, ops.Load | ops.SharedLoad | ops.RemoteLoad | ops.Dot)
        for block in op.regions:
            for arg in block.args:
                # A carried accumulator: the value before the loop is the same registers.
                if _is_float_tile(arg):
                    data.add(arg)
                    yield arg, i
        for r in op.results:
            if isinstance(r.type, Tensor) and not isinstance(op, ops.Constant | ops.ControlFlow) \
                    and (sources or any(v in data for v in op.operands)):
                data.add(r)
                yield r, i


def _is_float_tile(value: Value) -> bool:
    t = value.type
    return isinstance(t, Tensor) and isinstance(t.element, Scalar) and t.element.is_float


def _takes_over(user: Op, value: Value) -> bool:
    """Whether an op's result is in the same registers."""
    return isinstance(user, ops.WgmmaWait | ops.Elementwise) or \
        isinstance(user, ops.Wgmma) and value is user.c


def _at_level(value: Value, user: Op) -> Op:
    """The op around `user` in the block where the value is made."""
    block = value.op.parent if value.op is not None else value.owner
    return next((op for op in (user, *user.ancestors()) if op.parent is block), user)
