"""Lowering of ops that rearrange elements, by renaming registers where threads keep their elements,
or count them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import xor

from tilec.codegen.context import CodeGen, fragment_of, lower
from tilec.codegen.memory import DEAD, both, is_copy, live_register, owner
from tilec.codegen.move import execute, load_elements, row_major, store_elements, through_memory
from tilec.codegen.values import Tile, align, beside, remap
from tilec.ir import ops
from tilec.ir.conversion import NoOp, Registers
from tilec.ir.fragment import Fragment
from tilec.ir.scratch import move_plan
from tilec.ir.types import Tensor, scalar_of

Coords = tuple[int, ...]


@lower(ops.ExpandDims)
def _expand_dims(cg: CodeGen, op: ops.ExpandDims) -> None:
    # The operand's layout is the result's sliced: the same registers in the same order.
    axis = op.axis
    _rename(cg, op, lambda at: at[:axis] + at[axis + 1:])


@lower(ops.Broadcast)
def _broadcast(cg: CodeGen, op: ops.Broadcast) -> None:
    shape = fragment_of(op.x).shape
    _rename(cg, op, lambda at: tuple(0 if n == 1 else c for c, n in zip(at, shape, strict=True)))


@lower(ops.Trans)
def _trans(cg: CodeGen, op: ops.Trans) -> None:
    order = op.order

    def source(at: Coords) -> Coords:
        out = [0] * len(at)
        for i, d in enumerate(order):
            out[d] = at[i]
        return tuple(out)

    _rename(cg, op, source)


@lower(ops.Split)
def _split(cg: CodeGen, op: ops.Split) -> None:
    index = op.index
    _rename(cg, op, lambda at: (*at, index))


@lower(ops.Join)
def _join(cg: CodeGen, op: ops.Join) -> None:
    """Registers of both under new names; a thread that holds one of a pair picks it."""
    src, dst = fragment_of(op.a), fragment_of(op.result)
    of, n, last = by_coords(src), src.num_registers, len(src.shape)
    both = beside(cg.e, cg.tile(op.a), cg.tile(op.b))
    registers = [of[at[:-1]] + n * at[-1] for at in dst.register_coords]
    near = remap(cg.e, both, registers)
    if not any(base[-1] for base in (*dst.lane_bases, *dst.warp_bases)):
        cg.env[op.result] = near
        return
    far = remap(cg.e, both, [(r + n) % (2 * n) for r in registers])
    first = cg.e.compare("eq", cg.coordinate(dst, last), cg.e.const(0, "i32"))
    (x, y), index = align(cg.e, (near, far))
    cg.env[op.result] = Tile(cg.e.select(first, x, y), len(registers), index)


def _rename(cg: CodeGen, op: ops.ExpandDims | ops.Broadcast | ops.Trans | ops.Split,
            source: Callable[[Coords], Coords]) -> None:
    """Every result register is the operand's register at source(coordinates)."""
    src, dst = fragment_of(op.x), fragment_of(op.result)
    of = by_coords(src)
    registers = [of[source(at)] for at in dst.register_coords]
    start = source((0,) * len(dst.shape))
    for a, b in zip((*src.lane_bases, *src.warp_bases), (*dst.lane_bases, *dst.warp_bases),
                    strict=True):
        assert tuple(map(xor, source(b), start)) == a, f"{op.name} moves elements between threads"
    cg.env[op.result] = remap(cg.e, cg.tile(op.x), registers)


@lru_cache(maxsize=1024)
def by_coords(frag: Fragment) -> dict[Coords, int]:
    """The first register at each constant part of coordinates."""
    found: dict[Coords, int] = {}
    for r, at in enumerate(frag.register_coords):
        found.setdefault(at, r)
    return found


@lower(ops.SetLayout)
def _set_layout(cg: CodeGen, op: ops.SetLayout) -> None:
    cg.env[op.result] = cg.env[op.x]


@lower(ops.ConvertLayout, ops.Reshape)
def _move(cg: CodeGen, op: ops.ConvertLayout | ops.Reshape) -> None:
    src_type, dst_type = op.x.type, op.result.type
    assert isinstance(src_type, Tensor) and isinstance(dst_type, Tensor)
    src, dst = fragment_of(op.x), fragment_of(op.result)
    plan = move_plan(src_type, dst_type)
    held = cg.tile(op.x)
    if isinstance(plan.plan, (NoOp, Registers)):
        permutation = plan.plan.permutation if isinstance(plan.plan, Registers) else \
            tuple(range(dst.registers_per_part))
        registers = [part * src.registers_per_part + r
                     for part in range(plan.parts) for r in permutation]
        cg.env[op.result] = remap(cg.e, held, registers)
        return
    x = cg.e.as_stored(cg.whole(op.x))
    if plan.plan is None:
        moved = through_memory(cg, x, src, dst, op.offset)
    else:
        n, out = src.registers_per_part, []
        for part in range(plan.parts):
            if part and op.offset >= 0:
                cg.barrier()  # parts take turns with the scratch
            piece = cg.e.gather(x, range(part * n, (part + 1) * n))
            out.append(execute(cg, plan.plan, piece, op.offset))
        moved = cg.e.concat(out)
    cg.set(op.result, cg.e.as_held(moved, cg.element(op.result)))


@lower(ops.Gather)
def _gather(cg: CodeGen, op: ops.Gather) -> None:
    """Through scratch: every thread stores its elements there, and loads those that it wants."""
    e, src, dst, elem = cg.e, fragment_of(op.x), fragment_of(op.result), cg.element(op.result)
    x, index, t = e.as_stored(cg.whole(op.x)), cg.whole(op.index), scalar_of(op.index.type)
    strides = [*row_major(src.shape, x.bits // 8)]
    store_elements(cg, x, src, op.offset, strides)
    cg.barrier()
    index = e.resize(index, "i64" if t.bits == 64 else "i32", t.is_signed)
    index = e.generic("umin", index, e.const(src.shape[op.axis] - 1, index.elem, index.n))
    steps = e.int_op("mul", e.resize(index, "i32", False), strides[op.axis])
    strides[op.axis] = 0
    found = load_elements(cg, x.elem, dst, op.offset, strides, e.lane_list(steps))
    cg.set(op.result, e.as_held(found, elem))


@lower(ops.Histogram)
def _histogram(cg: CodeGen, op: ops.Histogram) -> None:
    """Every thread clears some counters in scratch, then counts its elements there."""
    e, frag, t, threads = cg.e, fragment_of(op.x), scalar_of(op.x.type), 32 * cg.num_warps
    own = cg.shared_address(op.offset, e.int_op("shl", cg.thread(), 2))
    for first in range(0, op.bins, threads):
        room = e.compare("ult", cg.thread(), e.const(op.bins - first, "i32"))
        with e.when(room if op.bins - first < threads else None, "clear"):
            e.store(e.const(0, "i32"), cg.shift(own, 4 * first), 4)
    cg.barrier()
    x = e.resize(cg.whole(op.x), "i64" if t.bits == 64 else "i32", t.is_signed)
    inside = e.lane_list(e.compare("ult", x, e.const(op.bins, x.elem, x.n)))
    for r, at in enumerate(e.lane_list(e.int_op("shl", e.resize(x, "i32", False), 2))):
        live = live_register(cg, frag, r)
        on = both(e, owner(cg, frag), live, inside[r])
        if live != DEAD and on is not None and not is_copy(frag, r):
            place = e.convert("ptrtoint", cg.shared_address(op.offset, at), "i32")
            e.asm("@$1 red.relaxed.cta.shared.add.u32 [$0], 1;", "r,b", (place, on), ())
    cg.barrier()
    cg.set(op.result, load_elements(cg, "i32", fragment_of(op.result), op.offset, (4,)))
