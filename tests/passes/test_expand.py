"""Schedules written by hand: any stages and orders that are legal change no bit, others are
refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.passes.test_pipeline import before_schedule, copies, matmul, sums
from tests.test_dot import attention
from tests.test_num_stages import sums as plain
from tilec.errors import IRError, ScheduleError
from tilec.frontend.function import function
from tilec.interp.run import run
from tilec.ir import ops
from tilec.ir.core import Module, Op
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.ir.verifier import verify
from tilec.passes.allocate_shared import AllocateShared
from tilec.passes.insert_barriers import InsertBarriers
from tilec.passes.pipeline import Pipeline
from tilec.passes.schedule import Schedule


def loop_of(module: Module) -> ops.For:
    return next(op for op in module.walk() if isinstance(op, ops.For))


def ops_of(module: Module, cls: type[Op]) -> list[Op]:
    return [op for op in loop_of(module).body if isinstance(op, cls)]


def expanded(module: Module) -> Module:
    """The module at the lowered level, after its schedule went through text."""
    module = parse(print_module(module))
    for p in (Pipeline(), AllocateShared(), InsertBarriers()):
        p.run(module)
        verify(module)
    return module


@pytest.fixture(scope="module")
def summing() -> Module:
    return before_schedule(sums, {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "o_ptr": "*fp32:16",
                                  "n": "i32"}, {"B": 128, "S": 4})


CASES = list(itertools.product([(0, 2), (2, 1), (1, 1), (0, 3)], [(True, False), (False, False)],
                               [(0, 0), (1, 0), (-1, 2)]))


@pytest.mark.parametrize(("stages", "buffered", "orders"), CASES)
@pytest.mark.sample(6)
def test_loads(summing, stages, buffered, orders, rng) -> None:
    module = summing.clone()
    loop_of(module).num_stages = 4
    for op, stage, buffer, order in zip(ops_of(module, ops.Load), stages, buffered, orders,
                                        strict=True):
        assert isinstance(op, ops.Load)
        op.stage, op.buffered = stage, buffer
        op.op_order = order if stage < 3 else 0
    changed = expanded(module)
    assert copies(changed) == (4 - stages[0] if buffered[0] else 0)
    x, y = rng.standard_normal((2, 900)).astype(np.float32)
    for n in (0, 128, 257, 900):
        out = [np.full(128, np.nan, np.float32) for _ in range(2)]
        for each, o in zip((summing, changed), out):
            run(each, "sums", [x, y, o, n], (1,), seed=n)
        np.testing.assert_array_equal(out[0], out[1])


@pytest.mark.parametrize("k", [0, 32, 64, 160])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_dot_that_runs_ahead(stage, k, rng) -> None:
    """Its sum is then a value of an earlier stage, which the loop's result must wait for."""
    pointers = {"a_ptr": "*fp16:16", "b_ptr": "*fp16:16", "c_ptr": "*fp32:16"}
    module = before_schedule(matmul, pointers | {"M": "i32", "N": "i32:8", "K": "i32:8"},
                             {"BM": 32, "BN": 32, "BK": 32})
    changed = module.clone()
    loop_of(changed).num_stages = 4
    for op in ops_of(changed, ops.Load):
        op.stage, op.buffered = 0, True  # type: ignore[attr-defined]
    for op in ops_of(changed, ops.Dot):
        op.stage = stage
    for op in ops_of(changed, ops.ConvertLayout):
        op.stage = 1  # of no weight: the dot reads the buffers
    changed = expanded(changed)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((32, k), (k, 32)))
    out = [np.full((32, 32), np.nan, np.float32) for _ in range(2)]
    for each, c in zip((module, changed), out):
        run(each, "matmul", [a, b, c, 32, 32, k], (1, 1), seed=k)
    np.testing.assert_array_equal(out[0], out[1])
    np.testing.assert_allclose(out[0], a.astype(float) @ b.astype(float), 1e-3, 1e-3)


@pytest.mark.parametrize("n", [1, 16, 17, 75])
def test_rotated_attention(n, rng) -> None:
    """The first product of the next block is under way beside the second one of this."""
    rows, block, d = 32, 16, 16
    module = before_schedule(attention, {"q_ptr": "*fp16:16", "k_ptr": "*fp16:16",
                                         "v_ptr": "*fp16:16", "o_ptr": "*fp32:16", "N": "i32"},
                             {"BM": rows, "BN": block, "D": d})
    changed = module.clone()
    loop_of(changed).num_stages = 3
    for op, stage in zip(ops_of(changed, ops.Load), (0, 1), strict=True):
        op.stage, op.buffered = stage, True  # type: ignore[attr-defined]
    first, second = ops_of(changed, ops.Dot)
    first.stage = 1
    changed = expanded(changed)
    assert len(ops_of(changed, ops.Dot)) == 2
    q, k, v = (rng.standard_normal((x, d)).astype(np.float16) for x in (rows, n, n))
    out = [np.full((rows, d), np.nan, np.float32) for _ in range(2)]
    for each, o in zip((module, changed), out):
        run(each, "attention", [q, k, v, o, n], (1,), seed=n)
    np.testing.assert_array_equal(out[0], out[1])
    s = q.astype(float) @ k.astype(float).T
    p = np.exp2(s - s.max(1, keepdims=True))
    np.testing.assert_allclose(out[0], p @ v.astype(float) / p.sum(1, keepdims=True), 2e-2, 2e-2)


@function
def chased(x_ptr, o_ptr, n, B: tl.constexpr):
    """A list in memory: each load gives the next one's address."""
    at = 0
    total = tl.zeros((B,), tl.int32)
    for _ in tl.range(0, n, num_stages=3):
        total += tl.load(x_ptr + at + tl.arange(0, B))
        at = tl.load(x_ptr + at)
    tl.store(o_ptr + tl.arange(0, B), total)


def test_what_cannot_run_ahead_is_refused() -> None:
    module = before_schedule(chased, {"x_ptr": "*i32:16", "o_ptr": "*i32:16", "n": "i32"},
                             {"B": 64})
    loop_of(module).num_stages = 3
    tile, scalar = ops_of(module, ops.Load)

    def refused(message: str) -> None:
        with pytest.raises(IRError, match=message):
            expanded(module)

    tile.stage = 0
    refused("runs in stage 2, but stage 0 needs its result")
    scalar.stage = 1
    refused("runs in stage 1, but stage 0 needs its result")


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_what_a_stage_carries_by_itself(n, rng) -> None:
    module = before_schedule(chased, {"x_ptr": "*i32:16", "o_ptr": "*i32:16", "n": "i32"},
                             {"B": 64})
    loop_of(module).num_stages = 3
    for op in ops_of(module, ops.Load):
        op.stage = 0
    x = np.arange(64 + 40, dtype=np.int32)[::-1] % 40
    out, at, total = np.full(64, -1, np.int32), 0, np.zeros(64, np.int32)
    for _ in range(n):
        total += x[at:at + 64]
        at = x[at]
    run(expanded(module), "chased", [x, out, n], (1,), seed=n)
    np.testing.assert_array_equal(out, total)


def test_effects_buffers_and_orders_are_checked(summing) -> None:
    def refused(message: str, cls: type[Op], *values: dict[str, object]) -> None:
        module = summing.clone()
        loop_of(module).num_stages = 3
        for op, given in zip(ops_of(module, cls), values):
            for name, value in given.items():
                setattr(op, name, value)
        with pytest.raises(IRError, match=message):
            expanded(module)

    refused("op_order puts it before the tile.load that it needs", ops.Load,
            {"stage": 0}, {"op_order": 1})
    refused("runs in stage 2, but stage 0 needs its result", ops.Fma, {"stage": 0})
    refused("cannot have a stage before the last: it is volatile", ops.Load,
            {"stage": 1, "volatile": True})


@function
def several(x_ptr, o_ptr, n, step, B: tl.constexpr):
    """What must not run ahead or change places, each by its own reason."""
    offs = tl.arange(0, B)
    for i in tl.range(0, n, num_stages=3):
        j = n
        while j != i:
            j -= 1
        x = tl.load(x_ptr + j * B + offs, offs < j, other=1.0)
        y = tl.load(o_ptr + offs) + tl.load(x_ptr + i)
        tl.store(o_ptr + offs, x)
        tl.store(o_ptr + offs, y)
    for i in range(0, n, step):
        tl.store(o_ptr + offs, tl.load(x_ptr + i * B + offs))


@pytest.mark.parametrize(("cls", "which", "given", "message"), [
    (ops.While, 0, {"stage": 0}, "scf.while: has a stage .* only loads and pure ops without loops"),
    (ops.Load, 0, {"stage": 1, "buffered": True}, "cannot be buffered: its `other` is not zero"),
    (ops.Load, 1, {"stage": 1}, "the loop may write to what it reads, at"),
    (ops.Load, 2, {"stage": 1, "buffered": True}, "cannot be buffered: it is a scalar"),
    (ops.Load, 3, {"stage": 1}, "scf.for: cannot be pipelined: its step is not a positive"),
    (ops.Store, 0, {"op_order": 1}, "tile.store: op_order puts it before the tile.store at")])
def test_what_would_change_a_result_is_refused(cls, which, given, message) -> None:
    pointers = {"x_ptr": "*fp32:16", "o_ptr": "*fp32:16"}
    module = before_schedule(several, pointers | {"n": "i32", "step": "i32"}, {"B": 64})
    for op in module.walk():
        if isinstance(op, ops.For):
            op.num_stages = 3
    every = [op for op in module.walk() if isinstance(op, ops.Load)]
    every[2].stage = 1  # legal by itself
    changed = [op for op in module.walk() if isinstance(op, cls)][which]
    for name, value in given.items():
        setattr(changed, name, value)
    with pytest.raises(ScheduleError, match=message):
        expanded(module)


@pytest.mark.parametrize("n", [1, 7])
def test_ops_that_float_keep_their_order_ahead(n, rng) -> None:
    """Their op_order is that of the last stage, where nothing needs them here. Nor does a stage on
    the yield say anything."""
    module = before_schedule(plain, {"x_ptr": "*fp32:16", "o_ptr": "*fp32:16", "lo": "i32",
                                     "hi": "i32", "base": "i32"}, {"STEP": 1, "B": 128, "S": 3})
    changed = module.clone()
    loop = loop_of(changed)
    loop.num_stages, loop.body.terminator.stage = 3, 0
    (load,) = ops_of(changed, ops.Load)
    load.stage, load.op_order = 0, 1  # type: ignore[attr-defined]
    address = list(itertools.takewhile(lambda op: op is not load, loop.body))
    for i, op in enumerate(address):
        op.op_order = -i
    x = rng.standard_normal((9, 128)).astype(np.float32)
    out = [np.full(128, np.nan, np.float32) for _ in range(2)]
    for each, o in zip((module, expanded(changed)), out):
        run(each, "sums", [x, o, 0, n, 2], (1,))
    np.testing.assert_array_equal(out[0], out[1])


@function
def layered(x_ptr, i_ptr, o_ptr, n, B: tl.constexpr, D: tl.constexpr):
    total = tl.zeros((B,), tl.float32)
    for i in tl.range(0, n, num_stages=16):
        a, b, c = i, i, i
        for _ in tl.static_range(D):
            at = i_ptr + a + b + c
            a, b, c = tl.load(at), tl.load(at + 1), tl.load(at + 2)
        total += tl.load(x_ptr + (a + b + c) * B + tl.arange(0, B))
    tl.store(o_ptr + tl.arange(0, B), total)


def test_layers_of_loads_are_looked_at_once() -> None:
    """There are 3^14 ways from the first layer to the tile's address."""
    depth = 14
    pointers = {"x_ptr": "*fp32:16", "i_ptr": "*i32:16", "o_ptr": "*fp32:16"}
    module = before_schedule(layered, pointers | {"n": "i32"}, {"B": 64, "D": depth})
    Schedule().run(module)
    assert [op.stage for op in ops_of(module, ops.Load)] == \
        [layer for layer in range(depth) for _ in range(3)] + [depth]


def test_a_refused_schedule_names_the_edited_file(tmp_path) -> None:
    x = np.zeros(1024, np.float32)
    args = {"x_ptr": x, "o_ptr": x.copy(), "lo": 0, "hi": 8, "base": 0}
    options = {"grid": (1,), "target": "sm_80", "STEP": 1, "B": 128, "S": 3}
    with tilec.knobs.scope(dump_dir=tmp_path, cache=False):
        plain.warmup(*args.values(), **options)
    (path,) = tmp_path.glob("*/*-schedule.tir")
    path.write_text(path.read_text().replace("stage = 0", "stage = 1").replace("num_stages = 3",
                                                                               "num_stages = 99"))
    with tilec.knobs.scope(override_dir=tmp_path, cache=False), \
            pytest.raises(IRError, match=f"{path.name}:.* `num_stages` is 99") as error:
        plain.warmup(*args.values(), **options).run(args, (1,), level="gpu")
    assert "num_stages = 99" in str(error.value)
