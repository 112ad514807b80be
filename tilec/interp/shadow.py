"""Shared memory of the `lowered` level: who touched which bytes since the last barrier.

Buffers and scratch have offsets there. Two accesses to one byte, one of them a write, need a
barrier between them; bytes that an asynchronous copy writes to are nobody's before a wait and a
barrier; a write to bytes that another live buffer holds destroys that buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilec.eval.dtypes import Array
from tilec.interp.asynchrony import End
from tilec.interp.blame import VERBS, place
from tilec.interp.buffers import Buffer, Copy, View
from tilec.interp.frame import Frame
from tilec.ir import ops
from tilec.ir.core import Op
from tilec.ir.ops.base import ScratchOp
from tilec.ir.scratch import meets_inside, scratch_bytes

if TYPE_CHECKING:
    from tilec.interp.machine import Machine


@dataclass
class _Access:
    op: Op
    low: int
    high: int
    writes: bool
    rows: Array  # bool, the programs that did it


class Shadow:
    """Accesses to shared bytes since the last barrier, for one group of programs. outer: that of
    the program, for a warp role, whose barriers order none of what came before it."""

    def __init__(self, root: Frame, outer: Shadow | None = None) -> None:
        self.root, self.outer = root, outer
        self._pending: list[_Access] = []

    def barrier(self, frame: Frame) -> None:
        """All warps of the frame's programs meet."""
        mark = frame.mark_in(self.root)
        for access in self._pending:
            access.rows = access.rows & ~mark
        self._pending = [a for a in self._pending if a.rows.any()]

    def access(self, m: Machine, frame: Frame, op: Op, low: int, high: int, writes: bool,
               part: Array | slice = slice(None), explicit: bool = False) -> None:
        """Record an access to [low, high); InterpreterError if it is unordered with another.
        explicit: only copies under way count, barriers are written out."""
        mark = frame.mark_in(self.root, part)
        self._check_copies(m, op, low, high, writes, mark)
        if explicit:
            return
        for other in (*self._pending, *(self.outer._pending if self.outer is not None else ())):
            if other.low < high and low < other.high and (writes or other.writes) and \
                    (other.rows & mark).any():
                raise m.error(
                    op, f"{op.name} {VERBS[writes]} shared bytes {max(low, other.low)} to "
                    f"{min(high, other.high)}, which {other.op.name} at {place(other.op)} "
                    f"{VERBS[other.writes]}, with no barrier between them",
                    "a barrier is missing: insert_barriers should have put it before this op")
        if not isinstance(op, ops.AsyncCopy):
            self._note(op, low, high, writes, mark)

    def _check_copies(self, m: Machine, op: Op, low: int, high: int, writes: bool, mark: Array
                      ) -> None:
        """No copy under way may write to bytes that are accessed."""
        for copy in m.copies.under_way:
            start = copy.low()
            meets = (start < high) & (low < start + copy.view.buffer.size) & mark[copy.who]
            if meets.any():
                raise m.error(
                    op, f"{op.name} {VERBS[writes]} shared bytes {low} to {high}, into which "
                    f"{copy.op.name} at {place(copy.op)} may still be copying",
                    "no gpu.async_wait or gpu.mbarrier_wait in between covers that copy")

    def _note(self, op: Op, low: int, high: int, writes: bool, mark: Array) -> None:
        for other in self._pending:
            if (other.op, other.low, other.high, other.writes) == (op, low, high, writes):
                other.rows = other.rows | mark
                return
        self._pending.append(_Access(op, low, high, writes, mark))

    def landed(self, ended: Sequence[Copy]) -> None:
        """Copies that a wait covers count as fresh writes: other threads see them after a barrier.
        """
        for copy in ended:
            for low in np.unique(copy.low()):
                mark = np.zeros(len(self.root), bool)
                mark[copy.who[copy.low() == low]] = True
                self._note(copy.op, int(low), int(low) + copy.view.buffer.size, True, mark)


def touch(m: Machine, frame: Frame, op: Op, view: View, writes: bool,
          end: End | None = None) -> None:
    """Threads access a buffer, or asynchronous copies for them: none may be under way into it."""
    if m.role is not None:
        m.role.access(m, frame, op, view, writes, end)
    if m.shadow is not None:
        for low, high, part in view.bytes(frame):
            m.shadow.access(m, frame, op, low, high, writes, part, view.buffer.explicit)
    copied = m.copies.into(frame, view)
    if copied is not None:
        raise m.error(op, f"{op.name} {VERBS[writes]} a buffer into which {copied.op.name} at "
                      f"{place(copied.op)} may still be copying", "no wait in between covers it")


def use_scratch(m: Machine, frame: Frame, op: ScratchOp) -> None:
    """`op` writes its scratch bytes, lets the threads concerned meet, and reads them."""
    size = scratch_bytes(op) if m.shadow is not None and op.offset >= 0 else 0
    if m.shadow is None or size == 0:
        return
    low, high = op.offset, op.offset + size
    if m.role is not None:
        m.role.scratch(m, frame, op, low, high)
    m.shadow.access(m, frame, op, low, high, True)
    destroy_others(m, frame, None, low, high)
    if meets_inside(op):
        m.meet(frame)
        m.shadow.access(m, frame, op, low, high, False)


def destroy_others(m: Machine, frame: Frame, owner: Buffer | None, low: int, high: int) -> None:
    """What a write to [low, high) does to buffers that lie there too."""
    for view in m.buffers.values():
        buffer = view.buffer
        if buffer is not owner and low >= 0 and buffer.low < high and low < buffer.high:
            buffer.destroy(frame)
