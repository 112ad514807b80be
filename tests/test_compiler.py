"""The pipeline and the instruments around it: dumps, times, overriding, reproducers."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilec
from tests.runtime.support import add, arrays, from_text, scale
from tests.support.stages import NAMES, level_file, stage_file
from tilec import compiler, knobs
from tilec.codegen import cubin
from tilec.compiler import LEVELS, PIPELINE, Options, stage_level
from tilec.errors import InternalError, TilecError
from tilec.instruments import folder_name
from tilec.ir import types as ir
from tilec.ir.parser import parse
from tilec.ir.printer import equal
from tilec.ir.verifier import verify
from tilec.knobs import RUN_LEVELS
from tilec.passes.canonicalize import Canonicalize
from tilec.passes.cse import Cse
from tilec.runtime import device
from tilec.tools import opt
from tilec.tools.run import run_file

ROOT = Path(__file__).resolve().parents[1]
N = len(PIPELINE)
SIGNATURE = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "factor": "fp32"}


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(device, "gpu_available", lambda: False)
    for name in ("DUMP", "DUMP_DIR", "OVERRIDE_DIR", "TIME", "PRINT_LOC"):
        monkeypatch.delenv("TILEC_" + name, raising=False)


def launch(kernel=scale, **options):
    """Run `scale` with factor 2 on 0..31."""
    x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    return kernel[1](x, out, 2.0, **options), out


def headers(text):
    return re.findall(r"^// ----- (\d\d) (\w+) \((\w+)\) @\w+ -----$", text, re.M)


# -- the pipeline -----------------------------------------------------------------------------

def test_levels_follow_each_other():
    levels = [stage_level(i) for i in range(N + 4)]
    assert list(dict.fromkeys(levels)) == list(LEVELS)
    assert levels == sorted(levels, key=LEVELS.index)
    assert all(step.reason for step in PIPELINE)


@pytest.mark.parametrize("level", LEVELS)
def test_stop_at(level):
    kernel = tilec.compile(scale, SIGNATURE)
    seen = []

    class Seen(compiler.Instrument):
        def after(self, stage, seconds):
            seen.append((stage.number, stage.name, stage.level))

    made = compiler.compile_module(kernel.build, kernel.target, Options(), stop_at=level,
                                   keep=True, instruments=[Seen()])
    last = max(i for i in range(N + 4) if stage_level(i) == level)
    assert [n for n, _, _ in seen] == list(range(last + 1))
    assert [name for _, name, _ in seen] == ["frontend", *(s.run.name for s in PIPELINE),
                                             "llir", "ptx", "cubin"][:last + 1]
    assert [lv for _, _, lv in seen] == [stage_level(i) for i in range(last + 1)]
    above = LEVELS[:LEVELS.index(level) + 1]
    assert list(made.modules) == [lv for lv in above if lv in ("tile", "gpu", "lowered")]
    assert {lv: m.level for lv, m in made.modules.items()} == {lv: lv for lv in made.modules}
    assert bool(made.ptx) == ("ptx" in above) and bool(made.linked) == ("cubin" in above)


@pytest.mark.parametrize("options, message", [
    ({"num_warps": 0}, "num_warps is 0"), ({"num_warps": 64}, "num_warps is 64"),
    ({"num_warps": 4.0}, "num_warps is 4.0"), ({"num_warps": True}, "num_warps is True"),
    ({"num_stages": 17}, "num_stages is 17"), ({"maxnreg": 300}, "maxnreg is 300"),
    ({"num_ctas": 3}, "num_ctas is 3, expected 1, 2, 4 or 8"), ({"num_ctas": 16}, "num_ctas is 16"),
    ({"num_ctas": "2"}, "num_ctas is '2'"), ({"num_ctas": True}, "num_ctas is True"),
    ({"launch_pdl": 1}, "launch_pdl is 1, expected True or False"),
])
def test_options(options, message):
    with pytest.raises(TilecError, match=message):
        Options(**options)


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_targets(target):
    kernel = tilec.compile(add, {"x_ptr": "*bf16:16", "y_ptr": "*bf16", "out_ptr": "*fp16:16",
                                 "n": "i32"}, {"BLOCK": 512}, target=target)
    assert kernel.asm["cubin"][:4] == b"\x7fELF"
    assert f".target {target}" in kernel.asm["ptx"] and kernel.n_spills == 0


# -- dumps to stderr --------------------------------------------------------------------------

def test_dump_all(capsys):
    with knobs.scope(dump="all"):
        launch()
    text = capsys.readouterr().err
    names = NAMES[:-1]
    assert headers(text) == [(f"{i:02}", name, stage_level(i)) for i, name in enumerate(names)]
    assert "func @scale(" in text and ".visible .entry scale(" in text and "loc(" not in text


@pytest.mark.parametrize("what, names", [
    ("coalesce", ["coalesce"]), ("unroll, frontend", ["frontend", "unroll"]),
    ("cse", [name for name in NAMES if name == "cse"]),
    ("tile", ["dce"]), ("gpu,ptx", ["dce", "ptx"]), ("lowered", ["wait_for_grid"]),
    ("llir", ["llir"]), ("cubin", []),
])
def test_dump_of_passes_and_levels(capsys, what, names):
    with knobs.scope(dump=what):
        launch()
    assert [name for _, name, _ in headers(capsys.readouterr().err)] == names


def test_dump_diff(capsys):
    with knobs.scope(dump="diff"):
        launch()
    text = capsys.readouterr().err
    shown = [name for _, name, _ in headers(text)]
    assert shown[0] == "frontend" and "form_fma" in shown and "coalesce" not in shown[:2]
    assert len(shown) < N and "ptx" not in shown
    fma = text.partition("form_fma (tile)")[2].partition("// -----")[0]
    assert re.search(r"^-.*tile\.mul", fma, re.M) and re.search(r"^\+.*tile\.fma", fma, re.M)


def test_dump_of_a_name_that_is_none():
    with knobs.scope(dump="coalesc"), pytest.raises(TilecError, match="`coalesc`") as caught:
        launch()
    assert caught.value.advice == "did you mean `coalesce`?"


def test_dumps_follow_the_flag_on_a_cached_kernel(monkeypatch, capsys):
    plain, _ = launch()
    assert "-----" not in capsys.readouterr().err
    for _ in range(2):
        monkeypatch.setenv("TILEC_DUMP", "tile")
        for repeat in range(3):
            launch()
            assert capsys.readouterr().err.count("-----\n") == (repeat == 0)
        monkeypatch.delenv("TILEC_DUMP")
        assert launch()[0] is plain
        assert capsys.readouterr().err == ""
    for _ in range(2):  # a notebook's cell that is run again
        with knobs.scope(dump="gpu"):
            launch()
            launch()
        assert capsys.readouterr().err.count("-----\n") == 1


def test_locations_and_times(capsys):
    with knobs.scope(dump="tile", print_loc=True, time=True):
        launch()
    text = capsys.readouterr().err
    assert 'support.py":' in text and "loc(" in text
    table = text.partition("tilec: times of @scale in ms")[2]
    rows = re.findall(r"^ +(\w+) +(\d+\.\d+)$", table, re.M)
    assert [r[0] for r in rows if r[0] in LEVELS] == list(LEVELS)
    assert rows[-1][0] == "total" and "coalesce" in dict(rows)
    assert float(rows[-1][1]) == pytest.approx(sum(float(t) for n, t in rows if n in LEVELS),
                                               abs=0.1)


def test_compile_dumps_too(capsys):
    with knobs.scope(dump="tile"):
        tilec.compile(scale, SIGNATURE)
    assert len(headers(capsys.readouterr().err)) == 1


def test_a_dump_of_what_does_not_compile_shows_how_far_it_went(capsys, monkeypatch):
    def broken(module, target):
        raise TilecError("no lowering for this")

    monkeypatch.setattr(compiler, "to_llir", broken)
    with knobs.scope(dump="lowered,ptx"):
        _, out = launch()
    assert out[3] == 9.0
    text = capsys.readouterr().err
    assert [level for _, _, level in headers(text)] == ["lowered"]
    assert "compiling @scale stopped here: no lowering for this" in text


def test_verify_after_every_pass(monkeypatch):
    checked = []
    monkeypatch.setattr(compiler, "verify", lambda module: checked.append(module.level))
    kernel = tilec.compile(scale, SIGNATURE)
    checked.clear()
    for flag, count in ((True, N), (False, 3)):
        compiler.compile_module(kernel.build, kernel.target, Options(), stop_at="lowered",
                                verify_all=flag)
        assert len(checked) == count
        checked.clear()


# -- dumps to a folder ------------------------------------------------------------------------

def dumped(tmp_path, name="dump"):
    with knobs.scope(dump_dir=tmp_path / name):
        kernel, _ = launch()
    (folder,) = (tmp_path / name).iterdir()
    assert folder.name == folder_name("scale", kernel.hash)
    return folder


def test_dump_dir(tmp_path):
    folder = dumped(tmp_path)
    names = ["frontend", *(s.run.name for s in PIPELINE)]
    files = [f"{i:02}-{name}.tir" for i, name in enumerate(names)]
    files += [f"{N + 1}.ll", f"{N + 2}.ptx", f"{N + 3}.cubin", f"{N + 3}.sass", "pipeline.txt"]
    assert sorted(f.name for f in folder.iterdir()) == files
    rows = (folder / "pipeline.txt").read_text().splitlines()
    assert [r.split()[1] for r in rows] == [*names, "llir", "ptx", "cubin"]
    assert re.fullmatch(r"00 frontend +tile +\d+\.\d{3} ms +12 ops", rows[0])
    assert (folder / f"{N + 3}.cubin").read_bytes()[:4] == b"\x7fELF"
    assert "STG" in (folder / f"{N + 3}.sass").read_text()


def test_every_dumped_stage_runs(tmp_path):
    folder = dumped(tmp_path)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".tir":
            module = parse(path.read_text(), str(path))
            verify(module)
            assert equal(module, parse(path.read_text()))
        if path.suffix in (".tir", ".ll", ".ptx"):
            x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
            run_file(path, "scale", [x, out, 2.0], "1")
            assert np.array_equal(out, x * 2 + 3), path.name


def test_no_sass_without_nvdisasm(tmp_path, monkeypatch):
    def missing():
        raise tilec.ToolError("nvdisasm was not found")

    monkeypatch.setattr(cubin, "_nvdisasm", missing)
    folder = dumped(tmp_path)
    assert (folder / f"{N + 3}.cubin").exists() and not (folder / f"{N + 3}.sass").exists()


# -- overriding -------------------------------------------------------------------------------

# The file of each level's last stage.
LAST = {level: level_file(level) for level in LEVELS} | {"frontend": stage_file("frontend")}
EDITS = {  # level: file, what to change, and what the kernel adds then instead of 3
    "frontend": (LAST["frontend"], "value = 3.0", "value = 5.0", 5),
    "tile": (LAST["tile"], "value = 3.0", "value = 5.5", 5.5),
    "gpu": (LAST["gpu"], "value = 3.0", "value = 6.0", 6),
    "lowered": (LAST["lowered"], "value = 3.0", "value = 7.0", 7),
    "llir": (LAST["llir"], "0x4008000000000000", "0x4020000000000000", 8),
    "ptx": (LAST["ptx"], "0f40400000", "0f41100000", 9),
}
FIRST_LEVEL_THAT_SEES = {"frontend": 0, "tile": 0, "gpu": 1, "lowered": 2, "llir": 3, "ptx": 3}


def copied(tmp_path):
    folder = dumped(tmp_path)
    target = tmp_path / "edited" / folder.name
    shutil.copytree(folder, target)
    return target


def edit(folder, level):
    name, old, new, _ = EDITS[level]
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize("level", EDITS)
def test_an_edited_file_changes_the_result(tmp_path, level):
    folder = copied(tmp_path)
    edit(folder, level)
    x = np.arange(32, dtype=np.float32)
    for i, run in enumerate(RUN_LEVELS):
        with knobs.scope(override_dir=folder.parent, run=run):
            _, out = launch()
        added = EDITS[level][3] if i >= FIRST_LEVEL_THAT_SEES[level] else 3
        assert np.array_equal(out, x * 2 + added), run
    with knobs.scope(run="ptx"):
        assert np.array_equal(launch()[1], x * 2 + 3)
    with knobs.scope(override_dir=folder.parent):
        kernel = tilec.compile(scale, SIGNATURE)
    assert kernel.n_regs > 0 and (EDITS["ptx"][1] in kernel.asm["ptx"]) is False


def test_a_copy_without_edits_changes_nothing(tmp_path):
    folder = copied(tmp_path)
    with knobs.scope(override_dir=folder.parent, run="ptx"):
        kernel, out = launch()
    assert out[1] == 5.0 and kernel.asm["ptx"] == (folder / f"{N + 2}.ptx").read_text()


def test_the_latest_edit_wins(tmp_path):
    folder = copied(tmp_path)
    x = np.arange(32, dtype=np.float32)
    for level in ("frontend", "gpu", "ptx", "tile"):  # in any order of editing
        edit(folder, level)
        expected = max((EDITS[lv][0], EDITS[lv][3]) for lv in EDITS
                       if EDITS[lv][2] in (folder / EDITS[lv][0]).read_text())[1]
        with knobs.scope(override_dir=folder.parent, run="ptx"):
            assert np.array_equal(launch()[1], x * 2 + expected)


def test_an_edit_between_launches_is_seen(tmp_path, monkeypatch):
    folder = copied(tmp_path)
    monkeypatch.setenv("TILEC_OVERRIDE_DIR", str(folder.parent))
    assert launch()[1][0] == 3.0
    path = edit(folder, "tile")
    assert launch()[1][0] == 5.5
    path.write_text(path.read_text().replace("5.5", "-64.25"))
    assert launch()[1][0] == -64.25
    path.unlink()
    assert launch()[1][0] == 3.0


def test_dumps_show_the_edit_and_what_follows(tmp_path, capsys):
    folder = copied(tmp_path)
    edit(folder, "gpu")
    with knobs.scope(override_dir=folder.parent, dump="all", dump_dir=tmp_path / "again"):
        launch()
    text = capsys.readouterr().err
    assert [int(n) for n, _, _ in headers(text)] == list(range(N + 3))
    again = tmp_path / "again" / folder.name
    assert (again / LAST["gpu"]).read_text() == (folder / LAST["gpu"]).read_text()
    assert "value = 6.0" in (again / LAST["lowered"]).read_text()
    assert "value = 3.0" in (again / stage_file("reorder")).read_text()


@pytest.mark.parametrize("level, old, new, line", [
    ("tile", "tile.fma(", "tile.fmaa(", rf"{LAST['tile']}:\d+:\d+: "),
    ("gpu", "tile.load(%3)", "tile.load(%33)", rf"{LAST['gpu']}:\d+:\d+: "),
    ("lowered", "func.return()", "func.return(", rf"{LAST['lowered']}:\d+:\d+: "),
    ("llir", "call float @llvm.fma.f32(float %", "call float @llvm.fma.f32(float %nothing",
     rf"{LAST['llir']}: LLVM IR, line \d+: "),
    ("ptx", "fma.rn.f32", "fma.rm.f33", rf"{LAST['ptx']}: .*PTX,? line \d+.*: "),
])
def test_a_broken_edit_is_reported_with_its_line(tmp_path, level, old, new, line):
    folder = copied(tmp_path)
    path = folder / EDITS[level][0]
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    for run in ("ptx", None):
        with knobs.scope(override_dir=folder.parent, run=run or ""), \
                pytest.raises(TilecError) as caught:
            if run:
                launch()
            else:
                tilec.compile(scale, SIGNATURE).asm["cubin"]
        assert re.search(line, str(caught.value), re.S), str(caught.value)
        assert not isinstance(caught.value, InternalError)


def test_an_edit_at_the_wrong_level(tmp_path):
    folder = copied(tmp_path)
    (folder / LAST["gpu"]).write_text((folder / LAST["tile"]).read_text())
    with knobs.scope(override_dir=folder.parent, run="gpu"), \
            pytest.raises(TilecError, match=f"{LAST['gpu']}: the module is at level tile, expect"):
        launch()


def test_shared_memory_is_known_below_an_edit(tmp_path):
    kernel = from_text("""
@tilec.jit
def total(x, out):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, 256)), 0) + 3.0)
""")
    x, out = np.ones(256, np.float32), np.zeros(1, np.float32)
    with knobs.scope(dump_dir=tmp_path):
        made = kernel[1](x, out)
    assert made.shared > 0
    path = tmp_path / folder_name("total", made.hash) / f"{N + 2}.ptx"
    path.write_text(path.read_text().replace("0f40400000", "0f41100000"))
    with knobs.scope(override_dir=tmp_path, run="ptx"):
        again = kernel[1](x, out)
    assert out[0] == 265.0 and again.shared == made.shared


# -- failures ---------------------------------------------------------------------------------

def break_pass(monkeypatch, cls):
    def run(self, module):
        raise LookupError("broken for a test")

    monkeypatch.setattr(cls, "run", run)


def reproducer(error):
    assert isinstance(error, InternalError) and "this is a bug in tilec" in str(error)
    path = Path(re.search(r"is in (\S+)$", error.advice)[1])
    text = path.read_text()
    verify(parse(text, str(path)))
    first = text.partition("\n")[0]
    assert first.startswith("// tilec-")
    return path, shlex.split(first[3:])


def test_a_broken_pass_leaves_a_reproducer(monkeypatch, capsys):
    break_pass(monkeypatch, Cse)
    with pytest.raises(InternalError, match="pass `cse` failed: LookupError") as caught:
        launch(from_text("@tilec.jit\ndef k(x, out, f):\n    tl.store(out, tl.load(x) + f)\n"))
    path, command = reproducer(caught.value)
    assert command[0] == "tilec-opt" and command[1] == str(path)
    assert opt.main(command[1:]) == 2
    assert "pass `cse` failed" in capsys.readouterr().err
    monkeypatch.undo()
    assert opt.main(command[1:]) == 0
    shutil.rmtree(path.parent)


def test_a_pass_that_leaves_wrong_ir(monkeypatch):
    run = Canonicalize.run

    def wrong(self, module):
        run(self, module)
        module.funcs[0].body.ops[0].results[0].type = ir.f64

    monkeypatch.setattr(Canonicalize, "run", wrong)
    with knobs.scope(verify=True), pytest.raises(InternalError, match="canonicalize") as caught:
        launch(from_text("@tilec.jit\ndef k(x, out, f):\n    tl.store(out, tl.load(x) + f)\n"))
    path, command = reproducer(caught.value)
    assert "canonicalize" in command[-2] and "01" not in path.name and "02" in path.name
    shutil.rmtree(path.parent)


def test_broken_code_generation_leaves_a_reproducer(monkeypatch):
    def broken(module, target):
        raise AssertionError("broken for a test")

    monkeypatch.setattr(compiler, "to_llir", broken)
    kernel = from_text("@tilec.jit\ndef k(x):\n    tl.store(x, 1.0)\n")
    with pytest.raises(InternalError, match="code generation failed: AssertionError") as caught:
        tilec.compile(kernel, {"x": "*fp32"})
    path, command = reproducer(caught.value)
    monkeypatch.undo()
    assert command[0] == "tilec-run"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "tilec.tools.run", *command[1:], "--arg=1:fp32:0"],
                          env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "arg 0: 1 float32\n[1.]" in done.stdout, done.stderr
    shutil.rmtree(path.parent)


def test_what_the_author_did_wrong_is_no_internal_error():
    kernel = from_text("@tilec.jit\ndef k(x):\n    tl.store(x, nothing)\n")
    with pytest.raises(tilec.CompilationError, match="nothing"):
        tilec.compile(kernel, {"x": "*fp32"})


def test_add_at_every_level():
    x, y, out = arrays(1000)
    kernel = add.warmup(x, y, out, 1000, BLOCK=256)
    for level in ("tile", "gpu", "lowered", "ptx"):
        out[:] = np.nan
        kernel.run([x, y, out, 1000], 4, level=level)
        assert np.array_equal(out, x + y)
