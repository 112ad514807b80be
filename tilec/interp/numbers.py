"""Watches what a kernel computes for numbers that nobody means: NaN of reductions over nothing,
sums that take padding in or round their terms away, stores that change a value, lost updates.

Each watcher wraps the rule of an op; it looks closely only where a small test finds something.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilec.eval.casts import changed
from tilec.eval.dtypes import Array
from tilec.interp.blame import place
from tilec.interp.frame import Data, Frame
from tilec.interp.machine import Machine, Rule
from tilec.ir import ops
from tilec.ir.core import Op, Value
from tilec.ir.origins import walk_back
from tilec.ir.suspicions import (
    implicit_cast,
    is_update,
    padded_load,
    reduced_operand,
    summed,
)
from tilec.ir.types import element_of, scalar_of, shape_of

LOST = 1 / 64  # the part of a sum's terms, in magnitude, whose loss is worth a note


class Watch:
    """The watchers of one launch. made_nan: ops that made NaN of a reduction over nothing, with the
    programs that they did it in."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.made_nan: dict[Op, Array] = {}
        self.loops: dict[tuple[Op, Frame], _Sum] = {}

    def needs(self, op: Op) -> Sequence[Value]:
        """Values beside its operands that an op's watcher looks at."""
        if isinstance(op, ops.Reduce):
            found = padded_load(op)
            return [] if found is None else [found[1]]
        cast = implicit_cast(op)
        return [] if cast is None else [cast.x]

    def rule(self, op: Op, rule: Rule) -> Rule:
        """The rule of an op, watched if there is a reason to."""
        if isinstance(op, (ops.Sub, ops.Add, ops.Fma, ops.Div)):
            if (carried := summed(op)) is not None:
                return self._sums(rule, carried)
            if scalar_of(op.result.type).is_float and (reduced := reduced_operand(op)):
                return self._nan(op, rule, *reduced)
        if isinstance(op, ops.For) and any(map(summed, op.body)):
            return self._loop(op, rule)
        if isinstance(op, ops.Reduce) and (found := padded_load(op)):
            return self._padded(op, rule, *found)
        if isinstance(op, ops.Store):
            return self._store(op, rule)
        return rule

    # -- NaN of reductions over nothing -----------------------------------------------------

    def _nan(self, op: Op, rule: Rule, reduced: Value, reduce: Op) -> Rule:
        """0 / 0 or inf - inf, where one side comes from a reduction: remember the programs."""
        odd = (lambda x: x == 0) if isinstance(op, ops.Div) else \
            np.isneginf if isinstance(op, ops.Sub) else np.isinf

        def run(m: Machine, frame: Frame, op: Op) -> Sequence[Data] | None:
            if not odd(_distinct(frame.get(reduced)[0])).any():
                return rule(m, frame, op)
            data = [frame.get(v)[0] for v in op.operands]
            out = rule(m, frame, op)
            assert out is not None
            made = np.isnan(out[0][0])
            for array in data:
                made = made & ~np.isnan(array)
            rows = np.broadcast_to(made.reshape(len(made), -1).any(1), (len(frame),))
            if rows.any():
                self.made_nan[op] = np.union1d(self.made_nan.get(op, []), frame.programs[rows])
            return out
        return run

    def _stored_nan(self, frame: Frame, op: ops.Store, on: Array) -> None:
        array = frame.get(op.value)[0]
        nan = np.isnan(array) & on
        if not nan.any():
            return
        rows = np.broadcast_to(nan.reshape(len(nan), -1).any(1), (len(frame),))
        for v in walk_back(op.value):
            made = None if v.op is None else self.made_nan.get(v.op)
            if v.op is None or made is None or not np.isin(frame.programs[rows], made).any():
                continue
            found = reduced_operand(v.op)
            assert found is not None
            at = place(found[1])
            if isinstance(v.op, ops.Div):
                self.m.note(v.op, f"0 / 0 gives NaN here, which is stored at {place(op)}: the "
                            f"reduction at {at} is 0, as of nothing",
                            "divide by at least 1, or by `tl.where`")
            else:
                self.m.note(v.op, f"inf - inf gives NaN here, which is stored at {place(op)}: the "
                            f"reduction at {at} is infinite, as of a row that is masked as a whole",
                            "use 0 for such a maximum: tl.where(m == float(\"-inf\"), 0, m)")
            return

    # -- padding in reductions --------------------------------------------------------------

    def _padded(self, op: ops.Reduce, rule: Rule, load: ops.Load, mask: Value) -> Rule:
        axis = op.axis - len(shape_of(op.inputs[0].type))
        greatest = isinstance(next(iter(op.body)), ops.Maximum)

        def run(m: Machine, frame: Frame, op: ops.Reduce) -> Sequence[Data] | None:
            x, found = frame.get(op.inputs[0])[0], frame.find(mask)
            out = rule(m, frame, op)
            assert out is not None
            if found is None or found[0].all():
                return out
            on = found[0]
            off = ~on & on.any(axis, keepdims=True)  # but for what is masked off as a whole
            # Padding below what comes out is below the maximum of the rest, too.
            top = np.expand_dims(out[0][0], axis) if greatest else None
            if off.ndim == 2 and len(off) == 1:
                padding = x.take(np.flatnonzero(off[0]), 1)
                bad = padding != 0 if top is None else ~(padding < top)
            else:
                bad = off & (x != 0 if top is None else ~(x < top))
            if greatest and bad.any():
                own = np.where(on, x, x.min()).max(axis, keepdims=True)
                bad = off & (x > own)
            if bad.any():
                m.note(op, f"this {'maximum' if greatest else 'sum'} takes in {int(bad.sum())} "
                       f"masked-off lanes of the load at {place(load)}, which are not neutral here",
                       "mask them off by tl.where before, or choose another `other`")
            return out
        return run

    # -- sums in loops ----------------------------------------------------------------------

    def _loop(self, op: ops.For, rule: Rule) -> Rule:
        inner = [(o, carried) for o in op.body if (carried := summed(o)) is not None]

        def run(m: Machine, frame: Frame, op: ops.For) -> Sequence[Data] | None:
            for add, carried in inner:
                index = op.body.args.index(carried) - 1
                self.loops[add, frame] = _Sum(frame, frame.get(op.init[index])[0], add)
            out = rule(m, frame, op)
            assert out is not None
            for add, carried in inner:
                total = self.loops.pop((add, frame))
                got = out[op.body.args.index(carried) - 1][0].astype(np.float32)
                with np.errstate(invalid="ignore"):
                    lost = np.abs(got - total.exact) > LOST * total.size
                if lost.any():
                    i = tuple(np.argwhere(lost)[0])
                    got, exact = np.broadcast_to(got, lost.shape)[i], total.exact[i]
                    m.note(add, f"this sum in {element_of(add.results[0].type)} gives {got:g} "
                           f"after the loop, where one in f32 gives {exact:g}: it has grown too "
                           "large for its terms", "sum up in float32: tl.zeros(..., tl.float32)")
            return out
        return run

    def _sums(self, rule: Rule, carried: Value) -> Rule:
        def run(m: Machine, frame: Frame, op: Op) -> Sequence[Data] | None:
            for home in frame.chain():
                if (total := self.loops.get((op, home))) is not None:
                    term = np.asarray(prod(frame.get(v)[0].astype(np.float32)
                                           for v in op.operands if v is not carried))
                    total.add(frame, -term if isinstance(op, ops.Sub) else term)
            return rule(m, frame, op)
        return run

    # -- stores -----------------------------------------------------------------------------

    def _store(self, op: ops.Store, rule: Rule) -> Rule:
        cast, updates = implicit_cast(op), is_update(op) and not self.m.in_runs(op.ptr)
        is_nan = scalar_of(op.value.type).is_float

        def run(m: Machine, frame: Frame, op: ops.Store) -> None:
            on = np.ones(1, bool) if op.mask is None else frame.get(op.mask)[0]
            if is_nan and self.made_nan:
                self._stored_nan(frame, op, on)
            if cast is not None and (before := frame.find(cast.x)) is not None:
                self._narrowed(op, before[0], frame.get(op.value)[0], on)
            if updates:
                self._updated(frame, op, on)
            rule(m, frame, op)
        return run

    def _narrowed(self, op: ops.Store, before: Array, after: Array, on: Array) -> None:
        """A store's own cast changes a value more than by rounding it."""
        wrong = changed(before, after)
        if wrong is not None and (wrong & on).any():
            i = tuple(np.argwhere(np.broadcast_to(
                wrong & on, np.broadcast_shapes(wrong.shape, on.shape)))[0])
            old, new = (np.broadcast_to(x, np.broadcast_shapes(x.shape, on.shape))[i]
                        for x in (before, after))
            self.m.note(op, f"this stores {new} for {old}: the value does not fit "
                        f"{element_of(op.value.type)}",
                        "use an output of a wider type, or cast with .to() to say that you mean it")

    def _updated(self, frame: Frame, op: ops.Store, on: Array) -> None:
        """Lanes of one program read an element, and write it back."""
        address = frame.get(op.ptr)[0]
        shape = np.broadcast_shapes(address.shape, on.shape)
        address = np.where(on, address, -1 - np.arange(int(np.prod(shape[1:]))).reshape(shape[1:]))
        lanes = np.sort(address.reshape(len(address), -1), axis=1)
        twice = (lanes[:, 1:] == lanes[:, :-1]) & (lanes[:, 1:] >= 0)
        if twice.any():
            self.m.note(op, f"{int(twice.sum())} lanes read an element and write it back that "
                        "another lane of this store updates, too: one update of each stays",
                        "use tl.atomic_add")


class _Sum:
    """What a loop adds up, in f32, and the sum of the terms' magnitudes."""

    def __init__(self, home: Frame, start: Array, op: Op) -> None:
        shape = (len(home), *shape_of(op.results[0].type))
        self.home = home
        self.exact = np.broadcast_to(start, shape).astype(np.float32)
        self.size = np.abs(self.exact)

    def add(self, frame: Frame, term: Array) -> None:
        """Add a term, in the frame's programs."""
        rows = frame.index_in(self.home)
        with np.errstate(all="ignore"):
            self.exact[rows] += term
            self.size[rows] += np.abs(term)


def _distinct(array: Array) -> Array:
    """An array without what broadcasting repeats."""
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]
