"""What a kernel needs of a target, judged before any code is generated."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.errors import OutOfResources
from tilec.ir import ops
from tilec.ir.core import Func, Module, Op, Value
from tilec.ir.ops.base import Rearrange
from tilec.ir.remarks import recorded, remark
from tilec.ir.scratch import tile_registers
from tilec.ir.types import Scalar, Tensor
from tilec.target import Target


def check_resources(module: Module, target: Target) -> None:
    """OutOfResources for more threads or shared memory than a CTA can have. Registers are but
    estimated, and may spill: too many make a remark."""
    threads = module.num_warps * target.warp_size
    if threads > target.max_threads:
        raise OutOfResources("threads", threads, target.max_threads,
                             f"  {module.num_warps} warps of {target.warp_size} threads",
                             module.funcs[0].loc)
    shared = int(module.attributes.get("shared", 0))
    if shared > target.max_shared:
        raise OutOfResources("shared memory", shared, target.max_shared, loc=module.funcs[0].loc)
    if recorded():
        limit = target.registers(module.num_warps, int(module.attributes.get("maxnreg", 0)))
        for func in module.funcs:
            most, op = peak_registers(func)
            limit = next((a.registers for a in op.ancestors() if isinstance(a, ops.WarpRole)
                          and a.registers), limit) if op is not None else limit
            if op is not None and most > limit:
                remark(op, "pressure", f"tiles hold about {most} registers a thread here, of "
                       f"{limit}, and may spill; smaller tiles or more warps hold fewer",
                       registers=most, limit=limit)


def peak_registers(func: Func) -> tuple[int, Op | None]:
    """The most registers a thread that hold data at once, and the op at which they do.

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

    change: dict[int, int] = {}
    for value, start in _data(order):
        if isinstance(value.op, Rearrange):
            continue
        last = max(ends(value), default=start)
        assert isinstance(value.type, Tensor)
        size = tile_registers(value.type)
        change[start] = change.get(start, 0) + size
        change[last + 1] = change.get(last + 1, 0) - size
    most, live, at = 0, 0, None
    for i in sorted(change):
        live += change[i]
        if live > most:
            most, at = live, order[min(i, len(order) - 1)]
    return most, at


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
