"""Executes plans that move a tile between register layouts; also any tile through shared memory."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial

from tilec.codegen.access import load_matrices, load_route, store_matrices, store_route
from tilec.codegen.context import CodeGen
from tilec.codegen.emit import BITS, Reg
from tilec.codegen.memory import DEAD, both, is_copy, live_register, owner
from tilec.codegen.shuffle import from_lane, map_words
from tilec.ir.conversion import NoOp, Plan, Registers, Select, Shared, Shuffles
from tilec.ir.fragment import Fragment


def execute(cg: CodeGen, plan: Plan, x: Reg, offset: int) -> Reg:
    """The registers after the plan, from one power-of-two part `x` in memory form.

    offset: where the plan's scratch begins.
    """
    if isinstance(plan, NoOp):
        return x
    if isinstance(plan, Registers):
        return cg.e.gather(x, plan.permutation)
    if isinstance(plan, Shuffles):
        return _shuffles(cg, plan, x)
    assert isinstance(plan, Shared)
    return _shared(cg, plan, x, offset)


# ---- shuffles
def _shuffles(cg: CodeGen, plan: Shuffles, x: Reg) -> Reg:
    e = cg.e
    words = [_pack(cg, x, registers) for registers in plan.src_words]
    words = _select_steps(cg, plan.before, words)
    lanes: dict[int, Reg] = {}

    def source_lane(xor: int) -> Reg:
        if xor not in lanes:
            columns = (*plan.lane_columns, *plan.warp_columns)
            lanes[xor] = e.int_op("xor", cg.thread_bits(columns), xor)
        return lanes[xor]

    moved = []
    for source, xor in zip(plan.source, plan.lane_xor, strict=True):
        word = words[source]
        if plan.is_butterfly and not xor:
            moved.append(word)
            continue
        lane = source_lane(xor)
        moved.append(map_words(e, word, partial(from_lane, e, lane)))
    moved = _select_steps(cg, plan.after, moved)
    size = sum(map(len, plan.dst_words))
    flat = [part for word, rs in zip(moved, plan.dst_words, strict=True)
            for part in _unpack(cg, word, x, len(rs))]
    names = [r for rs in plan.dst_words for r in rs]
    by_register = dict(zip(names, flat, strict=True))
    copies = plan.copies or tuple(range(size))
    return e.build([by_register[c] for c in copies])


def _pack(cg: CodeGen, x: Reg, registers: Sequence[int]) -> Reg:
    """The word that holds these registers: packed into 32 bits if there are several."""
    part = cg.e.gather(x, registers)
    if not part.n:
        return part
    return cg.e.bitcast(part, f"i{part.bits * part.n}", 0)


def _unpack(cg: CodeGen, word: Reg, like: Reg, count: int) -> list[Reg]:
    if count == 1:
        return [cg.e.bitcast(word, like.elem, 0)]
    return cg.e.lane_list(cg.e.bitcast(word, like.elem, count))


def _select_steps(cg: CodeGen, steps: Sequence[Select], words: list[Reg]) -> list[Reg]:
    for step in steps:
        bit = step.bit + (5 if step.holder == "warp" else 0)
        unset = cg.is_thread(1 << bit)
        words = [cg.e.select(unset, w, words[i ^ step.xor]) for i, w in enumerate(words)]
    return words


# ---- shared memory
def _shared(cg: CodeGen, plan: Shared, x: Reg, offset: int) -> Reg:
    e, size = cg.e, x.bits // 8
    store = plan.store_route(x.bits, store_matrices(cg))
    load = plan.load_route(x.bits, load_matrices(cg))
    address = partial(cg.shared_address, offset)
    found: dict[int, Reg] = {}
    for number, repetition in enumerate(plan.repetitions):
        if number:
            _fence(cg, plan)
        with e.when(cg.is_thread(plan.skip_warps << 5) if plan.skip_warps else None, "store"):
            store_route(cg, store, x, repetition.store, size, address)
        _fence(cg, plan)
        loaded = load_route(cg, load, x.elem, size, address)
        found.update((repetition.load[i], lane) for i, lane in loaded.items())
    copies = plan.copies or tuple(sorted(found))
    return e.build([found[c] for c in copies])


def _fence(cg: CodeGen, plan: Shared) -> None:
    if plan.warp_local:
        cg.warp_barrier()
    else:
        cg.barrier()


# ---- row-major
def through_memory(cg: CodeGen, x: Reg, src: Fragment, dst: Fragment, offset: int) -> Reg:
    """Elements in row-major order through scratch: serves any two shapes of equal size."""
    size = x.bits // 8
    store_elements(cg, x, src, offset, row_major(src.shape, size))
    cg.barrier()
    return load_elements(cg, x.elem, dst, offset, row_major(dst.shape, size))


def load_elements(cg: CodeGen, elem: str, frag: Fragment, offset: int, strides: Sequence[int],
                  steps: Sequence[Reg] = ()) -> Reg:
    """The elements that `store_elements` has put there, of each register that which lies so many
    bytes on."""
    e, parts = cg.e, []
    for r in range(frag.num_registers):
        live = live_register(cg, frag, r)
        if live == DEAD:
            parts.append(e.const(0, elem))
            continue
        pointer = element_address(cg, frag, r, offset, strides)
        if steps:
            pointer = e.new(f"getelementptr i8, {pointer.type} {pointer.ref}, i32 {steps[r].ref}",
                            pointer.elem)
        if live is not None:
            # A dead element reads some place inside the scratch.
            pointer = e.select(live, pointer, cg.shared_address(offset))
        parts.append(e.load(pointer, elem, 1, BITS[elem] // 8))
    return e.build(parts)


def store_elements(cg: CodeGen, x: Reg, frag: Fragment, offset: int, strides: Sequence[int]
                   ) -> None:
    """Every element to scratch, once; a step along dimension d is strides[d] bytes."""
    e, size = cg.e, x.bits // 8
    mine = owner(cg, frag)
    for r in range(frag.num_registers):
        live = live_register(cg, frag, r)
        if live == DEAD or is_copy(frag, r):
            continue
        pointer = element_address(cg, frag, r, offset, strides)
        with e.when(both(e, mine, live), "store"):
            e.store(e.lane(x, r), pointer, size)


def row_major(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Bytes from element to element along each dimension."""
    strides = [size] * len(shape)
    for d in reversed(range(len(strides) - 1)):
        strides[d] = strides[d + 1] * shape[d + 1]
    return tuple(strides)


def element_address(cg: CodeGen, frag: Fragment, register: int, offset: int,
                    strides: Sequence[int]) -> Reg:
    """Where `store_elements` puts a register's element."""
    return cg.shift(thread_address(cg, frag, offset, strides),
                    sum(map(operator.mul, frag.register_coords[register], strides)))


def thread_address(cg: CodeGen, frag: Fragment, offset: int, strides: Sequence[int]) -> Reg:
    """The thread's part of `element_address`."""
    e = cg.e

    def make() -> Reg:
        total = e.const(0, "i32")
        for dim, stride in enumerate(strides):
            part = e.int_op("mul", cg.coordinate(frag, dim), stride)
            total = part if total.ref == "0" else e.binary("add", total, part)
        return cg.shared_address(offset, total)

    return e.once(("element", frag.shape, frag.linear, offset, tuple(strides)), make)
