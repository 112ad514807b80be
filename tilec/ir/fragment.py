"""Tiles of any extent over a layout: what each thread holds, where an element of a buffer lies.

An extent n = odd * 2**k with odd <= 15 keeps its power-of-two part in the linear layout; the odd
part is outermost and held in registers (or in outer panels of a shared buffer). Any other extent is
stored padded to a power of two, its elements beyond n dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from operator import add

from tilec.ir.layout_base import Layout, Shape, SharedLayout
from tilec.ir.linear import LinearLayout

MAX_ODD = 15


@lru_cache(maxsize=4096)
def split_extent(n: int) -> tuple[int, int, bool]:
    """(odd, power of two, padded): how an extent is stored; ValueError unless n is positive."""
    if n <= 0:
        raise ValueError(f"a tile extent must be positive, got {n}")
    low = n & -n
    if n // low <= MAX_ODD:
        return n // low, low, False
    return 1, 1 << n.bit_length(), True


@lru_cache(maxsize=4096)
def storage_shape(shape: Shape) -> tuple[Shape, Shape]:
    """(odd parts, power-of-two parts) of a shape."""
    parts = [split_extent(n) for n in shape]
    return tuple(p[0] for p in parts), tuple(p[1] for p in parts)


def odd_factors_stay(src: Shape, dst: Shape) -> bool:
    """Whether a row-major reshape leaves every odd or padded factor where it is.

    If so, the reshape is one of the power-of-two parts alone; else it must go through row-major
    memory.
    """

    def places(shape: Shape) -> set[tuple[int, int]]:
        found, inner = set(), 1
        for n in reversed(shape):
            odd, low, padded = split_extent(n)
            if padded or odd > 1:
                found.add((n, inner) if padded else (odd, inner * low))
            inner *= n
        return found

    return places(src) == places(dst)


def is_part(whole: Shape, start: Shape, shape: Shape) -> bool:
    """Whether a tile is cut into equal parts of `shape`, none of them padded, one at `start`."""
    return len(whole) == len(start) == len(shape) and all(
        0 < n <= e and 0 <= s < e and not e % n and not s % n and (n == e or not split_extent(n)[2])
        for e, s, n in zip(whole, start, shape, strict=True))


class _Stored:
    """A shape with a layout of its power-of-two part."""

    def __init__(self, shape: Shape, layout: Layout) -> None:
        self.shape = shape
        self.layout = layout
        self.odd, self.pow2 = storage_shape(shape)
        self.linear: LinearLayout = layout.to_linear(self.pow2)

    @property
    def padded_dims(self) -> tuple[int, ...]:
        """Dimensions in which coordinates from the extent on are dead."""
        return tuple(d for d, n in enumerate(self.shape) if self.odd[d] * self.pow2[d] != n)

    @cached_property
    def odd_offsets(self) -> tuple[tuple[int, ...], ...]:
        """Per odd index (row-major): the coordinates at which its power-of-two part starts."""
        steps = [range(0, o * p, p) for o, p in zip(self.odd, self.pow2, strict=True)]
        return tuple(product(*steps))


class Fragment(_Stored):
    """What one thread holds of a tile: make it with `fragment(shape, layout)`, which caches.

    Registers are ordered (odd index row-major, register of the power-of-two layout). Attributes:
    shape, layout, odd and pow2 (per dimension), linear (the layout of pow2).
    """

    @cached_property
    def registers_per_part(self) -> int:
        return self.linear.in_size("register")

    @cached_property
    def num_registers(self) -> int:
        return prod(self.odd) * self.registers_per_part

    @cached_property
    def register_coords(self) -> tuple[tuple[int, ...], ...]:
        """The constant part of each register's coordinates, in register order; the thread's part
        is added to it, with which it shares no bit."""
        low = [self.linear.apply(register=r) for r in range(self.registers_per_part)]
        return tuple(tuple(map(add, base, part)) for base in self.odd_offsets for part in low)

    @property
    def lane_bases(self) -> tuple[tuple[int, ...], ...]:
        """Coordinates that each lane bit XORs into the thread part."""
        return self.linear.bases_of("lane")

    @property
    def warp_bases(self) -> tuple[tuple[int, ...], ...]:
        """Coordinates that each warp bit XORs into the thread part."""
        return self.linear.bases_of("warp")

    @property
    def free_masks(self) -> dict[str, int]:
        """Per register, lane and warp: the index bits that only find copies."""
        return self.linear.free_variable_masks

    def coords(self, register: int, lane: int, warp: int) -> tuple[int, ...]:
        """Coordinates of one held element; along a padded dim they may lie beyond the shape."""
        base = self.odd_offsets[register // self.registers_per_part]
        low = self.linear.apply(register=register % self.registers_per_part, lane=lane, warp=warp)
        return tuple(b + c for b, c in zip(base, low, strict=True))


class SharedTile(_Stored):
    """Where elements of a shared buffer lie: make it with `shared_tile(shape, layout)`, cached.

    Offsets are in elements: part * elements of the power-of-two part + linear offset. The part is
    the odd index with the layout's fastest dimension innermost, so that transposing moves nothing.
    """

    @cached_property
    def part_elements(self) -> int:
        return prod(self.pow2)

    @cached_property
    def num_elements(self) -> int:
        return prod(self.odd) * self.part_elements

    @cached_property
    def inverse(self) -> LinearLayout:
        """(dim0, dim1, ...) -> offset within one power-of-two part."""
        return self.linear.invert()

    @cached_property
    def part_strides(self) -> tuple[int, ...]:
        """Per dimension: how many parts on the next odd index lies."""
        assert isinstance(self.layout, SharedLayout)
        strides, step = [0] * len(self.shape), 1
        for d in self.layout.dims_from_fastest:
            strides[d] = step
            step *= self.odd[d]
        return tuple(strides)

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """The part of each odd index, these in row-major order as in a fragment."""
        return tuple(sum(i * s for i, s in zip(index, self.part_strides, strict=True))
                     for index in product(*map(range, self.odd)))

    def offset(self, coords: Sequence[int]) -> int:
        """Element offset of one element."""
        low = {f"dim{d}": c % n for d, (c, n) in enumerate(zip(coords, self.pow2, strict=True))}
        return self.part_at(coords) * self.part_elements + self.inverse.apply(**low)[0]

    def part_at(self, coords: Sequence[int]) -> int:
        """The part that one element lies in."""
        return sum(c // n * s for c, n, s in zip(coords, self.pow2, self.part_strides, strict=True))


@lru_cache(maxsize=4096)
def fragment(shape: Shape, layout: Layout) -> Fragment:
    """The fragment of a tile; ValueError when the layout cannot serve the shape."""
    return Fragment(shape, layout)


@lru_cache(maxsize=1024)
def shared_tile(shape: Shape, layout: Layout) -> SharedTile:
    """The elements of a shared buffer; ValueError when the layout cannot serve the shape."""
    return SharedTile(shape, layout)
