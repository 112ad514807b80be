"""What the arguments of a launch see of an allocation: the gaps between a view's elements, and
elements that two arguments share, which lanes may use alike only (docs/semantics.md, section 9).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.eval.dtypes import Array
from tilec.interp.touches import NOBODY, OP_BITS, By, lanes_on
from tilec.ir.core import Op

SEVERAL = -1  # lanes


def elements_of(array: Array, start: int, size: int) -> Array:
    """The elements of an array, as numbers of an allocation's in which it begins at `start`."""
    index = np.array(start)
    for extent, stride in zip(array.shape, array.strides, strict=True):
        index = index[..., None] + np.arange(extent) * (stride // size)
    return index.reshape(-1)


class Gaps:
    """The elements between those of one argument's array, `own` being the latter's numbers."""

    def __init__(self, own: Array) -> None:
        self.first = int(own.min())
        self.between = np.ones(int(own.max()) + 1 - self.first, bool)
        self.between[own - self.first] = False

    def hit(self, at: Array) -> int | None:
        """One of the elements that lies in a gap."""
        inside = at - self.first
        inside = inside[(inside >= 0) & (inside < len(self.between))]
        inside = inside[self.between[inside]]
        return int(inside[0]) + self.first if len(inside) else None


class Sharing:
    """Who last read and who last wrote each element of an allocation that several arguments have:
    marks as in `touches`, the argument and the lane."""

    def __init__(self, elements: int) -> None:
        self._last = {writes: (np.full(elements, NOBODY, np.int64), np.zeros(elements, np.int64),
                               np.zeros(elements, np.int64)) for writes in (False, True)}
        self._ops: list[Op] = []
        self._names: list[str] = []
        self._shapes: list[tuple[int, ...]] = []

    def access(self, name: str, index: Array, select: Array | None, by: By, writes: bool
               ) -> tuple[int, bool, Op, str] | None:
        """Take an access in; (element, whether written, op, argument) of another one of the same
        program through another argument, by another lane, if one of the two writes."""
        shape = index.shape[1:]
        lanes = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
        lane = (lanes | _number(self._shapes, shape) << 40) + np.zeros_like(index)
        programs = np.broadcast_to(by.programs, index.shape)
        at, lane, mark = lanes_on(select, index, lane,
                                  programs << OP_BITS | _number(self._ops, by.op))
        own = _number(self._names, name)
        found = None
        for wrote in (True, False) if writes else (True,):
            marks, names, others = (a.take(at) for a in self._last[wrote])
            met = (marks >> OP_BITS == mark >> OP_BITS) & (names != own) & (others != lane)
            if met.any() and found is None:
                i = int(np.flatnonzero(met)[0])
                op = self._ops[int(marks[i]) & (1 << OP_BITS) - 1]
                found = int(at[i]), wrote, op, self._names[int(names[i])]
        if writes:  # by the lane that read it, so that what comes after this comes after that
            self._last[False][0][at] = NOBODY
        marks, names, others = self._last[writes]
        again = (marks.take(at) >> OP_BITS == mark >> OP_BITS) & (names.take(at) == own) & \
            (others.take(at) != lane)
        marks[at], names[at], others[at] = mark, own, np.where(again, SEVERAL, lane)
        return found

    def barrier(self, programs: Array) -> None:
        """The threads of these programs meet."""
        for marks, _, _ in self._last.values():
            marks[np.isin(marks >> OP_BITS, programs)] = NOBODY


def _number(known: list[Any], new: object) -> int:
    if new not in known:
        known.append(new)
    return known.index(new)


class Views:
    """Watches how arguments are used that have gaps or share elements. name_of: the argument that
    an op's pointer comes from, or "". report_gap(op, element), report_shared(op, writes, found)."""

    def __init__(self, gaps: dict[str, Gaps], sharing: Sharing | None,
                 name_of: Callable[[Op], str], report_gap: Callable[[Op, bool, int], None],
                 report_shared: Callable[[Op, bool, tuple[int, bool, Op, str]], None]) -> None:
        self.gaps, self.sharing, self.name_of = gaps, sharing, name_of
        self.report_gap, self.report_shared = report_gap, report_shared

    def access(self, index: Array, select: Array | None, by: By, writes: bool) -> None:
        """An access to elements `index`, [P or 1, ...], where `select`."""
        name = self.name_of(by.op)
        if name in self.gaps:
            (at,) = lanes_on(select, index)
            if (element := self.gaps[name].hit(at)) is not None:
                self.report_gap(by.op, writes, element)
        if self.sharing is not None and name:
            found = self.sharing.access(name, index, select, by, writes)
            if found is not None:
                self.report_shared(by.op, writes, found)
