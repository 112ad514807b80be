"""combine: merge neighbouring ops into one that does the work of both."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Builder, Module, Value
from tilec.ir.rewriter import Values, pattern, rewrite
from tilec.ir.types import f32, f64, i32, scalar_of
from tilec.passes.base import Pass
from tilec.passes.fold import between_is_free_of, constant, uniform


@pattern(ops.Add)
def add_to_dot(op: ops.Add, builder: Builder) -> Values | None:
    """dot(a, b, 0) + c -> dot(a, b, c)"""
    for product, addend in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        dot = product.op
        # In f16 the sum would no longer be rounded twice: carried sums are those of the three.
        if not isinstance(dot, ops.Dot) or scalar_of(dot.c.type) not in (f32, f64, i32):
            continue
        # From outside of a loop the dot would be done again in every turn.
        if constant(dot.c) != 0 or len(product.uses) != 1 or dot.parent is not op.parent:
            continue
        return [builder.emit(ops.Dot(dot.a, dot.b, addend, loc=dot.loc, types=[op.result.type],
                                     input_precision=dot.input_precision))]
    return None


@pattern(ops.AddPtr)
def uniform_offset_first(op: ops.AddPtr, builder: Builder) -> Values | None:
    """addptr(addptr(splat(p), x), splat(a)) -> addptr(addptr(splat(p), splat(a)), x), whose inner
    addptr is one scalar addition; pointers add modulo 2^64, so the order does not matter"""
    inner = op.ptr.op
    if not isinstance(inner, ops.AddPtr) or not uniform(op.offset) or uniform(inner.offset) \
            or not _uniform_pointer(inner.ptr):
        return None
    base = builder.emit(ops.AddPtr(inner.ptr, op.offset, types=[op.result.type]))
    return [builder.emit(ops.AddPtr(base, inner.offset, loc=inner.loc, types=[op.result.type]))]


def _uniform_pointer(value: Value) -> bool:
    """Whether all lanes of a tile of pointers are the same: a splat, moved by uniform offsets."""
    while isinstance(value.op, ops.AddPtr) and uniform(value.op.offset):
        value = value.op.ptr
    return uniform(value)


@pattern(ops.Select)
def select_of_load(op: ops.Select, builder: Builder) -> Values | None:
    """select(mask, load(p, mask), x) -> load(p, mask, x)"""
    load = op.a.op
    if not isinstance(load, ops.Load) or load.mask is not op.cond or load.volatile \
            or len(op.a.uses) != 1 or load.parent is not op.parent:
        return None
    # The load moves down to where x is known; it must not pass a store.
    if not between_is_free_of(load, op, frozenset({"write", "barrier", "write_shared"})):
        return None
    new = builder.emit(ops.Load(load.ptr, load.mask, op.b, loc=load.loc, types=[op.result.type],
                                **load.attributes))
    op.set_operand(1, new)
    load.erase()
    return [new]


PATTERNS = (add_to_dot, uniform_offset_first, select_of_load)


class Combine(Pass):
    """Add into a dot's accumulator, put uniform offsets first, give loads their `other`.

        %0 = tile.dot(%a, %b, %zero) : ...          %1 = tile.dot(%a, %b, %c) : ...
        %1 = tile.add(%0, %c) : ...           ->
        %2 = tile.load(%p, %m) : ...                %3 = tile.load(%p, %m, %x) : ...
        %3 = tile.select(%m, %2, %x) : ...
    """

    reorders = True

    def run(self, module: Module) -> None:
        rewrite(module, PATTERNS)
