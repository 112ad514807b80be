"""Every ```python block of README.md and docs/*.md runs, top to bottom, one namespace a file.

An ```output block right after a python block must equal what that block printed.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [p for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if p.exists()]

BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```$(?:\s*^```output\n(?P<output>.*?)^```$)?", re.M | re.S
)


def run_blocks(text: str, name: str) -> int:
    """Run the python blocks of a page and compare their outputs; how many there were."""
    blocks = list(BLOCK.finditer(text))
    spans = [m.span("code") for m in blocks]
    # Blank out all but the code: line numbers in tracebacks are the page's, and source can be read.
    kept = [
        line if any(a <= at < b for a, b in spans) else "\n"
        for line, at in _lines_with_offsets(text)
    ]
    linecache.cache[name] = (len(text), None, kept, name)
    namespace: dict[str, object] = {"__name__": re.sub(r"\W", "_", name)}
    for block in blocks:
        first = text.count("\n", 0, block.start("code"))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * first + block["code"], name, "exec", dont_inherit=True),
                 namespace)
        if block["output"] is not None:
            assert printed.getvalue().rstrip() == block["output"].rstrip(), f"{name}:{first}"
    return len(blocks)


def _lines_with_offsets(text: str) -> list[tuple[str, int]]:
    found, at = [], 0
    for line in text.splitlines(keepends=True):
        found.append((line, at))
        at += len(line)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_snippets_run(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    run_blocks(page.read_text(encoding="utf-8"), f"<{page.relative_to(ROOT)}>")


PAGE = """# Title
```python
def double(x):
    return 2 * x
print(double(4))
```

```output
8
```
```text
not python
```
```python
import inspect
print(inspect.getsource(double).splitlines()[1], double.__code__.co_firstlineno)
```
```output
    return 2 * x 3
```
"""


def test_blocks_share_a_namespace_and_can_read_their_source():
    assert run_blocks(PAGE, "<page>") == 2


def test_a_wrong_output_is_noticed():
    with pytest.raises(AssertionError):
        run_blocks(PAGE.replace("```output\n8", "```output\n9"), "<page>")


def test_a_failing_block_points_at_its_line():
    with pytest.raises(ZeroDivisionError) as error:
        run_blocks("text\n\n```python\nx = 1\nx / 0\n```\n", "<page>")
    assert error.traceback[-1].lineno == 4
