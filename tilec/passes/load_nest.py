"""The loops whose blocks a role of its own can load, and what keeps a nest from that."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.accumulators import WARPGROUP_WARPS
from tilec.ir.core import Func, Module, Op
from tilec.ir.ops.roles import WarpSpecialize, launch_registers, role_barriers
from tilec.ir.role_registers import role_registers
from tilec.ir.types import Tensor
from tilec.ir.warps import MAX_WARPS
from tilec.passes.chain import loop_registers
from tilec.passes.nest import around

# Registers a thread for other things than the tiles of a loop: without these, it spills; and so
# many are good to have.
LEAST, SPARE = 12, 36


def asking(func: Func) -> list[ops.For]:
    """The loops whose author wants their blocks loaded by a role of its own."""
    return [op for op in func.walk() if isinstance(op, ops.For) and op.warp_specialize]


class LoadNest:
    """The loop whose blocks TMA loads, and those around it, of a function with `warps` warps and a
    loop that is `asking`. limit: the launch's on registers, or 0. outside: blocks that are loaded
    before a loop of the nest, in the one around it or before all. needed: ops in the loops that
    give the places of blocks; known once an obstacle has been looked for."""

    def __init__(self, func: Func, module: Module) -> None:
        self.func, self.warps, asked = func, module.num_warps, asking(func)
        self.limit = int(module.attributes.get("maxnreg", 0))
        fed = [op for op in func.walk() if isinstance(op, ops.For)
               and any(isinstance(x, ops.DescriptorLoad) for x in op.body)]
        self.inners = [op for op in fed if not any(op in around(x) for x in fed)]
        self.inner = self.inners[0] if self.inners else asked[0]
        self.loads = [op for op in self.inner.body if isinstance(op, ops.DescriptorLoad)]
        self.loops = [*around(self.inner), self.inner]
        self.asked = next((loop for loop in asked if loop in self.loops), asked[0])
        self.outside = [op for loop in self.loops for op in _preceding(loop)
                        if isinstance(op, ops.DescriptorLoad)]
        self.needed: set[Op] = set()

    @property
    def staged(self) -> bool:
        """Whether its loads have stages of their own."""
        return any(load.stage >= 0 for load in self.loads)

    def obstacle(self) -> str:
        """Why the loads cannot have warps of their own, or an empty string."""
        if not self.loads or self.asked not in self.loops:
            return "TMA loads no block in it"
        if any(isinstance(op, WarpSpecialize) for op in self.func.walk()):
            return "the kernel has roles of its author's"
        if any(isinstance(op, ops.NamedBarrier) for op in self.func.walk()):
            return "the kernel has named barriers, which count its warps"
        if len(self.inners) > 1:
            return "several loops load blocks by TMA"
        if self.inner.num_stages < 2:
            return "its loads are not pipelined"
        if self.loops[0].parent is not self.func.body:
            return "it stands in an `if` or a `while`"
        if any(isinstance(op, ops.DescriptorLoad) and op not in self.loads and
               op not in self.outside for op in self.func.walk()):
            return "TMA loads a block elsewhere"
        if any(isinstance(op, ops.AsyncCopy | ops.AsyncCommit | ops.AsyncWait) or
               isinstance(op, ops.Load) and op.buffered for op in self.func.walk()):
            return "another loop copies by cp.async, which roles do not"
        barriers = role_barriers(self.warps) + self.warps // WARPGROUP_WARPS
        if self.warps + 1 > MAX_WARPS or barriers > 15:
            return f"{self.warps} warps leave no warp or no barriers for it"
        most = role_registers(self.warps, self.limit)
        need = loop_registers(self.inner) + (SPARE if most < self.limit else LEAST)
        if need > most:
            return f"it needs about {need} registers a thread, and {most} would be left"
        return self._places() or self._apart()

    def registers(self) -> int:
        """How many each thread that computes has to be given; 0 if the launch gives enough."""
        given = launch_registers(32 * (self.warps + 1))
        most = role_registers(self.warps, self.limit)
        return most if given < min(loop_registers(self.inner) + SPARE, most) else 0

    def _places(self) -> str:
        """Whether the loads' places, and the loops' bounds, follow from the loops' indices."""
        inside = {loop.body: loop for loop in self.loops}
        work = [v for load in (*self.loads, *self.outside) for v in load.parts()[2]]
        work += [v for loop in self.loops for v in (loop.lo, loop.hi, loop.step)]
        while work:
            v = work.pop()
            if v.owner in inside:
                if v.index:
                    return "a block's place depends on what a loop carries"
            elif v.op is not None and v.op.parent in inside and v.op not in self.needed:
                if not v.op.pure or on_tiles(v.op):
                    return "a block's place is not computed by itself"
                self.needed.add(v.op)
                work += [x for op in v.op.walk() for x in op.operands]
        return ""

    def _apart(self) -> str:
        """Whether what stands before the loops may be divided: what works on tiles goes into a
        role, and nothing else with effects may pass it. Blocks are of tensors that nobody writes.
        """
        inside, effects = set[Op](self.for_tiles()), False
        for op in self.before():
            if op in inside:
                effects |= not op.pure
            elif effects and not op.pure and op not in self.outside:
                return "loads, stores or atomics of scalars and tiles before it are mixed"
        for op in self.needed | {*self.loads, *self.outside}:
            if any(v.op in inside for x in op.walk() for v in x.operands):
                return "a block's place depends on a tile"
        bounds = [v for loop in self.loops for v in (loop.lo, loop.hi, loop.step)]
        return "its bounds depend on a tile" if any(v.op in inside for v in bounds) else ""

    def before(self) -> list[Op]:
        """What stands before the loops."""
        return _preceding(self.loops[0])

    def for_tiles(self) -> list[Op]:
        """What of it works on tiles, or needs what does; but for loads of blocks."""
        out: dict[Op, None] = {}
        for op in self.before():
            if op not in self.outside and (
                    on_tiles(op) or any(v.op in out for x in op.walk() for v in x.operands)):
                out[op] = None
        return list(out)


def on_tiles(op: Op) -> bool:
    """Whether an op, or one in it, works on tiles."""
    return any(isinstance(v.type, Tensor) for x in op.walk() for v in (*x.operands, *x.results))


def _preceding(op: Op) -> list[Op]:
    """The ops before one in its block."""
    found = list(op.parent or [])
    return found[:found.index(op)]
