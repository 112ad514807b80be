"""Lowering of reductions: within a thread, then by shuffles in a warp, then by shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilec.codegen.combine import identity, inline, single_op
from tilec.codegen.context import CodeGen, fragment_of, lower
from tilec.codegen.emit import Reg
from tilec.codegen.memory import live_register
from tilec.codegen.shuffle import ALL_LANES, butterfly
from tilec.ir import ops
from tilec.ir.core import Op, Value
from tilec.ir.scratch import ReducePlan, reduce_areas, reduce_plan
from tilec.ir.types import Tensor, scalar_of

Combine = Callable[[Sequence[Reg], Sequence[Reg]], list[Reg]]


@lower(ops.Reduce)
def _reduce(cg: CodeGen, op: ops.Reduce) -> None:
    src = op.inputs[0].type
    assert isinstance(src, Tensor)
    plan = reduce_plan(src, op.axis)
    values, combine = _prepared(cg, op)
    values = _in_thread(cg, values, plan.members, combine)
    redux = _redux_name(cg, op, plan)
    if redux is not None:
        values = [cg.e.per_lane(lambda v: cg.e.call(redux, "i32", 0, (
            v, cg.e.const(ALL_LANES, "i32"))), values[0])]
    else:
        values = _by_shuffles(cg, values, plan.lanes, combine)
    if plan.warps:
        values = _across_warps(cg, op, plan, values, combine)
    for result, value in zip(op.results, values, strict=False):
        cg.set(result, value)


def _prepared(cg: CodeGen, op: ops.Reduce) -> tuple[list[Reg], Combine]:
    """Operands and combination, such that elements beyond the extent do not count."""
    values = [cg.whole(v) for v in op.inputs]

    def combine(a: Sequence[Reg], b: Sequence[Reg]) -> list[Reg]:
        return inline(cg, op.body, [*a, *b])

    frag = fragment_of(op.inputs[0])
    if op.axis not in frag.padded_dims:
        return values, combine
    live = _live(cg, op.inputs[0])
    neutral = identity(single_op(op.body))
    if neutral is not None:
        fill = cg.e.const(neutral, values[0].elem, values[0].n)
        return [cg.e.select(live, values[0], fill)], combine

    def flagged(a: Sequence[Reg], b: Sequence[Reg]) -> list[Reg]:
        e = cg.e
        (*left, fa), (*right, fb) = a, b
        together = inline(cg, op.body, [*left, *right])
        two = e.binary("and", fa, fb)
        return [*(e.select(two, t, e.select(fa, x, y))
                  for t, x, y in zip(together, left, right, strict=True)), e.binary("or", fa, fb)]

    return [*values, live], flagged


def _live(cg: CodeGen, value: Value) -> Reg:
    """Per register, whether its coordinates lie inside the tile."""
    frag = fragment_of(value)
    lanes = []
    for r in range(frag.num_registers):
        inside = live_register(cg, frag, r)
        lanes.append(cg.e.const(True, "i1") if inside is None else inside)
    return cg.e.build(lanes)


# Partial results that a thread keeps side by side: enough to hide the latency of an op, and few,
# so that a reduction does not hold its whole operand in registers.
WIDTH = 8


def _in_thread(cg: CodeGen, values: Sequence[Reg], members: Sequence[Sequence[int]],
               combine: Combine) -> list[Reg]:
    """Registers members[i] of every value combined into lane i: chunk after chunk into WIDTH
    running results, which are then halved."""
    e, rows, count = cg.e, len(members), len(members[0])
    order = [m[j] for j in range(count) for m in members]
    flat = [e.gather(v, order) for v in values]
    dbg = e.dbg

    def part(of: Sequence[Reg], start: int, stop: int) -> list[Reg]:
        return [e.gather(v, range(start * rows, stop * rows)) for v in of]

    def into(a: list[Reg], b: list[Reg], n: int, m: int) -> list[Reg]:
        """The m members of b combined into the first of the n of a."""
        out = combine(part(a, 0, m), b)
        e.dbg = dbg
        rest = part(a, m, n) if m < n else None
        return out if rest is None else [e.concat([v, r]) for v, r in zip(out, rest, strict=True)]

    width = max(1, min(count, WIDTH // rows))
    out = part(flat, 0, width)
    for start in range(width, count, width):
        stop = min(start + width, count)
        out = into(out, part(flat, start, stop), width, stop - start)
    while width > 1:
        half = width // 2
        out = into(part(out, 0, width - half), part(out, width - half, width), width - half, half)
        width -= half
    return out


_REDUX: dict[type[Op], str] = {
    ops.Add: "add", ops.And: "and", ops.Or: "or", ops.Xor: "xor", ops.Minimum: "min",
    ops.Maximum: "max"}


def _redux_name(cg: CodeGen, op: ops.Reduce, plan: ReducePlan) -> str | None:
    """The one instruction that reduces 32-bit integers over a whole warp."""
    single = single_op(op.body)
    kind = None if single is None else _REDUX.get(type(single))
    if kind is None or len(plan.lanes) != 5 or not cg.target.has("redux.sync"):
        return None
    t = scalar_of(op.inputs[0].type)
    if t.is_float or t.bits != 32:
        return None
    sign = "u" if kind in ("min", "max") and not t.is_signed else ""
    return f"llvm.nvvm.redux.sync.{sign}{kind}"


def _across_warps(cg: CodeGen, op: ops.Reduce, plan: ReducePlan, values: Sequence[Reg],
                  combine: Combine) -> list[Reg]:
    """Every warp leaves its partial results in scratch; every thread combines those it needs."""
    e, count = cg.e, 1 << len(plan.warps)
    areas, _ = reduce_areas(op)
    own = [0] * len(plan.thread_places)
    for k, bit in enumerate(plan.warps):
        own[5 + bit] = 1 << k
    place = [p * count for p in plan.thread_places]
    free = fragment_of(op.inputs[0]).free_masks
    mask = free["lane"] | free["warp"] << 5 | sum(1 << b for b in plan.lanes)
    at = cg.thread_bits([p | o for p, o in zip(place, own, strict=True)])
    bases = []
    with e.when(cg.is_thread(mask) if mask else None, "partial"):
        for value, area in zip(values, areas, strict=False):
            stored = e.as_stored(value)
            size, base = stored.bits // 8, op.offset + area
            bases.append((stored.elem, size, base))
            pointer = cg.shared_address(base, e.int_op("shl", at, size.bit_length() - 1))
            for i, lane in enumerate(e.lane_list(stored)):
                e.store(lane, cg.shift(pointer, plan.places[i] * count * size), size)
    cg.barrier()
    # Each thread loads a few partial results, others of its warp the rest, which meet by shuffles.
    helpers = plan.lanes[:max(0, len(plan.warps) - LOADED.bit_length() + 1)]
    share = count >> len(helpers)
    for k, bit in enumerate(helpers):
        place[bit] = share << k
    loaded = []
    thread = cg.thread_bits(place)
    for (elem, size, base), value in zip(bases, values, strict=True):
        pointer = cg.shared_address(base, e.int_op("shl", thread, size.bit_length() - 1))
        parts = [e.load(cg.shift(pointer, start * count * size), elem, share, min(16, share * size))
                 for start in plan.places]
        loaded.append(e.as_held(e.concat(parts), value.elem))
    rows = len(plan.places)
    members = [[i * share + w for w in range(share)] for i in range(rows)]
    return _by_shuffles(cg, _in_thread(cg, loaded, members, combine), helpers, combine)


# Partial results of warps that one thread loads.
LOADED = 4


def _by_shuffles(cg: CodeGen, values: list[Reg], lanes: Sequence[int], combine: Combine
                 ) -> list[Reg]:
    """Values combined over lanes that differ in these index bits."""
    dbg = cg.e.dbg
    for bit in lanes:
        values = combine(values, [butterfly(cg.e, v, 1 << bit) for v in values])
        cg.e.dbg = dbg
    return values
