"""What all command lines share: how they end, whatever happens, and how they read files, numbers.

A tool ends with 0, or with what its `main` returns; else with a message on stderr: 2 for wrong
usage and for a bug of tilec's own, the tool's `failure` for anything else.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from tilec.errors import InternalError, TilecError, ToolError

Main = Callable[[Sequence[str] | None], int]
BUG = 2
MAX_BYTES = 1 << 26  # of an input file: /dev/zero has no end


def tool(name: str, failure: int = 1) -> Callable[[Main], Callable[..., int]]:
    """Decorates a tool's `main`: nothing leaves it but an exit status."""

    def around(main: Main) -> Callable[..., int]:
        @functools.wraps(main)
        def guarded(argv: Sequence[str] | None = None) -> int:
            closed = sys.stdout is None
            _open_streams()
            words = list(sys.argv[1:] if argv is None else argv)
            try:
                if closed:
                    raise ToolError("the standard output is closed")
                for word in words:
                    if "\0" in word or word.endswith("=--"):  # argparse takes the latter for none
                        raise ToolError(f"{word!r} has no value that could be meant")
                status = main(words)
                sys.stdout.flush()
                return status
            except SystemExit as e:  # argparse has printed the help or what is wrong
                return e.code if isinstance(e.code, int) else 0 if e.code is None else failure
            except BrokenPipeError:
                _close_output()
                return failure
            except BaseException as e:
                return _report(name, e, failure, words)

        return guarded

    return around


def _open_streams() -> None:
    """Streams that can be used: a process may be started without them, and a name may have letters
    that they have not."""
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _report(name: str, error: BaseException, failure: int, words: Sequence[str]) -> int:
    """Say what ended the tool; the exit status."""
    bug = isinstance(error, InternalError) or not isinstance(
        error, (TilecError, OSError, MemoryError, KeyboardInterrupt))
    if bug and sys.flags.dev_mode:
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        text = "interrupted"
    elif isinstance(error, MemoryError):
        text = f"there is not enough memory: {error}" if str(error) else "out of memory"
    elif isinstance(error, (TilecError, OSError)):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}; this is a bug in tilec"
    if bug:
        module = f"tilec.tools.{name.removeprefix('tilec-')}"
        text += f"\n  help: `python -X dev -m {module} {shlex.join(words)}` shows where"
    with contextlib.suppress(OSError):  # nobody may be there to read it
        print(f"{name}: {text}", file=sys.stderr, flush=True)
    return BUG if bug else failure


def _close_output() -> None:
    """Nobody reads the output any more: what Python would still write when it ends goes nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def read_text(path: str | Path) -> str:
    """The text of a file, of the standard input for "-". Raises ToolError where it has none."""
    try:
        if str(path) == "-":
            return sys.stdin.read()
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_BYTES)
            more = file.read(1)
    except (OSError, ValueError) as e:  # ValueError: no UTF-8, or a NUL in the name
        reason = getattr(e, "strerror", None) or str(e)
        raise ToolError(f"cannot read {path}: {reason}") from None
    if more:
        raise ToolError(f"{path} is longer than {MAX_BYTES >> 20} MiB")
    return text


def number(low: int, high: int) -> Callable[[str], int]:
    """A `type` of argparse: integers from `low` to `high`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no integer from {low} to {high}")
        return value

    return convert
