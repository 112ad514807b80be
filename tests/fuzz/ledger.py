"""The ledger of the fuzzer's runs: a line of JSON for each, so that runs add up over time."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

PATH = Path(__file__).with_name("ledger.jsonl")


@dataclass
class Run:
    """machine: "cpu" or "gpu"; levels: what was compared with numpy; first, count: the seeds;
    size, elements: of the programs; verdicts: how many of each kind; failed: their seeds."""

    machine: str
    levels: str
    first: int
    count: int
    size: int
    elements: int
    commit: str
    fingerprint: str
    verdicts: dict[str, int] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    seconds: int = 0


def commit() -> str:
    """The commit of the tree, "+" after it where files differ from it; "" outside of git."""
    where = Path(__file__).parent
    try:
        found = subprocess.run(["git", "describe", "--always", "--dirty=+", "--abbrev=8",
                                "--exclude=*"], cwd=where, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return found.stdout.strip()


def read(path: Path) -> list[Run]:
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Run(**json.loads(line)) for line in lines if line]


def append(path: Path, run: Run) -> None:
    with path.open("a", encoding="utf-8") as f:
        f.write(json.dumps(asdict(run)) + "\n")


def next_seed(runs: Iterable[Run], machine: str) -> int:
    """The first seed that no run on such a machine has had."""
    return max((r.first + r.count for r in runs if r.machine == machine), default=0)


def report(runs: Iterable[Run]) -> str:
    """A table for docs/testing.md: what each kind of machine has run at each version of tilec."""
    rows: dict[tuple[str, str, str], Counter[str]] = {}
    for r in runs:
        row = rows.setdefault((r.machine, r.levels, r.commit), Counter())
        row.update({"kernels": r.count, "minutes": r.seconds} | r.verdicts)
    heads = ("machine", "compared with numpy", "at", "kernels", "right", "refused", "failed",
             "minutes")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for (machine, levels, at), row in rows.items():
        failed = row["kernels"] - row["right"] - row["refused"]
        lines.append(f"| {machine} | {levels} | {at} | {row['kernels']} | {row['right']} | "
                     f"{row['refused']} | {failed} | {row['minutes'] / 60:.0f} |")
    return "\n".join(lines)
