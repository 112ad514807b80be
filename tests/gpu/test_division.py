"""The kernels of tests/language/test_division.py as cubins on the GPU."""

from __future__ import annotations

import pytest

from tests.gpu.test_shapes import on_device
from tests.language import test_division as division
from tests.language.test_division import (  # noqa: F401  (its test, with `check` replaced below)
    test_rounded_correctly,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _check_on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "check", on_device)
