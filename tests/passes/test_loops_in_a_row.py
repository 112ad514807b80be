"""Loops that follow each other, each fed by TMA: they share the buffers, and a barrier between them
orders the reads of one and the copies of the next."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.passes.test_chain import caught, flat, through
from tests.support.faults import all_of, drop
from tilec import knobs
from tilec.ir import ops
from tilec.ir.parser import parse
from tilec.knobs import RUN_LEVELS

LEVELS = RUN_LEVELS


@tilec.jit
def add_product(acc, x, a, b, BK: tl.constexpr, CHAINED: tl.constexpr):
    """acc + a @ b; CHAINED: acc + (x @ b^T) @ b, for x, which is all of a."""
    for k in range(0, a.shape[1], BK):
        if CHAINED:
            s = tl.dot(x, tl.trans(b.load([k, 0])))
            acc = tl.dot(s.to(tl.float16), b.load([k, 0]), acc)
        else:
            acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
    return acc


@tilec.jit
def in_a_row(a, b, c, out, BK: tl.constexpr, CHAINED: tl.constexpr, MORE: tl.constexpr):
    """The product of a and b, and twice that of a and c; MORE: and once more with b."""
    x = a.load([0, 0])
    acc = tl.zeros((64, 64), tl.float32)
    acc = add_product(acc, x, a, b, BK, CHAINED)
    acc = add_product(acc * 0.5, x, a, c, BK, CHAINED)
    if MORE:
        acc = add_product(acc, x, a, b, BK, False)
    out.store([0, 0], 2.0 * acc)


def case(rng, chained=False, more=False, stages=3, depth=160, warps=4):
    """(kernel, arguments, result, what it is to be); sums are exact."""
    step = 32
    wide = 64 if chained else depth
    a, b, c = (rng.integers(-2, 3, s).astype(np.float16) for s in (
        (64, wide), (wide, 64), (wide, 64)))
    out = np.full((64, 64), np.nan, np.float32)
    blocks = [tilec.TensorDescriptor.from_tensor(x, block) for x, block in (
        (a, (64, 64 if chained else step)), (b, (step, 64)), (c, (step, 64)), (out, (64, 64)))]
    made = in_a_row.warmup(*blocks, BK=step, CHAINED=chained, MORE=more, grid=(1,),
                           target="sm_90a", num_warps=warps, num_stages=stages)
    fa, fb, fc = (x.astype(np.float32) for x in (a, b, c))
    if chained:
        want = fa @ fb.T @ fb + 2 * (fa @ fc.T @ fc)
    else:
        want = fa @ fb + 2 * (fa @ fc)
    return made, blocks, out, want + 2 * more * (fa @ fb)


@pytest.mark.parametrize(("chained", "more", "stages", "warps"), [
    (False, False, 2, 4), (False, False, 3, 4), (False, True, 4, 4), (False, False, 1, 4),
    (False, True, 3, 8), (True, False, 2, 4), (True, False, 3, 4)])
@pytest.mark.sample(2)
def test_one_set_of_buffers(chained, more, stages, warps, rng) -> None:
    made, args, out, want = case(rng, chained, more, stages, warps=warps)
    text = made.asm["gpu"]
    with knobs.scope(check=True):
        for level in LEVELS:
            for seed in range(3):
                out[...] = np.nan
                made.run(args, (1,), level, seed)
                np.testing.assert_array_equal(out, want, level)
    assert text.count("gpu.tma_load") > 2
    rings = re.findall(r"gpu.alloc_shared\(\) : memdesc<(\d+x)?32x64xf16", text)
    assert len(rings) == (2 if chained else 1), text


def test_what_is_dropped_between_loops_is_missed(rng) -> None:
    """Barriers, waits and setups, each left out in turn. The first barrier after a setup stands
    before the first loop's copies: a launch begins with all threads together."""
    made, args, out, want = case(rng, stages=3, depth=160, warps=8)
    whole = through(parse(made.asm["tile"]), "dce", "insert_barriers")
    args, silent = flat(args), []
    for cls in (ops.Barrier, ops.MbarrierInit, ops.MbarrierWait, ops.TmaLoad):
        for index in range(len(all_of(whole, cls))):
            module = whole.clone()
            drop(cls, index)(module)
            if not caught(module, args, out, want):
                silent.append((cls.name, index))
    assert silent == []


@tilec.jit
def in_a_loop(a, b, out, n, BK: tl.constexpr):
    """Two loops within one: each of its rounds begins where the one before has ended."""
    for i in range(0, n, 64):
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, a.shape[1], BK):
            acc = tl.dot(a.load([i, k]), b.load([k, 0]), acc)
        acc = tl.maximum(acc, 0.0)
        for k in range(0, a.shape[1], BK):
            acc = tl.dot(a.load([i, k]), b.load([k, 0]), acc)
        out.store([i, 0], acc)


@pytest.mark.parametrize("stages", [2, 3])
def test_loops_in_a_loop(stages, rng) -> None:
    a, b = (rng.integers(-2, 3, s).astype(np.float16) for s in ((200, 96), (96, 64)))
    out = np.full((200, 64), np.nan, np.float32)
    args = [*(tilec.TensorDescriptor.from_tensor(x, block) for x, block in (
        (a, (64, 32)), (b, (32, 64)), (out, (64, 64)))), 200]
    made = in_a_loop.warmup(*args, BK=32, grid=(1,), target="sm_90a", num_warps=4,
                            num_stages=stages)
    product = a.astype(np.float32) @ b.astype(np.float32)
    with knobs.scope(check=True):
        for level in LEVELS:
            for seed in range(2):
                out[...] = np.nan
                made.run(args, (1,), level, seed)
                np.testing.assert_array_equal(out, np.maximum(product, 0) + product, level)
