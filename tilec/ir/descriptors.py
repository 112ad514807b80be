"""How sm_90a is told where a tile lies in shared memory: matrix descriptors of wgmma, and the boxes
that one TMA copy of a tile is made of.

Source: PTX ISA, "Asynchronous warpgroup level matrix shared memory layout"; CUDA driver API,
"Tensor Map Object Management".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from tilec.ir.fragment import SharedTile, shared_tile
from tilec.ir.layouts import Layout, NvmmaShared, SwizzledShared
from tilec.ir.types import MemDesc, TensorMap

ATOM_ROWS = 8
ADDRESS_BITS = 0x3FFFF  # of a shared address; those above name the CTA of a cluster
MAX_BOX = 256  # elements along one dimension
TMA_ALIGN = 128
MIN_COPY = 16  # bytes of the smallest; what is smaller is an mbarrier
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
def tma_boxes(t: TensorMap, parts: int = 1) -> TmaBoxes:
    """What one copy of the tile is made of, in a buffer that is `parts` tiles high; ValueError
    where TMA cannot copy it."""
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
    rows, *rest = t.tile_shape
    tile = shared_tile((rows * parts, *rest), layout)
    for origin in product(range(0, rows * parts, rows), range(0, t.shape[-1], width)):
        if not _box_fits(tile, origin, box[len(t.shape) - layout.rank:], t.element.bytes, swizzle):
            raise ValueError(f"the elements of a box do not lie as TMA writes them in {t}")
    return TmaBoxes(box, t.shape[-1] // width, swizzle)


def _box_fits(tile: SharedTile, origin: tuple[int, int], box: tuple[int, ...], size: int,
              swizzle: int) -> bool:
    """Whether a buffer's elements, of `size` bytes, lie where TMA writes those of a box that begins
    at `origin`, a row and an element of it: one after another, with the bits of the address that
    say which 16 bytes of a row XORed with those that say which row of 128 bytes.

    Both places are linear in the bits of a coordinate, up to what divides all parts of the buffer.
    """
    first = [0] * len(box)
    first[-1] = origin[1]
    first[0] += origin[0]
    base = tile.offset(first) * size
    if base % TMA_ALIGN:
        return False
    samples = []
    for n, start, low in zip(box, first, tile.pow2, strict=True):
        low = min(low, start & -start or low)
        bits = [1 << i for i in range(low.bit_length() - 1)]
        samples.append([m + b for m in range(0, n, low) for b in (0, *bits) if m + b < n])
    for coords in product(*samples):
        place = 0
        for c, n in zip(coords, box, strict=True):
            place = place * n + c
        at = base + place * size
        at ^= (at >> 7 & max(0, swizzle // 16 - 1)) << 4
        if tile.offset([a + c for a, c in zip(first, coords, strict=True)]) * size != at:
            return False
    return True


def async_alignment(t: MemDesc) -> int:
    """The alignment in bytes that TMA and wgmma want of a buffer: that at which its swizzle, which
    is one of address bits, repeats."""
    layout: Layout = t.layout
    if isinstance(layout, NvmmaShared):
        return max(TMA_ALIGN, ATOM_ROWS * layout.swizzle_bytes)
    return TMA_ALIGN if prod(t.tile_shape) * t.element.bytes >= MIN_COPY else 16


def buffer_offset(t: MemDesc, coords: tuple[int, int]) -> int:
    """Where an element of a buffer of rank 2 lies, in bytes."""
    return shared_tile(t.shape, t.layout).offset(coords) * t.element.bytes
