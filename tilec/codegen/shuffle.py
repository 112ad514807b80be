"""Values of any type as 32-bit words, and the warp instructions that move such words."""

from __future__ import annotations

from collections.abc import Callable

from tilec.codegen.emit import POINTER, Emit, Reg

ALL_LANES = -1


def map_words(e: Emit, x: Reg, f: Callable[[Reg], Reg]) -> Reg:
    """`f` on each 32-bit word of a value; the lanes of narrow types share words."""
    if x.elem in ("i1", POINTER):
        return e.as_held(map_words(e, e.as_stored(x), f), x.elem)
    wide = pad_lanes(e, x, -(-x.bits * x.lanes // 32) * 32 // x.bits)
    count = wide.bits * wide.lanes // 32
    words = e.bitcast(wide, "i32", count if count > 1 else 0)
    moved = e.build([f(w) for w in e.lane_list(words)])
    back = e.bitcast(moved, wide.elem, wide.n)
    return e.gather(back, range(x.lanes)) if wide.n != x.n else back


def pad_lanes(e: Emit, x: Reg, n: int) -> Reg:
    """The value with zero lanes added, n in all. (Undefined ones would spoil a whole word.)"""
    if x.lanes == n:
        return x
    zero = Reg("zeroinitializer", x.elem, n)
    if not x.n:
        return e.new(f"insertelement {zero.type} zeroinitializer, {x.elem} {x.ref}, i32 0",
                     x.elem, n)
    rest = Reg("zeroinitializer", x.elem, x.n)
    return e.shuffle(x, rest, [i if i < x.n else x.n for i in range(n)])


def butterfly(e: Emit, x: Reg, xor: int) -> Reg:
    """The value of the lane whose index differs by `xor`."""
    def move(word: Reg) -> Reg:
        return e.call("llvm.nvvm.shfl.sync.bfly.i32", "i32", 0,
                      (e.const(ALL_LANES, "i32"), word, e.const(xor, "i32"), e.const(31, "i32")))
    return map_words(e, x, move)


def from_lane(e: Emit, lane: Reg, word: Reg) -> Reg:
    """A 32-bit word of the given lane."""
    return e.call("llvm.nvvm.shfl.sync.idx.i32", "i32", 0,
                  (e.const(ALL_LANES, "i32"), word, lane, e.const(31, "i32")))
