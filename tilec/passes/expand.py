"""Expand a loop whose ops have stages: the generic software pipeliner.

In a loop of S stages, round r of the new loop runs an op of stage s for iteration r + S - 1 - s of
the old one: the last stage sets the pace, the others run ahead. The rounds before the first, in
which only earlier stages have something to do, are the prologue. There is no epilogue: what runs
ahead past the last iteration is pure, or a read that is masked off. A loop that is peeled has one:
its last round, in which nothing runs ahead, follows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilec.errors import ScheduleError
from tilec.ir import ops
from tilec.ir.core import Block, Builder, Op, Value
from tilec.ir.types import SCALARS, Tensor, Type, i1, i32, scalar_of, with_element
from tilec.passes.fold import constant

_READS = (ops.Load, ops.AsyncCopy, ops.Elect)
_PHASES = (ops.MbarrierWait, ops.MbarrierArrive)  # which must not run past the last iteration
_LOOPS = (ops.For, ops.While)


def floats(op: Op) -> bool:
    """Whether an op without a stage of its own runs in every stage that needs its result: it is
    pure, or reads a buffer, and ends for an iteration past the last, too."""
    return (op.pure or isinstance(op, ops.SharedLoad)) and op.stage < 0 and not _loops(op)


def _loops(op: Op) -> bool:
    """Whether it is a loop or contains one, which need not end past the last iteration."""
    return any(isinstance(x, _LOOPS) for x in op.walk())


def ahead_sources(loop: ops.For, values: Iterable[Value]) -> set[Op]:
    """The ops of the body that do not float and give `values`, by way of ops that do and of
    carried values."""
    work, seen = list(values), set[Value]()
    fixed: set[Op] = set()
    while work:
        value = work.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.owner is loop.body:
            if value.index:
                work.append(loop.body.terminator.operands[value.index - 1])
        elif value.op is not None and value.op.parent is loop.body:
            if floats(value.op):
                work += _reads(value.op)
            else:
                fixed.add(value.op)
    return fixed


@dataclass
class _Frame:
    """A stage in one round: its iteration is `ahead` after that of `index`.

    state: carried values at its start, by number. values: what is known of the body's values in
    it. runs: whether there is such an iteration.
    """

    stage: int
    index: Value
    ahead: int
    state: dict[int, Value] = field(default_factory=dict)
    values: dict[Value, Value] = field(default_factory=dict)
    runs: Value | None = None


class Expander:
    """Expands one loop.

    pending: how many groups of asynchronous copies may be under way when a round begins; None
    without copies. fenced: whether wgmma reads what is copied. readers: the stages in which a view
    of a buffer may be read. peel: the last round, in which only the last stage has something to do,
    follows the loop.
    """

    def __init__(self, loop: ops.For, peel: bool = False) -> None:
        self.loop, self.body, self.peel, self.hi = loop, loop.body, peel, loop.hi
        self.last = loop.num_stages - 1
        self.step = int(constant(loop.step) or 1)
        self.before = Builder(before=loop, loc=loop.loc)
        self.carried = len(loop.results)
        self.counters: dict[int, Value] = {}
        self.starts: dict[int, Value] = {}
        self.pending: int | None = None
        self.fenced = False
        self.readers: dict[Op, set[int]] = {}
        # The results of early ops in the rounds before, newest first.
        self.history: dict[Value, list[Value]] = {}

    def stage_of(self, op: Op) -> int:
        """The stage of an op that does not float."""
        return op.stage if 0 <= op.stage < self.last else self.last

    def counter(self, extent: int, start: Value | None = None) -> Value:
        """A carried value: the iteration's number modulo `extent`, from `start` or 0 on."""
        if extent not in self.counters:
            self.counters[extent] = carry(self.loop, start or number(self.before, 0, i32))
            self.starts[extent] = self.loop.operands[-1]
        return self.counters[extent]

    def run(self) -> ops.For | ops.If:
        """Expand the loop; no op has a stage any more. What it is a part of then: a loop that is
        peeled comes to stand in a branch taken if there is an iteration.

        Raises ScheduleError where an op cannot run in its stage, or comes before what it needs.
        """
        whole = _enter(self.loop) if self.peel else self.loop
        self.before = Builder(before=self.loop, loc=self.loop.loc)
        self.place = {op: (op.op_order, self.stage_of(op), i)
                      for i, op in enumerate(self.body) if not op.terminator}
        self.early = sorted((op for op in self.place if self.stage_of(op) < self.last),
                            key=self.place.__getitem__)
        self.late = {i for i, v in enumerate(self.body.terminator.operands)
                     if v.op in self.place and not floats(v.op) and
                     self.stage_of(v.op) == self.last} if self.peel else set()
        for op in self.early:
            phase = self.peel and op.stage == self.last - 1 and isinstance(op, _PHASES)
            read = isinstance(op, _READS) and "write" not in op.effects
            if not (op.pure or read or phase) or _loops(op):
                raise refuse(op, "has a stage before the last, where only loads and pure ops "
                             "without loops can run")
        states: list[dict[int, Value]] = [{} for _ in range(self.last)]
        first_read = min((min(stages) for stages in self.readers.values()), default=0)
        for tick in range(self.last):
            if tick >= first_read:
                self.wait(self.before)
            frames = [_Frame(s, self.loop.lo, tick - s, states[s]) for s in range(tick + 1)]
            # Copies first: nothing has used their buffers yet.
            for op in sorted(self.early, key=lambda op: not isinstance(op, ops.Elect)):
                if op.stage <= tick:
                    self.emit(op, frames[op.stage], self.before)
            self.advance(frames, self.before)
            if self.pending is not None:
                self.before.insert(ops.AsyncCommit())
            states[:len(frames)] = [frame.state for frame in frames]
        self.steady(states)
        if self.pending is not None:
            Builder(before=self.loop.next, loc=self.loop.loc).insert(ops.AsyncWait(pending=0))
        return whole

    def steady(self, states: list[dict[int, Value]]) -> None:
        """The body: early ops and those of the last stage, in the order of the schedule."""
        end, here = self.body.terminator, Builder(before=self.body.terminator, loc=self.loop.loc)
        frames = [_Frame(s, self.body.args[0], self.last - s,
                         {i: carry(self.loop, v) for i, v in sorted(state.items())})
                  for s, state in enumerate(states)]
        starts = [dict(frame.state) for frame in frames]
        past = {v: [carry(self.loop, x) for x in values] for v, values in self.history.items()}
        self.history = {v: list(args) for v, args in past.items()}
        self.wait(here)
        order = sorted(self.place, key=self.place.__getitem__)
        self.check_effects(order)
        copies = [op for op in self.early if isinstance(op, ops.AsyncCopy)]
        for op in order:
            if self.stage_of(op) < self.last:
                self.emit(op, frames[op.stage], here)
            else:
                op.move_before(end)
                op.stage, op.op_order = -1, 0
            if copies and op is copies[-1]:
                here.insert(ops.AsyncCommit())
            if self.early and op is self.early[-1]:
                self.advance(frames, here)
        nexts = {arg: frame.state[i] for start, frame in zip(starts, frames)
                 for i, arg in start.items()}
        for v, args in past.items():
            nexts.update(zip(args, self.history[v]))
        for extent, arg in self.counters.items():
            nexts[arg] = later(here, arg, 1, extent)
        end.set_operands([*end.operands, *(nexts[a] for a in self.body.args[1 + self.carried:])])
        for v, args in past.items():
            v.replace_by(args[-1])
        for op in self.early:
            op.drop()
        for op in self.early:
            op.erase()
        for op in reversed(self.place):
            # What only early ops needed must not read buffers that are no longer its iteration's.
            if op.parent is not None and floats(op) and not any(r.uses for r in op.results):
                op.erase()
        self.check_order()
        if self.peel:
            self.last_round(order)

    def last_round(self, order: list[Op]) -> None:
        """Take the last round out of the loop: what is left of the body follows it once more."""
        loop, end, index = self.loop, self.body.terminator, self.body.args[0]
        uses = [list(r.uses) for r in loop.results]
        own = [op for op in order if op.parent is self.body]
        here = Builder(before=loop)
        more = reaches(here, loop.lo, self.hi, self.step)
        step = number(here, self.step, index.type)
        loop.set_operand(1, here.emit(ops.Select(
            more, here.emit(ops.Sub(self.hi, step)), loop.lo)))
        values = dict(zip(self.body.args[1:], loop.results, strict=True))
        if any(index in _reads(op) for op in (*own, end)):
            now = carry(loop, loop.lo)
            values[index] = loop.results[-1]
            end.set_operands([*end.operands, Builder(before=end).emit(ops.Add(now, step))])
        after = Builder(before=loop.next, loc=loop.loc)
        for op in own:
            after.insert(op.clone(values))
        for i, found in enumerate(uses):
            arg, final = self.body.args[1 + i], values.get(end.operands[i], end.operands[i])
            for extent, counter in self.counters.items():
                if arg is counter and found:
                    final = later(after, loop.results[i], 1, extent)
            for user, at in found:
                user.set_operand(at, final)

    def wait(self, here: Builder) -> None:
        """The round's copies are there."""
        if self.pending is not None:
            here.insert(ops.AsyncWait(pending=self.pending))
            if self.fenced:
                here.insert(ops.FenceAsync())

    # -- one round of a stage -------------------------------------------------------------

    def emit(self, op: Op, frame: _Frame, builder: Builder) -> None:
        """Run an early op in its stage; a read only if there is such an iteration."""
        self.resolve(_reads(op), frame, builder)
        copy = self.copy(op, frame, builder)
        if isinstance(copy, ops.Load | ops.AsyncCopy):
            here = Builder(before=copy, loc=builder.loc)
            at = 2 if isinstance(copy, ops.AsyncCopy) else 1
            mask, t = self.runs(frame, here), copy.ptr.type
            if isinstance(t, Tensor):
                mask = here.emit(ops.Splat(mask, types=[with_element(t, i1)]))
            if copy.mask is not None:
                mask = here.emit(ops.And(copy.mask, mask))
            copy.set_operands([*copy.operands[:at], mask, *copy.operands[at + 1:]])
        elif isinstance(copy, ops.Elect):
            here = Builder(before=copy, loc=builder.loc)
            holds = self.runs(frame, here)
            if copy.predicate is not None:
                holds = here.emit(ops.And(copy.predicate, holds))
            copy.set_operands([holds])

    def copy(self, op: Op, frame: _Frame, builder: Builder) -> Op:
        """An op once more, for a frame. Past the last iteration a condition may be poison."""
        copy = builder.insert(op.clone(frame.values))
        copy.stage, copy.op_order = -1, 0  # it may come to stand in a loop around, which has others
        for x in copy.walk():
            if isinstance(x, ops.If) and not any(a.isolated for a in x.ancestors()) and \
                    not (self.peel and frame.stage == self.last - 1):
                runs = self.runs(frame, Builder(before=copy, loc=builder.loc))
                x.set_operand(0, Builder(before=x, loc=x.loc).emit(ops.And(x.cond, runs)))
        return copy

    def resolve(self, values: Iterable[Value], frame: _Frame, builder: Builder) -> None:
        """Make the body's `values` known in a frame; ops that float are repeated in it."""
        work, needed = list(values), set[Op]()
        while work:
            v = work.pop()
            if v in frame.values:
                continue
            if v.owner is self.body:
                frame.values[v] = self.argument(v, frame, builder)
            elif v.op is None or v.op.parent is not self.body:
                continue
            elif not floats(v.op):
                frame.values[v] = self.earlier(v, v.op, frame)
            elif v.op not in needed:
                needed.add(v.op)
                work += _reads(v.op)
        for op in sorted(needed, key=lambda op: self.place[op][-1]):
            if frame.stage not in self.readers.get(op, {frame.stage}):
                raise refuse(op, f"is not to be read in stage {frame.stage}")
            copy = self.copy(op, frame, builder)
            if isinstance(copy, ops.MemdescIndex) and copy.index is not op.operands[1]:
                copy.ahead = -1 if frame.index is self.loop.lo else frame.ahead

    def argument(self, arg: Value, frame: _Frame, builder: Builder) -> Value:
        """The loop's index, a counter or another carried value in a frame."""
        before = frame.index is self.loop.lo
        for extent, counter in self.counters.items():
            if arg is counter:
                return later(builder, self.starts[extent] if before else arg,
                             frame.ahead % extent, extent)
        if arg.index - 1 in self.late and frame.stage == self.last - 1:
            # What the last stage gives in this round; in the first one nothing has yet.
            return self.loop.init[arg.index - 1] if before else \
                self.body.terminator.operands[arg.index - 1]
        if arg.index and before:
            return frame.state.setdefault(arg.index - 1, self.loop.init[arg.index - 1])
        if arg.index:
            return frame.state[arg.index - 1]
        distance = frame.ahead * self.step
        return builder.emit(ops.Add(frame.index, number(builder, distance, arg.type))) \
            if distance else frame.index

    def earlier(self, value: Value, op: Op, frame: _Frame) -> Value:
        """The result of an op of an earlier stage, as it came out some rounds ago."""
        stage = self.stage_of(op)
        if stage == frame.stage < self.last:
            raise refuse(op, "op_order puts it after what needs it in its stage")
        if stage >= frame.stage:
            raise refuse(op, f"runs in stage {stage}, but stage {frame.stage} needs its result")
        return self.history[value][frame.stage - stage - 1]

    def advance(self, frames: list[_Frame], builder: Builder) -> None:
        """The round ends: what is carried, and what came out, moves on."""
        for frame in frames:
            nexts: dict[int, Value] = {}
            while left := [i for i in frame.state if i not in nexts]:
                value = self.body.terminator.operands[left[0]]
                self.resolve([value], frame, builder)
                nexts[left[0]] = frame.values.get(value, value)
            frame.state = nexts
        for op in self.early:
            for frame in (f for f in frames if f.stage == op.stage):
                for v in op.results:
                    seen = [frame.values[v], *self.history.get(v, ())]
                    self.history[v] = seen[:self.last - op.stage]

    def runs(self, frame: _Frame, builder: Builder) -> Value:
        """Whether a frame has an iteration, where its index is that of one or the lower bound."""
        if frame.runs is not None:
            return frame.runs
        index, hi, tests = frame.index, self.hi, []
        if index is self.loop.lo and not (self.peel and frame.ahead):
            tests.append(builder.emit(ops.Cmp(index, hi, predicate="lt")))
        if frame.ahead:
            tests.append(reaches(builder, index, hi, frame.ahead * self.step))
        frame.runs = tests[0] if len(tests) == 1 else builder.emit(ops.And(*tests))
        return frame.runs

    def check_effects(self, order: list[Op]) -> None:
        """Refuse an order in which ops of the last stage change places, of which one does more
        than read."""
        furthest: dict[bool, Op] = {}  # of ops so far that do so, or not, the last in the text
        for op in order:
            effects, place = op.effects, self.place[op][-1]
            if not effects or self.stage_of(op) < self.last or \
                    floats(op) and self.last not in reading_stages(op, self.last):
                continue
            more = not effects <= {"read", "read_shared"}
            for other_more, other in furthest.items():
                if (more or other_more) and self.place[other][-1] > place:
                    raise refuse(other, f"op_order puts it before the {op.name} at {op.loc}; "
                                     f"their effects would change places")
            if more not in furthest or self.place[furthest[more]][-1] < place:
                furthest[more] = op

    def check_order(self) -> None:
        """Refuse a schedule that puts an op before what it needs."""
        seen: set[Op] = set()
        for op in self.body:
            for v in _reads(op):
                if v.op is not None and v.op.parent is self.body and v.op not in seen:
                    raise refuse(op, f"op_order puts it before the {v.op.name} that it needs")
            seen.add(op)


def _enter(loop: ops.For) -> ops.If:
    """Put a loop with a positive step into a branch taken if it has an iteration."""
    then, other, following = Block(), Block(), loop.next
    cond = Builder(before=loop, loc=loop.loc).emit(ops.Cmp(loop.lo, loop.hi, predicate="lt"))
    uses = [(i, use) for i, r in enumerate(loop.results) for use in r.uses]
    Builder(other).insert(ops.Yield(loop.init))
    then.insert(loop.remove())
    Builder(then).insert(ops.Yield(loop.results))
    branch = Builder(before=following, loc=loop.loc).insert(ops.If(cond, then=then, orelse=other))
    assert isinstance(branch, ops.If)
    for i, (user, at) in uses:
        user.set_operand(at, branch.results[i])
    return branch


def reading_stages(load: Op, last: int) -> set[int]:
    """The stages in which a load's value is used."""
    found, work = set[int](), [load.result]
    while work:
        for user in work.pop().users:
            while user.parent is not load.parent:
                assert user.parent is not None and user.parent.parent_op is not None
                user = user.parent.parent_op
            if floats(user):
                work += user.results
            else:
                found.add(user.stage if 0 <= user.stage < last else last)
    return found or {last}


def refuse(op: Op, reason: str) -> ScheduleError:
    """The error, to be raised, that names an op which cannot run as the schedule says."""
    error = op.fail(reason)
    return ScheduleError(error.message, error.loc)


def carry(loop: ops.For, init: Value) -> Value:
    """A new carried value of a loop; what it yields is for the caller to append."""
    loop.set_operands([*loop.operands, init])
    loop.results.append(Value(init.type, loop, len(loop.results)))
    return loop.body.add_arg(init.type)


def _reads(op: Op) -> list[Value]:
    """The operands of an op and of those in its regions."""
    return [v for x in op.walk() for v in x.operands]


def number(builder: Builder, value: int, t: Type) -> Value:
    """A scalar constant."""
    return builder.emit(ops.Constant(value=value, types=[t]))


def reaches(builder: Builder, index: Value, hi: Value, distance: Value | int) -> Value:
    """Whether index + distance < hi, for index < hi and distance >= 0. Their differences may not
    fit a signed integer."""
    t = scalar_of(index.type)
    wide = SCALARS[f"u{t.bits}"]
    left = builder.emit(ops.Sub(hi, index))
    if t is not wide:
        left = builder.emit(ops.Bitcast(left, types=[wide]))
    if isinstance(distance, int):
        distance = number(builder, distance, wide)
    elif t is not wide:
        distance = builder.emit(ops.Bitcast(distance, types=[wide]))
    return builder.emit(ops.Cmp(left, distance, predicate="gt"))


def later(builder: Builder, counter: Value, distance: int, extent: int) -> Value:
    """A counter modulo `extent`, `distance` < extent iterations later."""
    if distance == 0:
        return counter
    if isinstance(counter.op, ops.Constant):
        return number(builder, (int(counter.op.value) + distance) % extent, i32)
    left = number(builder, extent - distance, i32)
    return builder.emit(ops.Select(
        builder.emit(ops.Cmp(counter, left, predicate="ge")),
        number(builder, 0, i32) if distance == 1 else builder.emit(ops.Sub(counter, left)),
        builder.emit(ops.Add(counter, number(builder, distance, i32)))))
