"""The hand-written matrix product by clusters with warp roles: right for many extents and seeds,
and faults planted in it found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.faults import all_of, drop
from tests.support.fixtures import fixture
from tests.support.hopper import gemm, gemm_args
from tilec.errors import InterpreterError
from tilec.interp.run import run
from tilec.ir import ops
from tilec.ir.core import Module, Op

NAME = "gemm_d_e2.tir"
SEEDS = range(2)
levels = pytest.mark.parametrize("lowered", [False, True], ids=["gpu", "lowered"])
UNORDERED = "and no mbarrier and no named barrier orders the two"


@levels
@pytest.mark.parametrize(("extents", "grid"), [((256, 64, 64), 2), ((130, 264, 72), 4),
                                               ((400, 520, 328), 2)], ids=str)
def test_gemm(extents: tuple[int, int, int], grid: int, lowered: bool) -> None:
    for seed in SEEDS:
        args, want = gemm_args(*extents, seed=sum(extents))
        run(fixture(NAME, lowered), "gemm", args, grid, seed=seed)
        gemm(args[2].astype(np.float32), want, str(extents))


def set_count(index: int, count: int) -> Callable[[Module], None]:
    def fault(m: Module) -> None:
        all_of(m, ops.MbarrierInit)[index].count = count  # type: ignore[attr-defined]
    return fault


def operand(cls: type[Op], index: int, place: int, value: int) -> Callable[[Module], None]:
    """A constant in place of an operand."""
    def fault(m: Module) -> None:
        op = all_of(m, cls)[index]
        constant = next(c for c in all_of(m, ops.Constant)
                        if c.value == value and c.parent is m.funcs[0].body)  # type: ignore[attr-defined]
        op.set_operand(place, constant.result)
    return fault


def weaken(index: int) -> Callable[[Module], None]:
    """A barrier of each program in place of the cluster's."""
    def fault(m: Module) -> None:
        op = all_of(m, ops.ClusterBarrier)[index]
        assert op.parent is not None
        op.parent.insert(ops.Barrier(), op)
        op.erase()
    return fault


FAULTS: dict[str, tuple[Callable[[Module], None], str]] = {
    "set up, but not for the other program": (weaken(0), "nothing says that it has begun"),
    "no barrier at the end": (weaken(1), "ends, and with it its shared memory|which has ended"),
    "no room waited for": (drop(ops.MbarrierWait, 0), f"{UNORDERED}|waits? for ever"),
    "no data waited for": (drop(ops.MbarrierWait, 1), f"{UNORDERED}|may still be copying|poison"),
    "the other program's slots are not waited for": (
        set_count(1, 2), f"{UNORDERED}|waits? for ever|ends, and with it"),
    "arrives at its own only": (
        drop(ops.RemoteArrive, 1), r"programs wait for ever(.|\n)*program \([01], 0\) at "),
    "arrives twice at one": (operand(ops.RemoteArrive, 1, 1, 0), f"{UNORDERED}|waits? for ever"),
    "for one program alone": (operand(ops.TmaMulticast, 0, 3, 1), "waits? for ever"),
    "for a third one": (operand(ops.TmaMulticast, 0, 3, 8),
                        "the mask of this copy is 0b1000, the cluster has 2 programs"),
    "for nobody": (operand(ops.TmaMulticast, 0, 3, 0), "the mask of this copy is 0b0"),
    "no expect": (drop(ops.MbarrierExpect, 0), "waits? for ever"),
    "to a third one": (operand(ops.RemoteArrive, 0, 1, 2), "the rank is 2, the cluster has 2"),
}


@levels
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.sample(6)
def test_faults(fault: str, lowered: bool) -> None:
    plant, message = FAULTS[fault]
    for seed in SEEDS:
        m = fixture(NAME, lowered)
        plant(m)
        args = gemm_args(256, 40, 330 + 6, 0)[0]
        with pytest.raises(InterpreterError, match=message):
            run(m, "gemm", args, 2, seed=seed)
