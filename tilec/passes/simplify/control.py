"""Patterns on structured control flow: known conditions and trip counts, dead and equal values."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Block, Builder, Value
from tilec.ir.rewriter import Values, pattern
from tilec.ir.types import Pointer, Scalar, Tensor, i1, with_element
from tilec.passes.fold import constant, fill, is_false, is_true, make_constant, same_bits
from tilec.passes.regions import drop_carried, drop_initial, drop_passed, drop_yielded, inline


def trip_count(op: ops.For) -> int | None:
    """How often a for runs, if its bounds are constants; of one that counts up alone, for others
    are the interpreter's to report."""
    lo, hi, step = (constant(v) for v in (op.lo, op.hi, op.step))
    if lo is None or hi is None or step is None or step <= 0:
        return None
    return max(0, -(-(int(hi) - int(lo)) // int(step)))


def _empty(block: Block) -> bool:
    return block.first is block.last


@pattern(ops.If)
def if_known(op: ops.If, builder: Builder) -> Values | None:
    """if(true) {A} {B} -> A"""
    if not (is_true(op.cond) or is_false(op.cond)):
        return None
    values = inline(op.then if is_true(op.cond) else op.orelse, [], op)
    if not op.results:
        op.erase()
    return values


@pattern(ops.If)
def if_same_results(op: ops.If, builder: Builder) -> Values | None:
    """if(c) {... yield(a)} {... yield(a)} -> a, for values and for constants"""
    changed = False
    pairs = zip(op.results, op.then.terminator.operands, op.orelse.terminator.operands)
    for result, a, b in pairs:
        x, y = constant(a), constant(b)
        if not result.uses or a.type != b.type:
            continue
        if a is b:
            result.replace_by(a)
        elif x is not None and y is not None and same_bits(x, y):
            result.replace_by(make_constant(builder, x, a.type))
        else:
            continue
        changed = True
    return () if changed else None


@pattern(ops.If)
def if_unused_results(op: ops.If, builder: Builder) -> Values | None:
    """%a, %b = if(c) ... where %b has no use -> %a = if(c) ..."""
    dead = {i for i, r in enumerate(op.results) if not r.uses}
    if not dead:
        return None
    drop_yielded(op, dead)
    return ()


@pattern(ops.If)
def if_to_select(op: ops.If, builder: Builder) -> Values | None:
    """if(c) {yield(a)} {yield(b)} -> select(c, a, b)"""
    arms = list(zip(op.then.terminator.operands, op.orelse.terminator.operands))
    if not (arms and _empty(op.then) and _empty(op.orelse)):
        return None
    if not all(isinstance(a.type, (Scalar, Pointer, Tensor)) for a, _ in arms):
        return None
    return [builder.emit(ops.Select(fill(op.cond, with_element(a.type, i1), builder), a, b,
                                    types=[r.type]))
            for (a, b), r in zip(arms, op.results)]


@pattern(ops.If)
def if_not(op: ops.If, builder: Builder) -> Values | None:
    """if(not(c)) {A} {B} -> if(c) {B} {A}"""
    inner = op.cond.op
    if not isinstance(inner, ops.Not):
        return None
    op.set_operands([inner.x])
    op.regions.reverse()
    return ()


@pattern(ops.For)
def for_known_trips(op: ops.For, builder: Builder) -> Values | None:
    """a for that never runs -> its initial values; one that runs once -> its body"""
    trips = trip_count(op)
    if trips is None or trips > 1:
        return None
    values = list(op.init) if trips == 0 else inline(op.body, [op.lo, *op.init], op)
    if not op.results:
        op.erase()
    return values


@pattern(ops.For)
def for_invariant(op: ops.For, builder: Builder) -> Values | None:
    """for(..., a) {^(i, x): ... yield(x)} -> x and the result are a; so too for yield(a)"""
    dead = set()
    nexts = op.body.terminator.operands
    for i, (arg, start, following) in enumerate(zip(op.body.args[1:], op.init, nexts)):
        if (following is arg or following is start) and arg.type == start.type:
            arg.replace_by(start)
            op.results[i].replace_by(start)
            dead.add(i)
    if not dead:
        return None
    drop_carried(op, dead)
    return ()


@pattern(ops.For)
def for_unused(op: ops.For, builder: Builder) -> Values | None:
    """drop a carried value that neither the body nor anyone behind the loop reads"""
    dead = {i for i, (arg, result) in enumerate(zip(op.body.args[1:], op.results))
            if not arg.uses and not result.uses}
    if not dead:
        return None
    drop_carried(op, dead)
    return ()


@pattern(ops.While)
def while_never(op: ops.While, builder: Builder) -> Values | None:
    """while {A; condition(false, x)} {B} -> A, x"""
    if not is_false(op.before.terminator.operands[0]):
        return None
    values = inline(op.before, op.init, op)[1:]
    if not op.results:
        op.erase()
    return values


@pattern(ops.While)
def while_invariant(op: ops.While, builder: Builder) -> Values | None:
    """a value that the first region passes on as it came and the second yields as it came is the
    initial one throughout"""
    changed = False
    passed = op.before.terminator.operands[1:]
    for arg, start, following in zip(op.before.args, op.init, op.after.terminator.operands):
        j = following.index if following.owner is op.after else -1
        same = following is start or (j >= 0 and passed[j] is arg)
        if same and arg.uses and arg.type == start.type:
            arg.replace_by(start)
            changed = True
    for arg, result, value in zip(op.after.args, op.results, op.before.terminator.operands[1:]):
        inside = value.owner is op.before or _inside(value, op)
        if not inside and (arg.uses or result.uses) and arg.type == result.type == value.type:
            arg.replace_by(value)
            result.replace_by(value)
            changed = True
    return () if changed else None


def _inside(value: Value, op: ops.While) -> bool:
    owner = value.op
    return owner is not None and any(a is op for a in owner.ancestors())


@pattern(ops.While)
def while_unused(op: ops.While, builder: Builder) -> Values | None:
    """drop what a while passes on or takes in and nobody reads"""
    passed = {i for i, (arg, result) in enumerate(zip(op.after.args, op.results))
              if not arg.uses and not result.uses}
    if passed:
        drop_passed(op, passed)
    initial = {i for i, arg in enumerate(op.before.args) if not arg.uses}
    if initial:
        drop_initial(op, initial)
    return () if passed or initial else None


PATTERNS = (if_known, if_not, if_same_results, if_unused_results, if_to_select, for_known_trips,
            for_invariant, for_unused, while_never, while_invariant, while_unused)
