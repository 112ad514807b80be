"""What is likely a mistake, or may lose numbers, by the IR alone: axes of the grid that nobody asks
about, loads that a loop repeats, sums in 16 bits, padding that a reduction takes in. Whoever runs a
kernel watches these places and tells their authors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tilec.ir import ops
from tilec.ir.core import Block, Op, Value
from tilec.ir.ops.base import Rearrange
from tilec.ir.origins import walk_back
from tilec.ir.types import scalar_of, shape_of

_ATOMICS = (ops.Atomic, ops.DescriptorAtomic)
_STORES = (ops.Store, ops.DescriptorStore, ops.TmaStore)
_SUM_PLACES: dict[type[Op], Sequence[list[int]]] = {  # where an op may have the sum so far
    ops.Add: ([0], [1]), ops.Sub: ([0],), ops.Fma: ([2],)}
_STAYS = (ops.Elementwise, Rearrange, ops.ConvertLayout, ops.Reduce)


# -- the grid and loops -------------------------------------------------------------------------

def idle_axes(body: Sequence[Op], extents: Sequence[int]) -> Iterator[tuple[int, Op]]:
    """The axes of a grid that no op in `body` asks about, so that all programs along one do the
    same, each with an op to name: a program_id of an axis that has one program, or a store."""
    stores = [op for op in body if isinstance(op, _STORES)]
    if not stores or any(isinstance(op, _ATOMICS) or isinstance(op, ops.TmaStore) and op.reduce
                         for op in body):
        return
    asked = {op.axis: op for op in body if isinstance(op, ops.ProgramId)}
    cluster = any(isinstance(op, ops.ClusterRank) for op in body)
    for axis, extent in enumerate(extents):
        if extent > 1 and axis not in asked and not (cluster and axis == 0):
            yield axis, next((op for other, op in asked.items() if extents[other] == 1), stores[0])


def repeated_loads(body: Sequence[Op]) -> Iterator[ops.Load]:
    """The loads that a loop adds up in each round, from the same addresses each time."""
    for loop in body:
        if not isinstance(loop, ops.For):
            continue
        for carried, value in zip(loop.body.args[1:], loop.body.terminator.operands, strict=True):
            op = value.op
            if not isinstance(op, (ops.Add, ops.Fma, ops.Dot)) or op.parent is not loop.body or \
                    carried not in op.operands:
                continue
            terms = [v for v in op.operands if v is not carried]
            still = [v for v in terms if _stands_still(v, loop)]
            if isinstance(op, ops.Dot) or still == terms:
                yield from (load for v in still for load in _loads(v, loop))


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


# -- numbers ------------------------------------------------------------------------------------

def reduced_operand(op: Op) -> tuple[Value, Op] | None:
    """An operand that is computed from a reduction, the last of them, and that."""
    for operand in reversed(op.operands):
        for v in walk_back(operand, lambda v: isinstance(v.op, _STAYS)):
            if isinstance(v.op, ops.Reduce):
                return operand, v.op
    return None


def padded_load(op: ops.Reduce) -> tuple[ops.Load, Value] | None:
    """A load that a sum or a maximum adds up, element by element, and the mask of that one and all
    others, which have an `other`; None if anything else enters that differs along its axis."""
    combine, *rest = op.body
    if len(op.inputs) != 1 or not isinstance(combine, (ops.Add, ops.Maximum)) or len(rest) != 1:
        return None
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
            return None
    masks = {load.mask for load in loads}
    mask = masks.pop() if len(masks) == 1 else None
    return None if mask is None else (loads[0], mask)


def _is_uniform(v: Value, axis: int) -> bool:
    """Whether a tile is the same all along an axis."""
    if isinstance(v.op, ops.Broadcast):
        return shape_of(v.op.operands[0].type)[axis] == 1
    return isinstance(v.op, (ops.Splat, ops.Constant)) or not shape_of(v.type)


def summed(op: Op) -> Value | None:
    """The value of 16 bits that a loop carries and this op adds a term to, or a product, or
    subtracts one from."""
    loop = op.parent.parent_op if isinstance(op.parent, Block) else None
    places = _SUM_PLACES.get(type(op))
    if places is None or not isinstance(loop, ops.For):
        return None
    t, ends = scalar_of(op.results[0].type), list(loop.body.terminator.operands)
    if not t.is_float or t.bytes != 2 or op.results[0] not in ends:
        return None
    carried = loop.body.args[1 + ends.index(op.results[0])]
    return carried if [i for i, v in enumerate(op.operands) if v is carried] in places else None


def implicit_cast(op: Op) -> ops.Cast | None:
    """The cast to the pointee's type that a store has made itself."""
    cast = op.value.op if isinstance(op, ops.Store) else None
    return cast if isinstance(cast, ops.Cast) and cast.loc == op.loc and op.loc.line else None


def is_update(op: ops.Store) -> bool:
    """Whether it stores what is computed from a load of the same places."""
    found = [v.op for v in walk_back(op.value, lambda v: isinstance(
        v.op, (ops.Elementwise, ops.ConvertLayout, ops.Load)))]
    return any(isinstance(o, (ops.Add, ops.Sub, ops.Fma, ops.Mul)) for o in found) and \
        any(isinstance(o, ops.Load) and o.ptr is op.ptr for o in found)
