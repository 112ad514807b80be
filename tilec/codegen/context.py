"""The state of lowering one kernel, and the table of lowering rules.

A rule takes the context and an op, and sets the op's results. A rule of `compute` takes the
operands' registers instead: scalars, or vectors of any one width.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from tilec.codegen.emit import SHARED, DebugInfo, Emit, Reg, llvm_element
from tilec.codegen.shuffle import from_lane
from tilec.codegen.values import Tile, full, uniform, whole
from tilec.errors import CompilationError
from tilec.ir.axis import AxisAnalysis
from tilec.ir.core import UNKNOWN, Block, Func, Op, Value
from tilec.ir.fragment import Fragment
from tilec.ir.linear import LinearLayout
from tilec.ir.rules import Rules
from tilec.ir.scratch import tile_fragment
from tilec.ir.types import Tensor, element_of
from tilec.target import Target

if TYPE_CHECKING:
    from tilec.codegen.checks import Checks

lower = Rules("LLVM lowering")
compute = Rules("elementwise lowering")

SMEM = "@smem"


@dataclass(frozen=True)
class Warps:
    """The warps that run what is being lowered: the CTA's, or those of a role. first: their first
    in the CTA. barrier, warpgroup_barriers: the named barrier of all of them, and the first of
    those that their warpgroups have."""

    first: int
    count: int
    barrier: int
    warpgroup_barriers: int


class CodeGen:
    """Lowers one function. `env` maps every value to a Reg (scalars) or a Tile."""

    def __init__(self, func: Func, num_warps: int, target: Target) -> None:
        self.func = func
        self.target = target
        self.here: Op | None = None  # what is being lowered
        self.checks: Checks | None = None
        self.warps = Warps(0, num_warps, 0, 1)
        self.e = Emit(self._permit)
        self.axis = AxisAnalysis(func)
        self.debug = DebugInfo(func.name, func.loc)
        self.env: dict[Value, Reg | Tile] = {}
        self.elects = False  # in a region that a whole warp enters for one of its threads

    # ---- values
    def scalar(self, value: Value) -> Reg:
        """The register of a scalar or pointer."""
        reg = self.env[value]
        assert isinstance(reg, Reg)
        return reg

    def tile(self, value: Value) -> Tile:
        """What the thread holds of a tile; a scalar counts as a tile of one register."""
        held = self.env[value]
        return held if isinstance(held, Tile) else Tile(held, 1)

    def whole(self, value: Value) -> Reg:
        """All registers of a tile as one vector; or the scalar."""
        held = self.env[value]
        return held if isinstance(held, Reg) else whole(self.e, held)

    def set(self, value: Value, result: Reg | Tile) -> None:
        """Bind a value; a register given for a tile holds the whole fragment."""
        if isinstance(result, Reg) and isinstance(value.type, Tensor):
            size = fragment_of(value).num_registers
            result = full(result) if result.lanes == size else uniform(result, size)
        self.env[value] = result

    def element(self, value: Value) -> str:
        """The LLVM element type of a value."""
        return llvm_element(element_of(value.type))

    def block(self, block: Block) -> Sequence[Value]:
        """Lower the ops of a block but its terminator, whose operands are returned."""
        for op in block:
            if op.terminator:
                return op.operands
            self.op(op)
        return ()

    def op(self, op: Op) -> None:
        """Lower one op."""
        self.e.dbg = self.debug.at(op.loc)
        outer, self.here = self.here, op
        lower[type(op)](self, op)
        self.here = outer

    def _permit(self, text: str) -> None:
        for instruction in instructions(text):
            self.need(instruction)

    def need(self, instruction: str) -> None:
        """CompilationError at the op being lowered, if the target lacks what it needs."""
        lack = self.target.lacks(instruction)
        if lack is not None and self.here is not None:
            op = self.here
            raise CompilationError(f"{op.name} needs {lack.needs}, the target is {self.target}",
                                   None if op.loc is UNKNOWN else op.loc, lack.advice)

    # ---- threads
    @property
    def num_warps(self) -> int:
        """How many warps run what is being lowered. Threads and warps are counted from the first of
        them."""
        return self.warps.count

    def thread(self) -> Reg:
        """The thread's index."""
        return self.e.once("thread", lambda: self.e.int_op("sub", self.special("tid.x"),
                                                           32 * self.warps.first))

    def warp(self) -> Reg:
        """The warp's index, known to be the same in all its lanes."""
        e = self.e
        return e.once("warp", lambda: from_lane(e, e.const(0, "i32"),
                                                e.int_op("lshr", self.thread(), 5)))

    def warpgroup(self) -> Reg:
        """The index of the warp's group of four."""
        return self.e.once("warpgroup", lambda: self.e.int_op("lshr", self.warp(), 2))

    def special(self, name: str) -> Reg:
        """A special register of PTX."""
        intrinsic = f"llvm.nvvm.read.ptx.sreg.{name}"
        return self.e.once(intrinsic, lambda: self.e.call(intrinsic, "i32", 0, ()))

    def thread_bits(self, columns: Sequence[int]) -> Reg:
        """XOR of columns[b] over the set bits b of the thread index (five lane bits, then warp)."""
        key = tuple(columns)
        return self.e.once(key, lambda: self._thread_bits(key))

    def _thread_bits(self, columns: tuple[int, ...]) -> Reg:
        e = self.e
        total: Reg | None = None
        for delta, mask in _moves(columns):
            part = self.thread()
            if mask != (1 << len(columns)) - 1 or mask + 1 != 32 * self.num_warps:
                part = e.int_op("and", part, mask)
            part = e.int_op("shl", part, delta) if delta >= 0 else e.int_op("lshr", part, -delta)
            total = part if total is None else e.binary("xor", total, part)
        return e.const(0, "i32") if total is None else total

    def coordinate(self, frag: Fragment, dim: int) -> Reg:
        """The thread part of a coordinate; registers add constants to it."""
        return self.thread_bits([b[dim] for b in (*frag.lane_bases, *frag.warp_bases)])

    def is_thread(self, mask: int) -> Reg:
        """Whether the thread index has none of the bits of `mask`."""
        def make() -> Reg:
            bits = self.e.int_op("and", self.thread(), mask)
            return self.e.compare("eq", bits, self.e.const(0, "i32"))
        return self.e.once(("is_thread", mask), make)

    @property
    def all_threads(self) -> int:
        """The mask of all bits of the thread index."""
        return (1 << (32 * self.num_warps - 1).bit_length()) - 1

    def barrier(self) -> None:
        """All threads wait for each other."""
        if not self.warps.barrier:
            self.e.do("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0) convergent")
            self.e.declared["barrier"] = ("declare void @llvm.nvvm.barrier.cta.sync.aligned.all("
                                          "i32) convergent nounwind")
        elif self.num_warps > 1:
            self.named_barrier(self.e.const(self.warps.barrier, "i32"), 32 * self.num_warps)
        else:
            self.warp_barrier()

    def named_barrier(self, number: Reg, threads: int, how: str = "sync") -> None:
        """So many threads meet at the barrier of this number; `how` is "arrive" for those who do
        not wait."""
        self.e.asm(f"bar.{how} $0, {threads};", "n" if number.ref.isdigit() else "r", (number,), (),
                   convergent=True)

    def warp_barrier(self) -> None:
        """The lanes of the warp wait for each other."""
        self.e.do("call void @llvm.nvvm.bar.warp.sync(i32 -1) convergent")
        self.e.declared["warp"] = "declare void @llvm.nvvm.bar.warp.sync(i32) convergent nounwind"

    def shared_address(self, base: int, offset: Reg | None = None) -> Reg:
        """A pointer into the kernel's shared memory: constant plus register, in bytes."""
        e = self.e
        at = Reg(SMEM, SHARED)
        if offset is not None and offset.ref != "0":
            at = e.new(f"getelementptr i8, {SHARED} {SMEM}, i32 {offset.ref}", SHARED)
        return self.shift(at, base)

    def shift(self, pointer: Reg, offset: int) -> Reg:
        """A pointer moved by a constant number of bytes."""
        if not offset:
            return pointer
        return self.e.new(f"getelementptr i8, {pointer.elem} {pointer.ref}, i64 {offset}",
                          pointer.elem)


# After the start, a `;`, a brace or a label, perhaps a predicate, then a dotted name.
_INSTRUCTION = re.compile(r"(?:^|[;{}]|\b[A-Z]\w*:)\s*(?:@[^ ]+\s+)?([a-z]\w*(?:[.:]+\w+)*)")


@lru_cache(maxsize=4096)
def instructions(text: str) -> tuple[str, ...]:
    """The instructions of inline PTX, or that of an intrinsic of NVVM; LLVM's own have none."""
    if text.startswith("llvm."):
        return (text.removeprefix("llvm.nvvm."),) if text.startswith("llvm.nvvm.") else ()
    return tuple(name.replace("::", ".") for name in _INSTRUCTION.findall(text))


def fragment_of(value: Value) -> Fragment:
    """The fragment of a tile."""
    return tile_fragment(value.type)


def thread_columns(layout: LinearLayout) -> tuple[int, ...]:
    """Packed columns of the thread index's bits: lanes, then warps."""
    return (*layout.columns_of("lane"), *layout.columns_of("warp"))


@lru_cache(maxsize=4096)
def _moves(columns: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(shift, mask): the image is the XOR of (index & mask) << shift."""
    masks: dict[int, int] = {}
    for bit, column in enumerate(columns):
        for out in range(column.bit_length()):
            if column >> out & 1:
                masks[out - bit] = masks.get(out - bit, 0) | 1 << bit
    return tuple(sorted(masks.items()))
