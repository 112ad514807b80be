"""The instruction table: one small rule per opcode, registered by decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilec.sim.decode import Decoder
    from tilec.sim.machine import Code
    from tilec.sim.ptx import Instr

    Rule = Callable[[Decoder, Instr], Code]

RULES: dict[str, Rule] = {}
"""First word of an instruction -> rule that turns it into code once, before the kernel runs."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for these opcodes."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register
