"""Named barriers between warp roles on the GPU: many programs at once, many rounds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.test_hopper import in_process
from tests.gpu.test_levels import OnDevice
from tests.language import test_named_barriers as kernels
from tilec import TensorDescriptor
from tilec.runtime import device

pytestmark = pytest.mark.gpu


def check_hand_over(warps: int, others: int) -> None:
    rng = np.random.default_rng(warps)
    for n in (1, 128, 129, 100_003):
        x = rng.integers(-9, 9, n).astype(np.int32)
        there = [OnDevice(a) for a in (x, np.full(n, -1, np.int32), np.full(1, -1, np.int32))]
        # Programs write the same values, so that as many run as the GPU holds.
        for _ in range(20):
            kernels.handed_over[(264,)](*there, n, B=128, WARPS=(warps, others),
                                        GIVE=kernels.produce, TAKE=kernels.consume,
                                        num_warps=warps + others)
        device.synchronize()
        np.testing.assert_array_equal(there[1].get(), x * 2)
        assert there[2].get()[0] == 2 * x.sum()


@pytest.mark.parametrize("warps", [(1, 1), (4, 1), (2, 4), (4, 8)], ids=str)
def test_hand_over(warps: tuple[int, int]) -> None:
    in_process(check_hand_over, *warps)


def check_turns(rounds: int, warps: int) -> None:
    start = np.arange(128, dtype=np.int32)
    x, trace = OnDevice(start), OnDevice(np.full((2 * rounds, 128), -1, np.int32))
    kernels.in_turns[(1,)](x, trace, rounds, WARPS=warps, num_warps=2 * warps)
    there = OnDevice(start[:64]), OnDevice(np.full((3 * rounds, 64), -1, np.int32))
    kernels.ring[(1,)](*there, rounds, num_warps=4)
    device.synchronize()
    value, want = start.copy(), []
    for i in range(2 * rounds):
        want.append(value)
        value = value * 2 if i % 2 == 0 else value + 3  # it wraps
    np.testing.assert_array_equal(trace.get(), want)
    np.testing.assert_array_equal(x.get(), value)
    steps = np.cumsum([1, 10, 100] * rounds)[:, None]
    np.testing.assert_array_equal(there[1].get(), start[:64] + steps)


@pytest.mark.parametrize("warps", [1, 4])
def test_turns(warps: int) -> None:
    in_process(check_turns, 1000, warps)


def check_products(rounds: int) -> None:
    rng = np.random.default_rng(rounds)
    a, b = rng.integers(-3, 4, (2, 64, 64)).astype(np.float16)
    there = [OnDevice(x) for x in (a, b, np.full((128, 64), np.nan, np.float32))]
    described = [TensorDescriptor(x, (64, 64), (64, 1), (64, 64)) for x in there[:2]]
    for _ in range(20):
        kernels.products_in_turns[(132,)](*described, there[2], rounds, num_warps=8)
    device.synchronize()
    want = rounds * (a.astype(np.float32) @ b.astype(np.float32))
    np.testing.assert_array_equal(there[2].get(), np.concatenate([want, want]))


def test_products_in_turns() -> None:
    in_process(check_products, 100)


def check_stored(tiles: int) -> None:
    x = np.random.default_rng(tiles).integers(-9, 9, (64 * tiles, 64)).astype(np.float16)
    there = [OnDevice(x), OnDevice(np.full_like(x, np.nan))]
    y = TensorDescriptor(there[1], x.shape, (64, 1), (64, 64))
    for _ in range(20):
        kernels.stored_by_a_role[(132,)](there[0], y, tiles, MAKE=kernels.make, num_warps=5)
    device.synchronize()
    np.testing.assert_array_equal(there[1].get(), x + np.repeat(np.arange(tiles), 64)[:, None])


def test_a_role_stores_what_another_has_made() -> None:
    in_process(check_stored, 50)
