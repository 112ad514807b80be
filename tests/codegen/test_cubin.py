"""PTX to cubin and SASS: statistics, errors, missing tools."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from tilec.codegen import cubin, llvm, ptxas
from tilec.errors import CompilationError, IRError, OutOfResources, ToolError
from tilec.target import Target

SM90A = Target.parse("sm_90a")

COPY = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
define ptx_kernel void @copy(ptr addrspace(1) %x, ptr addrspace(1) %o) ATTRIBUTES {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %p = getelementptr <4 x float>, ptr addrspace(1) %x, i32 %t
  %q = getelementptr <4 x float>, ptr addrspace(1) %o, i32 %t
  %v = load <4 x float>, ptr addrspace(1) %p, align 16
  store <4 x float> %v, ptr addrspace(1) %q, align 16
  ret void
}
"""


def copy_ptx(target: Target = SM90A, attributes: str = '"nvvm.reqntid"="128"') -> str:
    return llvm.emit_ptx(COPY.replace("ATTRIBUTES", attributes), target)


def pressure_ptx() -> str:
    """256 floats live at once under a limit of 64 registers: it must spill."""
    n = 256
    text = f"""
define ptx_kernel void @hot(ptr addrspace(1) %x, ptr addrspace(1) %o)
    "nvvm.reqntid"="128" "nvvm.maxnreg"="64" {{
  %v = load volatile <{n} x float>, ptr addrspace(1) %x, align 16
  %w = load volatile <{n} x float>, ptr addrspace(1) %o, align 16
  %s = fadd <{n} x float> %v, %w
  store volatile <{n} x float> %s, ptr addrspace(1) %o, align 16
  ret void
}}"""
    return llvm.emit_ptx(text, SM90A)


@pytest.mark.parametrize("name", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_every_target_gives_an_elf(name):
    target = Target.parse(name)
    result = cubin.link(copy_ptx(target), target, name="copy")
    assert result.cubin[:4] == b"\x7fELF"
    assert b".text.copy" in result.cubin
    assert 4 <= result.n_regs <= 32
    assert (result.n_spills, result.stack, result.static_shared) == (0, 0, 0)
    assert result.advisories == []


def test_same_bytes_each_time():
    ptx = copy_ptx()
    first, second = (cubin.link(ptx, SM90A, name="copy").cubin for _ in range(2))
    assert first == second


def test_spills_and_stack_are_read():
    result = cubin.link(pressure_ptx(), SM90A, name="hot")
    assert result.n_regs == 64
    assert result.n_spills > 0 and result.stack > 0
    assert "cubin" not in repr(result) and "n_regs=64" in repr(result)


def test_statistics_are_those_of_the_named_kernel():
    second = """
.visible .entry small() { .shared .align 4 .b8 mem[4096]; .reg .b32 r;
 ld.volatile.shared.b32 r, [mem]; st.volatile.shared.b32 [mem+4], r; ret; }
"""
    ptx = pressure_ptx() + second
    small = cubin.link(ptx, SM90A, name="small")
    hot = cubin.link(ptx, SM90A, name="hot")
    assert small.static_shared == 4096 and small.n_spills == 0 and small.n_regs < 32
    assert hot.static_shared == 0 and hot.n_spills > 0


def setmaxnreg_ptx():
    ptx = copy_ptx(attributes='"nvvm.reqntid"="128" "nvvm.minctasm"="1"')
    return ptx.replace("\tret;", "\tsetmaxnreg.dec.sync.aligned.u32 24;\n\tret;")


def test_setmaxnreg_advisory_is_kept(monkeypatch):
    monkeypatch.setattr(cubin.ptxas, "find", lambda: None)
    result = cubin.link(setmaxnreg_ptx(), SM90A, name="copy")
    assert len(result.advisories) == 1 and "C7504" in result.advisories[0]
    assert result.assembler == f"nvJitLink {cubin.version()}" and result.drops_setmaxnreg
    other = cubin.link(copy_ptx(), SM90A, name="copy")
    assert other.assembler == result.assembler and not other.drops_setmaxnreg


# ---- ptxas
@pytest.fixture
def tools(monkeypatch, tmp_path):
    """Makes ptxas files of shell scripts: by folder, all that there are."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(ptxas.importlib.util, "find_spec",
                        lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path)]))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))

    def make(folder, version="13.0.88", script="exit 1"):
        path = tmp_path / folder / "ptxas"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"""#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release x, V{version}"; exit 0; fi
{script}
""")
        path.chmod(0o755)
        return path

    return make


def test_where_ptxas_is_looked_for(tools):
    assert ptxas.find() is None and ptxas.identity() == "ptxas none"
    wheel = tools("cu13/bin")
    assert ptxas.find() == wheel and ptxas.version(wheel) == "13.0.88"
    known = ptxas.identity()
    home = tools("home/bin", "12.8.1")
    assert ptxas.find() == home and ptxas.identity() not in (known, "ptxas none")
    tools("path", "12.4.99")  # too old
    assert ptxas.find() == home
    on_path = tools("path", "13.1.7")
    assert ptxas.find() == on_path


def test_a_ptxas_that_does_not_run_is_passed_over(tools):
    tools("path").write_text("\x7fELF of another machine")
    wheel = tools("cu13/bin")
    assert ptxas.find() == wheel


@pytest.mark.parametrize(("script", "error", "message"), [
    ("kill -9 $$", CompilationError, "was ended by signal 9"),
    ("exec /bin/sleep 5", CompilationError, "did not end in 0.2 s"),
    ("echo 'ptxas fatal   : no licence' >&2; exit 255", cubin.InternalError, "no licence"),
    ("echo 'ptxas k.ptx, line 2; error   : Unknown thing' >&2; exit 255", IRError,
     "PTX, line 2: Unknown thing"),
    ("echo 'Entry function uses too much shared data (0x40000 bytes, 0x38c00 max)'; exit 1",
     OutOfResources, "262144"),
    ("echo 'ptxas fatal : (C7602) Insufficient registers (24) to compile instruction at line 2 in "
     "function f. Try to compile with register target of 90 or higher.'; exit 1", OutOfResources,
     "registers a thread, required 90, the limit is 24\n  PTX, line 2: "),
    ("echo \"ptxas fatal : (C7600) Register allocation failed with register count of '128'. "
     "Compile the program with a higher register target\"; exit 1", OutOfResources,
     "registers a thread, required 129, the limit is 128\n  129 or more: ptxas does not say"),
])
def test_how_ptxas_fails(tools, monkeypatch, script, error, message):
    tools("cu13/bin", script=script)
    monkeypatch.setattr(ptxas, "TIMEOUT_S", 0.2)
    with pytest.raises(error, match=message):
        cubin.link(setmaxnreg_ptx(), SM90A, name="copy")
    assert cubin.link(copy_ptx(), SM90A, name="copy").assembler.startswith("nvJitLink")


@pytest.mark.skipif(ptxas.find() is None, reason="there is no ptxas")
def test_ptxas_keeps_setmaxnreg():
    """The same statistics are read from its log; what nvJitLink leaves out is in the code."""
    result = cubin.link(setmaxnreg_ptx(), SM90A, name="copy")
    assert result.assembler == f"ptxas {ptxas.version(ptxas.find())}"
    assert result.advisories == [] and not result.drops_setmaxnreg
    # At entry it has what the launch bounds grant.
    assert result.n_regs == 255 and result.n_spills == result.stack == 0
    assert "USETMAXREG" in cubin.sass(result.cubin)


def test_rejected_ptx_shows_the_line():
    ptx = copy_ptx().replace("ld.global.v4.b32", "ld.global.v4.q32")
    line = next(i for i, text in enumerate(ptx.splitlines(), 1) if "q32" in text)
    with pytest.raises(IRError) as e:
        cubin.link(ptx, SM90A, name="copy")
    text = str(e.value)
    assert f"PTX, line {line}:" in text and "ld.global.v4.q32" in text


def test_not_ptx_at_all():
    with pytest.raises(cubin.InternalError, match="does not match type"):
        cubin.link("hello", SM90A, name="copy")


def test_undefined_function_is_named():
    ptx = copy_ptx().replace(".visible .entry", ".extern .func foo;\n.visible .entry")
    ptx = ptx.replace("\tret;", "\tcall foo;\n\tret;")
    with pytest.raises(cubin.InternalError, match="foo"):
        cubin.link(ptx, SM90A, name="copy")


def test_too_much_static_shared_memory():
    ptx = copy_ptx() + """
.visible .entry big() { .shared .align 4 .b8 mem[300000]; .reg .b32 r;
 ld.volatile.shared.b32 r, [mem]; ret; }
"""
    with pytest.raises(OutOfResources) as e:
        cubin.link(ptx, SM90A, name="big")
    assert e.value.required >= 300000 and e.value.limit <= 232448


def test_unsupported_target_says_so():
    old = Target("sm_50", 50, 49152, 60)
    with pytest.raises(ToolError, match="refuses sm_50"):
        cubin.link(copy_ptx(), old, name="copy")


def test_missing_nvjitlink_says_that_compiling_stops_at_ptx(monkeypatch):
    from cuda.bindings import nvjitlink

    def missing():
        raise RuntimeError("Failure finding libnvJitLink.so")

    cubin._nvjitlink.cache_clear()
    monkeypatch.setattr(nvjitlink, "version", missing)
    try:
        with pytest.raises(ToolError, match="stops at PTX here.*libnvJitLink"):
            cubin.link("", SM90A, name="k")
        assert not cubin.available() and cubin.version() == "none"
    finally:
        cubin._nvjitlink.cache_clear()


def test_sass_and_its_counts():
    text = cubin.sass(cubin.link(copy_ptx(), SM90A, name="copy").cubin)
    counts = cubin.sass_counts(text)
    assert (counts["LDG"], counts["STG"], counts["EXIT"]) == (1, 1, 1)
    assert "LDG.E.128" in text


def test_sass_counts_of_predicated_and_uniform_instructions():
    text = """
        .text.k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_0) ;
        /*0020*/              @UP0 UIADD3 UR4, UR5, 0x1, URZ ;
        /*0030*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4], R24, gsb0 ;
        .L_x_0:
        /*0040*/                   EXIT ;
"""
    expected = {"LDC": 1, "BRA": 1, "UIADD3": 1, "HGMMA": 1, "EXIT": 1}
    assert dict(cubin.sass_counts(text)) == expected


def test_missing_nvdisasm(monkeypatch):
    cubin._nvdisasm.cache_clear()
    monkeypatch.setattr(cubin.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(cubin.shutil, "which", lambda name: None)
    try:
        with pytest.raises(ToolError, match="pip install nvidia-cuda-nvdisasm"):
            cubin.sass(b"")
    finally:
        cubin._nvdisasm.cache_clear()


def test_nvdisasm_failure_is_an_error():
    with pytest.raises(ToolError, match="nvdisasm failed"):
        cubin.sass(b"not an ELF file")


def test_nvdisasm_runs():
    done = subprocess.run([cubin._nvdisasm(), "--version"], capture_output=True, text=True)
    assert done.returncode == 0
