"""specialize_warps: the loads of a loop get warps of their own, which run ahead through loops of
their own, as far as the rings of buffers have room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.ir import ops
from tilec.ir.accumulators import WARPGROUP_WARPS
from tilec.ir.core import Block, Builder, Module, Op, Value
from tilec.ir.ops.roles import WarpRole, WarpSpecialize
from tilec.ir.remarks import remark
from tilec.ir.role_registers import LOADER_REGISTERS, LOADER_WARPS, role_registers
from tilec.ir.tensor_maps import TensorMaps
from tilec.ir.types import i32
from tilec.passes.ahead import Rules
from tilec.passes.base import Pass
from tilec.passes.dot_buffers import by_wgmma
from tilec.passes.expand import carry, later, number
from tilec.passes.load_nest import LoadNest, asking
from tilec.passes.nest import Nest, give
from tilec.passes.pipeline import check_schedule
from tilec.passes.split_loop import split_loop
from tilec.passes.tma import ON_THE_WAY, Ring, StagedLoads

# Of a loop and a number of slots: how many rounds of the loop there were, modulo twice so many.
_Counts = dict[tuple[ops.For, int], Value]


class SpecializeWarps(Pass):
    """for i { x = descriptor_load(p_i) ; use(x) } {warp_specialize, num_stages = 3} -->
    warp_role { for i { wait(full[i % 3]) ; use(buf[i % 3]) ; arrive(empty[i % 3]) } }
    warp_role { for i { wait(empty[i % 3]) ; expect(full[i % 3]) ; tma_load(p_i, buf[i % 3]) } }

    The option may stand on the loop of the loads or on one around it. All that works on tiles
    goes into the first role, which keeps the warps there were; the second is one warp more, or a
    warpgroup if it has to leave registers to the first. Loads with stages of their own have a ring
    each, and their loop is expanded as `pipeline` would. Blocks from before the loops are loaded by
    the second role, too, and so are those from a loop around the inner one: these have a slot, of
    which both roles know in each iteration when it is full and when it is empty.
    """

    def run(self, module: Module) -> None:
        for func in module.funcs:
            asked = asking(func)
            if not asked:
                continue
            nest = LoadNest(func, module)
            reason = nest.obstacle()
            for loop in asked:
                loop.warp_specialize = False
                if loop not in (nest.asked, *nest.loops) and not _loads_blocks(loop):
                    _refuse(loop, "TMA loads no block in it")
            if reason:
                _refuse(nest.asked, reason)
                continue
            if nest.staged:
                check_schedule(nest.inner, Rules(module, func, nest.inner))
            module.attributes["num_warps"] = _Roles(nest, module).specialize()
            if nest.limit:  # more than the launch of all warps has would fail
                module.attributes["maxnreg"] = role_registers(nest.warps, nest.limit)


def _refuse(loop: ops.For, reason: str) -> None:
    remark(loop, "loop", f"its warps are not specialized: {reason}", option="warp_specialize")


def _loads_blocks(loop: ops.For) -> bool:
    return any(isinstance(op, ops.DescriptorLoad) for op in loop.walk())


class _Roles:
    """The roles of one nest. rings: of the blocks in a loop. residents: the ring of a block from
    before all loops, or from a loop around the inner one."""

    def __init__(self, nest: LoadNest, module: Module) -> None:
        self.nest, self.warps = nest, nest.warps
        self.maps = TensorMaps(nest.func, module.attributes.get("target"))
        self.registers = nest.registers()
        self.rings: dict[ops.For, list[Ring]] = {loop: [] for loop in nest.loops}
        self.residents: dict[ops.DescriptorLoad, Ring] = {}

    def specialize(self) -> int:
        """Make the roles; how many warps there are now."""
        nest, outermost = self.nest, self.nest.loops[0]
        loc = nest.asked.loc
        for loop in nest.loops:
            loop.flatten = False
        before, groups = Builder(before=outermost, loc=loc), self.warps // WARPGROUP_WARPS
        moved, both, using, loading = nest.for_tiles(), Block(), Block(), Block()
        staged, rings = None, self.rings[nest.inner]
        if nest.staged:
            within = Nest(nest.inner, [v for load in nest.loads for v in load.parts()[2]])
            staged = StagedLoads(within, nest.loads, self.maps, before, groups, [])
            rings += staged.rings.values()
        else:
            rings.append(Ring(nest.loads, nest.inner.num_stages, self.maps, before, groups))
        self._set_up(before, groups)
        start = number(before, 0, i32)
        self._loader(loading, start)
        roles = before.insert(WarpSpecialize(body=both))
        whole: Op = nest.inner
        if staged:
            whole = staged.use(elsewhere=True)
            # ptxas moves a wait for products up to the branch before it.
            if staged.expander.peel and split_loop(nest.inner):
                remark(nest.inner, "loop", "rounds that take no branch have a loop of their own")
        else:
            self._use(rings[0], start)
        for load, ring in self.residents.items():
            if load.parent is nest.func.body:
                ring.read(Builder(using, loc=loc), start, start)
            else:
                self._use_outer(load, ring, start, whole)
        nest.inner.num_stages = 0
        for op in [*moved, *_following(roles)]:
            using.insert(op.remove())
        Builder(using).insert(ops.Yield())
        more = LOADER_WARPS if self.registers else 1
        here = Builder(both, loc=loc)
        # Warpgroups begin with multiples of four warps, so a single one comes last.
        here.insert(WarpRole(body=using, warps=self.warps, registers=self.registers))
        here.insert(WarpRole(body=loading, warps=more,
                             registers=LOADER_REGISTERS if self.registers else 0))
        here.insert(ops.Yield())
        self._tell()
        return self.warps + more

    def _tell(self) -> None:
        """The remark."""
        if self.registers:
            what = f"a warpgroup of its own loads the blocks, and leaves {self.registers} " \
                "registers to each thread that computes"
        else:
            what = "a warp of its own loads the blocks"
        remark(self.nest.asked, "loop", what, option="warp_specialize", registers=self.registers)

    def _set_up(self, before: Builder, groups: int) -> None:
        """Make the rings of one slot, and all mbarriers ready at once."""
        for load in self.nest.outside:
            around = [loop for loop in self.nest.loops if loop.body is load.parent]
            ring = Ring([load], 1, self.maps, before, groups if around else 0)
            self.residents[load] = ring
            for loop in around:
                self.rings[loop].append(ring)
        *others, latest = [*self.rings[self.nest.inner], *self.residents.values()]
        for ring in reversed(others):
            ring.set_up_with(latest)

    def _loader(self, role: Block, start: Value) -> None:
        """What the second role does: one thread of it loads."""
        body, loc = Block(), self.nest.loads[0].loc
        here = Builder(body, loc=loc)
        for load, ring in self.residents.items():
            if load.parent is self.nest.func.body:
                ring.fill(here, start, [load.parts()[2]])
        counts = {(loop, ring.slots): start for loop, found in self.rings.items() for ring in found}
        self._load(here, self.nest.loops, {}, counts)
        here.insert(ops.Yield())
        Builder(role, loc=loc).insert(ops.Elect(body=body))
        Builder(role).insert(ops.Yield())

    def _load(self, here: Builder, loops: Sequence[ops.For], values: dict[Value, Value],
              counts: _Counts) -> _Counts:
        """Write the loops again, with the loads and what they need. counts: rounds through each of
        them in all, modulo twice so many slots; they are given back as they are at the end."""
        loop, *inner = loops
        index = loop.body.args[0]
        body = Block([index.type, *(i32 for _ in counts)], [index.name, *("count" for _ in counts)])
        inside = Builder(body, loc=loop.loc)
        values[index] = body.args[0]
        now = dict(zip(counts, body.args[1:], strict=True))
        for op in loop.body:
            if op in self.nest.needed:
                inside.insert(op.clone(values))
        for ring in self.rings[loop]:
            slot, parity = ring.slot(inside, now[loop, ring.slots])
            free = inside.emit(ops.Xor(parity, number(inside, 1, i32)))
            empty = inside.emit(ops.MemdescIndex(ring.empty, slot))
            inside.insert(ops.MbarrierWait(empty, free))
            ring.fill(inside, slot, [[values.get(v, v) for v in load.parts()[2]]
                                     for load in ring.loads])
        if inner:
            now |= self._load(inside, inner, values,
                              {key: v for key, v in now.items() if key[0] is not loop})
        now = {(of, n): later(inside, count, 1, 2 * n) if of is loop else count
               for (of, n), count in now.items()}
        inside.insert(ops.Yield(list(now.values())))
        bounds = [values.get(v, v) for v in (loop.lo, loop.hi, loop.step)]
        made = here.insert(ops.For(*bounds, list(counts.values()), body=body))
        return dict(zip(counts, made.results, strict=True))

    def _use(self, ring: Ring, start: Value) -> None:
        """The loops as they are wait for full slots, and say when they are done with them."""
        loops, inner, loads = self.nest.loops, self.nest.inner, self.nest.loads
        here = Builder(before=loads[0], loc=loads[0].loc)
        end = Builder(before=inner.body.terminator, loc=loads[0].loc)
        count = _carry(loops, start)
        slot, parity = ring.slot(here, count)
        products = all(_only_multiplied(load.result) for load in loads)
        ring.read(here, slot, parity)
        _release(end, ring, slot, products)
        _give(loops, later(end, count, 1, 2 * ring.slots))

    def _use_outer(self, load: ops.DescriptorLoad, ring: Ring, start: Value, whole: Op) -> None:
        """A loop around the inner one waits for its block, and says that it is done with it when
        nothing reads it any more. whole: what has become of the inner loop."""
        loops = [loop for loop in self.nest.loops if loop in load.ancestors()]
        here = Builder(before=load, loc=load.loc)
        count = _carry(loops, start)
        slot, parity = ring.slot(here, count)
        products = _only_multiplied(load.result)
        _, (read,) = ring.read(here, slot, parity)
        for end in _ends(read, whole):
            _release(end, ring, slot, products)
        end = Builder(before=loops[-1].body.terminator, loc=load.loc)
        _give(loops, later(end, count, 1, 2))


def _release(here: Builder, ring: Ring, slot: Value, products: bool) -> None:
    """Say that a slot is empty; what others than products have read, all threads vouch for."""
    if not products:
        here.insert(ops.WarpgroupBarrier())
    here.insert(ops.MbarrierArrive(here.emit(ops.MemdescIndex(ring.empty, slot))))


def _carry(loops: Sequence[ops.For], count: Value) -> Value:
    """Carry a number of rounds through a nest; what it is in its inner loop."""
    for loop in loops:
        count = carry(loop, count)
        count.name = "count"
    return count


def _give(loops: Sequence[ops.For], count: Value) -> None:
    """What it is in the next round of the inner loop."""
    for loop in reversed(loops):
        give(loop, [count])
        count = loop.results[-1]


def _following(op: Op) -> list[Op]:
    """The ops after one in its block, but for the terminator."""
    assert op.parent is not None
    found = [x for x in op.parent if not x.terminator]
    return found[found.index(op) + 1:]


def _readers(value: Value) -> Iterator[tuple[Value, Op]]:
    """(value, user) of a block, as it is or on the way to a dot."""
    for user in value.users:
        if isinstance(user, ON_THE_WAY):
            yield from _readers(user.results[0])
        else:
            yield value, user


def _only_multiplied(value: Value) -> bool:
    """Whether only dots use a block that wgmma reads from shared memory."""
    return all(isinstance(user, ops.Dot) and by_wgmma(user) and v is not user.c
               for v, user in _readers(value))


def _ends(read: Value, whole: Op) -> list[Builder]:
    """Where a block has been used for the last time in its iteration: after the last op that does,
    in either arm of the branch `whole` that a loop has become."""
    used = {read.op}
    for _, user in _readers(read):
        used |= {user, *user.ancestors()}
    assert read.op is not None and read.op.parent is not None
    last = [op for op in read.op.parent if op in used][-1]
    if last is not whole or not isinstance(whole, ops.If):
        return [_after(last)]
    arms = [[op for op in arm if op in used] for arm in whole.regions]
    return [_after(found[-1]) if found else Builder(before=arm.first, loc=whole.loc)
            for arm, found in zip(whole.regions, arms, strict=True)]


def _after(op: Op) -> Builder:
    return Builder(before=op.next, loc=op.loc)
