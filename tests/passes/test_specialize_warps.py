"""Loads by a warp of their own: the same bits as without, at every level; what keeps a loop from it
is remarked."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.passes.test_tma import LEVELS, check, product
from tilec.compiler import compile_from
from tilec.ir import ops
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.ir.remarks import Remark, recording
from tilec.ir.verifier import verify
from tilec.target import Target

SM_90A = Target.parse("sm_90a")
INNER, OUTER = "scf.for(%c0, %k, %bk, %zero)", "scf.for(%pid, %tiles, %grid)"


def specialized(module: Module, where: str = INNER) -> Module:
    """The module with the option on one of its loops."""
    text = print_module(module)
    assert text.count(where) == 1
    after = text.index(where) + len(where)
    if text[after:].startswith(" {flatten = true}"):
        text = text[:after] + text[after:].replace("flatten", "warp_specialize = true, flatten", 1)
    else:
        text = text[:after] + " {warp_specialize = true}" + text[after:]
    again = parse(text)
    verify(again)
    return again


CASES: list[dict[str, Any]] = [
    {}, {"stages": 2, "warps": 8, "block": (128, 64, 64)}, {"b": "nk", "element": "f16"},
    {"loop": "nest"}, {"loop": "flat"}, {"loop": "nest", "where": OUTER},
    {"loop": "flat", "where": OUTER, "stages": 4, "warps": 8, "block": (128, 128, 32)},
    {"element": "i8", "b": "nk", "block": (64, 32, 64), "loop": "flat"},
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.sample(2)
def test_the_same_bits(case: dict[str, Any]) -> None:
    config = dict(case)
    where = config.pop("where", INNER)
    element, b, loop = (config.get(k, d) for k, d in
                        (("element", "bf16"), ("b", "kn"), ("loop", "")))
    bm, bn, bk = config.get("block", (64, 64, 64))
    rng = np.random.default_rng(len(str(case)))
    for shape in ((bm + 5, 2 * bn + 16, 5 * bk + 16), (3, 16, 16)):
        tiles = -(-shape[0] // bm) * -(-shape[1] // bn)
        grid = min(2, tiles) if loop else tiles
        state = rng.bit_generator.state
        plain = check(product(**config), shape, element, b, grid, rng, LEVELS[-1:])
        rng.bit_generator.state = state
        found = check(specialized(product(**config), where), shape, element, b, grid, rng)
        for got in found:
            assert got.tobytes() == plain[0].tobytes()


@pytest.mark.parametrize("loop", ["", "nest", "flat"])
def test_roles(loop: str) -> None:
    """One thread loads; the others have no load, no barrier of all warps, and no product under way
    from one round to the next."""
    m = specialized(product(loop=loop, warps=8, block=(128, 64, 64)))
    with recording() as remarks:
        compile_from(m, SM_90A, "lowered")
    assert any(r.message == "a warp of its own loads the blocks" for r in remarks)
    using, loading = [op for op in m.walk() if isinstance(op, ops.WarpRole)]
    assert (using.warps, loading.warps, m.num_warps) == (8, 1, 9)
    assert not any(isinstance(op, (ops.TmaLoad, ops.Barrier)) for op in using.walk())
    elect = loading.body.first
    assert isinstance(elect, ops.Elect) and elect.predicate is None
    assert sum(isinstance(op, ops.TmaLoad) for op in loading.walk()) == 2
    assert [op.pending for op in using.walk() if isinstance(op, ops.WgmmaWait)] == [0]
    assert sum(isinstance(op, ops.For) for op in m.walk()) == (2 if not loop else 4)
    made = compile_from(specialized(product(loop=loop, warps=8, block=(128, 64, 64))), SM_90A)
    assert made.threads == 288 and made.linked is not None
    assert made.linked.advisories == [] and made.linked.n_spills == 0


def remarked(module: Module) -> Remark:
    with recording() as remarks:
        compile_from(module, SM_90A, "gpu")
    assert not any(isinstance(op, ops.WarpSpecialize) for op in module.walk())
    (found,) = [r for r in remarks if r.data.get("option") == "warp_specialize"]
    return found


def twice(m: Module) -> Module:
    """Two loops of blocks, one after the other."""
    first = next(op for op in m.walk() if isinstance(op, ops.For))
    again = first.clone({})
    assert first.parent is not None
    first.parent.insert(again, first.next)
    first.parent.insert(ops.Print([again.results[0]]), again.next)
    return m


@pytest.mark.parametrize(("module", "reason"), [
    (lambda: specialized(product(stages=1)), "its loads are not pipelined"),
    (lambda: twice(specialized(product())), "several loops load blocks by TMA"),
])
def test_what_keeps_a_loop_from_it(module: Any, reason: str) -> None:
    assert remarked(module()).message == f"its warps are not specialized: {reason}"


@tilec.jit
def gathered(a, b, c, rows, BIAS: tl.constexpr, IF: tl.constexpr, CARRIED: tl.constexpr):
    i = tl.load(rows + tl.program_id(0)) * 64
    if BIAS:
        bias = tl.load(rows + tl.arange(0, 64)).to(tl.float32)
        first = tl.sum(bias).to(tl.int32) * 0
    else:
        first = 0
    acc = tl.zeros((64, 64), tl.float32)
    at = first
    if IF:
        if i >= 0:
            for k in tl.range(0, a.shape[1], 64, warp_specialize=True):
                acc = tl.dot(a.load([i, k]), b.load([k, 0]), acc)
    else:
        for k in tl.range(0, a.shape[1], 64, warp_specialize=True):
            where = at if CARRIED else k
            acc = tl.dot(a.load([i, where]), b.load([where, 0]), acc)
            at += 64
    if BIAS:
        acc += bias[None, :]
    c.store([i, 0], acc)


SIGNATURE = {"a": "tensordesc<bf16[64, 64]>:16", "b": "tensordesc<bf16[64, 64]>:16",
             "c": "tensordesc<bf16[64, 64]>:16", "rows": "*i32"}


@pytest.mark.parametrize("level", ["gpu", "lowered", "ptx"])
@pytest.mark.parametrize("bias", [False, True])
def test_what_stands_around_the_loop(bias: bool, level: str) -> None:
    """Scalars are loaded by all warps, before the roles; tiles by those that use them."""
    made = tilec.compile(gathered, SIGNATURE, {"BIAS": bias, "IF": False, "CARRIED": False},
                         target="sm_90a", num_warps=4)
    assert made.threads == 160
    rng = np.random.default_rng(3)
    a = rng.standard_normal((192, 208)).astype(ml_dtypes.bfloat16)
    b = rng.standard_normal((208, 64)).astype(ml_dtypes.bfloat16)
    rows = np.concatenate([[2, 0, 1], rng.integers(-9, 9, 61)]).astype(np.int32)
    c = np.full((192, 64), np.nan, ml_dtypes.bfloat16)
    descs = [tilec.TensorDescriptor(x, x.shape, (x.shape[1], 1), (64, 64)) for x in (a, b, c)]
    made.run([*descs, rows], 3, level, seed=1)
    want = a.astype(np.float64) @ b.astype(np.float64) + (rows[None, :] if bias else 0)
    np.testing.assert_allclose(c.astype(np.float64), want, rtol=2**-8, atol=2e-2)


@tilec.jit
def normed(a, b, c, sums):
    acc, total = tl.zeros((64, 64), tl.float32), tl.zeros((64,), tl.float32)
    for k in tl.range(0, a.shape[1], 64, warp_specialize=True):
        x = a.load([0, k])
        total += tl.sum(x.to(tl.float32), 1)
        acc = tl.dot(x, b.load([k, 0]), acc)
    c.store([0, 0], acc)
    tl.store(sums + tl.arange(0, 64), total)


@pytest.mark.parametrize("level", ["gpu", "lowered", "ptx"])
def test_blocks_that_threads_read_too(level: str) -> None:
    """Then the threads of a warpgroup meet before they say that a slot is empty."""
    signature = SIGNATURE | {"sums": "*fp32:16"}
    del signature["rows"]
    made = tilec.compile(normed, signature, {}, target="sm_90a", num_warps=4)
    rng = np.random.default_rng(5)
    a = rng.integers(-3, 4, (64, 592)).astype(ml_dtypes.bfloat16)
    b = rng.integers(-3, 4, (592, 64)).astype(ml_dtypes.bfloat16)
    want = a.astype(np.float64) @ b.astype(np.float64)
    for seed in range(3):
        c, sums = np.full((64, 64), np.nan, ml_dtypes.bfloat16), np.full(64, np.nan, np.float32)
        descs = [tilec.TensorDescriptor(x, x.shape, (x.shape[1], 1), (64, 64))
                 for x in (a, b, c)]
        made.run([*descs, sums], 1, level, seed=seed)
        np.testing.assert_allclose(c.astype(np.float64), want, rtol=2**-8)
        np.testing.assert_array_equal(sums, a.astype(np.float32).sum(1))
    assert any(isinstance(op.next, ops.MbarrierArrive) or isinstance(
        op.next and op.next.next, ops.MbarrierArrive) for op in
        parse(made.asm["gpu"]).walk() if isinstance(op, ops.WarpgroupBarrier))


@pytest.mark.parametrize(("given", "target", "reason"), [
    ({"IF": True}, "sm_90a", "TMA loads no block in it"), ({}, "sm_80", "TMA loads no block in it"),
    ({"CARRIED": True, "BIAS": True}, "sm_90a", "a block's place depends on what a loop carries")])
def test_loops_of_an_author(given: dict[str, bool], target: str, reason: str) -> None:
    with recording() as remarks:
        tilec.compile(gathered, SIGNATURE, {"BIAS": False, "IF": False, "CARRIED": False, **given},
                      target=target, num_warps=4).lower("ptx")
    found = [r.message for r in remarks if r.data.get("option") == "warp_specialize"]
    assert found == [f"its warps are not specialized: {reason}"]


@tilec.jit
def after_another(a, b, c, n):
    first = 0
    for i in tl.range(0, n, warp_specialize=True):
        first += i * 64
    acc = tl.zeros((64, 64), tl.float32)
    for k in tl.range(0, a.shape[1], 64, warp_specialize=True):
        acc = tl.dot(a.load([first, k]), b.load([k, 0]), acc)
    c.store([first, 0], acc)


def test_a_loop_without_blocks_is_told_so() -> None:
    """Also where another one has roles."""
    signature = {**SIGNATURE, "n": "i32"}
    del signature["rows"]
    with recording() as remarks:
        tilec.compile(after_another, signature, {}, target="sm_90a", num_warps=4).lower("ptx")
    one, other = [r for r in remarks if r.data.get("option") == "warp_specialize"]
    assert one.message == "its warps are not specialized: TMA loads no block in it"
    assert other.message == "a warp of its own loads the blocks"
    assert one.loc is not None and other.loc is not None and other.loc.line == one.loc.line + 3
