"""The planted faults fit the tree as it is, the probe sees the line that a fault changes, and a
mutant that a test notices is killed by it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tilec
from tests.mutation.__main__ import failed_tests
from tests.mutation.mutant import Mutant, planted, probed

HERE = Path(__file__).parent
TREE = Path(tilec.__file__).parents[1]
MUTANTS = planted(HERE / "planted")


@pytest.mark.parametrize("path", sorted({m.path for m in MUTANTS}))
def test_faults_fit_their_files(path) -> None:
    text = (TREE / "tilec" / path).read_text()
    for mutant in MUTANTS:
        if mutant.path == path:
            assert mutant.apply(text) != text


def test_there_are_enough_of_them_everywhere() -> None:
    assert len(MUTANTS) == len({m.name for m in MUTANTS}) >= 200
    for folder in ("ir", "passes", "codegen", "interp", "sim"):
        assert sum(m.path.startswith(folder + "/") for m in MUTANTS) >= 25, folder


SOURCE = '''"""A module."""
from __future__ import annotations

def sign(x):
    if x < 0:
        return -1
    elif x == 0:
        return 0
    return 1
'''


def test_the_probe_stands_before_the_line_a_fault_changes(tmp_path, monkeypatch) -> None:
    lines = {"if x < 0:": 0, "return -1": 1, "elif x == 0:": 2, "return 0": 3, "return 1": 4}
    marks = {Mutant("m", "", old, "", "").line(SOURCE): [n] for old, n in lines.items()}
    text = probed(SOURCE, marks)
    reached: list[int] = []
    monkeypatch.setattr("tests.mutation.probe.hit", reached.append)
    space: dict = {}
    exec(compile(text, "m", "exec"), space)
    for x, want in ((-5, [0, 1]), (0, [0, 2, 3]), (7, [0, 2, 4])):
        reached.clear()
        assert space["sign"](x) == (x > 0) - (x < 0)
        assert reached == want


def test_a_line_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="has 2 lines `return 1`"):
        Mutant("m", "", "return 1", "return 2").apply(SOURCE + "    return 1\n")


def test_names_of_failed_tests_are_whole() -> None:
    names = ["a.py::f[an operator-(1, 2)]", "a.py::f[x - y]", "a.py::f[x - y - z]", "a.py::g"]
    lines = [f"FAILED {names[0]} - assert 1 - 2 == 3", f"FAILED {names[1]} - z - is not it",
             f"FAILED {names[2]}", f"ERROR {names[3]}", "ERROR b.py - no: - no", "2 failed"]
    assert failed_tests("\n".join(lines), set(names)) == [*names, "b.py"]


@pytest.mark.full
def test_a_fault_in_the_bits_of_layouts_is_killed(tmp_path) -> None:
    made = subprocess.run([sys.executable, "-m", "tests.mutation", "--only", "low = mask & -mask",
                           "--jobs", "1", "--into", str(tmp_path),
                           "--tests", "tests/ir/test_linear.py"],
                          cwd=TREE, capture_output=True, text=True)
    assert "1 of 1 that are not equivalent: 100.0 %" in made.stdout, made.stdout + made.stderr
