"""Register layouts: which lane of which warp holds each element of a tile, and in which register.

Their linear form is (register, lane, warp) -> (dim0, dim1, ...). Every column has at most one set
bit; zero lane and warp columns mean that those threads hold copies; register columns are never
zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tilec.ir.f2 import log2_exact
from tilec.ir.layout_base import (
    LANES,
    Layout,
    RegisterLayout,
    Shape,
    Vectors,
    check_order,
    check_powers,
)
from tilec.ir.linear import LinearLayout, from_columns, tile_outs


class _Tiler:
    """Gives out the bits of each dimension, lowest first, to register, lane and warp bits.

    Bits beyond the shape become zero columns for lanes and warps (they hold copies) and are dropped
    for registers (a register never holds a copy).
    """

    def __init__(self, shape: Shape) -> None:
        self.bits = [log2_exact(n) for n in shape]
        self.shifts = [sum(self.bits[d + 1 :]) for d in range(len(shape))]
        self.used = [0] * len(shape)
        self.columns: dict[str, list[int]] = {"register": [], "lane": [], "warp": []}
        self.shape = shape

    def take(self, holder: str, dim: int, extent: int) -> None:
        for _ in range(log2_exact(extent)):
            bit = self.used[dim]
            self.used[dim] += 1
            if bit < self.bits[dim]:
                self.columns[holder].append(1 << (self.shifts[dim] + bit))
            elif holder != "register":
                self.columns[holder].append(0)

    def zeros(self, holder: str, extent: int) -> None:
        self.columns[holder] += [0] * log2_exact(extent)

    def finish(self, order: Iterable[int]) -> LinearLayout:
        """Leave what is still free to registers, dimension by dimension."""
        for dim in order:
            left = self.bits[dim] - self.used[dim]
            if left > 0:
                self.take("register", dim, 1 << left)
        return from_columns(self.columns, tile_outs(self.shape))


@dataclass(frozen=True, eq=False)
class Blocked(RegisterLayout):
    """Each thread owns size_per_thread elements, threads tile a warp's block, warps the CTA's.

    order lists dimensions from the fastest. Larger tiles repeat the CTA's block in further
    registers.
    """

    name: ClassVar[str] = "blocked"
    size_per_thread: tuple[int, ...]
    threads_per_warp: tuple[int, ...]
    warps_per_cta: tuple[int, ...]
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        check_powers(self, "size_per_thread", "threads_per_warp", "warps_per_cta")
        check_order(self.name, self.order, len(self.size_per_thread))
        for field in (self.threads_per_warp, self.warps_per_cta):
            if len(field) != len(self.order):
                raise ValueError("blocked: all fields need one entry per dimension")
        if prod(self.threads_per_warp) != LANES:
            raise ValueError(
                f"blocked: threadsPerWarp must multiply to {LANES}, got {self.threads_per_warp}")

    @property
    def rank(self) -> int:
        return len(self.order)

    @property
    def num_warps(self) -> int:
        return prod(self.warps_per_cta)

    def _build(self, shape: Shape) -> LinearLayout:
        tiler = _Tiler(shape)
        for holder, extents in (("register", self.size_per_thread), ("lane", self.threads_per_warp),
                                ("warp", self.warps_per_cta)):
            for dim in self.order:
                tiler.take(holder, dim, extents[dim])
        return tiler.finish(self.order)


@dataclass(frozen=True, eq=False)
class Slice(RegisterLayout):
    """The layout of a tile reduced along `dim` of a tile with the parent layout."""

    name: ClassVar[str] = "slice"
    parent: Layout
    dim: int

    def __post_init__(self) -> None:
        if not isinstance(self.parent, RegisterLayout):
            raise ValueError(f"slice: the parent must be a register layout, got {self.parent}")
        if not 0 <= self.dim < self.parent.rank:
            raise ValueError(
                f"slice: dim {self.dim} is outside the parent, of rank {self.parent.rank}")

    @property
    def rank(self) -> int:
        return self.parent.rank - 1

    @property
    def num_warps(self) -> int:
        assert isinstance(self.parent, RegisterLayout)
        return self.parent.num_warps

    def _build(self, shape: Shape) -> LinearLayout:
        whole = self.parent.to_linear(shape[: self.dim] + (1,) + shape[self.dim :])
        # The removed output has extent 1 and so no bits: columns stay as they are.
        return whole.reshape_outs(tile_outs(shape))


@dataclass(frozen=True, eq=False)
class Mma(RegisterLayout):
    """The accumulator of mma.sync (version 2) or wgmma (version 3).

    instr_shape starts with the instruction's m and n: (16, 8) or (8, 8) for version 2, (64, n) with
    n a multiple of 8 for version 3, of which one warpgroup owns 64 rows. Leading dimensions are
    batches.
    """

    name: ClassVar[str] = "nvidia_mma"
    version: int
    warps_per_cta: tuple[int, ...]
    instr_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        check_powers(self, "warps_per_cta")
        if self.version not in (2, 3):
            raise ValueError(f"nvidia_mma: version must be 2 or 3, got {self.version}")
        if len(self.warps_per_cta) < 2 or len(self.instr_shape) < 2:
            raise ValueError("nvidia_mma: warpsPerCTA and instrShape need at least two entries")
        m, n = self.instr_shape[:2]
        if self.version == 2 and (m not in (8, 16) or n != 8):
            raise ValueError(f"nvidia_mma: version 2 has m 16 (or 8) and n 8, got {m} and {n}")
        if self.version == 3 and (m != 64 or n % 8 or not 8 <= n <= 256):
            raise ValueError(f"nvidia_mma: version 3 has m 64 and n in 8, 16..256, got {m} and {n}")
        if self.version == 3 and self.warps_per_cta[-2] % 4:
            raise ValueError("nvidia_mma: version 3 needs a multiple of 4 warps along m")

    @property
    def rank(self) -> int:
        return len(self.warps_per_cta)

    @property
    def num_warps(self) -> int:
        return prod(self.warps_per_cta)

    @property
    def warp_order(self) -> tuple[int, ...]:
        """Dimensions in the order in which they take bits of the warp index."""
        rows_last = tuple(reversed(range(self.rank)))
        return rows_last if self.version == 2 else (self.rank - 2, self.rank - 1, *rows_last[2:])

    def _build(self, shape: Shape) -> LinearLayout:
        tiler = _Tiler(shape)
        row, col = self.rank - 2, self.rank - 1
        tiler.take("register", col, 2)
        tiler.take("lane", col, 4)
        tiler.take("lane", row, 8)
        tiler.take("register", row, 2 if self.instr_shape[0] >= 16 else 1)
        if self.version == 3:
            n = self.instr_shape[1]
            tiler.take("register", col, (n & -n) // 8)
        for dim in self.warp_order:
            tiler.take("warp", dim, self.warps_per_cta[dim])
        return tiler.finish(reversed(range(self.rank)))


@dataclass(frozen=True, eq=False)
class DotOperand(RegisterLayout):
    """Operand op_index (0 = A, 1 = B) of a dot whose accumulator has the parent layout.

    k_width is how many consecutive k a thread holds: 32 / bits for tensor cores. With a blocked
    parent (fused multiply-adds) every thread holds the whole k extent of its rows or columns.
    """

    name: ClassVar[str] = "dot_operand"
    parent: Layout
    op_index: int
    k_width: int

    def __post_init__(self) -> None:
        check_powers(self, "k_width")
        if self.op_index not in (0, 1):
            raise ValueError(f"dot_operand: opIndex must be 0 or 1, got {self.op_index}")
        if not isinstance(self.parent, (Mma, Blocked)) or self.parent.rank < 2:
            raise ValueError(
                "dot_operand: the parent must be nvidia_mma or blocked, of rank 2 or more, "
                f"got {self.parent}"
            )
        if isinstance(self.parent, Mma) and self.parent.version == 3 and self.op_index == 1:
            raise ValueError("dot_operand: wgmma reads operand B from shared memory")

    @property
    def rank(self) -> int:
        return self.parent.rank

    @property
    def num_warps(self) -> int:
        assert isinstance(self.parent, RegisterLayout)
        return self.parent.num_warps

    @property
    def k_dim(self) -> int:
        return self.rank - 1 if self.op_index == 0 else self.rank - 2

    def _build(self, shape: Shape) -> LinearLayout:
        tiler = _Tiler(shape)
        k, other = self.k_dim, 2 * self.rank - 3 - self.k_dim
        parent = self.parent
        if isinstance(parent, Mma):
            tiler.take("register", k, self.k_width)
            tiler.take("lane", k, 4)
            tiler.take("lane", other, 8)
            if self.op_index == 0 and parent.instr_shape[0] >= 16:
                tiler.take("register", other, 2)
            tiler.take("register", k, 2)
            warp_order = parent.warp_order
        else:
            assert isinstance(parent, Blocked)
            for dim in parent.order:
                tiler.take("register", dim, shape[k] if dim == k else parent.size_per_thread[dim])
            for dim in parent.order:
                self._spread(tiler, "lane", dim, parent.threads_per_warp[dim])
            warp_order = parent.order
        for dim in warp_order:
            self._spread(tiler, "warp", dim, parent.warps_per_cta[dim])
        return tiler.finish((k, other, *reversed(range(self.rank - 2))))

    def _spread(self, tiler: _Tiler, holder: str, dim: int, extent: int) -> None:
        """Threads that differ only along k hold copies."""
        if dim == self.k_dim:
            tiler.zeros(holder, extent)
        else:
            tiler.take(holder, dim, extent)


@dataclass(frozen=True, eq=False)
class Linear(RegisterLayout):
    """Explicit bases: coordinate tuples, one per register bit, lane bit (five) and warp bit.

    Each is zero in all but at most one bit. The shape they cover is the one they reach; in a
    smaller tile bits beyond the extent hold copies, a larger tile repeats the covered one in
    further registers.
    """

    name: ClassVar[str] = "linear"
    register: Vectors
    lane: Vectors
    warp: Vectors

    def __post_init__(self) -> None:
        if len(self.lane) != 5:
            raise ValueError(f"linear: lane needs 5 bases, got {len(self.lane)}")
        rank = len(self.lane[0])
        reached: list[set[int]] = [set() for _ in range(rank)]
        for holder in (self.register, self.lane, self.warp):
            for v in holder:
                if len(v) != rank:
                    raise ValueError(f"linear: basis {v} needs {rank} coordinates")
                parts = [(d, c) for d, c in enumerate(v) if c]
                if len(parts) > 1 or any(c < 0 or c & (c - 1) for _, c in parts):
                    raise ValueError(f"linear: basis {v} must have at most one set bit")
                if not parts and holder is self.register:
                    raise ValueError("linear: a register basis must not be zero")
                for d, c in parts:
                    if c in reached[d]:
                        raise ValueError(f"linear: basis {v} occurs twice")
                    reached[d].add(c)
        for d, seen in enumerate(reached):
            if seen and max(seen) != 1 << (len(seen) - 1):
                raise ValueError(f"linear: the bases leave holes along dim {d}")

    @property
    def rank(self) -> int:
        return len(self.lane[0])

    @property
    def num_warps(self) -> int:
        return 1 << len(self.warp)

    @property
    def shape(self) -> Shape:
        """The extents that the bases reach."""
        vectors = self.register + self.lane + self.warp
        return tuple(max((2 * v[d] for v in vectors), default=0) or 1 for d in range(self.rank))

    def _build(self, shape: Shape) -> LinearLayout:
        whole = from_columns({}, tile_outs(shape))

        def columns(vectors: Vectors) -> list[int]:
            return [whole.pack([c if c < n else 0 for c, n in zip(v, shape, strict=True)])
                    for v in vectors]

        registers = [c for c in columns(self.register) if c]
        for dim in reversed(range(self.rank)):
            extent = self.shape[dim]
            while extent < shape[dim]:
                registers.append(whole.pack([extent if d == dim else 0 for d in range(self.rank)]))
                extent *= 2
        cols = {"register": registers, "lane": columns(self.lane), "warp": columns(self.warp)}
        return from_columns(cols, tile_outs(shape))
