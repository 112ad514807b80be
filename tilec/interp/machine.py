"""Runs a function's ops for a group of programs at once, with numpy's axis 0 over the programs.

Ops that compute use the eval rules; `tilec.interp.rules` has the rest (memory, control, grid).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec import knobs
from tilec.errors import InterpreterError, note
from tilec.eval.dtypes import Array
from tilec.eval.rules import PLAIN, Numbers
from tilec.interp.asynchrony import Asynchrony
from tilec.interp.buffers import Copies, View
from tilec.interp.debugger import Debugger
from tilec.interp.frame import Data, Frame, union
from tilec.interp.memory import Memory
from tilec.interp.shadow import Shadow, use_scratch
from tilec.interp.waiting import Turns
from tilec.ir import ops
from tilec.ir.axis import AxisAnalysis
from tilec.ir.core import UNKNOWN, Block, Func, Op, Value
from tilec.ir.ops.base import ScratchOp
from tilec.ir.printer import print_op
from tilec.ir.rules import Rules
from tilec.ir.spelling import as_authors_say
from tilec.ir.types import scalar_of, shape_of

if TYPE_CHECKING:
    from tilec.interp.agents import Agent
    from tilec.interp.cluster import Cluster, Member
    from tilec.interp.numbers import Watch

interp_rules = Rules("interp")
Rule = Callable[["Machine", Frame, Any], Sequence[Data] | None]
Observer = Callable[[Op, Frame, Sequence[Data] | None], None]


class Machine:
    """State of one launch. `emit` gets printed lines; `buffers` holds shared memory, `copies` those
    under way; at the lowered level `shadow` watches over them. role: the warp role, or else the
    member of a cluster, that it runs, if it runs one. seed: of when copies land."""

    def __init__(self, func: Func, memory: Memory, scalars: dict[str, Any],
                 grid: tuple[int, ...], emit: Callable[[str], None],
                 lowered: bool = False, seed: int | None = 0, num_warps: int = 4, num_ctas: int = 1
                 ) -> None:
        self.func = func
        self.memory = memory
        self.scalars = scalars
        self.grid = grid
        self.extents = grid + (1,) * (3 - len(grid))
        self.emit = emit
        self.debugger: Debugger | None = None
        self.watch: Watch | None = None
        self.lowered = lowered
        self.turns: Turns | None = None
        self.shadow: Shadow | None = None
        self.seed = seed
        self.strict = knobs.strict
        self.num_warps, self.num_ctas = num_warps, num_ctas
        self.copies: Copies  # of the programs that run
        self.role: Agent | None = None
        self.cluster: Cluster | None = None  # if its programs run in view of each other
        self.member: Member | None = None
        self.maps: dict[Value, Array] = {}  # the tensor of each tensor map
        self.numbers: Numbers = PLAIN
        self.observe: Observer | None = None  # sees every op that has run
        self.notes = True  # whether what is likely a mistake is told
        self.buffers: dict[Value, View] = {}
        self._plans: dict[Block, list[tuple[Op, Rule, tuple[Value, ...]]]] = {}

    @functools.cached_property
    def axis(self) -> AxisAnalysis:
        """What the compiler knows of the values, for the hints that build on it."""
        return AxisAnalysis(self.func)

    def in_runs(self, pointer: Value) -> bool:
        """Whether the addresses of a tile are known to grow by one element along its last axis."""
        shape = shape_of(pointer.type)
        return bool(shape) and self.axis.get(pointer).contiguity[-1] >= shape[-1]

    def fork(self) -> Machine:
        """A machine for another program of the launch, with shared memory of its own."""
        other = copy.copy(self)
        other.buffers, other.shadow = {}, None
        return other

    # -- programs ---------------------------------------------------------------------------

    def coordinates(self, program: int) -> tuple[int, int, int]:
        """The program's index along each axis; axis 0 varies fastest."""
        x, y, _ = self.extents
        return program % x, program // x % y, program // (x * y)

    def program_name(self, program: int) -> str:
        """How messages name a program: `program (3, 0)`."""
        rank = max(2, len(self.grid))
        return f"program ({', '.join(map(str, self.coordinates(int(program))[:rank]))})"

    # -- running ----------------------------------------------------------------------------

    def run(self, programs: Array, arguments: Sequence[Data]) -> None:
        """Run the function for `programs` (linear ids) together."""
        frame = Frame(programs)
        frame.bind(self.func.args, arguments)
        self.shadow = Shadow(frame) if self.lowered else None
        self.copies = Copies(frame, self.seed)
        self.asynchrony = Asynchrony(frame)
        self.buffers.clear()
        if self.cluster is not None:
            self.role = self.member = self.cluster.join(self, int(programs[0]))
        self.run_block(self.func.body, frame)
        for use in self.asynchrony.stores.unfinished():
            raise self.error(use.op, "the program ends, and with it its shared memory, from which "
                             "this may still be copying", "end with a gpu.tma_store_wait")
        if self.member is not None:
            self.member.leave()

    def run_block(self, block: Block, frame: Frame) -> list[Data]:
        """Run a block whose arguments are bound; the data of its terminator's operands."""
        plan = self._plans.get(block)
        if plan is None:
            plan = self._plans[block] = self._plan(block)
        env = frame.env
        for op, rule, dead in plan:
            if self.debugger is not None:
                self.debugger.before(op, frame)
            out = rule(self, frame, op)
            if out is not None:
                for value, data in zip(op.results, out, strict=True):
                    env[value] = data
            for value in dead:
                env.pop(value, None)
        return [frame.get(v) for v in block.terminator.operands]

    def _plan(self, block: Block) -> list[tuple[Op, Rule, tuple[Value, ...]]]:
        """Each op with its rule and the values that nobody needs after it: freeing them early
        keeps the working set of a group of programs in the cache."""
        seen: set[Value] = set(block.terminator.operands)
        plan: list[tuple[Op, Rule, tuple[Value, ...]]] = []
        for op in reversed(block):
            if op.terminator:
                continue
            dead = {r for r in op.results if not r.uses}
            for inner in op.walk():
                for v in (*inner.operands, *(self.watch.needs(inner) if self.watch else ())):
                    own = v.owner is block or (v.op is not None and v.op.parent is block)
                    if own and v not in seen:
                        seen.add(v)
                        dead.add(v)
            keep = self.debugger is not None
            plan.append((op, self._rule(op), () if keep else tuple(dead)))
        return plan[::-1]

    def _rule(self, op: Op) -> Rule:
        rule = interp_rules.get(type(op))
        if rule is None:
            compute = self.numbers.rules.get(type(op))
            if compute is None:
                raise self.error(op, f"the interpreter has no rule for {op.name}")
            rule = _poison_rule(op, compute)
        if self.watch is not None:
            rule = self.watch.rule(op, rule)
        if self.lowered and isinstance(op, ScratchOp):
            rule = _scratch_rule(rule)
        return rule if self.observe is None else _observed_rule(rule, self.observe)

    def meet(self, frame: Frame) -> None:
        """All warps that run this wait for each other."""
        if self.shadow is not None:
            self.shadow.barrier(frame)
        self.asynchrony.barrier(frame, whole=True)
        if self.role is not None:
            self.role.barrier(whole=True)

    # -- errors -----------------------------------------------------------------------------

    def error(self, op: Op, message: str, advice: str = "") -> InterpreterError:
        """An error at the op's place in the source; text without locations shows the op."""
        if op.loc == UNKNOWN:
            text = print_op(op).strip().splitlines()[0]
            return InterpreterError(f"{message}\n    {text}", None, advice)
        return InterpreterError(message, op.loc, advice)

    def note(self, op: Op, message: str, advice: str, about: object = None) -> None:
        """Tell what is likely a mistake, once for each kind and place, or what it is about, in a
        kernel."""
        if not self.notes:
            return
        told = self.error(op, message, advice)
        if not self.lowered and op.loc != UNKNOWN:
            told.message, told.advice = as_authors_say(message), as_authors_say(advice)
        note((self.func.name, about or op.loc, advice), str(told))


def _observed_rule(rule: Rule, observe: Observer) -> Rule:
    def run(m: Machine, frame: Frame, op: Op) -> Sequence[Data] | None:
        out = rule(m, frame, op)
        observe(op, frame, out)
        return out
    return run


def _scratch_rule(rule: Rule) -> Rule:
    def run(m: Machine, frame: Frame, op: ScratchOp) -> Sequence[Data] | None:
        use_scratch(m, frame, op)
        return rule(m, frame, op)
    return run


# -- poison of ops that compute -----------------------------------------------------------------

def _full(data: Data) -> Array:
    """The poison at the array's shape, for rules that move elements."""
    array, poison = data
    poison = np.zeros((1,) * array.ndim, bool) if poison is None else poison
    return np.broadcast_to(poison, (len(poison), *array.shape[1:]))


def _poison_rule(op: Op, compute: Callable[..., Array]) -> Rule:
    """The rule of an op with an eval rule: its data by that, its poison by the op's kind."""
    if not op.operands and not isinstance(op, ops.InlineAsm):
        def constant(m: Machine, frame: Frame, op: Op) -> Sequence[Data]:
            return ((compute(op)[None], None),)
        return constant
    spread = _POISON.get(type(op)) or (_elementwise if isinstance(op, ops.Elementwise) else _move)

    def run(m: Machine, frame: Frame, op: Op) -> Sequence[Data]:
        data = [frame.get(v) for v in op.operands]
        array = compute(op, *(a for a, _ in data))
        if isinstance(array, tuple):  # of several results, each of all operands
            return [(a, union(*(p for _, p in data))) for a in array]
        if type(op) not in _MAKES_POISON and all(p is None for _, p in data):
            return ((array, None),)
        return ((array, spread(op, compute, data)),)
    return run


def _elementwise(op: Op, compute: Callable[..., Array], data: Sequence[Data]) -> Array | None:
    return union(*(p for _, p in data))


def _move(op: Op, compute: Callable[..., Array], data: Sequence[Data]) -> Array | None:
    return compute(op, *map(_full, data))


def _select(op: Op, compute: Callable[..., Array], data: Sequence[Data]) -> Array | None:
    (cond, cond_poison), (_, a), (_, b) = data
    zero = np.zeros((1,) * cond.ndim, bool)
    arm = np.where(cond, zero if a is None else a, zero if b is None else b)
    return _none_if_clear(union(cond_poison, arm))


def _divide(op: Op, compute: Callable[..., Array], data: Sequence[Data]) -> Array | None:
    poison = union(*(p for _, p in data))
    if scalar_of(op.operands[1].type).is_float:
        return poison
    return union(poison, _none_if_clear(np.asarray(data[1][0] == 0)))


def _logical(op: Op, compute: Callable[..., Array], data: Sequence[Data]) -> Array | None:
    """On i1, false decides an `and` and true an `or`, whatever the other side is."""
    poison = union(*(p for _, p in data))
    if poison is None or not scalar_of(op.operands[0].type).is_bool:
        return poison
    decisive = isinstance(op, ops.Or)
    for array, p in data:
        decided = (array == decisive) if p is None else (array == decisive) & ~p
        poison = poison & ~decided
    return _none_if_clear(poison)


def _dot(op: Op, compute: Callable[..., Array], data: Sequence[Data]) -> Array | None:
    a, b, c = map(_full, data)
    return a.any(axis=-1, keepdims=True) | b.any(axis=-2, keepdims=True) | c


def _gather(op: Op, compute: Callable[..., Array], data: Sequence[Data]) -> Array | None:
    poison, (index, bad), (array, _) = _full(data[0]), data[1], data[0]
    outside = (index < 0) | (index >= array.shape[op.attributes["axis"] - index.ndim + 1])
    moved = None if poison is None else compute(op, poison, index)
    return union(moved, bad, _none_if_clear(outside))


def _none_if_clear(poison: Array | None) -> Array | None:
    return poison if poison is not None and poison.any() else None


_POISON: dict[type, Callable[..., Array | None]] = {
    ops.Select: _select, ops.Div: _divide, ops.Rem: _divide, ops.And: _logical, ops.Or: _logical,
    ops.Dot: _dot, ops.Gather: _gather,
    ops.Histogram: lambda op, compute, data: np.asarray(data[0][1].any(-1, keepdims=True)),
}
_MAKES_POISON = (ops.Div, ops.Rem, ops.Gather)


def full_shape(data: Data, value: Value, count: int) -> Array:
    """The array with one row a program."""
    return np.broadcast_to(data[0], (count, *shape_of(value.type)))
