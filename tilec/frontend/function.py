"""`Function`: a Python function that kernels are made of, with its source, parameters and key.

Imports nothing of `tilec.language`, whose library functions are made here.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import inspect
import linecache
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CellType
from typing import Any, NoReturn

from tilec.errors import BRIEF, Brief, CompilationError, Location, note

MISSING: Any = inspect.Parameter.empty
# Where outer names were looked up, by (id of the dict or cell, name): the place, what was there.
Watch = dict[tuple[int, str], tuple[Any, object]]
_PLAIN = (bool, int, float, str, bytes, type(None))


def is_constexpr(value: object) -> bool:
    """Whether `value` is a `tl.constexpr` wrapper."""
    return type(value).__name__ == "constexpr"


def names_constexpr(annotation: object) -> bool:
    """Whether an annotation, evaluated or still text, is `tl.constexpr`."""
    return _last_name(annotation) == "constexpr"


def _last_name(annotation: object) -> str:
    if isinstance(annotation, str):
        return annotation.strip("'\"").rpartition(".")[2]
    return str(getattr(annotation, "__name__", ""))


@dataclass(frozen=True)
class Param:
    """A parameter. default is MISSING if there is none; annotation is MISSING, an object or text.

    do_not_specialize, do_not_specialize_on_alignment: what the launcher may not bake in.
    """

    name: str
    index: int
    kind: Any
    default: Any
    annotation: Any
    is_constexpr: bool
    do_not_specialize: bool = False
    do_not_specialize_on_alignment: bool = False

    @property
    def num(self) -> int:
        """The index, as Triton calls it."""
        return self.index

    @property
    def has_default(self) -> bool:
        """Whether it may be left out."""
        return self.default is not MISSING

    @property
    def is_const(self) -> bool:
        """Whether it is annotated `tl.const`: a pointer that is only read."""
        return _last_name(self.annotation) == "const"


class Function:
    """A function of the kernel language: parsed when first needed, callable from kernels.

    Raises CompilationError for what cannot be a kernel function at all: lambdas, generators,
    coroutines, `**kwargs`, and unreadable source.
    """

    def __init__(self, fn: Callable[..., Any], do_not_specialize: Iterable[str | int] = (),
                 do_not_specialize_on_alignment: Iterable[str | int] = ()) -> None:
        if not isinstance(fn, types.FunctionType):
            raise CompilationError(
                f"only plain Python functions can be compiled, found {fn!r}", None,
                "decorate the function itself, and put @tilec.jit closest to `def`")
        self.fn = fn
        self.brief = Brief(lambda: self.def_location)
        self.name = fn.__name__
        self.file = fn.__code__.co_filename
        self.first_line = fn.__code__.co_firstlineno
        linecache.checkcache(self.file)
        self._lines = linecache.getlines(self.file, fn.__globals__)
        # What the source key was read from, and the key; one object, since threads may share it.
        self._state: tuple[Watch, str] | None = None
        functools.update_wrapper(self, fn)
        self._refuse_unusable()
        self.params = self._read_params(frozenset(do_not_specialize),
                                        frozenset(do_not_specialize_on_alignment))

    # -- checks -------------------------------------------------------------------------------

    def _refuse_unusable(self) -> None:
        code = self.fn.__code__
        if self.name == "<lambda>":
            self._refuse("a lambda cannot be compiled", "write a `def` function")
        if not self._lines:
            self._refuse(
                f"the source of `{self.name}` cannot be read", "define it in a file or a notebook "
                "cell; for code run by `exec`, put its text into `linecache.cache` first")
        if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            self._refuse(f"`{self.name}` is an async function", "remove `async`")
        if code.co_flags & inspect.CO_GENERATOR:
            self._refuse(f"`{self.name}` is a generator", "kernels cannot `yield`; store results "
                         "through a pointer, or return a tuple")
        if code.co_flags & inspect.CO_VARKEYWORDS:
            extra = self.tree.args.kwarg
            assert extra is not None
            self._refuse(f"`{self.name}` takes `**{extra.arg}`", "name every parameter", extra)

    def _refuse(self, message: str, advice: str, node: ast.AST | None = None) -> NoReturn:
        loc = Location(self.file, self.first_line)
        if node is not None:
            loc = Location(self.file, getattr(node, "lineno", self.first_line),
                           getattr(node, "col_offset", 0), None, getattr(node, "end_col_offset", 0))
        raise CompilationError(message, loc, advice)

    def _read_params(self, fixed: frozenset[str | int],
                     unaligned: frozenset[str | int]) -> list[Param]:
        params = []
        for i, p in enumerate(inspect.signature(self.fn).parameters.values()):
            params.append(Param(p.name, i, p.kind, p.default, p.annotation,
                                names_constexpr(p.annotation), p.name in fixed or i in fixed,
                                p.name in unaligned or i in unaligned))
        for unknown in (fixed | unaligned) - {p.name for p in params} - set(range(len(params))):
            note(("unspecialised", self.file, self.first_line, unknown),
                 f"{self.file}:{self.first_line}: `{self.name}` has no parameter `{unknown}` to "
                 "leave unspecialised; its parameters are " + ", ".join(p.name for p in params))
        return params

    # -- source -------------------------------------------------------------------------------

    @functools.cached_property
    def source(self) -> str:
        """The text of the function, decorators included, indented as in the file."""
        return "".join(inspect.getblock(self._lines[self.first_line - 1:]))

    @functools.cached_property
    def tree(self) -> ast.FunctionDef:
        """The AST; line and column numbers are those of the file."""
        text, offset = self.source, self.first_line - 1
        if text[:1].isspace():  # inside a class or function: keep the columns as they are
            text, offset = "if 1:\n" + text, offset - 1
        body = ast.parse(text, self.file).body
        node = body[0].body[0] if isinstance(body[0], ast.If) else body[0]
        assert isinstance(node, ast.FunctionDef)
        ast.increment_lineno(node, offset)
        return node

    @property
    def def_location(self) -> Location:
        """The place of the `def` line."""
        return Location(self.file, self.tree.lineno, self.tree.col_offset)

    @functools.cached_property
    def local_names(self) -> frozenset[str]:
        """Names that Python takes as local to the function."""
        return frozenset(self.fn.__code__.co_varnames + self.fn.__code__.co_cellvars)

    @functools.cached_property
    def closure(self) -> dict[str, Any]:
        """Captured names and their cells."""
        return dict(zip(self.fn.__code__.co_freevars, self.fn.__closure__ or (), strict=True))

    # -- key ----------------------------------------------------------------------------------

    @functools.cached_property
    def _paths(self) -> tuple[tuple[str, ...], ...]:
        """Outer names that the body reads, with attributes: ("tl", "load"), ("helper",)."""
        found: dict[tuple[str, ...], None] = {}
        for node in ast.walk(self.tree):
            chain: list[str] = []
            inner: ast.AST = node
            while isinstance(inner, ast.Attribute):
                chain.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id not in self.local_names:
                found[(inner.id, *reversed(chain))] = None
        return tuple(found)

    def source_key(self) -> str:
        """A hash of the text of this function and of all it reaches by name, and of the values of
        outer constants that they read; those of tilec itself are left out.

        Cheap while no name was bound anew since the last call.
        """
        if self._state is not None:
            watch, key = self._state
            for (_, name), (place, seen) in watch.items():
                if (_cell(place) if type(place) is CellType else place.get(name)) is not seen:
                    break
            else:
                return key
        digest = hashlib.sha256()
        watch = {}
        self._reach(digest, watch, set())
        self._state = watch, digest.hexdigest()
        return self._state[1]

    def _reach(self, digest: Any, watch: Watch, seen: set[int]) -> None:
        if id(self) in seen:
            return
        seen.add(id(self))
        defaults = [(p.name, p.default) for p in self.params if isinstance(p.default, _PLAIN)]
        digest.update(f"{self.first_line}\0{self.source}\0{defaults}\0".encode())
        for path in self._paths:
            value = MISSING
            for place, name in self._steps(path):
                value = _cell(place) if type(place) is CellType else place.get(name, MISSING)
                watch[id(place), name] = place, None if value is MISSING else value
            _mix(".".join(path), value, digest, watch, seen)

    def _steps(self, path: tuple[str, ...]) -> Iterator[tuple[Any, str]]:
        """The dicts or cells, with names, that lead along `path` through modules."""
        if path[0] in self.closure:
            place: Any = self.closure[path[0]]
            value = _cell(place)
        else:
            place = self.fn.__globals__
            if path[0] not in place and hasattr(builtins, path[0]):
                return
            value = place.get(path[0])
        yield place, path[0]
        for attr in path[1:]:
            if not isinstance(value, types.ModuleType) or _is_own(value.__name__):
                return
            yield value.__dict__, attr
            value = value.__dict__.get(attr)

    @BRIEF
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise CompilationError(
            f"`{self.name}` is compiled for the GPU and cannot be called from Python", None,
            f"launch it with {self.name}[grid](...), or call it from a kernel")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} at {self.file}:{self.first_line}>"


def _is_own(module: str | None) -> bool:
    return module is not None and (module == "tilec" or module.startswith("tilec."))


def _cell(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _mix(name: str, value: object, digest: Any, watch: Watch, seen: set[int]) -> None:
    """Add to a digest what a name stands for, as far as it changes the generated code."""
    if is_constexpr(value):
        value = value.value  # type: ignore[attr-defined]
    elif type(value).__name__ == "constexpr_function":
        value = value.fn  # type: ignore[attr-defined]
    if isinstance(value, Function):
        if not _is_own(value.fn.__module__):
            digest.update(f"{name}=def\0".encode())
            value._reach(digest, watch, seen)
    elif isinstance(value, types.FunctionType):
        if not _is_own(value.__module__) and id(value) not in seen:
            seen.add(id(value))
            _mix_python(name, value, digest, watch, seen)
    elif isinstance(value, (tuple, list)):
        digest.update(f"{name}=({len(value)}\0".encode())
        for item in value:
            _mix(name, item, digest, watch, seen)
    elif isinstance(value, _PLAIN) or _is_own(type(value).__module__):
        digest.update(f"{name}={value!r}\0".encode())


def python_key(fn: object) -> str:
    """A hash of a constexpr_function and of all that it reads."""
    digest = hashlib.sha256()
    _mix("", fn, digest, {}, set())
    return digest.hexdigest()


def _mix_python(name: str, fn: types.FunctionType, digest: Any, watch: Watch, seen: set[int]
                ) -> None:
    """The same for a function that Python runs at compile time: what it does, and what it reads
    outside of itself, in modules too."""
    names: dict[str, None] = {}
    digest.update(f"{name}={_text(fn.__code__, names)} {fn.__defaults__!r}\0".encode())
    places: list[tuple[Any, str]] = [*zip(fn.__closure__ or (), fn.__code__.co_freevars)]
    places += [(fn.__globals__, n) for n in names if n in fn.__globals__]
    for module in [place[n] for place, n in places if isinstance(place, dict)]:
        if isinstance(module, types.ModuleType) and not _is_own(module.__name__):
            places += [(module.__dict__, n) for n in names if n in module.__dict__]
    for place, n in places:
        value = _cell(place) if type(place) is CellType else place[n]
        watch[id(place), n] = place, value
        _mix(n, value, digest, watch, seen)


def _text(code: types.CodeType, names: dict[str, None]) -> str:
    """What a code object does, as a text that is the same in every process; the names that it
    reads outside, or as attributes, are added to `names`."""
    names.update(dict.fromkeys(code.co_names))
    constants = [_text(c, names) if isinstance(c, types.CodeType) else
                 repr(sorted(map(repr, c)) if isinstance(c, frozenset) else c)
                 for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def function(fn: Callable[..., Any]) -> Function:
    """Decorator of library functions written in the kernel language."""
    return Function(fn)
