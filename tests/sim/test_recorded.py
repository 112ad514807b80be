"""Every instruction form, replayed in the simulator against what a GPU gave for the same PTX."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

from tests.sim.forms import CATALOGUES, catalogue, store
from tests.sim.forms.base import BITS, HEADER, Array, Form, Match, differences
from tests.sim.record import assemble
from tests.sim.test_completeness import EXEMPT
from tilec import sim
from tilec.codegen import cubin
from tilec.sim.rules import RULES

FORMS = [(name, form) for name in CATALOGUES for form in catalogue(name)]
WITHOUT_RESULT = {
    "trap": "the kernel fails", "brkpt": "the kernel fails", "pmevent": "only a profiler sees it",
}
UNCHANGED = ("cp.async.bulk.tensor.2d store 2d outside",)


@functools.cache
def recording(name: str) -> store.Recording:
    return store.read(store.path_of(name))


def recorded(name: str, form: str) -> bool:
    return form in recording(name).results


def faulted(name: str, form: str) -> bool:
    return form in recording(name).faults


def simulated(form: Form, check: bool = False) -> list[Array]:
    outputs = [a.copy() for a in form.outputs]
    arrays = [*outputs, *form.inputs]
    sim.run(HEADER + form.text, form.entry, arrays + [m.record(arrays) for m in form.maps],
            (form.grid, 1, 1), shared_bytes=form.shared, check=check)
    return outputs


def shown(form: Form, number: int, got: Array, want: Array, match: Match) -> str:
    """The first elements of an output that differ, with the thread's sources where they fit."""
    at = differences(got, want, match, form.inputs)
    lines = [f"{form.name}, output {number}: {len(at)} of {got.size} differ"]
    for i in at[:5].tolist():
        sources = [hex(int(a[i])) for a in form.inputs if a.ndim == 1 and a.size == got.size]
        lines.append(f"  [{i}] simulator {int(got.flat[i]):#x}, GPU {int(want.flat[i]):#x}, "
                     f"sources {sources}")
    return "\n".join(lines)


@pytest.mark.parametrize(("name", "form"), [(n, f) for n, f in FORMS if recorded(n, f)])
@pytest.mark.sample(400)
def test_form_equals_the_gpu(name: str, form: str) -> None:
    held, what = recording(name), catalogue(name)[form]
    checksum, _ = held.results[form]
    assert checksum == what.checksum, "the form changed: record it again"
    outputs = zip(simulated(what), held.outputs(what), what.match, strict=True)
    for number, (got, want, match) in enumerate(outputs):
        wrong = differences(got, want, match, what.inputs)
        assert not len(wrong), shown(what, number, got, want, match)


@pytest.mark.parametrize(("name", "form"), [(n, f) for n, f in FORMS if faulted(n, f)])
def test_form_faults_as_on_the_gpu(name: str, form: str) -> None:
    what, (checksum, error) = catalogue(name)[form], recording(name).faults[form]
    assert checksum == what.checksum, "the form changed: record it again"
    assert "CUDA_ERROR_ILLEGAL_INSTRUCTION" in error


@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.sample(200)
def test_form_writes_its_results_and_passes_the_checks(name: str, form: str) -> None:
    what = catalogue(name)[form]
    assert sim.unsupported(HEADER + what.text) == []
    if what.fault:
        with pytest.raises(sim.SimError, match=what.fault):
            simulated(what)
        return
    outputs = zip(simulated(what, check=True), what.outputs, strict=True)
    for number, (got, before) in enumerate(outputs):
        assert what.name in UNCHANGED or not np.array_equal(got, before), number


@pytest.mark.full
@pytest.mark.skipif(not cubin.available(), reason="nvJitLink is for Linux and Windows")
@pytest.mark.parametrize("name", CATALOGUES)
def test_every_form_assembles(name: str) -> None:
    image = assemble(list(catalogue(name).values()))
    assert all(form.entry.encode() in image for form in catalogue(name).values())


def test_every_opcode_has_a_form() -> None:
    text = "\n".join(catalogue(name)[form].text for name, form in FORMS)
    words = set(re.findall(r"(?<![\w.%$])[a-z][\w.:]*", text))
    missing = {op for op in RULES if not any(w == op or w.startswith(op + ".") for w in words)}
    assert missing == set(WITHOUT_RESULT) | set(EXEMPT)


def test_recordings_name_their_origin() -> None:
    for name in CATALOGUES:
        held = recording(name)
        assert held.made["gpu"] and held.made["driver"] and held.made["date"]
        assert {*held.results, *held.faults} <= set(catalogue(name))


def test_differences_find_what_is_outside_the_bound() -> None:
    one = np.array([1, 1, 1, -1, np.nan, np.inf, 0, 0], np.float32)
    other = np.array([1, 1, 1, -1, np.nan, -np.inf, -0.0, 1e-45], np.float32)
    other[1:4].view(np.int32)[:] += [1, 2, 3]
    x, y = one.view(np.uint32), other.view(np.uint32)
    assert differences(x, y, BITS).tolist() == [1, 2, 3, 5, 6, 7]
    assert differences(x, y, Match("f32")).tolist() == [1, 2, 3, 5, 6, 7]
    assert differences(x, y, Match("f32", ulp=2)).tolist() == [3, 5, 6]
    assert differences(x, y, Match("f32", relative=2.0**-20)).tolist() == [5, 6, 7]
    assert differences(x, y, Match("f32", absolute=2.0**-20)).tolist() == [5]
    assert len(differences(x, x, Match("f32"))) == 0
    positive = Match("f32", defined=lambda inputs: inputs[0] > 0)
    assert differences(x, y, positive, [one]).tolist() == [1, 2, 5]
