"""Ranges of integers: arithmetic as the kernel language has it, of numbers that never wrap."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Interval:
    """Integers from `low` to `high`. An operator gives the least interval that holds its results,
    or, of `%`, `>>` and those on bits, one that does; dividing by zero has none."""

    low: int
    high: int

    def _hull(self, numbers: Iterable[int]) -> Self:
        held = tuple(numbers)
        return type(self)(min(held), max(held))

    def __add__(self, other: Interval) -> Self:
        return type(self)(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Self:
        return type(self)(self.low - other.high, self.high - other.low)

    def __mul__(self, other: Interval) -> Self:
        return self._hull(x * y for x in (self.low, self.high) for y in (other.low, other.high))

    def __floordiv__(self, other: Interval) -> Self:
        """Rounds toward zero."""
        divisors = [y for y in (other.low, -1, 1, other.high) if y and y in other] or [1]
        return self._hull(truncated(x, y) for x in (self.low, self.high) for y in divisors)

    def __mod__(self, other: Interval) -> Self:
        """The sign is the dividend's."""
        most = max(abs(other.low), abs(other.high), 1) - 1
        return type(self)(max(min(self.low, 0), -most), min(max(self.high, 0), most))

    def __rshift__(self, other: Interval) -> Self:
        """By counts that are read as unsigned: a negative one leaves nothing but the sign."""
        if other.low == other.high >= 0:
            return type(self)(self.low >> other.low, self.high >> other.low)
        return type(self)(min(self.low, 0), max(self.high, -1))

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high

    def join(self, other: Interval) -> Self:
        """The least interval that holds both."""
        return self._hull((self.low, self.high, other.low, other.high))

    def least(self, other: Interval) -> Self:
        """The smaller of two numbers."""
        return type(self)(min(self.low, other.low), min(self.high, other.high))

    def greatest(self, other: Interval) -> Self:
        """The larger of two numbers."""
        return type(self)(max(self.low, other.low), max(self.high, other.high))

    def wrapped(self, bits: int, signed: bool) -> Self:
        """Its numbers modulo 2^bits, in a type of so many bits: all of the type's, if some wrap and
        others do not, or not as often."""
        least = -(1 << (bits - 1)) if signed else 0
        if least <= self.low and self.high < least + (1 << bits):
            return self
        low = (self.low - least) % (1 << bits) + least
        high = low + self.high - self.low
        if high < least + (1 << bits):
            return type(self)(low, high)
        return type(self)(least, least + (1 << bits) - 1)


def truncated(a: int, b: int) -> int:
    """a / b, rounded toward zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
