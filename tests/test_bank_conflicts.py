"""Compiled matrix products meet no bank conflict: wavefronts counted in the simulator."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.support.matmul import matmul, product
from tilec import sim

BLOCK, STEPS, WARPS, STAGES = (128, 128, 64), 2, 4, 2
SIZES = {"bf16": 2, "f16": 2, "tf32": 4, "i8": 1}
LINE = 128  # bytes of a wavefront


def counted(config: dict[str, Any]) -> tuple[Counter[str], list[str]]:
    """Wavefronts of the main loop by instruction, and every request of the kernel with more than
    its phases."""
    p = product(config, np.random.default_rng(0))
    made = matmul.warmup(*p.args.values(), grid=p.grid, num_warps=WARPS, num_stages=STAGES,
                         target="sm_80", **p.constexprs)
    module = sim.parse(made.asm["ptx"])
    first, last = main_loop(module.kernels[made.name])
    found: Counter[str] = Counter()
    conflicts = []

    def count(instr: sim.Instr, wavefronts: Any, phases: Any) -> None:
        if first <= instr.line <= last:
            found[".".join((instr.op, *instr.mods))] += int(wavefronts.sum())
        if (wavefronts != phases).any():
            conflicts.append(f"line {instr.line}: {instr.text}: {wavefronts}, least {phases}")

    sim.run(module, made.name, [p.args[name] for name in made.signature], (1, 1, 1),
            shared_bytes=made.shared, on_shared=count, check=True)
    p.check(p.args["c_ptr"], "ptx")
    return found, conflicts


def main_loop(kernel: sim.Kernel) -> tuple[int, int]:
    """First and last line of the loop whose branch back goes over an mma."""
    code = kernel.instrs
    for at, instr in enumerate(code):
        if instr.op == "bra":
            start = instr.scope.find_label(instr.operands[0].name)
            if start is not None and any(x.op == "mma" for x in code[start:at]):
                return code[start].line, instr.line
    raise AssertionError("no loop with an mma")


@pytest.mark.parametrize("b", ["rows", "columns"])
@pytest.mark.parametrize("a", ["rows", "columns"])
@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.sample(4)
def test_no_conflicts(kind: str, a: str, b: str) -> None:
    size = SIZES[kind]
    found, conflicts = counted({"kind": kind, "block": BLOCK, "a": a, "b": b, "edges": "exact",
                                "steps": STEPS})
    assert not conflicts
    # Each step copies 128 x 64 elements of each operand, and each of 2 x 2 warps reads half of it.
    tile = 128 * 64 * size * STEPS // LINE
    expected = Counter({"cp.async.cg.shared.global": 2 * tile})
    for along_k, transposes in ((a == "rows", size == 2), (b == "columns", size == 2)):
        if along_k or transposes:
            trans = "" if along_k else ".trans"
            expected[f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16"] += 2 * tile
        else:  # one element a lane: a wavefront for 32 of them, however small
            expected[f"ld.shared.b{8 * size}"] += 2 * tile * 4 // size
    assert found == expected
