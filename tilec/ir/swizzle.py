"""Shared memory between register layouts: vector widths, bank conflicts, conflict-free swizzles.

A wavefront moves up to 128 bytes of one warp, one 32-bit word a bank. Accesses of 8 and 16 bytes a
lane are served for 16 and 8 consecutive lanes at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilec.ir.f2 import Span, bit_order, complement, log2_exact
from tilec.ir.linear import LinearLayout, from_columns
from tilec.ir.matrix import MatrixPlan, find_ldmatrix, matrix_tiles

# Index bits that lie lowest in memory, then the columns of the lanes (or rows of matrices) that one
# wavefront serves in the store, and in the load.
Candidate = tuple[list[int], list[int], list[int]]
BANK_ROW_BITS = 32 * 32
MAX_ACCESS_BYTES = 16


@dataclass(frozen=True)
class VectorAccess:
    """How registers group into vectors: `width` consecutive entries of `order` lie side by side.

    order lists all registers; the first of each group has the group's lowest offset.
    """

    width: int
    order: tuple[int, ...]

    def groups(self) -> list[tuple[int, ...]]:
        """The registers of each instruction."""
        return [self.order[i:i + self.width] for i in range(0, len(self.order), self.width)]


@lru_cache(maxsize=4096)
def vector_width(access: LinearLayout, bits: int,
                 max_bytes: int = MAX_ACCESS_BYTES) -> VectorAccess:
    """The widest aligned access for a map (register, lane, warp) -> offset of elements of `bits`.

    Register bits may be permuted: those whose columns are offsets 1, 2, 4, ... come first, as long
    as no other column touches these offset bits.
    """
    registers = access.columns_of("register")
    flat = access.flat_columns
    chosen: list[int] = []
    limit = max(1, max_bytes * 8 // max(8, bits))
    while 2 << len(chosen) <= limit:
        unit = 1 << len(chosen)
        users = sum(1 for c in flat if c & unit)
        if unit not in registers or users != 1 or access.flip_bits & unit:
            break
        chosen.append(registers.index(unit))
    rest = [i for i in range(len(registers)) if i not in chosen]
    return VectorAccess(1 << len(chosen), bit_order([*chosen, *rest]))


@lru_cache(maxsize=1024)
def split_offsets(access: LinearLayout) -> tuple[tuple[int, int], ...]:
    """Per register (x, a) such that its offset is (the thread's part ^ x) + a.

    a holds the bits that no thread sets, so that it can be an instruction's immediate.
    """
    thread = 0
    for holder in ("lane", "warp"):
        for c in access.columns_of(holder):
            thread |= c
    own = access.columns_of("register")
    constants = [access.flip_bits]
    for c in own:
        constants += [k ^ c for k in constants]
    return tuple((k & thread, k & ~thread) for k in constants)


def wavefronts(access: LinearLayout, bits: int, width: int) -> int:
    """Wavefronts a group of lanes takes for one access of `width` elements; 1 means no conflict.

    access maps (register, lane, warp) to element offsets. A group is the lanes served at once. The
    count is 2 to the number of independent word addresses that do not reach independent banks.
    """
    lanes = access.columns_of("lane")
    lane_bytes = width * bits // 8
    if lane_bytes > 4:
        lanes = lanes[: len(lanes) - log2_exact(lane_bytes // 4)]
    # Word addresses of a lane's access: offsets in elements, scaled to words.
    words = [c * (bits // 8) // 4 for c in lanes]
    return 1 << (Span(words).rank - Span(w & 31 for w in words).rank)


def access_cost(access: LinearLayout, bits: int, width: int) -> int:
    """Wavefronts one warp takes to move all its registers by accesses of `width`."""
    groups = max(1, width * bits // 32)
    return access.in_size("register") // width * groups * wavefronts(access, bits, width)


@lru_cache(maxsize=4096)
def best_vector(access: LinearLayout, bits: int) -> VectorAccess:
    """The vector width with the fewest wavefronts, the widest among equals."""
    widest = vector_width(access, bits)
    best, width = widest, widest.width
    while width > 1:
        width //= 2
        if access_cost(access, bits, width) < access_cost(access, bits, best.width):
            best = VectorAccess(width, widest.order)
    return best


@dataclass(frozen=True)
class Route(VectorAccess):
    """How a thread's registers reach shared memory: `width` registers of `order` an instruction.

    address maps (register, lane, warp) to the element offset that the instruction is given for its
    first register. matrix: the instruction is ldmatrix or stmatrix. Copies are not in `order`.
    """

    address: LinearLayout
    cost: tuple[int, int]
    matrix: MatrixPlan | None = None


@lru_cache(maxsize=4096)
def best_route(access: LinearLayout, bits: int, matrices: bool) -> Route:
    """The route of least cost, (wavefronts, instructions) of one warp, for a map (register, lane,
    warp) -> offset; `matrices`: whether ldmatrix (or stmatrix, to store) may be used."""
    copies = sum(1 << i for i, c in enumerate(access.columns_of("register")) if not c)
    unique = access.without_zero_bases("register")
    vector = best_vector(access, bits)
    count = unique.in_size("register") // vector.width
    plain = Route(vector.width, tuple(r for r in vector.order if not r & copies), access,
                  (access_cost(unique, bits, vector.width), count))
    plan = find_ldmatrix(access, bits) if matrices else None
    if plan is None or plan.cost >= plain.cost:
        return plain
    return Route(plan.per_instruction, plan.order, plan.address, plan.cost, plan)


@dataclass(frozen=True)
class Swizzle:
    """An order of elements in memory, and how both sides reach it.

    memory: offset -> flat element index. store and load: (register, lane, warp) -> offset, each
    with the vectors to access it by.
    """

    memory: LinearLayout
    store: LinearLayout
    load: LinearLayout
    store_vector: VectorAccess
    load_vector: VectorAccess

    def cost(self, bits: int) -> tuple[int, int]:
        """(wavefronts, instructions) of one warp, store and load together."""
        store = best_route(self.store, bits, True).cost
        load = best_route(self.load, bits, True).cost
        return store[0] + load[0], store[1] + load[1]


@lru_cache(maxsize=4096)
def best_swizzle(src: LinearLayout, dst: LinearLayout, bits: int) -> Swizzle:
    """The order of elements best for storing from src and loading to dst.

    src and dst map (register, lane, warp) to one output, the flat index.
    """
    found: list[Swizzle] = []
    for vector, src_lanes, dst_lanes in (*_vector_candidates(src, dst, bits),
                                         *_matrix_candidates(src, dst, bits)):
        memory = _swizzled_memory(src, vector, src_lanes, dst_lanes, bits)
        store, load = src.invert_and_compose(memory), dst.invert_and_compose(memory)
        vectors = best_vector(store, bits), best_vector(load, bits)
        found.append(Swizzle(memory, store, load, *vectors))
    return min(found, key=lambda swizzle: swizzle.cost(bits))


def swizzle_chunks(src: LinearLayout, dst: LinearLayout, chunk: list[int], bits: int
                   ) -> LinearLayout:
    """The order of elements best for storing whole chunks from src and loading to dst, by vectors.

    chunk: the index bits that lie lowest. src and dst are as in `best_swizzle`.
    """
    held = _leading(chunk, dst)
    return _swizzled_memory(src, chunk, _wavefront_lanes(src, bits << len(chunk)),
                            _wavefront_lanes(dst, bits << held), bits)


def _leading(vector: Sequence[int], layout: LinearLayout) -> int:
    """How many of the lowest bits of a vector lie in registers."""
    held = 0
    while held < len(vector) and vector[held] in layout.columns_of("register"):
        held += 1
    return held


def _swizzled_memory(src: LinearLayout, vector: list[int], src_lanes: list[int],
                     dst_lanes: list[int], bits: int) -> LinearLayout:
    """offset -> flat index with these lowest bits and, if possible, no conflicts on either side.

    Address bits are, from the lowest: those of the vector, those that choose the bank, and the
    rest (segment), chosen so that lanes of one wavefront differ in bank bits on both sides.
    """
    index_bits = log2_exact(src.out_sizes[0][1])
    left = index_bits - len(vector)
    bank_bits = min(left, max(0, log2_exact(max(1, BANK_ROW_BITS // (bits << len(vector))))))
    bank_src, bank_dst = [*vector, *src_lanes], [*vector, *dst_lanes]
    segment = _segment_basis(vector, bank_src, bank_dst, index_bits, left - bank_bits)
    bank = list(complement([*vector, *segment], index_bits))
    if bits << len(vector) < 32:
        # The lowest of these lie inside a bank's word. An index bit that a segment sum contains
        # must not: the sum would change the word address and not the bank.
        bank.sort(key=lambda unit: any(s & unit for s in segment))
    return from_columns({"offset": [*vector, *bank, *segment]}, src.out_sizes)


def _wavefront_lanes(layout: LinearLayout, lane_bits: int) -> list[int]:
    """Columns of the lanes served at once when each moves this many bits."""
    lanes = layout.columns_of("lane")
    dropped = log2_exact(lane_bits // 32) if lane_bits > 32 else 0
    return [c for c in lanes[: len(lanes) - dropped] if c]


def _matrix_candidates(src: LinearLayout, dst: LinearLayout, bits: int) -> Iterator[Candidate]:
    """Rows of matrices as the lowest bits, for the load (ldmatrix) or the store (stmatrix)."""
    for loads, mine, other in ((True, dst, src), (False, src, dst)):
        for row, rows in matrix_tiles(mine, bits):
            lanes = _wavefront_lanes(other, bits << _leading(row, other))
            rows = [c for c in rows if c]
            yield (row, lanes, rows) if loads else (row, rows, lanes)


def _vector_candidates(src: LinearLayout, dst: LinearLayout, bits: int) -> list[Candidate]:
    """Index bits that lie in registers on both sides; with as many more as src, or dst, has."""
    src_regs, dst_regs = src.columns_of("register"), dst.columns_of("register")
    limit = log2_exact(MAX_ACCESS_BYTES * 8 // bits)
    common = [c for c in src_regs if c in dst_regs][:limit]
    vector = _whole_words(src, dst, bits, common)
    found = [(vector, len(vector), len(vector))]
    store = (common + [c for c in src_regs if c not in common])[:limit]
    load = (common + [c for c in dst_regs if c not in common])[:limit]
    if len(store) > len(common):
        found.append((store, len(store), len(common)))
    if len(load) > len(common):
        found.append((load, len(common), len(load)))
    return [(row, _wavefront_lanes(src, bits << stored), _wavefront_lanes(dst, bits << loaded))
            for row, stored, loaded in found]


def _whole_words(src: LinearLayout, dst: LinearLayout, bits: int,
                 common: Sequence[int]) -> list[int]:
    """`common`, filled up to a bank's 32 bits.

    The bits added are owned by no lane on one of the sides, so that no word is torn on both.
    """
    src_regs, dst_regs = src.columns_of("register"), dst.columns_of("register")
    src_warps = [c for c in src.columns_of("warp") if c]
    dst_warps = [c for c in dst.columns_of("warp") if c]
    stored = [c for c in src_regs if c in dst_warps]
    loaded = [c for c in dst_regs if c in src_warps]
    mixed = max(stored, loaded, key=lambda cs: (len(cs), -min(cs, default=0)))
    both = [c for c in src_warps if c in dst_warps]
    vector, span = list(common), Span(common)
    for c in [*mixed, *both, *src_warps, *dst_warps]:
        if bits << len(vector) < 32 and span.add(c):
            vector.append(c)
    return vector


def _segment_basis(vector: Sequence[int], bank_src: Sequence[int], bank_dst: Sequence[int],
                   bits: int, count: int) -> list[int]:
    """`count` address bits above the banks.

    First index bits that no lane of a wavefront changes; then sums of one that only the store's
    lanes change and one that only the load's do, which conflict on neither side; last raw ones.
    """
    segment: list[int] = []
    span = Span(vector)

    def add(candidates: Sequence[int]) -> None:
        for c in candidates:
            if len(segment) < count and span.add(c):
                segment.append(c)

    add(complement([*bank_src, *bank_dst], bits))
    only_src = sorted(c for c in bank_src if c not in bank_dst)
    only_dst = sorted(c for c in bank_dst if c not in bank_src)
    add([a ^ b for a, b in zip(only_src, only_dst, strict=False)])
    add([*only_src, *only_dst] if len(only_src) <= len(only_dst) else [*only_dst, *only_src])
    add([1 << i for i in range(bits)])
    return segment
