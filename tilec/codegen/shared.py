"""Lowering of shared-memory buffers: allocation, whole-tile loads and stores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from tilec.codegen.context import SMEM, CodeGen, fragment_of, lower, thread_columns
from tilec.codegen.emit import SHARED, Reg
from tilec.codegen.memory import is_copy, owner
from tilec.codegen.move import as_held, as_stored
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.fragment import Fragment, SharedTile, shared_tile
from tilec.ir.linear import LinearLayout
from tilec.ir.swizzle import VectorAccess, best_vector
from tilec.ir.types import MemDesc


@lower(ops.AllocShared)
def _alloc(cg: CodeGen, op: ops.AllocShared) -> None:
    cg.env[op.result] = cg.shift(Reg(SMEM, SHARED), op.offset)


def _buffer(value: Value) -> SharedTile:
    t = value.type
    assert isinstance(t, MemDesc)
    return shared_tile(t.shape, t.layout)


@lru_cache(maxsize=1024)
def _access_map(frag: Fragment, buffer: SharedTile, bits: int) -> tuple[LinearLayout, VectorAccess]:
    """((register, lane, warp) -> element offset in one part, the order and width of accesses)."""
    access = frag.linear.invert_and_compose(buffer.linear)
    return access, best_vector(access, bits)


def _accesses(cg: CodeGen, frag: Fragment, buffer: SharedTile, base: Reg, size: int
              ) -> Iterator[tuple[tuple[int, ...], Reg]]:
    """(registers, pointer) of each access."""
    e = cg.e
    access, vector = _access_map(frag, buffer, size * 8)
    columns = thread_columns(access)
    used = access.flip_bits
    for c in columns:
        used |= c
    thread = e.int_op("xor", cg.thread_bits([c * size for c in columns]), access.flip_bits * size)
    bases: dict[int, Reg] = {}
    parts = frag.num_registers // frag.registers_per_part
    for part in range(parts):
        for i in range(0, frag.registers_per_part, vector.width):
            registers = vector.order[i:i + vector.width]
            at = access.apply_packed(register=registers[0]) ^ access.flip_bits
            mixed = at & used
            if mixed not in bases:
                offset = e.int_op("xor", thread, mixed * size)
                bases[mixed] = e.new(f"getelementptr i8, {SHARED} {base.ref}, i32 {offset.ref}",
                                     SHARED)
            constant = ((at & ~used) + part * buffer.part_elements) * size
            first = part * frag.registers_per_part
            yield tuple(first + r for r in registers), cg.shift(bases[mixed], constant)


@lower(ops.SharedLoad)
def _load(cg: CodeGen, op: ops.SharedLoad) -> None:
    frag, elem = fragment_of(op.result), cg.element(op.result)
    stored = "i8" if elem == "i1" else elem
    size = Reg("", stored).bits // 8
    found: dict[int, Reg] = {}
    for registers, pointer in _accesses(cg, frag, _buffer(op.buffer), cg.scalar(op.buffer), size):
        width = len(registers)
        kind = f"<{width} x {stored}>" if width > 1 else stored
        part = cg.e.new(f"load {kind}, {pointer.type} {pointer.ref}, align {size * width}", stored,
                        width if width > 1 else 0)
        found.update(zip(registers, cg.e.lane_list(part), strict=True))
    whole = cg.e.build([found[r] for r in range(frag.num_registers)])
    cg.set(op.result, as_held(cg, whole, elem))


@lower(ops.SharedStore)
def _store(cg: CodeGen, op: ops.SharedStore) -> None:
    e, frag = cg.e, fragment_of(op.value)
    x = as_stored(cg, cg.whole(op.value))
    size = x.bits // 8
    mine = owner(cg, frag)
    accesses = list(_accesses(cg, frag, _buffer(op.buffer), cg.scalar(op.buffer), size))
    write, done = e.label("store"), e.label("stored")
    if mine is not None:
        e.branch(mine, write, done)
        e.start(write)
    for registers, pointer in accesses:
        if not is_copy(frag, registers[0]):
            part = e.gather(x, registers)
            e.do(f"store {part.type} {part.ref}, {pointer.type} {pointer.ref}, "
                 f"align {size * len(registers)}")
    if mine is not None:
        e.jump(done)
        e.start(done)


