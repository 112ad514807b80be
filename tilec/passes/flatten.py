"""flatten: make one loop of a nest whose outer loop asks for it."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Block, Builder, Module, Op, Value
from tilec.ir.remarks import remark
from tilec.ir.types import i64, scalar_of
from tilec.ir.warps import warps_of
from tilec.ir.wgmma import form_obstacle
from tilec.passes.ahead import SHARED
from tilec.passes.base import Pass
from tilec.passes.fold import make_constant
from tilec.target import DEFAULT, Target

_MOST_BITS = 32  # of an index: counts of two such loops multiply without overflow


class Flatten(Pass):
    """A loop with {flatten = true} around one other and that one become one loop of as many rounds
    as the inner has in all, so that a pipeline goes on from one outer iteration into the next. What
    stands before the inner loop must be pure: it is computed in every round. Where there is no
    round, the outer loop stays, without the inner one.

        for i { p = pre(i)                       for r { p = pre(i)
          a = for k, x = p { body(x) }    ->       x = if first { p } else { x }
          post(a) } {flatten = true}               x = body(x) ; if last { post(x) } }
    """

    def run(self, module: Module) -> None:
        target = Target.parse(str(module.attributes.get("target", DEFAULT)))
        for func in module.funcs:
            for op in reversed(list(func.walk())):
                if isinstance(op, ops.For) and op.flatten:
                    if any(isinstance(x, ops.DescriptorLoad) for x in op.walk()):
                        continue  # the nest stays: only what TMA loads runs on (see tma.py)
                    op.flatten = False
                    inner = [x for x in op.body if isinstance(x, ops.For)]
                    warps = warps_of(op, module.num_warps)
                    reason = _obstacle(op, inner) or _products(op, warps, target)
                    if reason:
                        remark(op, "loop", f"not flattened: {reason}", option="flatten")
                    else:
                        remark(op, "loop", "flattened with the loop inside", option="flatten")
                        _Flat(op, inner[0]).run()


def _obstacle(outer: ops.For, inner: list[ops.For]) -> str:
    """Why a loop and those directly in it cannot become one, or an empty string."""
    if len(inner) != 1:
        return f"it has {len(inner) or 'no'} loops directly inside, expected one"
    for loop in (outer, inner[0]):
        if scalar_of(loop.lo.type).bits > _MOST_BITS:
            return f"an index is wider than {_MOST_BITS} bits"
    explicit = next((op for op in outer.walk() if op.class_effects & SHARED), None)
    if explicit is not None:  # a product under way would have to be copied
        return f"it has a {explicit.name}, of the explicit level"
    own = set(outer.body.args) | {r for op in outer.body for r in op.results}
    if own & {inner[0].lo, inner[0].hi, inner[0].step}:
        return "the inner loop's bounds change"
    for op in outer.body:
        if op is inner[0]:
            return ""
        if not op.pure:
            return f"{op.name} before the inner loop, at {op.loc}, is not pure"
    return ""


def _products(loop: ops.For, num_warps: int, target: Target) -> str:
    """Why a loop with a dot for wgmma stays: in one loop each round would have to wait for its
    product, since the last of a tile looks at the sum."""
    dots = [op for op in loop.walk() if isinstance(op, ops.Dot)]
    found = any(not form_obstacle(dot, num_warps, target) for dot in dots)
    return "wgmma keeps products under way in the loop inside" if found else ""


class _Flat:
    def __init__(self, outer: ops.For, inner: ops.For) -> None:
        self.outer, self.inner = outer, inner

    def run(self) -> None:
        """Two nests, of which one runs: the flat one, or the outer loop alone."""
        outer, inner = self.outer, self.inner
        before = Builder(before=outer, loc=outer.loc)
        self.rounds = _trips(before, inner)
        self.total = before.emit(ops.Mul(self.rounds, _trips(before, outer)))
        zero = make_constant(before, 0, i64)
        runs = before.emit(ops.Cmp(self.total, zero, predicate="gt"))
        blocks = [Block(), Block()]
        for block, build in zip(blocks, (self.flat, self.empty)):
            here = Builder(block, loc=outer.loc)
            here.insert(ops.Yield(build(here)))
        chosen = before.insert(ops.If(runs, then=blocks[0], orelse=blocks[1]))
        outer.replace_by(chosen.results)

    def empty(self, here: Builder) -> list[Value]:
        """The outer loop where the inner one does nothing, or it does nothing itself."""
        loop = here.insert(self.outer.clone({}))
        assert isinstance(loop, ops.For)
        nothing = next(op for op in loop.body if isinstance(op, ops.For))
        nothing.replace_by(nothing.init)
        return loop.results

    def flat(self, here: Builder) -> list[Value]:
        """One loop. Carried: both indices, the inner round, what the outer and the inner loop
        carry. The latter needs some start, although the first round sets it again."""
        outer, inner = self.outer, self.inner
        ops_before, ops_after = self.parts()
        zero, one = make_constant(here, 0, i64), make_constant(here, 1, i64)
        values = dict(zip(outer.body.args, [outer.lo, *outer.init], strict=True))
        for op in ops_before:
            here.insert(op.clone(values))
        init = [outer.lo, inner.lo, zero, *outer.init, *(values.get(v, v) for v in inner.init)]
        names = [outer.body.args[0].name, inner.body.args[0].name, "",
                 *(a.name for loop in (outer, inner) for a in loop.body.args[1:])]
        body = Block([i64, *(v.type for v in init)], ["", *names])
        inside = Builder(body, loc=inner.loc)
        i, k, count, *carried = body.args[1:]
        theirs, mine = carried[:len(outer.init)], carried[len(outer.init):]
        values = dict(zip(outer.body.args, [i, *theirs], strict=True))
        for op in ops_before:
            inside.insert(op.clone(values))
        first = inside.emit(ops.Cmp(count, zero, predicate="eq"))
        starts = _either(inside, first, [values.get(v, v) for v in inner.init], mine)
        values.update(zip(inner.body.args, [k, *starts], strict=True))
        for op in inner.body:
            if not op.terminator:
                inside.insert(op.clone(values))
        ends = [values.get(v, v) for v in inner.body.terminator.operands]
        values.update(zip(inner.results, ends, strict=True))
        following = inside.emit(ops.Add(count, one))
        last = inside.emit(ops.Cmp(following, self.rounds, predicate="eq"))
        then = Block()
        rest = Builder(then, loc=outer.loc)
        for op in ops_after:
            rest.insert(op.clone(values))
        rest.insert(ops.Yield([values.get(v, v) for v in outer.body.terminator.operands]))
        other = Block()
        Builder(other, loc=outer.loc).insert(ops.Yield(theirs))
        after = inside.insert(ops.If(last, then=then, orelse=other)).results
        nexts = [inside.emit(ops.Select(last, a, b)) for a, b in (
            (inside.emit(ops.Add(i, outer.step)), i),
            (inner.lo, inside.emit(ops.Add(k, inner.step))), (zero, following))]
        inside.insert(ops.Yield([*nexts, *after, *ends]))
        loop = here.insert(ops.For(zero, self.total, one, init, body=body, unroll=inner.unroll,
                                   num_stages=inner.num_stages or outer.num_stages,
                                   disable_licm=inner.disable_licm or outer.disable_licm,
                                   warp_specialize=inner.warp_specialize or
                                   outer.warp_specialize))
        return loop.results[3:3 + len(outer.init)]

    def parts(self) -> tuple[list[Op], list[Op]]:
        """The ops of the outer body before and after the inner loop."""
        body = [op for op in self.outer.body if not op.terminator]
        at = body.index(self.inner)
        return body[:at], body[at + 1:]


def _either(builder: Builder, first: Value, values: list[Value], others: list[Value]
            ) -> list[Value]:
    """`values` where the condition holds; a branch, since it nearly never does."""
    if not values:
        return []
    blocks = [Block(), Block()]
    for block, given in zip(blocks, (values, others)):
        Builder(block, loc=builder.loc).insert(ops.Yield(given))
    return builder.insert(ops.If(first, then=blocks[0], orelse=blocks[1])).results


def _trips(builder: Builder, loop: ops.For) -> Value:
    """How often a loop runs, as an i64; its bounds have at most 32 bits."""
    lo, hi, step = (v if v.type == i64 else builder.emit(ops.Cast(v, types=[i64]))
                    for v in (loop.lo, loop.hi, loop.step))
    zero, one = make_constant(builder, 0, i64), make_constant(builder, 1, i64)
    up = builder.emit(ops.Cmp(step, zero, predicate="gt"))
    step = builder.emit(ops.Maximum(step, one))
    span = builder.emit(ops.Add(builder.emit(ops.Sub(hi, lo)), builder.emit(ops.Sub(step, one))))
    trips = builder.emit(ops.Maximum(builder.emit(ops.Div(span, step)), zero))
    return builder.emit(ops.Select(up, trips, zero))
