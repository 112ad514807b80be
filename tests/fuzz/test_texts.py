"""A slice of the fuzzers of texts and command lines, in process; and what their parts do."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import commands, texts
from tests.fuzz.texts_corpus import corpus
from tests.fuzz.texts_mutate import mutate
from tests.fuzz.texts_pool import FAILURES, Outcome, Worker


def test_a_slice_of_texts() -> None:
    """Of IR and PTX: LLVM's texts take processes of their own."""
    found = [texts.run(case) for case in texts.cases(70, 13) if case["kind"] != "ll"]
    assert [o for o in found if o.kind in FAILURES] == []
    assert {o.kind for o in found} >= {"accepted", "clean error"}


def test_a_slice_of_command_lines() -> None:
    found = [commands.run(case) for case in commands.cases(12, 13)]
    assert [o for o in found if o.kind in FAILURES] == []


def test_texts_that_nobody_changed_are_accepted() -> None:
    for kind in ("tir", "ptx"):
        for text in [t for t in corpus()[kind] if "scaled" in t.name][::9]:
            outcome = texts.run(text._asdict() | {"seed": "0"})
            assert outcome.kind == "accepted", outcome.detail


@pytest.mark.parametrize(("old", "new", "kind"), [
    ("mul.rn.f32", "mul.rn.f64", "clean error"), ("ret;", "ret", "clean error")])
def test_outcomes_of_ptx(old: str, new: str, kind: str) -> None:
    text = corpus()["ptx"][0]
    changed = text._replace(text=text.text.replace(old, new))
    assert texts.run(changed._asdict() | {"seed": "0"}).kind == (
        kind if changed.text != text.text else "accepted")


def test_a_difference_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that changes the result is found."""
    text = next(t for t in corpus()["tir"] if t.name == "scaled/00-frontend.tir")
    lower = texts.compile_from

    def broken(module: object, target: object, level: str) -> object:
        made = lower(module, target, level)
        made.ptx = made.ptx.replace("fma.rn.f32", "mul.rn.f32").replace("add.rn.f32", "sub.rn.f32")
        return made

    monkeypatch.setattr(texts, "compile_from", broken)
    assert texts.run(text._asdict() | {"seed": "0"}).kind in ("wrong", "internal error")


def test_mutants_are_seeded() -> None:
    source = [t.text for t in corpus()["tir"]]
    made = [mutate(source[0], source, random.Random(7)) for _ in range(2)]
    assert made[0] == made[1] != source[0]


def test_a_worker_that_dies_or_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.texts_pool.LIMIT", 0.5)
    worker = Worker("tests.fuzz.texts_dummy")
    try:
        assert worker.run({"do": "answer"}) == Outcome("accepted", "", {"do": "answer"})
        assert worker.run({"do": "die"}).kind == "died"
        assert worker.run({"do": "hang"}).kind == "hang"
        assert worker.run({"do": "answer"}).kind == "accepted"
    finally:
        worker.stop()
