"""Named barriers: barriers of the hardware at which warp roles meet.

Source: PTX ISA, "bar / barrier".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilec.errors import CompilationError
from tilec.ir import ops
from tilec.ir.core import Block, Op
from tilec.ir.ops.roles import BARRIERS_PER_CTA
from tilec.language.context import current, error
from tilec.language.values import builtin, const_int


@dataclass(frozen=True)
class barrier_of_roles:
    """A named barrier for so many warps, known at compile time. A round of it ends when so many
    have arrived, and the next one begins."""

    number: int
    num_warps: int

    @builtin
    def arrive(self) -> None:
        """All threads of the role arrive and go on (bar.arrive). What they have read and written
        before, in shared and global memory, comes before what those do who wait for the round."""
        self._fits("arrive")
        current().builder.insert(
            ops.NamedBarrierArrive(barrier=self.number, warps=self.num_warps))

    @builtin
    def sync(self) -> None:
        """All threads of the role, or outside of roles of the program, arrive and wait for the
        round to end (bar.sync)."""
        self._fits("sync")
        current().builder.insert(ops.NamedBarrierSync(barrier=self.number, warps=self.num_warps))

    def _fits(self, what: str) -> None:
        """CompilationError where the threads cannot come to this barrier together."""
        context, count = current(), self.num_warps
        if context.one_thread:
            raise error(f"{what}: all threads come to a named barrier, not one",
                        "move this out of the `if tlg.elect()`")
        if context.in_role and context.num_warps > count:
            raise error(f"{what}: the role has {context.num_warps} warps, the named barrier is for "
                        f"{count}", "num_warps counts the warps of all roles that come to it")
        if not context.in_role and (what == "arrive" or context.num_warps != count):
            raise error(f"{what}: outside of roles all {context.num_warps} warps come to a named "
                        f"barrier and wait there; this one is for {count}",
                        "use tlg.barrier() there, and named barriers in roles")

    def __str__(self) -> str:
        return f"named barrier for {self.num_warps} warps"

    __repr__ = __str__


@builtin
def named_barrier(num_warps: Any) -> barrier_of_roles:
    """A barrier of the hardware, by which roles order what they do:

        full, empty = tlg.named_barrier(5), tlg.named_barrier(5)  # of roles of 4 warps and of 1

    `.arrive()` in a role goes on, `.sync()` waits until `num_warps` warps have arrived, those that
    wait included; then the next round begins. Who arrives must know that the round before has
    ended, by having waited for it or for one who has. It is made outside of roles, and handed to
    them as an argument. It orders what threads do; for what TMA and wgmma read of it,
    tlg.fence_async comes first. A program has 16 barriers of the hardware, of which its warps, its
    roles and their warpgroups take theirs. Source: PTX ISA, "bar / barrier".

    CompilationError for a count that is no number from 1 to the kernel's warps, in a role, and
    where no barrier is left.
    """
    what, context = "tlg.named_barrier", current()
    count = const_int(num_warps, "the num_warps of tlg.named_barrier")
    if context.in_role:
        raise error(f"{what}: stands in a role, whose warps alone would come to it",
                    "make it before tlg.warp_specialize, and hand it to the roles")
    if not 1 <= count <= context.num_warps:
        raise error(f"{what}: num_warps is {count}, and the kernel has {context.num_warps} warps",
                    "it counts the warps of all roles that come to the barrier")
    others = 1 + context.num_warps // 4
    if context.named_barriers >= BARRIERS_PER_CTA - others:
        raise error(f"{what}: found {context.named_barriers} before it, expected at most "
                    f"{BARRIERS_PER_CTA - others - 1}: a program has {BARRIERS_PER_CTA} barriers, "
                    f"of which its {context.num_warps} warps and their warpgroups have {others}",
                    "an mbarrier also orders roles, and there may be many")
    context.named_barriers += 1
    return barrier_of_roles(context.named_barriers - 1, count)


def check_counts(roles: Block) -> None:
    """CompilationError for a wait that no arrivals of these roles can end."""
    users: dict[int, dict[Op, int]] = {}  # by barrier, the roles that come to it and their warps
    for role in roles:
        for op in role.walk():
            if isinstance(op, ops.NamedBarrier):
                assert isinstance(role, ops.WarpRole)
                users.setdefault(op.barrier, {})[role] = role.warps
    for role in roles:
        for op in role.walk():
            if not isinstance(op, ops.NamedBarrierSync):
                continue
            sums = {0}
            for other, warps in users[op.barrier].items():
                sums |= {n + warps for n in sums} if other is not role else set()
            if op.warps - users[op.barrier][role] not in sums:
                have = ", ".join(map(str, users[op.barrier].values()))
                raise CompilationError(
                    f"sync: the named barrier is for {op.warps} warps, and the roles that come to "
                    f"it have {have}: this never ends", op.loc,
                    "num_warps counts the warps of all roles that come to it")
