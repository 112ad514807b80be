"""ldmatrix, stmatrix and mma.sync: fragments by the formulas of the PTX ISA, values by numpy."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from tests.sim.programs import program
from tilec import sim
from tilec.sim.errors import SimError

Array = np.ndarray[Any, Any]
ONE = (1, 1, 1)
WARPS = 4
KINDS: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32,
    "f64": np.float64, "s8": np.int8, "u8": np.uint8, "s32": np.int32,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}


# (row, column) of element i of an operand in the lane with group g and thread t, as the ISA says.

def a_place(k: int, ty: str, g: int, t: int, i: int) -> tuple[int, int]:
    match ty, k:
        case ("f16" | "bf16"), 16:
            return g if i in (0, 1, 4, 5) else g + 8, 2 * t + (i & 1) + (8 if i >= 4 else 0)
        case ("f16" | "bf16"), 8:
            return g if i < 2 else g + 8, 2 * t + (i & 1)
        case "tf32", 8:
            return g if i in (0, 2) else g + 8, t if i < 2 else t + 4
        case "tf32", 4:
            return g if i == 0 else g + 8, t
        case "f64", 4:
            return g, t
        case _, 16:
            return g if i < 4 else g + 8, 4 * t + (i & 3)
    return g if i < 4 or 8 <= i < 12 else g + 8, 4 * t + (i & 3) + (16 if i >= 8 else 0)


def b_place(k: int, ty: str, g: int, t: int, i: int) -> tuple[int, int]:
    match ty, k:
        case ("f16" | "bf16"), _:
            return 2 * t + (i & 1) + (8 if i >= 2 else 0), g
        case ("tf32" | "f64"), _:
            return t + 4 * i, g
    return 4 * t + (i & 3) + (16 if i >= 4 else 0), g


def c_place(m: int, g: int, t: int, i: int) -> tuple[int, int]:
    return g if i < 2 else g + 8, 2 * t + (i & 1)


class Mma(NamedTuple):
    m: int
    k: int
    d: str
    a: str
    b: str
    mods: str = ""

    @property
    def text(self) -> str:
        return f"m{self.m}n8k{self.k}.row.col{self.mods}.{self.d}.{self.a}.{self.b}.{self.d}"

    def __str__(self) -> str:
        return self.text

    def places(self, which: str) -> Array:
        """[lane, element, 2]: where the elements of an operand are."""
        count = {"a": self.m * self.k, "b": self.k * 8, "c": self.m * 8}[which] // 32
        place = {"a": lambda g, t, i: a_place(self.k, self.a, g, t, i),
                 "b": lambda g, t, i: b_place(self.k, self.b, g, t, i),
                 "c": lambda g, t, i: c_place(self.m, g, t, i)}[which]
        return np.array([[place(lane // 4, lane % 4, i) for i in range(count)]
                         for lane in range(32)])


FORMS = [
    Mma(16, 16, "f32", "f16", "f16"), Mma(16, 16, "f16", "f16", "f16"),
    Mma(16, 8, "f32", "f16", "f16"), Mma(16, 8, "f16", "f16", "f16"),
    Mma(16, 16, "f32", "bf16", "bf16"), Mma(16, 8, "f32", "bf16", "bf16"),
    Mma(16, 4, "f32", "tf32", "tf32"), Mma(16, 8, "f32", "tf32", "tf32"),
    Mma(16, 32, "s32", "s8", "s8"), Mma(16, 32, "s32", "u8", "u8"),
    Mma(16, 32, "s32", "s8", "u8"), Mma(16, 16, "s32", "s8", "s8"),
    Mma(16, 16, "s32", "u8", "s8"), Mma(16, 32, "s32", "s8", "s8", ".satfinite"),
    Mma(8, 4, "f64", "f64", "f64"),
    Mma(16, 32, "f32", "e4m3", "e4m3"), Mma(16, 32, "f32", "e5m2", "e5m2"),
    Mma(16, 32, "f32", "e4m3", "e5m2"), Mma(16, 16, "f32", "e5m2", "e4m3"),
    Mma(16, 32, "f16", "e4m3", "e4m3"),
]


def kernel(form: Mma, counts: dict[str, int], guard: str = "") -> str:
    """Every thread loads its registers of a, b and c, and stores those of d."""
    size, ty = (8, "b64") if form.d == "f64" else (4, "b32")
    names = {which: [f"%{which}{i}" for i in range(n)] for which, n in counts.items()}
    lines = [f".reg .{ty} {', '.join(name)};" for name in names.values()]
    for p, which in enumerate("dabc"):
        lines.append(f"ld.param.u64 %rd1, [p{p}];"
                     f"mad.wide.u32 %rd{p + 2}, %t, {size * counts[which]}, %rd1;")
        if which != "d":
            lines += [f"ld.global.{ty} {name}, [%rd{p + 2}+{size * i}];"
                      for i, name in enumerate(names[which])]
    d, a, b, c = ("{" + ", ".join(names[which]) + "}" for which in "dabc")
    lines.append(f"{guard} mma.sync.aligned.{form.text} {d}, {a}, {b}, {c};")
    lines += [f"st.global.{ty} [%rd2+{size * i}], {name};" for i, name in enumerate(names["d"])]
    return program("\n".join(lines), "u64 u64 u64 u64", 32 * WARPS)


def spread(form: Mma, which: str, matrices: Array) -> Array:
    """[thread, register]: a matrix a warp as the registers that hold it."""
    places = form.places(which)
    held = np.ascontiguousarray(matrices[:, places[..., 0], places[..., 1]])
    kind = np.uint64 if form.d == "f64" else np.uint32
    return held.view(kind).reshape(32 * len(matrices), -1)


def execute(form: Mma, a: Array, b: Array, c: Array, seed: int | None = None,
            guard: str = "") -> Array:
    """d as [warp, m, 8] in its own type."""
    inputs = [spread(form, which, x) for which, x in zip("abc", (a, b, c), strict=True)]
    out = np.zeros_like(inputs[2])
    counts = {which: x.shape[1] for which, x in zip("dabc", (out, *inputs), strict=True)}
    sim.run(kernel(form, counts, guard), "k", [out, *inputs], ONE, seed=seed)
    result = np.empty((WARPS, form.m, 8), KINDS[form.d])
    places = form.places("c")
    result[:, places[..., 0], places[..., 1]] = out.view(KINDS[form.d]).reshape(WARPS, 32, -1)
    return result


def numbers(ty: str, shape: tuple[int, ...], seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if ty in ("s8", "u8", "s32"):
        info = np.iinfo(KINDS[ty])
        return rng.integers(info.min, info.max, shape, KINDS[ty], endpoint=True)
    return rng.standard_normal(shape).astype(KINDS[ty])


def operands(form: Mma, seed: int) -> tuple[Array, Array, Array]:
    return (numbers(form.a, (WARPS, form.m, form.k), seed),
            numbers(form.b, (WARPS, form.k, 8), seed + 1),
            numbers(form.d, (WARPS, form.m, 8), seed + 2))


def truncated(x: Array) -> Array:
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_mma_computes_the_product(form: Mma) -> None:
    a, b, c = operands(form, 10)
    got = execute(form, a, b, c)
    if form.d == "s32":
        exact = a.astype(np.int64) @ b.astype(np.int64) + c
        if form.mods:
            exact = np.clip(exact, -(2**31), 2**31 - 1)
        assert np.array_equal(got, exact.astype(np.int32))
        return
    if form.a == "tf32":
        a, b = truncated(a), truncated(b)
    exact = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    step = {"f16": 2.0**-11, "f32": 2.0**-24, "f64": 2.0**-50}[form.d]
    assert np.abs(got - exact).max() <= step * np.abs(exact).max()
    if form.d != "f64":  # one rounding, to nearest even
        assert (got == exact.astype(KINDS[form.d])).mean() > 0.999


def test_mma_places_every_element() -> None:
    """With a unit matrix on one side d shows where each element of the other came from."""
    for form in FORMS:
        if form.d == "s32" or form.k < 8:
            continue
        a = np.zeros((WARPS, form.m, form.k), KINDS[form.a])
        b = np.zeros((WARPS, form.k, 8), KINDS[form.b])
        c = np.zeros((WARPS, form.m, 8), KINDS[form.d])
        a[:] = np.random.default_rng(3).integers(0, 8, a.shape)
        b[:, range(8), range(8)] = 1
        assert np.array_equal(execute(form, a, b, c), a[:, :, :8].astype(KINDS[form.d])), form


def test_mma_special_values() -> None:
    form = FORMS[0]
    a, b, c = operands(form, 20)
    a[0, 3, 5], a[1, 9, 0], b[2, 4, 6] = np.nan, np.inf, -np.inf
    a[2, 0, 4], c[3, 15, 7] = 0, np.inf
    got = execute(form, a, b, c)
    assert np.isnan(got[0, 3]).all() and not np.isnan(got[0, 4]).any()
    assert (got[0, 3].view(np.uint32) == 0x7FFFFFFF).all()
    assert np.array_equal(got[1, 9], np.where(b[1, 0] > 0, np.inf, -np.inf))
    assert np.isnan(got[2, 0, 6]) and got[3, 15, 7] == np.inf
    a, b = np.full_like(a, 60000), np.full_like(b, 60000)
    assert np.isinf(execute(FORMS[1], a, b, c.astype(np.float16))).all()


def test_mma_integers_wrap_without_satfinite() -> None:
    form, saturating = FORMS[8], FORMS[13]
    a = np.full((WARPS, 16, 32), 127, np.int8)
    b = np.full((WARPS, 32, 8), 127, np.int8)
    c = np.full((WARPS, 16, 8), 2**31 - 1, np.int32)
    assert (execute(form, a, b, c) == -(2**31) + 127 * 127 * 32 - 1).all()
    assert (execute(saturating, a, b, c) == 2**31 - 1).all()
    assert (execute(saturating, a, -b, -c - 1) == -(2**31)).all()


def test_mma_of_some_warps() -> None:
    """Under a guard, and with warps that arrive in random order."""
    form = FORMS[0]
    a, b, c = operands(form, 30)
    want = execute(form, a, b, c)
    guard = "setp.lt.u32 %p1, %t, 64; @%p1"
    got = execute(form, a, b, c, guard=guard)
    assert np.array_equal(got[:2], want[:2]) and not got[2:].any()
    assert np.array_equal(execute(form, a, b, c, seed=4), want)


@pytest.mark.parametrize("text", [
    "m8n8k4.row.col.f32.f16.f16.f32", "m16n8k16.row.col.f32.f16.bf16.f32",
    "m16n8k16.row.col.f16.bf16.bf16.f16", "m16n8k16.row.row.f32.f16.f16.f32",
    "m16n8k32.row.col.f32.f16.f16.f32", "m16n8k16.row.col.f32.f16.f16.f16",
])
def test_unknown_mma_is_named(text: str) -> None:
    body = f".reg .b32 %x<16>; mma.sync.aligned.{text} {{%x0}}, {{%x1}}, {{%x2}}, {{%x3}};"
    with pytest.raises(SimError, match="does not know mma"):
        sim.run(program(body, "u64", 32), "k", [np.zeros(32, np.uint32)], ONE)


def test_mma_with_too_few_registers() -> None:
    body = (".reg .b32 %x<16>; mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%x0, %x1, %x2, %x3}, {%x4, %x5}, {%x6, %x7}, {%x0, %x1, %x2, %x3};")
    with pytest.raises(SimError, match=r"other than \[4, 4, 2, 4\] registers"):
        sim.run(program(body, "u64", 32), "k", [np.zeros(32, np.uint32)], ONE)


# -- ldmatrix, stmatrix ---------------------------------------------------------------------------

def staged(body: str) -> str:
    """128 threads; global p1 (16 bytes a thread) goes through shared memory to p0.

    %s is the address of the thread's own 16 bytes, %q that of row `lane` of its warp.
    """
    return program(f"""
    .reg .b32 %s, %q, %v<4>; .shared .align 16 .b8 buffer[2048];
    ld.param.u64 %rd1, [p1]; mad.wide.u32 %rd1, %t, 16, %rd1;
    ld.param.u64 %rd2, [p0]; mad.wide.u32 %rd2, %t, 16, %rd2;
    mov.u32 %s, buffer; mad.lo.u32 %s, %t, 16, %s;
    and.b32 %q, %t, 31; mul.lo.u32 %q, %q, 16;
    and.b32 %r1, %t, 0x60; mad.lo.u32 %q, %r1, 16, %q; mov.u32 %r2, buffer; add.u32 %q, %q, %r2;
    {body}""", "u64 u64", 128)


def lane_view(matrices: Array, trans: bool) -> Array:
    """[matrix, lane, 2] of [matrix, 8, 8]: row (or column) lane / 4, two from 2 (lane % 4)."""
    matrices = matrices.swapaxes(1, 2) if trans else matrices
    return np.ascontiguousarray(matrices).reshape(len(matrices), 32, 2)


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count: int, trans: bool) -> None:
    registers, way = ", ".join(f"%v{i}" for i in range(count)), ".trans" if trans else ""
    stores = " ".join(f"st.global.b32 [%rd2+{4 * i}], %v{i};" for i in range(count))
    source = np.random.default_rng(count).integers(0, 1 << 16, (4, 4, 8, 8)).astype(np.uint16)
    for space, at in ((".shared", "%q"), (".shared::cta", "%q"), ("", "%rd3")):
        body = f"""
        ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%rd1];
        st.shared.v4.b32 [%s], {{%v0, %v1, %v2, %v3}}; bar.sync 0;
        cvt.u64.u32 %rd3, %q; cvta.shared.u64 %rd3, %rd3;
        ldmatrix.sync.aligned.m8n8.x{count}{way}{space}.b16 {{{registers}}}, [{at}];
        {stores}"""
        out = np.zeros((4, 32, 4, 2), np.uint16)
        sim.run(staged(body), "k", [out, source], ONE)
        for warp in range(4):
            want = lane_view(source[warp, :count], trans)
            assert np.array_equal(out[warp, :, :count].swapaxes(0, 1), want)
        assert not out[:, :, count:].any()


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix(count: int, trans: bool) -> None:
    registers = ", ".join(f"%v{i}" for i in range(count))
    body = f"""
    ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%rd1];
    st.shared.v4.b32 [%s], {{0, 0, 0, 0}}; bar.sync 0;
    stmatrix.sync.aligned.m8n8.x{count}{".trans" if trans else ""}.shared.b16 [%q], {{{registers}}};
    bar.sync 0;
    ld.shared.v4.b32 {{%v0, %v1, %v2, %v3}}, [%s];
    st.global.v4.b32 [%rd2], {{%v0, %v1, %v2, %v3}};"""
    source = np.random.default_rng(count).integers(0, 1 << 16, (4, 32, 4, 2)).astype(np.uint16)
    out = np.zeros((4, 4, 8, 8), np.uint16)
    sim.run(staged(body), "k", [out, source], ONE, seed=count)
    for warp in range(4):
        got = lane_view(out[warp, :count], trans)
        assert np.array_equal(got, source[warp, :, :count].swapaxes(0, 1))
        assert not out[warp, count:].any()


@pytest.mark.parametrize(("at", "message"), [
    ("mov.u32 %q, buffer; add.u32 %q, %q, 8;", "misaligned shared address .* a 16-byte access"),
    ("add.u32 %q, %q, 2048;", "out-of-bounds read of shared address"),
])
def test_ldmatrix_checks_row_addresses(at: str, message: str) -> None:
    body = at + "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%v0, %v1, %v2, %v3}, [%q];"
    with pytest.raises(SimError, match=message):
        sim.run(staged(body), "k", [np.zeros(512, np.uint32)] * 2, ONE)


def test_ldmatrix_only_reads_the_rows_it_needs() -> None:
    body = """setp.gt.u32 %p1, %q, 0; and.b32 %r3, %t, 31; setp.ge.u32 %p1, %r3, 8;
    @%p1 mov.u32 %q, 3; st.shared.v4.b32 [%s], {5, 5, 5, 5}; bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%v0}, [%q]; st.global.b32 [%rd2], %v0;"""
    out = np.zeros((128, 4), np.uint32)
    sim.run(staged(body), "k", [out, np.zeros((128, 4), np.uint32)], ONE)
    assert (out[:, 0] == 5).all()
