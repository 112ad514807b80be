"""Lays a kernel out for execution: calls inlined, basic blocks found, ordered and placed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tilec.sim.cfg import block_order
from tilec.sim.errors import SimError
from tilec.sim.ptx import Instr, Kernel, Module


class Entry(NamedTuple):
    """An instruction in a frame, or (instr None) a jump to entry `jump`."""

    instr: Instr | None
    frame: int
    jump: int = 0


@dataclass(slots=True)
class Frame:
    """One inlined call: its function, where it starts, and the entry after the call."""

    kernel: Kernel
    first: int
    after: int | None = None
    caller: int = 0
    call: Instr | None = None
    starts: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Flat:
    """All instructions of a kernel with its calls inlined; `block_at` maps entries to blocks."""

    entries: list[Entry] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    callee: dict[int, int] = field(default_factory=dict)
    block_at: dict[int, int] = field(default_factory=dict)

    def label(self, entry: Entry, name: str) -> int:
        """The entry that a label of the entry's frame stands before."""
        assert entry.instr is not None
        index = entry.instr.scope.find_label(name)
        if index is None:
            raise SimError(f"no label '{name}' in this scope", ptx_line=entry.instr.line,
                           ptx_column=entry.instr.column,
                           ptx_text=entry.instr.text.strip())
        return self.frames[entry.frame].starts[index]


class Placed(NamedTuple):
    """A block with its entries, its place in the code, and the block it must jump to at its end."""

    block: int
    first: int
    last: int
    pc: int
    jump: int | None


def called(instr: Instr) -> str:
    """The name of the function that a `call` names."""
    names = [o.name for o in instr.operands if o.kind == "reg"]
    return names[0] if names else ""


def flatten(module: Module, kernel: Kernel) -> Flat:
    """The kernel's instructions with an own copy of every called function.

    Raises SimError where a function calls itself.
    """
    flat = Flat()
    work = [Frame(kernel, 0)]
    flat.frames.append(work[0])
    while work:
        frame = work.pop()
        number = flat.frames.index(frame)
        frame.first = len(flat.entries)
        for instr in frame.kernel.instrs:
            frame.starts.append(len(flat.entries))
            at = len(flat.entries)
            flat.entries.append(Entry(instr, number))
            if instr.op == "call" and called(instr) in module.functions:
                if len(flat.frames) > 256:
                    raise SimError("a function that calls itself", ptx_line=instr.line,
                                   ptx_column=instr.column)
                inner = Frame(module.functions[called(instr)], 0, at + 1, number, instr)
                flat.callee[at] = len(flat.frames)
                flat.frames.append(inner)
                work.append(inner)
        frame.starts.append(len(flat.entries))
        flat.entries.append(Entry(_end(frame), number))
    return flat


def _end(frame: Frame) -> Instr:
    """The `ret` that stands at the end of every body."""
    last = frame.kernel.instrs[-1] if frame.kernel.instrs else None
    return Instr(last.line if last else 0, "ret;", "ret", (), (), frame.kernel.scope)


def targets(flat: Flat, index: int) -> list[int] | None:
    """Entries that may follow entry `index`, None for just the next one."""
    entry = flat.entries[index]
    instr = entry.instr
    if instr is None:
        return [entry.jump]
    found: list[int]
    if instr.op == "bra":
        found = [flat.label(entry, instr.operands[0].name)]
    elif instr.op == "brx":
        names = instr.scope.find_table(instr.operands[1].name) or ()
        found = [flat.label(entry, name) for name in names]
    elif instr.op == "ret":
        after = flat.frames[entry.frame].after
        found = [] if after is None else [after]
    elif instr.op in ("exit", "trap"):
        found = []
    elif index in flat.callee:
        found = [flat.frames[flat.callee[index]].first]
    else:
        return None
    if instr.guard is not None and index + 1 < len(flat.entries):
        found.append(index + 1)
    return found


def schedule(flat: Flat) -> list[Placed]:
    """Split into basic blocks and place them; fills `flat.block_at` for block starts."""
    leaders = {0}
    after = {i: t for i in range(len(flat.entries)) if (t := targets(flat, i)) is not None}
    for index, following in after.items():
        leaders.update(following)
        leaders.add(index + 1)
    starts = sorted(i for i in leaders if i < len(flat.entries))
    ends = [*starts[1:], len(flat.entries)]
    flat.block_at = {start: block for block, start in enumerate(starts)}
    successors = []
    for end in ends:
        following = after.get(end - 1, [end] if end < len(flat.entries) else [])
        successors.append([flat.block_at[t] for t in following])
    order = block_order(successors)
    placed, pc = [], 0
    for i, block in enumerate(order):
        first, last = starts[block], ends[block]
        falls = last in flat.block_at and ((last - 1) not in after or last in after[last - 1])
        jump = None
        if falls and (i + 1 == len(order) or order[i + 1] != flat.block_at[last]):
            jump = flat.block_at[last]
        placed.append(Placed(block, first, last, pc, jump))
        pc += 1 + (last - first) + (jump is not None)
    return placed
