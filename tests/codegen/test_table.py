"""The rule tables are complete, and nothing that is lowered ends the process on any target."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilec
from tests.codegen import sweep
from tests.codegen.kernels import DTYPES
from tilec.codegen.context import compute, lower
from tilec.codegen.lower import to_llir  # noqa: F401  (fills the tables)
from tilec.ir import ops
from tilec.ir.core import OP_CLASSES
from tilec.target import NAMES

ROOT = Path(__file__).parents[2]
QUICK = ["sm_75", "sm_80", "sm_90a"]
# Terminators that their op's own rule reads.
EXEMPT = {"Yield", "Condition"}
# Rewritten, or made TMA copies, before.
DESCRIPTORS = {"DescriptorAtomic", "DescriptorLoad", "DescriptorStore"}


def test_every_op_has_a_rule() -> None:
    assert lower.missing(OP_CLASSES.values()) == EXEMPT | DESCRIPTORS
    elementwise = [c for c in OP_CLASSES.values() if issubclass(c, ops.Elementwise)]
    assert compute.missing(elementwise) == set()


def child(module: str, *arguments: str) -> list[str]:
    """The lines that a module prints which compiles in a process of its own."""
    done = subprocess.run([sys.executable, "-m", f"tests.codegen.{module}", *arguments], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-500:]}\n{done.stderr}"
    return done.stdout.splitlines()


@pytest.mark.parametrize("target", [pytest.param(t, marks=() if t in QUICK else pytest.mark.full)
                                    for t in NAMES])
def test_whole_table_compiles_and_links(target: str) -> None:
    lines = child("table", target)
    assert all(line.endswith(" ok") for line in lines)
    assert len(lines) == len(DTYPES) - (target == "sm_75")  # it has no bf16


def compiles(targets: str, step: int, *link: str) -> None:
    """Everything does, but what holds bf16 on sm_75, which is refused."""
    for line in child("sweep", targets, str(step), *link):
        case, outcome = line.split(": ", 1)
        assert outcome == ("refused, bf16 needs sm_80 or later, the target is sm_75"
                           if case.startswith("sm_75") and "bf16" in case else "ok"), line


def test_dots_and_transposes_compile() -> None:
    compiles("sm_75", 29, "link")
    compiles(",".join(NAMES), 11)


@pytest.mark.full
@pytest.mark.parametrize("target", NAMES)
def test_every_dot_and_transpose_links(target: str) -> None:
    compiles(target, 1, "link")


# The examples that hold a kernel which sm_75 cannot run, and what that kernel has.
REFUSED = dict.fromkeys(
    ["01_vector_add", "02_fused_softmax", "06_matmul", "12_fp8_matmul", "13_long_rows",
     "15_explicit_gradients"], "bf16 needs sm_80 or later") | dict.fromkeys(
    ["10_explicit_matmul", "14_explicit_attention"], "tlg.mbarrier needs sm_90a")


def test_examples_for_turing() -> None:
    """They compile to cubins, or the line is named that needs more."""
    lines = child("examples", "sm_75")
    refused = [line.split(": refused, ") for line in lines if ": refused, " in line]
    assert {example.split(": ")[-1]: why for example, why in refused} == {
        example: f"{what}, the target is sm_75" for example, what in REFUSED.items()}
    assert sum(line.endswith(" bytes") for line in lines) == 31


RUNS = [("fp16", "fp32", "ieee", 2.0**-20), ("fp16", "fp16", "ieee", 2.0**-10),
        ("fp32", "fp32", "tf32", 2.0**-20), ("i8", "i32", "ieee", 0)]


@pytest.mark.parametrize(("a_columns", "b_columns"), [(False, False), (True, True)])
@pytest.mark.parametrize(("element", "total", "precision", "tolerance"), RUNS)
def test_dots_for_turing(element: str, total: str, precision: str, tolerance: float,
                         a_columns: bool, b_columns: bool) -> None:
    """In the simulator, with ldmatrix and without tensor cores, against numpy."""
    m, n, k, rounds = 32, 48, 32, 2
    types = {"fp16": np.float16, "fp32": np.float32, "i8": np.int8, "i32": np.int32}
    kernel = tilec.compile(
        sweep.dot, {"a_ptr": f"*{element}:16", "b_ptr": f"*{element}:16", "c_ptr": f"*{total}:16",
                    "rounds": "i32"},
        {"M": m, "N": n, "K": k, "A_COLUMNS": a_columns, "B_COLUMNS": b_columns,
         "PRECISION": precision}, target="sm_75", num_warps=2)
    rng = np.random.default_rng(7)
    a, b = ((rng.standard_normal(shape) * (9 if element == "i8" else 1)).astype(types[element])
            for shape in ((rounds, m, k), (rounds, k, n)))
    c = np.full((m, n), 99, types[total])
    stored = (np.ascontiguousarray(x.transpose(0, 2, 1)) if columns else x
              for x, columns in ((a, a_columns), (b, b_columns)))
    kernel.run([*stored, c, rounds], grid=1, level="ptx")
    wide = a.astype(np.float64), b.astype(np.float64)
    error = np.abs(c - np.matmul(*wide).sum(0))
    assert (error <= tolerance * np.matmul(*map(np.abs, wide)).sum(0)).all()


def test_matrices_for_turing() -> None:
    """A transpose by ldmatrix, which PTX has from 6.5 on."""
    kernel = tilec.compile(sweep.transpose, {"x_ptr": "*fp16:16", "o_ptr": "*fp16:16"},
                           {"M": 32, "N": 64}, target="sm_75", num_warps=2)
    x = np.random.default_rng(3).standard_normal((32, 64)).astype(np.float16)
    out = np.full((64, 32), np.nan, np.float16)
    kernel.run([x, out], grid=1, level="ptx")
    np.testing.assert_array_equal(out, x.T)
    assert "ldmatrix" in kernel.asm["ptx"]
