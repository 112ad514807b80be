"""Lowering of atomics: one operation an element, results sent to the threads that hold copies.

An ordered atomic orders what the whole program did: threads meet before a release and after an
acquire, and several operations share one fence.
"""

from __future__ import annotations

from tilec.codegen.checks import Guard
from tilec.codegen.context import CodeGen, fragment_of, lower
from tilec.codegen.emit import Reg
from tilec.codegen.memory import DEAD, Lanes, both, is_copy, live_register, owner
from tilec.codegen.values import Tile
from tilec.ir import ops
from tilec.ir.fragment import Fragment
from tilec.ir.scratch import atomic_scratch
from tilec.ir.types import Tensor, scalar_of

_TYPES = {"f16": "noftz.f16", "bf16": "noftz.bf16", "f32": "f32", "f64": "f64"}
_LETTERS = {16: "h", 32: "r", 64: "l"}


@lower(ops.AtomicRmw)
def _atomic(cg: CodeGen, op: ops.AtomicRmw) -> None:
    frag = fragment_of(op.result) if isinstance(op.result.type, Tensor) else None
    pointers, value = cg.tile(op.ptr), cg.tile(op.value)
    values = cg.whole(op.value)
    mask = None if op.mask is None else cg.whole(op.mask)
    count = 1 if frag is None else frag.num_registers
    wanted, alone = bool(op.result.uses), count == 1
    if op.releases:
        cg.barrier()
    if not alone and op.sem != "relaxed":
        _fence(cg, op)
    sem = op.sem if alone else "relaxed"
    lanes, mine, guard = Lanes(cg.e), owner(cg, frag), Guard(cg, op, op.ptr)
    results = []
    for r in range(count):
        live = None if frag is None else live_register(cg, frag, r)
        if live == DEAD or frag is not None and is_copy(frag, r):
            results.append(cg.e.const(0, f"i{values.bits}"))
            continue
        pred = both(cg.e, mine, live, None if mask is None else lanes.of(mask, r))
        pointer, offset = lanes.pointer(pointers, r)
        pred = guard.allowed(pointer, offset, scalar_of(op.value.type).bytes, pred)
        results.append(_one(cg, op, sem, cg.shift(pointer, offset), lanes.of(values, r), pred,
                            wanted))
    guard.report()
    if not alone and op.sem != "relaxed":
        _fence(cg, op)
    if wanted:
        bits = _shared_out(cg, op, frag, cg.e.build(results))
        result = cg.e.bitcast(bits, value.reg.elem, bits.n)
        cg.env[op.result] = Tile(result, count) if frag is not None else result
    if op.acquires and atomic_scratch(op) == 0:
        cg.barrier()


def _fence(cg: CodeGen, op: ops.AtomicRmw) -> None:
    cg.e.asm(f"fence.acq_rel.{op.scope};", "", (), ())


def _one(cg: CodeGen, op: ops.AtomicRmw, sem: str, pointer: Reg, value: Reg, pred: Reg | None,
         wanted: bool) -> Reg:
    """One atomic; its old value as bits."""
    t = scalar_of(op.value.type)
    if t.name == "bf16" and not cg.target.has("red.add.bf16"):
        return _compare_and_swap(cg, op, sem, pointer, value, pred)
    e, letter = cg.e, _LETTERS[t.bits]
    bits = e.bitcast(value, f"i{t.bits}", 0)
    kind = _TYPES.get(t.name, f"u{t.bits}")
    guard = "" if pred is None else "@$%d "
    if not wanted and sem in ("relaxed", "release"):
        text = f"red.{sem}.{op.scope}.global.add.{kind} [$0], $1;"
        args = [pointer, bits] + ([pred] if pred is not None else [])
        e.asm((guard % 2 if guard else "") + text, f"l,{letter}" + (",b" if guard else ""), args,
              ())
        return e.const(0, f"i{t.bits}")
    text = f"atom.{sem}.{op.scope}.global.add.{kind} $0, [$2], $3;"
    args = [e.const(0, bits.elem), pointer, bits] + ([pred] if pred is not None else [])
    return e.asm((guard % 4 if guard else "") + text,
                 f"={letter},0,l,{letter}" + (",b" if guard else ""), args, (bits.elem,))[0]


def _compare_and_swap(cg: CodeGen, op: ops.AtomicRmw, sem: str, pointer: Reg, value: Reg,
                      pred: Reg | None) -> Reg:
    """bf16 addition by a loop, for targets without the instruction."""
    e = cg.e
    loop, done, start = e.label("cas"), e.label("added"), e.block
    enter = e.label("enter")
    e.branch(pred or e.const(True, "i1"), enter, done)
    e.start(enter)
    first = e.asm("ld.relaxed.gpu.global.b16 $0, [$1];", "=h,l", (pointer,), ("i16",))[0]
    e.jump(loop)
    e.start(loop)
    old, close = e.phi_later("i16", 0)
    total = e.binary("fadd", e.bitcast(old, "bfloat", 0), value)
    found = e.asm(f"atom.{sem}.{op.scope}.global.cas.b16 $0, [$1], $2, $3;", "=h,l,h,h",
                  (pointer, old, e.bitcast(total, "i16", 0)), ("i16",))[0]
    close((first, enter), (found, loop))
    e.branch(e.compare("eq", found, old), done, loop)
    e.start(done)
    return e.phi("i16", 0, [(e.const(0, "i16"), start), (found, loop)])


def _shared_out(cg: CodeGen, op: ops.AtomicRmw, frag: Fragment | None, x: Reg) -> Reg:
    """The results, also in the threads that hold copies of the elements."""
    if atomic_scratch(op) == 0:
        return x
    e, size = cg.e, x.bits // 8
    mine = owner(cg, frag)
    assert mine is not None
    pointers = _places(cg, op, frag, size)
    with e.when(mine, "store"):
        for i, pointer in enumerate(pointers):
            if frag is None or not is_copy(frag, i):
                e.store(e.lane(x, i), pointer, size)
    cg.barrier()
    return e.build([e.load(p, x.elem, 1, size) for p in pointers])


def _places(cg: CodeGen, op: ops.AtomicRmw, frag: Fragment | None, size: int) -> list[Reg]:
    """Where in scratch each register's result goes: its index in the stored (padded) tile."""
    if frag is None:
        return [cg.shared_address(op.offset)]
    flat = frag.linear.flatten_outs()
    columns = [c * size for c in (*flat.columns_of("lane"), *flat.columns_of("warp"))]
    base = cg.shared_address(op.offset, cg.thread_bits(columns))
    n, part_size = frag.registers_per_part, 1
    for extent in frag.pow2:
        part_size *= extent
    return [cg.shift(base, size * (r // n * part_size + flat.apply_packed(register=r % n)))
            for r in range(frag.num_registers)]


