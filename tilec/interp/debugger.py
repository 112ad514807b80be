"""The prompt that `breakpoint()` opens inside a kernel: steps by source line, shows live tiles."""

from __future__ import annotations

import cmd
import linecache
from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.errors import InterpreterError
from tilec.eval.dtypes import Array
from tilec.interp.frame import Data, Frame
from tilec.ir import ops
from tilec.ir.core import Op, Value


class Debugger:
    """Follows one program at a time; open between `breakpoint()` and `continue`."""

    def __init__(self, program_name: Callable[[int], str]) -> None:
        self.program_name = program_name
        self.scope: dict[str, Value] = {}
        self._line: tuple[str, int] | None = None
        self._last: Op | None = None

    def before(self, op: Op, frame: Frame) -> None:
        """Called before each op: opens the prompt at a new line while stepping."""
        if self._line is None:
            return
        if self._last is not None:
            # An op whose region is being entered has no results yet.
            self.scope.update({r.name: r for r in self._last.results
                               if r.name and frame.find(r) is not None})
        self._last = op
        here = (op.loc.file, op.loc.line)
        if op.loc.line and here != self._line and not isinstance(op, ops.Breakpoint):
            self._prompt(op, frame)

    def stop(self, op: ops.Breakpoint, frame: Frame) -> None:
        """A `breakpoint()` was reached."""
        self.scope = dict(zip(op.names, op.values, strict=True))
        self._prompt(op, frame)

    def _prompt(self, op: Op, frame: Frame) -> None:
        line = linecache.getline(op.loc.file, op.loc.line).strip()
        program = self.program_name(int(frame.programs[0]))
        prompt = _Prompt({n: d for n, v in self.scope.items()
                          if (d := _shown(frame.find(v))) is not None},
                         (op.loc.file, op.loc.line))
        prompt.intro = f"> {op.loc.file}:{op.loc.line} {program}\n-> {line}"
        prompt.cmdloop()
        if prompt.choice == "quit":
            raise InterpreterError("stopped at the prompt", op.loc)
        stepping = prompt.choice == "next"
        self._line = (op.loc.file, op.loc.line) if stepping else None
        self._last = op


def _shown(data: Data | None) -> Array | None:
    """The first program's array; poison masked, so that it shows as `--`."""
    if data is None:
        return None
    array, poison = data
    if poison is None or not poison[0].any():
        return np.asarray(array[0])
    return np.ma.MaskedArray(array[0], np.broadcast_to(poison[0], array[0].shape))


class _Prompt(cmd.Cmd):
    prompt = "(tilec) "

    def __init__(self, variables: dict[str, Array], here: tuple[str, int]) -> None:
        super().__init__()
        self.here = here
        self.variables = variables
        self.choice = "continue"

    def do_n(self, _: str) -> bool:
        """n(ext): run to the next source line."""
        self.choice = "next"
        return True

    def do_c(self, _: str) -> bool:
        """c(ontinue): run on to the next breakpoint."""
        return True

    def do_q(self, _: str) -> bool:
        """q(uit): stop the launch."""
        self.choice = "quit"
        return True

    def do_p(self, text: str) -> None:
        """p EXPR: print a Python expression over the tiles; `np` is numpy."""
        self._evaluate(text)

    def do_vars(self, _: str) -> None:
        """vars: names, dtypes and shapes of the live tiles."""
        for name, array in sorted(self.variables.items()):
            value = f" = {array}" if array.ndim == 0 else ""
            print(f"{name}: {array.dtype.name}{list(array.shape)}{value}", file=self.stdout)

    def do_l(self, _: str) -> None:
        """l(ist): the source around this line."""
        file, line = self.here
        for n in range(max(1, line - 5), line + 6):
            if text := linecache.getline(file, n).rstrip():
                print(f"{n:4} {'->' if n == line else '  '} {text}", file=self.stdout)

    def do_EOF(self, _: str) -> bool:
        """End of input: continue."""
        return True

    do_next, do_cont, do_continue, do_quit, do_print = do_n, do_c, do_c, do_q, do_p
    do_list, do_h = do_l, cmd.Cmd.do_help

    def emptyline(self) -> bool:
        """Nothing, rather than repeat the last command."""
        return False

    def default(self, line: str) -> None:
        """Anything else is an expression."""
        self._evaluate(line)

    def _evaluate(self, text: str) -> None:
        scope: dict[str, Any] = {"np": np, **self.variables}
        try:
            print(eval(text, scope), file=self.stdout)
        except Exception as e:
            print(f"*** {type(e).__name__}: {e}", file=self.stdout)
