"""What the interpreter says without stopping a program: notes, once a kernel and place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from tilec.eval.dtypes import Array
from tilec.interp.blame import VERBS, pointer_name, where
from tilec.interp.machine import Machine
from tilec.interp.memory import Allocation
from tilec.interp.touches import ATOMIC, MANY, Meeting
from tilec.interp.views import Gaps, Sharing, Views, elements_of
from tilec.ir.core import Op
from tilec.ir.ops.hopper import TmaOp
from tilec.ir.origins import accessed
from tilec.ir.suspicions import idle_axes, repeated_loads


def _argument(m: Machine, op: Op) -> str:
    pointer = op.map if isinstance(op, TmaOp) else accessed(op)
    return "" if pointer is None else pointer_name(pointer, m.func)


def _named(m: Machine, op: Op, allocation: Allocation, element: int) -> tuple[str, str]:
    """An argument, and an element as the author counts: `element 5 of x`."""
    name = _argument(m, op)
    name = name if name in allocation.names else allocation.names[0]
    first = (m.memory.address[name] - allocation.first) // allocation.dtype.itemsize
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
    bits = allocation.core_view(np.dtype(f"u{allocation.dtype.itemsize}"))
    left = between[inside_of_views(m, allocation)[between] & (bits[between] != 0)]
    if len(left):
        first = int(left[0])
        value = allocation.core_view(allocation.dtype)[first]
        some = f"{len(left)} element{'' if len(left) == 1 else 's'}"
        m.note(op, f"nothing wrote {some} between those that this kernel wrote; the first is "
               f"{_named(m, op, allocation, first)[1]}, which holds {value}",
               "check strides, masks and the grid; or clear the output before")


def inside_of_views(m: Machine, allocation: Allocation) -> Array:
    """Which elements of an allocation an argument has, bool [elements]."""
    mark = np.zeros(allocation.elements, bool)
    for own in _elements(m, allocation).values():
        mark[own] = True
    return mark


def _elements(m: Machine, allocation: Allocation) -> dict[str, Array]:
    """The elements of an allocation that each argument has, of those whose strides are whole."""
    size, out = allocation.dtype.itemsize, {}
    for name in allocation.names:
        array = m.memory.arrays[name]
        start = m.memory.address[name] - allocation.first
        if array.size and array.itemsize == size and \
                not any(s % size for s in (start, *array.strides)):
            out[name] = elements_of(array, start // size, size)
    return out


def watch_views(m: Machine, allocation: Allocation, sharing: bool) -> None:
    """Watch how arguments are used whose views of an allocation have gaps, or if `sharing` share
    elements."""
    arrays = [m.memory.arrays[name] for name in allocation.names]
    several = len(arrays) > 1
    if not several and arrays[0].flags.forc:
        return
    elements = _elements(m, allocation)
    gaps = {name: Gaps(own) for name, own in elements.items()}
    gaps = {name: g for name, g in gaps.items() if g.between.any()}
    shared = Sharing(allocation.elements) if sharing and several else None
    if not gaps and shared is None:
        return
    def gap(op: Op, writes: bool, element: int) -> None:
        m.note(op, f"this {VERBS[writes]} {_named(m, op, allocation, element)[1]}, counted in "
               "memory, which lies between the elements of that view",
               "multiply indices by the strides of the array, or pass a contiguous one")

    def clash(op: Op, writes: bool, found: tuple[int, bool, Op, str]) -> None:
        element, wrote, other, name = found
        m.note(op, f"this {VERBS[writes]} {_named(m, op, allocation, element)[1]}, which "
               f"{where(other)} {VERBS[wrote]} as a part of {name}, from another lane: arguments "
               "that overlap are taken not to", "put a tl.debug_barrier() between the two, or pass "
               "arrays that do not overlap", tuple(sorted(allocation.names)))

    allocation.views = Views(gaps, shared, functools.cache(lambda op: _argument(m, op)), gap,
                             clash)


def report_grid(m: Machine, body: Sequence[Op]) -> None:
    """Note an axis of the grid that no program asks about."""
    for axis, op in idle_axes(body, m.extents):
        n = m.extents[axis]
        m.note(op, f"the grid has {n} programs along axis {axis}, and none asks for "
               f"tl.program_id({axis}): all {n} do the same",
               "check the axis of each program_id, and the grid")


def report_loops(m: Machine, body: Sequence[Op], constant: Callable[[Op], bool]) -> None:
    """Note a load that each round of a loop adds up anew. constant: whether the kernel writes
    nothing to what a load reads."""
    for load in filter(constant, repeated_loads(body)):
        m.note(load, "each round of the loop adds up what this load reads, from the same "
               "addresses each time", "advance the pointer in the loop, or add the counter")
