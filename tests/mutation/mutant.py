"""What a planted fault is, how it is put into a copy of the tree, and where a probe stands that
tells which tests reach it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

PROBE = "from tests.mutation.probe import hit as _hit"


@dataclass(frozen=True)
class Mutant:
    """One planted fault: a line of a file under tilec/, `old`, which stands there once but for its
    indentation, is made `new`. kind: the operator, e.g. "condition"; equivalent: why no test can
    tell, if none can."""

    path: str
    kind: str
    old: str
    new: str
    equivalent: str = ""

    @property
    def name(self) -> str:
        """Names the mutant in tables and on the command line."""
        return f"{self.path}: {self.old} -> {self.new}"

    def source(self, root: Path) -> Path:
        """Its file in the tree at `root`."""
        return root / "tilec" / self.path

    def line(self, text: str) -> int:
        """The number of its line, from 1; ValueError unless there is exactly one."""
        found = [n for n, line in enumerate(text.splitlines(), 1) if line.strip() == self.old]
        if len(found) != 1:
            raise ValueError(f"{self.path} has {len(found)} lines `{self.old}`")
        return found[0]

    def apply(self, text: str) -> str:
        """The file's text with the fault; SyntaxError where that is no Python."""
        lines = text.splitlines(keepends=True)
        at = self.line(text) - 1
        lines[at] = lines[at].replace(self.old, self.new)
        changed = "".join(lines)
        compile(changed, self.path, "exec")
        return changed


def planted(folder: Path) -> list[Mutant]:
    """The mutants that the text files of a folder list, four lines each at most:

        passes/licm.py (condition)
        - if not op.pure:
        + if op.pure:
        = why no test can tell
    """
    out = []
    for file in sorted(folder.glob("*.txt")):
        for entry in file.read_text(encoding="utf-8").strip().split("\n\n"):
            head, old, new, *why = entry.splitlines()
            path, _, kind = head.removesuffix(")").partition(" (")
            out.append(Mutant(path, kind, old.removeprefix("- "), new.removeprefix("+ "),
                              "".join(why).removeprefix("= ")))
    return out


class _Planter(ast.NodeTransformer):
    """Puts a call before the innermost statement that holds a line."""

    def __init__(self, marks: dict[int, list[int]]) -> None:
        self.marks = marks
        self.depth = 0

    def _body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in body:
            nested = [line for line in self.marks if self._inside(statement, line)]
            numbers = [n for line, ns in self.marks.items() if line not in nested
                       and statement.lineno <= line <= (statement.end_lineno or 0) for n in ns]
            if numbers and self.depth:
                out += ast.parse("\n".join(f"_hit({n})" for n in numbers)).body
            out.append(statement)
        return out

    @staticmethod
    def _inside(statement: ast.stmt, line: int) -> bool:
        """Whether a statement nested in this one holds the line."""
        return any(isinstance(node, ast.stmt) and node is not statement
                   and node.lineno <= line <= (node.end_lineno or 0)
                   for node in ast.walk(statement))

    def generic_visit(self, node: ast.AST) -> ast.AST:
        function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        self.depth += function
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                setattr(node, name, self._body(body))
        super().generic_visit(node)
        self.depth -= function
        return node


def probed(text: str, marks: dict[int, list[int]]) -> str:
    """The file's text in which each line of `marks`, where a function holds it, first tells the
    probe the numbers of its mutants."""
    tree = _Planter(marks).visit(ast.parse(text))
    at = 1 if ast.get_docstring(tree) is not None else 0
    while at < len(tree.body) and isinstance(tree.body[at], ast.ImportFrom) \
            and tree.body[at].module == "__future__":
        at += 1
    tree.body[at:at] = ast.parse(PROBE).body
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
