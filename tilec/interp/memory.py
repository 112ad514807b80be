"""The interpreter's global memory: host arrays at simulated addresses, accessed in place.

An allocation is the memory behind an array, of which the array may be a view; views of one memory
share it. Allocations lie 2^40 bytes apart, so that a pointer that runs out of one cannot reach
another, and keep their host address modulo 256, so that alignment is as on the host.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilec.eval.atomics import Update, in_turn, update_of
from tilec.eval.dtypes import BOOL, Array, DType
from tilec.eval.storage import span_of, storage_of
from tilec.interp.touches import By, Touches, lanes_on, put
from tilec.interp.views import Views

SPACING = 1 << 40


class AccessError(Exception):
    """A bad access, to be reported by the caller: `lanes` marks the bad ones, `reason` says why.

    allocation is where the address points near to; None if it is near to none.
    """

    def __init__(self, reason: str, lanes: Array, allocation: Allocation | None) -> None:
        super().__init__(reason)
        self.reason, self.lanes, self.allocation = reason, lanes, allocation


@dataclass(eq=False)
class Allocation:
    """Bytes of host memory at address `base`. core: the offsets between which the arguments' views
    lie. touches: who touched its elements, views: how arguments are used, where that is watched;
    both count elements from the core's first."""

    base: int
    raw: Array
    core: slice
    names: list[str]
    dtype: DType
    writeable: bool
    touches: Touches | None = None
    views: Views | None = None
    _views: dict[DType, Array] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.base + len(self.raw)

    @property
    def first(self) -> int:
        """The address of the core."""
        return self.base + self.core.start

    @property
    def elements(self) -> int:
        """How many there are in the core."""
        return (self.core.stop - self.core.start) // self.dtype.itemsize

    def in_core(self, index: Array, select: Array | None, size: int) -> Array | None:
        """Numbers of elements of `size` bytes as they count from the core's first; None where they
        are of another size than the arguments', or some lie outside of all views."""
        if size == self.dtype.itemsize and self.core == slice(0, len(self.raw)):
            return index
        at = index - self.core.start // size
        lanes = at if select is None else at[select]
        known = size == self.dtype.itemsize and (
            not lanes.size or lanes.min() >= 0 and lanes.max() < self.elements)
        return at if known else None

    def view(self, dtype: DType) -> Array:
        """The bytes as a vector of `dtype`."""
        if dtype not in self._views:
            whole = len(self.raw) // dtype.itemsize * dtype.itemsize
            self._views[dtype] = self.raw[:whole].view(dtype)
        return self._views[dtype]

    def core_view(self, dtype: DType) -> Array:
        """The elements of the core, of as many bytes as the arguments', as a vector of `dtype`."""
        first = self.core.start // dtype.itemsize
        return self.view(dtype)[first:first + self.elements]


def _raw(low: int, high: int) -> Array:
    if high == low:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))


class Memory:
    """All allocations of a launch. `address[name]` is the address of that argument's array,
    `views[name]` the addresses from and up to which its elements lie; `wider`: the names of those
    behind which there is more memory."""

    kind: type[Allocation] = Allocation

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = dict(arrays)  # keeps the host memory alive
        self.address: dict[str, int] = {}
        self.allocations: list[Allocation] = []
        self.changes = 0  # grows with every write that changes something, if counted
        self.count_changes = False
        self.views: dict[str, tuple[int, int]] = {}
        found: list[tuple[int, int, list[str]]] = []
        for low, high, name in sorted((*storage_of(a), name) for name, a in arrays.items()):
            start, end, names = found.pop() if found and low < found[-1][1] else (low, high, [])
            found.append((start, max(end, high), [*names, name]))
        order = {name: i for i, name in enumerate(arrays)}
        # By argument, not by where the host's memory lies: addresses are the same in every run.
        for low, high, names in sorted(found, key=lambda f: min(order[name] for name in f[2])):
            self._allocate(low, high, names)
            for name in names:
                # A reversed view starts at its last byte; `data` is its first element.
                move = self.allocations[-1].base - low
                self.address[name] = arrays[name].ctypes.data + move
                first, last = span_of(arrays[name])
                self.views[name] = first + move, last + move
        self.wider = {name for name, view in self.views.items()
                      if view != (self.allocation_of(name).base, self.allocation_of(name).end)}
        self.bases = np.array([a.base for a in self.allocations], np.int64)
        self.ends = np.array([a.end for a in self.allocations], np.int64)

    def _allocate(self, low: int, high: int, names: list[str]) -> None:
        base = (len(self.allocations) + 1) * SPACING + low % 256
        size = self.arrays[names[0]].itemsize
        views = [span_of(self.arrays[n]) for n in names]
        start = (min(first for first, _ in views) - low) // size * size
        stop = min(-(-(max(last for _, last in views) - low) // size) * size, high - low)
        self.allocations.append(self.kind(
            base, _raw(low, high), slice(start, stop), names, self.arrays[names[0]].dtype,
            any(self.arrays[n].flags.writeable for n in names)))

    def elements(self, name: str) -> int:
        """How many elements there are from the first to the last of an argument's array."""
        low, high = self.views[name]
        return (high - low) // self.arrays[name].itemsize

    def allocation_of(self, name: str) -> Allocation:
        """The allocation that holds the array of argument `name`."""
        return self.allocations[self.address[name] // SPACING - 1]

    def barrier(self, programs: Array) -> None:
        """The threads of each of these programs meet."""
        for allocation in self.allocations:
            if allocation.views is not None and allocation.views.sharing is not None:
                allocation.views.sharing.barrier(programs)

    # -- resolving --------------------------------------------------------------------------

    def _resolve(self, address: Array, active: Array | None, size: int,
                 ) -> list[tuple[Allocation, Array | None]]:
        """Allocations touched, each with its lanes (None: all active ones). Checks bounds and
        alignment of every active lane; raises AccessError."""
        if active is not None and not active.any():
            return []
        allocation = self._around(address.min(), address.max() + size)
        if allocation is None and active is not None:  # maybe for lanes that are off
            info = np.iinfo(np.int64)
            allocation = self._around(address.min(where=active, initial=info.max),
                                      address.max(where=active, initial=info.min) + size)
        if allocation is None:
            return self._resolve_lanes(address, active, size)
        self._check_alignment(address, active, allocation, size)
        return [(allocation, None)]

    def _around(self, low: int, high: int) -> Allocation | None:
        """The allocation that has all bytes of [low, high)."""
        index = int(low) // SPACING - 1
        inside = 0 <= index < len(self.allocations) and low >= self.bases[index] and \
            high <= self.ends[index]
        return self.allocations[index] if inside else None

    def _check_alignment(self, address: Array, active: Array | None, allocation: Allocation,
                         size: int) -> None:
        if (int(np.bitwise_or.reduce(address, axis=None)) | allocation.base) & (size - 1):
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

    def load(self, address: Array, active: Array | None, by: By, dtype: DType) -> Array:
        """Elements at `address` [P, ...]; inactive lanes give arbitrary ones.

        by: who loads, for the record. Raises AccessError and Conflict.
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
            at = self._watched(allocation, index, select, by, dtype.itemsize, False)
            if allocation.touches is not None and at is not None:
                allocation.touches.read(at, select, by)
            part = np.take(view, index)
            out = part if out is None or lanes is None else np.where(lanes, part, out)
        if out is None:
            out = np.zeros(address.shape, stored)
        return out != 0 if dtype == BOOL else out

    @staticmethod
    def _index(address: Array, allocation: Allocation, size: int) -> Array:
        offset = address - allocation.base
        return offset >> (size.bit_length() - 1) if size > 1 else offset

    @staticmethod
    def _watched(allocation: Allocation, index: Array, select: Array | None, by: By, size: int,
                 writes: bool) -> Array | None:
        """The accessed elements as the records of an allocation count them; None where there is
        none, or no record of these."""
        touches, views = allocation.touches, allocation.views
        if touches is None and views is None:
            return None
        at = allocation.in_core(index, select, size)
        if at is None and touches is not None:
            touches.miss(writes)
        elif at is not None and views is not None:
            views.access(at, select, by, writes)
        return at

    def store(self, address: Array, active: Array | None, by: By, value: Array) -> None:
        """Write `value` [P, ...]; raises AccessError and Conflict."""
        dtype = self.stored_as(address, value, active)
        values = np.broadcast_to(value.view(np.uint8) if value.dtype == BOOL else value,
                                 address.shape)
        for allocation, view, index, select in self._writes(address, active, dtype):
            if self.count_changes:
                on = slice(None) if select is None else select
                self.changes += bool((view[index[on]] != values[on]).any())
            at = self._watched(allocation, index, select, by, dtype.itemsize, True)
            if allocation.touches is not None and at is not None:
                allocation.touches.store(at, select, by, allocation.core_view(dtype), values)
            else:
                put(view, index, select, values)

    @np.errstate(all="ignore")
    def atomic(self, address: Array, active: Array | None, by: By, kind: str,
               given: Sequence[Array], want_old: bool) -> Array:
        """Update memory lane after lane, in rows of programs, by an atomic of a kind; the old
        values if `want_old`. given: what the new ones are made of. Raises AccessError and Conflict.
        """
        old = np.zeros(address.shape, given[-1].dtype)
        dtype = self.stored_as(address, old, active)
        update = self.updates(kind, dtype)
        for allocation, view, index, select in self._writes(address, active, dtype):
            found = self._watched(allocation, index, select, by, dtype.itemsize, True)
            if allocation.touches is not None and found is not None:
                allocation.touches.atomic(found, select, by)
            at, *new = lanes_on(select, index, *given)
            before = view[at] if self.count_changes else None
            if isinstance(update, np.ufunc) and not want_old:
                update.at(view, at, *new)
            elif len(at):
                taken = np.empty(len(at), old.dtype)
                for lanes in in_turn(at):
                    taken[lanes] = here = view[at[lanes]]
                    view[at[lanes]] = update(here, *(x[lanes] for x in new))
                old[slice(None) if select is None else select] = \
                    taken.reshape(old.shape) if select is None else taken
            if before is not None:
                self.changes += bool((view[at] != before).any())
        return old

    def _writes(self, address: Array, active: Array | None, dtype: DType,
                ) -> list[tuple[Allocation, Array, Array, Array | None]]:
        """(allocation, its vector, indices, lanes or None) for each one, after all checks."""
        size, out = dtype.itemsize, []
        for allocation, lanes in self._resolve(address, active, size):
            select = active if lanes is None else lanes
            if not allocation.writeable:
                where = np.ones(address.shape, bool) if select is None else select
                raise AccessError("readonly", where, allocation)
            index = self._index(address, allocation, size)
            out.append((allocation, allocation.view(dtype), index, select))
        return out

    def stored_as(self, address: Array, value: Array, active: Array | None) -> DType:
        """The dtype of the elements in memory that a value is written to."""
        return np.dtype(np.uint8) if value.dtype == BOOL else value.dtype

    def updates(self, kind: str, dtype: DType) -> Update:
        """What an atomic of a kind does to elements of `dtype` in memory."""
        return update_of(kind, dtype)

    def finish(self) -> None:
        """All has run."""
