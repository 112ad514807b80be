"""Global memory in one program: accesses take effect in program order whichever threads make them.

Each kernel runs in the PTX simulator, whose seeds change the order of the warps. It always agrees
with the tile level, and for some seed it does not once global accesses wait for nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec import sim
from tilec.codegen.llvm import emit_ptx
from tilec.codegen.lower import to_llir
from tilec.passes.allocate_shared import AllocateShared
from tilec.passes.global_accesses import Access
from tilec.passes.insert_barriers import InsertBarriers
from tilec.passes.shared_accesses import Place

N = 128
SEEDS = range(6)


@tilec.jit
def store_then_load(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(p + i, i * 3)
    tl.store(o + i, tl.load(p + N - 1 - i))


@tilec.jit
def load_then_store(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(p + i)
    tl.store(p + N - 1 - i, i * 3)
    tl.store(o + i, x)


@tilec.jit
def store_twice(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(p + i, i)
    tl.store(p + N - 1 - i, i * 3)


@tilec.jit
def scalar_store_then_load(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(p + 5, 77)
    tl.store(o + i, tl.load(p + 5) + i)


@tilec.jit
def scalar_load_then_store(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(p)
    tl.store(p, x + 1)
    tl.store(o + i, x + i)


@tilec.jit
def one_scalar_through_two_arguments(p, o, N: tl.constexpr, same=None):
    i = tl.arange(0, N)
    x = tl.load(p)
    tl.store(same, x + 1)
    tl.store(o + i, x + i)


@tilec.jit
def copies_in_place(p, o, N: tl.constexpr):
    """Two warps hold each element."""
    i = tl.arange(0, N // 4)
    at = p + i
    x = tl.load(at)
    tl.store(at, x + 1)
    tl.store(o + tl.arange(0, N), tl.sum(x, 0) + tl.arange(0, N))


@tilec.jit
def one_address_twice(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    at = p + i // 64
    x = tl.load(at)
    tl.store(at, i)
    tl.store(o + i, x)


@tilec.jit
def atomics_then_load(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(p + i, i, sem="relaxed")
    tl.store(o + i, tl.load(p + N - 1 - i))


@tilec.jit
def atomics_in_order(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(p + i, i, sem="relaxed")
    tl.store(o + i, tl.atomic_add(p + N - 1 - i, 1, sem="relaxed"))


@tilec.jit
def next_iteration(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    for k in range(3):
        tl.store(p + (i + k * 32) % N, i + k)
    tl.store(o + i, i)


@tilec.jit
def moving_window(p, o, N: tl.constexpr):
    i = tl.arange(0, N // 2)
    for k in range(0, N // 2, 32):
        x = tl.load(p + k + i + 32)
        tl.store(p + k + i, x * 2)


@tilec.jit
def carried_pointers(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    here, there = p, o
    for k in range(3):
        x = tl.load(here + (i + k * 32) % N)
        tl.store(there + i, x + k)
        here, there = there, here


@tilec.jit
def selected_pointers(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(tl.where(i < 32, p + i, o + i), i * 5)
    x = tl.load(p + N - 1 - i)
    y = tl.load(o + N - 1 - i)
    tl.store(o + i, x + y)


@tilec.jit
def one_arm_stores(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    if tl.load(o) == 0:
        tl.store(p + i, i * 7)
    tl.store(o + i, tl.load(p + N - 1 - i))


@tilec.jit
def address_as_a_number(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(p + i, i * 3)
    q = p.to(tl.int64).to(tl.pointer_type(tl.int32))
    tl.store(o + i, tl.load(q + N - 1 - i))


@tilec.jit
def offset_that_wraps(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    far = (i + 1) * 33554432  # the last one is 2^32, and so 0
    tl.store(p + far, i * 3, mask=i == N - 1)
    tl.store(o + i, tl.load(p))


@tilec.jit
def narrow_offset_that_wraps(p, o, N: tl.constexpr):
    start = (tl.load(p + N - 1) + 100).to(tl.int8)
    tl.store(p + 56 + (start + 100), 500)  # 100 + 100 is -56
    tl.store(o + tl.arange(0, N), tl.load(p + 56 + start - 156))


KERNELS = [store_then_load, load_then_store, store_twice, scalar_store_then_load,
           scalar_load_then_store, one_scalar_through_two_arguments, copies_in_place,
           one_address_twice, atomics_then_load, atomics_in_order, next_iteration, moving_window,
           carried_pointers, selected_pointers, one_arm_stores, address_as_a_number,
           offset_that_wraps, narrow_offset_that_wraps]


def arguments(kernel: tilec.JITFunction) -> list[Any]:
    p = np.arange(N, dtype=np.int32)[::-1].copy()
    o = np.zeros(N, np.int32)
    return [p, o, p] if "two_arguments" in kernel.name else [p, o]


def kernel_at(kernel: tilec.JITFunction, level: str) -> Any:
    args = arguments(kernel)
    extra = {"same": args[2]} if len(args) > 2 else {}
    made = kernel.warmup(*args[:2], N=N, **extra, grid=(1,), num_warps=4, target="sm_90a")
    if level == "tile":
        made.run(dict(zip(made.signature, args, strict=True)), (1,))
        return args
    module = made.upper.modules["gpu"].clone()
    AllocateShared().run(module)
    InsertBarriers().run(module)
    llir = to_llir(module, made.target)
    return llir, sim.parse(emit_ptx(llir.text, made.target))


def outcomes(kernel: tilec.JITFunction) -> list[list[np.ndarray]]:
    llir, ptx = kernel_at(kernel, "ptx")
    found = []
    for seed in SEEDS:
        args = arguments(kernel)
        sim.run(ptx, llir.name, args, (1, 1, 1), shared_bytes=llir.shared_bytes, seed=seed)
        found.append(args)
    return found


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(map(np.array_equal, a, b))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.sample(5)
def test_program_order(kernel: tilec.JITFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    want = kernel_at(kernel, "tile")
    if kernel is not one_address_twice:
        for got in outcomes(kernel):
            np.testing.assert_array_equal(got, want)
    else:  # either of two values may stay in memory
        for got in outcomes(kernel):
            np.testing.assert_array_equal(got[1], want[1])
            assert set(range(N)) >= set(got[0][:2])
            want[0] = got[0]
    monkeypatch.setattr(Access, "conflicts", lambda self, earlier: False)
    assert not all(same(got[1:] if kernel is one_address_twice else got,
                        want[1:] if kernel is one_address_twice else want)
                   for got in outcomes(kernel)), "the test shows nothing"


@tilec.jit
def window_in_place(p, o, N: tl.constexpr):
    i = tl.arange(0, N)
    for k in range(0, N, 32):
        x = tl.load(p + k + i, mask=k + i < N, other=0)
        tl.store(p + k + i, x * 2 + k, mask=k + i < N)


def test_the_next_round_comes_to_elements_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same pointers in one round are one thread's; in the next they are others."""
    test_program_order(window_in_place, monkeypatch)


@tilec.jit
def window_that_jumps(p, o, N: tl.constexpr):
    """As above, from a number that is computed in the round."""
    i = tl.arange(0, N)
    for k in range(9):
        at = k * 7 % 4 * 32 + i
        x = tl.load(p + at, mask=at < N, other=0)
        tl.store(p + at, x * 2 + k, mask=at < N)


def test_the_next_round_comes_to_elements_that_nobody_foresees(
        monkeypatch: pytest.MonkeyPatch) -> None:
    test_program_order(window_that_jumps, monkeypatch)


def test_slots_before_a_loop_are_those_of_its_first_round() -> None:
    """So a slot that moves with the rounds is told from them there; after the loop none is."""
    before = [Place(0, 96, stages=3, stage=n) for n in range(3)]
    moving = Place(0, 96, stages=3, stage=1, moving=True)
    assert [p.entering().meets(moving) for p in before] == [False, True, False]
    assert [p.entering().leaving().meets(p) for p in before] == [True] * 3
    assert [p.entering().one_later().meets(moving) for p in before] == [False, False, True]


@tilec.jit
def streams(p, o, n, N: tl.constexpr):
    """One thread comes to each element, and every turn of the loop to others."""
    i = tl.arange(0, N)
    for start in range(0, n, N):
        x = tl.load(p + start + i, mask=start + i < n)
        tl.store(o + start + i, x * 2, mask=start + i < n)
    tl.store(p + i, tl.load(o + i) + 1)
    tl.store(o + i, i)


@tilec.jit
def rows(p, o, n, N: tl.constexpr):
    row = tl.program_id(0) * n
    i = tl.arange(0, N)
    x = tl.load(p + row + i, mask=i < n, other=0)
    tl.store(o + row + i, x - tl.max(x, 0), mask=i < n)


def test_nothing_waits_where_no_other_thread_comes() -> None:
    p, o = np.zeros(4 * N, np.int32), np.zeros(4 * N, np.int32)
    for kernel, barriers in ((streams, 1), (rows, 0)):  # the one stands between loop and last load
        made = kernel.warmup(p, o, N, N=N, grid=(1,), num_warps=4, target="sm_90a")
        assert made.asm["lowered"].count("gpu.barrier") == barriers, kernel.name


@tilec.jit
def again_and_again(p, o, n, N: tl.constexpr):
    """Loads that may not start before the store of the iteration before."""
    i = tl.arange(0, N)
    for _ in tl.range(0, n, num_stages=3):
        tl.store(o + i, tl.load(p + i) + 1)


@pytest.mark.parametrize("level", ["gpu", "lowered", "ptx"])
def test_in_place_through_two_arguments_in_a_loop(level: str) -> None:
    for seed in SEEDS:
        p = np.arange(N, dtype=np.int32)
        made = again_and_again.warmup(p, p, 5, N=N, grid=(1,), num_warps=4, target="sm_90a")
        made.run([p, p, 5], (1,), level=level, seed=seed)
        np.testing.assert_array_equal(p, np.arange(N) + 5)
