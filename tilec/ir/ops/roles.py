"""Ops of the `gpu` and `lowered` levels that divide the warps of a CTA among roles, which run at
the same time, and what a launch has to share out among them: registers and named barriers.
"""

from __future__ import annotations

from tilec.ir.core import Block, Op, attr, region
from tilec.ir.ops.gpu import AsyncCommit, AsyncCopy, AsyncWait
from tilec.ir.ops.hopper import MbarrierInit, Wgmma
from tilec.ir.ops.scf import Return
from tilec.ir.types import Tensor

REGISTERS_PER_SM = 65536


class WarpRole(Op, name="gpu.warp_role", effects={"barrier"}):
    """What `warps` warps do, in a `gpu.warp_specialize`. Layouts, threads and warp numbers inside
    count these warps alone; barriers and scratch memory are theirs.

    registers: how many each thread may have from here on (setmaxnreg); 0 leaves it open.
    """

    isolated = True
    body: Block = region()
    warps: int = attr(int, least=1, most=64)
    registers: int = attr(int, 0, least=0)

    def check(self) -> None:
        around = self.parent.parent_op if self.parent else None
        if not isinstance(around, WarpSpecialize):
            raise self.fail("must stand in a gpu.warp_specialize")
        n = self.registers
        if n and (n % 8 or not 24 <= n <= 256 or self.warps % 4):
            raise self.fail(f"registers is {n} for {self.warps} warps, expected a multiple of 8 "
                            f"from 24 to 256, for whole warpgroups",
                            "give all roles 4 warps, or 8, 12, ..." if self.warps % 4 else
                            f"give it {min(max(n // 8 * 8, 24), 256)} registers")
        first = sum(r.warps for r in around.roles[:around.roles.index(self)])
        if first % 4 and (n or any(isinstance(op, Wgmma) for op in self.body.walk())):
            raise self.fail(f"the role begins with warp {first}; for wgmma and registers of its "
                            "own it must begin with a multiple of 4, as warpgroups do")
        own = {v for op in self.body.walk() for block in op.regions for v in block.args}
        for op in self.body.walk():
            if reason := _NOT_IN_ROLES.get(type(op)):
                raise op.fail(f"stands in a warp role: {reason}")
            own.update(op.results)
            for v in op.operands:
                if isinstance(v.type, Tensor) and v not in own:
                    raise op.fail(f"uses a tile from outside of its warp role: {v!r}")


class WarpSpecialize(Op, name="gpu.warp_specialize", effects={"barrier"}):
    """The CTA's warps, in order, take the roles in the region, which run at the same time. Roles
    use scalars, pointers, buffers, mbarriers and tensor maps from outside, but no tiles. mbarriers
    and named barriers alone order what two roles do. All warps meet at the end.

    A module's num_warps counts all of them, and is the sum of the roles' warps. Roles with
    registers of their own share those that the launch gives the CTA, and keep them: the op is then
    the function's last.
    """

    isolated = True
    body: Block = region()

    @property
    def roles(self) -> list[WarpRole]:
        """The roles in order."""
        return [op for op in self.body if isinstance(op, WarpRole)]

    def check(self) -> None:
        for op in self.body:
            if not isinstance(op, WarpRole) and not op.terminator:
                raise self.fail(f"{op.name} stands beside the roles")
        self._check_barriers()
        registers = [r.registers for r in self.roles]
        if not any(registers):
            return
        if not all(registers):
            raise self.fail(f"registers are {registers}, expected all or none to be given")
        total = sum(32 * r.warps * r.registers for r in self.roles)
        threads = 32 * sum(r.warps for r in self.roles)
        limit = threads * launch_registers(threads)
        if total > limit:
            raise self.fail(f"the roles have {total} registers, a launch of {threads} threads has "
                            f"{limit}: give them fewer")
        if next(self.ancestors(), None) is not None or not isinstance(self.next, Return):
            raise self.fail("roles with registers of their own must be the function's last op, "
                            "outside of loops and branches",
                            "what follows goes into the roles; or give no registers")

    def _check_barriers(self) -> None:
        """Each role of several warps has a barrier, and its warpgroups have theirs."""
        need = sum(role_barriers(r.warps) for r in self.roles)
        free = BARRIERS_PER_CTA - 1 - sum(r.warps for r in self.roles) // 4
        if need > free:
            raise self.fail(f"the roles need {need} barriers of their own, {free} are left: "
                            "fewer warpgroups, or fewer roles of several warps, need less")


BARRIERS_PER_CTA = 16  # PTX ISA, "bar": one is the CTA's, and one each of its warpgroups has

_NOT_IN_ROLES: dict[type[Op], str] = {
    WarpSpecialize: "roles do not nest",
    MbarrierInit: "mbarriers are set up before the roles begin, with a barrier after it",
    **dict.fromkeys((AsyncCopy, AsyncCommit, AsyncWait), "TMA copies there")}


def role_barriers(warps: int) -> int:
    """How many named barriers a role of so many warps has: one for itself, if they are several, and
    one for each whole warpgroup."""
    return (warps > 1) + (0 if warps % 4 else warps // 4)


def launch_registers(threads: int) -> int:
    """Registers that each thread may have when a CTA of `threads` has a multiprocessor to itself:
    a multiple of 8 (PTX ISA, "setmaxnreg"). The four schedulers have a quarter of the registers
    each, and as many of the warps, rounded up."""
    return min(REGISTERS_PER_SM // (128 * -(-threads // 128)), 256) // 8 * 8
