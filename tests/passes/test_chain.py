"""Loops in which one dot's result is an operand of another, as in attention: rotated, in registers,
by wgmma and TMA; right at every level, whatever the shapes, stages and schedules."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from benchmarks.common import load_example
from tests.support.attention import EXAMPLE, LEVELS, barriers, described, inputs, through_shared
from tests.support.faults import all_of, drop
from tests.support.stages import stage_number
from tilec.compiler import stages
from tilec.errors import InterpreterError, ScheduleError, SimulatorError
from tilec.ir import ops
from tilec.ir.core import Module
from tilec.ir.layouts import Mma
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.runtime.text import TextKernel
from tilec.target import Target

TARGET = Target.parse("sm_90a")

CASES = [
    # heads, shared, rows, columns, d, (BM, BN), warps, stages, causal, element
    (2, 2, 100, 150, 64, (64, 64), 4, 2, False, ml_dtypes.bfloat16),
    (2, 1, 150, 150, 64, (64, 64), 4, 3, True, ml_dtypes.bfloat16),
    (1, 1, 130, 300, 128, (128, 128), 8, 2, False, np.float16),
    (1, 1, 200, 200, 128, (128, 64), 8, 4, True, ml_dtypes.bfloat16),
    (4, 4, 64, 7, 32, (64, 32), 4, 2, False, np.float16),
    (1, 1, 140, 260, 64, (128, 128), 8, 3, False, ml_dtypes.bfloat16),
    (1, 1, 130, 130, 256, (128, 64), 8, 2, True, ml_dtypes.bfloat16),
    (1, 1, 64, 64, 32, (64, 16), 4, 1, True, np.float16),
]


@pytest.mark.parametrize(
    ("heads", "shared", "rows", "columns", "d", "block", "warps", "stages", "causal", "element"),
    CASES)
@pytest.mark.sample(2)
def test_attention(heads, shared, rows, columns, d, block, warps, stages, causal, element, rng
                   ) -> None:
    attention = load_example(EXAMPLE)
    arrays = inputs(rng, heads, shared, rows, columns, d, element)
    want = attention.reference(*(x.astype(np.float64) for x in arrays), causal)
    bm, bn = block
    for level in ("tile", *LEVELS):
        out = np.full((heads, rows, d), np.nan, element)
        args = [*described([*arrays, out], (bm, bn, bn, bm)), 1 / math.sqrt(d)]
        made = attention.attention_kernel.warmup(
            *args, SHARED=shared, CAUSAL=causal, grid=(1,), num_warps=warps, num_stages=stages,
            target="sm_90a")
        text = made.asm["gpu"]
        assert "tile.dot" not in text and "tile.load" not in text
        assert text.count("gpu.wgmma(") == (4 if stages > 1 else 2)
        made.run(args, (tilec.cdiv(rows, bm), heads), level, seed=stages)
        rough = 2e-2 if element is ml_dtypes.bfloat16 else 3e-3
        np.testing.assert_allclose(out.astype(np.float64), want, 0, rough, err_msg=level)


@tilec.jit
def both(q, k, v, weights, out, n):
    """out = the sum over blocks of max(2 q k' + weights, 0, q v') k, in which k is read twice."""
    BM: tl.constexpr = q.block_shape[0]
    BN: tl.constexpr = k.block_shape[0]
    for tile in tl.range(tl.program_id(0), tl.cdiv(q.shape[0], BM), tl.num_programs(0)):
        queries = q.load([tile * BM, 0])
        acc = tl.zeros((BM, k.block_shape[1]), tl.float32)
        for i in range(0, n, BN):
            keys = k.load([i, 0])
            s = tl.dot(queries, tl.trans(keys))
            t = tl.dot(queries, tl.trans(v.load([i, 0])))
            columns = i + tl.arange(0, BN)
            shift = tl.load(weights + columns, columns < n, other=0.0)
            p = tl.maximum(tl.maximum(2 * s + shift[None, :], 0.0), t)
            acc = tl.dot(p.to(q.dtype), keys, acc)
        out.store([tile * BM, 0], acc)


def both_case(rng, n, depth, warps=4, **options):
    bm = 16 * warps
    q, k, v = (rng.integers(-2, 3, (m, 64)).astype(np.float16) for m in (150, n, n))
    weights, out = rng.integers(-3, 4, n).astype(np.float32), np.full((150, 64), np.nan, np.float32)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    s, t = (wide[0] @ x.T for x in wide[1:])
    want = np.maximum(np.maximum(2 * s + weights, 0), t) @ wide[1]
    args = [*(tilec.TensorDescriptor.from_tensor(x, (b, 64))
              for x, b in ((q, bm), (k, 32), (v, 32))), weights,
            tilec.TensorDescriptor.from_tensor(out, (bm, 64)), n]
    made = both.warmup(*args, grid=(1,), num_warps=warps, num_stages=depth, target="sm_90a",
                       **options)
    return made, args, out, want


@pytest.mark.parametrize("n", [3, 32, 100, 256])
@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("registers", [0, 96])
@pytest.mark.sample(4)
def test_a_block_read_in_both_stages(n, depth, registers, rng) -> None:
    """A slot more for it; and what pointers read comes a round ahead. With few registers nothing
    else runs ahead but copies."""
    made, args, out, want = both_case(rng, n, depth, maxnreg=registers)
    slots = [depth, depth] if registers else [depth + 1, depth]
    text = made.asm["gpu"]
    assert [f"memdesc<{x}x32x64xf16" in text for x in slots] == [True, True]
    assert text.count("gpu.wgmma(") == (3 if registers else 6)
    for level in ("tile", *LEVELS):
        out[:] = np.nan
        made.run(args, (2,), level, seed=n)
        np.testing.assert_array_equal(out, want, level)


def test_products_in_turn(rng) -> None:
    """Both first products begin together, and threads compute with one while the other runs. What
    pointers read comes a round ahead."""
    made, *_ = both_case(rng, 100, 2, maxnreg=96)
    loop = made.asm["gpu"].rpartition("scf.for")[2].partition("scf.yield(%")[0]
    found = re.findall(r"gpu\.(?:wgmma\(|wgmma_wait|elect|barrier|mbarrier_arrive)|tile\.load|"
                       "pending", loop)
    assert found == ["tile.load", "gpu.wgmma(", "gpu.wgmma(", "gpu.wgmma_wait", "pending",
                     "gpu.elect", "gpu.elect", "gpu.wgmma_wait", "gpu.wgmma(", "gpu.wgmma_wait",
                     "gpu.mbarrier_arrive", "gpu.mbarrier_arrive"]


@tilec.jit
def beside(q, k, v, out, other, n):
    """out = sum of relu(q k') k, other = sum of twice q v'."""
    queries = q.load([0, 0])
    acc = tl.zeros((64, 64), tl.float32)
    rest = tl.zeros((64, 32), tl.float32)
    for i in range(0, n, 32):
        keys = k.load([i, 0])
        s = tl.dot(queries, tl.trans(keys))
        t = tl.dot(queries, tl.trans(v.load([i, 0])))
        acc = tl.dot(tl.maximum(s, 0.0).to(q.dtype), keys, acc)
        rest = rest * 0.5 + t
    out.store([0, 0], acc)
    other.store([0, 0], rest)


@pytest.mark.parametrize("registers", [0, 64])
def test_an_operand_is_made_beside_a_product(registers, rng) -> None:
    """With few registers, the second product begins while one of the first still runs, but not that
    one, which adds to what threads make, before the other has ended."""
    q, k, v = (rng.integers(-2, 3, (m, 64)).astype(np.float16) for m in (64, 96, 96))
    wide = [x.astype(np.float64) for x in (q, k, v)]
    want = np.maximum(wide[0] @ wide[1].T, 0) @ wide[1]
    t = (wide[0] @ wide[2].T).reshape(64, 3, 32)
    out, other = (np.full(s, np.nan, np.float32) for s in ((64, 64), (64, 32)))
    args = [*(tilec.TensorDescriptor.from_tensor(x, (b, x.shape[1]))
              for x, b in ((q, 64), (k, 32), (v, 32), (out, 64), (other, 64))), 96]
    made = beside.warmup(*args, grid=(1,), num_warps=4, num_stages=2, target="sm_90a",
                         maxnreg=registers)
    if registers:
        loop = made.asm["gpu"].partition("scf.for")[2].partition("scf.yield(%")[0]
        found = re.findall(r"(wgmma\w*)\(.*?(pending|$)", loop, re.M)
        assert found == [("wgmma", ""), ("wgmma_wait", ""), ("wgmma", ""), ("wgmma", ""),
                         ("wgmma_wait", "")]
    for level in LEVELS:
        out[:], other[:] = np.nan, np.nan
        made.run(args, (1,), level)
        np.testing.assert_array_equal(out, want, level)
        np.testing.assert_array_equal(other, t[:, 0] / 4 + t[:, 1] / 2 + t[:, 2], level)


@tilec.jit
def linear(q, k, v, start, out, lo, hi, TURNED: tl.constexpr, FLAT: tl.constexpr,
           WS: tl.constexpr):
    """out = start + sum of relu(q k') v over the keys from lo to hi, blocks of q by a persistent
    program. TURNED: v lies transposed. FLAT: the nest is to be flattened, which it cannot be. WS:
    its blocks are loaded by warps of their own."""
    BM: tl.constexpr = q.block_shape[0]
    BN: tl.constexpr = k.block_shape[0]
    for tile in tl.range(tl.program_id(0), tl.cdiv(q.shape[0], BM), tl.num_programs(0),
                         flatten=FLAT, warp_specialize=WS):
        queries = q.load([tile * BM, 0])
        acc = start.load([tile * BM, 0])
        steps = 0
        for i in range(lo, hi, BN):
            s = tl.dot(queries, tl.trans(k.load([i, 0])))
            s = tl.where((i + tl.arange(0, BN) < hi)[None, :], s, 0.0)
            p = tl.maximum(s, 0.0).to(q.dtype)
            values = tl.trans(v.load([0, i])) if TURNED else v.load([i, 0])
            acc = tl.dot(p, values, acc)
            steps += 1
        out.store([tile * BM, 0], acc + steps)


def linear_case(rng, rows, columns, lo, hi, stages, turned=False, warps=4, blocks=(64, 32),
                roles=False):
    d, (bm, bn) = 64, blocks
    q, k, v = (rng.integers(-2, 3, (n, d)).astype(np.float16) for n in (rows, columns, columns))
    start = rng.integers(-9, 9, (rows, d)).astype(np.float32)
    out = np.full((rows, d), np.nan, np.float32)
    scores = np.maximum(q.astype(np.float64) @ k.astype(np.float64).T, 0)
    scores[:, :lo] = scores[:, hi:] = 0
    want = start + scores @ v.astype(np.float64) + len(range(lo, hi, bn))
    d_of = tilec.TensorDescriptor.from_tensor
    args = [d_of(q, (bm, d)), d_of(k, (bn, d)),
            d_of(np.ascontiguousarray(v.T), (d, bn)) if turned else d_of(v, (bn, d)),
            d_of(start, (bm, d)), d_of(out, (bm, d)), lo, hi]
    made = linear.warmup(*args, TURNED=turned, FLAT=lo == 0, WS=roles, grid=(1,),
                         num_warps=warps, num_stages=stages, target="sm_90a")
    return made, args, out, want


@pytest.mark.parametrize(("lo", "hi"), [(0, 0), (7, 5), (0, 1), (16, 48), (0, 33), (32, 176)])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.sample(3)
def test_rounds_of_a_loop_in_a_loop(lo, hi, stages, rng) -> None:
    """No round, one, and more than there are slots; the ring goes on from tile to tile. All numbers
    are whole, so that results are exact."""
    made, args, out, want = linear_case(rng, 200, 176, lo, hi, stages)
    assert made.asm["gpu"].count("gpu.wgmma(") == 4
    for level in ("tile", *LEVELS):
        out[:] = np.nan
        made.run(args, (2,), level, seed=lo + hi)
        np.testing.assert_array_equal(out, want, level)


@pytest.mark.parametrize(("warps", "blocks"), [(4, (64, 64)), (8, (128, 16)), (8, (64, 64))])
@pytest.mark.sample(1)
def test_transposed_second_operand(warps, blocks, rng) -> None:
    made, args, out, want = linear_case(rng, 130, 160, 0, 160, 2, True, warps, blocks)
    for level in LEVELS:
        out[:] = np.nan
        made.run(args, (3,), level, seed=warps)
        np.testing.assert_array_equal(out, want, level)


def test_stages_change_no_bit(rng) -> None:
    attention, results = load_example(EXAMPLE), {"lowered": set(), "ptx": set()}
    arrays = inputs(rng, 2, 2, 130, 200, 64, ml_dtypes.bfloat16)
    for depth, level in itertools.product((1, 2, 3, 4), ("lowered", "ptx")):
        out = np.full((2, 130, 64), np.nan, ml_dtypes.bfloat16)
        args = [*described([*arrays, out], (64, 32, 32, 64)), 0.125]
        made = attention.attention_kernel.warmup(
            *args, SHARED=2, CAUSAL=False, grid=(1,), num_warps=4, num_stages=depth,
            target="sm_90a")
        made.run(args, (3, 2), level)
        results[level].add(out.tobytes())
    assert [len(found) for found in results.values()] == [1, 1]


def test_what_ptxas_makes_of_it() -> None:
    """No spills, nothing serialised, no exchange of the second operand; both products of a round
    begin before either is waited for."""
    attention = load_example(EXAMPLE)
    signature = {name: f"tensordesc<bf16[1, {rows}, 128]>:16"
                 for name, rows in (("q", 128), ("k", 128), ("v", 128), ("out", 128))}
    made = tilec.compile(attention.attention_kernel, signature | {"scale": "fp32"},
                         {"SHARED": 1, "CAUSAL": True}, target="sm_90a", num_warps=8, num_stages=2)
    linked = TextKernel(parse(made.asm["gpu"])).compiled.linked
    assert linked is not None and linked.n_spills == linked.stack == 0
    assert "C75" not in linked.log
    assert not through_shared(made.asm["gpu"]) and not barriers(made.asm["gpu"])
    loop = made.asm["gpu"].partition("scf.for")[2].partition("scf.yield(%")[0]
    begun = [line.split("(")[0].split()[-1] for line in loop.splitlines() if "gpu.wgmma" in line]
    assert begun == ["gpu.wgmma", "gpu.wgmma", "gpu.wgmma_wait"]


@tilec.jit
def unusual(q, k, v, out, n, KIND: tl.constexpr):
    """Loops with chained dots that are not rotated, or whose rounds hand on what is unusual."""
    BM: tl.constexpr = q.block_shape[0]
    BN: tl.constexpr = k.block_shape[0]
    queries = q.load([0, 0])
    acc = tl.zeros((BM, 64), tl.float32)
    old, older = acc, acc
    for i in range(0, n, BN):
        keys = k.load([i, 0])
        if KIND == "needs the second":
            s = tl.dot((queries + acc * 0.5).to(q.dtype), tl.trans(keys))
        else:
            s = tl.dot(queries, tl.trans(keys))
        if KIND == "same block":
            values = keys
        else:
            values = v.load([i, 0])
        if KIND == "also by threads":
            s += tl.sum(keys.to(tl.float32), 1)[None, :]
        if KIND == "loop inside":
            for _ in range(2):
                s += 1.0
        if KIND == "hands on":
            s += tl.sum(older, 1)[:, None]
        older = old
        acc = tl.dot(s.to(q.dtype), values, acc)
        old = acc
    out.store([0, 0], acc + older)


@pytest.mark.parametrize("kind", ["needs the second", "same block", "also by threads",
                                  "loop inside", "hands on"])
@pytest.mark.sample(3)
def test_other_loops(kind, rng) -> None:
    """All numbers are whole and small, so that results are exact at every level and depth."""
    q, k, v = (rng.integers(-1, 2, (n, 64)).astype(np.float16) for n in (64, 100, 100))
    q[:, 3:] = 0
    d = tilec.TensorDescriptor.from_tensor
    results = {}
    for depth, level in itertools.product((1, 2, 3), ("tile", *LEVELS)):
        out = np.full((64, 64), np.nan, np.float32)
        args = [*(d(x, (b, 64)) for x, b in ((q, 64), (k, 32), (v, 32), (out, 64))), 100]
        made = unusual.warmup(*args, KIND=kind, grid=(1,), num_warps=4, num_stages=depth,
                              target="sm_90a")
        made.run(args, (1,), level)
        results[depth, level] = out
    for got in results.values():
        np.testing.assert_array_equal(got, results[1, "tile"])


# -- schedules ----------------------------------------------------------------------------------

def flat(args: list[Any]) -> list[Any]:
    """The parameters that a kernel's IR has for its arguments."""
    out: list[Any] = []
    for x in args:
        if isinstance(x, tilec.TensorDescriptor):
            out += [x.base, *x.shape, *x.strides[:-1]]
        else:
            out.append(x)
    return out


def through(module: Module, first: str, last: str) -> Module:
    """A module after the pass `first` as it is after `last`, in place."""
    start = stage_number(first, "tile" if first == "dce" else None)
    level = "lowered" if last == "insert_barriers" else "gpu"
    for _ in stages(module, TARGET, start=start, stop_at=level, until=stage_number(last) + 1):
        pass
    return module


def scheduled(rng) -> tuple[Module, list[Any], np.ndarray, np.ndarray]:
    """The small kernel after `schedule`, and a launch of it."""
    made, args, out, want = linear_case(rng, 64, 128, 0, 128, 2)
    return through(parse(made.asm["tile"]), "dce", "schedule"), flat(args), out, want


def test_the_schedule_prints_and_may_be_edited(rng) -> None:
    """Copies in the first stages, first dot and what follows from it, second dot; a load of the
    second operand may as well come a stage earlier."""
    module, args, out, want = scheduled(rng)
    loads, dots = all_of(module, ops.DescriptorLoad), all_of(module, ops.Dot)
    assert [x.stage for x in loads if isinstance(x.parent.parent_op, ops.For)
            and x.parent.parent_op.num_stages] == [0, 1]
    assert [x.stage for x in dots] == [1, 2]
    edited = parse(print_module(module))
    all_of(edited, ops.DescriptorLoad)[-1].stage = 0
    turned = parse(print_module(module))
    all_of(turned, ops.Dot)[1].op_order = 0  # the second dot begins first
    for m in (module, edited, turned):
        through(m, "schedule", "insert_barriers")
        out[:] = np.nan
        TextKernel(m).run(args, (1,), "lowered", 3)
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize(("change", "message"), [
    (lambda loads, dots: setattr(loads[-1], "stage", 2), "in stage 2, expected a stage before"),
    (lambda loads, dots: setattr(dots[0], "stage", 2), "in stage 2|needs its result|before"),
    (lambda loads, dots: setattr(dots[0], "op_order", 9), "op_order puts it after"),
    (lambda loads, dots: setattr(dots[1].result, "type", replace(
        dots[1].result.type, layout=Mma(2, (4, 1), (16, 8)))), "only operands of wgmma can have"),
])
def test_schedules_that_cannot_be(change, message, rng) -> None:
    module, *_ = scheduled(rng)
    change(all_of(module, ops.DescriptorLoad), all_of(module, ops.Dot))
    with pytest.raises(ScheduleError, match=message):
        try:
            through(module, "schedule", "pipeline")
        except Exception as e:
            raise (e.__cause__ or e) from None


def caught(module: Module, args: list[Any], out: np.ndarray, want: np.ndarray) -> bool:
    """Whether the interpreter stops, or the simulator does, or the result is wrong."""
    for level, seed in (("lowered", 0), ("lowered", 1), ("ptx", 2)):
        out[:] = np.nan
        try:
            TextKernel(module).run(args, (1,), level, seed)
        except (InterpreterError, SimulatorError):
            return True
        if not np.array_equal(out, want):
            return True
    return False


def test_what_is_dropped_is_missed(rng) -> None:
    """Waits, arrivals, fences and barriers, each left out in turn."""
    made, args, out, want = linear_case(rng, 256, 160, 0, 160, 2, False, 8, (128, 32))
    whole = through(parse(made.asm["tile"]), "dce", "insert_barriers")
    args, silent, tried = flat(args), [], 0
    for cls in (ops.MbarrierWait, ops.MbarrierArrive, ops.MbarrierExpect, ops.MbarrierInit,
                ops.TmaLoad, ops.FenceAsync, ops.Barrier):
        for index in range(len(all_of(whole, cls))):
            module = whole.clone()
            drop(cls, index)(module)
            tried += 1
            if not caught(module, args, out, want):
                silent.append((cls.name, index))
    # Each tile begins with a barrier of all threads, which stands in for these.
    assert tried > 30 and silent == [("gpu.mbarrier_wait", 0), ("gpu.mbarrier_wait", 1),
                                     ("gpu.mbarrier_wait", 2), ("gpu.barrier", 0),
                                     ("gpu.barrier", 1)]


@pytest.mark.parametrize("registers", [0, 96])
def test_what_is_dropped_of_blocks_read_twice(registers, rng) -> None:
    """As above; only waits for an empty slot pass, since the interpreter's warpgroups keep step."""
    made, args, out, want = both_case(rng, 160, 2, 8, maxnreg=registers)
    whole, args = through(parse(made.asm["tile"]), "dce", "insert_barriers"), flat(args)
    for cls in (ops.MbarrierWait, ops.MbarrierArrive, ops.MbarrierExpect, ops.TmaLoad):
        for index, op in enumerate(all_of(whole, cls)):
            assert op.parent is not None
            if cls is ops.MbarrierWait and isinstance(op.parent.parent_op, ops.Elect):
                continue
            module = whole.clone()
            drop(cls, index)(module)
            assert caught(module, args, out, want), (cls.name, index)
