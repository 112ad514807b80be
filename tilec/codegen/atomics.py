"""Lowering of atomics: one operation an element, results sent to the threads that hold copies.

An ordered atomic orders what the whole program did: threads meet before a release and after an
acquire, and several operations share one fence.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen.checks import Guard
from tilec.codegen.context import CodeGen, fragment_of, lower
from tilec.codegen.emit import Reg
from tilec.codegen.memory import DEAD, Lanes, both, is_copy, live_register, owner, to_words
from tilec.codegen.values import Tile
from tilec.ir import ops
from tilec.ir.fragment import Fragment
from tilec.ir.scratch import atomic_scratch
from tilec.ir.types import Scalar, Tensor, scalar_of
from tilec.ir.vectors import widest_access

_FLOATS = {"f16": "noftz.f16", "bf16": "noftz.bf16", "f32": "f32", "f64": "f64"}
_BY_SIGN = {"max": ("max.s", "min.u"), "min": ("min.s", "max.u")}  # of what is given
_LETTERS = {16: "h", 32: "r", 64: "l"}


@lower(ops.Atomic)
def _atomic(cg: CodeGen, op: ops.Atomic) -> None:
    frag = fragment_of(op.result) if isinstance(op.result.type, Tensor) else None
    pointers, value = cg.tile(op.ptr), cg.tile(op.value)
    given = [cg.whole(v) for v in op.given]
    mask = None if op.mask is None else cg.whole(op.mask)
    count = 1 if frag is None else frag.num_registers
    alone = count == 1
    if op.releases:
        cg.barrier()
    if not alone and op.sem != "relaxed":
        _fence(cg, op)
    sem = op.sem if alone else "relaxed"
    lanes, mine, guard = Lanes(cg.e), owner(cg, frag), Guard(cg, op, op.ptr)
    results, form = [], f"i{value.reg.bits}"
    for piece in _pieces(cg, op, frag):
        r = piece[0]
        live = None if frag is None else live_register(cg, frag, r)
        if live == DEAD or frag is not None and is_copy(frag, r):
            results.append(cg.e.const(0, form))
            continue
        pred = both(cg.e, mine, live, None if mask is None else lanes.of(mask, r))
        pointer, offset = lanes.pointer(pointers, r)
        pred = guard.allowed(pointer, offset, len(piece) * value.reg.bits // 8, pred)
        if len(piece) > 1:
            _add_several(cg, op, cg.shift(pointer, offset), cg.e.gather(given[0], piece), pred)
            continue
        values = [cg.e.bitcast(lanes.of(v, r), form, 0) for v in given]
        results.append(_one(cg, op, sem, cg.shift(pointer, offset), values, pred))
    guard.report()
    if not alone and op.sem != "relaxed":
        _fence(cg, op)
    if op.result.uses:
        bits = _shared_out(cg, op, frag, cg.e.build(results))
        result = cg.e.bitcast(bits, value.reg.elem, bits.n)
        cg.env[op.result] = Tile(result, count) if frag is not None else result
    if op.acquires and atomic_scratch(op) == 0:
        cg.barrier()


def _pieces(cg: CodeGen, op: ops.Atomic, frag: Fragment | None) -> list[Sequence[int]]:
    """The registers that one instruction updates at a time: neighbours in memory where floats are
    added and nobody asks for old values."""
    t = scalar_of(op.value.type)
    if frag is None:
        return [(0,)]
    most = 16 if cg.target.has(f"red.add.v4.{t.name}") else 4 if t.name == "f16" else 0  # bytes
    if op.kind == "add" and not op.result.uses and t.name in ("f16", "bf16", "f32"):
        access = widest_access(op.ptr, op.mask, cg.axis)
        width = min(access.width, most // t.bytes)
        if width > 1:
            return [group[i:i + width] for group in access.groups()
                    for i in range(0, len(group), width)]
    return [(r,) for r in range(frag.num_registers)]


def _add_several(cg: CodeGen, op: ops.Atomic, pointer: Reg, values: Reg, pred: Reg | None) -> None:
    """Neighbours are added, each of them by an atomic of its own."""
    words, t = to_words(cg.e, values), scalar_of(op.value.type)
    kind = f"noftz.{{}}{t.name}x2" if t.bits == 16 else "{}f32"
    names = ", ".join(f"${i + 1}" for i in range(len(words)))
    vector = f"v{len(words)}." if len(words) > 1 else ""
    source = f"{{{names}}}" if vector else names
    guard, conditions = ("", []) if pred is None else (f"@${len(words) + 1} ", [pred])
    cg.e.asm(f"{guard}red.relaxed.{op.scope}.global.add.{kind.format(vector)} [$0], {source};",
             ",".join(["l", *("r" for _ in words), *("b" for _ in conditions)]),
             [pointer, *words, *conditions], ())


def _fence(cg: CodeGen, op: ops.Atomic) -> None:
    cg.e.asm(f"fence.acq_rel.{op.scope};", "", (), ())


def _one(cg: CodeGen, op: ops.Atomic, sem: str, pointer: Reg, given: Sequence[Reg],
         pred: Reg | None) -> Reg:
    """One atomic on bits; the old ones."""
    t, e = scalar_of(op.value.type), cg.e
    if t.bits == 16 and op.kind != "cas" and not (
            op.kind == "add" and cg.target.has(f"red.add.{t.name}")):
        return _swap(cg, op, sem, pointer, given[0], pred)
    old = zero = e.const(0, given[0].elem)
    if not t.is_float or op.kind not in ("max", "min"):
        return _instruction(cg, op, sem, _name(op.kind, t), pointer, given, pred, old)
    # Floats are ordered as their bits are, negative ones the other way round.
    for sign, name in zip(("sge", "slt"), _BY_SIGN[op.kind]):
        mine = both(e, e.compare(sign, given[0], zero), pred)
        old = _instruction(cg, op, sem, f"{name}{t.bits}", pointer, given, mine, old)
    return old


def _name(kind: str, t: Scalar) -> str:
    """What PTX calls an atomic of elements of a type."""
    if kind == "add":
        return f"add.{_FLOATS.get(t.name, f'u{t.bits}')}"
    if kind in ("max", "min"):
        return f"{kind}.{'s' if t.is_signed else 'u'}{t.bits}"
    return f"{'exch' if kind == 'xchg' else kind}.b{t.bits}"


def _instruction(cg: CodeGen, op: ops.Atomic, sem: str, name: str, pointer: Reg,
                 given: Sequence[Reg], pred: Reg | None, old: Reg) -> Reg:
    """One instruction; the bits that it finds, or `old` where it is not done."""
    conditions = [] if pred is None else [pred]
    letters = ["l", *(_LETTERS[x.bits] for x in given), *("b" for _ in conditions)]
    args = [pointer, *given, *conditions]
    unused = not op.result.uses and sem in ("relaxed", "release") and op.kind not in ("xchg", "cas")
    first = 0 if unused else 2
    places = ", ".join(f"${first + i + 1}" for i in range(len(given)))
    guard = "" if pred is None else f"@${first + len(given) + 1} "
    if unused:
        cg.e.asm(f"{guard}red.{sem}.{op.scope}.global.{name} [$0], {places};", ",".join(letters),
                 args, ())
        return old
    return cg.e.asm(f"{guard}atom.{sem}.{op.scope}.global.{name} $0, [$2], {places};",
                    ",".join([f"={letters[1]}", "0", *letters]), [old, *args], (old.elem,))[0]


def _swap(cg: CodeGen, op: ops.Atomic, sem: str, pointer: Reg, given: Reg,
          pred: Reg | None) -> Reg:
    """16 bits by a loop of compare-and-swaps, where there is no instruction."""
    e = cg.e
    loop, done, start = e.label("cas"), e.label("swapped"), e.block
    enter = e.label("enter")
    e.branch(pred or e.const(True, "i1"), enter, done)
    e.start(enter)
    first = e.asm("ld.relaxed.gpu.global.b16 $0, [$1];", "=h,l", (pointer,), ("i16",))[0]
    e.jump(loop)
    e.start(loop)
    old, close = e.phi_later("i16", 0)
    found = e.asm(f"atom.{sem}.{op.scope}.global.cas.b16 $0, [$1], $2, $3;", "=h,l,h,h",
                  (pointer, old, _updated(cg, op, old, given)), ("i16",))[0]
    close((first, enter), (found, loop))
    e.branch(e.compare("eq", found, old), done, loop)
    e.start(done)
    return e.phi("i16", 0, [(e.const(0, "i16"), start), (found, loop)])


def _updated(cg: CodeGen, op: ops.Atomic, old: Reg, given: Reg) -> Reg:
    """What an atomic puts in place of the bits `old` of a 16-bit float."""
    e = cg.e
    if op.kind == "add":
        kind = cg.tile(op.value).reg.elem
        return e.bitcast(e.binary("fadd", e.bitcast(old, kind, 0), e.bitcast(given, kind, 0)),
                         "i16", 0)
    signed, other = ("smax", "umin") if op.kind == "max" else ("smin", "umax")
    return e.select(e.compare("sge", given, e.const(0, "i16")), e.generic(signed, old, given),
                    e.generic(other, old, given))


def _shared_out(cg: CodeGen, op: ops.Atomic, frag: Fragment | None, x: Reg) -> Reg:
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


def _places(cg: CodeGen, op: ops.Atomic, frag: Fragment | None, size: int) -> list[Reg]:
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


