"""Interpreter rules of ops that touch memory, the grid or the outside.

An access is checked lane by lane; what is wrong with it is told in the author's words by `blame`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from tilec.errors import InterpreterError, note
from tilec.eval.dtypes import Array, dtype_of
from tilec.eval.promises import broken_promise
from tilec.eval.rules import rule as eval_rules
from tilec.interp.blame import mask_comment, pointer_name, poison_origin, where
from tilec.interp.control import defined
from tilec.interp.frame import Data, Frame
from tilec.interp.machine import Machine, full_shape, interp_rules
from tilec.interp.memory import AccessError
from tilec.interp.touches import MANY, By
from tilec.ir import ops
from tilec.ir.core import Op, Value
from tilec.ir.ops.memory import MemoryOp
from tilec.ir.types import pointee_of, shape_of

T = TypeVar("T")
_VERB_OF = {
    ops.Load: "reads", ops.Store: "writes", ops.AsyncCopy: "reads",
    ops.AtomicRmw: "updates", ops.AtomicCas: "updates",
    ops.DescriptorLoad: "reads", ops.DescriptorStore: "writes", ops.DescriptorAtomic: "updates"}


# -- grid -------------------------------------------------------------------------------------

@interp_rules(ops.ProgramId)
def _(m: Machine, frame: Frame, op: ops.ProgramId) -> Sequence[Data]:
    x, y, _ = m.extents
    index = frame.programs // (1, x, x * y)[op.axis] % m.extents[op.axis]
    return ((index.astype(np.int32), None),)


@interp_rules(ops.NumPrograms)
def _(m: Machine, frame: Frame, op: ops.NumPrograms) -> Sequence[Data]:
    return ((np.full(1, m.extents[op.axis], np.int32), None),)


# -- memory -----------------------------------------------------------------------------------

class MemoryAccess:
    """Operands of a memory op, checked for poison and brought to one row count."""

    op: Op
    active: Array | None

    def __init__(self, m: Machine, frame: Frame, op: MemoryOp, value: Value | None) -> None:
        self.m, self.frame, self.op = m, frame, op
        self.ptr, self.mask = op.ptr, op.mask
        mask = self.mask
        address, poison = frame.get(op.ptr)
        rows = len(address)
        self.active = None
        if mask is not None:
            active, mask_poison = frame.get(mask)
            self._refuse(mask_poison, None, mask, "its mask is poison")
            rows = max(rows, len(active))
            self.active = None if active.all() else active
        if value is not None:
            rows = max(rows, len(frame.get(value)[0]))
        shape = (rows, *shape_of(op.ptr.type))
        self.address = address if address.shape == shape else np.broadcast_to(address, shape)
        if self.active is not None:
            self.active = np.broadcast_to(self.active, shape)
        self._refuse(poison, self.active, op.ptr, "its address is poison")
        self._settle(rows)

    def _settle(self, rows: int) -> None:
        """Say who accesses. One row for several programs: all of them do the same access."""
        self.together = rows < len(self.frame)
        who = np.array([MANY]) if self.together else self.frame.programs
        self._note_programs(who)
        if self.m.memory.wider and self.m.notes:
            self._note_outside()

    def _note_outside(self) -> None:
        """A note, once a kernel, where an argument's view is left for the memory behind it."""
        memory, func = self.m.memory, self.m.func
        name = pointer_name(self.ptr, func)
        address = self.address if self.active is None else self.address[self.active]
        if name not in memory.wider or not address.size:
            return
        (low, high), behind = memory.views[name], memory.allocation_of(name)
        size = int(pointee_of(self.ptr.type).bytes)
        outside = address[(address < low) | (address + size > high)]
        if outside.size and behind.base <= outside.min() and outside.max() + size <= behind.end:
            start = memory.address[name]
            first, last = (int(a - start) // size for a in (outside.min(), outside.max()))
            note(("outside of a view", self.op.loc.file, func.name),
                 f"{where(self.op)}: `{func.name}` {_VERB_OF[type(self.op)]} {name} at {first}" +
                 f" to {last}" * (first != last) + ", outside of the view of "
                 f"{_some(memory.elements(name))} that it got, inside of the memory behind it; "
                 "mask these off if they are not meant")

    def _note_programs(self, who: Array) -> None:
        programs = who.reshape((-1,) + (1,) * (self.address.ndim - 1))
        in_runs = "write" in self.op.class_effects and self.m.in_runs(self.ptr)
        self.by = By(self.op, programs, in_runs)

    def apart(self) -> None:
        """A row for every program, though all have the same operands."""
        if self.together:
            shape = (len(self.frame), *self.address.shape[1:])
            self.address = np.broadcast_to(self.address, shape)
            self._note_programs(self.frame.programs)
            if self.active is not None:
                self.active = np.broadcast_to(self.active, shape)

    def run(self, access: Callable[..., T], *rest: Any) -> T:
        """Load, store or add: one of the memory's methods, with what it takes beside the place."""
        try:
            return access(self.address, self.active, self.by, *rest)
        except AccessError as e:
            raise self._failed(e) from None

    def blame(self, elements: int) -> tuple[str, str]:
        """Why an access is outside of a buffer of so many elements, and what to do."""
        return (mask_comment(self.mask, elements, self.m.func, self.m.scalars),
                "mask the elements outside of the array off")

    def value(self, value: Value) -> Array:
        """The value's array at the address's shape; no active lane may be poison."""
        array, poison = self.frame.get(value)
        self._refuse(poison, self.active, value, "the value is poison")
        return np.broadcast_to(array, self.address.shape)

    def _refuse(self, poison: Array | None, active: Array | None, value: Value, what: str) -> None:
        if poison is None:
            return
        bad = poison != 0 if active is None else (poison != 0) & active
        if not bad.any():
            return
        rows = bad.reshape(len(bad), -1).any(1)
        row = int(np.flatnonzero(rows)[0])
        count = int(np.broadcast_to(bad[row], shape_of(value.type)).sum())
        where = f" in {count} elements" if shape_of(value.type) else ""
        name = pointer_name(self.ptr, self.m.func) or "memory"
        verb = _VERB_OF[type(self.op)]
        origin, cure = poison_origin(value, self.frame)
        raise self.m.error(
            self.op, f"{self.m.program_name(self.frame.programs[row])} {verb} {name}, but {what}"
            f"{where}: it comes from {origin}", f"{cure}, or mask these elements off here")

    def _failed(self, e: AccessError) -> InterpreterError:
        """The author's view of a bad access."""
        row = int(np.flatnonzero(e.lanes.reshape(len(e.lanes), -1).any(1))[0])
        count = int(e.lanes[row].sum())
        first = int(self.address[row][e.lanes[row]].reshape(-1)[0])
        who, verb = self.m.program_name(self.frame.programs[row]), _VERB_OF[type(self.op)]
        name = pointer_name(self.ptr, self.m.func)
        memory = self.m.memory
        near = memory.allocation_of(name) if name in memory.address else e.allocation
        if near is None:
            return self.m.error(self.op, f"{who} {verb} {_some(count)} outside of every argument",
                                "check how the pointer is computed")
        name = name or near.names[0]
        if e.reason == "readonly":
            return self.m.error(self.op, f"{who} {verb} {name}, a read-only array",
                                "pass a writeable array")
        if e.reason == "misaligned":
            return self.m.error(self.op, f"{who} {verb} {_some(count)} of {name} at addresses that "
                                         f"are not multiples of the element size")
        side = "before" if first < near.base else "past"
        elements = memory.elements(name)
        comment, advice = self.blame(elements)
        what = f"the memory that {name} is a view of" if name in memory.wider else name
        return self.m.error(self.op, f"{who} {verb} {_some(count)} {side} {what} "
                            f"({_some(elements)}); {comment}", advice)


def _some(count: int) -> str:
    return f"{count} element{'' if count == 1 else 's'}"


@interp_rules(ops.Load)
def _(m: Machine, frame: Frame, op: ops.Load) -> Sequence[Data]:
    access = MemoryAccess(m, frame, op, None)
    array = access.run(m.memory.load, dtype_of(op.result.type))
    if access.active is None:
        return ((array, None),)
    if op.other is None and m.strict:
        return ((array, ~access.active),)
    if op.other is None:
        return ((np.where(access.active, array, np.zeros(1, array.dtype)), None),)
    other, poison = frame.get(op.other)
    if poison is not None:
        poison = (poison != 0) & ~access.active
    return ((np.where(access.active, array, other), poison),)


@interp_rules(ops.Store)
def _(m: Machine, frame: Frame, op: ops.Store) -> None:
    access = MemoryAccess(m, frame, op, op.value)
    access.run(m.memory.store, access.value(op.value))


@interp_rules(ops.Atomic)
def _(m: Machine, frame: Frame, op: ops.Atomic) -> Sequence[Data]:
    access = MemoryAccess(m, frame, op, op.value)
    access.apart()
    given = [access.value(v) for v in op.given]
    old = access.run(m.memory.atomic, op.kind, given, bool(op.result.uses))
    return ((old, None if access.active is None else ~access.active),)


# -- checks and printing ----------------------------------------------------------------------

@interp_rules(ops.Assert)
def _(m: Machine, frame: Frame, op: ops.Assert) -> None:
    array, poison = frame.get(op.cond)
    if poison is not None and poison.any():
        origin, cure = poison_origin(op.cond, frame)
        raise m.error(op, f"the condition of this assertion is poison: it comes from {origin}",
                      cure)
    if array.all():
        return
    index = tuple(int(i) for i in np.argwhere(~array)[0])
    program = frame.programs[index[0]]
    where = f" at element {index[1:]}" if len(index) > 1 else ""
    message = f": {op.message}" if op.message else ""
    raise m.error(op, f"{m.program_name(program)}: assertion failed{where}{message}")


@interp_rules(ops.Assume)
def _(m: Machine, frame: Frame, op: ops.Assume) -> None:
    holds = defined(m, frame, op, op.cond, "the condition of this `assume`")
    if not holds.all():
        program = frame.programs[int(np.flatnonzero(~holds)[0])]
        raise m.error(op, f"{m.program_name(program)}: what this `assume` promises does not hold",
                      "compiled code relies on it; remove the `assume` or fix the call")


@interp_rules(ops.Hint)
def _(m: Machine, frame: Frame, op: ops.Hint) -> Sequence[Data]:
    array, poison = frame.get(op.x)
    if poison is None and m.strict:
        wrong = broken_promise(op, array, _run_lengths(m, op), m.axis.get(op.x).contiguity)
        if wrong:
            raise m.error(op, f"this hint promises {wrong}, which does not hold",
                          "compiled code relies on it; remove the hint or fix the call "
                          "(TILEC_STRICT=0 leaves hints unchecked)")
    return ((eval_rules[ops.Hint](op, array), poison),)


def _run_lengths(m: Machine, op: ops.Hint) -> Sequence[int]:
    """The runs whose first elements a hint's divisibility is about: those it states, those that
    the hints on its result state, or those that the compiler knows of."""
    if op.contiguity or not op.divisibility:
        return op.contiguity
    runs = list(m.axis.get(op.x).contiguity)
    users = op.result.users
    stated = [u.contiguity for u in users if isinstance(u, ops.Hint) and u.contiguity]
    if users and len(stated) == len(users):
        runs = [max(run, min(lengths)) for run, *lengths in zip(runs, *stated)]
    return runs


@interp_rules(ops.Print)
def _(m: Machine, frame: Frame, op: ops.Print) -> None:
    data = [(full_shape(frame.get(v), v, len(frame)), frame.get(v)[1]) for v in op.values]
    for row, program in enumerate(frame.programs):
        parts = [_shown(a[row], None if p is None else p[row if len(p) > 1 else 0], op.hex)
                 for a, p in data]
        text = " ".join([op.prefix.rstrip()] * bool(op.prefix.strip()) + parts)
        x, y, z = m.coordinates(int(program))
        m.emit(f"pid ({x}, {y}, {z}) {text}")


def _shown(array: Array, poison: Array | None, hexadecimal: bool) -> str:
    """An array as text, poison as `?`."""
    if hexadecimal and array.dtype.kind in "iu":
        array = np.vectorize(hex, otypes=[object])(array)
    if poison is not None and poison.any():
        exact = array if array.dtype.isbuiltin == 1 else array.astype(np.float32)  # of ml_dtypes
        array = np.where(poison, "?", exact.astype(str))
    return str(array).replace("'", "") if array.dtype.kind in "OU" else str(array)


@interp_rules(ops.Breakpoint)
def _(m: Machine, frame: Frame, op: ops.Breakpoint) -> None:
    if m.debugger is not None:
        m.debugger.stop(op, frame)
