"""One input of a kernel: runs it at any level that a CPU can run, and compares results."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilec.codegen.lower import symbol
from tilec.errors import TilecError
from tilec.ir import ops
from tilec.ir.core import Module
from tilec.ir.ops.base import ScratchOp
from tilec.tools.run import copied, execute


@dataclass(frozen=True)
class Case:
    """An input of a kernel, and how far floats may be apart (None: see --help)."""

    func: str
    arrays: Sequence[Any]
    grid: tuple[int, int, int]
    seed: int | None = None
    rtol: float | None = None
    atol: float | None = None

    def run(self, content: Module | str, shared: int = 0) -> list[Any]:
        """The arguments after a run of a module or of PTX; what it prints is dropped."""
        mine = copied(self.arrays)
        with contextlib.redirect_stdout(io.StringIO()):
            name = self.func if isinstance(content, Module) else self.func and symbol(self.func)
            execute(content, name, mine, self.grid, seed=self.seed, shared=shared)
        return mine

    def change(self, want: Sequence[Any], content: Module | str, shared: int = 0) -> str:
        """How the result of `content` differs from `want`; empty if it does not."""
        try:
            got = self.run(content, shared)
        except Exception as e:  # what a broken pass leaves may fail in any way
            return f"it fails: {e if isinstance(e, TilecError) else repr(e)}"
        for i, (a, b) in enumerate(zip(want, got, strict=True)):
            if isinstance(a, np.ndarray):
                wrong = ~self._same(a, b)
                if wrong.any():
                    at = tuple(int(n) for n in np.argwhere(wrong)[0])
                    return (f"arg {i}: {wrong.sum()} of {a.size} elements differ, the first at "
                            f"{list(at)}: {b[at]}, expected {a[at]}")
        return ""

    def _same(self, a: Any, b: Any) -> Any:
        if a.dtype.kind in "iub":
            return a == b
        eps = float(ml_dtypes.finfo(a.dtype).eps)
        rtol = (2 if a.dtype.itemsize < 4 else 32) * eps if self.rtol is None else self.rtol
        with np.errstate(invalid="ignore", over="ignore"):
            x, y = a.astype(np.float64), b.astype(np.float64)
            finite = np.isfinite(x)
            largest = np.abs(x[finite]).max(initial=0.0)
            atol = rtol * largest if self.atol is None else self.atol
            near = finite & (np.abs(x - y) <= atol + rtol * np.abs(x))
            return near | (x == y) | (np.isnan(x) & np.isnan(y))


def with_barriers(module: Module) -> Module:
    """A copy with a barrier before whatever touches shared memory: a module that has been given
    its shared memory, but not its barriers, runs as one that has."""
    copy = module.clone()
    for op in list(copy.walk()):
        touches = isinstance(op, ScratchOp) or op.class_effects & {"read_shared", "write_shared"}
        if op.parent is not None and touches:
            op.parent.insert(ops.Barrier(loc=op.loc), op)
    return copy
