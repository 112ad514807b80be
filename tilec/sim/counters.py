"""What `count=True` counts: instructions by class, and what memory requests cost.

A request is one instruction of one warp that reaches a memory. In global and local memory it
touches sectors of 32 bytes in lines of 128; in shared memory it takes wavefronts, of which those
beyond the least possible are bank conflicts (see sim/banks.py). docs/simulator.md says which
counters of Nsight Compute these are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilec.sim.banks import wavefronts
from tilec.sim.machine import Array, Code, Machine, Mask
from tilec.sim.memory import Local, Space
from tilec.sim.ptx import Instr, is_float

Watch = Callable[[Space, Array, Array, int, bool], None]
SECTOR, LINE = 32, 128
MEMORY = ("requests", "sectors", "lines", "wavefronts", "conflicts", "bytes")
"""What is counted of the requests to one memory: how many, their sectors and lines (global, local),
wavefronts and those due to conflicts (shared), and the bytes that threads read or write."""
_CLASSES = {
    "load": "ld ldu ldmatrix", "store": "st stmatrix", "atomic": "atom red",
    "async copy": "cp", "matrix": "mma wgmma", "branch": "bra brx call ret exit",
    "barrier": "bar barrier mbarrier fence membar",
    "warp": "shfl vote match redux elect activemask",
    "conversion": "cvt", "move": "mov cvta selp prmt",
    "special": "ex2 lg2 sin cos tanh rcp rsqrt sqrt div rem",
}
_CLASS_OF = {op: name for name, ops in _CLASSES.items() for op in ops.split()}


def class_of(instr: Instr) -> str:
    """The class of an instruction; arithmetic is "float" or "integer" by its type."""
    if instr.op == "ld" and "param" in instr.mods[0]:
        return "move"  # from the constants that a kernel's parameters are
    if found := _CLASS_OF.get(instr.op):
        return found
    return "float" if is_float(instr.type) else "integer"


def access_of(instr: Instr, writes: bool) -> str:
    """How an instruction uses a memory: load, store, atomic or copy."""
    if instr.op in ("atom", "red"):
        return "atomic"
    return "copy" if instr.op == "cp" else "store" if writes else "load"


class Counters:
    """Counts of one launch of a decoded kernel, by the index of the instruction."""

    def __init__(self, machine: Machine, where: Sequence[Instr | None]) -> None:
        self.machine = machine
        self.where = where
        self.reset()

    def reset(self) -> None:
        """Start from zero."""
        self.executed: dict[int, int] = {}
        self.memory: dict[tuple[int, str, str], Array] = {}
        self.last: tuple[Mask, int] = None, self.machine.warps

    def warps(self, mask: Mask) -> int:
        """How many warps have a thread in the mask."""
        if mask is not self.last[0]:
            count = self.machine.warps if mask is None else np.count_nonzero(
                self.machine.warp_bits(mask))
            self.last = mask, int(count)
        return self.last[1]

    def counted(self, at: int, code: Code) -> Code:
        """The code of instruction `at`, with the warps counted that issue it."""

        def run(mask: Mask) -> Any:
            self.executed[at] = self.executed.get(at, 0) + self.warps(mask)
            return code(mask)

        return run

    def watch(self, instr: Instr, at: int) -> Watch:
        """What looks at each access of instruction `at`."""
        atomic = instr.op in ("atom", "red")

        def see(memory: Space, threads: Array, offsets: Array, width: int, writes: bool) -> None:
            key = at, memory.name, access_of(instr, writes)
            total = self.memory.setdefault(key, np.zeros(len(MEMORY), np.int64))
            requests = np.count_nonzero(np.bincount(threads // 32))
            total += (requests, 0, 0, 0, 0, width * len(threads))
            if memory.name == "shared":
                turns, least = wavefronts(threads, offsets, width, joins=not atomic)
                total[3:5] += (int(turns.sum()), int(turns.sum() - least.sum()))
            elif isinstance(memory, Local):
                total[1:3] += sectors(threads, offsets - memory.base[threads], width, True)
            elif memory.name == "global":
                total[1:3] += sectors(threads, offsets, width, False)

        return see

    def bulk(self, at: int, memory: Space, offsets: Array, width: int, writes: bool) -> None:
        """A bulk copy by instruction `at` reads or writes `width` bytes at each offset."""
        instr = self.where[at]
        assert instr is not None
        total = self.memory.setdefault((at, memory.name, access_of(instr, writes)),
                                       np.zeros(len(MEMORY), np.int64))
        total += (1, 0, 0, 0, 0, width * offsets.size)
        if memory.name == "global":
            total[1:3] += sectors(np.zeros(offsets.size, np.int64), offsets, width, False)

    def report(self, kernel: str) -> Counts:
        """The counts by line."""
        rows: dict[int, Row] = {}
        for at, count in sorted(self.executed.items()):
            instr = self.where[at]
            assert instr is not None
            row = rows.get(id(instr))
            if row is None:  # else another inlined copy of the same function
                loc = instr.loc
                source = f"{loc.file}:{loc.line}" if loc and loc.line else ""  # 0 is no line
                row = rows[id(instr)] = Row(instr.line, " ".join(instr.text.split()), source,
                                            class_of(instr))
            row.instructions += count
        for (at, space, access), total in self.memory.items():
            rows[id(self.where[at])].add(space, access, total)
        return Counts(kernel, sorted(rows.values(), key=lambda row: row.line))


def sectors(threads: Array, offsets: Array, width: int, local: bool) -> tuple[int, int]:
    """Sectors and lines that the requests of warps touch, each once a request.

    Local memory keeps the words of a warp's threads side by side.
    """
    warp = threads.astype(np.int64) // 32 << 40
    if local:
        words = np.arange(max(width // 4, 1))
        first = offsets.astype(np.int64) // 4 * LINE + threads % 32 * 4
        place = (warp + first)[:, None] + words * LINE
    else:
        place = warp + offsets.astype(np.int64)
    touched = np.unique(place // SECTOR)
    return len(touched), len(np.unique(touched // (LINE // SECTOR)))


@dataclass
class Row:
    """The counts of one instruction, or of a source line. memory: by (space, access), as MEMORY
    lists them."""

    line: int
    text: str
    source: str
    kind: str
    instructions: int = 0
    memory: dict[tuple[str, str], Array] = field(default_factory=dict)

    def add(self, space: str, access: str, total: Array) -> None:
        """Count requests to a memory."""
        held = self.memory.get((space, access))
        self.memory[space, access] = total.copy() if held is None else held + total

    def record(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {"instructions": self.instructions, "memory": records(self.memory)}


def records(memory: dict[tuple[str, str], Array]) -> list[dict[str, Any]]:
    """Memory counts as plain data."""
    return [{"space": space, "access": access, **dict(zip(MEMORY, total.tolist(), strict=True))}
            for (space, access), total in sorted(memory.items())]


@dataclass
class Counts:
    """The counters of one launch. rows: one for each PTX instruction executed, in order.

    Prints as tables: totals, and a row for each Python line.
    """

    kernel: str
    rows: list[Row]

    @property
    def instructions(self) -> int:
        """Instructions that warps issued."""
        return sum(row.instructions for row in self.rows)

    @property
    def classes(self) -> dict[str, int]:
        """Instructions by class."""
        found: dict[str, int] = {}
        for row in self.rows:
            found[row.kind] = found.get(row.kind, 0) + row.instructions
        return found

    @property
    def memory(self) -> dict[tuple[str, str], dict[str, int]]:
        """Counts by (space, access), such as ("global", "load"), of what MEMORY names."""
        total = merged("", self.rows).memory
        return {k: dict(zip(MEMORY, v.tolist(), strict=True)) for k, v in sorted(total.items())}

    def python(self) -> list[Row]:
        """A row for each source line, in order; "" where the PTX names none."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.source, []).append(row)
        return [merged(source, groups[source]) for source in sorted(groups, key=_by_line)]

    def json(self) -> str:
        """Everything, as a JSON object."""
        return json.dumps({
            "kernel": self.kernel, "instructions": self.instructions, "classes": self.classes,
            "memory": records(merged("", self.rows).memory),
            "python": [{"source": r.source, **r.record()} for r in self.python()],
            "ptx": [{"line": r.line, "text": r.text, "source": r.source, "class": r.kind,
                     **r.record()} for r in self.rows]})

    def table(self, by: str = "python") -> str:
        """Totals, and a row for each line: of the source, or of the PTX (by="ptx")."""
        lines = self.python() if by == "python" else self.rows
        classes = ", ".join(f"{name} {count}" for name, count in
                            sorted(self.classes.items(), key=lambda item: -item[1]))
        parts = [f"{self.kernel}: {self.instructions} instructions issued by warps", f"  {classes}",
                 "", *_columns("", [("all", merged("", self.rows))]), "",
                 *_columns("python line" if by == "python" else "PTX line", [
                     (r.source or "(none)" if by == "python" else f"{r.line}: {r.text}", r)
                     for r in lines])]
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.table()


def merged(source: str, rows: Iterable[Row]) -> Row:
    """The sum of some rows."""
    total = Row(0, "", source, "")
    for row in rows:
        total.instructions += row.instructions
        for key, counts in row.memory.items():
            total.add(*key, counts)
    return total


def _by_line(source: str) -> tuple[str, int]:
    file, _, line = source.rpartition(":")
    return file, int(line or 0)


def _columns(title: str, rows: list[tuple[str, Row]]) -> list[str]:
    """A table of rows, with a line for each memory that one uses."""
    cells = [[title, "instructions", "memory", *MEMORY]]
    for name, row in rows:
        first = [name, str(row.instructions)]
        for (space, access), total in sorted(row.memory.items()):
            cells.append([*first, f"{space} {access}", *(str(n or "") for n in total.tolist())])
            first = ["", ""]
        if not row.memory:
            cells.append([*first, *[""] * (1 + len(MEMORY))])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(c.ljust(w) if i in (0, 2) else c.rjust(w)
                      for i, (c, w) in enumerate(zip(line, widths, strict=True))).rstrip()
            for line in cells]
