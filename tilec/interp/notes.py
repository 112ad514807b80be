"""What the interpreter says without stopping a program: notes, once a kernel and place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from tilec.eval.dtypes import Array
from tilec.interp.blame import pointer_name, where
from tilec.interp.machine import Machine
from tilec.interp.memory import Allocation
from tilec.interp.touches import ATOMIC, MANY, Meeting
from tilec.interp.views import Gaps, Sharing, Views, elements_of
from tilec.ir import ops
from tilec.ir.core import Op, Value
from tilec.ir.ops.hopper import TmaOp
from tilec.ir.origins import accessed, walk_back

_VERBS = ("reads", "writes")
_ATOMICS = (ops.AtomicRmw, ops.DescriptorAtomic)


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
        m.note(op, f"this {_VERBS[writes]} {_named(m, op, allocation, element)[1]}, counted in "
               "memory, which lies between the elements of that view",
               "multiply indices by the strides of the array, or pass a contiguous one")

    def clash(op: Op, writes: bool, found: tuple[int, bool, Op, str]) -> None:
        element, wrote, other, name = found
        m.note(op, f"this {_VERBS[writes]} {_named(m, op, allocation, element)[1]}, which "
               f"{where(other)} {_VERBS[wrote]} as a part of {name}, from another lane: arguments "
               "that overlap are taken not to", "put a tl.debug_barrier() between the two, or pass "
               "arrays that do not overlap", tuple(sorted(allocation.names)))

    allocation.views = Views(gaps, shared, functools.cache(lambda op: _argument(m, op)), gap,
                             clash)


# -- what the IR alone shows --------------------------------------------------------------------

def check_grid(m: Machine, body: Sequence[Op]) -> None:
    """Note an axis of the grid that no program asks about: all along it do the same."""
    stores = [op for op in body if isinstance(op, (ops.Store, ops.DescriptorStore, ops.TmaStore))]
    if not stores or any(isinstance(op, _ATOMICS) or isinstance(op, ops.TmaStore) and op.reduce
                         for op in body):
        return
    asked = {op.axis: op for op in body if isinstance(op, ops.ProgramId)}
    cluster = any(isinstance(op, ops.ClusterRank) for op in body)
    for axis, extent in enumerate(m.extents):
        if extent > 1 and axis not in asked and not (cluster and axis == 0):
            idle = [op for other, op in asked.items() if m.extents[other] == 1]
            m.note((idle or stores)[0], f"the grid has {extent} programs along axis {axis}, and "
                   f"none asks for tl.program_id({axis}): all {extent} do the same",
                   "check the axis of each program_id, and the grid")


def check_loops(m: Machine, body: Sequence[Op], constant: Callable[[Op], bool]) -> None:
    """Note a load that is added up in each round of a loop, from the same addresses each time.
    constant: whether the kernel writes nothing to what a load reads."""
    for loop in body:
        if not isinstance(loop, ops.For):
            continue
        for i, value in enumerate(loop.body.terminator.operands):
            carried = loop.body.args[i + 1]
            op = value.op
            if op is None or op.parent is not loop.body or carried not in op.operands:
                continue
            terms = [v for v in op.operands if v is not carried] if isinstance(
                op, (ops.Add, ops.Fma, ops.Dot)) else []
            if not isinstance(op, ops.Dot):
                terms = terms if all(_stands_still(v, loop) for v in terms) else []
            for load in (found for v in terms if _stands_still(v, loop)
                         for found in _loads(v, loop) if constant(found)):
                m.note(load, "each round of the loop adds up what this load reads, from the same "
                       "addresses each time", "advance the pointer in the loop, or add the counter")


def _computed_from(v: Value) -> Iterator[Value]:
    """What a value is computed from, of loads the addresses alone."""
    work, seen = [v], set[Value]()
    while work:
        value = work.pop()
        if value not in seen:
            seen.add(value)
            yield value
            op = value.op
            work += [] if op is None else [op.ptr] if isinstance(op, ops.Load) else op.operands


def _changes(values: Iterable[Value], loop: ops.For) -> bool:
    """Whether any of the values is another one in each round."""
    return any(v in loop.body.args or isinstance(v.op, ops.ControlFlow) and
               v.op.parent is loop.body for v in values)


def _stands_still(v: Value, loop: ops.For) -> bool:
    """Whether a value is loaded, and does not change from round to round but for masks that test
    an index which does."""
    loads = _loads(v, loop)
    return bool(loads) and not _changes(_computed_from(v), loop) and not any(
        _changes(walk_back(side), loop) for load in loads if load.mask is not None
        for test in walk_back(load.mask) if isinstance(test.op, ops.Cmp)
        for side in test.op.operands if not any(
            isinstance(w.op, ops.Arange) for w in walk_back(side)))


def _loads(v: Value, loop: ops.For) -> list[ops.Load]:
    return [w.op for w in _computed_from(v) if isinstance(w.op, ops.Load)
            and w.op.parent is loop.body]
