"""Lowering of shared-memory buffers: allocation, views, whole-tile loads and stores, copies."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

from tilec.codegen.access import (
    Address,
    load_matrices,
    load_route,
    shared_pointers,
    store_matrices,
    store_route,
)
from tilec.codegen.checks import Guard
from tilec.codegen.context import SMEM, CodeGen, fragment_of, lower
from tilec.codegen.emit import SHARED, Reg
from tilec.codegen.memory import DEAD, Lanes, both, is_copy, live_register, owner, plain
from tilec.errors import CompilationError
from tilec.ir import ops
from tilec.ir.buffers import access_map, copy_access, stage_bytes
from tilec.ir.core import Value
from tilec.ir.fragment import SharedTile, shared_tile
from tilec.ir.swizzle import best_route
from tilec.ir.types import MemDesc


@lower(ops.AllocShared)
def _alloc(cg: CodeGen, op: ops.AllocShared) -> None:
    cg.env[op.result] = cg.shift(Reg(SMEM, SHARED), op.offset)


@lower(ops.MemdescIndex)
def _index(cg: CodeGen, op: ops.MemdescIndex) -> None:
    t = op.result.type
    assert isinstance(t, MemDesc)
    offset = cg.e.int_op("mul", cg.scalar(op.index), stage_bytes(t))
    cg.env[op.result] = _within(cg, cg.scalar(op.buffer))(offset)


@lower(ops.MemdescTrans)
def _trans(cg: CodeGen, op: ops.MemdescTrans) -> None:
    cg.env[op.result] = cg.scalar(op.buffer)


def _within(cg: CodeGen, base: Reg) -> Address:
    """Pointers into a buffer by byte offset."""
    return lambda offset: cg.e.new(f"getelementptr i8, {base.elem} {base.ref}, i32 {offset.ref}",
                                   base.elem)


def _buffer(value: Value) -> SharedTile:
    t = value.type
    assert isinstance(t, MemDesc)
    return shared_tile(t.shape, t.layout)


@lower(ops.SharedLoad)
def _load(cg: CodeGen, op: ops.SharedLoad) -> None:
    load_buffer(cg, op, cg.scalar(op.buffer), op.offsets, load_matrices(cg))


def load_buffer(cg: CodeGen, op: ops.SharedLoad | ops.RemoteLoad, base: Reg,
                offsets: Sequence[int] = (), matrices: bool = False) -> None:
    """Read a buffer that begins at `base`, or the part of it at `offsets`, into the op's result.
    matrices: by ldmatrix too, which reaches the CTA's own memory alone."""
    frag, buffer, elem = fragment_of(op.result), _buffer(op.buffer), cg.element(op.result)
    stored = "i8" if elem == "i1" else elem
    size = Reg("", stored).bits // 8
    copies = frag.free_masks["register"]
    lanes: list[Reg] = []
    for odd in frag.odd_offsets:
        start = tuple(map(add, odd, offsets)) if offsets else odd
        access = access_map(frag, buffer, start if offsets else ())
        route = best_route(access, size * 8, matrices)
        found = load_route(cg, route, stored, size, _within(cg, base),
                           buffer.part_at(start) * buffer.part_elements * size)
        lanes += [found[r & ~copies] for r in range(frag.registers_per_part)]
    cg.set(op.result, cg.e.as_held(cg.e.build(lanes), elem))


@lower(ops.SharedStore)
def _store(cg: CodeGen, op: ops.SharedStore) -> None:
    e, frag, buffer = cg.e, fragment_of(op.value), _buffer(op.buffer)
    x = e.as_stored(cg.whole(op.value))
    size = x.bits // 8
    # All lanes of a warp must take part in stmatrix.
    matrices = store_matrices(cg) and not frag.free_masks["lane"]
    route = best_route(access_map(frag, buffer), size * 8, matrices)
    with e.when(owner(cg, frag), "store"):
        for i, part in enumerate(buffer.parts):
            names = range(i * frag.registers_per_part, (i + 1) * frag.registers_per_part)
            store_route(cg, route, x, names, size, _within(cg, cg.scalar(op.buffer)),
                        part * buffer.part_elements * size)


# ---- asynchronous copies
@lower(ops.AsyncCopy)
def _copy(cg: CodeGen, op: ops.AsyncCopy) -> None:
    e, frag, buffer = cg.e, fragment_of(op.ptr), _buffer(op.buffer)
    t = op.buffer.type
    assert isinstance(t, MemDesc)
    size = t.element.bytes
    vector = copy_access(op.ptr, op.mask, cg.axis, t.layout)
    if vector is None:
        raise CompilationError(
            f"cp.async copies 4, 8 or 16 bytes at once; fewer lie together in {op.ptr.type} and "
            f"{t}", op.loc, "load the tile and store it with gpu.shared_store instead")
    width, each = vector.width, frag.registers_per_part
    groups = [(part, vector.order[i:i + width][0]) for part in range(len(buffer.parts))
              for i in range(0, each, width) if not is_copy(frag, vector.order[i])]
    targets = shared_pointers(
        cg, access_map(frag, buffer), size,
        [(r, buffer.parts[part] * buffer.part_elements * size) for part, r in groups],
        _within(cg, cg.scalar(op.buffer)))
    pointers, mask, lanes = cg.tile(op.ptr), plain(cg, op.mask), Lanes(e)
    sources, guard = [], Guard(cg, op, op.ptr)
    for part, r in groups:
        register = part * each + r
        pointer, offset = lanes.pointer(pointers, register)
        live = live_register(cg, frag, register)
        where = live if live == DEAD else guard.allowed(
            pointer, offset, width * size, both(e, live, lanes.element(mask, register)))
        sources.append((cg.shift(pointer, offset), where))
    guard.report()
    with e.when(owner(cg, frag), "copy"):
        for target, (source, where) in zip(targets, sources, strict=True):
            if where != DEAD:
                _cp_async(cg, target, source, width * size, where)


def _cp_async(cg: CodeGen, target: Reg, source: Reg, size: int, where: Reg | None) -> None:
    """Copy `size` bytes, or zeros where the predicate does not hold."""
    name = f"llvm.nvvm.cp.async.{'cg' if size == 16 else 'ca'}.shared.global.{size}"
    if where is None:
        cg.e.call_void(name, (target, source))
        return
    count = cg.e.select(where, cg.e.const(size, "i32"), cg.e.const(0, "i32"))
    cg.e.call_void(f"{name}.s", (target, source, count))


@lower(ops.AsyncCommit)
def _commit(cg: CodeGen, op: ops.AsyncCommit) -> None:
    cg.e.call_void("llvm.nvvm.cp.async.commit.group", ())


@lower(ops.AsyncWait)
def _wait(cg: CodeGen, op: ops.AsyncWait) -> None:
    cg.e.call_void("llvm.nvvm.cp.async.wait.group", (cg.e.const(op.pending, "i32"),))
