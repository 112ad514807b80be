"""The kernels of tests/language/test_random.py as cubins on the GPU, against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.test_levels import OnDevice
from tests.gpu.test_shapes import on_device
from tests.language import test_random as random
from tests.language.test_random import (  # noqa: F401  (its tests, with `check` replaced below)
    test_any_counter_key_and_number_of_rounds,
    test_published_vectors,
    test_seeds_and_offsets_of_any_width,
    test_umulhi,
    test_uniform_numbers_are_at_least_0_and_less_than_1,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _check_on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "check", on_device)


@pytest.mark.parametrize(("seed", "n"), [(7, 100), (2**50 + 3, 1024)])
def test_uniform_and_normal_numbers_on_device(seed: int, n: int) -> None:
    uniform, normal = (OnDevice(np.full((5, n), np.nan, np.float32)) for _ in range(2))
    random.numbers[(1,)](seed, 1000, uniform, normal, N=n)
    random.check_numbers(seed, n, uniform.get(), normal.get())
