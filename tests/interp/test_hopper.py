"""The hand-written Hopper kernels in the interpreter: right for many extents and seeds, and faults
planted in them found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.faults import all_of, drop
from tests.support.fixtures import fixture
from tests.support.hopper import attention, attention_args, gemm, gemm_args
from tilec.errors import InterpreterError
from tilec.interp.run import run
from tilec.ir import ops
from tilec.ir.core import Module, Op

GEMM, ATTENTION = "gemm_a_branch.tir", "attention_e1.tir"
ROLES, OVERLAPPED = "gemm_c_e2.tir", "attention_f3nf.tir"  # with warp roles
SEEDS = range(2)
UNORDERED = "no named barrier orders the two"
levels = pytest.mark.parametrize("lowered", [False, True], ids=["gpu", "lowered"])


@levels
@pytest.mark.parametrize("grid", [1, 2])
@pytest.mark.parametrize("extents", [(1, 1, 1), (128, 256, 64), (130, 264, 72), (77, 520, 200),
                                     (300, 300, 321), (384, 768, 136)], ids=str)
@pytest.mark.parametrize("name", [GEMM, ROLES])
def test_gemm(name: str, extents: tuple[int, int, int], grid: int, lowered: bool) -> None:
    args, want = gemm_args(*extents, seed=sum(extents))
    run(fixture(name, lowered), "gemm", args, grid, seed=grid)
    gemm(args[2].astype(np.float32), want, str(extents))


@levels
@pytest.mark.parametrize("grid", [1, 3])
@pytest.mark.parametrize("extents", [(1, 1), (2, 128), (3, 129), (2, 300), (1, 640)], ids=str)
@pytest.mark.parametrize("name", [ATTENTION, OVERLAPPED])
@pytest.mark.sample(10)
def test_attention(name: str, extents: tuple[int, int], grid: int, lowered: bool) -> None:
    args, want = attention_args(*extents, seed=sum(extents))
    run(fixture(name, lowered), "attention", args, grid, seed=grid)
    attention(args[3].astype(np.float32), want, str(extents))


# ---- faults
def change(cls: type[Op], index: int, **attributes: int) -> Callable[[Module], None]:
    def fault(m: Module) -> None:
        for name, value in attributes.items():
            setattr(all_of(m, cls)[index], name, value)
    return fault


def release_early(m: Module) -> None:
    """The arrival for v comes with that for k, while the product still reads v."""
    k, v = all_of(m, ops.MbarrierArrive)[1:3]
    for op in (v.barrier.op, v):
        assert op is not None and op.parent is not None and op.parent is k.parent
        op.move_before(k)


FAULTS: dict[str, tuple[str, Callable[[Module], None], str]] = {
    "one byte too many": (GEMM, change(ops.MbarrierExpect, 1, bytes=49153),
                          "lacks 0 arrivals and 1 bytes, which nothing before provides"),
    "too few bytes": (GEMM, change(ops.MbarrierExpect, 1, bytes=49152 - 32768),
                      "waits for ever: this phase of the mbarrier lacks 0 arrivals and 0 bytes, "
                      "and got 65536 bytes more than it expects"),
    "an arrival too many": (GEMM, change(ops.MbarrierInit, 0, count=2), "lacks 1 arrivals"),
    "no expect": (GEMM, drop(ops.MbarrierExpect, 0), "lacks 1 arrivals"),
    "no load": (GEMM, drop(ops.TmaLoad, 0), "lacks 0 arrivals and 16384 bytes"),
    "not set up": (GEMM, drop(ops.MbarrierInit, 0), "this mbarrier has not been set up"),
    "set up by one thread": (GEMM, drop(ops.Barrier, 0), "another thread has set up this mbarrier"),
    "no wait for data": (GEMM, drop(ops.MbarrierWait, 0), "poison|may still be copying"),
    "product still under way": (GEMM, change(ops.WgmmaWait, 0, pending=2), "may still read"),
    "no barrier after a product": (GEMM, drop(ops.Barrier, 1), "has read, which other threads do "
                                                               "not know"),
    "result not there": (GEMM, change(ops.WgmmaWait, 1, pending=1), "poison"),
    "no fence": (GEMM, drop(ops.FenceAsync, 0), "put a gpu.fence_async and a barrier between"),
    "no barrier after the fence": (GEMM, drop(ops.WarpgroupBarrier, 1), "put a barrier between"),
    "store still reads": (GEMM, drop(ops.TmaStoreWait, 1), "may still read"),
    "store has read, one thread knows": (GEMM, drop(ops.WarpgroupBarrier, 2),
                                         "has read, which other threads do not know"),
    "shared memory goes": (GEMM, drop(ops.TmaStoreWait, 2), "the program ends, and with it"),
    "no commit": (GEMM, drop(ops.TmaStoreCommit, 1), "may still read|the program ends"),
    "roles: no wait for data": (ROLES, drop(ops.MbarrierWait, 1), f"{UNORDERED}|"
                                "may still be copying"),
    "roles: no wait for room": (ROLES, drop(ops.MbarrierWait, 0), f"{UNORDERED}|"
                                "waits for ever"),
    "roles: no arrival": (ROLES, drop(ops.MbarrierArrive, 0), "waits for ever(.|\n)*warps 0 to 3 "
                          "at (.|\n)* lacks 2 arrivals and 0 bytes\n *warps 4 to 11 at "),
    "roles: an arrival too many": (ROLES, change(ops.MbarrierInit, 1, count=3), "waits for ever"),
    "roles: an arrival too few": (ROLES, change(ops.MbarrierInit, 1, count=1),
                                  f"{UNORDERED}|waits for ever"),
    "roles: no expect": (ROLES, drop(ops.MbarrierExpect, 0), "waits for ever"),
    "roles: too few bytes": (ROLES, change(ops.MbarrierExpect, 0, bytes=49152 - 32768),
                             f"{UNORDERED}|waits for ever"),
    "roles: no load": (ROLES, drop(ops.TmaLoad, 1), "lacks 0 arrivals and 32768 bytes"),
    "roles: set up by one thread": (ROLES, drop(ops.Barrier, 0), "nothing says that the mbarriers"),
    "roles: product still under way": (ROLES, change(ops.WgmmaWait, 0, pending=1),
                                       f"{UNORDERED}|poison"),
    "roles: no fence": (ROLES, drop(ops.FenceAsync, 1), "put a gpu.fence_async and a barrier "),
    "roles: store still reads": (ROLES, drop(ops.TmaStoreWait, 1), "may still read"),
    "roles: shared memory goes": (ROLES, drop(ops.TmaStoreWait, 2), "the role of warps 4 to 11 "
                                  "ends while this may still read"),
    "overlapped: no wait for the product": (OVERLAPPED, change(ops.WgmmaWait, 2, pending=1),
                                            f"{UNORDERED}|poison"),
    "overlapped: scores not there": (OVERLAPPED, change(ops.WgmmaWait, 1, pending=2), "poison"),
    "overlapped: no wait for v": (OVERLAPPED, drop(ops.MbarrierWait, 6), f"{UNORDERED}|poison|"
                                  "may still be copying"),
    "overlapped: no wait for room": (OVERLAPPED, drop(ops.MbarrierWait, 2), f"{UNORDERED}|"
                                     "waits for ever"),
    "overlapped: v released too early": (OVERLAPPED, release_early, UNORDERED),
    "overlapped: no arrival for q": (OVERLAPPED, drop(ops.MbarrierArrive, 3), "waits for ever"),
    "half of the arrivals": (ATTENTION, change(ops.MbarrierInit, 4, count=4), "lacks 2 arrivals"),
    "no arrival for k": (ATTENTION, drop(ops.MbarrierArrive, 1), "lacks 2 arrivals"),
    "no arrival for q": (ATTENTION, drop(ops.MbarrierArrive, 3), "lacks 2 arrivals"),
    "no wait for v": (ATTENTION, drop(ops.MbarrierWait, 4), "poison|may still be copying"),
    "products still under way": (ATTENTION, change(ops.WgmmaWait, 1, pending=1),
                                 "poison|may still"),
}


@levels
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str, seed: int, lowered: bool) -> None:
    name, plant, message = FAULTS[fault]
    m = fixture(name, lowered)
    plant(m)
    args = gemm_args(130, 40, 330, 0)[0] if name in (GEMM, ROLES) else attention_args(1, 300, 0)[0]
    with pytest.raises(InterpreterError, match=message):
        run(m, m.funcs[0].name, args, 1, seed=seed)
