"""The catalogue of instruction forms that a GPU's recorded results hold the simulator to."""

from __future__ import annotations

import functools

from tests.sim.forms import arithmetic, conversions, matrix, memory, warp
from tests.sim.forms.base import Form

CATALOGUES = {"ampere": (arithmetic, conversions, memory, warp, matrix)}


@functools.cache
def catalogue(name: str) -> dict[str, Form]:
    """The forms of "ampere", or of another catalogue, by name."""
    forms: dict[str, Form] = {}
    for module in CATALOGUES[name]:
        for form in module.forms():
            assert form.name not in forms, f"{form.name} twice"
            forms[form.name] = form
    return forms
