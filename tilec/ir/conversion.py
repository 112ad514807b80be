"""Plans for moving a tile from one register layout to another, as data.

`plan_conversion` picks the cheapest of: nothing, a renaming of registers, shuffles within warps, a
round trip through shared memory. A code generator and a test model execute the same plan. Tiles
with odd extents are converted once per odd index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tilec.ir.f2 import Span, bit_order, complement
from tilec.ir.linear import LinearLayout, from_columns
from tilec.ir.swizzle import Route, best_route, best_swizzle, wavefronts

# Costs are in shuffles of one 32-bit word: a shared-memory wavefront costs the same, a select half.
SELECT_COST = 0.5
BARRIER_COST = 16.0
WARP_BARRIER_COST = 6.0

# Scratch beyond this many bytes is traded for repetitions, each with its own barriers.
MAX_SCRATCH_BYTES = 32 * 1024


@dataclass(frozen=True)
class Plan:
    """Base of all plans."""


@dataclass(frozen=True)
class NoOp(Plan):
    """Every thread already holds its elements in the right registers."""


@dataclass(frozen=True)
class Registers(Plan):
    """Every thread already holds its elements: dst register i is src register permutation[i]."""

    permutation: tuple[int, ...]


@dataclass(frozen=True)
class Select:
    """One step on all words at once: new[i] = old[i ^ xor] if that index bit is set, else old[i].

    holder is "lane" or "warp", the index whose bit decides.
    """

    holder: str
    bit: int
    xor: int


@dataclass(frozen=True)
class Shuffles(Plan):
    """Select, shuffle, select, on words of one or more packed registers.

    src_words[w] lists the src registers packed into word w, low bits first. After the steps
    `before`, word k of the result is word source[k] of lane lane_xor[k] ^ (XOR of lane_columns[j]
    over set bits j of the own lane) ^ (likewise warp_columns). After the steps `after`, word k
    holds the dst registers dst_words[k]. At last every dst register i takes the value of dst
    register copies[i] (empty: nothing to copy).
    """

    src_words: tuple[tuple[int, ...], ...]
    before: tuple[Select, ...]
    source: tuple[int, ...]
    lane_xor: tuple[int, ...]
    lane_columns: tuple[int, ...]
    warp_columns: tuple[int, ...]
    after: tuple[Select, ...]
    dst_words: tuple[tuple[int, ...], ...]
    copies: tuple[int, ...] = ()

    @cached_property
    def is_butterfly(self) -> bool:
        """Whether a word's source lane is the own lane XOR lane_xor (0: no shuffle needed)."""
        identity = tuple(1 << i for i in range(len(self.lane_columns)))
        return self.lane_columns == identity and not any(self.warp_columns)

    @cached_property
    def num_shuffles(self) -> int:
        if self.is_butterfly:
            return sum(1 for x in self.lane_xor if x)
        return len(self.source)

    @cached_property
    def num_selects(self) -> int:
        return len(self.before) * len(self.src_words) + len(self.after) * len(self.dst_words)


@dataclass(frozen=True)
class Repetition:
    """The registers of one pass through the scratch buffer, in the order of the accesses."""

    store: tuple[int, ...]
    load: tuple[int, ...]


@dataclass(frozen=True)
class Shared(Plan):
    """Store all, barrier, load all; once per repetition, with a barrier before each further store.

    store and load map (register, lane, warp) to element offsets, where `register` counts positions
    in a repetition's `store` (src registers) and `load` (dst registers): access i moves positions
    i*vec .. i*vec+vec-1, which lie side by side from the offset of position i*vec on. Warps with an
    index bit of skip_warps set hold copies and need not store. store_conflicts and load_conflicts
    count extra wavefronts per wavefront. With warp_local each warp loads only what it stored, so
    that its own barrier is enough. copies is as in `Shuffles`.
    """

    store: LinearLayout
    load: LinearLayout
    vec_store: int
    vec_load: int
    repetitions: tuple[Repetition, ...]
    bytes: int
    store_conflicts: int
    load_conflicts: int
    warp_local: bool
    skip_warps: int
    copies: tuple[int, ...] = ()

    def store_route(self, bits: int, matrices: bool) -> Route:
        """How positions are stored; with stmatrix where that is allowed and better."""
        return best_route(self.store, bits, matrices)

    def load_route(self, bits: int, matrices: bool) -> Route:
        """How positions are loaded; with ldmatrix where that is allowed and better."""
        return best_route(self.load, bits, matrices)


@lru_cache(maxsize=4096)
def plan_conversion(src: LinearLayout, dst: LinearLayout, bits: int) -> Plan:
    """How to get from src to dst, both (register, lane, warp) -> equal outputs.

    bits is the element's width in memory: 8, 16, 32 or 64 (narrower elements are widened first).
    ValueError when the layouts are of different tiles or numbers of threads.
    """
    if bits not in (8, 16, 32, 64):
        raise ValueError(f"cannot convert elements of {bits} bits")
    if src.out_sizes != dst.out_sizes or any(src.in_size(n) != dst.in_size(n)
                                             for n in ("lane", "warp")):
        raise ValueError(f"layouts of different tiles or thread counts:\n{src}\nand\n{dst}")
    registers = src.in_size("register")
    src, src_registers, _ = _without_copies(src.flatten_outs())
    dst, dst_registers, copies = _without_copies(dst.flatten_outs())
    hardware = _source_of(src, dst)
    shuffles = _plan_shuffles(hardware, bits)
    if shuffles is not None:
        if not (shuffles.before or shuffles.after) and shuffles.num_shuffles == 0:
            return _registers_only(hardware, registers, src_registers, copies)
        shuffles = _rename(shuffles, src_registers, dst_registers, copies)
    shared = _plan_shared(src, dst, bits, hardware, src_registers, dst_registers, copies)
    if shuffles is not None and _shuffle_cost(shuffles, bits) <= _shared_cost(shared, bits):
        return shuffles
    return shared


def _without_copies(layout: LinearLayout) -> tuple[LinearLayout, tuple[int, ...], tuple[int, ...]]:
    """(layout without zero register bases, its registers in the old numbering, copies or ())."""
    columns = layout.columns_of("register")
    zero = sum(1 << i for i, c in enumerate(columns) if not c)
    everything = range(1 << len(columns))
    kept = tuple(r for r in everything if not r & zero)
    copies = tuple(r & ~zero for r in everything) if zero else ()
    return layout.without_zero_bases("register"), kept, copies


def _source_of(src: LinearLayout, dst: LinearLayout) -> LinearLayout:
    """dst hardware index -> src hardware index that holds the same element.

    Index bits of src that only find copies follow the same bit of dst: data stay where they are.
    """
    found = dst.invert_and_compose(src)
    for holder in ("lane", "warp"):
        free = [i for i, c in enumerate(src.columns_of(holder)) if not c]
        if not free:
            continue
        units = [found.pack([1 << i if n == holder else 0 for n in src.in_names]) for i in free]
        keep = ~sum(units)
        for name in found.in_names:
            found = found.with_columns(name, [c & keep for c in found.columns_of(name)])
        own = list(found.columns_of(holder))
        for i, unit in zip(free, units, strict=True):
            own[i] |= unit
        found = found.with_columns(holder, own)
    return found


def _registers_only(hardware: LinearLayout, registers: int, src_registers: Sequence[int],
                    copies: Sequence[int]) -> Plan:
    """The plan where no data cross lanes; `registers` is how many src has, copies included."""
    table = hardware.sublayout(["register"], ["register"])
    unique = [src_registers[table.apply(register=r)[0]] for r in range(table.in_size("register"))]
    if copies:
        by_dst = dict(zip(sorted(set(copies)), unique, strict=True))
        return Registers(tuple(by_dst[c] for c in copies))
    return NoOp() if unique == list(range(registers)) else Registers(tuple(unique))


# ---- shuffles
Matrix = list[int]  # columns


def _times(matrix: Sequence[int], vector: int) -> int:
    image = 0
    for c in matrix:
        if vector & 1:
            image ^= c
        vector >>= 1
    return image


def _plan_shuffles(hardware: LinearLayout, bits: int) -> Shuffles | None:
    """The factoring (registers ^= M lane) (lanes = N lane ^ C register) (registers ^= T lane).

    hardware maps dst to src indices. None when elements cross warps or no factoring exists.
    """

    def block(source: str, target: str) -> Matrix:
        return list(hardware.sublayout([source], [target]).columns[0])

    warps = [1 << i for i in range(len(hardware.columns_of("warp")))]
    if block("warp", "warp") != warps or any(block("register", "warp") + block("lane", "warp")):
        return None
    flip = dict(zip(hardware.out_names, hardware.flip, strict=True))
    if flip["warp"]:
        return None
    a, c = block("register", "register"), block("register", "lane")
    b, d = block("lane", "register"), block("lane", "lane")
    e, f = block("warp", "register"), block("warp", "lane")
    packed = _packed_bits(a, c, [*b, *e, flip["register"]], bits)
    dst_bits = [i for i in range(len(a)) if i not in dict(packed)]
    src_count = hardware.out_sizes[hardware.out_names.index("register")][1].bit_length() - 1
    src_bits = [j for j in range(src_count) if j not in {j for _, j in packed}]

    def narrow(v: int) -> int:
        return sum(((v >> j) & 1) << n for n, j in enumerate(src_bits))

    a, c = [narrow(a[i]) for i in dst_bits], [c[i] for i in dst_bits]
    b, e, flip_register = [narrow(v) for v in b], [narrow(v) for v in e], narrow(flip["register"])
    m = _choose_registers_by_lane(a, b, c, d)
    if m is None:
        return None
    n = [dj ^ _times(c, mj) for dj, mj in zip(d, m, strict=True)]
    t_of_dst = [bj ^ _times(a, mj) for bj, mj in zip(b, m, strict=True)]
    span = Span([*n, *complement(n, len(n))])
    t = [_times(t_of_dst, (span.solve(1 << i) or 0) & ((1 << len(n)) - 1)) for i in range(len(n))]
    by_warp = [ej ^ _times(t, fj) for ej, fj in zip(e, f, strict=True)]
    count = 1 << len(dst_bits)
    constant = flip_register ^ _times(t, flip["lane"])
    return Shuffles(
        src_words=_words(src_bits, [j for _, j in packed]),
        before=_selects("lane", t) + _selects("warp", by_warp),
        source=tuple(_times(a, k) ^ _times(t, _times(c, k)) ^ constant for k in range(count)),
        lane_xor=tuple(_times(c, k) ^ flip["lane"] for k in range(count)),
        lane_columns=tuple(n),
        warp_columns=tuple(f),
        after=_selects("lane", m),
        dst_words=_words(dst_bits, [i for i, _ in packed]),
    )


def _packed_bits(a: Matrix, c: Matrix, others: Sequence[int], bits: int) -> list[tuple[int, int]]:
    """(dst register bit, src register bit) pairs that can live inside one 32-bit word."""
    pairs: list[tuple[int, int]] = []
    for i, column in enumerate(a):
        if (2 << len(pairs)) * bits > 32:
            break
        unit = column & -column
        alone = column == unit != 0 and not c[i]
        if alone and not any(v & unit for v in [*a[:i], *a[i + 1 :], *others]):
            pairs.append((i, unit.bit_length() - 1))
    return pairs


def _choose_registers_by_lane(a: Matrix, b: Matrix, c: Matrix, d: Matrix) -> Matrix | None:
    """M such that with registers k ^ M lane every source lane sends one register in each step.

    Needed: whatever lane difference N = d ^ c M maps to zero must not change the source register.
    """
    m = [0] * len(d)
    image = Span()
    kernel: list[tuple[int, int]] = []
    for j, column in enumerate(d):
        earlier = image.solve(column)
        if earlier is not None:
            kernel.append((j, earlier | (1 << j)))
        image.add(column)
    for j, combination in kernel:
        needed = _times(b, combination)
        if not needed:
            continue
        choices = sorted(range(len(c)), key=lambda i: c[i] != 1 << j)
        chosen = next((i for i in choices if c[i] not in image), None)
        if chosen is not None:
            image.add(c[chosen])
            m[j] = 1 << chosen
            continue
        # No register bit moves between lanes: pick the register outright, if the lane holds it.
        height = max((v.bit_length() for v in c), default=0)
        stacked = Span([(ai << height) | ci for ai, ci in zip(a, c, strict=True)])
        solution = stacked.solve(needed << height)
        if solution is None:
            return None
        m[j] = solution
    return m


def _selects(holder: str, columns: Sequence[int]) -> tuple[Select, ...]:
    return tuple(Select(holder, bit, c) for bit, c in enumerate(columns) if c)


def _words(word_bits: Sequence[int], packed_bits: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Registers of every word: the word index runs over word_bits, parts over packed_bits."""
    parts = bit_order(packed_bits)
    return tuple(tuple(w | p for p in parts) for w in bit_order(word_bits))


def _rename(plan: Shuffles, src_registers: Sequence[int], dst_registers: Sequence[int],
            copies: tuple[int, ...]) -> Shuffles:
    """The plan in the numbering of layouts that still have copies."""

    def rename(words: tuple[tuple[int, ...], ...],
               names: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(names[r] for r in word) for word in words)

    return replace(plan, src_words=rename(plan.src_words, src_registers),
                   dst_words=rename(plan.dst_words, dst_registers), copies=copies)


def _shuffle_cost(plan: Shuffles, bits: int) -> float:
    words = 2 if bits == 64 else 1
    packing = sum(len(w) - 1 for w in plan.src_words + plan.dst_words)
    selects = plan.num_selects * words + packing
    return plan.num_shuffles * words + selects * SELECT_COST


# ---- shared memory
def _plan_shared(src: LinearLayout, dst: LinearLayout, bits: int, hardware: LinearLayout,
                 src_registers: Sequence[int], dst_registers: Sequence[int],
                 copies: tuple[int, ...]) -> Shared:
    repeated = _repeated_bits(src, dst, bits)
    src_bits = [src.columns_of("register").index(c) for c in repeated]
    dst_bits = [dst.columns_of("register").index(c) for c in repeated]
    src_part, dst_part = _without_bits(src, repeated), _without_bits(dst, repeated)
    swizzle = best_swizzle(src_part, dst_part, bits)
    store, load = swizzle.store, swizzle.load
    store_vector, load_vector = swizzle.store_vector, swizzle.load_vector
    stored = _pass_registers(src, src_bits, store_vector.order, src_registers)
    loaded = _pass_registers(dst, dst_bits, load_vector.order, dst_registers)
    skip = sum(1 << i for i, c in enumerate(src.columns_of("warp")) if not c)
    return Shared(
        store=_reordered(store, store_vector.order),
        load=_reordered(load, load_vector.order),
        vec_store=store_vector.width,
        vec_load=load_vector.width,
        repetitions=tuple(Repetition(s, d) for s, d in zip(stored, loaded, strict=True)),
        bytes=swizzle.memory.in_size("offset") * bits // 8,
        store_conflicts=wavefronts(store, bits, store_vector.width) - 1,
        load_conflicts=wavefronts(load, bits, load_vector.width) - 1,
        warp_local=hardware.is_identity_on("warp") and 0 not in src.columns_of("warp"),
        skip_warps=skip,
        copies=copies,
    )


def _repeated_bits(src: LinearLayout, dst: LinearLayout, bits: int) -> list[int]:
    """Columns common to both sides' registers, as many as it takes to keep the scratch small."""
    common = [c for c in src.columns_of("register") if c in dst.columns_of("register")]
    vector = max(1, 128 // bits).bit_length() - 1
    size = src.out_sizes[0][1] * bits // 8
    repeated: list[int] = []
    for c in reversed(common[vector:]):
        if size <= MAX_SCRATCH_BYTES:
            break
        if not c & (c - 1) and all(v == c or not v & c
                                   for v in (*src.flat_columns, *dst.flat_columns)):
            repeated.append(c)
            size //= 2
    return repeated


def _without_bits(layout: LinearLayout, removed: Sequence[int]) -> LinearLayout:
    """The layout of the part of the tile in which these index bits are zero, renumbered."""
    if not removed:
        return layout
    (name, size), gone = layout.out_sizes[0], sum(removed)
    kept = [i for i in range(size.bit_length() - 1) if not gone >> i & 1]

    def squeeze(v: int) -> int:
        return sum(((v >> bit) & 1) << n for n, bit in enumerate(kept))

    columns = {n: [squeeze(c) for c in layout.columns_of(n) if c not in removed]
               for n in layout.in_names}
    return from_columns(columns, ((name, 1 << len(kept)),), squeeze(layout.flip_bits))


def _pass_registers(layout: LinearLayout, repeated: Sequence[int], order: Sequence[int],
                    names: Sequence[int]) -> list[tuple[int, ...]]:
    """Per repetition: the registers in access order."""
    inner = [i for i in range(len(layout.columns_of("register"))) if i not in repeated]
    registers = bit_order(inner)
    return [tuple(names[outer | registers[p]] for p in order) for outer in bit_order(repeated)]


def _reordered(access: LinearLayout, order: Sequence[int]) -> LinearLayout:
    """The map with register counting positions in `order` (a permutation of index bits)."""
    columns = access.columns_of("register")
    bits = [order[1 << i].bit_length() - 1 for i in range(len(columns))]
    return access.with_columns("register", [columns[b] for b in bits])


def _shared_cost(plan: Shared, bits: int) -> float:
    moves = plan.store_route(bits, True).cost[0] + plan.load_route(bits, True).cost[0]
    barrier = WARP_BARRIER_COST if plan.warp_local else BARRIER_COST
    return len(plan.repetitions) * (moves + 2 * barrier) - barrier
