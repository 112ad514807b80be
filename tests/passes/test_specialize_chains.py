"""Loops with chained dots whose blocks warps of their own load: the same bits as without, at every
level; what such a role has of registers, and what ptxas makes of it."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from benchmarks.common import load_example
from tests.passes.test_chain import (
    both_case,
    caught,
    flat,
    linear_case,
    through,
)
from tests.support.attention import EXAMPLE, LEVELS, described, inputs
from tests.support.faults import all_of, drop
from tilec.codegen import ptxas
from tilec.codegen.cubin import LinkResult
from tilec.errors import ScheduleError
from tilec.ir import ops
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.ir.remarks import recording
from tilec.ir.role_registers import role_registers
from tilec.runtime.text import TextKernel

BF16 = ml_dtypes.bfloat16
CASES = [
    # heads, shared, rows, columns, d, (BM, BN), warps, stages, causal, element, programs
    (2, 2, 100, 150, 64, (64, 64), 4, 2, False, BF16, 2),
    (3, 1, 150, 150, 64, (64, 32), 4, 3, True, np.float16, 4),
    (1, 1, 130, 260, 128, (128, 128), 8, 2, True, BF16, 1),
    (1, 1, 140, 7, 32, (128, 32), 8, 4, False, np.float16, 3),
]


@pytest.mark.parametrize(
    ("heads", "shared", "rows", "columns", "d", "block", "warps", "stages", "causal", "element",
     "programs"), CASES)
@pytest.mark.sample(2)
def test_attention_has_the_same_bits(heads, shared, rows, columns, d, block, warps, stages, causal,
                                     element, programs, rng) -> None:
    """With roles, few programs share all tiles, or one more than there are."""
    attention = load_example(EXAMPLE)
    arrays = inputs(rng, heads, shared, rows, columns, d, element)
    want = attention.reference(*(x.astype(np.float64) for x in arrays), causal)
    bm, bn = block
    size, results = (heads, attention.padded_rows(rows)), {}
    tiles = tilec.cdiv(size[1], bm)
    for ws, level in [(ws, level) for ws in (False, True) for level in LEVELS]:
        out, lse = np.full((heads, rows, d), np.nan, element), np.full(size, np.nan, np.float32)
        args = [*described([*arrays, out], (bm, bn, bn, bm)), 1 / math.sqrt(d)]
        made = attention.attention_kernel.warmup(
            *args, SHARED=shared, CAUSAL=causal, lse=lse, WS=ws, GROUP=2, grid=(1,),
            num_warps=warps, num_stages=stages, target="sm_90a")
        text = made.asm["gpu"]
        assert ("warp_role" in text) == ws and "tile.load" not in text
        made.run([*args, lse], (programs,) if ws else (tiles, heads), level, seed=stages)
        np.testing.assert_allclose(out.astype(np.float64), want, 0, 2e-2, err_msg=level)
        assert np.isfinite(lse[:, :rows]).all() and (lse[:, rows:] == np.inf).all()
        results[ws, level] = out.tobytes() + lse.tobytes()
    for level in LEVELS:
        assert results[True, level] == results[False, level], level


def specialized(made: Any, last: str = "insert_barriers") -> Module:
    """A kernel's IR after a pass, if its loops that load blocks asked for warps that do."""
    module = parse(made.asm["tile"])
    for loop in all_of(module, ops.For):
        loop.warp_specialize = any(isinstance(x, ops.DescriptorLoad) for x in loop.body)
    return through(module, "dce", last)


def roles(module: Module) -> list[tuple[int, int]]:
    return [(r.warps, r.registers) for r in all_of(module, ops.WarpRole)]


@pytest.mark.parametrize(("lo", "hi", "stages"), [
    (0, 0, 2), (7, 5, 3), (0, 2, 3), (0, 33, 2), (32, 176, 3)])
@pytest.mark.sample(2)
def test_rounds_of_a_loop_in_a_loop(lo, hi, stages, rng) -> None:
    """No round, one, and more than there are slots; the rings go on from tile to tile. All numbers
    are whole, so that results are exact."""
    made, args, out, want = linear_case(rng, 160, 176, lo, hi, stages, roles=True)
    module = parse(made.asm["gpu"])
    assert roles(module) == [(4, 0), (1, 0)]
    kernel = TextKernel(module)
    for seed, level in enumerate(LEVELS):
        out[:] = np.nan
        kernel.run(flat(args), (2,), level, seed)
        np.testing.assert_array_equal(out, want, level)


@pytest.mark.parametrize(("n", "registers"), [(3, 0), (100, 0), (100, 96)])
@pytest.mark.sample(2)
def test_a_block_read_in_both_stages(n, registers, rng) -> None:
    """Rings of different depth, and what pointers read a round ahead; with few registers nothing
    else runs ahead but copies."""
    made, args, out, want = both_case(rng, n, 2, maxnreg=registers)
    kernel = TextKernel(specialized(made, "dce"))
    for seed, level in enumerate(LEVELS):
        out[:] = np.nan
        kernel.run(flat(args), (2,), level, seed)
        np.testing.assert_array_equal(out, want, level)


def test_what_is_dropped_is_missed(rng) -> None:
    """Waits, arrivals and copies of both roles, each left out in turn, where the loop inside has
    rounds with a mask and without, or none."""
    made, args, out, want = linear_case(rng, 192, 112, 0, 112, 2, roles=True)
    start, whole, silent, tried = args[3].base, parse(made.asm["lowered"]), [], 0
    for cls in (ops.MbarrierWait, ops.MbarrierArrive, ops.MbarrierExpect, ops.MbarrierInit,
                ops.TmaLoad):
        for index in range(len(all_of(whole, cls))):
            module = whole.clone()
            drop(cls, index)(module)
            tried += 1
            if not caught(module, flat(args), out, want) and \
                    not caught(module, flat([*args[:-1], 0]), out, start):
                silent.append((cls.name, index))
    assert tried == 30 and silent == []


@pytest.mark.parametrize(("causal", "d"), [(True, 128), (True, 64), (False, 64)])
@pytest.mark.sample(1)
def test_what_ptxas_makes_of_it(causal, d) -> None:
    """No spills, nothing serialised; threads compute while the second product of a round runs."""
    made = compiled(d, CAUSAL=causal, WS=True)
    assert roles(parse(made.asm["gpu"])) == [(8, 240), (4, 24)]
    assert made.threads == 384 and made.num_warps == 8
    if ptxas.find() is not None:
        linked = linked_of(made)
        assert linked.n_spills == linked.stack == 0 and linked.advisories == []
        assert linked.n_regs <= 168


def compiled(d: int, blocks: tuple[int, int] = (128, 128), warps: int = 8, maxnreg: int = 0,
             **given: bool) -> Any:
    signature = {name: f"tensordesc<bf16[1, {blocks[name in 'kv']}, {d}]>:16"
                 for name in ("q", "k", "v", "out")}
    return tilec.compile(load_example(EXAMPLE).attention_kernel, signature | {"scale": "fp32"},
                         {"SHARED": 1, **given}, target="sm_90a", num_warps=warps, num_stages=2,
                         maxnreg=maxnreg)


def linked_of(made: Any) -> LinkResult:
    linked = TextKernel(parse(made.asm["gpu"])).compiled.linked
    assert linked is not None
    return linked


def in_loop(module: Module) -> list[str]:
    """The products of the rotated loop, waits for them, arrivals, and what makes the operands of
    the next round."""
    loop = next(op for op in all_of(module, ops.For)
                if any(isinstance(x, ops.Wgmma) for x in op.body))
    kinds = (ops.Wgmma, ops.WgmmaWait, ops.MbarrierArrive, ops.Maximum, ops.Exp2,
             ops.Cast)
    return [f"{op.name} {op.pending}" if isinstance(op, ops.WgmmaWait) else op.name
            for op in loop.body if isinstance(op, kinds)]


@pytest.mark.parametrize("ws", [False, True])
def test_the_round(ws) -> None:
    """With roles, the exponentials are computed before the second product is waited for, and its
    operand of the next round after that, also where a mask stands in a branch."""
    found = in_loop(parse(compiled(128, CAUSAL=True, WS=ws).asm["gpu"]))
    arrive, exponentials = "gpu.mbarrier_arrive", ["tile.maximum", "tile.exp2", "tile.exp2"]
    assert found == ["gpu.wgmma", "gpu.wgmma", "gpu.wgmma_wait 1", arrive, *exponentials,
                     "gpu.wgmma_wait 0", arrive, "tile.cast"] if ws else \
        ["gpu.wgmma", "gpu.wgmma", "gpu.wgmma_wait 0", arrive, arrive, *exponentials, "tile.cast"]


def test_the_schedule_may_be_edited(rng) -> None:
    """A block's op_order says when its slot is released, and so when its product is waited for."""
    made, args, out, want = linear_case(rng, 64, 128, 0, 128, 2)
    module = specialized(made, "schedule")
    loads = [x for x in all_of(module, ops.DescriptorLoad) if x.stage >= 0]
    assert [(x.stage, x.op_order) for x in loads] == [(0, 3), (1, 6)]
    edited = parse(print_module(module))
    all_of(edited, ops.DescriptorLoad)[-1].op_order = 3
    for m, waited in ((module, 5), (edited, 4)):
        through(m, "schedule", "dce")
        found = in_loop(m)
        assert [i for i, name in enumerate(found) if "wait" in name] == [2, waited]
        assert found.index("tile.maximum") == (4 if m is module else 6)
        assert not any(op.after for op in all_of(m, ops.MbarrierArrive))
        for level in LEVELS:
            out[:] = np.nan
            TextKernel(m.clone()).run(flat(args), (1,), level, 3)
            np.testing.assert_array_equal(out, want, level)


def remarks_of(**config: Any) -> list[str]:
    with recording() as remarks:
        compiled(**config).lower("ptx")
    return [r.message for r in remarks if r.data.get("option") == "warp_specialize"]


def test_registers() -> None:
    """What the launch gives, if tiles fit; else what a warpgroup that loads leaves. A launch with a
    limit of its own has it for all."""
    assert [role_registers(warps) for warps in (4, 8, 16)] == [256, 240, 112]
    assert role_registers(8, 200) == 168
    assert remarks_of(d=128, CAUSAL=False, WS=True) == [
        "a warpgroup of its own loads the blocks, and leaves 240 registers to each thread that "
        "computes"]
    assert remarks_of(d=64, blocks=(64, 64), warps=4, CAUSAL=False, WS=True) == [
        "a warp of its own loads the blocks"]
    (wide,) = remarks_of(d=128, blocks=(256, 64), warps=16, CAUSAL=False, WS=True)
    assert wide == "its warps are not specialized: it needs about 114 registers a thread, and " \
        "112 would be left"
    (limited,) = remarks_of(d=256, blocks=(128, 64), maxnreg=240, CAUSAL=False, WS=True)
    assert limited == "its warps are not specialized: it needs about 202 registers a thread, and " \
        "168 would be left"
    made = compiled(64, maxnreg=240, CAUSAL=False, WS=True)
    assert made.threads == 288 and ".maxnreg 168" in made.asm["ptx"]


def test_registers_may_be_edited() -> None:
    module = parse(compiled(128, CAUSAL=False, WS=True).asm["gpu"])
    computing, loading = all_of(module, ops.WarpRole)
    computing.registers, loading.registers = 232, 40
    made = TextKernel(module).compiled
    assert "setmaxnreg.inc.sync.aligned.u32 232" in made.ptx


@tilec.jit
def twice(q, k, v, out, n):
    """A second loop, of blocks that are loaded after the first."""
    queries = q.load([0, 0])
    acc = tl.zeros((64, 64), tl.float32)
    for i in tl.range(0, n, 64, warp_specialize=True):
        s = tl.dot(queries, tl.trans(k.load([i, 0])))
        acc = tl.dot(tl.maximum(s, 0.0).to(q.dtype), v.load([i, 0]), acc)
    keys, values = k.load([0, 0]), v.load([0, 0])
    for _ in range(n):
        acc = tl.dot(keys, values, acc)
    out.store([0, 0], acc)


def test_a_block_that_is_loaded_later() -> None:
    blocks = {name: f"tensordesc<{t}[64, 64]>:16" for name, t in
              (("q", "fp16"), ("k", "fp16"), ("v", "fp16"), ("out", "fp32"))}
    with recording() as remarks:
        tilec.compile(twice, blocks | {"n": "i32"}, {}, target="sm_90a", num_warps=4).lower("gpu")
    assert "its warps are not specialized: TMA loads a block elsewhere" in [
        r.message for r in remarks]


def test_schedules_that_cannot_be(rng) -> None:
    made, *_ = linear_case(rng, 64, 128, 0, 128, 2)
    for change, message in (
            (lambda load, dot: setattr(load, "stage", 2), "expected a stage before"),
            (lambda load, dot: setattr(dot, "op_order", 9), "op_order puts it")):
        module = specialized(made, "schedule")
        change(all_of(module, ops.DescriptorLoad)[-1], all_of(module, ops.Dot)[0])
        with pytest.raises(ScheduleError, match=message):
            try:
                through(module, "schedule", "pipeline")
            except Exception as e:
                raise (e.__cause__ or e) from None


@tilec.jit
def sums(q, k, out, total, n, WS: tl.constexpr):
    """The products of one block of q with all of k, and what threads sum of that block."""
    queries = q.load([tl.program_id(0) * 64, 0])
    acc = tl.zeros((64, 32), tl.float32)
    for i in tl.range(0, n, 32, warp_specialize=WS):
        acc = tl.dot(queries, tl.trans(k.load([i, 0])), acc)
    rows = tl.program_id(0) * 64 + tl.arange(0, 64)
    tl.store(total + rows, tl.sum(queries.to(tl.float32), 1), rows < q.shape[0])
    out.store([tl.program_id(0) * 64, 0], acc)


@pytest.mark.parametrize("level", LEVELS)
def test_a_block_from_before_the_loop(level, rng) -> None:
    """It is loaded by the other role, too, where there is one product; threads may look at it."""
    q, k = (rng.integers(-3, 4, (n, 64)).astype(np.float16) for n in (100, 130))
    for ws in (False, True):
        out, total = np.full((100, 32), np.nan, np.float32), np.full(100, np.nan, np.float32)
        args = [*(tilec.TensorDescriptor.from_tensor(x, (b, x.shape[1]))
                  for x, b in ((q, 64), (k, 32), (out, 64))), total, 130]
        made = sums.warmup(*args, WS=ws, grid=(1,), num_warps=4, target="sm_90a")
        assert ("warp_role" in made.asm["gpu"]) == ws
        made.run(args, (2,), level, seed=5)
        whole = np.zeros((160, 64))
        whole[:130] = k
        want = q.astype(np.float64) @ whole.reshape(5, 32, 64).sum(0).T
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(total, q.astype(np.float32).sum(1))
