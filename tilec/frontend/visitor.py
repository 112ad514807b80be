"""The walk over a function's AST: names in scope, places, and dispatch by node class.

expressions.py, scope.py, calls.py, statements.py and loops.py hold the handlers, one per node
class; branches.py runs statement lists, and `if`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, TypeVar

from tilec.errors import CompilationError, Location
from tilec.frontend.analysis import Analysis
from tilec.frontend.function import Function
from tilec.frontend.merge import Undefined
from tilec.language.context import Context

MAX_DEPTH = 40  # of inlined calls; a Python frame limit of 1000 is not reached before
LINE_END = 1 << 20
# Stand in scope beside the author's names. FLAGS are absent (no), True, or a run-time i1: whether
# control has left the statements that follow; in a loop also whether it ended the loop, and whether
# it left the function; whether a loop has another round. RESULT is what the function returns.
LEFT, ENDED, RETURNED, MORE = FLAGS = ("<left>", "<ended>", "<returned>", "<more>")
RESULT = "<result>"

H = TypeVar("H", bound=Callable[..., Any])
HANDLERS: dict[type[ast.AST], Callable[..., Any]] = {}


def handles(*classes: type[ast.AST]) -> Callable[[H], H]:
    """Register a function of (visitor, node) as the handler of node classes."""
    def register(handler: H) -> H:
        for cls in classes:
            HANDLERS[cls] = handler
        return handler

    return register


class Visitor:
    """Visits one function, whose arguments are `names`; a call makes another one.

    names: the author's names, bound to compile-time Python values and `tensor`s. loops: how many
    loops of this function are around the current statement.
    """

    def __init__(self, context: Context, fn: Function, names: dict[str, Any],
                 caller: Location | None = None, depth: int = 0) -> None:
        self.context = context
        self.builder = context.builder
        self.fn = fn
        self.names = names
        self.caller = caller
        self.depth = depth
        self.loops = 0
        self._analysis: Analysis | None = None

    @property
    def is_kernel(self) -> bool:
        """Whether this is the kernel itself, not a function called by it."""
        return self.caller is None

    @property
    def analysis(self) -> Analysis:
        """Live and assigned names; made when a branch or loop first asks."""
        if self._analysis is None:
            cached = self.fn.__dict__.get("_analysis")
            if cached is None:
                cached = self.fn.__dict__["_analysis"] = Analysis(self.fn.tree)
            self._analysis = cached
        return self._analysis

    # -- places -------------------------------------------------------------------------------

    def location(self, node: Any) -> Location:
        """The place of a node; its caret ends with its first line."""
        end = node.end_col_offset if node.end_lineno == node.lineno else LINE_END
        return Location(self.fn.file, node.lineno, node.col_offset, self.caller, end)

    def at(self, node: ast.AST) -> None:
        """Ops made from now on, and errors without a place, stand at `node`."""
        self.builder.loc = self.location(node)

    def error(self, node: ast.AST, message: str, advice: str = "") -> CompilationError:
        """An error at `node`, to be raised."""
        return CompilationError(message, self.location(node), advice)

    # -- visiting -----------------------------------------------------------------------------

    def visit(self, node: ast.AST) -> Any:
        """The value of an expression; runs a statement."""
        handler = HANDLERS.get(type(node))
        if handler is None:
            raise unsupported(self, node)
        return handler(self, node)

    def bind(self, name: str, value: Any) -> None:
        """Bind a name; an IR value that has no name takes it."""
        self.names[name] = value
        handle = getattr(value, "handle", None)
        if handle is not None and not handle.name:
            handle.name = name

    def lookup(self, name: str, node: ast.AST) -> Any:
        """The value of a name in scope; raises its error if it is there without a usable one."""
        value = self.names[name]
        if type(value) is Undefined:
            raise CompilationError(value.message, value.loc or self.location(node), value.advice)
        return value


_ADVICE: dict[type[ast.AST], tuple[str, str]] = {
    ast.Try: ("`try`", "a kernel raises nothing; remove it"),
    ast.Raise: ("`raise`", "use tl.static_assert for compile-time conditions, tl.device_assert "
                "for others"),
    ast.With: ("`with`", "remove it"),
    ast.Global: ("`global`", "return the value, or store it through a pointer"),
    ast.Nonlocal: ("`nonlocal`", "return the value"),
    ast.FunctionDef: ("a nested function", "define it outside, with @tilec.jit, and pass it what "
                      "it uses"),
    ast.AsyncFunctionDef: ("a nested function", "define it outside, with @tilec.jit"),
    ast.Lambda: ("a lambda", "define a @tilec.jit function outside of the kernel"),
    ast.ClassDef: ("a class", "define it outside of the kernel"),
    ast.Import: ("`import`", "import it at the top of the file"),
    ast.ImportFrom: ("`import`", "import it at the top of the file"),
    ast.Dict: ("a dict", "use a tuple, or separate names"),
    ast.DictComp: ("a dict", "use a tuple, or separate names"),
    ast.Set: ("a set", "use a tuple"),
    ast.SetComp: ("a set", "use a tuple"),
    ast.Match: ("`match`", "use `if` and `elif`"),
    ast.Yield: ("`yield`", "return a tuple"),
    ast.YieldFrom: ("`yield`", "return a tuple"),
    ast.Await: ("`await`", "remove it"),
    ast.AsyncFor: ("`async`", "remove it"),
    ast.AsyncWith: ("`async`", "remove it"),
    ast.Starred: ("`*`", "write out the elements"),
}


def unsupported(visitor: Visitor, node: ast.AST) -> CompilationError:
    """The error for syntax that kernels cannot use."""
    what, advice = _ADVICE.get(type(node), (f"`{type(node).__name__}`", "rewrite it with "
                                            "assignments, `if`, `for` and `while`"))
    while not hasattr(node, "lineno"):
        node = next(ast.iter_child_nodes(node))
    return visitor.error(node, f"{what} is not supported in a kernel", advice)
