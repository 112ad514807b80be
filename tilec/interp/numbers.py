"""Watches what a kernel computes for numbers that nobody means: NaN of reductions over nothing,
sums that take padding in or round their terms away, stores that change a value, lost updates.

Each watcher wraps the rule of an op; it looks closely only where a small test finds something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilec.eval.dtypes import BOOL, Array, dtype_of, is_float
from tilec.interp.blame import place
from tilec.interp.frame import Data, Frame
from tilec.interp.machine import Machine, Rule
from tilec.ir import ops
from tilec.ir.core import Block, Op, Value
from tilec.ir.ops.base import Rearrange
from tilec.ir.origins import walk_back
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
            return [load.mask for load in _padding(op)[:1] if load.mask is not None]
        cast = _implicit_cast(op)
        return [] if cast is None else [cast.x]

    def rule(self, op: Op, rule: Rule) -> Rule:
        """The rule of an op, watched if there is a reason to."""
        if isinstance(op, (ops.Sub, ops.Add, ops.Fma, ops.Div)):
            if (found := _summed(op)) is not None:
                return self._sums(op, rule, *found)
            if scalar_of(op.result.type).is_float and (reduced := _reduced(op)):
                return self._nan(op, rule, *reduced)
        if isinstance(op, ops.For) and any(_summed(inner) for inner in op.body):
            return self._loop(op, rule)
        if isinstance(op, ops.Reduce) and (loads := _padding(op)):
            return self._padded(op, rule, loads[0])
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
            found = _reduced(v.op)
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

    def _padded(self, op: ops.Reduce, rule: Rule, load: ops.Load) -> Rule:
        axis = op.axis - len(shape_of(op.inputs[0].type))
        greatest = isinstance(next(iter(op.body)), ops.Maximum)
        assert load.mask is not None
        mask = load.mask

        def run(m: Machine, frame: Frame, op: ops.Reduce) -> Sequence[Data] | None:
            x, found = frame.get(op.inputs[0])[0], frame.find(mask)
            out = rule(m, frame, op)
            assert out is not None
            if found is None or found[0].all():
                return out
            on = found[0]
            off = ~on & on.any(axis, keepdims=True)  # but for what is masked off as a whole
            if off.ndim == 2 and len(off) == 1:
                bad = x.take(np.flatnonzero(off[0]), 1) != 0
            else:
                bad = off & (x != 0)
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
        inner = [(o, *found) for o in op.body if (found := _summed(o)) is not None]

        def run(m: Machine, frame: Frame, op: ops.For) -> Sequence[Data] | None:
            for add, carried, _ in inner:
                index = op.body.args.index(carried) - 1
                self.loops[add, frame] = _Sum(frame, frame.get(op.init[index])[0], add)
            out = rule(m, frame, op)
            assert out is not None
            for add, carried, _ in inner:
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

    def _sums(self, op: Op, rule: Rule, carried: Value, term: Callable[[Sequence[Array]], Array]
              ) -> Rule:
        def run(m: Machine, frame: Frame, op: Op) -> Sequence[Data] | None:
            for home in frame.chain():
                if (total := self.loops.get((op, home))) is not None:
                    total.add(frame, term([frame.get(v)[0].astype(np.float32)
                                           for v in op.operands if v is not carried]))
            return rule(m, frame, op)
        return run

    # -- stores -----------------------------------------------------------------------------

    def _store(self, op: ops.Store, rule: Rule) -> Rule:
        cast, updates = _implicit_cast(op), _is_update(op) and not self.m.in_runs(op.ptr)
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
        wrong = _changed(before, after)
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


# -- what an op is, by the IR alone -------------------------------------------------------------

_STAYS = (ops.Elementwise, Rearrange, ops.ConvertLayout, ops.Reduce)


def _reduced(op: Op) -> tuple[Value, Op] | None:
    """An operand that is computed from a reduction, the divisor of a division, and that."""
    for operand in op.operands[1:] if isinstance(op, ops.Div) else reversed(op.operands):
        for v in walk_back(operand, lambda v: isinstance(v.op, _STAYS)):
            if isinstance(v.op, ops.Reduce):
                return operand, v.op
    return None


def _padding(op: ops.Reduce) -> list[ops.Load]:
    """The loads that a sum or a maximum adds up, element by element, all with one mask and an
    `other`; none if anything else enters that differs along its axis."""
    combine, *rest = op.body
    if len(op.inputs) != 1 or not isinstance(combine, (ops.Add, ops.Maximum)) or len(rest) != 1:
        return []
    loads: list[ops.Load] = []
    work, seen = [op.inputs[0]], set[Value]()
    while work:
        v = work.pop()
        if v in seen:
            continue
        seen.add(v)
        if isinstance(v.op, ops.Load) and v.op.other is not None:
            loads.append(v.op)
        elif isinstance(v.op, ops.Elementwise) and not isinstance(v.op, ops.Select):
            work += v.op.operands
        elif not _is_uniform(v, op.axis):
            return []
    return loads if len({load.mask for load in loads}) == 1 else []


def _is_uniform(v: Value, axis: int) -> bool:
    """Whether a tile is the same all along an axis."""
    if isinstance(v.op, ops.Broadcast):
        return shape_of(v.op.operands[0].type)[axis] == 1
    return isinstance(v.op, (ops.Splat, ops.Constant)) or not shape_of(v.type)


def _summed(op: Op) -> tuple[Value, Callable[[Sequence[Array]], Array]] | None:
    """For what a loop adds up in 16 bits: the value carried, and the term of the other operands."""
    block = op.parent
    loop = None if not isinstance(block, Block) else block.parent_op
    if not isinstance(loop, ops.For) or not isinstance(op, (ops.Add, ops.Sub, ops.Fma)):
        return None
    dtype = dtype_of(op.result.type) if scalar_of(op.result.type).is_float else None
    if dtype is None or dtype.itemsize != 2 or op.result not in loop.body.terminator.operands:
        return None
    carried = loop.body.args[1 + list(loop.body.terminator.operands).index(op.result)]
    if isinstance(op, ops.Fma):
        return (carried, lambda x: x[0] * x[1]) if op.operands[2] is carried else None
    if op.operands[0] is carried:
        return carried, (lambda x: -x[0]) if isinstance(op, ops.Sub) else (lambda x: x[0])
    return (carried, lambda x: x[0]) if isinstance(op, ops.Add) and op.operands[1] is carried \
        else None


def _implicit_cast(op: Op) -> ops.Cast | None:
    """The cast to the pointee's type that a store has made itself."""
    cast = op.value.op if isinstance(op, ops.Store) else None
    return cast if isinstance(cast, ops.Cast) and cast.loc == op.loc and op.loc.line else None


def _is_update(op: ops.Store) -> bool:
    """Whether it stores what is computed from a load of the same places."""
    found = [v.op for v in walk_back(op.value, lambda v: isinstance(
        v.op, (ops.Elementwise, ops.ConvertLayout, ops.Load)))]
    return op.value.op is not None and any(isinstance(o, (ops.Add, ops.Sub, ops.Fma, ops.Mul))
                                           for o in found) and \
        any(isinstance(o, ops.Load) and o.ptr is op.ptr for o in found)


def _distinct(array: Array) -> Array:
    """An array without what broadcasting repeats."""
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]


def _changed(before: Array, after: Array) -> Array | None:
    """Which values a cast has changed more than by rounding them; None if it never does."""
    old, new = before.dtype, after.dtype
    if BOOL in (old, new) or is_float(new) and new.itemsize >= max(4, old.itemsize):
        return None
    with np.errstate(all="ignore"):
        if not is_float(new):
            return np.asarray(after.astype(np.float64 if is_float(old) else old) != before)
        if new.itemsize > 1:
            return np.asarray(np.isinf(after) & np.isfinite(before))
        size = np.abs(before.astype(np.float64))  # casts to fp8 saturate
        return np.asarray((size > 1) & (size > 1.125 * np.abs(after.astype(np.float64))))
