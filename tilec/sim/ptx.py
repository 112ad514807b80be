"""What a parsed PTX text is made of: modules, kernels, scopes, instructions and operands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Loc(NamedTuple):
    """A source position from a `.loc` directive; `file` is the path that `.file` gave."""

    file: str
    line: int
    column: int


class Operand(NamedTuple):
    """One operand as written.

    kind is reg, imm, f32, f64 (bits in value), vec, addr, sym, list, pair, or sink. An address has
    its base as items[0] and its byte offset in value.
    """

    kind: str
    name: str = ""
    value: int = 0
    items: tuple[Operand, ...] = ()
    negated: bool = False


@dataclass(slots=True, eq=False)
class Scope:
    """A `{ }` block: its own registers, labels, variables and branch tables."""

    parent: Scope | None = None
    regs: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, tuple[int, str]] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    found: dict[str, tuple[Scope, str]] = field(default_factory=dict)

    def chain(self) -> Iterator[Scope]:
        """This scope and those around it, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def find_reg(self, name: str) -> tuple[Scope, str] | None:
        """The scope that declares register `name`, and its PTX type; None if nothing does."""
        if name in self.found:
            return self.found[name]
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        for scope in self.chain():
            ty = scope.regs.get(name)
            if ty is None and digits and stem in scope.ranges:
                count, kind = scope.ranges[stem]
                ty = kind if int(digits) < count else None
            if ty is not None:
                self.found[name] = scope, ty
                return scope, ty
        return None

    def find_label(self, name: str) -> int | None:
        """The index of the instruction that label `name` stands before."""
        return next((s.labels[name] for s in self.chain() if name in s.labels), None)

    def find_table(self, name: str) -> tuple[str, ...] | None:
        """The labels of a `.branchtargets` list."""
        return next((s.tables[name] for s in self.chain() if name in s.tables), None)

    def find_variable(self, name: str) -> Variable | None:
        """The variable of this name in the innermost scope that has it."""
        return next((s.variables[name] for s in self.chain() if name in s.variables), None)


@dataclass(slots=True, eq=False)
class Variable:
    """A declared variable: `.global`, `.const`, `.shared`, `.local` or `.param`.

    `size` is in bytes, 0 for `[]`; `init` holds element values (numbers, or symbol names with an
    offset for addresses).
    """

    name: str
    space: str
    type: str
    size: int
    align: int
    init: tuple[int | tuple[str, int], ...] = ()
    extern: bool = False


@dataclass(slots=True, eq=False)
class Instr:
    """One instruction: `op` is the first word, `mods` the dotted rest."""

    line: int
    text: str
    op: str
    mods: tuple[str, ...]
    operands: tuple[Operand, ...]
    scope: Scope
    guard: str | None = None
    guard_negated: bool = False
    loc: Loc | None = None
    column: int = 1

    @property
    def type(self) -> str:
        """The last modifier, which is the operand type of most instructions."""
        return self.mods[-1] if self.mods else ""


@dataclass(slots=True, eq=False)
class Kernel:
    """An `.entry`, or a `.func` when `entry` is false.

    `reqntid` is (x, y, z) or None; `cluster` is the CTAs of a cluster along x, y and z; `maxnreg`
    is 0 without that directive.
    """

    name: str
    params: list[Variable]
    returns: list[Variable]
    scope: Scope
    entry: bool = True
    reqntid: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] = (1, 1, 1)
    minnctapersm: int = 1
    maxnreg: int = 0
    instrs: list[Instr] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)
    shared_bytes: int = 0


@dataclass(slots=True, eq=False)
class Module:
    """A parsed PTX text. `shared_bytes` of its kernels counts static shared memory only.

    `decoded` keeps what a launch made of a kernel, by name, threads, checks and counts.
    """

    text: str
    version: str = ""
    target: str = ""
    kernels: dict[str, Kernel] = field(default_factory=dict)
    functions: dict[str, Kernel] = field(default_factory=dict)
    scope: Scope = field(default_factory=Scope)
    files: dict[int, str] = field(default_factory=dict)
    decoded: dict[tuple[str, int, bool, bool], Any] = field(default_factory=dict)


# The last minor version of each version of the PTX ISA, and the first version that knows a target
# (PTX ISA, release notes), as ten times the major version and the minor one.
MINORS = {3: 2, 4: 3, 5: 0, 6: 5, 7: 8, 8: 8, 9: 5}
TARGETS = {
    "30": 30, "32": 40, "35": 31, "37": 41, "50": 40, "52": 41, "53": 42, "60": 50, "61": 50,
    "62": 50, "70": 60, "72": 61, "75": 63, "80": 70, "86": 71, "87": 74, "88": 90, "89": 78,
    "90": 78, "90a": 80, "100": 86, "100a": 86, "100f": 88, "101": 86, "101a": 86, "101f": 88,
    "103": 88, "103a": 88, "103f": 88, "110": 90, "110a": 90, "110f": 90, "120": 87, "120a": 87,
    "120f": 88, "121": 88, "121a": 88, "121f": 88,
}

TYPE_BYTES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "e4m3": 1, "e5m2": 1,
    "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "e4m3x2": 2, "e5m2x2": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4,
    "u16x2": 4, "s16x2": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "f32x2": 8, "b128": 16,
}
"""Bytes of a value of each PTX type."""


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is at least `value`."""
    return -(-value // alignment) * alignment


def is_float(ty: str) -> bool:
    """Whether a PTX type is a float type, packed ones included."""
    return ty.lstrip("b").startswith("f")
