"""`for` and `while`: run-time loops with carried names, and unrolled ones."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from typing import Any

from tilec.errors import CompilationError
from tilec.frontend.branches import Branch, body, condition
from tilec.frontend.expressions import truth
from tilec.frontend.merge import RUN_TIME, Mismatch, Undefined, fit, plain, rebuild, split, zero
from tilec.frontend.visitor import ENDED, LEFT, MORE, RESULT, RETURNED, Visitor, handles
from tilec.ir import ops
from tilec.ir.core import Block, Value
from tilec.ir.remarks import remark
from tilec.language import control
from tilec.language import dtypes as dt
from tilec.language.casting import cast
from tilec.language.literals import literal_dtype
from tilec.language.promotion import number_dtype, promote
from tilec.language.values import constant, describe, is_number, tensor, to_tensor

MAX_UNROLL = 1 << 14  # iterations of a static loop: more is a mistake, and would take minutes


class _Carried:
    """The names that a loop carries: assigned in it, and read in a later iteration or after it."""

    def __init__(self, v: Visitor, node: ast.For | ast.While) -> None:
        self.v = v
        self.node = node
        self.places = v.analysis.assigned[node]
        self.before = v.names
        self.init: list[Value] = []
        self.trees: dict[str, Any] = {}
        live = v.analysis.live_head[node]
        v.at(node)
        for name in self.places:
            if name in v.names and name in live and type(v.names[name]) is not Undefined:
                self.trees[name] = split(v.names[name], self.init)
        self.types = [x.type for x in self.init]

    def enter(self, args: Sequence[Value]) -> dict[str, Any]:
        """The scope inside, where the carried names are these block arguments."""
        names = dict(self.before)
        for name in self.places:
            if name in self.trees:
                names[name] = rebuild(self.trees[name], args, name)
            elif name in names:
                names[name] = self._local(name)
        return names

    def leave(self, names: dict[str, Any]) -> list[Value]:
        """What the body yields for the next iteration."""
        out: list[Value] = []
        for name, tree in self.trees.items():
            try:
                fit(tree, self.types, names[name], out)
            except Mismatch as e:
                raise self._changed(name, e.args[0]) from None
        return out

    def after(self, results: Sequence[Value]) -> dict[str, Any]:
        """The scope after the loop."""
        names = dict(self.before)
        for name in self.places:
            names[name] = rebuild(self.trees[name], results, name) if name in self.trees \
                else self._local(name)
        return names

    def _local(self, name: str) -> Undefined:
        return Undefined(
            f"`{name}` is only assigned inside the loop at line {self.node.lineno}, which may not "
            "run at all", f"assign `{name}` before the loop, with the type it has inside")

    def _changed(self, name: str, now: str) -> CompilationError:
        """The error for a carried name whose type changes; points at its last assignment."""
        before = self.before[name]
        was = describe(before)
        loc = self.v.location(self.places[name])
        if type(self.v.names.get(name)) is Undefined:
            bad = self.v.names[name]
            return CompilationError(bad.message, bad.loc or loc, bad.advice)
        return CompilationError(
            f"loop-carried variable `{name}` is {was} before the loop at line "
            f"{self.node.lineno}, and {now} at the end of its body", loc,
            self._advice(name, before))

    def _advice(self, name: str, before: Any) -> str:
        now = self.v.names.get(name)
        if not isinstance(now, tensor) or not isinstance(before, tensor):
            return f"give `{name}` one form before the loop and at the end of its body"
        if now.shape != before.shape:
            return f"start with the shape it gets: `{name} = {_start(name, before, now)}`"
        return f"convert it in the loop, `.to(tl.{_dtype(before)})`, or start with " \
            f"`.to(tl.{_dtype(now)})`"


def _start(name: str, before: tensor, now: tensor) -> str:
    """How to write the value `before` of a name with the shape and dtype of `now`."""
    made, form = before.handle.op, f"{list(now.shape)}, "
    value: Any = before.literal
    if value is None:
        value = made.value if isinstance(made, ops.Constant) else name
    if value == 0:
        return f"tl.zeros({form}tl.{_dtype(now)})"
    if before.shape and value is name:
        return f"tl.broadcast_to({name}, {list(now.shape)})"
    if isinstance(value, float) and not isfinite(value):
        value = f'float("{value}")'
    return f"tl.full({form}{value}, tl.{_dtype(now)})"


def _dtype(x: tensor) -> str:
    return next((n for n, t in vars(dt).items() if isinstance(t, dt.dtype) and t == x.dtype),
                x.dtype.name)


# -- for ------------------------------------------------------------------------------------------

@handles(ast.For)
def visit_for(v: Visitor, node: ast.For) -> None:
    """`for` over range, tl.range (run time), tl.static_range, or a tuple (unrolled)."""
    if node.orelse:
        raise v.error(node.orelse[0], "`else` of a loop is not supported in a kernel",
                      "put its statements after the loop")
    space = v.visit(node.iter)
    if isinstance(space, control.static_range):
        _unrolled(v, node, range(space.lo, space.hi, space.step))
    elif isinstance(space, control.range):
        _run_time_for(v, node, space)
    elif isinstance(space, (tuple, list)):
        _unrolled(v, node, space)
    else:
        raise v.error(node.iter, f"cannot loop over {describe(space)}",
                      "loop over range, tl.range or tl.static_range, or a tuple")


def _unrolled(v: Visitor, node: ast.For, items: Any) -> None:
    if len(items) > MAX_UNROLL:
        raise v.error(node.iter, f"this loop would be unrolled {len(items)} times", "use tl.range")
    v.loops += 1
    _rounds(v, node, items)
    v.loops -= 1
    _leave(v)


def _rounds(v: Visitor, node: ast.For, items: Any) -> None:
    """Run the rounds of an unrolled loop, the later ones where those before have not ended it."""
    for i, item in enumerate(items):
        assign(v, node.target, item, keep_numbers=True)
        body(v, node.body)
        v.names.pop(LEFT, None)
        ended, rest = v.names.get(ENDED), items[i + 1:]
        if ended is None:
            continue
        if ended is not True and rest:
            branch = Branch(v, node)
            branch.run(1, partial(_rounds, v, node, rest), afresh=True)
            branch.finish(ended, v.analysis.live_head[node])
        return


def _leave(v: Visitor) -> None:
    """Go on behind a loop: where it returned, control has left the statements there, too."""
    v.names.pop(ENDED, None)
    returned = v.names.pop(RETURNED, None)
    if returned is not None:
        v.names[LEFT] = returned
        if v.loops:
            v.names[ENDED] = v.names[RETURNED] = returned


def _run_time_for(v: Visitor, node: ast.For, space: Any) -> None:
    if not isinstance(node.target, ast.Name):
        raise v.error(node.target, "the loop variable must be one name")
    lo, hi, step, mirrored = _bounds(v, node, space)

    def enter(index: Any) -> None:
        if mirrored is not None:
            v.at(node)
            index = mirrored - index
        assert isinstance(node.target, ast.Name)
        v.bind(node.target.id, index)

    if node in v.analysis.exits:
        _for_that_may_end(v, node, lo, hi, step, enter,
                          space.attributes.get("disable_licm", False))
        return
    carried = _Carried(v, node)
    block = Block([lo.handle.type], [node.target.id if mirrored is None else ""])
    args = [block.add_arg(t) for t in carried.types]
    v.names = carried.enter(args)
    with v.context.inside(block):
        enter(tensor(block.args[0]))
        _round(v, node)
        yields = carried.leave(v.names)
    kept = _unchanged(args, carried.init, yields)
    _remove_others(block, args, kept)
    block.insert(ops.Yield([yields[i] for i in kept], loc=v.builder.loc))
    op = v.builder.insert(ops.For(lo.handle, hi.handle, step.handle,
                                  [carried.init[i] for i in kept], body=block,
                                  loc=v.location(node), **space.attributes))
    v.names = carried.after(_spread(carried.init, kept, op.results))


def _round(v: Visitor, node: ast.For | ast.While) -> None:
    """Run the body of a loop once."""
    v.loops += 1
    body(v, node.body)
    v.loops -= 1
    v.names.pop(LEFT, None)
    v.at(node)


# -- loops that may end in the middle of a round ----------------------------------------------

def _for_that_may_end(v: Visitor, node: ast.For, lo: Any, hi: Any, step: Any,
                      enter: Callable[[Any], None], disable_licm: bool) -> None:
    remark(v.location(node), "loop", "it may end in the middle of a round, by `break` or "
           "`return`: a `while`, which is not pipelined")
    v.at(node)
    unsigned = dt.from_name(f"u{lo.dtype.primitive_bitwidth}")

    def more(index: tensor) -> tensor:
        left: Any = cast(hi - index, unsigned)  # 1 or more, in a round
        result: tensor = left > cast(step, unsigned)
        return result

    first: Any = lo < hi
    if step.handle.op is None or not isinstance(step.handle.op, ops.Constant):
        first = first & (step > 0)
    _while_that_may_end(v, node, first, lo, enter, lambda i: (more(i), i + step), disable_licm)


def _while_that_may_end(v: Visitor, node: ast.For | ast.While, first: tensor, index: tensor | None,
                        enter: Callable[[Any], None], more: Callable[[Any], Any],
                        disable_licm: bool) -> None:
    """A loop whose rounds say at their end whether there is another: not where one has ended it.

    first: whether there is a round. index: the first value of what `enter` binds in each round, if
    anything. more: gives, at the end of a round, whether there is another as far as the loop itself
    says; with an index also the next one, and then only computes.
    """
    carried = _Carried(v, node)
    init = [first.handle, *([] if index is None else [index.handle])]
    own = len(init)
    init += carried.init
    before, after = Block([x.type for x in init]), Block([x.type for x in init])
    v.names = carried.enter(after.args[own:])
    with v.context.inside(after):
        if index is not None:
            enter(tensor(after.args[1]))
        _round(v, node)
        yields = _next(v, node, None if index is None else tensor(after.args[1]), more)
        returned, result = v.names.pop(RETURNED, None), v.names.pop(RESULT, None)
        yields += carried.leave(v.names)
        leaves: list[Value] = []
        if returned is not None:
            leaves.append(_as_tensor(returned).handle)
        tree = split(result, leaves)
        after.insert(ops.Yield([*yields, *leaves], loc=v.builder.loc))
    for leaf in leaves:
        init.append(zero(v.builder, leaf.type))
        before.add_arg(leaf.type)
        after.add_arg(leaf.type)
    before.insert(ops.Condition(before.args[0], before.args, loc=v.location(node)))
    op = v.builder.insert(ops.While(init, before=before, after=after, loc=v.location(node),
                                    disable_licm=disable_licm))
    behind = own + len(carried.init)
    v.names = carried.after(op.results[own:behind])
    if returned is not None:
        v.names[RETURNED] = tensor(op.results[behind])
        v.names[RESULT] = rebuild(tree, op.results[behind:], "result")
    _leave(v)


def _next(v: Visitor, node: ast.For | ast.While, index: tensor | None,
          more: Callable[[Any], Any]) -> list[Value]:
    """Whether there is another round, and its index if there is one."""
    ended = v.names.pop(ENDED, None)
    if index is not None:
        go, following = more(index)
        if ended is not None:
            over: Any = _as_tensor(ended)
            go = go & ~over
        return [go.handle, following.handle]
    if ended is None:
        return [_as_tensor(more(None)).handle]
    if ended is True:
        return [_as_tensor(False).handle]
    branch = Branch(v, node)

    def ask() -> None:
        v.names[MORE] = more(None)

    branch.run(1, ask)
    branch.finish(ended, v.analysis.live_head[node])
    return [_as_tensor(v.names.pop(MORE)).handle]


def _as_tensor(flag: Any) -> tensor:
    return flag if isinstance(flag, tensor) else constant(flag, dt.int1)


def _unchanged(args: Sequence[Value], init: Sequence[Value], yields: list[Value]) -> list[int]:
    """Make the values that every iteration passes on as they are, use what was before the loop;
    the indices of the others."""
    kept = [i for i, arg in enumerate(args) if yields[i] is not arg]
    for i in set(range(len(args))).difference(kept):
        args[i].replace_by(init[i])
        yields[:] = [init[i] if y is args[i] else y for y in yields]
    return kept


def _remove_others(block: Block, args: Sequence[Value], kept: list[int]) -> None:
    for i in reversed(range(len(args))):
        if i not in kept:
            block.remove_arg(args[i].index)


def _spread(init: Sequence[Value], kept: list[int], results: Sequence[Value]) -> list[Value]:
    """The values after the loop: results of those kept, else what was before it."""
    out = list(init)
    for i, result in zip(kept, results, strict=True):
        out[i] = result
    return out


def _bounds(v: Visitor, node: ast.For, space: Any) -> tuple[tensor, tensor, tensor, tensor | None]:
    """lo, hi and step as scalars of one type. A negative constant step is mirrored: the loop then
    counts up from 0, and the fourth value minus its index is the author's variable."""
    v.at(node.iter)
    step = plain(space.step)
    if step is not RUN_TIME and step == 0:
        raise v.error(node.iter, "the step of a loop must not be 0")
    given = (space.lo, space.hi, space.step)
    t: dt.dtype | None = None
    for x in given:
        if isinstance(x, tensor) and x.shape or not (isinstance(x, tensor) or is_number(x)):
            raise v.error(node.iter, f"a loop bound is {describe(x)}, expected an integer")
        if not isinstance(x, tensor):
            continue
        t = x.dtype if t is None else promote(t, x.dtype)
        if t is None or not t.is_int() or t.is_bool():
            raise v.error(node.iter, f"a loop bound is {describe(x)}, expected an integer",
                          "convert it by `.to(tl.int32)`")
    for x in given:
        if not isinstance(x, tensor):
            if isinstance(x, float):
                raise v.error(node.iter, f"a loop bound is the number {x!r}, expected an integer",
                              "use // for integer division")
            own = literal_dtype(int(x))
            t = own if t is None else promote(t, own)
    if step is not RUN_TIME and step < 0:
        return _mirror(v, given, t, step)
    assert t is not None
    lo, hi, by = (x if isinstance(x, tensor) and x.dtype == t else
                  constant(x, number_dtype(x, t)) if is_number(x) else cast(x, t) for x in given)
    if step is RUN_TIME and not isinstance(by.handle.op, ops.NumPrograms):
        _expect_to_count_up(v, node, lo, hi, by)
    return lo, hi, by, None


def _expect_to_count_up(v: Visitor, node: ast.For, lo: Any, hi: Any, step: Any) -> None:
    """Say of a step that is known at run time only what holds of it, and check it in debug builds;
    in others the interpreter does."""
    remark(v.location(node.iter), "loop", "the step is known at run time only: compiled code runs "
           "no round where it is 0 or less")
    if v.context.options.get("debug") or node in v.analysis.exits:
        holds = (step > 0) | ((step < 0) & (lo <= hi))
        v.builder.insert(ops.Assert(holds.handle, loc=v.location(node.iter), message="the step of "
                                    "a loop is 0 or less, and not a constexpr"))


def _mirror(v: Visitor, given: tuple[Any, ...], t: Any, step: int) -> Any:
    if t.is_int_unsigned():
        t = dt.int64
    lo, hi = (cast(x, t) if isinstance(x, tensor) else constant(x, t) for x in given[:2])
    count: Any = lo
    return constant(0, t), count - hi, constant(-step, t), lo


# -- while ----------------------------------------------------------------------------------------

@handles(ast.While)
def visit_while(v: Visitor, node: ast.While) -> None:
    """`while` over a run-time condition."""
    if node.orelse:
        raise v.error(node.orelse[0], "`else` of a loop is not supported in a kernel",
                      "put its statements after the loop")
    if node in v.analysis.exits:
        _while_with_exits(v, node)
        return
    carried = _Carried(v, node)
    before, after = Block(carried.types), Block(carried.types)
    v.names = carried.enter(before.args)
    with v.context.inside(before):
        test, disable_licm = _test(v, node)
        if isinstance(test, bool):
            _static_while(v, node, carried, test)
            return
        cond = test.handle
    v.names = carried.enter(after.args)
    with v.context.inside(after):
        _round(v, node)
        yields = carried.leave(v.names)
    ins, outs = list(before.args), list(after.args)
    kept = _unchanged(outs, carried.init, yields)
    for i in set(range(len(ins))).difference(kept):
        ins[i].replace_by(carried.init[i])
        cond = carried.init[i] if cond is ins[i] else cond
    _remove_others(before, ins, kept)
    _remove_others(after, outs, kept)
    before.insert(ops.Condition(cond, before.args, loc=v.location(node.test)))
    after.insert(ops.Yield([yields[i] for i in kept], loc=v.builder.loc))
    op = v.builder.insert(ops.While([carried.init[i] for i in kept], before=before, after=after,
                                    loc=v.location(node), disable_licm=disable_licm))
    v.names = carried.after(_spread(carried.init, kept, op.results))


def _test(v: Visitor, node: ast.While) -> tuple[bool | tensor, bool]:
    """The condition, and whether its author wants nothing moved out of the loop."""
    test, disable_licm = v.visit(node.test), False
    if isinstance(test, control.condition):
        test, disable_licm = test.value, test.disable_licm
    known = truth(v, node.test, test)
    return condition(v, node.test, test, "while") if known is None else known, disable_licm


def _while_with_exits(v: Visitor, node: ast.While) -> None:
    """The condition is computed before the loop, and again at the end of each round."""
    first, disable_licm = _test(v, node)
    if first is not False:
        _while_that_may_end(v, node, _as_tensor(first), None, lambda index: None,
                            lambda index: _test(v, node)[0], disable_licm)


def _static_while(v: Visitor, node: ast.While, carried: _Carried, known: bool) -> None:
    v.names = carried.before
    if known:
        raise v.error(node.test, "this condition holds at compile time, so the loop never ends",
                      "make the condition depend on a name that the body assigns")


# -- assignment to targets ------------------------------------------------------------------------

def assign(v: Visitor, target: ast.expr, value: Any, keep_numbers: bool = False) -> None:
    """Bind a target; numbers become tensors of their literal's type unless `keep_numbers`."""
    if isinstance(target, ast.Name):
        if is_number(value) and not keep_numbers:
            value = to_tensor(value)
        v.bind(target.id, value)
        return
    if isinstance(target, (ast.Tuple, ast.List)):
        _unpack(v, target, value, keep_numbers)
        return
    if isinstance(target, ast.Subscript):
        raise v.error(target, "a tile cannot be assigned to by element",
                      "build the new tile with tl.where(mask, new, old); to write memory use "
                      "tl.store(ptr, value)")
    if isinstance(target, ast.Attribute):
        raise v.error(target, "attributes cannot be assigned in a kernel", "use a local name")
    raise v.error(target, "this assignment target is not supported", "assign to plain names")


def _unpack(v: Visitor, target: ast.Tuple | ast.List, value: Any, keep_numbers: bool) -> None:
    value = plain(value) if not isinstance(value, tensor) else value
    if not isinstance(value, (tuple, list)):
        raise v.error(target, f"cannot unpack {describe(value)} into {len(target.elts)} names",
                      "a tile is one value; tl.split or a function that returns a tuple gives "
                      "several" if isinstance(value, tensor) else "")
    starred = [i for i, t in enumerate(target.elts) if isinstance(t, ast.Starred)]
    if starred:
        raise v.error(target.elts[starred[0]], "`*` in an assignment target is not supported",
                      "name every element")
    if len(value) != len(target.elts):
        raise v.error(target, f"{len(value)} values for {len(target.elts)} names",
                      "give one name to each value")
    for t, x in zip(target.elts, value, strict=True):
        assign(v, t, x, keep_numbers)
