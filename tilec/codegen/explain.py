"""Remarks on lowered IR: how wide memory is accessed and why no wider, what the layout conversions
left in it cost, and who uses shared memory."""

from __future__ import annotations

from collections.abc import Callable

from tilec.codegen.access import load_matrices, store_matrices
from tilec.codegen.context import CodeGen, fragment_of
from tilec.ir import ops
from tilec.ir.buffers import buffer_bytes, copy_access
from tilec.ir.conversion import NoOp, Registers, Shared, Shuffles
from tilec.ir.core import Op
from tilec.ir.ops.base import ScratchOp
from tilec.ir.ops.memory import MemoryOp
from tilec.ir.remarks import remark, shown
from tilec.ir.scratch import move_plan, scratch_bytes
from tilec.ir.types import MemDesc, Tensor, pointee_of
from tilec.ir.vectors import access_limits, widest_access


def explain(cg: CodeGen) -> None:
    """Make the remarks on the function that `cg` lowers."""
    for op in cg.func.walk():
        if isinstance(op, ops.Load | ops.Store | ops.AsyncCopy):
            _access(cg, op)
        elif isinstance(op, ops.ConvertLayout | ops.Reshape):
            _conversion(cg, op)
        _buffer(op)


def in_loop(op: Op) -> int:
    """The line of the innermost loop around an op; 0 outside of loops."""
    loop = ops.innermost_loop(op)
    return 0 if loop is None else loop.loc.line


# ---- accesses
_WHY: dict[str, Callable[[int, int], str]] = {
    "size": lambda n, _: "",
    "contiguity": lambda n, _: "no two neighbours are known to be adjacent in memory" if n == 1
    else f"runs of {n} elements are known to be adjacent in memory",
    "alignment": lambda n, size: f"addresses are known to be multiples of {n * size} bytes only",
    "mask": lambda n, _: f"the mask may change every {n} elements" if n > 1
    else "the mask may change at each element",
    "extent": lambda n, _: f"the odd extent leaves pieces of {n}",
    "layout": lambda n, _: f"a thread holds {n} neighbours" if n > 1
    else "a thread holds no two neighbours",
}


_NAMES = {ops.Load: "load", ops.Store: "store", ops.AsyncCopy: "async copy"}


def _access(cg: CodeGen, op: ops.Load | ops.Store | ops.AsyncCopy) -> None:
    size = pointee_of(op.ptr.type).bytes
    what = _NAMES[type(op)]
    value = op.result if isinstance(op, ops.Load) else op.value if isinstance(op, ops.Store) \
        else op.buffer
    if not isinstance(op.ptr.type, Tensor):
        remark(op, "access", f"{what} of {shown(value)}: one access of {size} bytes",
               access=what, bytes=size, count=1, limit="scalar", loop=in_loop(op))
        return
    width = _width(cg, op)
    limit, bound = _limit(cg, op, width)
    count = fragment_of(op.ptr).num_registers // width
    why = _WHY[limit](bound, size)
    remark(op, "access", f"{what} of {shown(value)}: {width * size} bytes an access, "
           f"{count} a thread{'; ' if why else ''}{why}", access=what,
           bytes=width * size, count=count, limit=limit, loop=in_loop(op))


def _width(cg: CodeGen, op: ops.Load | ops.Store | ops.AsyncCopy) -> int:
    """Elements that one instruction moves."""
    if not isinstance(op, ops.AsyncCopy):
        return widest_access(op.ptr, op.mask, cg.axis).width
    found = copy_access(op.ptr, op.mask, cg.axis, op.buffer.type.layout)  # type: ignore[attr-defined]
    return found.width if found is not None else 1  # which the lowering refuses


def _limit(cg: CodeGen, op: MemoryOp, width: int) -> tuple[str, int]:
    """What kept an access from being wider along the dimension that promised most, and the number
    of elements that it allows."""
    info = cg.axis.get(op.ptr)
    found = [access_limits(op.ptr, op.mask, cg.axis, d) for d in range(len(info.contiguity))]
    limits = max(reversed(found), key=lambda f: (min(f.values()), f["contiguity"]))
    name = min(limits, key=lambda n: limits[n])
    if limits[name] > width:
        return "layout", width
    # Of equal bounds, alignment says little where runs are no longer, an odd extent where there are
    # no runs.
    if limits["contiguity"] == limits[name] and \
            (name == "alignment" or name == "extent" and max(info.contiguity) == 1):
        name = "contiguity"
    return name, limits[name]


# ---- conversions
def _conversion(cg: CodeGen, op: ops.ConvertLayout | ops.Reshape) -> None:
    src, dst = op.x.type, op.result.type
    assert isinstance(src, Tensor) and isinstance(dst, Tensor)
    moves = move_plan(src, dst)
    plan, loop = moves.plan, in_loop(op)
    if isinstance(plan, NoOp | Registers):
        return
    users = ", ".join(dict.fromkeys(u.name for u in op.result.users))
    head = f"{'layout conversion' if isinstance(op, ops.ConvertLayout) else 'reshape'} of " \
        f"{shown(op.result)} for {users}: "
    layouts = {"source": str(src.layout), "result": str(dst.layout), "loop": loop}
    if isinstance(plan, Shuffles):
        count = plan.num_shuffles * moves.parts
        remark(op, "conversion", f"{head}{count} shuffles a warp", how="shuffles", shuffles=count,
               **layouts)
        return
    if not isinstance(plan, Shared):
        remark(op, "conversion", f"{head}element by element through {scratch_bytes(op)} bytes of "
               "shared memory, because an odd factor moves", how="memory",
               bytes=scratch_bytes(op), **layouts)
        return
    bits = 8 * src.element.bytes
    times = len(plan.repetitions) * moves.parts
    store = plan.store_route(bits, store_matrices(cg))
    load = plan.load_route(bits, load_matrices(cg))
    by = [name for name, route in (("stmatrix", store), ("ldmatrix", load)) if route.matrix]
    waves = times * (store.cost[0] + load.cost[0])
    conflicts = max(plan.store_conflicts, plan.load_conflicts)
    remark(op, "conversion", f"{head}through {plan.bytes} bytes of shared memory"
           f"{' by ' + ' and '.join(by) if by else ''}, {waves} wavefronts a warp"
           f"{f', {conflicts + 1}-way bank conflicts' if conflicts else ''}"
           f"{', each turn of the loop' if loop else ''}", how="shared", bytes=plan.bytes,
           wavefronts=waves, conflicts=conflicts, **layouts)


# ---- shared memory
def _buffer(op: Op) -> None:
    if isinstance(op, ops.AllocShared):
        t = op.result.type
        assert isinstance(t, MemDesc)
        size = buffer_bytes(op.result)
        remark(op, "shared", f"{size} bytes at {op.offset} for {shown(op.result)}"
               + (f", {t.stages} stages" if t.staged else ""), bytes=size, offset=op.offset,
               stages=t.stages, use="buffer")
    elif isinstance(op, ScratchOp) and op.offset >= 0:
        size = scratch_bytes(op)
        remark(op, "shared", f"{size} bytes at {op.offset} as scratch of {op.name}", bytes=size,
               offset=op.offset, stages=1, use=op.name)
