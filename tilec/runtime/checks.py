"""What a launch passes to the checks of a debug compilation (codegen/checks.py), and the error that
it makes of their report."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tilec.codegen.checks import REPORT_BYTES, Check
from tilec.errors import CheckError, Location

_REPORT = struct.Struct("<4i3q")


def added_types(types: Sequence[str]) -> list[str]:
    """The types of the parameters that checks add to those of these types: where the report goes,
    and for each pointer where its allocation begins and ends."""
    return ["*i32", *(2 * sum(t.startswith("*") for t in types) * ["u64"])]


def added_values(report: Any, types: Sequence[str],
                 edge: Callable[[int, bool], Any]) -> list[Any]:
    """The values of the added parameters. edge: the end, or else the beginning, of the allocation
    of the argument with a number."""
    return [report, *(edge(i, end) for i, t in enumerate(types) if t.startswith("*")
                      for end in (False, True))]


def raise_failed(checks: Sequence[Check], report: bytes | bytearray) -> None:
    """CheckError for the check that failed first; nothing if none did."""
    assert len(report) == REPORT_BYTES
    number, x, y, z, offset, size, width = _REPORT.unpack(report)
    if not number:
        return
    check = checks[number - 1]
    program = f"program ({x}, {y}, {z})"
    if not check.element:
        raise CheckError(f"{program}: {check.what}", check.loc, check.advice)
    if 0 <= offset <= size - width:
        raise CheckError(
            f"{program} {check.what}, {width} bytes at once, at an address that is not a multiple "
            f"of {width}", check.loc, "it relies on a hint, or on what the kernel was compiled for")
    past = offset >= 0
    count = (offset + width - size if past else -offset) // check.element
    held = size // check.element
    raise CheckError(f"{program} {check.what}, {_elements(max(1, count))} "
                     f"{'past its end' if past else 'before its start'} ({_elements(held)})",
                     check.loc, check.advice)


def _elements(count: int) -> str:
    return f"{count} element{'' if count == 1 else 's'}"


# A check as JSON: its place and the call sites around it, innermost first, then its other fields.
KIND = ([(str, int, int, int)], str, str, int)


def to_json(checks: Iterable[Check]) -> list[Any]:
    """As lists of KIND, for the cache."""
    return [[[[p.file, p.line, p.col, p.end_col] for p in c.loc.chain()],
             c.what, c.advice, c.element] for c in checks]


def from_json(data: Iterable[Any]) -> tuple[Check, ...]:
    """The inverse of `to_json`."""
    out = []
    for places, *rest in data:
        loc = None
        for file, line, col, end_col in reversed(places):
            loc = Location(file, line, col, loc, end_col)
        if loc is None:
            raise ValueError("a check without a place")
        out.append(Check(loc, *rest))
    return tuple(out)
