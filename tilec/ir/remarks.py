"""Remarks: what the compiler decided about a kernel, and why, with the author's line.

Whoever decides calls `remark`; it costs next to nothing unless somebody is `recording`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from tilec.errors import Location
from tilec.ir.core import UNKNOWN, Op, Value
from tilec.ir.types import MemDesc, element_of, shape_of


@dataclass(frozen=True)
class Remark:
    """One decision. kind: a word to filter by ("access", "conversion", "dot", "pipeline",
    "shared", "registers", ...). loc: None for what concerns the whole kernel. data: the numbers
    of the message by name, of types that JSON can hold."""

    kind: str
    message: str
    loc: Location | None = None
    data: dict[str, object] = field(default_factory=dict)


_recorder: ContextVar[list[Remark] | None] = ContextVar("tilec_remarks", default=None)


def recorded() -> bool:
    """Whether remarks are wanted: ask before computing what only a remark needs."""
    return _recorder.get() is not None


def remark(where: Op | Location | None, kind: str, message: str, **data: object) -> None:
    """Record a remark at an op or a place, if somebody is recording."""
    recorder = _recorder.get()
    if recorder is not None:
        loc = where.loc if isinstance(where, Op) else where
        recorder.append(Remark(kind, message, None if loc is UNKNOWN else loc, data))


@contextlib.contextmanager
def recording() -> Iterator[list[Remark]]:
    """Collect the remarks made inside the block, in this thread."""
    out: list[Remark] = []
    token = _recorder.set(out)
    try:
        yield out
    finally:
        _recorder.reset(token)


def shown(value: Value) -> str:
    """A value as messages call it: its type, and its name if it has one."""
    shape = shape_of(value.type)
    element = value.type.element if isinstance(value.type, MemDesc) else element_of(value.type)
    kind = f"{element}[{', '.join(map(str, shape))}]" if shape else str(element)
    return f"`{value.name}`, {kind}" if value.name else kind
