"""The instruction tables: one small rule per opcode, registered by decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tilec.sim.machine import Code
from tilec.sim.ptx import Instr, is_float

if TYPE_CHECKING:
    from tilec.sim.decode import Decoder

    Rule = Callable[[Decoder, Instr], Code]

RULES: dict[str, Rule] = {}
"""First word of an instruction -> rule that turns it into code once, before the kernel runs."""
FLOAT_RULES: dict[str, Rule] = {}
"""Rules of opcodes that integers share, where the instruction's type is a float type."""


def rule_of(instr: Instr) -> Rule | None:
    """The rule of an instruction by its first word and type; None if there is none.

    st.async and red.async are instructions of their own.
    """
    if instr.mods[:1] == ("async",) and f"{instr.op}.async" in RULES:
        return RULES[f"{instr.op}.async"]
    found = FLOAT_RULES.get(instr.op) if is_float(instr.type) else None
    return found or RULES.get(instr.op)


def rule(*names: str, table: dict[str, Rule] = RULES) -> Callable[[Rule], Rule]:
    """Register a rule for these opcodes."""

    def register(function: Rule) -> Rule:
        table.update(dict.fromkeys(names, function))
        return function

    return register
