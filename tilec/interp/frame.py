"""Values of a group of programs that run together, and poison.

A value is a pair: an array [P or 1, *tile shape] (1: the same in all P programs) and its poison,
a bool array that broadcasts with it, or None where nothing is poison. (What a wgmma is still
adding up has integers there; see `interp/hopper.py`.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilec.eval.dtypes import Array
from tilec.ir.core import Value

Data = tuple[Array, Array | None]


def take(data: Data, rows: Array) -> Data:
    """The rows of some of the programs."""
    array, poison = data
    if len(array) > 1:
        array = array[rows]
    if poison is not None and len(poison) > 1:
        poison = poison[rows]
    return array, poison


def merge(parts: Sequence[tuple[Array, Data]], count: int) -> Data:
    """One value of `count` programs from (rows, value of those rows) that cover them."""
    first = parts[0][1][0]
    array = np.empty((count, *first.shape[1:]), first.dtype)
    for rows, (part, _) in parts:
        array[rows] = part
    if all(poison is None for _, (_, poison) in parts):
        return array, None
    kinds = [poison.dtype for _, (_, poison) in parts if poison is not None]
    mask = np.zeros(array.shape, np.result_type(*kinds))
    for rows, (_, poison) in parts:
        if poison is not None:
            mask[rows] = poison
    return array, mask


def union(*poisons: Array | None) -> Array | None:
    """Where any of them is poison."""
    some = [p for p in poisons if p is not None]
    if not some:
        return None
    out = some[0]
    for p in some[1:]:
        out = out | p
    return out


class Frame:
    """The values of `programs` (linear ids, [P]). A frame below another holds some of its rows."""

    def __init__(self, programs: Array, parent: Frame | None = None,
                 rows: Array | None = None) -> None:
        self.programs = programs
        self.parent = parent
        self.rows = rows
        self.env: dict[Value, Data] = {}

    def __len__(self) -> int:
        return len(self.programs)

    def narrow(self, rows: Array) -> Frame:
        """A frame for some of the programs."""
        return Frame(self.programs[rows], self, rows)

    def get(self, value: Value) -> Data:
        """The value, in this frame's rows."""
        data = self.env.get(value)
        if data is None:
            assert self.parent is not None and self.rows is not None, f"{value!r} has no value"
            data = self.env[value] = take(self.parent.get(value), self.rows)
        return data

    def find(self, value: Value) -> Data | None:
        """Like `get`, but None if the value is gone or not yet there."""
        data = self.env.get(value)
        if data is None and self.parent is not None and self.rows is not None:
            above = self.parent.find(value)
            data = None if above is None else take(above, self.rows)
        return data

    def bind(self, values: Sequence[Value], data: Sequence[Data]) -> None:
        """Give values (block arguments, results) their data."""
        for value, d in zip(values, data, strict=True):
            self.env[value] = d

    def chain(self) -> Iterator[Frame]:
        """This frame and those above it."""
        frame: Frame | None = self
        while frame is not None:
            yield frame
            frame = frame.parent

    def rows_in(self, home: Frame) -> Array | None:
        """This frame's rows as rows of a frame above; None for all of them."""
        if self is home:
            return None
        assert self.parent is not None and self.rows is not None
        above = self.parent.rows_in(home)
        return self.rows if above is None else above[self.rows]

    def index_in(self, home: Frame) -> Array:
        """Like `rows_in`, with all of them spelled out."""
        rows = self.rows_in(home)
        return np.arange(len(home)) if rows is None else rows

    def mark_in(self, home: Frame, part: Array | slice = slice(None)) -> Array:
        """Which rows of a frame above are in this one, or in `part` of it, bool [rows]."""
        mark = np.zeros(len(home), bool)
        mark[self.index_in(home)[part]] = True
        return mark
