"""A plugin of pytest that writes how long each test took, as JSON, to $MUTATION_DURATIONS."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

_seconds: dict[str, float] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a phase of a test; with xdist the reports of all workers come here."""
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish(session: Any) -> None:
    """Write the file, in the process that gathers the reports."""
    if not hasattr(session.config, "workerinput"):
        Path(os.environ["MUTATION_DURATIONS"]).write_text(json.dumps(_seconds))
