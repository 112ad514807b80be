"""The tuner and heuristics, on host arrays and on a stand-in for a GPU; no real time is measured.

The stand-in launches run in the interpreter, on host memory that plays the device's.
"""

from __future__ import annotations

import threading
from math import inf

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import Memory, add, from_text
from tilec import knobs
from tilec.errors import CompilationError, DriverError, LaunchError
from tilec.runtime import device, heuristics, host, tuner
from tilec.runtime.kernel import CompiledKernel, param_types
from tilec.runtime.preserve import written

TEXT = """
@tilec.jit
def accumulate(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, tl.load(out_ptr + i, mask=i < n) + x, mask=i < n)
"""
CONFIGS = [(32, 1), (64, 2), (128, 4)]


class Gpu(Memory):
    """A GPU whose kernels run in the interpreter. launched: (name, constexprs, num_warps, grid)."""

    def __init__(self, monkeypatch):
        super().__init__(monkeypatch)
        self.launched, self.copies, self.freed, self.count, gpu = [], [], 0, 0, self

        class Buffer:
            def __init__(self, nbytes, index):
                raw = np.zeros(nbytes, np.uint8)
                self.nbytes, self.pointer = nbytes, gpu.array(raw).at

            def free(self):
                del gpu.arrays[self.pointer]
                gpu.freed += 1

        for name, stand_in in {
            "DeviceBuffer": Buffer, "use": lambda index: None, "copy": self.copy,
            "zero": self.zero, "synchronize": lambda index=None: None,
            "name_of": lambda index: "Stand-in",
        }.items():
            monkeypatch.setattr(device, name, stand_in)
        monkeypatch.setattr(CompiledKernel, "launcher", lambda kernel, index: Launcher(gpu, kernel))

    def array(self, raw, **more):
        self.count += 1
        made = super().array(raw, 0x100000 * self.count, **more)
        made.at = made.__cuda_array_interface__["data"][0]
        return made

    def copy(self, target, source, nbytes, stream):
        self.copies.append((target, source, nbytes, stream))
        self._bytes(target, nbytes)[:] = self._bytes(source, nbytes)

    def zero(self, pointer, nbytes, stream):
        self._bytes(pointer, nbytes)[:] = 0


class Launcher:
    def __init__(self, gpu, kernel):
        self.gpu, self.kernel = gpu, kernel

    def launch(self, grid, block, shared, stream, values):
        kernel = self.kernel
        self.gpu.launched.append((kernel.name, kernel.constexprs, kernel.num_warps, grid))
        args = []
        for value, kind in zip(values, param_types(kernel.signature.values()), strict=True):
            if kind.startswith("*"):
                value = self.gpu.arrays[value].view(host.numpy_dtype(kind[1:]))
            args.append(value)
        host.run_on_cpu(kernel, args, grid, "tile")


class Clock:
    """In place of do_bench: runs a function twice, and gives the time that the last launch is to
    take by the value of a constexpr."""

    def __init__(self, gpu, times, name="BLOCK"):
        self.gpu, self.times, self.name, self.calls = gpu, times, name, 0

    def __call__(self, fn, quantiles):
        self.calls += 1
        for _ in range(2):
            fn()
        t = self.times[self.gpu.launched[-1][1][self.name]]
        return [t, t, t + 0.5]


@pytest.fixture(autouse=True)
def plain(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(device, "gpu_available", lambda: False)


@pytest.fixture
def gpu(monkeypatch):
    return Gpu(monkeypatch)


def configs(pairs=CONFIGS, **more):
    return [tilec.Config({"BLOCK": b}, num_warps=w, **more) for b, w in pairs]


def tuned(gpu, times=None, text=TEXT, key=("n",), chosen=None, **options):
    clock = Clock(gpu, times or {32: 3.0, 64: 1.0, 128: 2.0})
    options.setdefault("do_bench", clock)
    return tilec.autotune(chosen or configs(), list(key), **options)(from_text(text)), clock


def device_arrays(gpu, n=100):
    x, out = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    return gpu.array(x), gpu.array(out), x, out


def blocks(meta):
    return (tilec.cdiv(meta["n"], meta["BLOCK"]),)


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
    kernel[blocks](dx, dout, 50, debug=True)  # another option
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
    assert [s["BLOCK"] for s in seen] == [32, 32, 64, 64, 64]
    assert seen[0]["out_ptr"] is dout and seen[0]["n"] == 100 and seen[0]["num_warps"] == 1
    kernel[blocks](dx, dout, 100)
    assert len(seen) == 6


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


# -- heuristics -------------------------------------------------------------------------------

EVEN = """
@tilec.jit
def k(out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr, HALF: tl.constexpr = 5):
    tl.store(out_ptr, n)
    tl.store(out_ptr + 1, BLOCK)
    tl.store(out_ptr + 2, EVEN)
    tl.store(out_ptr + 3, HALF)
"""
RULES = {"EVEN": lambda a: a["n"] % a["BLOCK"] == 0, "HALF": lambda a: a["BLOCK"] // 2 + a["EVEN"]}


def test_heuristics():
    kernel = tilec.heuristics(RULES)(from_text(EVEN))
    out = np.zeros(4, np.int32)
    kernel[1](out, 64, BLOCK=32)
    assert out.tolist() == [64, 32, 1, 17]
    kernel[(1,)](out, 65, 32)
    assert out.tolist() == [65, 32, 0, 16]
    made = kernel.warmup(tl.int32, 64, BLOCK=32, grid=1)
    assert made.constexprs == {"BLOCK": 32, "EVEN": True, "HALF": 17}
    warps = tilec.heuristics({"num_warps": lambda a: a["BLOCK"] // 32})(add)
    assert warps.warmup(*[tl.float32] * 3, 64, BLOCK=256, grid=1).num_warps == 8


def test_heuristics_below_the_tuner_see_its_choice(gpu):
    clock = Clock(gpu, {32: 2.0, 64: 1.0, 128: 3.0})
    kernel = tilec.autotune(configs(), ["n"], do_bench=clock)(
        tilec.heuristics(RULES)(from_text(EVEN)))
    out = np.zeros(4, np.int32)
    kernel[1](gpu.array(out), 64)
    assert out.tolist() == [64, 64, 1, 33]
    made = kernel.warmup(tl.int32, 64, grid=1)
    assert [k.constexprs["EVEN"] for k in made] == [True, True, False]


def test_heuristics_above_the_tuner_are_arguments_to_it(gpu):
    clock = Clock(gpu, {1: 2.0, 2: 1.0}, "EVEN")
    inner = tilec.autotune([tilec.Config({"EVEN": 1}), tilec.Config({"EVEN": 2})], ["BLOCK"],
                           do_bench=clock)(from_text(EVEN))
    kernel = tilec.heuristics({"BLOCK": lambda a: 16 if a["n"] < 50 else 32})(inner)
    out = np.zeros(4, np.int32)
    kernel[1](gpu.array(out), 10)
    assert out.tolist() == [10, 16, 2, 5] and clock.calls == 2
    kernel[1](gpu.array(out), 20)
    assert clock.calls == 2
    kernel[1](gpu.array(out), 60)
    assert clock.calls == 4 and out[1] == 32 and inner.best_config is inner.configs[1]
    assert [k.constexprs["EVEN"] for k in kernel.warmup(tl.int32, 20, grid=1)] == [1, 2]


# -- errors -----------------------------------------------------------------------------------

ONE = configs([(32, 1)])
WRONG = {
    "no configs": (lambda: tilec.autotune([], ["n"])(add), "configs of `add` are", "at least one"),
    "no Config": (lambda: tilec.autotune([{"BLOCK": 3}], ["n"])(add), "configs of `add`", "Config"),
    "key": (lambda: tilec.autotune(ONE, ["m"])(add), "key names `m`", "x_ptr"),
    "zero": (lambda: tilec.autotune(ONE, [], reset_to_zero=["out"])(add), "reset_to_zero names",
             "did you mean `out_ptr`"),
    "restore": (lambda: tilec.autotune(ONE, [], restore_value=["q"])(add), "restore_value names",
                ""),
    "parameter": (lambda: tilec.autotune([tilec.Config({"BLOK": 1})], [])(add),
                  "the config BLOK: 1, num_warps: 4, num_stages: 3 names `BLOK`", "`BLOCK`"),
    "warps": (lambda: tilec.autotune(configs([(32, 33)]), [])(add), "num_warps is 33", ""),
    "prune": (lambda: tilec.autotune(ONE, [], {"perf": 1})(add), "prune_configs_by has `perf`",
              "perf_model"),
    "top": (lambda: tilec.autotune(ONE, [], {"perf_model": max})(add), "no top_k", "fraction"),
    "heuristic": (lambda: tilec.heuristics({"BLOK": max})(add), "@tilec.heuristics names `BLOK`",
                  "BLOCK"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_at_decoration(case):
    make, message, advice = WRONG[case]
    with pytest.raises(CompilationError) as caught:
        make()
    assert message in caught.value.message and advice in caught.value.advice
    assert caught.value.loc == add.def_location


@pytest.mark.parametrize("decorate", [tilec.autotune(ONE, []), tilec.heuristics({})])
def test_only_kernels_can_be_decorated(decorate):
    def plain(x):
        pass

    with pytest.raises(CompilationError, match="needs a @tilec.jit function") as caught:
        decorate(plain)
    assert caught.value.loc.file == __file__ and "closest to `def`" in caught.value.advice
    with pytest.raises(CompilationError, match="found 3"):
        decorate(3)


@pytest.mark.parametrize("given, name", [
    ({"BLOCK": 32}, "BLOCK"), ({"num_warps": 4}, "num_warps"), ({"num_stages": 2}, "num_stages"),
])
def test_a_tuned_parameter_cannot_be_given(given, name):
    x = np.zeros(8, np.float32)
    kernel = tilec.autotune(configs(), ["n"])(add)
    for call in (lambda: kernel[1](x, x, x, 8, **given),
                 lambda: kernel.warmup(x, x, x, 8, grid=1, **given)):
        with pytest.raises(LaunchError, match=f"with `{name}`, which the tuner chooses") as caught:
            call()
        assert caught.value.loc == add.def_location
    with pytest.raises(LaunchError, match="with `BLOCK`, which the tuner chooses"):
        kernel[1](x, x, x, 8, 32)
    with pytest.raises(LaunchError, match="with `BLOCK`, which a heuristic chooses"):
        tilec.heuristics({"BLOCK": lambda a: 1})(add)[1](x, x, x, 8, 32)


def test_errors_of_launches_are_those_of_the_kernel():
    x = np.zeros(8, np.float32)
    kernel = tilec.autotune(configs(), ["n"])(add)
    for call, message in [
        (lambda: kernel[1](x, x), "without its argument `out_ptr`"),
        (lambda: kernel[1](x, x, x, 8, zzz=3), "no parameter or launch option `zzz`"),
        (lambda: kernel[1](x, x, "text", 8), "argument `out_ptr`: it is a str"),
        (lambda: kernel[None](x, x, x, 8), "grid is None"),
        (lambda: kernel[1](x, x, x, 8, debug={}), "argument `debug`: a constexpr is {}"),
        (lambda: tilec.autotune(configs(), ["x_ptr"])(add)[1](x, x, x, 8), "but an array"),
    ]:
        with pytest.raises(LaunchError) as caught:
            call()
        assert message in caught.value.message and caught.value.loc == add.def_location
    with pytest.raises(CompilationError, match=r"launch it with add\[grid\]"):
        kernel(x, x, x, 8)


def test_maxnreg_belongs_to_the_configs_only_if_one_of_them_has_it():
    x = np.zeros(8, np.float32)
    assert tilec.autotune(configs(), [])(add)[1](x, x, x, 8, maxnreg=32).options.maxnreg == 32
    limited = tilec.autotune(configs(maxnreg=64), [])(add)
    assert limited[1](x, x, x, 8).options.maxnreg == 64
    with pytest.raises(LaunchError, match="`maxnreg`, which the tuner chooses"):
        limited[1](x, x, x, 8, maxnreg=32)


def test_clusters_are_a_choice():
    x = np.zeros(8, np.float32)
    clustered = tilec.autotune(configs(num_ctas=2), [])(add)
    assert clustered[2](x, x, x, 8).options.num_ctas == 2
    assert "num_ctas: 2" in str(configs(num_ctas=2)[0])
    with pytest.raises(LaunchError, match="expected a multiple of num_ctas, which is 2"):
        clustered[1](x, x, x, 8)


def test_names_and_texts():
    kernel = tilec.autotune(ONE, [])(tilec.heuristics({})(add))
    assert kernel.__name__ == kernel.name == "add" and kernel.base is add
    assert repr(kernel) == f"<Autotuner of <Heuristics of {add!r}>>"
    assert repr(ONE[0]) == "<Config BLOCK: 32, num_warps: 1, num_stages: 3>"
    assert isinstance(kernel, heuristics.Launchable)


def test_the_default_timer_gets_the_stream_and_the_times(gpu, monkeypatch):
    calls = []

    def timer(fn, *times, before, **more):
        before()
        fn()
        calls.append((times, more))
        return [float(len(calls))] * 3

    monkeypatch.setattr(tuner, "do_bench", timer)
    kernel = tilec.autotune(configs(), ["n"], warmup=5, rep=7)(from_text(TEXT))
    dx, dout, x, out = device_arrays(gpu)
    kernel[blocks](dx, dout, 100, stream=11)
    assert calls == [((5, 7), {"quantiles": (0.5, 0.2, 0.8), "stream": 11, "index": 0})] * 3
    assert np.array_equal(out, x + 1) and {c[3] for c in gpu.copies} == {11}
