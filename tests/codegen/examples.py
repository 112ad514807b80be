"""Compiles the kernels of every example for one target; run as a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tilec
from tests.test_examples import EXAMPLES, load, small
from tilec import knobs
from tilec.runtime import host


def main() -> None:
    """For each kernel, the example, its name and what came of it; what is refused, by its line,
    ends its example."""
    run, example = host.run_on_cpu, ""

    def run_on_cpu(kernel: Any, values: Sequence[Any], *more: Any) -> None:
        print(f"{example} {kernel.name}", end=": ", flush=True)
        kernel.lower("cubin")
        print(f"ok, {len(kernel.asm['cubin'])} bytes", flush=True)
        run(kernel, values, *more)

    host.run_on_cpu = run_on_cpu
    sys.path.insert(0, str(EXAMPLES[0].parent))
    with knobs.scope(cache=False, target=sys.argv[1]):
        for path in EXAMPLES:
            example = path.stem
            try:
                small(load(path), example)
            except tilec.CompilationError as refused:
                assert refused.loc is not None and Path(refused.loc.file).parent == path.parent
                print(f"{example}: refused, {refused.message}")


if __name__ == "__main__":
    main()
