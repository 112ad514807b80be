"""Instruments around passes: dumps to stderr, dumps to a folder, times, remarks; and where edited
stages are found. All by TILEC_* flags."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tilec import knobs
from tilec.codegen.cubin import sass
from tilec.compiler import LEVELS, PIPELINE, Instrument, Stage, stage_level
from tilec.errors import TilecError, ToolError, did_you_mean
from tilec.ir.core import Module
from tilec.ir.printer import print_module
from tilec.ir.remarks import Remark, recording

KEYWORDS = ("all", "diff", "frontend")


class Dump(Instrument):
    """Prints stages to stderr. what: the value of TILEC_DUMP."""

    def __init__(self, kernel: str, what: str) -> None:
        self.kernel = kernel
        self.wanted = {w.strip() for w in what.split(",") if w.strip()}
        self.previous = ""
        known = {*KEYWORDS, *LEVELS, *(s.run.name for s in PIPELINE)}
        for w in sorted(self.wanted - known):
            raise TilecError(f"TILEC_DUMP names `{w}`, which is no pass and no level", None,
                             did_you_mean(w, known) or "give all, diff, a pass or a level")

    def after(self, stage: Stage, seconds: float) -> None:
        """Print the stage if it was asked for."""
        if "diff" not in self.wanted and not self._asked(stage):
            return
        text = self._text(stage)
        if "diff" in self.wanted:
            lines = difflib.unified_diff(self.previous.splitlines(), text.splitlines(),
                                         "before", f"after {stage.name}", lineterm="", n=2)
            # A new level in another language has nothing in common with the last.
            shown = "\n".join(lines) if stage.level in ("tile", "gpu", "lowered") else ""
            if stage.number and not shown:
                self.previous = text
                return
            self.previous, text = text, shown if stage.number else text
        if stage.level != "cubin":
            print(f"// ----- {stage.number:02} {stage.name} ({stage.level}) @{self.kernel} -----\n"
                  f"{text}", file=sys.stderr)

    def _asked(self, stage: Stage) -> bool:
        if "all" in self.wanted or stage.name in self.wanted:
            return True
        at_end = stage.number + 1 > len(PIPELINE) or stage_level(stage.number + 1) != stage.level
        return at_end and stage.level in self.wanted

    def _text(self, stage: Stage) -> str:
        if isinstance(stage.content, Module):
            return print_module(stage.content, locations=knobs.print_loc)
        return stage.text


class DumpDir(Instrument):
    """Writes every stage to a folder, and pipeline.txt with times and op counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[str] = []
        with self._writing("made"):
            folder.mkdir(parents=True, exist_ok=True)

    def after(self, stage: Stage, seconds: float) -> None:
        """Save the stage."""
        count = ""
        if isinstance(stage.content, Module):
            count = f"{sum(1 for _ in stage.content.walk()):6} ops"
        self.rows.append(f"{stage.number:02} {stage.name:28} {stage.level:8} "
                         f"{seconds * 1e3:9.3f} ms {count}".rstrip())
        path = self.folder / stage.file
        with self._writing():
            if isinstance(stage.content, bytes):
                path.write_bytes(stage.content)
                with suppress(ToolError):  # nvdisasm is optional; the cubin is there
                    path.with_suffix(".sass").write_text(sass(stage.content))
            else:
                path.write_text(stage.text)

    def finish(self) -> None:
        """Write pipeline.txt."""
        with self._writing():
            (self.folder / "pipeline.txt").write_text("\n".join(self.rows) + "\n")

    @contextmanager
    def _writing(self, what: str = "written") -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise TilecError(f"TILEC_DUMP_DIR: {self.folder} cannot be {what}: {e.strerror}", None,
                             "name a folder that you can write to") from None


class Timing(Instrument):
    """Prints the time of each pass and level to stderr."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.rows: list[tuple[Stage, float]] = []

    def after(self, stage: Stage, seconds: float) -> None:
        """Note the time; the stage's content is not kept."""
        self.rows.append((stage._replace(content=""), seconds))

    def finish(self) -> None:
        """Print the table."""
        lines = [f"tilec: times of @{self.kernel} in ms"]
        for level in LEVELS:
            of_level = [(s, t) for s, t in self.rows if s.level == level]
            if of_level:
                lines.append(f"  {level:30} {sum(t for _, t in of_level) * 1e3:9.3f}")
                lines += [f"    {s.name:28} {t * 1e3:9.3f}" for s, t in of_level if s.name != level]
        lines.append(f"  {'total':30} {sum(t for _, t in self.rows) * 1e3:9.3f}")
        print("\n".join(lines), file=sys.stderr)


class Remarks(Instrument):
    """Prints remarks to stderr, those of equal text once. form: "text" or "json"."""

    def __init__(self, kernel: str, form: str) -> None:
        self.kernel = kernel
        self.form = form
        self.found: list[Remark] = []

    @contextmanager
    def during(self) -> Iterator[None]:
        """Record what is remarked."""
        with recording() as self.found:
            yield

    def finish(self) -> None:
        """Print the remarks: those on the kernel as a whole last, the others by place."""
        render = self._json if self.form == "json" else self._text
        lines = [render(r) for r in sorted(self.found, key=_place)]
        if self.form != "json":
            lines.insert(0, f"tilec: remarks on @{self.kernel}")
        print("\n".join(dict.fromkeys(lines)), file=sys.stderr)

    def _text(self, r: Remark) -> str:
        place = self.kernel if r.loc is None else str(r.loc)
        sites = "".join(f", called from line {c.line}" for c in r.loc.chain()[1:]) if r.loc else ""
        return f"{place}: {r.kind}: {r.message}{sites}"

    def _json(self, r: Remark) -> str:
        row: dict[str, object] = {"kernel": self.kernel, "kind": r.kind, "message": r.message}
        if r.loc is not None:
            row |= {"file": r.loc.file, "line": r.loc.line, "column": r.loc.col + 1,
                    "called_from": [str(c) for c in r.loc.chain()[1:]]}
        return json.dumps(row | {"data": r.data})


def _place(r: Remark) -> tuple[bool, str, int, int]:
    """Where a remark comes in the output; the order of making decides among equals."""
    return (True, "", 0, 0) if r.loc is None else (False, r.loc.file, r.loc.line, r.loc.col)


def from_knobs(kernel: str, key: str) -> Sequence[Instrument]:
    """The instruments that the flags ask for. key: the kernel's digest (see `folder_name`)."""
    out: list[Instrument] = []
    if knobs.dump:
        out.append(Dump(kernel, knobs.dump))
    if knobs.dump_dir:
        out.append(DumpDir(Path(knobs.dump_dir) / folder_name(kernel, key)))
    if knobs.time:
        out.append(Timing(kernel))
    if knobs.remarks:
        out.append(Remarks(kernel, knobs.remarks))
    return out


def override_folder(kernel: str, key: str) -> Path | None:
    """The kernel's folder under TILEC_OVERRIDE_DIR, if there is one."""
    if not knobs.override_dir:
        return None
    tree = Path(knobs.override_dir)
    if not tree.is_dir():
        raise TilecError(f"TILEC_OVERRIDE_DIR is '{tree}', which is no folder", None,
                         "make one with TILEC_DUMP_DIR, and edit a file there")
    folder = tree / folder_name(kernel, key)
    return folder if folder.is_dir() else None


def override_state() -> tuple[tuple[str, int, int], ...]:
    """What tells whether a file under TILEC_OVERRIDE_DIR was edited since the last look."""
    if not knobs.override_dir:
        return ()
    found = []
    for path in sorted(Path(knobs.override_dir).glob("*/*")):
        stat = path.stat()
        found.append((str(path), stat.st_mtime_ns, stat.st_size))
    return tuple(found)


def folder_name(kernel: str, key: str) -> str:
    """The folder of one specialisation in a dump or override tree."""
    return f"{kernel}-{key[:8]}"

