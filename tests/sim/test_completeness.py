"""Every opcode that the simulator has a rule for occurs in the PTX of some test here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilec.sim.rules import RULES

EXEMPT = {
    "ldu": "the rule is ld's; LLVM has not emitted it since sm_70",
    "applypriority": "a cache hint that shares the rule of prefetch",
    "discard": "a cache hint that shares the rule of prefetch",
}


@pytest.fixture(scope="module")
def sources() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return "\n".join(p.read_text() for p in files if p.name != Path(__file__).name)


def test_every_opcode_is_tested(sources: str) -> None:
    missing = [
        op for op in sorted(RULES)
        if not re.search(rf"(?<![\w.%$]){op}(\.[A-Za-z{{]|;|\s+[%$]?\w+;|\s+%)", sources)
    ]  # fmt: skip
    assert missing == sorted(EXEMPT)
