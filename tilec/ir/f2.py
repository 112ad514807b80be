"""Vectors over F2 as Python ints: spans, solving, complements.

All sizes here are tiny (at most a few dozen bits), so ints beat any matrix library.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def log2_exact(n: int) -> int:
    """The k with 2**k == n; raises ValueError when n is not a positive power of two."""
    if n <= 0 or n & (n - 1):
        raise ValueError(f"{n} is not a power of two")
    return n.bit_length() - 1


class Span:
    """A growing subspace of F2^n, its vectors held as ints, that remembers how each was combined.

    `add` returns whether the vector was new. `solve(v)` gives the bit mask of added vectors
    (numbered in the order of their `add` calls, dependent ones included) whose XOR is v, or None
    outside the span.
    """

    __slots__ = ("_pivots", "_count")

    def __init__(self, vectors: Iterable[int] = ()) -> None:
        self._pivots: dict[int, tuple[int, int]] = {}
        self._count = 0
        for v in vectors:
            self.add(v)

    def _reduce(self, v: int) -> tuple[int, int]:
        mask = 0
        pivots = self._pivots
        while v:
            entry = pivots.get(v.bit_length())
            if entry is None:
                break
            v ^= entry[0]
            mask ^= entry[1]
        return v, mask

    def add(self, v: int) -> bool:
        rest, mask = self._reduce(v)
        if rest:
            self._pivots[rest.bit_length()] = (rest, mask ^ (1 << self._count))
        self._count += 1
        return rest != 0

    def solve(self, v: int) -> int | None:
        rest, mask = self._reduce(v)
        return None if rest else mask

    def __contains__(self, v: int) -> bool:
        return self._reduce(v)[0] == 0

    @property
    def rank(self) -> int:
        return len(self._pivots)


def complement(vectors: Iterable[int], bits: int) -> tuple[int, ...]:
    """Unit vectors that extend `vectors` to a basis of F2^bits, lowest first."""
    span = Span(vectors)
    return tuple(1 << i for i in range(bits) if span.add(1 << i))


def bit_order(bits: Sequence[int]) -> tuple[int, ...]:
    """All indices, counted with bits[0] as the fastest bit."""
    order = [0]
    for b in bits:
        order += [i | (1 << b) for i in order]
    return tuple(order)
