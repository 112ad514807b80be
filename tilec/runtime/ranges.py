"""How large integers can get that a kernel computes of arguments, program ids and loop indices: the
texts that find_boxes writes down (tilec/ir/boxes.py), evaluated on ranges in place of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from tilec.errors import LaunchError

_TEXT = re.compile(r"(?:[\d ()+*/%,-]|\$\d+|[pnt]\d+|min\b|max\b|index\b)+")
_LEAF = re.compile(r"([$pnt]|-?)(\d+)")
_LIMIT = 1 << 31


@dataclass(frozen=True)
class Range:
    """Integers from `low` to `high`. Arithmetic is that of the kernel language, as far as nothing
    wraps around in 32 bits; there it raises OverflowError, and ZeroDivisionError where something
    may be divided by zero: what comes of that is up to the machine."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low < -_LIMIT or self.high >= _LIMIT:
            raise OverflowError

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Range) -> Range:
        return Range(self.low - other.high, self.high - other.low)

    def __mul__(self, other: Range) -> Range:
        return _hull([x * y for x in (self.low, self.high) for y in (other.low, other.high)])

    def __floordiv__(self, other: Range) -> Range:
        """Rounds toward zero."""
        other._check_divisor()
        return _hull([_truncated(x, y) for x in (self.low, self.high)
                      for y in (other.low, other.high)])

    def __mod__(self, other: Range) -> Range:
        """The sign is the dividend's."""
        other._check_divisor()
        most = max(abs(other.low), abs(other.high)) - 1
        return Range(max(min(self.low, 0), -most), min(max(self.high, 0), most))

    def _check_divisor(self) -> None:
        if self.low <= 0 <= self.high:
            raise ZeroDivisionError


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _hull(numbers: Sequence[int]) -> Range:
    return Range(min(numbers), max(numbers))


def _number(n: int) -> Range:
    return Range(n, n)


def _index(lo: Range, hi: Range, step: Range) -> Range:
    """A loop's index, where there is a round."""
    most = max(lo.low, hi.high - 1)
    if lo.low == lo.high and step.low == step.high > 0:
        most -= (most - lo.low) % step.low
    return Range(lo.low, max(lo.high, most))


_NAMES: Mapping[str, Any] = {
    "number": _number, "index": _index,
    "min": lambda a, b: Range(min(a.low, b.low), min(a.high, b.high)),
    "max": lambda a, b: Range(max(a.low, b.low), max(a.high, b.high))}


def of_texts(texts: Sequence[str]
             ) -> Callable[[Sequence[Any] | Mapping[int, Any], tuple[int, int, int]], list[Range]]:
    """What gives the ranges of texts for a launch's arguments, $0, $1, ..., and grid: program ids
    p0 to p2 and their numbers n0 to n2. Later texts name earlier ones t0, t1, ....

    LaunchError for what is no such text. What it gives raises OverflowError where 32 bits might not
    do, and ZeroDivisionError where a divisor might be zero.
    """
    codes = list(map(_compiled, texts))
    used = {int(i) for text in texts for i in re.findall(r"\$(\d+)", text)}

    def ranges(values: Sequence[Any] | Mapping[int, Any], grid: tuple[int, int, int]
               ) -> list[Range]:
        t: list[Range] = []
        names = dict(_NAMES, t=t, v={i: _number(values[i]) for i in used},
                     n=list(map(_number, grid)), p=[Range(0, max(n - 1, 0)) for n in grid])
        for text, code in zip(texts, codes, strict=True):
            try:
                t.append(eval(code, names))
            except (TypeError, IndexError):
                raise _refused(text) from None
        return t

    return ranges


def _compiled(text: str) -> CodeType:
    def leaf(m: re.Match[str]) -> str:
        return f"number({m[0]})" if m[1] in ("", "-") else f"{m[1].replace('$', 'v')}[{m[2]}]"

    try:
        if _TEXT.fullmatch(text):
            return compile(_LEAF.sub(leaf, text).strip(), "<range>", "eval")
    except SyntaxError:
        pass
    raise _refused(text)


def _refused(text: str) -> LaunchError:
    return LaunchError(f"`{text}` is no expression over parameters and program ids", None,
                       "they are sums, products, quotients and the like of what is before them")
