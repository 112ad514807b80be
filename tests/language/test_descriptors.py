"""Tensor descriptors in kernels: blocks against numpy at every level, what they may be passed
through, and what is refused."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tests.frontend.harness import build, execute, from_text
from tests.test_num_stages import described
from tilec.errors import CompilationError, InterpreterError, IRError
from tilec.interp.run import run
from tilec.ir import ops
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.ir.verifier import verify
from tilec.knobs import RUN_LEVELS
from tilec.language.descriptors import PADDINGS
from tilec.passes.rewrite_descriptors import RewriteDescriptors

LEVELS = RUN_LEVELS
DTYPES = (np.bool_, np.int8, np.uint16, np.int32, np.uint64, ml_dtypes.float8_e5m2, np.float16,
          ml_dtypes.bfloat16, np.float32, np.float64)


def clipped(shape, at, block):
    """(indices of the tensor, indices of the block) of the elements that are in both."""
    inside = [[(a + i, i) for i in range(b) if 0 <= a + i < n]
              for n, a, b in zip(shape, at, block, strict=True)]
    return tuple(np.ix_(*([pair[k] for pair in dim] for dim in inside)) for k in (0, 1))


def block_of(x, at, block, fill=0):
    """The block of x that begins at `at`."""
    out = np.full(block, fill, x.dtype)
    whole, part = clipped(x.shape, at, block)
    out[part] = x[whole]
    return out


def drawn(rng, shape, dtype):
    return rng.integers(0, 2 if dtype == np.bool_ else 100, shape).astype(dtype)


def bits(x):
    return np.ascontiguousarray(x).tobytes()


# -- values -------------------------------------------------------------------------------------

@tilec.jit
def move(src, dst, shape, strides, to_shape, to_strides, at, to, BLOCK: tl.constexpr,
         PAD: tl.constexpr):
    """The block of src at `at` becomes that of dst at `to`."""
    x = tl.make_tensor_descriptor(src, shape, strides, BLOCK, PAD)
    y = tl.make_tensor_descriptor(dst, to_shape, to_strides, BLOCK)
    y.store(to, x.load(at))


def steps(x):
    return tuple(s // x.itemsize for s in x.strides)


# shape, block, where it is read, where it is written
PLACES = {
    "1d": ((21,), (8,), (16,), (0,)),
    "1d_before": ((21,), (13,), (-5,), (14,)),
    "2d": ((13, 18), (4, 8), (10, 12), (-1, 3)),
    "2d_odd": ((7, 9), (5, 3), (3, -2), (4, 7)),
    "2d_outside": ((7, 9), (4, 4), (7, 0), (0, 0)),
    "3d": ((3, 5, 10), (2, 4, 8), (2, 3, -3), (-1, 0, 4)),
    "4d": ((2, 3, 4, 5), (1, 2, 4, 8), (1, 2, -1, 1), (0, 1, 2, -2)),
    "5d": ((2, 2, 3, 2, 6), (2, 1, 2, 2, 4), (1, 0, 2, -1, 3), (0, 1, 0, 1, 0)),
}


@pytest.mark.parametrize(("place", "pad"), list(zip(PLACES, itertools.cycle(PADDINGS))))
def test_every_rank(place, pad, rng):
    shape, block, at, to = PLACES[place]
    padded = (*shape[:-1], shape[-1] + 3)  # what lies between the rows is not the tensor's
    src, dst = (drawn(rng, padded, np.float32) for _ in range(2))
    src[..., shape[-1]:] = 1e9
    want = dst.copy()
    whole, part = clipped(shape, to, block)
    want[whole] = block_of(src[..., :shape[-1]], at, block, 0 if pad == "zero" else np.nan)[part]
    args = [src, dst, shape, steps(src), shape, steps(dst), at, to]
    kernel = move.warmup(*args, BLOCK=block, PAD=pad, grid=(1,), num_warps=1)
    for level in LEVELS:
        out = dst.copy()
        kernel.run([src, out, *args[2:]], 1, level=level)
        np.testing.assert_array_equal(out, want, err_msg=level)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
def test_every_dtype(dtype, rng):
    shape, block, at = (6, 20), (4, 16), (3, 8)
    src = drawn(rng, shape, dtype)
    args = [src, np.ones(block, dtype), shape, steps(src), block, (block[1], 1), at, (0, 0)]
    kernel = move.warmup(*args, BLOCK=block, PAD="zero", grid=(1,), num_warps=2)
    for level in LEVELS:
        out = np.ones(block, dtype)
        kernel.run([src, out, *args[2:]], 1, level=level)
        assert bits(out) == bits(block_of(src, at, block)), level


@tilec.jit
def edges(src, dst, n, at, B: tl.constexpr):
    x = tl.make_tensor_descriptor(src, [n], [1], [B])
    tl.make_tensor_descriptor(dst, [B], [1], [B]).store([0], x.load([at]))


@pytest.mark.parametrize("at", [-2**31, -2**31 + 3, 2**31 - 1, 2**31 - 8, -8, 10])
def test_offsets_far_outside(at, rng):
    src = drawn(rng, 10, np.int16)
    kernel = edges.warmup(src, src, 10, at, B=8, grid=(1,), num_warps=1)
    for level in LEVELS:
        out = np.ones(8, np.int16)
        kernel.run([src, out, 10, at], 1, level=level)
        assert not out.any(), level


@tilec.jit
def add(dst, m, n, stride, values, BM: tl.constexpr, BN: tl.constexpr):
    """Every program adds its number and the same block, partly outside."""
    d = tl.make_tensor_descriptor(dst, (m, n), (stride, 1), (BM, BN))
    block = tl.make_tensor_descriptor(values, (BM, BN), (BN, 1), (BM, BN)).load((0, 0))
    d.atomic_add((m - 2, -1), block)
    d.atomic_add((0, 0), tl.program_id(0))


@pytest.mark.parametrize("dtype", [np.int32, np.uint64, np.float16, np.float32, np.float64],
                         ids=lambda t: np.dtype(t).name)
def test_atomic_add(dtype, rng):
    dst, values = drawn(rng, (5, 7), dtype), drawn(rng, (4, 4), dtype)
    want = dst.copy()
    whole, part = clipped((5, 7), (3, -1), (4, 4))
    want[whole] += 3 * values[part]
    want[:4, :4] += dtype(3)
    kernel = add.warmup(dst, 5, 7, 7, values, BM=4, BN=4, grid=(3,), num_warps=1)
    for level in LEVELS:
        out = dst.copy()
        kernel.run([out, 5, 7, 7, values], 3, level=level)
        np.testing.assert_array_equal(out, want, err_msg=level)
    out = dst.copy()
    execute(add, out.reshape(-1), 5, 7, 7, values.reshape(-1), grid=3, BM=4, BN=4)
    np.testing.assert_array_equal(out, want)


@tilec.jit
def combine(dst, m, n, values, KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Every program combines the same block with the tensor, partly outside."""
    d = tl.make_tensor_descriptor(dst, (m, n), (n, 1), (BM, BN))
    block = tl.make_tensor_descriptor(values, (BM, BN), (BN, 1), (BM, BN)).load((0, 0))
    if KIND == "max":
        d.atomic_max((m - 2, -1), block)
    elif KIND == "min":
        d.atomic_min((m - 2, -1), block)
    elif KIND == "and":
        d.atomic_and((m - 2, -1), block)
    elif KIND == "or":
        d.atomic_or((m - 2, -1), block)
    else:
        if tl.program_id(0) < 3:
            d.atomic_xor((m - 2, -1), block)


COMBINED = {"max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
            "xor": np.bitwise_xor}


@pytest.mark.parametrize(("kind", "dtype"), [
    (kind, dtype) for kind in COMBINED for dtype in (np.int32, np.uint32, np.int64, np.uint64,
                                                     np.float16, ml_dtypes.bfloat16, np.float32)
    if kind in ("max", "min") or np.dtype(dtype).kind in "iu"])
def test_atomics(kind, dtype, rng):
    dst, values = drawn(rng, (5, 7), dtype), drawn(rng, (4, 4), dtype)
    if np.dtype(dtype).kind != "u":
        dst, values = dst - dst.dtype.type(50), values - values.dtype.type(50)
    want, (whole, part) = dst.copy(), clipped((5, 7), (3, -1), (4, 4))
    want[whole] = COMBINED[kind](want[whole], values[part])
    kernel = combine.warmup(dst, 5, 7, values, KIND=kind, BM=4, BN=4, grid=(4,), num_warps=1)
    for level in LEVELS:
        out = dst.copy()
        kernel.run([out, 5, 7, values], 4, level=level)
        np.testing.assert_array_equal(out, want, err_msg=level)


@tilec.jit
def put(dst, rows, src, m, n, y, R: tl.constexpr, B: tl.constexpr):
    d = tl.make_tensor_descriptor(dst, [m, n], [n, 1], [1, B])
    x = tl.load(src + tl.arange(0, R)[:, None] * B + tl.arange(0, B)[None, :])
    d.scatter(x, tl.load(rows + tl.arange(0, R)), y)


@pytest.mark.parametrize("y", [0, 5, -3])
def test_scatter(y, rng):
    src, dst = drawn(rng, (8, 8), np.float32), drawn(rng, (7, 11), np.float16)
    rows, want = np.array([5, 0, -1, 2, 7, 6, 1, 3], np.int32), dst.copy()
    for i, row in enumerate(rows.tolist()):
        for j in range(8):
            if 0 <= row < 7 and 0 <= y + j < 11:
                want[row, y + j] = src[i, j]
    kernel = put.warmup(dst, rows, src, 7, 11, y, R=8, B=8, grid=(1,), num_warps=1)
    for level in LEVELS:
        out = dst.copy()
        kernel.run([out, rows, src, 7, 11, y], 1, level=level)
        np.testing.assert_array_equal(out, want, err_msg=level)


@tilec.jit
def pick(src, rows, dst, m, n, y, R: tl.constexpr, B: tl.constexpr):
    d = tl.make_tensor_descriptor(src, [m, n], [n, 1], [1, B], padding_option="nan")
    x = d.gather(tl.load(rows + tl.arange(0, R)), y)
    tl.store(dst + tl.arange(0, R)[:, None] * B + tl.arange(0, B)[None, :], x)


def test_gather(rng):
    src = drawn(rng, (6, 11), np.float32)
    rows = np.array([5, 0, -1, 2, 2, 6, 1, 3], np.int32)
    for y in (0, 5, -3):
        want = np.concatenate([block_of(src, (r, y), (1, 8), np.nan) for r in rows])
        kernel = pick.warmup(src, rows, np.zeros((8, 8), "f4"), 6, 11, y, R=8, B=8, grid=(1,))
        for level in LEVELS:
            out = np.zeros((8, 8), np.float32)
            kernel.run([src, rows, out, 6, 11, y], 1, level=level)
            np.testing.assert_array_equal(out, want, err_msg=level)


# -- through control flow and functions -----------------------------------------------------------

@tilec.jit
def _row(base, n, i, B: tl.constexpr):
    return tl.make_tensor_descriptor(base + i * n, [n], [1], [B])


@tilec.jit
def _sum(desc, at):
    return tl.sum(tl.load_tensor_descriptor(desc, [at]), 0)


@tilec.jit
def wander(src, dst, m, n, flag, B: tl.constexpr):
    """Sums along a row that a branch chooses, of a descriptor that a loop replaces."""
    if flag > 0:
        d = _row(src, n, 0, B)
    else:
        d = _row(src, n, 1, B)
    out = tl.make_tensor_descriptor(dst, [m], [1], [1])
    for i in range(m):
        total = 0
        at = 0
        while at < d.shape[0]:
            total += _sum(d, at)
            at += d.block_shape[0]
        tl.store_tensor_descriptor(out, [i], tl.full((1,), total, d.dtype))
        d = _row(src, n - i, i, B)
    tl.store(dst + m, d.strides[0].to(tl.int32) + d.shape[0])


@pytest.mark.parametrize("flag", [0, 1])
def test_control_flow(flag, rng):
    m, n = 4, 11
    src = drawn(rng, (m, n), np.int32)
    flat = src.reshape(-1)
    want = [src[1 - flag].sum(), *(flat[(n - i) * i:][:n - i].sum() for i in range(m - 1)),
            n - m + 2]
    kernel = wander.warmup(src, flat, m, n, flag, B=4, grid=(1,), num_warps=1)
    for level in LEVELS:
        out = np.zeros(m + 1, np.int32)
        kernel.run([src, out, m, n, flag], 1, level=level)
        assert out.tolist() == want, level
    out = np.zeros(m + 1, np.int32)
    execute(wander, flat, out, m, n, flag, B=4)
    assert out.tolist() == want


def test_the_ops_themselves_run_and_are_text(rng):
    """Before they are rewritten: in the interpreter, and after a round trip through text."""
    specs = {"dst": "*fp32", "m": "i32", "n": "i32", "stride": "i32", "values": "*fp32"}
    module = build(add, specs, BM=2, BN=4)
    again = parse(print_module(module))
    verify(again)
    assert print_module(again) == print_module(module)
    kinds = [type(op) for op in again.walk() if isinstance(op, ops.DescriptorOp)]
    assert kinds == [ops.DescriptorLoad, ops.DescriptorAtomic, ops.DescriptorAtomic]
    dst, values = drawn(rng, (3, 6), np.float32), drawn(rng, (2, 4), np.float32)
    want = dst.copy()
    RewriteDescriptors().run(module)
    assert not any(isinstance(op, ops.DescriptorOp) for op in module.walk())
    run(module, "add", [want, 3, 6, 6, values], 2)
    run(again, "add", [dst, 3, 6, 6, values], 2)
    np.testing.assert_array_equal(dst, want)


def test_a_shape_that_is_too_large_is_found(rng):
    src = drawn(rng, 10, np.float32)
    for launch in (lambda: edges[(1,)](src, np.zeros(8, "f4"), 16, 8, B=8),
                   lambda: execute(edges, src, np.zeros(8, "f4"), 16, 8, B=8)):
        with pytest.raises(InterpreterError, match="reads 6 elements past src"):
            launch()


# -- the code that is made -------------------------------------------------------------------------

@tilec.jit
def by_pointers(a_ptr, b_ptr, o_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr,
                BK: tl.constexpr):
    """What `described` computes."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn, rk = tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        at = k + rk
        a = tl.load(a_ptr + rm[:, None] * K + at[None, :], (rm[:, None] < M) & (at[None, :] < K), 0)
        b = tl.load(b_ptr + at[:, None] * N + rn[None, :], (at[:, None] < K) & (rn[None, :] < N), 0)
        acc = tl.dot(a, b, acc)
    tl.store(o_ptr + rm[:, None] * N + rn[None, :], acc, (rm[:, None] < M) & (rn[None, :] < N))


@pytest.mark.parametrize("divisor, copies", [(":16", 24), ("", 0)])
def test_accesses_are_those_of_pointers(divisor, copies):
    """As wide, and as many, in a product; run ahead by cp.async where they are wide enough."""
    signature = {"a_ptr": "*bf16:16", "b_ptr": "*bf16:16", "o_ptr": "*fp32:16", "M": "i32",
                 "N": "i32" + divisor, "K": "i32" + divisor}
    found = []
    for kernel in (by_pointers, described):
        made = tilec.compile(kernel, signature, {"BM": 64, "BN": 64, "BK": 64}, num_stages=3,
                             target="sm_80")
        accesses = re.findall(r"\b(?:ld|st|cp|mma)\.[\w.]+", made.asm["ptx"])
        found.append(Counter(a for a in accesses if not a.startswith("ld.param")))
    assert found[0] == found[1] and found[0]["cp.async.cg.shared.global"] == copies


# -- what is refused ------------------------------------------------------------------------------

MAKE = "    d = tl.make_tensor_descriptor(x, [n, n], [n, 1], [8, 8])\n"
REFUSED = {
    "tl.make_tensor_descriptor(n, [n], [1], [8])": "expected a scalar pointer",
    "tl.make_tensor_descriptor(x + tl.arange(0, 8), [n], [1], [8])": "expected a scalar pointer",
    "tl.make_tensor_descriptor(x, [n], [n], [8])": "the last stride is int32 scalar",
    "tl.make_tensor_descriptor(x, [n], [2], [8])": "the last stride is the number 2",
    "tl.make_tensor_descriptor(x, [n], [1], [8, 8])": "found 1, expected 2 integers",
    "tl.make_tensor_descriptor(x, [n, n], [1], [8, 8])": "the strides of",
    "tl.make_tensor_descriptor(x, [], [], [])": "0 dimensions, expected 1 to 5",
    "tl.make_tensor_descriptor(x, [n] * 6, [n] * 5 + [1], [1] * 6)": "6 dimensions",
    "tl.make_tensor_descriptor(x, [n], [1], [n])": "compile time",
    "tl.make_tensor_descriptor(x, [n], [1], [0])": "not positive",
    "tl.make_tensor_descriptor(x, [n.to(tl.int64)], [1], [8])": "32 bits or fewer",
    "tl.make_tensor_descriptor(x, [1 << 31], [1], [8])": "does not fit int32",
    "tl.make_tensor_descriptor(x, [n], [1], [8], 'nan')": "'nan' for int8",
    "tl.make_tensor_descriptor(x, [n], [1], [8], 'one')": "'one', expected 'zero' or 'nan'",
    "d.load([n])": "found 1, expected 2 integers in a tuple the descriptor's blocks are [8, 8]: "
                   "write [i, j], an offset for each dimension",
    "d.load([0.5, 0])": "0.5",
    "d.load([n.to(tl.int64), 0])": "32 bits or fewer",
    "d.load()": "tl.tensor_descriptor.load(self, offsets)",
    "d.store([0, 0], tl.zeros((8, 4), tl.int8))": "block and value",
    "d.store([0, 0], tl.zeros((2, 8, 8), tl.int8))": "the blocks are [8, 8]",
    "d.atomic_add([0, 0], 1)": "no atomic add of int8",
    "d.gather(tl.arange(0, 8), 0)": "expected one row",
    "d.atomic_max([0, 0], 1)": "no atomic max of int8",
    "d.atomic_xor([0, 0], 1.5)": "use int32, uint32, int64 or uint64",
    "d.scatter(1, tl.arange(0, 8), 0)": "expected one row",
    "tl.make_tensor_descriptor(x, [n, n], [n, 1], [1, 8]).scatter(1, n, 0)": "x_offsets is int32",
    "tl.make_tensor_descriptor(c, [n, n], [n, 1], [1, 8]).scatter(1, tl.arange(0, 4), 0)":
        "cannot write through",
    "tl.make_tensor_descriptor(x, [n, n], [n, 1], [1, 8]).gather(n, 0)": "x_offsets is int32",
    "tl.make_tensor_descriptor(c, [n], [1], [8]).store([0], 1)": "cannot write through",
    "tl.load_tensor_descriptor(x, [0])": "expected a tensor descriptor",
    "tl.store_tensor_descriptor(x, [0], 1)": "expected a tensor descriptor",
    "tl.load(d)": "expected a pointer, found descriptor of int8[8, 8] blocks",
}


@pytest.mark.parametrize("line", REFUSED)
def test_refused(line):
    fn = from_text(f"@jit\ndef k(x, n, c: tl.const):\n{MAKE}    {line}\n")
    with pytest.raises(CompilationError) as caught:
        build(fn, {"x": "*i8", "n": "i32", "c": "*ki8"})
    shown = f"{caught.value.message} {caught.value.advice}"
    assert REFUSED[line] in shown and caught.value.advice
    assert caught.value.loc is not None and caught.value.loc.line == 4


def test_blocks_may_not_change_in_a_loop():
    fn = from_text("@jit\ndef k(x, n):\n" + MAKE + "    for i in range(n):\n"
                   "        d = tl.make_tensor_descriptor(x, [n, n], [n, 1], [8, 16])\n"
                   "    d.store([0, 0], 0)\n")
    with pytest.raises(CompilationError, match=r"int8\[8, 8\] blocks.*\[8, 16\]"):
        build(fn, {"x": "*i8", "n": "i32"})


@pytest.mark.parametrize("op, message", [
    ("tile.descriptor_store(%c, %v, %n, %s, %n) {block = [4]}", "cannot store through"),
    ("tile.descriptor_atomic(%p, %v, %n, %s, %n) {block = [4]}", "no atomic add for i8"),
    ("tile.descriptor_store(%p, %v, %n, %s, %n) {block = [8]}", "expected tensor<8xi8>"),
    ("tile.descriptor_store(%p, %v, %n, %n, %n) {block = [4]}", "expected (i32, i64, i32)"),
])
def test_wrong_ir(op, message):
    with pytest.raises(IRError) as caught:
        parse("module {\n  func @k(%p: ptr<i8>, %c: ptr<i8, const>, %n: i32, %s: i64) {\n"
              f"    %v = tile.constant() {{value = 0}} : tensor<4xi8>\n    {op}\n"
              "    func.return()\n  }\n}\n")
    assert message in str(caught.value)
