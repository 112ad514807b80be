"""Handlers of simple statements: assignment, expression, return, assert, pass, del."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

import tilec.language as tl
from tilec.errors import CompileTimeAssertionError
from tilec.frontend.expressions import binary, sequence, truth
from tilec.frontend.function import names_constexpr
from tilec.frontend.loops import assign
from tilec.frontend.merge import RUN_TIME, plain
from tilec.frontend.visitor import ENDED, LEFT, RESULT, RETURNED, Visitor, handles
from tilec.ir import ops
from tilec.ir.core import Op, Value
from tilec.ir.remarks import remark
from tilec.language.casting import cast
from tilec.language.dtypes import dtype
from tilec.language.values import is_number, tensor


@handles(ast.Assign)
def visit_assign(v: Visitor, node: ast.Assign) -> None:
    """`a = b = value`, `a, b = value`."""
    value = v.visit(node.value)
    v.at(node)
    for target in node.targets:
        assign(v, target, value)


@handles(ast.AugAssign)
def visit_aug_assign(v: Visitor, node: ast.AugAssign) -> None:
    """`name op= value`."""
    target = node.target
    if not isinstance(target, ast.Name):
        assign(v, target, None)  # says why that is not possible
        return
    read = ast.copy_location(ast.Name(target.id, ast.Load()), target)
    value = binary(v, node, type(node.op), v.visit(read), v.visit(node.value))
    assign(v, target, value)


@handles(ast.AnnAssign)
def visit_ann_assign(v: Visitor, node: ast.AnnAssign) -> None:
    """`name: tl.constexpr = value` stays a compile-time value; a dtype converts."""
    if node.value is None:
        return
    value = v.visit(node.value)
    v.at(node)
    if names_constexpr(ast.unparse(node.annotation)):
        known = plain(value)
        if known is RUN_TIME:
            raise v.error(node.value, f"this is a run-time {value}, but annotated tl.constexpr",
                          "drop the annotation, or compute it from constexprs alone")
        assign(v, node.target, known, keep_numbers=True)
        return
    annotation = v.visit(node.annotation)
    if isinstance(annotation, dtype) and (is_number(value) or isinstance(value, tensor)):
        v.at(node)
        value = cast(value, annotation)
    assign(v, node.target, value)


@handles(ast.Expr)
def visit_expr(v: Visitor, node: ast.Expr) -> None:
    """An expression for its effect. A hint holds of the value's names from here on; what has no
    effect is a remark, but for a product that runs on; docstrings say nothing."""
    if isinstance(node.value, ast.Constant):
        return
    last = v.context.last
    value = v.visit(node.value)
    made = v.context.made_since(last)
    producers = [x.op for x in _tensors(value) if x.op in made and not x.uses]
    _refuse_dropped_products(v, node.value, producers)
    if producers and isinstance(producers[0], ops.Hint) and _hold(v, producers[0], made):
        return
    calls = isinstance(node.value, ast.Call)  # which may have done all at compile time
    if not any(op.effects - {"read", "read_shared"} for op in made) and \
            (not calls or producers and all(op is not None and op.pure for op in producers)):
        remark(v.location(node.value), "statement", "this has no effect: its result is not used")


def _refuse_dropped_products(v: Visitor, node: ast.expr, producers: Sequence[Op | None]) -> None:
    """Raise if a statement's value is that of a product which still runs. A value that was there
    before, as a name is, says nothing; nor does one that a function has used itself."""
    for op in producers:
        if isinstance(op, (ops.Wgmma, ops.WgmmaWait)):
            accs = op.values if isinstance(op, ops.WgmmaWait) else (op.c,)
            name = ", ".join(map(_accumulator, accs))
            function = ast.unparse(node.func if isinstance(node, ast.Call) else node)
            raise v.error(node, "the result of this product is dropped",
                          f"write `{name} = {function}(...)`")


def _hold(v: Visitor, hint: Op, made: list[Op]) -> bool:
    """Bind what a hint promises something of to the hint's result, under all of its names; whether
    it has any."""
    about = hint.operands[0]
    while isinstance(about.op, ops.Hint) and about.op in made:
        about = about.op.x
    names = [n for n, x in v.names.items() if isinstance(x, tensor) and x.handle is about]
    for name in names:
        v.bind(name, tensor(hint.results[0], v.names[name].literal))
    return bool(names)


def _tensors(value: Any) -> Iterator[Value]:
    if isinstance(value, tensor):
        yield value.handle
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)


def _accumulator(x: Value) -> str:
    """The author's name of what a product is added to."""
    while not x.name and isinstance(x.op, ops.Wgmma):
        x = x.op.c
    return x.name or "acc"


@handles(ast.Pass)
def visit_pass(v: Visitor, node: ast.Pass) -> None:
    """Nothing."""


@handles(ast.Delete)
def visit_delete(v: Visitor, node: ast.Delete) -> None:
    """`del name`."""
    for target in node.targets:
        if not isinstance(target, ast.Name):
            raise v.error(target, "only names can be deleted in a kernel")
        if v.names.pop(target.id, None) is None:
            raise v.error(target, f"`{target.id}` is not assigned here")


@handles(ast.Return)
def visit_return(v: Visitor, node: ast.Return) -> None:
    """Leave the function, with a value unless it is the kernel."""
    value: Any = None if node.value is None else v.visit(node.value)
    if value is not None and v.is_kernel:
        raise v.error(node, "a kernel cannot return a value",
                      "store it: `tl.store(out_ptr + offsets, value)`")
    v.names[RESULT] = value
    v.names[LEFT] = True
    if v.loops:
        v.names[ENDED] = v.names[RETURNED] = True


@handles(ast.Break)
def visit_break(v: Visitor, node: ast.Break) -> None:
    """End the loop."""
    v.names[LEFT] = v.names[ENDED] = True


@handles(ast.Continue)
def visit_continue(v: Visitor, node: ast.Continue) -> None:
    """End the round of the loop."""
    v.names[LEFT] = True


@handles(ast.NamedExpr)
def visit_named(v: Visitor, node: ast.NamedExpr) -> Any:
    """`name := value`."""
    value = v.visit(node.value)
    assign(v, node.target, value)
    return value


@handles(ast.ListComp, ast.GeneratorExp)
def visit_comprehension(v: Visitor, node: ast.ListComp | ast.GeneratorExp) -> tuple[Any, ...]:
    """A comprehension over tuples or static ranges, as a tuple."""
    out: list[Any] = []
    own = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
    saved = {name: v.names[name] for name in own if name in v.names}
    _comprehend(v, node, node.generators, out)
    for name in own:
        v.names.pop(name, None)
    v.names.update(saved)
    return tuple(out)


def _comprehend(v: Visitor, node: ast.ListComp | ast.GeneratorExp,
                generators: Sequence[ast.comprehension], out: list[Any]) -> None:
    if not generators:
        out.append(v.visit(node.elt))
        return
    first = generators[0]
    for item in sequence(v, first.iter, v.visit(first.iter)):
        assign(v, first.target, item, keep_numbers=True)
        keep = [truth(v, c, v.visit(c)) for c in first.ifs]
        if None in keep:
            raise v.error(node, "the `if` of a comprehension must be known at compile time",
                          "use tl.where on the elements")
        if all(keep):
            _comprehend(v, node, generators[1:], out)


@handles(ast.Assert)
def visit_assert(v: Visitor, node: ast.Assert) -> None:
    """`assert cond, message`: at compile time if it is known then, else a device_assert."""
    cond = v.visit(node.test)
    message: Any = "" if node.msg is None else plain(v.visit(node.msg))
    if message is RUN_TIME:
        raise v.error(node, "the message of an assertion must be known at compile time",
                      "write a string")
    known = truth(v, node.test, cond)
    if known is None:
        v.at(node)
        tl.device_assert(cond, message or ast.unparse(node.test))
    elif not known:
        raise CompileTimeAssertionError(
            f"assertion failed: {message or ast.unparse(node.test)}", v.location(node.test))
