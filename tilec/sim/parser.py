"""Reads PTX text into a Module. One pass over statements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tilec.sim.errors import SimError
from tilec.sim.operands import modifiers, parse_operand, parse_operands
from tilec.sim.ptx import (
    MINORS,
    TARGETS,
    TYPE_BYTES,
    Instr,
    Kernel,
    Loc,
    Module,
    Operand,
    Scope,
    Variable,
    align_up,
)

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"[^\"\n]*\"", re.S)
_FOREIGN = re.compile(r"\"[^\"\n]*\"|([^\x00-\x7f])")
_SECTION = re.compile(r"\.section\s+\.debug_\w+\s*\{")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_INSTR = re.compile(r"(?:@(!?)\s*([\w$%]+)\s+)?([a-z][\w]*)((?:[.:][\w:]+)*)\s*(.*)\Z", re.S)
_LINE_DIRECTIVE = re.compile(r"\.(loc|file)\b([^\n]*)")
_LOC = re.compile(r"\s*(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s*(?:,.*)?")
_FILE = re.compile(r"\s*(\d{1,9})\s+\"([^\"]*)\"\s*(?:,.*)?")
_FILES = re.compile(r"^[ \t]*\.file([^\n]*)", re.M)
_DIRECTIVES = re.compile(
    r"\s*(?:\.(?:maxntid|reqntid|minnctapersm|maxnctapersm|maxnreg|reqnctapercluster|maxclusterrank)"
    r"\s+\d{1,9}(?:\s*,\s*\d{1,9}){0,2}\s*|\.(?:explicitcluster|blocksareclusters|noreturn)\s*"
    r"|\.pragma\s+\"[^\"]*\"\s*;?\s*)*")
_QUALIFIERS = frozenset("ptr global const shared local attribute align v2 v4".split())
_MAX_BYTES = 1 << 26  # of a variable
_REG = re.compile(r"\s*([A-Za-z_$%][\w$]*)\s*(?:<(\d{1,9})>)?\s*")
_HEADER = re.compile(
    r"(?P<quals>(?:\.(?:visible|extern|weak|common)\s+)?)\.(?P<kind>entry|func)\b\s*"
    r"(?P<attr>\.noreturn\s+)?(?:\((?P<ret>[^)]*)\)\s*)?(?P<name>[A-Za-z_$%][\w$]*)\s*"
    r"(?:\((?P<params>[^)]*)\))?(?P<rest>[^{;]*)(?P<end>[{;])")
_VARIABLE = re.compile(
    r"(?P<quals>(?:\.(?:visible|extern|weak|common)\s+)?)\.(?P<space>global|const|shared|local|param)"
    r"\b(?P<mods>(?:\s+\.(?:align\s+\d+|ptr|attribute\s*\([^)]*\)|[a-z]\w*))*)"
    r"\s+(?P<name>[A-Za-z_$%][\w$]*)\s*(?:<(?P<range>\d+)>)?(?P<dims>(?:\s*\[\d*\])*)\s*(?:=\s*(?P<init>.*))?\Z",
    re.S,
)
_PRAGMA = re.compile(r"\.pragma\s+\"[^\"]*\"\s*")


def parse(text: str) -> Module:
    """Parse a PTX text.

    Raises SimError naming the line where the text is not PTX. Unknown instructions are kept; they
    raise when they are executed.
    """
    return _Reader(text).module_()


class _Reader:
    """A cursor over the text, comments blanked so that positions still count lines."""

    def __init__(self, text: str) -> None:
        self.text = _COMMENT.sub(_blank, text)
        self.pos = 0
        self.line = 1
        self.counted = 0
        self.module = Module(text)
        self.functions: set[str] = set()  # those declared so far
        self.loc: Loc | None = None
        if not text.isascii():
            for found in _FOREIGN.finditer(self.text):
                if found[1]:
                    raise self.fail(f"a character that PTX has not: {found[1]!r}", found.start())
        # LLVM writes .file after the functions whose .loc lines need it.
        for found in _FILES.finditer(self.text):
            if named := _FILE.fullmatch(found[1]):
                if int(named[1]) in self.module.files:
                    raise self.fail(f"a second .file {named[1]}", found.start())
                self.module.files[int(named[1])] = named[2]

    def line_at(self, pos: int) -> int:
        """The line of `pos`; positions are asked in rising order, so each newline counts once."""
        if pos >= self.counted:
            self.line += self.text.count("\n", self.counted, pos)
            self.counted = pos
            return self.line
        return self.text.count("\n", 0, pos) + 1

    def fail(self, message: str, pos: int | None = None) -> SimError:
        pos = self.pos if pos is None else pos
        end = self.text.find("\n", pos)
        snippet = self.text[pos : end if end >= 0 else None].strip()
        return SimError(message, ptx_line=self.line_at(pos), ptx_column=self.column_at(pos),
                        ptx_text=snippet)

    def column_at(self, pos: int) -> int:
        """The column of `pos`, from 1."""
        return pos - self.text.rfind("\n", 0, pos)

    def skip(self) -> bool:
        """Move over white space; False at the end of the text."""
        text, pos, end = self.text, self.pos, len(self.text)
        while pos < end and text[pos].isspace():
            pos += 1
        self.pos = pos
        return pos < end

    def upto(self, stop: str) -> str:
        """The text before the next `stop`, which is passed over."""
        end = self.text.find(stop, self.pos)
        if end < 0:
            raise self.fail(f"expected '{stop}' before the end of the text")
        found = self.text[self.pos : end]
        self.pos = end + 1
        return found

    def word(self, pattern: str) -> str:
        """What stands after a directive, whose line is passed over."""
        start, words = self.pos, self.upto("\n").split(None, 1)
        value = "".join(words[1:]).strip()
        if not re.fullmatch(pattern, value):
            raise self.fail(f"{words[0]} {value}: no value that the simulator knows", start)
        return value

    def version(self) -> str:
        start, word = self.pos, self.word(r"\d\.\d")
        major, minor = map(int, word.split("."))
        if minor > MINORS.get(major, -1):
            raise self.fail(f"there is no version {word} of PTX that the simulator knows, "
                            f"{min(MINORS)}.0 to {max(MINORS)}.{MINORS[max(MINORS)]}", start)
        return word

    def target(self) -> str:
        start, word = self.pos, self.word(r"sm_\w+(?:\s*,\s*debug)?")
        word, *debug = map(str.strip, word.split(","))
        if debug and ".section" not in self.text:
            raise self.fail(".target has the word debug, and there is no .section", start)
        since = TARGETS.get(word[3:])
        if since is None:
            raise self.fail(f"there is no target {word} that the simulator knows", start)
        if int(self.module.version.replace(".", "")) < since:
            raise self.fail(f".target {word} needs .version {since // 10}.{since % 10} or later, "
                            f"this is {self.module.version}", start)
        return word

    def module_(self) -> Module:
        module = self.module
        while self.skip():
            first = ".version" if not module.version else ".target" if not module.target else ""
            if not self.text.startswith(first, self.pos):
                raise self.fail("PTX begins with .version and .target")
            start = self.pos
            if self.line_directive():
                if self.text.startswith(".loc", start):
                    raise self.fail("a .loc stands inside of functions", start)
                continue
            if match := _HEADER.match(self.text, self.pos):
                self.pos = match.end()
                self.function(match)
                continue
            word = self.text[start : start + 16].split(None, 1)[0]
            if word == ".version":
                module.version = self.version()
            elif word == ".target":
                module.target = self.target()
            elif word == ".address_size":
                self.word("64")
            elif word == ".section":
                if not _SECTION.match(self.text, self.pos):
                    raise self.fail("a .section has a name, and its content in braces")
                self.upto("}")
            elif word.startswith("."):
                self.variable(self.upto(";"), module.scope, start)
            else:
                raise self.fail(f"expected a directive, found '{word}'")
        if not module.version or not module.target:
            raise self.fail("PTX begins with .version and .target", 0)
        for kernel in (*module.kernels.values(), *module.functions.values()):
            kernel.files = module.files
        for kernel in module.kernels.values():
            for variable in shared_variables(module, kernel):
                kernel.shared_bytes = align_up(kernel.shared_bytes, variable.align) + variable.size
        return module

    def line_directive(self) -> bool:
        """Consume `.loc` or `.file`, which end with their line and have no semicolon."""
        match = _LINE_DIRECTIVE.match(self.text, self.pos)
        if match is None:
            return False
        rest = match.group(2)
        if match.group(1) == "loc":
            numbers = _LOC.fullmatch(rest)
            if numbers is None:
                raise self.fail("a .loc has a file, a line and a column")
            index, line, column = map(int, numbers.groups())
            self.loc = Loc(self.module.files.get(index, f"<file {index}>"), line, column)
        elif _FILE.fullmatch(rest) is None:
            raise self.fail("a .file has a number and a name")
        self.pos = match.end()
        return True

    def function(self, match: re.Match[str]) -> None:
        """Read an .entry or .func whose header has matched up to its `{` or `;`."""
        scope = Scope(self.module.scope)
        params = self.params(match["params"], scope, match.start())
        returns = self.params(match["ret"], scope, match.start())
        entry = match["kind"] == "entry"
        kernel = Kernel(match["name"], params, returns, scope, entry)
        if _DIRECTIVES.fullmatch(match["rest"]) is None:
            raise self.fail(f"unknown directives: '{match['rest'].strip()}'", match.start())
        kernel.reqntid = _extents("reqntid", match["rest"])
        kernel.minnctapersm, *_ = _extents("minnctapersm", match["rest"]) or (1,)
        kernel.maxnreg, *_ = _extents("maxnreg", match["rest"]) or (0,)
        kernel.cluster = _extents("reqnctapercluster", match["rest"]) or (1, 1, 1)
        if min(kernel.cluster) < 1:
            raise self.fail(f"a cluster of {kernel.cluster} CTAs", match.start())
        self.functions.add(kernel.name)
        if match["end"] == ";":
            return
        if "extern" in match["quals"]:
            raise self.fail(f"'{kernel.name}' is .extern and has a body", match.start())
        if kernel.name in self.module.kernels or kernel.name in self.module.functions:
            raise self.fail(f"'{kernel.name}' is defined twice", match.start())
        self.body(kernel)
        (self.module.kernels if entry else self.module.functions)[kernel.name] = kernel

    def params(self, text: str | None, scope: Scope, pos: int) -> list[Variable]:
        if not text or not text.strip():
            return []
        found = [self.variable(part, scope, pos) for part in text.split(",")]
        for variable in found:
            if variable.space not in ("param", "reg"):
                raise self.fail(f"parameter '{variable.name}' is .{variable.space}", pos)
        return found

    def body(self, kernel: Kernel) -> None:
        """Statements up to the `}` that closes the function."""
        scope, stack = Scope(kernel.scope), []
        kernel.scope, outer = scope, kernel.scope
        scope.variables.update(outer.variables)
        self.loc = None
        text = self.text
        while self.skip():
            start = self.pos
            char = text[start]
            if char == "{":
                stack.append(scope)
                scope = Scope(scope)
                self.pos += 1
            elif char == "}":
                self.pos += 1
                if not stack:
                    return
                scope = stack.pop()
            elif char == "." and self.line_directive():
                if text.startswith(".file", start):
                    raise self.fail("a .file stands outside of functions", start)
            elif match := _LABEL.match(text, self.pos):
                if match.group(1) in scope.labels:
                    raise self.fail(f"label '{match.group(1)}' is defined twice")
                scope.labels[match.group(1)] = len(kernel.instrs)
                self.pos = match.end()
                self.skip()
                if text.startswith((".branchtargets", ".callprototype", ".calltargets"), self.pos):
                    names = self.upto(";").split(None, 1)
                    targets = names[1] if len(names) > 1 else ""
                    scope.tables[match.group(1)] = tuple(t.strip() for t in targets.split(","))
            else:
                self.statement(kernel, scope, start, self.upto(";"))
        raise self.fail(f"kernel {kernel.name} has no closing brace")

    def statement(self, kernel: Kernel, scope: Scope, start: int, text: str) -> None:
        """One instruction or declaration; `text` is without its semicolon."""
        if text.startswith(".reg"):
            self.registers(text, kernel, scope, start)
        elif text.startswith(".pragma"):
            if _PRAGMA.fullmatch(text) is None:
                raise self.fail("a .pragma has a string", start)
        elif text.startswith("."):
            if text.startswith((".extern", ".visible", ".weak", ".common")):
                raise self.fail("a variable of a function's own has no linkage", start)
            self.variable(text, scope, start)
        else:
            match = _INSTR.match(text)
            if match is None:
                raise self.fail(f"not an instruction: '{text.strip()};'", start)
            negated, guard, op, mods, rest = match.groups()
            try:
                operands = parse_operands(rest.strip())
            except ValueError as error:
                raise self.fail(str(error), start) from None
            kernel.instrs.append(Instr(self.line_at(start), text + ";", op, modifiers(mods),
                                       operands, scope, guard, bool(negated), self.loc,
                                       self.column_at(start)))

    def registers(self, text: str, kernel: Kernel, scope: Scope, pos: int) -> None:
        words = text.split(None, 2)
        if len(words) < 3 or words[1][1:] not in TYPE_BYTES:
            raise self.fail(f"not a register declaration: '{text.strip()}'", pos)
        added = Scope()
        for item in words[2].split(","):
            match = _REG.fullmatch(item)
            if match is None:
                raise self.fail(f"not a register name: '{item.strip()}'", pos)
            name, count = match.groups()
            if name in (scope.regs if count is None else scope.ranges):
                raise self.fail(f"register '{name}' is declared twice", pos)
            if count is None:
                added.regs[name] = words[1][1:]
            else:
                added.ranges[name] = (int(count), words[1][1:])
        if kernel.instrs and scope in kernel.instrs[-1].scope.chain():  # not at its beginning
            self.check_unused(kernel, scope, added, pos)
        scope.regs |= added.regs
        scope.ranges |= added.ranges

    def check_unused(self, kernel: Kernel, scope: Scope, added: Scope, pos: int) -> None:
        """SimError where an instruction has a register that is declared after it."""
        for instr in kernel.instrs:
            if scope not in instr.scope.chain():
                continue
            for name in (*_names(instr.operands), instr.guard or ""):
                if added.find_reg(name) and not instr.scope.find_reg(name):
                    raise self.fail(f"register '{name}' is used in line {instr.line}, before it is "
                                    "declared", pos)

    def variable(self, text: str, scope: Scope, pos: int) -> Variable:
        match = _VARIABLE.match(text.strip())
        if match is None:
            raise self.fail(f"not a declaration that the simulator knows: '{text.strip()}'", pos)
        align, count, kinds = 0, 1, list[str]()
        mods = match["mods"]
        aligned = re.search(r"\.align\s+(\d{1,9})\b", mods)
        if aligned:
            align = int(aligned.group(1))
        for word in re.findall(r"\.([a-z]\w*)", mods):
            if word in TYPE_BYTES:
                kinds.append(word)
            elif word not in _QUALIFIERS:
                raise self.fail(f"not a qualifier of a declaration: '.{word}'", pos)
            elif word in ("v2", "v4"):
                count = int(word[1])
        if len(kinds) != 1 or not aligned and ".align" in mods:
            raise self.fail(f"'{match['name']}' has {len(kinds)} types and the qualifiers '{mods}'",
                            pos)
        pointer, (kind,) = ".ptr" in mods, kinds
        size = TYPE_BYTES[kind] * count
        for extent in re.findall(r"\[(\d{0,9})\]", match["dims"]):
            size *= int(extent or 0)
        if size > _MAX_BYTES or align & align - 1:
            raise self.fail(f"'{match['name']}' has {size} bytes, aligned to {align}: at most "
                            f"{_MAX_BYTES}, and a power of two, are possible", pos)
        if pointer or not align:
            align = TYPE_BYTES[kind] * count
        extern, unsized = "extern" in match["quals"], match["dims"].strip().startswith("[]")
        init = self.initialiser(match["init"] or "", scope, pos)
        if unsized and init:
            size = len(init) * TYPE_BYTES[kind]
        if size < len(init) * TYPE_BYTES[kind] or unsized and not (init or extern):
            raise self.fail(f"'{match['name']}' has {size} bytes and {len(init)} values", pos)
        variable = Variable(match["name"], match["space"], kind, size, align, init, extern)
        if variable.name in scope.variables and not extern:
            raise self.fail(f"'{variable.name}' is declared twice", pos)
        scope.variables[variable.name] = variable
        return variable

    def initialiser(self, text: str, scope: Scope, pos: int) -> tuple[int | tuple[str, int], ...]:
        """The element values of `= {...}` or `= x`, floats as bits, symbols as (name, offset)."""
        values: list[int | tuple[str, int]] = []
        for item in map(str.strip, text.replace("{", " ").replace("}", " ").split(",")):
            if item.startswith("generic("):
                item = item[8:].replace(")", "", 1)
            try:
                operand = parse_operand(item) if item else None
            except ValueError as error:
                raise self.fail(str(error), pos) from None
            if operand is None:
                continue
            if operand.kind in ("imm", "f32", "f64"):
                values.append(operand.value)
            elif operand.name in scope.variables or operand.name in self.functions:
                values.append((operand.name, operand.value))
            else:
                raise self.fail(f"not a value that is known here: '{item}'", pos)
        return tuple(values)


def _names(operands: Iterable[Operand]) -> Iterator[str]:
    """The names in operands, those in vectors and addresses too."""
    for operand in operands:
        yield operand.name
        yield from _names(operand.items)


def _extents(directive: str, text: str) -> tuple[int, int, int] | None:
    """The sizes that a directive of a kernel's header gives, None without it."""
    found = re.search(rf"\.{directive}\s+([\d,\s]+)", text)
    if found is None:
        return None
    x, y, z = ([int(size) for size in found.group(1).replace(",", " ").split()] + [1, 1])[:3]
    return x, y, z


def _blank(match: re.Match[str]) -> str:
    """Comments become white space, which keeps lines and columns; strings stay."""
    text = match.group()
    return text if text[0] == '"' else re.sub(r"[^\n]", " ", text)


def shared_variables(module: Module, kernel: Kernel) -> list[Variable]:
    """Every static `.shared` variable that a launch of `kernel` reserves, in layout order."""
    scopes: dict[int, Scope] = {id(module.scope): module.scope, id(kernel.scope): kernel.scope}
    for function in (kernel, *module.functions.values()):
        for instr in function.instrs:
            scopes.setdefault(id(instr.scope), instr.scope)
    found = [v for s in scopes.values() for v in s.variables.values() if v.space == "shared"]
    return [v for v in found if not v.extern]
