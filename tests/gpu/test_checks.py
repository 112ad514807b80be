"""Checks compiled into kernels, on the GPU: the error names line and program, the process and its
context go on, and the next launch is right."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.gpu.test_hopper import in_process
from tests.gpu.test_levels import OnDevice
from tests.runtime import test_checks as kernels
from tilec import knobs
from tilec.runtime import device

pytestmark = pytest.mark.gpu


def right(block: int) -> None:
    """A launch without checks, which a context that an error ended would refuse."""
    x = np.arange(4 * block, dtype=np.float32)
    there, out = OnDevice(x), OnDevice(np.zeros_like(x))
    kernels.copy[(4,)](there, out, 0, 4 * block, BLOCK=block)
    device.synchronize()
    np.testing.assert_array_equal(out.get(), x)


def check_accesses(n: int, block: int) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    there, out = OnDevice(x), OnDevice(np.full(n, np.nan, np.float32))
    grid = (-(-n // block),)
    small = OnDevice(np.full(n // 2, np.nan, np.float32))
    with knobs.scope(check="gpu"):
        kernels.copy[grid](there, out, 0, n, BLOCK=block)
        np.testing.assert_array_equal(out.get(), x)
        message = kernels.failing(kernels.copy, "load", lambda: kernels.copy[grid](
            there, out, 0, n + 5, BLOCK=block))
        assert message.startswith(f"program ({grid[0] - 1}, 0, 0) reads x_ptr, ")
        assert message.endswith(f" past its end ({n} elements)")
        message = kernels.failing(kernels.copy, "store", lambda: kernels.copy[grid](
            there, small, 0, n, BLOCK=block))
        assert message.endswith(f" past its end ({n // 2} elements)")
        np.testing.assert_array_equal(small.get(), x[:n // 2])
        kernels.failing(kernels.copy, "load", lambda: kernels.copy[(1,)](
            there, out, -1, n, BLOCK=block))
    right(block)


@pytest.mark.parametrize("n", [1000, 5_000_011])
def test_accesses(n: int) -> None:
    in_process(check_accesses, n, 256)


def check_product(rounds: int) -> None:
    a = np.random.default_rng(3).standard_normal((rounds * 32, 32)).astype(np.float16)
    c = OnDevice(np.full((32, 32), np.nan, np.float32))
    there, b = OnDevice(a), OnDevice(np.eye(32, dtype=np.float16))
    with knobs.scope(check="gpu"):
        for more in (0, 1):
            def launch(n: int = rounds + more) -> None:
                kernels.product[(1,)](there, b, c, n, B=32)
            if more:
                kernels.failing(kernels.product, "load", launch)
            else:
                launch()
            want = a.reshape(rounds, 32, 32).astype(np.float64).sum(0)
            np.testing.assert_allclose(c.get(), want, atol=1e-3 * rounds)
    right(256)


def test_a_pipelined_product() -> None:
    in_process(check_product, 7)


def check_promises(warps: int) -> None:
    x = np.arange(256, dtype=np.int32)
    there, out = OnDevice(x), OnDevice(np.zeros(128, np.int32))
    with knobs.scope(check="gpu"):
        for mark, n, stride, repeat in (
                ("assume", 8, 1, 4), ("divisibility", 17, 1, 4), ("contiguity", 16, 2, 4),
                ("constancy", 16, 1, 1), ("assert", 104, 1, 4)):
            kernels.failing(kernels.promises, mark, lambda a=(n, stride, repeat): kernels.promises[
                (2,)](there, out, *a, B=64, num_warps=warps))
        kernels.promises[(2,)](there, out, 16, 1, 4, B=64, num_warps=warps)
    np.testing.assert_array_equal(out.get(), np.tile(x[16:80] + np.arange(64) // 4, 2))
    right(256)


def test_promises() -> None:
    in_process(check_promises, 1)


def check_wait(programs: int) -> None:
    out = OnDevice(np.zeros(programs, np.int32))
    with knobs.scope(check="gpu"):
        kernels.stuck[(programs,)](out, True)
        np.testing.assert_array_equal(out.get(), 7)
        began = time.monotonic()
        message = kernels.failing(kernels.stuck, "wait", lambda: kernels.stuck[(programs,)](
            out, False))
        assert message == "program (2, 0, 0): a thread has waited 2 s for this mbarrier"
        assert 1.9 < time.monotonic() - began < 20
        kernels.stuck[(programs,)](out, True)
    right(256)


def test_a_wait_without_end() -> None:
    in_process(check_wait, 64)
