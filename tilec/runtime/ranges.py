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
from tilec.ir.intervals import Interval

_TEXT = re.compile(r"(?:[\d ()+*/%,-]|\$\d+|[pnt]\d+|min\b|max\b|index\b)+")
_LEAF = re.compile(r"([$pnt]|-?)(\d+)")
_LIMIT = 1 << 31


@dataclass(frozen=True)
class Range(Interval):
    """An interval of the numbers of 32 bits. Arithmetic raises OverflowError where something may
    wrap around there, and ZeroDivisionError where something may be divided by zero: what comes of
    that is up to the machine."""

    def __post_init__(self) -> None:
        if self.low < -_LIMIT or self.high >= _LIMIT:
            raise OverflowError

    def __floordiv__(self, other: Interval) -> Range:
        return super().__floordiv__(_divisor(other))

    def __mod__(self, other: Interval) -> Range:
        return super().__mod__(_divisor(other))


def _divisor(numbers: Interval) -> Interval:
    if 0 in numbers:
        raise ZeroDivisionError
    return numbers


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
    "min": Range.least, "max": Range.greatest}


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
