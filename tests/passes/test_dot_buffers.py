"""Products of tiles loaded through pointers, on wgmma: right at every level whatever the shapes,
the stages and the schedule, and an order that is wrong is found."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.sim.launches import captured
from tests.support.covering import covering
from tests.support.faults import all_of, drop
from tests.support.matmul import LEVELS, WAYS, matmul, product, shown
from tests.test_matmul import check
from tests.test_num_stages import gathered, nested, same_bits, twice, until
from tilec.codegen.cubin import link
from tilec.compiler import compile_from
from tilec.errors import InterpreterError
from tilec.interp.run import run
from tilec.ir import ops
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.ir.remarks import recording
from tilec.passes.base import parse_pipeline
from tilec.runtime.text import TextKernel

HOPPER = "sm_90a"
NARROW = ("i8", "e4m3", "e5m2")
# Rows per warpgroup and columns per instruction of all sorts; odd multiples of powers of two.
BLOCKS = [(64, 64, 32), (128, 32, 64), (64, 96, 64), (64, 160, 32), (192, 16, 32),
          (64, 64, 96), (256, 64, 32)]
FACTORS: dict[str, list[Any]] = {
    "kind": ["f16", "f16_f16", *NARROW], "block": BLOCKS, "num_warps": [4, 8],
    "num_stages": [1, 2, 3, 4], "a": WAYS, "b": WAYS, "edges": ["exact", "aligned"],
    "steps": [1, 2, 5], "target": [HOPPER], "find_boxes": [False, True]}


def by_wgmma(config: dict[str, Any]) -> bool:
    """Whether a configuration's dot is for wgmma: 8-bit operands lie along k, and there is
    a shape of warpgroups."""
    m, n, k = config["block"]
    along_k = config["a"] == "rows" and config["b"] != "rows"
    groups = config["num_warps"] // 4
    down = min(groups, m // 64)
    across = n // (groups // down)
    return (along_k or config["kind"] not in NARROW) and m // 64 % down == 0 and (
        groups == down or n & -n == n) and across % (16 if config["kind"] == "i8" else 8) == 0


@pytest.mark.parametrize("config", [pytest.param(c, id=shown(c)) for c in covering(FACTORS)])
@pytest.mark.sample(6)
def test_products(config: dict[str, Any]) -> None:
    check(config)
    p = product(config, np.random.default_rng(zlib.crc32(shown(config).encode())))
    made = matmul.warmup(*p.args.values(), grid=p.grid, num_warps=config["num_warps"],
                         num_stages=config["num_stages"], target=HOPPER,
                         find_boxes=config["find_boxes"], **p.constexprs)
    assert ("gpu.wgmma(" in made.asm["gpu"]) == by_wgmma(config)


# ---- stages
@pytest.mark.parametrize("kind", ["f16", "bf16", *NARROW])
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.sample(2)
def test_stages_change_no_bit(kind: str, steps: int, rng) -> None:
    p = product({"kind": kind, "block": (64, 32, 32), "a": "rows", "b": "columns",
                 "edges": "aligned", "steps": steps}, rng)
    *_, got = same_bits(matmul, p.args, p.constexprs, 2, target=HOPPER)
    p.check(got, kind)


@pytest.mark.parametrize(("a", "b"), [("trans", "trans"), ("rows", "trans"), ("trans", "rows")])
def test_operands_stored_through_registers(a: str, b: str, rng) -> None:
    """With one stage; a transposed one, too, is fenced."""
    config = {"kind": "f16", "block": (64, 32, 32), "a": a, "b": b, "edges": "aligned", "steps": 3,
              "num_warps": 4, "num_stages": 1, "target": HOPPER, "find_boxes": False}
    check(config)


def test_no_iteration(rng) -> None:
    p = product({"kind": "f16", "block": (64, 32, 32), "a": "rows", "b": "rows", "edges": "exact",
                 "steps": 2}, rng)
    *_, got = same_bits(matmul, {**p.args, "K": 0}, p.constexprs, 2, target=HOPPER)
    assert not got.any()


def test_nested_loops(rng) -> None:
    """Of none, one and two iterations inside; each refills what the one before has read."""
    bm, k, tiles = 64, 64, 5
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((bm, 2 * k), (2 * k, bm)))
    w = rng.standard_normal((tiles, bm, bm)).astype(np.float32)
    args = {"a_ptr": a, "b_ptr": b, "w_ptr": w, "o_ptr": np.zeros((bm, bm), np.float32),
            "tiles": tiles, "K": k}
    *_, got = same_bits(nested, args, {"BM": bm, "BK": 32}, 3, stages="S", target=HOPPER)
    wide = [a[:, :k * n].astype(float) @ b[:k * n].astype(float) for n in (0, 1, 2)]
    np.testing.assert_allclose(got, sum(wide[t % 3] * w[t] for t in range(tiles)), 1e-4, 1e-4)


def test_addresses_from_loads(rng) -> None:
    bm, bk, n = 64, 32, 5
    x = rng.standard_normal((70, bk)).astype(np.float16)
    y = rng.standard_normal((n, bk, bm)).astype(np.float16)
    table = rng.integers(0, 70, (n, bm)).astype(np.int32)
    args = {"x_ptr": x, "i_ptr": table, "y_ptr": y, "o_ptr": np.zeros((bm, bm), np.float32), "n": n}
    *_, got = same_bits(gathered, args, {"BM": bm, "BK": bk}, 1, later=1, target=HOPPER)
    np.testing.assert_allclose(got, sum(x[table[t]].astype(float) @ y[t].astype(float)
                                        for t in range(n)), 1e-4, 1e-4)


def test_one_load_as_both_operands_and_a_summand(rng) -> None:
    b, n = 64, 4
    x = rng.integers(-4, 5, (n, b, b)).astype(np.float16)
    args = {"x_ptr": x, "o_ptr": np.zeros((b, b), np.float32),
            "s_ptr": np.zeros((b, b), np.float32), "n": n}
    _, got, total = same_bits(twice, args, {"B": b, "OUT": tl.float32}, 1, target=HOPPER)
    wide = x.astype(float)
    np.testing.assert_array_equal(got, (wide @ wide.swapaxes(1, 2) + wide.swapaxes(1, 2) @ wide
                                        ).sum(0))
    np.testing.assert_array_equal(total, wide.sum(0))


@tilec.jit
def beside(a_ptr, b_ptr, o_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Of a the first row is left out, so that TMA does not bring it, nor b for the same dot."""
    a = tl.make_tensor_descriptor(a_ptr + K, [M - 1, K], [K, 1], [BM, BK])
    b = tl.make_tensor_descriptor(b_ptr, [K, N], [N, 1], [BK, BN])
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([i, k]), b.load([k, j]), acc)
    out = tl.make_tensor_descriptor(o_ptr, [M - 1, N], [N, 1], [BM, BN])
    out.store([i, j], acc)


def test_blocks_that_tma_does_not_bring(rng) -> None:
    m, n, k = 71, 80, 144
    a, b = (rng.integers(-4, 5, s).astype(np.float16) for s in ((m, k), (k, n)))
    args = {"a_ptr": a, "b_ptr": b, "o_ptr": np.full((m - 1, n), np.nan, np.float32), "M": m,
            "N": n, "K": k}
    *_, got = same_bits(beside, args, {"BM": 64, "BN": 64, "BK": 32}, 2, target=HOPPER,
                        grid=(2, 2))
    np.testing.assert_array_equal(got, a[1:].astype(float) @ b.astype(float))


def test_while_loops_stay_on_mma_sync(rng) -> None:
    bm, bk, k = 64, 32, 96
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((bm, k), (k, bm)))
    args = {"a_ptr": a, "b_ptr": b, "o_ptr": np.zeros((bm, bm), np.float32),
            "stop_ptr": np.array([0, 1], np.int32), "K": k}
    *_, got, _ = same_bits(until, args, {"BM": bm, "BK": bk}, 2, stages="S", target=HOPPER)
    wide = a.astype(float), b.astype(float)
    np.testing.assert_allclose(got, wide[0] @ wide[1] + wide[0][:, :bk] @ wide[1][:bk], 1e-4, 1e-4)


@tilec.jit
def persistent(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
               FLAT: tl.constexpr):
    """Tile after tile, whose results go through scratch where the operands lie."""
    across = tl.cdiv(N, BN)
    for t in tl.range(tl.program_id(0), tl.cdiv(M, BM) * across, tl.num_programs(0), flatten=FLAT):
        rm, rn = t // across * BM + tl.arange(0, BM), t % across * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            rk = k + tl.arange(0, BK)
            x = tl.load(a_ptr + rm[:, None] * K + rk[None, :],
                        (rm[:, None] < M) & (rk[None, :] < K), other=0)
            y = tl.load(b_ptr + rk[:, None] * N + rn[None, :],
                        (rk[:, None] < K) & (rn[None, :] < N), other=0)
            acc = tl.dot(x, y, acc)
        tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.float16),
                 (rm[:, None] < M) & (rn[None, :] < N))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.sample(1)
def test_persistent_loops(flat: bool, rng) -> None:
    m, n, k = 80, 48, 80
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (k, n)))
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": np.full((m, n), np.nan, np.float16), "M": m, "N": n,
            "K": k}
    constexprs = {"BM": 64, "BN": 32, "BK": 32, "FLAT": flat}
    *_, got = same_bits(persistent, args, constexprs, 2, target=HOPPER, grid=(2,))
    np.testing.assert_array_equal(got, (a.astype(float) @ b.astype(float)).astype(np.float16))
    launch = captured(persistent, list(args.values()), (2,), target=HOPPER, **constexprs)
    for seed in (None, 1):
        launch.run(seed=seed, check=True)


@tilec.jit
def two(a_ptr, b_ptr, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Two products a round, of which one has to be waited for."""
    rm, rn = tl.arange(0, BM), tl.arange(0, BN)
    acc, plain = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(a_ptr + rm[:, None] * K + rk[None, :])
        y = tl.load(b_ptr + rk[:, None] * BN + rn[None, :])
        acc = tl.dot(x, y, acc * 0.5)
        plain = tl.dot(x, y, plain)
    tl.store(c_ptr + rm[:, None] * BN + rn[None, :], acc + plain)


def test_two_products_a_round(rng) -> None:
    m, n, k = 64, 32, 160
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (k, n)))
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": np.full((m, n), np.nan, np.float32), "K": k}
    constexprs = {"BM": m, "BN": n, "BK": 32}
    *_, got = same_bits(two, args, constexprs, 2, target=HOPPER)
    want = np.zeros((m, n))
    for i in range(0, k, 32):
        want = want * 0.5 + a[:, i:i + 32].astype(float) @ b[i:i + 32].astype(float)
    np.testing.assert_array_equal(got, want + a.astype(float) @ b.astype(float))
    captured(two, list(args.values()), (1,), target=HOPPER, **constexprs).run(check=True)


# ---- operands from elsewhere
@tilec.jit
def scaled(a_ptr, b_ptr, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
           A: tl.constexpr, B: tl.constexpr):
    """An operand that is computed of what is loaded: of a, which lies in 8 bits, or of b."""
    rm, rn = tl.arange(0, BM), tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(a_ptr + rm[:, None] * K + rk[None, :])
        y = tl.load(b_ptr + rk[:, None] * BN + rn[None, :])
        if A:
            x = x.to(tl.float16) * 0.5
        if B:
            y = y * 2.0
        acc = tl.dot(x, y, acc)
    tl.store(c_ptr + rm[:, None] * BN + rn[None, :], acc)


@pytest.mark.parametrize("held", [np.int8, np.float16, np.float32], ids=["i8", "f16", "f32"])
@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.sample(2)
def test_a_in_registers(held: Any, warps: int, rng) -> None:
    m, n, k = 128, 32, 160
    a, b = rng.integers(-4, 5, (m, k)).astype(held), rng.integers(-4, 5, (k, n)).astype(np.float16)
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": np.full((m, n), np.nan, np.float32), "K": k}
    constexprs = {"BM": m, "BN": n, "BK": 32, "A": True, "B": False}
    made = scaled.warmup(*args.values(), grid=(1,), num_warps=warps, target=HOPPER, **constexprs)
    (product_,) = re.findall(r"gpu\.wgmma\((.*)\) : ", made.asm["gpu"])
    assert re.search(rf"{re.escape(product_.split(',')[0])} = .*#d\d+>$", made.asm["gpu"], re.M)
    linked = link(made.asm["ptx"], made.target, name=made.name)
    assert linked.n_spills == linked.stack == 0 and not linked.advisories
    *_, got = same_bits(scaled, args, constexprs, 2, num_warps=warps, target=HOPPER)
    np.testing.assert_array_equal(got, a.astype(float) / 2 @ b.astype(float))


def test_b_in_registers_stays_on_mma_sync(rng) -> None:
    m, n, k = 64, 32, 96
    a, b = (rng.integers(-4, 5, s).astype(np.float16) for s in ((m, k), (k, n)))
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": np.full((m, n), np.nan, np.float32), "K": k}
    constexprs = {"BM": m, "BN": n, "BK": 32, "A": False, "B": True}
    *_, got = same_bits(scaled, args, constexprs, 2, target=HOPPER)
    np.testing.assert_array_equal(got, a.astype(float) @ b.astype(float) * 2)
    assert said(scaled, args, constexprs) == "operand b comes from tile.mul, not from a load"


def said(kernel: Any, args: dict[str, Any], constexprs: dict[str, Any], **options: Any) -> str:
    """Why the kernel's dot is not for wgmma."""
    made = kernel.warmup(*args.values(), grid=(1,), target=HOPPER, find_boxes=False, **options,
                         **constexprs)
    with recording() as remarks:
        compile_from(made.build(), made.target, "gpu")
    (found,) = {r.message for r in remarks if r.kind == "dot"}
    return found.partition("not for wgmma: ")[2]


@tilec.jit
def chained(a_ptr, b_ptr, c_ptr, n, B: tl.constexpr):
    r = tl.arange(0, B)
    at = r[:, None] * B + r[None, :]
    acc = tl.zeros((B, B), tl.float32)
    for i in range(n):
        x, y = tl.load(a_ptr + i * B * B + at), tl.load(b_ptr + i * B * B + at)
        p = tl.dot(x, y).to(tl.float16)
        acc = tl.dot(p, y, acc)
    tl.store(c_ptr + at, acc)


def test_chained_dots_stay_on_mma_sync(rng) -> None:
    x = rng.standard_normal((3, 64, 64)).astype(np.float16)
    args = {"a_ptr": x, "b_ptr": x, "c_ptr": np.zeros((64, 64), np.float32), "n": 3}
    assert said(chained, args, {"B": 64}) == "another dot gives its operands or takes its result"


@tilec.jit
def filled(a_ptr, b_ptr, c_ptr, K, B: tl.constexpr, OUTSIDE: tl.constexpr):
    """With ones where operand b is masked off, or with operand a from outside of the loop."""
    r = tl.arange(0, B)
    at = r[:, None] * B + r[None, :]
    acc = tl.zeros((B, B), tl.float32)
    x = tl.load(a_ptr + at)
    for k in range(0, K, B):
        if not OUTSIDE:
            x = tl.load(a_ptr + k * B + at)
        y = tl.load(b_ptr + k * B + at, (k + r[:, None] < K - 8) & (r[None, :] >= 0), other=1)
        acc = tl.dot(x, y, acc)
    tl.store(c_ptr + at, acc)


@pytest.mark.parametrize(("outside", "reason"), [
    (False, "the `other` of operand b is not zero"),
    (True, "operand a does not come from its own loop")])
def test_other_loads_stay_on_mma_sync(outside: bool, reason: str, rng) -> None:
    x, y = (rng.integers(-3, 4, (192, 64)).astype(np.float16) for _ in range(2))
    args = {"a_ptr": x, "b_ptr": y, "c_ptr": np.zeros((64, 64), np.float32), "K": 192}
    assert said(filled, args, {"B": 64, "OUTSIDE": outside}) == reason
    *_, got = same_bits(filled, args, {"B": 64, "OUTSIDE": outside}, 0 if outside else 1,
                        target=HOPPER)
    ones = np.where(np.arange(192)[:, None] < 184, y, 1).astype(float).reshape(3, 64, 64)
    left = x.astype(float).reshape(3, 64, 64)
    np.testing.assert_array_equal(got, sum((left[0] if outside else left[i]) @ ones[i]
                                           for i in range(3)))


@pytest.mark.parametrize(("change", "reason"), [
    ({"block": (32, 64, 32)}, "the result is [32, 64], expected rows in multiples of 64"),
    ({"num_warps": 2}, "there are 2 warps, expected a multiple of 4"),
    ({"kind": "tf32"}, "its types are f32 to f32"),
    ({"block": (64, 64, 8)}, "k is 8, expected a multiple of 16"),
    ({"kind": "e4m3"}, "operand b has 8 bits and is not contiguous along k"),
    ({"kind": "i8", "a": "columns", "b": "columns"},
     "operand a has 8 bits and is not contiguous along k"),
    ({"edges": "odd"}, "of operand a a thread has less than 4 bytes side by side to copy"),
    ({"block": (64, 24, 128), "kind": "i8", "b": "trans"},
     "no instruction fits its extents and warps")])
@pytest.mark.sample(2)
def test_a_remark_says_why_not(change: dict[str, Any], reason: str, rng) -> None:
    config = {"kind": "f16", "block": (64, 64, 32), "a": "rows", "b": "rows", "edges": "exact",
              "steps": 2, **change}
    p = product(config, rng)
    assert said(matmul, p.args, p.constexprs, num_warps=config.get("num_warps", 4)) == reason


# ---- the order of things
def ring(stages: int = 3, level: str = "gpu") -> Module:
    """A product of two f16 tiles of 64 x 64 x 32 a round, five rounds, at a level."""
    p = product({"kind": "f16", "block": (64, 64, 32), "a": "rows", "b": "rows",
                 "edges": "aligned", "steps": 5}, np.random.default_rng(5))
    made = matmul.warmup(*p.args.values(), grid=p.grid, num_stages=stages, target=HOPPER,
                         find_boxes=False,
                         **p.constexprs)
    return parse(made.asm[level])


def run_ring(module: Module, seed: int = 0) -> None:
    """Run it and compare."""
    p = product({"kind": "f16", "block": (64, 64, 32), "a": "rows", "b": "rows",
                 "edges": "aligned", "steps": 5}, np.random.default_rng(5))
    names = [arg.name for arg in module.funcs[0].args]
    run(module, "matmul", [p.args[name] for name in names], p.grid, seed=seed)
    p.check(p.args["c_ptr"], "ring")


def late_wait(cls: type[Any], pending: int) -> Callable[[Module], None]:
    def fault(m: Module) -> None:
        all_of(m, cls)[0].pending = pending
    return fault


def fence_first(m: Module) -> None:
    wait, fence = all_of(m, ops.AsyncWait)[0], all_of(m, ops.FenceAsync)[0]
    fence.move_before(wait)


FAULTS: dict[str, tuple[Callable[[Module], None], str]] = {
    "no fence": (drop(ops.FenceAsync, 0), "put a gpu.fence_async and a barrier between"),
    "fence before the wait": (fence_first, "put a gpu.fence_async and a barrier between"),
    "no wait for copies": (drop(ops.AsyncWait, 0), "may still be copying|poison"),
    "wait for too few copies": (late_wait(ops.AsyncWait, 2), "may still be copying|poison"),
    "product still under way": (late_wait(ops.WgmmaWait, 2), "may still read"),
    "no wait for a product": (lambda m: all_of(m, ops.WgmmaWait)[0].replace_by(
        list(all_of(m, ops.WgmmaWait)[0].operands)), "may still read"),
    "sums not waited for": (lambda m: setattr(all_of(m, ops.WgmmaWait)[1], "pending", 1),
                            "poison|may still read"),
}
BARRIERS = {"before the product": 0, "before the copies": 1, "after the loop": 2}


@pytest.mark.parametrize("level", ["gpu", "lowered"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.sample(4)
def test_faults_are_found(fault: str, level: str) -> None:
    change, message = FAULTS[fault]
    module = ring(level=level)
    run_ring(module.clone())
    change(module)
    with pytest.raises(InterpreterError, match=message):
        run_ring(module)


@pytest.mark.parametrize("barrier", BARRIERS)
def test_a_barrier_less_is_found(barrier: str) -> None:
    module = ring(level="lowered")
    drop(ops.Barrier, BARRIERS[barrier])(module)
    with pytest.raises(InterpreterError, match="with no barrier between them|put a barrier|"
                                               "put a gpu.fence_async and a barrier"):
        run_ring(module)


def test_two_barriers_a_round_and_one_more_for_scratch() -> None:
    module = ring(level="lowered")
    (loop,) = all_of(module, ops.For)
    names = [op.name for op in loop.body if op.effects]
    assert names == ["gpu.async_wait", "gpu.fence_async", "gpu.barrier", "gpu.wgmma",
                     "gpu.wgmma_wait", "gpu.barrier", "gpu.async_copy", "gpu.async_copy",
                     "gpu.async_commit"]
    assert all_of(module, ops.WgmmaWait)[0].pending == 1


def test_scratch_lies_in_the_ring_once_it_is_done() -> None:
    module = ring(stages=4, level="lowered")
    (convert,) = all_of(module, ops.ConvertLayout)
    assert module.attributes["shared"] == 4 * 2 * 64 * 32 * 2 > convert.offset >= 0


# ---- schedules by hand
@pytest.mark.parametrize(("dot", "copies"), [(0, 0), (3, 0), (0, 7), (3, 7)])
@pytest.mark.sample(2)
def test_other_orders_of_a_round(dot: int, copies: int) -> None:
    check_schedule(lambda op: dot if isinstance(op, ops.Dot) else copies, -1)


@pytest.mark.parametrize("stages", [3, 4])
def test_dots_that_run_ahead(stages: int) -> None:
    """In the prologue, too; the last stage only carries the sum round."""
    check_schedule(lambda op: 0, 1, stages)


def check_schedule(order: Callable[[Any], int], stage: int, stages: int = 3) -> None:
    """With this op_order of the loads and the dot, and this stage of the dot."""
    p = product({"kind": "f16", "block": (64, 64, 32), "a": "rows", "b": "trans",
                 "edges": "aligned", "steps": 5}, np.random.default_rng(6))
    made = matmul.warmup(*p.args.values(), grid=p.grid, target=HOPPER, num_stages=stages,
                         find_boxes=False,
                         **p.constexprs)
    module = made.build()
    compile_from(module, made.target, "tile")
    for each in parse_pipeline("assign_layouts,coalesce,accelerate_matmul,"
                               "remove_layout_conversions,cse,schedule"):
        each.run(module)
    for op in module.walk():
        if isinstance(op, ops.Load | ops.Dot):
            op.op_order = order(op)
            if isinstance(op, ops.Dot):
                op.stage = stage
    for each in parse_pipeline("pipeline,async_dots,cse,reorder,dce"):
        each.run(module)
    text = print_module(module)
    for level in LEVELS[1:]:
        mine = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in p.args.items()}
        kernel = TextKernel(parse(text))
        names = [arg.name for arg in kernel.module.funcs[0].args]
        kernel.run([mine[name] for name in names], p.grid, level, 3)
        p.check(mine["c_ptr"], level)
