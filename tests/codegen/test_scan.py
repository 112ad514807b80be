"""Scans in the simulator: every place that bits of the axis can have, in any order; padding; how
many shuffles and barriers they take."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.codegen.kernels import blocked, compiled, launch, pointers
from tests.codegen.test_reduce import LAYOUTS, combine
from tests.test_scans import scanned
from tilec.ir.fragment import fragment
from tilec.ir.layouts import Blocked, Linear
from tilec.ir.scratch import scan_plan
from tilec.ir.types import Tensor, f32

AFFINE = """{ ^(%a: u32, %b: u32, %c: u32, %d: u32):
  %p = tile.mul(%a, %c) : u32
  %m = tile.mul(%c, %b) : u32
  %q = tile.add(%m, %d) : u32
  scf.yield(%p, %q)
}"""
# One dimension, two or four warps; the bits of the axis from the lowest on.
ONE = {
    "lanes first": "linear<{register = [[32], [64]], lane = [[1], [2], [4], [8], [16]], "
                   "warp = [[128]]}>",
    "warps first": "linear<{register = [[2], [128]], lane = [[4], [8], [16], [32], [64]], "
                   "warp = [[1]]}>",
    "warps twice": "linear<{register = [[2]], lane = [[4], [8], [32], [64], [128]], "
                   "warp = [[1], [16]]}>",
    "lanes reversed": "linear<{register = [[1], [64]], lane = [[32], [16], [8], [4], [2]], "
                      "warp = [[128]]}>",
    "alternating": "linear<{register = [[4], [64]], lane = [[1], [8], [2], [32], [0]], "
                   "warp = [[128], [16]]}>",
    "copies": "linear<{register = [[1], [2]], lane = [[4], [0], [8], [16], [0]], "
              "warp = [[0]]}>",
    "in registers": "linear<{register = [[1], [2], [4], [8], [16]], lane = [[0], [0], [0], [0], "
                    "[0]], warp = [[0]]}>",
}


def affine(layout: str, shape: tuple[int, ...], axis: int, reverse: bool, warps: int) -> None:
    """y[i] = a[i] * y[i - 1] + b[i] modulo 2^32: not commutative, and every element counts."""
    rng = np.random.default_rng(7)
    a, b = (rng.integers(0, 2**32, shape, np.uint32) for _ in range(2))
    kind = f"tensor<{'x'.join(map(str, shape))}xu32, {layout}>"
    body = "\n".join([
        *(pointers(n, "u32", shape, layout) for n in "xyuv"), f"%s = tile.load(%xp) : {kind}",
        f"%t = tile.load(%yp) : {kind}",
        f"%f, %g = tile.scan(%s, %t) {{axis = {axis}, reverse = {str(reverse).lower()}}} {AFFINE} "
        f": {kind}, {kind}", "tile.store(%up, %f)", "tile.store(%vp, %g)"])
    out = [np.full(shape, 0xA5A5A5A5, np.uint32) for _ in range(2)]
    launch(", ".join(f"%{n}: ptr<u32>" for n in "xyuv"), body, [a, b, *out], 1, warps)
    want = scanned(lambda x, y: [x[0] * y[0], y[0] * x[1] + y[1]], [a, b], axis, reverse)
    for got, x in zip(out, want, strict=True):
        np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("n", [32, 100, 256, 192, 40])
@pytest.mark.sample(12)
def test_every_order_of_bits(name: str, n: int, reverse: bool) -> None:
    layout = ONE[name]
    warps = 2 ** len(re.findall(r"\[\d+\]", layout.rpartition("warp")[2]))
    affine(layout, (n,), 0, reverse, warps)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(16, 32), (32, 64), (4, 8), (48, 96), (12, 40), (17, 37)])
@pytest.mark.sample(8)
def test_named_layouts(layout: str, shape: tuple[int, int], axis: int, reverse: bool) -> None:
    affine(LAYOUTS[layout], shape, axis, reverse, 2)


@pytest.mark.parametrize("warps", [1, 4, 16, 32])
def test_numbers_of_warps(warps: int) -> None:
    affine(blocked([2], [32], [warps], [0]), (64 * warps,), 0, True, warps)


@pytest.mark.parametrize("op", ["add", "maximum"])
@pytest.mark.parametrize("reverse", [False, True])
def test_padding_never_counts(op: str, reverse: bool) -> None:
    """Beyond an extent of 100 lie 28 elements, each more than all others once 1000 is added."""
    layout = blocked([2], [32], [2], [0])
    x = np.random.default_rng(1).integers(-99, 0, 100).astype(np.float32)
    kind = f"tensor<100xf32, {layout}>"
    body = "\n".join([
        pointers("x", "f32", (100,), layout), pointers("o", "f32", (100,), layout),
        f"%v = tile.load(%xp) : {kind}", f"%k = tile.constant() {{value = 1000.0}} : {kind}",
        f"%w = tile.add(%v, %k) : {kind}",
        f"%r = tile.scan(%w) {{axis = 0, reverse = {str(reverse).lower()}}} "
        f"{combine(f'tile.{op}', 'f32')} : {kind}", "tile.store(%op, %r)"])
    out = np.zeros(100, np.float32)
    launch("%x: ptr<f32>, %o: ptr<f32>", body, [x, out], 1, 2)
    step = slice(None, None, -1) if reverse else slice(None)
    find = np.add if op == "add" else np.maximum
    np.testing.assert_array_equal(out, find.accumulate(x[step] + 1000)[step])


def counted(layout: str, n: int, warps: int, shape: str = "") -> dict[str, int]:
    dims = shape or f"{n}"
    extents = tuple(map(int, dims.split("x")))
    kind = f"tensor<{dims}xf32, {layout}>"
    body = "\n".join([
        pointers("x", "f32", extents, layout), f"%v = tile.load(%xp) : {kind}",
        f"%r = tile.scan(%v) {{axis = {len(extents) - 1}}} {combine('tile.add', 'f32')} : {kind}",
        "tile.store(%xp, %r)"])
    ptx = compiled("%x: ptr<f32> {divisibility = 16}", body, warps, "sm_90a")[2]
    found = {name: len(re.findall(rf"\s{name}[.\s]", ptx)) for name in
             ("shfl", "bar", "barrier", "add.rn.f32", "st.shared", "ld.shared")}
    return {k: v for k, v in found.items() if v}


def test_what_a_scan_costs() -> None:
    """5 shuffles a block of neighbours in a warp, one barrier, and at most two additions of each
    element and three for each shuffle."""
    within = counted(blocked([1, 4], [1, 32], [2, 1], [1, 0]), 128, 2, "2x128")
    assert within.keys() == {"shfl", "add.rn.f32"} and within["shfl"] == 5
    assert within["add.rn.f32"] <= 3 + 5 * 2 + 4
    across = counted(blocked([4], [32], [4], [0]), 512, 4)
    assert across["shfl"] == 5 and across.get("bar", 0) + across.get("barrier", 0) == 1
    twice = counted(blocked([4], [32], [4], [0]), 1024, 4)
    assert twice["shfl"] == 10 and twice.get("bar", 0) + twice.get("barrier", 0) == 1
    assert counted(ONE["in registers"], 32, 2) == {"add.rn.f32": 31}


# -- the plan -------------------------------------------------------------------------------------

@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(96, 4), (64, 17), (40, 8)])
def test_runs_tell_every_place_along_the_axis_once(shape: tuple[int, int], reverse: bool) -> None:
    """The number that the digits of a thread and register make up is the coordinate."""
    for layout in (Blocked((2, 1), (8, 4), (2, 2), (0, 1)), Blocked((1, 2), (4, 8), (4, 1), (1, 0)),
                   Linear(((2, 0), (0, 1)), ((1, 0), (8, 0), (0, 2), (0, 4), (0, 8)),
                          ((4, 0), (0, 0)))):
        frag, plan = fragment(shape, layout), scan_plan(Tensor(shape, f32, layout), 0, reverse)
        size = frag.odd[0] * frag.pow2[0]
        assert np.prod([run.size for run in plan.runs]) == size
        for thread in range(0, 128, 5):
            for members in plan.members:
                for j, register in enumerate(members):
                    at, unit, rest = 0, 1, j
                    for run in plan.runs:
                        digit = sum((thread >> b & 1) << k for k, b in enumerate(run.bits))
                        digit = run.size - 1 - digit if reverse else digit
                        if not run.bits:
                            rest, digit = divmod(rest, run.size)
                        at, unit = at + digit * unit, unit * run.size
                    have = frag.coords(register, thread % 32, thread // 32)[0]
                    assert at == (size - 1 - have if reverse else have)
