"""How sm_90a is told where a tile lies in shared memory: matrix descriptors of wgmma, and the boxes
that one TMA copy of a tile is made of.

Source: PTX ISA, "Asynchronous warpgroup level matrix shared memory layout"; CUDA driver API,
"Tensor Map Object Management".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tilec.ir.fragment import SharedTile, shared_tile
from tilec.ir.layouts import Layout, NvmmaShared, SwizzledShared
from tilec.ir.types import MemDesc, TensorMap

ATOM_ROWS = 8
ADDRESS_BITS = 0x3FFFF  # of a shared address; those above name the CTA of a cluster
MAX_BOX = 256  # elements along one dimension
TMA_ALIGN = 128
TENSOR_MAP_BYTES = 128
# The field of a descriptor that names a swizzle, by the bytes of a row.
_MODES = {0: 0, 128: 1, 64: 2, 32: 3}


@dataclass(frozen=True)
class MatrixDescriptor:
    """A descriptor but for the address. An operand is made of atoms, 8 rows of `swizzle` bytes (0:
    16 bytes, plain); rows run along m or n, or if `transposed` along k. leading and stride are its
    two byte offsets."""

    swizzle: int
    transposed: bool
    leading: int
    stride: int

    @property
    def bits(self) -> int:
        """The 64 bits, with an address of 0."""
        return self.leading >> 4 << 16 | self.stride >> 4 << 32 | _MODES[self.swizzle] << 62


@lru_cache(maxsize=256)
def matrix_descriptor(tile: SharedTile, bits: int, k_dim: int, outer: int, k: int
                      ) -> MatrixDescriptor | None:
    """The descriptor of an instruction's operand, `outer` by `k` elements of `bits`, in a buffer;
    None where the buffer's layout has none. k_dim: the buffer's dimension that k runs along."""
    for swizzle in _MODES:
        for transposed in (False, True) if bits == 16 else (False,):
            row_dim = k_dim if transposed else 1 - k_dim
            width = max(16, swizzle) * 8 // bits
            if not _has_atom(tile, NvmmaShared(swizzle, False, bits), row_dim, width):
                continue
            rows, columns = (k, outer) if transposed else (outer, k)
            along_rows = _step(tile, row_dim, ATOM_ROWS, rows)
            along_columns = _step(tile, 1 - row_dim, width, columns)
            if along_rows is None or along_columns is None:
                continue
            # Without a swizzle, an operand whose rows run along k has the two the other way round.
            pair = (along_columns, along_rows)
            if transposed and not swizzle:
                pair = along_rows, along_columns
            return MatrixDescriptor(swizzle, transposed, *(n * bits // 8 for n in pair))
    return None


def _has_atom(tile: SharedTile, layout: NvmmaShared, row_dim: int, width: int) -> bool:
    """Whether the first 8 rows of `width` elements lie as in this layout."""
    if tile.pow2[row_dim] < ATOM_ROWS or tile.pow2[1 - row_dim] < width:
        return False
    for i, (row, column) in enumerate(layout.to_linear((ATOM_ROWS, width)).bases_of("offset")):
        if tile.offset((row, column) if row_dim == 0 else (column, row)) != 1 << i:
            return False
    return True


def _step(tile: SharedTile, dim: int, unit: int, extent: int) -> int | None:
    """How many elements on each next `unit` along a dimension lies, up to an extent; 8 where there
    is no next one, None where they lie at no equal distance."""
    at = [tile.offset([i if d == dim else 0 for d in range(2)]) for i in range(0, extent, unit)]
    step = at[1] if len(at) > 1 else 8
    return step if at == [i * step for i in range(len(at))] else None


# ---- TMA
@dataclass(frozen=True)
class TmaBoxes:
    """A tile of a tensor map as boxes, side by side along the last dimension; swizzle: the bytes of
    a row, 0 for none."""

    box: tuple[int, ...]
    count: int
    swizzle: int


@lru_cache(maxsize=256)
def tma_boxes(t: TensorMap) -> TmaBoxes:
    """What one copy of the tile is made of; ValueError where TMA cannot copy it."""
    layout, width = t.layout, t.shape[-1]
    swizzle = 0
    if isinstance(layout, NvmmaShared) and not layout.transposed and \
            layout.element_bits == t.element.bytes * 8:
        swizzle, width = layout.swizzle_bytes, layout.panel
    elif not (isinstance(layout, SwizzledShared) and layout.max_phase == 1 and
              layout.order == tuple(reversed(range(layout.rank)))):
        raise ValueError(f"TMA copies no tiles to or from a buffer with the layout {layout}")
    box = (*t.shape[:-1], width)
    if max(box) > MAX_BOX or width * t.element.bytes % 16 or t.shape[-1] % width:
        raise ValueError(f"TMA copies boxes of up to {MAX_BOX} elements along a dimension, and of "
                         f"rows of a multiple of 16 bytes; this one is {box}")
    tile = shared_tile(t.tile_shape, layout)
    if layout.rank == 2 and _step(tile, 0, 1 if swizzle == 0 else ATOM_ROWS, t.shape[-2]) not in (
            8, width * (1 if swizzle == 0 else ATOM_ROWS)):
        raise ValueError(f"the rows of a box do not lie one after another in {t}")
    return TmaBoxes(box, t.shape[-1] // width, swizzle)


def async_alignment(t: MemDesc) -> int:
    """The alignment in bytes that TMA and wgmma want of a buffer: that at which its swizzle, which
    is one of address bits, repeats."""
    layout: Layout = t.layout
    if isinstance(layout, NvmmaShared):
        return max(TMA_ALIGN, ATOM_ROWS * layout.swizzle_bytes)
    return TMA_ALIGN if prod(t.tile_shape) * t.element.bytes >= TMA_ALIGN else 16


def buffer_offset(t: MemDesc, coords: tuple[int, int]) -> int:
    """Where an element of a buffer of rank 2 lies, in bytes."""
    return shared_tile(t.shape, t.layout).offset(coords) * t.element.bytes
