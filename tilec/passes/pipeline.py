"""Carry out a schedule: loads become asynchronous copies into shared memory that run ahead.

One expander makes the prologue (the first copies), the steady state (wait for this iteration's
data, start a later iteration's copies, compute) and the epilogue (nothing but a wait: copies past
the last iteration are masked off). Whatever a copy's address needs is computed a second time,
running ahead; the rest of the loop is left as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir import ops
from tilec.ir.buffers import operand_layout
from tilec.ir.core import Builder, Module, Op, Value
from tilec.ir.layouts import Blocked, DotOperand, Layout, transpose
from tilec.ir.types import (
    SCALARS,
    MemDesc,
    Scalar,
    Tensor,
    Type,
    i1,
    i32,
    layout_of,
    linear_shape,
    scalar_of,
    shape_of,
    with_element,
)
from tilec.passes.base import Pass
from tilec.passes.fold import constant


class Pipeline(Pass):
    """for i { x = load(p_i) ; use(x) } {num_stages = 3} -->
    copy(p_0, buf[0]) ; copy(p_1, buf[1])
    for i { wait ; copy(p_(i+2), buf[(i+2) % 3]) ; x = shared_load(buf[i % 3]) ; use(x) }
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            for loop in reversed([op for op in func.walk() if isinstance(op, ops.For)]):
                loads = [op for op in loop.body if isinstance(op, ops.Load) and op.stage >= 0]
                if loop.num_stages > 1 and loads:
                    _Expander(loop, loads).run()
                loop.num_stages = 0


@dataclass
class _Group:
    """Loads that run equally far ahead, with what their addresses are computed by.

    distance: iterations ahead; there are distance + 1 buffers of each. slice, carried: see
    ahead_slice. buffers: one per load. state: the carried values, so far ahead.
    """

    distance: int
    loads: list[ops.Load]
    slice: list[Op] = field(default_factory=list)
    carried: list[int] = field(default_factory=list)
    buffers: list[Value] = field(default_factory=list)
    state: dict[int, Value] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        return self.distance + 1


class _Expander:
    def __init__(self, loop: ops.For, loads: list[ops.Load]) -> None:
        self.loop = loop
        distances: dict[int, list[ops.Load]] = {}
        for load in loads:
            distances.setdefault(loop.num_stages - 1 - load.stage, []).append(load)
        self.groups = [_Group(d, of) for d, of in sorted(distances.items(), reverse=True) if d > 0]
        self.step = int(constant(loop.step) or 1)
        self.before = Builder(before=loop, loc=loop.loc)

    def run(self) -> None:
        for group in self.groups:
            found = ahead_slice(self.loop, [v for x in group.loads for v in x.operands[:2]])
            assert found is not None, "the schedule names a load whose address cannot run ahead"
            group.slice, group.carried = found[0], sorted(found[1])
            group.state = {i: self.loop.init[i] for i in group.carried}
            for load in group.loads:
                buffer = self.before.emit(ops.AllocShared(types=[buffer_type(load, group.slots)],
                                                          loc=load.loc))
                buffer.name = load.result.name
                group.buffers.append(buffer)
        self.prologue()
        self.steady()
        after = Builder(before=self.loop.next, loc=self.loop.loc)
        after.insert(ops.AsyncWait(pending=0))

    def prologue(self) -> None:
        """Start the copies of the first iterations, the longest distance first."""
        furthest = self.groups[0].distance
        for tick in range(furthest):
            for group in self.groups:
                ahead = tick - (furthest - group.distance)
                if ahead >= 0:
                    index = self.iteration(self.before, self.loop.lo, ahead)
                    runs = self.in_range(self.before, self.loop.lo, ahead)
                    self.copies(self.before, group, index, runs, group.state,
                                self.number(self.before, ahead, i32), -1)
            self.before.insert(ops.AsyncCommit())

    def steady(self) -> None:
        loop, body = self.loop, self.loop.body
        slots = {g.distance: self.carry(self.number(self.before, 0, i32)) for g in self.groups}
        ahead = {g.distance: {i: self.carry(v) for i, v in g.state.items()} for g in self.groups}
        # Everything new goes before the commit, which nothing removes, unlike the loads.
        commit = Builder(before=body.first, loc=loop.loc).insert(ops.AsyncCommit())
        top = Builder(before=commit, loc=loop.loc)
        top.insert(ops.AsyncWait(pending=self.groups[-1].distance - 1))
        nexts: list[Value] = []
        carried_on: list[Value] = []
        for group in self.groups:
            slot, last = slots[group.distance], self.number(top, group.distance, i32)
            zero, one = self.number(top, 0, i32), self.number(top, 1, i32)
            # The slot that the iteration before this one read is free: it is slot - 1.
            free = top.emit(ops.Select(top.emit(ops.Cmp(slot, zero, predicate="eq")), last,
                                       top.emit(ops.Sub(slot, one))))
            state = ahead[group.distance]
            index = self.iteration(top, body.args[0], group.distance)
            runs = self.in_range(top, body.args[0], group.distance)
            self.copies(top, group, index, runs, state, free, group.distance)
            carried_on += [state[i] for i in group.carried]
            for load, buffer in zip(group.loads, group.buffers):
                self.replace(load, buffer, slot)
            nexts.append(top.emit(ops.Select(top.emit(ops.Cmp(slot, last, predicate="eq")), zero,
                                             top.emit(ops.Add(slot, one)))))
        end = body.terminator
        end.set_operands([*end.operands, *nexts, *carried_on])

    def carry(self, init: Value) -> Value:
        """A new carried value of the loop; what it yields is for the caller to append."""
        loop = self.loop
        loop.set_operands([*loop.operands, init])
        loop.results.append(Value(init.type, loop, len(loop.results)))
        return loop.body.add_arg(init.type)

    def copies(self, builder: Builder, group: _Group, index: Value, runs: Value,
               state: dict[int, Value], slot: Value, ahead: int) -> None:
        """Start the copies of one iteration and move `state` on to the next one's."""
        body = self.loop.body
        values = {body.args[0]: index} | {body.args[i + 1]: v for i, v in state.items()}
        for op in group.slice:
            builder.insert(op.clone(values))
        for load, buffer in zip(group.loads, group.buffers):
            ptr = values.get(load.ptr, load.ptr)
            mask = builder.emit(ops.Splat(runs, types=[with_element(ptr.type, i1)]))
            if load.mask is not None:
                mask = builder.emit(ops.And(values.get(load.mask, load.mask), mask))
            where = builder.emit(ops.MemdescIndex(buffer, slot, ahead=ahead, loc=load.loc))
            builder.insert(ops.AsyncCopy(ptr, where, mask, loc=load.loc))
        end = body.terminator
        for i in group.carried:
            value = end.operands[i]
            state[i] = values.get(value, value)

    def replace(self, load: ops.Load, buffer: Value, slot: Value) -> None:
        """Users of the load read the buffer; a dot's operand in the layout that the dot wants."""
        where = Builder(before=load, loc=load.loc).emit(ops.MemdescIndex(buffer, slot, ahead=0))
        for convert in [u for u in load.result.users if operand_layout_of(u) is not None]:
            view, last = where, convert
            if isinstance(convert, ops.Trans):
                view = Builder(before=convert, loc=load.loc).emit(
                    ops.MemdescTrans(where, order=convert.order))
                last = convert.result.users[0]
            read = ops.SharedLoad(view, types=[last.results[0].type], loc=load.loc)
            assert last.parent is not None
            last.parent.insert(read, last)
            last.replace_by(read.results)
            if last is not convert:
                convert.erase()
        if load.result.uses:
            read = ops.SharedLoad(where, types=[load.result.type], loc=load.loc)
            load.parent.insert(read, load)  # type: ignore[union-attr]
            load.result.replace_by(read.result)
        load.erase()

    # -- scalars --------------------------------------------------------------------------

    def number(self, builder: Builder, value: int, t: Type) -> Value:
        return builder.emit(ops.Constant(value=value, types=[t]))

    def iteration(self, builder: Builder, index: Value, ahead: int) -> Value:
        """The loop's index, `ahead` iterations later."""
        return builder.emit(ops.Add(index, self.number(builder, ahead * self.step, index.type)))

    def in_range(self, builder: Builder, index: Value, ahead: int) -> Value:
        """Whether the loop has an iteration `ahead` iterations after `index`, which is that of an
        iteration or the lower bound. The difference may not fit a signed integer."""
        hi = self.loop.hi
        starts = None if index is self.loop.body.args[0] else \
            builder.emit(ops.Cmp(index, hi, predicate="lt"))
        if not ahead:
            assert starts is not None
            return starts
        t = scalar_of(index.type)
        wide = t if not t.is_signed else SCALARS[f"u{t.bits}"]
        left = builder.emit(ops.Sub(hi, index))
        if wide is not t:
            left = builder.emit(ops.Bitcast(left, types=[wide]))
        more = builder.emit(ops.Cmp(left, self.number(builder, ahead * self.step, wide),
                                    predicate="gt"))
        return more if starts is None else builder.emit(ops.And(starts, more))


def operand_layout_of(user: Op) -> DotOperand | None:
    """The dot operand layout that a user of a load leads to, directly or through a transpose."""
    if isinstance(user, ops.Trans) and len(user.result.uses) == 1:
        user = user.result.users[0]
    layout = layout_of(user.results[0].type) if isinstance(user, ops.ConvertLayout) else None
    return layout if isinstance(layout, DotOperand) else None


def buffer_type(load: ops.Load, slots: int) -> MemDesc:
    """Buffers for a load's tile, one per slot, in the layout best for copies and dots."""
    t = load.result.type
    assert isinstance(t, Tensor) and isinstance(t.element, Scalar) and t.layout is not None
    order = t.layout.order if isinstance(t.layout, Blocked) else tuple(reversed(range(t.rank)))
    readers = [reader_layout(u) for u in load.result.users if operand_layout_of(u) is not None]
    layout = operand_layout(t.shape, t.element, order, tuple(readers or [t.layout]), t.layout)
    return MemDesc((slots, *t.shape), t.element, layout)


def reader_layout(user: Op) -> Layout:
    """In which layout of the loaded tile a dot reads it."""
    layout = operand_layout_of(user)
    assert layout is not None
    if not isinstance(user, ops.Trans):
        return layout
    back = tuple(user.order.index(d) for d in range(len(user.order)))
    return transpose(layout, back, linear_shape(shape_of(user.result.type)))


def ahead_slice(loop: ops.For, values: list[Value]) -> tuple[list[Op], set[int]] | None:
    """The ops of the loop's body that `values` are computed by, in order, and the indices of the
    carried values among their sources; None if one of them is not pure."""
    needed: set[Op] = set()
    carried: set[int] = set()
    work = list(values)
    end = loop.body.terminator
    while work:
        value = work.pop()
        if value.owner is loop.body:
            if value.index and value.index - 1 not in carried:
                carried.add(value.index - 1)
                work.append(end.operands[value.index - 1])
        elif value.op is not None and value.op.parent is loop.body and value.op not in needed:
            if not value.op.pure:
                return None
            needed.add(value.op)
            work += [v for op in value.op.walk() for v in op.operands]
    return [op for op in loop.body if op in needed], carried
