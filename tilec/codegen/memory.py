"""Lowering of loads and stores: wide pieces, one predicate a piece, every element stored once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilec.codegen.checks import Guard
from tilec.codegen.context import CodeGen, fragment_of, lower
from tilec.codegen.emit import Emit, Reg, literal_bits
from tilec.codegen.values import Tile, plan, whole
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.fragment import Fragment
from tilec.ir.types import Tensor, element_of
from tilec.ir.vectors import widest_access

DEAD = Reg("false", "i1")


def live_register(cg: CodeGen, frag: Fragment, register: int,
                  dims: Sequence[int] | None = None) -> Reg | None:
    """Whether a register's coordinates lie inside the tile: None (always), DEAD, or a predicate.

    Only extents that are stored padded have coordinates outside. dims: those that count; all.
    """
    total: Reg | None = None
    place = frag.register_coords[register]
    for dim in frag.padded_dims if dims is None else dims:
        bases = [b[dim] for b in (*frag.lane_bases, *frag.warp_bases)]
        room = frag.shape[dim] - place[dim]
        if room <= 0:
            return DEAD
        if room > sum(set(bases)):
            continue
        inside = _below(cg, tuple(bases), room)
        total = inside if total is None else cg.e.binary("and", total, inside)
    return total


def _below(cg: CodeGen, columns: tuple[int, ...], limit: int) -> Reg:
    """Whether the thread's part of a coordinate is below a limit; computed once."""
    return cg.e.once(("below", columns, limit), lambda: cg.e.compare(
        "slt", cg.thread_bits(columns), cg.e.const(limit, "i32")))


def owner(cg: CodeGen, frag: Fragment | None) -> Reg | None:
    """Whether this thread is the one to write what several hold; None if no other holds it."""
    if frag is None:
        return cg.is_thread(cg.all_threads)
    masks = frag.free_masks
    mask = masks["lane"] | masks["warp"] << 5
    return cg.is_thread(mask) if mask else None


def is_copy(frag: Fragment, register: int) -> bool:
    """Whether a register only repeats another one."""
    return bool(register % frag.registers_per_part & frag.free_masks["register"])


def both(e: Emit, *conditions: Reg | None) -> Reg | None:
    """The conjunction of predicates; None is true."""
    total: Reg | None = None
    for c in conditions:
        if c is not None and c.ref != "true":
            total = c if total is None or total == c else e.binary("and", total, c)
    return total


# ---- bits of a piece
def to_words(e: Emit, x: Reg) -> list[Reg]:
    """A piece's elements as what memory instructions move: words of 32 (or 64, or fewer) bits."""
    x = e.as_stored(x)
    total = x.bits * x.lanes
    unit = 64 if x.bits == 64 else min(32, total)
    packed = e.bitcast(x, f"i{unit}", 0 if total == unit else total // unit)
    return e.lane_list(packed)


def constant_words(x: Reg) -> list[int] | None:
    """The words of a piece that repeats one literal; None for anything else."""
    text = x.ref.removeprefix(f"splat ({x.elem} ").removesuffix(")") if x.n else x.ref
    bits = literal_bits(text, x.elem)
    if bits is None:
        return None
    size = max(8, x.bits)
    count, unit = word_shape(size // 8, x.lanes)
    return [sum(bits << at for at in range(0, unit, size))] * count


def from_words(e: Emit, words: Sequence[Reg], elem: str, width: int) -> Reg:
    """The inverse of `to_words`."""
    stored = "i8" if elem == "i1" else elem
    return e.as_held(e.bitcast(e.build(words), stored, width if width > 1 else 0), elem)


def word_shape(size: int, width: int) -> tuple[int, int]:
    """(words, bits of each) that a piece of `width` elements of `size` bytes is moved in."""
    total = size * width * 8
    unit = 64 if size == 8 else min(32, total)
    return total // unit, unit


_CONSTRAINT = {8: "h", 16: "h", 32: "r", 64: "l"}


def _address(pointer: Reg, offset: int, position: int) -> str:
    return f"[${position}{offset:+d}]" if offset else f"[${position}]"


def _modifiers(cg: CodeGen, op: Any) -> tuple[str, Reg | None]:
    """The dotted modifiers of a load or store, and an L2 policy.

    A cache operator and an eviction priority exclude each other; the operator wins. Where the PTX
    version has no priorities, they are left off: they are hints.
    """
    if getattr(op, "volatile", False):
        return ".volatile.global", None
    name = op.eviction
    if op.cache or name in ("", "evict_normal") or not cg.target.has("createpolicy"):
        return ".global" + op.cache, None

    return f".global.L1::{name}.L2::cache_hint", cache_policy(cg, name)


def cache_policy(cg: CodeGen, eviction: str) -> Reg:
    """A policy for the L2 cache, by which all of an access's lines are evicted first or last."""
    return cg.e.once(("policy", eviction), lambda: cg.e.asm(
        f"createpolicy.fractional.L2::{eviction}.b64 $0, 0f3F800000;", "=l", (), ("i64",),
        effects=False)[0])


def load_piece(cg: CodeGen, op: Any, pointer: Reg, offset: int, elem: str, width: int,
               pred: Reg | None, other: Reg | None) -> Reg:
    """One piece; where `pred` does not hold, `other` or zeros."""
    e = cg.e
    size = element_of(op.result.type).bytes
    count, bits = word_shape(size, width)
    word = f"i{bits}"
    modifiers, policy = _modifiers(cg, op)
    if pred is None and modifiers == ".global":
        loaded = e.load(cg.shift(pointer, offset), word, count, size * width)
        return from_words(e, [loaded], elem, width)
    letter = _CONSTRAINT[bits]
    # A byte is moved through a 16-bit register.
    held = "i16" if bits == 8 else word
    outs = [f"={letter}"] * count
    args: list[Reg] = []
    before = ""
    if pred is not None:
        known = [0] * count if other is None else constant_words(other)
        if known is None:
            assert other is not None
            args += [e.resize(w, held, False) for w in to_words(e, other)]
            outs += [str(i) for i in range(count)]
        else:
            outs = [f"=&{letter}"] * count
            move = f"mov.b{max(16, bits)}"
            before = " ".join(f"{move} ${i}, {w:#x};" for i, w in enumerate(known)) + " "
    args.append(pointer)
    constraints = ",".join([*outs, "l"])
    names = ", ".join(f"${i}" for i in range(count))
    target = f"{{{names}}}" if count > 1 else names
    vec = f".v{count}" if count > 1 else ""
    position = len(outs)
    text = f"ld{modifiers}{vec}.b{bits} {target}, {_address(pointer, offset, position)}"
    if policy is not None:
        constraints, position = constraints + ",l", position + 1
        args.append(policy)
        text += f", ${position}"
    if pred is not None:
        constraints, position = constraints + ",b", position + 1
        args.append(pred)
        text = f"{before}@${position} {text}"
    words = e.asm(text + ";", constraints, args, [held] * count)
    return from_words(e, [e.resize(w, word, False) for w in words], elem, width)


def store_piece(cg: CodeGen, op: Any, pointer: Reg, offset: int, value: Reg, pred: Reg | None
                ) -> None:
    """One piece, where `pred` holds."""
    e = cg.e
    words = to_words(e, value)
    bits, count = words[0].bits, len(words)
    modifiers, policy = _modifiers(cg, op)
    if pred is None and modifiers == ".global":
        packed = e.bitcast(e.as_stored(value), words[0].elem, count if count > 1 else 0)
        e.store(packed, cg.shift(pointer, offset), count * bits // 8)
        return
    args = [e.resize(w, "i16", False) if bits == 8 else w for w in words]
    names = ", ".join(f"${i}" for i in range(count))
    source = f"{{{names}}}" if count > 1 else names
    vec = f".v{count}" if count > 1 else ""
    text = f"st{modifiers}{vec}.b{bits} {_address(pointer, offset, count)}, {source}"
    constraints = [_CONSTRAINT[bits]] * count + ["l"]
    args.append(pointer)
    if policy is not None:
        text += f", ${len(args)}"
        args.append(policy)
        constraints.append("l")
    if pred is not None:
        text = f"@${len(args)} {text}"
        args.append(pred)
        constraints.append("b")
    e.asm(text + ";", ",".join(constraints), args, ())


# ---- whole ops


class Lanes:
    """Scalars out of tiles, each extracted once; a missing tile gives None."""

    def __init__(self, e: Emit) -> None:
        self.e = e
        self.found: dict[tuple[str, int], Reg] = {}

    def of(self, reg: Reg, i: int) -> Reg:
        """Lane i."""
        key = (reg.ref, i)
        if key not in self.found:
            self.found[key] = self.e.lane(reg, i)
        return self.found[key]

    def pointer(self, tile: Tile, i: int) -> tuple[Reg, int]:
        """(pointer, byte offset) of element i."""
        return self.of(tile.reg, tile.lane_of(i)), tile.offset_of(i)

    def element(self, tile: Tile | None, i: int) -> Reg | None:
        """Element i of a tile without offsets."""
        return None if tile is None else self.of(tile.reg, tile.lane_of(i))


def plain(cg: CodeGen, value: Value | None) -> Tile | None:
    """A tile with its offsets added in."""
    if value is None:
        return None
    tile = cg.tile(value)
    return tile if tile.offset is None else Tile(whole(cg.e, tile), tile.size)


@lower(ops.Load)
def _load(cg: CodeGen, op: ops.Load) -> None:
    elem, guard = cg.element(op.result), Guard(cg, op, op.ptr)
    if not isinstance(op.result.type, Tensor):
        where = None if op.mask is None else cg.scalar(op.mask)
        fill = None if op.other is None else cg.scalar(op.other)
        where = guard.allowed(cg.scalar(op.ptr), 0, element_of(op.result.type).bytes, where)
        cg.env[op.result] = load_piece(cg, op, cg.scalar(op.ptr), 0, elem, 1, where, fill)
        guard.report()
        return
    frag = fragment_of(op.result)
    pointers, mask, other = cg.tile(op.ptr), plain(cg, op.mask), plain(cg, op.other)
    access = widest_access(op.ptr, op.mask, cg.axis)
    if access.width == 1:
        _load_distinct(cg, op, frag, elem, pointers, mask, other)
        return
    size = access.width * element_of(op.result.type).bytes
    lanes, parts = Lanes(cg.e), []
    fill = None if other is None else whole(cg.e, other)
    for piece in access.groups():
        pointer, offset = lanes.pointer(pointers, piece[0])
        live = live_register(cg, frag, piece[0])
        if live == DEAD:
            parts.append(cg.e.const(0, elem, len(piece)))
            continue
        pred = both(cg.e, live, lanes.element(mask, piece[0]))
        pred = guard.allowed(pointer, offset, size, pred)
        else_ = None if fill is None or pred is None else cg.e.gather(fill, piece)
        parts.append(load_piece(cg, op, pointer, offset, elem, access.width, pred, else_))
    guard.report()
    joined = cg.e.concat(parts)
    back = sorted(range(len(access.order)), key=access.order.__getitem__)
    cg.set(op.result, cg.e.gather(joined, back))


def _load_distinct(cg: CodeGen, op: ops.Load, frag: Fragment, elem: str, pointers: Tile,
                   mask: Tile | None, other: Tile | None) -> None:
    """One scalar load for each distinct address, mask and fill."""
    forms = [t.form for t in (pointers, mask, other) if t is not None]
    if frag.padded_dims:
        forms = [(None, None)]
    elements, index = plan(frag.num_registers, tuple(forms))
    lanes, parts, guard = Lanes(cg.e), [], Guard(cg, op, op.ptr)
    for i in elements:
        pointer, offset = lanes.pointer(pointers, i)
        live = live_register(cg, frag, i)
        if live == DEAD:
            parts.append(cg.e.const(0, elem))
            continue
        pred = both(cg.e, live, lanes.element(mask, i))
        pred = guard.allowed(pointer, offset, element_of(op.result.type).bytes, pred)
        parts.append(load_piece(cg, op, pointer, offset, elem, 1, pred, lanes.element(other, i)))
    guard.report()
    cg.env[op.result] = Tile(cg.e.build(parts), frag.num_registers, index)


@lower(ops.Store)
def _store(cg: CodeGen, op: ops.Store) -> None:
    guard = Guard(cg, op, op.ptr)
    if not isinstance(op.ptr.type, Tensor):
        where = None if op.mask is None else cg.scalar(op.mask)
        pred = both(cg.e, owner(cg, None), where)
        pred = guard.allowed(cg.scalar(op.ptr), 0, element_of(op.value.type).bytes, pred)
        store_piece(cg, op, cg.scalar(op.ptr), 0, cg.scalar(op.value), pred)
        guard.report()
        return
    frag = fragment_of(op.ptr)
    pointers, mask = cg.tile(op.ptr), plain(cg, op.mask)
    value = cg.whole(op.value)
    access = widest_access(op.ptr, op.mask, cg.axis)
    lanes, mine = Lanes(cg.e), owner(cg, frag)
    size, todo = access.width * element_of(op.value.type).bytes, []
    for piece in access.groups():
        live = live_register(cg, frag, piece[0])
        if live == DEAD or is_copy(frag, piece[0]):
            continue
        pred = both(cg.e, mine, live, lanes.element(mask, piece[0]))
        pointer, offset = lanes.pointer(pointers, piece[0])
        pred = guard.allowed(pointer, offset, size, pred)
        todo.append((pointer, offset, cg.e.gather(value, piece), pred))
    for pointer, offset, part, pred in todo:
        store_piece(cg, op, pointer, offset, part, pred)
    guard.report()
