"""Flags: parsing, scopes, errors and the launch snapshot."""

from __future__ import annotations

import os
import threading

import pytest

from tilec import errors, knobs
from tilec.errors import TilecError

NAMES = ", ".join(knob.env for knob in knobs.KNOBS)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("TILEC_"):
            monkeypatch.delenv(name)


def test_defaults():
    assert knobs.dump == ""
    assert knobs.cache is True
    assert knobs.verify is False
    assert knobs.seed == 0
    assert knobs.run == ""
    assert knobs.cache_dir == os.path.expanduser("~/.cache/tilec")


def test_environment_is_read_at_each_use(monkeypatch):
    monkeypatch.setenv("TILEC_DUMP", "coalesce,cse")
    monkeypatch.setenv("TILEC_SEED", "0x10")
    monkeypatch.setenv("TILEC_CACHE", "off")
    assert (knobs.dump, knobs.seed, knobs.cache) == ("coalesce,cse", 16, False)
    monkeypatch.setenv("TILEC_DUMP", "all")
    assert knobs.dump == "all"


@pytest.mark.parametrize(
    "text, value",
    [("1", True), ("true", True), ("YES", True), ("on", True),
     ("0", False), ("False", False), ("", False), ("no", False)],
)
def test_flag_spellings(monkeypatch, text, value):
    monkeypatch.setenv("TILEC_VERIFY", text)
    assert knobs.verify is value


@pytest.mark.parametrize(
    "variable, text, expected",
    [
        ("TILEC_VERIFY", "maybe", "1 or 0"),
        ("TILEC_SEED", "x", "an integer"),
        ("TILEC_RUN", "cubin", "tile, gpu, lowered, ptx"),
    ],
)
def test_bad_value_names_variable_and_choices(monkeypatch, variable, text, expected):
    monkeypatch.setenv(variable, text)
    with pytest.raises(TilecError) as e:
        getattr(knobs, variable.removeprefix("TILEC_").lower())
    assert variable in str(e.value) and repr(text) in str(e.value) and expected in str(e.value)


def test_interpret_is_short_for_run_tile(monkeypatch):
    monkeypatch.setenv("TILEC_INTERPRET", "1")
    assert knobs.run == "tile"
    monkeypatch.setenv("TILEC_RUN", "ptx")
    assert knobs.run == "ptx"
    monkeypatch.delenv("TILEC_RUN")
    with knobs.scope(run=""):
        assert knobs.run == ""


def test_scope_overrides_and_nests(monkeypatch):
    monkeypatch.setenv("TILEC_DUMP", "all")
    with knobs.scope(dump="cse", verify=True, seed=7):
        assert (knobs.dump, knobs.verify, knobs.seed) == ("cse", True, 7)
        with knobs.scope(dump=None, verify=0):
            assert (knobs.dump, knobs.verify, knobs.seed) == ("", False, 7)
        assert knobs.dump == "cse"
    assert (knobs.dump, knobs.verify, knobs.seed) == ("all", False, 0)


def test_scope_ends_on_an_exception():
    with pytest.raises(ZeroDivisionError), knobs.scope(verify=True):
        1 / 0  # noqa: B018
    assert knobs.verify is False


def test_scope_is_per_thread():
    seen = []
    with knobs.scope(dump="all"):
        thread = threading.Thread(target=lambda: seen.append(knobs.dump))
        thread.start()
        thread.join()
    assert seen == [""]


def test_scope_expands_home(tmp_path):
    with knobs.scope(dump_dir=tmp_path, cache_dir="~/x"):
        assert knobs.dump_dir == str(tmp_path)
        assert knobs.cache_dir == os.path.expanduser("~/x")


@pytest.mark.parametrize("name", ["dmup", "TILEC_DUMPS"])
def test_unknown_name_suggests(name):
    with pytest.raises(TilecError, match="did you mean `dump`"), knobs.scope(**{name: 1}):
        pass


def test_unknown_name_without_a_near_one_lists_all():
    with pytest.raises(TilecError, match="override_dir"), knobs.scope(zzzzzz=1):
        pass


def test_assignment_is_refused():
    with pytest.raises(TilecError, match="knobs.scope"):
        knobs.dump = "all"
    assert knobs.dump == ""


def test_unknown_attribute():
    with pytest.raises(AttributeError):
        knobs.nothing  # noqa: B018


def test_snapshot_key(monkeypatch):
    assert knobs.snapshot_key() is None
    monkeypatch.setenv("TILEC_CACHE_DIR", "/somewhere")  # does not act on a launch
    assert knobs.snapshot_key() is None
    monkeypatch.setenv("TILEC_DUMP", "all")
    assert knobs.snapshot_key() == (("dump", "all"),)
    with knobs.scope(verify=True, dump="cse"):
        assert knobs.snapshot_key() == (("dump", "cse"), ("verify", True))
    with knobs.scope(seed=3):
        assert knobs.snapshot_key() == (("dump", "all"),)
    monkeypatch.delenv("TILEC_DUMP")
    assert knobs.snapshot_key() is None


def test_snapshot_key_sees_direct_environment_writes():
    os.environ["TILEC_RUN"] = "ptx"
    try:
        assert knobs.snapshot_key() == (("run", "ptx"),)
    finally:
        del os.environ["TILEC_RUN"]
    assert knobs.snapshot_key() is None


def test_describe_has_every_flag():
    table = knobs.describe()
    rows = table.splitlines()
    assert len(rows) == 2 + len(knobs.KNOBS)
    for knob in knobs.KNOBS:
        assert f"| `{knob.env}` |" in table and knob.doc in table
    assert all(row.count("|") == 5 for row in rows)


def test_flags_that_are_none_are_noted_once(monkeypatch, capsys):
    monkeypatch.setattr(errors, "_noted", set())
    knobs._note_unknown_flags.cache_clear()
    for name in ("TILEC_DMUP", "TILEC_ZZZ", "TILEC_SEED"):
        monkeypatch.setenv(name, "1")
    assert knobs.seed == 1 and not knobs.verify
    assert sorted(capsys.readouterr().err.splitlines()) == [
        "tilec: TILEC_DMUP is no flag; did you mean `TILEC_DUMP`?",
        f"tilec: TILEC_ZZZ is no flag; there are {NAMES}"]


def test_paths_hold_no_nul():
    with pytest.raises(TilecError, match="does not understand") as e, \
            knobs.scope(dump_dir="a\0b"):
        pass
    assert "no NUL" in e.value.advice
