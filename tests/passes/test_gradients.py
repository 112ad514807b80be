"""Loops with two first dots, and with two of either kind, as in attention backward: right at every
level, with and without warp roles, and free of spills."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import tilec
from benchmarks.common import load_example
from tests.support.attention import EXAMPLE, LEVELS, barriers, described, inputs, through_shared
from tilec.ir.parser import parse
from tilec.runtime.text import TextKernel

CASES = [
    # heads, shared, rows, columns, d, (BM, BN) for dq, and for dk and dv, warps, stages, causal,
    # element
    (2, 2, 100, 150, 64, ((64, 64), (64, 64)), 4, 2, False, ml_dtypes.bfloat16),
    (2, 1, 150, 150, 64, ((64, 32), (32, 64)), 4, 3, True, np.float16),
    (2, 2, 140, 200, 128, ((128, 64), (64, 128)), 8, 2, True, ml_dtypes.bfloat16),
    (1, 1, 130, 70, 128, ((128, 128), (64, 128)), 8, 2, False, np.float16),
    (1, 1, 70, 40, 32, ((64, 32), (32, 64)), 4, 1, False, np.float16),
]


@pytest.mark.parametrize("roles", [False, True], ids=["one role", "by roles"])
@pytest.mark.parametrize(
    ("heads", "shared", "rows", "columns", "d", "blocks", "warps", "depth", "causal", "element"),
    CASES)
@pytest.mark.sample(3)
def test_gradients(heads, shared, rows, columns, d, blocks, warps, depth, causal, element, roles,
                   rng) -> None:
    """Backward, of the float64 forward pass; scores are so low that exp of them alone is 0."""
    attention = load_example(EXAMPLE)
    q, k, v = inputs(rng, heads, shared, rows, columns, d, element)
    q[..., 0], k[..., 0] = -40, 40
    dout = inputs(rng, heads, 1, rows, 1, d, element)[0]
    exact = [x.astype(np.float64) for x in (q, k, v, dout)]
    p = attention.weights(exact[0], exact[1], causal)
    size = (heads, attention.padded_rows(rows))
    lse, delta = np.full(size, np.inf, np.float32), np.zeros(size, np.float32)
    s = exact[0] @ np.repeat(exact[1], shared, 0).swapaxes(1, 2) / math.sqrt(d)
    lse[:, :rows] = (s[..., 0] - np.log(p[..., 0])) / math.log(2)
    delta[:, :rows] = (exact[3] * (p @ np.repeat(exact[2], shared, 0))).sum(-1)
    want = attention.reference_gradients(*exact, causal)
    options = {"SHARED": shared, "CAUSAL": causal, "WS": roles, "num_warps": warps,
               "num_stages": depth, "target": "sm_90a", "grid": (1,)}
    rough = 4e-2 if element is ml_dtypes.bfloat16 else 5e-3
    sizes = np.where(np.arange(d), 1, 40)  # of columns of q and k
    for level in ("tile", *LEVELS):
        dq, dk, dv = (np.full(x.shape, np.nan, element) for x in (q, k, v))
        (bm, bn), (cm, cn) = blocks
        for kernel, arrays, rows_of, grid in (
                (attention.grad_queries_kernel, [q, k, v, dout, dq], (bm, bn, bn, bm, bm),
                 (tilec.cdiv(rows, bm), heads)),
                (attention.grad_keys_values_kernel, [q, k, v, dout, dk, dv],
                 (cm, cn, cn, cm, cn, cn), (tilec.cdiv(columns, cn), heads // shared))):
            args = [*described(arrays, rows_of), lse, delta, 1 / math.sqrt(d)]
            made = kernel.warmup(*args, **options)
            assert "tile.dot" not in made.asm["gpu"] and not through_shared(made.asm["gpu"])
            assert ("warp_role" in made.asm["gpu"]) == (roles and depth > 1)
            made.run(args, grid, level, seed=depth)
        for got, expected, size in zip((dq, dk, dv), want, (sizes, sizes, 1), strict=True):
            np.testing.assert_allclose(got.astype(np.float64) / size, expected / size, rough, rough,
                                       err_msg=level)


@pytest.mark.parametrize("roles", [False, True], ids=["one role", "by roles"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.sample(2)
def test_what_ptxas_makes(causal, roles) -> None:
    attention = load_example(EXAMPLE)
    for kernel, names, (bm, bn) in ((attention.grad_queries_kernel, "q k v dout dq", (128, 64)),
                                    (attention.grad_keys_values_kernel, "q k v dout dk dv",
                                     (64, 128))):
        signature = {x: f"tensordesc<bf16[1, {bn if x[-1] in 'kv' else bm}, 128]>:16"
                     for x in names.split()} | {"lse": "*fp32:16", "delta": "*fp32:16",
                                                "scale": "fp32"}
        made = tilec.compile(kernel, signature, {"SHARED": 1, "CAUSAL": causal, "WS": roles},
                             target="sm_90a", num_warps=8, num_stages=2)
        linked = TextKernel(parse(made.asm["gpu"])).compiled.linked
        assert linked is not None and linked.n_spills == linked.stack == 0
        assert "C75" not in linked.log
        assert not through_shared(made.asm["gpu"]) and not barriers(made.asm["gpu"])
