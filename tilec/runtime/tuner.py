"""`@autotune`: times the configs of a kernel once for each kind of problem, keeps the fastest."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from tilec import knobs
from tilec.compiler import kernel_hash
from tilec.errors import (
    BRIEF,
    CompileTimeAssertionError,
    LaunchError,
    OutOfResources,
    TilecError,
    did_you_mean,
    note,
)
from tilec.runtime import arguments, device
from tilec.runtime.bench import do_bench
from tilec.runtime.cache import DiskCache, conforms, parse_json
from tilec.runtime.fingerprint import source_fingerprint
from tilec.runtime.heuristics import Grid, Launchable, resolve
from tilec.runtime.jit import JITFunction, raw_stream
from tilec.runtime.kernel import CompiledKernel
from tilec.runtime.options import COMPILE_OPTIONS
from tilec.runtime.preserve import Span, preserved, spans

QUANTILES = (0.5, 0.2, 0.8)  # configs are compared by the first
_NUMBERS = (int, float, bool, type(None))
_DISK = DiskCache()
_TIMINGS = "timings.json"


class Config:
    """One choice of parameters' values and launch options.

    kwargs: parameters, and options that have no keyword here; num_warps and its like may be among
    them, too. pre_hook: called with the arguments by name before each launch with this config, the
    timed ones included, and before it is compiled.
    """

    def __init__(self, kwargs: Mapping[str, Any], num_warps: int | None = None,
                 num_stages: int | None = None, num_ctas: int | None = None,
                 maxnreg: int | None = None,
                 pre_hook: Callable[[dict[str, Any]], Any] | None = None, **options: Any) -> None:
        def given(name: str, value: Any, default: Any) -> Any:
            return kwargs.get(name, default) if value is None else value

        self.kwargs = {**kwargs, **options}
        self.num_warps = given("num_warps", num_warps, 4)
        self.num_stages = given("num_stages", num_stages, 3)
        self.num_ctas = given("num_ctas", num_ctas, 1)
        self.maxnreg = given("maxnreg", maxnreg, 0)
        self.pre_hook = pre_hook

    def all_kwargs(self) -> dict[str, Any]:
        """The parameters and options, as a launch takes them."""
        more = {"num_ctas": self.num_ctas} if self.num_ctas != 1 else {}
        more |= {"maxnreg": self.maxnreg} if self.maxnreg else {}
        return {**self.kwargs, "num_warps": self.num_warps, "num_stages": self.num_stages, **more}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.pre_hook is other.pre_hook and \
            self.all_kwargs() == other.all_kwargs()

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return ", ".join(f"{k}: {v}" for k, v in self.all_kwargs().items())

    def __repr__(self) -> str:
        return f"<Config {self}>"


class _Trial(NamedTuple):
    """A config on its way to being timed. kwargs: what it is launched with; full: what the kernel
    at the bottom then gets."""

    config: Config
    kwargs: dict[str, Any]
    full: dict[str, Any]
    kernel: CompiledKernel
    keys: list[arguments.Key]


class _Problem(NamedTuple):
    """What a choice is made for: values of the key's parameters, types and places of arrays,
    options."""

    values: tuple[Any, ...]
    arrays: tuple[tuple[str, str, Any], ...]
    options: tuple[tuple[str, Any], ...]


def _no_hook(named: dict[str, Any], *args: Any, **kwargs: Any) -> None:
    """The hooks of a tuner that has none."""


class Autotuner(Launchable):
    """A kernel that launches with the fastest of its configs.

    The parameters are those of `autotune`. best_config: that of the last launch. configs_timings:
    milliseconds of each config in the last tuning, as a list for QUANTILES; infinite for one that
    does not fit. bench_time: seconds that it took. cache: configs by problem; a subclass may put in
    one under the values of the key's parameters, followed by the dtypes of all arrays as text.
    nargs: the positional arguments by name, while it is being tuned.
    """

    def __init__(self, fn: Any, arg_names: Sequence[str], configs: Sequence[Config] | None,
                 key: Sequence[str], reset_to_zero: Sequence[str] | None = None,
                 restore_value: Sequence[str] | None = None,
                 pre_hook: Callable[..., Any] | None = None,
                 post_hook: Callable[..., Any] | None = None,
                 prune_configs_by: Mapping[str, Any] | None = None, warmup: float | None = None,
                 rep: float | None = None, use_cuda_graph: bool = False,
                 do_bench: Callable[..., Any] | None = None, cache_results: bool = False) -> None:
        super().__init__(fn, "autotune")
        self.configs = list(configs or ()) or [Config({})]
        self.keys, self.prune = list(key or ()), dict(prune_configs_by or {})
        self.reset_to_zero = list(reset_to_zero or ())
        self.restore_value = list(restore_value or ())
        self.user_defined_pre_hook = pre_hook is not None
        self.user_defined_post_hook = post_hook is not None
        self.pre_hook, self.post_hook = pre_hook or _no_hook, post_hook or _no_hook
        self.times = (25 if warmup is None else warmup, 100 if rep is None else rep)
        self.use_cuda_graph, self.cache_results = use_cuda_graph, cache_results
        self.do_bench = do_bench
        self.cache: dict[Any, Config] = {}
        self.nargs: dict[str, Any] = {}
        self.best_config: Config | None = None
        self.configs_timings: dict[Config, list[float]] = {}
        self.bench_time = 0.0
        self._tuning = threading.RLock()
        self._readers = [(p.name, arguments.param_handler(p)) for p in self.params
                         if not p.is_constexpr]
        self._checked: list[Config] = []

    def _check(self) -> None:
        """LaunchError for what does not fit the kernel, a note of names that it does not have: at
        the first launch, since a module with a mistake in one kernel can still be imported."""
        if self._checked == self.configs:
            return
        where = self.base.def_location
        if not all(isinstance(c, Config) for c in self.configs):
            raise LaunchError(f"the configs of `{self.name}` are {self.configs!r}", where,
                              "give a list of tilec.Config")
        for config in self.configs:
            self.check_names(list(config.kwargs), f"the config {config}", options=True)
            self.base.check_options(config.all_kwargs())
        self.check_names(self.reset_to_zero, "reset_to_zero")
        self.check_names(self.restore_value, "restore_value")
        for names, known, what in ((self.keys, self.arg_names, "key"), (
                self.prune, ["perf_model", "top_k", "early_config_prune"], "prune_configs_by")):
            for name in names:
                if name not in known:
                    meant = did_you_mean(name, known) or f"it may have {', '.join(known)}"
                    note((what, str(where), name), f"{where}: the {what} of `{self.name}` has "
                         f"`{name}`, which says nothing; {meant}")
        if not isinstance(self.prune.get("top_k", 1.0), (int, float)):
            raise LaunchError(f"top_k is {self.prune['top_k']!r}", where,
                              "give a number of configs, or the fraction to keep as a float")
        self._tuned = list(dict.fromkeys(k for c in self.configs for k in c.all_kwargs()))
        self._checked = list(self.configs)

    # -- launching ------------------------------------------------------------------------

    def resolve(self, grid: Grid, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The given arguments, and those of the best config, which is found first if need be."""
        return resolve(self.fn, grid, args, self._completed(grid, args, kwargs))

    def run(self, *args: Any, grid: Grid, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch with the best config; returns the kernel that ran. With warmup as `warmup`."""
        if warmup:
            return self.warmup(*args, grid=grid, **kwargs)
        with self.base.brief:
            more = self._completed(grid, args, kwargs)
            return self.fn.run(*args, grid=grid, warmup=False, **more)

    def _completed(self, grid: Grid, args: Sequence[Any], kwargs: dict[str, Any]
                   ) -> dict[str, Any]:
        """The given arguments and those of the best config, whose hook has been called."""
        self._check()
        self.refuse(self._tuned, "the tuner", args, kwargs)
        self.best_config = config = self._choose(grid, args, kwargs)
        self._prepare(config, grid, args, kwargs)
        return kwargs | config.all_kwargs()

    def _prepare(self, config: Config, grid: Grid, args: Sequence[Any], kwargs: dict[str, Any]
                 ) -> dict[str, Any]:
        """All arguments of a launch with a config, after its hook has seen them."""
        full = kwargs | config.all_kwargs()
        if config.pre_hook is not None or not isinstance(self.fn, JITFunction):
            full = resolve(self.fn, grid, args, full)
        if config.pre_hook is not None:
            config.pre_hook(self.by_name(args, full))
        return full

    def warmup(self, *args: Any, grid: Grid = None, **kwargs: Any) -> list[CompiledKernel]:
        """Compile all configs that fit, without launching any."""
        dropped: dict[Config, str] = {}
        kernels = []
        with self.base.brief:
            self._check()
            self.refuse(self._tuned, "the tuner", args, kwargs)
            for config in self._pruned(self.by_name(args, kwargs), kwargs):
                with _dropping(config, dropped):
                    self._prepare(config, grid, args, kwargs)
                    kernels.append(self.fn.warmup(*args, grid=grid,
                                                  **kwargs | config.all_kwargs()))
            if not kernels:
                raise self._none_fits(dropped)
        return kernels

    def _choose(self, grid: Grid, args: Sequence[Any], kwargs: dict[str, Any]) -> Config:
        if len(self.configs) == 1:
            return self.configs[0]
        named = self.by_name(args, kwargs)
        problem = self._problem(named)
        flags = knobs.snapshot_key() and (knobs.run, knobs.target)
        key = problem, flags, self.base.source_key()
        found = self.cache.get(key) or self.cache.get(self._plain_key(named))
        if found is None:
            with self._tuning:
                found = self.cache.get(key)  # another thread may have found it meanwhile
                if found is None:
                    self.nargs = dict(zip(self.arg_names, args))
                    found = self.cache[key] = self._tune(grid, args, kwargs, problem)
                    self.pre_hook(named | found.all_kwargs(), reset_only=True)
        return found

    def _plain_key(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The key of a problem as others write it; () where it cannot be one."""
        values = [named[k] for k in self.keys if k in named]
        texts = [str(named[k].dtype) for k in self.arg_names if hasattr(named.get(k), "dtype")]
        try:
            hash(key := (*values, *texts))
        except TypeError:
            return ()
        return key

    def _problem(self, named: Mapping[str, Any]) -> _Problem:
        arrays = []
        name = ""
        try:
            for name, reader in self._readers:
                value = named.get(name)
                if type(value) not in _NUMBERS:
                    found, _ = (reader or arguments.handler_of(value))(value)
                    arrays += [(name, leaf[0], leaf[2]) for leaf in arguments.leaves(found)
                               if arguments.place_of(leaf) is not None]
            values = []
            for name in self.keys:
                if any(name == n for n, _, _ in arrays):
                    raise LaunchError("it is in the tuner's key, but an array", None, "arrays "
                                      "count by their dtypes as it is; take it out of the key")
                values.append(arguments.constexpr_handler(named.get(name))[0])
            options = []
            for name in (*COMPILE_OPTIONS, "target"):
                if name in named:
                    options.append((name, arguments.constexpr_handler(named[name])[0]))
        except TilecError as e:
            raise LaunchError(f"argument `{name}`: {e.message}", self.base.def_location,
                              e.advice) from None
        return _Problem(tuple(values), tuple(arrays), tuple(options))

    # -- tuning ---------------------------------------------------------------------------

    def prune_configs(self, kwargs: Mapping[str, Any]) -> list[Config]:
        """The configs to time for a launch with these keywords and the arguments in `nargs`."""
        self._check()
        return self._pruned(self.nargs | dict(kwargs), kwargs)

    def _pruned(self, named: dict[str, Any], kwargs: Mapping[str, Any]) -> list[Config]:
        configs = self.configs
        early, model = self.prune.get("early_config_prune"), self.prune.get("perf_model")
        if early is not None:
            configs = list(early(configs, named, **kwargs))
            if not configs:
                raise LaunchError(f"early_config_prune left no config of `{self.name}`",
                                  self.base.def_location, "let it keep one that always fits")
        if model is not None:
            top = self.prune.get("top_k", 1.0)
            if isinstance(top, float):
                top = int(len(self.configs) * top)
            cost = {c: model(**named | c.all_kwargs()) for c in configs}
            configs = sorted(configs, key=cost.__getitem__)[:max(1, top)]
        return configs

    def _bench(self, *args: Any, config: Config, grid: Grid, warmup: bool = False,
               **kwargs: Any) -> list[float]:
        """What a subclass with a policy of its own asks: milliseconds of one config, for QUANTILES;
        infinite if it does not fit. On host arrays, where nothing is timed, all take 0."""
        self._check()
        trial = self._trial(config, grid, args, kwargs)
        where, level = self.base.place(trial.keys)
        fitting: list[_Trial] = []
        with contextlib.suppress(LaunchError):  # as nothing fits
            fitting += self._fitting([trial], level, {})
        if not fitting:
            return [inf] * len(QUANTILES)
        if level != "cubin":
            return [0.0] * len(QUANTILES)
        index = device.current_device() if where is None else where
        return self._time(grid, args, fitting, index)[config]

    def _trial(self, config: Config, grid: Grid, args: Sequence[Any], kwargs: dict[str, Any]
               ) -> _Trial:
        full = self._prepare(config, grid, args, kwargs)
        return _Trial(config, kwargs | config.all_kwargs(), full,
                      *self.base.specialize(args, full))

    def _tune(self, grid: Grid, args: Sequence[Any], kwargs: dict[str, Any],
              problem: _Problem) -> Config:
        """The best config; the first that fits where no GPU is timed."""
        began = time.perf_counter()
        trials = [self._trial(config, grid, args, kwargs)
                  for config in self._pruned(self.by_name(args, kwargs), kwargs)]
        where, level = self.base.place(trials[0].keys)
        dropped: dict[Config, str] = {}
        if level != "cubin":
            return next(self._fitting(trials, level, dropped)).config
        index = device.current_device() if where is None else where
        entry = self._disk_key(problem, trials, index)
        timings = _kept(entry, trials)
        if timings is None:
            fitting = list(self._fitting(trials, level, dropped))
            timings = {c: [inf] for c in dropped}
            timings |= self._time(grid, args, fitting, index)
            if entry:
                texts = [timings[t.config] for t in trials]
                _DISK.put(entry, {_TIMINGS: json.dumps(texts).encode()})
        self.configs_timings, self.bench_time = timings, time.perf_counter() - began
        best = min(timings, key=timings.__getitem__)
        if knobs.print_autotuning:
            parts = [f"{name}={v.value}" for name, v in zip(self.keys, problem.values)]
            parts += [f"{name}: *{dtype}" for name, dtype, _ in problem.arrays]
            print(f"tilec: tuned `{self.name}` for {', '.join(parts)} in "
                  f"{self.bench_time:.2f} s; best of {len(timings)}: {best} "
                  f"({timings[best][0]:.4g} ms)", file=sys.stderr)
        return best

    def _fitting(self, trials: Sequence[_Trial], level: str, dropped: dict[Config, str]
                 ) -> Iterator[_Trial]:
        """Compile, and leave out what does not fit; LaunchError if that is all."""
        for trial in trials:
            with _dropping(trial.config, dropped):
                if level in ("ptx", "cubin"):
                    trial.kernel.lower(level)
                else:
                    trial.kernel.upper  # noqa: B018  (compiles)
            if trial.config not in dropped:
                yield trial
        if len(dropped) == len(trials):
            raise self._none_fits(dropped)

    def _none_fits(self, dropped: Mapping[Config, str]) -> LaunchError:
        width = max(len(str(c)) for c in dropped)
        rows = [f"  {c!s:{width}}  {reason}" for c, reason in dropped.items()]
        return LaunchError("\n".join([f"no config of `{self.name}` fits:", *rows]),
                           self.base.def_location, "add a config with smaller tiles")

    def _time(self, grid: Grid, args: Sequence[Any], trials: Sequence[_Trial], index: int
              ) -> dict[Config, list[float]]:
        """Milliseconds of each config; what the kernel writes is restored between runs."""
        stream = raw_stream(trials[0].kwargs.get("stream", device.current_stream(index)))
        kept, zeroed = set[Span](), set[Span]()
        for trial in trials:
            spans(trial.kernel, trial.keys, self.by_name(args, trial.full),
                  (self.restore_value, kept), (self.reset_to_zero, zeroed))
        with preserved(kept, zeroed, index, stream) as restore:
            return {trial.config: self._time_one(grid, args, trial, restore, index, stream)
                    for trial in trials}

    def _time_one(self, grid: Grid, args: Sequence[Any], trial: _Trial,
                  restore: Callable[[], None], index: int, stream: int) -> list[float]:
        named = self.by_name(args, trial.full)

        def before() -> Any:
            restore()
            if trial.config.pre_hook is not None:
                trial.config.pre_hook(named)
            self.pre_hook(named)

        def once() -> Any:
            return self.fn.run(*args, grid=grid, warmup=False, **trial.kwargs)

        def after() -> Any:
            self.post_hook(named, exception=None)

        if self.do_bench is not None:
            found = self.do_bench(lambda: (before(), once(), after()), quantiles=QUANTILES)
        else:
            found = do_bench(once, *self.times, quantiles=QUANTILES, before=before, after=after,
                             stream=stream, index=index)
        return list(map(float, found if isinstance(found, (list, tuple)) else [found]))

    def _disk_key(self, problem: _Problem, trials: Sequence[_Trial], index: int) -> str:
        if not self.cache_results:
            return ""
        arrays = [(name, dtype) for name, dtype, _ in problem.arrays]
        return kernel_hash("autotune", source_fingerprint(), self.base.source_key(), self.keys,
                           problem.values, arrays, problem.options,
                           [str(t.config) for t in trials], trials[0].kernel.target.name,
                           device.name_of(index))


def _kept(entry: str, trials: Sequence[_Trial]) -> dict[Config, list[float]] | None:
    """The timings of an entry of the disk cache; None where there are none for these trials."""
    files = _DISK.get(entry) if entry else None
    try:
        kept = parse_json((files or {}).get(_TIMINGS, b""))
    except ValueError:
        return None
    if not conforms(kept, [[float]]) or len(kept) != len(trials) or not all(kept):
        return None
    return {t.config: times for t, times in zip(trials, kept)}


@contextlib.contextmanager
def _dropping(config: Config, dropped: dict[Config, str]) -> Iterator[None]:
    """Note why a config does not fit."""
    try:
        yield
    except (OutOfResources, CompileTimeAssertionError) as e:
        dropped[config] = e.message.splitlines()[0]


def autotune(configs: Sequence[Config], key: Sequence[str],
             prune_configs_by: Mapping[str, Any] | None = None,
             reset_to_zero: Sequence[str] | None = None,
             restore_value: Sequence[str] | None = None,
             pre_hook: Callable[..., Any] | None = None,
             post_hook: Callable[..., Any] | None = None, warmup: float | None = None,
             rep: float | None = None, use_cuda_graph: bool = False,
             do_bench: Callable[..., Any] | None = None, cache_results: bool = False
             ) -> Callable[[Any], Autotuner]:
    """Decorator of a @tilec.jit function: launch it with the fastest of `configs`, of one with the
    defaults if there is none.

    key: parameters whose values call for a new choice, as other dtypes of arrays, options and
    targets do. prune_configs_by: early_config_prune(configs, arguments by name, **keywords) gives
    the configs to look at; perf_model(**arguments), of which the top_k lowest are timed (a float:
    the fraction). reset_to_zero: arrays set to zero before each timed run, and before the launch
    that comes after. restore_value: arrays restored beside those that the kernel is seen to write.
    pre_hook(arguments by name, reset_only=False), post_hook(arguments by name, exception=None):
    called around each timed run; pre_hook also after tuning, with reset_only=True. warmup, rep: of
    tilec.testing.do_bench, in ms (25 and 100). use_cuda_graph says nothing: what is timed is the
    GPU's work, without the launch. do_bench: called as do_bench(fn, quantiles=...) in its place.
    cache_results: keep choices on disk. What does not fit the function is said at the first launch.
    """
    return BRIEF(lambda fn: Autotuner(
        fn, getattr(fn, "arg_names", ()), configs, key, reset_to_zero, restore_value, pre_hook,
        post_hook, prune_configs_by, warmup, rep, use_cuda_graph, do_bench, cache_results))
