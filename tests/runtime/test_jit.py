"""Binding, launch errors, placement, and what makes a launch compile anew."""

from __future__ import annotations

import gc
import re
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import (
    CudaArray,
    Launches,
    Memory,
    add,
    arrays,
    from_text,
    scale,
)
from tilec import errors, knobs
from tilec.errors import CompilationError, LaunchError, TilecError
from tilec.runtime import device, host, jit
from tilec.runtime.arguments import leaves
from tilec.runtime.kernel import CompiledKernel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(device, "gpu_available", lambda: False)


# -- what works -------------------------------------------------------------------------------

def test_launch_on_numpy():
    x, y, out = arrays(1000)
    k = add[(4,)](x, y, out, 1000, BLOCK=256)
    assert isinstance(k, CompiledKernel) and np.array_equal(out, x + y)
    assert k is add[(4,)](x, y, out, 1000, BLOCK=256, num_warps=4)
    assert k is add[4](x_ptr=x, y_ptr=y, out_ptr=out, n=1000, BLOCK=256)
    assert k is add.run(x, y, out, 1000, 256, grid=(4, 1, 1))
    assert k is not add[4](x, y, out, 1000, 256, num_warps=2)


@pytest.mark.parametrize("grid", [
    3, (3,), [3], np.int64(3), (np.int32(3),), (3, 1), (np.uint8(3), 1, 1), np.array([3, 1]),
    lambda meta: (tilec.cdiv(meta["n"], meta["BLOCK"]),), lambda meta: 3,
])
def test_grids(grid):
    x, y, out = arrays(100)
    add[grid](x, y, out, 100, BLOCK=40)
    assert np.array_equal(out, x + y)


@pytest.mark.parametrize("grid", [(0,), (3, 0), 0, (0, 0, 0)])
def test_empty_grids_run_nothing(grid):
    x, y, out = arrays(100)
    add[grid](x, y, out, 100, BLOCK=40)
    assert np.isnan(out).all()


def test_grid_functions_see_arguments_defaults_and_options():
    seen = []
    kernel = from_text("@tilec.jit(num_warps=2)\n"
                       "def k(p, n, A: tl.constexpr, B: tl.constexpr = 8):\n    pass\n")
    p = np.zeros(3, np.float32)
    kernel[lambda meta: seen.append(meta) or (1,)](p, 5, A=4, num_stages=1)
    (meta,) = seen
    assert meta["p"] is p
    assert {k: v for k, v in meta.items() if k != "p"} == {
        "n": 5, "A": 4, "B": 8, "num_warps": 2, "num_stages": 1, "debug": False, "maxnreg": 0,
        "launch_pdl": False, "find_boxes": True, "num_ctas": 1}


def test_arguments_that_are_constants_take_no_place():
    kernel = from_text("""
@tilec.jit
def k(none, p, one, pair, f, two, C: tl.constexpr):
    v = f(one + two)
    if none is None:
        v += pair[0] + pair[1]
    tl.store(p, v + C)
""")
    helper = from_text("@tilec.jit\ndef helper(x):\n    return x * 10\n")
    out = np.zeros(1, np.int32)
    k = kernel[1](None, out, 1, (1, 5), helper, 2, 100)
    assert out[0] == (1 + 2) * 10 + 6 + 100
    assert list(k.signature) == ["p", "pair", "two"]
    kernel[1](None, out, 3, (7, 5), helper, 1, 100)
    assert out[0] == (3 + 1) * 10 + 12 + 100


def test_every_kind_of_scalar_reaches_the_kernel():
    kernel = from_text("""
@tilec.jit
def k(p, a, b, c: tl.int64, d: "fp16"):
    tl.store(p, a)
    tl.store(p + 1, tl.where(b, 1.0, 0.0))
    tl.store(p + 2, c.to(tl.float32))
    tl.store(p + 3, d.to(tl.float32))
""")
    out = np.zeros(4, np.float32)
    kernel[1](out, np.float64(0.5), np.bool_(True), np.int8(3), 0.1)
    assert out.tolist() == [0.5, 1.0, 3.0, float(np.float16(0.1))]


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_host_arrays_of_other_dtypes(dtype):
    x, y, out = arrays(100, dtype)
    add[1](x, y, out, 100, BLOCK=128)
    assert out.tobytes() == (x + y).astype(dtype).tobytes()


def test_views_that_are_not_contiguous():
    kernel = from_text("""
@tilec.jit
def k(x, out, stride, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i * stride, tl.load(x + i * stride) * 2)
""")
    whole = np.arange(40, dtype=np.float32).reshape(10, 4)
    out = np.zeros_like(whole)
    kernel[1](whole[:, 1], out[:, 1], 4, N=10)
    assert np.array_equal(out[:, 1], whole[:, 1] * 2) and out.sum() == out[:, 1].sum()


# -- launch errors ----------------------------------------------------------------------------

x, y, out = arrays(8)
TWO = from_text("@tilec.jit\ndef two(a, BLOCK: tl.constexpr):\n    pass\n")
ERRORS = {
    "unknown option": (lambda: add[1](x, y, out, 8, BLOCK=8, num_warp=4),
                       "no parameter or launch option `num_warp`", "did you mean `num_warps`?"),
    "unknown parameter": (lambda: add[1](x, y, out, 8, BLOK=8),
                          "no parameter or launch option `BLOK`", "did you mean `BLOCK`?"),
    "nothing alike": (lambda: add[1](x, y, out, 8, BLOCK=8, zzz=1), "`zzz`", "it has x_ptr, y_ptr"),
    "no constexpr": (lambda: add[1](x, y, out, 8), "without its constexpr `BLOCK`", "BLOCK=..."),
    "no argument": (lambda: add[1](x, y, n=8, BLOCK=8), "without its argument `out_ptr`",
                    "out_ptr=..."),
    "too many": (lambda: TWO[1](1, 2, 3, 4), r"takes 2 arguments \(a, BLOCK\), 4", "by name"),
    "twice": (lambda: TWO[1](1, 2, a=3), "`a` by position and by name", "once"),
    "num_warps": (lambda: TWO[1](5, 8, num_warps=33), "num_warps is 33", ""),
    "num_warps text": (lambda: TWO[1](5, 8, num_warps="4"), "num_warps is '4'", ""),
    "num_warps list": (lambda: TWO[1](5, 8, num_warps=[4]), r"num_warps is \[4\], expected a", ""),
    "num_stages": (lambda: TWO[1](5, 8, num_stages=0), "num_stages is 0, expected 1 to 16",
                   "leave it out for the default, 3"),
    "num_ctas": (lambda: TWO[1](5, 8, num_ctas=3), "num_ctas is 3, expected 1, 2, 4 or 8",
                 "leave it out for the default, 1"),
    "target": (lambda: TWO[1](5, 8, target="sm_91"), "unknown target `sm_91`", "sm_90"),
    "unhashable": (lambda: TWO[1](5, {1: 2}), r"argument `BLOCK`: a constexpr is \{1: 2\}",
                   "give a number"),
    "text": (lambda: TWO[1]("text", 8), "argument `a`: it is a str", "declare the parameter"),
    "complex": (lambda: TWO[1](np.zeros(3, complex), 8), "argument `a`: `complex128`", ""),
    "too large": (lambda: TWO[1](2**70, 8), "argument `a`: .* 64 bits", ""),
    "grid 0-d": (lambda: TWO[()](5, 8), r"grid is \(\)", "write it as"),
    "grid 4-d": (lambda: TWO[1, 1, 1, 1](5, 8), r"grid is \(1, 1, 1, 1\)", "write it as"),
    "grid negative": (lambda: TWO[(-1,)](5, 8), r"grid is \(-1,\)", "write it as"),
    "grid float": (lambda: TWO[(4.0,)](5, 8), r"grid is \(4.0,\)", "cdiv"),
    "grid None": (lambda: TWO[None](5, 8), "grid is None", "write it as"),
    "grid function": (lambda: TWO[lambda meta: meta["a"] / 2](5, 8), "grid is 2.5", "cdiv"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_launch_errors(case):
    launch, message, advice = ERRORS[case]
    for _ in range(2):  # the second time through whatever the first one left
        with pytest.raises(TilecError, match=message) as caught:
            launch()
        assert advice in caught.value.advice
        if case != "target":
            assert isinstance(caught.value, LaunchError)
            fn = TWO if "two" in str(caught.value) or "def two" in str(caught.value) else add
            assert caught.value.loc == fn.def_location


def test_a_value_that_only_later_does_not_fit():
    TWO[1](5, 8)
    with pytest.raises(LaunchError, match="argument `a`: .* does not fit into 64 bits"):
        TWO[1](2**65, 8)


def test_calling_without_a_grid():
    with pytest.raises(CompilationError, match=r"launch it with add\[grid\]"):
        add(x, y, out, 8, BLOCK=8)


def test_errors_at_decoration():
    with pytest.raises(CompilationError, match="`num_warp` is no option") as caught:
        tilec.jit(num_warp=3)
    assert "num_warps" in caught.value.advice
    wide = from_text("@tilec.jit(num_warps=33)\ndef k(a):\n    pass\n")
    with pytest.raises(LaunchError, match="num_warps is 33") as caught:
        wide[1](3)
    assert caught.value.loc == wide.def_location


def test_compile_errors_come_back_each_time():
    kernel = from_text("@tilec.jit\ndef k(p):\n    tl.store(p, undefined)\n")
    for _ in range(2):
        with pytest.raises(CompilationError, match="undefined"):
            kernel[1](np.zeros(1, np.float32))


# -- where kernels run ------------------------------------------------------------------------

def test_the_note_is_printed_once(monkeypatch, capsys):
    monkeypatch.setattr(errors, "_noted", set())
    kernel = from_text("@tilec.jit\ndef k(p, C: tl.constexpr):\n    pass\n")
    kernel[1](np.zeros(1), 1)
    kernel[1](np.zeros(1), 2)
    assert capsys.readouterr().err.count("tilec: `k` runs on the CPU") == 1


def test_no_note_where_a_level_was_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(errors, "_noted", set())
    with knobs.scope(run="tile"):
        scale[1](np.zeros(32, np.float32), np.zeros(32, np.float32), 2.0)
    assert capsys.readouterr().err == ""


def test_numpy_arrays_stay_on_the_cpu_beside_a_gpu(monkeypatch):
    launches = Launches(monkeypatch)
    Memory(monkeypatch)
    x, y, out = arrays(16)
    add[1](x, y, out, 16, BLOCK=16)
    assert np.array_equal(out, x + y) and not launches.calls


def test_device_arrays_are_launched(monkeypatch):
    launches, memory = Launches(monkeypatch), Memory(monkeypatch)
    dx, dy, dout = (memory.array(a) for a in arrays(64))
    k = add[lambda meta: (meta["n"] // 16, 2)](dx, dy, dout, 64, BLOCK=16, num_warps=2, stream=7)
    assert launches.calls == [((4, 2, 1), 64, 0, 7, [0x1000, 0x101000, 0x201000, 64])]
    assert k.target.name == "sm_90a"
    add[1](dx, dy, dout, 1, BLOCK=16, num_warps=2)
    assert launches.calls[1] == ((1, 1, 1), 64, 0, 0, [0x1000, 0x101000, 0x201000])


def test_streams(monkeypatch):
    class Stream:
        cuda_stream = 99

    launches, memory = Launches(monkeypatch), Memory(monkeypatch)
    dx = memory.array(arrays(32)[0])
    for stream in (Stream(), None, 5):
        scale[1](dx, dx, 2.0, stream=stream)
    assert [c[3] for c in launches.calls] == [99, 0, 5]
    with pytest.raises(LaunchError, match="stream is 'x', expected a stream"):
        scale[1](dx, dx, 2.0, stream="x")


def test_kernels_without_arrays_go_where_the_gpu_is(monkeypatch):
    launches = Launches(monkeypatch)
    kernel = from_text("@tilec.jit\ndef k(n):\n    pass\n")
    kernel[1](5)
    assert not launches.calls
    Memory(monkeypatch)
    from_text("@tilec.jit\ndef k(n):\n    pass\n")[1](5)
    assert launches.calls == [((1, 1, 1), 128, 0, 0, [5])]


def test_mixed_places_are_refused(monkeypatch):
    memory = Memory(monkeypatch)
    x, y, out = arrays(16)
    with pytest.raises(LaunchError, match=r"`x_ptr` on the host \(numpy\) and `y_ptr` on GPU 0"):
        add[1](x, memory.array(y), out, 16, BLOCK=16)
    other = memory.array(y)
    other.device = type("Device", (), {"id": 1})()
    with pytest.raises(LaunchError, match="`x_ptr` on GPU 0 and `y_ptr` on GPU 1"):
        add[1](memory.array(x), other, other, 16, BLOCK=16)


@pytest.mark.parametrize("level", ["tile", "gpu", "lowered", "ptx"])
def test_run_flag_copies_device_arrays_over_and_back(monkeypatch, level):
    launches, memory = Launches(monkeypatch), Memory(monkeypatch)
    x, y, out = arrays(64)
    with knobs.scope(run=level):
        add[1](memory.array(x), memory.array(y), memory.array(out), 60, BLOCK=64)
    assert np.array_equal(out[:60], x[:60] + y[:60]) and np.isnan(out[60:]).all()
    assert not launches.calls and len(memory.written) == 3


def test_interpret_flag(monkeypatch):
    launches, memory = Launches(monkeypatch), Memory(monkeypatch)
    x = np.ones(32, np.float32)
    monkeypatch.setenv("TILEC_INTERPRET", "1")
    dx = memory.array(x)
    scale[1](dx, dx, 2.0)
    assert (x == 5).all() and not launches.calls
    monkeypatch.setenv("TILEC_INTERPRET", "0")
    scale[1](dx, dx, 2.0)
    assert len(launches.calls) == 1


def test_copies_of_views_keep_strides_and_aliases(monkeypatch):
    memory = Memory(monkeypatch)
    whole = np.arange(64, dtype=np.float32).reshape(8, 8).copy()
    memory.array(whole, 0x4000)
    kernel = from_text("""
@tilec.jit
def k(x, out):
    i = tl.arange(0, 4)
    tl.store(out + i, tl.load(x + i * 8) + 100)
""")
    column = CudaArray(whole[::2, 0], 0x4000, strides=(64,))
    with knobs.scope(run="tile"):
        kernel[1](CudaArray(whole, 0x4000), memory.array(np.zeros(4, np.float32)))
        kernel[1](CudaArray(whole, 0x4000), CudaArray(whole[1], 0x4020))
        assert len(memory.written) == 3  # two copies, and then one of both
    assert whole[1, :4].tolist() == [100, 108, 116, 124]
    seen = host._Mirror([column]).host(column)
    assert seen.tolist() == whole[::2, 0].tolist() and seen.strides == (64,)


# -- warmup, and reading arguments -------------------------------------------------------------

def test_warmup(monkeypatch):
    k = add.warmup(np.float32, np.dtype("float32"), tl.float32, 100, BLOCK=64, grid=(1,))
    assert {n: str(s) for n, s in k.signature.items()} == {
        "x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "out_ptr": "*fp32:16", "n": "i32"}
    assert k.target.name == "sm_90a" and ".target sm_90a" in k.asm["ptx"]
    x, y, out = arrays(100)
    with knobs.scope(target="sm_80"):
        k = add.warmup(x, y, out, 1, BLOCK=64)
    assert k.target.name == "sm_80" and np.isnan(out).all()
    assert "n" not in k.signature and k.constexprs == {"n": 1, "BLOCK": 64}
    with pytest.raises(LaunchError, match="without its constexpr `BLOCK`"):
        add.warmup(x, y, out, 1, grid=(1,))
    Memory(monkeypatch)
    monkeypatch.setattr(device, "target_of", lambda index: "sm_89")
    assert add.warmup(x, y, out, 5, BLOCK=64).target.name == "sm_89"


def test_warmup_follows_the_flags(capsys):
    for dump, count in (("tile", 1), ("", 0), ("gpu", 1)):
        with knobs.scope(dump=dump):
            add.warmup(np.float32, np.float32, np.float32, 5, BLOCK=32)
        assert capsys.readouterr().err.count("-----\n") == count


def test_plans_keep_no_arguments():
    kernel = from_text("@tilec.jit\ndef k(p):\n    pass\n")
    p = np.zeros(4, np.float32)
    kernel[1](p)
    alive = weakref.ref(p)
    del p
    gc.collect()
    assert alive() is None


VALUES = [0, 1, 2, -1, 15, 16, 17, 2**31 - 1, 2**31, 2**31 + 1, -(2**31), -(2**31) - 1, 2**40,
          2**63, 2**64 - 1, True, False, None, 0.0, -0.0, 1.0, float("nan"), (), (1,), (2, 1.0),
          (16,), (True,), np.int8(1), np.float32(1), np.arange(9, dtype=np.int32),
          np.arange(9, dtype=np.float32), np.arange(33, dtype=np.int8)[1:], tl.constexpr(1), add,
          tl.float32, "relu", CudaArray(np.zeros(2), 64), CudaArray(np.zeros(2), 72)]


@pytest.mark.parametrize("declaration", ["v", "v: tl.constexpr", "v: tl.int64", "v=16"])
def test_plans_tell_apart_what_the_table_tells_apart(declaration):
    kernel = from_text(f"@tilec.jit\ndef k({declaration}):\n    pass\n")
    seen = {}
    for value in VALUES:
        try:
            plan = kernel._plan((value,), {})
        except LaunchError:
            continue
        read, values = plan.read(value)
        (key,), _ = plan.keys((value,))
        whole = type(value), read
        assert seen.setdefault(whole, key) == key
        assert isinstance(values, tuple) and len(values) == len(
            [] if declaration.endswith("constexpr") else leaves(key))
    assert len(set(seen.values())) > (2 if "int64" in declaration else 15)
    if declaration == "v=16":
        plan = kernel._plan((), {})
        assert plan.read() == ((True,), (16,))


def test_readers_are_plain_python():
    dx = CudaArray(np.zeros(4, np.float32), 0x1000)
    sources, options = add._bind((dx, dx, dx, 5), {"BLOCK": 3, "num_warps": 4})
    assert sources == [0, 1, 2, 3, 4] and options == {"num_warps": 5}
    plan = jit.Plan(add.params, add._fixed, sources, options, (dx, dx, dx, 5, 3, 4), None)
    key, values = plan.read(dx, dx, dx, 48, 3, 4)
    assert values == (0x1000, 0x1000, 0x1000, 48)
    assert key == (4, *[("fp32", True, 0)] * 3, True, 3)
    assert plan.read(dx, dx, dx, 49, 3, 4)[0][-2] is False
    assert re.match(r"Const\(kind=<class 'int'>, value=1\)",
                    str(plan.read(dx, dx, dx, 1, 3, 4)[0][-2]))
