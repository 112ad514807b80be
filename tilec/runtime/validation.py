"""Translation validation: a module before and after a pass gives the same results.

What differs is told with the pass, the argument's element and both values, the store that wrote it
and, since a wrong store is seldom where the fault lies, the first value on the way to it that the
module before the pass never computed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tilec import knobs
from tilec.compiler import PIPELINE, Instrument, Stage
from tilec.errors import InternalError, InterpreterError, LaunchError, TilecError, note
from tilec.eval.dtypes import Array, is_float
from tilec.interp.frame import Data, Frame
from tilec.ir import ops
from tilec.ir.core import Module, Op
from tilec.ir.ops.base import ScratchOp
from tilec.ir.origins import walk_back
from tilec.ir.printer import print_module, print_op
from tilec.passes.base import Pass
from tilec.runtime.inputs import Budget, Inputs, Outcome, Unmet, inputs_for, run_in_order, run_on

CASES = 2  # inputs of a kernel
ORDERS = 3  # seeds that show whether a result depends on the order of programs
MOST = 10_000  # what an input may take to run before a pass (see Budget), a tenth of after it
_NUMBER = re.compile(r"\?|nan|[-+]?inf|True|False|[-+]?\d+\.?\d*(?:e[-+]?\d+)?")
_BARRIERS = [s.run.name for s in PIPELINE].index("insert_barriers")


class Miscompiled(InternalError):
    """A pass changed what a kernel does: which one, and at which line, is in the message."""

    hidden = True


class Difference(NamedTuple):
    """Where two results differ. what: with both values. arg: number of the argument, or -1."""

    what: str
    arg: int = -1
    element: tuple[int, ...] = ()


class Tolerance(NamedTuple):
    """What floats may be apart by: rtol of themselves and atol, or by default `ulps` of their type,
    of themselves and of the largest element. Of 8 and 16 bits, which hold sums rounded once, by
    one for each 16."""

    ulps: int = 0
    rtol: float | None = None
    atol: float | None = None

    def same(self, a: Array, b: Array) -> Array:
        """Which elements are the same, to the tolerance; a NaN is like any other."""
        if not is_float(a.dtype):
            return np.asarray(a == b)
        ulps = self.ulps if a.dtype.itemsize >= 4 else -(-self.ulps // 16)
        rtol = ulps * float(ml_dtypes.finfo(a.dtype).eps) if self.rtol is None else self.rtol
        with np.errstate(invalid="ignore", over="ignore"):
            x, y = a.astype(np.float64), b.astype(np.float64)
            finite = np.isfinite(x)
            exact = (x == y) & (np.signbit(x) == np.signbit(y)) if rtol == 0.0 else x == y
            atol = rtol * np.abs(x[finite]).max(initial=0.0) if self.atol is None else self.atol
            near = finite & (np.abs(x - y) <= atol + rtol * np.abs(x)) if rtol or atol else exact
            return np.asarray(near | exact | (np.isnan(x) & np.isnan(y)))


def difference(names: Sequence[str], want: Outcome, got: Outcome, tolerance: Tolerance,
               unsettled: Sequence[Any] = ()) -> Difference | None:
    """The first difference between two results; `unsettled` marks elements that may be any."""
    for i, (a, b) in enumerate(zip(want[0], got[0], strict=True)):
        if not isinstance(a, np.ndarray) or a.tobytes() == b.tobytes():
            continue
        wrong = ~tolerance.same(a, b)
        if unsettled:
            wrong &= ~unsettled[i]
        if wrong.any():
            at = tuple(int(n) for n in np.argwhere(wrong)[0])
            return Difference(f"{names[i]}: {wrong.sum()} of {a.size} elements differ, the first "
                              f"at {list(at)}: {b[at]!s}, expected {a[at]!s}", i, at)
    return _printed(want[1], got[1], tolerance)


def _printed(want: Sequence[str], got: Sequence[str], tolerance: Tolerance) -> Difference | None:
    """Printed numbers agree; what was poison may have become anything."""
    before, after = (_NUMBER.findall("\n".join(lines)) for lines in (want, got))
    for x, y in zip(before, after):
        if x not in ("?", y) and not (tolerance.ulps and np.isclose(float(x), float(y), 1e-2)):
            return Difference(f"it prints {y}, expected {x}")
    return None if len(before) == len(after) else \
        Difference(f"it prints {len(after)} numbers, expected {len(before)}")


def with_barriers(module: Module) -> Module:
    """A copy with a barrier before whatever touches shared memory, if it needs them to run: a
    module that has been given its shared memory or warp roles, but not its barriers, runs as one
    that has."""
    copy = module.clone()
    if module.level == "tile" or module.level == "gpu" and \
            not any(isinstance(op, ops.WarpSpecialize) for op in module.walk()):
        return copy
    for op in list(copy.walk()):
        touches = isinstance(op, ScratchOp | ops.WarpSpecialize) or \
            op.class_effects & {"read_shared", "write_shared"}
        alone = any(isinstance(a, ops.Elect) for a in op.ancestors())
        if op.parent is not None and touches and not alone:
            op.parent.insert(ops.Barrier(loc=op.loc), op)
    return copy


class Validator:
    """Follows one function of a module through passes. barriers: are still to be inserted."""

    def __init__(self, module: Module, func: str, barriers: bool = False,
                 cases: int = CASES) -> None:
        self.func, self.count, self.barriers = func, cases, barriers
        self.before = with_barriers(module) if barriers else module.clone()
        self.text = print_module(module)
        self.cases: list[tuple[Inputs, Outcome]] = []
        self.unmet = ""

    def step(self, p: Pass, module: Module, barriers: bool = False) -> Miscompiled | None:
        """What is wrong with what a pass has left, None if nothing is."""
        text = print_module(module)
        if (text, barriers) == (self.text, self.barriers):
            return None
        after = with_barriers(module) if barriers else module.clone()
        self._draw(after)
        found = None
        for n, (inputs, want) in enumerate(self.cases):
            try:
                got = run_on(after, self.func, inputs, Budget(10 * MOST))
            except Exception as e:  # what a broken pass leaves may fail in any way
                what, loc = (e.message, e.loc) if isinstance(e, TilecError) else (repr(e), None)
                found = Miscompiled(f"pass `{p.name}` changes what @{self.func} does: it fails: "
                                    f"{what}", loc if loc is not None and loc.line else None)
            else:
                found = self._compare(p, after, inputs, want, got)
                self.cases[n] = inputs, got
            if found is not None:
                break
        self.before, self.text, self.barriers = after, text, barriers
        return found

    def _draw(self, after: Module) -> None:
        """Have inputs for the module before a pass of which the one after can make its maps."""
        func = next(f for f in after.funcs if f.name == self.func)
        kept = []
        for case in self.cases:
            with contextlib.suppress(LaunchError):
                case[0].maps(func, case[0].copied())
                kept.append(case)
        self.cases = kept
        try:
            for seed in range(len(kept), self.count):
                self.cases.append(inputs_for(self.before, func, seed, MOST))
        except Unmet as e:
            self.unmet, self.count = str(e), len(self.cases)

    def _compare(self, p: Pass, after: Module, inputs: Inputs, want: Outcome, got: Outcome
                 ) -> Miscompiled | None:
        func = next(f for f in after.funcs if f.name == self.func)
        names = [a.name or str(i) for i, a in enumerate(func.args)]
        tolerance = Tolerance(p.tolerance)
        found = difference(names, want, got, tolerance)
        if found is None:
            return None
        with knobs.scope(eval="ring" if p.reorders else ""):
            if p.reorders:
                want, got = (run_on(m, self.func, inputs) for m in (self.before, after))
            found = difference(names, want, got, tolerance, self._unsettled(inputs, want))
        if found is None:
            return None
        at, text = blamed(self.before, after, self.func, inputs, found)
        return Miscompiled(f"pass `{p.name}` changes what @{self.func} computes: {found.what}"
                           f"{text}", at.loc if at is not None and at.loc.line else None)

    def _unsettled(self, inputs: Inputs, want: Outcome) -> list[Any]:
        """Which elements depend on the order of programs before the pass."""
        marks = [np.zeros(a.shape, bool) if isinstance(a, np.ndarray) else None for a in want[0]]
        others = [run_on(self.before, self.func, inputs, seed=n) for n in range(1, ORDERS + 1)]
        with contextlib.suppress(InterpreterError):  # programs that wait for each other
            others += [run_in_order(self.before, self.func, inputs, n) for n in (False, True)]
        for other, _ in others:
            for mark, a, b in zip(marks, want[0], other, strict=True):
                if mark is not None:
                    mark |= ~Tolerance().same(a, b)
        return marks


def blamed(before: Module, after: Module, func: str, inputs: Inputs, found: Difference
           ) -> tuple[Op | None, str]:
    """The op that a difference comes from, and lines about it and about the store that wrote it."""
    store, first = _Blame(before, func, inputs).find(after, found)
    text = "" if store is None else f"\n  stored by {_shown(store)}"
    if first is None:
        return store, text
    return first[0], f"{text}\n  the first value that was not computed before it: {first[1]}"


class _Blame:
    """Finds the op that a difference comes from, by the values of all ops before a pass."""

    def __init__(self, before: Module, func: str, inputs: Inputs) -> None:
        self.func, self.inputs = func, inputs
        self.known: set[int] = set()
        self.values: dict[tuple[Any, ...], Any] = {}

        def observe(op: Op, frame: Frame, out: Sequence[Data] | None) -> None:
            for i, rows in enumerate(_rows(out)):
                self.known.update(map(_digest, rows))
                self.values.setdefault((type(op), op.loc, i), rows)
        run_on(before, func, inputs, observe)

    def find(self, after: Module, found: Difference) -> tuple[Op | None, tuple[Op, str] | None]:
        """The op that wrote the element, and the first one, with its values after and before, whose
        result is new."""
        new: dict[Op, str] = {}
        store: Op | None = None

        def observe(op: Op, frame: Frame, out: Sequence[Data] | None) -> None:
            nonlocal store
            for i, rows in enumerate(_rows(out)):
                n = next((n for n, r in enumerate(rows) if _digest(r) not in self.known), None)
                if n is not None and op not in new:
                    old = self.values.get((type(op), op.loc, i), ())
                    new[op] = _apart(rows[n], old[n] if n < len(old) else None)
            if "write" in op.class_effects and found.arg >= 0:
                now = args[found.arg][found.element].tobytes()
                if now != last[0]:
                    last[0], store = now, op

        inputs = self.inputs._replace(args=self.inputs.copied())
        args = list(inputs.args)
        last = [args[found.arg][found.element].tobytes()] if found.arg >= 0 else [b""]
        run_on(after, self.func, _InPlace(*inputs), observe)
        if store is not None:
            feeds = {v.op for operand in store.operands for v in walk_back(operand)}
            new = {op: v for op, v in new.items() if op in feeds} or new
        if not new:
            return store, None
        op, values = next(iter(new.items()))
        return store, (op, f"{_shown(op)}: {values}")


class _InPlace(Inputs):
    """Inputs whose arrays a run changes."""

    def copied(self) -> list[Any]:
        return list(self.args)


def _rows(out: Sequence[Data] | None) -> list[list[Array]]:
    """Each result's array, program by program, with 0 where it is poison."""
    found = []
    for array, poison in out or ():
        if poison is not None:
            array = np.where(poison != 0, np.zeros((), array.dtype), array)
        found.append(list(array))
    return found


def _digest(row: Array) -> int:
    return hash((row.tobytes(), row.dtype.str))


def _shown(op: Op) -> str:
    text = print_op(op).strip().splitlines()[0]
    return f"`{text}`" + (f" ({op.loc.file}:{op.loc.line})" if op.loc.line else "")


def _apart(new: Array, old: Array | None) -> str:
    """The first element in which two tiles differ, in both."""
    if old is None or old.shape != new.shape:
        return str(new[(0,) * new.ndim])
    at = tuple(int(n) for n in next(iter(np.argwhere(old != new)), ()))
    return f"{new[at]!s}, was {old[at]!s}" + (f", at {list(at)}" if at else "")


class Validate(Instrument):
    """Runs the module before and after every pass; raises Miscompiled where a result changes."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.validator: Validator | None = None

    def after(self, stage: Stage, seconds: float) -> None:
        """Compare the stage with the one before it."""
        if not isinstance(stage.content, Module):
            return
        if self.validator is None or not stage.number:
            self.validator = Validator(stage.content, stage.content.funcs[0].name)
            return
        found = self.validator.step(PIPELINE[stage.number - 1].run, stage.content,
                                    stage.number <= _BARRIERS)
        if found is not None:
            found.message += "; this is a bug in tilec"
            found.advice = f"TILEC_DUMP_DIR keeps its input, which is stage {stage.number - 1}"
            raise found
        if self.validator.unmet and not self.validator.cases:
            note((self.kernel, "validation"), f"@{self.kernel} is not validated: "
                 f"no input was found that it takes: {self.validator.unmet}")


def from_knobs(kernel: str) -> list[Instrument]:
    """The instrument, if TILEC_VALIDATE asks for it."""
    return [Validate(kernel)] if knobs.validate else []
