"""Lowering of shared-memory buffers: allocation, whole-tile loads and stores."""

from __future__ import annotations

from functools import lru_cache

from tilec.codegen.context import SMEM, CodeGen, fragment_of, lower
from tilec.codegen.emit import SHARED, Reg
from tilec.codegen.memory import is_copy, owner
from tilec.codegen.move import shared_pointers
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
              ) -> list[tuple[tuple[int, ...], Reg]]:
    """(registers, pointer) of each access."""
    access, vector = _access_map(frag, buffer, size * 8)
    parts = frag.num_registers // frag.registers_per_part
    groups = [(part, vector.order[i:i + vector.width]) for part in range(parts)
              for i in range(0, frag.registers_per_part, vector.width)]
    pointers = shared_pointers(
        cg, access, size, [(g[0], part * buffer.part_elements * size) for part, g in groups],
        lambda offset: cg.e.new(f"getelementptr i8, {SHARED} {base.ref}, i32 {offset.ref}", SHARED))
    return [(tuple(part * frag.registers_per_part + r for r in g), pointer)
            for (part, g), pointer in zip(groups, pointers, strict=True)]


@lower(ops.SharedLoad)
def _load(cg: CodeGen, op: ops.SharedLoad) -> None:
    frag, elem = fragment_of(op.result), cg.element(op.result)
    stored = "i8" if elem == "i1" else elem
    size = Reg("", stored).bits // 8
    found: dict[int, Reg] = {}
    for registers, pointer in _accesses(cg, frag, _buffer(op.buffer), cg.scalar(op.buffer), size):
        part = cg.e.load(pointer, stored, len(registers), size * len(registers))
        found.update(zip(registers, cg.e.lane_list(part), strict=True))
    whole = cg.e.build([found[r] for r in range(frag.num_registers)])
    cg.set(op.result, cg.e.as_held(whole, elem))


@lower(ops.SharedStore)
def _store(cg: CodeGen, op: ops.SharedStore) -> None:
    e, frag = cg.e, fragment_of(op.value)
    x = e.as_stored(cg.whole(op.value))
    size = x.bits // 8
    accesses = _accesses(cg, frag, _buffer(op.buffer), cg.scalar(op.buffer), size)
    with e.when(owner(cg, frag), "store"):
        for registers, pointer in accesses:
            if not is_copy(frag, registers[0]):
                e.store(e.gather(x, registers), pointer, size * len(registers))
