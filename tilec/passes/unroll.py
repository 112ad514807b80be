"""unroll: copy the body of loops that ask for it by their `unroll` attribute."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Block, Builder, Module, Value
from tilec.ir.types import Scalar, u8, u16, u32, u64
from tilec.passes.base import Pass
from tilec.passes.fold import constant, make_constant
from tilec.passes.simplify.control import trip_count

_UNSIGNED = {t.bits: t for t in (u8, u16, u32, u64)}


class Unroll(Pass):
    """Unroll `scf.for` with {unroll = n}: wholly if it runs at most n times (a constant), else n
    bodies a turn and a loop for what remains. The step must be a constant.

        scf.for(%lo, %hi, %one) {unroll = 2}         %mid = ... : i32
        { ^(%i: i32): A(%i) }                  ->    scf.for(%lo, %mid, %two) { ^(%i: i32):
                                                       A(%i) A(%i + 1) }
                                                     scf.for(%mid, %hi, %one) { ^(%i: i32): A(%i) }
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            for op in reversed(list(func.walk())):
                if isinstance(op, ops.For) and op.unroll > 0:
                    _unroll(op)


def _unroll(op: ops.For) -> None:
    factor, trips = op.unroll, trip_count(op)
    op.unroll = 0
    if trips is not None and trips <= factor:
        _fully(op, trips)
    elif factor > 1:
        _by_factor(op, factor, trips)


def _copy(body: Block, iv: Value, carried: list[Value], builder: Builder) -> list[Value]:
    """Insert the ops of a loop body for given arguments; the values that it yields."""
    values = dict(zip(body.args, [iv, *carried], strict=True))
    for op in body:
        if op.terminator:
            return [values.get(v, v) for v in op.operands]
        builder.insert(op.clone(values))
    return []


def _fully(op: ops.For, trips: int) -> None:
    builder = Builder(before=op, loc=op.loc)
    lo, step = constant(op.lo), constant(op.step)
    assert lo is not None and step is not None
    carried = list(op.init)
    for i in range(trips):
        iv = make_constant(builder, int(lo) + i * int(step), op.lo.type)
        carried = _copy(op.body, iv, carried, builder)
    op.replace_by(carried)


def _by_factor(op: ops.For, factor: int, trips: int | None) -> None:
    t = op.lo.type
    assert isinstance(t, Scalar)
    step = constant(op.step)
    if step is None or step <= 0 or int(step) * factor >= 1 << (t.bits - 1):
        return
    builder = Builder(before=op, loc=op.loc)
    middle = _middle(op, int(step), factor, trips, builder)
    body = Block([a.type for a in op.body.args], [a.name for a in op.body.args])
    inside = Builder(body, loc=op.loc)
    carried = body.args[1:]
    for i in range(factor):
        iv = body.args[0]
        if i:
            iv = inside.emit(ops.Add(iv, make_constant(inside, i * int(step), t)))
        carried = _copy(op.body, iv, carried, inside)
    inside.insert(ops.Yield(carried))
    wide = make_constant(builder, int(step) * factor, t)
    main = builder.insert(ops.For(op.lo, middle, wide, op.init, body=body, **op.attributes))
    if middle is op.hi:
        op.replace_by(main.results)
    else:
        op.set_operands([middle, op.hi, op.step, *main.results])


def _middle(op: ops.For, step: int, factor: int, trips: int | None, builder: Builder) -> Value:
    """Where the unrolled loop ends: behind the last whole group of `factor` turns."""
    t = op.lo.type
    assert isinstance(t, Scalar)
    if trips is not None:
        if trips % factor == 0:
            return op.hi
        lo = constant(op.lo)
        assert lo is not None
        return make_constant(builder, int(lo) + trips // factor * factor * step, t)
    # hi - lo may overflow a signed type, but as an unsigned number it is right.
    unsigned = _UNSIGNED[t.bits]

    def number(n: int) -> Value:
        return make_constant(builder, n, unsigned)

    def cast(v: Value, to: Scalar) -> Value:
        return v if v.type == to else builder.emit(ops.Cast(v, types=[to]))

    start, end = cast(op.lo, unsigned), cast(op.hi, unsigned)
    runs = builder.emit(ops.Cmp(op.lo, op.hi, predicate="lt"))
    span = builder.emit(ops.Select(runs, builder.emit(ops.Sub(end, start)), number(0)))
    # Rounded down, so that nothing overflows; with a step above 1 a group may be left for the rest.
    whole = builder.emit(ops.Div(span, number(step * factor)))
    offset = builder.emit(ops.Mul(whole, number(step * factor)))
    return cast(builder.emit(ops.Add(start, offset)), t)
