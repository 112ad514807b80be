"""PTX as LLVM's back end writes it, for several targets, against numpy."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest

from tilec import sim

Array = np.ndarray[Any, Any]
TARGETS = [("sm_80", "+ptx70"), ("sm_90a", "+ptx87"), ("sm_100a", "+ptx86"), ("sm_120a", "+ptx87")]
ONE = (1, 1, 1)


def compile_ir(body: str, cpu: str, features: str, level: int = 3) -> str:
    """PTX of LLVM IR text."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    machine = target.create_target_machine(cpu=cpu, features=features, opt=level)
    module = llvm.parse_assembly(body)
    module.triple = "nvptx64-nvidia-cuda"
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    text: str = machine.emit_assembly(module)
    return text


def kernel(body: str, args: str, block: int = 128, outside: str = "") -> str:
    return f"""
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare float @llvm.nvvm.shfl.sync.bfly.f32(i32, float, i32, i32)
declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32)
{outside}
define ptx_kernel void @k({args}) "nvvm.reqntid"="{block}" {{
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %cta = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
{body}
}}
"""


def run(text: str, args: list[Any], target: tuple[str, str], grid: Any = ONE, **more: Any) -> str:
    ptx = compile_ir(text, *target, more.pop("level", 3))
    assert sim.unsupported(ptx) == []
    sim.run(ptx, "k", args, grid, **more)
    return ptx


@pytest.fixture(params=TARGETS, ids=lambda t: t[0])
def target(request: pytest.FixtureRequest) -> tuple[str, str]:
    pair: tuple[str, str] = request.param
    return pair


HALF = """
  %off = mul i32 %tid, 8
  %p = getelementptr TYPE, ptr addrspace(1) %x, i32 %off
  %q = getelementptr TYPE, ptr addrspace(1) %y, i32 %off
  %r = getelementptr TYPE, ptr addrspace(1) %o, i32 %off
  %a = load <8 x TYPE>, ptr addrspace(1) %p, align 16
  %b = load <8 x TYPE>, ptr addrspace(1) %q, align 16
  %s = fadd <8 x TYPE> %a, %b
  %m = fmul <8 x TYPE> %s, %a
  %f = call <8 x TYPE> @llvm.fma.v8TY(<8 x TYPE> %m, <8 x TYPE> %b, <8 x TYPE> %a)
  %n = fneg <8 x TYPE> %f
  %x1 = call <8 x TYPE> @llvm.maxnum.v8TY(<8 x TYPE> %n, <8 x TYPE> %b)
  %x2 = call <8 x TYPE> @llvm.minimum.v8TY(<8 x TYPE> %x1, <8 x TYPE> %a)
  %w = fpext <8 x TYPE> %x2 to <8 x float>
  %e = fmul <8 x float> %w, splat (float 3.0)
  %h = fptrunc <8 x float> %e to <8 x TYPE>
  store <8 x TYPE> %h, ptr addrspace(1) %r, align 16
  ret void
"""


@pytest.mark.parametrize("kind", ["half", "bfloat"])
def test_half_vectors(kind: str, target: tuple[str, str]) -> None:
    short = {"half": "f16", "bfloat": "bf16"}[kind]
    outside = "\n".join(
        f"declare <8 x {kind}> @llvm.{f}.v8{short}({', '.join([f'<8 x {kind}>'] * n)})"
        for f, n in (("fma", 3), ("maxnum", 2), ("minimum", 2))
    )
    body = HALF.replace("TYPE", kind).replace("v8TY", f"v8{short}")
    dtype = np.float16 if kind == "half" else ml_dtypes.bfloat16
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(1024).astype(np.float32).astype(dtype) for _ in range(2))
    x[5], y[9], x[17], y[17] = np.nan, np.nan, np.inf, -np.inf
    out = np.zeros_like(x)
    ptr = "ptr addrspace(1) align 16"
    run(kernel(body, f"{ptr} %x, {ptr} %y, {ptr} %o", outside=outside), [x, y, out], target)
    with np.errstate(all="ignore"):
        a, b = x.astype(np.float64), y.astype(np.float64)
        s = (a + b).astype(dtype).astype(np.float64)
        m = (s * a).astype(dtype).astype(np.float64)
        f = -(m * b + a).astype(np.float32).astype(dtype).astype(np.float64)
        low = np.minimum(np.fmax(f, b), a)
        want = (low.astype(np.float32) * np.float32(3)).astype(dtype)
    both = ~np.isnan(want.astype(np.float32))
    assert np.array_equal(np.isnan(out.astype(np.float32)), ~both)
    close = np.isclose(out.astype(np.float32)[both], want.astype(np.float32)[both], rtol=1e-2)
    exact = out[both] == want[both]
    assert close.all() and exact.mean() > 0.99  # the reference's fma rounds twice


SOFTMAX = """
  %row = mul i32 %cta, %n
  br label %max
max:
  %i = phi i32 [%tid, %entry], [%i2, %maxnext]
  %m = phi float [0xFFF0000000000000, %entry], [%m2, %maxnext]
  %in = icmp slt i32 %i, %n
  br i1 %in, label %maxnext, label %maxdone
maxnext:
  %ia = add i32 %row, %i
  %ip = getelementptr float, ptr addrspace(1) %x, i32 %ia
  %v = load float, ptr addrspace(1) %ip
  %m2 = call float @llvm.maxnum.f32(float %m, float %v)
  %i2 = add i32 %i, 128
  br label %max
maxdone:
  %mm = call float @reduce(float %m, i1 true)
  br label %sum
sum:
  %j = phi i32 [%tid, %maxdone], [%j2, %sumnext]
  %s = phi float [0.0, %maxdone], [%s2, %sumnext]
  %jn = icmp slt i32 %j, %n
  br i1 %jn, label %sumnext, label %sumdone
sumnext:
  %ja = add i32 %row, %j
  %jp = getelementptr float, ptr addrspace(1) %x, i32 %ja
  %u = load float, ptr addrspace(1) %jp
  %d = fsub float %u, %mm
  %d2 = fmul float %d, 0x3FF7154760000000
  %e = call float @llvm.exp2.f32(float %d2)
  %jo = getelementptr float, ptr addrspace(1) %o, i32 %ja
  store float %e, ptr addrspace(1) %jo
  %s2 = fadd float %s, %e
  %j2 = add i32 %j, 128
  br label %sum
sumdone:
  %ss = call float @reduce(float %s, i1 false)
  br label %div
div:
  %k = phi i32 [%tid, %sumdone], [%k2, %divnext]
  %kn = icmp slt i32 %k, %n
  br i1 %kn, label %divnext, label %done
divnext:
  %ka = add i32 %row, %k
  %ko = getelementptr float, ptr addrspace(1) %o, i32 %ka
  %w = load float, ptr addrspace(1) %ko
  %z = fdiv float %w, %ss
  store float %z, ptr addrspace(1) %ko
  %k2 = add i32 %k, 128
  br label %div
done:
  ret void
"""
REDUCE = """
@buf = internal addrspace(3) global [4 x float] undef, align 16
declare float @llvm.maxnum.f32(float, float)
declare float @llvm.exp2.f32(float)
define internal float @reduce(float %v, i1 %max) INLINE {
entry:
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  br label %loop
loop:
  %a = phi float [%v, %entry], [%c, %loop]
  %d = phi i32 [16, %entry], [%d2, %loop]
  %b = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %a, i32 %d, i32 31)
  %x = call float @llvm.maxnum.f32(float %a, float %b)
  %y = fadd float %a, %b
  %c = select i1 %max, float %x, float %y
  %d2 = lshr i32 %d, 1
  %more = icmp ne i32 %d2, 0
  br i1 %more, label %loop, label %share
share:
  %warp = lshr i32 %tid, 5
  %lane = and i32 %tid, 31
  %first = icmp eq i32 %lane, 0
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  br i1 %first, label %write, label %wait
write:
  %p = getelementptr float, ptr addrspace(3) @buf, i32 %warp
  store float %c, ptr addrspace(3) %p
  br label %wait
wait:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %all = load <4 x float>, ptr addrspace(3) @buf, align 16
  %e0 = extractelement <4 x float> %all, i32 0
  %e1 = extractelement <4 x float> %all, i32 1
  %e2 = extractelement <4 x float> %all, i32 2
  %e3 = extractelement <4 x float> %all, i32 3
  %m1 = call float @llvm.maxnum.f32(float %e0, float %e1)
  %m2 = call float @llvm.maxnum.f32(float %e2, float %e3)
  %m3 = call float @llvm.maxnum.f32(float %m1, float %m2)
  %s1 = fadd float %e0, %e1
  %s2 = fadd float %e2, %e3
  %s3 = fadd float %s1, %s2
  %r = select i1 %max, float %m3, float %s3
  ret float %r
}
"""


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("inline", ["alwaysinline", "noinline"])
def test_softmax(inline: str, seed: int | None, target: tuple[str, str]) -> None:
    """Loops with ragged trip counts, shuffles, shared memory, barriers, and real calls."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 300)).astype(np.float32)
    out = np.zeros_like(x)
    text = kernel(SOFTMAX, "ptr addrspace(1) %x, ptr addrspace(1) %o, i32 %n",
                  outside=REDUCE.replace("INLINE", inline))  # fmt: skip
    ptx = run(text, [x, out, 300], target, (3, 1, 1), seed=seed)
    assert ("call.uni" in ptx) == (inline == "noinline")
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    assert np.allclose(out, e / e.sum(axis=1, keepdims=True), rtol=1e-5)


INTEGERS = """
  %p = getelementptr i32, ptr addrspace(1) %x, i32 %tid
  %a = load i32, ptr addrspace(1) %p
  %q = getelementptr i32, ptr addrspace(1) %y, i32 %tid
  %b = load i32, ptr addrspace(1) %q
  %d = sdiv i32 %a, %b
  %r = srem i32 %a, 7
  %u = udiv i32 %a, 10
  %l = call i32 @llvm.ctlz.i32(i32 %a, i1 false)
  %t = call i32 @llvm.cttz.i32(i32 %a, i1 false)
  %c = call i32 @llvm.ctpop.i32(i32 %b)
  %v = call i32 @llvm.bitreverse.i32(i32 %b)
  %w = call i32 @llvm.bswap.i32(i32 %a)
  %f = call i32 @llvm.fshl.i32(i32 %a, i32 %b, i32 9)
  %g = call i32 @llvm.abs.i32(i32 %a, i1 false)
  %h = call i32 @llvm.sadd.sat.i32(i32 %a, i32 %b)
  %m = call i32 @llvm.smax.i32(i32 %a, i32 %b)
  %bt = trunc i32 %a to i8
  %bs = sext i8 %bt to i32
  %ht = trunc i32 %b to i16
  %hq = mul i16 %ht, %ht
  %hz = zext i16 %hq to i32
  %aw = sext i32 %a to i64
  %bw = sext i32 %b to i64
  %mw = mul i64 %aw, %bw
  %sw = ashr i64 %mw, 13
  %dw = sdiv i64 %mw, 1000003
  %qw = urem i64 %mw, 977
  %tw0 = xor i64 %sw, %dw
  %tw1 = xor i64 %tw0, %qw
  %tw = trunc i64 %tw1 to i32
  %bb = lshr i32 %a, 5
  %bf = and i32 %bb, 511
  %sh = and i32 %b, 31
  %sl = shl i32 %a, %sh
  %sa = ashr i32 %a, %sh
"""
NAMES = "d r u l t c v w f g h m bs hz tw bf sl sa".split()


def test_integers(target: tuple[str, str]) -> None:
    stores = "".join(
        f"  %o{i} = getelementptr i32, ptr addrspace(1) %o, i32 {i * 128}\n"
        f"  %oo{i} = getelementptr i32, ptr addrspace(1) %o{i}, i32 %tid\n"
        f"  store i32 %{name}, ptr addrspace(1) %oo{i}\n"
        for i, name in enumerate(NAMES)
    )
    outside = "\n".join(
        [f"declare i32 @llvm.{f}.i32(i32, i1)" for f in ("ctlz", "cttz", "abs")]
        + [f"declare i32 @llvm.{f}.i32(i32)" for f in ("ctpop", "bitreverse", "bswap")]
        + [f"declare i32 @llvm.{f}.i32(i32, i32)" for f in ("sadd.sat", "smax")]
        + ["declare i32 @llvm.fshl.i32(i32, i32, i32)"]
    )
    rng = np.random.default_rng(2)
    a = (rng.integers(-(2**31), 2**31, 128) >> rng.integers(0, 31, 128)).astype(np.int32)
    b = rng.integers(1, 2**31, 128).astype(np.int32) >> rng.integers(0, 28, 128).astype(np.int32)
    b = np.maximum(b, 1)
    a[:3] = [0, -1, -(2**31)]
    out = np.zeros((len(NAMES), 128), np.uint32)
    ptr = "ptr addrspace(1)"
    args = f"{ptr} %x, {ptr} %y, {ptr} %o"
    text = kernel(INTEGERS + stores + "  ret void", args, outside=outside)
    run(text, [a, b, out], target)
    mask = 0xFFFFFFFF
    for i, (x, y) in enumerate(zip(a.tolist(), b.tolist())):
        ux, quotient = x & mask, abs(x) // y * (1 if x >= 0 else -1)
        wide = x * y
        dw = abs(wide) // 1000003 * (1 if wide >= 0 else -1)
        want = {
            "d": quotient, "r": x - (abs(x) // 7 * (1 if x >= 0 else -1)) * 7, "u": ux // 10,
            "l": 32 - ux.bit_length(), "t": (ux & -ux).bit_length() - 1 if ux else 32,
            "c": y.bit_count(), "v": int(f"{y:032b}"[::-1], 2),
            "w": int.from_bytes(ux.to_bytes(4, "little"), "big"), "f": (ux << 9 | y >> 23),
            "g": abs(x), "h": min(2**31 - 1, x + y), "m": max(x, y), "bs": (x & 255 ^ 128) - 128,
            "hz": y * y & 0xFFFF, "tw": (wide >> 13) ^ dw ^ ((wide & 2**64 - 1) % 977),
            "bf": ux >> 5 & 511, "sl": x << (y & 31), "sa": x >> (y & 31),
        }  # fmt: skip
        got = {name: int(out[k, i]) for k, name in enumerate(NAMES)}
        assert got == {name: value & mask for name, value in want.items()}, (x, y)


SWITCH = """
  %sel = and i32 %tid, 7
  switch i32 %sel, label %other [ CASES ]
BLOCKS
other:
  br label %end
end:
  %v = phi i32 [-1, %other], PHIS
  %slot = alloca [16 x i32], align 4
  br label %fill
fill:
  %i = phi i32 [0, %end], [%i2, %fill]
  %w = mul i32 %i, %v
  %p = getelementptr [16 x i32], ptr %slot, i32 0, i32 %i
  store volatile i32 %w, ptr %p
  %i2 = add i32 %i, 1
  %m = icmp slt i32 %i2, 16
  br i1 %m, label %fill, label %read
read:
  %ix = and i32 %tid, 15
  %rp = getelementptr [16 x i32], ptr %slot, i32 0, i32 %ix
  %r = load volatile i32, ptr %rp
  %q = getelementptr i32, ptr addrspace(1) %o, i32 %tid
  store i32 %r, ptr addrspace(1) %q
  ret void
"""


@pytest.mark.parametrize("level", [0, 3])
def test_switch_and_local_memory(level: int, target: tuple[str, str]) -> None:
    cases = [1, 2, 3, 4, 6, 7]
    blocks = "\n".join(
        f"b{c}:\n  %pv{c} = getelementptr i32, ptr addrspace(1) %o, i32 {c}\n"
        f"  store volatile i32 {c}, ptr addrspace(1) %pv{c}\n"
        f"  %v{c} = mul i32 %tid, {c * c + 1}\n  br label %end" for c in cases
    )  # fmt: skip
    body = (
        SWITCH.replace("CASES", " ".join(f"i32 {c}, label %b{c}" for c in cases))
        .replace("BLOCKS", blocks)
        .replace("PHIS", ", ".join(f"[%v{c}, %b{c}]" for c in cases))
    )
    out = np.zeros(128, np.int32)
    run(kernel(body, "ptr addrspace(1) %o"), [out], target, level=level)
    want = [(t & 15) * (t * ((t & 7) ** 2 + 1) if (t & 7) in cases else -1) for t in range(128)]
    assert out.tolist() == want


ATOMICS = """
  %f = uitofp i32 %tid to float
  %h = fptrunc float 1.0 to half
  %a0 = atomicrmw fadd ptr addrspace(1) %x, float %f monotonic, align 4
  %p1 = getelementptr i32, ptr addrspace(1) %x, i32 1
  %a1 = atomicrmw max ptr addrspace(1) %p1, i32 %tid syncscope("device") acq_rel, align 4
  %p2 = getelementptr i32, ptr addrspace(1) %x, i32 2
  %a2 = atomicrmw add ptr addrspace(1) %p2, i32 %tid seq_cst, align 4
  %p3 = getelementptr i32, ptr addrspace(1) %x, i32 3
  %a3 = atomicrmw usub_sat ptr addrspace(1) %p3, i32 %tid monotonic, align 4
  %p4 = getelementptr i32, ptr addrspace(1) %x, i32 4
  %a4 = atomicrmw fadd ptr addrspace(1) %p4, half 0xH3C00 monotonic, align 4
  %p5 = getelementptr i32, ptr addrspace(1) %x, i32 5
  %a5 = atomicrmw fadd ptr addrspace(1) %p5, bfloat 0xR3F80 monotonic, align 4
  %p6 = getelementptr i32, ptr addrspace(1) %x, i32 6
  %a6 = atomicrmw fmax ptr addrspace(1) %p6, float %f monotonic, align 4
  %p8 = getelementptr i32, ptr addrspace(1) %x, i32 8
  %a8 = cmpxchg ptr addrspace(1) %p8, i32 0, i32 %tid acq_rel monotonic, align 4
  ret void
"""


def test_atomics(target: tuple[str, str]) -> None:
    """Native atomics where the target has them, compare-and-swap loops where not."""
    memory = np.zeros(16, np.uint32)
    memory[3] = 5000
    run(kernel(ATOMICS, "ptr addrspace(1) %x", 64), [memory], target)
    total = 63 * 64 // 2
    assert memory[0] == np.float32(total).view(np.uint32)
    assert memory[1] == 63 and memory[2] == total
    assert memory[3] == 5000 - total
    assert memory[4:6].view(np.uint16)[::2].tolist() == [0x5400, 0x4280]
    assert memory[6] == np.float32(63).view(np.uint32)
    assert memory[8] == 1  # thread 0 swaps 0 for 0, thread 1 its own number


def test_float8(target: tuple[str, str]) -> None:
    if target[0] == "sm_80":
        return  # e4m3 conversions start with sm_89
    body = """
  %o2 = mul i32 %tid, 2
  %p = getelementptr float, ptr addrspace(1) %x, i32 %o2
  %v = load <2 x float>, ptr addrspace(1) %p, align 8
  %a = extractelement <2 x float> %v, i32 0
  %b = extractelement <2 x float> %v, i32 1
  %e = call i16 @llvm.nvvm.ff.to.e4m3x2.rn(float %b, float %a)
  %q = getelementptr i16, ptr addrspace(1) %o, i32 %tid
  store i16 %e, ptr addrspace(1) %q
  %h = call <2 x half> @llvm.nvvm.e4m3x2.to.f16x2.rn(i16 %e)
  %w = fpext <2 x half> %h to <2 x float>
  store <2 x float> %w, ptr addrspace(1) %p, align 8
  ret void
"""
    outside = """
declare i16 @llvm.nvvm.ff.to.e4m3x2.rn(float, float)
declare <2 x half> @llvm.nvvm.e4m3x2.to.f16x2.rn(i16)
"""
    x = (np.random.default_rng(3).standard_normal(256) * 30).astype(np.float32)
    want = x.astype(ml_dtypes.float8_e4m3fn)
    out = np.zeros(256, ml_dtypes.float8_e4m3fn)
    text = kernel(body, "ptr addrspace(1) %x, ptr addrspace(1) %o", outside=outside)
    run(text, [x, out], target)
    assert np.array_equal(out.view(np.uint8), want.view(np.uint8))
    assert np.array_equal(x, want.astype(np.float32))


def test_conversions_and_special_functions(target: tuple[str, str]) -> None:
    body = """
  %p = getelementptr float, ptr addrspace(1) %x, i32 %tid
  %v = load float, ptr addrspace(1) %p
  %i = call i32 @llvm.fptosi.sat.i32.f32(float %v)
  %j = sitofp i32 %i to float
  %fl = call float @llvm.floor.f32(float %v)
  %ce = call float @llvm.ceil.f32(float %v)
  %ri = call float @llvm.rint.f32(float %v)
  %s = call float @llvm.sqrt.f32(float %v)
  %cs = call float @llvm.copysign.f32(float %v, float -1.0)
  %d = fpext float %v to double
  %dd = fdiv double %d, 3.0
  %df = fptrunc double %dd to float
  %t = call afn float @llvm.tanh.f32(float %v)
  %sn = call afn float @llvm.sin.f32(float %v)
  %w = fdiv afn float 1.0, %v
  %z = fdiv float 1.0, %v
"""
    names = ["j", "fl", "ce", "ri", "s", "cs", "df", "t", "sn", "w", "z"]
    body += "".join(
        f"  %q{i} = getelementptr float, ptr addrspace(1) %o, i32 {128 * i}\n"
        f"  %qq{i} = getelementptr float, ptr addrspace(1) %q{i}, i32 %tid\n"
        f"  store float %{n}, ptr addrspace(1) %qq{i}\n" for i, n in enumerate(names)
    ) + "  ret void"  # fmt: skip
    unary = ("floor", "ceil", "rint", "sqrt", "tanh", "sin")
    outside = "declare i32 @llvm.fptosi.sat.i32.f32(float)\n" + "\n".join(
        f"declare float @llvm.{f}.f32(float)" for f in unary
    ) + "\ndeclare float @llvm.copysign.f32(float, float)\n"  # fmt: skip
    x = (np.random.default_rng(4).standard_normal(128) * 5).astype(np.float32)
    x[:5] = [0.5, -0.0, np.inf, 1e20, -2.5]
    out = np.zeros((len(names), 128), np.float32)
    text = kernel(body, "ptr addrspace(1) %x, ptr addrspace(1) %o", outside=outside)
    run(text, [x, out], target)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        want = [
            np.clip(np.trunc(wide), -(2.0**31), 2.0**31 - 1).astype(np.int64).astype(np.float32),
            np.floor(x), np.ceil(x), np.rint(x), np.sqrt(x), -np.abs(x),
            (wide / 3).astype(np.float32), np.tanh(x), np.sin(x), 1 / x, 1 / x,
        ]  # fmt: skip
    for name, got, expected in zip(names, out, want):
        assert np.allclose(got, expected, rtol=1e-6, atol=1e-7, equal_nan=True), name


def test_inline_asm_scopes(target: tuple[str, str]) -> None:
    asm = (
        "{.reg .pred p; .reg .b32 t; setp.lt.s32 p, $1, 10; mov.b32 t, 0; L: add.s32 t, t, 2; "
        "setp.lt.s32 p, t, $1; @p bra L; mov.b32 $0, t;}"
    )
    body = f"""
  %a = call i32 asm sideeffect "{asm}", "=r,r"(i32 %tid)
  %b = call i32 asm sideeffect "{asm}", "=r,r"(i32 5)
  %c = add i32 %a, %b
  %q = getelementptr i32, ptr addrspace(1) %o, i32 %tid
  store i32 %c, ptr addrspace(1) %q
  ret void
"""
    out = np.zeros(128, np.int32)
    run(kernel(body, "ptr addrspace(1) %o"), [out], target)
    t = np.arange(128)
    assert np.array_equal(out, np.maximum(2, (t + 1) // 2 * 2) + 6)
