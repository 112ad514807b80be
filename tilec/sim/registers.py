"""The registers of a CTA, which its warpgroups share out among themselves (PTX ISA, "setmaxnreg").

A launch gives all threads equally many. What a warpgroup gives up goes to a pool, from which others
take; one that finds too few there waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.sim.errors import Fault

if TYPE_CHECKING:
    from tilec.sim.machine import Machine

Array = np.ndarray[Any, Any]

REGISTERS = 65536  # of a multiprocessor
MOST = 256  # a thread; code can name 255
STEP = 8
WARPGROUP = 128  # threads


def at_launch(threads: int, ctas: int = 1, limit: int = 0) -> int:
    """Registers a thread of a CTA of `threads`, `ctas` of which a multiprocessor must hold, at most
    `limit` if that is not 0. The four schedulers have a quarter of the registers each, and as many
    of the warps, rounded up."""
    share = REGISTERS // (WARPGROUP * -(-threads // WARPGROUP) * max(ctas, 1))
    return min(share, -(-(limit or MOST) // STEP) * STEP, MOST) // STEP * STEP


class Registers:
    """What each warpgroup has, and what is left in the pool of each CTA, per thread."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.launch = at_launch(machine.threads)

    def reset(self) -> None:
        """A new CTA has what the launch gives it."""
        groups = -(-self.machine.lanes // WARPGROUP)
        self.have = np.full(groups, self.launch)
        self.pool = np.zeros(self.machine.lanes // self.machine.cta_lanes, np.int64)

    def __str__(self) -> str:
        return f"there are {self.pool.tolist()} in the pool of each CTA, per thread of a warpgroup"

    def change(self, pc: int, mask: Array, count: int, more: bool) -> Array:
        """Warpgroups of the mask, all whole, ask for `count` registers a thread: those that have
        got them. The others wait at `pc`."""
        going = mask.copy()
        for group in np.unique(np.flatnonzero(mask) // WARPGROUP).tolist():
            first = group * WARPGROUP
            cta, have = first // self.machine.cta_lanes, int(self.have[group])
            if more != (count >= have) and count != have:
                raise Fault(f"setmaxnreg.{'inc' if more else 'dec'} to {count} registers, where it "
                            f"has {have}", first)
            if count - have > self.pool[cta]:
                waiting = np.zeros(len(mask), bool)
                waiting[first : first + WARPGROUP] = True
                self.machine.park(self, pc, waiting, f"{count - have} more registers a thread")
                going &= ~waiting
                continue
            self.pool[cta] -= count - have
            self.have[group] = count
        if not more:
            self.machine.wake(self)
        return going
