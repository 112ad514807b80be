"""tilec-reduce against planted faults: what is left is small, still fails, and says how."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

import tilec
from tests.runtime.support import from_text
from tests.runtime.test_validation import first, plant
from tests.support import lit
from tilec import compiler
from tilec.errors import TilecError
from tilec.ir import ops
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.ir.verifier import verify
from tilec.passes.base import parse_pipeline
from tilec.passes.canonicalize import Canonicalize
from tilec.passes.licm import Licm
from tilec.runtime.validation import Tolerance
from tilec.tools import reduce as tool
from tilec.tools.case import made_case
from tilec.tools.opt import split
from tilec.tools.shrink import measure, shrink
from tilec.tools.spell import module_of, spelled

SOURCE = """
@tilec.jit
def k(x_ptr, w_ptr, out_ptr, sums_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + cols
        x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
        total += x
        squares = tl.where(x > 0, squares + x * x, squares - 0.5 * x)
    mean = tl.sum(total, 0) / n
    var = tl.sum(squares, 0) / n - mean * mean
    if mean > 0:
        scale = 1.0 / tl.sqrt(tl.abs(var) + eps)
    else:
        scale = tl.exp(mean) * 2.0
    for start in range(0, n, BLOCK):
        at = start + cols
        x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0)
        w = tl.load(w_ptr + at, mask=at < n, other=1.0)
        y = tl.maximum((x - mean) * scale * w, -4.0)
        tl.store(out_ptr + row * n + at, tl.minimum(y, 4.0), mask=at < n)
    tl.atomic_add(sums_ptr + row % 3, var)
"""
SIGNATURE = {"x_ptr": "*fp32:16", "w_ptr": "*fp32", "out_ptr": "*fp32:16", "sums_ptr": "*fp32",
             "n": "i32", "eps": "fp32"}


@pytest.fixture(scope="module")
def text():
    """A kernel of more than 60 ops, as the front end makes it."""
    kernel = tilec.compile(from_text(SOURCE), SIGNATURE, {"BLOCK": 128})
    made = print_module(kernel.build(), locations=True)
    assert len(list(parse(made).walk())) >= 60
    return made


@pytest.fixture
def file(text, tmp_path):
    path = tmp_path / "k.tir"
    path.write_text(text)
    return path


def swap_operands(module):
    for op in module.walk():
        if isinstance(op, ops.Sub):
            op.set_operands([op.rhs, op.lhs])


def forget_the_mask(module):
    op = first(module, ops.Store, lambda op: op.mask is not None)
    if op is not None:
        op.set_operands(op.operands[:2])


def raise_an_error(module):
    if first(module, ops.AtomicRmw) is not None:
        raise KeyError("no such rule")


def break_the_module(module):
    op = first(module, ops.For)
    if op is not None:
        op.set_operands([*op.operands[:2], op.body.args[0], *op.operands[3:]])


FAULTS = {
    "operands": (Canonicalize, swap_operands, "changes what the kernel computes", ops.Sub, True),
    "a mask": (Licm, forget_the_mask, "changes what the kernel", ops.Store, True),
    "an error": (Licm, raise_an_error, "breaks: KeyError", ops.AtomicRmw, True),
    "invalid IR": (Canonicalize, break_the_module, "breaks: IRError", ops.For, True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_shrinks_to_its_fault(file, monkeypatch, capsys, fault):
    cls, wrong, how, kind, python = FAULTS[fault]
    plant(monkeypatch, cls, wrong)
    assert tool.main([str(file), f"--passes={cls.name}", f"--output={file.parent}"]) == 0
    out = capsys.readouterr().out
    assert f"ops: pass `{cls.name}` {how}" in out
    left = parse((file.parent / "k-reduced.tir").read_text())
    verify(left)
    assert len(list(left.walk())) <= 12, print_module(left)
    assert first(left, kind) is not None
    assert (file.parent / "k-reduced.py").is_file() == python
    for path in sorted(file.parent.glob("k-reduced.*")):
        words = shlex.split(path.read_text().splitlines()[0].lstrip("/# "))
        assert words[0] == "tilec-reduce"
        assert tool.main([*words[1:], f"--output={file.parent / 'again'}"]) == 0
        assert f"ops: pass `{cls.name}` {how}" in capsys.readouterr().out
    monkeypatch.undo()
    assert tool.main([str(file), f"--passes={cls.name}"]) == 1
    assert capsys.readouterr().out == "tilec-reduce: nothing fails\n"


SHORT = """
@tilec.jit
def k(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(out_ptr + at, tl.exp(tl.maximum(x * 2.0, 0.5) + 1.0), mask=at < n)
"""


def test_a_level_that_differs(file, monkeypatch, capsys):
    kernel = tilec.compile(from_text(SHORT), {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"},
                           {"BLOCK": 64})
    file.write_text(print_module(kernel.build()))
    right = compiler.emit_ptx
    monkeypatch.setattr(compiler, "emit_ptx", lambda *a, **k: right(*a, **k).replace(
        "max.f32", "min.f32"))
    assert tool.main([str(file), "--level=ptx", f"--output={file.parent}"]) == 0
    assert "the result at level ptx differs" in capsys.readouterr().out
    left = parse((file.parent / "k-reduced.tir").read_text())
    assert first(left, ops.Maximum) is not None and len(list(left.walk())) <= 8
    monkeypatch.undo()
    assert tool.main([str(file), "--level=gpu"]) == 1


def test_a_command_says_what_fails(file, capsys):
    command = f"{shlex.quote(sys.executable)} -c 'import sys; sys.exit(\"scf.if\" not in " \
        "open(sys.argv[1]).read())' {}"
    small = "module {\n  func @k(%c: i1, %p: ptr<i32>) {\n    scf.if(%c) {\n" \
        "      %a = tile.constant() {value = 2} : i32\n      tile.store(%p, %a)\n" \
        "      scf.yield()\n    }, {\n      scf.yield()\n    }\n    func.return()\n  }\n}\n"
    file.write_text(small)
    assert tool.main([str(file), f"--command={command}"]) == 0  # beside the input
    left = parse((file.parent / "k-reduced.tir").read_text())
    # Without the store it would be swept away.
    assert [type(op) for op in left.walk()] == [
        ops.If, ops.Constant, ops.Store, ops.Yield, ops.Yield, ops.Return]


def test_the_level_below_tiles(monkeypatch):
    kernel = tilec.compile(from_text(SOURCE), SIGNATURE, {"BLOCK": 128})
    module = parse(kernel.asm["gpu"])
    before = len(list(module.walk()))
    left = shrink(module, lambda m: first(m, ops.Reduce) is not None)
    assert left.level == "gpu" and before >= 60 and len(list(left.walk())) <= 7
    assert first(left, ops.Reduce) is not None and measure(left) < measure(module)
    assert spelled(left) is None


def test_shared_memory_without_its_barriers_is_no_failure():
    kernel = tilec.compile(from_text(SOURCE), SIGNATURE, {"BLOCK": 128})
    module = parse(kernel.asm["gpu"])
    for text in ("allocate_shared", "allocate_shared,insert_barriers"):
        assert tool.by_passes(module, parse_pipeline(text)) == ""
    assert tool.by_passes(parse(kernel.asm["lowered"]), parse_pipeline("cse")) == ""


def test_a_loop_that_fails_keeps_what_it_carries():
    module = parse("""module {
  func @k(%p: ptr<f32>, %n: i32) {
    %z = tile.constant() {value = 0} : i32
    %o = tile.constant() {value = 1} : i32
    %f = tile.constant() {value = 2.5} : f32
    %a, %b = scf.for(%z, %n, %o, %f, %f) { ^(%i: i32, %x: f32, %y: f32):
      %s = tile.add(%x, %y) : f32
      %t = tile.mul(%x, %y) : f32
      scf.yield(%s, %t)
    } : f32, f32
    tile.store(%p, %a)
    func.return()
  }
}
""")

    def fails(m):
        loop = first(m, ops.For)
        return loop is not None and len(loop.results) >= 1

    left = shrink(module, fails)
    assert len(first(left, ops.For).results) == 1 and len(list(left.walk())) <= 6


@pytest.mark.parametrize("words, message", [
    (["nowhere.tir"], "No such file"), (["k.py:k"], "needs its --signature"),
    (["{}", "--passes=licn"], "did you mean `licm`"), (["{}", "--func=f"], "no kernel `f`"),
    (["{}", "--target=sm_1"], "unknown target"),
])
def test_errors(file, capsys, words, message):
    assert tool.main([w.replace("{}", str(file)) for w in words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tilec-reduce: ") and message in error


# -- Python -----------------------------------------------------------------------------------

def kernels() -> list[tuple[str, Module]]:
    """The tile-level functions of the golden tests, each in a module of its own."""
    found = []
    for path in lit.FILES:
        for piece in split(Path(path).read_text(encoding="utf-8")):
            try:
                module = parse(piece, str(path))
            except (TilecError, AssertionError):
                continue
            found += [(f"{path.stem}-{f.name}", Module([f], module.attributes))
                      for f in module.funcs if module.level == "tile"]
    return found


# The front end takes no such operands, and would refuse to store to what is no multiple.
NOT_AN_AUTHORS = {"multiply_adds-types", "memory-known", "errors-unfinished"}


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.full)
                                       for n in range(1, 4))])
def test_a_kernel_in_python_is_the_same_kernel(part):
    spoken = 0
    for name, module in kernels()[part::4]:
        python = spelled(module)
        if python is None or name in NOT_AN_AUTHORS:
            continue
        spoken += 1
        made = module_of(python, module)
        case = made_case(module, "", 0, Tolerance())
        assert case.same(module, made) == (None, None), f"{name}\n{python.source}"
    assert spoken >= 15
