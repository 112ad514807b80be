"""The tuner, on host arrays and on the stand-in for a GPU."""

from __future__ import annotations

import threading
from math import inf

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import add, from_text
from tests.runtime.tuner.support import (
    TEXT,
    Clock,
    blocks,
    configs,
    device_arrays,
    tuned,
)
from tilec import knobs
from tilec.errors import CompilationError, DriverError, LaunchError
from tilec.runtime import host, tuner
from tilec.runtime.interface import KernelInterface
from tilec.runtime.kernel import CompiledKernel
from tilec.runtime.preserve import written

# -- on the CPU -------------------------------------------------------------------------------

def test_host_arrays_take_the_first_config_that_fits():
    kernel = tilec.autotune(configs(), ["n"])(add)
    x = np.ones(70, np.float32)
    out = np.zeros(70, np.float32)
    made = kernel[blocks](x, x, out, 70)
    assert (out == 2).all() and isinstance(made, CompiledKernel)
    assert made.constexprs == {"BLOCK": 32} and made.num_warps == 1
    assert kernel.best_config is kernel.configs[0] and kernel.configs_timings == {}
    assert list(kernel.cache.values()) == [kernel.configs[0]]


ASSERTING = """
@tilec.jit
def k(p, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK > 40, "too small a block")
    tl.store(p + tl.arange(0, BLOCK), BLOCK)
"""


@pytest.mark.parametrize("level", ["tile", "gpu", "lowered", "ptx"])
def test_configs_that_do_not_compile_are_passed_over(level):
    kernel = tilec.autotune(configs(), [])(from_text(ASSERTING))
    out = np.zeros(64, np.int32)
    with knobs.scope(run=level):
        kernel[1](out)
    assert (out == 64).all() and kernel.best_config is kernel.configs[1]


BIG = """
@tilec.jit
def k(p, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(p + i[:, None] * BLOCK + i[None, :])
    tl.store(p + i[:, None] * BLOCK + i[None, :], tl.trans(x))
"""


def test_configs_over_the_limit_are_dropped_before_they_are_timed(gpu):
    kernel, clock = tuned(gpu, text=BIG, key=(), chosen=configs([(256, 4), (32, 4), (64, 4)]),
                          times={32: 3.0, 64: 1.0})
    x = np.arange(64 * 64, dtype=np.float32)
    kernel[1](gpu.array(x))
    assert clock.calls == 2 and kernel.best_config is kernel.configs[2]
    assert kernel.configs_timings[kernel.configs[0]] == [inf]
    assert np.array_equal(x.reshape(64, 64), np.arange(64 * 64).reshape(64, 64).T)


def test_if_none_fits_a_table_says_why(gpu):
    text = BIG.replace("    i =", "    tl.static_assert(BLOCK > 40, 'too small')\n    i =", 1)
    kernel, clock = tuned(gpu, text=text, key=(), chosen=configs([(256, 4), (32, 2)]))
    for call in (lambda: kernel[1](gpu.array(np.zeros(16, np.float32))),
                 lambda: kernel.warmup(tl.float32, grid=1)):
        with pytest.raises(LaunchError) as caught:
            call()
        lines = caught.value.message.splitlines()
        assert lines[0] == "no config of `k` fits:"
        assert lines[1].startswith("  BLOCK: 256, num_warps: 4, num_stages: 3  out of resource: sh")
        assert lines[2].startswith("  BLOCK: 32, num_warps: 2, num_stages: 3   ")
        assert "too small" in lines[2]
        assert caught.value.loc == kernel.base.def_location
        assert "smaller tiles" in caught.value.advice
    assert clock.calls == 0 and not kernel.cache


def test_other_errors_are_not_hidden():
    kernel = tilec.autotune(configs(), [])(from_text(
        "@tilec.jit\ndef k(p, BLOCK: tl.constexpr):\n    tl.store(p, undefined)\n"))
    with pytest.raises(CompilationError, match="undefined"):
        kernel[1](np.zeros(1, np.float32))


# -- choosing and caching ---------------------------------------------------------------------

def test_the_fastest_is_chosen_once_for_each_problem(gpu):
    kernel, clock = tuned(gpu)
    dx, dout, x, out = device_arrays(gpu)
    made = kernel[blocks](dx, dout, 100)
    assert clock.calls == 3 and kernel.best_config is kernel.configs[1]
    assert made.constexprs == {"BLOCK": 64} and gpu.launched[-1][2:] == (2, (2, 1, 1))
    assert {c.kwargs["BLOCK"]: t for c, t in kernel.configs_timings.items()} == {
        32: [3.0, 3.0, 3.5], 64: [1.0, 1.0, 1.5], 128: [2.0, 2.0, 2.5]}
    assert np.array_equal(out, x + 1)
    assert kernel[blocks](dx, dout, 100) is made and clock.calls == 3
    kernel[blocks](dx, dout, n=100)
    assert clock.calls == 3 and len(kernel.cache) == 1
    kernel[blocks](dx, dout, 50)  # another value in the key
    assert clock.calls == 6 and len(kernel.cache) == 2
    kernel[blocks](dx, dout, 50, maxnreg=64)  # another option
    assert clock.calls == 9
    kernel[blocks](dx, dout, 50, stream=7)  # not another problem
    assert clock.calls == 9
    with knobs.scope(target="sm_80"):
        kernel[blocks](dx, dout, 50)
    assert clock.calls == 12
    clock.times[128] = 0.5
    half = gpu.array(np.ones(100, np.float16))
    kernel[blocks](half, half, 100)  # other dtypes
    assert clock.calls == 15 and kernel.best_config is kernel.configs[2]
    kernel[blocks](dx, dout, 100)
    assert kernel.best_config is kernel.configs[1]


def test_a_single_config_is_not_timed(gpu):
    kernel, clock = tuned(gpu, chosen=configs([(64, 2)]))
    dx, dout, x, out = device_arrays(gpu)
    kernel[blocks](dx, dout, 100)
    assert clock.calls == 0 and len(gpu.launched) == 1 and np.array_equal(out, x + 1)


def test_changed_constants_call_for_a_new_choice(gpu):
    kernel, clock = tuned(gpu, text=TEXT.replace("+ x,", "+ x * FACTOR,"))
    kernel.base.fn.__globals__["FACTOR"] = tl.constexpr(2)
    dx, dout, x, out = device_arrays(gpu)
    kernel[blocks](dx, dout, 100)
    kernel.base.fn.__globals__["FACTOR"] = tl.constexpr(3)
    kernel[blocks](dx, dout, 100)
    assert clock.calls == 6 and np.array_equal(out, 1 + 5 * x)


def test_threads_tune_once(gpu):
    kernel, clock = tuned(gpu)
    dx, dout, x, out = device_arrays(gpu)
    chosen, start = [], threading.Barrier(4)

    def work():
        start.wait()
        chosen.append(kernel.resolve(blocks, (dx, dout, 100), {})["BLOCK"])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert chosen == [64] * 4 and clock.calls == 3 and (out == 1).all()


def test_results_on_disk(gpu):
    dx, dout, x, out = device_arrays(gpu)
    first, clock = tuned(gpu, cache_results=True)
    first[blocks](dx, dout, 100)
    again = tilec.autotune(configs(), ["n"], cache_results=True, do_bench=clock)(first.base)
    launches = len(gpu.launched)
    again[blocks](dx, dout, 100)
    assert clock.calls == 3 and len(gpu.launched) == launches + 1
    assert again.best_config is again.configs[1]
    assert list(again.configs_timings.values()) == list(first.configs_timings.values())
    again[blocks](dx, dout, 60)
    assert clock.calls == 6
    other = tilec.autotune(configs([(32, 1), (64, 4)]), ["n"], cache_results=True,
                           do_bench=clock)(first.base)
    other[blocks](dx, dout, 100)
    assert clock.calls == 8
    forgetful = tilec.autotune(configs(), ["n"], do_bench=clock)(first.base)
    forgetful[blocks](dx, dout, 100)
    assert clock.calls == 11


def test_what_was_chosen_is_printed_on_request(gpu, capsys):
    dx, dout, _, _ = device_arrays(gpu)
    tuned(gpu)[0][blocks](dx, dout, 100)
    assert capsys.readouterr().err == ""
    with knobs.scope(print_autotuning=True):
        tuned(gpu)[0][blocks](dx, dout, 100)
    text = capsys.readouterr().err
    assert text.startswith("tilec: tuned `accumulate` for n=100, x_ptr: *fp32, out_ptr: *fp32 in ")
    assert text.endswith("best of 3: BLOCK: 64, num_warps: 2, num_stages: 3 (1 ms)\n")


# -- what runs leave behind -------------------------------------------------------------------

def test_what_the_kernel_writes_is_restored_before_each_run(gpu):
    seen = []

    def clock(fn, quantiles):
        for _ in range(3):
            fn()
            seen.append(out.copy())
        return [1.0, 1.0, 1.0]

    kernel, _ = tuned(gpu, do_bench=clock)
    dx, dout, x, out = device_arrays(gpu)
    kernel[blocks](dx, dout, 100)
    assert len(seen) == 9 and all(np.array_equal(s, x + 1) for s in seen)
    assert np.array_equal(out, x + 1) and np.array_equal(x, np.arange(100))
    assert gpu.freed == 1  # of the two arrays, one was copied
    assert {(c[2], c[3]) for c in gpu.copies} == {(400, 0)}


ATOMIC = """
@tilec.jit
def k(x_ptr, sums, unused, n, pair, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    which = pair[1]
    if BLOCK == 64:
        which = pair[0]
    tl.atomic_add(which, tl.sum(tl.load(x_ptr + i, mask=i < n, other=0.0), 0))
    tl.atomic_add(sums, 1)
"""


def test_tuples_atomics_and_configs_that_write_elsewhere(gpu):
    kernel, _ = tuned(gpu, text=ATOMIC)
    x = np.ones(100, np.float32)
    a, b, unused = (np.zeros(4, np.float32) for _ in range(3))
    count = np.zeros(4, np.int32)
    kernel[blocks](gpu.array(x), gpu.array(count), gpu.array(unused), 100,
                   (gpu.array(a), gpu.array(b)))
    assert (a[0], b[0], count[0], gpu.freed) == (100.0, 0.0, 2, 3)


def test_an_unknown_pointer_restores_all(gpu):
    kernel, _ = tuned(gpu, text="""
@tilec.jit
def k(table, out_ptr, n, BLOCK: tl.constexpr):
    p = tl.load(table).to(tl.pointer_type(tl.float32), bitcast=True)
    tl.store(p, 1.0)
""")
    assert written(kernel.base.warmup(tl.int64, tl.float32, 3, BLOCK=32)) is None


def test_reset_to_zero_and_restore_value(gpu):
    seen = []

    def clock(fn, quantiles):
        fn()
        seen.append(out.copy())
        x[:] = 7  # as a pre_hook might
        return [1.0]

    kernel, _ = tuned(gpu, do_bench=clock, reset_to_zero=["out_ptr"], restore_value=["x_ptr"])
    dx, dout, x, out = device_arrays(gpu)
    first = x.copy()
    kernel[blocks](dx, dout, 100)
    assert all(np.array_equal(s, first) for s in seen) and len(seen) == 3
    assert np.array_equal(x, first) and np.array_equal(out, first)
    kernel[blocks](dx, dout, 100)
    assert np.array_equal(out, 2 * first)  # only tuning resets


def test_arrays_are_restored_when_tuning_fails(gpu):
    def clock(fn, quantiles):
        fn()
        raise DriverError("the GPU is gone")

    kernel, _ = tuned(gpu, do_bench=clock)
    dx, dout, x, out = device_arrays(gpu)
    with pytest.raises(DriverError, match="gone"):
        kernel[blocks](dx, dout, 100)
    assert (out == 1).all() and gpu.freed == 1 and not kernel.cache


def test_strided_and_empty_arrays(gpu):
    whole = np.arange(400, dtype=np.float32)
    base = gpu.array(whole)
    view = whole.reshape(100, 4)[::-1, 1]
    part = gpu.array(view, strides=view.strides)
    assert host.span(base) == (base.at, 1600)
    part.__cuda_array_interface__["data"] = (base.at + 4 + 99 * 16, False)
    assert host.span(part) == (base.at + 4, 99 * 16 + 4)
    assert host.span(gpu.array(np.zeros(0, np.float32)))[1] == 0


def test_hooks_see_the_arguments_before_each_launch(gpu):
    seen = []
    kernel, clock = tuned(gpu, chosen=configs([(32, 1), (64, 2)], pre_hook=seen.append))
    dx, dout, _, _ = device_arrays(gpu)
    kernel[blocks](dx, dout, 100)
    assert [s["BLOCK"] for s in seen] == [32, 64, 32, 32, 64, 64, 64]
    assert seen[0]["out_ptr"] is dout and seen[0]["n"] == 100 and seen[0]["num_warps"] == 1
    kernel[blocks](dx, dout, 100)
    assert len(seen) == 8


def test_hooks_run_before_a_config_is_compiled(gpu):
    def hook(named):
        named["square"].block_shape = [named["BLOCK"]] * 2

    text = """
@tilec.jit
def k(square, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at[:, None] * BLOCK + at[None, :], square.load([1, 2]))
"""
    raw = np.arange(64 * 64, dtype=np.float32)
    for on_host in (False, True):
        kernel, clock = tuned(gpu, text=text, key=(), times={16: 2.0, 32: 1.0},
                              chosen=configs([(16, 1), (32, 2)], pre_hook=hook))
        out = np.zeros(1024, np.float32)
        tensor = raw if on_host else gpu.array(raw)
        described = tilec.TensorDescriptor(tensor, [64, 64], [64, 1], [1, 1])
        kernel[1](described, out if on_host else gpu.array(out))
        n = 16 if on_host else 32
        assert kernel.best_config.kwargs == {"BLOCK": n}
        assert np.array_equal(out[:n * n].reshape(n, n), raw.reshape(64, 64)[1:n + 1, 2:n + 2])


def test_hooks_of_the_tuner_stand_around_each_timed_run(gpu):
    calls = []

    def before(named, reset_only=False):
        calls.append(("before", named["BLOCK"], reset_only))

    def after(named, exception):
        calls.append(("after", named["BLOCK"], exception))

    kernel, clock = tuned(gpu, chosen=configs([(32, 1), (64, 2)]), pre_hook=before,
                          post_hook=after)
    assert kernel.user_defined_pre_hook and kernel.user_defined_post_hook
    dx, dout, _, _ = device_arrays(gpu)
    for _ in range(2):
        kernel[blocks](dx, dout, 100)
    timed = [(what, block, value) for block in (32, 64) for _ in range(2)
             for what, value in (("before", False), ("after", None))]
    assert calls == [*timed, ("before", 64, True)]


# -- configs ----------------------------------------------------------------------------------

def test_configs_take_what_other_compilers_want(capsys):
    config = tilec.Config({"BLOCK": 32, "num_warps": 2, "waves_per_eu": 2}, num_stages=2, kpack=2,
                          ir_override=None, maxnreg=None)
    assert (config.num_warps, config.num_stages, config.maxnreg) == (2, 2, 0)
    assert config == tilec.Config({"BLOCK": 32, "waves_per_eu": 2, "kpack": 2, "ir_override": None},
                                  2, 2)
    assert config != tilec.Config({"BLOCK": 32}, 2, 2) and len({config, config}) == 1
    kernel = tilec.autotune([config], None)(add)
    x, out = np.ones(32, np.float32), np.zeros(32, np.float32)
    made = kernel[1](x, x, out, 32, matrix_instr_nonkdim=16)
    assert (out == 2).all() and made.num_warps == 2 and made.options.num_stages == 2
    assert "`add` was given kpack=2, which means nothing to tilec" in capsys.readouterr().err


def test_no_configs_are_one_with_the_defaults():
    for given in ([], None):
        kernel = tilec.autotune(given, ["n"])(add)
        x, out = np.ones(32, np.float32), np.zeros(32, np.float32)
        kernel[1](x, x, out, 32, BLOCK=32)
        assert (out == 2).all() and kernel.best_config == tilec.Config({})


def test_a_perf_model_without_a_top_k_keeps_all(gpu):
    kernel, clock = tuned(gpu, prune_configs_by={"perf_model": lambda BLOCK, **_: -BLOCK})
    dx, dout, _, _ = device_arrays(gpu)
    kernel[blocks](dx, dout, 100)
    assert [c.kwargs["BLOCK"] for c in kernel.configs_timings] == [128, 64, 32]


# -- subclasses -------------------------------------------------------------------------------

class Slowest(tuner.Autotuner):
    """A policy of its own, in a `run` of its own, as libraries write it."""

    def run(self, *args, **kwargs):
        self.nargs = dict(zip(self.arg_names, args))
        key = tuple(({**self.nargs, **kwargs})[k] for k in self.keys)
        if key not in self.cache:
            times = {c: self._bench(*args, config=c, **kwargs) for c in self.prune_configs(kwargs)}
            self.cache[key] = max(times, key=times.get)
            self.configs_timings = times
            self.pre_hook({**self.nargs, **kwargs, **self.cache[key].all_kwargs()}, reset_only=True)
        self.best_config = self.cache[key]
        return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())


class Entry(KernelInterface):
    """What stands around a tuner, and counts."""

    def __init__(self, fn):
        self.fn, self.arg_names, self.count = fn, fn.arg_names, 0
        while not isinstance(fn, tilec.JITFunction):
            fn = fn.fn
        self.jit_function = fn

    def run(self, *args, **kwargs):
        assert set(kwargs) >= {"grid", "warmup"}
        self.count += 1
        return self.fn.run(*args, **kwargs)


def test_subclasses_of_the_tuner(gpu):
    base = from_text(TEXT)
    clock = Clock(gpu, {32: 1.0, 64: 3.0, 128: 2.0})
    for on_host in (False, True):
        kernel = Entry(Slowest(base, base.arg_names, configs(), ["n"], None, None,
                               do_bench=clock, cache_results=False))
        x, out = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
        given = (x, out) if on_host else (gpu.array(x), gpu.array(out))
        made = kernel[blocks](*given, 100)
        assert np.array_equal(out, x + 1) and kernel.count == 1
        assert made.constexprs == {"BLOCK": 32 if on_host else 64} and kernel.jit_function is base
        assert len(kernel.fn.configs_timings) == 3 and clock.calls == 3


def test_a_tuner_around_an_authors_own_wrapper(gpu):
    entry = Entry(tilec.heuristics({"BLOCK": lambda a: 32 * a["num_warps"]})(from_text(TEXT)))
    chosen = [tilec.Config({}, num_warps=1), tilec.Config({}, num_warps=2)]
    kernel = tilec.autotune(chosen, ["n"])(entry)
    x, out = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
    assert kernel[blocks](x, out, 100, BLOCK=0).constexprs == {"BLOCK": 32}
    assert np.array_equal(out, x + 1) and kernel.base is entry.jit_function


def test_a_config_put_into_the_cache_is_used(gpu):
    kernel, clock = tuned(gpu)
    dx, dout, x, out = device_arrays(gpu)
    kernel.cache[(100, "float32", "float32")] = tilec.Config({"BLOCK": 16}, num_warps=1)
    dx.dtype = dout.dtype = np.dtype(np.float32)
    assert kernel[blocks](dx, dout, 100).constexprs == {"BLOCK": 16} and clock.calls == 0


# -- pruning ----------------------------------------------------------------------------------

@pytest.mark.parametrize("top_k, timed", [(2, [64, 128]), (0.67, [64, 128]), (9, [64, 128, 32])])
def test_perf_model(gpu, top_k, timed):
    def model(n, BLOCK, num_warps, num_stages, **arguments):
        assert n == 100 and num_stages == 3 and set(arguments) == {"x_ptr", "out_ptr"}
        return {32: 5, 64: 1, 128: 2}[BLOCK]

    kernel, clock = tuned(gpu, prune_configs_by={"perf_model": model, "top_k": top_k})
    dx, dout, _, _ = device_arrays(gpu)
    kernel[blocks](dx, dout, 100)
    assert [c.kwargs["BLOCK"] for c in kernel.configs_timings] == timed


def test_early_config_prune(gpu):
    def prune(configs, named, **kwargs):
        assert named["n"] == 100 and kwargs == {"n": 100}
        return [c for c in configs if c.kwargs["BLOCK"] <= limit]

    kernel, clock = tuned(gpu, prune_configs_by={"early_config_prune": prune})
    dx, dout, _, _ = device_arrays(gpu)
    limit = 32
    kernel[blocks](dx, dout, n=100)
    assert kernel.best_config is kernel.configs[0]
    kernel.cache.clear()
    limit = 0
    with pytest.raises(LaunchError, match="early_config_prune left no config of `accumulate`"):
        kernel[blocks](dx, dout, n=100)


def test_warmup_compiles_what_fits():
    kernel = tilec.autotune(configs(), [])(from_text(ASSERTING))
    made = kernel.warmup(tl.int32, grid=1)
    assert [k.constexprs["BLOCK"] for k in made] == [64, 128]
    assert [k.num_warps for k in made] == [2, 4] and made[0].asm["cubin"][:4] == b"\x7fELF"
