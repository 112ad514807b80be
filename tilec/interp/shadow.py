"""Shared memory of the `lowered` level: who touched which bytes since the last barrier.

Buffers and scratch have offsets there. Two accesses to one byte, one of them a write, need a
barrier between them; a write to bytes that another live buffer holds destroys that buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.eval.dtypes import Array
from tilec.interp.blame import place
from tilec.interp.frame import Data, Frame
from tilec.ir.core import Op
from tilec.ir.ops.base import ScratchOp
from tilec.ir.scratch import scratch_bytes

if TYPE_CHECKING:
    from tilec.interp.machine import Machine


class Buffer:
    """A buffer in shared memory, one per program of the frame that made it.

    [low, high) are its bytes, empty before they are allocated. Unwritten elements are poison.
    """

    def __init__(self, home: Frame, data: Data, low: int, high: int) -> None:
        self.home, self.low, self.high = home, low, high
        self.array, poison = data
        assert poison is not None
        self.poison = poison

    def read(self, frame: Frame) -> Data:
        """The content, in the frame's rows."""
        rows = self._rows(frame)
        poison = self.poison[rows]
        return self.array[rows].copy(), poison.copy() if poison.any() else None

    def write(self, frame: Frame, data: Data) -> None:
        """Replace the content in the frame's rows."""
        rows = self._rows(frame)
        self.array[rows] = data[0]
        self.poison[rows] = False if data[1] is None else data[1]

    def destroy(self, frame: Frame) -> None:
        """The bytes were used for something else, in the frame's rows."""
        if any(f is self.home for f in frame.chain()):
            self.poison[self._rows(frame)] = True

    def _rows(self, frame: Frame) -> Any:
        rows = frame.rows_in(self.home)
        return slice(None) if rows is None else rows


@dataclass
class _Access:
    op: Op
    low: int
    high: int
    writes: bool
    rows: Array  # bool, the programs that did it


class Shadow:
    """Accesses to shared bytes since the last barrier, for one group of programs."""

    def __init__(self, root: Frame) -> None:
        self.root = root
        self._pending: list[_Access] = []

    def _mark(self, frame: Frame) -> Array:
        rows = frame.rows_in(self.root)
        mark = np.ones(len(self.root), bool)
        if rows is not None:
            mark[:] = False
            mark[rows] = True
        return mark

    def barrier(self, frame: Frame) -> None:
        """All warps of the frame's programs meet."""
        mark = self._mark(frame)
        for access in self._pending:
            access.rows = access.rows & ~mark
        self._pending = [a for a in self._pending if a.rows.any()]

    def access(self, m: Machine, frame: Frame, op: Op, low: int, high: int, writes: bool) -> None:
        """Record an access to [low, high); InterpreterError if it is unordered with another."""
        mark = self._mark(frame)
        for other in self._pending:
            if other.low < high and low < other.high and (writes or other.writes) and \
                    (other.rows & mark).any():
                raise m.error(
                    op, f"{op.name} {_verb(writes)} shared bytes {max(low, other.low)} to "
                    f"{min(high, other.high)}, which {other.op.name} at {place(other.op)} "
                    f"{_verb(other.writes)}, with no barrier between them",
                    "a barrier is missing: insert_barriers should have put it before this op")
        for other in self._pending:
            if (other.op, other.low, other.high, other.writes) == (op, low, high, writes):
                other.rows = other.rows | mark
                return
        self._pending.append(_Access(op, low, high, writes, mark))


def _verb(writes: bool) -> str:
    return "writes" if writes else "reads"


def touch(m: Machine, frame: Frame, op: Op, low: int, high: int, writes: bool) -> None:
    """Note an access to shared bytes, at the lowered level."""
    if m.shadow is not None and low >= 0:
        m.shadow.access(m, frame, op, low, high, writes)


def use_scratch(m: Machine, frame: Frame, op: ScratchOp) -> None:
    """`op` writes its scratch bytes, meets all warps in a barrier of its own, and reads them."""
    size = scratch_bytes(op) if m.shadow is not None and op.offset >= 0 else 0
    if m.shadow is None or size == 0:
        return
    low, high = op.offset, op.offset + size
    touch(m, frame, op, low, high, True)
    destroy_others(m, frame, None, low, high)
    m.shadow.barrier(frame)
    touch(m, frame, op, low, high, False)


def destroy_others(m: Machine, frame: Frame, owner: Buffer | None, low: int, high: int) -> None:
    """What a write to [low, high) does to buffers that lie there too."""
    for buffer in m.buffers.values():
        if buffer is not owner and low >= 0 and buffer.low < high and low < buffer.high:
            buffer.destroy(frame)
