"""Heuristics beside the tuner, and what both say of mistakes."""

from __future__ import annotations

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
)
from tilec.errors import CompilationError, LaunchError
from tilec.runtime import heuristics, tuner

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
    "no Config": (lambda: tilec.autotune([{"BLOCK": 3}], ["n"])(add), "configs of `add`", "Config"),
    "zero": (lambda: tilec.autotune(ONE, [], reset_to_zero=["out"])(add), "reset_to_zero names",
             "did you mean `out_ptr`"),
    "restore": (lambda: tilec.autotune(ONE, [], restore_value=["q"])(add), "restore_value names",
                ""),
    "parameter": (lambda: tilec.autotune([tilec.Config({"BLOK": 1})], [])(add),
                  "the config BLOK: 1, num_warps: 4, num_stages: 3 names `BLOK`", "`BLOCK`"),
    "warps": (lambda: tilec.autotune(configs([(32, 33)]), [])(add), "num_warps is 33", ""),
    "top": (lambda: tilec.autotune(ONE, [], {"perf_model": max, "top_k": "all"})(add),
            "top_k is 'all'", "fraction"),
    "heuristic": (lambda: tilec.heuristics({"BLOK": max})(add), "@tilec.heuristics names `BLOK`",
                  "BLOCK"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_said_at_the_first_launch(case):
    make, message, advice = WRONG[case]
    kernel, x = make(), np.zeros(8, np.float32)
    for call in (lambda: kernel[1](x, x, x, 8), lambda: kernel.warmup(x, x, x, 8, grid=1)):
        with pytest.raises(LaunchError) as caught:
            call()
        assert message in caught.value.message and advice in caught.value.advice
        assert caught.value.loc == add.def_location


def test_names_that_say_nothing_are_noted(capsys):
    kernel = tilec.autotune(ONE, ["m", "BLOK"], {"perf_modl": 1})(from_text(TEXT))
    kernel.warmup(tl.float32, tl.float32, 8, grid=1)
    x = np.ones(8, np.float32)
    kernel[1](x, x, 8)
    assert (x == 2).all()
    notes = capsys.readouterr().err.splitlines()
    assert [n.partition(": the ")[2] for n in notes if ": the " in n] == [
        "key of `accumulate` has `m`, which says nothing; it may have x_ptr, out_ptr, n, BLOCK",
        "key of `accumulate` has `BLOK`, which says nothing; did you mean `BLOCK`?",
        "prune_configs_by of `accumulate` has `perf_modl`, which says nothing; did you mean "
        "`perf_model`?"]


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

    def timer(fn, *times, before, after, **more):
        before()
        fn()
        after()
        calls.append((times, more))
        return [float(len(calls))] * 3

    monkeypatch.setattr(tuner, "do_bench", timer)
    kernel = tilec.autotune(configs(), ["n"], warmup=5, rep=7)(from_text(TEXT))
    dx, dout, x, out = device_arrays(gpu)
    kernel[blocks](dx, dout, 100, stream=11)
    assert calls == [((5, 7), {"quantiles": (0.5, 0.2, 0.8), "stream": 11, "index": 0})] * 3
    assert np.array_equal(out, x + 1) and {c[3] for c in gpu.copies} == {11}
