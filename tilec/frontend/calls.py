"""Calls: jit functions, which are inlined, `tl` functions, and Python's built-ins."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import types
from collections.abc import Callable
from typing import Any

import tilec.language as tl
from tilec.errors import CompilationError, did_you_mean
from tilec.frontend.branches import body
from tilec.frontend.expressions import items, sequence, static
from tilec.frontend.function import MISSING, Function, is_constexpr
from tilec.frontend.merge import RUN_TIME, plain
from tilec.frontend.visitor import MAX_DEPTH, RESULT, Visitor, handles
from tilec.ir import ops
from tilec.language import control
from tilec.language import dtypes as dt
from tilec.language.context import Context, error
from tilec.language.values import check_call, constexpr, describe, tensor, to_tensor

_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
_POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL


@handles(ast.Call)
def visit_call(v: Visitor, node: ast.Call) -> Any:
    """A call, by what is called."""
    function = v.visit(node.func)
    args = items(v, node.args)
    kwargs: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise v.error(keyword.value, "`**` in a call is not supported in a kernel",
                          "write out the keyword arguments")
        kwargs[keyword.arg] = v.visit(keyword.value)
    v.at(node)
    result = _call(v, node, function, args, kwargs)
    return result.value if is_constexpr(result) else result


def _call(v: Visitor, node: ast.Call, function: Any, args: list[Any],
          kwargs: dict[str, Any]) -> Any:
    if isinstance(function, Function):
        result = v.context.call(function, tuple(args), kwargs)
        v.at(node)
        return result
    if isinstance(function, tensor):
        raise _not_callable(v, node, function)
    if getattr(function, "__tilec_builtin__", False):
        return _construct(v, node, function, args, kwargs) if isinstance(function, type) else \
            _checked(node, function, args, kwargs)
    kind = type(function)
    if kind is types.MethodType or kind is types.BuiltinMethodType or kind is type:
        own = _PYTHON.get(function)
        if own is not None:
            return own(v, node, *args, **kwargs)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, tensor):
            return _checked(node, function, args, kwargs)
        if owner is math or isinstance(owner, (str, tuple, int, float, dt.dtype)) or \
                kind is type and issubclass(function, tuple):
            return _static_call(v, node, function, args, kwargs)
    raise _not_callable(v, node, function)


def _checked(node: ast.Call, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call of a function of the language; CompilationError where the arguments do not fit it."""
    try:
        return function(*args, **kwargs)
    except (TypeError, ValueError) as e:  # of Python, too, as for 10**5000 as text
        check_call(ast.unparse(node.func), function, args, kwargs)
        raise error(f"`{ast.unparse(node.func)}`: {e}",
                    "give tiles or numbers, as its description says") from None


def _construct(v: Visitor, node: ast.Call, cls: type, args: list[Any],
               kwargs: dict[str, Any]) -> Any:
    """An object of a class of the language, such as tl.range."""
    check_call(ast.unparse(node.func), cls, args, kwargs)
    return cls(*args, **kwargs)


def _static_call(v: Visitor, node: ast.Call, function: Any, args: list[Any],
                 kwargs: dict[str, Any]) -> Any:
    """A call of an ordinary Python function on compile-time values. A NamedTuple may hold any."""
    if isinstance(function, type):
        return static(v, node, lambda: function(*args, **kwargs))
    known = [plain(a) for a in (*args, *kwargs.values())]
    if any(k is RUN_TIME for k in known):
        raise v.error(node, f"`{ast.unparse(node.func)}` works on compile-time values only",
                      did_you_mean(function.__name__, dir(tl)).replace("`", "`tl.", 1))
    named = dict(zip(kwargs, known[len(args):], strict=True))
    return static(v, node, lambda: function(*known[:len(args)], **named))


def _not_callable(v: Visitor, node: ast.Call, function: Any) -> CompilationError:
    name = ast.unparse(node.func)
    if isinstance(function, tensor):
        return v.error(node, f"`{name}` is a {function}, which cannot be called")
    if isinstance(function, dt.dtype):
        return v.error(node, f"`{name}` is a type, not a function",
                       f"convert by `x.to({name})`, or make a scalar by tl.full([], x, {name})")
    if isinstance(function, types.FunctionType):
        return v.error(node, f"`{name}` is an ordinary Python function",
                       f"decorate `{function.__name__}` with @tilec.jit")
    if isinstance(function, types.ModuleType):
        return v.error(node, f"`{name}` is a module, not a function")
    if callable(function):
        own = getattr(function, "__name__", name)
        known = [] if getattr(tl, own, None) is function else dir(tl)
        return v.error(node, f"`{name}` cannot be called from a kernel",
                       did_you_mean(own, known).replace("`", "`tl.", 1)
                       or "kernels call @tilec.jit functions and those of tilec.language")
    return v.error(node, f"{describe(function)} cannot be called")


# -- jit functions --------------------------------------------------------------------------------

class Inliner:
    """`Context.call` of one compilation: runs a function's body where the call stands."""

    def __init__(self) -> None:
        self.context: Context | None = None
        self.running: list[Function] = []  # the innermost last

    def __call__(self, fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        context = self.context
        assert context is not None
        caller = context.builder.loc
        if not isinstance(fn, Function):
            raise CompilationError(f"expected a @tilec.jit function, found {describe(fn)}", caller,
                                   "decorate it with @tilec.jit")
        names = bind_arguments(fn, args, kwargs)
        if len(self.running) >= MAX_DEPTH:
            raise CompilationError(
                f"calls are nested {MAX_DEPTH} deep at `{fn.name}`", caller,
                "a recursion must end by a condition known at compile time" if fn in self.running
                else "a function may call another one so deep, and no deeper: call them in turn")
        self.running.append(fn)
        inner = Visitor(context, fn, names, caller)
        result = run(inner)
        self.running.pop()
        context.builder.loc = caller
        return result


def run(v: Visitor) -> Any:
    """Run a function's body; what it returns."""
    body(v, v.fn.tree.body, tail=True)
    return v.names[RESULT]


def bind_arguments(fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The parameters of `fn` by name. CompilationError if the arguments do not fit."""
    params = fn.params
    positional = [p for p in params if p.kind not in (_KEYWORD_ONLY, _VAR_POSITIONAL)]
    if len(args) > len(positional) and all(p.kind is not _VAR_POSITIONAL for p in params):
        raise _misfit(fn, f"takes {len(positional)} arguments, {len(args)} were given")
    names = {p.name: a for p, a in zip(positional, args, strict=False)}
    for name, value in kwargs.items():
        if name in names:
            raise _misfit(fn, f"got `{name}` twice")
        if not any(p.name == name and p.kind not in (_POSITIONAL_ONLY, _VAR_POSITIONAL)
                   for p in params):
            misfit = _misfit(fn, f"has no parameter `{name}`")
            misfit.advice = did_you_mean(name, [p.name for p in params]) or misfit.advice
            raise misfit
        names[name] = value
    rest = args[len(positional):]
    for p in params:
        if p.kind is _VAR_POSITIONAL:
            names[p.name] = rest
        if p.name not in names:
            if p.default is MISSING:
                raise _misfit(fn, f"needs a value for `{p.name}`")
            names[p.name] = p.default
        value = names[p.name]
        if is_constexpr(value):
            names[p.name] = value = value.value
        if p.is_constexpr and plain(value) is not RUN_TIME:  # as in Triton, others stay tensors
            names[p.name] = plain(value)
    return names


def _misfit(fn: Function, what: str) -> CompilationError:
    shown = ", ".join(p.name if p.default is MISSING else f"{p.name}={_short(p.default)}"
                      for p in fn.params)
    return CompilationError(f"`{fn.name}` {what}", None, f"the signature is {fn.name}({shown})")


def _short(value: Any) -> str:
    return value.name if isinstance(value, Function) else repr(value)


# -- Python's built-ins ---------------------------------------------------------------------------

Handler = Callable[..., Any]
_PYTHON: dict[Any, Handler] = {}


def _python(function: Any) -> Callable[[Handler], Handler]:
    """Register the meaning of a Python built-in: a function of (visitor, node, arguments)."""
    def register(handler: Handler) -> Handler:
        signature = inspect.signature(handler)

        @functools.wraps(handler)
        def checked(v: Visitor, node: ast.Call, *args: Any, **kwargs: Any) -> Any:
            try:
                signature.bind(v, node, *args, **kwargs)
            except TypeError as e:
                name = function.__name__
                shown = ", ".join(str(p.replace(annotation=p.empty))
                                  for p in list(signature.parameters.values())[2:])
                advice, own = f"in a kernel it is {name}({shown})", getattr(tl, name, None)
                if kwargs and callable(own) and {*kwargs} <= {*inspect.signature(own).parameters}:
                    advice = f"write tl.{name}, which takes {', '.join(kwargs)}"
                raise v.error(node, f"`{name}`: {e}", advice) from None
            return handler(v, node, *args, **kwargs)

        _PYTHON[function] = checked
        return handler

    return register


def _fold(v: Visitor, node: ast.Call, args: tuple[Any, ...], own: Any, other: Any) -> Any:
    if len(args) == 1:
        args = sequence(v, node, args[0])
    if not any(isinstance(a, tensor) for a in args):
        return static(v, node, lambda: own(args))
    return functools.reduce(other, args)


@_python(min)
def _min(v: Visitor, node: ast.Call, *args: Any) -> Any:
    return _fold(v, node, args, min, tl.minimum)


@_python(max)
def _max(v: Visitor, node: ast.Call, *args: Any) -> Any:
    return _fold(v, node, args, max, tl.maximum)


@_python(abs)
def _abs(v: Visitor, node: ast.Call, x: Any) -> Any:
    return tl.abs(x) if isinstance(x, tensor) else static(v, node, lambda: abs(x))


@_python(len)
def _len(v: Visitor, node: ast.Call, x: Any) -> Any:
    return static(v, node, lambda: len(x))


@_python(range)
def _range(v: Visitor, node: ast.Call, start: Any, stop: Any = None, step: Any = None) -> Any:
    return control.range(start, stop, step)


def _number(function: Any, advice: str) -> None:
    @_python(function)
    def convert(v: Visitor, node: ast.Call, x: Any) -> Any:
        known = plain(x)
        if known is RUN_TIME:
            raise v.error(node, f"`{function.__name__}` converts compile-time values only, found "
                          f"a run-time {x}", advice)
        return static(v, node, lambda: function(known))


_number(int, "convert it by `.to(tl.int32)`")
_number(float, "convert it by `.to(tl.float32)`")
_number(bool, "compare it with 0: `x != 0`")
_number(str, "print it with tl.device_print(prefix, x)")


@_python(tuple)
@_python(list)
def _tuple(v: Visitor, node: ast.Call, x: Any = ()) -> tuple[Any, ...]:
    return sequence(v, node, x)


@_python(isinstance)
def _isinstance(v: Visitor, node: ast.Call, x: Any, classes: Any) -> bool:
    for cls in classes if isinstance(classes, tuple) else (classes,):
        if cls is constexpr and plain(x) is not RUN_TIME:
            return True
        if not isinstance(cls, type):
            raise v.error(node, f"`isinstance` needs a class, found {describe(cls)}")
        if cls is not constexpr and isinstance(x, cls):
            return True
    return False


@_python(getattr)
def _getattr(v: Visitor, node: ast.Call, x: Any, name: Any, *default: Any) -> Any:
    if not isinstance(name, str):
        raise v.error(node, "`getattr` needs the name as a string")
    try:
        return getattr(x, name, *default)
    except AttributeError:
        raise v.error(node, f"{describe(x)} has no attribute `{name}`",
                      did_you_mean(name, dir(x))) from None


@_python(hasattr)
def _hasattr(v: Visitor, node: ast.Call, x: Any, name: Any) -> bool:
    return bool(static(v, node, lambda: hasattr(x, name)))


@_python(print)
def _print(v: Visitor, node: ast.Call, *args: Any) -> None:
    """`print(text, x, ...)`: the compile-time values in front are the prefix."""
    prefix: list[str] = []
    rest = list(args)
    while rest and not isinstance(rest[0], tensor):
        prefix.append(str(rest.pop(0)))
    tl.device_print(" ".join(prefix), *[to_tensor(x) for x in rest])


@_python(breakpoint)
def _breakpoint(v: Visitor, node: ast.Call) -> None:
    """Stop in the interpreter's prompt, with every tensor in scope under its name."""
    live = {n: x for n, x in v.names.items() if isinstance(x, tensor) and n[:1] != "<"}
    v.builder.insert(ops.Breakpoint([x.handle for x in live.values()], names=tuple(live)))
