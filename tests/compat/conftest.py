"""Libraries written for Triton, imported with tilec in its place while a file of tests runs."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest


@pytest.fixture(scope="module")
def triton():
    """tilec under Triton's names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEC_STRICT", "0")
        patch.setattr(sys, "meta_path", list(sys.meta_path))
        compat = importlib.import_module("tilec.compat.triton")
        compat.install()
        yield importlib.import_module("triton")
        for name in [n for n in sys.modules if n.partition(".")[0] == "triton"]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def library(triton):
    """Imports a module of a library; skips where the library is not installed."""

    def load(name):
        top = name.partition(".")[0]
        if importlib.util.find_spec(top) is None:
            pytest.skip(f"{top} is not installed; make test-torch installs it")
        return importlib.import_module(name)

    return load


@pytest.fixture
def poisoned():
    """What torch allocates without a value is NaN, or the largest integer."""
    torch = importlib.import_module("torch")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # fill_uninitialized_memory is on by default
    yield
    torch.use_deterministic_algorithms(before)
