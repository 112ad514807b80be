"""tilec-opt: input, output, exit codes; what passes print is in tests/lit."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tilec.ir import ops
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.printer import print_module
from tilec.tools import opt

TEXT = """module {
  func @k(%n: i32) {
    %0 = tile.add(%n, %n) : i32
    func.return()
  }
}
"""
BAD = TEXT.replace("tile.add", "tile.sum")


class Raises:
    """Ends in an error of its own. Not derived from Pass, lest it be one that users see."""

    def run(self, module: Module) -> None:
        raise KeyError("lost")

    def __str__(self) -> str:
        return "raises"


class Breaks:
    """Leaves broken IR."""

    def run(self, module: Module) -> None:
        next(op for op in module.walk() if isinstance(op, ops.Return)).erase()

    def __str__(self) -> str:
        return "breaks"


def test_prints_what_it_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.tir"
    path.write_text(TEXT)
    assert opt.main([str(path)]) == 0
    assert capsys.readouterr() == (print_module(parse(TEXT)), "")


def test_reads_the_standard_input(monkeypatch: pytest.MonkeyPatch,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    assert opt.main(["-", "--passes=dce"]) == 0
    assert "tile.add" not in capsys.readouterr().out


def test_a_pass_at_the_wrong_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It asks for types that only layouts give: no error of tilec's own."""
    path = tmp_path / "k.tir"
    path.write_text("""module {
  func @k(%p: ptr<f32>) {
    %0 = tile.arange() {end = 64, start = 0} : tensor<64xi32>
    %1 = tile.splat(%p) : tensor<64xptr<f32>>
    %2 = tile.addptr(%1, %0) : tensor<64xptr<f32>>
    %3 = tile.load(%2) : tensor<64xf32>
    tile.store(%2, %3)
    func.return()
  }
}
""")
    assert opt.main([str(path), "--passes=coalesce"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "pass `coalesce` failed: the module is at level tile, expected gpu" in err
    assert "Internal" not in err and "Assertion" not in err


def test_modules_of_a_file_come_out_apart_and_in_order(tmp_path: Path,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.tir"
    path.write_text(TEXT + "// -----\n" + TEXT.replace("@k", "@second"))
    assert opt.main([str(path)]) == 0
    out = capsys.readouterr().out
    first, second = opt.split(out)
    assert "@k" in first and "@second" in second
    path.write_text(out)
    assert opt.main([str(path)]) == 0
    assert capsys.readouterr().out == out


def test_errors_have_the_line_of_the_file(tmp_path: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.tir"
    path.write_text(TEXT + "// -----\n" + BAD + "// -----\n" + TEXT)
    assert opt.main([str(path)]) == 1
    out, err = capsys.readouterr()
    assert out.count("func @k") == 2
    assert f"{path}:10:10: there is no op `tile.sum`" in err
    assert "    %0 = tile.sum(%n, %n) : i32\n" in err and "^" in err


@pytest.mark.parametrize(("argv", "code", "message"), [
    (["no/such.tir"], 1, "cannot read no/such.tir"),
    (["-", "--passes=canonicalise"], 1, "did you mean `canonicalize`?"),
    (["-", "--passes=dce{x=1}"], 1, "pass `dce` has no option `x`"),
    (["-", "--passes=dce;cse"], 1, "cannot read the pipeline"),
    (["-", "--target=sm_1"], 1, "unknown target `sm_1`"),
    (["-", "--fast"], 2, "unrecognized arguments: --fast"),
    ([], 2, "required"),
    (["--help"], 0, ""),
])
def test_usage(argv: list[str], code: int, message: str,
               capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(argv) == code
    assert message in capsys.readouterr().err


def test_verify_only_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.tir"
    path.write_text(TEXT)
    assert opt.main([str(path), "--verify-only"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("bad", "words"), [
    (Raises(), ("pass `raises` failed on\nmodule {", "KeyError: 'lost'")),
    (Breaks(), ("pass `breaks` broke\nmodule {", "does not end with a terminator")),
])
def test_a_failing_pass_is_named_with_its_input(bad: Raises | Breaks, words: tuple[str, str],
                                                tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.tir"
    path.write_text(TEXT)
    monkeypatch.setattr(opt, "parse_pipeline", lambda text: [bad])
    assert opt.main([str(path), "--passes=x"]) == 2
    err = capsys.readouterr().err
    assert all(w in err for w in words) and "tile.add(%n, %n)" in err
