"""The host side as users of Triton write it: what they pass, read and hook."""

from __future__ import annotations

import csv
import inspect
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.runtime.support import Memory, add, from_text
from tests.runtime.test_bench import Events
from tilec import knobs
from tilec.errors import LaunchError, ToolError
from tilec.runtime import bench, device, hooks
from tilec.runtime.driver import active
from tilec.runtime.interface import GPUTarget

# -- what kernels say of themselves -----------------------------------------------------------


@tilec.jit(do_not_specialize=["n"], noinline=True, version=2, debug=None)
def told(
    x_ptr: tl.const, n,
    BLOCK: tl.constexpr = 16,
):
    tl.static_assert(BLOCK == 16)  # its one statement


def test_attributes_of_kernels():
    assert told.arg_names == ["x_ptr", "n", "BLOCK"] and told.constexprs == [2]
    assert [(p.name, p.num, p.is_constexpr, p.is_const, p.has_default, p.do_not_specialize)
            for p in told.params] == [("x_ptr", 0, False, True, False, False),
                                      ("n", 1, False, False, False, True),
                                      ("BLOCK", 2, True, False, True, False)]
    assert told.params[2].default == 16 and told.params[1].default is inspect.Parameter.empty
    assert told.signature == inspect.signature(told.fn) and told.fn.__name__ == told.__name__
    assert told.src.startswith("def told(\n    x_ptr: tl.const, n,\n")
    assert told.src.endswith("statement\n") and told.raw_src[0].startswith("@tilec.jit(")
    assert len(told.raw_src) == 6 and told.__module__ == __name__
    assert told.__globals__ is globals() and told.cache_key == told.source_key()


def test_the_source_of_a_function_inside_is_not_indented():
    @tilec.jit
    def inside(p):
        if p is None:
            pass

    assert inside.src == "def inside(p):\n    if p is None:\n        pass\n"


def test_compiled_kernels_are_counted():
    kernel = from_text("@tilec.jit\ndef k(p, N: tl.constexpr):\n    tl.store(p, N)\n")
    out = np.zeros(1, np.int32)
    for n in (3, 4, 4):
        kernel[1](out, n)
    ((made, *_),) = kernel.device_caches.values()
    assert kernel.device_caches[0][0] is made and len(made) == 2


def test_parameters_named_like_what_a_launch_takes():
    kernel = from_text("""
@tilec.jit
def k(p, grid, stream, warmup: tl.constexpr):
    tl.store(p, grid * 100 + stream * 10 + warmup)
""")
    out = np.zeros(1, np.int32)
    for call in (lambda: kernel[1](out, 3, 4, 5), lambda: kernel[(1,)](
            p=out, grid=3, stream=4, warmup=5)):
        out[:] = 0
        call()
        assert out[0] == 345


# -- compiled kernels -------------------------------------------------------------------------

def test_metadata_and_handles():
    made = add.warmup(*[tl.float32] * 3, 100, 64, grid=(2,), num_warps=2, num_stages=5)
    made._init_handles()
    about = made.metadata
    assert (about.name, about.num_warps, about.num_stages, about.num_ctas) == ("add", 2, 5, 1)
    assert about.shared == made.shared == 0 and about.hash == made.hash
    assert about.target == GPUTarget("cuda", 90, 32) and about.maxnreg is None
    assert made.packed_metadata == (2, 1, 0) and made.function is None
    assert made.n_regs > 0 and made.n_spills == 0 and 64 <= made.n_max_threads <= 1024
    assert about._asdict()["cluster_dims"] == (1, 1, 1)


@pytest.mark.parametrize("level", ["", "gpu", "ptx"])
def test_compiled_kernels_are_launched(level):
    x, y = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
    made = add.warmup(x, y, y, 100, 64, grid=(2,))
    with knobs.scope(run=level):
        for rest in ((100,), (100, 64)):
            out = np.full(100, np.nan, np.float32)
            assert made[(2, 1, 1)](x, y, out, *rest) is None
            assert np.array_equal(out, x + 1)
    with pytest.raises(LaunchError, match="compiled for BLOCK = 64, not the number 32|BLOCK = 64"):
        made[(2, 1, 1)](x, y, y, 100, 32)


def test_names_by_repr():
    def name(about):
        assert about.signature == {"p": "*i32", "N": "constexpr"}
        return f"store-{about.constants['N']}"

    @tilec.jit(repr=name)
    def k(p, N: tl.constexpr):
        tl.store(p, N)

    out = np.zeros(1, np.int32)
    for level in ("tile", "ptx"):
        with knobs.scope(run=level):
            made = k[1](out, 7)
        assert out[0] == 7 and made.name == made.metadata.name == "store_7"
        out[:] = 0
    assert ".entry store_7(" in made.asm["ptx"] and "func @store_7(" in made.asm["tile"]


# -- hooks ------------------------------------------------------------------------------------

def test_hooks_around_launches():
    @tilec.jit(launch_metadata=lambda grid, about, args: {
        "flops": grid[0] * args["N"], "warps": about.num_warps, "called": calls.append("asked")})
    def k(p, N: tl.constexpr):
        tl.store(p, N)

    calls, out = [], np.zeros(1, np.int32)

    def enter(info):
        calls.append(("enter", out[0], info))

    def leave(info):
        calls.append(("exit", out[0], info.get()["flops"], info.get()["name"]))

    k.add_pre_run_hook(lambda *args, **kwargs: calls.append(("run", len(args), kwargs)))
    hooks.launch_enter.add(enter)
    hooks.launch_exit.add(leave)
    try:
        k[(3,)](out, N=7, num_warps=2)
    finally:
        hooks.launch_enter.remove(enter)
        hooks.launch_exit.remove(leave)
        hooks.ACTIVE.clear()
    kinds = [c if isinstance(c, str) else c[0] for c in calls]
    assert kinds == ["run", "enter", "asked", "exit"]
    assert calls[0] == ("run", 1, {"N": 7, "num_warps": 2})
    assert calls[1][1] == 0 and calls[-1][1:] == (7, 21, "k")
    assert calls[1][2].get() == {"name": "k", "stream": None, "function": None, "flops": 21,
                                 "warps": 2, "called": None}
    k[(1,)](out, N=8)
    assert out[0] == 8 and kinds + ["run"] == [c if isinstance(c, str) else c[0] for c in calls]


# -- arguments --------------------------------------------------------------------------------

class Strided:
    """No array, but an address in one, with a dtype."""

    def __init__(self, base, offset=0):
        self._base, self._offset, self.dtype = base, offset, base.dtype

    def data_ptr(self):
        return self._base.ctypes.data + self._offset * self._base.itemsize


@pytest.mark.parametrize("level", ["tile", "gpu", "ptx"])
def test_objects_with_an_address(level, rng):
    whole = rng.random((10, 20), np.float32)
    out = np.full(16, np.nan, np.float32)
    with knobs.scope(run=level):
        add[1](Strided(whole[2:], 5), Strided(whole.T, 7), Strided(out), 16, BLOCK=16)
    flat = whole.ravel()
    assert np.array_equal(out, flat[45:61] + flat[7:23])


def test_objects_with_an_address_that_cannot_be_followed():
    x = np.zeros(16, np.float32)
    lost = SimpleNamespace(data_ptr=lambda: 64, dtype=np.dtype(np.float32))
    with pytest.raises(LaunchError, match="with an address, and no array that the address is in"):
        add[1](lost, x, x, 16, BLOCK=16)
    far = Strided(x, 1 << 20)
    with pytest.raises(LaunchError, match="with the address .* which is not in its array"):
        add[1](far, x, x, 16, BLOCK=16)


def test_reinterpreted_arrays():
    bits = np.arange(64, dtype=np.int32).view(np.float32)
    out = np.zeros(64, np.int32)
    seen = tilec.reinterpret(bits, tl.int32)
    assert isinstance(seen, tilec.TensorWrapper) and seen.shape == (64,)
    add[1](seen, seen, out, 64, BLOCK=64)
    assert np.array_equal(out, 2 * np.arange(64))
    assert tilec.reinterpret(seen, tl.float32) is bits
    assert tilec.reinterpret(seen, tl.int8).dtype == tl.int8
    with pytest.raises(LaunchError, match="cannot reinterpret 3"):
        tilec.reinterpret(3, tl.int8)


@pytest.mark.parametrize("level", ["tile", "ptx"])
def test_options_of_other_compilers_at_a_launch(level, capsys):
    x, out = np.ones(16, np.float32), np.zeros(16, np.float32)
    with knobs.scope(run=level):
        made = add[1](x, x, out, 16, BLOCK=16, num_buffers_warp_spec=2, ptx_version=80,
                      enable_fp_fusion=False, launch_cooperative_grid=False, num_stages=None)
    assert (out == 2).all() and made.options.num_stages == 3
    with pytest.raises(LaunchError, match="no cooperative grids") as caught:
        add[1](x, x, out, 16, BLOCK=16, launch_cooperative_grid=True)
    assert caught.value.loc == add.def_location
    with pytest.raises(LaunchError, match="no parameter or launch option `num_buffer`"):
        add[1](x, x, out, 16, BLOCK=16, num_buffer=2)


# -- the device -------------------------------------------------------------------------------

def test_the_driver_without_a_gpu(monkeypatch):
    monkeypatch.setattr(device, "gpu_available", lambda: False)
    assert (active.get_current_device(), active.get_current_stream()) == (0, 0)
    assert active.get_current_target() == ("cpu", 90, 32) and not active.is_active()
    assert active.get_device_capability() == (9, 0)
    properties = active.utils.get_device_properties(active.get_current_device())
    assert properties == {
        "max_shared_mem": 232448, "max_num_regs": 65536, "multiprocessor_count": 1, "warpSize": 32,
        "sm_clock_rate": 0, "mem_clock_rate": 0, "mem_bus_width": 0}
    assert active.get_benchmarker() is bench.do_bench
    with knobs.scope(target="sm_80"):
        assert active.get_current_target().arch == 80
    fake = SimpleNamespace(cpu="the CPU", cuda="the GPU", device=lambda *a: a)
    monkeypatch.setitem(sys.modules, "torch", fake)
    assert active.get_device_interface() == "the CPU"
    assert active.get_active_torch_device() == ("cpu",)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ToolError, match="torch is not installed"):
        active.get_device_interface()


def test_the_driver_with_a_gpu(monkeypatch):
    Memory(monkeypatch)
    monkeypatch.setattr(device, "attribute", lambda index, name: len(name) + index)
    monkeypatch.setattr(device, "multiprocessors", lambda index: 132)
    fake = SimpleNamespace(cpu="the CPU", cuda="the GPU", device=lambda *a: a)
    monkeypatch.setitem(sys.modules, "torch", fake)
    properties = active.utils.get_device_properties(1)
    assert properties["multiprocessor_count"] == 132 and properties["sm_clock_rate"] == 11
    assert active.get_device_interface() == "the GPU" and active.is_active()
    assert active.get_active_torch_device() == ("cuda", 0)


def test_no_allocator_is_needed():
    assert tilec.set_allocator(lambda size, alignment, stream: None) is None


# -- benchmarks -------------------------------------------------------------------------------

def test_reports(capsys, tmp_path):
    @tilec.testing.perf_report(tilec.testing.Benchmark(
        x_names=["m", "n"], x_vals=[2, (3, 10)], line_arg="how", line_vals=["a", "b"],
        line_names=["A", "B"], plot_name="table", args={"k": 100}))
    def measure(m, n, how, k, extra=0):
        t = float(m * n + k + extra)
        return t if how == "a" else (t / 8, 0.0, t)

    measure.run(print_data=True, save_path=tmp_path / "new", extra=1000)
    assert capsys.readouterr().out.splitlines() == [
        "table:", "m   n            A           B", "2   2  1104.000000  138.000000",
        "3  10  1130.000000  141.250000"]
    with open(tmp_path / "new" / "table.csv", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["m", "n", "A", "B"], ["2", "2", "1104.0", "138.0"],
                                          ["3", "10", "1130.0", "141.25"]]
    for wanted in ("show_plots", "return_df"):
        with pytest.raises(ToolError, match="is not installed"):
            measure.run(**{wanted: True})
    short = tilec.testing.Benchmark(["m", "n"], [(1, 2, 3)], "how", ["a"], ["A"], "", {})
    with pytest.raises(ValueError, match="3 values for"):
        tilec.testing.perf_report([short])(lambda **_: 1.0).run()


def test_gradients_are_dropped_before_each_run(monkeypatch):
    events = Events(monkeypatch, [1.0])
    leaf = SimpleNamespace(grad=None)

    def run():
        assert leaf.grad is None
        leaf.grad = 3
        events.run()

    bench.do_bench(run, 1, 1, grad_to_none=[leaf], after=lambda: events.log.append("after"))
    assert events.log[3:5] == [("event", 5), "after"]


def test_do_bench_cudagraph(monkeypatch):
    events = Events(monkeypatch, [1.0, 1.0, 1.0, 1.0, 1.0])
    captured = []

    class Graph:
        def replay(self):
            for _ in range(captured[-1]):
                events.run()

    def graph(made, stream):
        begin = events.runs

        class Capture:
            def __enter__(self):
                return None

            def __exit__(self, *exc):
                captured.append(events.runs - begin)

        return Capture()

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(
        Stream=lambda: "a stream", stream=lambda s: nullcontext(), CUDAGraph=Graph, graph=graph,
        current_stream=lambda: "a stream")))
    assert tilec.testing.do_bench_cudagraph(events.run, rep=4) == 1.0
    assert captured == [4]
    assert bench.do_bench_cudagraph(events.run, rep=4, quantiles=[0.5, 0.2]) == [1.0, 1.0]
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(ToolError, match="not loaded"):
        bench.do_bench_cudagraph(events.run)
