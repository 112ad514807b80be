"""The data behind a linear layout: named bit fields in, named bit fields out, columns over F2.

A column is one int in which the output coordinates are packed in row-major order: the last output
dimension holds the lowest bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tilec.ir.f2 import Span, log2_exact

Sizes = tuple[tuple[str, int], ...]
Columns = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=4096)
def packing(out_sizes: Sizes) -> tuple[tuple[int, int], ...]:
    """(shift, bits) of every output dimension in a packed column."""
    packed: list[tuple[int, int]] = []
    shift = 0
    for _, size in reversed(out_sizes):
        bits = log2_exact(size)
        packed.append((shift, bits))
        shift += bits
    return tuple(reversed(packed))


class ByValue:
    """Base of immutable values: compared and hashed by `_key`, which is worked out once."""

    @cached_property
    def _key(self) -> tuple[object, ...]:
        raise NotImplementedError

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ByValue) and self._key == other._key)


@dataclass(frozen=True, eq=False)
class BitMatrix(ByValue):
    """Value, structure and evaluation of a linear layout; `LinearLayout` adds the operations.

    in_sizes and out_sizes are (name, extent) pairs; columns[i][b] is the packed image of bit b of
    input i.
    """

    in_sizes: Sizes
    out_sizes: Sizes
    columns: Columns
    flip_bits: int = 0

    @cached_property
    def _key(self) -> tuple[object, ...]:
        return (self.in_sizes, self.out_sizes, self.columns, self.flip_bits)

    def __str__(self) -> str:
        lines = []
        for (name, _), bases in zip(self.in_sizes, self.bases, strict=True):
            shown = ", ".join("(" + ", ".join(map(str, b)) + ")" for b in bases) or "-"
            lines.append(f"{name}: {shown}")
        if self.flip_bits:
            lines.append(f"flip: {self.flip}")
        lines.append("-> " + ", ".join(f"{n}[{s}]" for n, s in self.out_sizes))
        return "\n".join(lines)

    # ---- structure
    @cached_property
    def in_names(self) -> tuple[str, ...]:
        return tuple(n for n, _ in self.in_sizes)

    @cached_property
    def out_names(self) -> tuple[str, ...]:
        return tuple(n for n, _ in self.out_sizes)

    @cached_property
    def _in_index(self) -> dict[str, int]:
        return {n: i for i, n in enumerate(self.in_names)}

    @cached_property
    def out_bits(self) -> int:
        return sum(b for _, b in packing(self.out_sizes))

    @cached_property
    def in_bits(self) -> int:
        return sum(map(len, self.columns))

    @cached_property
    def flat_columns(self) -> tuple[int, ...]:
        """All columns, the first input's first."""
        return tuple(c for cols in self.columns for c in cols)

    def in_size(self, name: str) -> int:
        return self.in_sizes[self._in_index[name]][1]

    def out_size(self, name: str) -> int:
        return dict(self.out_sizes)[name]

    def has_in(self, name: str) -> bool:
        return name in self._in_index

    def columns_of(self, name: str) -> tuple[int, ...]:
        """Packed columns of one input; empty when the layout has no such input."""
        i = self._in_index.get(name)
        return () if i is None else self.columns[i]

    def bases_of(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Columns of one input as coordinate tuples."""
        return tuple(self.unpack(c) for c in self.columns_of(name))

    @cached_property
    def bases(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Per input, per bit: the coordinates of that basis."""
        return tuple(tuple(self.unpack(c) for c in cols) for cols in self.columns)

    @cached_property
    def flip(self) -> tuple[int, ...]:
        """The constant that is XORed to every image, as coordinates."""
        return self.unpack(self.flip_bits)

    def unpack(self, packed: int) -> tuple[int, ...]:
        """Coordinates of a packed image."""
        return tuple((packed >> s) & ((1 << b) - 1) for s, b in packing(self.out_sizes))

    def pack(self, coords: Sequence[int]) -> int:
        """Packed image of coordinates."""
        packed = 0
        for c, (s, _) in zip(coords, packing(self.out_sizes), strict=True):
            packed |= c << s
        return packed

    # ---- evaluation
    def apply_packed(self, **ins: int) -> int:
        """Packed image of the given input indices; inputs not given are 0."""
        packed = self.flip_bits
        for name, value in ins.items():
            for c in self.columns[self._in_index[name]]:
                if value & 1:
                    packed ^= c
                value >>= 1
            if value:
                raise ValueError(f"{name} is out of range 0..{self.in_size(name) - 1}")
        return packed

    def apply(self, **ins: int) -> tuple[int, ...]:
        """Coordinates of the given input indices; inputs not given are 0."""
        return self.unpack(self.apply_packed(**ins))

    def apply_array(self, **ins: Any) -> tuple[Any, ...]:
        """`apply` for whatever has integer `>> & * ^`, as numpy arrays do; not range-checked."""
        packed: Any = self.flip_bits
        for name, value in ins.items():
            for bit, c in enumerate(self.columns[self._in_index[name]]):
                packed = packed ^ (((value >> bit) & 1) * c)
        return tuple((packed >> s) & ((1 << b) - 1) for s, b in packing(self.out_sizes))

    # ---- rank
    @cached_property
    def rank(self) -> int:
        return Span(self.flat_columns).rank

    @property
    def is_surjective(self) -> bool:
        return self.rank == self.out_bits

    @property
    def is_injective(self) -> bool:
        return self.rank == self.in_bits

    @property
    def is_bijective(self) -> bool:
        return self.is_surjective and self.is_injective

    @cached_property
    def free_variable_masks(self) -> dict[str, int]:
        """Per input, the bits whose column depends on earlier ones: flipping one finds a copy."""
        span = Span()
        masks: dict[str, int] = {}
        for name, cols in zip(self.in_names, self.columns, strict=True):
            mask = 0
            for bit, c in enumerate(cols):
                if not span.add(c):
                    mask |= 1 << bit
            masks[name] = mask
        return masks

    def is_identity_on(self, dim: str) -> bool:
        """Output `dim` equals input `dim`, and neither meets any other dimension."""
        if dim not in self._in_index or dim not in self.out_names:
            return dim not in self._in_index and dim not in self.out_names
        shift, bits = packing(self.out_sizes)[self.out_names.index(dim)]
        mask = ((1 << bits) - 1) << shift
        own = self.columns_of(dim)
        if len(own) != bits or self.flip_bits & mask:
            return False
        if any(c != 1 << (shift + i) for i, c in enumerate(own)):
            return False
        return not any(c & mask for name, cols in zip(self.in_names, self.columns, strict=True)
                       if name != dim for c in cols)
