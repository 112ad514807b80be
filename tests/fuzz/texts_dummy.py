"""A worker that answers, dies or hangs, as the case says."""

from __future__ import annotations

import os
import time
from typing import Any

from tests.fuzz.texts_pool import Outcome, serve


def run(case: dict[str, Any]) -> Outcome:
    """Do what the case says."""
    if case["do"] == "die":
        os._exit(3)
    if case["do"] == "hang":
        time.sleep(100)
    return Outcome("accepted")


if __name__ == "__main__":
    serve(run)
