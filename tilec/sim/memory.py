"""Simulated memory: a global arena of allocations with gaps between, and per-CTA windows.

Addresses look like a GPU's: global memory, and the windows through which a generic address
reaches shared, local and parameter memory.
"""

from __future__ import annotations

import bisect
import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilec.sim.errors import Fault
from tilec.sim.ptx import align_up

Array = np.ndarray[Any, Any]

GLOBAL_BASE = 0x7F00_0000_0000
SHARED_WINDOW = 0x7E00_0000_0000
LOCAL_WINDOW = 0x7D00_0000_0000
PARAM_WINDOW = 0x7C00_0000_0000
WINDOW_BYTES = 0x100_0000_0000
SHARED_START = 1024  # the first KiB of shared memory belongs to the system
RANK_BITS = 24  # where the rank of a CTA stands in shared addresses of a cluster
GAP = 256

_UINTS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Space:
    """A byte array that lanes index by address; subclasses say which addresses are theirs."""

    name = ""

    def __init__(self, size: int) -> None:
        self.resize(size)

    def resize(self, size: int) -> None:
        """Replace the storage by `size` bytes of 0xff, which reads as NaN where a float is."""
        storage = np.full(align_up(max(size, 1), 16), 0xFF, np.uint8)
        self.size = size
        self.bytes = storage
        self.views = {width: storage.view(kind) for width, kind in _UINTS.items()}

    def offsets(self, addresses: Array, width: int, lanes: Array | None, store: bool) -> Array:
        """Byte offsets of uint64 or uint32 addresses; Fault where an access is not allowed.

        `lanes` are the thread numbers of the addresses, None for all threads in order.
        """
        raise NotImplementedError

    def check_aligned(self, addresses: Array, width: int, lanes: Array | None) -> None:
        """Fault at the first address that is not a multiple of `width`."""
        if width > 1 and int(np.bitwise_or.reduce(addresses)) & (width - 1):
            at = int(np.flatnonzero(addresses & addresses.dtype.type(width - 1))[0])
            raise Fault(
                f"misaligned {self.name} address {int(addresses[at]):#x}: a {width}-byte access "
                f"needs a multiple of {width}{self.near(int(addresses[at]))}", _thread(lanes, at))

    def near(self, address: int) -> str:
        """What lies near the address, for messages."""
        return ""


def _thread(lanes: Array | None, at: int) -> int:
    return at if lanes is None else int(lanes[at])


class Window(Space):
    """Shared memory or kernel parameters: addresses from `start` to `start + size`."""

    def __init__(self, name: str, start: int, size: int, writable: bool = True) -> None:
        self.name = name
        self.start = start
        self.writable = writable
        super().__init__(size)

    def offsets(self, addresses: Array, width: int, lanes: Array | None, store: bool) -> Array:
        if store and not self.writable:
            raise Fault(f"store to {self.name} memory, which is read-only", _thread(lanes, 0))
        low, high = int(addresses.min()), int(addresses.max())
        if low < self.start or high + width > self.start + self.size:
            bad = (addresses < self.start) | (addresses > self.start + self.size - width)
            if self.size < width:
                bad[:] = True
            at = int(np.flatnonzero(bad)[0])
            verb = "store to" if store else "read of"
            raise Fault(f"out-of-bounds {verb} {self.name} address {int(addresses[at]):#x} "
                        f"({width} bytes): {self.name} memory is "
                        f"[{self.start:#x}, {self.start + self.size:#x})", _thread(lanes, at))
        self.check_aligned(addresses, width, lanes)
        return addresses - addresses.dtype.type(self.start)


class Shared(Window):
    """Shared memory of the CTAs of a cluster, one after another, `stride` bytes each.

    In a cluster bits 24 and up of an address are the rank of the CTA; without one all are 0.
    gone: the CTAs that have ended, and with them their memory.
    """

    def __init__(self, size: int, ranks: int) -> None:
        self.ranks = ranks
        self.gone = np.zeros(ranks, bool)
        super().__init__("shared", SHARED_START, size)

    def resize(self, size: int) -> None:
        self.stride = align_up(max(size, 1), 1024)
        super().resize(size if self.ranks == 1 else self.stride * self.ranks)
        self.size = size

    def offsets(self, addresses: Array, width: int, lanes: Array | None, store: bool) -> Array:
        if self.ranks == 1:
            return super().offsets(addresses, width, lanes, store)
        rank = addresses >> addresses.dtype.type(RANK_BITS)
        beyond = rank >= self.ranks
        if np.count_nonzero(beyond):
            at = int(np.flatnonzero(beyond)[0])
            raise Fault(f"shared address {int(addresses[at]):#x} of CTA {int(rank[at])} in a "
                        f"cluster of {self.ranks}", _thread(lanes, at))
        if np.count_nonzero(self.gone):
            self.check_there(rank, lanes)
        mine = addresses & addresses.dtype.type((1 << RANK_BITS) - 1)
        return super().offsets(mine, width, lanes, store) + rank * rank.dtype.type(self.stride)

    def check_there(self, ranks: Array, lanes: Array | None) -> None:
        """Fault if one of the CTAs has ended."""
        ended = np.flatnonzero(self.gone[ranks.astype(np.int64)])
        if len(ended):
            at = int(ended[0])
            raise Fault(f"an access to shared memory of CTA {int(ranks[at])} of the cluster, which "
                        "has ended: end with a cluster barrier", _thread(lanes, at))

    def in_cta(self, offset: int, rank: int) -> int:
        """The same place in the memory of another CTA of the cluster."""
        return offset % self.stride + rank * self.stride

    def address(self, offset: int) -> int:
        """The address of a byte offset."""
        if self.ranks == 1:
            return offset + self.start
        return (offset // self.stride << RANK_BITS) + offset % self.stride + self.start


class Local(Space):
    """Local memory: every thread sees its own `stride` bytes from address 0."""

    name = "local"

    def __init__(self, threads: int, stride: int) -> None:
        self.stride = align_up(max(stride, 16), 16)
        self.used = stride
        self.base = np.arange(threads, dtype=np.int64) * self.stride
        super().__init__(threads * self.stride)

    def offsets(self, addresses: Array, width: int, lanes: Array | None, store: bool) -> Array:
        if int(addresses.max()) + width > self.used:
            at = int(np.argmax(addresses))
            verb = "store to" if store else "read of"
            raise Fault(
                f"out-of-bounds {verb} local address {int(addresses[at]):#x} ({width} bytes): "
                f"a thread has {self.used} bytes", _thread(lanes, at))
        self.check_aligned(addresses, width, lanes)
        base = self.base if lanes is None else self.base[lanes]
        return base + addresses.astype(np.int64)


@dataclass(slots=True)
class Allocation:
    """A host buffer, or a module variable, in the global arena; `host` is its host address."""

    start: int
    size: int
    name: str
    host: int = 0
    writable: bool = True
    constant: bool = False


class Global(Space):
    """The arena of module variables and argument buffers."""

    name = "global"

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.starts: list[int] = []
        self.end = GLOBAL_BASE
        super().__init__(0)

    def reserve(self, size: int, align: int, name: str, shift: int = 0) -> Allocation:
        """Lay out `size` bytes at a multiple of `align` plus `shift`; `build` gives storage."""
        start = align_up(self.end + GAP, max(align, 16)) + shift
        allocation = Allocation(start, size, name)
        self.allocations.append(allocation)
        self.starts.append(start)
        self.end = start + size
        return allocation

    def truncate(self, count: int) -> None:
        """Keep the first `count` allocations only."""
        del self.allocations[count:], self.starts[count:]
        last = self.allocations[-1] if count else None
        self.end = last.start + last.size if last else GLOBAL_BASE

    def build(self) -> None:
        """Give every allocation storage."""
        self.resize(self.end - GLOBAL_BASE + GAP)

    def slice(self, allocation: Allocation) -> Array:
        """The bytes of one allocation."""
        at = allocation.start - GLOBAL_BASE
        return self.bytes[at : at + allocation.size]

    def owner(self, address: int) -> Allocation | None:
        """The last allocation that starts at or before `address`."""
        at = bisect.bisect_right(self.starts, address) - 1
        return self.allocations[at] if at >= 0 else None

    def offsets(self, addresses: Array, width: int, lanes: Array | None, store: bool) -> Array:
        low = int(addresses.min())
        owner = self.owner(low)
        if (owner is None or int(addresses.max()) + width > owner.start + owner.size
            or (store and not owner.writable)):
            self.check_each(addresses, width, lanes, store)
        self.check_aligned(addresses, width, lanes)
        return addresses - np.uint64(GLOBAL_BASE)

    def check_each(self, addresses: Array, width: int, lanes: Array | None, store: bool) -> None:
        """The slow check, for lanes that touch several allocations or that fail."""
        verb = "store to" if store else "read of"
        for at, address in enumerate(addresses.tolist()):
            owner = self.owner(address)
            if owner is None or address + width > owner.start + owner.size:
                raise Fault(f"out-of-bounds {verb} global address {address:#x} ({width} bytes)"
                            f"{self.near(address)}", _thread(lanes, at))
            if store and not owner.writable:
                raise Fault(f"store to {owner.name}, which is read-only", _thread(lanes, at))

    def near(self, address: int) -> str:
        owner = self.owner(address)
        after = bisect.bisect_right(self.starts, address)
        if owner is not None and address < owner.start + owner.size:
            return f", byte {address - owner.start} of {owner.name} ({owner.size} bytes)"
        if after < len(self.allocations):
            following = self.allocations[after]
            before = following.start - address
            if owner is None or before < address - (owner.start + owner.size):
                return f", {before} bytes before {following.name} ({following.size} bytes)"
        if owner is None:
            return ", near no argument"
        past = address - (owner.start + owner.size)
        return f", {past} bytes past the end of {owner.name} ({owner.size} bytes)"


def host_bytes(address: int, size: int) -> Array:
    """A view of `size` bytes of host memory."""
    if size == 0:
        return np.empty(0, np.uint8)
    buffer: Any = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(buffer, np.uint8)


def extent(array: Array) -> tuple[int, int]:
    """Host address and bytes of the memory under `array`: that of its outermost numpy base, of a
    tensor's storage, or of the buffer that it was made from."""
    owner: Any = array
    while getattr(owner, "base", None) is not None:
        owner = owner.base
    if hasattr(owner, "untyped_storage"):
        storage = owner.untyped_storage()
        low, high = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    else:
        try:
            low, high = _bounds(owner if isinstance(owner, np.ndarray) else
                                np.frombuffer(owner, np.uint8))
        except (TypeError, ValueError):
            low, high = _bounds(array)
    mine = _bounds(array) if array.size else (low, low)
    return min(low, mine[0]), max(high, mine[1]) - min(low, mine[0])


def _bounds(array: Array) -> tuple[int, int]:
    """First and one past the last host address of an array's elements."""
    low = high = array.__array_interface__["data"][0]
    if array.size == 0:
        return low, low
    for length, stride in zip(array.shape, array.strides, strict=True):
        reach = (length - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + array.itemsize


def place(arena: Global, arrays: list[tuple[str, Array]]) -> list[tuple[Allocation, int]]:
    """Reserve one allocation per distinct host buffer, merging those that overlap.

    Returns, per array, its allocation and the address of its first element.
    """
    ranges = [(*extent(array), name, array.flags.writeable) for name, array in arrays]
    order = sorted(range(len(ranges)), key=lambda i: ranges[i][0])
    merged: list[list[Any]] = []
    group: dict[int, int] = {}
    for i in order:
        start, size, name, writable = ranges[i]
        if merged and size and start < merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], start + size)
            merged[-1][2].append(name)
            merged[-1][3] |= writable
        else:
            merged.append([start, start + size, [name], writable])
        group[i] = len(merged) - 1
    allocations: dict[int, Allocation] = {}
    result = []
    for i, (_, array) in enumerate(arrays):
        start, end, names, writable = merged[group[i]]
        if group[i] not in allocations:
            made = arena.reserve(end - start, 256, " and ".join(sorted(names)), start % 16)
            made.host, made.writable = start, writable
            allocations[group[i]] = made
        made = allocations[group[i]]
        first = array.__array_interface__["data"][0] if array.size else start
        result.append((made, made.start + first - start))
    return result
