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
    CompilationError,
    CompileTimeAssertionError,
    LaunchError,
    OutOfResources,
    TilecError,
)
from tilec.runtime import arguments, device
from tilec.runtime.bench import do_bench
from tilec.runtime.cache import DiskCache, conforms, parse_json
from tilec.runtime.fingerprint import source_fingerprint
from tilec.runtime.heuristics import Grid, Launchable, resolve
from tilec.runtime.jit import OPTION_NAMES, raw_stream
from tilec.runtime.kernel import CompiledKernel
from tilec.runtime.preserve import Span, preserved, spans

QUANTILES = (0.5, 0.2, 0.8)  # configs are compared by the first
_NUMBERS = (int, float, bool, type(None))
_DISK = DiskCache()
_TIMINGS = "timings.json"


class Config:
    """One choice of parameters' values and launch options.

    pre_hook: called with the arguments by name before each launch with this config, the timed
    ones included.
    """

    def __init__(self, kwargs: Mapping[str, Any], num_warps: int = 4, num_stages: int = 3,
                 num_ctas: int = 1, maxnreg: int = 0,
                 pre_hook: Callable[[dict[str, Any]], Any] | None = None) -> None:
        self.kwargs = dict(kwargs)
        self.num_warps, self.num_stages = num_warps, num_stages
        self.num_ctas, self.maxnreg = num_ctas, maxnreg
        self.pre_hook = pre_hook

    def all_kwargs(self) -> dict[str, Any]:
        """The parameters and options, as a launch takes them."""
        more = {"num_ctas": self.num_ctas} if self.num_ctas != 1 else {}
        more |= {"maxnreg": self.maxnreg} if self.maxnreg else {}
        return {**self.kwargs, "num_warps": self.num_warps, "num_stages": self.num_stages, **more}

    def __str__(self) -> str:
        return ", ".join(f"{k}: {v}" for k, v in self.all_kwargs().items())

    def __repr__(self) -> str:
        return f"<Config {self}>"


class _Trial(NamedTuple):
    """A config on its way to being timed, with the arguments that it makes."""

    config: Config
    kwargs: dict[str, Any]
    kernel: CompiledKernel
    keys: list[arguments.Key]


class _Problem(NamedTuple):
    """What a choice is made for: values of the key's parameters, types and places of arrays,
    options."""

    values: tuple[Any, ...]
    arrays: tuple[tuple[str, str, Any], ...]
    options: tuple[tuple[str, Any], ...]


class Autotuner(Launchable):
    """A kernel that launches with the fastest of its configs.

    best_config: that of the last launch. configs_timings: milliseconds of each config in the last
    tuning, as a list for QUANTILES; infinite for one that does not fit. cache: configs by problem.
    """

    def __init__(self, inner: Any, configs: Sequence[Config], key: Sequence[str],
                 prune_configs_by: Mapping[str, Any], reset_to_zero: Sequence[str],
                 restore_value: Sequence[str], warmup: float, rep: float, cache_results: bool,
                 bench: Callable[..., Any] | None) -> None:
        super().__init__(inner, "autotune")
        self.configs, self.key, self.prune = list(configs), list(key), dict(prune_configs_by)
        self.reset_to_zero, self.restore_value = list(reset_to_zero), list(restore_value)
        self.times, self.cache_results, self.bench = (warmup, rep), cache_results, bench
        self.cache: dict[Any, Config] = {}
        self.best_config: Config | None = None
        self.configs_timings: dict[Config, list[float]] = {}
        self._tuning = threading.RLock()
        self._readers = [(p.name, arguments.param_handler(p)) for p in self.params
                         if not p.is_constexpr]
        self._check()
        self._tuned = list(dict.fromkeys(k for c in self.configs for k in c.all_kwargs()))

    def _check(self) -> None:
        where = self.base.def_location
        if not self.configs or not all(isinstance(c, Config) for c in self.configs):
            raise CompilationError(f"the configs of `{self.name}` are {self.configs!r}", where,
                                   "give a list of at least one tilec.Config")
        for config in self.configs:
            self.check_names(list(config.kwargs), f"the config {config}")
            self.base.check_options(config.all_kwargs(), CompilationError)
        for names, what in ((self.key, "key"), (self.reset_to_zero, "reset_to_zero"),
                            (self.restore_value, "restore_value")):
            self.check_names(names, what)
        for name in self.prune:
            if name not in ("perf_model", "top_k", "early_config_prune"):
                raise CompilationError(f"prune_configs_by has `{name}`", where,
                                       "it may have perf_model, top_k and early_config_prune")
        if self.prune.get("perf_model") and not isinstance(self.prune.get("top_k"), (int, float)):
            raise CompilationError("prune_configs_by has a perf_model and no top_k", where,
                                   "give a number of configs, or the fraction to keep as a float")

    # -- launching ------------------------------------------------------------------------

    def resolve(self, grid: Grid, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The given arguments, and those of the best config, which is found first if need be."""
        self.refuse(self._tuned, "the tuner", args, kwargs)
        self.best_config = config = self._choose(grid, args, kwargs)
        full = resolve(self.inner, grid, args, kwargs | config.all_kwargs())
        if config.pre_hook is not None:
            config.pre_hook(self.by_name(args, full))
        return full

    def warmup(self, *args: Any, grid: Grid = None, **kwargs: Any) -> list[CompiledKernel]:
        """Compile all configs that fit, without launching any."""
        dropped: dict[Config, str] = {}
        kernels = []
        with self.base.brief:
            self.refuse(self._tuned, "the tuner", args, kwargs)
            for config in self._pruned(self.by_name(args, kwargs), kwargs):
                with _dropping(config, dropped):
                    kernels.append(self.inner.warmup(*args, grid=grid,
                                                     **kwargs | config.all_kwargs()))
            if not kernels:
                raise self._none_fits(dropped)
        return kernels

    def _choose(self, grid: Grid, args: Sequence[Any], kwargs: dict[str, Any]) -> Config:
        if len(self.configs) == 1:
            return self.configs[0]
        problem = self._problem(self.by_name(args, kwargs))
        flags = knobs.snapshot_key() and (knobs.run, knobs.target)
        key = problem, flags, self.base.source_key()
        found = self.cache.get(key)
        if found is None:
            with self._tuning:
                found = self.cache.get(key)  # another thread may have found it meanwhile
                if found is None:
                    found = self.cache[key] = self._tune(grid, args, kwargs, problem)
        return found

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
            for name in self.key:
                if any(name == n for n, _, _ in arrays):
                    raise LaunchError("it is in the tuner's key, but an array", None, "arrays "
                                      "count by their dtypes as it is; take it out of the key")
                values.append(arguments.constexpr_handler(named.get(name))[0])
            options = []
            for name in OPTION_NAMES:
                if name in named and name != "stream":
                    options.append((name, arguments.constexpr_handler(named[name])[0]))
        except TilecError as e:
            raise LaunchError(f"argument `{name}`: {e.message}", self.base.def_location,
                              e.advice) from None
        return _Problem(tuple(values), tuple(arrays), tuple(options))

    # -- tuning ---------------------------------------------------------------------------

    def _pruned(self, named: dict[str, Any], kwargs: Mapping[str, Any]) -> list[Config]:
        configs = self.configs
        early, model = self.prune.get("early_config_prune"), self.prune.get("perf_model")
        if early is not None:
            configs = list(early(configs, named, **kwargs))
            if not configs:
                raise LaunchError(f"early_config_prune left no config of `{self.name}`",
                                  self.base.def_location, "let it keep one that always fits")
        if model is not None:
            top = self.prune["top_k"]
            if isinstance(top, float):
                top = int(len(self.configs) * top)
            cost = {c: model(**named | c.all_kwargs()) for c in configs}
            configs = sorted(configs, key=cost.__getitem__)[:max(1, top)]
        return configs

    def _tune(self, grid: Grid, args: Sequence[Any], kwargs: dict[str, Any],
              problem: _Problem) -> Config:
        """The best config; the first that fits where no GPU is timed."""
        began = time.perf_counter()
        trials = []
        for config in self._pruned(self.by_name(args, kwargs), kwargs):
            full = resolve(self.inner, grid, args, kwargs | config.all_kwargs())
            trials.append(_Trial(config, full, *self.base.specialize(args, full)))
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
        self.configs_timings = timings
        best = min(timings, key=timings.__getitem__)
        if knobs.print_autotuning:
            parts = [f"{name}={v.value}" for name, v in zip(self.key, problem.values)]
            parts += [f"{name}: *{dtype}" for name, dtype, _ in problem.arrays]
            print(f"tilec: tuned `{self.name}` for {', '.join(parts)} in "
                  f"{time.perf_counter() - began:.2f} s; best of {len(timings)}: {best} "
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
            spans(trial.kernel, trial.keys, self.by_name(args, trial.kwargs),
                  (self.restore_value, kept), (self.reset_to_zero, zeroed))
        with preserved(kept, zeroed, index, stream) as restore:
            return {trial.config: self._time_one(grid, args, trial, restore, index, stream)
                    for trial in trials}

    def _time_one(self, grid: Grid, args: Sequence[Any], trial: _Trial,
                  restore: Callable[[], None], index: int, stream: int) -> list[float]:
        def before() -> Any:
            restore()
            if trial.config.pre_hook is not None:
                trial.config.pre_hook(self.by_name(args, trial.kwargs))

        def once() -> Any:
            return self.base.run(grid, *args, **trial.kwargs)

        if self.bench is not None:
            found = self.bench(lambda: (before(), once()), quantiles=QUANTILES)
        else:
            found = do_bench(once, *self.times, quantiles=QUANTILES, before=before, stream=stream,
                             index=index)
        return list(map(float, found if isinstance(found, (list, tuple)) else [found]))

    def _disk_key(self, problem: _Problem, trials: Sequence[_Trial], index: int) -> str:
        if not self.cache_results:
            return ""
        arrays = [(name, dtype) for name, dtype, _ in problem.arrays]
        return kernel_hash("autotune", source_fingerprint(), self.base.source_key(), self.key,
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
             reset_to_zero: Sequence[str] = (), restore_value: Sequence[str] = (),
             warmup: float = 25, rep: float = 100, cache_results: bool = False,
             do_bench: Callable[..., Any] | None = None) -> Callable[[Any], Autotuner]:
    """Decorator of a @tilec.jit function: launch it with the fastest of `configs`.

    key: parameters whose values call for a new choice, as other dtypes of arrays, options and
    targets do. prune_configs_by: early_config_prune(configs, arguments by name, **keywords) gives
    the configs to look at; perf_model(**arguments), of which the top_k lowest are timed (a float:
    the fraction). reset_to_zero: arrays set to zero before each timed run, and before the launch
    that comes after. restore_value: arrays restored beside those that the kernel is seen to write.
    warmup, rep: of tilec.testing.do_bench, in ms. cache_results: keep choices on disk. do_bench:
    called as do_bench(fn, quantiles=...) in its place. Raises CompilationError for what does not
    fit the function.
    """
    return BRIEF(lambda fn: Autotuner(
        fn, configs, key, prune_configs_by or {}, reset_to_zero or (), restore_value or (),
        warmup, rep, cache_results, do_bench))


