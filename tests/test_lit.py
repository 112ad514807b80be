"""Every file of tests/lit, run in process; `pytest --update-golden` rewrites their CHECK lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import lit
from tilec.ir.rewriter import FIRED
from tilec.passes import canonicalize, combine, form_fma, optimize_dot_operands, reorder_broadcast


@pytest.mark.parametrize("path", lit.FILES, ids=lambda p: str(p.relative_to(lit.FOLDER)))
def test_golden(path: Path, update_golden: bool) -> None:
    if update_golden:
        lit.update(path)
    complaint = lit.run_file(path)
    assert not complaint, f"{complaint}\n(if the new text is right: pytest --update-golden)"


def test_every_pattern_fires() -> None:
    FIRED.clear()
    for path in lit.FILES:
        lit.run_file(path)
    modules = (canonicalize, combine, form_fma, optimize_dot_operands, reorder_broadcast)
    names = {p.name for m in modules for p in m.PATTERNS}
    assert names - set(FIRED) == set()


def test_update_rewrites_checks(tmp_path: Path) -> None:
    path = tmp_path / "x.tir"
    path.write_text(
        "// RUN: tilec-opt %s --passes=canonicalize | filecheck %s\n"
        "// CHECK: stale\nmodule {\n  func @k(%p: ptr<i32>) {\n"
        "    %a = tile.constant() {value = 2} : i32\n    %b = tile.add(%a, %a) : i32\n"
        "    tile.store(%p, %b)\n    func.return()\n  }\n}\n")
    assert "stale" in lit.run_file(path)
    lit.update(path)
    assert lit.run_file(path) == ""
    assert "// CHECK-NEXT: %b = tile.constant() {value = 4} : i32\n" in path.read_text()
