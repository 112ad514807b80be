"""Shared buffers in the simulator and at the lowered level: every pair of layouts, views, matrices,
asynchronous copies with masks."""

import itertools
import re

import numpy as np
import pytest

from tests.codegen.kernels import DTYPES, blocked, pointers, samples
from tests.support.fixtures import MATMUL, fixture, matmul_case
from tilec import sim
from tilec.codegen.cubin import link
from tilec.codegen.llvm import emit_ptx
from tilec.codegen.lower import to_llir
from tilec.errors import CompilationError
from tilec.interp.run import run
from tilec.ir import ops
from tilec.ir.parser import parse
from tilec.ir.verifier import verify
from tilec.passes.allocate_shared import AllocateShared
from tilec.passes.insert_barriers import InsertBarriers
from tilec.target import Target

MMA = "nvidia_mma<{version = 2, warpsPerCTA = [2, 1], instrShape = [16, 8]}>"


def operand(index: int, width: int) -> str:
    return f"dot_operand<{{parent = {MMA}, opIndex = {index}, kWidth = {width}}}>"


def swizzled(vec: int, per_phase: int, max_phase: int, order: tuple[int, ...]) -> str:
    return (f"swizzled_shared<{{vec = {vec}, perPhase = {per_phase}, maxPhase = {max_phase}, "
            f"order = {list(order)}}}>")


ROWS = blocked([1, 8], [4, 8], [2, 1], [1, 0])
COLUMNS = blocked([4, 1], [8, 4], [1, 2], [0, 1])
SIDES = {"rows": ROWS, "columns": COLUMNS, "mma": MMA, "a2": operand(0, 2), "b2": operand(1, 2),
         "a1": operand(0, 1), "b4": operand(1, 4),
         "copies": blocked([1, 1], [4, 8], [2, 1], [1, 0])}
SHARED = {"plain": swizzled(1, 1, 1, (1, 0)), "rows": swizzled(8, 1, 8, (1, 0)),
          "columns": swizzled(8, 2, 4, (0, 1)), "narrow": swizzled(2, 1, 4, (1, 0))}


def lowered(params: str, body: str, target: str = "sm_90a"):
    """The module at the lowered level, as the passes leave it."""
    m = parse(f'module attributes {{level = "gpu", target = "{target}", num_warps = 2}} {{\n'
              f"func @k({params}) {{\n{body}\nfunc.return()\n}}\n}}\n")
    verify(m)
    for lowering in (AllocateShared(), InsertBarriers()):
        lowering.run(m)
    verify(m)
    return m


def ptx_of(m, target: str = "sm_90a") -> str:
    return emit_ptx(to_llir(m, Target.parse(target)).text, Target.parse(target))


def launch(params: str, body: str, args: list, target: str = "sm_90a") -> str:
    """Run in the simulator, in place, and compare with the lowered level; the PTX."""
    m = lowered(params, body, target)
    mine = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    run(m, "k", mine, 1)
    llir, ptx = to_llir(m, Target.parse(target)), ptx_of(m, target)
    sim.run(sim.parse(ptx), "k", args, (1, 1, 1), shared_bytes=llir.shared_bytes,
            check=True)
    for got, want in zip(args, mine, strict=True):
        if isinstance(got, np.ndarray):
            np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))
    return ptx


def through(x: np.ndarray, dtype: str, src: str, shared: str, dst: str, trans: bool = False,
            target: str = "sm_90a", part: tuple[tuple[int, ...], tuple[int, ...]] | None = None
            ) -> tuple[np.ndarray, str]:
    """x, stored from one layout and loaded to another, through the second of three stages.

    part: (extents, offsets) of what is loaded, if not all.
    """
    shape = x.shape
    whole = shape[::-1] if trans else shape
    out_shape, at = part or (whole, ())
    ins, outs, loaded = ("x".join(map(str, s)) for s in (shape, whole, out_shape))
    offsets = f" {{offsets = {list(at)}}}" if at else ""
    flipped = shared
    view = "%v = gpu.memdesc_index(%a, %n)" + f" : memdesc<{ins}x{dtype}, {shared}>\n"
    name = "v"
    if trans:
        fast, slow = re.search(r"order = \[(\d), (\d)\]", shared).groups()
        flipped = shared.replace(f"order = [{fast}, {slow}]", f"order = [{slow}, {fast}]")
        view += (f"%w = gpu.memdesc_trans(%v) {{order = [1, 0]}} : "
                 f"memdesc<{outs}x{dtype}, {flipped}>\n")
        name = "w"
    body = "\n".join([
        pointers("x", dtype, shape, src), pointers("o", dtype, out_shape, dst),
        f"%t = tile.load(%xp) : tensor<{ins}x{dtype}, {src}>",
        f"%a = gpu.alloc_shared() : memdesc<3x{ins}x{dtype}, {shared}>", view,
        "gpu.shared_store(%v, %t)",
        f"%r = gpu.shared_load(%{name}){offsets} : tensor<{loaded}x{dtype}, {dst}>",
        "tile.store(%op, %r)"])
    out = np.zeros(out_shape, x.dtype)
    params = (f"%x: ptr<{dtype}> {{divisibility = 16}}, %o: ptr<{dtype}> {{divisibility = 16}}, "
              "%n: i32")
    ptx = launch(params, body, [x, out, 1], target)
    want = np.ascontiguousarray(x.T if trans else x)
    if part is not None:
        want = want[tuple(slice(a, a + n) for a, n in zip(at, out_shape, strict=True))].copy()
    np.testing.assert_array_equal(out.view(np.uint8), want.view(np.uint8))
    return out, ptx


SHAPES = [(32, 32), (48, 64), (16, 96), (96, 48), (20, 34), (8, 16)]
CASES = list(itertools.product(SIDES, SHARED, SIDES))
# A spread of them; `make test-full` runs all.
MARKED = [pytest.param(i, marks=() if i * 7 % 11 < 2 else (pytest.mark.full,))
          for i in range(len(CASES))]


@pytest.mark.parametrize("number", MARKED)
@pytest.mark.sample(12)
def test_every_pair_of_layouts(number: int) -> None:
    src, shared, dst = CASES[number]
    shape = SHAPES[number % len(SHAPES)]
    dtype = list(DTYPES)[number % len(DTYPES)]
    count = int(np.prod(shape))
    x = samples(dtype, max(64, count), number)[:count].reshape(shape)
    through(x, dtype, SIDES[src], SHARED[shared], SIDES[dst], trans=number % 3 == 0)


# Buffer, part, offsets: halves and quarters, odd extents of either, all of a padded dimension.
PARTS = [((32, 32), (32, 16), (0, 16)), ((48, 64), (16, 16), (32, 48)),
         ((16, 96), (8, 32), (8, 64)), ((96, 48), (48, 48), (48, 0)),
         ((96, 64), (24, 32), (72, 32)), ((34, 64), (34, 16), (0, 48)),
         ((48, 32), (16, 32), (32, 0)), ((64, 16), (32, 8), (32, 8))]


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("number", range(len(PARTS)))
@pytest.mark.sample(4)
def test_parts_of_buffers(number: int, trans: bool) -> None:
    shape, part, at = PARTS[number]
    for i, (shared, dst) in enumerate(itertools.islice(
            itertools.product(SHARED, SIDES), number + trans, None, 9)):
        dtype = list(DTYPES)[(number + 3 * i) % len(DTYPES)]
        x = samples(dtype, int(np.prod(shape)), number).reshape(shape)
        through(x, dtype, ROWS, SHARED[shared], SIDES[dst], trans,
                part=(part[::-1], at[::-1]) if trans else (part, at))


@pytest.mark.parametrize("dtype,index,width,form", [
    ("f16", 0, 2, "x4"), ("bf16", 1, 2, "x4.trans"), ("f32", 0, 1, "x4"), ("i8", 0, 4, "x4")])
def test_parts_are_loaded_as_matrices(dtype: str, index: int, width: int, form: str) -> None:
    shape = (64, 64) if index else (32, 64)
    x = samples(dtype, int(np.prod(shape)), 3).reshape(shape)
    step = 32 // DTYPES[dtype].itemsize
    part = ((step, 64), (step, 0)) if index else ((32, step), (0, step))
    shared = swizzled(16 // DTYPES[dtype].itemsize, 1, 4, (1, 0))
    _, ptx = through(x, dtype, ROWS, shared, operand(index, width), part=part)
    assert set(matrices(ptx, "ldmatrix")) == {form} and "ld.shared" not in ptx


def matrices(ptx: str, what: str) -> list[str]:
    return re.findall(rf"{what}\.sync\.aligned\.m8n8\.([\w.]*?)\.shared", ptx)


@pytest.mark.parametrize("dtype,dst,shape,trans,form", [
    ("f16", operand(0, 2), (32, 64), False, "x4"),
    ("bf16", operand(1, 2), (64, 32), False, "x4.trans"),
    ("f16", operand(1, 2), (32, 64), True, "x4"),
    ("f16", operand(0, 2), (64, 32), True, "x4.trans"),
    ("f32", operand(0, 1), (32, 64), False, "x4"),
    ("i8", operand(0, 4), (32, 64), False, "x4"),
    ("f16", operand(0, 2), (96, 48), False, "x4"),
    ("bf16", operand(1, 2), (16, 8), False, "x2.trans"),
    ("i16", operand(0, 2), (8, 16), False, "x2"),
])
def test_operands_are_loaded_as_matrices(dtype: str, dst: str, shape: tuple[int, int], trans: bool,
                                         form: str) -> None:
    x = samples(dtype, int(np.prod(shape)), 3).reshape(shape)
    shared = swizzled(16 // DTYPES[dtype].itemsize, 1, 2 if shape[1] < 64 else 4, (1, 0))
    for target in ("sm_80", "sm_90a"):
        _, ptx = through(x, dtype, ROWS, shared, dst, trans, target)
        assert set(matrices(ptx, "ldmatrix")) == {form}
        assert "ld.shared" not in ptx


@pytest.mark.parametrize("dtype", ["f64", "i64"])
def test_wide_elements_are_no_matrices(dtype: str) -> None:
    x = samples(dtype, 32 * 32, 3).reshape(32, 32)
    _, ptx = through(x, dtype, ROWS, SHARED["plain"], operand(0, 1))
    assert not matrices(ptx, "ldmatrix")


@pytest.mark.parametrize("trans,form", [(False, "x4"), (True, "x4.trans")])
def test_accumulators_are_stored_as_matrices(trans: bool, form: str) -> None:
    x = samples("f16", 64 * 64, 3).reshape(64, 64)
    shared = SHARED["columns" if trans else "rows"]
    for target, forms in (("sm_80", set()), ("sm_90a", {form})):
        _, ptx = through(x, "f16", MMA, shared, COLUMNS if trans else ROWS, target=target)
        assert set(matrices(ptx, "stmatrix")) == forms


@pytest.mark.parametrize("src,dst,shape,ldmatrix,stmatrix", [
    (ROWS, operand(0, 2), (32, 32), "x4", ""), (ROWS, operand(1, 2), (32, 32), "x4.trans", ""),
    (operand(0, 2), ROWS, (96, 32), "x4", ""), (operand(1, 2), ROWS, (32, 32), "", "x4.trans"),
    # With more elements vectors of 16 bytes serve both sides.
    (ROWS, operand(0, 2), (64, 64), "", ""), (MMA, ROWS, (64, 64), "", "")])
def test_conversions_move_matrices_where_they_win(
        src: str, dst: str, shape: tuple[int, int], ldmatrix: str, stmatrix: str) -> None:
    x = samples("bf16", int(np.prod(shape)), 3).reshape(shape)
    dims = "x".join(map(str, shape))
    body = "\n".join([
        pointers("x", "bf16", shape, src), pointers("o", "bf16", shape, dst),
        f"%t = tile.load(%xp) : tensor<{dims}xbf16, {src}>",
        f"%r = gpu.convert_layout(%t) : tensor<{dims}xbf16, {dst}>", "tile.store(%op, %r)"])
    for target in ("sm_80", "sm_90a"):
        out = np.zeros_like(x)
        ptx = launch("%x: ptr<bf16> {divisibility = 16}, %o: ptr<bf16> {divisibility = 16}", body,
                     [x, out], target)
        np.testing.assert_array_equal(out.view(np.uint8), x.view(np.uint8))
        assert set(matrices(ptx, "ldmatrix")) == {ldmatrix} - {""}
        stored = {stmatrix} - {""} if target == "sm_90a" else set()
        assert set(matrices(ptx, "stmatrix")) == stored


# ---- asynchronous copies
def copy_text(dtype: str, shape: tuple[int, int], layout: str, shared: str, masked: str = ""
              ) -> str:
    """Copy x through a stage, masked by columns (or rows) below %m, and store it to o."""
    dims = "x".join(map(str, shape))
    lines = [pointers("x", dtype, shape, layout), pointers("o", dtype, shape, layout),
             f"%a = gpu.alloc_shared() : memdesc<3x{dims}x{dtype}, {shared}>",
             f"%v = gpu.memdesc_index(%a, %n) : memdesc<{dims}x{dtype}, {shared}>"]
    if masked:
        at = f"%x{'1' if masked == 'columns' else '0'}b"
        lines += [f"%ms = tile.splat(%m) : tensor<{dims}xi32, {layout}>",
                  f'%mask = tile.cmp({at}, %ms) {{predicate = "lt"}} : tensor<{dims}xi1, {layout}>',
                  "gpu.async_copy(%xp, %v, %mask)"]
    else:
        lines.append("gpu.async_copy(%xp, %v)")
    lines += ["gpu.async_commit()", "gpu.async_wait() {pending = 0}",
              f"%r = gpu.shared_load(%v) : tensor<{dims}x{dtype}, {layout}>",
              "tile.store(%op, %r)"]
    return "\n".join(lines)


def copies(ptx: str) -> set[str]:
    return {f"{kind} {size}" for kind, size in
            re.findall(r"cp\.async\.(c[ag])\.shared\.global \[.*?\], \[.*?\], (\d+)", ptx)}


PARAMS = ("%x: ptr<{0}> {{divisibility = {1}}}, %o: ptr<{0}>, %n: i32, "
          "%m: i32 {{divisibility = {2}}}")


@pytest.mark.parametrize("dtype,shape,align,masked,divisor,form", [
    ("f16", (32, 64), 16, "", 1, "cg 16"),
    ("f16", (48, 96), 16, "columns", 16, "cg 16"),
    ("f16", (32, 64), 16, "columns", 4, "ca 8"),
    ("bf16", (32, 64), 8, "rows", 1, "ca 8"),
    ("f32", (32, 64), 4, "", 1, "ca 4"),
    ("f32", (16, 32), 16, "columns", 1, "ca 4"),
    ("i8", (32, 64), 16, "rows", 1, "cg 16"),
    ("f64", (32, 16), 16, "rows", 1, "cg 16"),
    ("i64", (32, 16), 8, "columns", 1, "ca 8"),
    ("f16", (20, 40), 16, "rows", 1, "cg 16"),
    ("f16", (34, 64), 16, "columns", 16, "cg 16"),
])
def test_async_copies(dtype: str, shape: tuple[int, int], align: int, masked: str, divisor: int,
                      form: str) -> None:
    vec = 16 // DTYPES[dtype].itemsize
    layout = blocked([1, vec], [8, 4], [2, 1], [1, 0])
    x = samples(dtype, int(np.prod(shape)), 5).reshape(shape)
    limit = divisor * max(1, shape[masked == "columns"] // 2 // divisor)
    out = np.zeros_like(x)
    ptx = launch(PARAMS.format(dtype, align, divisor),
                 copy_text(dtype, shape, layout, swizzled(vec, 1, 2, (1, 0)), masked),
                 [x, out, 2, limit])
    want = x.copy()
    if masked:
        (want.T if masked == "columns" else want)[limit:] = 0
    np.testing.assert_array_equal(out.view(np.uint8), want.view(np.uint8))
    assert copies(ptx) == {form}


@pytest.mark.parametrize("dtype,align,shared", [
    ("f16", 2, SHARED["rows"]), ("i8", 2, SHARED["rows"]), ("f16", 16, SHARED["columns"])])
def test_narrow_copies_are_refused(dtype: str, align: int, shared: str) -> None:
    text = copy_text(dtype, (32, 64), ROWS, shared)
    with pytest.raises(CompilationError, match="cp.async copies 4, 8 or 16 bytes"):
        ptx_of(lowered(PARAMS.format(dtype, align, 1), text))


def test_copies_need_sm_80() -> None:
    text = copy_text("f16", (32, 64), ROWS, SHARED["rows"])
    with pytest.raises(CompilationError, match="gpu.async_copy needs sm_80 or later"):
        ptx_of(lowered(PARAMS.format("f16", 16, 1), text, "sm_75"), "sm_75")


# ---- the hand-written matrix product
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_pipelined_matmul(target: str) -> None:
    m = fixture(MATMUL, lowered=True)
    loop = next(op for op in m.walk() if isinstance(op, ops.For))
    assert sum(isinstance(op, ops.Barrier) for op in loop.body) == 1
    m.attributes["target"] = target
    ptx = ptx_of(m, target)
    assert copies(ptx) == {"cg 16"}
    assert set(matrices(ptx, "ldmatrix")) == {"x4", "x4.trans"}
    assert "cp.async.wait_group \t1" in ptx and "mma.sync.aligned.m16n8k16" in ptx
    assert link(ptx, Target.parse(target), name="matmul").n_spills == 0
    for k in (16, 48, 176):
        args, grid, want = matmul_case(k)
        sim.run(sim.parse(ptx), "matmul", args, (*grid, 1),
                shared_bytes=int(m.attributes["shared"]), check=True)
        np.testing.assert_allclose(args[2], want, rtol=1e-5, atol=1e-4)
