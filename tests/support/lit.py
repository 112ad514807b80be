"""Runs the RUN lines of tests/lit in process, and rewrites their CHECK lines.

Understands `[not] tilec-opt ARGS [2>&1] | filecheck %s [ARGS]`, which is what the files use.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import parse_argv_options
from filecheck.parser import Parser

from tilec.tools import opt

FOLDER = Path(__file__).parents[1] / "lit"
FILES = sorted(FOLDER.rglob("*.tir"))
_RUN = re.compile(r"^//\s*RUN:\s*(.*)$", re.MULTILINE)
_CHECK = re.compile(r"^\s*//\s*CHECK")


def runs(path: Path) -> list[list[str]]:
    """The RUN lines of a file, each split into words."""
    lines = _RUN.findall(path.read_text(encoding="utf-8"))
    return [shlex.split(line.replace("%s", str(path))) for line in lines]


def passes_of(path: Path) -> str | None:
    """The pipeline of a file's first RUN line; None where the tool is expected to fail."""
    words = runs(path)[0]
    if words[0] == "not":
        return None
    return next((w.partition("=")[2] for w in words if w.startswith("--passes=")), "")


def tool(words: list[str]) -> str:
    """What `[not] tilec-opt ...` prints; fails if the exit code is not as expected."""
    fails = words[0] == "not"
    words = words[fails:]
    assert words[0] == "tilec-opt", words
    out, err = io.StringIO(), io.StringIO()
    merged = words[-1] == "2>&1"
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out if merged else err):
        code = opt.main(words[1:-1] if merged else words[1:])
    assert code == int(fails), f"tilec-opt gave {code}\n{out.getvalue()}{err.getvalue()}"
    return out.getvalue()


def check(words: list[str], text: str) -> str:
    """What filecheck says about `text`; empty if it is content."""
    assert words[0] == "filecheck", words
    options = parse_argv_options(list(words))
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        code = Matcher(options, FInput("-", text), Parser.from_opts(options)).run()
    return err.getvalue() or f"filecheck gave {code}" if code else ""


def run_file(path: Path) -> str:
    """Run all RUN lines of a file; what went wrong, or an empty string."""
    lines = runs(path)
    assert lines, f"{path} has no RUN line"
    complaints = []
    for words in lines:
        pipe = words.index("|")
        complaints.append(check(words[pipe + 1:], tool(words[:pipe])))
    return "\n".join(filter(None, complaints))


def update(path: Path) -> None:
    """Rewrite the CHECK lines of a file with one RUN line to match its whole output."""
    if len(runs(path)) != 1 or runs(path)[0][0] == "not":
        return
    words = runs(path)[0]
    outputs = re.split(r"^// -----\n", tool(words[:words.index("|")]), flags=re.MULTILINE)
    text = path.read_text(encoding="utf-8")
    pieces = re.split(r"^// -----\n", text, flags=re.MULTILINE)
    assert len(pieces) == len(outputs), f"{path}: {len(pieces)} modules, {len(outputs)} printed"
    new = [_with_checks(p, o) for p, o in zip(pieces, outputs, strict=True)]
    path.write_text("// -----\n".join(new), encoding="utf-8")


def _with_checks(piece: str, output: str) -> str:
    lines = [line for line in piece.splitlines() if not _CHECK.match(line)]
    head = next((i for i, line in enumerate(lines) if line.strip() and line[:2] != "//"), 0)
    checks = []
    for line in output.splitlines():
        if re.match(r"module|(  )?\}$|    func\.return|#", line) and "attributes" not in line:
            continue
        kind = "CHECK:     " if line.lstrip().startswith(("func", "#", "module")) else "CHECK-NEXT:"
        checks.append(f"// {kind} {_literal(line.strip())}")
    return "\n".join([*lines[:head], *checks, *lines[head:]]) + "\n"


def _literal(line: str) -> str:
    return line.replace("{{", "{{[{][{]}}").replace("[[", "{{\\[\\[}}")
