"""What is wrong with the input of a tool is one message and status 1 or 2, never a traceback; and
what text of IR or PTX is refused, with its line and column."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tilec import sim
from tilec.errors import IRError, Location
from tilec.ir.attributes import MODULE, PARAMETER, describe
from tilec.ir.parser import parse
from tilec.ir.verifier import verify
from tilec.tools import bisect, compile, layout, opt, reduce, run, scripts
from tilec.tools import sim as simulate
from tilec.tools.command import tool

TOOLS = {"opt": opt, "run": run, "compile": compile, "sim": simulate, "layout": layout,
         "bisect": bisect, "reduce": reduce}
STORE = """module {
  func @a(%p: ptr<i32> {divisibility = 4}) {
    %0 = tile.constant() {value = 3} : i32
    tile.store(%p, %0)
    func.return()
  }
  func @b(%p: ptr<i32>) {
    %0 = tile.constant() {value = 4} : i32
    tile.store(%p, %0)
    func.return()
  }
}
"""
ONE = STORE[:STORE.index("  func @b")] + "}\n"
PTX = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p)
.reqntid 32
{
  .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, %tid.x;
  BODY
  st.global.u32 [%rd1], %r1;
  ret;
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with files of every kind of badness."""
    monkeypatch.chdir(tmp_path)
    for name, content in {
            "one.tir": ONE, "two.tir": STORE, "none.tir": "module {}", "empty.tir": "",
            "tile.tir": ONE.replace("@a(", "@a(%t: tensor<4xi32>, "),
            "good.ptx": PTX.replace("BODY", ""),
            "func.ptx": PTX.replace("BODY", "").replace(".entry", ".func"),
            "two.ptx": PTX.replace("BODY", "") + ".visible .entry m() { ret; }"}.items():
        Path(name).write_text(content)
    Path("latin.tir").write_bytes(b"module { // \xe9\n}")
    Path("latin.ptx").write_bytes(b"// \xe9")
    Path("latin.py").write_bytes(b"x = '\xe9'")
    Path("exits.py").write_text("import sys\nsys.exit(0)\n")
    Path("folder.tir").mkdir()
    Path("short.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{")
    np.savez("two.npz", a=np.zeros(1), b=np.zeros(1))
    return tmp_path


@pytest.mark.parametrize(("words", "message"), [
    ("run missing.tir", "cannot read missing.tir: No such file"),
    ("run folder.tir", "cannot read folder.tir: Is a directory"),
    ("run latin.tir", "cannot read latin.tir: 'utf-8' codec"), ("opt latin.tir", "utf-8"),
    ("sim latin.ptx", "utf-8"), ("bisect latin.tir", "utf-8"),
    ("reduce latin.tir", "utf-8"), ("reduce one.tir --num-warps x", "--num-warps"),
    ("reduce one.tir a\0b", "has no value"), ("run empty.tir", "the end of the"),
    ("compile latin.py:k --signature i32 -o out", "fails when imported"),
    ("compile exits.py:k --signature i32 -o out", "fails when imported: SystemExit"),
    ("run tile.tir --arg 4:i32:0 --arg 1:i32:0", "kernels are launched with numbers"),
    ("run tile.tir --level ptx --arg 4:i32:0 --arg 1:i32:0", "a kernel is launched with numbers"),
    ("run none.tir", "the file has none"), ("run none.tir --level ptx", "the file has none"),
    ("run two.tir --level ptx --arg 1:i32:zeros", "the file has a, b"),
    ("sim two.ptx", "no kernel is named; the file has k, m"),
    ("sim func.ptx", "no kernel; the file has none"),
    ("run one.tir --arg @/dev/null", "@/dev/null"), ("run one.tir --arg @short.npy", "short.npy"),
    ("run one.tir --arg @two.npz", "expected a .npy file"), ("run one.tir --arg @.", "directory"),
    ("run one.tir --arg 99999x99999:fp32:0", "at most 8 dimensions and 1024 MiB"),
    ("run one.tir --arg 1:i32:-1", "fills no array"),
    ("run one.tir --arg 1:i32:0 --grid 0x", "grid"),
    ("run one.tir --seed -1", "'-1' is no integer from 0"),
    ("run one.tir --shared -1", "no integer"),
    ("sim good.ptx --block 0", "no integer from 1 to 1024"), ("sim good.ptx --shared x", "'x'"),
    ("run one.tir --arg 1:i32:0 --grid 999999999999", "at most 16777216 run on a CPU"),
    ("run one.tir --arg 1:i32:0 --save /proc/x", "/proc/x"),
    ("opt /dev/zero", "longer than 64 MiB"),
    ("run one.tir a\0b", "'a\\x00b' has no value"),
    ("run one.tir --arg=--", "has no value"), ("layout x 4x4", "unexpected"),
    ("layout #a 8x8 --svg /proc/x", "#a is not defined"), ("bisect one.tir --grid x", "--grid is"),
    ("run one.tir --target sm_1", "sm_1"),
    ("opt one.tir --passes cse{", "cannot read the pipeline"),
    ("run", "usage"), ("sim one.tir", "expected a .ptx file"),
])  # fmt: skip
def test_a_message_and_a_status(folder: Path, capsys: pytest.CaptureFixture[str], words: str,
                                message: str) -> None:
    name, *argv = words.split(" ")
    assert TOOLS[name].main(argv) in (1, 2)
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said and "bug in tilec" not in said


@pytest.mark.parametrize(("func", "value"), [("a", 3), ("b", 4)])
@pytest.mark.parametrize("level", ["gpu", "lowered", "ptx"])
def test_one_function_of_several_runs(folder: Path, capsys: pytest.CaptureFixture[str], func: str,
                                      value: int, level: str) -> None:
    argv = ["two.tir", "--func", func, "--arg", "1:i32:zeros", "--level", level]
    assert run.main(argv) == 0
    assert capsys.readouterr().out == f"arg 0: 1 int32\n[{value}]\n"


def test_a_failure_of_tilecs_own_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    @tool("tilec-run")
    def main(argv: object) -> int:
        raise KeyError("lost")

    assert main(["k.tir", "--grid", "2"]) == 2
    assert capsys.readouterr().err == (
        "tilec-run: KeyError: 'lost'; this is a bug in tilec\n"
        "  help: `python -X dev -m tilec.tools.run k.tir --grid 2` shows where\n")


@pytest.mark.parametrize(("error", "said"), [
    (KeyboardInterrupt(), "interrupted"), (MemoryError(), "out of memory"),
    (PermissionError(13, "Permission denied", "x"), "Permission denied: 'x'")])
def test_what_is_nobodys_bug(error: BaseException, said: str,
                             capsys: pytest.CaptureFixture[str]) -> None:
    @tool("tilec-run", failure=2)
    def main(argv: object) -> int:
        raise error

    assert main([]) == 2
    assert said in capsys.readouterr().err


def test_a_reader_that_goes_away_and_an_interrupt(folder: Path) -> None:
    """Whole processes: Python writes and says things when it ends, too."""
    command = [sys.executable, "-m", "tilec.tools.opt", "one.tir"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
    # What is started in the background may have inherited that interrupts are ignored.
    with subprocess.Popen([*command[:-1], "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, preexec_fn=lambda: signal.signal(
                              signal.SIGINT, signal.SIG_DFL)) as waiting:
        assert waiting.stderr is not None
        reads = Path(f"/proc/{waiting.pid}/syscall")  # the number of `read`, and its file
        end = time.monotonic() + 60
        while not reads.read_text().startswith("0 0x0 ") and time.monotonic() < end:
            time.sleep(0.02)
        waiting.send_signal(signal.SIGINT)
        assert (waiting.wait(60), waiting.stderr.read()) == (1, "tilec-opt: interrupted\n")


def test_streams_that_are_closed(folder: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m tilec.tools.opt one.tir"
    for closed, status, said in (("0<&- 2>&-", 0, ""),
                                 (">&-", 1, "tilec-opt: the standard output is closed\n")):
        done = subprocess.run(["bash", "-c", f"{command} {closed}"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (status, said)
        assert ("func @a" in done.stdout) == (status == 0)


@pytest.mark.parametrize("name", TOOLS)
def test_an_interrupt_while_modules_are_loaded(name: str, monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    def load(module: str) -> None:
        assert module == f"tilec.tools.{name}"
        raise KeyboardInterrupt

    monkeypatch.setattr("tilec.tools.scripts.importlib.import_module", load)
    assert getattr(scripts, name)() == 1
    assert capsys.readouterr().err == f"tilec-{name}: interrupted\n"


ATTRIBUTES = [
    ("divisibility = 4", 'divisibility = "x"', "`divisibility` is 'x', expected int from 1"),
    ("divisibility = 4", "divisibility = [4]", "`divisibility` is (4,), expected int from 1"),
    ("divisibility = 4", "divisibility = 0", "`divisibility` is 0, expected int from 1"),
    ("divisibility = 4", "divisor = 4", "there is no attribute `divisor`"),
    ("divisibility = 4", "base = 0", "only a tensor map has a base"),
    ("divisibility = 4", "divisibility = 4, divisibility = 8", "is given twice"),
    ("module {", "module attributes {num_stages = nan} {", "`num_stages` is nan, expected int"),
    ("module {", "module attributes {num_warps = [1]} {", "`num_warps` is (1,), expected int"),
    ("module {", "module attributes {num_warps = true} {", "`num_warps` is True, expected int"),
    ("module {", "module attributes {target = [1]} {", "`target` is (1,), expected str"),
    ("module {", 'module attributes {target = "sm_1"} {', "sm_1"),
    ("module {", 'module attributes {level = "asm"} {', "one of tile, gpu, lowered"),
    ("module {", "module attributes {wraps = 4} {", "there is no attribute `wraps`"),
    ("tile.constant() {value = 3}", "tile.program_id() {axis = 7}", "`axis` is 7, expected int"),
    ("value = 3", f"value = {'1' * 5000}", "64 bits do not hold this number"),
    ("value = 3", f"value = {'[' * 2000}1{']' * 2000}", "nested more than 64 deep"),
    ("value = 3", 'value = "a\x01b"', "unexpected"), ("i32>", "token>", "there is no type"),
    ("%p: ptr<i32>", "%p: tensor<9999999x9xi32>", "more than 1048576 elements"),
    ("// end", "\ud800", "half of a surrogate pair"),
    ('// end', 'loc("\\ud800":1:1)', "half of a surrogate pair"),
]


@pytest.mark.parametrize(("old", "new", "message"), ATTRIBUTES)
def test_text_that_is_refused(old: str, new: str, message: str) -> None:
    """The error has the line and column, and can be shown."""
    text = ONE.replace("    func.return()\n  }", "    func.return()\n  } // end")
    assert old in text
    with pytest.raises(IRError) as caught:
        verify(parse(text.replace(old, new, 1), "bad.tir"))
    assert message in str(caught.value)
    assert str(caught.value).encode(errors="replace")
    place = caught.value.loc
    assert place is None and "parameter" in str(caught.value) or \
        place is not None and (place.file, place.line > 0) == ("bad.tir", True)


def test_hints_fit_their_operand() -> None:
    for hint, message in (("[4, 4]", "2 entries"), ("[99999999999999999999999]", "64 bits"),
                          ("[0]", "ints from 1"), ("[1.5]", "ints from 1")):
        text = ONE.replace("tile.store(%p, %0)", "%1 = tile.hint(%0) {divisibility = "
                           f"{hint}}} : i32\n    tile.store(%p, %1)")
        with pytest.raises(IRError, match=message):
            verify(parse(text))


def test_buffers_are_not_handed_on() -> None:
    text = """#s = swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
module attributes {level = "lowered"} {
  func @k(%c: i1) {
    %a = gpu.alloc_shared() {offset = 0} : memdesc<32xf32, #s>
    %b = gpu.alloc_shared() {offset = 128} : memdesc<32xf32, #s>
    %x = scf.if(%c) { scf.yield(%a) }, { scf.yield(%b) } : memdesc<32xf32, #s>
    func.return()
  }
}
"""
    with pytest.raises(IRError, match="buffers are not handed on"):
        verify(parse(text))


def test_layouts_fit_their_tiles() -> None:
    text = """#b = blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], \
order = [1, 0]}>
module attributes {level = "gpu"} {
  func @k() {
    %0 = tile.arange() {start = 0, end = 64} : tensor<64xi32, #b>
    func.return()
  }
}
""".replace("\\\n", "")
    with pytest.raises(IRError, match="has rank 2, the shape .* has 1"):
        verify(parse(text))


def test_carets_open_no_devices() -> None:
    assert Location("/dev/zero", 1).caret() == ""


@pytest.mark.parametrize(("body", "message"), [
    ("add.s32 %r1, %r1, %p1;", "'%p1', which holds a predicate, where .s32 is expected"),
    ("add.s32 %r1, %r1, %rd1;", "'%rd1', which holds 64 bits, where .s32 is expected"),
    (".reg .f32 %f; add.s32 %r1, %r1, %f;", "'%f', which is declared otherwise"),
    ("st.global.v2.b32 [%rd1], {%r1, %r11;", "is not closed"),
    ("st.global.v2.b32 [%rd1], {%r1, %rd1};", "a vector of registers of [4, 8] bytes"),
    (".reg .f32 %f; add.f32 %f, %f, 1;", "the integer 1 where .f32 is expected"),
    ("mov.u64 %rd1, %r1;", "'%r1', which holds 32 bits, where .u64 is expected"),
    ("add.loc.s32 %r1, %r1, 1;", "does not know add.loc.s32"),
    ("add.b32 %r1, %r1, 1;", "does not know add.b32"),
    ("setp.lo.f32 %p1, %r1, %r1;", "does not know setp.lo.f32"),
    ("bra.x done; done:", "does not know bra.x"),
    ("cp.async.ca.shared.global [%r1], [%rd1], 0;", "cp.async.ca of 0 bytes"),
    ("@%p7 mov.u32 %r1, 1;", "the undeclared name '%p7'"),
    ("mov.u32 %r1, %nothing;", "the undeclared name '%nothing'"),
    (f"mov.u32 %r1, {'1' * 5000};", ""), (f"mov.u32 %r1, {'{' * 3000};", "nested too deep"),
    ("bfe.u32 %r1, %r1, 256, 4;", "256 where 0 to 255"), (";", "not an instruction: ';'"),
    ("a: a: ;", "label 'a' is defined twice"),
    ("ld.global.u32 {%r1, %r2}, [%rd1];", "ld of 1 with 2 registers"),
    ("st.global.u32 [%rd1], {%r1, %r2};", "st of 1 with 2 registers"),
    ("st.global.v4.u32 [%rd1], {%r1, %r2};", "st of 4 with 2 registers"),
    ("atom.global.add.v2.f32 {%r1, %r2}, [%rd1], %r1;", "atom of 2 with 1 registers"),
    ("ld.global.u32 %r1, [%rd1], %r2;", "'ld' with 3 operands"),
    ("ld.global.L2::cache_hint.u32 %r1, [%rd1];", "'ld' with 2 operands"),
    ("setp.lt.s32 %p1, %r1, %r1, %p1;", "'setp' with 4 operands"),
    ("atom.global.cas.b32 %r1, [%rd1], 1;", "'atom' with 3 operands"),
    ("prefetch.global.L2 [%rd1], 1;", "'prefetch' with 2 operands"),
    ("nanosleep.u32 %p1;", "'%p1', which holds a predicate"),
    ("cp.async.ca.shared [%r1], [%rd1], 4;", "does not know cp.async.ca.shared"),
    ("cp.async.wait_group k;", "wait_group of anything but a number"),
    (".reg .f32 %f; cvt.f32.u32 %f, %r1;", "does not know cvt.f32.u32"),
    (".reg .f32 %f; cvt.rn.u32.f32 %r1, %f;", "does not know cvt.rn.u32.f32"),
    (".reg .f32 %f; .reg .b16 %h; cvt.f16.f32 %h, %f;", "does not know cvt.f16.f32"),
    (".reg .f32 %f; .reg .b16 %h; cvt.rn.f32.f16 %f, %h;", "does not know cvt.rn.f32.f16"),
    (".reg .f32 %f; .reg .b16 %h; cvt.rn.sat.bf16.f32 %h, %f;", "does not know cvt.rn.sat.bf16"),
    (".pragma nounroll;", "a .pragma has a string"),
    (".shared .b8 s[];", "'s' has 0 bytes and 0 values"),
    (".reg .b32 %r<9>;", "register '%r' is declared twice"), (".loc 1 x 2", "a .loc has"),
    ("mov.u32 %r1, %s1; .reg .b32 %s<2>;", "'%s1' is used in line 10, before it is declared"),
    (".shared .align 3 .b8 s[4];", "a power of two"), (".shared .b8 s[999999999];", "at most"),
])  # fmt: skip
@pytest.mark.parametrize("check", [False, True])
def test_ptx_that_is_refused(body: str, message: str, check: bool) -> None:
    out = np.zeros(1, np.uint32)
    with pytest.raises(sim.SimError) as caught:
        sim.run(PTX.replace("BODY", body), "k", [out], (1, 1, 1), check=check)
    assert message in str(caught.value)
    assert caught.value.ptx_line == 10 and caught.value.ptx_column >= 3
    assert out[0] == 0


@pytest.mark.parametrize(("old", "new", "message"), [
    (".version 8.0", ".version 8", "no value that the simulator knows"),
    (".version 8.0", ".version 99.9", "no value that the simulator knows"),
    (".version 8.0", ".version 7.9", "no version 7.9 of PTX"),
    (".version 8.0", ".version 7.8", ".target sm_90a needs .version 8.0 or later, this is 7.8"),
    ("sm_90a", "sm_91", "no target sm_91"), ("sm_90a", "sm_90f", "no target sm_90f"),
    (".target sm_90a", ".target x", "no value"), ("_size 64", "_size 32", "no value"),
    (".param .u64 p", ".param .u64 .f32 p", "has 2 types"),
    (".reg .b32 %r<4>", ".reg .b32 %r<\u0664>", "a character that PTX has not"),
    (".version 8.0", ".loc 1 1 1\n.version 8.0", "PTX begins with"),
    (".visible", ".loc 1 1 1\n.visible", "a .loc stands inside of functions"),
    (".version 8.0", "", "PTX begins with .version and .target"),
    (".visible", ".extern", "'k' is .extern and has a body"),
    (".visible", ".visible .visible", "not a declaration"),
    (".visible", ".global .f32 g = 0f1;\n.visible", "not a constant: '0f1'"),
    (".visible", ".global .u32 g = 0x;\n.visible", "not a constant: '0x'"),
    (".visible", ".global .u32 g = [k];\n.visible", "not a value that is known here: '\\[k\\]'"),
    (".visible", ".global .b8 g[2] = {1, 2, 3};\n.visible", "'g' has 2 bytes and 3 values"),
    (".visible", ".global .u64 g = h;\n.visible", "not a value that is known here: 'h'"),
    (".param .u64 p", ".shared .u64 p", "parameter 'p' is .shared"),
    (".param .u64 p", ".param .u64 .add p", "not a qualifier of a declaration: '.add'"),
    (".entry k", ".entry 7", "not a declaration that"), (".reqntid 32", ".reqntid x", "directives"),
])  # fmt: skip
def test_ptx_whose_frame_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(sim.SimError, match=message):
        sim.parse(PTX.replace("BODY", "").replace(old, new))


def test_arguments_that_do_not_fit_the_ptx() -> None:
    for kind in (".f32", ".b8 p[3]; x", ".u32"):
        ptx = PTX.replace(".param .u64 p", f".param {kind} p".replace("; x p", ""))
        with pytest.raises(sim.SimError):
            sim.run(ptx, "k", ["text"], (1, 1, 1))


def test_the_tables_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "levels.md").read_text(encoding="utf-8")
    assert describe(MODULE) in text and describe(PARAMETER) in text
