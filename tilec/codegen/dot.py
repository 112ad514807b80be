"""Lowering of dots: mma.sync on fragments in registers, or fused multiply-adds.

A coordinate is a register's constant part plus a thread's part, and the layouts of a dot's operands
give a thread the same part of every coordinate they share; so only constant parts are matched here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import mul

from tilec.codegen.casts import fp8_to_f16, from_f32, to_f32
from tilec.codegen.context import CodeGen, fragment_of, lower
from tilec.codegen.emit import Reg, llvm_element
from tilec.codegen.memory import live_register
from tilec.codegen.move import store_elements, thread_address
from tilec.codegen.shape import Coords, by_coords
from tilec.errors import CompilationError
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.fragment import Fragment
from tilec.ir.layouts import Mma
from tilec.ir.mma import MmaInstruction, instruction_of
from tilec.ir.scratch import dot_areas, sum_bytes
from tilec.ir.types import layout_of, scalar_of


@lower(ops.Dot)
def _dot(cg: CodeGen, op: ops.Dot) -> None:
    layout, instruction = layout_of(op.result.type), instruction_of(op)
    if isinstance(layout, Mma):
        if instruction is None or (instruction.m, instruction.n) != layout.instr_shape:
            raise CompilationError(f"no tensor core instruction multiplies {op.a.type} by "
                                   f"{op.b.type} into {op.result.type}", op.loc,
                                   "give the result a blocked layout")
        out = _by_tensor_cores(cg, op, instruction)
    else:
        out = _by_multiply_adds(cg, op)
    cg.set(op.result, out)


# ---- tensor cores
@dataclass(frozen=True)
class _Words:
    """An operand as registers of the instruction: `at` maps the constant coordinates of a word's
    first element to its place in `parts`; more than one part for a value split into several."""

    at: dict[Coords, int]
    parts: tuple[list[Reg], ...]
    k_dim: int

    def starts(self, limit: int) -> list[int]:
        """Where words begin along k, below its extent."""
        return sorted({c[self.k_dim] for c in self.at if c[self.k_dim] < limit})


def _by_tensor_cores(cg: CodeGen, op: ops.Dot, instruction: MmaInstruction) -> Reg:
    frag = fragment_of(op.result)
    a, b = (_words(cg, op, v, instruction, k) for v, k in ((op.a, -1), (op.b, -2)))
    sums = _Sums(cg, cg.whole(op.c), frag, instruction)
    extent = fragment_of(op.a).shape[-1]
    starts = a.starts(extent)
    assert starts == b.starts(extent), "the operands of a dot hold different k"
    # Small terms first; three products stand for one of twice the precision.
    terms = ((1, 2), (2, 1), (0, 0)) if len(a.parts) > 1 else ((0, 0),)
    zero = cg.e.const(0, a.parts[0][0].elem)
    for first in range(0, len(starts), instruction.words):
        ks = starts[first:first + instruction.words]
        none = [zero] * (instruction.words - len(ks))
        for *batch, row, col in sums.tiles:
            rows = (row,) if instruction.m == 8 else (row, row + 8)
            for pa, pb in terms:
                left = [a.parts[pa][a.at[at]] if (at := (*batch, r, k)) in a.at else zero
                        for k in ks for r in rows] + none * len(rows)
                right = [b.parts[pb][b.at[*batch, k, col]] for k in ks] + none
                sums.add((*batch, row, col), left, right)
    return sums.result()


def _words(cg: CodeGen, op: ops.Dot, value: Value, instruction: MmaInstruction, k_dim: int
           ) -> _Words:
    e, frag, width = cg.e, fragment_of(value), instruction.word
    element = scalar_of(value.type)
    x = cg.whole(value)
    if element.bits == 8 and element.is_float:
        x = fp8_to_f16(cg, x, element.name)
    x = _without_dead(cg, x, frag, len(frag.shape) + k_dim)
    if element.bits == 32:
        parts = _tf32(cg, x, op.input_precision == "tf32x3")
    elif width == 1:
        parts = (e.lane_list(x),)
    else:
        parts = (e.lane_list(e.bitcast(x, "i32", x.n // width if x.n > width else 0)),)
    at = {c: r // width for c, r in by_coords(frag).items() if r % width == 0}
    return _Words(at, parts, k_dim)


def _without_dead(cg: CodeGen, x: Reg, frag: Fragment, k_dim: int) -> Reg:
    """Zeros beyond the extent of k, where anything may lie, an infinity too."""
    if k_dim not in frag.padded_dims:
        return x
    live = [live_register(cg, frag, r, (k_dim,)) or cg.e.const(True, "i1")
            for r in range(frag.num_registers)]
    return cg.e.select(cg.e.build(live), x, cg.e.const(0, x.elem, x.n))


def _tf32(cg: CodeGen, x: Reg, split: bool) -> tuple[list[Reg], ...]:
    """f32 lanes rounded to tf32; if `split`, also what that drops, rounded too, and the first with
    0 for infinities, whose products with a rest of 0 would be NaN."""
    e = cg.e

    def rounded(v: Reg) -> Reg:
        return e.call("llvm.nvvm.f2tf32.rna", "i32", 0, (v,))

    lanes = e.lane_list(x)
    big = [rounded(v) for v in lanes]
    if not split:
        return (big,)
    zero, infinity = e.const(0.0, "float"), e.const(float("inf"), "float")
    small, finite = [], []
    for v, top in zip(lanes, big, strict=True):
        wide = e.bitcast(top, "float", 0)
        is_finite = e.compare("one", e.generic("fabs", wide), infinity)
        small.append(rounded(e.select(is_finite, e.binary("fsub", v, wide), zero)))
        finite.append(e.select(is_finite, top, e.const(0, "i32")))
    return big, small, finite


class _Sums:
    """The accumulators while instructions add to them, in the registers that these want."""

    def __init__(self, cg: CodeGen, c: Reg, frag: Fragment, instruction: MmaInstruction) -> None:
        self.e, self.instruction, self.frag = cg.e, instruction, frag
        self.elem = c.elem
        places = by_coords(frag)
        rows = (0,) if instruction.m == 8 else (0, 8)
        lanes = cg.e.lane_list(c)
        self.registers: dict[Coords, list[int | None]] = {}
        self.values: dict[Coords, list[Reg]] = {}
        columns = 2 if frag.pow2[-1] > 1 else 1  # else neighbours are parts of an odd extent
        for *batch, row, col in places:
            if row & 8 and instruction.m == 16 or col % columns:
                continue
            wanted = [places.get((*batch, row + r, col + n)) if n < columns else None
                      for r in rows for n in (0, 1)]
            here = (*batch, row, col)
            self.registers[here] = wanted
            held = [cg.e.const(0, self.elem) if r is None else lanes[r] for r in wanted]
            self.values[here] = self._packed(held)
        self.tiles = tuple(self.registers)

    def _packed(self, held: Sequence[Reg]) -> list[Reg]:
        if self.elem != "half":
            return list(held)
        e = self.e
        return [e.bitcast(e.build(held[i:i + 2]), "i32", 0) for i in range(0, len(held), 2)]

    def add(self, tile: Coords, left: Sequence[Reg], right: Sequence[Reg]) -> None:
        """One instruction."""
        values = self.values[tile]
        counts = [len(values), len(left), len(right), len(values)]
        start, groups = 0, []
        for n in counts:
            groups.append("{" + ", ".join(f"${i}" for i in range(start, start + n)) + "}")
            start += n
        kinds = {"float": "f", "double": "d", "i32": "r"}
        ins = [*left, *right, *values]
        constraints = ",".join([*(f"={kinds[v.elem]}" for v in values),
                                *(kinds[v.elem] for v in ins)])
        # Lanes of a warp act together: without `convergent` LLVM may move it into a branch.
        self.values[tile] = self.e.asm(
            f"{self.instruction.name} {', '.join(groups)};", constraints, ins,
            [v.elem for v in values], effects=False, convergent=True)

    def result(self) -> Reg:
        """The fragment."""
        out: dict[int, Reg] = {}
        for tile, registers in self.registers.items():
            values = self.values[tile]
            if self.elem == "half":
                values = [h for v in values
                          for h in self.e.lane_list(self.e.bitcast(v, "half", 2))]
            out.update((r, v) for r, v in zip(registers, values, strict=True) if r is not None)
        return self.e.build([out[r] for r in range(self.frag.num_registers)])


# ---- multiply-adds
UNROLL = 4  # steps along k in one turn of the loop, to hide the latency of shared memory


def _by_multiply_adds(cg: CodeGen, op: ops.Dot) -> Reg:
    """Operands through scratch, then one step for each k, on all results at once; f16 and bf16 sums
    are carried in f32."""
    e, target = cg.e, scalar_of(op.c.type)
    held = llvm_element(target)
    elem = "float" if target.is_float and target.bits < 32 else held
    strides_a, strides_b, start_b, _ = dot_areas(op)
    starts = op.offset, op.offset + start_b
    for value, strides, start in zip((op.a, op.b), (strides_a, strides_b), starts, strict=True):
        store_elements(cg, _widened(cg, value, elem), fragment_of(value), start, strides)
    cg.barrier()
    reads = (_Reads(cg, op, starts[0], (*strides_a[:-1], 0), strides_a[-1], elem),
             _Reads(cg, op, starts[1], (*strides_b[:-2], 0, strides_b[-1]), strides_b[-2], elem))

    def steps(total: Reg, turn: Reg | None, ks: range) -> Reg:
        bases = [r.base(turn) for r in reads]
        for k in ks:
            x, y = (r.at(base, k) for r, base in zip(reads, bases, strict=True))
            total = e.generic("fma", x, y, total) if target.is_float else \
                e.binary("add", total, e.binary("mul", x, y))
        return total

    total = cg.whole(op.c)
    if elem != held:
        total = to_f32(cg, total)
    count = fragment_of(op.a).shape[-1]
    looped = count // UNROLL * UNROLL if count >= 2 * UNROLL else 0
    if looped:
        total = _loop(cg, total, looped, lambda sums, k: steps(sums, k, range(UNROLL)))
    total = steps(total, None, range(looped, count))
    return total if elem == held else from_f32(cg, total, held)


def _loop(cg: CodeGen, total: Reg, count: int, turn: Callable[[Reg, Reg], Reg]) -> Reg:
    """`turn` on the sums and k, for k = 0, UNROLL, ... below count."""
    e, before = cg.e, cg.e.block
    again, done = e.label("dot"), e.label("dot_end")
    e.jump(again)
    e.start(again)
    (k, close_k), (sums, close_sums) = e.phi_later("i32", 0), e.phi_later(total.elem, total.n)
    out = turn(sums, k)
    following = e.int_op("add", k, UNROLL)
    close_k((e.const(0, "i32"), before), (following, e.block))
    close_sums((total, before), (out, e.block))
    e.branch(e.compare("slt", following, e.const(count, "i32")), again, done)
    e.start(done)
    return out


class _Reads:
    """What a thread reads of one operand in each step: for every result, the element of its row (or
    column), in pieces as wide as neighbours lie in order."""

    def __init__(self, cg: CodeGen, op: ops.Dot, start: int, strides: Sequence[int], step: int,
                 elem: str) -> None:
        frag = fragment_of(op.result)
        self.cg, self.elem, self.step, self.size = cg, elem, step, sum_bytes(op)
        self.thread = thread_address(cg, frag, start, strides)
        wanted = [sum(map(mul, at, strides)) for at in frag.register_coords]
        self.offsets = sorted(set(wanted))
        self.lanes = [self.offsets.index(w) for w in wanted]
        threads = [sum(map(mul, b, strides)) for b in (*frag.lane_bases, *frag.warp_bases)]
        self.width = 16 // self.size
        while not self._fits(self.width * self.size, threads):
            self.width //= 2

    def _fits(self, piece: int, threads: Sequence[int]) -> bool:
        whole = set(self.offsets)
        return not self.step % piece and not any(t % piece for t in threads) and all(
            o - o % piece + i in whole for o in self.offsets for i in range(0, piece, self.size))

    def base(self, turn: Reg | None) -> Reg:
        """The thread's pointer at a k (None: 0)."""
        e = self.cg.e
        if turn is None:
            return self.thread
        offset = e.int_op("mul", turn, self.step)
        return e.new(f"getelementptr i8, {self.thread.elem} {self.thread.ref}, i32 {offset.ref}",
                     self.thread.elem)

    def at(self, base: Reg, k: int) -> Reg:
        """The elements for all results, k steps on."""
        e, width = self.cg.e, self.width
        pieces = [e.load(self.cg.shift(base, k * self.step + o), self.elem, width,
                         width * self.size) for o in self.offsets[::width]]
        return e.gather(e.concat(pieces), self.lanes)


def _widened(cg: CodeGen, value: Value, elem: str) -> Reg:
    x, element = cg.whole(value), scalar_of(value.type)
    if element.is_int:
        return cg.e.resize(x, elem, element.is_signed)
    return to_f32(cg, x, element.name) if elem == "float" else x
