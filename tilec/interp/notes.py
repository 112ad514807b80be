"""What the interpreter says without stopping a program: notes, once a kernel and place."""

from __future__ import annotations

import numpy as np

from tilec.interp.blame import pointer_name, where
from tilec.interp.machine import Machine
from tilec.interp.memory import Allocation
from tilec.interp.touches import ATOMIC, MANY, Meeting
from tilec.ir.core import Op
from tilec.ir.ops.hopper import TmaOp
from tilec.ir.origins import accessed


def _named(m: Machine, op: Op, allocation: Allocation, element: int) -> tuple[str, str]:
    """An argument, and an element as the author counts: `element 5 of x`."""
    pointer = op.map if isinstance(op, TmaOp) else accessed(op)
    name = "" if pointer is None else pointer_name(pointer, m.func)
    name = name if name in allocation.names else allocation.names[0]
    first = (m.memory.address[name] - allocation.base) // allocation.dtype.itemsize
    return name, f"element {element - first} of {name}"


def _program(m: Machine, program: int) -> str:
    return {MANY: "several programs", ATOMIC: "another one's atomics"}.get(
        program, m.program_name(program))


def report_meeting(m: Machine, allocation: Allocation, meeting: Meeting) -> None:
    """Note that two accesses meet at an element."""
    op, other = meeting.ops
    name, element = _named(m, op, allocation, meeting.element)
    mine, theirs = meeting.programs
    if mine == theirs:
        m.note(op, f"{m.program_name(mine)} writes {element} more than once in one store, with "
               "different values", "any of them may stay; atomic_add adds them up")
        return
    verbs = meeting.verbs
    what = "this line" if op is other else where(other)
    m.note(op, f"{_program(m, mine)} {verbs[0]} {element}, which {_program(m, theirs)} "
           f"{verbs[1]} at {what}, without atomics: the order of programs decides the result",
           "let each program write elements of its own, or use an atomic", name)


def report_gaps(m: Machine, allocation: Allocation) -> None:
    """Note elements of an output that nothing wrote, between the others, and that hold something.
    """
    found = None if allocation.touches is None or not allocation.touches.complete else \
        allocation.touches.gaps()
    if found is None:
        return
    between, op = found
    bits = allocation.view(np.dtype(f"u{allocation.dtype.itemsize}"))
    left = between[inside_of_views(m, allocation)[between] & (bits[between] != 0)]
    if len(left):
        first = int(left[0])
        value = allocation.view(allocation.dtype)[first]
        some = f"{len(left)} element{'' if len(left) == 1 else 's'}"
        m.note(op, f"nothing wrote {some} between those that this kernel wrote; the first is "
               f"{_named(m, op, allocation, first)[1]}, which holds {value}",
               "check strides, masks and the grid; or clear the output before")


def inside_of_views(m: Machine, allocation: Allocation) -> np.ndarray:
    """Which elements of an allocation an argument has, bool [elements]."""
    mark = np.zeros(allocation.elements, bool)
    size = allocation.dtype.itemsize
    for name in allocation.names:
        array = m.memory.arrays[name]
        start = (m.memory.address[name] - allocation.base) // size
        if array.size == 0 or any(s % size for s in array.strides):
            continue
        index = np.array(start)
        for extent, stride in zip(array.shape, array.strides, strict=True):
            index = index[..., None] + np.arange(extent) * (stride // size)
        mark[index.reshape(-1)] = True
    return mark
