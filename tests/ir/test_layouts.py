"""Named layouts: element positions against the PTX ISA's fragment tables, text, edits, errors."""

from __future__ import annotations

import random
from itertools import permutations, product

import pytest

from tilec.ir.layouts import (
    Blocked,
    DotOperand,
    Layout,
    Linear,
    Mma,
    NvmmaShared,
    SharedLinear,
    Slice,
    SwizzledShared,
    default_blocked,
    expand,
    join,
    layout_from_fields,
    linear_layout,
    named,
    reshape,
    same_layout,
    slice_of,
    split,
    transpose,
)

B1 = Blocked((4,), (32,), (4,), (0,))
B2 = Blocked((1, 4), (4, 8), (2, 2), (1, 0))


def coords(layout: Layout, shape, register: int, lane: int, warp: int = 0):
    return layout.to_linear(shape).apply(register=register, lane=lane, warp=warp)


def test_blocked_places_elements():
    for register, lane, warp in product(range(4), range(32), range(4)):
        assert coords(B1, (512,), register, lane, warp) == (warp * 128 + lane * 4 + register,)
        at = (lane // 8 + 4 * (warp // 2), (lane % 8) * 4 + register + 32 * (warp % 2))
        assert coords(B2, (8, 64), register, lane, warp) == at


def test_larger_tiles_repeat_in_registers_and_smaller_ones_hold_copies():
    big = B1.to_linear((2048,))
    assert big.bases_of("register") == ((1,), (2,), (512,), (1024,))
    small = B1.to_linear((64,))
    assert small.bases_of("lane") == ((4,), (8,), (16,), (32,), (0,))
    assert small.bases_of("warp") == ((0,), (0,))
    assert B1.to_linear((2,)).bases_of("register") == ((1,),)


def test_slice_drops_a_dimension():
    rows = Slice(B2, 1)
    assert rows.rank == 1 and rows.num_warps == 4
    assert rows.to_linear((8,)).bases_of("lane") == ((0,), (0,), (0,), (1,), (2,))
    assert rows.to_linear((8,)).bases_of("register") == ()
    columns = Slice(B2, 0)
    assert columns.to_linear((64,)).bases_of("register") == ((1,), (2,))
    assert Slice(columns, 0).rank == 0 and Slice(columns, 0).to_linear(()).out_bits == 0


def test_mma_v2_accumulator():
    # m16n8: c0, c1 in row g, c2, c3 in row g + 8, columns 2t and 2t + 1.
    layout = Mma(2, (1, 1), (16, 8))
    for lane, c in product(range(32), range(4)):
        g, t = divmod(lane, 4)
        assert coords(layout, (16, 8), c, lane) == (g + 8 * (c // 2), 2 * t + c % 2)
    # Warps run along n first.
    assert Mma(2, (2, 2), (16, 8)).to_linear((32, 16)).bases_of("warp") == ((0, 8), (16, 0))


def test_mma_v2_double_accumulator():
    layout = Mma(2, (1, 1), (8, 8))
    for lane, c in product(range(32), range(2)):
        assert coords(layout, (8, 8), c, lane) == (lane // 4, 2 * (lane % 4) + c)


@pytest.mark.parametrize("n", [8, 32, 64, 256])
def test_mma_v3_accumulator(n):
    layout = Mma(3, (4, 1), (64, n))
    linear = layout.to_linear((64, n))
    assert linear.in_size("register") == n // 2
    for register, lane, warp in product(range(n // 2), range(0, 32, 5), range(4)):
        g, t = divmod(lane, 4)
        row = 16 * warp + g + 8 * ((register // 2) % 2)
        column = 8 * (register // 4) + 2 * t + register % 2
        assert linear.apply(register=register, lane=lane, warp=warp) == (row, column)


def test_mma_v3_warps_run_along_m_first():
    assert Mma(3, (4, 2), (64, 32)).to_linear((64, 64)).bases_of("warp") == (
        (16, 0), (32, 0), (0, 32),
    )  # fmt: skip
    # n = 160 keeps its power-of-two part, 32.
    assert Mma(3, (4, 1), (64, 160)).to_linear((64, 32)).in_size("register") == 16


@pytest.mark.parametrize(("k_width", "k"), [(1, 8), (2, 16), (4, 32)])
def test_dot_operand_a(k_width, k):
    layout = DotOperand(Mma(2, (1, 1), (16, 8)), 0, k_width)
    for lane, register in product(range(32), range(4 * k_width)):
        g, t = divmod(lane, 4)
        part, word = register % k_width, register // k_width
        at = (g + 8 * (word % 2), t * k_width + part + 4 * k_width * (word // 2))
        assert coords(layout, (16, k), register, lane) == at


@pytest.mark.parametrize(("k_width", "k"), [(1, 8), (2, 16), (4, 32)])
def test_dot_operand_b(k_width, k):
    layout = DotOperand(Mma(2, (1, 1), (16, 8)), 1, k_width)
    for lane, register in product(range(32), range(2 * k_width)):
        g, t = divmod(lane, 4)
        part, word = register % k_width, register // k_width
        at = (t * k_width + part + 4 * k_width * word, g)
        assert coords(layout, (k, 8), register, lane) == at


def test_dot_operands_repeat_along_k_first_and_share_warps():
    mma = Mma(2, (2, 2), (16, 8))
    a = DotOperand(mma, 0, 2).to_linear((64, 32))
    assert a.bases_of("register") == ((0, 1), (8, 0), (0, 8), (0, 16), (32, 0))
    assert a.bases_of("warp") == ((0, 0), (16, 0))
    b = DotOperand(mma, 1, 2).to_linear((32, 32))
    assert b.bases_of("warp") == ((0, 8), (0, 0))


def test_wgmma_register_operand_equals_converted_accumulator():
    mma = Mma(3, (4, 1), (64, 64))
    assert same_layout(DotOperand(mma, 0, 2), mma, (64, 64))


def test_dot_operand_of_a_blocked_parent_holds_all_of_k():
    parent = Blocked((2, 2), (4, 8), (2, 2), (1, 0))
    a = DotOperand(parent, 0, 1).to_linear((16, 8))
    assert all(basis[1] == 0 for basis in a.bases_of("lane") + a.bases_of("warp"))
    assert {basis[1] for basis in a.bases_of("register")} == {0, 1, 2, 4}
    assert a.is_surjective


def test_batched_mma_covers_the_batch():
    layout = Mma(2, (2, 1, 2), (16, 8))
    assert layout.to_linear((4, 16, 16)).is_surjective
    assert layout.num_warps == 4


def test_swizzled_shared():
    layout = SwizzledShared(8, 2, 4, (1, 0)).to_linear((16, 32)).invert()
    for row, column in product(range(16), range(32)):
        swizzled = column ^ (8 * ((row // 2) % 4))
        assert layout.apply(dim0=row, dim1=column) == (row * 32 + swizzled,)


@pytest.mark.parametrize(("swizzle", "bits"), list(product((0, 32, 64, 128), (8, 16, 32))))
@pytest.mark.parametrize("transposed", [False, True])
def test_nvmma_shared_is_the_hardware_swizzle(swizzle, bits, transposed):
    layout = NvmmaShared(swizzle, transposed, bits)
    shape = (128, 32) if transposed else (32, 128)
    linear = layout.to_linear(shape).invert()
    rows, panel, size = 32, layout.panel, bits // 8
    # The byte-address XOR of CuTe's Swizzle<B, 4, 3>: bits [4, 4+B) ^= bits [7, 7+B).
    width = {0: 0, 32: 1, 64: 2, 128: 3}[swizzle]
    for row, column in product(range(rows), range(128)):
        plain = (column // panel) * rows * panel * size + row * panel * size
        plain += (column % panel) * size
        address = plain ^ ((plain >> 7 & ((1 << width) - 1)) << 4)
        at = {"dim0": column, "dim1": row} if transposed else {"dim0": row, "dim1": column}
        assert linear.apply(**at)[0] * size == address


def test_shared_layouts_are_one_to_one():
    for layout in (
        SwizzledShared(4, 1, 8, (0, 1)),
        NvmmaShared(64, False, 32),
        SharedLinear(tuple((1 << i, 0) for i in range(5)) + tuple((0, 1 << i) for i in range(5))),
    ):
        assert layout.to_linear((32, 32)).is_bijective
    with pytest.raises(ValueError, match="at least 64 elements along dim 1"):
        NvmmaShared(128, False, 16).to_linear((64, 32))
    with pytest.raises(ValueError, match="one-to-one"):
        SharedLinear(((1,), (1,))).to_linear((4,))
    with pytest.raises(ValueError, match="beyond the shape"):
        SharedLinear(((1,), (4,))).to_linear((4,))


EXAMPLES = {
    B1: "blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>",
    Slice(Mma(2, (4, 1), (16, 8)), 1): "slice<{parent = nvidia_mma<{version = 2, "
    "warpsPerCTA = [4, 1], instrShape = [16, 8]}>, dim = 1}>",
    DotOperand(Mma(2, (4, 1), (16, 8)), 0, 2): "dot_operand<{parent = nvidia_mma<{version = 2, "
    "warpsPerCTA = [4, 1], instrShape = [16, 8]}>, opIndex = 0, kWidth = 2}>",
    NvmmaShared(128, False, 16): "nvmma_shared<{swizzleBytes = 128, transposed = false, "
    "elementBits = 16}>",
    SwizzledShared(8, 1, 8, (1, 0)): "swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, "
    "order = [1, 0]}>",
    Linear(((1,),), ((2,), (4,), (8,), (0,), (0,)), ()): "linear<{register = [[1]], "
    "lane = [[2], [4], [8], [0], [0]], warp = []}>",
    SharedLinear(((1,), (2,))): "shared_linear<{offset = [[1], [2]]}>",
}


@pytest.mark.parametrize("layout", EXAMPLES, ids=lambda layout: layout.name)
def test_text_and_back(layout):
    assert str(layout) == EXAMPLES[layout]
    fields = {}
    for item in layout.__dataclass_fields__:
        if item != "name":
            first, *rest = item.split("_")
            camel = first + "".join("CTA" if w == "cta" else w.capitalize() for w in rest)
            fields[camel] = getattr(layout, item)
    again = layout_from_fields(layout.name, fields)
    assert again == layout and hash(again) == hash(layout)
    assert list(fields) == [f for f in fields if f + " = " in EXAMPLES[layout]]


def test_layouts_of_different_kinds_differ():
    assert Slice(B2, 0) != Slice(B2, 1)
    assert B1 != Linear((), ((1,), (2,), (4,), (8,), (16,)), ())
    assert B1 != "blocked"
    assert len({B1, Blocked((4,), (32,), (4,), (0,))}) == 1


GOOD = {"sizePerThread": (4,), "threadsPerWarp": (32,), "warpsPerCTA": (4,), "order": (0,)}


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("blokced", GOOD, "no layout is called blokced; there are blocked, slice"),
        ("blocked", {"order": (0,)}, "sizePerThread is missing"),
        ("blocked", GOOD | {"vec": 1}, "vec is not one"),
        ("blocked", GOOD | {"order": 0}, "order must be a list of integers, got 0"),
        ("blocked", GOOD | {"order": (1,)}, r"order must list the dimensions 0..0 once, got \[1\]"),
        ("blocked", GOOD | {"sizePerThread": (3,)}, "sizePerThread must hold powers of two, got 3"),
        ("blocked", GOOD | {"threadsPerWarp": (16,)}, "threadsPerWarp must multiply to 32"),
        ("blocked", GOOD | {"warpsPerCTA": (2, 2)}, "one entry per dimension"),
        ("slice", {"parent": 1, "dim": 0}, "parent must be a layout, got 1"),
        ("slice", {"parent": B1, "dim": 1}, "dim 1 is outside the parent, of rank 1"),
        ("slice", {"parent": B1, "dim": True}, "dim must be an integer"),
        ("slice", {"parent": SwizzledShared(1, 1, 1, (0,)), "dim": 0}, "must be a register layout"),
        ("nvidia_mma", {"version": 4, "warpsPerCTA": (4, 1), "instrShape": (16, 8)}, "2 or 3"),
        ("nvidia_mma", {"version": 2, "warpsPerCTA": (4, 1), "instrShape": (64, 8)}, "n 8, got 64"),
        ("nvidia_mma", {"version": 3, "warpsPerCTA": (4, 1), "instrShape": (64, 12)}, "8, 16..256"),
        ("nvidia_mma", {"version": 3, "warpsPerCTA": (2, 2), "instrShape": (64, 8)}, "multiple of"),
        ("nvidia_mma", {"version": 2, "warpsPerCTA": (4,), "instrShape": (16, 8)}, "at least two"),
        ("dot_operand", {"parent": B1, "opIndex": 0, "kWidth": 2}, "of rank 2 or more"),
        ("dot_operand", {"parent": B2, "opIndex": 2, "kWidth": 2}, "must be 0 or 1"),
        (
            "dot_operand",
            {"parent": Mma(3, (4, 1), (64, 8)), "opIndex": 1, "kWidth": 2},
            "from shared memory",
        ),
        ("nvmma_shared", {"swizzleBytes": 16, "transposed": False, "elementBits": 16}, "got 16"),
        ("nvmma_shared", {"swizzleBytes": 32, "transposed": 0, "elementBits": 16}, "true or false"),
        ("nvmma_shared", {"swizzleBytes": 32, "transposed": False, "elementBits": 4}, "got 4"),
        ("linear", {"register": (), "lane": (), "warp": ()}, "lane needs 5 bases, got 0"),
        ("linear", {"register": ((3,),), "lane": ((0,),) * 5, "warp": ()}, "one set bit"),
        ("linear", {"register": ((0,),), "lane": ((0,),) * 5, "warp": ()}, "must not be zero"),
        ("linear", {"register": ((2,),), "lane": ((0,),) * 5, "warp": ()}, "holes along dim 0"),
        ("linear", {"register": ((1,),), "lane": ((1,),) * 5, "warp": ()}, "occurs twice"),
        ("linear", {"register": ((1, 0),), "lane": ((0,),) * 5, "warp": ()}, "needs 1 coordinates"),
        ("linear", {"register": (1,), "lane": ((0,),) * 5, "warp": ()}, "list of lists"),
        ("shared_linear", {"offset": ()}, "needs bases"),
    ],
)  # fmt: skip
def test_malformed_layouts_are_refused(name, fields, message):
    with pytest.raises(ValueError, match=message):
        layout_from_fields(name, fields)


def test_shapes_must_fit():
    with pytest.raises(ValueError, match="rank 1"):
        B1.to_linear((4, 4))
    with pytest.raises(ValueError, match="power of two"):
        B1.to_linear((96,))


def test_linear_serves_other_shapes():
    layout = linear_layout(B2.to_linear((8, 64)))
    assert layout.shape == (8, 64) and layout.num_warps == 4
    for shape in [(8, 64), (16, 64), (8, 1), (1, 64), (4, 128)]:
        assert same_layout(layout, B2, shape), shape


def test_same_layout_compares_linear_forms():
    assert same_layout(
        Blocked((1,), (32,), (1,), (0,)), Slice(Blocked((1, 1), (1, 32), (1, 1), (1, 0)), 0), (32,)
    )
    assert not same_layout(B1, Blocked((2,), (32,), (4,), (0,)), (512,))
    assert not same_layout(B1, SwizzledShared(1, 1, 1, (0,)), (512,))
    assert not same_layout(B1, B2, (512,))
    assert same_layout(B1, B1, (8, 8))


SOURCES = [
    (B2, (16, 64)),
    (Blocked((2, 1), (8, 4), (1, 4), (0, 1)), (32, 32)),
    (Mma(2, (2, 2), (16, 8)), (32, 32)),
    (Slice(Blocked((1, 2, 2), (2, 4, 4), (2, 1, 2), (2, 1, 0)), 1), (8, 32)),
    (Slice(Mma(2, (2, 2), (16, 8)), 0), (64,)),
    (Blocked((1, 1, 4), (2, 4, 4), (2, 1, 2), (2, 0, 1)), (4, 8, 32)),
]


@pytest.mark.parametrize(("layout", "shape"), SOURCES)
def test_transpose_moves_coordinates(layout, shape):
    before = layout.to_linear(shape)
    for order in permutations(range(len(shape))):
        moved = transpose(layout, order, shape)
        after = moved.to_linear(tuple(shape[o] for o in order))
        for register, lane, warp in product(
            range(before.in_size("register")), (1, 14, 31), range(4)
        ):
            at = before.apply(register=register, lane=lane, warp=warp)
            assert after.apply(register=register, lane=lane, warp=warp) == tuple(
                at[o] for o in order
            )


def test_transpose_keeps_names():
    assert transpose(B2, (1, 0), (16, 64)) == Blocked((4, 1), (8, 4), (2, 2), (0, 1))
    sliced, shape = SOURCES[3]
    assert isinstance(transpose(sliced, (1, 0), shape), Slice)
    assert transpose(B2, (0, 1), (16, 64)) is B2


@pytest.mark.parametrize(("layout", "shape"), SOURCES)
def test_reshape_keeps_row_major_indices(layout, shape):
    before = layout.to_linear(shape)
    total = before.out_sizes[0][1] if len(shape) == 1 else 1 << before.out_bits
    for dst in [(total,), (2, total // 2), (4, total // 8, 2), (1, total, 1)]:
        after = reshape(layout, shape, dst).to_linear(dst)
        assert after.flatten_outs() == before.flatten_outs()


@pytest.mark.parametrize(("layout", "shape"), SOURCES)
def test_join_puts_pairs_into_threads(layout, shape):
    before, joined = layout.to_linear(shape), join(layout, shape)
    after = joined.to_linear((*shape, 2))
    for register, lane, warp in product(range(before.in_size("register")), (1, 14, 31), range(4)):
        at = before.apply(register=register, lane=lane, warp=warp)
        for i in range(2):
            assert after.apply(register=2 * register + i, lane=lane, warp=warp) == (*at, i)
    assert same_layout(split(joined, (*shape, 2)), layout, shape)
    assert same_layout(slice_of(joined, len(shape)), layout, shape)


def test_split_needs_pairs_in_threads():
    outer = Blocked((4, 1), (32, 1), (4, 1), (0, 1))  # of a pair, one is four registers on
    assert split(outer, (512, 2)) == Blocked((4,), (32,), (4,), (0,))
    for lanes, warps in (((16, 2), (4, 1)), ((32, 1), (2, 2))):
        assert split(Blocked((1, 1), lanes, warps, (1, 0)), (512, 2)) is None
    assert join(Blocked((4,), (32,), (4,), (0,)), (512,)) == \
        Blocked((4, 2), (32, 1), (4, 1), (1, 0))


def test_reshape_finds_blocked_layouts():
    row = Blocked((4,), (32,), (4,), (0,))
    assert reshape(row, (512,), (8, 64)) == Blocked((1, 4), (2, 16), (4, 1), (1, 0))
    assert isinstance(reshape(B2, (16, 64), (1024,)), Linear)
    assert reshape(B2, (16, 64), (16, 64)) is B2


def test_named_recognises_random_blocked_layouts():
    rng = random.Random(7)
    for _ in range(60):
        order = rng.choice([(1, 0), (0, 1)])
        tpw = rng.choice([(1, 32), (4, 8), (32, 1), (8, 4)])
        wpc = rng.choice([(1, 4), (2, 2), (4, 1)])
        spt = (rng.choice([1, 2]), rng.choice([1, 4]))
        linear = Blocked(spt, tpw, wpc, order).to_linear((64, 256))
        assert isinstance(named(linear), Blocked)
        assert named(linear).to_linear((64, 256)) == linear


def test_expand_undoes_slice():
    assert expand(slice_of(B2, 0), 0, (64,)) == B2
    other = expand(B1, 1, (512,))
    assert other.rank == 2 and other.to_linear((512, 1)).bases_of("lane") == tuple(
        (4 << i, 0) for i in range(5)
    )


@pytest.mark.parametrize(
    ("shape", "warps", "spt", "order", "expected"),
    [
        ((1024,), 4, None, None, Blocked((1,), (32,), (4,), (0,))),
        ((64, 128), 4, (1, 4), None, Blocked((1, 4), (1, 32), (4, 1), (1, 0))),
        ((128, 64), 4, (4, 1), (0, 1), Blocked((4, 1), (32, 1), (1, 4), (0, 1))),
        ((64, 16), 8, None, None, Blocked((1, 1), (2, 16), (8, 1), (1, 0))),
        ((4, 4), 4, None, None, Blocked((1, 1), (8, 4), (4, 1), (1, 0))),
        ((64, 96), 2, None, None, Blocked((1, 1), (1, 32), (2, 1), (1, 0))),
        ((5,), 1, None, None, Blocked((1,), (32,), (1,), (0,))),
    ],
)
def test_default_blocked(shape, warps, spt, order, expected):
    layout = default_blocked(shape, warps, spt, order)
    assert layout == expected and layout.num_warps == warps
