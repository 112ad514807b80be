"""tilec-bisect against planted bugs: passes and lowerings that are wrong in different ways."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilec
from tests.interp.kernels import module
from tests.runtime.support import from_text
from tilec import compiler
from tilec.errors import OutOfResources
from tilec.ir import ops
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.passes.allocate_shared import AllocateShared
from tilec.passes.canonicalize import Canonicalize
from tilec.passes.coalesce import Coalesce
from tilec.passes.combine import Combine
from tilec.passes.cse import Cse
from tilec.passes.dce import Dce
from tilec.passes.insert_barriers import InsertBarriers
from tilec.passes.licm import Licm
from tilec.passes.reorder import Reorder
from tilec.runtime.validation import Tolerance
from tilec.tools import bisect as tool

SOURCE = """
@tilec.jit
def k(x_ptr, out_ptr, count_ptr, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + cols, mask=cols < n, other=0.0)
    y = (x - tl.max(x, axis=0)) * 3.0
    tl.store(out_ptr + tl.program_id(0) * n + cols, y / (1.0 + tl.sum(x * x, axis=0)),
             mask=cols < n)
    tl.store(count_ptr + tl.program_id(0), n - 5)
"""
ARGS = ["--arg=3x100:fp32:1", "--arg=3x100:fp32:zeros", "--arg=3:i32:zeros", "--arg=100",
        "--grid=3"]


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """Commands that the tool prints are run again, and leave their files where they are run."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def tile():
    """The kernel as the front end makes it."""
    kernel = tilec.compile(from_text(SOURCE), {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16",
                                               "count_ptr": "*i32", "n": "i32"}, {"BLOCK": 128})
    return print_module(kernel.build(), locations=True)


@pytest.fixture
def file(tile, tmp_path):
    path = tmp_path / "k.tir"
    path.write_text(tile)
    return path


def run(file, *more, out=None):
    return tool.main([str(file), *ARGS, f"--output={out or file.parent}", *more])


def plant(monkeypatch, cls, break_module, after=True):
    """Make a pass run `break_module` too."""
    right = cls.run

    def wrong(self, module):
        if after:
            right(self, module)
        break_module(module)

    monkeypatch.setattr(cls, "run", wrong)


def first(module, kind):
    return next(op for op in module.walk() if isinstance(op, kind))


# -- ways to be wrong -------------------------------------------------------------------------

def change_a_constant(module):
    op = next(op for op in module.walk() if isinstance(op, ops.Constant) and op.value == 3.0)
    op.value = 4.0


def drop_a_store(module):
    [op for op in module.walk() if isinstance(op, ops.Store)][-1].erase()


def swap_operands(module):
    op = first(module, ops.Sub)
    op.set_operands([op.rhs, op.lhs])


def widen_the_mask(module):
    first(module, ops.Cmp).predicate = "le"


def drop_a_mask(module):
    op = first(module, ops.Load)
    op.replace_by([op.parent.insert(ops.Load(op.ptr, loc=op.loc), op).result])


def raise_an_error(module):
    raise KeyError("no such rule")


def break_the_module(module):
    op = first(module, ops.Store)
    op.set_operands([op.ptr, op.mask, op.mask])


BUGS = {
    "a constant": (Canonicalize, change_a_constant, "elements differ, the first at [0, "),
    "a store": (Dce, drop_a_store, "arg 2: 3 of 3 elements differ, the first at [0]: 0, expected "
                "95"),
    "operands": (Combine, swap_operands, "arg 1: "),
    "a wrong mask": (Cse, widen_the_mask, "past x_ptr"),
    "no mask": (Reorder, drop_a_mask, "it fails: "),
    "an error": (Licm, raise_an_error, "pass `licm` failed: KeyError: 'no such rule'"),
    "invalid IR": (Coalesce, break_the_module, "pass `coalesce` failed: IRError: "),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_broken_pass_is_named(file, monkeypatch, capsys, bug):
    cls, wrong, message = BUGS[bug]
    plant(monkeypatch, cls, wrong)
    assert run(file) == 1
    text = capsys.readouterr().out
    number = [s.run.name for s in compiler.PIPELINE].index(cls.name) + 1
    rows, _, verdict = text.partition("tilec-bisect: ")
    assert verdict.startswith(f"pass `{cls.name}` changes the result: ") and message in verdict
    same = rows.splitlines()[:number]
    assert [int(r.split()[0]) for r in same] == list(range(number))
    assert all(r.endswith(" same") for r in same)
    assert all(r.endswith(" CHANGED") for r in rows.splitlines()[number:])

    command = verdict.splitlines()[-1].strip()
    if bug in ("a constant", "operands"):
        assert "\n  stored by `tile.store(" in verdict and "<launched " in verdict
        assert "\n  the first value that was not computed before it: `" in verdict
    path = file.parent / f"k-before-{number:02}-{cls.name}.tir"
    assert path.read_text().startswith(f"// {command}\n")
    assert "func @k(" in path.read_text()
    words = shlex.split(command)
    assert words[:3] == ["tilec-bisect", str(path), f"--passes={cls.name}"]
    assert tool.main([*words[1:], f"--output={file.parent / 'again'}"]) == 1
    assert f"pass `{cls.name}` changes the result: " in capsys.readouterr().out
    monkeypatch.undo()
    assert tool.main(words[1:]) == 0
    assert capsys.readouterr().out.endswith("no step changes the result\n")


LAYOUT = ("blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], "
          "order = [0]}>")
BUFFER = "memdesc<8xi32, swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>>"
SHARED = f"""
    %r = tile.arange() {{start = 0, end = 8}} : tensor<8xi32, {LAYOUT}>
    %a = gpu.alloc_shared() : {BUFFER}
    gpu.shared_store(%a, %r)
    %v = gpu.shared_load(%a) : tensor<8xi32, {LAYOUT}>
    %os = tile.splat(%o) : tensor<8xptr<i32>, {LAYOUT}>
    %op = tile.addptr(%os, %r) : tensor<8xptr<i32>, {LAYOUT}>
    tile.store(%op, %v)
"""


TWO_CONVERSIONS = """
#a = blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8],
             warpsPerCTA = [4, 1], order = [1, 0]}>
#b = blocked<{sizePerThread = [4, 1], threadsPerWarp = [8, 4],
             warpsPerCTA = [1, 4], order = [0, 1]}>
module attributes {level = "gpu", num_warps = 4} {
  func @k(%p: ptr<f32>) {
    %c = tile.constant() {value = 2.0} : tensor<32x32xf32, #a>
    %x = gpu.convert_layout(%c) : tensor<32x32xf32, #b>
    %y = gpu.convert_layout(%x) : tensor<32x32xf32, #a>
    %q = tile.splat(%p) : tensor<32x32xptr<f32>, #a>
    tile.store(%q, %y)
    func.return()
  }
}
"""


def test_missing_barriers_are_found(tmp_path, monkeypatch, capsys):
    path = tmp_path / "s.tir"
    path.write_text(print_module(module("%o: ptr<i32>", SHARED, level="gpu")))
    words = [str(path), "--arg=8:i32:zeros", f"--output={tmp_path}",
             "--passes=allocate_shared,insert_barriers"]
    assert tool.main(words) == 0
    plant(monkeypatch, InsertBarriers, lambda module: None, after=False)
    assert tool.main(words) == 1
    text = capsys.readouterr().out
    assert "pass `insert_barriers` changes the result: it fails: " in text
    assert "with no barrier between them" in text
    assert tool.main(shlex.split(text.splitlines()[-1])[1:]) == 1
    assert "pass `insert_barriers` changes the result" in capsys.readouterr().out
    assert tool.main([*words[:-1], "--passes=allocate_shared"]) == 0


def broken_lowering(monkeypatch):
    right = compiler.to_llir

    def wrong(module, target):
        made = right(module, target)
        return replace(made, text=made.text.replace("fsub", "fadd"))

    monkeypatch.setattr(compiler, "to_llir", wrong)


def broken_llvm(monkeypatch):
    right = compiler.emit_ptx
    monkeypatch.setattr(compiler, "emit_ptx", lambda *a, **k: right(*a, **k).replace(
        "max.f32", "min.f32"))


def failing_lowering(monkeypatch):
    monkeypatch.setattr(compiler, "to_llir", lambda module, target: 1 / 0)


def text_that_is_none(monkeypatch):
    right = compiler.to_llir
    monkeypatch.setattr(compiler, "to_llir", lambda module, target: replace(
        right(module, target), text="define nothing"))


@pytest.mark.parametrize("break_it, step, message", [
    (broken_lowering, "code generation (llir)", "arg 1: "),
    (broken_llvm, "code generation (ptx)", "arg 1: "),
    (failing_lowering, "code generation", "ZeroDivisionError"),
    (text_that_is_none, "code generation", "LLVM IR, line"),
])
def test_a_broken_lowering_is_named(file, monkeypatch, capsys, break_it, step, message):
    break_it(monkeypatch)
    assert run(file) == 1
    rows, _, verdict = capsys.readouterr().out.partition("tilec-bisect: ")
    assert verdict.startswith(f"{step} changes the result: ") and message in verdict
    assert rows.count(" same\n") == len(compiler.PIPELINE) + 1
    words = shlex.split(verdict.splitlines()[-1])
    assert "codegen" in words[1] and words[2] == "--passes="
    assert parse(Path(words[1]).read_text()).level == "lowered"
    assert tool.main(words[1:]) == 1
    assert step in capsys.readouterr().out
    monkeypatch.undo()
    assert tool.main(words[1:]) == 0


def test_nothing_is_wrong(file, capsys):
    assert run(file, "--func=k", "--seed=3", "--target=sm_80") == 0
    rows = capsys.readouterr().out.splitlines()
    names = ["frontend", *(s.run.name for s in compiler.PIPELINE), "ptx"]
    assert [r.split()[1] for r in rows[:-1]] == names
    assert {r.split()[3] for r in rows[:-1]} == {"same"}
    assert not list(file.parent.glob("*before*"))


def test_nothing_is_wrong_where_conversions_share_their_bytes(tmp_path, capsys):
    path = tmp_path / "c.tir"
    path.write_text(TWO_CONVERSIONS)
    assert tool.main([str(path), "--arg=1024:fp32:1", "--passes=allocate_shared,insert_barriers",
                      f"--output={tmp_path}"]) == 0, capsys.readouterr().out
    made = parse(TWO_CONVERSIONS)
    AllocateShared().run(made)
    assert print_module(made).count("offset = 0") == 2


def test_the_pipeline_starts_at_the_level_of_the_file(file, tmp_path, capsys):
    made = tilec.compile(from_text(SOURCE), {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16",
                                             "count_ptr": "*i32", "n": "i32"}, {"BLOCK": 128})
    for level in ("gpu", "lowered"):
        path = tmp_path / f"{level}.tir"
        path.write_text(made.asm[level])
        assert run(path) == 0
        first_row = capsys.readouterr().out.splitlines()[0].split()
        assert first_row[2] == level
    assert run(file, "--passes=cse,dce") == 0
    assert [r.split()[1] for r in capsys.readouterr().out.splitlines()[:-1]] == [
        "input", "cse", "dce"]


def test_python_files(tmp_path, capsys, monkeypatch):
    (tmp_path / "kernels_of_bisect.py").write_text(
        "import tilec\nimport tilec.language as tl\n"
        "@tilec.autotune([tilec.Config({'BLOCK': 64})], [])" + SOURCE)
    kernel = f"{tmp_path}/kernels_of_bisect.py:k"
    signature = "--signature=*fp32:16, *fp32:16, *i32, i32, 128"
    more = [*ARGS, f"--output={tmp_path}"]
    assert tool.main([kernel, signature, "--num-warps=2", *more]) == 0
    assert "no step" in capsys.readouterr().out
    plant(monkeypatch, Combine, swap_operands)
    assert tool.main([kernel, signature, *more]) == 1
    assert "pass `combine` changes the result" in capsys.readouterr().out
    (tmp_path / "binary.tir").write_bytes(b"\xff\xfe")
    for arguments, message in [
        ([kernel, *more], "needs its --signature"),
        ([kernel + "k", signature, *more], "has no kernel `kk`"),
        ([kernel, "--signature=*fp32", *more], "`out_ptr` is not given"),
        ([f"{tmp_path}/k.ptx", *more], "expected a .tir file or FILE.py:KERNEL"),
        ([f"{tmp_path}/k.tir", *more], "No such file"),
        ([f"{tmp_path}/binary.tir", *more], "can't decode byte 0xff"),
    ]:
        assert tool.main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("tilec-bisect: ") and message in error


@pytest.mark.parametrize("more, message", [
    (["--arg=5"], "takes 4 arguments"), (["--grid=a"], "--grid is 'a'"),
    (["--func=kk"], "no kernel `kk`"), (["--passes=cs"], "did you mean `cse`"),
    (["--target=sm_1"], "unknown target"), (["--grid=4"], "elements past"),
])
def test_errors(file, capsys, more, message):
    assert run(file, *more) == 2
    assert message in capsys.readouterr().err


def test_what_does_not_fit_is_no_change(file, monkeypatch, capsys):
    def refuse(module):
        raise OutOfResources("shared memory", 2, 1)

    plant(monkeypatch, AllocateShared, refuse)
    for more in ([], ["--passes=assign_layouts,allocate_shared"]):
        assert run(file, *more) == 2
        assert "out of resource: shared memory" in capsys.readouterr().err


def test_inputs_are_made_where_none_are_given(file, tmp_path, monkeypatch, capsys):
    assert tool.main([str(file), f"--output={tmp_path}"]) == 0
    plant(monkeypatch, Combine, swap_operands)
    assert tool.main([str(file), f"--output={tmp_path}"]) == 1
    verdict = capsys.readouterr().out.partition("tilec-bisect: pass")[2]
    assert verdict.startswith(" `combine` changes the result: arg 1: ")
    assert tool.main([*shlex.split(verdict.splitlines()[-1])[1:], f"--output={tmp_path}"]) == 1
    path = tmp_path / "never.tir"
    body = """    %c = tile.cmp(%n, %n) {predicate = "ne"} : i1
    tile.assume(%c)"""
    path.write_text(print_module(module("%n: i32", body)))
    assert tool.main([str(path)]) == 2
    assert "no input was found that @k takes: " in capsys.readouterr().err


TOTAL = """
@tilec.jit
def {name}(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.exp(tl.load(x_ptr + i, mask=i < n, other=0.0))
    tl.store(out_ptr, {total})
"""


@pytest.mark.parametrize("other, status, message", [
    ("tl.sum(x, 0)", 0, "the same, bit for bit"),
    ("tl.sum(x * 6.9, 0) - 5.9 * tl.sum(x, 0)", 0,
     "the same but for roundings: arg 1: 1 of "),
    ("tl.sum(x, 0) + 1e-6", 1, "something else: arg 1: 1 of "),
    ("tl.sum(tl.where(i < 7, x, 0.0), 0)", 1, "something else: arg 1: 1 of "),
])
def test_two_kernels_are_compared(tmp_path, capsys, other, status, message):
    paths = []
    for name, total in (("one", "tl.sum(x, 0)"), ("two", other)):
        kernel = tilec.compile(from_text(TOTAL.format(name=name, total=total)),
                               {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}, {"BLOCK": 512})
        paths.append(tmp_path / f"{name}.tir")
        paths[-1].write_text(kernel.asm["tile" if name == "one" else "gpu"])
    words = ["--same", *map(str, paths)]
    assert tool.main(words) == status
    said = capsys.readouterr()
    assert message in said.out and not said.err
    assert tool.main([*words, "--arg=512:f32:3", "--arg=1:f32:0", "--arg=512"]) == status
    assert message in capsys.readouterr().out
    assert tool.main(words[:-1]) == 2
    assert "1 file is named, expected 2" in capsys.readouterr().err


# -- comparing --------------------------------------------------------------------------------

def same(a, b, **tolerance):
    return Tolerance(32, **tolerance).same(a, b).tolist()


def test_integers_are_compared_exactly():
    a = np.array([1, -2, 2**62, 5])
    assert same(a, a + np.array([0, 0, 1, 0]), rtol=1.0, atol=9.0) == [True, True, False, True]
    assert same(np.array([True, False]), np.array([True, True])) == [True, False]


@pytest.mark.parametrize("dtype, near, far", [
    (np.float64, 5e-15, 2e-14), (np.float32, 3e-6, 2e-5), (np.float16, 1e-3, 1e-2),
    (ml_dtypes.bfloat16, 1e-2, 1e-1), (ml_dtypes.float8_e4m3fn, 0.12, 2.0),
])
def test_floats_may_be_a_little_apart(dtype, near, far):
    one = np.array([1.0, 1.0], dtype)
    assert same(one, np.array([1.0 + near, 1.0 + far]).astype(dtype)) == [True, False]


def test_special_values_and_tolerances():
    inf, nan = np.inf, np.nan
    a = np.array([inf, inf, nan, nan, 1.0, -inf, 0.0], np.float32)
    b = np.array([inf, 3.0, nan, 1.0, nan, inf, -0.0], np.float32)
    assert same(a, b) == [True, False, True, False, False, False, True]
    x, y = np.array([1000.0, 1e-9], np.float32), np.array([1000.0, 2e-9], np.float32)
    assert same(x, y) == [True, True]  # next to the largest, nothing
    assert same(x, y, atol=0.0) == [True, False]
    assert same(x, x * np.float32(1.01), rtol=0.02, atol=0.0) == [True, True]
    assert same(np.zeros(0, np.float32), np.zeros(0, np.float32)) == []
