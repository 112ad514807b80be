"""Masks of indices in a branch: the same bits as without it, whatever wraps; whole blocks pay
nothing where that can be told."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilec
import tilec.language as tl
from benchmarks.common import load_example
from tilec.errors import InterpreterError
from tilec.interp.run import run
from tilec.ir import ops
from tilec.ir.core import Builder, Module
from tilec.ir.parser import parse
from tilec.ir.remarks import recording
from tilec.ir.verifier import verify
from tilec.passes import guard_masks
from tilec.passes.base import parse_pipeline

ROWS, COLUMNS = 64, 32
DROPPED = -9.0
LOOP = """module attributes {{level = "tile", target = "sm_90a", num_warps = 4}} {{
  func @k(%x: ptr<f16>, %o: ptr<f32>, %first: i32, %n: i32, %w: i32, %lo: i32, %hi: i32,
          %flag: i1) {{
    %one = tile.constant() {{value = 1}} : i32
    %zero = tile.constant() {{value = 0}} : i32
    %step = tile.constant() {{value = {step}}} : i32
    %m = tile.constant() {{value = 64}} : i32
    %d = tile.constant() {{value = 16}} : i32
    %stride = tile.constant() {{value = 16}} : i64
    %unit = tile.constant() {{value = 1}} : i64
    %c = tile.constant() {{value = 0.0}} : tensor<64x32xf32>
    %low = tile.constant() {{value = -9.0}} : tensor<64x32xf32>
    %size = tile.constant() {{value = 2048}} : i32
    %r = tile.arange() {{start = 0, end = 64}} : tensor<64xi32>
    %s = tile.arange() {{start = {begin}, end = {end}}} : tensor<32xi32>
    %e = tile.arange() {{start = 0, end = 2048}} : tensor<2048xi32>
    %last = scf.for(%lo, %hi, %step, %zero) {{ ^(%i: i32, %round: i32):
      %a = tile.descriptor_load(%x, %m, %d, %stride, %unit, %zero, %zero)
        {{block = [64, 16]}} : tensor<64x16xf16>
      %b = tile.descriptor_load(%x, %m, %d, %stride, %unit, %d, %zero)
        {{block = [32, 16]}} : tensor<32x16xf16>
      %t = tile.trans(%b) {{order = [1, 0]}} : tensor<16x32xf16>
      %p = tile.dot(%a, %t, %c) : tensor<64x32xf32>
{mask}
      %at = tile.mul(%round, %size) : i32
      %to = tile.addptr(%o, %at) : ptr<f32>
      %tos = tile.splat(%to) : tensor<2048xptr<f32>>
      %q = tile.addptr(%tos, %e) : tensor<2048xptr<f32>>
      %v = tile.reshape(%y) : tensor<2048xf32>
      tile.store(%q, %v)
      %next = tile.add(%round, %one) : i32
      scf.yield(%next)
    }} : i32
    func.return()
  }}
}}
"""


class Mask:
    """Text of ops that make a random mask of rows and columns, and select by it. exact: whether the
    branch is to be taken exactly where the mask drops something, if nothing wraps."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.lines, self.count = rng, list[str](), 0
        self.exact = True
        mask = self.mask(rng.choice([0, 0, 1, 2]))
        arms = "%p, %low"
        if rng.random() < 0.2:
            mask, arms = self.put(f"tile.not({mask})", "tensor<64x32xi1>"), "%low, %p"
        self.lines.append(f"%y = tile.select({mask}, {arms}) : tensor<64x32xf32>")

    def put(self, op: str, t: str) -> str:
        self.count += 1
        body, _, attributes = op.partition(" {")
        self.lines.append(f"%t{self.count} = {body}" + (" {" + attributes if attributes else "")
                          + f" : {t}")
        return f"%t{self.count}"

    def scalar(self) -> str:
        name = self.rng.choice(["%i", "%i", "%first", "%n"])
        if self.rng.random() < 0.35:
            kind = self.rng.choice(["add", "sub", "mul", "div", "rem"])
            other = self.rng.choice(["%w", "%first", "%i"])
            name = self.put(f"tile.{kind}({name}, {other})", "i32")
        return name

    def side(self, axis: int) -> str:
        """Row or column indices, moved by scalars; or, for axis 2, one number in all lanes."""
        full = "tensor<64x32xi32>"
        if axis == 2:
            return self.put(f"tile.splat({self.scalar()})", full)
        extent, name = ((ROWS, "%r"), (COLUMNS, "%s"))[axis]
        t = f"tensor<{extent}xi32>"
        for _ in range(self.rng.choice([0, 1, 1, 2])):
            moved = self.put(f"tile.splat({self.scalar()})", t)
            kind, pair = self.rng.choice([("add", (moved, name)), ("add", (name, moved)),
                                          ("sub", (name, moved)), ("sub", (moved, name))])
            name = self.put(f"tile.{kind}({', '.join(pair)})", t)
        shape = (f"{extent}x1", f"1x{extent}")[axis]
        name = self.put(f"tile.expand_dims({name}) {{axis = {1 - axis}}}", f"tensor<{shape}xi32>")
        return self.put(f"tile.broadcast({name})", full)

    def compare(self) -> str:
        left, right = self.rng.choice([(0, 1), (1, 0), (1, 2), (2, 1), (0, 2)])
        sides = [self.side(left), self.side(right)]
        if self.rng.random() < 0.3:  # a window
            sides = [self.put(f"tile.sub({', '.join(sides)})", "tensor<64x32xi32>"), self.side(2)]
        predicate = self.rng.choice(["lt", "le", "gt", "ge"] * 3 + ["eq", "ne"])
        return self.put(f'tile.cmp({", ".join(sides)}) {{predicate = "{predicate}"}}',
                        "tensor<64x32xi1>")

    def mask(self, depth: int) -> str:
        kind = self.rng.choice(["and", "and", "or", "not", "flag"])
        if not depth:
            return self.compare()
        if kind == "not":
            self.exact = False
            return self.put(f"tile.not({self.mask(depth - 1)})", "tensor<64x32xi1>")
        other = self.put("tile.splat(%flag)", "tensor<64x32xi1>") if kind == "flag" else \
            self.mask(depth - 1)
        self.exact = self.exact and kind != "or"
        return self.put(f"tile.{'and' if kind == 'flag' else kind}({other}, "
                        f"{self.mask(depth - 1)})", "tensor<64x32xi1>")


def numbers(rng: random.Random, step: int) -> tuple[list[int], bool]:
    """first, n, w, lo, hi; and whether all sums and products of a few of them fit."""
    near = rng.choice([0, 0, 0, 1, 2])
    middle = [0, 2**31 - 1, -2**31][near]

    def pick() -> int:
        centre = middle if rng.random() < 0.7 else 0
        return min(max(centre + rng.randint(-150, 150), -2**31), 2**31 - 1)

    first, n, w, lo = (pick() for _ in range(4))
    w = rng.choice([w, w, rng.randint(-2, 3)])
    lo = min(lo, 2**31 - 1 - 4 * step)
    return [first, n, w, lo, lo + rng.randint(1, 4) * step - rng.randrange(step)], near == 0


def rounds(module: Module, args: list[Any]) -> tuple[np.ndarray, list[bool]]:
    """What each round stores, and, with a branch, whether it masks."""
    branch = next((op for op in module.walk() if isinstance(op, ops.If)), None)
    if branch is not None:
        Builder(before=branch).insert(ops.Print([branch.cond]))
    out, lines = np.full((5, ROWS, COLUMNS), np.nan, np.float32), list[str]()
    x = np.arange(64 * 16).astype(np.float16).reshape(64, 16) % 7
    run(module, "k", [x, out, *args], 1, seed=0, on_print=lines.append)
    taken = branch is not None and any(isinstance(op, ops.Select) for op in branch.then)
    return out, [("True" in line) == taken for line in lines]


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_random_masks(rng: random.Random) -> None:
    mask, step, begin = Mask(rng), rng.choice([1, 16, 32, 40]), rng.choice([0, 0, 5])
    text = LOOP.format(step=step, begin=begin, end=begin + COLUMNS,
                       mask="\n".join(f"      {line}" for line in mask.lines))
    values, small = numbers(rng, step)
    args = [*values, rng.random() < 0.7]
    made = parse(text)
    for p in parse_pipeline("licm,guard_masks,canonicalize,dce"):
        p.run(made)
        verify(made)
    try:
        want, _ = rounds(parse(text), args)
    except InterpreterError as e:  # a division by zero: what is selected by it must not be stored
        assert "poison" in str(e) and "tile.store" in str(e)
        try:
            rounds(made, args)
        except InterpreterError as again:
            assert "tile.store" in str(again)
        return
    got, masked = rounds(made, args)
    assert got.tobytes() == want.tobytes(), text
    drops = [bool((x == DROPPED).any()) for x in want if not np.isnan(x).any()]
    for drop, branch in zip(drops, masked, strict=False):
        assert branch >= drop
        if small and mask.exact:
            assert branch == drop, text


@tilec.jit
def masked_attention(q, k, v, out, scale, n, W, KIND: tl.constexpr, GUARDED: tl.constexpr):
    """Attention of blocks of rows; what KIND says does not count."""
    BM: tl.constexpr = q.block_shape[0]
    BN: tl.constexpr = k.block_shape[0]
    first = tl.program_id(0) * BM
    rows = first + tl.arange(0, BM)
    queries = q.load([first, 0])
    acc = tl.zeros((BM, v.block_shape[1]), tl.float32)
    top = tl.full((BM,), -1.0e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for start in range(0, n, BN):
        columns = start + tl.arange(0, BN)
        s = tl.dot(queries, tl.trans(k.load([start, 0]))) * scale
        if KIND == "branch":
            if start + BN > n:
                s = tl.where(columns[None, :] < n, s, -1.0e30)
        elif KIND == "end":
            s = tl.where(columns[None, :] < n, s, -1.0e30)
        elif KIND == "causal":
            s = tl.where((rows[:, None] >= columns[None, :]) & (columns < n)[None, :], s, -1.0e30)
        elif KIND == "reversed":
            s = tl.where((columns[None, :] >= n) | (columns[None, :] > rows[:, None]), -1.0e30, s)
        elif KIND == "window":
            s = tl.where((rows[:, None] - columns[None, :] < W) & (columns[None, :] < n)
                         & (rows[:, None] >= columns[None, :]), s, -1.0e30)
        elif KIND == "added":
            counted = (rows[:, None] >= columns[None, :]) & (columns[None, :] < n)
            s = s + tl.where(counted, 0, -1.0e30)
        elif KIND == "after":
            s = tl.where(columns[None, :] < n, s, -1.0e30)
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        if KIND == "after":
            p = tl.where(rows[:, None] >= columns[None, :], p, 0.0)
        rescale = tl.exp2(top - new)
        total = total * rescale + tl.sum(p, 1)
        acc = tl.dot(p.to(q.dtype), v.load([start, 0]), acc * rescale[:, None])
        top = new
    out.store([first, 0], acc / total[:, None])


COUNTS = {"causal": 1, "reversed": 1, "window": 1, "added": 1, "after": 2}


def case(rng, rows: int, columns: int, bn: int) -> tuple[list[Any], list[np.ndarray]]:
    """Arguments; q, k, v and the result."""
    q, k, v = (rng.standard_normal((m, 64)).astype(np.float32).astype(ml_dtypes.bfloat16)
               for m in (rows, columns, columns))
    out = np.full((rows, 64), np.nan, np.float32)
    described = [tilec.TensorDescriptor.from_tensor(x, (b, 64))
                 for x, b in ((q, 64), (k, bn), (v, bn), (out, 64))]
    return [*described, 0.2, columns, 100], [q, k, v, out]


def compiled(monkeypatch, args: list[Any], kind: str, guarded: bool) -> Any:
    with monkeypatch.context() as patch, tilec.knobs.scope(cache=False):
        if not guarded:
            patch.setattr(guard_masks, "LEAST_ELEMENTS", 1 << 30)
        made = masked_attention.warmup(*args, KIND=kind, GUARDED=guarded, grid=(1,), num_warps=4,
                                       num_stages=2, target="sm_90a")
        assert made.asm["gpu"].count("gpu.wgmma(") == 4
        return made


@pytest.mark.parametrize(("kind", "bn"), list(zip(COUNTS, (64, 32, 32, 64, 64), strict=True)))
@pytest.mark.sample(2)
def test_same_bits_at_all_levels(kind: str, bn: int, rng, monkeypatch) -> None:
    rows = columns = 150 if kind == "window" else 100
    args, (*inputs, out) = case(rng, rows, columns, bn)
    q, k, v = (x.astype(np.float64) for x in inputs)
    i, j = np.arange(rows)[:, None], np.arange(columns)
    counted = (i >= j) & (i - j < (100 if kind == "window" else rows))
    s = np.where(counted, 0.2 * q @ k.T, -np.inf)
    p = np.exp2(s - s.max(1, keepdims=True))
    kernels = [compiled(monkeypatch, args, kind, guarded) for guarded in (False, True)]
    branches = [sum(isinstance(op, ops.If) for op in parse(made.asm["tile"]).walk())
                for made in kernels]
    assert branches == [0, COUNTS[kind]]
    for level in ("tile", "gpu", "lowered", "ptx"):
        results = []
        for made in kernels:
            out[:] = np.nan
            made.run(args, (tilec.cdiv(rows, 64),), level, seed=1)
            results.append(out.copy())
        assert results[0].tobytes() == results[1].tobytes(), level
        np.testing.assert_allclose(results[1], p @ v / p.sum(1, keepdims=True), 0, 2e-2, level)


def test_the_schedule_is_that_of_a_branch_by_hand(rng, monkeypatch) -> None:
    """One comparison in a round, and the same ops in the same order at the gpu level."""
    args, _ = case(rng, 128, 256, 64)
    texts = [compiled(monkeypatch, args, kind, True).asm["gpu"] for kind in ("branch", "end")]
    loops = [next(op for op in parse(text).walk() if isinstance(op, ops.For)) for text in texts]
    indices = (ops.Splat, ops.Arange, ops.Cmp, ops.Add, ops.ExpandDims, ops.Broadcast, ops.Constant)
    order = [[op.name for op in loop.walk() if not isinstance(op, indices)] for loop in loops]
    assert order[0] == order[1]
    # By hand `start + BN` is computed in the round, by the pass `n` less the block before the loop.
    counts = [[op.name for op in loop.walk()].count("tile.add") for loop in loops]
    assert counts[0] == counts[1] + 1


def test_example_11_masks_few_rounds() -> None:
    """Each mask of the example is in a branch, in all copies that the pipeline makes of it."""
    example, half = load_example("11_descriptor_attention"), np.zeros(64, ml_dtypes.bfloat16)
    lse = np.zeros(64, np.float32)

    def blocks(*rows: int) -> list[Any]:
        return [tilec.TensorDescriptor(half, (8, 512, 128), (512 * 128, 128, 1), (1, n, 128))
                for n in rows]

    for name, args in (("attention_kernel", [*blocks(128, 128, 128, 128), 0.1]),
                       ("grad_queries_kernel", [*blocks(128, 64, 64, 128, 128), lse, lse, 0.1]),
                       ("grad_keys_values_kernel",
                        [*blocks(64, 128, 128, 64, 128, 128), lse, lse, 0.1])):
        made = getattr(example, name).warmup(*args, grid=(1,), SHARED=1, CAUSAL=True, num_warps=8,
                                             num_stages=2, target="sm_90a")
        loop = next(op for op in parse(made.asm["tile"]).walk() if isinstance(op, ops.For)
                    and any(isinstance(x, ops.DescriptorLoad) for x in op.body))
        selects = [op for op in loop.walk() if isinstance(op, ops.Select)]
        assert len(selects) == 1 and isinstance(selects[0].parent.parent_op, ops.If)  # type: ignore


# -- what is left alone -------------------------------------------------------------------------

def guarded(mask: str, text: str = LOOP) -> bool:
    """Whether the pass makes a branch of a select by `%mask`."""
    select = "%y = tile.select(%mask, %p, %low) : tensor<64x32xf32>"
    made = parse(text.format(step=32, begin=0, end=32, mask=mask + select))
    for p in parse_pipeline("licm,guard_masks"):
        p.run(made)
    verify(made)
    return any(isinstance(op, ops.If) for op in made.walk())


INDEX = """%j = tile.splat(%i) : tensor<32xi32>
%k = tile.add(%j, %s) : tensor<32xi32>
%u = tile.expand_dims(%k) {axis = 0} : tensor<1x32xi32>
%columns = tile.broadcast(%u) : tensor<64x32xi32>
"""
LIMIT = "%limit = tile.splat(%n) : tensor<64x32xi32>\n"
LESS = '%mask = tile.cmp(%columns, %limit) {predicate = "lt"} : tensor<64x32xi1>\n'


def test_which_masks() -> None:
    assert guarded(INDEX + LIMIT + LESS)
    for predicate in ("eq", "ne"):
        assert not guarded(INDEX + LIMIT + LESS.replace("lt", predicate))
    assert not guarded(INDEX.replace("splat(%i)", "splat(%first)") + LIMIT + LESS)
    scaled = INDEX.replace("%columns =", "%once =") + \
        "%columns = tile.mul(%once, %once) : tensor<64x32xi32>\n"
    assert not guarded(scaled + LIMIT + LESS)


@pytest.mark.parametrize(("load", "made"), [("tile.load(%no, %flag)", False),
                                            ("tile.load(%no, %flag, %zero)", True),
                                            ("tile.load(%no, %flag, %z)", False),
                                            ("tile.load(%no)", True), ("tile.load(%nz)", True),
                                            ("tile.div(%w, %n)", True),
                                            ("tile.rem(%z, %z)", True),
                                            ("tile.hint(%z) {divisibility = [16]}", True),
                                            ("tile.div(%w, %m)", True), ("tile.cast(%g)", True),
                                            ("tile.add(%w, %same)", False),
                                            ("tile.sub(%more, %same)", False)])
def test_no_branch_on_what_may_be_poison(load: str, made: bool) -> None:
    """A select passes poison on, to where perhaps nobody reads it; a branch must not. Divisions by
    zero are copied without it; what a loop carries and what a load gives has no copy."""
    limit = """%no = tile.bitcast(%o) : ptr<i32>
%z = tile.div(%first, %n) : i32
%more = tile.add(%z, %w) : i32
%nz = tile.addptr(%no, %z) : ptr<i32>
%f = tile.cast(%w) : f32
%g = tile.div(%f, %f) : f32
%same = scf.for(%zero, %w, %one, %z) { ^(%turn: i32, %old: i32):
  scf.yield(%old)
} : i32
""" + f"%l = {load} : i32\n%limit = tile.splat(%l) : tensor<64x32xi32>\n"
    assert guarded(INDEX + limit + LESS) == made


@pytest.mark.parametrize(("length", "made"), [(50, True), (2000, False)])
def test_a_long_chain_of_divisions_is_left_alone(length: int, made: bool) -> None:
    steps = [f"%z{n} = tile.div(%z{n - 1}, %z{n - 1}) : i32" for n in range(1, length)]
    chain = "%z0 = tile.div(%first, %n) : i32\n" + "\n".join(steps) + \
        f"\n%limit = tile.splat(%z{length - 1}) : tensor<64x32xi32>\n"
    assert guarded(INDEX + chain + LESS) == made


def test_loops_without_tma_and_small_tiles_stay() -> None:
    by_pointers = LOOP.replace(
        "%a = tile.descriptor_load(%x, %m, %d, %stride, %unit, %zero, %zero)\n"
        "        {{block = [64, 16]}}",
        "%a = tile.constant() {{value = 1.0}}").replace(
        "%b = tile.descriptor_load(%x, %m, %d, %stride, %unit, %d, %zero)\n"
        "        {{block = [32, 16]}}",
        "%b = tile.constant() {{value = 1.0}}")
    assert not guarded(INDEX + LIMIT + LESS, by_pointers)
    small = LOOP.replace("64x32x", "32x32x").replace("64x16x", "32x16x").replace(
        "block = [64", "block = [32").replace("2048", "1024")
    text = (INDEX + LIMIT + LESS).replace("64x32x", "32x32x")
    made = parse(small.format(step=32, begin=0, end=32, mask=text +
                              "%y = tile.select(%mask, %p, %low) : tensor<32x32xf32>"))
    for p in parse_pipeline("licm,guard_masks"):
        p.run(made)
    assert not any(isinstance(op, ops.If) for op in made.walk())


def test_a_long_mask_is_left_alone() -> None:
    steps = [f"%k{n} = tile.and(%k{n - 1}, %k{n - 1}) : tensor<64x32xi1>" for n in range(1, 2000)]
    chain = LESS.replace("%mask", "%k0") + "\n".join(steps) + \
        "\n%mask = tile.not(%k1999) : tensor<64x32xi1>\n"
    assert not guarded(INDEX + LIMIT + chain)


def test_a_remark_names_the_line(rng) -> None:
    args, _ = case(rng, 64, 64, 64)
    with recording() as remarks, tilec.knobs.scope(cache=False):
        masked_attention.warmup(*args, KIND="after", GUARDED="told", grid=(1,), num_warps=4,
                                target="sm_90a")
    found = [r for r in remarks if r.kind == "mask"]
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert [lines[r.loc.line - 1].strip()[:14] for r in found if r.loc] == \
        ["s = tl.where(c", "p = tl.where(r"]
