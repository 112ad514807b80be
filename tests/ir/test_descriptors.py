"""Matrix descriptors against the canonical layouts of wgmma, and the boxes of TMA copies."""

from __future__ import annotations

from itertools import product

import pytest

from tilec.ir.descriptors import (
    MatrixDescriptor,
    async_alignment,
    matrix_descriptor,
    tma_boxes,
)
from tilec.ir.fragment import shared_tile
from tilec.ir.layouts import Layout, NvmmaShared, SharedLinear, SwizzledShared
from tilec.ir.types import MemDesc, Scalar, TensorMap, bf16, f8e4m3, f32, i8, i64


def nvmma(swizzle: int = 128, bits: int = 16, transposed: bool = False) -> NvmmaShared:
    return NvmmaShared(swizzle, transposed, bits)


def address(found: MatrixDescriptor, row: int, column: int, bits: int, k_major: bool) -> int:
    """Where the hardware reads an element, as byte offset: row along m or n, column along k."""
    width = max(16, found.swizzle)
    along, across = (column, row) if k_major else (row, column)  # along: contiguous
    inside = along * bits // 8
    lead, step = found.leading, found.stride
    if not found.swizzle and not k_major:
        lead, step = step, lead
    at = inside % width + across % 8 * width + inside // width * lead + across // 8 * step
    if not found.swizzle:
        return at
    phase = {128: 7, 64: 3, 32: 1}[found.swizzle]
    return at ^ (at >> 7 & phase) << 4


OUTER = (8, 24, 64, 96, 192, 256)
CASES = [(swizzle, bits, turned, outer) for swizzle in (0, 32, 64, 128) for bits in (8, 16, 32)
         for turned in ((False, True) if bits == 16 else (False,)) for outer in OUTER
         if not turned or (outer & -outer) * bits // 8 >= max(16, swizzle)]


@pytest.mark.parametrize(("swizzle", "bits", "turned", "outer"), CASES)
def test_a_descriptor_finds_every_element(swizzle: int, bits: int, turned: bool, outer: int
                                          ) -> None:
    """For all that an instruction reads: k along rows of the buffer, or turned, along columns."""
    k = 256 // bits
    deep = max(k, max(16, swizzle) * 8 // bits)  # the buffer's extent along k
    tile = shared_tile((outer, deep), nvmma(swizzle, bits, turned))
    found = matrix_descriptor(tile, bits, 1, outer, k)
    if outer in (96, 192) and not swizzle and not turned:
        # Parts of 32 and 64 rows, each with two panels: the rows lie at no equal distance.
        assert found is None
        return
    assert found is not None and found.transposed == turned and found.swizzle == swizzle
    for row in range(outer):
        for column in range(k):
            want = tile.offset((row, column)) * bits // 8
            assert address(found, row, column, bits, not turned) == want


def test_known_bits() -> None:
    """Those of facts that were measured: rows of 64 along k; panels of 64 along n, 64 deep."""
    a = matrix_descriptor(shared_tile((128, 64), nvmma()), 16, 1, 64, 16)
    assert a is not None and a.bits == 0x40000040_00010000
    b = matrix_descriptor(shared_tile((64, 256), nvmma()), 16, 0, 256, 16)
    assert b is not None and b.transposed and b.bits == 0x40000040_02000000


@pytest.mark.parametrize(("layout", "shape", "bits"), [
    (SwizzledShared(1, 1, 1, (1, 0)), (64, 64), 16),
    (SwizzledShared(8, 2, 8, (1, 0)), (64, 64), 16),
    (nvmma(128, 8, True), (128, 128), 8),
    (SharedLinear(tuple((1 << i, 0) for i in range(6)) + tuple((0, 1 << i) for i in range(6))),
     (64, 64), 16)])
def test_layouts_without_a_descriptor(layout: Layout, shape: tuple[int, int], bits: int) -> None:
    assert matrix_descriptor(shared_tile(shape, layout), bits, 1, 64, 256 // bits) is None


def test_plain_rows_of_16_bytes_need_no_nvmma_layout() -> None:
    found = matrix_descriptor(shared_tile((64, 8), SwizzledShared(1, 1, 1, (1, 0))), 16, 1, 64, 8)
    assert found == MatrixDescriptor(0, False, 16, 128)


@pytest.mark.parametrize(("shape", "element", "layout", "box", "count", "swizzle"), [
    ((128, 64), bf16, nvmma(), (128, 64), 1, 128),
    ((64, 256), bf16, nvmma(), (64, 64), 4, 128),
    ((1, 64, 128), bf16, nvmma(), (1, 64, 64), 2, 128),
    ((64, 96), bf16, nvmma(64), (64, 32), 3, 64),
    ((32, 16), bf16, nvmma(0), (32, 8), 2, 0),
    ((128, 256), f8e4m3, nvmma(128, 8), (128, 128), 2, 128),
    ((16, 64), f32, SwizzledShared(1, 1, 1, (1, 0)), (16, 64), 1, 0),
    ((256,), f32, SwizzledShared(1, 1, 1, (0,)), (256,), 1, 0),
])
def test_boxes(shape: tuple[int, ...], element: Scalar, layout: Layout, box: tuple[int, ...],
               count: int, swizzle: int) -> None:
    found = tma_boxes(TensorMap(shape, element, layout))
    assert (found.box, found.count, found.swizzle) == (box, count, swizzle)


@pytest.mark.parametrize(("shape", "element", "layout", "message"), [
    ((64, 64), bf16, nvmma(transposed=True), "no tiles to or from a buffer with the layout"),
    ((64, 64), bf16, SwizzledShared(8, 1, 8, (1, 0)), "no tiles to or from a buffer"),
    ((64, 64), bf16, SwizzledShared(1, 1, 1, (0, 1)), "no tiles to or from a buffer"),
    ((512, 64), bf16, nvmma(), "up to 256 elements along a dimension"),
    ((16, 2), bf16, SwizzledShared(1, 1, 1, (1, 0)), "rows of a multiple of 16 bytes"),
    ((96, 128), bf16, nvmma(), "do not lie as TMA writes them"),
])
def test_copies_that_tma_does_not_do(shape: tuple[int, ...], element: Scalar, layout: Layout,
                                     message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tma_boxes(TensorMap(shape, element, layout))


def lies_as_written(t: TensorMap, parts: int) -> bool:
    """Whether every element of a buffer lies where TMA writes it, box by box."""
    size, width, rows = t.element.bytes, t.shape[-1], t.shape[0]
    layout = t.layout
    swizzle = layout.swizzle_bytes if isinstance(layout, NvmmaShared) else 0
    box = layout.panel if isinstance(layout, NvmmaShared) else width
    tile = shared_tile((rows * parts, width), layout)
    for top, left in product(range(0, rows * parts, rows), range(0, width, box)):
        base = tile.offset((top, left)) * size
        if base % 128:
            return False
        for r, c in product(range(rows), range(box)):
            at = base + (r * box + c) * size
            if swizzle > 16:
                at ^= (at >> 7) % (swizzle // 16) << 4
            if tile.offset((top + r, left + c)) * size != at:
                return False
    return True


@pytest.mark.parametrize("swizzle", [None, 0, 32, 64, 128])
@pytest.mark.parametrize("element", [bf16, f8e4m3, f32], ids=str)
@pytest.mark.sample(4)
def test_boxes_lie_as_tma_writes_them(element: Scalar, swizzle: int | None) -> None:
    seen = set()
    for rows, width, parts in product((1, 2, 6, 8, 12, 17, 24), (1, 2, 3, 5, 9, 17),
                                      (1, 2, 3)):
        layout = SwizzledShared(1, 1, 1, (1, 0)) if swizzle is None else \
            NvmmaShared(swizzle, False, element.bits)
        shape = rows, width * max(16, swizzle or 0) // element.bytes
        if shape[1] > 256:
            continue
        t = TensorMap(shape, element, layout)
        try:
            tma_boxes(t, parts)
            fits = True
        except ValueError as e:
            assert "as TMA writes them" in str(e)
            fits = False
        assert fits == lies_as_written(t, parts), (shape, parts)
        seen.add(fits)
    assert seen == {True, False}


@pytest.mark.parametrize(("t", "want"), [
    (MemDesc((128, 64), bf16, nvmma()), 1024), (MemDesc((4, 128, 64), bf16, nvmma(64)), 512),
    (MemDesc((64, 16), bf16, nvmma(32)), 256), (MemDesc((64, 8), bf16, nvmma(0)), 128),
    (MemDesc((2, 16), i8, SwizzledShared(1, 1, 1, (0,))), 128),
    (MemDesc((4, 1), i64, SwizzledShared(1, 1, 1, (0,))), 16)])
def test_alignment(t: MemDesc, want: int) -> None:
    assert async_alignment(t) == want
