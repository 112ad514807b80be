"""tilec-compile: signatures, and the files of every level."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilec.codegen import cubin
from tilec.errors import ToolError
from tilec.ir.parser import parse
from tilec.tools import compile as tool
from tilec.tools import run

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
import tilec
import tilec.language as tl

@tilec.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr, ROUND: tl.constexpr = None):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    if ROUND == "up":
        x = tl.ceil(x)
    tl.store(out_ptr + i, x + tl.load(y_ptr + i, mask=i < n), mask=i < n)

number = 3
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "kernels_to_compile.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("signature", [
    "*fp32:16, *fp32, *fp32, i32, 64",
    "x_ptr=*fp32:16, y_ptr=*fp32, out_ptr=*fp32, n=i32, BLOCK=64",
    "*fp32:16,*fp32,*fp32,i32,BLOCK=64",
])
def test_writes_every_level(source, tmp_path, capsys, signature):
    out = tmp_path / "out"
    assert tool.main([f"{source}:add", f"--signature={signature}", "-o", str(out),
                      "--target=sm_80", "--num-warps=2"]) == 0
    names = ["add.tile.tir", "add.gpu.tir", "add.lowered.tir", "add.ll", "add.ptx", "add.cubin"]
    assert capsys.readouterr().out.split() == [str(out / n) for n in names]
    assert sorted(p.name for p in out.iterdir()) == sorted(names)
    tile = parse((out / "add.tile.tir").read_text())
    assert (tile.level, tile.num_warps) == ("tile", 2) and "sm_80" in str(tile.attributes)
    ptx = (out / "add.ptx").read_text()
    assert ".target sm_80" in ptx and ".reqntid 64" in ptx
    assert (out / "add.cubin").read_bytes()[:4] == b"\x7fELF"
    for name in names[:-1]:
        assert run.main([str(out / name), "--arg=50:fp32:ones", "--arg=50:fp32:ones",
                         "--arg=50:fp32:nan", "--arg=50"]) == 0
        assert capsys.readouterr().out.startswith("arg 2: 50 float32\n[2. 2. 2.")


def test_clusters(source, tmp_path):
    assert tool.main([f"{source}:add", "--signature=*fp32, *fp32, *fp32, i32, 64", "-o",
                      str(tmp_path), "--num-ctas=4"]) == 0
    for level in ("tile", "gpu", "lowered"):
        assert parse((tmp_path / f"add.{level}.tir").read_text()).num_ctas == 4
    assert ".reqnctapercluster 4, 1, 1" in (tmp_path / "add.ptx").read_text()


def test_descriptors_among_the_types(source):
    text = "*fp32, tensordesc<bf16[4, 8], nan>:16, out_ptr=tensordesc<i8[16, 1, 2]>, 3"
    signature, constexprs = tool.split_signature(tool.load(source, "add"), text)
    assert list(signature.values()) == ["*fp32", "tensordesc<bf16[4, 8], nan>:16",
                                        "tensordesc<i8[16, 1, 2]>"] and constexprs == {"n": 3}


def test_constants_of_other_types(source, tmp_path):
    assert tool.main([f"{source}:add", '--signature=*fp32,*fp32,*fp32,i32,64,"up"',
                      "-o", str(tmp_path)]) == 0
    assert "tile.ceil" in (tmp_path / "add.tile.tir").read_text()


def test_without_nvjitlink_it_stops_at_ptx(source, tmp_path, monkeypatch, capsys):
    def missing():
        raise ToolError("nvJitLink is not available")

    monkeypatch.setattr(cubin, "_nvjitlink", missing)
    assert tool.main([f"{source}:add", "--signature=*fp32,*fp32,*fp32,i32,32", "-o",
                      str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.split()[-1].endswith("add.ptx")
    assert "no cubin, as nvJitLink is not installed" in printed.err


@pytest.mark.parametrize("kernel, signature, message", [
    ("{}:ad", "i32", "did you mean `add`"), ("{}:number", "i32", "no kernel `number`"),
    ("{}", "i32", "names no kernel"), ("missing.py:add", "i32", "missing.py is not there"),
    ("/:add", "i32", "/ is no Python file"),
    ("{}:add", "*fp32", "`y_ptr`"), ("{}:add", "1,2,3,4,5,6,7", "7 entries"),
    ("{}:add", "*fp32,*fp32,*fp32,i99,64", "'i99'"), ("{}:add", "m=i32", "no parameter `m`"),
    ("{}:add", "x_ptr=*fp32,x_ptr=*fp16", "`x_ptr` twice"),
    ("{}:add", "*fp32,*fp32,*fp32,i32,i32", "`BLOCK` is a"),
])
def test_errors(source, tmp_path, capsys, kernel, signature, message):
    code = tool.main([kernel.format(source), f"--signature={signature}", "-o", str(tmp_path)])
    error = capsys.readouterr().err
    assert code == 1 and error.startswith("tilec-compile: ") and message in error, error


def test_errors_of_the_file(source, tmp_path, capsys):
    source.write_text("import nothing_of_this_name\n")
    assert tool.main([f"{source}:add", "--signature=i32", "-o", str(tmp_path)]) == 1
    assert "fails when imported: ModuleNotFoundError" in capsys.readouterr().err
    source.write_text("import tilec\n@tilec.jit\ndef k(p):\n    undefined\n")
    assert tool.main([f"{source}:k", "--signature=*fp32", "-o", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert f"{source}:4:5: " in error and "undefined" in error and "^^^^" in error


def test_siblings_of_the_file(source, tmp_path):
    (tmp_path / "sibling_of_kernels.py").write_text(SOURCE)
    source.write_text("from sibling_of_kernels import add\n")
    before = list(sys.path)
    assert tool.load(source, "add").name == "add" and sys.path == before


def test_as_a_program(source, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tilec.tools.compile", f"{source}:add",
         "--signature=*fp32,*fp32,*fp32,i32,32", "-o", str(tmp_path / "o"), "--target=sm_75"],
        env={"PYTHONPATH": str(ROOT), "PATH": "", "TILEC_CACHE": "0"}, capture_output=True,
        text=True, timeout=60)
    assert done.returncode == 0 and len(done.stdout.split()) == 6, done.stderr
