"""Lowering of reductions and scans: within a thread, then by shuffles in a warp, then by shared
memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilec.codegen.combine import identity, inline, single_op
from tilec.codegen.context import CodeGen, fragment_of, lower
from tilec.codegen.emit import Reg
from tilec.codegen.memory import live_register
from tilec.codegen.shuffle import ALL_LANES, butterfly
from tilec.ir import ops
from tilec.ir.core import Op, Value
from tilec.ir.scratch import (
    LANE_BITS,
    Partials,
    ReducePlan,
    Run,
    padding_counts,
    partial_areas,
    reduce_plan,
    scan_plan,
)
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
    if plan.partials.warps:
        values = _across_warps(cg, op, plan, values, combine)
    for result, value in zip(op.results, values, strict=False):
        cg.set(result, value)


def _prepared(cg: CodeGen, op: ops.Combining) -> tuple[list[Reg], Combine]:
    """Operands and combination, such that elements beyond the extent do not count."""
    e, values = cg.e, [cg.whole(v) for v in op.inputs]

    def combine(a: Sequence[Reg], b: Sequence[Reg]) -> list[Reg]:
        dbg = e.dbg
        out = inline(cg, op.body, [*a, *b])
        e.dbg = dbg
        return out

    if not padding_counts(op):
        return values, combine
    live = _live(cg, op.inputs[0])
    neutral = identity(single_op(op.body))
    if neutral is not None:
        fill = e.const(neutral, values[0].elem, values[0].n)
        return [e.select(live, values[0], fill)], combine

    def flagged(a: Sequence[Reg], b: Sequence[Reg]) -> list[Reg]:
        (*left, fa), (*right, fb) = a, b
        together = combine(left, right)
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

    def part(of: Sequence[Reg], start: int, stop: int) -> list[Reg]:
        return [e.gather(v, range(start * rows, stop * rows)) for v in of]

    def into(a: list[Reg], b: list[Reg], n: int, m: int) -> list[Reg]:
        """The m members of b combined into the first of the n of a."""
        out = combine(part(a, 0, m), b)
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
    """Every thread loads a few warps' partial results, others of its warp the rest, which meet by
    shuffles."""
    partials = plan.partials
    helpers = plan.lanes[:max(0, len(partials.warps) - LOADED.bit_length() + 1)]
    loaded = _exchanged(cg, op, partials, 0, values, helpers)
    rows = len(partials.places)
    share = loaded[0].lanes // rows
    members = [[i * share + w for w in range(share)] for i in range(rows)]
    return _by_shuffles(cg, _in_thread(cg, loaded, members, combine), helpers, combine)


# Partial results of warps that one thread loads.
LOADED = 4


def _exchanged(cg: CodeGen, op: ops.Combining, partials: Partials, number: int,
               values: Sequence[Reg], helpers: Sequence[int] = ()) -> list[Reg]:
    """Every warp leaves its partial results in scratch, the op's areas of this number; then every
    thread loads those of its places, of each the share that its bits in `helpers` select."""
    e, count = cg.e, 1 << len(partials.warps)
    own = [p * count for p in partials.thread_places]
    place = list(own)
    copies = sum(1 << b for b, p in enumerate(own) if not p and b not in partials.warps)
    for k, bit in enumerate(partials.warps):
        own[bit] |= 1 << k
    at = cg.thread_bits(own)
    bases = []
    with e.when(cg.is_thread(copies) if copies else None, "partial"):
        for value, area in zip(values, partial_areas(op)[0][number], strict=False):
            stored = e.as_stored(value)
            size, base = stored.bits // 8, op.offset + area
            bases.append((stored.elem, size, base))
            pointer = cg.shared_address(base, e.int_op("shl", at, size.bit_length() - 1))
            for i, lane in enumerate(e.lane_list(stored)):
                e.store(lane, cg.shift(pointer, partials.places[i] * count * size), size)
    cg.barrier()
    share = count >> len(helpers)
    for k, bit in enumerate(helpers):
        place[bit] = share << k
    loaded = []
    thread = cg.thread_bits(place)
    for (elem, size, base), value in zip(bases, values, strict=True):
        pointer = cg.shared_address(base, e.int_op("shl", thread, size.bit_length() - 1))
        parts = [e.load(cg.shift(pointer, start * count * size), elem, share, min(16, share * size))
                 for start in partials.places]
        loaded.append(e.as_held(e.concat(parts), value.elem))
    return loaded


def _by_shuffles(cg: CodeGen, values: list[Reg], lanes: Sequence[int], combine: Combine
                 ) -> list[Reg]:
    """Values combined over lanes that differ in these index bits."""
    for bit in lanes:
        values = combine(values, [butterfly(cg.e, v, 1 << bit) for v in values])
    return values


# ---- scans
@lower(ops.Scan)
def _scan(cg: CodeGen, op: ops.Scan) -> None:
    src = op.inputs[0].type
    assert isinstance(src, Tensor)
    plan = scan_plan(src, op.axis, op.reverse)
    values, combine = _prepared(cg, op)
    order = [m[j] for j in range(len(plan.members[0])) for m in plan.members]
    scan = _Scan(cg, op, combine, len(plan.members), [cg.e.gather(v, order) for v in values])
    for run in plan.runs:
        scan.join(run)
    back = [order.index(r) for r in range(len(order))]
    for result, value in zip(op.results, scan.prefixes, strict=False):
        cg.set(result, cg.e.gather(value, back))


class _Scan:
    """A scan under way, run after run of what the place along the axis is made of.

    The elements of blocks that have the same place in the runs to come are combined already:
    `prefixes` has for each register what its own block has up to it, `totals` what each block has
    in all. Their lanes are [registers along the axis, or blocks][rows]; one of `blocks` has `size`
    of the thread's registers.
    """

    def __init__(self, cg: CodeGen, op: ops.Scan, combine: Combine, rows: int,
                 values: list[Reg]) -> None:
        self.cg, self.op, self.combine, self.rows = cg, op, combine, rows
        self.prefixes = self.totals = values
        self.size, self.exchanges = 1, 0

    def join(self, run: Run) -> None:
        """Blocks that differ in the run's place alone become one."""
        if not run.bits:
            self._registers(run.size)
            return
        at = self._place(run)
        before = self._lanes(run, at) if run.partials is None else \
            self._warps(run, run.partials, at)
        e, rows = self.cg.e, self.rows
        blocks = [j // self.size * rows + row for j in range(self.prefixes[0].lanes // rows)
                  for row in range(rows)]
        joined = self.combine([e.gather(v, blocks) for v in before], self.prefixes)
        self.prefixes = self._select(self._test("ne", at, 0), joined, self.prefixes)

    def _registers(self, size: int) -> None:
        e, rows, of_block = self.cg.e, self.rows, self.size
        groups = self.totals[0].lanes // (rows * size)

        def part(i: int) -> list[Reg]:
            lanes = [(g * size + i) * rows + row for g in range(groups) for row in range(rows)]
            return [e.gather(v, lanes) for v in self.totals]

        sums = [part(0)]  # of the first i + 1 blocks of each group
        for i in range(1, size):
            sums.append(self.combine(sums[-1], part(i)))
        flat = [e.concat(list(parts)) for parts in zip(*sums, strict=True)]
        # What lies before block i of a group is sums[i - 1]; that of a register is all it wants.
        count = groups * size * of_block
        index = [(j // of_block % size, j // (of_block * size)) for j in range(count)]
        if self.prefixes is self.totals:
            self.prefixes = [e.gather(v, [(i * groups + g) * rows + row for i, g in index
                                          for row in range(rows)]) for v in flat]
        else:
            later = [(j, (i - 1) * groups + g) for j, (i, g) in enumerate(index) if i]
            before = [e.gather(v, [b * rows + row for _, b in later for row in range(rows)])
                      for v in flat]
            old = [e.gather(v, [j * rows + row for j, _ in later for row in range(rows)])
                   for v in self.prefixes]
            places = {j: count + k for k, (j, _) in enumerate(later)}
            back = [places.get(j, j) * rows + row for j in range(count) for row in range(rows)]
            self.prefixes = [e.gather(e.concat([v, new]), back) for v, new in
                             zip(self.prefixes, self.combine(before, old), strict=True)]
        self.totals, self.size = sums[-1], of_block * size

    def _lanes(self, run: Run, at: Reg) -> list[Reg]:
        """What lies before each block in its run, of no meaning where nothing does."""
        before = self.totals
        for step, bit in enumerate(run.bits):
            other = [butterfly(self.cg.e, v, 1 << bit) for v in self.totals]
            later = self._test("ne", at, 0, 1 << step)
            mine = other
            if step:
                some = self._test("ne", at, 0, (1 << step) - 1)
                mine = self._select(some, self.combine(other, before), other)
            before = self._select(later, mine, before)
            self.totals = self.combine(self._select(later, other, self.totals),
                                       self._select(later, self.totals, other))
        return before

    def _warps(self, run: Run, partials: Partials, at: Reg) -> list[Reg]:
        """The same of blocks in several warps, through shared memory."""
        e, size = self.cg.e, run.size
        loaded = _exchanged(self.cg, self.op, partials, self.exchanges, self.totals)
        self.exchanges += 1
        parts = [[e.gather(v, range(w, v.lanes, size)) for v in loaded] for w in range(size)]
        first, *rest = parts[::-1] if self.op.reverse else parts
        before = self.totals = first
        for w, part in enumerate(rest, 1):
            before = self._select(self._test("uge", at, w), self.totals, before)
            self.totals = self.combine(self.totals, part)
        return before

    # ---- places
    def _place(self, run: Run) -> Reg:
        """The thread's place in a run of lanes or warps, counted in the order of the scan."""
        columns = [0] * (LANE_BITS + (self.cg.num_warps - 1).bit_length())
        for k, bit in enumerate(run.bits):
            columns[bit] = 1 << k
        at = self.cg.thread_bits(columns)
        return self.cg.e.int_op("xor", at, run.size - 1) if self.op.reverse else at

    def _test(self, predicate: str, at: Reg, value: int, mask: int = -1) -> Reg:
        e = self.cg.e
        bits = e.int_op("and", at, mask) if mask != -1 else at
        return e.compare(predicate, bits, e.const(value, "i32"))

    def _select(self, cond: Reg, a: Sequence[Reg], b: Sequence[Reg]) -> list[Reg]:
        return [self.cg.e.select(cond, x, y) for x, y in zip(a, b, strict=True)]
