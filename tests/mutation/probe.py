"""Told by a probed tree which mutants' lines run; notes them with the test in progress, also from
processes that a test starts."""

from __future__ import annotations

import os
from pathlib import Path

_seen: set[tuple[str, int]] = set()


def hit(number: int) -> None:
    """Note that the line of mutant `number` is about to run."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if (test, number) not in _seen:
        _seen.add((test, number))
        with Path(os.environ["MUTATION_HITS"], str(os.getpid())).open("a") as file:
            file.write(f"{number}\t{test}\n")
