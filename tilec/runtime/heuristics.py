"""`@heuristics`: parameters that functions of the others give; and `Launchable`, the base of what
wraps a kernel and adds to its arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilec.errors import BRIEF, CompilationError, LaunchError, Location, did_you_mean
from tilec.frontend.function import MISSING
from tilec.runtime.jit import OPTION_NAMES, JITFunction
from tilec.runtime.kernel import CompiledKernel

Grid = Any


class Launchable:
    """A kernel whose launches get more arguments than the caller gives.

    inner: what it wraps; base: the JITFunction at the bottom.
    """

    def __init__(self, inner: JITFunction | Launchable, what: str) -> None:
        if not isinstance(inner, (JITFunction, Launchable)):
            code = getattr(inner, "__code__", None)
            where = Location(code.co_filename, code.co_firstlineno) if code else None
            raise CompilationError(f"@tilec.{what} needs a @tilec.jit function, found {inner!r}",
                                   where, "put @tilec.jit closest to `def`")
        self.inner = inner
        self.base: JITFunction = inner if isinstance(inner, JITFunction) else inner.base
        functools.update_wrapper(self, self.base.fn)
        self.name, self.params = self.base.name, self.base.params
        self._names = [p.name for p in self.params]

    def resolve(self, grid: Grid, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments that the kernel is to be launched with."""
        raise NotImplementedError

    def warmup(self, *args: Any, grid: Grid = None, **kwargs: Any) -> Any:
        """Compile without launching, for arrays or dtypes in their place."""
        raise NotImplementedError

    def __getitem__(self, grid: Grid) -> Callable[..., CompiledKernel]:
        return functools.partial(self.run, grid)

    __iter__ = None  # see JITFunction

    def run(self, grid: Grid, /, *args: Any, **kwargs: Any) -> CompiledKernel:
        """Launch over `grid`, as JITFunction.run does; returns the kernel that ran."""
        with self.base.brief:
            return self.base.run(grid, *args, **self.resolve(grid, args, kwargs))

    @BRIEF
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.base(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.inner!r}>"

    def check_names(self, names: Sequence[str], what: str, options: bool = False) -> None:
        """CompilationError for names that are no parameters (or options) of the kernel."""
        known = [*self._names, *(OPTION_NAMES if options else ())]
        for name in names:
            if name not in known:
                raise CompilationError(f"{what} names `{name}`, which is no parameter of "
                                       f"`{self.name}`", self.base.def_location,
                                       did_you_mean(name, known) or f"it has {', '.join(known)}")

    def by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument that is known so far, defaults included."""
        defaults = {p.name: p.default for p in self.params if p.default is not MISSING}
        return defaults | dict(zip(self._names, args)) | dict(kwargs)

    def refuse(self, names: Sequence[str], who: str, args: Sequence[Any],
               kwargs: Mapping[str, Any]) -> None:
        """LaunchError if a launch gives one of `names`."""
        for name in (*self._names[:len(args)], *kwargs):
            if name in names:
                raise LaunchError(f"`{self.name}` was launched with `{name}`, which {who} chooses",
                                  self.base.def_location, f"leave out `{name}`, or launch "
                                  f"`{self.name}.base`, which does not choose")


class Heuristics(Launchable):
    """A kernel some of whose parameters or options are functions of the others."""

    def __init__(self, inner: Any, values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> None:
        super().__init__(inner, "heuristics")
        self.values = dict(values)
        self.check_names(list(values), "@tilec.heuristics", options=True)

    def _complete(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        self.refuse(list(self.values), "a heuristic", args, {})
        for name, value in self.values.items():  # it sees the earlier ones, and what it replaces
            kwargs = kwargs | {name: value(self.by_name(args, kwargs))}
        return kwargs

    def resolve(self, grid: Grid, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The given arguments, and the computed ones."""
        return resolve(self.inner, grid, args, self._complete(args, kwargs))

    def warmup(self, *args: Any, grid: Grid = None, **kwargs: Any) -> Any:
        """Compile without launching, as JITFunction.warmup does."""
        with self.base.brief:
            return self.inner.warmup(*args, grid=grid, **self._complete(args, kwargs))


def resolve(inner: JITFunction | Launchable, grid: Grid, args: Sequence[Any],
            kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments for the JITFunction at the bottom of `inner`."""
    return kwargs if isinstance(inner, JITFunction) else inner.resolve(grid, args, kwargs)


def heuristics(values: Mapping[str, Callable[[dict[str, Any]], Any]]
               ) -> Callable[[Any], Heuristics]:
    """Decorator of a @tilec.jit function: parameters or launch options that functions of the
    arguments by name give."""
    return BRIEF(lambda fn: Heuristics(fn, values))
