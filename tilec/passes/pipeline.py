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

_LOOPS = (ops.For, ops.While)


class Pipeline(Pass):
    """for i { x = load(p_i) ; use(x) } {num_stages = 3} -->
    copy(p_0, buf[0]) ; copy(p_1, buf[1])
    for i { wait ; copy(p_(i+2), buf[(i+2) % 3]) ; x = shared_load(buf[i % 3]) ; use(x) }
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            for loop in reversed([op for op in func.walk() if isinstance(op, ops.For)]):
                loads = [op for op in loop.body
                         if isinstance(op, ops.Load) and 0 <= op.stage < loop.num_stages - 1]
                if loads:
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


class _Expander:
    def __init__(self, loop: ops.For, loads: list[ops.Load]) -> None:
        self.loop = loop
        distances: dict[int, list[ops.Load]] = {}
        for load in loads:
            distances.setdefault(loop.num_stages - 1 - load.stage, []).append(load)
        self.groups = [_Group(d, of) for d, of in sorted(distances.items(), reverse=True)]
        self.step = int(constant(loop.step) or 1)
        self.before = Builder(before=loop, loc=loop.loc)

    def run(self) -> None:
        for group in self.groups:
            found = ahead_slice(self.loop, [v for x in group.loads for v in x.operands[:2]])
            if found is None:
                raise group.loads[0].fail("its address cannot be computed ahead, but has a stage")
            group.slice, group.carried = found[0], sorted(found[1])
            group.state = {i: self.loop.init[i] for i in group.carried}
            for load in group.loads:
                t = buffer_type(load, group.distance + 1)
                buffer = self.before.emit(ops.AllocShared(types=[t], loc=load.loc))
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
                    self.copies(self.before, group, ahead)
            self.before.insert(ops.AsyncCommit())

    def steady(self) -> None:
        body = self.loop.body
        # Everything new goes before the commit, which nothing removes, unlike the loads.
        commit = Builder(before=body.first, loc=self.loop.loc).insert(ops.AsyncCommit())
        top = Builder(before=commit, loc=self.loop.loc)
        top.insert(ops.AsyncWait(pending=self.groups[-1].distance - 1))
        yields: list[Value] = []
        for group in self.groups:
            slot = self.carry(self.number(self.before, 0, i32))
            group.state = {i: self.carry(v) for i, v in group.state.items()}
            last = self.number(top, group.distance, i32)
            zero, one = self.number(top, 0, i32), self.number(top, 1, i32)
            # The slot that the iteration before this one read is free: it is slot - 1.
            free = top.emit(ops.Select(top.emit(ops.Cmp(slot, zero, predicate="eq")), last,
                                       top.emit(ops.Sub(slot, one))))
            self.copies(top, group, group.distance, free)
            for load, buffer in zip(group.loads, group.buffers):
                self.replace(load, buffer, slot)
            yields.append(top.emit(ops.Select(top.emit(ops.Cmp(slot, last, predicate="eq")), zero,
                                              top.emit(ops.Add(slot, one)))))
            yields += group.state.values()
        end = body.terminator
        end.set_operands([*end.operands, *yields])

    def carry(self, init: Value) -> Value:
        """A new carried value of the loop; what it yields is for the caller to append."""
        loop = self.loop
        loop.set_operands([*loop.operands, init])
        loop.results.append(Value(init.type, loop, len(loop.results)))
        return loop.body.add_arg(init.type)

    def copies(self, builder: Builder, group: _Group, ahead: int, slot: Value | None = None
               ) -> None:
        """Start the copies of the iteration `ahead` later and move the state on to the next one's.

        slot: of the buffers. None: before the loop, from whose first iteration on `ahead` counts.
        """
        body, index = self.loop.body, self.loop.lo if slot is None else self.loop.body.args[0]
        later = builder.emit(ops.Add(index, self.number(builder, ahead * self.step, index.type)))
        runs = self.in_range(builder, index, ahead)
        to = self.number(builder, ahead, i32) if slot is None else slot
        values = {body.args[0]: later} | {body.args[i + 1]: v for i, v in group.state.items()}
        for op in group.slice:
            builder.insert(op.clone(values))
        for load, buffer in zip(group.loads, group.buffers):
            ptr = values.get(load.ptr, load.ptr)
            mask = builder.emit(ops.Splat(runs, types=[with_element(ptr.type, i1)]))
            if load.mask is not None:
                mask = builder.emit(ops.And(values.get(load.mask, load.mask), mask))
            where = builder.emit(ops.MemdescIndex(buffer, to, ahead=-1 if slot is None else ahead,
                                                   loc=load.loc))
            builder.insert(ops.AsyncCopy(ptr, where, mask, loc=load.loc))
        end = body.terminator
        for i in group.carried:
            value = end.operands[i]
            group.state[i] = values.get(value, value)

    def replace(self, load: ops.Load, buffer: Value, slot: Value) -> None:
        """Users of the load read the buffer; a dot's operand in the layout that the dot wants."""
        here = Builder(before=load, loc=load.loc)
        where = here.emit(ops.MemdescIndex(buffer, slot, ahead=0))
        for user, convert in dot_reads(load):
            view = where
            if isinstance(user, ops.Trans):
                view = Builder(before=user, loc=load.loc).emit(
                    ops.MemdescTrans(where, order=user.order))
            read = ops.SharedLoad(view, types=[convert.result.type])
            convert.replace_by([Builder(before=convert, loc=load.loc).emit(read)])
            if user is not convert:
                user.erase()
        if load.result.uses:
            load.result.replace_by(here.emit(ops.SharedLoad(where, types=[load.result.type])))
        load.erase()

    # -- scalars --------------------------------------------------------------------------

    def number(self, builder: Builder, value: int, t: Type) -> Value:
        return builder.emit(ops.Constant(value=value, types=[t]))

    def in_range(self, builder: Builder, index: Value, ahead: int) -> Value:
        """Whether the loop has an iteration `ahead` iterations after `index`, which is that of an
        iteration or the lower bound. The difference may not fit a signed integer."""
        hi, tests = self.loop.hi, []
        if index is self.loop.lo:
            tests.append(builder.emit(ops.Cmp(index, hi, predicate="lt")))
        if ahead:
            t = scalar_of(index.type)
            wide = t if not t.is_signed else SCALARS[f"u{t.bits}"]
            left = builder.emit(ops.Sub(hi, index))
            if wide is not t:
                left = builder.emit(ops.Bitcast(left, types=[wide]))
            tests.append(builder.emit(ops.Cmp(
                left, self.number(builder, ahead * self.step, wide), predicate="gt")))
        return tests[0] if len(tests) == 1 else builder.emit(ops.And(*tests))


def dot_reads(load: ops.Load) -> list[tuple[Op, ops.ConvertLayout]]:
    """Users of a load that lead to a dot's operand, directly or through a transpose, each with the
    conversion to the operand's layout."""
    found = []
    for user in load.result.users:
        convert: Op = user
        if isinstance(user, ops.Trans) and len(user.result.uses) == 1:
            convert = user.result.users[0]
        if isinstance(convert, ops.ConvertLayout) and \
                isinstance(layout_of(convert.result.type), DotOperand):
            found.append((user, convert))
    return found


def buffer_type(load: ops.Load, slots: int) -> MemDesc:
    """Buffers for a load's tile, one per slot, in the layout best for copies and dots."""
    t = load.result.type
    assert isinstance(t, Tensor) and isinstance(t.element, Scalar) and t.layout is not None
    order = t.layout.order if isinstance(t.layout, Blocked) else tuple(reversed(range(t.rank)))
    readers = [reader_layout(*read) for read in dot_reads(load)]
    layout = operand_layout(t.shape, t.element, order, tuple(readers or [t.layout]), t.layout)
    return MemDesc((slots, *t.shape), t.element, layout)


def reader_layout(user: Op, convert: ops.ConvertLayout) -> Layout:
    """In which layout of the loaded tile a dot reads it."""
    layout = layout_of(convert.result.type)
    assert layout is not None
    if not isinstance(user, ops.Trans):
        return layout
    back = tuple(user.order.index(d) for d in range(len(user.order)))
    return transpose(layout, back, linear_shape(shape_of(user.result.type)))


def ahead_slice(loop: ops.For, values: list[Value]) -> tuple[list[Op], set[int]] | None:
    """The ops of the loop's body that `values` are computed by, in order, and the indices of the
    carried values among their sources; None if one of them is not pure, or has a loop, which may
    not end for an iteration past the last."""
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
            if not value.op.pure or any(isinstance(x, _LOOPS) for x in value.op.walk()):
                return None
            needed.add(value.op)
            work += [v for op in value.op.walk() for v in op.operands]
    return [op for op in loop.body if op in needed], carried
