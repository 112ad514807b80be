"""The catalogue of instruction forms that a GPU's recorded results hold the simulator to."""

from __future__ import annotations

import functools

from tests.sim.forms import arithmetic, cluster, conversions, matrix, memory, tensor, warp, wgmma
from tests.sim.forms.base import Form

CATALOGUES = {
    "ampere": (arithmetic, conversions, memory, warp, matrix),
    "hopper": (tensor, cluster, wgmma),
}


@functools.cache
def catalogue(name: str) -> dict[str, Form]:
    """The forms of a catalogue by name; those of "ampere" need nothing that is Hopper's alone."""
    forms: dict[str, Form] = {}
    for module in CATALOGUES[name]:
        for form in module.forms():
            assert form.name not in forms, f"{form.name} twice"
            forms[form.name] = form
    return forms
