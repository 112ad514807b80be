"""Wavefronts of shared-memory requests: cases counted by hand, and random ones lane by lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sim.programs import program
from tilec import sim
from tilec.sim.banks import wavefronts

Array = np.ndarray[Any, Any]
HEAD = ".reg .b32 %s, %q; .reg .b64 %ga; .shared .align 16 .b8 buffer[16384];"


def requests(body: str, block: int = 32) -> list[tuple[str, list[int], list[int]]]:
    """(opcode, wavefronts, phases) of the requests of `body`; %s starts as the buffer's address."""
    found: list[tuple[str, list[int], list[int]]] = []
    text = program(f"{HEAD} mov.u32 %s, buffer; {body}", "u64 u64", block)
    sim.run(text, "k", [np.zeros(1024, np.uint32), np.zeros(1024, np.uint32)], (1, 1, 1),
            on_shared=lambda i, w, p: found.append((i.op, w.tolist(), p.tolist())))
    return found


def strided(access: str, stride: int) -> str:
    """Lane i at i * stride bytes."""
    return f"mad.lo.u32 %s, %t, {stride}, %s; {access}"


LOADS = {1: "ld.shared.u8 %r1, [%s];", 2: "ld.shared.u16 %r1, [%s];", 4: "ld.shared.b32 %r1, [%s];",
         8: "ld.shared.v2.b32 {%r1, %r2}, [%s];",
         16: "ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%s];"}
STORES = {1: "st.shared.u8 [%s], %r1;", 2: "st.shared.u16 [%s], %r1;",
          4: "st.shared.b32 [%s], %r1;",
          8: "st.shared.b64 [%s], %rd1;", 16: "st.shared.v2.b64 [%s], {%rd1, %rd2};"}
STRIDED = [
    # One phase. Words 0..31; 0, 2, .. 62: twice each even bank; multiples of 32: bank 0 only.
    (4, 4, 1, 1), (4, 8, 2, 1), (4, 64, 16, 1), (4, 128, 32, 1),
    (4, 12, 1, 1), (4, 132, 1, 1),  # odd strides in words meet each bank once
    (4, 0, 1, 1),  # one word for all
    (1, 1, 1, 1), (2, 2, 1, 1),  # 8 and 16 words, each for several lanes
    (1, 128, 32, 1), (2, 4, 1, 1), (1, 8, 2, 1),
    # Two phases of 16 lanes: 32 words side by side; then words 4i and 4i + 1, banks twice each.
    (8, 8, 2, 2), (8, 16, 4, 2), (8, 128, 32, 2), (8, 0, 2, 2), (8, 136, 2, 2),
    # Four phases of 8 lanes; words 8i to 8i + 3: banks 0-3 from lanes 0 and 4.
    (16, 16, 4, 4), (16, 32, 8, 4), (16, 64, 16, 4), (16, 128, 32, 4), (16, 0, 4, 4),
    (16, 144, 4, 4),
]


@pytest.mark.parametrize(("width", "stride", "count", "phases"), STRIDED)
def test_strides(width: int, stride: int, count: int, phases: int) -> None:
    assert requests(strided(LOADS[width], stride)) == [("ld", [count], [phases])]
    assert requests(strided(STORES[width], stride)) == [("st", [count], [phases])]


@pytest.mark.parametrize("op", ["ldmatrix", "stmatrix"])
@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_matrices(op: str, matrices: int) -> None:
    """Row r of matrix m at bytes 16 m of a row of 128: bank 4 m for all r, unless swizzled."""
    registers = "{" + ", ".join(f"%r{i}" for i in range(4, 4 + matrices)) + "}"
    place = "and.b32 %r1, %t, 7; shr.u32 %r2, %t, 3; "
    swizzle = "xor.b32 %r2, %r2, %r1; "
    for trans in ("", ".trans"):
        operands = [registers, "[%s]"] if op == "ldmatrix" else ["[%s]", registers]
        access = f"{op}.sync.aligned.m8n8.x{matrices}{trans}.shared.b16 {', '.join(operands)};"

        def rows(bytes_each: int, access: str = access) -> str:
            return ("shl.b32 %r2, %r2, 4; add.u32 %s, %s, %r2; "
                    f"mad.lo.u32 %s, %r1, {bytes_each}, %s; {access}")

        assert requests(place + rows(128)) == [(op, [8 * matrices], [matrices])]
        assert requests(place + rows(144)) == [(op, [matrices], [matrices])]
        assert requests(place + swizzle + rows(128)) == [(op, [matrices], [matrices])]


@pytest.mark.parametrize(("form", "width", "stride", "count", "phases"), [
    ("cg", 16, 16, 4, 4), ("cg", 16, 128, 32, 4), ("ca", 8, 8, 2, 2), ("ca", 4, 4, 1, 1),
    ("ca", 4, 8, 2, 1), ("ca", 16, 32, 8, 4),
])
def test_copies(form: str, width: int, stride: int, count: int, phases: int) -> None:
    """Where zeros are written in place of a source, too."""
    for size in ("", ", 0"):
        body = strided(f"ld.param.u64 %ga, [p1]; cp.async.{form}.shared.global [%s], [%ga], "
                       f"{width}{size}; cp.async.wait_all;", stride)
        assert requests(body) == [("cp", [count], [phases])]


def test_some_lanes() -> None:
    few = "setp.lt.u32 %p1, %t, 8; @%p1 " + LOADS[16]
    assert requests(few.replace("@", "mad.lo.u32 %s, %t, 128, %s; @")) == [("ld", [8], [1])]
    each = "and.b32 %r1, %t, 7; setp.eq.u32 %p1, %r1, 0; mad.lo.u32 %s, %t, 128, %s; @%p1 "
    assert requests(each + LOADS[16]) == [("ld", [4], [4])]
    assert requests(each + LOADS[4]) == [("ld", [4], [1])]


def test_warps_ask_one_by_one() -> None:
    """Warp w at a stride of 1 << w words; then without warp 0."""
    body = "shr.u32 %r1, %t, 5; shl.b32 %r2, 4, %r1; mad.lo.u32 %s, %t, %r2, %s;"
    assert requests(body + LOADS[4], 128) == [("ld", [1, 2, 4, 8], [1] * 4)]
    assert requests(f"{body} setp.ge.u32 %p1, %r1, 2; @%p1 {LOADS[4]}", 128) == [
        ("ld", [4, 8], [1, 1])]


def test_what_counts() -> None:
    """Generic addresses do where they are shared; other memories do not."""
    assert requests("cvta.shared.u64 %ga, buffer; st.b32 [%ga], %r1; ld.b32 %r1, [%o];"
                    "atom.shared.add.u32 %r1, [%s], 1; st.global.b32 [%o], %r1;") == [
        ("st", [1], [1]), ("atom", [32], [1])]


def test_instruction_and_line() -> None:
    seen: list[sim.Instr] = []
    text = program(HEAD + "mov.u32 %s, buffer;\n\nst.shared.b32 [%s], 0;")
    args = [np.zeros(64, np.uint32)] * 2
    module = sim.parse(text)
    sim.run(module, "k", args, (1, 1, 1), on_shared=lambda i, w, p: seen.append(i))
    assert [(i.op, i.mods) for i in seen] == [("st", ("shared", "b32"))]
    assert text.splitlines()[seen[0].line - 1].startswith("st.shared")
    sim.run(module, "k", args, (1, 1, 1))
    assert len(seen) == 1


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_random_requests(width: int) -> None:
    rng = np.random.default_rng(width)
    for _ in range(40):
        lanes = np.flatnonzero(rng.random(128) < rng.choice([0.05, 0.5, 1.0]))
        offsets = rng.integers(0, rng.choice([8, 256, 4096]), len(lanes)) * width
        expected: dict[int, dict[int, list[set[int]]]] = {}
        at_once = min(32, 128 // width)
        for lane, offset in zip(lanes.tolist(), offsets.tolist(), strict=True):
            phases = expected.setdefault(lane // 32, {})
            banks = phases.setdefault(lane % 32 // at_once, [set() for _ in range(32)])
            for byte in range(offset, offset + width):
                banks[byte // 4 % 32].add(byte // 4)
        count, least = wavefronts(lanes, offsets, width)
        assert count.tolist() == [sum(max(map(len, banks)) for banks in phases.values())
                                  for phases in expected.values()]
        assert least.tolist() == [len(phases) for phases in expected.values()]
