"""A slice of the random launches, and that the fuzzer sees what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fuzz import launches
from tests.fuzz.launches import Case, Generator, isolated, outcome

SEED = 20


def test_a_hundred_launches():
    found = list(isolated(SEED, 100))
    failed = [f"{kind}: {text}\n{Generator(SEED, index).case().program()}"
              for index, kind, text in found if kind not in launches.FINE]
    assert not failed, "\n".join(failed)
    kinds = [kind for _, kind, _ in found]
    assert kinds.count("ran") > 15 and kinds.count(launches.REFUSED) > 15


GOOD = Case("combine", {"x": "np.arange(9) % 5", "y": "np.full(9, 2)", "out": "np.zeros(8, 'f4')",
                        "n": "8", "s": "3", "B": "4"}, "(2,)")
GOOD.arguments |= {name: f"({GOOD.arguments[name]}).astype(np.int32)" for name in "xy"}


def test_a_wrong_result_is_seen(monkeypatch):
    assert outcome(GOOD) == ("ran", "")
    real = launches.combine.launch

    def off(grid, /, *args, **kwargs):
        kernel = real(grid, *args, **kwargs)
        kwargs["out"][3] += 1
        return kernel

    monkeypatch.setattr(launches.combine, "launch", off)
    kind, text = outcome(GOOD)
    assert kind == "wrong result" and "expected [ 6.  7.  8.  9. 10.  6.  7.  8.]" in text


@pytest.mark.parametrize("error, kind", [
    (TypeError("x"), "traceback"), (launches.InternalError("x"), "internal error"),
    (launches.TilecError("x"), "refused, though right")])
def test_faults_are_seen(monkeypatch, error, kind):
    def fail(grid, /, *args, **kwargs):
        raise error

    monkeypatch.setattr(launches.combine, "launch", fail)
    assert outcome(GOOD)[0] == kind


def test_the_program_of_a_case_runs(capsys, tmp_path, monkeypatch):
    file = tmp_path / "shown.py"
    file.write_text(GOOD.program())
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(file.read_text(), str(file), "exec"), {"__name__": "shown"})
    assert np.array2string(np.array([6., 7, 8, 9, 10, 6, 7, 8])) in capsys.readouterr().out
