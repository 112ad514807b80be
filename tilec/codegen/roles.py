"""Lowering of warp roles: a branch on the number of the warp, which is the same in all its lanes,
and inside of it threads, barriers and registers that are the role's own; named barriers.

Source: PTX ISA, "bar" and "setmaxnreg".
"""

from __future__ import annotations

from tilec.codegen.context import CodeGen, Warps, lower
from tilec.errors import CompilationError
from tilec.ir import ops
from tilec.ir.core import Func
from tilec.ir.ops.roles import launch_registers, role_barriers


def give_registers(func: Func, maxnreg: int) -> bool:
    """Whether roles of the function have registers of their own; CompilationError if the kernel has
    a limit for all threads too."""
    role = next((op for op in func.walk() if isinstance(op, ops.WarpRole) and op.registers), None)
    if role is not None and maxnreg:
        raise CompilationError(f"maxnreg is {maxnreg}, and roles have registers of their own",
                               role.loc, "leave out one of the two")
    return role is not None


@lower(ops.WarpSpecialize)
def _specialize(cg: CodeGen, op: ops.WarpSpecialize) -> None:
    e, outer, done = cg.e, cg.warps, cg.e.label("roles_end")
    # Barriers 1 and on may still be in use by warpgroups outside.
    first, barrier, warp = 0, 1 + outer.count // 4, cg.warp()
    for role in op.roles:
        inside, others = e.label("role"), e.label("others")
        if role is op.roles[-1]:
            e.jump(inside)
        else:
            e.branch(e.compare("ult", warp, e.const(first + role.warps, "i32")), inside, others)
        e.start(inside)
        cg.warps = Warps(first, role.warps, barrier, barrier + (role.warps > 1))
        with e.apart():
            cg.op(role)
        e.jump(done)
        if role is not op.roles[-1]:
            e.start(others)
        first, barrier = first + role.warps, barrier + role_barriers(role.warps)
    cg.warps = outer
    e.start(done)
    if not isinstance(op.next, ops.Return):
        cg.barrier()


@lower(ops.WarpRole)
def _role(cg: CodeGen, op: ops.WarpRole) -> None:
    assert op.parent is not None and isinstance(op.parent.parent_op, ops.WarpSpecialize)
    have = launch_registers(32 * sum(r.warps for r in op.parent.parent_op.roles))
    if op.registers and op.registers != have:
        change = "inc" if op.registers > have else "dec"
        cg.e.asm(f"setmaxnreg.{change}.sync.aligned.u32 {op.registers};", "", (), (),
                 convergent=True)
    cg.block(op.body)


@lower(ops.NamedBarrierArrive)
def _named_arrive(cg: CodeGen, op: ops.NamedBarrierArrive) -> None:
    cg.named_barrier(cg.e.const(op.number, "i32"), op.threads, "arrive")


@lower(ops.NamedBarrierSync)
def _named_sync(cg: CodeGen, op: ops.NamedBarrierSync) -> None:
    cg.named_barrier(cg.e.const(op.number, "i32"), op.threads)
