"""What the front end knows of a function before visiting it: assigned names and live names."""

from __future__ import annotations

import ast
from collections.abc import Sequence

Names = frozenset[str]
_NONE: Names = frozenset()
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def reads(node: ast.AST | None) -> Names:
    """Names that an expression or statement reads."""
    if node is None:
        return _NONE
    return frozenset(n.id for n in ast.walk(node)
                     if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def targets(node: ast.AST) -> Names:
    """Names that an assignment target binds."""
    return frozenset(n.id for n in ast.walk(node)
                     if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)))


class Analysis:
    """Facts about the statements of one function.

    live_after: names that may be read after a statement before they are assigned again.
    live_head: the same at the head of a loop, the end of its body included. assigned: for a loop,
    the names assigned in it and the last place of each, in order. leaves: compound statements with
    a `return`, `break` or `continue` that leaves them. exits: loops that may end in the middle of a
    round, or whose condition assigns names.
    """

    def __init__(self, fn: ast.FunctionDef) -> None:
        self.live_after: dict[ast.stmt, Names] = {}
        self.live_head: dict[ast.stmt, Names] = {}
        self.assigned: dict[ast.stmt, dict[str, ast.AST]] = {}
        self.leaves: set[ast.stmt] = set()
        self.exits: set[ast.stmt] = set()
        self._around: list[tuple[Names, Names]] = []  # of loops: live after them, at their heads
        self._bound = frozenset(assigned_in(fn))
        self._exposed: dict[ast.stmt, Names] = {}
        self._block(fn.body, _NONE)
        self._mark(fn.body)

    def _block(self, body: Sequence[ast.stmt], out: Names, note: bool = True) -> Names:
        """Names live before statements after which `out` are; `note`: write down what is found."""
        for stmt in reversed(body):
            if note:
                self.live_after[stmt] = out
            out = self._stmt(stmt, out, note)
        return out

    def _stmt(self, stmt: ast.stmt, out: Names, note: bool) -> Names:
        if isinstance(stmt, ast.If):
            inside = self._block(stmt.body, out, note) | self._block(stmt.orelse, out, note)
            return reads(stmt.test) | inside
        if isinstance(stmt, (ast.For, ast.While)):
            return self._loop(stmt, out, note)
        if isinstance(stmt, ast.Return):
            return reads(stmt.value)
        if isinstance(stmt, (ast.Break, ast.Continue)):
            return self._around[-1][isinstance(stmt, ast.Continue)]
        if isinstance(stmt, ast.Assign):
            return reads(stmt.value) | (out - _NONE.union(*map(targets, stmt.targets)))
        if isinstance(stmt, ast.AnnAssign):
            return reads(stmt.value) | (out - targets(stmt.target))
        if isinstance(stmt, ast.AugAssign):
            return reads(stmt.value) | out | targets(stmt.target)
        if isinstance(stmt, ast.Expr) and _is_breakpoint(stmt.value):
            return out | self._bound  # its prompt shows every name
        return reads(stmt) | out

    def _loop(self, stmt: ast.For | ast.While, out: Names, note: bool) -> Names:
        head = out | self._exposed_in(stmt)
        if note:
            self._around.append((out, head))
            self._block(stmt.body, head)  # the body's end is the head
            self._around.pop()
            self.live_head[stmt] = head
            self.assigned[stmt] = assigned_in(stmt)
        return head | (reads(stmt.iter) if isinstance(stmt, ast.For) else _NONE)

    def _exposed_in(self, stmt: ast.For | ast.While) -> Names:
        """Names that a round reads before it assigns them; worked out once, as loops nest."""
        if stmt not in self._exposed:
            self._around.append((_NONE, _NONE))
            inside = self._block(stmt.body, _NONE, note=False)
            self._around.pop()
            self._exposed[stmt] = inside - targets(stmt.target) if isinstance(stmt, ast.For) \
                else inside | reads(stmt.test)
        return self._exposed[stmt]

    def _mark(self, body: Sequence[ast.stmt]) -> set[type[ast.stmt]]:
        """What leaves a list of statements."""
        found: set[type[ast.stmt]] = set()
        for stmt in body:
            if isinstance(stmt, (ast.If, ast.For, ast.While)):
                inside = self._mark(stmt.body) | self._mark(stmt.orelse)
                if isinstance(stmt, ast.While) and any(
                        isinstance(n, ast.NamedExpr) for n in ast.walk(stmt.test)) or \
                        not isinstance(stmt, ast.If) and inside - {ast.Continue}:
                    self.exits.add(stmt)
                if not isinstance(stmt, ast.If):
                    inside -= {ast.Break, ast.Continue}
                if inside:
                    self.leaves.add(stmt)
                found |= inside
            elif isinstance(stmt, (ast.Return, ast.Break, ast.Continue)):
                found.add(type(stmt))
        return found


def assigned_in(stmt: ast.stmt) -> dict[str, ast.AST]:
    """Names that a statement binds, each with the last place that does, in textual order."""
    found: dict[str, ast.AST] = {}
    work: list[ast.AST] = [stmt]
    while work:
        node = work.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = node
        if node is stmt or not isinstance(node, (*_SCOPES, ast.ListComp, ast.GeneratorExp)):
            work.extend(reversed(list(ast.iter_child_nodes(node))))
    return found


def _is_breakpoint(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and \
        node.func.id == "breakpoint"
