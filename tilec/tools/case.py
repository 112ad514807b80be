"""One input of a kernel: runs it at any level that a CPU can run, and compares results."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import Any

from tilec import knobs
from tilec.codegen.lower import symbol
from tilec.compiler import compile_from
from tilec.errors import TilecError, ToolError
from tilec.ir.core import Func, Module
from tilec.runtime.inputs import Inputs, Unmet, inputs_for
from tilec.runtime.validation import (
    MOST,
    Difference,
    Tolerance,
    blamed,
    difference,
    with_barriers,
)
from tilec.target import Target
from tilec.tools.run import execute, pick

ULPS = 32  # that floats may be apart by, where no tolerance is given


@dataclass(frozen=True)
class Case:
    """An input of a kernel, and how far floats may be apart."""

    func: str
    inputs: Inputs
    tolerance: Tolerance = Tolerance(ULPS)

    def run(self, content: Module | str, shared: int = 0) -> list[Any]:
        """The arguments after a run of a module or of PTX; what it prints is dropped, and notes,
        which no author can act on where inputs are made."""
        mine = self.inputs.copied()
        with contextlib.redirect_stdout(io.StringIO()):
            name = self.func if isinstance(content, Module) else self.func and symbol(self.func)
            execute(content, name, mine, self.inputs.grid, seed=self.inputs.seed, shared=shared,
                    notes=False)
        return mine

    def change(self, want: list[Any], content: Module | str, shared: int = 0
               ) -> Difference | None:
        """How the result of `content` differs from `want`."""
        try:
            got = self.run(content, shared)
        except Exception as e:  # what a broken pass leaves may fail in any way
            return Difference(f"it fails: {e if isinstance(e, TilecError) else repr(e)}")
        return self.apart(want, got)

    def apart(self, want: list[Any], got: list[Any]) -> Difference | None:
        """How two results differ."""
        names = [f"arg {i}" for i in range(len(want))]
        return difference(names, (want, []), (got, []), self.tolerance)

    def blamed(self, before: Module, after: Module, found: Difference) -> str:
        """Lines about where in `after` a difference comes from; none if it is no element's."""
        if found.arg < 0:
            return ""
        name = function(after, self.func).name
        return blamed(with_barriers(before), with_barriers(after), name, self.inputs, found)[1]

    def same(self, a: Module, b: Module) -> tuple[Difference | None, Difference | None]:
        """How two modules differ bit for bit, and in the ring. Their kernels' names may, too."""
        out = []
        for arithmetic in ("", "ring"):
            with knobs.scope(eval=arithmetic):
                runs = [Case("", self.inputs).run(_alone(m, self.func)) for m in (a, b)]
            out.append(Case("", self.inputs, Tolerance()).apart(*runs))
        return out[0], out[1]


def _alone(module: Module, func: str) -> Module:
    """The module with one of its kernels: that of this name, or its only one."""
    return Module([function(module, func)], module.attributes)


def function(module: Module, name: str) -> Func:
    """The kernel of this name, or the only one. Raises ToolError."""
    found = pick(name, [f.name for f in module.funcs])
    return next(f for f in module.funcs if f.name == found)


def made_case(module: Module, func: str, seed: int | None, tolerance: Tolerance,
              target: Target | None = None) -> Case:
    """A case with inputs made from a kernel's signature: those whose tensor maps can be made, too,
    if it is compiled for a target. Raises ToolError."""
    chosen = function(module, func)
    lowered = module.clone()
    if target is not None:
        with contextlib.suppress(TilecError):  # which the tool is to find
            compile_from(lowered, target, "lowered")
            chosen = function(lowered, func)
    try:
        inputs, _ = inputs_for(module, chosen, seed or 0, MOST)
    except Unmet as e:
        raise ToolError(f"no input was found that @{chosen.name} takes: {e}", None,
                        "give its arguments with --arg") from None
    return Case(func, inputs._replace(seed=seed), tolerance)
