"""Shared layouts: at which element offset of a shared-memory buffer each element of a tile lies.

Their linear form is (offset) -> (dim0, dim1, ...), always one-to-one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilec.ir.f2 import log2_exact
from tilec.ir.layout_base import Shape, SharedLayout, Vectors, check_order, check_powers
from tilec.ir.linear import LinearLayout, from_columns, tile_outs


@dataclass(frozen=True, eq=False)
class SwizzledShared(SharedLayout):
    """Rows in which groups of vec elements are XORed with (row / per_phase) % max_phase.

    order lists dimensions from the fastest; the two fastest are swizzled, the others are slabs.
    """

    name: ClassVar[str] = "swizzled_shared"
    vec: int
    per_phase: int
    max_phase: int
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        check_powers(self, "vec", "per_phase", "max_phase")
        check_order(self.name, self.order, len(self.order))

    @property
    def rank(self) -> int:
        return len(self.order)

    @property
    def dims_from_fastest(self) -> tuple[int, ...]:
        return self.order

    def permuted(self, order: Shape) -> SwizzledShared:
        return replace(self, order=tuple(order.index(d) for d in self.order))

    def _build(self, shape: Shape) -> LinearLayout:
        return _swizzled(shape, self.order, shape, self.vec, self.per_phase, self.max_phase)


def plain_rows(rank: int) -> SwizzledShared:
    """Elements one after another, the last dimension fastest."""
    return SwizzledShared(1, 1, 1, tuple(reversed(range(rank))))


@dataclass(frozen=True, eq=False)
class NvmmaShared(SharedLayout):
    """What TMA writes and wgmma reads: panels of swizzle_bytes (0: 16 bytes, plain) by all rows.

    Rows run along the second fastest dimension; transposed means that dimension rank-2 is
    contiguous.
    """

    name: ClassVar[str] = "nvmma_shared"
    swizzle_bytes: int
    transposed: bool
    element_bits: int

    def __post_init__(self) -> None:
        if self.swizzle_bytes not in (0, 32, 64, 128):
            raise ValueError(
                f"nvmma_shared: swizzleBytes must be 0, 32, 64 or 128, got {self.swizzle_bytes}")
        if self.element_bits not in (8, 16, 32, 64):
            raise ValueError(
                f"nvmma_shared: elementBits must be 8, 16, 32 or 64, got {self.element_bits}")

    @property
    def rank(self) -> int:
        return 2

    @property
    def panel(self) -> int:
        """Elements along the contiguous dimension of one panel."""
        return max(16, self.swizzle_bytes) * 8 // self.element_bits

    @property
    def dims_from_fastest(self) -> tuple[int, ...]:
        return (0, 1) if self.transposed else (1, 0)

    def permuted(self, order: Shape) -> NvmmaShared:
        return replace(self, transposed=self.transposed != (order[0] == 1))

    def _build(self, shape: Shape) -> LinearLayout:
        order = self.dims_from_fastest
        if shape[order[0]] < self.panel:
            raise ValueError(
                f"{self} needs at least {self.panel} elements along dim {order[0]}, "
                f"the shape is {shape}"
            )
        box = tuple(self.panel if d == order[0] else n for d, n in enumerate(shape))
        swizzle = max(16, self.swizzle_bytes)
        vec = 128 // self.element_bits
        return _swizzled(shape, order, box, vec, max(1, 128 // swizzle), swizzle // 16)


@dataclass(frozen=True, eq=False)
class SharedLinear(SharedLayout):
    """Explicit bases: where each bit of the element offset lies. They reach the whole shape."""

    name: ClassVar[str] = "shared_linear"
    offset: Vectors

    def __post_init__(self) -> None:
        if len({len(v) for v in self.offset}) != 1:
            raise ValueError("shared_linear: needs bases, all with the same number of coordinates")

    @property
    def rank(self) -> int:
        return len(self.offset[0])

    @property
    def dims_from_fastest(self) -> tuple[int, ...]:
        """In the order in which the bases first reach them."""
        reached = [d for v in self.offset for d, c in enumerate(v) if c]
        return tuple(dict.fromkeys((*reached, *reversed(range(self.rank)))))

    def permuted(self, order: Shape) -> SharedLinear:
        return SharedLinear(tuple(tuple(v[d] for d in order) for v in self.offset))

    def _build(self, shape: Shape) -> LinearLayout:
        whole = from_columns({}, tile_outs(shape))
        if any(not 0 <= c < n for v in self.offset for c, n in zip(v, shape, strict=True)):
            raise ValueError(f"{self} reaches beyond the shape {shape}")
        layout = from_columns({"offset": [whole.pack(v) for v in self.offset]}, tile_outs(shape))
        if not layout.is_bijective:
            raise ValueError(f"{self} is not one-to-one on the shape {shape}")
        return layout


def _swizzled(shape: Shape, order: Sequence[int], box: Shape, vec: int, per_phase: int,
              max_phase: int) -> LinearLayout:
    """offset -> dims: a box, whose rows are swizzled, repeated over the shape along `order`."""
    whole = from_columns({}, tile_outs(shape))

    def at(dim: int, value: int) -> int:
        return whole.pack([value if d == dim else 0 for d in range(len(shape))])

    columns: list[int] = []
    for place, dim in enumerate(order):
        for bit in range(log2_exact(box[dim])):
            row = 1 << bit
            column = at(dim, row)
            if place == 1:
                phase = (row // per_phase) % max_phase
                column |= at(order[0], vec * phase % box[order[0]])
            columns.append(column)
    for dim in order:
        extent = box[dim]
        while extent < shape[dim]:
            columns.append(at(dim, extent))
            extent *= 2
    return from_columns({"offset": columns}, tile_outs(shape))
