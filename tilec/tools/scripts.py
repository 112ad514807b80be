"""The console scripts. Each loads its tool when it is started, so that an interrupt is one line
even while modules are loaded."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable


def _script(name: str) -> Callable[[], int]:
    def start() -> int:
        try:
            status: int = importlib.import_module(f"tilec.tools.{name}").main()
        except KeyboardInterrupt:
            print(f"tilec-{name}: interrupted", file=sys.stderr)
            return 1
        return status

    return start


opt = _script("opt")
run = _script("run")
compile = _script("compile")
sim = _script("sim")
layout = _script("layout")
bisect = _script("bisect")
reduce = _script("reduce")
