"""The rule tables are complete, and no op of any dtype ends the process on any target."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.codegen.kernels import DTYPES, TARGETS
from tilec.codegen.context import compute, lower
from tilec.codegen.lower import to_llir  # noqa: F401  (fills the tables)
from tilec.ir import ops
from tilec.ir.core import OP_CLASSES

# Terminators that their op's own rule reads.
EXEMPT = {"Yield", "Condition"}
# Rewritten, or made TMA copies, before.
DESCRIPTORS = {"DescriptorAtomic", "DescriptorLoad", "DescriptorStore"}


def test_every_op_has_a_rule() -> None:
    assert lower.missing(OP_CLASSES.values()) == EXEMPT | DESCRIPTORS
    elementwise = [c for c in OP_CLASSES.values() if issubclass(c, ops.Elementwise)]
    assert compute.missing(elementwise) == set()


@pytest.mark.parametrize("target", TARGETS)
def test_whole_table_compiles_and_links(target: str) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-m", "tests.codegen.table", target], cwd=root,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" ok\n") == len(DTYPES)
