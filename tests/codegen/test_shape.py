"""Layout conversions and shape ops in the simulator: elements end where they belong."""

import itertools
import math
import re

import numpy as np
import pytest

from tests.codegen.kernels import DTYPES, blocked, compiled, launch, module, pointers, samples
from tilec.codegen.lower import to_llir
from tilec.target import Target

LAYOUTS = {
    "rows": blocked([1, 4], [4, 8], [2, 1], [1, 0]),
    "columns": blocked([4, 1], [8, 4], [1, 2], [0, 1]),
    "wide": blocked([1, 2], [1, 32], [1, 2], [1, 0]),
    "tall": blocked([1, 1], [32, 1], [2, 1], [1, 0]),
    "mma": "nvidia_mma<{version = 2, warpsPerCTA = [2, 1], instrShape = [16, 8]}>",
    "operand": "dot_operand<{parent = nvidia_mma<{version = 2, warpsPerCTA = [2, 1], "
               "instrShape = [16, 8]}>, opIndex = 0, kWidth = 2}>",
}


def kind(shape: tuple[int, ...], dtype: str, layout: str) -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{dtype}, {layout}>"


def moved(op: str, dtype: str, x: np.ndarray, src: str, out_shape: tuple[int, ...], dst: str,
          target: str = "sm_90a") -> np.ndarray:
    """Load x under src, apply `op` to %v, store under dst."""
    body = "\n".join([
        pointers("x", dtype, x.shape, src), pointers("o", dtype, out_shape, dst),
        f"%v = tile.load(%xp) : {kind(x.shape, dtype, src)}",
        f"%r = {op} : {kind(out_shape, dtype, dst)}", "tile.store(%op, %r)"])
    out = np.zeros(out_shape, DTYPES[dtype])
    launch(f"%x: ptr<{dtype}> {{divisibility = 16}}, %o: ptr<{dtype}> {{divisibility = 16}}", body,
           [x, out], 1, 2, target)
    return out


def same(got: np.ndarray, want: np.ndarray) -> None:
    kind_of = f"u{got.itemsize}"
    np.testing.assert_array_equal(got.view(kind_of), np.ascontiguousarray(want).view(kind_of))


SHAPES = [(32, 32), (16, 64), (64, 8), (48, 96), (24, 40), (4, 4)]
PAIRS = list(itertools.permutations(LAYOUTS, 2))


def some(pair: int, shape: int) -> tuple[object, ...]:
    """Every pair of layouts meets two of the shapes; `make test-full` runs all."""
    return () if (shape - pair) % 3 == 0 else (pytest.mark.full,)


@pytest.mark.parametrize("src,dst,shape", [
    pytest.param(*pair, shape, marks=some(i, j))
    for i, pair in enumerate(PAIRS) for j, shape in enumerate(SHAPES)])
@pytest.mark.sample(15)
def test_convert_layout(src: str, dst: str, shape: tuple[int, int]) -> None:
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    same(moved("gpu.convert_layout(%v)", "f32", x, LAYOUTS[src], shape, LAYOUTS[dst]), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pair", [("rows", "columns"), ("wide", "mma"), ("mma", "operand"),
                                  ("tall", "rows")])
def test_convert_all_types(dtype: str, pair: tuple[str, str]) -> None:
    x = samples(dtype, 32 * 32, 1).reshape(32, 32)
    same(moved("gpu.convert_layout(%v)", dtype, x, LAYOUTS[pair[0]], (32, 32), LAYOUTS[pair[1]]), x)


@pytest.mark.parametrize("n", [17, 100, 96])
def test_convert_padded_and_odd(n: int) -> None:
    x = np.arange(n * 8, dtype=np.int16).reshape(8, n)
    same(moved("gpu.convert_layout(%v)", "i16", x, LAYOUTS["rows"], (8, n), LAYOUTS["columns"]), x)


@pytest.mark.parametrize("src_shape,dst_shape", [
    ((16, 32), (512,)), ((512,), (16, 32)), ((8, 64), (64, 8)), ((6, 32), (192,)),
    ((6, 32), (2, 96)), ((96,), (8, 12)), ((100,), (10, 10)), ((4, 4, 8), (16, 8)),
    ((12, 20), (240,)), ((17, 4), (4, 17))])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i1"])
def test_reshape(src_shape: tuple[int, ...], dst_shape: tuple[int, ...], dtype: str) -> None:
    def layout(shape: tuple[int, ...]) -> str:
        n = len(shape)
        return {1: blocked([2], [32], [2], [0]), 2: LAYOUTS["rows"],
                3: blocked([1, 1, 2], [2, 4, 4], [2, 1, 1], [2, 1, 0])}[n]
    x = samples(dtype, math.prod(src_shape), 2).reshape(src_shape)
    got = moved("tile.reshape(%v)", dtype, x, layout(src_shape), dst_shape, layout(dst_shape))
    same(got, x.reshape(dst_shape))


def test_no_code_stores_what_pads_a_tile() -> None:
    """17 rows are held as 32 of which a thread has one of 8: it has three that are inside."""
    layout = LAYOUTS["rows"]
    body = "\n".join([
        pointers("x", "f32", (17, 4), layout),
        f"%v = tile.load(%xp) : {kind((17, 4), 'f32', layout)}",
        f"%r = tile.reshape(%v) : {kind((4, 17), 'f32', layout)}"])
    text = to_llir(module("%x: ptr<f32>", body), Target.parse("sm_90a")).text
    assert len(re.findall(r"store float .* addrspace\(3\)", text)) == 3 * 4


@pytest.mark.parametrize("shape", [(16, 32), (24, 8), (7, 16), (100, 4)])
@pytest.mark.parametrize("name", ["rows", "columns", "wide"])
def test_trans(shape: tuple[int, int], name: str) -> None:
    swapped = {"rows": blocked([4, 1], [8, 4], [1, 2], [0, 1]),
               "columns": blocked([1, 4], [4, 8], [2, 1], [1, 0]),
               "wide": blocked([2, 1], [32, 1], [2, 1], [0, 1])}[name]
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    got = moved("tile.trans(%v) {order = [1, 0]}", "f32", x, LAYOUTS[name], shape[::-1], swapped)
    same(got, x.T)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("src,dst", [((16, 1), (16, 32)), ((1, 24), (8, 24)), ((1, 1), (4, 100))])
def test_broadcast(name: str, src: tuple[int, int], dst: tuple[int, int]) -> None:
    x = np.arange(math.prod(src), dtype=np.float32).reshape(src) + 1
    got = moved("tile.broadcast(%v)", "f32", x, LAYOUTS[name], dst, LAYOUTS[name])
    same(got, np.broadcast_to(x, dst))


def test_broadcasts_compute_once() -> None:
    """exp of a broadcast column is taken once per row, not per element."""
    layout = LAYOUTS["rows"]
    body = "\n".join([
        pointers("x", "f32", (8, 1), layout), pointers("o", "f32", (8, 64), layout),
        f"%v = tile.load(%xp) : {kind((8, 1), 'f32', layout)}",
        f"%b = tile.broadcast(%v) : {kind((8, 64), 'f32', layout)}",
        f"%e = tile.exp2(%b) : {kind((8, 64), 'f32', layout)}", "tile.store(%op, %e)"])
    _, _, ptx = compiled("%x: ptr<f32>, %o: ptr<f32> {divisibility = 16}", body, 2, "sm_90a")
    assert ptx.count("ex2.approx") == 1


@pytest.mark.parametrize("shared", [
    "swizzled_shared<{vec = 4, perPhase = 1, maxPhase = 8, order = [1, 0]}>",
    "swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0, 1]}>",
    "nvmma_shared<{swizzleBytes = 64, transposed = false, elementBits = 32}>"])
@pytest.mark.parametrize("shape", [(32, 32), (16, 96), (48, 32)])
@pytest.mark.parametrize("src,dst", [("rows", "columns"), ("mma", "wide")])
@pytest.mark.sample(5)
def test_shared_buffers(shared: str, shape: tuple[int, int], src: str, dst: str) -> None:
    a, b = LAYOUTS[src], LAYOUTS[dst]
    dims = "x".join(map(str, shape))
    body = "\n".join([
        pointers("x", "f32", shape, a), pointers("o", "f32", shape, b),
        f"%v = tile.load(%xp) : {kind(shape, 'f32', a)}",
        f"%m = gpu.alloc_shared() : memdesc<{dims}xf32, {shared}>",
        "gpu.shared_store(%m, %v)", "gpu.barrier()",
        f"%r = gpu.shared_load(%m) : {kind(shape, 'f32', b)}", "tile.store(%op, %r)"])
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    out = np.zeros_like(x)
    launch("%x: ptr<f32> {divisibility = 16}, %o: ptr<f32> {divisibility = 16}", body, [x, out],
           seed=3)
    same(out, x)


def slice_of(layout: str, dim: int) -> str:
    return f"slice<{{parent = {layout}, dim = {dim}}}>"


PAIRS_AT = {  # where the two elements of a pair lie
    "register": blocked([2, 2], [32, 1], [2, 1], [1, 0]),
    "last register": blocked([4, 1], [32, 1], [2, 1], [1, 0]),
    "lane": blocked([1, 1], [16, 2], [2, 1], [1, 0]),
    "warp": blocked([2, 1], [32, 1], [1, 2], [1, 0])}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", PAIRS_AT)
@pytest.mark.sample(16)
def test_join(where: str, dtype: str) -> None:
    for n in (1, 64, 96, 100):
        layout = PAIRS_AT[where]
        half = slice_of(layout, 1)
        x, y = samples(dtype, n + 20, 3)[-n:], samples(dtype, n + 20, 4)[-n:]
        body = "\n".join([
            *(f"{pointers(name, dtype, (n,), half)}\n"
              f"%{name}v = tile.load(%{name}p) : {kind((n,), dtype, half)}" for name in "xy"),
            pointers("o", dtype, (n, 2), layout),
            f"%r = tile.join(%xv, %yv) : {kind((n, 2), dtype, layout)}", "tile.store(%op, %r)"])
        out = np.zeros((n, 2), DTYPES[dtype])
        launch(f"%x: ptr<{dtype}>, %y: ptr<{dtype}>, %o: ptr<{dtype}>", body, [x, y, out])
        same(out, np.stack([x, y], 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["register", "last register"])
@pytest.mark.sample(8)
def test_split(where: str, dtype: str) -> None:
    half = {"register": blocked([2], [32], [2], [0]), "last register": blocked([4], [32], [2], [0])}
    for n, index in ((1, 1), (64, 0), (96, 1), (300, 1)):
        x = samples(dtype, 2 * n + 20, 5)[-2 * n:].reshape(n, 2)
        got = moved(f"tile.split(%v) {{index = {index}}}", dtype, x, PAIRS_AT[where], (n,),
                    half[where])
        same(got, x[:, index])


def test_halves_in_one_thread_cost_no_instruction() -> None:
    """Elements of two tiles are stored as they were loaded, in turn."""
    layout, half = PAIRS_AT["register"], blocked([2], [32], [2], [0])
    body = "\n".join([
        *(f"{pointers(name, 'f32', (128,), half)}\n"
          f"%{name}v = tile.load(%{name}p) : {kind((128,), 'f32', half)}" for name in "xy"),
        pointers("o", "f32", (128, 2), layout),
        f"%r = tile.join(%xv, %yv) : {kind((128, 2), 'f32', layout)}",
        f"%a = tile.split(%r) {{index = 1}} : {kind((128,), 'f32', half)}",
        f"%b = tile.split(%r) {{index = 0}} : {kind((128,), 'f32', half)}",
        f"%s = tile.join(%a, %b) : {kind((128, 2), 'f32', layout)}", "tile.store(%op, %s)"])
    params = ", ".join(f"%{name}: ptr<f32> {{divisibility = 16}}" for name in "xyo")
    text = compiled(params, body, 2, "sm_90a")[2]
    (x, y), stored = (re.findall(rf"{op}\.global\.v2\.b32 \t.*?{{(.*?)}}", text)
                      for op in ("ld", "st"))
    assert stored == [f"{b}, {a}" for a, b in zip(x.split(", "), y.split(", "), strict=True)]
    assert not re.search(r"[td]\.shared|shfl|selp|bar\.|mov\.b32", text)


def test_a_thread_without_both_picks_one() -> None:
    """A select an element, and no way through memory."""
    layout = PAIRS_AT["lane"]
    half = slice_of(layout, 1)
    body = "\n".join([
        *(f"{pointers(name, 'f32', (128,), half)}\n"
          f"%{name}v = tile.load(%{name}p) : {kind((128,), 'f32', half)}" for name in "xy"),
        pointers("o", "f32", (128, 2), layout),
        f"%r = tile.join(%xv, %yv) : {kind((128, 2), 'f32', layout)}", "tile.store(%op, %r)"])
    text = compiled("%x: ptr<f32>, %y: ptr<f32>, %o: ptr<f32>", body, 2, "sm_90a")[2]
    assert len(re.findall(r"\bselp\.", text)) == 4 and not re.search(r"[td]\.shared|shfl", text)
