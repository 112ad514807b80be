"""Where values come from, and where they go: walks through ops, loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tilec.ir import ops
from tilec.ir.core import Func, Op, Value
from tilec.ir.ops.memory import MemoryOp
from tilec.ir.types import Pointer, Tensor

SAME_PLACES = (ops.Elementwise, ops.ConvertLayout)  # what keeps elements where they are


def sources(value: Value) -> Sequence[Value]:
    """Values that `value` is computed from, one step back, through regions and block arguments."""
    op = value.owner if isinstance(value.owner, Op) else value.owner.parent_op
    if not isinstance(op, ops.ControlFlow):
        return op.operands if op is not None else []
    found = [source for to, source in op.flow() if to is value]
    if isinstance(op, ops.If):
        return [op.cond, *found]
    return [op.lo, op.step] if isinstance(op, ops.For) and value is op.body.args[0] else found


def walk_back(start: Value, through: Callable[[Value], bool] = lambda _: True) -> Iterator[Value]:
    """`start` and what it is computed from, nearest first, each once: the values for which
    `through` holds, reached by such values alone."""
    queue, seen = [start], {start}
    while queue:
        value = queue.pop(0)
        if through(value):
            yield value
            new = [v for v in dict.fromkeys(sources(value)) if v not in seen]
            seen.update(new)
            queue += new


def uses_in_block(value: Value, through: tuple[type[Op], ...]) -> Iterator[tuple[Value, Op]]:
    """(value, user) for a value and what is made of it by such ops, in the block of its op."""
    work, seen = [value], {value}
    block = value.owner.parent if isinstance(value.owner, Op) else value.owner
    while work:
        v = work.pop()
        for user in v.users:
            if user.parent is block:
                yield v, user
                if isinstance(user, through):
                    work += [r for r in user.results if r not in seen]
                    seen.update(user.results)


def comes_from_dot(value: Value) -> bool:
    """Whether a tile is made, element by element, of a dot's result in the same block; some of it
    may be done in branches."""
    block = value.op.parent if value.op is not None else None

    def through(v: Value) -> bool:
        op = v.op
        while isinstance(op, (ops.Dot, ops.If, *SAME_PLACES)) and op.parent is not block:
            op = op.parent.parent_op if op.parent is not None else None
        return isinstance(op, (ops.Dot, ops.If, *SAME_PLACES))

    return any(isinstance(v.op, ops.Dot) for v in walk_back(value, through))


def accessed(op: Op) -> Value | None:
    """The pointers through which an op touches global memory; None where it does not do so."""
    if isinstance(op, ops.DescriptorOp):
        return op.base
    return op.ptr if isinstance(op, MemoryOp) else None


def pointer_roots(pointer: Value, func: Func) -> frozenset[Value] | None:
    """Parameters that a pointer, or a tile of them, may come from; None if it may come from
    anywhere."""
    roots: set[Value] = set()
    for v in walk_back(pointer, _is_pointer):
        if v.owner is func.body:
            roots.add(v)
        elif isinstance(v.op, MemoryOp) or not any(map(_is_pointer, sources(v))):
            return None
    return frozenset(roots)


def _is_pointer(value: Value) -> bool:
    t = value.type
    return isinstance(t.element if isinstance(t, Tensor) else t, Pointer)
