"""Shared by all tests: the seeded random generator, --update-golden and
--update-ratchet, verification after passes, checks in the simulator."""

from __future__ import annotations

import os
import zlib

import hypothesis
import numpy as np
import pytest

os.environ["TILEC_VERIFY"] = "1"
os.environ["TILEC_CHECK"] = "1"  # whatever runs as PTX has no race and reads nothing uninitialised
# The same examples in every run; `pytest --hypothesis-profile=explore` looks for new ones.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("explore", max_examples=2000, deadline=None)
hypothesis.settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true",
                     help="rewrite the CHECK lines of tests/lit from what the passes print now")
    parser.addoption("--update-ratchet", action="store_true",
                     help="store today's figures in tests/ratchet.json")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator seeded by the test's name, so that a test's numbers do not depend on others."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
