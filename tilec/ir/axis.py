"""Axis analysis: what is known of a value along each dimension of its tile.

Coalescing and vectorised access rest on it. Divisors are powers of two, so wrapping arithmetic
keeps them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd

from tilec.ir import ops
from tilec.ir.core import Block, Func, Op, Value
from tilec.ir.rules import Rules
from tilec.ir.types import Scalar, element_of, pointee_of, shape_of

Ints = tuple[int, ...]
CAP = 1 << 30  # the divisor of zero, and of anything divisible by more


@dataclass(frozen=True)
class AxisInfo:
    """Per dimension (scalars count as one dimension of extent 1):

    contiguity: the tile splits into aligned runs of this length in which values grow by one (for
    pointers, by one element). divisibility: a power of two that divides the first value of every
    such run (for pointers, in bytes). constancy: aligned runs of this length hold one value.
    constant: the value, if all elements are one known integer. nonneg: no element is negative.
    """

    contiguity: Ints
    divisibility: Ints
    constancy: Ints
    constant: int | None = None
    nonneg: bool = False

    def divisor(self, dim: int, step: int) -> int:
        """What divides the elements at multiples of `step` along `dim`."""
        run, div = self.contiguity[dim], self.divisibility[dim]
        return div if step % run == 0 else gcd(div, step)

    @property
    def all_divisor(self) -> int:
        """What divides every element."""
        return max(self.divisor(d, 1) for d in range(len(self.contiguity)))


def low_bit(n: int) -> int:
    """The largest power of two that divides n, capped."""
    return min(n & -n, CAP) if n else CAP


def unknown(rank: int) -> AxisInfo:
    """Nothing is known."""
    ones = (1,) * max(1, rank)
    return AxisInfo(ones, ones, ones)


def _uniform(shape: Ints, divisor: int, constant: int | None, nonneg: bool) -> AxisInfo:
    """All elements hold one value."""
    shape = shape or (1,)
    return AxisInfo((1,) * len(shape), (divisor,) * len(shape), shape, constant, nonneg)


def join(a: AxisInfo, b: AxisInfo) -> AxisInfo:
    """What holds of both."""
    contiguity = tuple(map(gcd, a.contiguity, b.contiguity))
    return AxisInfo(
        contiguity,
        tuple(gcd(a.divisor(d, c), b.divisor(d, c)) for d, c in enumerate(contiguity)),
        tuple(map(gcd, a.constancy, b.constancy)),
        a.constant if a.constant == b.constant else None, a.nonneg and b.nonneg)


class AxisAnalysis:
    """The analysis of one function; `get(value)` gives what is known of a value."""

    def __init__(self, func: Func) -> None:
        self.info: dict[Value, AxisInfo] = {}
        for arg, attrs in zip(func.args, func.arg_attrs, strict=True):
            divisor = low_bit(attrs.get("divisibility", 1))
            self.info[arg] = replace(unknown(0), divisibility=(divisor,))
        self.run(func.body)

    def get(self, value: Value) -> AxisInfo:
        """What is known of `value`."""
        found = self.info.get(value)
        return unknown(len(shape_of(value.type))) if found is None else found

    def run(self, block: Block) -> None:
        """Analyse the ops of a block in order."""
        for op in block:
            rule = axis_rule[type(op)]
            infos = rule(self, op, *map(self.get, op.operands))
            for result, info in zip(op.results, infos, strict=True):
                self.info[result] = info


axis_rule = Rules("axis analysis")


@axis_rule(Op)
def _unknown(_: AxisAnalysis, op: Op, *__: AxisInfo) -> Sequence[AxisInfo]:
    return [unknown(len(shape_of(r.type))) for r in op.results]


@axis_rule(ops.Elementwise)
def _elementwise(_: AxisAnalysis, op: Op, *infos: AxisInfo) -> Sequence[AxisInfo]:
    constancy = infos[0].constancy
    for info in infos[1:]:
        constancy = tuple(map(gcd, constancy, info.constancy))
    return [replace(unknown(len(constancy)), constancy=constancy)]


@axis_rule(ops.Constant)
def _constant(_: AxisAnalysis, op: ops.Constant) -> Sequence[AxisInfo]:
    shape = shape_of(op.result.type)
    if isinstance(op.value, float):
        return [_uniform(shape, 1, None, False)]
    return [_uniform(shape, low_bit(int(op.value)), int(op.value), op.value >= 0)]


@axis_rule(ops.Arange)
def _arange(_: AxisAnalysis, op: ops.Arange) -> Sequence[AxisInfo]:
    n = op.end - op.start
    # Runs are aligned and of equal length, so only a whole-tile run or a divisor of it counts.
    return [AxisInfo((n,), (low_bit(op.start),), (1,), None, op.start >= 0)]


@axis_rule(ops.ProgramId, ops.NumPrograms, ops.ClusterRank)
def _program(_: AxisAnalysis, __: Op) -> Sequence[AxisInfo]:
    return [replace(unknown(0), nonneg=True)]


@axis_rule(ops.Splat)
def _splat(_: AxisAnalysis, op: Op, x: AxisInfo) -> Sequence[AxisInfo]:
    return [_uniform(shape_of(op.result.type), x.divisibility[0], x.constant, x.nonneg)]


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
        tuple(map(gcd, a.constancy, b.constancy)), None,
        commutes and a.nonneg and b.nonneg)


@axis_rule(ops.Add, ops.Sub)
def _add(_: AxisAnalysis, op: ops.Add | ops.Sub, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    adds = isinstance(op, ops.Add)
    return [_known(op, _sum(a, b, adds), a, b, operator.add if adds else operator.sub)]


@axis_rule(ops.Neg)
def _neg(_: AxisAnalysis, op: ops.Neg, x: AxisInfo) -> Sequence[AxisInfo]:
    zero = _uniform(shape_of(op.result.type), CAP, 0, True)
    return [_known(op, _sum(zero, x, False), zero, x, operator.sub)]


@axis_rule(ops.AddPtr)
def _addptr(_: AxisAnalysis, op: ops.AddPtr, ptr: AxisInfo, off: AxisInfo) -> Sequence[AxisInfo]:
    size = pointee_of(op.ptr.type).bytes
    contiguity = _runs_of_sum(ptr, off, True)
    # A pointer's runs step by `size` bytes, so mid-run elements are divisible by that times step.
    divisibility = tuple(
        gcd(_bytes_divisor(ptr, d, c, size), min(off.divisor(d, c) * size, CAP))
        for d, c in enumerate(contiguity))
    return [AxisInfo(contiguity, divisibility, tuple(map(gcd, ptr.constancy, off.constancy)))]


def _bytes_divisor(ptr: AxisInfo, dim: int, step: int, size: int) -> int:
    div = ptr.divisibility[dim]
    return div if step % ptr.contiguity[dim] == 0 else gcd(div, step * size)


def _known(op: Op, info: AxisInfo, a: AxisInfo, b: AxisInfo, fold: Callable[[int, int], int]
           ) -> AxisInfo:
    """`info`, with the constant if both operands are constants and the result does not wrap."""
    element = element_of(op.results[0].type)
    if a.constant is None or b.constant is None or not isinstance(element, Scalar):
        return info
    value = fold(a.constant, b.constant)
    least = -(1 << (element.bits - 1)) if element.is_signed else 0
    if not element.is_int or not least <= value < 1 << (element.bits - 1):
        return info
    return _uniform(shape_of(op.results[0].type), low_bit(value), value, value >= 0)


@axis_rule(ops.Mul)
def _mul(_: AxisAnalysis, op: ops.Mul, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    for x, y in ((a, b), (b, a)):
        if y.constant == 1:
            return [x]
    rank = len(a.contiguity)
    info = AxisInfo(
        (1,) * rank,
        tuple(min(a.divisor(d, 1) * b.divisor(d, 1), CAP) for d in range(rank)),
        tuple(map(gcd, a.constancy, b.constancy)), None, a.nonneg and b.nonneg)
    return [_known(op, info, a, b, operator.mul)]


@axis_rule(ops.Shl)
def _shl(_: AxisAnalysis, op: ops.Shl, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    rank = len(a.contiguity)
    times = 1 << b.constant if b.constant is not None and 0 <= b.constant < 30 else 1
    return [AxisInfo((1,) * rank,
                     tuple(min(a.divisor(d, 1) * times, CAP) for d in range(rank)),
                     tuple(map(gcd, a.constancy, b.constancy)))]


@axis_rule(ops.Div)
def _div(_: AxisAnalysis, op: ops.Div, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    constancy = list(map(gcd, a.constancy, b.constancy))
    if b.constant is not None and b.constant > 0 and a.nonneg:
        if b.constant == 1:
            return [a]
        # Runs that start at a multiple of g, cut into groups of g, lie within one quotient.
        constancy = [max(k, gcd(c, a.divisibility[d], b.constant))
                     for d, (k, c) in enumerate(zip(constancy, a.contiguity, strict=True))]
    return [replace(unknown(len(constancy)), constancy=tuple(constancy),
                    nonneg=a.nonneg and b.nonneg)]


@axis_rule(ops.Rem)
def _rem(_: AxisAnalysis, op: ops.Rem, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    rank = len(a.contiguity)
    contiguity = [1] * rank
    if b.constant is not None and b.constant > 0 and a.nonneg:
        contiguity = [gcd(a.contiguity[d], a.divisibility[d], b.constant) for d in range(rank)]
    return [AxisInfo(
        tuple(contiguity),
        tuple(gcd(a.divisor(d, c), b.divisor(d, 1)) for d, c in enumerate(contiguity)),
        tuple(map(gcd, a.constancy, b.constancy)), None, a.nonneg)]


@axis_rule(ops.Cmp)
def _cmp(_: AxisAnalysis, op: ops.Cmp, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    constancy = list(map(gcd, a.constancy, b.constancy))
    run, bound = (a, b) if op.predicate in ("lt", "ge") else (b, a)
    if op.predicate in ("lt", "ge", "gt", "le"):
        # With x in an aligned group of g and n a multiple of g, `x < n` is one value in the group.
        for d, k in enumerate(constancy):
            group = gcd(run.contiguity[d], run.divisibility[d], bound.divisor(d, 1))
            constancy[d] = max(k, gcd(group, bound.constancy[d]))
    return [replace(unknown(len(constancy)), constancy=tuple(constancy), nonneg=True)]


@axis_rule(ops.Minimum, ops.Maximum)
def _either(analysis: AxisAnalysis, op: Op, a: AxisInfo, b: AxisInfo) -> Sequence[AxisInfo]:
    """Each element is that of one operand."""
    signs = (a.nonneg, b.nonneg)
    return [replace(_elementwise(analysis, op, a, b)[0],
                    divisibility=(gcd(a.all_divisor, b.all_divisor),) * len(a.contiguity),
                    nonneg=any(signs) if isinstance(op, ops.Maximum) else all(signs))]


@axis_rule(ops.Select)
def _select(_: AxisAnalysis, op: Op, cond: AxisInfo, a: AxisInfo, b: AxisInfo
            ) -> Sequence[AxisInfo]:
    both = join(a, b)
    contiguity = tuple(map(gcd, both.contiguity, cond.constancy))
    return [AxisInfo(
        contiguity, tuple(both.divisor(d, c) for d, c in enumerate(contiguity)),
        tuple(map(gcd, both.constancy, cond.constancy)), both.constant, both.nonneg)]


@axis_rule(ops.Cast)
def _cast(analysis: AxisAnalysis, op: ops.Cast, x: AxisInfo) -> Sequence[AxisInfo]:
    src, dst = element_of(op.x.type), element_of(op.result.type)
    if not (isinstance(src, Scalar) and isinstance(dst, Scalar)) or src.is_float or dst.is_float:
        return _elementwise(analysis, op, x)
    if dst.bits >= src.bits and (src.is_signed == dst.is_signed or x.nonneg):
        return [x]
    ones = (1,) * len(x.contiguity)
    return [AxisInfo(ones, tuple(x.divisor(d, 1) for d in range(len(ones))), x.constancy)]


@axis_rule(ops.Bitcast)
def _bitcast(analysis: AxisAnalysis, op: ops.Bitcast, x: AxisInfo) -> Sequence[AxisInfo]:
    src, dst = element_of(op.x.type), element_of(op.result.type)
    if isinstance(src, Scalar) and isinstance(dst, Scalar) and src.is_int and dst.is_int:
        return [replace(x, constant=None, nonneg=False)]
    return _elementwise(analysis, op, x)


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
        tuple(map(max, x.constancy, op.constancy or (1,) * rank)), x.constant, x.nonneg)]


@axis_rule(ops.ExpandDims)
def _expand(_: AxisAnalysis, op: ops.ExpandDims, x: AxisInfo) -> Sequence[AxisInfo]:
    def put(values: Ints, new: int) -> Ints:
        return values[:op.axis] + (new,) + values[op.axis:]

    return [AxisInfo(put(x.contiguity, 1), put(x.divisibility, x.all_divisor),
                     put(x.constancy, 1), x.constant, x.nonneg)]


@axis_rule(ops.Broadcast)
def _broadcast(_: AxisAnalysis, op: ops.Broadcast, x: AxisInfo) -> Sequence[AxisInfo]:
    grown = [a != b for a, b in zip(shape_of(op.x.type), shape_of(op.result.type), strict=True)]
    constancy = tuple(n if g else k for n, g, k in
                      zip(shape_of(op.result.type), grown, x.constancy, strict=True))
    return [replace(x, constancy=constancy)]


@axis_rule(ops.Trans)
def _trans(_: AxisAnalysis, op: ops.Trans, x: AxisInfo) -> Sequence[AxisInfo]:
    def permute(values: Ints) -> Ints:
        return tuple(values[i] for i in op.order)

    return [AxisInfo(permute(x.contiguity), permute(x.divisibility), permute(x.constancy),
                     x.constant, x.nonneg)]


@axis_rule(ops.Reshape)
def _reshape(_: AxisAnalysis, op: ops.Reshape, x: AxisInfo) -> Sequence[AxisInfo]:
    """Only the fastest dimension keeps its runs, cut to what divides both extents."""
    src, dst = shape_of(op.x.type), shape_of(op.result.type)
    if x.constancy == src:
        return [_uniform(dst, x.all_divisor, x.constant, x.nonneg)]
    run = gcd(x.contiguity[-1], src[-1], dst[-1])
    ones = (1,) * (len(dst) - 1)
    return [AxisInfo((*ones, run),
                     (*(x.divisor(len(src) - 1, 1),) * len(ones), x.divisor(len(src) - 1, run)),
                     (*ones, gcd(x.constancy[-1], src[-1], dst[-1])), None, x.nonneg)]


@axis_rule(ops.For)
def _for(analysis: AxisAnalysis, op: ops.For, lo: AxisInfo, hi: AxisInfo, step: AxisInfo,
         *init: AxisInfo) -> Sequence[AxisInfo]:
    iv, *carried = op.body.args
    analysis.info[iv] = AxisInfo((1,), (gcd(lo.divisibility[0], step.divisibility[0]),), (1,),
                                 None, lo.nonneg)
    return _fixpoint(analysis, op, carried, init)


def _fixpoint(analysis: AxisAnalysis, op: ops.For, carried: Sequence[Value],
              init: Sequence[AxisInfo]) -> Sequence[AxisInfo]:
    """Carried values start optimistic (as at entry) and are weakened until they hold."""
    current = list(init)
    while True:
        analysis.info.update(zip(carried, current, strict=True))
        analysis.run(op.body)
        again = [join(a, analysis.get(v)) for a, v in
                 zip(current, op.body.terminator.operands, strict=True)]
        if again == current:
            return current
        current = again


@axis_rule(ops.If)
def _if(analysis: AxisAnalysis, op: ops.If, cond: AxisInfo) -> Sequence[AxisInfo]:
    for block in op.regions:
        analysis.run(block)
    arms = [[analysis.get(v) for v in block.terminator.operands] for block in op.regions]
    return [join(a, b) for a, b in zip(*arms, strict=True)]


@axis_rule(ops.While, ops.Reduce, ops.Elect, ops.WarpSpecialize, ops.WarpRole)
def _opaque(analysis: AxisAnalysis, op: Op, *_: AxisInfo) -> Sequence[AxisInfo]:
    for block in op.regions:
        analysis.run(block)
    return [unknown(len(shape_of(r.type))) for r in op.results]
