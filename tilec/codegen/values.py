"""What a thread holds of a tile while its code is written: distinct values and where they repeat.

Broadcasts and splats cost nothing: an op on repeated values is done once per distinct value.
Integer and pointer tiles also keep constant offsets apart, which become immediates of addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilec.codegen.emit import POINTER, Emit, Reg

Index = tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class Tile:
    """Fragment element i is lane index[i] of `reg`, plus offset[i]; every lane is of some element.

    size: registers of the fragment. index None: the lanes themselves, in order. offset None: no
    offsets; those of pointers are bytes. zeros: bits known to be zero in every lane of `reg`.
    """

    reg: Reg
    size: int
    index: Index = None
    offset: Index = None
    zeros: int = 0

    @property
    def form(self) -> tuple[Index, Index]:
        """How elements repeat; tiles of one form can share a phi."""
        return self.index, self.offset

    @property
    def offsets_are_bits(self) -> bool:
        """Whether adding an offset is setting bits that are zero, so that nothing can wrap."""
        return self.offset is None or all(c >= 0 and not c & ~self.zeros for c in self.offset)

    def lane_of(self, i: int) -> int:
        """The lane of `reg` that element i is made of."""
        return i if self.index is None else self.index[i]

    def offset_of(self, i: int) -> int:
        """The constant to add for element i."""
        return 0 if self.offset is None else self.offset[i]


def uniform(reg: Reg, size: int, zeros: int = 0) -> Tile:
    """A tile filled with a scalar."""
    return Tile(reg, size, (0,) * size if size > 1 else None, None, zeros)


def full(reg: Reg) -> Tile:
    """A tile whose elements are the lanes."""
    return Tile(reg, reg.lanes)


@lru_cache(maxsize=4096)
def plan(size: int, forms: tuple[tuple[Index, Index], ...]) -> tuple[tuple[int, ...], Index]:
    """(elements that stand for all distinct combinations, the index of every element into them)."""
    seen: dict[object, int] = {}
    representatives: list[int] = []
    index: list[int] = []
    for i in range(size):
        key = tuple((i if ix is None else ix[i], 0 if off is None else off[i]) for ix, off in forms)
        found = seen.setdefault(key, len(representatives))
        if found == len(representatives):
            representatives.append(i)
        index.append(found)
    whole = len(representatives) == size
    return tuple(representatives), None if whole else tuple(index)


def take(e: Emit, tile: Tile, elements: Sequence[int]) -> Reg:
    """The given elements, as lanes."""
    reg = e.gather(tile.reg, [tile.lane_of(i) for i in elements])
    if tile.offset is None:
        return reg
    offsets = [tile.offset[i] for i in elements]
    return add_offsets(e, reg, offsets)


def add_offsets(e: Emit, reg: Reg, offsets: Sequence[int]) -> Reg:
    """reg + offsets, lane by lane; pointers move by bytes."""
    if not any(offsets):
        return reg
    if reg.elem == POINTER:
        steps = e.const_lanes(offsets, "i64")
        return e.new(f"getelementptr i8, {reg.type} {reg.ref}, {steps.type} {steps.ref}",
                     POINTER, reg.n)
    return e.binary("add", reg, e.const_lanes(offsets, reg.elem))


def whole(e: Emit, tile: Tile) -> Reg:
    """All elements of the fragment, as lanes."""
    if tile.index is None and tile.offset is None:
        return tile.reg
    return take(e, tile, range(tile.size))


def align(e: Emit, tiles: Sequence[Tile], runs: Index = None) -> tuple[list[Reg], Index]:
    """Operands of an elementwise op at the width of their distinct combinations, and its index.

    runs: which elements of the result are known to be equal, if that is known otherwise.
    """
    size = tiles[0].size
    elements, index = plan(size, tuple(t.form for t in tiles))
    if runs is not None and max(runs) + 1 < len(elements):
        elements, index = plan(size, ((runs, None),))
    out = []
    for t in tiles:
        same = t.index == index and t.offset is None
        out.append(t.reg if same else take(e, t, elements))
    return out, index


def beside(e: Emit, a: Tile, b: Tile) -> Tile:
    """The tile of the elements of `a`, then those of `b`; costs no instruction."""
    index = (*map(a.lane_of, range(a.size)),
             *(a.reg.lanes + b.lane_of(i) for i in range(b.size)))
    offset = None if a.offset is None and b.offset is None else \
        (*map(a.offset_of, range(a.size)), *map(b.offset_of, range(b.size)))
    return Tile(e.concat([a.reg, b.reg]), a.size + b.size, index, offset, a.zeros & b.zeros)


def remap(e: Emit, tile: Tile, registers: Sequence[int]) -> Tile:
    """The tile whose element i is this one's element registers[i]; costs no instruction."""
    if len(registers) == tile.size and list(registers) == list(range(tile.size)):
        return tile
    index, reg = tuple(tile.lane_of(r) for r in registers), tile.reg
    used = {lane: i for i, lane in enumerate(sorted(set(index)))}
    if len(used) < reg.lanes:
        index, reg = tuple(used[lane] for lane in index), e.gather(reg, [*used])
    offset = None if tile.offset is None else tuple(tile.offset[r] for r in registers)
    identity = len(index) == reg.lanes and index == tuple(range(len(index)))
    return Tile(reg, len(registers), None if identity else index, offset, tile.zeros)
