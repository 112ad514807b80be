"""The tuner and do_bench on a real GPU: results, restoring, and times that make sense."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.gpu.test_levels import OnDevice
from tilec import knobs
from tilec.runtime import device

pytestmark = pytest.mark.gpu


def tuned(fn, sizes=((256, 2), (1024, 4), (4096, 8)), key=("n",), **options):
    configs = [tilec.Config({"BLOCK": b}, num_warps=w) for b, w in sizes]
    return tilec.autotune(configs, list(key), warmup=2, rep=10, **options)(fn)


def blocks(meta):
    return (tilec.cdiv(meta["n"], meta["BLOCK"]),)


@tilec.jit
def accumulate(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, tl.load(out_ptr + i, mask=i < n) + x, mask=i < n)


@tilec.jit
def total(x_ptr, sum_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(sum_ptr, tl.sum(tl.load(x_ptr + i, mask=i < n, other=0), 0))


def test_arrays_that_are_added_to_see_one_launch() -> None:
    n = 100_003
    x, out = np.arange(n, dtype=np.float32), np.full(n, 0.5, np.float32)
    dx, dout = OnDevice(x), OnDevice(out)
    kernel = tuned(accumulate)
    for launches in (1, 2, 3):
        kernel[blocks](dx, dout, n)
        np.testing.assert_array_equal(dout.get(), out + launches * x)
    np.testing.assert_array_equal(dx.get(), x)
    assert kernel.best_config in kernel.configs and len(kernel.cache) == 1
    assert set(kernel.configs_timings) == set(kernel.configs)
    for median, low, high in kernel.configs_timings.values():
        assert 0 < low <= median <= high < 10


@pytest.mark.parametrize("reset", [(), ("sum_ptr",)])
def test_atomics(reset) -> None:
    x = np.arange(5000, dtype=np.int32)
    dx, dsum = OnDevice(x), OnDevice(np.full(1, 0 if reset else 7, np.int32))
    tuned(total, reset_to_zero=reset)[blocks](dx, dsum, x.size)
    assert dsum.get()[0] == x.sum() + (0 if reset else 7)


@tilec.jit
def transpose(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = (i[:, None] < n) & (i[None, :] < n)
    x = tl.load(x_ptr + i[:, None] * n + i[None, :], mask=inside)
    tl.store(out_ptr + i[:, None] * n + i[None, :], tl.trans(x), mask=tl.trans(inside))


def test_what_does_not_fit_is_dropped() -> None:
    x = np.arange(50 * 50, dtype=np.float32).reshape(50, 50)
    dx, dout = OnDevice(x), OnDevice(np.zeros_like(x))
    kernel = tuned(transpose, ((512, 8), (64, 4), (128, 8)))
    kernel[1](dx, dout, 50)
    np.testing.assert_array_equal(dout.get(), x.T)
    assert kernel.configs_timings[kernel.configs[0]] == [float("inf")]
    assert kernel.best_config in kernel.configs[1:]


def test_results_are_kept_on_disk(tmp_path, capsys) -> None:
    n = 10_000
    dx, dout = OnDevice(np.ones(n, np.float32)), OnDevice(np.zeros(n, np.float32))
    with knobs.scope(cache_dir=tmp_path, print_autotuning=True):
        first = tuned(accumulate, cache_results=True)
        first[blocks](dx, dout, n)
        again = tuned(accumulate, cache_results=True)
        again[blocks](dx, dout, n)
    assert list(again.configs_timings.values()) == list(first.configs_timings.values())
    assert str(again.best_config) == str(first.best_config)
    assert capsys.readouterr().err.count("tilec: tuned `accumulate` for n=10000") == 2
    assert (dout.get() == 2).all()


def test_do_bench_grows_with_the_work() -> None:
    times = []
    for n in (1 << 20, 1 << 26):
        with device.DeviceBuffer(4 * n) as a, device.DeviceBuffer(4 * n) as b:
            times.append(tilec.testing.do_bench(
                lambda a=a, b=b: device.copy(a.pointer, b.pointer, a.nbytes, 0), 2, 20))
    assert 0 < times[0] < times[1] < 10 and times[1] > 4 * times[0]


def test_torch_tensors_and_streams() -> None:
    torch = pytest.importorskip("torch")
    n = 70_001
    kernel = tuned(accumulate)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(n, 2, device="cuda", dtype=dtype)[:, 0].contiguous()
        out = torch.zeros_like(x)
        kernel[blocks](x, out, n)
        assert bool((out == 1).all())
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        out = torch.zeros(n, device="cuda")
        kernel[blocks](torch.ones(n, device="cuda"), out, n, stream=side)
    side.synchronize()
    assert bool((out == 1).all()) and len(kernel.cache) == 2
