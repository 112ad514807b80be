"""Products of blocks that TMA brings and wgmma multiplies, from plain loops of tile IR: right at
every level, whatever the shapes, stages and schedules."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec.compiler import compile_from
from tilec.ir import ops
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.ir.remarks import recording
from tilec.ir.tensor_maps import recipes
from tilec.ir.verifier import verify
from tilec.knobs import RUN_LEVELS
from tilec.passes.nest import Nest
from tilec.passes.rewrite_descriptors import RewriteDescriptors
from tilec.runtime.host import order_arguments
from tilec.runtime.maps import _overlap, makers
from tilec.runtime.text import TextKernel
from tilec.target import Target

DTYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "i8": np.int8,
                          "f8e4m3": ml_dtypes.float8_e4m3fn}
LEVELS = RUN_LEVELS[1:]


def product(block: tuple[int, int, int] = (64, 64, 64), element: str = "bf16", b: str = "kn",
            warps: int = 4, stages: int = 3, loop: str = "", target: str = "sm_90a") -> Module:
    """c = a @ b. b: how it lies in memory. loop: "" for a program a tile, "nest" for a loop over
    tiles, "flat" for one that asks to be flattened."""
    bm, bn, bk = block
    total, zero = ("i32", "0") if element == "i8" else ("f32", "0.0")
    sb, lb = (("%k", "%n", "%nl"), "%kk, %rn") if b == "kn" else (("%n", "%k", "%kl"), "%rn, %kk")
    bb = (bk, bn) if b == "kn" else (bn, bk)
    load = f"%y0 = tile.descriptor_load(%b, {sb[0]}, {sb[1]}, {sb[2]}, %one, {lb}) " \
        f"{{block = [{bb[0]}, {bb[1]}]}} : tensor<{bb[0]}x{bb[1]}x{element}>"
    turn = "" if b == "kn" else \
        f"%y = tile.trans(%y0) {{order = [1, 0]}} : tensor<{bk}x{bn}x{element}>"
    right = "%y0" if b == "kn" else "%y"
    tile = f"""
      %tm = tile.div(%t, %ntiles) : i32
      %tn = tile.rem(%t, %ntiles) : i32
      %rm = tile.mul(%tm, %bm) : i32
      %rn = tile.mul(%tn, %bn) : i32
      %acc = scf.for(%c0, %k, %bk, %zero) {{ ^(%kk: i32, %sum: tensor<{bm}x{bn}x{total}>):
        %x = tile.descriptor_load(%a, %m, %k, %kl, %one, %rm, %kk) {{block = [{bm}, {bk}]}} \
: tensor<{bm}x{bk}x{element}>
        {load}
        {turn}
        %s = tile.dot(%x, {right}, %sum) : tensor<{bm}x{bn}x{total}>
        scf.yield(%s)
      }} : tensor<{bm}x{bn}x{total}>
      tile.descriptor_store(%c, %acc, %m, %n, %nl, %one, %rm, %rn) {{block = [{bm}, {bn}]}}
"""
    if loop:
        flat = " {flatten = true}" if loop == "flat" else ""
        tile = f"scf.for(%pid, %tiles, %grid){flat} {{ ^(%t: i32):\n{tile}scf.yield()\n}}"
    else:
        tile = tile.replace("%t,", "%pid,")
    text = f"""
module attributes {{level = "tile", target = "{target}", num_warps = {warps}, \
num_stages = {stages}}} {{
  func @product(%a: ptr<{element}> {{divisibility = 16}}, \
%b: ptr<{element}> {{divisibility = 16}}, %c: ptr<{total}> {{divisibility = 16}}, \
%m: i32, %n: i32 {{divisibility = 16}}, \
%k: i32 {{divisibility = 16}}) {{
    %c0 = tile.constant() {{value = 0}} : i32
    %one = tile.constant() {{value = 1}} : i64
    %bm = tile.constant() {{value = {bm}}} : i32
    %bn = tile.constant() {{value = {bn}}} : i32
    %bk = tile.constant() {{value = {bk}}} : i32
    %lm = tile.constant() {{value = {bm - 1}}} : i32
    %ln = tile.constant() {{value = {bn - 1}}} : i32
    %zero = tile.constant() {{value = {zero}}} : tensor<{bm}x{bn}x{total}>
    %kl = tile.cast(%k) : i64
    %nl = tile.cast(%n) : i64
    %mu = tile.add(%m, %lm) : i32
    %nu = tile.add(%n, %ln) : i32
    %mtiles = tile.div(%mu, %bm) : i32
    %ntiles = tile.div(%nu, %bn) : i32
    %tiles = tile.mul(%mtiles, %ntiles) : i32
    %pid = tile.program_id() {{axis = 0}} : i32
    %grid = tile.num_programs() {{axis = 0}} : i32
    {tile}
    func.return()
  }}
}}"""
    module = parse(text)
    verify(module)
    return module


def operands(rng: np.random.Generator, shape: tuple[int, int, int], element: str, b: str
             ) -> list[Any]:
    m, n, k = shape
    t = DTYPES[element]
    made = [rng.integers(-128, 127, s, np.int8, endpoint=True) if element == "i8" else
            rng.standard_normal(s).astype(t) for s in ((m, k), (k, n) if b == "kn" else (n, k))]
    c = np.zeros((m, n), np.int32 if element == "i8" else np.float32)
    c.view(np.uint8)[...] = 0xA5
    return [*made, c, m, n, k]


def check(module: Module, shape: tuple[int, int, int], element: str, b: str, grid: int,
          rng: np.random.Generator, levels: tuple[str, ...] = LEVELS) -> list[np.ndarray]:
    """Run at the levels, compare with float64, and give the results."""
    kernel, results = TextKernel(module), []
    args = operands(rng, shape, element, b)
    x, y = (v.astype(np.float64) for v in args[:2])
    y = y if b == "kn" else y.T
    rough = 0.0 if element == "i8" else 2.0**-20
    for seed, level in enumerate(levels):
        mine = [v.copy() if isinstance(v, np.ndarray) else v for v in args]
        kernel.run(mine, (grid,), level, seed)
        error = np.abs(mine[2].astype(np.float64) - x @ y)
        assert (error <= rough * (np.abs(x) @ np.abs(y))).all(), (level, seed, error.max())
        results.append(mine[2])
    return results


def kinds(module: Module) -> dict[str, int]:
    """How many of each op there are at the lowered level."""
    module = module.clone()
    compile_from(module, Target.parse("sm_90a"), "lowered")
    found: dict[str, int] = {}
    for op in module.walk():
        found[op.name] = found.get(op.name, 0) + 1
    return found


CASES = [
    # block, element, b, warps, stages, loop, shape, programs
    ((64, 64, 64), "bf16", "kn", 4, 3, "", (64, 64, 256), 1),
    ((128, 128, 64), "bf16", "kn", 8, 3, "flat", (200, 400, 160), 2),
    ((128, 64, 32), "f16", "nk", 4, 4, "flat", (150, 96, 32), 1),
    ((64, 192, 64), "bf16", "nk", 4, 2, "nest", (100, 400, 208), 3),
    ((64, 96, 32), "f16", "nk", 4, 2, "", (64, 112, 48), 2),
    ((64, 64, 64), "i8", "nk", 4, 3, "flat", (70, 80, 80), 2),
    ((128, 32, 64), "f8e4m3", "nk", 8, 2, "nest", (140, 48, 144), 2),
    ((64, 256, 32), "bf16", "kn", 8, 1, "flat", (64, 272, 96), 1),
    ((128, 128, 64), "f16", "kn", 8, 4, "flat", (300, 384, 64), 5),
]


@pytest.mark.parametrize(("block", "element", "b", "warps", "stages", "loop", "shape", "programs"),
                         CASES)
@pytest.mark.sample(3)
def test_products(block, element, b, warps, stages, loop, shape, programs, rng) -> None:
    module = product(block, element, b, warps, stages, loop)
    tiles = -(-shape[0] // block[0]) * -(-shape[1] // block[1])
    check(module, shape, element, b, programs if loop else tiles, rng)
    found = kinds(module)
    assert found["gpu.wgmma"] == 1 and found["gpu.tma_store"] >= 1
    assert found["gpu.tma_load"] == 2 * stages and "tile.load" not in found


def test_stages_and_loops_change_no_bit(rng) -> None:
    state = rng.bit_generator.state
    results = []
    for stages, loop in itertools.product((1, 2, 3, 4), ("", "nest", "flat")):
        rng.bit_generator.state = state
        module = product((64, 64, 64), "bf16", "kn", 4, stages, loop)
        results += check(module, (130, 144, 224), "bf16", "kn", 2 if loop else 9, rng,
                         ("lowered",))
    for got in results:
        assert got.tobytes() == results[0].tobytes()


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("programs", [1, 4, 40])
@pytest.mark.sample(3)
def test_cursor_that_passes_several_tiles(steps, programs, rng) -> None:
    """With fewer steps a tile than stages, the first loads belong to several tiles."""
    module = product((64, 32, 64), "bf16", "kn", 4, 4, "flat")
    shape = (190, 96, max(64 * steps, 16))
    if steps == 0:  # no tensor has a dimension of 0: the loop is empty since its bound is
        module = parse(print_module(module).replace("scf.for(%c0, %k,", "scf.for(%c0, %c0,"))
        kernel, args = TextKernel(module), operands(rng, shape, "bf16", "kn")
        kernel.run(args, (programs,), "lowered", 0)
        assert not args[2].any()
        return
    check(module, shape, "bf16", "kn", programs, rng, ("lowered", "ptx"))


def test_what_ptxas_makes_of_it() -> None:
    """No spills, nothing serialised, one group of four products a step, none waited for at once."""
    kernel = TextKernel(product((128, 128, 64), "bf16", "kn", 8, 3, "flat"))
    linked = kernel.compiled.linked
    assert linked is not None and linked.n_spills == linked.stack == 0
    assert "C75" not in linked.log
    text = kernel.sass
    assert text.count("HGMMA") == 4 and "BRA.DIV" not in text and "MEMBAR.ALL.GPU" not in text
    assert "wgmma.wait_group.sync.aligned 1;" in kernel.compiled.ptx


def test_maps_are_made_of_the_arguments() -> None:
    module = product()
    compile_from(module, Target.parse("sm_90a"), "lowered")
    func = module.funcs[0]
    a, b, c = func.arg_attrs[6:]
    assert a == {"base": 0, "extents": ("$3", "$5"), "strides": ("$5", "1")}
    assert b == {"base": 1, "extents": ("$5", "$4"), "strides": ("$4", "1")}
    assert c == {"base": 2, "extents": ("$3", "$4"), "strides": ("$4", "1")}
    again = parse(print_module(module))
    assert again.funcs[0].arg_attrs == func.arg_attrs


@pytest.mark.parametrize("text", [
    "9**9**9", "9 ** 9", "() * 9", "$3 $5", "(1)(2)", "$", "", " ", "-" * 5000 + "1", "9" * 5000,
    "(" * 300 + "1" + ")" * 300, "1 +", "$3 // 2", "v[3]", "$3 * " * 20000 + "1", "__import__"])
def test_extents_are_sums_and_products(text: str) -> None:
    module = product()
    compile_from(module, Target.parse("sm_90a"), "lowered")
    module.funcs[0].arg_attrs[6]["extents"] = (text, "$5")
    with pytest.raises(tilec.LaunchError, match="is no expression over parameters"):
        makers(recipes(module.funcs[0]))


@pytest.mark.parametrize("text", ["$99", "$0", "$6", "$3 * $9999999999"])
def test_extents_are_over_integers(text: str) -> None:
    module = product()
    compile_from(module, Target.parse("sm_90a"), "lowered")
    module.funcs[0].arg_attrs[6]["extents"] = (text, "$5")
    with pytest.raises(tilec.TilecError, match="expected numbers n of integers"):
        verify(module)


def test_extents_without_a_value_are_refused(rng) -> None:
    module = product()
    compile_from(module, Target.parse("sm_90a"), "lowered")
    module.funcs[0].arg_attrs[6]["extents"] = ("64 % ($3 - $3)", "$5")
    with pytest.raises(tilec.LaunchError, match="has no value"):
        TextKernel(module).run(operands(rng, (64, 64, 64), "bf16", "kn"), (1,), "ptx", 0)


@tilec.jit
def again(x, w, y, held, out, times):
    """y = x @ w, so many times; out: what `held` had before the last one."""
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    for _ in tl.range(0, times):
        found = tl.load(held + at)
        acc = tl.zeros((64, 64), tl.float32)
        for k in tl.range(0, x.shape[1], x.block_shape[1]):
            acc = tl.dot(x.load([0, k]), w.load([k, 0]), acc)
        y.store([0, 0], acc.to(tl.float16))
        tl.store(out + at, found)


def _again(rng, **same: str) -> tuple[Any, list[Any], dict[str, Any]]:
    x, w, held = (rng.integers(-2, 3, (64, 64)).astype(np.float16) for _ in range(3))
    arrays = {"x": x, "w": w, "y": np.full_like(x, np.nan), "held": held,
              "out": np.full_like(x, np.nan)}
    for name, other in same.items():
        arrays[name] = arrays[other]
    args = [tilec.TensorDescriptor.from_tensor(arrays[n], (64, 64)) for n in "xwy"]
    args += [arrays["held"], arrays["out"], 2]
    made = again.warmup(*args, grid=(1,), num_warps=4, target="sm_90a")
    assert "gpu.tma_load" in made.asm["gpu"] and "gpu.tma_store" in made.asm["gpu"]
    return made, args, arrays


@pytest.mark.parametrize(("name", "other", "of"), [("y", "x", "x"), ("out", "w", "w"),
                                                   ("held", "y", "y"), ("out", "y", "y")])
def test_one_buffer_as_two_arguments_where_tma_keeps_no_order(name, other, of, rng) -> None:
    made, args, arrays = _again(rng, **{name: other})
    before = {n: a.copy() for n, a in arrays.items()}
    for level in ("tile", *LEVELS):
        with pytest.raises(tilec.LaunchError, match="overlap"):
            made.run(args, (1,), level)
        for n, a in arrays.items():
            np.testing.assert_array_equal(a, before[n])
    maker = next(m for m in makers(made.maps) if m.name == of)
    values: list[Any] = [64] * 40  # extents, strides and addresses
    values[maker.base] = 4096
    for index, _, _ in maker.others:
        values[index] = 4096 + 64 * 64 * 2 - 2
    with pytest.raises(tilec.LaunchError, match="overlap"):
        maker.on_device(values, (1, 1, 1))
    if name == "y":  # the meaning of it, by the interpreter
        tilec.interp.run(made.upper.modules["tile"], "again", order_arguments(made, args), (1,))
        once = (before["x"].astype(np.float32) @ before["w"].astype(np.float32)).astype(np.float16)
        want = once.astype(np.float32) @ before["w"].astype(np.float32)
        np.testing.assert_array_equal(arrays["y"], want.astype(np.float16))


@tilec.jit
def wide(x_ptr, w, y, m, n):
    """The tensor has m * n rows, as many as 32 bits hold of them."""
    x = tl.make_tensor_descriptor(x_ptr, [m * n, 64], [64, 1], [64, 32])
    acc = tl.zeros((64, 64), tl.float32)
    for k in tl.range(0, w.shape[0], 32):
        acc = tl.dot(x.load([64, k]), w.load([k, 0]), acc)
    y.store([0, 0], acc)


def test_extents_that_wrap_are_refused(rng) -> None:
    x, w = (rng.integers(-2, 3, (rows, 64)).astype(np.float16) for rows in (100, 64))
    y, want = np.empty((64, 64), np.float32), np.zeros((64, 64), np.float32)
    want[:36] = x[64:].astype(np.float32) @ w.astype(np.float32)
    blocks = [tilec.TensorDescriptor.from_tensor(a, b) for a, b in ((w, (32, 64)), (y, (64, 64)))]
    made = wide.warmup(x, *blocks, 50, 2, grid=(1,), num_warps=4, target="sm_90a")
    assert "gpu.tma_load" in made.asm["gpu"]
    for level in LEVELS:
        y[...] = np.nan
        made.run([x, *blocks, 50, 2], (1,), level)
        np.testing.assert_array_equal(y, want)
        for m, n in ((1 << 16, 1 << 15), ((1 << 16) + 1, 1 << 16)):
            with pytest.raises(tilec.LaunchError, match=rf"a tensor of shape \({m * n}, 64\)"):
                made.run([x, *blocks, m, n], (1,), level)


@tilec.jit
def apart(x_ptr, w, y, a, b):
    """Rows are a * b elements apart, computed in 32 bits."""
    x = tl.make_tensor_descriptor(x_ptr, [64, 64], [a * b, 1], [64, 32])
    acc = tl.zeros((64, 64), tl.float32)
    for k in tl.range(0, w.shape[0], 32):
        acc = tl.dot(x.load([0, k]), w.load([k, 0]), acc)
    y.store([0, 0], acc)


def test_strides_wrap_before_they_are_widened(rng) -> None:
    x, w = (rng.integers(-2, 3, (64, cols)).astype(np.float16) for cols in (128, 64))
    y = np.empty((64, 64), np.float32)
    blocks = [tilec.TensorDescriptor.from_tensor(a, b) for a, b in ((w, (32, 64)), (y, (64, 64)))]
    made = apart.warmup(x, *blocks, 3, 128, grid=(1,), num_warps=4, target="sm_90a")
    assert "gpu.tma_load" in made.asm["gpu"]
    for level in ("tile", *LEVELS):
        for a, b in ((1, 128), (3, (2**32 + 128) // 3), (-1, -128)):
            y[...] = np.nan
            made.run([x, *blocks, a, b], (1,), level)
            np.testing.assert_array_equal(y, x[:, :64].astype(np.float32) @ w)
    with pytest.raises(tilec.LaunchError, match=r"strides \(-2147483648, 1\)"):
        made.run([x, *blocks, 2, 1 << 30], (1,), "ptx")


@tilec.jit
def halve(x, half, y):
    """y = x @ half, block by block."""
    for i in tl.range(0, y.shape[0], 64):
        acc = tl.zeros((64, 64), tl.float32)
        for k in tl.range(0, x.shape[1], 32):
            acc = tl.dot(x.load([i, k]), half.load([k, 0]), acc)
        y.store([i, 0], acc.to(tl.float16))


def _halve(x: np.ndarray, y: np.ndarray, level: str) -> None:
    half = (np.eye(64) / 2).astype(np.float16)
    args = [tilec.TensorDescriptor(a, a.shape, (a.strides[0] // 2, 1), block)
            for a, block in ((x, (64, 32)), (half, (32, 64)), (y, (64, 64)))]
    made = halve.warmup(*args, grid=(1,), num_warps=4, target="sm_90a")
    assert "gpu.tma_load" in made.asm["gpu"] and "gpu.tma_store" in made.asm["gpu"]
    made.run(args, (1,), level)


@pytest.mark.parametrize("level", LEVELS)
def test_arguments_that_overlap_in_part_are_refused(level, rng) -> None:
    start = rng.integers(-4, 5, (320, 64)).astype(np.float16)
    for low, high in ((slice(0, 256), slice(64, 320)), (slice(64, 320), slice(0, 256))):
        x = start.copy()
        with pytest.raises(tilec.LaunchError, match=r"`\w` and `\w` overlap"):
            _halve(x[low], x[high], level)
        np.testing.assert_array_equal(x, start)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("first", "second"), [(0, 64), (64, 0), (32, 128)])
def test_columns_of_one_array_do_not_overlap(level, first, second, rng) -> None:
    packed = rng.integers(-4, 5, (130, 192)).astype(np.float16)
    want = packed.copy()
    want[:, second:second + 64] = packed[:, first:first + 64] / 2
    _halve(packed[:, first:first + 64], packed[:, second:second + 64], level)
    np.testing.assert_array_equal(packed, want)


@tilec.jit
def halve_heads(x, half, y_ptr, pitch):
    """Each head of x times half, to the columns that begin at y_ptr."""
    i, j = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    for head in tl.range(0, x.shape[0]):
        acc = tl.zeros((64, 64), tl.float32)
        for k in tl.range(0, 64, 32):
            acc = tl.dot(x.load([head, 0, k]).reshape(64, 32), half.load([k, 0]), acc)
        tl.store(y_ptr + i * pitch + head * 64 + j, acc.to(tl.float16))


@pytest.mark.parametrize("level", LEVELS)
def test_columns_by_pointers_beside_the_tensor_do_not_overlap(level, rng) -> None:
    packed = rng.integers(-4, 5, (64, 256)).astype(np.float16)
    half = tilec.TensorDescriptor.from_tensor((np.eye(64) / 2).astype(np.float16), (32, 64))
    x = tilec.TensorDescriptor(packed, (2, 64, 64), (64, 256, 1), (1, 64, 32))
    made = halve_heads.warmup(x, half, packed, 256, grid=(1,), num_warps=4, target="sm_90a")
    assert "gpu.tma_load" in made.asm["gpu"]
    want = packed.copy()
    want[:, 128:] = packed[:, :128] / 2
    for inside in (packed[:, 64:], packed[1:]):
        with pytest.raises(tilec.LaunchError, match="`x` and `y_ptr` overlap"):
            made.run([x, half, inside, 256], (1,), level)
    made.run([x, half, packed[:, 128:], 256], (1,), level)
    np.testing.assert_array_equal(packed, want)


def test_overlaps_are_those_of_bytes(rng) -> None:
    """None is missed; columns side by side, of any number of dimensions, are told apart."""
    def covered(start, extents, strides, size):
        at = start + size * (np.indices(extents).reshape(len(extents), -1).T @ strides)
        return {int(a) + byte for a in at for byte in range(size)}

    for _ in range(2000):
        two = [(int(rng.integers(0, 100)), rng.integers(1, 5, rank).tolist(),
                [*rng.choice([0, 1, 2, 3, 4, 8, 16, 24], rank - 1).tolist(), 1],
                int(rng.choice([1, 2, 4]))) for rank in rng.integers(1, 4, 2)]
        (a, *tensor, size), (b, *other, other_size) = two
        if covered(*two[0]) & covered(*two[1]):
            assert _overlap(a, tensor, size, b, other, other_size)
    heads = (4, 64, 16), (16, 192, 1)  # 64 of an array's 192 columns
    for first in range(0, 192, 16):
        apart = 64 <= first <= 128
        assert _overlap(0, heads, 2, 2 * first, heads, 2) != apart
        assert _overlap(0, heads, 2, 2 * first, ((64, 64), (192, 1)), 2) != apart


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("same", [{}, {"w": "x"}, {"held": "x"}, {"out": "held"}])
def test_one_buffer_as_two_arguments_in_order(level, same, rng) -> None:
    made, args, arrays = _again(rng, **same)
    want = arrays["x"].astype(np.float32) @ arrays["w"].astype(np.float32)
    held = arrays["held"].copy()
    made.run(args, (1,), level, seed=1)
    np.testing.assert_array_equal(arrays["y"], want.astype(np.float16))
    np.testing.assert_array_equal(arrays["out"], held)


def test_tensors_that_tma_cannot_serve_are_refused(rng) -> None:
    kernel = TextKernel(product())
    args = operands(rng, (64, 64, 64), "bf16", "kn")
    args[5] = 0  # an extent
    with pytest.raises(tilec.TilecError, match="extents"):
        kernel.run(args, (1,), "ptx", 0)


def test_other_targets_and_tensors_use_pointers() -> None:
    for change in (("sm_90a", "sm_80"), ("{divisibility = 16}, %b", ", %b"),
                   ("%n: i32 {divisibility = 16}", "%n: i32")):
        text = print_module(product())
        assert change[0] in text
        module = parse(text.replace(*change))
        RewriteDescriptors().run(module)
        compile_from(module, Target.parse("sm_90a"), "lowered")
        assert not any(isinstance(op, (ops.TmaOp, ops.DescriptorOp)) for op in module.walk())


@tilec.jit
def staged(a, b, c, bias_ptr, BLOCK: tl.constexpr):
    """A pipelined outer loop, whose pointers are loaded beside what TMA brings, and a place that is
    computed between the loads."""
    BM: tl.constexpr = a.block_shape[0]
    BK: tl.constexpr = a.block_shape[1]
    BN: tl.constexpr = c.block_shape[1]
    for j in tl.range(0, c.shape[1], BN, num_stages=3):
        bias = tl.load(bias_ptr + j + tl.arange(0, BLOCK))
        acc = tl.zeros((BM, BN), tl.float32)
        for k in tl.range(0, a.shape[1], BK):
            x = a.load([0, k])
            at = k + 0 * BK
            acc = tl.dot(x, b.load([at, j]), acc)
        c.store([0, j], acc + bias[None, :])


@pytest.mark.parametrize("stages", [1, 2])
def test_loads_beside_pointers(stages, rng) -> None:
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((64, 96), (96, 128)))
    bias = rng.standard_normal(128).astype(np.float32)
    d = tilec.TensorDescriptor.from_tensor
    want = a.astype(float) @ b.astype(float) + bias
    for level in ("tile", *LEVELS):
        c = np.full((64, 128), np.nan, np.float32)
        args = (d(a, (64, 32)), d(b, (32, 64)), d(c, (64, 64)), bias)
        made = staged.warmup(*args, grid=(1,), BLOCK=64, num_warps=4, num_stages=stages,
                             target="sm_90a")
        assert "gpu.wgmma(" in made.asm["gpu"]
        made.run(args, (1,), level, seed=stages)
        np.testing.assert_allclose(c, want, 1e-4, 1e-4, err_msg=level)


@pytest.mark.parametrize(("change", "reason"), [
    ({"target": "sm_100a"}, "the target is sm_100a, not sm_90a"),
    ({"warps": 2}, "there are 2 warps, expected a multiple of 4"),
    ({"block": (32, 64, 64)}, "the result is [32, 64], expected rows in multiples of 64"),
    ({"element": "f8e4m3", "b": "kn"}, "operand b has 8 bits and is not contiguous along k"),
    ({"block": (64, 64, 8)}, "k is 8, expected a multiple of 16")])
def test_a_remark_says_why_not(change: dict[str, Any], reason: str) -> None:
    module = product(**change)
    with recording() as remarks:
        RewriteDescriptors().run(module)
    said = [r.message for r in remarks if r.kind == "tma"]
    assert len(said) == 3 and said[0].endswith(f"its dot is not for wgmma: {reason}"), said


@pytest.mark.parametrize(("place", "reason"), [
    ("%both", ""), ("%turn", "a block's place depends on more than both indices"),
    ("%read", "a block's place depends on more than both indices")])
def test_cursors_follow_indices_alone(place: str, reason: str) -> None:
    """Not what the inner loop carries, nor what it loads."""
    module = parse("""module { func @f(%p: ptr<i32>, %n: i32, %s: i32) {
      scf.for(%s, %n, %s) { ^(%i: i32):
        %last = scf.for(%s, %n, %s, %s) { ^(%k: i32, %turn: i32):
          %both = tile.add(%i, %k) : i32
          %read = tile.load(%p) : i32
          %next = tile.sub(%n, %turn) : i32
          scf.yield(%next) } : i32
        tile.store(%p, %last)
        scf.yield() }
      func.return() } }""")
    inner = [op for op in module.walk() if isinstance(op, ops.For)][1]
    values = [*inner.body.args, *(r for op in inner.body for r in op.results)]
    found = Nest(inner, [v for v in values if f"%{v.name}" == place])
    assert found.reason == reason


def test_a_remark_on_a_target_without_tma() -> None:
    with recording() as remarks:
        RewriteDescriptors().run(product(target="sm_80"))
    *_, stored = (r.message for r in remarks if r.kind == "tma")
    assert stored == "this block moves by pointers: the target has no TMA"
