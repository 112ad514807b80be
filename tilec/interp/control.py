"""Interpreter rules of structured control flow, reductions and scans.

Where a condition differs between programs, each side runs for its own programs only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np

from tilec.eval.combining import Combine, reduced, scanned
from tilec.eval.dtypes import Array, dtype_of
from tilec.interp.blame import poison_origin
from tilec.interp.frame import Data, Frame, merge, take, union
from tilec.interp.machine import Machine, interp_rules
from tilec.ir import ops
from tilec.ir.core import Block, Op, Value
from tilec.ir.types import shape_of


def defined(m: Machine, frame: Frame, op: Op, value: Value, what: str) -> Array:
    """The array of a scalar that control depends on; an error if any of it is poison."""
    array, poison = frame.get(value)
    if poison is not None and poison.any():
        row = int(np.flatnonzero(np.broadcast_to(poison, (len(frame),)))[0])
        origin, cure = poison_origin(value, frame)
        raise m.error(op, f"{m.program_name(frame.programs[row])}: {what} is poison: it comes from "
                      f"{origin}", cure)
    return array


@interp_rules(ops.If)
def _(m: Machine, frame: Frame, op: ops.If) -> Sequence[Data]:
    cond = defined(m, frame, op, op.cond, "the condition of this `if`")
    if cond.all():
        return m.run_block(op.then, frame)
    if not cond.any():
        return m.run_block(op.orelse, frame)
    sides = [(np.flatnonzero(cond), op.then), (np.flatnonzero(~cond), op.orelse)]
    outs = [(rows, m.run_block(block, frame.narrow(rows))) for rows, block in sides]
    return [merge([(rows, out[i]) for rows, out in outs], len(frame))
            for i in range(len(op.results))]


class _Live:
    """The programs still in a loop, and the loop's values of those that left."""

    def __init__(self, frame: Frame, values: Sequence[Data]) -> None:
        self.home = frame
        self.frame = frame
        self.rows = np.arange(len(frame))
        self.values = list(values)
        self._left: list[tuple[Array, list[Data]]] = []

    def leave(self, going: Array, values: Sequence[Data]) -> None:
        """The programs marked in `going` ([live]) leave with their rows of `values`."""
        self._left.append((self.rows[going], [take(d, going) for d in values]))
        self.rows = self.rows[~going]
        self.values = [take(d, ~going) for d in self.values]
        self.frame = self.home.narrow(self.rows)

    def results(self, values: Sequence[Data]) -> list[Data]:
        """The values of all programs, once the last leave with `values`."""
        if not self._left:
            return list(values)
        parts = [*self._left, (self.rows, list(values))] if len(self.rows) else self._left
        return [merge([(rows, vs[i]) for rows, vs in parts], len(self.home))
                for i in range(len(self._left[0][1]))]


@interp_rules(ops.For)
def _(m: Machine, frame: Frame, op: ops.For) -> Sequence[Data]:
    lo, hi, step = (defined(m, frame, op, v, "a bound of this loop")
                    for v in (op.lo, op.hi, op.step))
    wide = list(np.broadcast(*(np.asarray(v, object) for v in (lo, hi, step))))
    for row, (a, b, s) in enumerate(wide):
        if s == 0 or s < 0 and a > b:
            raise m.error(op, f"{m.program_name(frame.programs[row])}: the step of this loop is "
                          f"{s}, from {a} to {b}; one that is known at run time only must be 1 or "
                          "more, for compiled code runs no round of this loop",
                          "make the step a constexpr, which may be negative, or loop over "
                          "range(n) and compute lo + i * step")
    trips = np.array([max(0, -((a - b) // s)) if s > 0 else 0 for a, b, s in wide], np.int64)
    live = _Live(frame, [frame.get(v) for v in op.init])
    dtype = dtype_of(op.lo.type)
    for k in range(int(trips.max(initial=0))):
        if len(trips) > 1:
            going = trips[live.rows] <= k
            if going.any():
                live.leave(going, live.values)
        rows = live.rows
        start, stride = (v[rows] if len(v) > 1 else v for v in (lo, step))
        iv = np.asarray(start + stride * np.asarray(k).astype(dtype)).astype(dtype)
        live.frame.bind(op.body.args, [(iv, None), *live.values])
        live.values = m.run_block(op.body, live.frame)
    return live.results(live.values)


@interp_rules(ops.While)
def _(m: Machine, frame: Frame, op: ops.While) -> Sequence[Data]:
    live = _Live(frame, [frame.get(v) for v in op.init])
    for iteration in count():
        if m.turns is not None:
            m.turns.spin(iteration, live.values, op.loc)
        if m.role is not None and m.role is not m.member:
            m.role.pause()
        live.frame.bind(op.before.args, live.values)
        _, *passed = m.run_block(op.before, live.frame)
        cond = defined(m, live.frame, op, op.before.terminator.operands[0],
                       "the condition of this `while`")
        if not cond.any():
            return live.results(passed)
        live.values = passed
        if not cond.all():
            live.leave(~cond, passed)
        live.frame.bind(op.after.args, live.values)
        live.values = m.run_block(op.after, live.frame)
    raise AssertionError("unreachable")


# -- reductions and scans ---------------------------------------------------------------------

@interp_rules(ops.Reduce)
def _(m: Machine, frame: Frame, op: ops.Reduce) -> Sequence[Data]:
    parts, poison = _elements(frame, op)
    poison = None if poison is None else np.asarray(poison.any(-1))
    return [(a, poison) for a in reduced(parts, _combination(m, frame, op.body))]


@interp_rules(ops.Scan)
def _(m: Machine, frame: Frame, op: ops.Scan) -> Sequence[Data]:
    parts, poison = _elements(frame, op)
    turn, axis = slice(None, None, -1 if op.reverse else 1), op.axis - parts[0].ndim + 1
    out = scanned([p[..., turn] for p in parts], _combination(m, frame, op.body))
    if poison is not None:
        poison = np.logical_or.accumulate(poison[..., turn], -1)
        poison = np.moveaxis(poison[..., turn], -1, axis)
    return [(np.moveaxis(a[..., turn], -1, axis), poison) for a in out]


def _elements(frame: Frame, op: ops.Combining) -> tuple[list[Array], Array | None]:
    """The operands with the axis last, and where any of them is poison."""
    data = [frame.get(v) for v in op.inputs]
    axis = op.axis - len(shape_of(op.inputs[0].type))
    rows = max(len(a) for a, _ in data)
    poison = union(*(None if p is None else np.broadcast_to(p, (len(p), *a.shape[1:]))
                     for a, p in data))
    return ([np.moveaxis(np.broadcast_to(a, (rows, *a.shape[1:])), axis, -1) for a, _ in data],
            None if poison is None else np.moveaxis(poison, axis, -1))


def _combination(m: Machine, frame: Frame, body: Block) -> Combine:
    combine = _combine_arrays if _is_plain(body) else _combine_lanes
    return lambda xs, ys: combine(m, frame, body, xs, ys)


def _is_plain(body: Block) -> bool:
    """Only elementwise ops and constants, nothing from outside: runs on whole arrays."""
    inside = set(body.args)
    for op in body:
        if op.terminator:
            break
        if not isinstance(op, (ops.Elementwise, ops.Constant)) or \
                any(v not in inside for v in op.operands):
            return False
        inside.update(op.results)
    return all(v in inside for v in body.terminator.operands)


def _combine_arrays(m: Machine, frame: Frame, body: Block, xs: list[Array], ys: list[Array],
                    ) -> list[Array]:
    values = dict(zip(body.args, (*xs, *ys), strict=True))
    for op in body:
        if op.terminator:
            break
        rule = m.numbers.rules[type(op)]
        values[op.results[0]] = rule(op, *(values[v] for v in op.operands))
    shape = xs[0].shape
    return [np.broadcast_to(values[v], shape) for v in body.terminator.operands]


def _combine_lanes(m: Machine, frame: Frame, body: Block, xs: list[Array], ys: list[Array],
                   ) -> list[Array]:
    """Each pair of elements as a program of its own, so that the region may branch."""
    shape = xs[0].shape
    lanes = int(np.prod(shape[1:], dtype=np.int64))
    rows = np.repeat(np.arange(shape[0]) if shape[0] == len(frame) else
                     np.zeros(shape[0], np.int64), lanes)
    inner = frame.narrow(rows)
    inner.bind(body.args, [(a.reshape(-1), None) for a in (*xs, *ys)])
    out = m.run_block(body, inner)
    return [np.broadcast_to(a, rows.shape).reshape(shape) for a, _ in out]


