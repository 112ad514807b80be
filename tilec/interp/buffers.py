"""Shared memory as the interpreter holds it: buffers, views of them, copies under way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilec.eval.dtypes import Array
from tilec.interp.frame import Data, Frame
from tilec.ir.core import Op


class Buffer:
    """A buffer in shared memory, one per program of the frame that made it.

    data: [P, stages, *tile]; unwritten elements are poison. Its bytes start at `low`, which is
    negative before they are allocated; a stage takes `size`. explicit: TMA uses it, so that its
    barriers are written out.
    """

    def __init__(self, home: Frame, data: Data, low: int, size: int, explicit: bool = False
                 ) -> None:
        self.home, self.low, self.size, self.explicit = home, low, size, explicit
        self.array, poison = data
        assert poison is not None
        self.poison = poison

    @property
    def high(self) -> int:
        """The end of its bytes; not above `low` before they are allocated."""
        return self.low + self.size * self.array.shape[1] if self.low >= 0 else self.low

    def put(self, rows: Array, stage: Array, array: Array, poison: Array | bool) -> None:
        """Replace the content of one stage in each of the rows."""
        self.array[rows, stage] = array
        self.poison[rows, stage] = poison

    def destroy(self, frame: Frame) -> None:
        """The bytes were used for something else, in the frame's rows."""
        if any(f is self.home for f in frame.chain()):
            self.poison[frame.index_in(self.home)] = True


@dataclass(frozen=True)
class View:
    """One stage of a buffer in each row of the frame `home`, with its dimensions in `order`."""

    buffer: Buffer
    home: Frame
    stage: Array  # [P or 1]
    order: tuple[int, ...]

    def place(self, frame: Frame) -> tuple[Array, Array]:
        """(rows of the buffer, stage of each) for the frame's programs."""
        rows, own = frame.index_in(self.buffer.home), frame.rows_in(self.home)
        stage = self.stage if own is None or len(self.stage) == 1 else self.stage[own]
        return rows, np.broadcast_to(stage, rows.shape)

    def read(self, frame: Frame) -> Data:
        """The content, in the frame's rows."""
        rows, stage = self.place(frame)
        axes = (0, *(d + 1 for d in self.order))
        array, poison = self.buffer.array[rows, stage], self.buffer.poison[rows, stage]
        return array.transpose(axes), poison.transpose(axes) if poison.any() else None

    def stored(self, array: Array) -> Array:
        """A tile of this view as the buffer holds it."""
        return array.transpose((0, *(self.order.index(d) + 1 for d in range(len(self.order)))))

    def write(self, frame: Frame, data: Data) -> None:
        """Replace the content in the frame's rows."""
        array, poison = data
        self.buffer.put(*self.place(frame), self.stored(array),
                        False if poison is None else self.stored(
                            np.broadcast_to(poison, (len(poison), *array.shape[1:]))))

    def bytes(self, frame: Frame) -> Iterator[tuple[int, int, Array]]:
        """(low, high, rows of the frame) of what the frame's programs access."""
        _, stages = self.place(frame)
        for stage in np.unique(stages):
            low = self.buffer.low
            if low >= 0:
                low += int(stage) * self.buffer.size
                yield low, low + self.buffer.size, np.flatnonzero(stages == stage)


@dataclass
class Copy:
    """An asynchronous copy that no wait covers yet. Per program that began it: its row in the
    launch's frame, the buffer's row and stage, the group, and whether the data has landed."""

    PER_PROGRAM: ClassVar[tuple[str, ...]] = ("who", "rows", "stage", "group", "data", "landed")
    op: Op
    view: View
    who: Array
    rows: Array
    stage: Array
    group: Array
    data: Array
    landed: Array

    def land(self, which: Array) -> None:
        """The data arrives for the programs marked in `which`, where it has not yet."""
        which = np.flatnonzero(which & ~self.landed)
        if len(which):
            self.view.buffer.put(self.rows[which], self.stage[which], self.data[which], False)
            self.landed[which] = True

    def keep(self, which: Array) -> None:
        """Forget the programs that are not marked."""
        for name in self.PER_PROGRAM:
            setattr(self, name, getattr(self, name)[which])

    def low(self) -> Array:
        """Where the bytes of each program's stage start; negative before they are allocated."""
        low, size = self.view.buffer.low, self.view.buffer.size
        return low + self.stage * size if low >= 0 else np.full(len(self.stage), low)


class Copies:
    """The asynchronous copies of a group of programs. They land as late as they may: in the wait
    that covers them. random: for what else is drawn while these programs run."""

    def __init__(self, root: Frame, seed: int | None) -> None:
        self.root = root
        self.random = np.random.default_rng(
            None if seed is None else (seed, int(root.programs[0]) if len(root) else 0))
        self.closed = np.zeros(len(root), np.int64)  # groups committed, per program
        self.under_way: list[Copy] = []

    def begin(self, frame: Frame, op: Op, view: View, array: Array) -> None:
        """A copy of `array` ([P or 1, *tile]) into the view begins."""
        who = frame.index_in(self.root)
        rows, stage = view.place(frame)
        data = view.stored(np.broadcast_to(array, (len(who), *array.shape[1:])))
        self.under_way.append(Copy(op, view, who, rows, stage, self.closed[who], data,
                                   np.zeros(len(who), bool)))

    def commit(self, frame: Frame) -> None:
        """The copies begun since the last commit are a group."""
        self.closed[frame.index_in(self.root)] += 1

    def wait(self, frame: Frame, pending: int) -> list[Copy]:
        """The data of all groups but the newest `pending` arrives; what had been under way."""
        waits = frame.mark_in(self.root)
        ended: list[Copy] = []
        for copy in self.under_way:
            done = waits[copy.who] & (copy.group < self.closed[copy.who] - pending)
            copy.land(done)
            if done.any():
                ended.append(Copy(**vars(copy)))
                ended[-1].keep(done)
                copy.keep(~done)
        self.under_way = [c for c in self.under_way if len(c.who)]
        return ended

    def into(self, frame: Frame, view: View) -> Copy | None:
        """A copy into what the frame's programs see by the view, which no wait has covered."""
        for copy in self.under_way:
            if copy.view.buffer is view.buffer:
                rows, stage = view.place(frame)
                _, mine, theirs = np.intersect1d(rows, copy.rows, return_indices=True)
                if (stage[mine] == copy.stage[theirs]).any():
                    return copy
        return None
