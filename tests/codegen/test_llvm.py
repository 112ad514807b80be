"""LLVM IR to PTX: what comes out, and that nothing in it can end the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilec
import tilec.language as tl
from tilec.codegen import llvm
from tilec.errors import InternalError, IRError
from tilec.target import Target

SM90A = Target.parse("sm_90a")
TARGETS = ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"]

ADD = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
define ptx_kernel void @add(ptr addrspace(1) align 16 %x, ptr addrspace(1) align 16 %o, i32 %n)
    "nvvm.reqntid"="128" {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %i = mul i32 %t, 4
  %in = icmp slt i32 %i, %n
  br i1 %in, label %body, label %done
body:
  %p = getelementptr float, ptr addrspace(1) %x, i32 %i
  %q = getelementptr float, ptr addrspace(1) %o, i32 %i
  %v = load <4 x float>, ptr addrspace(1) %p, align 16
  %s = fadd <4 x float> %v, %v
  store <4 x float> %s, ptr addrspace(1) %q, align 16
  br label %done
done:
  ret void
}
"""


def unary(intrinsic: str, ty: str, suffix: str, flags: str = "") -> str:
    return f"""
declare {ty} @llvm.{intrinsic}.{suffix}({ty})
define ptx_kernel void @k({ty} %a, ptr addrspace(1) %p) {{
  %r = call {flags} {ty} @llvm.{intrinsic}.{suffix}({ty} %a)
  store {ty} %r, ptr addrspace(1) %p
  ret void
}}
"""


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
def test_vector_kernel(name, opt_level):
    target = Target.parse(name)
    ptx = llvm.emit_ptx(ADD, target, opt_level)
    version = f".version {target.ptx_version // 10}.{target.ptx_version % 10}"
    assert version in ptx and f".target {name}\n" in ptx
    assert ".visible .entry add(" in ptx and ".reqntid 128" in ptx
    wide = "v2.b64" if target.sm >= 100 else "v4.b32"  # Blackwell adds f32 in pairs
    assert ptx.count(f"ld.global.{wide}") == 1 and ptx.count(f"st.global.{wide}") == 1


def test_output_is_deterministic():
    assert llvm.emit_ptx(ADD, SM90A) == llvm.emit_ptx(ADD, SM90A)


def test_data_layout_is_llvms_own():
    machine = llvm._target_machine("sm_90a", "+ptx80")
    assert str(machine.target_data) == llvm.DATA_LAYOUT


def test_i64_store_stays_one_access():
    text = """define ptx_kernel void @k(ptr addrspace(1) %p, i64 %v) {
      store i64 %v, ptr addrspace(1) %p
      ret void
    }"""
    assert llvm.emit_ptx(text, SM90A).count("st.global.b64") == 1


def test_loops_are_not_unrolled():
    text = """define ptx_kernel void @k(ptr addrspace(1) %p) {
    entry:
      br label %loop
    loop:
      %i = phi i32 [ 0, %entry ], [ %j, %loop ]
      %q = getelementptr i32, ptr addrspace(1) %p, i32 %i
      store volatile i32 %i, ptr addrspace(1) %q
      %j = add i32 %i, 1
      %more = icmp slt i32 %j, 4
      br i1 %more, label %loop, label %done
    done:
      ret void
    }"""
    for opt_level in (0, 1, 2, 3):
        assert llvm.emit_ptx(text, SM90A, opt_level).count("st.volatile") == 1


def test_parse_error_shows_the_line():
    bad = ADD.replace("%v, %v", "%v, %w")
    with pytest.raises(IRError) as e:
        llvm.emit_ptx(bad, SM90A)
    text = str(e.value)
    assert "use of undefined value '%w'" in text and "fadd <4 x float> %v, %w" in text
    caret = text.splitlines()[-1]
    assert text.splitlines()[-2][caret.index("^"):].startswith("%w")


def test_verifier_error():
    bad = """define ptx_kernel void @k(i1 %c) {
    a:
      br i1 %c, label %b, label %d
    b:
      %x = add i32 1, 2
      br label %d
    d:
      %y = add i32 %x, 1
      ret void
    }"""
    with pytest.raises(IRError, match="does not dominate"):
        llvm.verify(bad)
    llvm.verify(ADD)


def test_wrong_intrinsic_signature_is_an_error():
    bad = ADD.replace("i32 @llvm.nvvm", "i64 @llvm.nvvm")
    bad = bad.replace("mul i32 %t, 4", "trunc i64 %t to i32")
    with pytest.raises(IRError, match="incorrect return type"):
        llvm.emit_ptx(bad, SM90A)


def test_unknown_nvvm_intrinsic():
    bad = ADD.replace("sreg.tid.x", "sreg.nothing")
    with pytest.raises(InternalError, match=r"llvm\.nvvm\.read\.ptx\.sreg\.nothing"):
        llvm.emit_ptx(bad, SM90A)


@pytest.mark.parametrize("name", ["log2", "exp", "log", "pow", "log10", "atan", "sinh", "nothing"])
def test_unselectable_intrinsics_are_refused(name):
    with pytest.raises(InternalError, match=f"llvm.{name}"):
        llvm.emit_ptx(unary(name, "float", "f32"), SM90A)


@pytest.mark.parametrize("name", sorted(llvm.NO_F64))
def test_f64_forms_are_refused(name):
    with pytest.raises(InternalError, match="f64"):
        llvm.emit_ptx(unary(name, "double", "f64", "afn"), SM90A)


@pytest.mark.parametrize("name", sorted(llvm.AFN_ONLY))
def test_afn_is_required(name):
    with pytest.raises(InternalError, match="afn"):
        llvm.emit_ptx(unary(name, "float", "f32"), SM90A)
    assert f"{name}.approx" in llvm.emit_ptx(unary(name, "float", "f32", "afn"), SM90A)
    wide = unary(name, "<8 x float>", "v8f32", "nnan afn")
    assert llvm.emit_ptx(wide, SM90A).count(f"{name}.approx") == 8


@pytest.mark.parametrize("target", TARGETS)
def test_tanh_is_one_instruction(target):
    text = unary("tanh", "float", "f32", "afn")
    assert "tanh.approx" in llvm.emit_ptx(text, Target.parse(target))


def test_quoted_names_as_llvmlite_prints_them_are_seen():
    text = unary("log2", "float", "f32").replace("@llvm.log2.f32", '@"llvm.log2.f32"')
    with pytest.raises(InternalError, match="log2"):
        llvm.emit_ptx(text, SM90A)


POINTER = "ptr addrspace(1)"
FLOATS = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}
FLOAT_OPS = {
    1: "sqrt fabs floor ceil rint nearbyint trunc round roundeven".split(),
    2: "maxnum minnum maximum minimum maximumnum minimumnum copysign".split(),
    3: ["fma", "fmuladd"],
}
INT_OPS = {
    1: ["ctpop", "bitreverse"],
    2: "smax smin umax umin sadd.sat ssub.sat uadd.sat usub.sat sshl.sat ushl.sat".split(),
    3: ["fshl", "fshr"],
}
REDUCTIONS = {
    "f": ["fmax", "fmin", "fmaximum", "fminimum"],
    "i": "add and mul or smax smin umax umin xor".split(),
}


def safe_modules() -> list[str]:
    """One module a type that uses every safe intrinsic at that type, scalar and vector."""
    modules = []
    for ty, short in [*FLOATS.items(), *((f"i{w}", f"i{w}") for w in (8, 16, 32, 64))]:
        is_float = ty in FLOATS
        decls, body = [], []
        for arity, names in (FLOAT_OPS if is_float else INT_OPS).items():
            for name in names:
                for t, s in ((ty, short), (f"<4 x {ty}>", f"v4{short}")):
                    fn = f"@llvm.{name}.{s}"
                    v = "%v" if t.startswith("<") else "%a"
                    decls.append(f"declare {t} {fn}({', '.join([t] * arity)})")
                    call = f"call {t} {fn}({', '.join([f'{t} {v}'] * arity)})"
                    body.append((t, call))
        if is_float:
            decls.append(f"declare {ty} @llvm.ldexp.{short}.i32({ty}, i32)")
            body.append((ty, f"call {ty} @llvm.ldexp.{short}.i32({ty} %a, i32 3)"))
            for name in ("fadd", "fmul"):
                fn = f"@llvm.vector.reduce.{name}.v4{short}"
                decls.append(f"declare {ty} {fn}({ty}, <4 x {ty}>)")
                body.append((ty, f"call {ty} {fn}({ty} %a, <4 x {ty}> %v)"))
            for name in ("fptosi", "fptoui"):
                fn = f"@llvm.{name}.sat.i32.{short}"
                decls.append(f"declare i32 {fn}({ty})")
                body.append(("i32", f"call i32 {fn}({ty} %a)"))
        else:
            for name in ("ctlz", "cttz", "abs"):
                decls.append(f"declare {ty} @llvm.{name}.{short}({ty}, i1)")
                body.append((ty, f"call {ty} @llvm.{name}.{short}({ty} %a, i1 false)"))
            decls += [f"declare {ty} @llvm.expect.{short}({ty}, {ty})",
                      f"declare {POINTER} @llvm.launder.invariant.group.p1({POINTER})"]
            body += [(ty, f"call {ty} @llvm.expect.{short}({ty} %a, {ty} 0)"),
                     (POINTER, f"call {POINTER} @llvm.launder.invariant.group.p1({POINTER} %p)")]
            for name in ("smul", "umul"):
                fn = f"@llvm.{name}.with.overflow.{short}"
                decls.append(f"declare {{{ty}, i1}} {fn}({ty}, {ty})")
                body.append((f"{{{ty}, i1}}", f"call {{{ty}, i1}} {fn}({ty} %a, {ty} %a)"))
        for name in REDUCTIONS["f" if is_float else "i"]:
            fn = f"@llvm.vector.reduce.{name}.v4{short}"
            decls.append(f"declare {ty} {fn}(<4 x {ty}>)")
            body.append((ty, f"call {ty} {fn}(<4 x {ty}> %v)"))
        lines = [f"  %r{i} = {call}\n  store volatile {t} %r{i}, ptr addrspace(1) %p"
                 for i, (t, call) in enumerate(body)]
        head = f"define ptx_kernel void @k({ty} %a, <4 x {ty}> %v, ptr addrspace(1) %p) {{"
        modules.append("\n".join([*decls, head, *lines, "  ret void", "}"]))
    return modules


# The back end ends the process where it fails, so the survey runs in a child.
CHILD = """
import sys
from tilec.codegen import llvm
from tilec.target import Target
modules = sys.stdin.read().split("=====")
for i, text in enumerate(modules):
    print(i, flush=True)
    assert "llvm." not in llvm.emit_ptx(text, Target.parse(sys.argv[1])).split(".entry")[0]
print("done")
"""


@pytest.mark.parametrize("name", TARGETS)
def test_every_safe_intrinsic_is_selected(name):
    modules = safe_modules()
    assert len(modules) == 8
    done = subprocess.run(
        [sys.executable, "-c", CHILD, name], input="=====".join(modules), text=True,
        capture_output=True, cwd=Path(__file__).parents[2],
    )
    assert done.stdout.split()[-1] == "done", (done.stdout, done.stderr)


def test_isolated_gives_the_same_text():
    assert llvm.emit_ptx(ADD, SM90A, isolated=True) == llvm.emit_ptx(ADD, SM90A)


def test_isolated_survives_a_back_end_that_aborts():
    text = """declare <2 x half> @llvm.nvvm.ex2.approx.ftz.v2f16(<2 x half>)
    define ptx_kernel void @k(<2 x half> %a, ptr addrspace(1) %p) {
      %r = call <2 x half> @llvm.nvvm.ex2.approx.ftz.v2f16(<2 x half> %a)
      store <2 x half> %r, ptr addrspace(1) %p
      ret void
    }"""
    with pytest.raises(IRError, match="gave up: LLVM ERROR: Cannot select"):
        llvm.emit_ptx(text, SM90A, isolated=True)


def test_isolated_reports_parse_errors():
    with pytest.raises(IRError, match="undefined value"):
        llvm.emit_ptx(ADD.replace("%v, %v", "%v, %w"), SM90A, isolated=True)


def test_version_is_llvms():
    major = int(llvm.version().split(".")[0])
    assert major >= 20

@tilec.jit
def sums_of_16_bits(x, o, p):
    i = tl.arange(0, 2)[:, None] + tl.arange(0, 32)[None, :] * 2
    c = (tl.arange(0, 2)[:, None] * 64 + tl.arange(0, 32)[None, :]) // 2
    y = tl.load(x + i)
    tl.store(o + i, y + c.to(tl.int16) - (y + y))
    tl.store(p + i, c)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
def test_sums_of_16_bits_are_not_packed(target, rng) -> None:
    """Of i16 tiles, and of i32 indices that LLVM narrows: see llvm.py, `_unpacked_sum`."""
    x = rng.integers(-1 << 15, 1 << 15, 64).astype(np.int16)
    out, index = np.full(64, -7, np.int16), np.full(64, -7, np.int32)
    made = sums_of_16_bits.warmup(x, out, index, grid=(1,), target=target, num_warps=1)
    assert "s16x2" not in made.asm["ptx"]
    made.run([x, out, index], 1, level="ptx")
    want = (np.arange(64) % 2 * 64 + np.arange(64) // 2) // 2
    np.testing.assert_array_equal(index, want)
    np.testing.assert_array_equal(out, (want - x.astype(np.int64)).astype(np.int16))
