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


def to_json(checks: Iterable[Check]) -> list[Any]:
    """As lists, for the cache."""
    return [[_listed(c.loc), c.what, c.advice, c.element] for c in checks]


def from_json(data: Iterable[Any]) -> tuple[Check, ...]:
    """The inverse of `to_json`."""
    return tuple(Check(_location(loc), *rest) for loc, *rest in data)


def _listed(loc: Location) -> list[Any]:
    caller = None if loc.caller is None else _listed(loc.caller)
    return [loc.file, loc.line, loc.col, caller, loc.end_col]


def _location(data: Sequence[Any]) -> Location:
    file, line, col, caller, end_col = data
    return Location(file, line, col, None if caller is None else _location(caller), end_col)
