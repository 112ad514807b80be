"""Loads and stores of every space and width, host arrays in and out, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.sim.programs import program
from tilec import sim

Array = np.ndarray[Any, Any]
ONE = (1, 1, 1)


def run(body: str, args: list[Any], params: str = "u64 u64", grid: Any = ONE, **more: Any) -> None:
    outside = more.pop("outside", "")
    block = more.pop("block", 64)
    sim.run(program(body, params, block, outside), "k", args, grid, **more)


def failure(body: str, args: list[Any], params: str = "u64 u64", **more: Any) -> str:
    with pytest.raises(sim.SimError) as caught:
        run(body, args, params, **more)
    return str(caught.value)


@pytest.mark.parametrize("seed", [-1, 1.5, "1"])
def test_seeds_are_natural_numbers(seed: Any) -> None:
    out = np.zeros(64, np.int32)
    assert "expected an integer of 0 or more" in failure("", [out], "u64", seed=seed)


def test_widths_and_extension() -> None:
    data = np.random.default_rng(0).integers(0, 256, 1024).astype(np.uint8)
    for ty, kind in (("u8", np.uint8), ("s8", np.int8), ("u16", np.uint16), ("s16", np.int16)):
        out = np.zeros(64, np.int32)
        size = np.dtype(kind).itemsize
        run(f"ld.param.u64 %rd1, [p1]; mad.wide.u32 %rd1, %t, {size}, %rd1;"
            f"ld.global.{ty} %r1, [%rd1]; st.global.u32 [%o], %r1;", [out, data])  # fmt: skip
        assert np.array_equal(out, data.view(kind)[:64].astype(np.int32))


@pytest.mark.parametrize(("vector", "count"), [
    ("v2.b32", 2), ("v4.b32", 4), ("v2.b64", 4), ("v4.u16", 2), ("v8.b32", 8), ("v4.u8", 1),
])  # fmt: skip
def test_vectors(vector: str, count: int) -> None:
    data = np.random.default_rng(1).integers(0, 1 << 32, 64 * count, np.uint32)
    out = np.zeros_like(data)
    ty = vector.split(".")[1]
    regs = {"b32": "%r", "b64": "%rd", "u16": "%h", "u8": "%h"}[ty]
    names = ", ".join(f"{regs}{i + 5}" for i in range(int(vector[1])))
    run(f"ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p0]; mul.wide.u32 %rd3, %t, {4 * count};"
        f"add.s64 %rd1, %rd1, %rd3; add.s64 %rd2, %rd2, %rd3;"
        f"ld.global.nc.L1::no_allocate.L2::128B.{vector} {{{names}}}, [%rd1];"
        f"st.global.cs.{vector} [%rd2], {{{names}}};", [out, data])  # fmt: skip
    assert np.array_equal(out, data)


def test_scopes_hints_and_policies() -> None:
    data = np.arange(64, dtype=np.uint32)
    out = np.zeros_like(data)
    run("createpolicy.fractional.L2::evict_last.b64 %rd9, 1.0;"
        "prefetch.global.L2 [%i]; prefetchu.L1 [%i];"
        "ld.relaxed.gpu.global.u32 %r1, [%i]; ld.acquire.sys.global.u32 %r2, [%i];"
        "ld.volatile.global.u32 %r3, [%i];"
        "ld.global.L1::evict_last.L2::cache_hint.u32 %r4, [%i], %rd9;"
        "add.u32 %r5, %r1, %r2; add.u32 %r5, %r5, %r3; add.u32 %r5, %r5, %r4;"
        "st.release.gpu.global.u32 [%o], %r5; fence.acq_rel.gpu; membar.gl;"
        "st.global.L2::cache_hint.u32 [%o], %r5, %rd9;", [out, data])  # fmt: skip
    assert np.array_equal(out, 4 * data)


def test_generic_reaches_every_space() -> None:
    """One generic load whose lanes read global, shared, local and parameter memory."""
    out, data = np.zeros(64, np.uint32), np.arange(100, 164, dtype=np.uint32)
    run("""
        .local .align 4 .b8 frame[8];
        mov.u32 %r1, s; shl.b32 %r2, %t, 2; add.u32 %r1, %r1, %r2; add.u32 %r3, %t, 1000;
        st.shared.u32 [%r1], %r3; add.u32 %r3, %t, 2000; st.local.u32 [frame+4], %r3;
        cvt.u64.u32 %rd1, %r1; cvta.shared.u64 %rd2, %rd1;
        mov.u64 %rd3, frame; cvta.local.u64 %rd3, %rd3; add.s64 %rd3, %rd3, 4;
        mov.b64 %rd5, p2; cvta.param.u64 %rd5, %rd5;
        and.b32 %r4, %t, 3; mov.b64 %rd4, %i;
        setp.eq.u32 %p1, %r4, 1; @%p1 mov.b64 %rd4, %rd2;
        setp.eq.u32 %p2, %r4, 2; @%p2 mov.b64 %rd4, %rd3;
        setp.eq.u32 %p3, %r4, 3; @%p3 mov.b64 %rd4, %rd5;
        isspacep.shared %p4, %rd4; isspacep.local %p5, %rd4; isspacep.global %p6, %rd4;
        ld.u32 %r5, [%rd4];
        @%p4 add.u32 %r5, %r5, 10000; @%p5 add.u32 %r5, %r5, 20000; @%p6 add.u32 %r5, %r5, 30000;
        cvta.to.shared.u64 %rd6, %rd2; setp.ne.u64 %p7, %rd6, %rd1; @%p7 trap;
        st.u32 [%o], %r5;""",
        [out, data, 77], "u64 u64 u32", outside=".shared .align 16 .b8 s[256];")  # fmt: skip
    lane = np.arange(64)
    want = np.choose(lane % 4, [30000 + 100 + lane, 10000 + 1000 + lane, 20000 + 2000 + lane, 77])
    assert np.array_equal(out, want)


def test_shared_static_and_dynamic() -> None:
    out, data = np.zeros(64, np.uint32), np.arange(64, dtype=np.uint32)
    body = """
        mov.u32 %r1, dyn; shl.b32 %r2, %t, 2; add.u32 %r1, %r1, %r2;
        ld.global.u32 %r3, [%i]; st.shared.u32 [%r1], %r3; st.shared.u32 [fixed], 5;
        bar.sync 0;
        xor.b32 %r2, %r2, 252; mov.u32 %r1, dyn; add.u32 %r1, %r1, %r2;
        ld.shared.u32 %r4, [%r1]; ld.shared.u32 %r5, [fixed]; add.u32 %r4, %r4, %r5;
        st.global.u32 [%o], %r4;"""
    outside = ".extern .shared .align 128 .b8 dyn[]; .shared .align 4 .u32 fixed;"
    run(body, [out, data], shared_bytes=256 + 124, outside=outside)
    assert np.array_equal(out, data[::-1] + 5)
    text = failure(body, [out, data], shared_bytes=128, outside=outside)
    assert "out-of-bounds store to shared address" in text and "thread 32 " in text


def test_constants_and_initialised_globals() -> None:
    out = np.zeros(64, np.uint32)
    outside = """
.const .align 4 .b32 table[4] = {10, 20, 0f3F800000, 40};
.visible .global .align 4 .u32 counter = 7;
.global .align 8 .u64 pointer = table;
.global .align 1 .b8 text[6] = {104, 101, 108, 108, 111, 0};
.global .align 8 .u64 inside[2] = {generic(table)+4, counter};
"""
    run("""
        and.b32 %r1, %t, 3; mul.wide.u32 %rd1, %r1, 4;
        mov.u64 %rd2, table; add.s64 %rd1, %rd1, %rd2;
        ld.const.u32 %r2, [%rd1]; ld.global.u32 %r3, [counter]; add.u32 %r2, %r2, %r3;
        ld.global.u64 %rd3, [pointer]; ld.u32 %r4, [%rd3+4]; add.u32 %r2, %r2, %r4;
        ld.global.u8 %r5, [text+4]; add.u32 %r2, %r2, %r5;
        ld.global.u64 %rd4, [inside]; ld.global.u32 %r6, [%rd4]; add.u32 %r2, %r2, %r6;
        isspacep.const %p1, %rd2; @!%p1 trap;
        st.global.u32 [%o], %r2;""", [out], "u64", outside=outside)  # fmt: skip
    table = np.array([10, 20, 0x3F800000, 40])
    assert np.array_equal(out, table[np.arange(64) % 4] + 7 + 20 + ord("o") + 20)
    assert "read-only" in failure("mov.u64 %rd2, table; st.global.u32 [%rd2], 1;", [out], "u64",
                                  outside=outside)
    assert "an access to .global that names a .const variable" in failure(
        "st.global.u32 [table], 1;", [out], "u64", outside=outside)


def test_parameters() -> None:
    out = np.zeros(64, np.float32)
    body = """
        .reg .f32 %f<4>; .reg .f64 %d;
        ld.param.f32 %f1, [p1]; ld.param.f64 %d, [p2]; cvt.rn.f32.f64 %f2, %d;
        add.f32 %f1, %f1, %f2; ld.param.s8 %r1, [p3]; cvt.rn.f32.s32 %f2, %r1;
        add.f32 %f1, %f1, %f2;
        ld.param.s64 %rd1, [p4]; cvt.rn.f32.s64 %f2, %rd1; add.f32 %f1, %f1, %f2;
        st.global.f32 [%o], %f1;"""
    run(body, [out, 0.5, np.float64(0.25), True, -7], "u64 f32 f64 u8 s64")
    assert (out == 0.75 + 1 - 7).all()
    with pytest.raises(sim.SimError, match="takes 5 arguments, 2 given"):
        run(body, [out, 0.5], "u64 f32 f64 u8 s64")
    with pytest.raises(sim.SimError, match="argument 3: 300 does not fit"):
        run(body, [out, 0.5, 0.25, 300, -7], "u64 f32 f64 u8 s64")
    with pytest.raises(sim.SimError, match="argument 4: a str"):
        run(body, [out, 0.5, 0.25, 1, "x"], "u64 f32 f64 u8 s64")


def test_float_for_bits_and_struct() -> None:
    """LLVM declares float parameters as bits; structs come as bytes."""
    out = np.zeros(64, np.uint32)
    text = program(
        "ld.param.b32 %r1, [p1]; ld.param.b16 %h1, [p2]; cvt.u32.u16 %r2, %h1;"
        "add.u32 %r1, %r1, %r2; ld.param.u32 %r3, [p3+8]; add.u32 %r1, %r1, %r3;"
        "st.global.u32 [%o], %r1;", "u64 b32 b16 u32"
    ).replace(".param .u32 p3", ".param .align 8 .b8 p3[16]")  # fmt: skip
    struct = np.array([1, 2, 3, 4], np.uint32)
    sim.run(text, "k", [out, 1.0, ml_dtypes.bfloat16(2.0), struct], ONE)
    assert (out == 0x3F800000 + 0x4000 + 3).all()
    sim.run(text, "k", [out, np.float32(1.0), np.float16(2.0), struct.tobytes()], ONE)
    assert (out == 0x3F800000 + 0x4000 + 3).all()


COPY = "ld.global.u32 %r1, [%i]; st.global.u32 [%o], %r1;"


def test_views_and_aliases() -> None:
    base = np.arange(200, dtype=np.uint32)
    out = np.zeros(64, np.uint32)
    run(COPY, [out, base[10:74]])
    assert np.array_equal(out, base[10:74])
    # The view's buffer is the allocation: what lies after the view can be read.
    run("ld.global.u32 %r1, [%i+40]; st.global.u32 [%o], %r1;", [out, base[10:20]])
    assert np.array_equal(out, base[20:84])
    # The same buffer twice is the same memory.
    shared = np.arange(128, dtype=np.uint32)
    run("st.global.u32 [%o], 9; bar.sync 0; ld.global.u32 %r1, [%i]; st.global.u32 [%o], %r1;",
        [shared[:64], shared[32:]])  # fmt: skip
    assert np.array_equal(shared[:64], np.r_[np.full(32, 9), np.arange(64, 96)])
    backwards = np.arange(64, dtype=np.uint32)[::-1]
    run("mul.wide.u32 %rd1, %t, 8; sub.s64 %i, %i, %rd1;" + COPY, [out, backwards])
    assert np.array_equal(out, backwards)


def test_alignment_follows_the_host() -> None:
    buffer = np.zeros(64 * 4 + 32, np.uint8)
    skew = -buffer.ctypes.data % 16
    out = np.zeros(64, np.uint64)
    for shift in (0, 4, 8):
        part = buffer[skew + shift : skew + shift + 256].view(np.uint32)
        run("ld.param.u64 %rd1, [p1]; and.b64 %rd1, %rd1, 15; ld.param.u64 %rd2, [p0];"
            "mad.wide.u32 %rd2, %t, 8, %rd2; st.global.u64 [%rd2], %rd1;", [out, part])  # fmt: skip
        assert (out == shift).all()


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16])
def test_small_types(kind: Any) -> None:
    data = np.arange(64).astype(kind)
    out = np.zeros(64, kind)
    size = data.itemsize
    run(f"ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p0]; mul.wide.u32 %rd3, %t, {size};"
        "add.s64 %rd1, %rd1, %rd3; add.s64 %rd2, %rd2, %rd3;"
        f"ld.global.b{8 * size} %h1, [%rd1]; st.global.b{8 * size} [%rd2], %h1;",
        [out, data])  # fmt: skip
    assert np.array_equal(out.view(f"u{size}"), data.view(f"u{size}"))


def test_grid_and_seed() -> None:
    for seed in (None, 1, 2):
        data = np.arange(6 * 64, dtype=np.uint32)
        out = np.zeros_like(data)
        run("mov.u32 %r1, %ctaid.y; mov.u32 %r2, %nctaid.x; mad.lo.u32 %r1, %r1, %r2, %c;"
            "mad.lo.u32 %r1, %r1, 64, %t; mul.wide.u32 %rd1, %r1, 4; ld.param.u64 %rd2, [p0];"
            "add.s64 %rd2, %rd2, %rd1; st.global.u32 [%rd2], %r1;", [out, data], grid=(3, 2, 1),
            seed=seed)  # fmt: skip
        assert np.array_equal(out, data)


def test_empty_and_null() -> None:
    out = np.zeros(64, np.uint32)
    run("st.global.u32 [%o], 1;", [out, np.zeros(0, np.float32)])
    text = failure(COPY, [out, np.zeros(0, np.uint32)])
    assert "argument 1 (0 bytes)" in text
    text = failure("ld.param.u64 %rd1, [p1]; ld.u32 %r1, [%rd1];", [out, None])
    assert "a null or stray pointer" in text


FILE, LOC = '.file 1 "/k.py"', ".loc 1 12 3\n"


def test_out_of_bounds_says_where() -> None:
    out, data = np.zeros(64, np.uint32), np.zeros(60, np.uint32)
    text = failure(LOC + COPY, [out, data], outside=FILE)
    assert "/k.py:12:3: k, CTA (0, 0, 0): thread 60 (warp 1)" in text
    assert "0 bytes past the end of argument 1 (240 bytes)" in text
    assert "PTX line 15, column 1: ld.global.u32 %r1, [%i];" in text
    # LLVM writes .file behind the kernel.
    late = program(LOC + COPY) + FILE
    with pytest.raises(sim.SimError, match="/k.py:12:3: k, CTA"):
        sim.run(late, "k", [out, data], ONE)
    text = failure(COPY, [out, data], names=["out_ptr", "x_ptr"])
    assert "0 bytes past the end of x_ptr (240 bytes)" in text
    text = failure("st.global.u32 [%o+-8], 1;", [out, data])
    assert "store to global" in text and "8 bytes before argument 0" in text


@pytest.mark.parametrize(("access", "said"), [
    ("ld.local.u32 %r1, [frame+16];", "read of local address 0x10"),
    ("st.local.u64 [frame+12], %rd1;", "store to local address 0xc"),
])
def test_beyond_a_threads_own_memory(access: str, said: str) -> None:
    frame = ".local .align 4 .b8 frame[16]; st.local.u32 [frame+12], %t; mov.u64 %rd1, 0; "
    run(frame, [np.zeros(64, np.uint32)], "u64")
    text = failure(frame + access, [np.zeros(64, np.uint32)], "u64")
    assert f"out-of-bounds {said}" in text and "a thread has 16 bytes" in text


def test_misaligned() -> None:
    out = np.zeros(64, np.uint32)
    text = failure("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%i];", [out, np.zeros(300, np.uint32)])
    assert "misaligned global address" in text and "a 16-byte access" in text
    assert "byte 4 of argument 1" in text


def test_read_only_host_array() -> None:
    data = np.zeros(64, np.uint32)
    data.flags.writeable = False
    out = np.zeros(64, np.uint32)
    run(COPY, [out, data])
    assert "argument 1, which is read-only" in failure("st.global.u32 [%i], 1;", [out, data])


def test_unwritten_memory_is_nan() -> None:
    out = np.zeros(64, np.float32)
    run("ld.shared.b32 %r1, [s]; st.global.b32 [%o], %r1;", [out], "u64",
        outside=".shared .align 4 .f32 s;")  # fmt: skip
    assert np.isnan(out).all()


def test_edges_of_the_allocation_of_another_argument():
    data = np.zeros(100, np.uint32)
    out = np.zeros(2, np.uint64)
    text = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 o, .param .u64 begin, .param .u64 end)
.reqntid 1
{
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [o];
    ld.param.u64 %rd3, [begin];
    ld.param.u64 %rd4, [end];
    sub.u64 %rd5, %rd1, %rd3;
    sub.u64 %rd6, %rd4, %rd1;
    st.global.u64 [%rd2], %rd5;
    st.global.u64 [%rd2+8], %rd6;
    ret;
}
"""
    edges = [sim.AllocationEdge(0, False), sim.AllocationEdge(0, True)]
    sim.run(text, "k", [data[10:20], out, *edges], ONE)
    np.testing.assert_array_equal(out, [40, 360])  # the view's base, all of it
