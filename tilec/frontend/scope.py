"""What a name means in a kernel: local, captured, global or Python built-in."""

from __future__ import annotations

import ast
import builtins
import sys
import types
from typing import Any

from tilec.errors import CompilationError, did_you_mean
from tilec.frontend.function import Function, is_constexpr, names_constexpr
from tilec.frontend.visitor import Visitor, handles
from tilec.language import dtypes as dt
from tilec.language.descriptors import MAKE_DESCRIPTOR, tensor_descriptor
from tilec.language.values import tensor

_NUMBERS = (bool, int, float, str, tuple, list)
_MISSING: Any = object()
# Built-in functions of Python that kernels may call; calls.py gives them their meaning.
PYTHON_BUILTINS = {"abs", "bool", "breakpoint", "float", "getattr", "hasattr", "int", "isinstance",
                   "len", "list", "max", "min", "print", "range", "tuple", "str"}


@handles(ast.Name)
def visit_name(v: Visitor, node: ast.Name) -> Any:
    """A name that is read."""
    name = node.id
    if name in v.names:
        return v.lookup(name, node)
    if name in v.fn.local_names:
        raise v.error(node, f"`{name}` is used before it is assigned",
                      f"assign `{name}` on every path that leads here")
    cell = v.fn.closure.get(name)
    if cell is not None:
        return _captured(v, node, cell)
    outer = v.fn.fn.__globals__
    value = outer.get(name, _MISSING)
    if value is not _MISSING:
        return outer_value(v, node, name, value, outer)
    if name in PYTHON_BUILTINS or name in ("object", "type"):
        return getattr(builtins, name)
    raise _undefined(v, node)


def _captured(v: Visitor, node: ast.Name, cell: Any) -> Any:
    try:
        value = cell.cell_contents
    except ValueError:
        raise v.error(node, f"`{node.id}` of the enclosing function is not assigned yet",
                      "launch the kernel after that assignment") from None
    if is_constexpr(value):
        return value.value
    # A captured number is part of the source key like a constexpr global, and can only be
    # rebound where it is defined.
    return tuple(value) if isinstance(value, list) else value


def outer_value(v: Visitor, node: ast.AST, name: str, value: Any, namespace: dict[str, Any]) -> Any:
    """The value of a module's variable, if kernels may read it."""
    if is_constexpr(value):
        return value.value
    if isinstance(value, _NUMBERS) and not _annotated(name, namespace) and \
            namespace.get("__name__") not in ("math", "cmath"):
        raise v.error(node, f"`{name}` is a global variable, and not marked as constant",
                      f"write `{name} = tl.constexpr({_short(value)})` where it is defined, or "
                      "pass it as a tl.constexpr parameter")
    if hasattr(value, "__array_interface__") or hasattr(value, "__cuda_array_interface__") or \
            hasattr(value, "__dlpack__"):
        raise v.error(node, f"`{name}` is a global array ({type(value).__name__})",
                      "pass it to the kernel as an argument")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else "..."


def _annotated(name: str, namespace: dict[str, Any]) -> bool:
    """Whether a module says `name: tl.constexpr`."""
    annotations = namespace.get("__annotations__")
    if annotations is None:  # Python 3.14 makes them when asked
        module = sys.modules.get(namespace.get("__name__", ""))
        annotations = getattr(module, "__annotations__", {}) if module is not None and \
            module.__dict__ is namespace else {}
    return names_constexpr(annotations.get(name))


def _undefined(v: Visitor, node: ast.Name) -> CompilationError:
    known = [n for n in (*v.names, *v.fn.closure, *v.fn.fn.__globals__) if n[:1] not in "<_"]
    if hasattr(builtins, node.id):
        return v.error(node, f"Python's `{node.id}` is not available in a kernel",
                       did_you_mean(node.id, known) or "the functions of tilec.language are")
    advice = did_you_mean(node.id, [*known, *PYTHON_BUILTINS])
    if not advice and node.id in ("tl", "np", "torch", "math"):
        advice = "import it at the top of the file"
    return v.error(node, f"`{node.id}` is not defined", advice or "assign it before this line")


@handles(ast.Attribute)
def visit_attribute(v: Visitor, node: ast.Attribute) -> Any:
    """An attribute of a module, a tensor or a compile-time value."""
    base = v.visit(node.value)
    name = node.attr
    if isinstance(base, types.ModuleType):
        value = base.__dict__.get(name, _MISSING)
        if value is _MISSING:
            value = getattr(base, name, _MISSING)  # made by a module's __getattr__
        if value is _MISSING:
            raise v.error(node, f"`{ast.unparse(node.value)}` has no `{name}`",
                          _advise(ast.unparse(node.value), name, base))
        return outer_value(v, node, ast.unparse(node), value, base.__dict__) \
            if isinstance(value, _NUMBERS) or is_constexpr(value) else value
    v.at(node)
    if name == "value" and not isinstance(base, tensor) and not hasattr(base, name):
        return base  # a constexpr, which stands here as what it wraps
    if name.startswith("__") or isinstance(base, (types.FunctionType, Function)):
        raise v.error(node, f"attribute `{name}` cannot be read in a kernel")
    try:
        value = getattr(base, name)
    except AttributeError:
        if hasattr(tensor_descriptor, name):
            refuse_pointer(v, node, base)
        what = str(base) if isinstance(base, (tensor, dt.dtype)) else type(base).__name__
        raise v.error(node, f"{what} has no attribute `{name}`",
                      _advise(ast.unparse(node.value), name, base)) from None
    return value.value if is_constexpr(value) else value


def refuse_pointer(v: Visitor, node: ast.Attribute, base: Any) -> None:
    """Raise if what has an attribute of a descriptor read is a pointer."""
    if isinstance(base, tensor) and base.dtype.is_ptr():
        name = ast.unparse(node.value)
        raise v.error(node, f"`{name}` is a pointer ({base}), expected a tensor descriptor",
                      f"{MAKE_DESCRIPTOR}; a pointer is read by tl.load({name} + offsets), written "
                      "by tl.store")


_NOT_YET = frozenset((  # Triton's names, of which the nearest spelling is no substitute
    "dot_scaled map_elementwise").split())


def _advise(base: str, name: str, owner: Any) -> str:
    if name in _NOT_YET and getattr(owner, "__name__", "").startswith("tilec.language"):
        return f"`{base}.{name}` is not there yet; docs/from-triton.md lists what is missing"
    public = [n for n in dir(owner) if not n.startswith("_")]
    found = did_you_mean(name, public)
    return found.replace("`", f"`{base}.", 1) if found else ""
