"""Faults to plant in a module: functions that change it."""

from __future__ import annotations

from collections.abc import Callable

from tilec.ir.core import Module, Op


def all_of(m: Module, cls: type[Op]) -> list[Op]:
    """The module's ops of a class, in order."""
    return [op for op in m.walk() if isinstance(op, cls)]


def drop(cls: type[Op], index: int) -> Callable[[Module], None]:
    """Without the op of that number."""
    def fault(m: Module) -> None:
        all_of(m, cls)[index].erase()
    return fault
