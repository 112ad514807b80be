"""What ptxas makes of the examples' kernels, for sm_90a where they say nothing else, only improves:
tests/ratchet.json holds the best figures so far, and `pytest tests/test_ratchet.py
--update-ratchet` writes today's.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from benchmarks.common import load_example
from tests.support.fixtures import FOLDER
from tilec import TensorDescriptor
from tilec.codegen import ptxas
from tilec.codegen.cubin import LinkResult, link, sass

STORED = Path(__file__).with_name("ratchet.json")
INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*)")
WIDTH, HALF, SINGLE = 4096, np.zeros(64, ml_dtypes.bfloat16), np.zeros(64, np.float32)
SQUARE = (HALF, HALF, HALF, WIDTH, WIDTH, WIDTH, WIDTH, 1, WIDTH, 1, WIDTH, 1)
# Kernel -> arguments, constexprs and options. Of benchmarks/: the shapes that count.
EVEN = {"BLOCK": WIDTH, "EVEN": True, "RELOAD": False, "num_warps": 8}
LONG = {"N": 32768, "X": (32768, 1), "OUT": (32768, 1), "PER": 8, "WIDTH": 4096, "num_warps": 16,
        "maxnreg": 64}
CASES: dict[str, tuple[str, str, tuple[Any, ...], dict[str, Any]]] = {
    "add": ("01_vector_add", "add_kernel", (SINGLE, SINGLE, SINGLE, 1 << 20), {"BLOCK": 1024}),
    "softmax": ("02_fused_softmax", "softmax_kernel", (HALF, HALF, WIDTH, WIDTH, WIDTH), EVEN),
    "rms_norm": ("03_norms", "rms_norm_kernel", (HALF, HALF, HALF, SINGLE, WIDTH, 1e-6), EVEN),
    "matmul": ("06_matmul", "matmul_kernel", SQUARE,
               {"ACC": tl.float32, "BM": 128, "BN": 128, "BK": 64, "GROUP": 8, "num_warps": 4,
                "num_stages": 3, "target": "sm_90"}),
    "matmul by wgmma": ("06_matmul", "matmul_kernel", SQUARE,
                        {"ACC": tl.float32, "BM": 128, "BN": 256, "BK": 64, "GROUP": 8,
                         "num_warps": 8, "num_stages": 3, "find_boxes": False}),
    "attention": ("07_attention", "attention_kernel",
                  (HALF, HALF, HALF, HALF, WIDTH, 128, WIDTH * 128, 0.1),
                  {"BM": 64, "BN": 64, "D": 128, "CAUSAL": True, "num_warps": 4,
                   "num_stages": 2, "find_boxes": False}),
    "long softmax": ("13_long_rows", "softmax_kernel", (HALF, HALF), LONG),
    "cross-entropy": ("13_long_rows", "cross_entropy_kernel",
                      (HALF, np.zeros(64, np.int64), SINGLE, HALF, 1.0),
                      {**LONG, "IGNORE": -100, "GRAD": True}),
    "descriptors": ("09_descriptor_matmul", "matmul_kernel",
                    tuple(TensorDescriptor(HALF, (WIDTH, WIDTH), (WIDTH, 1), block)
                          for block in ((128, 64), (64, 256), (128, 256))),
                    {"GROUP": 8, "num_warps": 8, "num_stages": 4}),
    "descriptor attention": (
        "11_descriptor_attention", "attention_kernel",
        (*(TensorDescriptor(HALF, (128, WIDTH, 128), (WIDTH * 128, 128, 1), (1, 128, 128))
           for _ in range(4)), 0.1),
        {"SHARED": 1, "CAUSAL": True, "num_warps": 8, "num_stages": 2}),
    "explicit": ("10_explicit_matmul", "matmul_kernel",
                 tuple(TensorDescriptor(HALF, (WIDTH, WIDTH), (WIDTH, 1), block)
                       for block in ((128, 64), (64, 256), (64, 128))),
                 {"GROUP": 8, "STAGES": 4, "num_warps": 8}),
}
CASES |= {f"{name} of boxes": (*CASES[name][:3], CASES[name][3] | {"find_boxes": True})
          for name in ("matmul by wgmma", "attention")}
for name in ("descriptors", "descriptor attention"):
    CASES[f"{name} by roles"] = (*CASES[name][:3], CASES[name][3] | {"WS": True})
GRADIENTS = ("gradient of queries", "gradients of keys and values")
# The same shapes backward: q, k, v, dout and what is stored; then lse, delta and the scale.
CASES |= {
    name: ("11_descriptor_attention", kernel,
           (*(TensorDescriptor(HALF, (128, WIDTH, 128), (WIDTH * 128, 128, 1), (1, rows, 128))
              for rows in blocks), SINGLE, SINGLE, 0.1),
           {"SHARED": 1, "CAUSAL": True, "num_warps": 8, "num_stages": depth})
    for name, kernel, blocks, depth in (
        (GRADIENTS[0], "grad_queries_kernel", (128, 64, 64, 128, 128), 2),
        (GRADIENTS[1], "grad_keys_values_kernel",
         (64, 128, 128, 64, 128, 128), 3))
}
for name in GRADIENTS:
    CASES[f"{name} by roles"] = (*CASES[name][:3], CASES[name][3] | {"WS": True, "num_stages": 3})
# Attention written out: with roles of its own registers, and without.
CASES |= {
    f"explicit attention, {'causal' if causal else 'full'}, {how}": (
        "14_explicit_attention", kernel,
        (*(TensorDescriptor(HALF, (128, WIDTH, 128), (WIDTH * 128, 128, 1), (1, rows, 128))
           for rows in (128, 128, 128, 64)), 0.1),
        {"SHARED": 1, "CAUSAL": causal, "GROUP": 8, **given})
    for causal in (False, True) for how, kernel, given in (
        ("by roles", "by_roles_kernel",
         {"WARPS": (8, 4), "REGISTERS": (240, 24), "num_warps": 12}),
        ("without", "one_role_kernel", {"num_warps": 8}))
}
CASES |= {
    f"explicit gradients, {kind}": (
        "15_explicit_gradients", "gradients_kernel",
        (*(TensorDescriptor(x, (128, WIDTH, 128), (WIDTH * 128, 128, 1), (1, rows, 128))
           for x, rows in ((HALF, 64), (HALF, 128), (HALF, 128), (HALF, 64), (SINGLE, 64),
                           (HALF, 128), (HALF, 128))),
         *(TensorDescriptor(SINGLE, (128, WIDTH), (WIDTH, 1), (1, 64)) for _ in range(2)), 0.1),
        {"SHARED": 1, "CAUSAL": kind == "causal", "STAGES": 3, "num_warps": 8})
    for kind in ("full", "causal")
}
# Kernels written at the gpu level.
FIXTURES = {"gemm": "gemm_a_branch.tir", "attention E1": "attention_e1.tir",
            "gemm by roles": "gemm_c_e2.tir", "gemm by clusters": "gemm_d_e2.tir",
            "attention F3nf": "attention_f3nf.tir"}
BY_PTXAS = {"attention F3nf", "descriptor attention by roles", "explicit attention, full, by roles",
            "explicit attention, causal, by roles",
            *(f"{name} by roles" for name in GRADIENTS)}  # for their setmaxnreg


def linked(case: str) -> LinkResult:
    """The case's cubin."""
    if case in FIXTURES:
        found = tilec.load(FOLDER / FIXTURES[case]).compiled.linked
        assert found is not None
        return found
    file, kernel, args, given = CASES[case]
    example = load_example(file)
    options = {"target": "sm_90a"} | given
    if file == "06_matmul":
        options["ACTIVATION"] = example.identity
    made = getattr(example, kernel).warmup(*args, grid=(1,), **options)
    return link(made.asm["ptx"], made.target, name=made.name)


def figures(result: LinkResult) -> dict[str, int]:
    """Registers, spilled bytes, instructions by opcode, and moves in innermost loops. ptxas writes
    some moves as additions or multiplications: IMAD.MOV."""
    labels: dict[str, int] = {}
    code: list[tuple[str, str]] = []
    for line in sass(result.cubin).splitlines():
        if (m := INSTRUCTION.match(line)) and m[2] != "NOP":
            code.append((m[2], m[3]))
        elif m := re.match(r"(\.L_\w+):", line):
            labels[m[1]] = len(code)
    loops = [(labels[m[1]], i) for i, (name, rest) in enumerate(code)
             if name.startswith("BRA") and (m := re.search(r"`\((\.L_\w+)\)", rest))
             and labels[m[1]] < i]
    inner = [(lo, hi) for lo, hi in loops
             if not any(lo <= a and b <= hi and (a, b) != (lo, hi) for a, b in loops)]

    def count(pattern: str) -> int:
        return sum(bool(re.fullmatch(pattern, name)) for name, _ in code)

    return {"registers": result.n_regs, "spills": result.n_spills, "stack": result.stack,
            "advisories": len(result.advisories), "instructions": len(code),
            "HMMA": count(r"HG?MMA\..*"),
            "HGMMA that wait": sum("gsb0" in rest for name, rest in code if "HGMMA" in name),
            "LDL": count(r"LDL.*"),
            "STL": count(r"STL.*"), "BRA.DIV": count(r"BRA\.DIV.*"),
            "MEMBAR": count(r"MEMBAR.*"), "BAR": count(r"BAR\..*"),
            "moves in loops": sum(bool(re.match(r"U?MOV|IMAD\.MOV", name)) for lo, hi in inner
                                  for name, _ in code[lo:hi])}


def worse(now: dict[str, int], best: dict[str, int]) -> dict[str, str]:
    """Of which figures there is more now than ever. For products there is one number of HMMA."""
    return {k: f"{n}, was {best[k]}" for k, n in now.items()
            if (n != best[k] if k == "HMMA" else n > best[k])}


@pytest.mark.parametrize("case", [*CASES, *FIXTURES])
@pytest.mark.sample(9)
def test_only_improves(case: str, request: pytest.FixtureRequest) -> None:
    if case in BY_PTXAS and ptxas.find() is None:
        pytest.skip("there is no ptxas")
    stored, made = json.loads(STORED.read_text()), linked(case)
    now = figures(made)
    if request.config.getoption("--update-ratchet"):
        stored[case] = now
        stored[made.assembler.split()[0]] = made.assembler.split()[1]
        STORED.write_text(json.dumps(stored, indent=1) + "\n")
    found = worse(now, stored[case])
    tool = made.assembler.split()[0]
    assert not found, f"{found}, by {made.assembler} (stored: {stored[tool]}); if it has to be: " \
        "pytest tests/test_ratchet.py --update-ratchet"


def test_every_case_is_stored() -> None:
    stored = json.loads(STORED.read_text())
    assert sorted(stored) == sorted([*CASES, *FIXTURES, "nvJitLink", "ptxas"])


def test_the_ratchet_holds() -> None:
    best = {"registers": 40, "HMMA": 8, "spills": 0}
    assert worse({"registers": 39, "HMMA": 8, "spills": 0}, best) == {}
    assert worse({"registers": 41, "HMMA": 8, "spills": 0}, best) == {"registers": "41, was 40"}
    assert worse({"registers": 40, "HMMA": 4, "spills": 0}, best) == {"HMMA": "4, was 8"}
