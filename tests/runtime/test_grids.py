"""Grids: what is one, at every level; large ones begin at once."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec import interp, knobs, sim
from tilec.errors import InterpreterError, LaunchError, SimulatorError, TilecError
from tilec.interp.run import Order

LEVELS = knobs.RUN_LEVELS
MOST = 2**31 - 1


@tilec.jit
def mark(out, X: tl.constexpr, Y: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tl.store(out + (z * Y + y) * X + x, x + 10 * y + 100 * z + 1)


@tilec.jit
def stop(out):
    tl.store(out - 1000000 - tl.program_id(0) % 2, 1)


@tilec.jit
def spin(flag):
    while tl.load(flag, volatile=True) != 1:
        tl.store(flag + 2000000, 1)


def launched(grid, level: str, shape=(1, 1, 1)) -> np.ndarray:
    z, y, x = shape
    out = np.full(shape, -1, np.int32)
    with knobs.scope(run=level):
        mark[grid](out, X=x, Y=y)
    return out


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("grid, shape", [
    (3, (1, 1, 3)), ((3,), (1, 1, 3)), ([2, 3], (1, 3, 2)), ((2, 3, 2), (2, 3, 2)),
    (np.int64(4), (1, 1, 4)), ((np.uint8(2), np.int32(2)), (1, 2, 2)),
    (np.array([2, 1, 3]), (3, 1, 2)), (lambda meta: (meta["X"],), (1, 1, 5)),
], ids=lambda g: "function" if callable(g) else repr(g))
def test_what_is_a_grid(grid, shape, level):
    out = launched(grid, level, shape)
    z, y, x = np.indices(shape)
    np.testing.assert_array_equal(out, x + 10 * y + 100 * z + 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("grid", [0, (0,), (3, 0), (0, 2**16 - 1, 1), (MOST, 0, 65535),
                                  np.zeros(2, np.int64)], ids=repr)
def test_no_programs(grid, level):
    assert launched(grid, level) == -1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("grid", [
    (), (1, 1, 1, 1), -1, (-1,), (2, -3), True, (True,), (False, 2), np.True_, 1.0, (2.0,), None,
    "12", b"\x01\x02", (None,), {2: 3}, {2}, range(1, 3), object(), (1j,), np.array([[1]]),
    np.array([1.0]), np.array(["a"]), float("nan"), lambda meta: None, lambda meta: ("a",),
    -2**63, 2**10000], ids=lambda g: repr(g)[:20])
def test_what_is_none(grid, level):
    with pytest.raises(LaunchError, match="expected 1 to 3 integers|that a GPU takes") as e:
        launched(grid, level)
    assert e.value.loc.file == __file__ and len(str(e.value)) < 600


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("grid, axis, most", [
    ((2**31,), 0, MOST), ((2**62,), 0, MOST), ((2**63,), 0, MOST), (2**64, 0, MOST),
    ((2**64 + 1, 1), 0, MOST), ((1, 65536), 1, 65535), ((1, 1, 65536), 2, 65535),
    ((0, 65536), 1, 65535), ((1, 2**63, 2**63), 1, 65535)])
def test_more_than_a_gpu_can_launch(grid, axis, most, level):
    text = f"along axis {axis} is more than the {most} programs"
    with pytest.raises(LaunchError, match=text) as e:
        launched(grid, level)
    assert e.value.loc.file == __file__


def test_levels_below_refuse_them_too():
    kernel = tilec.compile(mark, {"out": "*i32"}, {"X": 1, "Y": 1})
    out = np.full(1, -1, np.int32)
    for level in LEVELS:
        with pytest.raises(LaunchError, match="along axis 1"):
            kernel.run([out], (1, 65536), level)
    with pytest.raises(LaunchError, match="along axis 0"):
        interp.run(kernel.upper.modules["tile"], "mark", [out], (2**31,))
    for grid in ((2**31, 1, 1), (1, -1, 1), (1, 1, 65536)):
        with pytest.raises(SimulatorError, match="are the most"):
            sim.run(kernel.asm["ptx"], "mark", [out], grid)
    for grid in (1, None, (1,), (1, 1, 1, 1), (1.0, 1, 1), "111"):
        with pytest.raises(SimulatorError, match="expected three integers"):
            sim.run(kernel.asm["ptx"], "mark", [out], grid)
    assert out == -1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("grid", [(MOST,), (MOST, 65535, 65535), (3 * 2**20 + 17,)])
def test_large_grids_begin_at_once(grid, level):
    began = time.perf_counter()
    with knobs.scope(run=level), pytest.raises((InterpreterError, SimulatorError)):
        stop[grid](np.zeros(1, np.int32))
    assert time.perf_counter() - began < 8


def test_programs_that_wait_begin_at_once_too():
    with pytest.raises(TilecError, match="before flag|past flag"):
        spin[(MOST,)](np.zeros(4, np.int32))


@pytest.mark.parametrize("count", [0, 1, 5, 64, 65, 64 * 7 + 5])
def test_every_program_runs_once(count, monkeypatch):
    """In an order that the seed decides, however many pieces it is made in."""
    monkeypatch.setattr(sys.modules[Order.__module__], "PIECE", 64)
    orders = [np.concatenate([np.zeros(0, int), *Order(count, seed)]) for seed in (1, 1, 2)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(count))
    np.testing.assert_array_equal(orders[0], orders[1])
    assert count < 6 or (orders[0] != orders[2]).any()
    assert all(len(piece) <= 64 for piece in Order(count, 3))


def test_the_simulator_runs_every_cta_once(monkeypatch):
    monkeypatch.setattr("tilec.sim.grid.PIECE", 4)
    for grid in ((11,), (3, 5), (2, 3, 3)):
        shape = (*grid, 1, 1)[:3][::-1]
        z, y, x = np.indices(shape)
        np.testing.assert_array_equal(launched(grid, "ptx", shape), x + 10 * y + 100 * z + 1)
