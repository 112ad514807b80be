"""Axis analysis: what is known of a value along each dimension of its tile.

Coalescing and vectorised access rest on it. Integers wrap, so whatever is said of them holds of
their bits: rules speak of integers that do not, and `_held` says what is left of that in a type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import gcd

from tilec.ir import ops
from tilec.ir.core import Block, Func, Op, Value
from tilec.ir.intervals import Interval
from tilec.ir.rules import Rules
from tilec.ir.types import Pointer, Scalar, Tensor, Type, element_of, pointee_of, shape_of

Ints = tuple[int, ...]
CAP = 1 << 30  # the divisor of zero, and of anything divisible by more
GRID = (1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1  # the most programs along each axis


@dataclass(frozen=True)
class AxisInfo:
    """Per dimension (scalars count as one dimension of extent 1):

    contiguity: the tile splits into aligned runs of this length in which values grow by one (for
    pointers, by one element), but where an integer on the way to them wrapped, by one modulo the
    numbers of its type; of these a run has at most half. divisibility: a power of two that divides
    the first value of every such run (for pointers, in bytes). constancy: aligned runs of this
    length hold one value. range: of all elements, if they are integers. unit: bytes from one
    element of a pointer to the next; else 1.
    """

    contiguity: Ints
    divisibility: Ints
    constancy: Ints
    range: Interval | None = None
    unit: int = 1

    def group(self, dim: int) -> int:
        """Aligned runs of this length grow by one whatever wraps, and begin at multiples of it (of
        so many elements' bytes): a type's numbers end between two of them."""
        return gcd(self.contiguity[dim], max(1, self.divisibility[dim] // self.unit))

    def divisor(self, dim: int, step: int) -> int:
        """What divides the elements at multiples of `step` along `dim`."""
        run, div = self.contiguity[dim], self.divisibility[dim]
        return div if step % run == 0 else gcd(div, gcd(step, run) * self.unit)

    @property
    def all_divisor(self) -> int:
        """What divides every element."""
        return max(self.divisor(d, 1) for d in range(len(self.contiguity)))

    @property
    def constant(self) -> int | None:
        """The integer that all elements are, if that is known."""
        return self.range.low if self.range and self.range.low == self.range.high else None

    def within(self, low: int, high: int | None = None) -> bool:
        """Whether all elements are integers that are known to lie from `low` to `high`."""
        return self.range is not None and low <= self.range.low and \
            (high is None or self.range.high <= high)


def low_bit(n: int) -> int:
    """The largest power of two that divides n, capped."""
    return min(n & -n, CAP) if n else CAP


@cache
def unknown(rank: int) -> AxisInfo:
    """Nothing is known."""
    ones = (1,) * max(1, rank)
    return AxisInfo(ones, ones, ones)


def _uniform(shape: Ints, divisor: int, numbers: Interval | None) -> AxisInfo:
    """All elements hold one value."""
    shape = shape or (1,)
    return AxisInfo((1,) * len(shape), (divisor,) * len(shape), shape, numbers)


def _held(info: AxisInfo, t: Type) -> AxisInfo:
    """What holds of integers in a value of type `t`, in which they may wrap. A power of two divides
    them still, and those that were equal are so; a run goes on modulo 2^width."""
    element = t.element if isinstance(t, Tensor) else t
    if isinstance(element, Pointer):
        return replace(info, range=None, unit=pointee_of(element).bytes)
    if not isinstance(element, Scalar) or element.is_float:
        return info if info.range is None else replace(info, range=None)
    bits, half = element.bits, 1 << (element.bits - 1)
    numbers = (info.range or Interval(0, (1 << bits) - 1)).wrapped(bits, element.is_signed)
    if max(info.contiguity) <= half:
        return info if numbers is info.range else replace(info, range=numbers)
    contiguity = tuple(c if c <= half else gcd(c, half) for c in info.contiguity)
    return replace(info, contiguity=contiguity, range=numbers,
                   divisibility=tuple(info.divisor(d, c) for d, c in enumerate(contiguity)))


def join(a: AxisInfo, b: AxisInfo) -> AxisInfo:
    """What holds of both."""
    contiguity = tuple(map(gcd, a.contiguity, b.contiguity))
    return AxisInfo(
        contiguity,
        tuple(gcd(a.divisor(d, c), b.divisor(d, c)) for d, c in enumerate(contiguity)),
        tuple(map(gcd, a.constancy, b.constancy)),
        a.range.join(b.range) if a.range and b.range else None, a.unit)


class AxisAnalysis:
    """The analysis of one function; `get(value)` gives what is known of a value."""

    def __init__(self, func: Func) -> None:
        self.info: dict[Value, AxisInfo] = {}
        for arg, attrs in zip(func.args, func.arg_attrs, strict=True):
            divisor = low_bit(attrs.get("divisibility", 1))
            self.put(arg, replace(unknown(0), divisibility=(divisor,)))
        self.run(func.body)

    def get(self, value: Value) -> AxisInfo:
        """What is known of `value`."""
        if value not in self.info:
            self.put(value, unknown(len(shape_of(value.type))))
        return self.info[value]

    def put(self, value: Value, info: AxisInfo) -> None:
        """Note what is known of a value, were there no wrapping in its type."""
        self.info[value] = _held(info, value.type)

    def run(self, block: Block) -> None:
        """Analyse the ops of a block in order."""
        for op in block:
            rule = axis_rule[type(op)]
            infos = rule(self, op, *map(self.get, op.operands))
            for result, info in zip(op.results, infos, strict=True):
                self.put(result, info)


axis_rule = Rules("axis analysis")


@axis_rule(Op)
def _unknown(_: AxisAnalysis, op: Op, *__: AxisInfo) -> Sequence[AxisInfo]:
    return [unknown(len(shape_of(r.type))) for r in op.results]


def _constancy(*infos: AxisInfo) -> Ints:
    """Runs in which all operands are constant."""
    return tuple(gcd(*lengths) for lengths in zip(*(i.constancy for i in infos), strict=True))


def _in_runs(*infos: AxisInfo, numbers: Interval | None = None) -> AxisInfo:
    """Where all operands are constant, the result of an elementwise op is."""
    constancy = _constancy(*infos)
    return replace(unknown(len(constancy)), constancy=constancy, range=numbers)


@axis_rule(ops.Elementwise)
def _elementwise(_: AxisAnalysis, __: Op, *infos: AxisInfo) -> Sequence[AxisInfo]:
    return [_in_runs(*infos)]


@axis_rule(ops.Constant)
def _constant(_: AxisAnalysis, op: ops.Constant) -> Sequence[AxisInfo]:
    shape = shape_of(op.result.type)
    if isinstance(op.value, float):
        return [_uniform(shape, 1, None)]
    return [_uniform(shape, low_bit(int(op.value)), Interval(int(op.value), int(op.value)))]


@axis_rule(ops.Arange)
def _arange(_: AxisAnalysis, op: ops.Arange) -> Sequence[AxisInfo]:
    # Runs are aligned and of equal length, so only a whole-tile run or a divisor of it counts.
    return [AxisInfo((op.end - op.start,), (low_bit(op.start),), (1,),
                     Interval(op.start, op.end - 1))]


@axis_rule(ops.ProgramId)
def _program_id(_: AxisAnalysis, op: ops.ProgramId) -> Sequence[AxisInfo]:
    return [replace(unknown(0), range=Interval(0, GRID[op.axis] - 1))]


@axis_rule(ops.NumPrograms, ops.ClusterRank)
def _programs(_: AxisAnalysis, __: Op) -> Sequence[AxisInfo]:
    return [replace(unknown(0), range=Interval(0, GRID[0]))]


@axis_rule(ops.Splat)
def _splat(_: AxisAnalysis, op: ops.Splat, x: AxisInfo) -> Sequence[AxisInfo]:
    return [_uniform(shape_of(op.result.type), x.divisibility[0], x.range)]


def _runs_of_sum(a: AxisInfo, b: AxisInfo, commutes: bool) -> Ints:
    """Runs stay where one operand has a run and the other is constant."""
    return tuple(max(gcd(a.contiguity[d], b.constancy[d]),
                     gcd(b.contiguity[d], a.constancy[d]) if commutes else 1)
                 for d in range(len(a.contiguity)))


def _sum(a: AxisInfo, b: AxisInfo, commutes: bool) -> AxisInfo:
    contiguity = _runs_of_sum(a, b, commutes)
    return AxisInfo(
        contiguity,
        tuple(gcd(a.divisor(d, c), b.divisor(d, c)) for d, c in enumerate(contiguity)),
        _constancy(a, b))


@axis_rule(ops.Add)
def _add(_: AxisAnalysis, __: Op, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    return [replace(_sum(a, b, True), range=a.range + b.range if a.range and b.range else None)]


@axis_rule(ops.Sub)
def _sub(_: AxisAnalysis, __: Op, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    return [replace(_sum(a, b, False), range=a.range - b.range if a.range and b.range else None)]


@axis_rule(ops.Neg, ops.Not)
def _neg(analysis: AxisAnalysis, op: ops.Neg | ops.Not, x: AxisInfo) -> Sequence[AxisInfo]:
    top = 0 if isinstance(op, ops.Neg) else -1  # of two's complement: ~x is -1 - x
    return _sub(analysis, op, _uniform(shape_of(op.result.type), low_bit(top),
                                       Interval(top, top)), x)


@axis_rule(ops.AddPtr)
def _addptr(_: AxisAnalysis, op: ops.AddPtr, ptr: AxisInfo, off: AxisInfo) -> Sequence[AxisInfo]:
    contiguity = _runs_of_sum(ptr, off, True)
    divisibility = tuple(gcd(ptr.divisor(d, c), min(off.divisor(d, c) * ptr.unit, CAP))
                         for d, c in enumerate(contiguity))
    return [AxisInfo(contiguity, divisibility, _constancy(ptr, off))]


def _scaled(a: AxisInfo, b: AxisInfo, by: Sequence[int]) -> AxisInfo:
    """A product; by: what divides all elements of `b`, along each dimension."""
    return replace(_in_runs(a, b), divisibility=tuple(
        min(a.divisor(d, 1) * factor, CAP) for d, factor in enumerate(by)))


@axis_rule(ops.Mul)
def _mul(_: AxisAnalysis, __: Op, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    for x, y in ((a, b), (b, a)):
        if y.constant == 1:
            return [x]
    info = _scaled(a, b, [b.divisor(d, 1) for d in range(len(b.contiguity))])
    return [replace(info, range=a.range * b.range if a.range and b.range else None)]


@axis_rule(ops.Shl)
def _shl(_: AxisAnalysis, op: ops.Shl, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    count = b.constant
    if count is None or not 0 <= count < element_of(op.result.type).bits:
        return [_scaled(a, b, [1] * len(a.contiguity))]
    assert a.range is not None
    info = _scaled(a, b, [1 << min(count, 30)] * len(a.contiguity))
    return [replace(info, range=a.range * Interval(1 << count, 1 << count))]


def _quotients(a: AxisInfo, b: AxisInfo, by: int) -> AxisInfo:
    """Groups that begin at multiples of what divides `by` lie within one quotient, rounded down."""
    return replace(_in_runs(a, b), constancy=tuple(
        max(k, gcd(a.group(d), by)) for d, k in enumerate(_constancy(a, b))))


@axis_rule(ops.Div)
def _div(_: AxisAnalysis, __: Op, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    if b.constant == 1:
        return [a]
    if a.range is None or b.range is None:
        return [_in_runs(a, b)]
    # Of negative numbers quotients are rounded up, and groups that begin at one have the next, too.
    info = _quotients(a, b, b.constant or 1) if a.within(0) else _in_runs(a, b)
    return [replace(info, range=a.range // b.range)]


@axis_rule(ops.Shr)
def _shr(_: AxisAnalysis, op: ops.Shr, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    assert a.range is not None and b.range is not None
    count = b.constant
    if count is None or not 0 <= count < element_of(op.result.type).bits:
        return [_in_runs(a, b, numbers=a.range >> b.range)]
    return [replace(_quotients(a, b, 1 << count), range=a.range >> b.range, divisibility=tuple(
        max(1, a.divisor(d, 1) >> count) for d in range(len(a.contiguity))))]


def _remainders(a: AxisInfo, b: AxisInfo, by: int) -> AxisInfo:
    """Groups that begin at multiples of what divides `by` are kept by remainders, rounded down."""
    contiguity = tuple(gcd(a.group(d), by) for d in range(len(a.contiguity)))
    return AxisInfo(contiguity, tuple(gcd(a.divisor(d, c), b.divisor(d, 1))
                                      for d, c in enumerate(contiguity)), _constancy(a, b))


@axis_rule(ops.Rem)
def _rem(_: AxisAnalysis, __: Op, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    if a.range is None or b.range is None:
        return [_in_runs(a, b)]
    if a.within(0, b.range.low - 1):
        return [a]
    info = _remainders(a, b, (b.constant or 1) if a.within(0) else 1)
    return [replace(info, range=a.range % b.range)]


@axis_rule(ops.And)
def _and(_: AxisAnalysis, __: Op, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    mask = b.constant if b.constant is not None else -1
    # The last k bits are what remains of a division by 2^k, of negative numbers too.
    info = _remainders(a, b, mask + 1) if mask >= 0 and not mask & (mask + 1) else _in_runs(a, b)
    masks = [x.range for x in (a, b) if x.range and x.range.low >= 0]  # of no sign
    return [replace(info, range=Interval(0, min(m.high for m in masks)) if masks else None)]


@axis_rule(ops.Cmp)
def _cmp(_: AxisAnalysis, op: ops.Cmp, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    constancy = list(_constancy(a, b))
    run, bound = (a, b) if op.predicate in ("lt", "ge") else (b, a)
    if op.predicate in ("lt", "ge", "gt", "le"):
        # With x in an aligned group of g and n a multiple of g, `x < n` is one value in the group.
        for d, k in enumerate(constancy):
            group = gcd(run.group(d), bound.divisor(d, 1))
            constancy[d] = max(k, gcd(group, bound.constancy[d]))
    return [replace(unknown(len(constancy)), constancy=tuple(constancy))]


@axis_rule(ops.Minimum, ops.Maximum)
def _either(_: AxisAnalysis, op: Op, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    """Each element is that of one operand."""
    pick = Interval.least if isinstance(op, ops.Minimum) else Interval.greatest
    return [replace(_in_runs(a, b),
                    divisibility=(gcd(a.all_divisor, b.all_divisor),) * len(a.contiguity),
                    range=pick(a.range, b.range) if a.range and b.range else None)]


@axis_rule(ops.Select)
def _select(_: AxisAnalysis, op: Op, cond: AxisInfo, a: AxisInfo, b: AxisInfo
            ) -> Sequence[AxisInfo]:
    both = join(a, b)
    contiguity = tuple(map(gcd, both.contiguity, cond.constancy))
    return [replace(
        both, contiguity=contiguity, constancy=_constancy(both, cond),
        divisibility=tuple(both.divisor(d, c) for d, c in enumerate(contiguity)))]


@axis_rule(ops.Cast, ops.Bitcast)
def _cast(_: AxisAnalysis, op: ops.Cast | ops.Bitcast, x: AxisInfo) -> Sequence[AxisInfo]:
    """Between integers the value stays, modulo 2^width, but what is not 0 is true."""
    src, dst = element_of(op.x.type), element_of(op.result.type)
    if not (isinstance(src, Scalar) and isinstance(dst, Scalar) and src.is_int and dst.is_int):
        return [_in_runs(x)]
    return [_in_runs(x) if dst.is_bool and src != dst else x]


@axis_rule(ops.ConvertLayout, ops.SetLayout)
def _convert(_: AxisAnalysis, op: Op, x: AxisInfo) -> Sequence[AxisInfo]:
    return [x]


@axis_rule(ops.Hint)
def _hint(_: AxisAnalysis, op: ops.Hint, x: AxisInfo) -> Sequence[AxisInfo]:
    rank = len(x.contiguity)
    contiguity = op.contiguity or x.contiguity
    promised = op.divisibility or (1,) * rank
    return [AxisInfo(
        tuple(contiguity),
        tuple(max(x.divisor(d, contiguity[d]), low_bit(promised[d])) for d in range(rank)),
        tuple(map(max, x.constancy, op.constancy or (1,) * rank)), x.range, x.unit)]


@axis_rule(ops.ExpandDims)
def _expand(_: AxisAnalysis, op: ops.ExpandDims, x: AxisInfo) -> Sequence[AxisInfo]:
    def put(values: Ints, new: int) -> Ints:
        return values[:op.axis] + (new,) + values[op.axis:]

    return [AxisInfo(put(x.contiguity, 1), put(x.divisibility, x.all_divisor),
                     put(x.constancy, 1), x.range, x.unit)]


@axis_rule(ops.Broadcast)
def _broadcast(_: AxisAnalysis, op: ops.Broadcast, x: AxisInfo) -> Sequence[AxisInfo]:
    grown = [a != b for a, b in zip(shape_of(op.x.type), shape_of(op.result.type), strict=True)]
    constancy = tuple(n if g else k for n, g, k in
                      zip(shape_of(op.result.type), grown, x.constancy, strict=True))
    contiguity = tuple(1 if g else c for g, c in zip(grown, x.contiguity, strict=True))
    return [replace(x, contiguity=contiguity, constancy=constancy)]


@axis_rule(ops.Trans)
def _trans(_: AxisAnalysis, op: ops.Trans, x: AxisInfo) -> Sequence[AxisInfo]:
    def permute(values: Ints) -> Ints:
        return tuple(values[i] for i in op.order)

    return [AxisInfo(permute(x.contiguity), permute(x.divisibility), permute(x.constancy),
                     x.range, x.unit)]


@axis_rule(ops.Reshape)
def _reshape(_: AxisAnalysis, op: ops.Reshape, x: AxisInfo) -> Sequence[AxisInfo]:
    """Only the fastest dimension keeps its runs, cut to what divides both extents."""
    src, dst = shape_of(op.x.type), shape_of(op.result.type)
    if x.constancy == src:
        return [_uniform(dst, x.all_divisor, x.range)]
    run = gcd(x.contiguity[-1], src[-1], dst[-1])
    ones = (1,) * (len(dst) - 1)
    return [AxisInfo((*ones, run),
                     (*(x.all_divisor,) * len(ones), x.divisor(len(src) - 1, run)),
                     (*ones, gcd(x.constancy[-1], src[-1], dst[-1])), x.range, x.unit)]


@axis_rule(ops.Join)
def _join(_: AxisAnalysis, __: Op, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    both = join(a, b)
    return [AxisInfo((*both.contiguity, 1), (*both.divisibility, both.all_divisor),
                     (*both.constancy, 1), both.range, both.unit)]


@axis_rule(ops.Split)
def _split(_: AxisAnalysis, __: Op, x: AxisInfo) -> Sequence[AxisInfo]:
    return [replace(x, contiguity=x.contiguity[:-1], divisibility=x.divisibility[:-1],
                    constancy=x.constancy[:-1])]


@axis_rule(ops.For)
def _for(analysis: AxisAnalysis, op: ops.For, lo: AxisInfo, hi: AxisInfo, step: AxisInfo,
         *init: AxisInfo) -> Sequence[AxisInfo]:
    assert lo.range is not None and hi.range is not None
    iv, *carried = op.body.args
    analysis.put(iv, AxisInfo((1,), (gcd(lo.divisibility[0], step.divisibility[0]),), (1,),
                              Interval(lo.range.low, max(lo.range.low, hi.range.high - 1))))
    return _fixpoint(analysis, op, carried, init)


def _fixpoint(analysis: AxisAnalysis, op: ops.For, carried: Sequence[Value],
              init: Sequence[AxisInfo]) -> Sequence[AxisInfo]:
    """Carried values start optimistic (as at entry) and are weakened until they hold."""
    current = list(init)
    while True:
        for value, info in zip(carried, current, strict=True):
            analysis.put(value, info)
        known = [analysis.get(v) for v in carried]
        analysis.run(op.body)
        current = [_weaker(info, analysis.get(v)) for info, v in
                   zip(known, op.body.terminator.operands, strict=True)]
        if current == known:
            return known


def _weaker(a: AxisInfo, b: AxisInfo) -> AxisInfo:
    """What holds of both; a range that grows may do so in each round."""
    both = join(a, b)
    return both if both.range == a.range else replace(both, range=None)


@axis_rule(ops.If)
def _if(analysis: AxisAnalysis, op: ops.If, cond: AxisInfo) -> Sequence[AxisInfo]:
    for block in op.regions:
        analysis.run(block)
    arms = [[analysis.get(v) for v in block.terminator.operands] for block in op.regions]
    return [join(a, b) for a, b in zip(*arms, strict=True)]


@axis_rule(ops.While, ops.Combining, ops.Gather, ops.Histogram, ops.Elect, ops.WarpSpecialize,
           ops.WarpRole)
def _opaque(analysis: AxisAnalysis, op: Op, *_: AxisInfo) -> Sequence[AxisInfo]:
    for block in op.regions:
        analysis.run(block)
    return [unknown(len(shape_of(r.type))) for r in op.results]
