"""Who touched which elements of an allocation in a launch, and what follows from it: programs that
meet at an element without atomics, stores of several values to one element, elements left out.

A mark stands for a program and an op: program << OP_BITS | number of the op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tilec.eval.dtypes import Array
from tilec.ir.core import Op

OP_BITS = 16
NOBODY = -1
MANY, ATOMIC = 1 << 40, (1 << 40) + 1  # in place of a program: several of them; any, by atomics
MOST_RUNS = 1 << 17  # above it a record of elements is cheaper


class Conflict(Exception):
    """Programs that were run together touch one element, and one of them writes it."""


@dataclass(frozen=True)
class By:
    """Who accesses memory: the op and its programs, [P or 1, 1, ...]. in_runs: it is known to write
    elements that follow each other along the last axis of its lanes."""

    op: Op
    programs: Array
    in_runs: bool


@dataclass(frozen=True)
class Meeting:
    """Two accesses to one element that nothing orders, `verbs` of each ("reads" or "writes")."""

    ops: tuple[Op, Op]
    verbs: tuple[str, str]
    programs: tuple[int, int]
    element: int


class Runs:
    """Disjoint runs of elements [low, high), sorted, with the mark of who wrote each."""

    def __init__(self) -> None:
        self.low, self.high, self.mark = (np.zeros(0, np.int64) for _ in range(3))

    def add(self, low: Array, high: Array, mark: Array) -> bool:
        """Take in runs; False, and nothing happens, if any meets another."""
        order = np.argsort(low)
        low, high, mark = low[order], high[order], mark[order]
        at = np.searchsorted(self.low, low)
        ends, starts = np.append(0, self.high), np.append(self.low, high[-1:])
        if (low[1:] < high[:-1]).any() or (ends[at] > low).any() or (starts[at] < high).any():
            return False
        self.low, self.high, self.mark = np.insert(
            (self.low, self.high, self.mark), at, (low, high, mark), axis=1)
        return True


def runs_of(index: Array, select: Array | None) -> tuple[Array, Array, Array] | None:
    """(rows, low, high) of the lanes that are on of an access in runs, [P or 1, ..., lanes]; None
    where those of a row do not follow each other."""
    lanes = index.shape[-1]
    first = index.reshape(-1, lanes)[:, 0]
    if select is None:
        return np.arange(len(first)), first, first + lanes
    # One row where the mask is the same in all programs, which saves most of the time.
    on = (select[:1] if select.ndim == 2 and select.strides[0] == 0 else select).reshape(-1, lanes)
    begin, end = on.argmax(1), lanes - on[:, ::-1].argmax(1)
    some = on[np.arange(len(on)), begin]
    if (np.count_nonzero(on, 1) != np.where(some, end - begin, 0)).any():
        return None
    rows = np.flatnonzero(np.broadcast_to(some, first.shape))
    return rows, (first + begin)[rows], (first + end)[rows]


@dataclass
class Touches:
    """The touches of the `elements` elements of one allocation.

    together: programs run in groups, and what passes between them raises Conflict. reads: whether
    reads count, too. races: whether programs that meet are reported.
    """

    elements: int
    report: Callable[[Meeting], None]
    together: bool
    reads: bool
    races: bool
    complete: bool = True  # every write is in the record
    _runs: Runs | None = field(default_factory=Runs)
    _writers: Array | None = None
    _readers: Array | None = None
    _changed: Array | None = None  # whether the last write put another value there
    _numbers: dict[Op, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.reads:
            self._readers = np.full(self.elements, NOBODY, np.int64)
            self._changed = np.zeros(self.elements, bool)

    # -- marks ------------------------------------------------------------------------------

    def _mark(self, by: By) -> Array:
        number = self._numbers.setdefault(by.op, len(self._numbers))
        return by.programs << OP_BITS | np.asarray(number)

    def writers(self) -> Array:
        """The mark of who wrote each element last, or NOBODY."""
        if self._writers is None:
            self._writers = np.full(self.elements, NOBODY, np.int64)
            if self._runs is not None:
                for low, high, mark in zip(self._runs.low, self._runs.high, self._runs.mark):
                    self._writers[low:high] = mark
            self._runs = None
        return self._writers

    def miss(self, writes: bool) -> None:
        """An access to parts of elements, or outside of what is recorded: not worth a finer record.
        """
        if self.together and self.reads:
            raise Conflict
        self.complete &= not writes

    # -- accesses ---------------------------------------------------------------------------

    def read(self, index: Array, select: Array | None, by: By) -> None:
        """A load is about to read the elements `index`, [P or 1, ...], where `select`."""
        if self._readers is None:
            return
        marks = np.broadcast_to(self._mark(by), index.shape)
        at, mine = lanes_on(select, index, marks)
        writer = self.writers().take(at)
        if (met := _others(writer, mine)).any():
            if self.together:
                raise Conflict
            assert self._changed is not None
            self._meet(at, mine, writer, met & self._changed.take(at), ("reads", "writes"))
        reader = self._readers.take(at)
        self._readers[at] = np.where(_others(reader, mine), _by_many(mine), mine)
        # Of several programs that read one element at once, only the last was noted.
        lost = _others(self._readers.take(at), mine)
        self._readers[at[lost]] = _by_many(mine[lost])

    def store(self, index: Array, select: Array | None, by: By, view: Array, values: Array) -> None:
        """Write values, [P or 1, ...] like `index`, to elements of `view`."""
        marks = np.broadcast_to(self._mark(by), index.shape)
        if self._runs is not None and self._readers is None and by.in_runs:
            found = runs_of(index, select)
            if found is not None and self._note_runs(marks, *found):
                put(view, index, select, values)
                return
        at, new, mine = lanes_on(select, index, values, marks)
        changes = self._changes(view, at, new)
        self._note_write(at, mine, changes, False)
        view[at] = new
        kept = self._changes(view, at, new)
        if kept.any():  # one element got several values
            self._meet(at, mine, self.writers().take(at), kept, ("writes", "writes"), True)

    def _note_runs(self, marks: Array, rows: Array, low: Array, high: Array) -> bool:
        """Take in runs of these rows; False if elements have to be kept from now on."""
        assert self._runs is not None
        mark = marks[..., 0].reshape(-1)[rows]
        return len(self._runs.low) < MOST_RUNS and self._runs.add(low, high, mark)

    def atomic(self, index: Array, select: Array | None, by: By) -> None:
        """Programs are about to add to the elements `index`, [P or 1, ...], where `select`."""
        at, mine = lanes_on(select, index, np.broadcast_to(self._mark(by), index.shape))
        self._note_write(at, mine, np.ones(len(at), bool), True)

    def _note_write(self, at: Array, mine: Array, changes: Array, atomic: bool) -> None:
        writers = self.writers()
        writer = writers.take(at)
        met = _others(writer, mine) & (writer >> OP_BITS != ATOMIC if atomic else True)
        if met.any():
            if self.together and self.reads and (met & (atomic | (writer >> OP_BITS == ATOMIC))
                                                 ).any():
                raise Conflict
            self._meet(at, mine, writer, met & changes, ("writes", "writes"))
        if self._readers is not None and self._changed is not None:
            reader = self._readers.take(at)
            if (met := _others(reader, mine)).any():
                if self.together:
                    raise Conflict
                self._meet(at, mine, reader, met & changes, ("writes", "reads"))
            self._changed[at] |= changes
        writers[at] = (ATOMIC << OP_BITS | mine & (1 << OP_BITS) - 1) if atomic else mine

    @staticmethod
    def _changes(view: Array, at: Array, new: Array) -> Array:
        """Which of the elements hold other bits than these."""
        bits = np.dtype(f"u{new.dtype.itemsize}")
        return np.asarray(view.view(bits).take(at) != new.view(bits))

    def _meet(self, at: Array, mine: Array, theirs: Array, where: Array, verbs: tuple[str, str],
              same: bool = False) -> None:
        """Report one of the marked lanes, at which two accesses meet."""
        if not where.any() or not (self.races or same):
            return
        i = int(np.flatnonzero(where)[0])
        ops = list(self._numbers)
        marks = int(mine[i]), int(theirs[i])
        first, second = (ops[mark & (1 << OP_BITS) - 1] for mark in marks)
        programs = marks[0] >> OP_BITS, marks[1] >> OP_BITS
        if self.races or programs[0] == programs[1]:
            self.report(Meeting((first, second), verbs, programs, int(at[i])))

    # -- afterwards -------------------------------------------------------------------------

    def gaps(self) -> tuple[Array, Op] | None:
        """The elements that nothing wrote between the first and the last that were written, and
        the op that wrote the element before the first of them; None if there are none."""
        runs = self._runs
        if runs is not None and (not len(runs.low) or (runs.low[1:] == runs.high[:-1]).all()):
            return None
        writers = self.writers()
        written = np.flatnonzero(writers != NOBODY)
        if not len(written) or len(written) == written[-1] - written[0] + 1:
            return None
        between = np.flatnonzero(writers[:written[-1]] == NOBODY)
        between = between[between > written[0]]
        mark = int(writers[between[0] - 1])
        return between, list(self._numbers)[mark & (1 << OP_BITS) - 1]


def _others(theirs: Array, mine: Array) -> Array:
    """Which marks are of another program than one's own."""
    return np.asarray((theirs != NOBODY) & (theirs >> OP_BITS != mine >> OP_BITS))


def _by_many(marks: Array) -> Array:
    """The marks of the same ops by several programs."""
    return np.asarray(MANY << OP_BITS | marks & (1 << OP_BITS) - 1)


def put(view: Array, index: Array, select: Array | None, values: Array) -> None:
    """Write values to elements of a vector, where `select`."""
    at, new = lanes_on(select, index, values)
    view[at] = new


def lanes_on(select: Array | None, *arrays: Array) -> list[Array]:
    """The elements of arrays, [P or 1, ...], where `select`, one after another."""
    if select is None:
        return [a.reshape(-1) for a in arrays]
    if select.ndim == 2 and select.strides[0] == 0:  # the same lanes in all programs
        lanes = np.flatnonzero(select[0])
        return [a.take(lanes, 1).reshape(-1) for a in arrays]
    return [a[select] for a in arrays]
