"""`CompiledKernel`: one specialisation of a kernel, at every level, and how to run it at each.

Levels are made when they are asked for; a launch on a GPU needs the cubin alone.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tilec import knobs
from tilec.codegen import ptxas
from tilec.codegen.cubin import LinkResult, available, sass
from tilec.compiler import (
    LEVELS,
    Compiled,
    Instrument,
    Options,
    compile_module,
    kernel_hash,
)
from tilec.errors import (
    CompilationError,
    LaunchError,
    OutOfResources,
    TilecError,
    did_you_mean,
    note,
    shown,
)
from tilec.frontend.build import build_module
from tilec.frontend.function import Function, python_key
from tilec.frontend.signature import ArgSpec, Spec, format_spec
from tilec.instruments import from_knobs, override_folder
from tilec.ir.core import Module
from tilec.ir.printer import print_module
from tilec.ir.tensor_maps import MapRecipe, recipes
from tilec.ir.types import layout_of
from tilec.language.values import constexpr, constexpr_function
from tilec.runtime import arguments, checks, device, entry, host
from tilec.runtime.cache import DiskCache
from tilec.runtime.fingerprint import source_fingerprint
from tilec.runtime.interface import GPUTarget, Metadata
from tilec.runtime.launch import Launcher
from tilec.runtime.loading import load
from tilec.runtime.maps import Grid, NoMap, makers
from tilec.runtime.validation import Miscompiled
from tilec.runtime.validation import from_knobs as validation
from tilec.target import Target

if TYPE_CHECKING:
    from tilec.sim import Counts

ALIASES = {"ttir": "tile", "ttgir": "gpu"}
ASM_KEYS = ("source", *LEVELS, "sass")
_DISK = DiskCache()


class NoLevel(TilecError, KeyError):
    """`kernel.asm` has no such entry."""


class Asm(Mapping[str, Any]):
    """`kernel.asm`: the text of each level (bytes for cubin), made when asked for."""

    def __init__(self, kernel: CompiledKernel) -> None:
        self._kernel = kernel

    def __getitem__(self, key: str) -> Any:
        name = ALIASES.get(key, key)
        with self._kernel.fn.brief:
            if name not in ASM_KEYS:
                raise NoLevel(f"asm has no `{key}`", None,
                              did_you_mean(key, ASM_KEYS) or f"it has {', '.join(ASM_KEYS)}")
            return self._kernel.level(name)

    def __iter__(self) -> Iterator[str]:
        return iter(ASM_KEYS)

    def __len__(self) -> int:
        return len(ASM_KEYS)


class CompiledKernel:
    """A kernel specialised to argument types, constants, a target and options.

    name, num_warps, num_stages, num_ctas; shared: bytes of shared memory; n_regs: registers a
    thread; n_spills: bytes of spill stores; assembler: what made the cubin; asm: the text of every
    level.
    """

    def __init__(self, fn: Function, signature: Mapping[str, Spec],
                 constexprs: Mapping[str, Any], target: Target, options: Options) -> None:
        self.fn = fn
        self.signature = dict(signature)
        self.constexprs = dict(constexprs)
        self.target = target
        if options.debug:
            options = replace(options, find_boxes=False)  # checks are of accesses by pointers
        self.options = options
        self.name = self._named(getattr(fn, "repr", None))
        self.num_warps, self.num_stages = options.num_warps, options.num_stages
        self.num_ctas = options.num_ctas
        try:
            texts = [(k, stable(v)) for k, v in (*signature.items(), *sorted(constexprs.items()))]
        except LaunchError as e:
            e.loc = fn.def_location
            raise
        self._source_key = fn.source_key()
        self.hash = kernel_hash(self._source_key, texts, target.name, options)
        self.asm = Asm(self)
        self._upper: Compiled | None = None
        self._lower: Compiled | None = None
        self._lock = threading.RLock()
        self._launchers: dict[int, Launcher] = {}

    def _named(self, name_of: Callable[[Any], str] | None) -> str:
        """The name that the function's own `repr` gives, if it has one, as a name can be spelt."""
        if name_of is None:
            return self.fn.name
        types = {k: format_spec(s).partition(":")[0] for k, s in self.signature.items()}
        about = SimpleNamespace(signature=types | dict.fromkeys(self.constexprs, "constexpr"),
                                constants=self.constexprs, fn=self.fn)
        return re.sub(r"\W", "_", str(name_of(about)))

    # -- making ---------------------------------------------------------------------------

    def build(self) -> Module:
        """The tile module, fresh from the front end. CompilationError where the source is no
        longer the one this kernel was made from, as after a notebook cell was run again."""
        if self.fn.source_key() != self._source_key:
            raise CompilationError(
                f"`{self.name}` was made from functions or globals that have changed since, and "
                "this level was not made before", self.fn.def_location,
                "launch or compile it again, and ask the kernel that returns")
        options = self.options
        module = build_module(self.fn, self.signature, self.constexprs, target=self.target,
                              num_warps=options.num_warps,
                              options={"num_stages": options.num_stages, "debug": options.debug,
                                       "num_ctas": options.num_ctas})
        module.funcs[0].name = self.name
        for name in ("num_stages", "maxnreg", "launch_pdl", "find_boxes", "num_ctas"):
            if getattr(options, name) != Options.__dataclass_fields__[name].default:
                module.attributes[name] = getattr(options, name)
        if options.debug:
            module.attributes["checks"] = True
        return module

    def _compile(self, stop_at: str, keep: bool, instruments: Sequence[Instrument] = (),
                 lowered: Module | None = None) -> Compiled:
        compiled = partial(
            compile_module, target=self.target, options=self.options, stop_at=stop_at, keep=keep,
            verify_all=knobs.verify, override=override_folder(self.name, self.hash),
            instruments=instruments)
        try:
            made = compiled(self.build, lowered=lowered)
        except OutOfResources:
            if not self.options.find_boxes:
                raise
            made = compiled(self.by_pointers.build)  # TMA's buffers share no bytes with scratch
        if made.edited is not None:
            note(made.edited, f"`{self.name}` goes on from {made.edited}")
        return made

    def announce(self) -> None:
        """Run the whole compilation once for the dumps and times that the flags ask for."""
        instruments = [*from_knobs(self.name, self.hash), *validation(self.name)]
        if not instruments:
            return
        with self._lock:
            try:
                made = self._compile("cubin" if available() else "ptx", True, instruments)
            except Miscompiled:
                raise
            except TilecError as e:
                # A launch at a higher level may still work; one at this level meets it again.
                print(f"tilec: compiling @{self.name} stopped here: {e}", file=sys.stderr)
            else:
                self._upper = self._lower = made

    @property
    def upper(self) -> Compiled:
        """The compilation down to `lowered`, with its modules."""
        with self._lock:
            if self._upper is None:
                self._upper = self._compile("lowered", True)
            return self._upper

    def lower(self, level: str = "cubin", of_upper: bool = False) -> Compiled:
        """The compilation down to ptx or cubin, from the disk cache where it is there; else it goes
        on from the modules of `upper`, which are made first if `of_upper`."""
        with self._lock:
            have = self._lower
            if have is not None and (level != "cubin" or have.linked is not None):
                return have
            key = kernel_hash(source_fingerprint(), self.hash)
            cached = level == "cubin" and not (knobs.override_dir or knobs.verify)
            self._lower = self._from_disk(key) if cached else None
            if self._lower is None:
                known = self.upper if of_upper else self._upper
                self._lower = self._compile(level, False, lowered=None if known is None or
                                            knobs.override_dir else known.modules["lowered"])
                if cached:
                    _DISK.put(key, entry.to_files(self._lower))
            return self._lower

    def _from_disk(self, key: str) -> Compiled | None:
        files = _DISK.get(key)
        if files is None:
            return None
        made = entry.from_files(files, self.target, self.options)
        if made is not None and made.linked is not None and \
                made.linked.assembler.startswith("ptxas"):
            # The key names its file, which may be a script that starts another one by now.
            found = ptxas.find()
            if found is None or made.linked.assembler != ptxas.label(found):
                return None
        return made

    def level(self, name: str) -> Any:
        """One entry of `asm`."""
        if name == "source":
            return self.fn.source
        if name in ("tile", "gpu", "lowered"):
            return print_module(self.upper.modules[name])
        if name == "llir":
            return self.lower("ptx").llir_text
        if name == "ptx":
            return self.lower("ptx").ptx
        cubin = self._linked.cubin
        return cubin if name == "cubin" else sass(cubin)

    @property
    def _linked(self) -> LinkResult:
        linked = self.lower().linked
        assert linked is not None
        return linked

    # -- facts ----------------------------------------------------------------------------

    @property
    def shared(self) -> int:
        """Bytes of shared memory a CTA uses."""
        return self.lower("ptx").shared

    @property
    def threads(self) -> int:
        """Threads of a CTA: those of num_warps, and of warps that only load."""
        return self.lower("ptx").threads

    @property
    def n_regs(self) -> int:
        """Registers a thread."""
        return self._linked.n_regs

    @property
    def n_spills(self) -> int:
        """Bytes of spill stores a thread."""
        return self._linked.n_spills

    @property
    def assembler(self) -> str:
        """What made the cubin: "nvJitLink 13.0", or see `LinkResult`."""
        return self._linked.assembler

    @property
    def metadata(self) -> Metadata:
        """What Triton's kernels say of themselves."""
        options = self.options
        return Metadata(self.name, self.hash, GPUTarget.of(self.target), options.num_warps,
                        options.num_stages, options.num_ctas, self.shared, options.maxnreg or None,
                        options.debug, options.launch_pdl, (options.num_ctas, 1, 1))

    @property
    def packed_metadata(self) -> tuple[int, int, int]:
        """num_warps, num_ctas, bytes of shared memory."""
        return self.num_warps, self.num_ctas, self.shared

    @property
    def n_max_threads(self) -> int:
        """The most threads a CTA may have with so many registers, a multiple of a warp's."""
        warp = self.target.warp_size
        most = self.target.sm_registers // (max(1, self.n_regs) * warp) * warp
        return max(self.threads, min(self.target.max_threads, most))

    @property
    def function(self) -> int | None:
        """The handle of the loaded kernel on the current GPU, a CUfunction; None without one."""
        if not device.gpu_available():
            return None
        return int(self.launcher(device.current_device()).function)

    def _init_handles(self) -> None:
        """Compile, and load onto the current GPU if there is one."""
        self.lower("cubin" if available() else "ptx")
        self.function  # noqa: B018  (loads)

    def layouts(self) -> dict[str, str]:
        """The layout of every named tile at the gpu level, by Python name."""
        out: dict[str, str] = {}
        for op in self.upper.modules["gpu"].walk():
            for r in op.results:
                layout = layout_of(r.type)
                if layout is not None and r.name:
                    out.setdefault(r.name, str(layout))
        return out

    def __repr__(self) -> str:
        specs = ", ".join(f"{k}: {format_spec(s)}" for k, s in self.signature.items())
        consts = "".join(f", {k}={v.name if isinstance(v, Function) else repr(v)}"
                         for k, v in self.constexprs.items())
        return (f"<CompiledKernel {self.name}({specs}{consts}) for {self.target}, "
                f"{self.num_warps} warps>")

    # -- running --------------------------------------------------------------------------

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """`kernel[grid](*args, stream=None)` launches it where the arrays live: constants may be
        among the arguments, if they are its own."""
        return partial(self._launch, grid)

    __iter__ = None  # see KernelInterface

    def _launch(self, grid: Any, *args: Any, stream: int | None = None) -> None:
        with self.fn.brief:
            values, extents = host.order_arguments(self, args), host.check_grid(grid)
            places = {arguments.place_of(arguments.handler_of(v)(v)[0]) for v in values} - {None}
            on_gpu = any(isinstance(p, int) for p in places) or \
                not places and device.gpu_available()
            if on_gpu and not knobs.run:
                host.launch_on_device(self, values, extents, stream, wait=False)
            else:
                host.run_on_cpu(self, values, extents, knobs.run or "tile")

    def run(self, args: Sequence[Any] | Mapping[str, Any], grid: int | Sequence[int],
            level: str = "tile", seed: int | None = None) -> None:
        """Run at one level: "tile", "gpu", "lowered", "ptx" on host arrays, in place; "cubin" on
        device arrays.

        args: run-time arguments by name or in order; constexprs may be among them. grid: 1 to 3
        extents. Raises LaunchError where the arguments do not fit.
        """
        with self.fn.brief:
            if not isinstance(level, str):
                raise LaunchError(f"level is {shown(level)}, expected a text", None,
                                  f"the levels that run are {', '.join(knobs.RUN_LEVELS)}, cubin")
            level = ALIASES.get(level, level)
            values = host.order_arguments(self, args)
            extents = host.check_grid(grid)
            if level == "cubin":
                host.launch_on_device(self, values, extents)
            elif level in knobs.RUN_LEVELS:
                host.run_on_cpu(self, values, extents, level, seed)
            else:
                raise LaunchError(f"a kernel cannot run at level `{level}`", None,
                                  did_you_mean(level, (*knobs.RUN_LEVELS, "cubin"))
                                  or "the levels that run are tile, gpu, lowered, ptx and cubin; "
                                  "tilec-run takes LLVM IR")

    @property
    def param_types(self) -> list[str]:
        """The types of the author's launch parameters."""
        return param_types(self.signature.values())

    @property
    def maps(self) -> list[MapRecipe]:
        """The tensor maps that a launch makes; of a compilation that went on from edited PTX or
        LLVM IR, those that it was made from."""
        made = self.lower("ptx")
        return made.maps if made.edited is None else \
            recipes(self.upper.modules["lowered"].funcs[0])

    def bind_maps(self, arrays: list[Any], level: str, grid: Grid
                  ) -> tuple[CompiledKernel, list[Any]]:
        """The kernel that serves a launch on host arrays at an IR level or "ptx", this one or the
        one that leaves pointers alone, and its arguments with tensor maps."""
        try:
            if level == "ptx":
                return self, arrays + [m.in_simulator(arrays, grid) for m in makers(self.maps)]
            modules = self.upper.modules
            for maker in makers(recipes(modules["lowered"].funcs[0])):
                maker.in_simulator(arrays, grid)  # what must hold on a GPU must hold here, too
            made = makers(recipes(modules[level].funcs[0]))
            return self, arrays + [m.on_host(arrays, grid) for m in made]
        except NoMap:
            return self.by_pointers.bind_maps(arrays, level, grid)

    @cached_property
    def by_pointers(self) -> CompiledKernel:
        """The same kernel, of which TMA moves only what the author describes."""
        return CompiledKernel(self.fn, self.signature, self.constexprs, self.target,
                              replace(self.options, find_boxes=False))

    def simulate(self, args: Sequence[Any] | Mapping[str, Any], grid: int | Sequence[int], *,
                 check: bool = True, count: bool = True, seed: int | None = None) -> Counts | None:
        """Run the PTX in the simulator, arguments as `run` takes them: what it cost, which prints
        as tables; None without `count`.

        check: raise SimulatorError for a race or a use of an uninitialised value as well
        (docs/simulator.md).
        """
        with self.fn.brief:
            values, extents = host.order_arguments(self, args), host.check_grid(grid)
            return host.simulate(self, values, extents, seed, check, count)

    def launcher(self, index: int) -> Launcher:
        """The launcher on a CUDA device; compiles and loads the kernel when first needed."""
        found = self._launchers.get(index)
        if found is None:
            made = self.lower()
            with self._lock:
                loaded = load(made, index)
                types = self.param_types
                if self.options.debug:
                    types = types + checks.added_types(types)
                found = Launcher(loaded.function, types, index,
                                 [maker.on_device for maker in makers(self.maps)],
                                 self.options.launch_pdl, partial(self._launch_by_pointers, index),
                                 self.name, self.options.num_ctas)
                self._launchers[index] = found
        return found

    def _launch_by_pointers(self, index: int, grid: Grid, stream: int, values: Sequence[Any]
                            ) -> None:
        other = self.by_pointers
        other.launcher(index).launch(grid, other.threads, other.shared, stream, values)


def param_types(specs: Iterable[Spec | constexpr]) -> list[str]:
    """The launch parameters' types ("*fp32", "i32"), tuples opened."""
    out: list[str] = []
    for spec in specs:
        if isinstance(spec, ArgSpec):
            out.append(str(spec).partition(":")[0])
        elif isinstance(spec, tuple):
            out += param_types(spec)
    return out


def stable(value: Any) -> str:
    """A text of a constant or a type that is the same in every process; LaunchError if it has
    none."""
    if isinstance(value, ArgSpec):
        return str(value)
    if isinstance(value, constexpr):
        return f"={stable(value.value)}"
    if isinstance(value, Function):
        return f"def {value.source_key()}"
    if isinstance(value, constexpr_function):
        return f"def {python_key(value)}"
    if isinstance(value, (tuple, list)):
        fields = f"{type(value).__qualname__}{value._fields}" if hasattr(value, "_fields") else ""
        return f"{fields}(" + ",".join(map(stable, value)) + ")"
    try:
        text = hex(value) if type(value) is int else repr(value)  # repr: some thousand digits only
    except Exception:  # an author's class may raise anything
        text = " at 0x"
    if " at 0x" in text:
        raise LaunchError(f"a constexpr is {shown(value)}, which has no lasting text", None,
                          "give a number, string, tuple, dtype or jit function")
    return f"{type(value).__name__}:{text}"
