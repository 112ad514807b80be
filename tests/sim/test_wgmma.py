"""wgmma: every type, major and swizzle against numpy, with layouts written from the PTX ISA."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from tests.sim.programs import hopper
from tilec import sim
from tilec.sim import SimError

Array = np.ndarray[Any, Any]
ONE = (1, 1, 1)
KINDS: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "s8": np.int8,
    "u8": np.uint8, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
    "f32": np.float32, "s32": np.int32,
}  # fmt: skip
MODES = {0: 0, 128: 1, 64: 2, 32: 3}
A_AT, B_AT, SPACE = 0, 49152, 98304


class Layout(NamedTuple):
    """How an operand lies in shared memory: packed as TMA would write it, or in core matrices."""

    swizzle: int
    mn_major: bool
    shift: int = 0  # bytes that the k step lies into a K-major row

    def place(self, rows: int, k: int, row: int, col: int, width: int) -> int:
        """The byte offset of an element from the 1024-byte aligned start of the tile."""
        if self.swizzle == 0:  # cores of 8 x 16 bytes: those along k next to each other
            outer, inner = (col, row * width) if self.mn_major else (row, col * width)
            core, byte = outer % 8 * 16, inner % 16
            if self.mn_major:  # cores of 8 k: k first, then m or n
                number = inner // 16 * (k // 8) + outer // 8
            else:
                number = outer // 8 * (k * width // 16) + inner // 16
            return number * 128 + core + byte
        if self.mn_major:  # panels of swizzle bytes of m or n, k rows each
            panel, inner = divmod(row * width, self.swizzle)
            offset = (panel * k + col) * self.swizzle + inner
        else:
            offset = row * self.swizzle + col * width + self.shift
        flips = {32: 1, 64: 3, 128: 7}[self.swizzle]
        return offset ^ (offset >> 7 & flips) << 4

    def descriptor(self, at: int, rows: int, k: int, width: int) -> int:
        """The 64 bits for a tile at a shared address."""
        if self.swizzle == 0 and self.mn_major:
            leading, stride = 128, k // 8 * 128
        elif self.swizzle == 0:
            leading, stride = 128, k * width // 16 * 128
        else:
            leading, stride = k * self.swizzle, 8 * self.swizzle
        return (at + self.shift >> 4 | leading >> 4 << 16 | stride >> 4 << 32
                | MODES[self.swizzle] << 62)


class Form(NamedTuple):
    n: int
    d: str
    a: str
    b: str

    @property
    def k(self) -> int:
        return 32 // np.dtype(KINDS[self.a]).itemsize

    @property
    def registers(self) -> int:
        return self.n // (4 if self.d == "f16" else 2)

    def text(self, a: str, controls: str, suffix: str = "") -> str:
        d = ", ".join(f"%d{i}" for i in range(self.registers))
        return (f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}.{self.d}.{self.a}.{self.b}"
                f"{suffix} {{{d}}}, {a}, %db, {controls};")


def numbers(ty: str, shape: tuple[int, ...], seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if ty in ("s8", "u8", "s32"):
        return rng.integers(*{"s8": (-128, 128), "u8": (0, 256), "s32": (-9999, 9999)}[ty],
                            shape).astype(KINDS[ty])  # fmt: skip
    return rng.standard_normal(shape).astype(KINDS[ty])


def accumulator(form: Form, thread: int, i: int) -> tuple[int, int]:
    """Row and column of element i of a thread's accumulators, as the ISA says."""
    warp, g, t = thread // 32, thread % 32 // 4, thread % 4
    return 16 * warp + g + 8 * (i // 2 % 2), i // 4 * 8 + 2 * t + i % 2


def a_element(form: Form, thread: int, i: int) -> tuple[int, int]:
    """Row and k of element i of a thread's A registers."""
    warp, g, t = thread // 32, thread % 32 // 4, thread % 4
    each = form.k // 8  # neighbours in a register
    register, j = divmod(i, each)
    return 16 * warp + g + 8 * (register % 2), register // 2 * (form.k // 2) + each * t + j


def kernel(form: Form, body: str, head: str = "") -> str:
    """Copies p1 to shared memory, loads accumulators from p0, and stores them there again."""
    d = form.registers
    loads = "\n".join(f"ld.global.b32 %d{i}, [%rd1+{512 * i}];" for i in range(d))
    loads += "\n".join(f"ld.global.b32 %a{i}, [%rd4+{512 * i}];" for i in range(4))
    stores = "\n".join(f"st.global.b32 [%rd1+{512 * i}], %d{i};" for i in range(d))
    return hopper(f"""
    .reg .b32 %d<{d}>, %a<4>; .reg .b64 %da, %db; .reg .pred %keep, %no;
    ld.param.u64 %rd2, [p1]; ld.param.u64 %rd4, [p2]; ld.param.u64 %da, [p3];
    ld.param.u64 %db, [p4]; mad.wide.u32 %rd1, %t, 4, %out; mad.wide.u32 %rd4, %t, 4, %rd4;
    mov.u32 %r1, %t;
FILL: mul.lo.u32 %r3, %r1, 16; add.u32 %r4, %r3, %tile; cvt.u64.u32 %rd3, %r3;
    add.u64 %rd3, %rd3, %rd2; ld.global.v4.b32 {{%r5, %r6, %r7, %r8}}, [%rd3];
    st.shared.v4.b32 [%r4], {{%r5, %r6, %r7, %r8}};
    add.u32 %r1, %r1, 128; setp.lt.u32 %p1, %r1, {SPACE // 16}; @%p1 bra FILL;
    setp.ne.u32 %keep, 1, 0; setp.ne.u32 %no, 0, 0; {loads}
    fence.proxy.async.shared::cta; bar.sync 0;
    {body}
    {stores}""", "u64 u64 u64 u64 u64", head=head)


TAIL = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"


def run(form: Form, body: str, a: Array, b: Array, c: Array, layouts: tuple[Layout, Layout],
        seed: int | None = None, text: str = "") -> Array:
    """The matrix that the accumulators hold after `body`; a is [64, k], b [n, k], c [64, n]."""
    memory = np.full(SPACE, 0xA5, np.uint8)
    for matrix, layout, at in zip((a, b), layouts, (A_AT, B_AT), strict=True):
        width = matrix.itemsize
        for (row, col), value in zip(np.ndindex(matrix.shape), matrix.reshape(-1, 1), strict=True):
            place = at + layout.place(*matrix.shape, row, col, width)
            memory[place : place + width] = value.view(np.uint8)
    each = 2 if form.d == "f16" else 1
    places = np.array([[accumulator(form, t, i) for i in range(form.registers * each)]
                       for t in range(128)])
    held = np.ascontiguousarray(c[places[..., 0], places[..., 1]]).view(np.uint32)
    held = np.ascontiguousarray(held.T)
    fragments = np.array([[a_element(form, t, i) for i in range(form.k // 2)] for t in range(128)])
    fragments = np.ascontiguousarray(a[fragments[..., 0], fragments[..., 1]]).view(np.uint32)
    tile = 2048
    sim.run(text or kernel(form, body), "k", [
        held, memory, np.ascontiguousarray(fragments.T),
        layouts[0].descriptor(tile + A_AT, *a.shape, a.itemsize),
        layouts[1].descriptor(tile + B_AT, *b.shape, b.itemsize)], ONE,
        shared_bytes=1024 + SPACE, seed=seed)
    result = np.zeros((64, form.n), KINDS[form.d])
    values = np.ascontiguousarray(held.T).view(KINDS[form.d])
    result[places[..., 0], places[..., 1]] = values
    return result


def exact(form: Form, a: Array, b: Array) -> Array:
    """[64, n] products as int64 or float64; tf32 operands lose their low 13 bits."""
    if form.d == "s32":
        return a.astype(np.int64) @ b.astype(np.int64).T
    if form.a == "tf32":
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    return a.astype(np.float64) @ b.astype(np.float64).T


def check(form: Form, got: Array, want: Array) -> None:
    """Integers wrap; floats are within half a step of the exact sum, whose terms are small."""
    if form.d == "s32":
        assert np.array_equal(got, want.astype(np.int32))
    else:
        step = {"f16": 2.0**-11, "f32": 2.0**-24}[form.d]
        assert np.abs(got - want).max() <= step * max(np.abs(want).max(), 1)
        assert (np.abs(got - want) <= 1.01 * step * np.abs(want) + 1e-7).all()


def controls(form: Form, scale: str, a: Layout | None, b: Layout, signs: str = "1, 1") -> str:
    """The operands after the descriptors."""
    parts = [scale] + ([] if form.d == "s32" else [signs])
    if form.a in ("f16", "bf16"):
        parts += ([] if a is None else [str(int(a.mn_major))]) + [str(int(b.mn_major))]
    return ", ".join(parts)


TYPES = [("f32", "bf16", "bf16"), ("f32", "f16", "f16"), ("f16", "f16", "f16"),
         ("f32", "tf32", "tf32"), ("f32", "e4m3", "e5m2"), ("f16", "e5m2", "e4m3"),
         ("f32", "e4m3", "e4m3"), ("s32", "s8", "u8"), ("s32", "u8", "s8"), ("s32", "s8", "s8")]
K_MAJOR = [Layout(s, False) for s in (0, 32, 64, 128)]
MN_MAJOR = [Layout(s, True) for s in (0, 32, 64, 128)]
ROOM = {0: 256, 32: 512, 64: 1024, 128: 1024}


@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize("n", [8, 64, 160, 176, 192, 256])
@pytest.mark.sample(15)
def test_shapes_and_types(types: tuple[str, str, str], n: int) -> None:
    form, layout = Form(n, *types), K_MAJOR[3]
    a, b, c = numbers(form.a, (64, form.k), 1), numbers(form.b, (n, form.k), 2), numbers(
        form.d, (64, n), 3)
    text = form.text("%da", controls(form, "%keep", layout, layout))
    got = run(form, f"wgmma.fence.sync.aligned; {text} {TAIL}", a, b, c, (layout, layout))
    check(form, got, exact(form, a, b) + c)


def majors(ty: str, n: int) -> list[Layout]:
    """The layouts of an operand with n rows along M or N."""
    wide = [m for m in MN_MAJOR if 2 * n % (m.swizzle or 16) == 0]
    return K_MAJOR + (wide if ty in ("f16", "bf16") else [])


@pytest.mark.parametrize("types", TYPES[:8], ids="-".join)
@pytest.mark.sample(2)
def test_layouts(types: tuple[str, str, str]) -> None:
    """Every swizzle of A with every one of B, K-major and MN-major, at some seeds."""
    form = Form(64, *types)
    a, b = numbers(form.a, (64, form.k), 4), numbers(form.b, (64, form.k), 5)
    poison = np.full((64, 64), 99, KINDS[form.d])
    want = exact(form, a, b)
    options = majors(form.a, 64)
    for i, left in enumerate(options):
        for right in options if i == 0 else [options[(3 * i + 1) % len(options)], left]:
            text = form.text("%da", controls(form, "0", left, right))
            got = run(form, f"wgmma.fence.sync.aligned; {text} {TAIL}", a, b, poison,
                      (left, right), seed=i or None)
            check(form, got, want)


@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.sample(5)
def test_a_from_registers(types: tuple[str, str, str], seed: int | None) -> None:
    form = Form(96, *types)
    a, b, c = numbers(form.a, (64, form.k), 1), numbers(form.b, (96, form.k), 2), numbers(
        form.d, (64, 96), 3)
    for layout in majors(form.b, 96):
        if layout.mn_major and layout.swizzle == 128 and 96 * 2 % 128:
            continue
        text = form.text("{%a0, %a1, %a2, %a3}", controls(form, "%keep", None, layout))
        got = run(form, f"wgmma.fence.sync.aligned; {text} {TAIL}", a, b, c, (layout, layout),
                  seed)
        check(form, got, exact(form, a, b) + c)


@pytest.mark.parametrize("ty", ["bf16", "tf32", "e4m3", "s8"])
@pytest.mark.parametrize("shift", [32, 64, 96])
def test_steps_along_k_within_a_swizzled_row(ty: str, shift: int) -> None:
    """A descriptor that starts 32 bytes into the rows reads the next k step."""
    form, layout = Form(24, "s32" if ty == "s8" else "f32", ty, ty), Layout(128, False, shift)
    a, b = numbers(ty, (64, form.k), 6), numbers(ty, (24, form.k), 7)
    text = form.text("%da", controls(form, "0", layout, layout))
    got = run(form, f"wgmma.fence.sync.aligned; {text} {TAIL}", a, b,
              np.zeros((64, 24), KINDS[form.d]), (layout, layout))
    check(form, got, exact(form, a, b))


def test_signs_and_scale() -> None:
    form, layout = Form(16, "f32", "f16", "f16"), K_MAJOR[1]
    a, b, c = numbers("f16", (64, 16), 1), numbers("f16", (16, 16), 2), numbers("f32", (64, 16), 3)
    product = exact(form, a, b)
    for signs, sign in (("1, -1", -1), ("-1, 1", -1), ("-1, -1", 1)):
        for scale, keeps in (("%keep", 1), ("%no", 0), ("1", 1), ("0", 0)):
            text = form.text("%da", controls(form, scale, layout, layout, signs))
            got = run(form, f"wgmma.fence.sync.aligned; {text} {TAIL}", a, b, c, (layout, layout))
            check(form, got, sign * product + keeps * c)


@pytest.mark.parametrize("suffix", ["", ".satfinite"])
def test_integers_wrap_or_saturate(suffix: str) -> None:
    form, layout = Form(32, "s32", "s8", "s8"), K_MAJOR[2]
    a, b = np.full((64, 32), 127, np.int8), np.full((32, 32), 127, np.int8)
    c = np.full((64, 32), 2**31 - 5, np.int32)
    got = run(form, f"wgmma.fence.sync.aligned; {form.text('%da', '%keep', suffix)} {TAIL}", a, b,
              c, (layout, layout))
    wrapped = (2**31 - 5 + 32 * 127 * 127 + 2**31) % 2**32 - 2**31
    assert (got == (2**31 - 1 if suffix else wrapped)).all()


def test_special_values() -> None:
    form, layout = Form(8, "f32", "bf16", "bf16"), K_MAJOR[3]
    a, b = np.zeros((64, 16), ml_dtypes.bfloat16), np.zeros((8, 16), ml_dtypes.bfloat16)
    a[0, 0], a[1, 0], b[0, 0], b[1, 0] = np.inf, np.nan, 1, np.inf
    text = form.text("%da", controls(form, "0", layout, layout))
    got = run(form, f"wgmma.fence.sync.aligned; {text} {TAIL}", a, b, np.zeros((64, 8), np.float32),
              (layout, layout))
    want = np.zeros((64, 8))
    want[0], want[:, 1], want[1], want[0, 0], want[0, 1] = np.nan, np.nan, np.nan, np.inf, np.inf
    want[0, 2:] = np.nan  # infinity times 0
    assert np.array_equal(got, want, equal_nan=True)
    assert (got.view(np.uint32)[np.isnan(got)] == 0x7FFFFFFF).all()


PAIR = Form(8, "f32", "bf16", "bf16")


def pair(body: str, seed: int | None = None) -> Array:
    """Runs a body in which {w} stands for an accumulating wgmma; the matrices are all ones."""
    layout = K_MAJOR[3]
    text = PAIR.text("%da", controls(PAIR, "%keep", layout, layout))
    rs = PAIR.text("{%a0, %a1, %a2, %a3}", controls(PAIR, "%keep", None, layout))
    ones = np.ones((64, 16), ml_dtypes.bfloat16)
    body = body.format(w=text, rs=rs, f="wgmma.fence.sync.aligned;",
                       c="wgmma.commit_group.sync.aligned;", t="wgmma.wait_group.sync.aligned")
    return run(PAIR, body, ones, ones[:8], np.zeros((64, 8), np.float32), (layout, layout), seed)


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_groups_accumulate_in_order(seed: int | None) -> None:
    assert (pair("{f} {w} {c} {w} {w} {c} {t} 1; {w} {c} {t} 0;", seed) == 64).all()


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_warps_wait_at_times_of_their_own(seed: int | None) -> None:
    """Half of the warps come later to the product, and each goes on after its own wait."""
    body = """setp.lt.u32 %p1, %t, 64; mov.u32 %r1, 0; @%p1 bra GO;
L:  add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 9; @%p2 bra L;
GO: {f} {w} {c} {t} 0; mov.u32 %r1, 0;
M:  add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 9; @%p2 bra M;
    add.f32 %d0, %d0, %d0; {f} {w} {c} {t} 0;"""
    got = pair(body, seed)
    g = np.arange(64) % 16 < 8  # rows of the first accumulator, whose columns are even
    assert (got[g][:, ::2] == 48).all() and (got[g][:, 1::2] == 32).all()
    assert (got[~g] == 32).all()


def test_shared_memory_is_read_as_late_as_the_wait() -> None:
    """A store into an operand between issue and wait spoils the result without a seed."""
    spoil = "{f} {w} {c} {t} N; bar.sync 0; mov.u32 %r1, 0; @%first st.shared.b32 [%tile], %r1; "
    spoil += "bar.sync 0; {t} 0;"
    assert (pair(spoil.replace("N", "0")) == 16).all()
    assert pair(spoil.replace("N", "1")).min() == 14
    assert {float(pair(spoil.replace("N", "1"), seed).min()) for seed in range(12)} == {14, 16}


@pytest.mark.parametrize(("body", "message"), [
    ("{w} {c} {t} 0;", "register %d0, accessed since the last wgmma.fence, or before the first"),
    ("{f} {w} {c} {t} 0; add.f32 %d2, %d2, %d2; {w} {c} {t} 0;", "register %d2, accessed since"),
    ("{f} {w} {c} {t} 0; mov.b32 %r1, %d3; {w} {c} {t} 0;", "register %d3, accessed since"),
    ("{f} {w} {c} add.f32 %d1, %d1, %d1; {t} 0;", r"touches the accumulator %d1 of a wgmma that no "
     r"wgmma.wait_group has covered \(PTX line \d+: wgmma"),
    ("{f} {w} {c} {w} {c} {t} 1; mov.b32 %r1, %d0; {t} 0;", "touches the accumulator %d0"),
    ("{f} {w} {t} 0; mov.b32 %r1, %d0;", "touches the accumulator %d0"),
    ("{f} {rs} {c} mov.b32 %a1, 0; {t} 0;", "writes the operand %a1"),
    ("setp.lt.u32 %p1, %t, 32; {f} @%p1 {w} {c} {t} 0;", "deadlock.*\n.*warp 0 for other warps of "
     "their warpgroup"),
    ("{f} mov.b64 %da, 0x4000; {w}", "bits set that must be 0"),
    ("{f} mov.b64 %da, 16; {w}", "reaches from 0x100"),
    ("{f} cvt.u64.u32 %rd9, %t; add.u64 %da, %da, %rd9; {w}", "differs between the threads"),
])
def test_errors(body: str, message: str) -> None:
    with pytest.raises(SimError, match=re.compile(message)) as caught:
        pair(body)
    assert caught.value.ptx_line


def test_a_read_of_the_a_registers_in_flight_is_fine() -> None:
    assert (pair("{f} {rs} {c} mov.b32 %r1, %a1; {t} 0;") == 16).all()


@pytest.mark.parametrize("text", [
    "m64n8k16.f32.bf16.f16", "m64n12k16.f32.bf16.bf16", "m64n264k16.f32.bf16.bf16",
    "m64n40k32.s32.s8.s8", "m64n8k8.f32.bf16.bf16", "m64n8k256.s32.b1.b1.and.popc",
    "m64n8k16.f16.bf16.bf16", "m64n8k16.f32.bf16.bf16.satfinite",
])
def test_unsupported_forms(text: str) -> None:
    line = f"wgmma.mma_async.sync.aligned.{text} {{%r1, %r2, %r3, %r4}}, %rd1, %rd2, 1, 1, 1, 0, 0;"
    (error,) = sim.unsupported(hopper(line, "u64"))
    assert "does not know wgmma" in str(error)
