"""count=True: counts derived by hand, written down as the arithmetic that gives them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.sim.programs import program
from tests.support.matmul import matmul, product
from tilec import sim

WARP, SECTOR, LINE = 32, 32, 128


def memory(**counts: int) -> dict[str, int]:
    """What MEMORY lists, zero where not said."""
    names = ("requests", "sectors", "lines", "wavefronts", "conflicts", "bytes")
    return dict.fromkeys(names, 0) | counts


def counted(body: str, block: int = 64, grid: int = 1, seed: int | None = None,
            size: int = 1 << 14) -> sim.Counts:
    args = [np.zeros(size, np.uint32), np.zeros(size, np.uint32)]
    counts = sim.run(program(body, "u64 u64", block), "k", args, (grid, 1, 1), seed=seed,
                     count=True)
    assert counts is not None
    return counts


# -- one access -----------------------------------------------------------------------------------

PLACE = ".reg .b32 %s, %s0; .reg .b64 %ga; .shared .align 16 .b8 buffer[16384]; " \
    "mov.u32 %s0, buffer; ld.param.u64 %ga, [p0]; "
GLOBAL = [  # the access, bytes a lane, bytes between lanes, bytes from a line's start
    ("ld.global.b32 %r1, [%ga];", 4, 4, 0), ("ld.global.b32 %r1, [%ga];", 4, 4, 4),
    ("ld.global.b32 %r1, [%ga];", 4, 8, 0), ("ld.global.b32 %r1, [%ga];", 4, 128, 0),
    ("ld.global.b32 %r1, [%ga];", 4, 0, 0), ("ld.global.u8 %h1, [%ga];", 1, 1, 0),
    ("ld.global.u16 %h1, [%ga];", 2, 2, 0), ("st.global.v2.b32 [%ga], {%r1, %r2};", 8, 8, 0),
    ("st.global.v4.b32 [%ga], {%r1, %r2, %r3, %r4};", 16, 16, 0),
    ("st.global.v4.b32 [%ga], {%r1, %r2, %r3, %r4};", 16, 48, 16),
    ("red.global.add.u32 [%ga], 1;", 4, 4, 0), ("atom.global.add.u32 %r1, [%ga], 1;", 4, 0, 0),
    ("ld.b32 %r1, [%ga];", 4, 4, 0),
]


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(("access", "width", "stride", "shift"), GLOBAL)
def test_global_requests(access: str, width: int, stride: int, shift: int, seed: int | None
                         ) -> None:
    """Sectors and lines of each warp, from the bytes that its lanes touch."""
    got = counted(f"{PLACE} add.u64 %ga, %ga, {shift}; mad.wide.u32 %ga, %t, {stride}, %ga; "
                  f"{access}", 96, seed=seed)
    # Arrays begin where a line does.
    sectors, lines = 0, 0
    for warp in range(3):
        touched = {shift + t * stride + i for t in range(warp * WARP, (warp + 1) * WARP)
                   for i in range(width)}
        sectors += len({byte // SECTOR for byte in touched})
        lines += len({byte // LINE for byte in touched})
    kind = {"ld": "load", "st": "store"}.get(access[:2], "atomic")
    assert got.memory == {("global", kind): memory(
        requests=3, sectors=sectors, lines=lines, bytes=96 * width)}


@pytest.mark.parametrize(("access", "stride", "turns", "least"), [
    ("ld.shared.b32 %r1, [%s];", 4, 1, 1), ("ld.shared.b32 %r1, [%s];", 128, 32, 1),
    ("ld.shared.b32 %r1, [%s];", 0, 1, 1),  # a word for all lanes at once
    ("st.shared.v4.b32 [%s], {%r1, %r2, %r3, %r4};", 32, 8, 4),
    # Lanes of an atomic operation take turns at a word; at words in banks of their own they do not.
    ("red.shared.add.u32 [%s], 1;", 0, 32, 1), ("red.shared.add.u32 [%s], 1;", 4, 1, 1),
    ("red.shared.add.u32 [%s], 1;", 8, 2, 1), ("atom.shared.add.u64 %rd1, [%s], 1;", 8, 2, 2),
    ("atom.shared.add.u64 %rd1, [%s], 1;", 0, 32, 2),
])
def test_shared_requests(access: str, stride: int, turns: int, least: int) -> None:
    got = counted(f"{PLACE} mad.lo.u32 %s, %t, {stride}, %s0; {access}", 64)
    width = 16 if "v4" in access else 8 if "u64" in access else 4
    kind = {"ld": "load", "st": "store"}.get(access[:2], "atomic")
    assert got.memory == {("shared", kind): memory(
        requests=2, wavefronts=2 * turns, conflicts=2 * (turns - least), bytes=64 * width)}


def test_local_memory() -> None:
    """The words of a warp's threads lie side by side: 8 lanes a sector, whatever the offset."""
    body = ".local .align 16 .b8 stack[64]; .reg .b64 %l; mov.u64 %l, stack;" \
        "st.local.b32 [%l+20], %t; st.local.v2.b32 [%l+8], {%t, %t};"
    assert counted(body, 64).memory == {("local", "store"): memory(
        requests=4, sectors=2 * 4 + 2 * 8, lines=2 * 1 + 2 * 2, bytes=64 * 12)}


def test_guards_and_branches() -> None:
    """An instruction whose guard is false is issued; one that is jumped over is not."""
    body = "setp.lt.u32 %p1, %t, 40; @%p1 add.u32 %r1, %t, 1; @!%p1 bra END; " \
        "mul.lo.u32 %r1, %r1, 3; @%p1 ld.global.b32 %r2, [%o]; END:"
    before = counted("").instructions
    got = counted(body, 96)
    head = (before - 1 * 2) // 2  # of the program around it, for each of its two warps, without ret
    # setp, add and bra by 3 warps; mul and ld by the two that have a thread below 40; ret by all.
    # Warp 1 meets ret once: its threads come together there.
    assert got.instructions == 3 * head + 3 * 3 + 2 * 2 + 3
    assert got.memory == {("global", "load"): memory(requests=2, sectors=4 + 1, lines=1 + 1,
                                                     bytes=40 * 4)}
    assert got.classes["branch"] == 3 + 3


# -- kernels of the compiler ----------------------------------------------------------------------

def simulate(kernel: tilec.JITFunction, args: list[Any], grid: tuple[int, ...], warps: int,
             **constexprs: Any) -> sim.Counts:
    made = kernel.warmup(*args, grid=grid, num_warps=warps, target="sm_90a", **constexprs)
    counts = made.simulate(args, grid)
    assert counts is not None
    return counts


@tilec.jit
def scale(x_ptr, o_ptr, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    mask = offs < n
    tl.store(o_ptr + offs, tl.load(x_ptr + offs, mask=mask) * 2, mask=mask)


def test_elementwise() -> None:
    """4 CTAs of 4 warps, 4 floats of 16 bytes a lane: 2 requests a warp for 1024 elements."""
    n, block, warps = 4096, 1024, 4
    x = np.ones(n, np.float32)
    got = simulate(scale, [x, np.ones(n, np.float32), n], (4,), warps, B=block)
    requests = n // (4 * WARP)
    one = memory(requests=requests, sectors=n * 4 // SECTOR, lines=n * 4 // LINE, bytes=n * 4)
    assert got.memory == {("global", "load"): one, ("global", "store"): one}
    assert (got.classes["load"], got.classes["store"]) == (requests, requests)


@tilec.jit
def columns(x_ptr, o_ptr, N: tl.constexpr):
    rows = tl.arange(0, N)
    tl.store(o_ptr + rows, tl.load(x_ptr + rows * 64))


def test_a_stride() -> None:
    """Elements 256 bytes apart: one lane a sector, and a line; stored side by side."""
    x, n = np.ones(128 * 64, np.float32), 128
    got = simulate(columns, [x, np.ones(n, np.float32)], (1,), 4, N=n)
    assert got.memory["global", "load"] == memory(requests=4, sectors=n, lines=n, bytes=4 * n)
    assert got.memory["global", "store"] == memory(
        requests=4, sectors=4 * n // SECTOR, lines=4 * n // LINE, bytes=4 * n)


@tilec.jit
def transpose(x_ptr, o_ptr, N: tl.constexpr):
    rows, cols = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(o_ptr + cols * N + rows, tl.load(x_ptr + rows * N + cols))


def test_a_transposition() -> None:
    """32 x 32 floats in rows, in and out: each 16 bytes a lane, and a sector for two lanes."""
    n = 32
    got = simulate(transpose, [np.ones((n, n), np.float32), np.ones((n, n), np.float32)], (1,), 1,
                   N=n)
    size = n * n * 4
    whole = memory(requests=size // (16 * WARP), sectors=size // SECTOR, lines=size // LINE,
                   bytes=size)
    assert got.memory["global", "load"] == got.memory["global", "store"] == whole
    # Every element goes through shared memory once.
    assert got.memory["shared", "load"]["bytes"] == got.memory["shared", "store"]["bytes"] == size
    assert got.memory["shared", "load"]["wavefronts"] >= size // LINE


@tilec.jit
def histogram(x_ptr, bins_ptr, B: tl.constexpr):
    tl.atomic_add(bins_ptr + tl.load(x_ptr + tl.arange(0, B)), 1, sem="relaxed")


def test_atomics() -> None:
    """Element i adds to bin i / 32: each warp's lanes share a word, which is a sector."""
    n = 256
    x, bins = np.ones(n, np.int32), np.ones(n // 32, np.int32)
    x[:] = np.arange(n) // 32
    bins[:] = 0
    got = simulate(histogram, [x, bins], (1,), 8, B=n)
    assert bins.tolist() == [32] * 8
    assert got.memory["global", "atomic"] == memory(requests=8, sectors=8, lines=8, bytes=4 * n)


def test_a_matrix_product() -> None:
    """128 x 128 x 64 tiles of bf16, 4 steps of k, 2 x 2 warps: see the terms."""
    bm = bn = 128
    bk, steps, warps = 64, 4, 4
    p = product({"kind": "bf16", "block": (bm, bn, bk), "a": "rows", "b": "rows",
                 "edges": "exact", "steps": steps}, np.random.default_rng(0))
    arrays = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in p.args.items()}
    made = matmul.warmup(*arrays.values(), grid=p.grid, num_warps=warps, num_stages=2,
                         target="sm_80", **p.constexprs)
    got = made.simulate(arrays, p.grid)
    p.check(arrays["c_ptr"], "ptx")
    # mma.m16n8k16, one a warp.
    assert got.classes["matrix"] == bm * bn * bk * steps // (16 * 8 * 16)
    # Both operands come once, 16 bytes a lane in rows of 128 and 256 bytes.
    size = (bm + bn) * bk * 2 * steps
    assert got.memory["global", "copy"] == memory(
        requests=size // (16 * WARP), sectors=size // SECTOR, lines=size // LINE, bytes=size)
    # The 2 x 2 warps read half of each tile, so every tile is read twice; ldmatrix.x4 gives 512
    # bytes in 4 wavefronts. The copies past the end write nothing that is read, but take turns too.
    load, copy = got.memory["shared", "load"], got.memory["shared", "copy"]
    main = 2 * size
    epilogue = got.memory["shared", "store"]["bytes"]  # the result changes its layout once
    assert epilogue in (0, bm * bn * 4)
    assert load == memory(requests=(main + epilogue) // 512, wavefronts=(main + epilogue) // LINE,
                          bytes=main + epilogue)
    assert copy["conflicts"] == 0 and copy["bytes"] >= size
    assert got.memory["global", "store"] == memory(
        requests=bm * bn * 4 // (16 * WARP), sectors=bm * bn * 4 // SECTOR,
        lines=bm * bn * 4 // LINE, bytes=bm * bn * 4)


# -- what is returned -----------------------------------------------------------------------------

def test_lines() -> None:
    """By PTX line and by Python line, as a table and as JSON."""
    n = 128
    got = simulate(scale, [np.ones(n, np.float32), np.ones(n, np.float32), n], (1,), 1, B=n)
    data = json.loads(got.json())
    assert data["instructions"] == got.instructions == sum(r["instructions"] for r in data["ptx"])
    assert data["instructions"] == sum(r["instructions"] for r in data["python"])
    assert data["classes"] == got.classes and data["kernel"] == "scale"
    (load,) = (r for r in data["ptx"] if "ld.global" in r["text"])
    assert load["class"] == "load" and load["instructions"] == 1
    assert load["memory"] == [{"space": "global", "access": "load", **memory(
        requests=1, sectors=16, lines=4, bytes=512)}]
    (line,) = (r for r in data["python"] if r["source"] == load["source"])
    store = next(r for r in data["ptx"] if "st.global" in r["text"])
    assert store["source"] == load["source"] and len(line["memory"]) == 2
    table, ptx = str(got), got.table("ptx")
    assert f"scale: {got.instructions} instructions" in table and load["source"] in table
    assert f"{load['line']}: {load['text']}" in ptx
    assert [r.line for r in got.rows] == sorted(r.line for r in got.rows)


def test_ctas_add_up_and_runs_do_not() -> None:
    one, three = counted("st.global.b32 [%o], %t;"), counted("st.global.b32 [%o], %t;", grid=3)
    assert three.instructions == 3 * one.instructions
    assert three.memory["global", "store"]["bytes"] == 3 * 64 * 4
    module = sim.parse(program("st.global.b32 [%o], %t;"))
    args = [np.zeros(64, np.uint32)] * 2
    first, second = (sim.run(module, "k", args, (1, 1, 1), count=True) for _ in range(2))
    assert first is not None and first.json() == second.json()
    assert sim.run(module, "k", args, (1, 1, 1)) is None
