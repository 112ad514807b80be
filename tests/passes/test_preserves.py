"""Every module of tests/lit computes the same before and after each of its passes; those of the
tile level do so through the whole pipeline, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import lit
from tilec.compiler import stages
from tilec.errors import IRError
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.verifier import verify
from tilec.passes.base import parse_pipeline
from tilec.runtime.validation import Validate, Validator
from tilec.target import DEFAULT, Target
from tilec.tools.opt import split


def cases() -> list[tuple[Path, str]]:
    files = [(path, lit.passes_of(path)) for path in lit.FILES]
    return [(path, passes) for path, passes in files if passes and "tools" not in path.parts]


def follow(path: Path, text: str, seeds: int) -> None:
    for piece in split(path.read_text(encoding="utf-8")):
        whole, passes = parse(piece, str(path)), parse_pipeline(text)
        names = [p.name for p in passes]
        for func in whole.funcs:
            module = whole.clone()
            validator = Validator(module, func.name, "insert_barriers" in names, seeds)
            for i, p in enumerate(passes):
                p.run(module)
                verify(module)
                found = validator.step(p, module, "insert_barriers" not in names[:i + 1])
                assert found is None, f"{path.name} @{func.name}: {found}"
            assert not validator.unmet, f"{path.name} @{func.name}: {validator.unmet}"


@pytest.mark.parametrize(("path", "passes"), cases(), ids=lambda c: getattr(c, "stem", None))
@pytest.mark.sample(19)
def test_same_results(path: Path, passes: str) -> None:
    follow(path, passes, 1)


@pytest.mark.full
@pytest.mark.parametrize(("path", "passes"), cases(), ids=lambda c: getattr(c, "stem", None))
def test_same_results_on_more_inputs(path: Path, passes: str) -> None:
    follow(path, passes, 6)


def tile_functions(path: Path) -> list[Module]:
    found: list[Module] = []
    for piece in split(path.read_text(encoding="utf-8")):
        try:
            module = parse(piece, str(path))
            verify(module)
        except IRError:  # what the golden test is about
            continue
        if module.level == "tile":
            found += [Module([f], module.attributes) for f in module.funcs]
    return found


@pytest.mark.parametrize("path", [p for p in lit.FILES if "tools" not in p.parts],
                         ids=lambda p: str(p.relative_to(lit.FOLDER)))
def test_the_pipeline_keeps_the_results_of_golden_inputs(path: Path) -> None:
    for module in tile_functions(path):
        target = Target.parse(str(module.attributes.get("target", DEFAULT)))
        instrument = Validate(module.funcs[0].name)
        for _ in stages(module.clone(), target, stop_at="lowered", instruments=[instrument]):
            pass
        assert instrument.validator is not None and not instrument.validator.unmet
