"""tilec-run: arguments of all forms, files of every level, and errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilec
from tests.runtime.support import from_text, scale
from tilec.errors import TilecError
from tilec.tools import run
from tilec.tools.run import argument

SIGNATURE = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "factor": "fp32"}
SUFFIXES = {"tile": "tir", "gpu": "tir", "lowered": "tir", "llir": "ll", "ptx": "ptx"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("levels")
    kernel = tilec.compile(scale, SIGNATURE)
    for level, suffix in SUFFIXES.items():
        (folder / f"{level}.{suffix}").write_text(kernel.asm[level])
    return {level: folder / f"{level}.{suffix}" for level, suffix in SUFFIXES.items()}


# -- arguments --------------------------------------------------------------------------------

@pytest.mark.parametrize("text, value", [
    ("7", 7), ("-3", -3), ("0x10", 16), ("0.5", 0.5), ("1e3", 1000.0), ("true", True),
    ("false", False), ("inf", float("inf")),
])
def test_numbers(text, value):
    assert argument(text) == value and type(argument(text)) is type(value)


@pytest.mark.parametrize("text, shape, dtype", [
    ("16:fp32", (16,), np.float32), ("3x5:f32:1", (3, 5), np.float32),
    ("2x3x4:i64:2", (2, 3, 4), np.int64), ("4:bf16:0", (4,), ml_dtypes.bfloat16),
    ("4:fp8e4nv:0", (4,), ml_dtypes.float8_e4m3fn), ("4:float16:0", (4,), np.float16),
    ("9:u8:5", (9,), np.uint8), ("9:i1:5", (9,), np.bool_), ("0:fp64:5", (0,), np.float64),
])
def test_arrays(text, shape, dtype):
    array = argument(text)
    assert array.shape == shape and array.dtype == np.dtype(dtype)
    assert array.tobytes() == argument(text).tobytes()
    if array.size > 8:
        assert array.tobytes() != argument(":".join([*text.split(":")[:2], "77"])).tobytes()


def test_fills():
    assert argument("3:i32:zeros").tolist() == [0, 0, 0]
    assert argument("2:bf16:ones").astype(float).tolist() == [1, 1]
    assert argument("2x2:fp32:arange").tolist() == [[0, 1], [2, 3]]
    assert np.isnan(argument("3:fp16:nan")).all()
    integers = argument("1000:i8:3")
    assert integers.min() < -50 and integers.max() > 50
    assert argument("1000:u16:3").max() < 100 and set(argument("50:i1:3")) == {True, False}
    normal = argument("1000:fp32:3")
    assert abs(normal.mean()) < 0.2 and 0.8 < normal.std() < 1.2


def test_saved_arrays(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.int16).reshape(2, 3))
    assert argument(f"@{tmp_path}/a.npy").tolist() == [[0, 1, 2], [3, 4, 5]]
    (tmp_path / "b.npy").write_text("no array")
    with pytest.raises(TilecError, match="b.npy"):
        argument(f"@{tmp_path}/b.npy")


@pytest.mark.parametrize("text, message", [
    ("abc", "no number, no SHAPE"), ("axb:fp32", "`axb` is no shape"),
    ("-3:fp32", "`-3` is no shape"), ("3:fp31", "fp31"), ("3:void", "void"),
    ("3:fp32:many", "`many` fills no array"), ("3:i32:nan", "`nan` fills no array"),
    ("3:fp32:-1", "`-1` fills no array"), ("3:*fp32", r"no array|no type|fp32"),
])
def test_arguments_that_are_none(text, message):
    with pytest.raises(TilecError, match=message):
        argument(text)


# -- files ------------------------------------------------------------------------------------

def args(*more):
    return ["--arg=32:fp32:arange", "--arg=32:fp32:zeros", "--arg=2.0", *more]


@pytest.mark.parametrize("level", SUFFIXES)
def test_every_level(files, level, tmp_path, capsys):
    saved = tmp_path / "out.npz"
    assert run.main([str(files[level]), *args(f"--save={saved}")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("arg 1: 32 float32\n[ 3.  5.  7.") and "arg 0" not in printed
    with np.load(saved) as arrays:
        assert sorted(arrays) == ["arg0", "arg1"]
        assert np.array_equal(arrays["arg1"], np.arange(32) * 2 + 3)


@pytest.mark.parametrize("level", ["gpu", "lowered", "ptx"])
@pytest.mark.parametrize("start", ["tile", "gpu", "lowered"])
def test_compiling_down_before_running(files, start, level, capsys):
    if list(SUFFIXES).index(start) > list(SUFFIXES).index(level):
        return
    assert run.main([str(files[start]), *args(f"--level={level}", "--func=scale")]) == 0
    assert capsys.readouterr().out.startswith("arg 1: 32 float32\n[ 3.  5.  7.")


def test_all_prints_what_did_not_change(files, capsys):
    assert run.main([str(files["tile"]), *args("--all")]) == 0
    assert capsys.readouterr().out.startswith("arg 0: 32 float32\n[ 0.  1.")


def test_grid_seed_and_functions(tmp_path, capsys):
    kernel = from_text("@tilec.jit\ndef k(p):\n"
                       "    i = tl.program_id(0) + 3 * tl.program_id(1)\n    tl.store(p + i, i)\n")
    made = tilec.compile(kernel, {"p": "*i32"})
    for level in ("tile", "ptx"):
        path = tmp_path / f"k.{SUFFIXES[level]}"
        path.write_text(made.asm[level])
        for grid in ("3,2", "3x2", "3,2,1"):
            assert run.main([str(path), "--func=k", "--arg=8:i32:zeros", f"--grid={grid}",
                             "--seed=5"]) == 0
            assert capsys.readouterr().out == "arg 0: 8 int32\n[0 1 2 3 4 5 0 0]\n"


def test_shared_memory_of_ptx(tmp_path, capsys):
    kernel = from_text("@tilec.jit\ndef k(x):\n"
                       "    tl.store(x, tl.sum(tl.load(x + tl.arange(0, 512)), 0))\n")
    made = tilec.compile(kernel, {"x": "*fp32:16"})
    path = tmp_path / "k.ptx"
    path.write_text(made.asm["ptx"])
    assert made.shared > 0
    assert run.main([str(path), "--arg=512:fp32:ones", f"--shared={made.shared}"]) == 0
    assert capsys.readouterr().out.startswith("arg 0: 512 float32\n[512.")
    assert run.main([str(path), "--arg=512:fp32:ones", "--shared=0"]) == 1
    assert "k.ptx" in capsys.readouterr().err


@pytest.mark.parametrize("more, message", [
    (["--func=scal"], "did you mean `scale`"), (["--grid=a"], "--grid is 'a'"),
    (["--grid=1,2,3,4"], "expected 1 to 3"), (["--grid=-1"], "--grid is '-1'"),
    (["--arg=5"], "3 arguments"), (["--target=sm_1"], "unknown target"),
])
@pytest.mark.parametrize("level", ["tile", "ptx"])
def test_errors(files, capsys, level, more, message):
    assert run.main([str(files[level]), *args(*more)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("tilec-run: ")
    if level == "tile" or "arguments" not in message:
        assert message in error


def test_errors_of_files(files, tmp_path, capsys):
    def error(name, text=None, *more):
        if text is not None:
            (tmp_path / name).write_text(text)
        assert run.main([str(tmp_path / name), *args(*more)]) == 1
        return capsys.readouterr().err

    assert "No such file" in error("missing.tir")
    (tmp_path / "binary.ptx").write_bytes(b"\xff\xfe")
    assert "can't decode byte 0xff" in error("binary.ptx")
    assert "expected a .tir, .ll or .ptx file" in error("k.cubin", "x")
    assert "--level is for .tir files" in error("k.ptx", "x", "--level=ptx")
    tile = files["tile"].read_text()
    assert "a.tir:2:" in error("a.tir", tile.replace("func @scale", "func scale"))
    assert "LLVM IR, line" in error("a.ll", files["llir"].read_text().replace("ret void", "rt"))
    ptx = files["ptx"].read_text()
    assert "a.ptx" in error("a.ptx", ptx.replace("fma.rn.f32", "fma.rn.f31"))
    assert "no kernel; the file has none" in error("b.ptx", ptx.partition(".visible")[0])


def test_an_access_out_of_bounds_is_reported(files, capsys):
    for level in ("tile", "ptx"):
        assert run.main([str(files[level]), "--arg=16:fp32:0", "--arg=32:fp32:0", "--arg=1.0"]) == 1
        assert "x_ptr" in capsys.readouterr().err or level == "ptx"
