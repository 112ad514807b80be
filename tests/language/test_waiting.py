"""Programs that wait for each other, at every level: locks, turns, barriers of the whole grid. What
one leaves in memory before it signals, others see after they have waited."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec import InterpreterError
from tilec.sim import SimError

LEVELS = ("tile", "gpu", "lowered", "ptx")
SEEDS = (None, 1, 2)


@tilec.jit
def locked(lock, x, N: tl.constexpr):
    """x = 3 * x + 1 in each program, under a lock."""
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    at = tl.arange(0, N)
    tl.store(x + at, tl.load(x + at) * 3 + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@tilec.jit
def exchanged(lock, x, N: tl.constexpr):
    """The same by test-and-set, with orders no stronger than they must be."""
    held = tl.atomic_xchg(lock, 1, sem="acquire")
    while held != 0:
        held = tl.atomic_xchg(lock, 1, sem="acquire")
    at = tl.arange(0, N)
    tl.store(x + at, tl.load(x + at) * 3 + 1)
    tl.atomic_xchg(lock, 0, sem="release")


@tilec.jit
def normed(lock, count, x, partial, N: tl.constexpr, GROUPS: tl.constexpr):
    """Rows are added up in a few buffers, each under a lock; the first one stores."""
    row = tl.program_id(0)
    group = row % GROUPS
    at = tl.arange(0, N)
    y = tl.load(x + row * N + at) * 2
    lock += group
    count += group
    partial += group * N + at
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        y += tl.load(partial)
    tl.store(partial, y)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@tilec.jit
def ticket(counter, turn, order, N: tl.constexpr):
    """Programs go in the order in which they draw numbers, and note it."""
    mine = tl.atomic_add(counter, 1)
    while tl.atomic_add(turn, 0, sem="acquire") != mine:
        pass
    tl.store(order + mine, tl.program_id(0))
    tl.atomic_add(turn, 1, sem="release")


@tilec.jit
def in_turn(turn, x, DOWN: tl.constexpr, N: tl.constexpr):
    """Programs one after another, from the first or from the last."""
    me = tl.program_id(0)
    mine = tl.num_programs(0) - 1 - me if DOWN else me
    while tl.atomic_add(turn, 0) < mine:
        pass
    at = tl.arange(0, N)
    tl.store(x + at, tl.load(x + at) * 2 + me)
    tl.atomic_add(turn, 1)


@tilec.jit
def rounds(count, x, y, N: tl.constexpr, ROUNDS: tl.constexpr):
    """A barrier of the grid between what programs store and what their neighbours load."""
    me, n = tl.program_id(0), tl.num_programs(0)
    at = tl.arange(0, N)
    for r in range(ROUNDS):
        tl.store(x + (r * n + me) * N + at, me * 1000 + r * 100 + at)
        tl.atomic_add(count, 1)
        while tl.atomic_add(count, 0) < n * (r + 1):
            pass
        tl.store(y + (r * n + me) * N + at, tl.load(x + (r * n + (me + 1) % n) * N + at))


@tilec.jit
def flagged(flag, x, out, N: tl.constexpr):
    """The last program stores, all others wait for its flag by loads."""
    at = tl.arange(0, N)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        tl.store(x + at, at * 7)
        tl.atomic_xchg(flag, 1)
    else:
        while tl.load(flag, volatile=True) == 0:
            pass
        tl.atomic_add(flag, 0)  # acquires
        tl.store(out + tl.program_id(0) * N + at, tl.load(x + at))


def launch(kernel, args, grid, level, seed=0, **options):
    made = kernel.warmup(*args, grid=(grid,), **options)
    constexprs = [p.name for p in kernel.params if p.is_constexpr]
    assert set(constexprs) <= options.keys()
    made.run(args, grid, level=level, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kernel", [locked, exchanged], ids=["cas", "xchg"])
def test_a_lock(kernel, level, seed) -> None:
    lock, x = np.zeros(1, np.int32), np.zeros(50, np.int32)
    launch(kernel, [lock, x], 6, level, seed, N=50)
    np.testing.assert_array_equal(x, 364)
    assert lock[0] == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("num_warps", [1, 4])
def test_partial_sums_under_locks(level, num_warps, rng) -> None:
    x = rng.integers(-9, 9, (7, 40)).astype(np.float32)
    partial, lock, count = np.full((2, 40), np.nan, np.float32), *np.zeros((2, 2), np.int32)
    launch(normed, [lock, count, x, partial], 7, level, 5, N=40, GROUPS=2, num_warps=num_warps)
    np.testing.assert_array_equal(partial, [2 * x[::2].sum(0), 2 * x[1::2].sum(0)])


@pytest.mark.parametrize("level", LEVELS)
def test_tickets(level) -> None:
    counter, turn, order = np.zeros(1, np.int32), np.zeros(1, np.int32), np.full(9, -1, np.int32)
    launch(ticket, [counter, turn, order], 9, level, 3, N=1)
    assert sorted(order.tolist()) == list(range(9)) and turn[0] == 9


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("down", [False, True])
@pytest.mark.sample(10)
def test_turns(level, down, seed) -> None:
    turn, x, want = np.zeros(1, np.int32), np.zeros(33, np.int32), 0
    for i in reversed(range(5)) if down else range(5):
        want = 2 * want + i
    launch(in_turn, [turn, x], 5, level, seed, DOWN=down, N=33)
    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.sample(5)
def test_a_barrier_of_the_grid(level, seed) -> None:
    n, width, count = 4, 48, 3
    x, y = np.full((2, count, n, width), -1, np.int32)
    launch(rounds, [np.zeros(1, np.int32), x, y], n, level, seed, N=width, ROUNDS=count)
    me, r = (np.arange(n) + 1) % n, np.arange(count)
    np.testing.assert_array_equal(
        y, me[None, :, None] * 1000 + r[:, None, None] * 100 + np.arange(width))


@pytest.mark.parametrize("level", LEVELS)
def test_a_flag_that_is_loaded(level) -> None:
    x, out = np.zeros(24, np.int32), np.zeros((3, 24), np.int32)
    launch(flagged, [np.zeros(1, np.int32), x, out], 4, level, None, N=24)
    np.testing.assert_array_equal(out, np.broadcast_to(np.arange(24) * 7, (3, 24)))


@pytest.mark.parametrize("down", [False, True])
def test_clusters_take_turns(down) -> None:
    turn, x, want = np.zeros(1, np.int32), np.zeros(33, np.int32), 0
    for i in reversed(range(6)) if down else range(6):
        want = 2 * want + i
    launch(in_turn, [turn, x], 6, "ptx", 4, DOWN=down, N=33, num_ctas=2, target="sm_90a")
    np.testing.assert_array_equal(x, want)


# -- waits without end ----------------------------------------------------------------------------

@tilec.jit
def forgotten(lock, x, N: tl.constexpr):
    """The lock is never given back."""
    at = tl.arange(0, N)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(x + at, tl.load(x + at) + 1)


@tilec.jit
def missed(turn, x, N: tl.constexpr):
    """Nobody has the first turn."""
    while tl.atomic_add(turn, 0) != tl.program_id(0) + 1:
        pass
    tl.store(x + tl.arange(0, N), tl.program_id(0))
    tl.atomic_add(turn, 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kernel", [forgotten, missed], ids=["lock", "turn"])
@pytest.mark.sample(4)
def test_a_deadlock_names_the_loop(kernel, level) -> None:
    flag, x = np.zeros(1, np.int32), np.zeros(16, np.int32)
    error = SimError if level == "ptx" else InterpreterError
    said = r"deadlock: .*no other CTA(.|\n)*CTA \([0-3], 0, 0\) \(.*atom\." if level == "ptx" else \
        r"wait in this loop for a value that no program will write"
    with pytest.raises(error, match=said) as caught:
        launch(kernel, [flag, x], 2, level, 1, N=16)
    assert caught.value.loc is not None
    with open(__file__, encoding="utf-8") as text:
        shown = text.read().splitlines()[caught.value.loc.line - 1]
    assert shown.startswith("    while tl.atomic_") and shown in str(caught.value)


@tilec.jit
def ordered(turn, x, TAKE: tl.constexpr, GIVE: tl.constexpr, N: tl.constexpr):
    while tl.atomic_add(turn, 0, sem=TAKE) != tl.num_programs(0) - 1 - tl.program_id(0):
        pass
    at = tl.arange(0, N)
    tl.store(x + at, tl.load(x + at) + 1)
    tl.atomic_add(turn, 1, sem=GIVE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("orders", [("acquire", "release"), ("relaxed", "release"),
                                    ("acquire", "relaxed")])
def test_turns_without_order_are_a_race(orders, seed) -> None:
    """The simulator's checks see that nothing orders one program's stores before the next one's
    loads, though it took turns."""
    turn, x = np.zeros(1, np.int32), np.zeros(64, np.int32)
    args = [turn, x], 3, "ptx", seed
    if orders == ("acquire", "release"):
        launch(ordered, *args, N=64, TAKE=orders[0], GIVE=orders[1])
        assert (x == 3).all()
        return
    with pytest.raises(SimError, match="race: it reads"):
        launch(ordered, *args, N=64, TAKE=orders[0], GIVE=orders[1])
