"""Masks whose indices come of `//` and `%` by what may be zero: a branch that is never taken on
poison, and the same bits as without it at all levels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec.ir import ops
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.remarks import recording
from tilec.knobs import RUN_LEVELS
from tilec.passes import guard_masks

LEVELS = RUN_LEVELS
LOG2_E = tl.constexpr(1.4426950408889634)


def compiled(kernel: Any, args: list[Any], guarded: bool, **options: Any) -> tuple[Any, list[str]]:
    """A kernel made for such arguments, with branches or without, and what the remarks say."""
    with pytest.MonkeyPatch.context() as patch, tilec.knobs.scope(cache=False), \
            recording() as remarks:
        if not guarded:
            patch.setattr(guard_masks, "LEAST_ELEMENTS", 1 << 30)
        made = kernel.warmup(*args, grid=(1,), num_warps=4, num_stages=2, target="sm_90a",
                             **options)
        assert "gpu.wgmma(" in made.asm["gpu"]
        return made, [r.message for r in remarks]


def branches(module: Module) -> int:
    return sum(isinstance(op, ops.If) for op in module.walk())


def bf16(rng, *shape: int) -> np.ndarray:
    return rng.integers(-3, 4, shape).astype(np.float32).astype(ml_dtypes.bfloat16)


@tilec.jit(do_not_specialize=("n", "a", "b", "c"))
def sums(x, w, out, n, a, b, c, GUARDED: tl.constexpr):
    """Sums of rows of x w' where a mask holds, or of -1 where it divides by zero."""
    BM: tl.constexpr = x.block_shape[0]
    BN: tl.constexpr = w.block_shape[0]
    rows = tl.arange(0, BM)[:, None]
    total = tl.zeros((BM,), tl.float32)
    for start in range(0, n, BN):
        s = tl.dot(x.load([0, 0]), tl.trans(w.load([start, 0])))
        columns = start + tl.arange(0, BN)[None, :]
        s = tl.where((columns < a // b % 90) & (rows + a % c >= columns - (a // b) // c), s, 0.0)
        total += tl.sum(tl.where((b != 0) & (c != 0), s, -1.0), 1)
    tl.store(out + tl.arange(0, BM), total)


def test_random_divisors_at_all_levels(rng) -> None:
    """Zero, too: as long as nobody reads what is selected by such a mask, no level fails."""
    x, w, out = bf16(rng, 64, 16), bf16(rng, 96, 16), np.full(64, np.nan, np.float32)
    described = [tilec.TensorDescriptor.from_tensor(v, (b, 16)) for v, b in ((x, 64), (w, 32))]
    numbers = [(96, 5000, 60, 7), (70, -2**31, -1, 5), (96, 88, 0, 3), (96, 88, 1, 0), (0, 7, 0, 0)]
    numbers += [(int(rng.integers(1, 97)), int(rng.integers(-300, 9000)), int(rng.integers(1, 99)),
                 int(rng.choice([-1, 1])) * int(rng.integers(1, 99))) for _ in range(3)]
    kernels = [compiled(sums, [*described, out, *numbers[0]], guarded, GUARDED=guarded)[0]
               for guarded in (False, True)]
    assert [branches(parse(made.asm["tile"])) for made in kernels] == [0, 1]
    products, i, j = x.astype(float) @ w.astype(float).T, np.arange(64)[:, None], np.arange(96)
    for n, a, b, c in numbers:
        seen = -(-n // 32) * 32
        want = np.full((64, seen), -1.0)
        if b and c:
            q = (int(a / b) + 2**31) % 2**32 - 2**31  # toward zero; the least one over -1 wraps
            mask = (j < int(np.fmod(q, 90))) & (i + int(np.fmod(a, c)) >= j - int(q / c))
            want = np.where(mask, products, 0.0)[:, :seen]
        for level in LEVELS:
            for made in kernels:
                out[:] = np.nan
                made.run([*described, out, n, a, b, c], (1,), level, seed=1)
                np.testing.assert_array_equal(out, want.sum(1), f"{level} {n, a, b, c}")


@tilec.jit
def persistent_attention(q, k, v, out, scale, SHARED: tl.constexpr, CAUSAL: tl.constexpr,
                         WS: tl.constexpr, GUARDED: tl.constexpr):
    """Attention by programs that each go through blocks of rows of all heads."""
    BM: tl.constexpr = q.block_shape[1]
    BN: tl.constexpr = k.block_shape[1]
    D: tl.constexpr = q.block_shape[2]
    scale *= LOG2_E
    blocks = tl.cdiv(q.shape[1], BM)
    for tile in tl.range(tl.program_id(0), blocks * q.shape[0], tl.num_programs(0),
                         warp_specialize=WS):
        head = tile // blocks
        first = tile % blocks * BM
        queries = q.load([head, first, 0]).reshape(BM, D)
        acc = tl.zeros((BM, D), tl.float32)
        top = tl.full((BM,), -1.0e30, tl.float32)
        total = tl.zeros((BM,), tl.float32)
        end = k.shape[1]
        if CAUSAL:
            end = tl.minimum(end, first + BM)
        for start in tl.range(0, end, BN):
            keys = k.load([head // SHARED, start, 0]).reshape(BN, D)
            s = tl.dot(queries, tl.trans(keys))
            columns = start + tl.arange(0, BN)[None, :]
            valid = columns < k.shape[1]
            if CAUSAL:
                valid = valid & (first + tl.arange(0, BM)[:, None] >= columns)
            s = tl.where(valid, s, -1.0e30)
            new_top = tl.maximum(top, tl.max(s, 1) * scale)
            p = tl.exp2(s * scale - new_top[:, None])
            rescale = tl.exp2(top - new_top)
            total = total * rescale + tl.sum(p, 1)
            values = v.load([head // SHARED, start, 0]).reshape(BN, D)
            acc = tl.dot(p.to(v.dtype), values, acc * rescale[:, None])
            top = new_top
        out.store([head, first, 0], (acc / total[:, None]).reshape(1, BM, D))


@pytest.mark.parametrize(("causal", "ws", "rows"), [(True, True, 150), (True, False, 100),
                                                    (False, True, 70)])
def test_persistent_attention(causal: bool, ws: bool, rows: int, rng) -> None:
    q, k, v = (rng.standard_normal((h, rows, 32)).astype(np.float32).astype(ml_dtypes.bfloat16)
               for h in (2, 1, 1))
    out = np.full((2, rows, 32), np.nan, np.float32)
    args = [tilec.TensorDescriptor.from_tensor(x, (1, b, 32))
            for x, b in ((q, 64), (k, 32), (v, 32), (out, 64))]
    args.append(0.2)
    kernels = []
    for guarded in (False, True):
        made, remarks = compiled(persistent_attention, args, guarded, SHARED=2, CAUSAL=causal,
                                 WS=ws, GUARDED=guarded)
        kernels.append(made)
        split = "rounds that take no branch have a loop of their own" in remarks
        assert split == (guarded and ws)
        assert branches(parse(made.asm["tile"])) == guarded
    s = 0.2 * q.astype(float) @ k.astype(float).swapaxes(1, 2)
    if causal:
        s = np.where(np.arange(rows)[:, None] >= np.arange(rows), s, -np.inf)
    p = np.exp(s - s.max(2, keepdims=True))
    want = p @ v.astype(float) / p.sum(2, keepdims=True)
    for level in LEVELS:
        results = []
        for made in kernels:
            out[:] = np.nan
            made.run(args, (3,), level, seed=1)
            results.append(out.copy())
        assert results[0].tobytes() == results[1].tobytes(), level
        np.testing.assert_allclose(results[1], want, 0, 2e-2, level)
