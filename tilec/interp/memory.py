"""The interpreter's global memory: host arrays at simulated addresses, accessed in place.

Allocations lie 2^40 bytes apart, so that a pointer that runs out of one cannot reach another, and
keep their host address modulo 256, so that alignment is as on the host. Arrays that overlap share
an allocation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tilec.eval.dtypes import BOOL, Array, DType

SPACING = 1 << 40
NOBODY, MANY, ATOMIC = -1, -2, -3


class Conflict(Exception):
    """Programs that were run together touch one element, and one of them writes it."""


class AccessError(Exception):
    """A bad access, to be reported by the caller: `lanes` marks the bad ones, `reason` says why.

    allocation is where the address points near to; None if it is near to none.
    """

    def __init__(self, reason: str, lanes: Array, allocation: Allocation | None) -> None:
        super().__init__(reason)
        self.reason, self.lanes, self.allocation = reason, lanes, allocation


@dataclass(eq=False)
class Allocation:
    """Bytes of host memory at address `base`. readers and writers hold, per element, the program
    that touched it (or NOBODY, MANY, ATOMIC); they exist only where conflicts are looked for."""

    base: int
    raw: Array
    names: list[str]
    dtype: DType
    writeable: bool
    readers: Array | None = None
    writers: Array | None = None
    _views: dict[DType, Array] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.base + len(self.raw)

    @property
    def elements(self) -> int:
        return len(self.raw) // self.dtype.itemsize

    def view(self, dtype: DType) -> Array:
        """The bytes as a vector of `dtype`."""
        if dtype not in self._views:
            whole = len(self.raw) // dtype.itemsize * dtype.itemsize
            self._views[dtype] = self.raw[:whole].view(dtype)
        return self._views[dtype]

    def track(self) -> None:
        """Start recording which program touches which element."""
        self.readers = np.full(self.elements, NOBODY, np.int64)
        self.writers = np.full(self.elements, NOBODY, np.int64)


def _span(array: Array) -> tuple[int, int]:
    """First and past-the-last host address of an array of any strides."""
    low = high = array.ctypes.data
    if array.size == 0:
        return low, low
    for extent, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
    return low, high + array.itemsize


def _raw(low: int, high: int) -> Array:
    if high == low:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))


class Memory:
    """All allocations of a launch. `address[name]` is the address of that argument's array."""

    kind: type[Allocation] = Allocation

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = dict(arrays)  # keeps the host memory alive
        self.address: dict[str, int] = {}
        self.allocations: list[Allocation] = []
        self.changes = 0  # grows with every write that changes something, if counted
        self.count_changes = False
        spans = sorted((*_span(a), name) for name, a in arrays.items())
        i = 0
        while i < len(spans):
            low, high, names = spans[i][0], spans[i][1], [spans[i][2]]
            while i + 1 < len(spans) and spans[i + 1][0] < high:
                i += 1
                high = max(high, spans[i][1])
                names.append(spans[i][2])
            self._allocate(low, high, names)
            for name in names:
                # A reversed view starts at its last byte; `data` is its first element.
                start = arrays[name].ctypes.data
                self.address[name] = self.allocations[-1].base + start - low
            i += 1
        self.bases = np.array([a.base for a in self.allocations], np.int64)
        self.ends = np.array([a.end for a in self.allocations], np.int64)

    def _allocate(self, low: int, high: int, names: list[str]) -> None:
        base = (len(self.allocations) + 1) * SPACING + low % 256
        first = self.arrays[names[0]]
        self.allocations.append(self.kind(base, _raw(low, high), names, first.dtype,
                                          any(self.arrays[n].flags.writeable for n in names)))

    def allocation_of(self, name: str) -> Allocation:
        """The allocation that holds the array of argument `name`."""
        return self.allocations[self.address[name] // SPACING - 1]

    # -- resolving --------------------------------------------------------------------------

    def _resolve(self, address: Array, active: Array | None, size: int,
                 ) -> list[tuple[Allocation, Array | None]]:
        """Allocations touched, each with its lanes (None: all active ones). Checks bounds and
        alignment of every active lane; raises AccessError."""
        if active is None:
            low, high = address.min(), address.max()
        else:
            info = np.iinfo(np.int64)
            low = address.min(where=active, initial=info.max)
            high = address.max(where=active, initial=info.min)
            if low > high:
                return []
        index = int(low) // SPACING - 1
        inside = 0 <= index < len(self.allocations)
        if inside and low >= self.bases[index] and high + size <= self.ends[index]:
            allocation = self.allocations[index]
            self._check_alignment(address, active, allocation, size)
            return [(allocation, None)]
        return self._resolve_lanes(address, active, size)

    def _check_alignment(self, address: Array, active: Array | None, allocation: Allocation,
                         size: int) -> None:
        if size > 1:
            odd = np.asarray((address | allocation.base) & (size - 1)) != 0
            odd = odd if active is None else odd & active
            if odd.any():
                raise AccessError("misaligned", odd, allocation)

    def _resolve_lanes(self, address: Array, active: Array | None, size: int,
                       ) -> list[tuple[Allocation, Array | None]]:
        index = address // SPACING - 1
        # A little before an allocation still means that one.
        index = np.where(address % SPACING > SPACING // 2, index + 1, index)
        known = (index >= 0) & (index < len(self.allocations))
        clipped = np.clip(index, 0, max(0, len(self.allocations) - 1))
        if self.allocations:
            good = known & (address >= self.bases[clipped]) & (address + size <= self.ends[clipped])
        else:
            good = np.zeros(address.shape, bool)
        bad = ~good if active is None else ~good & active
        if bad.any():
            first = tuple(np.argwhere(bad)[0])
            near = self.allocations[int(index[first])] if known[first] else None
            raise AccessError("bounds", bad, near)
        lanes_of = good if active is None else active
        out: list[tuple[Allocation, Array | None]] = []
        for i in np.unique(clipped[lanes_of]):
            lanes = lanes_of & (clipped == i)
            self._check_alignment(address, lanes, self.allocations[i], size)
            out.append((self.allocations[i], lanes))
        return out

    # -- access -----------------------------------------------------------------------------

    def load(self, address: Array, active: Array | None, dtype: DType, programs: Array) -> Array:
        """Elements at `address` [P, ...]; inactive lanes give arbitrary ones.

        programs: [P or 1, 1, ...], the program of each lane. Raises AccessError and Conflict.
        """
        stored = np.dtype(np.uint8) if dtype == BOOL else dtype
        parts = self._resolve(address, active, dtype.itemsize)
        out: Array | None = None
        for allocation, lanes in parts:
            view = allocation.view(stored)
            index = self._index(address, allocation, dtype.itemsize)
            select = active if lanes is None else lanes
            if select is not None:
                index = np.where(select, index, 0)
            if allocation.readers is not None:
                self._note_read(allocation, index, select, programs, dtype)
            part = np.take(view, index)
            out = part if out is None or lanes is None else np.where(lanes, part, out)
        if out is None:
            out = np.zeros(address.shape, stored)
        return out != 0 if dtype == BOOL else out

    @staticmethod
    def _index(address: Array, allocation: Allocation, size: int) -> Array:
        offset = address - allocation.base
        return offset >> (size.bit_length() - 1) if size > 1 else offset

    def store(self, address: Array, value: Array, active: Array | None, programs: Array) -> None:
        """Write `value` [P, ...]; raises AccessError and Conflict."""
        for view, index, values, _ in self._writes(address, value, active, programs, False):
            if self.count_changes:
                self.changes += bool((view[index] != values).any())
            view[index] = values

    def atomic_add(self, address: Array, value: Array, active: Array | None, programs: Array,
                   want_old: bool) -> Array | None:
        """Add to memory lane after lane; the old values if `want_old`."""
        old = np.zeros(address.shape, value.dtype) if want_old else None
        dtype = self.stored_as(address, value, active)
        for view, index, values, lanes in self._writes(address, value, active, programs, True):
            if self.count_changes:
                self.changes += bool(values.astype(bool).any())
            if old is None:
                self.add_at(view, index, values, dtype)
                continue
            taken = np.empty(len(index), value.dtype)
            for i, (at, v) in enumerate(zip(index.tolist(), values, strict=True)):
                taken[i] = view[at]
                self.add_at(view, np.array([at]), np.asarray([v], view.dtype), dtype)
            old[lanes] = taken
        return old

    def _writes(self, address: Array, value: Array, active: Array | None, programs: Array,
                atomic: bool) -> list[tuple[Array, Array, Array, Array]]:
        """(vector, indices, values, lanes) for each allocation, after all checks."""
        dtype = self.stored_as(address, value, active)
        size = dtype.itemsize
        stored = value.view(np.uint8) if value.dtype == BOOL else value
        out = []
        for allocation, lanes in self._resolve(address, active, size):
            select = active if lanes is None else lanes
            if not allocation.writeable:
                where = np.ones(address.shape, bool) if select is None else select
                raise AccessError("readonly", where, allocation)
            index = self._index(address, allocation, size)
            if allocation.writers is not None:
                self._note_write(allocation, index, select, programs, dtype, atomic)
            if select is None:
                select = np.ones(address.shape, bool)
                index = index.reshape(-1)
                values = np.broadcast_to(stored, address.shape).reshape(-1)
            else:
                index, values = index[select], np.broadcast_to(stored, address.shape)[select]
            out.append((allocation.view(dtype), index, values, select))
        return out

    def stored_as(self, address: Array, value: Array, active: Array | None) -> DType:
        """The dtype of the elements in memory that a value is written to."""
        return np.dtype(np.uint8) if value.dtype == BOOL else value.dtype

    @np.errstate(all="ignore")
    def add_at(self, view: Array, index: Array, values: Array, dtype: DType) -> None:
        """view[index] += values, elements of `dtype`, one after another, each rounded."""
        if len(np.unique(index)) == len(index):
            view[index] = view[index] + values
        else:
            np.add.at(view, index, values)

    def finish(self) -> None:
        """All has run."""

    # -- conflicts --------------------------------------------------------------------------

    def _lanes(self, allocation: Allocation, index: Array, select: Array | None, programs: Array,
               dtype: DType) -> tuple[Array, Array]:
        if dtype.itemsize != allocation.dtype.itemsize:
            raise Conflict  # elements of two sizes: not worth a finer record
        who = np.broadcast_to(programs, index.shape)
        return (index.reshape(-1), who.reshape(-1)) if select is None else \
            (index[select], who[select])

    def _note_read(self, allocation: Allocation, index: Array, select: Array | None,
                   programs: Array, dtype: DType) -> None:
        at, who = self._lanes(allocation, index, select, programs, dtype)
        readers, writers = allocation.readers, allocation.writers
        assert readers is not None and writers is not None
        writer = writers[at]
        if ((writer != NOBODY) & (writer != who)).any():
            raise Conflict
        reader = readers[at]
        readers[at] = np.where((reader == NOBODY) | (reader == who), who, MANY)
        # Of several programs reading one element at once, the last assignment won.
        readers[at[readers[at] != who]] = MANY

    def _note_write(self, allocation: Allocation, index: Array, select: Array | None,
                    programs: Array, dtype: DType, atomic: bool) -> None:
        at, who = self._lanes(allocation, index, select, programs, dtype)
        readers, writers = allocation.readers, allocation.writers
        assert readers is not None and writers is not None
        reader, writer = readers[at], writers[at]
        mixed = writer != ATOMIC if atomic else writer == ATOMIC
        clash = mixed & (writer != NOBODY) & (writer != who)
        if (clash | ((reader != NOBODY) & (reader != who))).any():
            raise Conflict
        writers[at] = ATOMIC if atomic else who
