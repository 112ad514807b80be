"""Named barriers of the author's: what orders warp roles at a barrier of the hardware.

Source: PTX ISA, "bar / barrier". Of the 16 barriers of a CTA, those of all threads, of warpgroups
and of roles count from 0 up, the author's from 15 down.
"""

from __future__ import annotations

from tilec.ir.core import Func, Op, attr
from tilec.ir.ops.hopper import SYNC
from tilec.ir.ops.roles import BARRIERS_PER_CTA, WarpRole, WarpSpecialize, role_barriers


class NamedBarrier(Op):
    """Base of what all threads of a role do at a named barrier. A round of it ends when `warps`
    warps have arrived, and the next one begins.

    barrier: its number, from 0. What is read and written before an arrival comes before what
    those do who have waited for its round.
    """

    barrier: int = attr(int)
    warps: int = attr(int)

    @property
    def number(self) -> int:
        """The hardware's number of the barrier."""
        return BARRIERS_PER_CTA - 1 - self.barrier

    @property
    def threads(self) -> int:
        """How many threads end a round."""
        return 32 * self.warps

    def check(self) -> None:
        if not 0 <= self.barrier < BARRIERS_PER_CTA - 1:
            raise self.fail(f"barrier is {self.barrier}, expected 0 to {BARRIERS_PER_CTA - 2}")
        if not 1 <= self.warps <= 32:
            raise self.fail(f"warps is {self.warps}, expected 1 to 32")


class NamedBarrierArrive(NamedBarrier, name="gpu.named_barrier_arrive", effects=SYNC | {"barrier"}):
    """All threads of the role arrive and go on (bar.arrive)."""


class NamedBarrierSync(NamedBarrier, name="gpu.named_barrier_sync", effects=SYNC | {"barrier"}):
    """All threads of the role, or outside of roles of the CTA, arrive and wait for the end of the
    round (bar.sync): a barrier of these threads, too."""


def check_named_barriers(func: Func, num_warps: int) -> None:
    """IRError at the first op on a named barrier whose count or number does not fit."""
    found = [op for op in func.walk() if isinstance(op, NamedBarrier)]
    if not found:
        return
    roles = [op.roles for op in func.walk() if isinstance(op, WarpSpecialize)]
    others = 1 + num_warps // 4 + max((sum(role_barriers(r.warps) for r in rs) for rs in roles),
                                      default=0)
    counts: dict[int, int] = {}
    for op in found:
        if op.number < others:
            raise op.fail(f"the kernel's named barrier {op.barrier + 1}, and {others} of the "
                          f"{BARRIERS_PER_CTA} barriers are its warps', warpgroups' and roles': "
                          "make fewer, or take mbarriers, of which there may be many")
        count = counts.setdefault(op.barrier, op.warps)
        if op.warps != count:
            raise op.fail(f"warps is {op.warps}, elsewhere {count} for the same named barrier")
        role = next((a for a in op.ancestors() if isinstance(a, WarpRole)), None)
        if role is not None and role.warps > count:
            raise op.fail(f"the role has {role.warps} warps, the named barrier is for {count}")
        if role is None and (isinstance(op, NamedBarrierArrive) or count != num_warps):
            raise op.fail(f"outside of roles all {num_warps} warps come to a named barrier, and "
                          f"wait there; this one is for {count}")
