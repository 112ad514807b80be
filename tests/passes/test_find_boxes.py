"""Tiles of pointers that are boxes of a matrix: TMA brings and stores them, with the bits that
pointers give, at every level; what is no box stays; what does not fit a launch takes pointers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from benchmarks.common import load_example
from tests.support.matmul import LEVELS
from tests.test_num_stages import nested
from tilec.compiler import compile_module
from tilec.errors import InterpreterError, LaunchError, OutOfResources
from tilec.ir.remarks import recording
from tilec.ir.tensor_maps import ROOM
from tilec.runtime import kernel as kernels
from tilec.runtime.maps import MapMaker, from_json, makers, to_json
from tilec.tools.compile import main as compile_tool

HOPPER = "sm_90a"
TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8,
                         "e4m3": ml_dtypes.float8_e4m3fn}
example, attention = load_example("06_matmul"), load_example("07_attention")


def operand(rng: np.random.Generator, shape: tuple[int, int], kind: str, columns: bool = False,
            pad: int = 0) -> np.ndarray:
    """A matrix, row by row or column by column, with `pad` elements between these."""
    held = (shape[1], shape[0]) if columns else shape
    x = np.full((held[0], held[1] + pad), 7, TYPES[kind])
    x[:, :held[1]] = rng.integers(-8, 8, held) if kind == "i8" else \
        rng.standard_normal(held).astype(np.float32)
    x = x[:, :held[1]]
    return x.T if columns else x


def strides(x: np.ndarray) -> list[int]:
    return [s // x.itemsize for s in x.strides]


def outcome(made: Any, args: list[Any], grid: tuple[int, ...], level: str) -> tuple[bytes, bool]:
    """The result's bytes, and whether the kernel with boxes ran."""
    c = args[2]
    c.view(np.uint8)[...] = 0xFF
    passed = [v for v, p in zip(args, made.fn.params, strict=False) if p.name in made.signature]
    used, _ = made.bind_maps(passed, level, (*grid, 1, 1)[:3])
    made.run(args, grid, level=level, seed=3)
    return c.tobytes(), used is made


def compare(kernel: Any, args: list[Any], grid: tuple[int, ...], want: np.ndarray | None,
            fits: bool = True, **options: Any) -> Any:
    """The same bits with and without boxes, near to what is wanted; the kernel."""
    made, plain = (kernel.warmup(*args, grid=grid, target=HOPPER, find_boxes=boxes, **options)
                   for boxes in (True, False))
    assert "gpu.tma_load(" in made.asm["gpu"] and "gpu.tma" not in plain.asm["gpu"]
    for level in LEVELS:
        (got, used), (bits, _) = (outcome(m, args, grid, level) for m in (made, plain))
        assert used is fits, level
        assert got == bits, level
    if want is not None:
        got = args[2].astype(np.float64)
        np.testing.assert_allclose(got, want, 2.0**-7, 2.0**-7 * np.abs(want).max())
    return made


def wide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


# ---- products that fit
@pytest.mark.parametrize(("kind", "ways", "stages", "group", "pad", "shape"), [
    ("bf16", (False, False), 3, 8, 0, (80, 96, 80)),
    ("f16", (True, False), 4, 2, 16, (128, 80, 48)),
    ("f16", (False, True), 1, 1, 0, (64, 144, 112)),
    ("bf16", (True, True), 2, 3, 8 * 16, (48, 64, 64)),
    ("e4m3", (False, True), 3, 8, 0, (96, 80, 160)),
    ("i8", (False, True), 2, 8, 16, (80, 80, 96))])
@pytest.mark.sample(2)
def test_example_06(kind, ways, stages, group, pad, shape, rng) -> None:
    m, n, k = shape
    a, b = operand(rng, (m, k), kind, ways[0], pad), operand(rng, (k, n), kind, ways[1], pad)
    c = np.empty((m, n), {"i8": np.int32, "e4m3": np.float16}.get(kind, TYPES[kind]))
    made = compare(
        example.matmul_kernel, [a, b, c, m, n, k, *strides(a), *strides(b), *strides(c)],
        (-(-m // 64) * -(-n // 64),), wide(a, b), num_warps=4, num_stages=stages,
        ACTIVATION=example.identity, ACC=tl.int32 if kind == "i8" else tl.float32,
        BM=64, BN=64, BK=32, GROUP=group)
    assert "gpu.tma_store(" in made.asm["gpu"]


@tilec.jit
def triton_tutorial(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
                    stride_cm, stride_cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                    GROUP: tl.constexpr, WRAP: tl.constexpr, SEEN: tl.constexpr):
    pid = tl.program_id(axis=0)
    num_pid_m, num_pid_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    num_pid_in_group = GROUP * num_pid_n
    first_pid_m = pid // num_pid_in_group * GROUP
    group_size_m = min(num_pid_m - first_pid_m, GROUP)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    offs_am = pid_m * BM + tl.arange(0, BM)
    offs_bn = pid_n * BN + tl.arange(0, BN)
    if WRAP:
        offs_am, offs_bn = offs_am % M, offs_bn % N
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BK * stride_ak
        b_ptrs += BK * stride_bk
    if SEEN:
        acc += tl.sum(acc, 0)[None, :]
    offs_cm = pid_m * BM + tl.arange(0, BM)
    offs_cn = pid_n * BN + tl.arange(0, BN)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, (acc * 0.5).to(tl.float16), (offs_cm[:, None] < M) & (offs_cn[None, :] < N))


def tutorial(rng: Any, m: int, n: int, k: int) -> list[Any]:
    a, b = operand(rng, (m, k), "f16"), operand(rng, (k, n), "f16")
    return [a, b, np.empty((m, n), np.float16), m, n, k, k, 1, n, 1, n, 1]


BLOCKS = {"BM": 64, "BN": 64, "BK": 32, "GROUP": 2, "SEEN": False, "num_warps": 4}


@pytest.mark.parametrize("wrap", [False, True])
def test_the_tutorial(wrap: bool, rng) -> None:
    """Wrapped around, rows beyond the matrix are others', and nobody sees what becomes of them."""
    m, n, k = (80, 96, 80) if wrap else (128, 64, 80)
    args = tutorial(rng, m, n, k)
    if wrap:  # what no product of such rows may bring into the result
        args[0][:16] = 3000
    made, plain = (triton_tutorial.warmup(*args, grid=(4,), target=HOPPER, find_boxes=boxes,
                                          WRAP=wrap, **BLOCKS) for boxes in (True, False))
    assert "gpu.tma_load(" in made.asm["gpu"]
    for level in LEVELS:
        got, used = outcome(made, args, (4,) if wrap else (2,), level)
        assert used
        np.testing.assert_allclose(args[2].astype(float), wide(args[0], args[1]) * 0.5,
                                   2e-3, 20 if wrap else 2e-2)
    assert ("gpu.wgmma(" in plain.asm["gpu"]) is not wrap


@tilec.jit
def persistent(a_ptr, b_ptr, c_ptr, M, N, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr,
               BK: tl.constexpr, FLAT: tl.constexpr):
    across = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * across, tl.num_programs(0),
                         flatten=FLAT):
        rm = tile // across * BM + tl.arange(0, BM)
        rn = tile % across * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            rk = k + tl.arange(0, BK)
            a = tl.load(a_ptr + rm[:, None].to(tl.int64) * sa + rk, (rm[:, None] < M) & (K > rk),
                        other=0.0)
            b = tl.load(b_ptr + rk[:, None] * sb + rn, (rk[:, None] <= K - 1) & (rn[None, :] < N),
                        other=0.0)
            acc += tl.dot(a, b)
        tl.store(c_ptr + sc * rm[:, None] + rn, acc.to(tl.float16), (rm[:, None] < M) & (rn < N))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.sample(1)
def test_persistent_loops(flat: bool, rng) -> None:
    m, n, k = 144, 96, 80
    a, b = operand(rng, (m, k), "f16"), operand(rng, (k, n), "f16")
    args = [a, b, np.empty((m, n), np.float16), m, n, k, k, n, n]
    made = compare(persistent, args, (2,), wide(a, b), BM=64, BN=64, BK=32, FLAT=flat, num_warps=4)
    assert {r.name for r in made.maps if r.apart} == {"a_ptr", "b_ptr"}
    # In place, a tile's result would be read again, in no order with TMA.
    square = operand(rng, (64, 64), "f16")
    args = [square, square.copy(), square, 64, 64, 64, 64, 64, 64]
    before = square.copy()
    for level in LEVELS:
        square[...] = before
        assert made.bind_maps(args, level, (1, 1, 1))[0] is made.by_pointers
        made.run(args, (1,), level=level)
        np.testing.assert_allclose(square.astype(float), wide(before, args[1]), 2e-3, 2e-2)


@pytest.mark.parametrize(("causal", "heads", "rows", "d"), [(True, 2, 80, 64), (False, 3, 64, 32)])
def test_attention(causal: bool, heads: int, rows: int, d: int, rng) -> None:
    """Two dots a round, heads a dimension of their own, blocks of rows from the last one on."""
    q, k, v = (rng.standard_normal((heads, rows, d)).astype(np.float16) for _ in range(3))
    args = [q, k, v, np.empty_like(q), rows, d, rows * d, d ** -0.5]
    made = attention.attention_kernel.warmup(
        *args, grid=(1,), target=HOPPER, num_warps=4, num_stages=2, BM=64, BN=32, D=d,
        CAUSAL=causal)
    text = made.asm["gpu"]
    assert "gpu.tma_load(" in text and "gpu.tma_store(" in text and "tile.dot(" not in text
    assert all(len(r.reach) == 3 for r in made.maps)
    want = attention.reference(*(x.astype(float) for x in (q, k, v)), causal)
    grid = (-(-rows // 64), heads, 1)
    for level in LEVELS:
        args[3][...] = np.nan
        assert made.bind_maps(args, level, grid)[0] is made
        made.run(args, grid, level=level, seed=1)
        np.testing.assert_allclose(args[3].astype(float), want, 4e-3, 4e-3)


@tilec.jit
def batched(a_ptr, b_ptr, c_ptr, M, K, sa, sam, sc, BM: tl.constexpr, BK: tl.constexpr,
            BACK: tl.constexpr):
    batch, block = tl.program_id(1), tl.program_id(0)
    if BACK:
        block = tl.cdiv(M, BM) - 1 - block
    rm = block * BM + tl.arange(0, BM)
    rk = tl.arange(0, BK)
    a_ptrs = a_ptr + batch * sa + rm[:, None] * sam + rk[None, :]
    acc = tl.zeros((BM, 64), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_ptrs, (rm[:, None] < M) & (rk[None, :] < K - k), other=0.0)
        rows = (batch * K + k + rk)[:, None]
        b = tl.load(b_ptr + rows * 64 + tl.arange(0, 64), (k + rk)[:, None] < K, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BK
    c_ptrs = c_ptr + batch * sc + rm[:, None] * 64 + tl.arange(0, 64)
    tl.store(c_ptrs, acc.to(tl.float16), rm[:, None] < M)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.sample(1)
def test_batches(back: bool, rng) -> None:
    """Whose stride is a parameter, or the rows' number times theirs; blocks of rows backwards."""
    n, m, k = 3, 80, 48
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((n, m, k), (n, k, 64)))
    args = [a, b, np.empty((n, m, 64), np.float16), m, k, m * k, k, m * 64]
    made = compare(batched, args, (2, n), wide(a, b), BM=64, BK=32, BACK=back, num_warps=4)
    assert all(len(r.reach) == 3 for r in made.maps)
    # Rows of one batch lie in those of another: pointers do what they say.
    args[6] = 32
    compare(batched, args, (2, n), None, fits=False, BM=64, BK=32, BACK=back, num_warps=4)


# ---- launches that boxes do not fit
GROUPS = {"ACTIVATION": example.identity, "ACC": tl.float32, "BM": 64, "BN": 64, "BK": 32,
          "GROUP": 3, "num_warps": 4}


def test_no_rounds(rng) -> None:
    args = tutorial(rng, 128, 128, 64)
    args[5] = 0
    compare(example.matmul_kernel, args, (4,), None, fits=False, **GROUPS)


def test_too_many_programs(rng) -> None:
    """Of which the last one reads before b: what that means is for pointers to say."""
    args = tutorial(rng, 128, 128, 64)
    made = example.matmul_kernel.warmup(*args, grid=(8,), target=HOPPER, **GROUPS)
    for level in LEVELS[:3]:
        with pytest.raises(InterpreterError, match="reads 64 elements before b_ptr"):
            made.run(args, (8,), level=level)
    assert outcome(made, args, (4,), "gpu")[1]


def test_programs_of_a_group_without_rows(rng) -> None:
    """The last program divides by zero, and lies before all columns and below all rows: it stores
    nothing, where TMA would not take such a place."""
    args = tutorial(rng, 64, 64, 32)
    held = rng.standard_normal(args[1].size + 128).astype(np.float16)
    args[1] = held[64:-64].reshape(args[1].shape)  # it reads before b
    made = example.matmul_kernel.warmup(*args, grid=(2,), target=HOPPER, **GROUPS | {"GROUP": 1})
    assert "gpu.tma_store(" in made.asm["gpu"]
    _, used = outcome(made, args, (2,), "ptx")
    assert not used
    np.testing.assert_allclose(args[2].astype(float), wide(args[0], args[1]), 2e-3, 2e-2)
    with pytest.raises(LaunchError, match="comes from a division by zero"):
        makers(made.maps)[0].on_host([*args[:3], 64, 64, 32, 32, 64, 64], (2, 1, 1))


@tilec.jit
def strided(a_ptr, b_ptr, c_ptr, M, K, sa, sc, BM: tl.constexpr, BK: tl.constexpr,
            START: tl.constexpr, KIND: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rk = START + tl.arange(0, BK)
    if KIND == "gather":
        rm = tl.load(c_ptr + rm, rm < 0, other=0).to(tl.int32)
    if KIND == "scaled":
        rm = rm * 2
    if KIND == "wide":
        sa = sa.to(tl.int64)
    if KIND == "cut":
        sa = sa.to(tl.int32).to(tl.int64)
    acc, first = tl.zeros((BM, 64), tl.float32), 0
    for k in range(0, K, BK):
        if KIND == "carried":
            rm, first = tl.program_id(0) * BM + first + tl.arange(0, BM), M - first
        mask = (rm[:, None] < M) & (k + rk[None, :] < K)
        if KIND == "two bounds":
            mask = mask & (rm[:, None] < M - 3)
        if KIND == "switch":
            mask = mask & (k < M)
        if KIND == "other bound":
            mask = mask & (rm[:, None] >= 3)
        if KIND == "from zero":
            mask = mask & (rm[:, None] >= 0) & (0 <= k + rk)
        if KIND == "both sides":  # M + step wraps around first
            step = tl.arange(0, BK) * 69273666
            mask = (rm[:, None] + step < M + step) & (k + rk < K)
        fill = 1.0 if KIND == "other" else 0.0
        a = tl.load(a_ptr + rm[:, None] * sa + (k + rk), mask, fill, volatile=KIND == "volatile")
        if KIND == "used":
            acc += tl.sum(a.to(tl.float32), 1)[:, None]
        b = tl.load(b_ptr + (k + tl.arange(0, BK))[:, None] * 64 + tl.arange(0, 64))
        acc = tl.dot(a, b, acc)
        if KIND == "written":
            tl.store(a_ptr + tl.arange(0, BM) * 0, tl.zeros((BM,), tl.float16), rm < 0)
    tl.store(c_ptr + rm[:, None] * sc + tl.arange(0, 64), acc.to(tl.float16), rm[:, None] < M)


SIGNATURE = {"a_ptr": "*fp16:16", "b_ptr": "*fp16:16", "c_ptr": "*fp16:16", "M": "i32", "K": "i32",
             "sa": "i32:16", "sc": "i32:16"}


def said(kind: str = "", start: int = 0, **types: str) -> str:
    """What is said of operand a."""
    made = tilec.compile(strided, SIGNATURE | types, {"BM": 64, "BK": 32, "START": start,
                                                      "KIND": kind}, target=HOPPER)
    with recording() as remarks:
        text = made.asm["gpu"]
    lines = Path(__file__).read_text().splitlines()
    line = next(r.message for r in remarks if r.kind == "tma" and r.loc
                and "tl.load(a_ptr" in lines[r.loc.line - 1])
    assert ("gpu.tma_load" in text) == line.startswith("TMA moves"), line
    return line


@pytest.mark.parametrize(("kind", "reason"), [
    ("gather", "its addresses are computed by tile.cast"),
    ("scaled", "its mask is no bound of rows or columns"),
    ("both sides", "its mask is no bound of rows or columns"),
    ("two bounds", "its mask has two bounds along a dimension"),
    ("switch", "its mask"),
    ("other bound", "its mask leaves out rows or columns before the box"),
    ("other", "its `other` is not zero"),
    ("volatile", "it is volatile"),
    ("used", "something else than a dot looks at it"),
    ("written", "not all operands of its dot are boxes of tensors that the kernel only reads")])
@pytest.mark.sample(3)
def test_what_is_no_box(kind: str, reason: str) -> None:
    assert reason in said(kind)


def test_more_that_is_no_box() -> None:
    assert "it may begin before the matrix" in said(start=-8)
    assert "its place comes from what a loop carries, which a launch" in said("carried")
    assert "a stride is not known to be a multiple of 16 bytes" in said(sa="i32")
    assert "the block's place in a row is not known to be a multiple of 16" in said(start=4)
    assert "the pointer is not known to be a multiple of 16" in said(a_ptr="*fp16")
    assert "its addresses might overflow 32 bits" in said("cut", sa="i64:16")
    for kind in ("", "wide", "cut", "from zero"):
        assert said(kind).startswith("TMA moves this tile, a box of the matrix at `a_ptr`"), kind
    assert said(start=8).startswith("TMA moves")


def test_what_overflows_32_bits() -> None:
    """An author's 32-bit offset may wrap around; one of 64 bits does not."""
    for kind, most in (("", (1 << 31) // 4096 - 32), ("wide", (1 << 31) - 3 * ROOM)):
        made = tilec.compile(strided, SIGNATURE, {"BM": 64, "BK": 32, "START": 0, "KIND": kind},
                             target=HOPPER)
        maker = next(m for m in makers(made.maps) if m.name == "a_ptr")
        assert maker.boxes is not None
        for rows in (most, most + 2 * ROOM):
            grid = (-(-rows // 64), 1, 1)
            values = [0, 0, 0, rows, 4096, 4096, 64]
            if rows == most:
                assert maker.boxes.tensor(values, grid) == ((rows, 4096), (4096, 1))
            else:
                with pytest.raises(LaunchError, match="32 bits do not hold"):
                    maker.boxes.tensor(values, grid)


@tilec.jit
def parts(a_ptr, b_ptr, c_ptr, K, x, y):
    i, j = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, K, 64):
        a = tl.load(a_ptr + x * 4096 + y * 4096 + (i * 4096 + k + j))
        acc = tl.dot(a, tl.load(b_ptr + (k + i) * 64 + j), acc)
    tl.store(c_ptr + i * 64 + j, acc.to(tl.float16))


def test_parts_of_either_sign() -> None:
    """Whose products with the stride may overflow where their sum does not."""
    types = {"a_ptr": "*fp16:16", "b_ptr": "*fp16:16", "c_ptr": "*fp16:16", "K": "i32", "x": "i32",
             "y": "i32"}
    made = tilec.compile(parts, types, {}, target=HOPPER)
    maker = next(m for m in makers(made.maps) if m.name == "a_ptr")
    assert maker.boxes is not None
    assert maker.boxes.tensor([0, 0, 0, 64, 3, 5], (1, 1, 1)) == ((72, 64), (4096, 1))
    for x in (-8, -1 << 19):
        with pytest.raises(LaunchError, match="some of whose parts are negative"):
            maker.boxes.tensor([0, 0, 0, 64, x, 8 - x], (1, 1, 1))


def test_rows_that_wrap_around_and_are_seen(rng) -> None:
    made = triton_tutorial.warmup(*tutorial(rng, 80, 96, 64), grid=(4,), target=HOPPER, WRAP=True,
                                  **BLOCKS | {"SEEN": True})
    with recording() as remarks:
        compile_module(made.build, made.target, made.options, stop_at="tile")
    found = [r.message for r in remarks if r.kind == "tma"]
    assert any("its indices begin anew, and what is made of that is seen" in m for m in found)


# ---- compiling and launching
def test_options(rng) -> None:
    args = tutorial(rng, 64, 64, 32)
    with pytest.raises(LaunchError, match="find_boxes is 1, expected True or False"):
        triton_tutorial.warmup(*args, grid=(1,), target=HOPPER, find_boxes=1, WRAP=False, **BLOCKS)
    made = triton_tutorial.warmup(*args, grid=(1,), target="sm_100", WRAP=False, **BLOCKS)
    assert made.maps == []


def test_too_much_shared_memory_for_tma(rng, monkeypatch) -> None:
    """Whose buffers share no bytes with scratch: the kernel is compiled without."""
    inner = kernels.compile_module

    def limited(build, *args, **options):
        if build().attributes.get("find_boxes", True):
            raise OutOfResources("shared memory", 2, 1)
        return inner(build, *args, **options)

    monkeypatch.setattr(kernels, "compile_module", limited)
    args = tutorial(rng, 64, 64, 48)
    made = triton_tutorial.warmup(*args, grid=(1,), target=HOPPER, WRAP=False, **BLOCKS,
                                  num_stages=2)
    assert "gpu.wgmma(" in made.asm["gpu"] and made.maps == []
    made.run(args, (1,), level="ptx")
    np.testing.assert_allclose(args[2].astype(float), wide(args[0], args[1]) / 2, 2e-3, 2e-2)


def test_a_launch_on_a_device_takes_pointers(rng, monkeypatch) -> None:
    """Where a map cannot be made, of an address that the driver refuses or of too many programs."""
    launched = []

    class Fake:
        def __init__(self, function, types, index, maps, early, instead, *_):
            self.maps, self.instead = maps, instead

        def launch(self, grid, threads, shared, stream, values):
            launched.append((len(self.maps), grid, threads, stream, values))

    monkeypatch.setattr(kernels, "Launcher", Fake)
    monkeypatch.setattr(kernels, "load", lambda made, index: type("Loaded", (), {"function": 0}))
    args = tutorial(rng, 128, 128, 64)
    made = triton_tutorial.warmup(*args, grid=(4,), target=HOPPER, WRAP=False, **BLOCKS)
    launcher: Any = made.launcher(0)
    assert len(launcher.maps) == 3
    values = [16, 16, 16, 128, 128, 64, 64, 128, 128]
    with pytest.raises(LaunchError, match="find_boxes=False"):
        launcher.maps[1](values, (99, 1, 1))
    launcher.instead((99, 1, 1), 5, values)
    assert launched == [(0, (99, 1, 1), made.by_pointers.threads, 5, values)]


def test_files_for_others_leave_pointers_alone(tmp_path) -> None:
    signature = "*fp16:16, *fp16:16, *fp16:16, i32:16, i32:16, i32:16, i32:16, 1, i32:16, 1, " \
        "i32:16, 1, 64, 64, 32, 8, False, False"
    assert compile_tool([f"{__file__}:triton_tutorial", "--signature", signature, "-o",
                         str(tmp_path)]) == 0
    assert "tensormap" not in (tmp_path / "triton_tutorial.lowered.tir").read_text()


def test_nests_without_stores(rng) -> None:
    """A loop inside, whose loads are boxes with places in both loops."""
    bm, k, tiles = 64, 64, 2
    a, b = operand(rng, (bm, 2 * k), "f16"), operand(rng, (2 * k, bm), "f16")
    w = rng.standard_normal((tiles, bm, bm)).astype(np.float32)
    args = {"a_ptr": a, "b_ptr": b, "w_ptr": w, "o_ptr": np.zeros((bm, bm), np.float32),
            "tiles": tiles, "K": k}
    made = nested.warmup(*args.values(), grid=(1,), target=HOPPER, BM=bm, BK=32, S=3)
    assert "gpu.tma_load(" in made.asm["gpu"]
    made.run(list(args.values()), (1,), level="ptx")
    got = args["o_ptr"]
    want = sum(wide(a[:, :k * n], b[:k * n]) * w[n] for n in range(tiles))
    np.testing.assert_allclose(got, want, 1e-3, 1e-2)


def test_recipes_as_json(rng) -> None:
    made = triton_tutorial.warmup(*tutorial(rng, 64, 64, 32), grid=(1,), target=HOPPER, WRAP=False,
                                  **BLOCKS)
    assert [from_json(json.loads(json.dumps(to_json(r)))) for r in made.maps] == made.maps
    assert all(MapMaker(r).boxes is not None for r in made.maps)
