"""Remove layout conversions, each of which costs a trip through shared memory.

Forward: the layouts of memory accesses and dots flow to the values computed from them. Backward:
what still needs conversion is computed anew in the layout wanted, or converted where it is smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

from tilec.ir import ops
from tilec.ir.conversion import NoOp, Registers
from tilec.ir.core import Block, Builder, Func, Module, Op, Value
from tilec.ir.layouts import Layout, Mma, RegisterLayout, Slice, spread_over_lanes
from tilec.ir.ops.base import Anchor
from tilec.ir.ops.memory import MemoryOp
from tilec.ir.scratch import move_plan, tile_registers
from tilec.ir.types import Tensor, Type, layout_of, linear_shape, shape_of, with_layout
from tilec.passes.base import Pass
from tilec.passes.coalesce import BY_POINTER, OF_BUFFER
from tilec.passes.layout.edits import convert, fits, legalize, remove_identities
from tilec.passes.layout.pins import pinned
from tilec.passes.layout.rules import forward_rule, needs_rule

ANCHORS = (*BY_POINTER, *OF_BUFFER, ops.Dot)
# What a conversion costs against one simple op an element: a store, a load and their addresses
# per element, and a barrier (in elements).
CONVERT_ELEMENT, CONVERT_FIXED = 6, 256
WARPGROUP_THREADS = 128
HEAVY = 8  # simple ops that a math function counts for
# A layout's weight an element of the tile that vouches for it. What flows around a loop into a dot
# must not be converted in every turn; a buffer is read in another layout at no cost but conflicts.
DOT_WEIGHT, MEMORY_WEIGHT, BUFFER_WEIGHT = 4, 2, 1


class RemoveLayoutConversions(Pass):
    """Forward propagation, then backward rematerialisation.

    convert(add(convert(%x : #a to #d), %y) : #d to #a) --> add(%x, convert(%y))
    """

    def run(self, module: Module) -> None:
        remove_identities(module)
        for func in module.funcs:
            for value, layout in _Propagation(func, pinned(func, module.num_warps)).solve().items():
                value.type = with_layout(value.type, layout)
        legalize(module)
        remove_identities(module)
        for func in module.funcs:
            for op in reversed([o for o in func.walk() if isinstance(o, ops.ConvertLayout)]):
                if op.parent is not None:
                    rematerialize(op)
        remove_identities(module)


@dataclass
class _Propagation:
    """Layouts that flow forward from anchors; a value may be reached by several."""

    func: Func
    pins: dict[Value, Layout]
    # value -> layout -> the largest tile that vouches for it
    found: dict[Value, dict[Layout, int]] = field(default_factory=dict)
    work: list[tuple[Value, Layout, int]] = field(default_factory=list)

    def solve(self) -> dict[Value, Layout]:
        """The layout chosen for each value that any anchor reaches."""
        becomes: dict[Value, list[Value]] = {}
        for value, pin in self.pins.items():
            self.reach(value, pin, DOT_WEIGHT * prod(shape_of(value.type)))
        for op in self.func.walk():
            if isinstance(op, ops.ControlFlow):
                for target, source in op.flow():
                    becomes.setdefault(source, []).append(target)
            if isinstance(op, ANCHORS):
                for r in op.results:
                    layout = layout_of(r.type)
                    if layout is not None:
                        weight = DOT_WEIGHT if isinstance(op, ops.Dot) else BUFFER_WEIGHT \
                            if isinstance(op, OF_BUFFER) else MEMORY_WEIGHT
                        self.reach(r, layout, weight * prod(shape_of(r.type)))
                for v in (op.ptr, op.mask) if isinstance(op, MemoryOp) else ():
                    layout = layout_of(v.type) if v is not None else None
                    if v is not None and isinstance(v.op, ops.ConvertLayout) and layout is not None:
                        for arg, wanted in carried_sources(v.op.x, layout):
                            self.reach(arg, wanted, MEMORY_WEIGHT * prod(shape_of(arg.type)))
        while self.work:
            value, layout, weight = self.work.pop()
            for target in becomes.get(value, ()):
                self.reach(target, layout, weight)
            for user in value.users:
                self.flow(user, layout, weight)
        return {v: max(options, key=lambda k: options[k]) for v, options in self.found.items()}

    def reach(self, value: Value, layout: Layout, weight: int) -> None:
        if not isinstance(value.type, Tensor) or self.pins.get(value, layout) != layout:
            return
        options = self.found.setdefault(value, {})
        if options.get(layout, -1) < weight:
            options[layout] = weight
            self.work.append((value, layout, weight))

    def flow(self, user: Op, layout: Layout, weight: int) -> None:
        if isinstance(user, ANCHORS):
            return
        if isinstance(user, ops.ConvertLayout) and any(
                isinstance(u, ANCHORS) for u in user.result.users):
            return
        out = forward_rule[type(user)](user, layout)
        if out is not None:
            for r in user.results:
                self.reach(r, out, weight)


def carried_sources(value: Value, layout: Layout) -> Iterator[tuple[Value, Layout]]:
    """The carried values of loops that an address or mask is made of, each in the layout that it
    needs for `value` to have `layout`: they may as well go round the loop in it."""
    work, seen = [(value, layout)], set()
    while work:
        key = value, layout = work.pop()
        if key in seen or not isinstance(value.type, Tensor):
            continue
        seen.add(key)
        if isinstance(value.owner, Block):
            if isinstance(value.owner.owner, ops.For):
                yield key
        elif value.owner.pure and not value.owner.regions and len(value.owner.results) == 1:
            work += _tiles_needed(value.owner, layout)


# -- backward -----------------------------------------------------------------------------------


@dataclass
class _Slice:
    """A plan to compute `root` in another layout: ops to copy, values to convert instead.

    spread: for loads, the layout to load in; the result is converted within warps."""

    copies: dict[tuple[Value, Layout], Op] = field(default_factory=dict)
    spread: dict[tuple[Value, Layout], Layout] = field(default_factory=dict)
    conversions: dict[tuple[Value, Layout], None] = field(default_factory=dict)
    cost: int = 0


def conversion_cost(value: Value) -> int:
    """What converting a tile costs, in simple ops on an element."""
    return prod(shape_of(value.type)) * CONVERT_ELEMENT + CONVERT_FIXED


def rematerialize(op: ops.ConvertLayout) -> bool:
    """Replace a conversion by computing its operand in the result's layout, if that is cheaper."""
    layout = layout_of(op.result.type)
    assert layout is not None
    if isinstance(layout_of(op.x.type), Mma) and _stays_in_thread(op):
        return False
    plan = _Slice()
    limit = conversion_cost(op.x)
    if not _plan(op.x, layout, plan, limit) or (op.x, layout) in plan.conversions:
        return False
    op.replace_by([_apply(op.x, layout, plan)])
    return True


def _stays_in_thread(op: ops.ConvertLayout) -> bool:
    """Whether the conversion only renames registers: a dot's result as operand of the next."""
    src, dst = op.x.type, op.result.type
    assert isinstance(src, Tensor) and isinstance(dst, Tensor)
    return isinstance(move_plan(src, dst).plan, NoOp | Registers)


def _plan(value: Value, layout: Layout, plan: _Slice, limit: int) -> bool:
    """Add what `value` needs to the plan; False once it costs as much as the limit."""
    work = [(value, layout)]
    while work:
        key = value, layout = work.pop()
        if fits(value, layout) or key in plan.copies or key in plan.conversions or \
                key in plan.spread:
            continue
        small = _small_load(value, layout)
        if small and (few := _few_registers(value.type, layout)):
            plan.spread[key] = few
            key = value, layout = value, few
        source = value.op
        if isinstance(source, ops.ConvertLayout):
            work.append((source.x, layout))
            continue
        # A buffer may as well be read in the layout wanted.
        again = isinstance(source, ops.SharedLoad) and (len(value.users) == 1 or all(
            _converts_to(u, layout) for u in value.users))
        stays = source is None or source.regions or not (source.pure or again) or \
            isinstance(source, Anchor)
        if source is None or (stays and not small) or len(source.results) != 1:
            plan.conversions[key] = None
            plan.cost += conversion_cost(value)
        else:
            # An op whose only users are this conversion and its likes moves instead of being
            # copied.
            if len(value.uses) > 1 and not all(_converts_to(u, layout) for u, _ in value.uses):
                plan.cost += prod(shape_of(value.type)) * (HEAVY if _heavy(source) else 1)
            plan.copies[key] = source
            work += _tiles_needed(source, layout)
        if plan.cost >= limit:
            return False
    return True


def _small_load(value: Value, layout: Layout) -> bool:
    """Whether a value is loaded, with no more elements than a warpgroup has threads, for rows or
    columns of wgmma's results alone. Each warp may load all of it: a trip through shared memory
    would make warpgroups wait for each other."""
    parent = layout.parent if isinstance(layout, Slice) else None
    return isinstance(value.op, ops.Load) and not value.op.volatile and \
        isinstance(parent, Mma) and parent.version == 3 and \
        prod(shape_of(value.type)) <= WARPGROUP_THREADS and len(value.uses) == 1


def _few_registers(t: Type, layout: Layout) -> Layout | None:
    """The layout in which a warp loads a small tile, if that saves three registers of four: ptxas
    starts loads late, for a thread to have registers for their results."""
    assert isinstance(t, Tensor) and isinstance(layout, RegisterLayout)
    few = spread_over_lanes(layout, linear_shape(t.shape))
    saves = 4 * tile_registers(replace(t, layout=few)) <= tile_registers(replace(t, layout=layout))
    return few if saves else None


def _converts_to(op: Op, layout: Layout) -> bool:
    return isinstance(op, ops.ConvertLayout) and fits(op.result, layout)


def _heavy(op: Op) -> bool:
    return isinstance(op, (ops.MathUnary, ops.Div, ops.Rem, ops.Reshape))


def _needs_if(op: Op, layout: Layout) -> list[Layout | None]:
    """The operand layouts that `op` would need if its result had `layout`."""
    old = op.results[0].type
    op.results[0].type = with_layout(old, layout)
    try:
        return list(needs_rule[type(op)](op))
    finally:
        op.results[0].type = old


def _tiles_needed(op: Op, layout: Layout) -> list[tuple[Value, Layout]]:
    """The tiles among the operands, and the layouts that they need for the result to have one."""
    return [(v, need) for v, need in zip(op.operands, _needs_if(op, layout), strict=True)
            if need is not None and isinstance(v.type, Tensor)]


def _apply(root: Value, wanted: Layout, plan: _Slice) -> Value:
    """Carry a plan out; the root in the layout wanted."""
    made: dict[tuple[Value, Layout], Value] = {}
    work = [(root, wanted)]
    while work:
        key = value, layout = work[-1]
        source = value.op
        needed: list[tuple[Value, Layout]] = []
        if key in plan.spread:
            needed = [(value, plan.spread[key])]
        elif key not in made and key not in plan.conversions and not fits(value, layout):
            assert source is not None
            needed = [(source.x, layout)] if isinstance(source, ops.ConvertLayout) else \
                _tiles_needed(source, layout)
        missing = [k for k in needed if k not in made]
        if missing:
            work += reversed(missing)
            continue
        work.pop()
        if key in made:
            continue
        if fits(value, layout):
            made[key] = value
        elif key in plan.spread:
            made[key] = _convert_after(made[needed[0]], layout)
        elif key in plan.conversions:
            made[key] = _convert_after(value, layout)
        elif isinstance(source, ops.ConvertLayout):
            made[key] = made[source.x, layout]
        else:
            made[key] = _copy_in(value, layout, {v: made[v, need] for v, need in needed})
    return made[root, wanted]


def _copy_in(value: Value, layout: Layout, operands: dict[Value, Value]) -> Value:
    """A copy of the op that makes `value`, with its result in a layout."""
    source = value.op
    assert source is not None and source.parent is not None
    copy = source.clone(operands)
    copy.results[0].type = with_layout(copy.results[0].type, layout)
    source.parent.insert(copy, source.next)
    return copy.results[0]


def _convert_after(value: Value, layout: Layout) -> Value:
    owner = value.owner
    if isinstance(owner, Block):
        return convert(value, layout, Builder(owner, owner.first))
    return convert(value, layout, Builder(owner.parent, owner.next, owner.loc))
