"""Block pointers: windows that move over matrices, through loops, branches and functions; their
edges; the widths of the accesses that they become; what is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.frontend.harness import build, execute, from_text
from tilec.errors import CompilationError, InterpreterError
from tilec.frontend.function import function
from tilec.ir import ops


@function
def move(src, dst, M, N, BM: tl.constexpr, BN: tl.constexpr, PAD: tl.constexpr):
    """dst, of whole blocks, gets src, M x N, with what PAD puts around it."""
    rows = tl.program_id(0) * BM
    tiles = tl.cdiv(N, BN)
    x = tl.make_block_ptr(src, (M, N), (N, 1), (rows, 0), (BM, BN), (1, 0))
    y = tl.make_block_ptr(base=dst, shape=(M, tiles * BN), strides=(tiles * BN, 1),
                          offsets=(rows, 0), block_shape=(BM, BN), order=(1, 0))
    for _ in range(tiles):
        tile = tl.load(x, boundary_check=(0, 1), padding_option=PAD)
        tl.store(y, tile)
        x = tl.advance(x, (0, BN))
        y = y.advance((0, BN))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.int8, np.int64])
@pytest.mark.parametrize("shape", [(1, 1), (8, 16), (13, 33), (24, 40)])
def test_loops_and_padding(dtype, shape, rng):
    m, n = shape
    src = rng.integers(-100, 100, shape).astype(dtype)
    rows, columns = -(-m // 8) * 8, -(-n // 12) * 12
    for pad, fill in (("zero", 0), ("nan", np.nan)):
        if pad == "nan" and np.issubdtype(dtype, np.integer):
            continue
        dst = np.full((rows, columns), 7, dtype)
        execute(move, src.reshape(-1), dst.reshape(-1), m, n, grid=rows // 8, BM=8, BN=12, PAD=pad)
        want = np.full((rows, columns), fill, dtype)
        want[:m, :n] = src
        # numpy counts a NaN as equal in its own types only.
        np.testing.assert_array_equal(dst.astype("f8"), want.astype("f8"))


def test_no_padding_is_poison():
    with pytest.raises(InterpreterError, match="poison"):
        execute(move, np.ones(15, "f4"), np.ones(64, "f4"), 3, 5, BM=8, BN=8, PAD="")


@function
def backwards(src, dst, n, B: tl.constexpr):
    """Blocks from the end on, the last of them partly before the start."""
    p = tl.make_block_ptr(src, (n,), (1,), (n - B,), (B,), (0,))
    total = tl.zeros((B,), tl.float32)
    left = n
    while tl.condition(left > 0, disable_licm=True):
        total += tl.load(p, boundary_check=(0,), padding_option="zero")
        p = tl.advance(p, (-B,))
        left -= B
    tl.store(tl.make_block_ptr(dst, (B,), (1,), (0,), (B,), (0,)), total)


def test_offsets_below_zero():
    x, out = np.arange(1, 22, dtype=np.float32), np.zeros(8, np.float32)
    execute(backwards, x, out, 21, B=8)
    padded = np.concatenate([np.zeros(3, "f4"), x])
    np.testing.assert_array_equal(out, padded.reshape(3, 8).sum(0))


@function
def _window(base, n, at, B: tl.constexpr):
    return tl.make_block_ptr(base, (n, n), (1, n), (at, 0), (B, B), (0, 1))


@function
def branches(src, dst, n, flag, B: tl.constexpr):
    if flag > 0:
        p = _window(src, n, 0, B)
    else:
        p = _window(src, n, B, B)
    pair = (p, flag)
    if flag > 1:
        pair = (pair[0].advance((0, B)), flag)
    q = tl.make_block_ptr(dst, (B, B), (B, 1), (0, 0), (B, B), (1, 0))
    tl.store(q, tl.load(pair[0]))


@pytest.mark.parametrize("flag, rows, columns", [(0, 4, 0), (1, 0, 0), (2, 0, 4)])
def test_branches_functions_and_column_major(flag, rows, columns):
    x, out = np.arange(64, dtype=np.int32), np.zeros(16, np.int32)
    execute(branches, x, out, 8, flag, B=4)
    want = x.reshape(8, 8).T[rows:rows + 4, columns:columns + 4]
    np.testing.assert_array_equal(out.reshape(4, 4), want)


def test_only_what_changes_is_carried():
    module = build(move, {"src": "*fp32", "dst": "*fp32", "M": "i32", "N": "i32"},
                   BM=8, BN=16, PAD="zero")
    (loop,) = [op for op in module.walk() if isinstance(op, ops.For)]
    assert len(loop.init) == 2


def test_accesses_are_16_bytes_wide():
    kernel = tilec.compile(move, {"src": "*fp16:16", "dst": "*fp16:16", "M": "i32", "N": "i32:16"},
                           {"BM": 64, "BN": 64, "PAD": "zero"})
    ptx = kernel.asm["ptx"]
    assert ptx.count("ld.global.v4.b32") == 4 and ptx.count("st.global.v4.b32") == 4
    assert "ld.global.b16" not in ptx and "st.global.b16" not in ptx


MAKE = "    p = tl.make_block_ptr(x, (n, n), (n, 1), (0, 0), (8, 8), (1, 0))\n"
REFUSED = {
    "tl.load(p, mask=n > 0)": "mask is given with a block pointer",
    "tl.load(p, other=0)": "other is given with a block pointer",
    "tl.load(p, boundary_check=(2,))": "dimension 2",
    "tl.load(p, padding_option='zero')": "without boundary_check",
    "tl.load(p, boundary_check=(0,), padding_option='one')": "'one'",
    "tl.load(p, boundary_check=(0,), padding_option='nan')": "'nan' for int32",
    "tl.load(x, boundary_check=(0,))": "no block pointer",
    "tl.store(x, 1, boundary_check=(0,))": "no block pointer",
    "tl.store(p, 1, mask=n > 0)": "mask is given",
    "tl.atomic_add(p, 1)": "block pointer to",
    "p + 1": "block pointer to",
    "tl.advance(x, (0, 8))": "expected a block pointer",
    "tl.advance(p, (8,))": "expected 2 integers",
    "tl.advance(p, 8)": "expected 2 integers",
    "tl.advance(p, (n.to(tl.int64), 0))": "32 bits",
    "tl.advance(p, (0.5, 0))": "0.5",
    "tl.make_block_ptr(n, (n,), (1,), (0,), (8,), (0,))": "scalar pointer",
    "tl.make_block_ptr(x + tl.arange(0, 8), (n,), (1,), (0,), (8,), (0,))": "scalar pointer",
    "tl.make_block_ptr(x, (n,), (1,), (0,), (8, 8), (1, 0))": "the shape of tl.make_block_ptr",
    "tl.make_block_ptr(x, (n, n), (n, 1), (0, 0), (8, 8), (0, 0))": "order [0, 0]",
    "tl.make_block_ptr(x, (n,), (1,), (0,), (n,), (0,))": "compile time",
    "tl.make_block_ptr(x, (), (), (), (), ())": "no dimension",
    "tl.make_block_ptr(x, (n,), (1,), (1 << 40,), (8,), (0,))": "does not fit int32",
}


@pytest.mark.parametrize("line", REFUSED)
def test_refused(line):
    fn = from_text(f"@jit\ndef k(x, n):\n{MAKE}    {line}\n")
    with pytest.raises(CompilationError) as caught:
        build(fn, {"x": "*i32", "n": "i32"})
    assert REFUSED[line] in caught.value.message and caught.value.advice
    assert caught.value.loc is not None and caught.value.loc.line == 4


def test_block_shape_may_not_change_in_a_loop():
    fn = from_text("@jit\ndef k(x, n):\n" + MAKE + "    for i in range(n):\n"
                   "        p = tl.make_block_ptr(x, (n, n), (n, 1), (0, 0), (8, 16), (1, 0))\n"
                   "    tl.store(p, 0)\n")
    with pytest.raises(CompilationError, match=r"block pointer to int32\[8, 8\].*\[8, 16\]"):
        build(fn, {"x": "*i32", "n": "i32"})


@pytest.mark.parametrize("level", ["tile", "gpu", "lowered", "ptx"])
def test_every_level(level, rng):
    kernel = tilec.compile(move, {"src": "*fp16:16", "dst": "*fp16:16", "M": "i32", "N": "i32"},
                           {"BM": 16, "BN": 24, "PAD": "zero"}, num_warps=2)
    src = rng.standard_normal((13, 50)).astype(np.float16)
    dst = np.full((16, 72), 7, np.float16)
    kernel.run([src, dst, 13, 50], (1,), level=level)
    want = np.zeros((16, 72), np.float16)
    want[:13, :50] = src
    np.testing.assert_array_equal(dst, want)
