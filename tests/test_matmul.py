"""Matrix products in a covering set of configurations at every level, and the PTX of one."""

from __future__ import annotations

import functools
import itertools
import re
import zlib
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from benchmarks import matmul as matmul_benchmark
from benchmarks.common import load_example
from tests.support.covering import covering
from tests.support.matmul import EDGES, KINDS, WAYS, matmul, product, run_all, shown
from tilec.codegen.cubin import link, sass, sass_counts

BLOCKS = [(32, 64, 32), (16, 8, 32), (48, 80, 16), (96, 24, 16), (16, 160, 16), (17, 19, 21)]
MORE_BLOCKS = [(16, 16, 16), (64, 32, 16), (16, 24, 48), (64, 16, 64), (192, 16, 16), (64, 64, 32)]
ALL_BLOCKS = [(32, 16, 32), (48, 24, 32), (20, 13, 7)]  # powers of two, odd multiples of them, odd
FACTORS: dict[str, list[Any]] = {
    "kind": list(KINDS), "block": BLOCKS, "num_warps": [1, 2, 4, 8, 16],
    "num_stages": [1, 2, 3, 4], "a": WAYS, "b": WAYS, "edges": list(EDGES), "steps": [1, 2, 5],
    "target": ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"]}


def check(config: dict[str, Any]) -> None:
    """The product of this configuration is right at every level."""
    p = product(config, np.random.default_rng(zlib.crc32(shown(config).encode())))
    made = matmul.warmup(*p.args.values(), grid=p.grid, num_warps=config["num_warps"],
                         num_stages=config["num_stages"], target=config["target"],
                         find_boxes=config.get("find_boxes", True), **p.constexprs)
    for level, (_, _, got) in run_all(made, p.args, p.grid).items():
        p.check(got, f"{level}, {config}")


def test_covering_sets_cover() -> None:
    small = {"x": [1, 2, 3], "y": ["p", "q"], "z": [0, 1, 2, 3], "w": [None, ()]}
    for strength, most in ((2, 16), (3, 34)):
        rows = covering(small, strength)
        seen = {tuple((name, str(row[name])) for name in sorted(names))
                for row in rows for names in map(set, [("x", "z"), ("y", "w"), ("x", "w")])}
        assert len(seen) == 12 + 4 + 6 and len(rows) <= most
        assert rows == covering(small, strength)
    assert len({(r["x"], r["z"], r["w"]) for r in covering(small, 3)}) == 24


@pytest.mark.parametrize("config", [pytest.param(c, id=shown(c)) for c in covering(FACTORS)])
@pytest.mark.sample(16)
def test_pairs(config: dict[str, Any]) -> None:
    check(config)


@functools.cache
def triples() -> list[dict[str, Any]]:
    return covering({**FACTORS, "block": BLOCKS + MORE_BLOCKS}, 3, candidates=10)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_warps", FACTORS["num_warps"])
def test_triples(kind: str, num_warps: int) -> None:
    """Every three values of three factors, on all blocks; fewer stages where they do not fit."""
    for config in triples():
        if config["kind"] == kind and config["num_warps"] == num_warps:
            try:
                check(config)
            except tilec.OutOfResources:
                check(config | {"num_stages": 1})


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_warps", FACTORS["num_warps"])
@pytest.mark.parametrize("num_stages", FACTORS["num_stages"])
def test_all(kind: str, num_warps: int, num_stages: int) -> None:
    """Every combination with transposed operands, ragged edges, odd extents; the other factors
    take turns."""
    turns = itertools.count(num_warps + num_stages)
    for block, a, b, edges in itertools.product(ALL_BLOCKS, WAYS[::2], WAYS[::2], EDGES):
        turn = next(turns)
        check({"kind": kind, "block": block, "num_warps": num_warps, "num_stages": num_stages,
               "a": a, "b": b, "edges": edges, "steps": FACTORS["steps"][turn % 3],
               "target": FACTORS["target"][turn % 5]})


# -- the PTX of one product ----------------------------------------------------------------------

COUNTED = re.compile(r"\b(mma\.sync[.\w]*|ldmatrix[.\w]*|cp\.async\.c[ag][.\w]*|bar\.sync|cvt[.\w]*"
                     r"|cp\.async\.wait_group|cp\.async\.commit_group|[ls]t\.local|shfl[.\w]*"
                     r"|[ls]t\.shared[.\w]*|[ls]d\.global[.\w]*|ld\.shared[.\w]*)")
MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
READ, READ_TRANSPOSED = (f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16"
                         for trans in ("", ".trans"))
COPY = "cp.async.cg.shared.global"


def example_matmul(target: str, block: tuple[int, int, int], columns: bool, num_stages: int,
                   num_warps: int = 4) -> Any:
    """Example 06 for 4096 x 4096 bf16; columns: b lies column by column."""
    example = load_example("06_matmul")
    x = np.zeros((8, 8), ml_dtypes.bfloat16)
    rows, n = (4096, 1), 4096
    return example.matmul_kernel.warmup(
        x, x, x, n, n, n, *rows, *((1, n) if columns else rows), *rows, grid=(1,),
        num_warps=num_warps, num_stages=num_stages, target=target, ACTIVATION=example.identity,
        ACC=tl.float32, BM=block[0], BN=block[1], BK=block[2], GROUP=8)


def main_loop(ptx: str) -> str:
    """The text of the innermost loop with an mma: from the label that a later branch names."""
    lines = ptx.splitlines()
    labels = {line.strip()[:-1]: i for i, line in enumerate(lines) if re.match(r"\$\S+:$", line)}
    loops = [(labels[m[1]], i) for i, line in enumerate(lines)
             if (m := re.search(r"\bbra(?:\.uni)?\s+(\$\S+);", line)) and labels[m[1]] < i]
    with_mma = [(lo, hi) for lo, hi in loops if any("mma.sync" in x for x in lines[lo:hi])]
    lo, hi = min(with_mma, key=lambda loop: loop[1] - loop[0])
    return "\n".join(lines[lo:hi])


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
@pytest.mark.sample(2)
def test_ptx_for_ampere(num_stages: int, columns: bool) -> None:
    made = example_matmul("sm_80", (128, 128, 64), columns, num_stages)
    ptx = made.asm["ptx"]
    loop = main_loop(ptx)
    # A warp has 64 x 64 of the result: 4 x 8 instructions, 4 times for k = 64. Each thread copies
    # 2 * 128 * 64 elements / 128 threads / 8. Operands: 4 + 4 matrices of x4 for each 16 of k.
    reads = {READ: 32} if columns else {READ: 16, READ_TRANSPOSED: 16}
    found = Counter(COUNTED.findall(loop))
    conversions = {k: n for k, n in found.items() if k.startswith("cvt")}
    assert {k: n for k, n in found.items() if k not in conversions} == {
        MMA: 128, COPY: 16, "bar.sync": 1, "cp.async.wait_group": 1, "cp.async.commit_group": 1,
        **reads}
    assert set(conversions) <= {"cvt.u64.u32", "cvt.s64.s32"}  # of addresses, not of elements
    copies = re.findall(rf"{re.escape(COPY)}\s+\[[^]]*\], \[[^]]*\], (\w+)", loop)
    assert copies == ["16"] * 16 or copies == ["0x10"] * 16
    assert re.findall(r"cp\.async\.wait_group\s+(\d+)", ptx) == [str(num_stages - 2), "0"]
    assert ".local" not in ptx
    linked = link(ptx, made.target, name=made.name)
    assert linked.n_spills == linked.stack == 0
    assert made.shared == num_stages * 2 * 128 * 64 * 2


def test_sass_for_ampere() -> None:
    made = example_matmul("sm_80", (128, 128, 64), False, 3)
    counts = sass_counts(sass(link(made.asm["ptx"], made.target, name=made.name).cubin))
    assert counts["HMMA"] == 128 and counts["LDSM"] == 32
    assert counts["LDL"] == counts["STL"] == 0


def test_the_benchmark_of_mma_sync_measures_that() -> None:
    made = example_matmul(matmul_benchmark.TARGET, (128, 256, 64), False, 3, num_warps=8)
    assert "mma.sync" in made.asm["ptx"] and "wgmma" not in made.asm["ptx"]
