"""`JITFunction`: binds a launch's arguments, finds or makes the kernel they call for, runs it.

The way of a launch that was seen before is short on purpose: bind, one key, one dict look-up, one
driver call. Everything else happens once per key.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from tilec import knobs
from tilec.codegen.cubin import available
from tilec.compiler import Options
from tilec.errors import CompilationError, LaunchError, TilecError, did_you_mean
from tilec.frontend.function import MISSING, Function
from tilec.frontend.signature import Spec
from tilec.runtime import device, host
from tilec.runtime.arguments import (
    ArrayOnDevice,
    Const,
    Handler,
    annotated_handler,
    constexpr_handler,
    handler_of,
    places,
    spec_of,
    unspecialized,
)
from tilec.runtime.kernel import CompiledKernel
from tilec.target import DEFAULT, Target

OPTION_NAMES = ("num_warps", "num_stages", "debug", "stream", "target")
_NO_OPTIONS: dict[str, Any] = {}


class _Entry(NamedTuple):
    """What a key leads to. picks: which flattened values are launch arguments."""

    kernel: CompiledKernel
    where: Any
    level: str
    picks: tuple[int, ...]
    launch: Callable[..., None] | None
    threads: int
    shared: int


class JITFunction(Function):
    """A kernel: `kernel[grid](args, BLOCK=..., num_warps=...)` launches it.

    options: defaults of the launch options. do_not_specialize: parameters whose value 1 and
    divisibility by 16 are not baked in.
    """

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any] | None = None,
                 do_not_specialize: Iterable[str | int] = (),
                 do_not_specialize_on_alignment: Iterable[str | int] = ()) -> None:
        super().__init__(fn, do_not_specialize, do_not_specialize_on_alignment)
        self.default_options = dict(options or {})
        Options(**{k: v for k, v in self.default_options.items() if k not in ("stream", "target")})
        self._names = [p.name for p in self.params]
        self._defaults = [p.default for p in self.params]
        self._fixed: list[Handler | None] = [self._fixed_handler(p) for p in self.params]
        self._entries: dict[Any, _Entry] = {}
        self._kernels: dict[Any, CompiledKernel] = {}
        self._compiling = threading.Lock()

    @staticmethod
    def _fixed_handler(p: Any) -> Handler | None:
        """The handler that the declaration settles; None where the argument's type does."""
        if p.is_constexpr:
            return constexpr_handler
        handler = None if p.annotation is MISSING else annotated_handler(p.annotation, p.name)
        if p.do_not_specialize or p.do_not_specialize_on_alignment:
            return unspecialized(handler or (lambda v: handler_of(type(v), v)(v)),
                                 not p.do_not_specialize)
        return handler

    # -- launching ------------------------------------------------------------------------

    def __getitem__(self, grid: Any) -> Callable[..., CompiledKernel]:
        """`kernel[grid]`: grid is 1 to 3 integers, or a function of the bound arguments."""
        return partial(self.run, grid)

    def run(self, grid: Any, /, *args: Any, **kwargs: Any) -> CompiledKernel:
        """Launch over `grid`; returns the kernel that ran.

        Raises LaunchError for arguments, options or grids that do not fit, CompilationError for
        what does not compile, DriverError and OutOfResources from the device.
        """
        bound, options = self._bind(args, kwargs)
        keys: list[Any] = []
        values: list[Any] = []
        for handler, value in zip(self._fixed, bound):
            key, value = (handler or handler_of(type(value), value))(value)
            keys.append(key)
            values.append(value)
        flags = knobs.snapshot_key()
        full = (tuple(keys), tuple(options.items()) if options else None, flags, self.source_key())
        try:
            entry = self._entries[full]
        except KeyError:
            entry = self._entries[full] = self._make(keys, options)
        if callable(grid):
            grid = grid(dict(zip(self._names, bound)) | options)
        if type(grid) is not tuple or len(grid) != 3:
            grid = host.check_grid(grid)
        if entry.launch is None:
            self._run_elsewhere(entry, values, grid)
            return entry.kernel
        flat = _flat(values)
        stream = options["stream"] if "stream" in options else device.current_stream(entry.where)
        entry.launch(grid, entry.threads, entry.shared, _raw_stream(stream),
                     [v.address if type(v) is ArrayOnDevice else v
                      for v in map(flat.__getitem__, entry.picks)])
        return entry.kernel

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]
              ) -> tuple[list[Any], dict[str, Any]]:
        """Arguments in parameter order, and launch options; LaunchError if they do not fit."""
        names = self._names
        if len(args) > len(names):
            raise LaunchError(f"`{self.name}` takes {len(names)} arguments ({', '.join(names)}), "
                              f"{len(args)} were given", self.def_location)
        bound = [*args, *self._defaults[len(args):]]
        options = _NO_OPTIONS
        used = 0
        for i in range(len(args), len(names)):
            if names[i] in kwargs:
                bound[i] = kwargs[names[i]]
                used += 1
            elif bound[i] is MISSING:
                raise self._missing(i, kwargs)
        if used != len(kwargs) or self.default_options:
            options = self._options(args, kwargs)
        return bound, options

    def _missing(self, i: int, kwargs: dict[str, Any]) -> LaunchError:
        p = self.params[i]
        what = f"constexpr `{p.name}`" if p.is_constexpr else f"argument `{p.name}`"
        extra = [k for k in kwargs if k not in self._names and k not in OPTION_NAMES]
        advice = f"`{extra[0]}` was given: {did_you_mean(extra[0], [p.name])}" if extra else \
            f"pass {p.name}=..."
        return LaunchError(f"`{self.name}` was launched without its {what}", self.def_location,
                           advice)

    def _options(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        options = dict(self.default_options)
        for name, value in kwargs.items():
            if name in self._names:
                if self._names.index(name) < len(args):
                    raise LaunchError(f"`{self.name}` got `{name}` twice", self.def_location)
            elif name in OPTION_NAMES:
                options[name] = value
            else:
                known = [*self._names, *OPTION_NAMES]
                raise LaunchError(
                    f"`{self.name}` has no parameter or launch option `{name}`", self.def_location,
                    did_you_mean(name, known) or f"it has {', '.join(known)}")
        return options

    def _run_elsewhere(self, entry: _Entry, values: Sequence[Any], grid: tuple[int, int, int]
                       ) -> None:
        """On the CPU, at the entry's level."""
        flat = _flat(values)
        host.run_on_cpu(entry.kernel, [flat[i] for i in entry.picks], grid, entry.level)

    # -- the first time -------------------------------------------------------------------

    def _make(self, keys: Sequence[Any], options: dict[str, Any]) -> _Entry:
        where, level = self._place(keys)
        target = self._target(where, options)
        signature, constexprs = self._specialize(keys)
        kernel = self._kernel(signature, constexprs, target, options)
        picks = _picks(keys)
        if level != "cubin":
            return _Entry(kernel, where, level, picks, None, 0, 0)
        launcher = kernel.launcher(where)
        return _Entry(kernel, where, level, picks, launcher.launch, 32 * kernel.num_warps,
                      kernel.shared)

    def _place(self, keys: Sequence[Any]) -> tuple[Any, str]:
        """Where to run, and at which level, from where the arrays live."""
        found = {p: self._names[i] for i, key in reversed(list(enumerate(keys)))
                 for p in places(key)}
        gpus = [p for p in found if isinstance(p, int)]
        if len(found) > 1 and (gpus or len(gpus) != len(found)) and not (
                set(found) <= {"numpy", "torch"}):
            (a, x), (b, y) = list(found.items())[:2]
            raise LaunchError(f"`{self.name}` got `{x}` on {_shown(a)} and `{y}` on {_shown(b)}",
                              self.def_location, "move them to one place")
        forced = knobs.run
        if forced:
            return (gpus[0] if gpus else None), forced
        if gpus:
            return gpus[0], "cubin"
        if "torch" in found and device.gpu_available():
            raise LaunchError(f"`{self.name}` got the CPU tensor `{found['torch']}`",
                              self.def_location, "move it with `.cuda()`, or set TILEC_RUN=tile "
                              "to run on the CPU")
        if not found and device.gpu_available():
            return device.current_device(), "cubin"
        _note_cpu(self.name)
        return None, "tile"

    def _target(self, where: Any, options: dict[str, Any]) -> Target:
        if options.get("target"):
            return Target.parse(options["target"])
        if knobs.target:
            return Target.parse(knobs.target)
        if isinstance(where, int):
            return Target.parse(device.target_of(where))
        return Target.parse(DEFAULT)

    def _specialize(self, keys: Sequence[Any]) -> tuple[dict[str, Spec], dict[str, Any]]:
        signature: dict[str, Spec] = {}
        constexprs: dict[str, Any] = {}
        for p, key in zip(self.params, keys):
            if p.is_constexpr:
                constexprs[p.name] = _constant(key)
                continue
            spec = spec_of(key, p.is_const)
            if isinstance(spec, Const):
                constexprs[p.name] = spec.value
            else:
                signature[p.name] = spec
        return signature, constexprs

    def _kernel(self, signature: dict[str, Spec], constexprs: dict[str, Any], target: Target,
                options: dict[str, Any]) -> CompiledKernel:
        try:
            chosen = Options(**{k: v for k, v in options.items() if k not in ("stream", "target")})
        except TilecError as e:
            raise LaunchError(f"`{self.name}`: {e.message}", self.def_location) from None
        kernel = CompiledKernel(self, signature, constexprs, target, chosen)
        with self._compiling:
            key = (kernel.hash, knobs.snapshot_key())
            if key not in self._kernels:
                kernel.announce()
                self._kernels[key] = kernel
            return self._kernels[key]

    # -- compiling without launching ------------------------------------------------------

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> CompiledKernel:
        """Compile for these arguments (arrays, or dtypes in their place), without launching."""
        bound, options = self._bind(args, kwargs)
        keys = []
        for p, handler, value in zip(self.params, self._fixed, bound):
            key = None if p.is_constexpr else _pointer_key(value)
            keys.append(key or (handler or handler_of(type(value), value))(value)[0])
        gpus = [p for key in keys for p in places(key) if isinstance(p, int)]
        signature, constexprs = self._specialize(keys)
        where = gpus[0] if gpus else \
            device.current_device() if device.gpu_available() else None
        kernel = self._kernel(signature, constexprs, self._target(where, options), options)
        kernel.lower("cubin" if available() else "ptx")
        return kernel


def _constant(key: Any) -> Any:
    """The value behind a constexpr's key."""
    if isinstance(key, Const):
        return key.value[0] if key.kind is Function else key.value
    return tuple(map(_constant, key))


def _pointer_key(value: Any) -> Any:
    """The key of a dtype that stands for an array of it; None for any other argument."""
    if isinstance(value, (bool, int, float, str, tuple)) or value is None or \
            hasattr(value, "__array_interface__") or hasattr(value, "data_ptr"):
        return None
    key, plain = constexpr_handler(value)
    short = getattr(plain, "short", None)
    return (short, True, "numpy") if isinstance(short, str) else None


def _flat(values: Sequence[Any]) -> Sequence[Any]:
    """Values with tuples opened, in order."""
    if not any(type(v) is tuple for v in values):
        return values
    out: list[Any] = []
    for v in values:
        out += _flat(v) if type(v) is tuple else [v]
    return out


def _picks(keys: Sequence[Any]) -> tuple[int, ...]:
    """Indices, among the flattened values, of those that are launch arguments."""
    out: list[int] = []
    count = 0

    def visit(key: Any) -> None:
        nonlocal count
        if not isinstance(key, Const) and not (key and isinstance(key[0], str)):
            for k in key:
                visit(k)
            return
        if not isinstance(key, Const):
            out.append(count)
        count += 1

    for key in keys:
        visit(key)
    return tuple(out)


def _raw_stream(stream: Any) -> int:
    """The raw handle of a stream given as a handle or as torch's or cupy's object."""
    if type(stream) is int:
        return stream
    if stream is None:
        return 0
    for attribute in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    raise LaunchError(f"stream is {stream!r}, expected a stream or its raw handle")


def _shown(place: Any) -> str:
    return {"numpy": "the host (numpy)", "torch": "the CPU (torch)"}.get(place, f"GPU {place}")


_noted = False


def _note_cpu(name: str) -> None:
    """Say once that kernels run on the CPU."""
    global _noted
    if not _noted:
        _noted = True
        print(f"tilec: `{name}` has host arrays, so it runs on the CPU, in the interpreter; "
              "device arrays run on the GPU", file=sys.stderr)


def jit(fn: Callable[..., Any] | None = None, *, do_not_specialize: Iterable[str | int] = (),
        do_not_specialize_on_alignment: Iterable[str | int] = (), **options: Any) -> Any:
    """Decorator: make a kernel of a Python function. `@tilec.jit`, or `@tilec.jit(num_warps=8)`.

    Raises CompilationError for a function or an option that cannot be.
    """
    for name in options:
        if name not in OPTION_NAMES:
            raise CompilationError(f"`{name}` is no option of tilec.jit", None,
                                   did_you_mean(name, OPTION_NAMES))

    def decorate(f: Callable[..., Any]) -> JITFunction:
        return JITFunction(f, options, do_not_specialize, do_not_specialize_on_alignment)

    return decorate if fn is None else decorate(fn)
