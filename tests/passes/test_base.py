"""Pipelines as text, and that every pass is a frozen dataclass with its own file and docs."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from tilec.errors import TilecError
from tilec.passes.base import Pass, all_passes, parse_pipeline


@pytest.mark.parametrize("cls", all_passes().values(), ids=lambda c: c.name)
def test_every_pass(cls: type[Pass]) -> None:
    assert dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert sys.modules[cls.__module__].__name__ == f"tilec.passes.{cls.name}"
    assert cls.__doc__ and "->" in cls.__doc__, "the docstring shows before -> after"
    assert str(cls()) == cls.name and parse_pipeline(cls.name) == [cls()]


def test_pipelines() -> None:
    assert parse_pipeline("") == []
    assert [p.name for p in parse_pipeline(" canonicalize, form-fma,dce{} ")] == \
        ["canonicalize", "form_fma", "dce"]


@pytest.mark.parametrize(("text", "message"), [
    ("canonicalize,,dce", "cannot read the pipeline"), ("dce{", "cannot read the pipeline"),
    ("lcim", "there is no pass `lcim`"), ("cse{n=1}", "pass `cse` has no option `n`"),
])
def test_bad_pipelines(text: str, message: str) -> None:
    with pytest.raises(TilecError, match=message):
        parse_pipeline(text)
