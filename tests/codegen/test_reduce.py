"""Reductions in the simulator: every layout shape, dtype, odd extents, tuples, NaN."""

import numpy as np
import pytest

from tests.codegen.kernels import DTYPES, blocked, compiled, launch, pointers, samples

LAYOUTS = {
    "rows": blocked([1, 4], [4, 8], [2, 1], [1, 0]),
    "wide": blocked([1, 2], [1, 32], [1, 2], [1, 0]),
    "columns": blocked([2, 2], [8, 4], [2, 1], [0, 1]),
    "spread": blocked([1, 1], [2, 16], [1, 2], [1, 0]),
    "mma": "nvidia_mma<{version = 2, warpsPerCTA = [1, 2], instrShape = [16, 8]}>",
}


def combine(op: str, dtype: str) -> str:
    return (f"{{ ^(%l: {dtype}, %r: {dtype}):\n%c = {op}(%l, %r) : {dtype}\n"
            "scf.yield(%c)\n}")


def reduce(op: str, dtype: str, x: np.ndarray, layout: str, axis: int, warps: int = 2,
           target: str = "sm_90a") -> np.ndarray:
    shape = x.shape
    dims = "x".join(map(str, shape))
    body = [pointers("x", dtype, shape, layout),
            f"%v = tile.load(%xp) : tensor<{dims}x{dtype}, {layout}>"]
    rest = shape[:axis] + shape[axis + 1:]
    if rest:
        sliced = f"slice<{{parent = {layout}, dim = {axis}}}>"
        kind = f"tensor<{'x'.join(map(str, rest))}x{dtype}, {sliced}>"
        body.append(pointers("o", dtype, rest, sliced))
        target_name = "op"
    else:
        kind, target_name = dtype, "o"
    body += [f"%r = tile.reduce(%v) {{axis = {axis}}} {combine(op, dtype)} : {kind}",
             f"tile.store(%{target_name}, %r)"]
    out = np.zeros(rest, DTYPES[dtype])
    launch(f"%x: ptr<{dtype}> {{divisibility = 16}}, %o: ptr<{dtype}>", "\n".join(body),
           [x, out if rest else out.reshape(1)], 1, warps, target)
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(16, 32), (32, 64), (4, 8), (48, 96), (12, 40), (17, 37)])
def test_sum_over_layouts(layout: str, axis: int, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).integers(-9, 9, shape).astype(np.float32)
    got = reduce("tile.add", "f32", x, LAYOUTS[layout], axis)
    np.testing.assert_array_equal(got, x.sum(axis))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d[:2] != "f8"])
@pytest.mark.parametrize("name", ["maximum", "minimum"])
@pytest.mark.parametrize("layout", ["rows", "wide"])
def test_extrema_of_all_types(dtype: str, name: str, layout: str) -> None:
    x = samples(dtype, 16 * 64, 3).reshape(16, 64)
    got = reduce(f"tile.{name}", dtype, x, LAYOUTS[layout], 1)
    find = np.fmax if name == "maximum" else np.fmin
    if x.dtype == bool:
        find = np.logical_or if name == "maximum" else np.logical_and
    with np.errstate(all="ignore"):
        wide = x if x.dtype.kind in "iub" else x.astype(np.float64)
        np.testing.assert_array_equal(got.astype(wide.dtype), find.reduce(wide, axis=1))


@pytest.mark.parametrize("n", [1, 2, 32, 100, 128, 1000, 1024, 4096])
@pytest.mark.parametrize("op", ["add", "maximum", "and", "xor", "minimum", "or", "mul"])
@pytest.mark.parametrize("dtype", ["i32", "u32"])
def test_whole_row_of_integers(n: int, op: str, dtype: str) -> None:
    x = np.random.default_rng(2).integers(-2**31, 2**31, n).astype(DTYPES[dtype])
    got = reduce(f"tile.{op}", dtype, x, blocked([4], [32], [4], [0]), 0, 4)
    find = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum, "and": np.bitwise_and,
            "or": np.bitwise_or, "xor": np.bitwise_xor, "mul": np.multiply}[op]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, find.reduce(x, dtype=x.dtype))


@pytest.mark.parametrize("op", ["add", "mul", "maximum", "minimum"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "i8", "i64"])
@pytest.mark.parametrize("n", [100, 1000])
def test_padding_never_counts(op: str, dtype: str, n: int) -> None:
    x = np.ones(n, DTYPES[dtype])
    x[::7] = 2 if op == "minimum" else 1
    if op in ("maximum", "minimum"):
        x = (-x if op == "maximum" else x).astype(x.dtype)
    got = reduce(f"tile.{op}", dtype, x, blocked([2], [32], [2], [0]), 0)
    want = {"add": n, "mul": 1, "maximum": -1, "minimum": 1}[op]
    rounded = 8 if dtype == "bf16" else 0
    with np.errstate(all="ignore"):
        assert abs(float(got) - float(np.array(want).astype(x.dtype))) <= rounded


def test_row_of_nans_stays_nan_and_one_number_wins() -> None:
    x = np.full((4, 100), np.nan, np.float32)
    x[1, 57] = -3.0
    got = reduce("tile.maximum", "f32", x, LAYOUTS["spread"], 1)
    np.testing.assert_array_equal(got, [np.nan, -3.0, np.nan, np.nan])


@pytest.mark.parametrize("layout", ["rows", "wide", "columns", "spread"])
@pytest.mark.parametrize("shape", [(16, 64), (8, 100), (8, 24)])
def test_argmax_is_a_pair(layout: str, shape: tuple[int, int]) -> None:
    m, n = shape
    kind = LAYOUTS[layout]
    sliced = f"slice<{{parent = {kind}, dim = 1}}>"
    x = np.random.default_rng(4).integers(0, 9, shape).astype(np.float32)
    body = "\n".join([
        pointers("x", "f32", shape, kind), pointers("o", "i32", (m,), sliced),
        f"%v = tile.load(%xp) : tensor<{m}x{n}xf32, {kind}>",
        f"%j = tile.arange() {{start = 0, end = {n}}} : tensor<{n}xi32, slice<{{parent = {kind}, "
        "dim = 0}>>",
        f"%je = tile.expand_dims(%j) {{axis = 0}} : tensor<1x{n}xi32, {kind}>",
        f"%jb = tile.broadcast(%je) : tensor<{m}x{n}xi32, {kind}>",
        "%r, %i = tile.reduce(%v, %jb) {axis = 1} { ^(%a: f32, %p: i32, %b: f32, %q: i32):",
        '%gt = tile.cmp(%a, %b) {predicate = "gt"} : i1',
        '%eq = tile.cmp(%a, %b) {predicate = "eq"} : i1',
        '%lt = tile.cmp(%p, %q) {predicate = "lt"} : i1',
        "%tie = tile.and(%eq, %lt) : i1", "%take = tile.or(%gt, %tie) : i1",
        "%b0 = tile.select(%take, %a, %b) : f32", "%b1 = tile.select(%take, %p, %q) : i32",
        f"scf.yield(%b0, %b1)\n}} : tensor<{m}xf32, {sliced}>, tensor<{m}xi32, {sliced}>",
        "tile.store(%op, %i)"])
    out = np.zeros(m, np.int32)
    launch("%x: ptr<f32> {divisibility = 16}, %o: ptr<i32>", body, [x, out])
    np.testing.assert_array_equal(out, x.argmax(1))


def test_region_with_a_branch_and_a_captured_scalar() -> None:
    kind = blocked([4], [32], [2], [0])
    x = np.random.default_rng(5).integers(-50, 50, 512).astype(np.int32)
    body = "\n".join([
        pointers("x", "i32", (512,), kind),
        f"%v = tile.load(%xp) : tensor<512xi32, {kind}>",
        "%r = tile.reduce(%v) {axis = 0} { ^(%a: i32, %b: i32):",
        '%c = tile.cmp(%a, %b) {predicate = "gt"} : i1',
        "%s = scf.if(%c) {\nscf.yield(%a)\n}, {\nscf.yield(%b)\n} : i32",
        "%m = tile.maximum(%s, %low) : i32", "scf.yield(%m)\n} : i32", "tile.store(%o, %r)"])
    for low in (7, 90):
        out = np.zeros(1, np.int32)
        launch("%x: ptr<i32>, %o: ptr<i32>, %low: i32", body, [x, out, low])
        assert out[0] == max(x.max(), low)


def test_warp_reduction_needs_no_shared_memory_and_one_instruction() -> None:
    kind = LAYOUTS["rows"].replace("[4, 8]", "[1, 32]")
    sliced = f"slice<{{parent = {kind}, dim = 1}}>"
    body = "\n".join([
        pointers("x", "i32", (4, 128), kind), pointers("o", "i32", (4,), sliced),
        f"%v = tile.load(%xp) : tensor<4x128xi32, {kind}>",
        f"%r = tile.reduce(%v) {{axis = 1}} {combine('tile.add', 'i32')} : "
        f"tensor<4xi32, {sliced}>", "tile.store(%op, %r)"])
    llir, _, ptx = compiled("%x: ptr<i32> {divisibility = 16}, %o: ptr<i32>", body, 2, "sm_90a")
    assert llir.shared_bytes == 0
    assert "redux.sync.add" in ptx and "shfl" not in ptx and "shared" not in ptx.split("{", 1)[1]
