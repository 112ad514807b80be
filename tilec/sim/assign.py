"""The one way an instruction's result reaches its register."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tilec.sim.machine import Code, Mask

Array = np.ndarray[Any, Any]


def assign(target: Array, compute: Callable[[], Array]) -> Code:
    """Code that copies a computed value into a register, for the active threads."""
    copy = np.copyto

    def code(mask: Mask) -> None:
        if mask is None:
            copy(target, compute(), casting="unsafe")
        else:
            copy(target, compute(), where=mask, casting="unsafe")

    return code


def store(target: Array, value: Array, mask: Mask) -> None:
    """Copy one value into a register, for the active threads."""
    np.copyto(target, value, where=True if mask is None else mask, casting="unsafe")
