"""Lowering of asynchronous matrix products: one asm for each wgmma op, whose accumulators are tied,
and waits that tie them too, so that nothing reads them early.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions".
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add

from tilec.codegen.context import CodeGen, fragment_of, lower
from tilec.codegen.emit import Reg
from tilec.codegen.shape import by_coords
from tilec.codegen.values import remap
from tilec.errors import CompilationError
from tilec.ir import ops
from tilec.ir.buffers import stage_bytes
from tilec.ir.core import Value
from tilec.ir.descriptors import (
    ADDRESS_BITS,
    MatrixDescriptor,
    async_alignment,
    buffer_offset,
    matrix_descriptor,
)
from tilec.ir.fragment import shared_tile
from tilec.ir.layouts import Mma
from tilec.ir.ops.hopper import WGMMA_K_BITS
from tilec.ir.types import MemDesc, Tensor, scalar_of

_TYPES = {"f16": "f16", "bf16": "bf16", "f32": "f32", "f8e4m3": "e4m3", "f8e5m2": "e5m2",
          "i8": "s8", "u8": "u8", "i32": "s32"}
_ROWS = 16  # of an accumulator that one warp holds of an instruction
Words = list[Reg]


@lower(ops.ExtractSlice)
def _extract_slice(cg: CodeGen, op: ops.ExtractSlice) -> None:
    of = by_coords(fragment_of(op.x))
    registers = [of[tuple(map(add, op.start, at))] for at in fragment_of(op.result).register_coords]
    cg.env[op.result] = remap(cg.e, cg.tile(op.x), registers)


# ---- accumulators
def _words(cg: CodeGen, value: Value) -> Words:
    """A tile as 32-bit registers; those of 8 and 16 bits hold neighbours."""
    x = cg.whole(value)
    each = max(1, 32 // x.bits)
    if each == 1:
        return cg.e.lane_list(x)
    return cg.e.lane_list(cg.e.bitcast(x, "i32", x.n // each))


def _set_words(cg: CodeGen, value: Value, words: Words) -> None:
    elem, e = cg.element(value), cg.e
    whole = e.build(words)
    n = fragment_of(value).num_registers
    cg.set(value, whole if whole.elem == elem else e.bitcast(whole, elem, n))


def _kind(word: Reg) -> str:
    return "f" if word.elem == "float" else "r"


@lower(ops.WgmmaWait)
def _wait(cg: CodeGen, op: ops.WgmmaWait) -> None:
    held = [_words(cg, v) for v in op.values]
    flat = [w for words in held for w in words]
    constraints = ",".join([*(f"={_kind(w)}" for w in flat), *map(str, range(len(flat)))])
    out = cg.e.asm(f"wgmma.wait_group.sync.aligned {op.pending};", constraints, flat,
                   [w.elem for w in flat], convergent=True)
    for result, words in zip(op.results, held, strict=True):
        _set_words(cg, result, out[:len(words)])
        del out[:len(words)]


# ---- products
@dataclass
class _Product:
    """The instructions of one op while their text is written. Operands of the asm: accumulators,
    then `inputs` with their constraints."""

    cg: CodeGen
    op: ops.Wgmma
    accumulators: int
    inputs: list[tuple[str, Reg]]
    text: list[str]

    def __post_init__(self) -> None:
        b, mma = self.op.b.type, self.op.c.type
        assert isinstance(b, MemDesc) and isinstance(mma, Tensor) and isinstance(mma.layout, Mma)
        self.m, self.n = mma.layout.instr_shape[:2]
        self.element = b.element
        self.k = WGMMA_K_BITS // b.element.bits
        self.depth = b.shape[0]

    def operand(self, reg: Reg, kind: str) -> str:
        """An input of the asm."""
        self.inputs.append((kind, reg))
        return f"${self.accumulators + len(self.inputs) - 1}"

    def descriptor(self, buffer: Value, k_dim: int) -> tuple[str, MatrixDescriptor]:
        """The descriptor of a buffer's first instruction, in this thread's warpgroup."""
        e, t, op = self.cg.e, buffer.type, self.op
        assert isinstance(t, MemDesc)
        outer = self.n if k_dim == 0 else self.m
        found = matrix_descriptor(shared_tile(t.shape, t.layout), t.element.bits, k_dim, outer,
                                  self.k)
        if found is None or stage_bytes(t) % async_alignment(t):
            raise CompilationError(
                f"wgmma cannot read an operand of {outer} x {self.k} from {t}", op.loc,
                "use nvmma_shared; only 16-bit operands may be contiguous along m or n")
        address = e.convert("ptrtoint", self.cg.scalar(buffer), "i32")
        low = e.int_op("lshr", e.int_op("and", address, ADDRESS_BITS), 4)
        # What the warpgroup adds: warps from the fifth on have rows or columns of their own.
        for bit, base in enumerate(fragment_of(op.c).warp_bases[2:]):
            at = (0, base[1]) if k_dim == 0 else (base[0], 0)
            if any(at):
                one = e.int_op("and", e.int_op("lshr", self.cg.warpgroup(), bit), 1)
                low = e.binary("add", low, e.int_op("mul", one, buffer_offset(t, at) >> 4))
        whole = e.int_op("or", e.convert("zext", low, "i64"), found.bits)
        return self.operand(whole, "l"), found

    def shifted(self, name: str, descriptor: str, buffer: Value, at: tuple[int, int]) -> str:
        """The descriptor of another instruction, in the scratch register `name`."""
        assert isinstance(buffer.type, MemDesc)
        step = buffer_offset(buffer.type, at) >> 4
        if not step:
            return descriptor
        self.text.append(f"add.s64 {name}, {descriptor}, {step};")
        return name


@lower(ops.Wgmma)
def _wgmma(cg: CodeGen, op: ops.Wgmma) -> None:
    c = _words(cg, op.c)
    fresh = _constant(op.accumulate) is False
    p = _Product(cg, op, len(c), [], ["wgmma.fence.sync.aligned;"])
    b, b_found = p.descriptor(op.b, 0)
    flags = "" if p.element.is_int else ", 1, 1"
    in_registers = isinstance(op.a.type, Tensor)
    if in_registers:
        left, majors = _register_operands(p), f", {int(b_found.transposed)}"
    else:
        a, a_found = p.descriptor(op.a, 1)
        majors = f", {int(a_found.transposed)}, {int(b_found.transposed)}"
    if p.element.bits == 16:
        flags += majors
    first = "0" if fresh else "1"
    if op.accumulate is not None and _constant(op.accumulate) is None:
        flag = p.operand(cg.e.convert("zext", cg.scalar(op.accumulate), "i32"), "r")
        p.text.append(f"setp.ne.b32 p, {flag}, 0;")
        first = "p"
    sums = _accumulators(p)
    kind = "tf32" if p.element.name == "f32" else _TYPES[p.element.name]
    name = f"wgmma.mma_async.sync.aligned.m{p.m}n{p.n}k{p.k}." \
        f"{_TYPES[scalar_of(op.c.type).name]}.{kind}.{kind}"
    for k in range(0, p.depth, p.k):
        for (row, column), registers in sums.items():
            lhs = left[row, k] if in_registers else p.shifted("a", a, op.a, (row, k))
            rhs = p.shifted("b", b, op.b, (k, column))
            p.text.append(f"{name} {{{', '.join(f'${i}' for i in registers)}}}, {lhs}, {rhs}, "
                          f"{first if k == 0 else 1}{flags};")
    p.text.append("wgmma.commit_group.sync.aligned;")
    outs = [f"=&{_kind(w)}" if fresh else f"={_kind(w)}" for w in c]
    ties = [] if fresh else [str(i) for i in range(len(c))]
    out = cg.e.asm("{ .reg .pred p; .reg .b64 a, b; " + " ".join(p.text) + " }",
                   ",".join([*outs, *(kind for kind, _ in p.inputs), *ties]),
                   [*(reg for _, reg in p.inputs), *([] if fresh else c)],
                   [w.elem for w in c], convergent=True)
    _set_words(cg, op.result, out)


def _constant(value: Value | None) -> bool | None:
    op = None if value is None else value.op
    return bool(op.value) if isinstance(op, ops.Constant) else None


def _accumulators(p: _Product) -> dict[tuple[int, int], list[int]]:
    """The words of each instruction's accumulator, by its first row and column."""
    frag, found = fragment_of(p.op.c), dict[tuple[int, int], list[tuple[int, int, int, int]]]()
    for r, (row, column) in enumerate(frag.register_coords):
        at = row - row % _ROWS, column - column % p.n
        found.setdefault(at, []).append((column // 8, row % _ROWS, column % 8, r))
    each = frag.num_registers // p.accumulators
    return {at: [key[-1] // each for key in sorted(keys)[::each]] for at, keys in found.items()}


def _register_operands(p: _Product) -> dict[tuple[int, int], str]:
    """Operand a in registers, as the asm spells it: by first row and k of an instruction."""
    frag, words = fragment_of(p.op.a), _words(p.cg, p.op.a)
    found: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
    for r, (row, k) in enumerate(frag.register_coords):
        at = row - row % _ROWS, k - k % p.k
        found.setdefault(at, []).append((k % p.k // (p.k // 2), row % _ROWS, k, r))
    each = frag.num_registers // len(words)
    e = p.cg.e
    bits = [e.bitcast(w, "i32", 0) for w in words]
    names = {i: p.operand(word, "r") for i, word in enumerate(bits)}
    return {at: "{" + ", ".join(names[key[-1] // each] for key in sorted(keys)[::each]) + "}"
            for at, keys in found.items()}
