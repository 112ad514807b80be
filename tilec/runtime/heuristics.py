"""`@heuristics`: parameters that functions of the others give; and `Launchable`, the base of what
wraps a kernel and adds to its arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilec.errors import BRIEF, CompilationError, LaunchError, Location, did_you_mean
from tilec.frontend.function import MISSING
from tilec.runtime.interface import KernelInterface
from tilec.runtime.jit import JITFunction
from tilec.runtime.kernel import CompiledKernel
from tilec.runtime.options import IGNORED, OPTION_NAMES

Grid = Any


class Launchable(KernelInterface):
    """A kernel whose launches get more arguments than the caller gives.

    fn: what it wraps; base: the JITFunction at the bottom, base_fn: its Python function; arg_names:
    its parameters, as params has them.
    """

    def __init__(self, fn: Any, what: str) -> None:
        base = fn
        while isinstance(base, KernelInterface) and not isinstance(base, JITFunction):
            base = base.fn
        if not isinstance(base, JITFunction):
            code = getattr(fn, "__code__", None)
            where = Location(code.co_filename, code.co_firstlineno) if code else None
            raise CompilationError(f"@tilec.{what} needs a @tilec.jit function, found {fn!r}",
                                   where, "put @tilec.jit closest to `def`")
        self.fn = fn
        self.base: JITFunction = base
        functools.update_wrapper(self, self.base.fn)
        self.base_fn = self.base.fn
        self.name, self.params = self.base.name, self.base.params
        self.arg_names = [p.name for p in self.params]

    def resolve(self, grid: Grid, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments that the kernel is to be launched with."""
        raise NotImplementedError

    @BRIEF
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.base(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.fn!r}>"

    def check_names(self, names: Sequence[str], what: str, options: bool = False) -> None:
        """LaunchError for names that are no parameters (or options) of the kernel."""
        known = [*self.arg_names, *(OPTION_NAMES if options else ())]
        for name in names:
            if name not in known and not (options and name in IGNORED):
                raise LaunchError(f"{what} names `{name}`, which is no parameter of "
                                  f"`{self.name}`", self.base.def_location,
                                  did_you_mean(name, known) or f"it has {', '.join(known)}")

    def by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument that is known so far, defaults included."""
        defaults = {p.name: p.default for p in self.params if p.default is not MISSING}
        return defaults | dict(zip(self.arg_names, args)) | dict(kwargs)

    def refuse(self, names: Sequence[str], who: str, args: Sequence[Any],
               kwargs: Mapping[str, Any]) -> None:
        """LaunchError if a launch gives one of `names`."""
        for name in (*self.arg_names[:len(args)], *kwargs):
            if name in names:
                raise LaunchError(f"`{self.name}` was launched with `{name}`, which {who} chooses",
                                  self.base.def_location, f"leave out `{name}`, or launch "
                                  f"`{self.name}.base`, which does not choose")


class Heuristics(Launchable):
    """A kernel some of whose parameters or options are functions of the others."""

    def __init__(self, fn: Any, arg_names: Sequence[str],
                 values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> None:
        super().__init__(fn, "heuristics")
        self.values = dict(values)
        self._checked = False

    def _complete(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not self._checked:
            self.check_names(list(self.values), "@tilec.heuristics", options=True)
            self._checked = True
        self.refuse(list(self.values), "a heuristic", args, {})
        for name, value in self.values.items():  # it sees the earlier ones, and what it replaces
            kwargs = kwargs | {name: value(self.by_name(args, kwargs))}
        return kwargs

    def resolve(self, grid: Grid, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The given arguments, and the computed ones."""
        return resolve(self.fn, grid, args, self._complete(args, kwargs))

    def run(self, *args: Any, grid: Grid, warmup: bool = False, **kwargs: Any) -> CompiledKernel:
        """Launch as JITFunction.run does; returns the kernel that ran."""
        with self.base.brief:
            more = self._complete(args, kwargs)
            made: CompiledKernel = self.fn.run(*args, grid=grid, warmup=warmup, **more)
        return made


def resolve(fn: KernelInterface, grid: Grid, args: Sequence[Any],
            kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments for the JITFunction at the bottom of `fn`. What an author's own wrapper
    adds is not among them."""
    while not isinstance(fn, (Launchable, JITFunction)):
        fn = fn.fn
    return fn.resolve(grid, args, kwargs) if isinstance(fn, Launchable) else kwargs


def heuristics(values: Mapping[str, Callable[[dict[str, Any]], Any]]
               ) -> Callable[[Any], Heuristics]:
    """Decorator of a @tilec.jit function: parameters or launch options that functions of the
    arguments by name give."""
    return BRIEF(lambda fn: Heuristics(fn, getattr(fn, "arg_names", ()), values))
