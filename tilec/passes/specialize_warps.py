"""specialize_warps: the loads of a loop get a warp of their own, which runs ahead through loops of
its own, as far as the ring of buffers has room."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import ops
from tilec.ir.accumulators import WARPGROUP_WARPS
from tilec.ir.core import Block, Builder, Func, Module, Op, Value
from tilec.ir.ops.hopper import WarpRole, WarpSpecialize, role_barriers
from tilec.ir.remarks import remark
from tilec.ir.tensor_maps import TensorMaps
from tilec.ir.types import Tensor, i32
from tilec.ir.warps import MAX_WARPS
from tilec.passes.base import Pass
from tilec.passes.dot_buffers import by_wgmma
from tilec.passes.expand import carry, later, number
from tilec.passes.nest import around, give
from tilec.passes.tma import Ring


class SpecializeWarps(Pass):
    """for i { x = descriptor_load(p_i) ; use(x) } {warp_specialize, num_stages = 3} -->
    warp_role { for i { wait(full[i % 3]) ; use(buf[i % 3]) ; arrive(empty[i % 3]) } }
    warp_role { for i { wait(empty[i % 3]) ; expect(full[i % 3]) ; tma_load(p_i, buf[i % 3]) } }

    The option may stand on the loop of the loads or on one around it. All that works on tiles
    goes into the first role, which keeps the warps there were; the second is one warp more.
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            asked = [op for op in func.walk() if isinstance(op, ops.For) and op.warp_specialize]
            for loop in asked:
                loop.warp_specialize = False
            if not asked:
                continue
            found = _Nest(func, asked, module.num_warps)
            reason = found.obstacle()
            remark(found.asked, "loop", f"its warps are not specialized: {reason}" if reason else
                   "a warp of its own loads the blocks", option="warp_specialize")
            if not reason:
                module.attributes["num_warps"] = found.specialize(
                    TensorMaps(func, module.attributes.get("target")))


class _Nest:
    """The loop whose blocks TMA loads, and those around it."""

    def __init__(self, func: Func, asked: Sequence[ops.For], warps: int) -> None:
        self.func, self.warps = func, warps
        self.inners = [op for op in func.walk() if isinstance(op, ops.For)
                       and any(isinstance(x, ops.DescriptorLoad) for x in op.body)]
        self.inner = self.inners[0] if self.inners else asked[0]
        self.loads = [op for op in self.inner.body if isinstance(op, ops.DescriptorLoad)]
        self.loops = [*around(self.inner), self.inner]
        self.asked = next((loop for loop in asked if loop in self.loops), asked[0])
        self.needed: set[Op] = set()  # ops in the loops that give the places of blocks

    def obstacle(self) -> str:
        """Why the loads cannot have warps of their own, or an empty string. Finds what they need.
        """
        if not self.loads or self.asked not in self.loops:
            return "TMA loads no block in it"
        if any(isinstance(op, WarpSpecialize) for op in self.func.walk()):
            return "the kernel has roles of its author's"
        if len(self.inners) > 1:
            return "several loops load blocks by TMA"
        if self.inner.num_stages < 2:
            return "its loads are not pipelined"
        if any(load.stage >= 0 for load in self.loads):
            return "its loads have stages of their own"
        if any(isinstance(op, ops.DescriptorLoad) and op not in self.loads
               for op in self.func.walk()):
            return "TMA loads a block outside of it"
        if self.loops[0].parent is not self.func.body:
            return "it stands in an `if` or a `while`"
        if any(isinstance(op, ops.AsyncCopy | ops.AsyncCommit | ops.AsyncWait) or
               isinstance(op, ops.Load) and op.buffered for op in self.func.walk()):
            return "another loop copies by cp.async, which roles do not"
        barriers = role_barriers(self.warps) + self.warps // WARPGROUP_WARPS
        if self.warps + 1 > MAX_WARPS or barriers > 15:
            return f"{self.warps} warps leave no warp or no barriers for it"
        return self._places() or self._apart()

    def _places(self) -> str:
        """Whether the loads' places, and the loops' bounds, follow from the loops' indices."""
        inside = {loop.body: loop for loop in self.loops}
        work = [v for load in self.loads for v in load.parts()[2]]
        work += [v for loop in self.loops for v in (loop.lo, loop.hi, loop.step)]
        while work:
            v = work.pop()
            if v.owner in inside:
                if v.index:
                    return "a block's place depends on what a loop carries"
            elif v.op is not None and v.op.parent in inside and v.op not in self.needed:
                if not v.op.pure or _on_tiles(v.op):
                    return "a block's place is not computed by itself"
                self.needed.add(v.op)
                work += [x for op in v.op.walk() for x in op.operands]
        return ""

    def _apart(self) -> str:
        """Whether what stands before the loops may be divided: what works on tiles goes into a
        role, and nothing else with effects may pass it."""
        inside, effects = set[Op](), False
        for op in self._before():
            if _on_tiles(op) or any(v.op in inside for x in op.walk() for v in x.operands):
                inside.add(op)
                effects |= not op.pure
            elif effects and not op.pure:
                return "loads, stores or atomics of scalars and tiles before it are mixed"
        for op in self.needed | set(self.loads):
            if any(v.op in inside for x in op.walk() for v in x.operands):
                return "a block's place depends on a tile"
        bounds = [v for loop in self.loops for v in (loop.lo, loop.hi, loop.step)]
        return "its bounds depend on a tile" if any(v.op in inside for v in bounds) else ""

    def _before(self) -> list[Op]:
        found = list(self.func.body)
        return found[:found.index(self.loops[0])]

    def specialize(self, maps: TensorMaps) -> int:
        """Make the roles; how many warps there are now."""
        outermost, slots = self.loops[0], self.inner.num_stages
        self.inner.num_stages = 0
        for loop in self.loops:
            loop.flatten = False
        before = Builder(before=outermost, loc=self.asked.loc)
        moved = self._to_move()
        ring = Ring(self.loads, slots, maps, before, consumers=self.warps // WARPGROUP_WARPS)
        start = number(before, 0, i32)
        loading = Block()
        elect = Block()
        self._load(Builder(elect, loc=self.loads[0].loc), ring, self.loops, {}, start)
        Builder(elect).insert(ops.Yield())
        Builder(loading, loc=self.loads[0].loc).insert(ops.Elect(body=elect))
        Builder(loading).insert(ops.Yield())
        self._use(ring, start)
        using, both = Block(), Block()
        specialize = WarpSpecialize(body=both)
        before.insert(specialize)
        for op in moved:
            using.insert(op.remove())
        Builder(using).insert(ops.Yield())
        roles = Builder(both, loc=self.asked.loc)
        # Warpgroups begin with multiples of four warps, so the single one comes last.
        roles.insert(WarpRole(body=using, warps=self.warps))
        roles.insert(WarpRole(body=loading, warps=1))
        roles.insert(ops.Yield())
        return self.warps + 1

    def _to_move(self) -> list[Op]:
        """The ops of the function that the first role does."""
        out: dict[Op, None] = {}
        for op in self._before():
            if _on_tiles(op) or any(v.op in out for x in op.walk() for v in x.operands):
                out[op] = None
        rest = [op for op in self.func.body if not op.terminator]
        return [*out, *rest[rest.index(self.loops[0]):]]

    def _load(self, here: Builder, ring: Ring, loops: Sequence[ops.For], values: dict[Value, Value],
              count: Value) -> Value:
        """Write the loops again, with the loads and what they need; rounds are counted through all
        of them. The number of rounds at the end."""
        loop, *inner = loops
        body = Block([loop.body.args[0].type, count.type], [loop.body.args[0].name, "count"])
        inside = Builder(body, loc=loop.loc)
        values[loop.body.args[0]], number_now = body.args
        for op in loop.body:
            if op in self.needed:
                inside.insert(op.clone(values))
        if inner:
            number_now = self._load(inside, ring, inner, values, number_now)
        else:
            slot, parity = ring.slot(inside, number_now)
            free = inside.emit(ops.Xor(parity, number(inside, 1, i32)))
            inside.insert(ops.MbarrierWait(inside.emit(ops.MemdescIndex(ring.empty, slot)), free))
            ring.fill(inside, slot, [[values.get(v, v) for v in load.parts()[2]]
                                     for load in self.loads])
            number_now = later(inside, number_now, 1, 2 * ring.slots)
        inside.insert(ops.Yield([number_now]))
        bounds = [values.get(v, v) for v in (loop.lo, loop.hi, loop.step)]
        return here.insert(ops.For(*bounds, [count], body=body)).results[0]

    def _use(self, ring: Ring, count: Value) -> None:
        """The loops as they are wait for full slots, and say when they are done with them."""
        for loop in self.loops:
            count = carry(loop, count)
            count.name = "count"
        here = Builder(before=self.loads[0], loc=self.loads[0].loc)
        end = Builder(before=self.inner.body.terminator, loc=self.loads[0].loc)
        slot, parity = ring.slot(here, count)
        products = all(_only_multiplied(load.result) for load in self.loads)
        ring.read(here, slot, parity)
        if not products:  # what all threads have read, they vouch for together
            end.insert(ops.WarpgroupBarrier())
        end.insert(ops.MbarrierArrive(end.emit(ops.MemdescIndex(ring.empty, slot))))
        give(self.inner, [later(end, count, 1, 2 * ring.slots)])
        for outer, loop in zip(reversed(self.loops[:-1]), reversed(self.loops[1:]), strict=True):
            give(outer, [loop.results[-1]])


def _only_multiplied(value: Value) -> bool:
    """Whether only dots use a block that wgmma reads from shared memory."""
    return all(isinstance(user, ops.Dot) and by_wgmma(user) or
               isinstance(user, (ops.Trans, ops.ConvertLayout)) and
               _only_multiplied(user.results[0]) for user in value.users)


def _on_tiles(op: Op) -> bool:
    """Whether an op, or one in it, works on tiles."""
    return any(isinstance(v.type, Tensor) for x in op.walk() for v in (*x.operands, *x.results))
