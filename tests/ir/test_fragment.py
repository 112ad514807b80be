"""Fragments and shared tiles of any extent, against enumeration."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tilec.ir.fragment import (
    fragment,
    odd_factors_stay,
    shared_tile,
    split_extent,
    storage_shape,
)
from tilec.ir.layouts import (
    Blocked,
    DotOperand,
    Mma,
    NvmmaShared,
    Slice,
    SwizzledShared,
    default_blocked,
    reshape,
)


@pytest.mark.parametrize(
    ("n", "parts"),
    [
        (1, (1, 1, False)),
        (2, (1, 2, False)),
        (15, (15, 1, False)),
        (17, (1, 32, True)),
        (96, (3, 32, False)),
        (160, (5, 32, False)),
        (176, (11, 16, False)),
        (192, (3, 64, False)),
        (1000, (1, 1024, True)),
        (1024, (1, 1024, False)),
    ],
)
def test_split_extent(n, parts):
    assert split_extent(n) == parts


def test_extents_must_be_positive():
    for n in (0, -8):
        with pytest.raises(ValueError, match="positive"):
            split_extent(n)


def layouts(shape: tuple[int, ...]):
    rank = len(shape)
    yield default_blocked(shape, 4)
    yield default_blocked(shape, 2, (2,) * rank)
    yield Slice(default_blocked((*shape, 8), 4), rank)
    if rank == 2:
        yield Mma(2, (2, 2), (16, 8))
        yield Mma(3, (4, 1), (64, 32))
        yield DotOperand(Mma(2, (2, 2), (16, 8)), 1, 2)
        yield Blocked((1, 4), (4, 8), (2, 1), (1, 0))


@pytest.mark.parametrize(
    "shape", [(1,), (5,), (96,), (100,), (1000,), (16, 24), (48, 20), (17, 3), (64, 160), (2, 3, 4)]
)
def test_every_element_is_held(shape):
    for layout in layouts(shape):
        held = fragment(shape, layout)
        seen: dict[tuple[int, ...], int] = {}
        threads = 32 * held.linear.in_size("warp")
        for register, thread in product(range(held.num_registers), range(threads)):
            at = held.coords(register, thread % 32, thread // 32)
            seen[at] = seen.get(at, 0) + 1
        inside = set(product(*map(range, shape)))
        assert inside <= set(seen), layout
        stored = [range(o * p) for o, p in zip(held.odd, held.pow2, strict=True)]
        assert set(seen) == set(product(*stored)), layout
        copies = 1 << sum(m.bit_count() for m in held.free_masks.values())
        assert set(seen.values()) == {copies}, layout
        assert held.free_masks["register"] == 0
        exact = [o * p == n for o, p, n in zip(held.odd, held.pow2, shape, strict=True)]
        assert held.padded_dims == tuple(d for d, e in enumerate(exact) if not e)


def test_register_coords_split_constants_from_the_thread():
    rng = random.Random(5)
    for shape in [(48, 20), (100, 7), (64, 160)]:
        for layout in layouts(shape):
            held = fragment(shape, layout)
            places = held.register_coords
            assert len(places) == held.num_registers
            for _ in range(30):
                register = rng.randrange(held.num_registers)
                lane, warp = rng.randrange(32), rng.randrange(held.linear.in_size("warp"))
                thread = [0] * len(shape)
                for index, bases in ((lane, held.lane_bases), (warp, held.warp_bases)):
                    for bit, basis in enumerate(bases):
                        if index >> bit & 1:
                            thread = [t ^ b for t, b in zip(thread, basis, strict=True)]
                place = places[register]
                at = tuple(
                    c + t for c, t in zip(place, thread, strict=True)
                )
                assert at == held.coords(register, lane, warp)
                assert not any(c & t for c, t in zip(place, thread, strict=True))


def test_odd_parts_are_the_slowest_registers():
    held = fragment((128, 160), Mma(3, (4, 1), (64, 160, 16)))
    assert (held.odd, held.pow2, held.num_registers) == ((1, 5), (128, 32), 160)
    assert held.odd_offsets == ((0, 0), (0, 32), (0, 64), (0, 96), (0, 128))
    # One wgmma of n = 160: register 4j+i holds column block j in every odd part.
    rows_0_63 = [r for r in range(160) if held.register_coords[r][0] < 64]
    blocks = [held.coords(r, 0, 0)[1] // 8 for r in rows_0_63]
    assert blocks == [j for j in range(20) for _ in range(4)]


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((16, 192), NvmmaShared(128, False, 16)),
        ((24, 64), NvmmaShared(64, False, 16)),
        ((64, 40), NvmmaShared(128, True, 16)),
        ((12, 20), SwizzledShared(4, 1, 4, (1, 0))),
        ((7, 100), SwizzledShared(1, 1, 1, (0, 1))),
        ((3, 8, 16), SwizzledShared(4, 2, 2, (2, 1, 0))),
    ],
)
def test_shared_offsets_are_one_to_one(shape, layout):
    tile = shared_tile(shape, layout)
    offsets = {tile.offset(at) for at in product(*map(range, shape))}
    assert len(offsets) == len(list(product(*map(range, shape))))
    assert max(offsets) < tile.num_elements
    if not tile.padded_dims:
        assert offsets == set(range(tile.num_elements))


def test_odd_columns_are_outer_panels():
    tile = shared_tile((16, 192), NvmmaShared(128, False, 16))
    assert [tile.offset((0, c)) for c in (0, 64, 128)] == [0, 16 * 64, 2 * 16 * 64]


@pytest.mark.parametrize(
    ("src", "dst", "stay"),
    [
        ((16, 8), (128,), True),
        ((96, 16), (3, 32, 16), True),
        ((96, 16), (1536,), True),
        ((4, 24), (96,), False),
        ((4, 24), (2, 2, 24), True),
        ((100, 4), (400,), False),
        ((100, 4), (100, 2, 2), True),
        ((100, 4), (4, 100), False),
    ],
)
def test_odd_factors_stay(src, dst, stay):
    assert odd_factors_stay(src, dst) is stay
    assert odd_factors_stay(dst, src) is stay


def test_a_free_reshape_keeps_every_register():
    src, dst = (96, 16), (3, 32, 16)
    layout = default_blocked(src, 4)
    moved = reshape(layout, storage_shape(src)[1], storage_shape(dst)[1])
    a, b = fragment(src, layout), fragment(dst, moved)
    for register, lane, warp in product(range(a.num_registers), (0, 9, 31), range(4)):
        row, col = a.coords(register, lane, warp)
        assert b.coords(register, lane, warp) == (row // 32, row % 32, col)


def test_layouts_refuse_other_ranks():
    with pytest.raises(ValueError, match="has rank 1"):
        fragment((4, 4), Blocked((1,), (32,), (1,), (0,)))
