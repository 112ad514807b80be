"""Faults planted in a pipelined kernel at the lowered level: the interpreter finds each of them,
whatever the seed, and has nothing against the kernel itself."""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import pytest

import tilec.language as tl
from tests.support.faults import all_of, drop
from tests.support.fixtures import MATMUL, fixture, matmul_case
from tilec.compiler import PIPELINE
from tilec.errors import InterpreterError
from tilec.frontend.build import build_module
from tilec.frontend.function import function
from tilec.interp.run import run
from tilec.ir import ops
from tilec.ir.core import Builder, Module, Op, Value
from tilec.ir.types import MemDesc, i32
from tilec.ir.verifier import verify

SEEDS = range(3)
K = 176  # five and a half iterations


def value(m: Module, name: str) -> Value:
    """The value of that name."""
    args = [a for op in m.walk() for block in op.regions for a in block.args]
    return next(v for v in (*(r for op in m.walk() for r in op.results), *args) if v.name == name)


def pending(index: int, groups: int) -> Callable[[Module], None]:
    def fault(m: Module) -> None:
        all_of(m, ops.AsyncWait)[index].pending = groups
    return fault


def move(cls: type[Op], index: int, before: str) -> Callable[[Module], None]:
    """Move an op to before the op that makes the named value."""
    def fault(m: Module) -> None:
        target = value(m, before).op
        assert target is not None
        all_of(m, cls)[index].move_before(target)
    return fault


def stage(name: str, index: str) -> Callable[[Module], None]:
    """Another index for the view of that name."""
    def fault(m: Module) -> None:
        view = value(m, name).op
        assert isinstance(view, ops.MemdescIndex)
        view.set_operand(1, value(m, index))
    return fault


def operand(name: str, index: int, other: str) -> Callable[[Module], None]:
    """Another operand for the op that makes the named value."""
    def fault(m: Module) -> None:
        op = value(m, name).op
        assert op is not None
        op.set_operand(index, value(m, other))
    return fault


def offset(name: str, at: int) -> Callable[[Module], None]:
    def fault(m: Module) -> None:
        op = value(m, name).op
        assert op is not None
        op.attributes["offset"] = at
    return fault


def barrier_before_wait(m: Module) -> None:
    all_of(m, ops.Barrier)[0].move_before(all_of(m, ops.AsyncWait)[0])


def commit_before_copies(m: Module) -> None:
    all_of(m, ops.AsyncCommit)[2].move_before(all_of(m, ops.AsyncCopy)[4])


def load_before_wait(m: Module) -> None:
    wait = all_of(m, ops.AsyncWait)[0]
    for name in ("anow", "x"):
        op = value(m, name).op
        assert op is not None
        op.move_before(wait)


def copies_before_barrier(m: Module) -> None:
    all_of(m, ops.Barrier)[0].move_before(all_of(m, ops.AsyncCommit)[2])


def one_copy_before_barrier(m: Module) -> None:
    all_of(m, ops.Barrier)[0].move_before(all_of(m, ops.AsyncCopy)[5])


def last_wait_after_scratch(m: Module) -> None:
    wait, store = all_of(m, ops.AsyncWait)[1], all_of(m, ops.Store)[0]
    wait.move_before(store)


def last_barrier_before_wait(m: Module) -> None:
    all_of(m, ops.Barrier)[1].move_before(all_of(m, ops.AsyncWait)[1])


COPY, COMMIT, WAIT, BARRIER = ops.AsyncCopy, ops.AsyncCommit, ops.AsyncWait, ops.Barrier
UNCOVERED, UNORDERED = "may still be copying", "with no barrier between them"
FAULTS: dict[str, tuple[Callable[[Module], None], str]] = {
    "no wait in the loop": (drop(WAIT, 0), UNCOVERED),
    "no wait at the end": (drop(WAIT, 1), UNCOVERED),
    "no barrier in the loop": (drop(BARRIER, 0), UNORDERED),
    "no barrier before scratch": (drop(BARRIER, 1), UNORDERED),
    "one group too many pending": (pending(0, 2), UNCOVERED),
    "three groups pending": (pending(0, 3), UNCOVERED),
    "a group pending at the end": (pending(1, 1), UNCOVERED),
    "first commit missing": (drop(COMMIT, 0), UNCOVERED),
    "second commit missing": (drop(COMMIT, 1), UNCOVERED),
    "no commit in the loop": (drop(COMMIT, 2), UNCOVERED),
    "commit before its copies": (commit_before_copies, UNCOVERED),
    "first copy of a missing": (drop(COPY, 0), "poison"),
    "second copy of b missing": (drop(COPY, 3), "poison"),
    "copy of a in the loop missing": (drop(COPY, 4), "poison"),
    "copy of b in the loop missing": (drop(COPY, 5), "poison"),
    "wait after the load of a": (move(WAIT, 0, "bnow"), UNCOVERED),
    "wait after both loads": (move(WAIT, 0, "next"), UNCOVERED),
    "load of a before the wait": (load_before_wait, UNCOVERED),
    "barrier before the wait": (barrier_before_wait, UNORDERED),
    "barrier after the copies": (copies_before_barrier, UNORDERED),
    "barrier between the copies": (one_copy_before_barrier, UNORDERED),
    "barrier after the load of a": (move(BARRIER, 0, "bnow"), UNORDERED),
    "barrier after both loads": (move(BARRIER, 0, "next"), UNORDERED),
    "scratch before the last wait": (last_wait_after_scratch, UNCOVERED),
    "last barrier before the last wait": (last_barrier_before_wait, UNORDERED),
    "a read from the stage being filled": (stage("anow", "free"), UNCOVERED),
    "b read from the stage being filled": (stage("bnow", "free"), UNCOVERED),
    "b read from the first stage always": (stage("bnow", "c0"), UNCOVERED),
    "a copied into the stage being read": (stage("a2", "slot"), UNCOVERED),
    "b copied into the stage being read": (stage("b2", "slot"), UNCOVERED),
    "first two copies of a into one stage": (stage("a1", "c0"), UNCOVERED),
    "second copy of b a stage too far": (stage("b1", "c2"), UNCOVERED),
    "the free stage wraps too early": (operand("free", 1, "c1"), UNCOVERED),
    "the stage wraps too early": (operand("last", 1, "c1"), UNCOVERED),
    "b lies over a": (offset("bbuf", 0), UNCOVERED),
    "b overlaps the end of a": (offset("bbuf", 8192), UNCOVERED),
}


def launch(m: Module, seed: int, k: int = K) -> None:
    args, grid, want = matmul_case(k)
    run(m, "matmul", args, grid, seed=seed)
    np.testing.assert_allclose(args[2], want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("k", [16, 32, 48, 64, 96, 128, 176, 256])
@pytest.mark.parametrize("lowered", [False, True])
def test_no_false_alarm(lowered: bool, k: int) -> None:
    m = fixture(MATMUL, lowered)
    for seed in range(5):
        launch(m, seed, k)


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(name: str) -> None:
    plant, complaint = FAULTS[name]
    m = fixture(MATMUL, lowered=True)
    plant(m)
    verify(m)
    for seed in SEEDS:
        with pytest.raises(InterpreterError) as error:
            launch(m, seed)
        assert complaint in error.value.message, error.value.message


# ---- the passes' own output
@function
def matmul_kernel(a_ptr, b_ptr, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a = a_ptr + rm[:, None] * K + rk[None, :]
    b = b_ptr + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a, mask=rk[None, :] + k < K, other=0.0)
        y = tl.load(b, mask=rk[:, None] + k < K, other=0.0)
        acc = tl.dot(x, y, acc)
        a += BK
        b += BK * N
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc)


@lru_cache(maxsize=4)
def compiled(stages: int) -> Module:
    specs = {"a_ptr": "*bf16:16", "b_ptr": "*bf16:16", "c_ptr": "*fp32:16", "N": "i32:16",
             "K": "i32:16"}
    m = build_module(matmul_kernel, specs, {"BM": 64, "BN": 64, "BK": 32}, target="sm_80")
    m.attributes["num_stages"] = stages
    for step in PIPELINE:
        step.run.run(m)
    verify(m)
    return m


def in_loop(op: Op) -> bool:
    return any(isinstance(a, ops.For) for a in op.ancestors())


def mutants(m: Module) -> Iterator[tuple[str, Module]]:
    """Every copy of the module in which one op that orders memory is gone or weaker."""
    for i, op in enumerate(list(m.walk())):
        if isinstance(op, (BARRIER, WAIT, COMMIT, COPY)) and (in_loop(op) or isinstance(op, COPY)):
            copy = m.clone()
            list(copy.walk())[i].erase()
            yield f"{op.name} number {i} dropped", copy
        if isinstance(op, WAIT) and in_loop(op):
            for more in (1, 2, 5):
                copy = m.clone()
                list(copy.walk())[i].pending = op.pending + more
                yield f"{op.name} number {i} with {more} more pending", copy
        if isinstance(op, ops.MemdescIndex) and in_loop(op):
            for delta in (1, 2):
                copy = m.clone()
                _shift_stage(list(copy.walk())[i], delta)
                yield f"{op.name} number {i} off by {delta}", copy


def _shift_stage(view: Op, delta: int) -> None:
    """Another stage: (index + delta) mod stages."""
    assert isinstance(view, ops.MemdescIndex) and isinstance(view.buffer.type, MemDesc)
    builder = Builder(before=view)
    stages, more = (builder.emit(ops.Constant(value=n, types=[i32]))
                    for n in (view.buffer.type.stages, delta))
    view.set_operand(1, builder.emit(ops.Rem(builder.emit(ops.Add(view.index, more)), stages)))


@pytest.mark.parametrize("stages", [3, 4])
def test_faults_in_compiled_code(stages: int) -> None:
    def go(m: Module, seed: int) -> None:
        args, grid, want = matmul_case(K)
        run(m, m.funcs[0].name, args, grid, seed=seed)
        np.testing.assert_allclose(args[2], want, rtol=1e-5, atol=1e-4)

    whole = compiled(stages)
    for seed in SEEDS:
        go(whole.clone(), seed)
    found = 0
    for name, m in mutants(whole):
        verify(m)
        for seed in SEEDS:
            with pytest.raises(InterpreterError):
                go(m, seed)
                pytest.fail(f"not found: {name}, seed {seed}")
        found += 1
    assert found >= 20


def test_wrong_results_at_the_gpu_level() -> None:
    """Without offsets there is no shadow, but data that nobody waited for are seen to be missing,
    for one seed or another."""
    m = fixture(MATMUL)
    drop(WAIT, 0)(m)
    wrong = 0
    for seed in range(10):
        try:
            launch(m, seed)
        except (InterpreterError, AssertionError):
            wrong += 1
    assert wrong > 5


def test_index_outside_of_the_stages() -> None:
    m = fixture(MATMUL)
    stage("anow", "c32")(m)
    with pytest.raises(InterpreterError, match="the index is 32, there are 3 buffers"):
        launch(m, 0)
