"""Writes the Figures section of README.md from the newest result file of each benchmark:
`python -m benchmarks.figures`. Says of every row where a peer is faster.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from benchmarks.common import RESULTS, ROOT, table

SECTION = re.compile(r"(?<=^## Figures\n\n).*?(?=^## )", re.M | re.S)
TIE = 0.99  # at or above this share of a peer's speed, neither is called faster
PEERS = {"Triton": ("Triton", "Triton, reloading", "Triton, two passes"),
         "torch.compile": ("torch.compile",), "torch": ("torch",)}
TENSOR_PEERS = {peer: (peer,) for peer in ("cuBLAS", "FlashAttention-2", "cuDNN")} | \
    {"Triton": PEERS["Triton"]}


class Result:
    """One result file: its name, versions, and the rows of its table as dicts by header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8")
        self.versions = text.split("\n\n")[1].partition(". ")[2].rstrip(".")
        lines = [[c.strip() for c in line.strip("|\n").split("|")]
                 for line in text.splitlines() if line.startswith("|")]
        self.rows = [dict(zip(lines[0], row, strict=True)) for row in lines[2:]]

    def __str__(self) -> str:
        name = f"benchmarks/results/{self.path.name}"
        return f"[{self.path.stem}]({name}), {self.versions}"


def newest(name: str, folder: Path = RESULTS) -> Result | None:
    """The newest result of a benchmark; one from a GPU machine, if there is any."""
    found = sorted(folder.glob(f"????-??-??-{name}*.md"),
                   key=lambda p: (p.stem.endswith(name), p.stem))
    return Result(found[-1]) if found else None


def number(cell: str) -> float | None:
    """The number that a cell begins with, if any: "4401 (block 1024, 8 warps)" is 4401."""
    found = re.match(r"[\d.]+", cell)
    return float(found[0]) if found else None


def prose(text: str) -> str:
    """A paragraph as the README breaks its lines."""
    return textwrap.fill(text, 108, break_long_words=False, break_on_hyphens=False)


def memory_bound(result: Result) -> str:
    """GB/s beside a copy and each peer at its best."""
    return _traffic(result, "**Memory-bound kernels**: tilec's useful traffic, over that of a "
                    "device copy and of each peer at its best of all variants and options (more "
                    "is better).")


def long_rows(result: Result) -> str:
    """The same for example 13."""
    return _traffic(result, "**Long rows** (example 13): the same, over a copy of the same bytes; "
                    "32 rows are shared by clusters. The loss alone only reads: there the copy is "
                    "a kernel that only reads, too.")


def _traffic(result: Result, what: str) -> str:
    """A paragraph, the table, and a sentence on the rows where a peer is faster."""
    intro = prose(f"{what} {result}.")
    rows = [[row["kernel"], _ours(row), row["tilec / copy"],
             *(_ratio(row, peer) for peer in PEERS)] for row in result.rows]
    head = ["kernel", "GB/s", "/ copy", *(f"/ {peer}" for peer in PEERS)]
    return f"{intro}\n\n{table(head, rows)}\n\n{prose(_verdict(result, 'kernel', PEERS))}\n"


def matmul(result: Result) -> str:
    """TFLOP/s beside each peer, and a sentence on the rows where one is faster."""
    intro = prose(f"**Matrix product and attention on mma.sync**: TFLOP/s of tilec without wgmma "
                  f"over those of each peer, which use it but for FlashAttention-2 (more is "
                  f"better). {result}.")
    head = ["case", "TFLOP/s", *(f"/ {peer}" for peer in TENSOR_PEERS)]
    rows = [[row["case"], _ours(row), *(_ratio(row, peer) for peer in TENSOR_PEERS)]
            for row in result.rows]
    return f"{intro}\n\n{table(head, rows)}\n\n{prose(_verdict(result, 'case', TENSOR_PEERS))}\n"


def hopper(result: Result) -> str:
    """TFLOP/s of all ways to wgmma and of the peers, and where a peer is faster than all ways."""
    without = "without_ptxas" in result.path.stem
    how = "the same, of kernels that use setmaxnreg compiled by the driver, as without ptxas" \
        if without else (
            "TFLOP/s of plain `tl` with descriptors and by pointers (examples 06, 07, 09, 11, "
            "12), of the explicit level (examples 10, 14, 15) and of kernels written at the gpu "
            "level; ws: with warp specialisation; cp.async: by pointers without TMA. After the "
            "colon, ratios to cuBLAS or cuDNN, to Triton, and to a copy (more is better). Three "
            "runs, their median")
    intro = prose(f"**wgmma and TMA**: {how}. {result}.")
    head = [name for name in result.rows[0] if " / " not in name]
    ours, peers = head[1:head.index("cuBLAS")], head[head.index("cuBLAS"):]
    slower = []
    for row in result.rows:
        best = max(v for way in ours if (v := number(row[way])) is not None)
        slower += [f"{row['case']} ({peer}: {best / there:.3f})" for peer in peers
                   if (there := number(row[peer])) is not None and best / there < TIE]
    verdict = f"A peer is faster at {', '.join(slower)}." if slower else \
        "At no shape is a peer more than 1 % faster."
    rows = [[row[h] for h in head] for row in result.rows]
    return f"{intro}\n\n{table(head, rows)}\n\n{prose(verdict)}\n"


def _ours(row: dict[str, str]) -> str:
    value = number(row["tilec"])
    assert value is not None
    return f"{value:.0f}"


def _ratio(row: dict[str, str], peer: str) -> str:
    """tilec over the best column of a peer; empty if it was not measured."""
    ours = number(row["tilec"])
    columns = (PEERS | TENSOR_PEERS)[peer]
    best = max((v for c in columns if (v := number(row.get(c, ""))) is not None), default=None)
    return "" if best is None or ours is None else f"{ours / best:.2f}"


def _verdict(result: Result, key: str, peers: Iterable[str]) -> str:
    slower = []
    for row in result.rows:
        faster = [f"{ratio} x {peer}" for peer in peers
                  if (ratio := _ratio(row, peer)) and float(ratio) < TIE]
        if faster:
            slower.append(f"{row[key]} ({', '.join(faster)})")
    return f"A peer is faster at {', '.join(slower)}." if slower else \
        "At no shape is a peer more than 1 % faster."


def compile_time(result: Result) -> str:
    """Milliseconds beside Triton."""
    head = ["kernel", "what", "tilec", "Triton", "tilec / Triton"]
    rows = [[row.get(h, "") for h in head] for row in result.rows]
    intro = prose(f"**Compile time** in ms (less is better). {result}.")
    return f"{intro}\n\n{table(head, rows)}\n"


def launch(result: Result) -> str:
    """Microseconds beside Triton and torch."""
    head = ["call", "us", "/ Triton"]
    rows = [[row[h] for h in head] for row in result.rows]
    ours = next(number(row["us"]) for row in result.rows if row["call"].startswith("tilec"))
    faster = [row["call"] for row in result.rows if (number(row["us"]) or 0.0) < (ours or 0.0)]
    verdict = f"\nFaster than tilec: {', '.join(f'`{c}`' for c in faster)}.\n" if faster else ""
    intro = prose(f"**Host time of a launch** in us (less is better). {result}.")
    return f"{intro}\n\n{table(head, rows)}\n{verdict}"


def interpreter(result: Result) -> str:
    """Milliseconds beside Triton's interpreter."""
    head = ["kernel", "tilec", "Triton", "Triton / tilec"]
    rows = [[row[h] for h in head] for row in result.rows]
    intro = prose(f"**The interpreter** in ms a launch, beside Triton's. {result}.")
    return f"{intro}\n\n{table(head, rows)}\n"


def section(folder: Path = RESULTS) -> str:
    """The text of the section."""
    parts = ["The peers of a table were measured beside tilec, in the same run. `make bench` "
             "measures and\n`python -m benchmarks.figures` writes this section.\n"]
    for name, show in (("memory_bound", memory_bound), ("long_rows", long_rows),
                       ("matmul", matmul), ("hopper", hopper),
                       ("hopper-without_ptxas", hopper), ("launch", launch),
                       ("compile_time", compile_time), ("compile_time-cpu", compile_time),
                       ("interpreter", interpreter)):
        result = newest(name, folder)
        if result is not None:
            parts.append(show(result))
    return "\n".join(parts) + "\n"


def main() -> None:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(SECTION.sub(lambda _: section(), text), encoding="utf-8")


if __name__ == "__main__":
    main()
