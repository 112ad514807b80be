"""Dots in given layouts, in the simulator: every instruction, small and odd extents, dead k."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.codegen.kernels import DTYPES, TARGETS, blocked, compiled, launch, module, pointers
from tilec.codegen.cubin import link
from tilec.codegen.lower import to_llir
from tilec.errors import CompilationError, IRError
from tilec.ir.conversion import NoOp, Registers, Shared, plan_conversion
from tilec.ir.layouts import DotOperand, Mma
from tilec.target import Target

# operand and accumulator -> instruction
INSTRUCTIONS = {
    ("f16", "f32"): "m16n8k16.row.col.f32.f16.f16.f32",
    ("f16", "f16"): "m16n8k16.row.col.f16.f16.f16.f16",
    ("bf16", "f32"): "m16n8k16.row.col.f32.bf16.bf16.f32",
    ("f8e4m3", "f32"): "m16n8k16.row.col.f32.f16.f16.f32",
    ("f8e5m2", "f16"): "m16n8k16.row.col.f16.f16.f16.f16",
    ("f32", "f32"): "m16n8k8.row.col.f32.tf32.tf32.f32",
    ("i8", "i32"): "m16n8k32.row.col.s32.s8.s8.s32",
    ("f64", "f64"): "m8n8k4.row.col.f64.f64.f64.f64",
}
KINDS = [pytest.param(*kind, id="-".join(kind)) for kind in INSTRUCTIONS]
BLOCKED = blocked([2, 2], [4, 8], [2, 1], [1, 0])
COLUMNS = blocked([4, 1], [8, 4], [1, 2], [0, 1])


def mma(element: str, warps: tuple[int, int] = (2, 1)) -> str:
    m = 8 if element == "f64" else 16
    return f"nvidia_mma<{{version = 2, warpsPerCTA = {list(warps)}, instrShape = [{m}, 8]}}>"


def width(element: str) -> int:
    return max(1, 4 // DTYPES[element].itemsize)


def kernel(element: str, total: str, shape: tuple[int, int, int], parent: str, k_width: int,
           precision: str = "tf32") -> tuple[str, str]:
    """Parameters and body of o = a @ b + c in these layouts."""
    m, n, k = shape
    # Multiply-adds take operands in any layout.
    operands = [BLOCKED, COLUMNS] if parent == BLOCKED else [
        f"dot_operand<{{parent = {parent}, opIndex = {i}, kWidth = {k_width}}}>"
        for i in (0, 1)]
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n), "o": (m, n)}
    layouts = dict(zip("abco", [*operands, parent, parent], strict=True))
    elements = dict(zip("abco", [element, element, total, total], strict=True))
    lines = [pointers(v, elements[v], shapes[v], layouts[v]) for v in "abco"]
    lines += [f"%{v}v = tile.load(%{v}p) : tensor<{'x'.join(map(str, shapes[v]))}x{elements[v]}, "
              f"{layouts[v]}>" for v in "abc"]
    lines += [f'%r = tile.dot(%av, %bv, %cv) {{input_precision = "{precision}"}} : '
              f"tensor<{m}x{n}x{total}, {parent}>", "tile.store(%op, %r)"]
    params = ", ".join(f"%{v}: ptr<{elements[v]}> {{divisibility = 16}}" for v in "abco")
    return params, "\n".join(lines)


def samples(element: str, shape: tuple[int, int], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if element[0] == "i":
        info = np.iinfo(DTYPES[element])
        return rng.integers(info.min, info.max, shape, DTYPES[element], endpoint=True)
    return rng.standard_normal(shape).astype(DTYPES[element])


def check(element: str, total: str, shape: tuple[int, int, int], parent: str, k_width: int,
          precision: str = "tf32", target: str = "sm_90a") -> None:
    m, n, k = shape
    a, b = samples(element, (m, k), 1), samples(element, (k, n), 2)
    c, out = samples(total, (m, n), 3), np.zeros((m, n), DTYPES[total])
    params, body = kernel(element, total, shape, parent, k_width, precision)
    launch(params, body, [a, b, c, out], 1, 2, target)
    if element == "i8":
        want = a.astype(np.int64) @ b.astype(np.int64) + c
        np.testing.assert_array_equal(out, want.astype(np.int32))
        return
    wide = [x.astype(np.float64) for x in (a, b, c)]
    want = wide[0] @ wide[1] + wide[2]
    size = np.abs(wide[0]) @ np.abs(wide[1]) + np.abs(wide[2])
    step = 2.0**-8 if total == "bf16" else 2.0**-50 if total == "f64" else \
        2.0**-10 if total == "f16" or (element, precision) == ("f32", "tf32") else 2.0**-21
    assert (np.abs(out.astype(np.float64) - want) <= step * size).all()


SHAPES = [(32, 16, 32), (16, 8, 64), (48, 40, 96), (8, 8, 16), (24, 12, 48), (17, 3, 33),
          (1, 1, 32), (5, 2, 16)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("element", "total"), KINDS)
@pytest.mark.sample(16)
def test_tensor_cores(element: str, total: str, shape: tuple[int, int, int]) -> None:
    check(element, total, shape, mma(element), width(element))


@pytest.mark.parametrize("shape", [(16, 16, 16), (48, 40, 24), (17, 3, 5), (1, 1, 1), (2, 64, 20)],
                         ids=str)
@pytest.mark.parametrize(("element", "total"), [*KINDS, ("bf16", "bf16")])
@pytest.mark.sample(12)
def test_multiply_adds(element: str, total: str, shape: tuple[int, int, int]) -> None:
    check(element, total, shape, BLOCKED, 1, "ieee")


@pytest.mark.parametrize("shape", [(32, 16, 32), (24, 10, 40)], ids=str)
def test_three_tf32_products_keep_f32(shape: tuple[int, int, int]) -> None:
    check("f32", "f32", shape, mma("f32"), 1, "tf32x3")


def test_three_tf32_products_of_infinity() -> None:
    """inf * x must stay inf: the rest of an infinity is 0, not NaN."""
    params, body = kernel("f32", "f32", (16, 8, 8), mma("f32"), 1, "tf32x3")
    a, b = np.ones((16, 8), np.float32), np.full((8, 8), 2, np.float32)
    a[3, 4], a[5, 1] = np.inf, np.nan
    out = np.zeros((16, 8), np.float32)
    launch(params, body, [a, b, np.zeros_like(out), out])
    want = np.full_like(out, 16)
    want[3], want[5] = np.inf, np.nan
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize(("element", "total", "k_width"), [
    ("f16", "f32", 4), ("bf16", "f32", 8), ("f32", "f32", 2), ("f8e4m3", "f32", 2),
    ("f64", "f64", 2)])
def test_other_orders_of_k(element: str, total: str, k_width: int) -> None:
    check(element, total, (32, 16, 64), mma(element), k_width)


@pytest.mark.parametrize("layout", [mma("f16"), BLOCKED], ids=["mma", "fma"])
@pytest.mark.parametrize("k", [17, 19])
def test_elements_beyond_k_do_not_count(layout: str, k: int) -> None:
    """Constants fill the padding of k too."""
    k_width = 2 if layout == mma("f16") else 1
    a, b = (f"dot_operand<{{parent = {layout}, opIndex = {i}, kWidth = {k_width}}}>"
            for i in (0, 1))
    body = "\n".join([
        pointers("o", "f32", (16, 8), layout),
        f"%a = tile.constant() {{value = 2.0}} : tensor<16x{k}xf16, {a}>",
        f"%b = tile.constant() {{value = 3.0}} : tensor<{k}x8xf16, {b}>",
        f"%c = tile.constant() {{value = 1.0}} : tensor<16x8xf32, {layout}>",
        f"%r = tile.dot(%a, %b, %c) : tensor<16x8xf32, {layout}>", "tile.store(%op, %r)"])
    out = np.zeros((16, 8), np.float32)
    launch("%o: ptr<f32> {divisibility = 16}", body, [out])
    assert (out == 6 * k + 1).all()


def test_integers_wrap() -> None:
    params, body = kernel("i8", "i32", (16, 8, 32), mma("i8"), 4)
    a, b = np.full((16, 32), -128, np.int8), np.full((32, 8), -128, np.int8)
    c = np.full((16, 8), 2**31 - 1, np.int32)
    out = np.zeros_like(c)
    launch(params, body, [a, b, c, out])
    assert (out == np.int32(32 * 128 * 128 - 2**31 - 1)).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("element", "total"), KINDS)
@pytest.mark.sample(10)
def test_instruction_links(element: str, total: str, target: str) -> None:
    params, body = kernel(element, total, (32, 16, 64), mma(element), width(element))
    llir, _, ptx = compiled(params, body, 2, target)
    name = "mma.sync.aligned." + INSTRUCTIONS[element, total]
    # A warp's 16 rows by 16 columns; for f64 two blocks of rows.
    count = {"f64": 2 * 2 * 16, "f32": 2 * 8, "i8": 2 * 2}.get(element, 2 * 4)
    assert len(re.findall(rf"\b{re.escape(name)}\b", ptx)) == count
    # LLVM must not move it into a branch that some lanes skip.
    calls = [line for line in llir.text.splitlines() if "mma.sync" in line]
    assert all("convergent" in line and "sideeffect" not in line for line in calls)
    assert ("cvt.rna.tf32.f32" in ptx) == (element == "f32")
    assert link(ptx, Target.parse(target), name="k").cubin


def test_f16_is_multiplied_by_the_fma_path_in_f32() -> None:
    params, body = kernel("f16", "f16", (16, 16, 8), BLOCKED, 1)
    _, _, ptx = compiled(params, body, 2, "sm_90a")
    assert "mma" not in ptx and "fma.rn.f32" in ptx and "fma.rn.f16" not in ptx


def test_result_as_operand_stays_in_registers() -> None:
    """The result of a dot is operand A of the next, as it is or with registers renamed."""
    parent = Mma(2, (4, 1), (16, 8))
    for bits, k_width in ((8, 2), (16, 2), (32, 2)):
        src, dst = (x.to_linear((64, 64)) for x in (parent, DotOperand(parent, 0, k_width)))
        assert isinstance(plan_conversion(src, dst, bits), NoOp | Registers)
    # Whole rows of a warp, no others.
    split = Mma(2, (2, 2), (16, 8))
    src, dst = (x.to_linear((64, 64)) for x in (split, DotOperand(split, 0, 2)))
    assert isinstance(plan_conversion(src, dst, 16), Shared)


def test_no_instruction_for_the_layout() -> None:
    params, body = kernel("f32", "f32", (16, 8, 8), mma("f32"), 1, "ieee")
    with pytest.raises(CompilationError, match="no tensor core instruction multiplies"):
        to_llir(module(params, body), Target.parse("sm_90a"))


def test_operands_need_the_layouts_of_the_result() -> None:
    params, body = kernel("f16", "f32", (16, 8, 16), mma("f16"), 2)
    with pytest.raises(IRError, match="expected dot_operand 1 of the result's"):
        module(params, body.replace("opIndex = 1", "opIndex = 0"))
