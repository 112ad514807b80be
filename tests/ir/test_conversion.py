"""Conversion plans executed on a numpy machine, for named and random pairs of layouts."""

from __future__ import annotations

import random

import pytest

from tests.ir.conversion_model import (
    counted_wavefronts,
    execute,
    held,
    vectors_are_contiguous,
)
from tilec.ir.conversion import NoOp, Registers, Shared, Shuffles, plan_conversion
from tilec.ir.layouts import Blocked, DotOperand, Mma, Slice, default_blocked
from tilec.ir.linear import LinearLayout, from_columns
from tilec.ir.swizzle import VectorAccess, split_offsets, vector_width


def check(src: LinearLayout, dst: LinearLayout, bits: int):
    """The plan, after running it and counting its conflicts."""
    plan = plan_conversion(src, dst, bits)
    assert (execute(plan, held(src), dst.in_size("register")) == held(dst)).all(), plan
    if isinstance(plan, Shared):
        for access, width, conflicts in (
            (plan.store, plan.vec_store, plan.store_conflicts),
            (plan.load, plan.vec_load, plan.load_conflicts),
        ):
            assert vectors_are_contiguous(access, width)
            assert counted_wavefronts(access, bits, width) == conflicts + 1
    return plan


def random_layout(rng: random.Random, bits: int, warp_bits: int) -> LinearLayout:
    columns = [1 << i for i in range(bits)]
    rng.shuffle(columns)

    def draw(count: int) -> list[int]:
        return [0 if not columns or rng.random() < 0.15 else columns.pop() for _ in range(count)]

    lane, warp = draw(5), draw(warp_bits)
    if rng.random() < 0.2:
        columns.insert(rng.randrange(len(columns) + 1), 0)
    return from_columns({"register": columns, "lane": lane, "warp": warp}, (("dim0", 1 << bits),))


def with_swaps(rng: random.Random, layout: LinearLayout) -> LinearLayout:
    columns = {n: list(layout.columns_of(n)) for n in layout.in_names}
    places = [(n, i) for n, cs in columns.items() for i in range(len(cs))]
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        (a, i), (b, j) = rng.choice(places), rng.choice(places)
        columns[a][i], columns[b][j] = columns[b][j], columns[a][i]
    return from_columns(
        columns, layout.out_sizes, rng.choice([0, 0, rng.randrange(layout.out_sizes[0][1])])
    )


@pytest.mark.parametrize("seed", range(12))
def test_random_pairs(seed):
    rng = random.Random(seed)
    for _ in range(60):
        src = random_layout(rng, rng.randint(3, 10), rng.randint(0, 3))
        warp_bits = len(src.columns_of("warp"))
        dst = (
            with_swaps(rng, src)
            if rng.random() < 0.7
            else random_layout(rng, src.out_bits, warp_bits)
        )
        check(src, dst, rng.choice([8, 16, 32, 64]))


def test_equal_layouts_need_nothing():
    layout = Blocked((1, 4), (4, 8), (2, 2), (1, 0)).to_linear((16, 64))
    assert check(layout, layout, 32) == NoOp()


def test_register_order_is_a_renaming():
    src = from_columns({"register": [1, 2], "lane": [4, 8, 16, 32, 64], "warp": []}, (("i", 128),))
    dst = from_columns({"register": [2, 1], "lane": [4, 8, 16, 32, 64], "warp": []}, (("i", 128),))
    assert check(src, dst, 32) == Registers((0, 2, 1, 3))


def test_copies_are_taken_not_moved():
    lanes = [4, 8, 16, 32, 64]
    src = from_columns({"register": [1, 2], "lane": lanes, "warp": [0]}, (("i", 128),))
    dst = from_columns({"register": [0, 2, 1], "lane": lanes, "warp": [0]}, (("i", 128),))
    assert check(src, dst, 32) == Registers((0, 0, 2, 2, 1, 1, 3, 3))
    assert check(dst, src, 32) == Registers((0, 4, 2, 6))
    high = from_columns({"register": [1, 2, 0], "lane": lanes, "warp": [0]}, (("i", 128),))
    assert check(high, src, 32) == Registers((0, 1, 2, 3))


def test_a_thread_picks_among_its_own_copies():
    # Every lane of src holds all four elements: nothing has to cross lanes.
    src = from_columns({"register": [1, 2], "lane": [0] * 5, "warp": []}, (("i", 4),))
    dst = from_columns({"register": [], "lane": [1, 2, 0, 0, 0], "warp": []}, (("i", 4),))
    plan = check(src, dst, 32)
    assert isinstance(plan, Shuffles) and plan.num_shuffles == 0


def test_one_exchange_between_a_register_and_a_lane_bit():
    src = from_columns({"register": [1, 2], "lane": [4, 8, 16, 32, 64], "warp": []}, (("i", 128),))
    dst = from_columns({"register": [4, 2], "lane": [1, 8, 16, 32, 64], "warp": []}, (("i", 128),))
    plan = check(src, dst, 32)
    assert isinstance(plan, Shuffles) and plan.is_butterfly
    assert plan.num_shuffles == 2 and len(plan.before) == len(plan.after) == 1
    # 16-bit elements travel in pairs.
    packed = check(src, dst, 16)
    assert isinstance(packed, Shuffles) and packed.num_shuffles == 1
    assert packed.src_words == ((0, 2), (1, 3))


def test_a_lane_permutation_needs_no_select():
    src = from_columns({"register": [1], "lane": [2, 4, 8, 16, 32], "warp": [64]}, (("i", 128),))
    dst = from_columns({"register": [1], "lane": [4, 8, 2, 32, 16], "warp": [64]}, (("i", 128),))
    plan = check(src, dst, 32)
    assert isinstance(plan, Shuffles) and not plan.before and not plan.after
    assert plan.num_shuffles == 2 and not plan.is_butterfly


def test_reversal_is_a_butterfly():
    src = Blocked((1,), (32,), (1,), (0,)).to_linear((32,))
    plan = check(src, src.flipped((31,)), 32)
    assert isinstance(plan, Shuffles) and plan.lane_xor == (31,) and plan.is_butterfly


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("size", [32, 64, 128])
def test_transposes_through_shared_memory_are_free_of_conflicts(bits, size):
    vec = 16 * 8 // bits
    rows = default_blocked((size, size), 4, (1, min(vec, 4))).to_linear((size, size))
    columns = default_blocked((size, size), 4, (min(vec, 4), 1), (0, 1)).to_linear((size, size))
    plan = check(rows, columns, bits)
    assert isinstance(plan, Shared)
    assert (plan.store_conflicts, plan.load_conflicts) == (0, 0)
    assert not plan.warp_local


@pytest.mark.parametrize("bits", [16, 32])
def test_named_pairs_are_free_of_conflicts(bits):
    shape = (128, 64)
    layouts = [
        default_blocked(shape, 4, (1, 8)),
        default_blocked(shape, 4, (1, 2)),
        default_blocked(shape, 4, (4, 1), (0, 1)),
        Mma(2, (2, 2), (16, 8)),
        Mma(2, (4, 1), (16, 8)),
        Mma(3, (4, 1), (64, 64)),
        DotOperand(Mma(2, (2, 2), (16, 8)), 0, 2),
        DotOperand(Mma(2, (2, 2), (16, 8)), 1, 2),
    ]
    for src in layouts:
        for dst in layouts:
            plan = check(src.to_linear(shape), dst.to_linear(shape), bits)
            if isinstance(plan, Shared):
                assert (plan.store_conflicts, plan.load_conflicts) == (0, 0), (src, dst)


def test_slices_of_one_parent():
    parent = Blocked((1, 4), (4, 8), (2, 2), (1, 0))
    rows = Slice(parent, 1).to_linear((64,))
    columns = Slice(parent, 0).to_linear((64,))
    plan = check(rows, columns, 32)
    assert isinstance(plan, Shared) and plan.skip_warps == 1 and plan.bytes == 256
    check(columns, rows, 32)
    check(rows, default_blocked((64,), 4).to_linear((64,)), 16)


def test_a_warp_keeps_to_itself_where_it_can():
    shape = (64, 64)
    src = Blocked((1, 8), (4, 8), (4, 1), (1, 0)).to_linear(shape)
    dst = Blocked((4, 1), (1, 32), (4, 1), (1, 0)).to_linear(shape)
    plan = check(src, dst, 32)
    assert isinstance(plan, Shared) and plan.warp_local and plan.skip_warps == 0


def test_large_tiles_repeat_through_a_small_buffer():
    shape = (128, 256)
    src = Mma(3, (4, 1), (64, 256)).to_linear(shape)
    dst = Blocked((1, 4), (1, 32), (4, 1), (1, 0)).to_linear(shape)
    plan = check(src, dst, 32)
    assert isinstance(plan, Shared)
    assert plan.bytes == 32 * 1024 and len(plan.repetitions) == 4
    assert (plan.store_conflicts, plan.load_conflicts) == (0, 0)


def test_other_tiles_are_refused():
    a = default_blocked((64,), 4).to_linear((64,))
    with pytest.raises(ValueError, match="different tiles"):
        plan_conversion(a, default_blocked((128,), 4).to_linear((128,)), 32)
    with pytest.raises(ValueError, match="thread counts"):
        plan_conversion(a, default_blocked((64,), 2).to_linear((64,)), 32)
    with pytest.raises(ValueError, match="1 bits"):
        plan_conversion(a, a, 1)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_one_side_is_vectorised_where_both_cannot_be(bits):
    rows = Blocked((1, 8), (4, 8), (4, 1), (1, 0)).to_linear((64, 64))
    columns = Blocked((8, 1), (8, 4), (1, 4), (0, 1)).to_linear((64, 64))
    plan = check(rows, columns, bits)
    assert isinstance(plan, Shared)
    assert (plan.vec_store, plan.vec_load) == (128 // bits, 1)
    assert (plan.store_conflicts, plan.load_conflicts) == (0, 0)


@pytest.mark.parametrize("seed", range(8))
def test_split_offsets(seed):
    rng = random.Random(seed)
    columns = [rng.randrange(256) for _ in range(10)]
    layout = from_columns(
        {"register": columns[:3], "lane": columns[3:8], "warp": columns[8:]},
        (("offset", 256),),
        rng.randrange(256),
    )
    for register, (xor, add) in enumerate(split_offsets(layout)):
        for lane, warp in [(0, 0), (7, 1), (31, 3), (20, 2)]:
            base = layout.apply(register=0, lane=lane, warp=warp)[0] ^ layout.flip_bits
            assert (base ^ xor) + add == layout.apply(register=register, lane=lane, warp=warp)[0]


@pytest.mark.parametrize(
    ("registers", "lanes", "bits", "access"),
    [
        ([1, 2, 4], [8, 16], 32, VectorAccess(4, (0, 1, 2, 3, 4, 5, 6, 7))),
        ([4, 1, 2], [8, 16], 16, VectorAccess(8, (0, 2, 4, 6, 1, 3, 5, 7))),
        ([4, 1, 2], [8, 16], 64, VectorAccess(2, (0, 2, 1, 3, 4, 6, 5, 7))),
        ([1, 2], [4 + 2, 8], 32, VectorAccess(2, (0, 1, 2, 3))),
        ([2, 4], [1, 8], 32, VectorAccess(1, (0, 1, 2, 3))),
        ([], [1, 2], 32, VectorAccess(1, (0,))),
    ],
)
def test_vector_width(registers, lanes, bits, access):
    layout = from_columns({"register": registers, "lane": lanes}, (("offset", 32),))
    assert vector_width(layout, bits) == access


def test_vector_width_respects_a_limit_and_a_flip():
    layout = from_columns({"register": [1, 2, 4], "lane": [8]}, (("offset", 16),))
    assert vector_width(layout, 16, max_bytes=4).width == 2
    assert vector_width(layout.flipped((2,)), 16).width == 2
    assert vector_width(layout.flipped((8,)), 16).width == 8
