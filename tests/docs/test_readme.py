"""README and docs against the project: tables, file names, console scripts, links, and what the
commands in ```console blocks print (a line or part of a line `...` stands for anything).

`python -m tests.docs.test_readme` rewrites the ```output blocks from what the code prints now.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import linecache
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks import figures
from tests.docs.test_snippets import BLOCK, PAGES, ROOT
from tilec import knobs

README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
INLINE = re.compile(r"`([^`\n]+)`")


def test_readme_has_the_flags_of_knobs():
    assert knobs.describe() in README


def test_figures_are_those_of_the_newest_results():
    """`python -m benchmarks.figures` writes them."""
    assert figures.SECTION.search(README)[0] == figures.section()


def test_figures_name_a_faster_peer(tmp_path):
    page = ("# T\n\n`c`, 2026-01-02. Python 3.11, a GPU.\n\n"
            "| kernel | torch | torch.compile | Triton | Triton, two passes | tilec "
            "| tilec / copy |\n"
            "| --- | --- | --- | --- | --- | --- | --- |\n"
            "| a 1x2 | 50 |  | 90 (4 warps) | 120 (x, 2 warps) | 100 (8 warps) | 0.9 |\n")
    (tmp_path / "2026-01-02-memory_bound.md").write_text(page)
    (tmp_path / "2026-01-01-memory_bound.md").write_text("older")
    (tmp_path / "2026-01-02-memory_bound-cpu.md").write_text("not of a GPU")
    text = figures.memory_bound(figures.newest("memory_bound", tmp_path))
    assert "| a 1x2 | 100 | 0.9 | 0.83 |  | 2.00 |" in text
    assert "A peer is faster at a 1x2 (0.83 x Triton)." in text and "Python 3.11, a GPU." in text


def test_readme_lists_every_example():
    listed = set(re.findall(r"examples/(\d\d_\w+\.py)", README))
    assert listed == {p.name for p in (ROOT / "examples").glob("[0-9]*.py")}


def test_readme_lists_every_page_and_folder():
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in README
    for folder in (ROOT / "tilec").iterdir():
        if folder.is_dir() and not folder.name.startswith("_"):
            assert f"`{folder.name}/`" in README, folder.name


def test_console_scripts_exist_and_are_shown():
    for name, entry in SCRIPTS.items():
        module, _, function = entry.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
        assert f"$ {name} " in README
    mentioned = {w for p in PAGES for w in re.findall(r"\btilec-[a-z]+\b", p.read_text("utf-8"))}
    assert mentioned <= set(SCRIPTS)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    heads = re.findall(r"^#+ (.*)$", outside, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_resolve(page):
    for link in LINK.findall(re.sub(r"^```.*?^```$", "", page.read_text("utf-8"),
                                    flags=re.M | re.S)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text("utf-8")), link


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page):
    """Inline code that is a path below tilec/, tests/, docs/, examples/ or benchmarks/."""
    for code in INLINE.findall(page.read_text("utf-8")):
        if re.fullmatch(r"(tilec|tests|docs|examples|benchmarks)/[\w./]*", code):
            assert (ROOT / code).exists(), code


def console(text: str) -> list[tuple[str, str]]:
    """The (command, expected output) pairs of the console blocks of a page."""
    found = []
    for block in CONSOLE.findall(text):
        for piece in re.split(r"^\$ ", block, flags=re.M)[1:]:
            # A command goes on where a line ends in a backslash, and to the end of its input.
            command = re.match(r"[^\n]*<<'end'\n(?s:.*?)^end\n|(?:.*\\\n)*.*\n", piece, re.M)[0]
            found.append((command, piece[len(command):]))
    return found


def pattern(expected: str) -> str:
    """A regular expression for an output in which `...` stands for anything."""
    text = re.escape(expected.rstrip()).replace(re.escape("..."), "\0")
    whole_line = re.sub(r"^\0$", "(?s:.*)", text.replace("\\\n", "\n"), flags=re.M)
    return whole_line.replace("\0", ".*")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the examples, and the tools on its PATH."""
    folder = tmp_path_factory.mktemp("console")
    shutil.copytree(ROOT / "examples", folder / "examples",
                    ignore=shutil.ignore_patterns("__pycache__"))
    tools = folder / "bin"
    tools.mkdir()
    for name, entry in [("python", ""), *SCRIPTS.items()]:
        module, _, function = entry.partition(":")
        run = f"-c 'import {module} as m; raise SystemExit(m.{function}())' " if entry else ""
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {run}"$@"\n')
        (tools / name).chmod(0o755)
    return folder


@pytest.mark.parametrize("page", [p for p in PAGES if CONSOLE.search(p.read_text("utf-8"))],
                         ids=lambda p: p.name)
def test_commands_print_what_is_shown(page, workplace):
    env = {k: v for k, v in os.environ.items() if not k.startswith("TILEC_")}
    env |= {"PATH": f"{workplace / 'bin'}{os.pathsep}{env['PATH']}", "PYTHONPATH": str(ROOT),
            "TILEC_CACHE": "0"}
    for command, expected in console(page.read_text("utf-8")):
        done = subprocess.run(["bash", "-c", command], cwd=workplace, env=env, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        printed = done.stdout.replace(f"{workplace}{os.sep}", "").rstrip()
        assert re.fullmatch(pattern(expected), printed), f"$ {command}{printed}"


def test_pattern_treats_dots_as_anything():
    assert re.fullmatch(pattern("a\n...\nb (... ms)\n"), "a\n1\n2\nb (3.5 ms)")
    assert not re.fullmatch(pattern("a\nb"), "a\n1\nb")


def update(page: Path) -> None:
    """Rewrite the output blocks of a page. Longer outputs move later lines, which outputs may
    name, so twice."""
    for _ in range(2):
        page.write_text(updated(page, page.read_text(encoding="utf-8")), encoding="utf-8")


def updated(page: Path, text: str) -> str:
    """The text of a page with the output blocks as its code prints them."""
    namespace: dict[str, object] = {"__name__": page.stem}
    pieces, end = [], 0
    name = f"<{page.relative_to(ROOT)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    for block in BLOCK.finditer(text):
        printed = io.StringIO()
        first = text.count("\n", 0, block.start("code"))
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * first + block["code"], name, "exec", dont_inherit=True),
                 namespace)
        if block["output"] is not None:
            pieces += [text[end:block.start("output")], printed.getvalue().rstrip() + "\n"]
            end = block.end("output")
    return "".join(pieces) + text[end:]


if __name__ == "__main__":
    os.chdir(ROOT)
    for chosen in [Path(a).resolve() for a in sys.argv[1:]] or PAGES:
        update(chosen)
