"""The kernels of tests/language/test_shapes.py as cubins on the GPU, against numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tilec
from tests.gpu.test_levels import OnDevice
from tests.language import test_shapes as shapes
from tests.language.test_shapes import (  # noqa: F401  (its tests, with `check` replaced below)
    test_a_half_has_the_poison_of_its_own_elements,
    test_every_dtype,
    test_halves_go_around_a_loop,
    test_indices_of_more_slices_than_dimensions,
    test_joined_tiles_are_operands_of_products,
    test_pointers_are_joined_and_split,
    test_tiles_of_one_element_are_conditions,
    test_what_is_joined_broadcasts_and_is_promoted,
)
from tests.support.levels import poisoned, same

pytestmark = pytest.mark.gpu


def on_device(kernel: tilec.JITFunction, ins: Sequence[Any], wants: Sequence[np.ndarray],
              constexprs: dict[str, Any], warps: int = 4, target: str = "",
              grid: tuple[int, ...] = (1,)) -> None:
    """Like tests.support.levels.check, for the level that only a GPU runs, and for the GPU that is
    there."""
    outs = [OnDevice(poisoned(w)) for w in wants]
    there = [OnDevice(a) if isinstance(a, np.ndarray) else a for a in ins]
    kernel[grid](*there, *outs, num_warps=warps, **constexprs)
    for out, want in zip(outs, wants, strict=True):
        same(out.get(), want, "cubin")


@pytest.fixture(autouse=True)
def _check_on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "check", on_device)
