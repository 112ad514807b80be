"""Builds LLVM IR text: typed registers, instructions, blocks, declarations, debug locations.

Text is written directly: it is several times faster to make than an object graph, and LLVM's own
parser and verifier check it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import copysign
from typing import NamedTuple

import numpy as np

from tilec.errors import Location
from tilec.eval.dtypes import BF16, F16, F32, F64
from tilec.ir.core import UNKNOWN
from tilec.ir.types import Element, Pointer

POINTER = "ptr addrspace(1)"
SHARED = "ptr addrspace(3)"
CLUSTER = "ptr addrspace(7)"  # shared memory of any CTA of the cluster
_ELEMENTS = {"i1": "i1", "f8e4m3": "i8", "f8e5m2": "i8", "f16": "half", "bf16": "bfloat",
             "f32": "float", "f64": "double",
             **{f"{s}{b}": f"i{b}" for s in "iu" for b in (8, 16, 32, 64)}}
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "half": 16, "bfloat": 16, "float": 32,
        "double": 64, POINTER: 64, SHARED: 64, CLUSTER: 64}
_SUFFIX = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}
_FLOATS = {"half": F16, "bfloat": BF16, "float": F32, "double": F64}


class Reg(NamedTuple):
    """An LLVM value: its text, its element type, and its lanes (0 for a scalar)."""

    ref: str
    elem: str
    n: int = 0

    @property
    def type(self) -> str:
        """The LLVM type."""
        return type_text(self.elem, self.n)

    @property
    def lanes(self) -> int:
        """Lanes, counting a scalar as one."""
        return self.n or 1

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return BITS[self.elem]

    @property
    def is_float(self) -> bool:
        """Whether the elements are LLVM floats (fp8 is held as i8)."""
        return self.elem in _FLOATS


@lru_cache(maxsize=1024)
def type_text(elem: str, n: int) -> str:
    """The LLVM type of n lanes of `elem` (0: a scalar)."""
    return f"<{n} x {elem}>" if n else elem


def llvm_element(t: Element) -> str:
    """The LLVM element type that holds a scalar or pointer in registers."""
    return POINTER if isinstance(t, Pointer) else _ELEMENTS[t.name]


def literal(value: int | float | bool, elem: str) -> str:
    """The text of a scalar constant. A float is rounded to `elem` to nearest even."""
    # The two zeros are one key of a cache.
    negative_zero = value == 0 and isinstance(value, float) and copysign(1.0, value) < 0
    return _literal("-0.0" if negative_zero else value, elem)


@lru_cache(maxsize=4096)
def _literal(value: int | float | bool | str, elem: str) -> str:
    if elem in _FLOATS:
        with np.errstate(all="ignore"):
            number = np.asarray(float(value)).astype(_FLOATS[elem])
        if elem in ("half", "bfloat"):
            return f"0x{'H' if elem == 'half' else 'R'}{int(number.view(np.uint16)):04X}"
        return f"0x{int(number.astype(F64).view(np.uint64)):016X}"
    if elem == "i1":
        return "true" if value else "false"
    bits = BITS[elem]
    low = int(value) & ((1 << bits) - 1)
    return str(low - (1 << bits) if low >> (bits - 1) else low)


def literal_bits(text: str, elem: str) -> int | None:
    """The bits of a scalar constant's text; None if it is not one."""
    if text in ("true", "false"):
        return int(text == "true")
    if text.startswith("0x") and elem in _FLOATS:
        if elem in ("half", "bfloat"):
            return int(text[3:], 16)
        bits = int(text, 16)
        return bits if elem == "double" else \
            int(np.asarray(bits, np.uint64).view(F64).astype(F32).view(np.uint32))
    if text.lstrip("-").isdigit():
        return int(text) & ((1 << BITS[elem]) - 1)
    return None


class Emit:
    """The function being written. `locals` and `entry` lines come first and dominate all others.
    permit: called with each intrinsic's name and each inline PTX; it raises for what cannot be."""

    def __init__(self, permit: Callable[[str], None] = lambda text: None) -> None:
        self.permit = permit
        self.locals: dict[str, str] = {}
        self.entry: list[str] = []
        self.lines: list[str] = []
        self.block = "start"
        self.declared: dict[str, str] = {}
        self.globals: dict[str, str] = {}
        self.dbg = ""
        self._count = 0
        self._cache: dict[object, Reg] = {}

    # ---- instructions
    def name(self) -> str:
        """A fresh register name."""
        self._count += 1
        return f"%v{self._count}"

    def new(self, text: str, elem: str, n: int = 0) -> Reg:
        """The instruction `text`, whose result has that type."""
        name = self.name()
        self.lines.append(f"  {name} = {text}{self.dbg}")
        return Reg(name, elem, n)

    def do(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append(f"  {text}{self.dbg}")

    def once(self, key: object, make: Callable[[], Reg]) -> Reg:
        """`make()` evaluated in the entry block the first time `key` is asked for."""
        if key not in self._cache:
            body, dbg = self.lines, self.dbg
            self.lines, self.dbg = self.entry, ""
            self._cache[key] = make()
            self.lines, self.dbg = body, dbg
        return self._cache[key]

    def local(self, size: int) -> Reg:
        """A pointer to so many bytes of the thread's own memory, which all who ask for it share."""
        name = f"%local{size}"
        self.locals[name] = f"  {name} = alloca [{size} x i8], align 8"
        return Reg(name, "ptr")

    def binary(self, opcode: str, a: Reg, b: Reg) -> Reg:
        """`opcode` on two values of one type."""
        return self.new(f"{opcode} {a.type} {a.ref}, {b.ref}", a.elem, a.n)

    def fneg(self, a: Reg) -> Reg:
        """-a of a float."""
        return self.new(f"fneg {a.type} {a.ref}", a.elem, a.n)

    def int_op(self, opcode: str, a: Reg, value: int) -> Reg:
        """`opcode` with a constant on the right; identities cost nothing."""
        if value == 0 and opcode in ("add", "sub", "or", "xor", "shl", "lshr", "ashr"):
            return a
        return self.binary(opcode, a, self.const(value, a.elem, a.n))

    def compare(self, predicate: str, a: Reg, b: Reg) -> Reg:
        """icmp or fcmp by the operands' type."""
        opcode = "fcmp" if a.is_float else "icmp"
        return self.new(f"{opcode} {predicate} {a.type} {a.ref}, {b.ref}", "i1", a.n)

    def select(self, cond: Reg, a: Reg, b: Reg) -> Reg:
        """`a` where `cond`, else `b`; a scalar condition serves all lanes."""
        return self.new(f"select {cond.type} {cond.ref}, {a.type} {a.ref}, {b.type} {b.ref}",
                        a.elem, a.n)

    def convert(self, opcode: str, a: Reg, elem: str) -> Reg:
        """An LLVM conversion of each lane to `elem`."""
        if a.elem == elem:
            return a
        return self.new(f"{opcode} {a.type} {a.ref} to {type_text(elem, a.n)}", elem, a.n)

    def resize(self, a: Reg, elem: str, signed: bool) -> Reg:
        """An integer of another width."""
        if BITS[elem] == a.bits:
            return a
        opcode = "trunc" if BITS[elem] < a.bits else "sext" if signed else "zext"
        return self.convert(opcode, a, elem)

    def bitcast(self, a: Reg, elem: str, n: int) -> Reg:
        """The same bits as another vector or scalar type."""
        if (a.elem, a.n) == (elem, n):
            return a
        return self.new(f"bitcast {a.type} {a.ref} to {type_text(elem, n)}", elem, n)

    def call(self, name: str, elem: str, n: int, args: Sequence[Reg], flags: str = "") -> Reg:
        """A call of an intrinsic or function with a result; declares it."""
        self.permit(name)
        types = ", ".join(a.type for a in args)
        result = type_text(elem, n)
        self.declared[name] = f"declare {result} @{name}({types})"
        shown = ", ".join(f"{a.type} {a.ref}" for a in args)
        return self.new(f"call {flags}{result} @{name}({shown})", elem, n)

    def call_void(self, name: str, args: Sequence[Reg]) -> None:
        """A call without a result."""
        self.permit(name)
        self.declared[name] = f"declare void @{name}({', '.join(a.type for a in args)})"
        self.do(f"call void @{name}({', '.join(f'{a.type} {a.ref}' for a in args)})")

    def generic(self, base: str, *args: Reg, flags: str = "") -> Reg:
        """An overloaded intrinsic `llvm.<base>.<type>` of operands of one type."""
        a = args[0]
        suffix = (f"v{a.n}" if a.n else "") + _SUFFIX.get(a.elem, a.elem)
        return self.call(f"llvm.{base}.{suffix}", a.elem, a.n, args, flags)

    def asm(self, text: str, constraints: str, args: Sequence[Reg], outs: Sequence[str],
            effects: bool = True, convergent: bool = False, foreign: bool = False) -> list[Reg]:
        """Inline PTX; one scalar result per element type in `outs`.

        effects: it touches memory, so it keeps its place; convergent: all lanes take part;
        foreign: an author wrote it.
        """
        if foreign:
            text = _quoted(text)
        else:
            self.permit(text)
        shown = ", ".join(f"{a.type} {a.ref}" for a in args)
        side = "sideeffect " if effects else ""
        tail = " convergent" if convergent else ""
        result = "void" if not outs else outs[0] if len(outs) == 1 else "{" + ", ".join(outs) + "}"
        if effects:
            constraints += ",~{memory}" if constraints else "~{memory}"
        body = f'call {result} asm {side}"{text}", "{constraints}"({shown}) nounwind{tail}'
        if not outs:
            self.do(body)
            return []
        whole = self.new(body, result)
        if len(outs) == 1:
            return [whole]
        return [self.new(f"extractvalue {result} {whole.ref}, {i}", elem)
                for i, elem in enumerate(outs)]

    # ---- memory
    def load(self, pointer: Reg, elem: str, n: int, align: int) -> Reg:
        """n elements from a pointer; one gives a scalar."""
        n = n if n > 1 else 0
        return self.new(f"load {type_text(elem, n)}, {pointer.type} {pointer.ref}, align {align}",
                        elem, n)

    def store(self, value: Reg, pointer: Reg, align: int) -> None:
        """Write through a pointer."""
        self.do(f"store {value.type} {value.ref}, {pointer.type} {pointer.ref}, align {align}")

    def as_stored(self, x: Reg) -> Reg:
        """Bools as bytes and pointers as integers: as memory and shuffles have them."""
        if x.elem == "i1":
            return self.convert("zext", x, "i8")
        return self.convert("ptrtoint", x, "i64") if x.elem == POINTER else x

    def as_held(self, x: Reg, elem: str) -> Reg:
        """The inverse of `as_stored`."""
        if elem == "i1":
            return self.compare("ne", x, self.const(0, "i8", x.n))
        return self.convert("inttoptr", x, POINTER) if elem == POINTER else x

    # ---- constants and lanes
    def const(self, value: int | float | bool, elem: str, n: int = 0) -> Reg:
        """A constant, repeated over n lanes."""
        if elem == POINTER:
            return Reg("zeroinitializer" if n else "null", elem, n)
        text = literal(value, elem)
        return Reg(f"splat ({elem} {text})" if n else text, elem, n)

    def const_lanes(self, values: Sequence[int | float], elem: str) -> Reg:
        """A vector of constants."""
        if len(values) == 1:
            return self.const(values[0], elem)
        shown = ", ".join(f"{elem} {literal(v, elem)}" for v in values)
        return Reg(f"<{shown}>", elem, len(values))

    def splat(self, a: Reg, n: int) -> Reg:
        """A scalar repeated over n lanes (n <= 1: the scalar itself)."""
        if n <= 1 or a.n:
            return a
        if a.ref[0] not in "%@":
            return Reg(f"splat ({a.elem} {a.ref})", a.elem, n) if a.elem != POINTER else \
                Reg("zeroinitializer", a.elem, n)
        kind = type_text(a.elem, n)
        one = self.new(f"insertelement {kind} poison, {a.elem} {a.ref}, i32 0", a.elem, n)
        return self.new(f"shufflevector {kind} {one.ref}, {kind} poison, <{n} x i32> "
                        f"zeroinitializer", a.elem, n)

    def lane(self, a: Reg, i: int) -> Reg:
        """One lane as a scalar."""
        if not a.n:
            return a
        if a.ref.startswith("splat ("):
            return Reg(a.ref[7 + len(a.elem) + 1:-1], a.elem)
        return self.new(f"extractelement {a.type} {a.ref}, i32 {i}", a.elem)

    def lane_list(self, a: Reg) -> list[Reg]:
        """All lanes as scalars."""
        return [self.lane(a, i) for i in range(a.lanes)]

    def build(self, parts: Sequence[Reg]) -> Reg:
        """A vector of scalars; one scalar stays one."""
        if len(parts) == 1:
            return parts[0]
        elem, n = parts[0].elem, len(parts)
        out = Reg("poison", elem, n)
        for i, p in enumerate(parts):
            out = self.new(f"insertelement {out.type} {out.ref}, {elem} {p.ref}, i32 {i}", elem, n)
        return out

    def gather(self, a: Reg, lanes: Sequence[int]) -> Reg:
        """Lanes of `a` in the order given; one lane gives a scalar."""
        if not a.n:
            return self.splat(a, len(lanes))
        if len(lanes) == 1:
            return self.lane(a, lanes[0])
        if len(lanes) == a.n and list(lanes) == list(range(a.n)):
            return a
        if a.ref.startswith("splat ("):
            return Reg(a.ref, a.elem, len(lanes))
        return self.shuffle(a, Reg("poison", a.elem, a.n), lanes)

    def shuffle(self, a: Reg, b: Reg, lanes: Sequence[int]) -> Reg:
        """Lanes out of two vectors of one type (those of `b` count on), at least two of them."""
        mask = ", ".join(f"i32 {i}" for i in lanes)
        return self.new(f"shufflevector {a.type} {a.ref}, {b.type} {b.ref}, "
                        f"<{len(lanes)} x i32> <{mask}>", a.elem, len(lanes))

    def concat(self, parts: Sequence[Reg]) -> Reg:
        """Vectors and scalars joined end to end."""
        if all(not p.n for p in parts):
            return self.build(parts)
        while len(parts) > 1:
            parts = [self._join(*parts[i:i + 2]) for i in range(0, len(parts), 2)]
        return parts[0]

    def _join(self, a: Reg, b: Reg | None = None) -> Reg:
        if b is None:
            return a
        if a.lanes != b.lanes or not a.n:
            wide = max(a.lanes, b.lanes, 2)
            return self.shuffle(self._widen(a, wide), self._widen(b, wide),
                                [*range(a.lanes), *range(wide, wide + b.lanes)])
        return self.shuffle(a, b, range(a.n + b.n))

    def _widen(self, a: Reg, n: int) -> Reg:
        if a.lanes == n:
            return a
        if not a.n:
            return self.new(f"insertelement <{n} x {a.elem}> poison, {a.elem} {a.ref}, i32 0",
                            a.elem, n)
        mask = ", ".join(f"i32 {i}" if i < a.n else "i32 poison" for i in range(n))
        return self.new(f"shufflevector {a.type} {a.ref}, {a.type} poison, <{n} x i32> <{mask}>",
                        a.elem, n)

    def per_lane(self, f: Callable[..., Reg], *args: Reg) -> Reg:
        """`f` on the scalars of each lane."""
        if not args[0].n:
            return f(*args)
        return self.build([f(*(self.lane(a, i) for a in args)) for i in range(args[0].n)])

    # ---- blocks
    def label(self, hint: str) -> str:
        """A fresh block name."""
        self._count += 1
        return f"{hint}{self._count}"

    def start(self, label: str) -> None:
        """Begin a block."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        """End the block."""
        self.do(f"br label %{label}")

    def branch(self, cond: Reg, yes: str, no: str) -> None:
        """End the block with a choice."""
        self.do(f"br i1 {cond.ref}, label %{yes}, label %{no}")

    @contextmanager
    def when(self, cond: Reg | None, hint: str) -> Iterator[None]:
        """What is written inside runs only where `cond` holds; None is true."""
        if cond is None:
            yield
            return
        inside, after = self.label(hint), self.label(hint + "_end")
        self.branch(cond, inside, after)
        self.start(inside)
        yield
        self.jump(after)
        self.start(after)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is written inside, from the start of a block on, has an entry of its own there."""
        entry, lines, cache = self.entry, self.lines, self._cache
        self.entry, self.lines, self._cache = [], [], {}
        yield
        lines += [*self.entry, *self.lines]
        self.entry, self.lines, self._cache = entry, lines, cache

    def phi(self, elem: str, n: int, sources: Iterable[tuple[Reg, str]]) -> Reg:
        """A phi of (value, predecessor block)."""
        shown = ", ".join(f"[ {v.ref}, %{block} ]" for v, block in sources)
        return self.new(f"phi {type_text(elem, n)} {shown}", elem, n)

    def phi_later(self, elem: str, n: int) -> tuple[Reg, Callable[..., None]]:
        """A phi at this place, and what to call with its sources once they are known."""
        reg, at = Reg(self.name(), elem, n), len(self.lines)
        self.lines.append("")

        def close(*sources: tuple[Reg, str]) -> None:
            shown = ", ".join(f"[ {v.ref}, %{block} ]" for v, block in sources)
            self.lines[at] = f"  {reg.ref} = phi {reg.type} {shown}"

        return reg, close

    def text_constant(self, text: str) -> Reg:
        """A pointer (generic address space) to a zero-terminated constant string."""
        data = text.encode() + b"\0"
        shown = _quoted(text + "\0")
        name = f"@.text{len(self.globals)}"
        found = next((k for k, v in self.globals.items() if f'c"{shown}"' in v), None)
        if found is None:
            self.globals[name] = (f"{name} = private unnamed_addr addrspace(1) constant "
                                  f'[{len(data)} x i8] c"{shown}"')
        return self.new(f"addrspacecast ptr addrspace(1) {found or name} to ptr", "ptr")


class DebugInfo:
    """Metadata so that the PTX has a .loc for every instruction, with its inlining chain."""

    def __init__(self, kernel: str, loc: Location) -> None:
        self.nodes: list[str] = []
        self.files: dict[str, int] = {}
        self.scopes: dict[tuple[str, str], int] = {}
        self.known: dict[Location, int] = {}
        self.unit = self._node("")
        self.flags = self._node('!{i32 2, !"Debug Info Version", i32 3}')
        self.empty = self._node("!{}")
        self.kind = self._node(f"!DISubroutineType(types: !{self.empty})")
        self.kernel = kernel
        main = self._file(loc.file)
        self.nodes[self.unit] = (f'distinct !DICompileUnit(language: DW_LANG_C, file: !{main}, '
                                 f'producer: "tilec", isOptimized: true, runtimeVersion: 0, '
                                 f'emissionKind: DebugDirectivesOnly)')
        self.subprogram = self._scope(kernel, loc.file, loc.line)

    def _node(self, text: str) -> int:
        self.nodes.append(text)
        return len(self.nodes) - 1

    def _file(self, path: str) -> int:
        if path not in self.files:
            folder, name = os.path.split(path)
            self.files[path] = self._node(f'!DIFile(filename: "{_quoted(name)}", '
                                          f'directory: "{_quoted(folder)}")')
        return self.files[path]

    def _scope(self, name: str, path: str, line: int = 1) -> int:
        key = (name, path)
        if key not in self.scopes:
            self.scopes[key] = self._node(
                f'distinct !DISubprogram(name: "{_quoted(name)}", file: !{self._file(path)}, '
                f"line: {line}, type: !{self.kind}, unit: !{self.unit}, "
                f"spFlags: DISPFlagDefinition)")
        return self.scopes[key]

    def _block(self, path: str) -> int:
        """A scope of the kernel in a file: itself, or what a kernel pasted together needs."""
        if (self.kernel, path) not in self.scopes:
            self.scopes[self.kernel, path] = self._node(
                f"!DILexicalBlockFile(scope: !{self.subprogram}, file: !{self._file(path)}, "
                f"discriminator: 0)")
        return self.scopes[self.kernel, path]

    def at(self, loc: Location) -> str:
        """The `, !dbg !n` of an instruction."""
        return "" if loc is UNKNOWN else f", !dbg !{self._location(loc)}"

    def _location(self, loc: Location) -> int:
        if loc in self.known:
            return self.known[loc]
        if loc.caller is None:
            scope, tail = self._block(loc.file), ""
        else:
            # The callee's name is not kept; the file stands for it.
            scope = self._scope(os.path.basename(loc.file), loc.file)
            tail = f", inlinedAt: !{self._location(loc.caller)}"
        distinct = "distinct " if loc.caller else ""
        self.known[loc] = self._node(f"{distinct}!DILocation(line: {loc.line}, "
                                     f"column: {loc.col + 1}, scope: !{scope}{tail})")
        return self.known[loc]

    def text(self) -> str:
        """The module's metadata."""
        head = [f"!llvm.dbg.cu = !{{!{self.unit}}}", f"!llvm.module.flags = !{{!{self.flags}}}"]
        return "\n".join([*head, *(f"!{i} = {t}" for i, t in enumerate(self.nodes))]) + "\n"


def _quoted(text: str) -> str:
    """Text as LLVM has it between quotes."""
    return "".join(c if 32 <= ord(c) < 127 and c not in '"\\'
                   else "".join(f"\\{b:02X}" for b in c.encode()) for c in text)
