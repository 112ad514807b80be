"""No GPU, and a cache of each test's own; or the stand-in for one."""

import pytest

from tests.runtime.tuner.support import Gpu
from tilec.runtime import device


@pytest.fixture(autouse=True)
def plain(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(device, "gpu_available", lambda: False)


@pytest.fixture
def gpu(monkeypatch):
    return Gpu(monkeypatch)
