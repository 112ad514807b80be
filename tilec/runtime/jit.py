"""`JITFunction`: binds a launch's arguments, finds or makes the kernel they call for, runs it.

The way of a launch that was seen before is short on purpose: a plan for the call's form reads the
arguments, one dict look-up, one driver call. Everything else happens once per specialisation.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import textwrap
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from tilec import knobs
from tilec.codegen.cubin import available
from tilec.compiler import Options
from tilec.errors import (
    BRIEF,
    CompilationError,
    LaunchError,
    TilecError,
    did_you_mean,
    note,
    shown,
)
from tilec.frontend.function import MISSING, Function
from tilec.frontend.signature import Spec
from tilec.instruments import override_state
from tilec.ir.grids import MAX_GRID
from tilec.language.values import constexpr
from tilec.runtime import device, hooks, host
from tilec.runtime.arguments import (
    Const,
    Key,
    as_plain,
    leaves,
    param_handler,
    place_of,
    spec_of,
    stand_in,
)
from tilec.runtime.interface import KernelInterface
from tilec.runtime.kernel import CompiledKernel
from tilec.runtime.options import COMPILE_OPTIONS, OPTION_NAMES, compile_options, ignored
from tilec.runtime.plan import Plan
from tilec.target import DEFAULT, Target

_OPTION_KINDS = (bool, int, float, str, type(None), Target)
# Flags that make a compilation print something, or start from edited files.
LOUD = ("dump", "dump_dir", "time", "override_dir")


class _Entry(NamedTuple):
    """What a key leads to. pick: takes the launch arguments out of a plan's values, None where
    those are all; launch: None for a kernel that runs on the CPU, at `level`, or has checks."""

    kernel: CompiledKernel
    where: int
    level: str
    pick: Callable[[Any], Sequence[Any]] | None
    launch: Callable[..., None] | None
    threads: int
    shared: int


class JITFunction(Function, KernelInterface):
    """A kernel: `kernel[grid](args, BLOCK=..., num_warps=...)` launches it.

    options: defaults of the launch options. do_not_specialize: parameters whose value 1 and
    divisibility by 16 are not baked in. repr: gives the kernel's name, from the `signature` (types
    by name) and the `constants` of a specialisation. launch_metadata: gives a dict for launch
    hooks, from the grid, the compiled kernel's metadata and the arguments by name. pre_run_hooks:
    called with the arguments of each launch.
    """

    def __init__(self, fn: Callable[..., Any], options: Mapping[str, Any] | None = None,
                 do_not_specialize: Iterable[str | int] | None = None,
                 do_not_specialize_on_alignment: Iterable[str | int] | None = None, *,
                 repr: Callable[[Any], str] | None = None,
                 launch_metadata: Callable[..., dict[str, Any]] | None = None) -> None:
        super().__init__(fn, do_not_specialize or (), do_not_specialize_on_alignment or ())
        self.default_options = {k: v for k, v in (options or {}).items() if v is not None}
        self.repr, self.launch_metadata = repr, launch_metadata
        self.pre_run_hooks: list[Callable[..., Any]] = []
        self.arg_names = [p.name for p in self.params]
        self._fixed = [param_handler(p) for p in self.params]
        self._plans: dict[Any, Plan] = {}
        self._kernels: dict[Any, CompiledKernel] = {}
        self._compiling = threading.Lock()
        self._setting: Any = None  # what the last launch was to print, and its number
        self._settings = 0

    # -- what others read -----------------------------------------------------------------

    @property
    def __globals__(self) -> dict[str, Any]:
        return self.fn.__globals__

    @cached_property
    def signature(self) -> inspect.Signature:
        """Of the Python function."""
        return inspect.signature(self.fn)

    @property
    def constexprs(self) -> list[int]:
        """The indices of the parameters that are tl.constexpr."""
        return [p.index for p in self.params if p.is_constexpr]

    @property
    def raw_src(self) -> list[str]:
        """The lines of the function as they are in the file, decorators included."""
        return self.source.splitlines(keepends=True)

    @property
    def src(self) -> str:
        """The text of the function from `def` on, not indented."""
        return textwrap.dedent("".join(self.raw_src[self.tree.lineno - self.first_line:]))

    @property
    def cache_key(self) -> str:
        """A hash of the function's source, and of all that it reaches by name."""
        return self.source_key()

    @property
    def device_caches(self) -> dict[int, tuple[dict[Any, CompiledKernel], ...]]:
        """The kernels compiled so far, as the first of a tuple, by the current device."""
        return {device.current_device() if device.gpu_available() else 0: (self._kernels,)}

    def add_pre_run_hook(self, hook: Callable[..., Any]) -> None:
        """Call `hook` with the arguments of each launch, before it."""
        self.pre_run_hooks.append(hook)
        hooks.ACTIVE.append(hook)

    # -- launching ------------------------------------------------------------------------

    def __getitem__(self, grid: Any) -> Callable[..., CompiledKernel]:
        """`kernel[grid]`: grid is 1 to 3 integers, or a function of the bound arguments."""
        return partial(self.launch, grid)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> CompiledKernel:
        """Launch over `grid`, or only compile if `warmup`; returns the kernel."""
        return self.warmup(*args, grid=grid, **kwargs) if warmup else \
            self.launch(grid, *args, **kwargs)

    def launch(self, grid: Any, /, *args: Any, **kwargs: Any) -> CompiledKernel:
        """Launch over `grid`; returns the kernel that ran.

        Raises LaunchError for arguments, options or grids that do not fit, CompilationError for
        what does not compile, DriverError and OutOfResources from the device.
        """
        try:
            given = (*args, *kwargs.values())
            plan = self._plans.get((len(args), *kwargs, *map(type, given)))
            if plan is None:
                plan = self._plan(args, kwargs)
            try:
                key, values = plan.read(*given)
            except Exception:
                plan.keys(given)  # raises it again, with the parameter's name
                raise
            flags: Any = knobs.snapshot_key()
            if flags is not None:
                flags = self._numbered(flags)
            elif self._setting is not None:
                self._setting = None
            full = key, flags, self.source_key()
            entry = plan.entries.get(full)
            if entry is None:
                entry = plan.entries[full] = self._make(plan, given, flags)
            if type(grid) is not tuple and callable(grid):
                grid = grid(self._meta(plan, given))
            if type(grid) is tuple and len(grid) == 1 and type(grid[0]) is int and \
                    0 <= grid[0] <= MAX_GRID[0]:
                grid = grid[0], 1, 1  # what nearly every launch has, without a call
            else:
                grid = host.check_grid(grid)
            launch = entry.launch
            if launch is None or hooks.ACTIVE:
                self._launch_slowly(entry, plan, given, grid, args, kwargs)
                return entry.kernel
            if plan.stream is None:
                stream = device.current_stream(entry.where)
            else:
                stream = raw_stream(given[plan.stream])
            launch(grid, entry.threads, entry.shared, stream,
                   values if entry.pick is None else entry.pick(values))
            return entry.kernel
        except TilecError as error:
            self.brief.finish(error)  # `with self.brief:` would slow every launch
            raise

    def _launch_slowly(self, entry: _Entry, plan: Plan, given: Sequence[Any],
                       grid: tuple[int, int, int], args: Any, kwargs: Any) -> None:
        """Run what is not launched by addresses alone, on the CPU or with checks on the GPU, or
        what has hooks around it."""
        stream = None if plan.stream is None else raw_stream(given[plan.stream])
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        more = self.launch_metadata
        about = hooks.LaunchInfo(
            {"name": entry.kernel.name, "stream": stream,
             "function": entry.kernel.function if entry.level == "cubin" else None},
            None if more is None else
            lambda: more(grid, entry.kernel.metadata, self._bound(plan, given)))
        hooks.launch_enter(about)
        keys, values = plan.keys(given)
        arguments = [a for p, key, value, passed in zip(
            self.params, keys, plan.bound(given), values) if not p.is_constexpr
            for a in host.flat_arguments(key, value, passed)]
        if entry.level == "cubin":
            host.launch_on_device(entry.kernel, arguments, grid, stream, entry.launch is None)
        else:
            host.run_on_cpu(entry.kernel, arguments, grid, entry.level)
        hooks.launch_exit(about)

    def _bound(self, plan: Plan, given: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.arg_names, plan.bound(given)))

    def _meta(self, plan: Plan, given: Sequence[Any]) -> dict[str, Any]:
        """What a grid function is given: every argument and compile option, by name."""
        options = dataclasses.asdict(Options()) | self.default_options | plan.chosen(given)
        return options | self._bound(plan, given)

    # -- the first call of a form ---------------------------------------------------------

    def _plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        """The plan of a call's form, made; LaunchError for arguments that do not fit."""
        sources, options = self._bind(args, kwargs)
        given = (*args, *kwargs.values())
        for name, i in options.items():
            if name == "stream":
                raw_stream(given[i])
            elif not (isinstance(given[i], Hashable) and
                      isinstance(as_plain(given[i]), _OPTION_KINDS)):
                raise LaunchError(f"`{self.name}`: {name} is {shown(given[i])}, expected a number "
                                  "or a name", self.def_location, "leave it out for the default")
        plan = Plan(self.params, self._fixed, sources, options, given, self.def_location)
        self._plans[(len(args), *kwargs, *map(type, given))] = plan
        return plan

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]
              ) -> tuple[list[int | None], dict[str, int]]:
        """Where, among positional and then keyword arguments, each parameter is found (None: its
        default), and each launch option. LaunchError if they do not fit."""
        names, where, given = self.arg_names, self.def_location, (*args, *kwargs.values())
        if self.fn.__code__.co_flags & inspect.CO_VARARGS:
            raise LaunchError(f"`{self.name}` takes `*{names[-1]}`, as kernels do not", where,
                              "only functions that kernels call may; pass a tuple as one parameter")
        if len(args) > len(names):
            raise LaunchError(f"`{self.name}` takes {len(names)} arguments ({', '.join(names)}), "
                              f"{len(args)} were given", where,
                              "launch options such as num_warps go by name")
        found = dict(zip(names, range(len(args))))
        options = {}
        for i, name in enumerate(kwargs, len(args)):
            if name in found:
                raise LaunchError(f"`{self.name}` got `{name}` by position and by name", where,
                                  "give it once")
            if name in names:
                found[name] = i
            if name in COMPILE_OPTIONS or name in OPTION_NAMES and name not in names:
                options[name] = i
            elif name not in names and not ignored(name, given[i], self.name):
                known = [*names, *OPTION_NAMES]
                raise LaunchError(f"`{self.name}` has no parameter or launch option `{name}`",
                                  where, did_you_mean(name, known) or f"it has {', '.join(known)}")
        for p in self.params:
            if p.name not in found and p.default is MISSING:
                what = "constexpr" if p.is_constexpr else "argument"
                raise LaunchError(f"`{self.name}` was launched without its {what} `{p.name}`",
                                  where, f"pass {p.name}=...")
        return [found.get(name) for name in names], options

    # -- the first call of a specialisation -----------------------------------------------

    def _numbered(self, flags: Any) -> tuple[Any, int]:
        """Flags with a number that changes with each new setting of those that make a compilation
        print or look for edited files; 0 if none of them is set."""
        if not any(name in LOUD for name, _ in flags):
            self._setting = None
            return flags, 0
        now = flags, override_state(), knobs.scope_token()
        if self._setting is None or now[:2] != self._setting[:2] or now[2] is not self._setting[2]:
            self._setting = now
            self._settings += 1
        return flags, self._settings

    def _make(self, plan: Plan, given: Sequence[Any], flags: Any) -> _Entry:
        keys, _ = plan.keys(given)
        setting = 0 if flags is None else flags[1]
        where, level = self.place(keys)
        options = self.default_options | plan.chosen(given)
        target = self._target(where, options)
        kernel = self._kernel(keys, target, options, setting)
        pick = _picker([leaf for key, p in zip(keys, self.params) if not p.is_constexpr
                        for leaf in leaves(key)])
        if level != "cubin":
            return _Entry(kernel, 0, level, pick, None, 0, 0)
        index = device.current_device() if where is None else where
        if kernel.options.debug:
            return _Entry(kernel, index, level, pick, None, 0, 0)
        return _Entry(kernel, index, level, pick, kernel.launcher(index).launch,
                      kernel.threads, kernel.shared)

    def place(self, keys: Sequence[Key]) -> tuple[int | None, str]:
        """Which GPU the arrays are on, if any, and at which level a launch runs."""
        found: dict[Any, str] = {}
        for name, key in zip(self.arg_names, keys):
            for leaf in leaves(key):
                if place_of(leaf) is not None:
                    found.setdefault(place_of(leaf), name)
        gpus = [p for p in found if isinstance(p, int)]
        if len(found) > 1 and gpus:
            (a, x), (b, y) = list(found.items())[:2]
            raise LaunchError(f"`{self.name}` got `{x}` on {_shown(a)} and `{y}` on {_shown(b)}",
                              self.def_location, "move them to one place")
        where = gpus[0] if gpus else None
        forced = knobs.run
        if forced:
            return where, forced
        if gpus:
            return where, "cubin"
        if "torch" in found and device.gpu_available():
            raise LaunchError(f"`{self.name}` got the CPU tensor `{found['torch']}`",
                              self.def_location, "move it with `.cuda()`, or set TILEC_RUN=tile "
                              "to run on the CPU")
        if not found and device.gpu_available():
            return None, "cubin"
        note("on the CPU", f"`{self.name}` runs on the CPU, in the interpreter, as kernels with "
             "host arrays do; with device arrays they run on the GPU")
        return None, "tile"

    def _target(self, where: int | None, options: Mapping[str, Any]) -> Target:
        given = options.get("target")
        if given is not None and not (isinstance(given, str) and not given):
            try:
                return Target.parse(given)
            except TilecError as e:
                raise LaunchError(f"`{self.name}`: {e.message}", self.def_location, e.advice
                                  ) from None
        if knobs.target:
            return Target.parse(knobs.target)
        if where is None and device.gpu_available():
            where = device.current_device()
        return Target.parse(DEFAULT if where is None else device.target_of(where))

    def _kernel(self, keys: Sequence[Key], target: Target, options: Mapping[str, Any],
                setting: int = 0) -> CompiledKernel:
        signature: dict[str, Spec] = {}
        constexprs: dict[str, Any] = {}
        for p, key in zip(self.params, keys):
            spec = spec_of(key, p.is_const)
            if isinstance(spec, constexpr):
                constexprs[p.name] = spec.value
            else:
                signature[p.name] = spec
        made = self.check_options(options)
        if knobs.check == "gpu":
            made = dataclasses.replace(made, debug=True)
        kernel = CompiledKernel(self, signature, constexprs, target, made)
        with self._compiling:
            known = self._kernels.get((kernel.hash, setting))
            if known is None:
                kernel.announce()
                known = self._kernels[(kernel.hash, setting)] = kernel
            return known

    def check_options(self, options: Mapping[str, Any]) -> Options:
        """The compile options among `options`; LaunchError for one that cannot be."""
        try:
            return compile_options(options)
        except TilecError as e:
            raise LaunchError(f"`{self.name}`: {e.message}", self.def_location, e.advice) from None

    # -- compiling without launching ------------------------------------------------------

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> CompiledKernel:
        """Compile for these arguments (arrays, or dtypes in their place), without launching."""
        with self.brief:
            kernel, _ = self.specialize(args, kwargs, dtypes=True)
            # Without a GPU it is going to run at levels that the passes make.
            kernel.lower("cubin" if available() else "ptx", not device.gpu_available())
        return kernel

    def specialize(self, args: Sequence[Any], kwargs: Mapping[str, Any], dtypes: bool = False
                   ) -> tuple[CompiledKernel, list[Key]]:
        """The kernel for a launch's arguments, not compiled yet, and the arguments' keys.

        dtypes: a dtype stands for an array of it.
        """
        sources, options = self._bind(args, kwargs)
        given = [*args, *kwargs.values()]
        for i, p in zip(sources, self.params):
            if dtypes and i is not None and not p.is_constexpr:
                given[i] = stand_in(given[i])
        keys, _ = Plan(self.params, self._fixed, sources, options, given,
                       self.def_location).keys(given)
        found = [place_of(leaf) for key in keys for leaf in leaves(key)]
        where = next((p for p in found if isinstance(p, int)), None)
        chosen = self.default_options | {name: given[i] for name, i in options.items()}
        flags = knobs.snapshot_key()
        return self._kernel(keys, self._target(where, chosen), chosen,
                            self._numbered(flags)[1] if flags else 0), keys


def _picker(keys: Sequence[Key]) -> Callable[[Any], Sequence[Any]] | None:
    """Takes the launch arguments out of values with these keys; None if all of them are."""
    chosen = [i for i, key in enumerate(keys) if not isinstance(key, Const)]
    if len(chosen) == len(keys):
        return None
    if len(chosen) > 1:
        return operator.itemgetter(*chosen)
    return lambda values: [values[i] for i in chosen]


def raw_stream(stream: Any) -> int:
    """The raw handle of a stream given as a handle or as torch's or cupy's object."""
    if stream is None:
        return 0
    raw = next((getattr(stream, name) for name in ("cuda_stream", "ptr", "handle")
                if hasattr(stream, name)), stream)
    if type(raw) is not int or not 0 <= raw < 1 << 64:
        raise LaunchError(f"stream is {shown(stream)}, expected a stream or its raw handle", None,
                          "give one of torch or cupy, an integer, or leave it out")
    return raw


def _shown(place: Any) -> str:
    return {"numpy": "the host (numpy)", "torch": "the CPU (torch)"}.get(place, f"GPU {place}")


@BRIEF
def jit(fn: Callable[..., Any] | None = None, *, version: Any = None,
        repr: Callable[[Any], str] | None = None,
        launch_metadata: Callable[..., dict[str, Any]] | None = None,
        do_not_specialize: Iterable[str | int] | None = None,
        do_not_specialize_on_alignment: Iterable[str | int] | None = None,
        noinline: bool | None = None, **options: Any) -> Any:
    """Decorator: make a kernel of a Python function. `@tilec.jit`, or `@tilec.jit(num_warps=8)`.

    The parameters are those of JITFunction; version and noinline mean nothing, since calls are
    inlined. Raises CompilationError for a function that cannot be, or an unknown option.
    """
    known = (*COMPILE_OPTIONS, "target")
    for name in options:
        if name not in known:
            raise CompilationError(f"`{name}` is no option of tilec.jit", None,
                                   did_you_mean(name, known) or f"it has {', '.join(known)}")

    @BRIEF
    def decorate(f: Callable[..., Any]) -> JITFunction:
        return JITFunction(f, options, do_not_specialize, do_not_specialize_on_alignment,
                           repr=repr, launch_metadata=launch_metadata)

    return decorate if fn is None else decorate(fn)
