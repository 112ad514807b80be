"""Source locations, every user-facing error of tilec, and notes to stderr.

An error renders as `file:line:col: message`, the source line with a caret, the chain of inlined
calls, and a `help:` line that says what to do. `str(error)` is the rendered text.
"""

from __future__ import annotations

import contextlib
import difflib
import linecache
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True)
class Location:
    """A place in a source file. `caller` is the call site when the code was inlined.

    line is 1-based, col is 0-based as in Python's `ast`; end_col of 0 means "one character".
    """

    file: str
    line: int
    col: int = 0
    caller: Location | None = None
    end_col: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col + 1}"

    def chain(self) -> list[Location]:
        """This location, then its call sites from the innermost outwards."""
        out: list[Location] = [self]
        while out[-1].caller is not None:
            out.append(out[-1].caller)
        return out

    def caret(self) -> str:
        """The source line and a caret under the column; empty when the source is not readable."""
        if self.file not in linecache.cache and not os.path.isfile(self.file):
            return ""  # a text may name anything, such as a device
        text = linecache.getline(self.file, self.line).rstrip("\n")
        if not text.strip():
            return ""
        # Columns from `ast` count UTF-8 bytes; tabs are kept so that the caret stays in line.
        lead = text.encode(errors="replace")[: max(0, self.col)].decode(errors="ignore")
        pad = "".join("\t" if c == "\t" else " " for c in lead)
        width = max(1, min(self.end_col, len(text)) - self.col)
        return f"    {text}\n    {pad}{'^' * width}"


class TilecError(Exception):
    """Base of every error that tilec raises on purpose.

    message: what was found and what was expected. loc: where in the author's source.
    advice: what to do about it. hidden: whether tracebacks leave out the frames inside tilec.
    """

    hidden = True

    def __init__(self, message: str, loc: Location | None = None, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.loc = loc if loc is not None and loc.line > 0 else None  # line 0: nobody knows
        self.advice = advice

    def __str__(self) -> str:
        parts = [self.message if self.loc is None else f"{self.loc}: {self.message}"]
        if self.loc is not None:
            parts.append(self.loc.caret())
            for site in self.loc.chain()[1:]:
                parts += [f"  called from {site}", site.caret()]
        if self.advice:
            parts.append(f"  help: {self.advice}")
        return "\n".join(p for p in parts if p)


class CompilationError(TilecError):
    """The kernel's source cannot be compiled."""


class CompileTimeAssertionError(CompilationError):
    """A `tl.static_assert` failed."""


class IRError(TilecError):
    """IR that is not well formed: found by the parser, a builder or the verifier."""


class ScheduleError(IRError):
    """A loop's schedule cannot be carried out as it is written."""


class OutOfResources(TilecError):
    """The kernel needs more of a resource than the target has.

    resource: its name; required and limit: in the resource's unit (bytes, threads, registers).
    """

    def __init__(self, resource: str, required: int, limit: int, detail: str = "",
                 loc: Location | None = None) -> None:
        message = f"out of resource: {resource}, required {required}, the limit is {limit}"
        super().__init__(message + (f"\n{detail}" if detail else ""), loc,
                         "use smaller tiles, fewer stages or fewer warps")
        self.resource, self.required, self.limit = resource, required, limit


class InterpreterError(TilecError):
    """A program did what semantics.md leaves undefined: a bad address, poison that reached a
    store, a failed device_assert."""


class SimulatorError(TilecError):
    """The PTX simulator found a bad access, a deadlock or an instruction it does not know."""


class CheckError(TilecError):
    """A check failed that TILEC_CHECK=gpu, or debug=True, compiled into a kernel."""


class LaunchError(TilecError):
    """A kernel was called with arguments, a grid or options that do not fit it."""


class DriverError(TilecError):
    """No usable NVIDIA driver or device, or a driver call failed."""


class ToolError(TilecError):
    """A tool or a package that this step needs is missing."""


class InternalError(TilecError):
    """A bug in tilec itself; `advice` names the reproducer."""

    hidden = False


class Brief(contextlib.ContextDecorator):
    """`with BRIEF:`, or `@BRIEF` on a function: an author's error leaves without the frames and
    causes inside, which tell an author nothing, so that a traceback ends where tilec was called.
    Python's development mode (python -X dev) keeps them. place: gives the kernel's `def`, which a
    LaunchError without a place is shown at."""

    def __init__(self, place: Callable[[], Location] | None = None) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if isinstance(error, TilecError):
            self.finish(error)

    def finish(self, error: TilecError) -> None:
        """What leaving the block does; for an `except` that ends in a plain `raise`, where a `with`
        would cost too much."""
        if isinstance(error, LaunchError) and error.loc is None and self._place is not None:
            error.loc = self._place()
        if error.hidden and not sys.flags.dev_mode:
            error.__traceback__ = None  # re-raising adds no frame of the function that does it
            error.__cause__ = None
            error.__suppress_context__ = True


BRIEF = Brief()
_noted: set[object] = set()


def note(key: object, text: str) -> None:
    """Print a note to stderr, once a process for each key."""
    if key not in _noted:
        _noted.add(key)
        print(f"tilec: {text}", file=sys.stderr)


def shown(value: object) -> str:
    """A value as messages show it: its text, cut off; its type where it has none, as integers of
    thousands of digits."""
    try:
        text = repr(value)
    except Exception:  # an author's class may raise anything
        text = f"{type(value).__name__} without a text"
    return text if len(text) <= 80 else f"{text[:77]}..."


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Advice that names the closest known spelling, or an empty string."""
    close = difflib.get_close_matches(str(name), list(known), 1, cutoff)
    return f"did you mean `{close[0]}`?" if close else ""
