"""Programs that run together, and one by one."""

import importlib

import pytest

run_module = importlib.import_module("tilec.interp.run")


@pytest.fixture(params=["grouped", "alone"])
def grouping(request, monkeypatch):
    """Kernels that ask for it give the same when programs run together and one by one."""
    if request.param == "alone":
        monkeypatch.setattr(run_module, "GROUP_ELEMENTS", 1)
    return request.param
