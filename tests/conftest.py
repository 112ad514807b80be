"""Shared by all tests: the seeded random generator, --update-golden and
--update-ratchet, samples of long tables, verification after passes, checks in the simulator."""

from __future__ import annotations

import gc
import os
import tempfile
import zlib
from collections import defaultdict

import hypothesis
import numpy as np
import pytest

os.environ["TILEC_VERIFY"] = "1"
os.environ["TILEC_CHECK"] = "1"  # whatever runs as PTX has no race and reads nothing uninitialised
if "PYTEST_XDIST_WORKER" not in os.environ:  # whose workers share the cache of who starts them
    # What was compiled before says no remarks, and hides a pass that is broken now.
    CACHE = tempfile.TemporaryDirectory(prefix="tilec-tests-", ignore_cleanup_errors=True)
    os.environ["TILEC_CACHE_DIR"] = CACHE.name
# Compilations make many objects that live on, and few cycles: collected at Python's own thresholds
# they cost a sixth of the time.
gc.set_threshold(200_000, 20, 100)
# The same examples in every run; `pytest --hypothesis-profile=explore` looks for new ones.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("explore", max_examples=2000, deadline=None)
hypothesis.settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true",
                     help="rewrite the CHECK lines of tests/lit from what the passes print now")
    parser.addoption("--update-ratchet", action="store_true",
                     help="store today's figures in tests/ratchet.json")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`@pytest.mark.sample(n)`: of a test's cases n, drawn by the hashes of their names, run in
    `make test`, the others in `make test-full` only."""
    cases: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("sample")
        if mark is not None and item.get_closest_marker("full") is None:
            cases[item.nodeid.partition("[")[0], mark.args[0]].append(item)
    for (_, drawn), group in cases.items():
        for item in sorted(group, key=lambda i: zlib.crc32(i.nodeid.encode()))[drawn:]:
            item.add_marker(pytest.mark.full)


def pytest_collection_finish() -> None:
    """Leave the collected tests out of what the garbage collector walks."""
    gc.freeze()


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator seeded by the test's name, so that a test's numbers do not depend on others."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def _every_fourth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `make test` one test in four, by its name, verifies after every pass and has ptxas make a
    cubin of what it warms up; in `make test-full` all do."""
    if zlib.crc32(request.node.nodeid.encode()) % 4 and \
            "not full" in request.config.getoption("markexpr") and \
            request.node.get_closest_marker("cubins") is None:
        monkeypatch.setenv("TILEC_VERIFY", "0")
        monkeypatch.setattr("tilec.runtime.jit.available", lambda: False)
