"""The PTX simulator: one CTA of a matrix product, plain, with its checks and with its counters."""

from __future__ import annotations

import argparse
import time
from typing import Any

import ml_dtypes
import numpy as np

import tilec.language as tl
from benchmarks import common
from tilec import sim

BM, BN, BK, K = 128, 128, 64, 256
MODES: dict[str, dict[str, bool]] = {
    "plain": {}, "checks": {"check": True}, "counters": {"count": True},
    "both": {"check": True, "count": True},
}


def compiled() -> tuple[Any, list[Any]]:
    """The kernel of examples/06_matmul.py for one tile of bf16, and its arguments."""
    example = common.load_example("06_matmul")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((BM, K), (K, BN)))
    c = np.full((BM, BN), np.nan).astype(ml_dtypes.bfloat16)
    args = [a, b, c, BM, BN, K, K, 1, BN, 1, BN, 1]
    made = example.matmul_kernel.warmup(
        *args, grid=(1,), num_warps=4, num_stages=3, target="sm_80", ACTIVATION=example.identity,
        ACC=tl.float32, BM=BM, BN=BN, BK=BK, GROUP=8)
    given = dict(zip((p.name for p in example.matmul_kernel.params), args))
    return made, [given[name] for name in made.signature]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=9, help="measurements per figure")
    common.add_output_flag(parser)
    flags = parser.parse_args()
    made, args = compiled()
    want = args[0].astype(np.float64) @ args[1].astype(np.float64)
    rows = []
    for mode, options in MODES.items():
        module = sim.parse(made.asm["ptx"])

        def seconds(module: Any = module, options: dict[str, bool] = options) -> float:
            begin = time.perf_counter()
            sim.run(module, made.name, args, (1, 1, 1), shared_bytes=made.shared, **options)
            return time.perf_counter() - begin

        first = seconds()
        assert np.abs(args[2].astype(np.float64) - want).max() < 0.5
        later = common.median_of(seconds, flags.count)
        rows.append((mode, f"{1e3 * first:.0f}", f"{1e3 * later:.0f}"))
    body = (f"Milliseconds for one CTA of {BM} x {BN} x {BK} tiles in bf16, K = {K}, 4 warps, 3 "
            f"stages; median of {flags.count}. The first run of a text decodes it.\n\n"
            + common.table(["mode", "first run", "later runs"], rows))
    common.report("simulator", "PTX simulator", body, flags.output)


if __name__ == "__main__":
    main()
