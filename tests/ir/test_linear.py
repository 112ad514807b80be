"""Linear layouts against brute force over all indices."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from tilec.ir.f2 import Span, complement, log2_exact
from tilec.ir.linear import (
    LinearLayout,
    from_bases,
    from_columns,
    identity1d,
    identity_of,
    tile_outs,
    zeros1d,
)

OUTS = (("dim0", 8), ("dim1", 16))


def random_layout(rng: random.Random, ins: dict[str, int], outs=OUTS) -> LinearLayout:
    bits = sum(log2_exact(n) for _, n in outs)
    columns = {n: [rng.randrange(1 << bits) for _ in range(k)] for n, k in ins.items()}
    return from_columns(columns, outs, rng.randrange(1 << bits))


def random_bijection(rng: random.Random, outs=OUTS, parts=("a", "b")) -> LinearLayout:
    bits = sum(log2_exact(n) for _, n in outs)
    while True:
        columns = [rng.randrange(1, 1 << bits) for _ in range(bits)]
        if Span(columns).rank == bits:
            cut = rng.randint(0, bits)
            named = {parts[0]: columns[:cut], parts[1]: columns[cut:]}
            return from_columns(named, outs, rng.randrange(1 << bits))


def indices(layout: LinearLayout):
    names = layout.in_names
    for values in product(*(range(n) for _, n in layout.in_sizes)):
        yield dict(zip(names, values, strict=True))


def test_span_solves_and_counts():
    span = Span([0b011, 0b101, 0b110, 0b1000])
    assert span.rank == 3
    assert span.solve(0b110) == 0b011
    assert span.solve(0b1011) == 0b1001
    assert 0b001 not in span and span.solve(0b001) is None
    assert complement([0b011, 0b100], 4) == (0b0001, 0b1000)
    assert log2_exact(64) == 6
    for bad in (0, -4, 12):
        with pytest.raises(ValueError, match="power of two"):
            log2_exact(bad)


def test_apply_is_the_xor_of_bases_and_flip():
    layout = from_bases({"r": [(0, 1), (4, 2)], "l": [(1, 0)]}, OUTS, flip=(0, 8))
    assert layout.apply(r=0, l=0) == (0, 8)
    assert layout.apply(r=3, l=1) == (5, 11)
    assert layout.apply(r=1) == (0, 9)
    assert layout.bases == (((0, 1), (4, 2)), ((1, 0),))
    assert layout.flip == (0, 8)
    assert layout.in_size("r") == 4 and layout.out_size("dim1") == 16
    with pytest.raises(ValueError, match="out of range"):
        layout.apply(r=4)


def test_apply_array_agrees_with_apply():
    layout = random_layout(random.Random(0), {"r": 3, "l": 5})
    r, lane = np.ix_(np.arange(8), np.arange(32))
    d0, d1 = layout.apply_array(r=r, l=lane)
    for i, j in product(range(8), range(32)):
        assert (d0[i, j], d1[i, j]) == layout.apply(r=i, l=j)


def test_from_bases_refuses_what_lies_outside():
    with pytest.raises(ValueError, match=r"\(0, 16\) lies outside dim1 = 16"):
        from_bases({"r": [(0, 16)]}, OUTS)
    with pytest.raises(ValueError, match="needs 2 coordinates"):
        from_bases({"r": [(1,)]}, OUTS)
    with pytest.raises(ValueError, match="12 is not a power of two"):
        from_bases({"r": []}, (("dim0", 12),))


def test_equality_and_hash_are_by_value():
    a = from_bases({"r": [(0, 1)]}, OUTS)
    b = from_columns({"r": [1]}, OUTS)
    assert a == b and hash(a) == hash(b)
    assert a != a.flipped((1, 0)) and a.flipped((1, 0)).flipped((1, 0)) == a
    assert a != from_columns({"q": [1]}, OUTS)
    assert a != 1


def test_identity_and_zeros():
    assert [identity1d(8, "a", "b").apply(a=i) for i in range(8)] == [(i,) for i in range(8)]
    zeros = zeros1d(4, "a", "b", 2)
    assert {zeros.apply(a=i) for i in range(4)} == {(0,)}
    assert zeros.out_sizes == (("b", 2),) and not zeros.is_surjective
    assert identity_of(OUTS).apply(dim0=5, dim1=9) == (5, 9)


def test_product_shifts_shared_outputs_and_inputs():
    block = identity1d(4, "r", "dim1") * identity1d(8, "l", "dim1") * identity1d(2, "l", "dim0")
    assert block.out_sizes == (("dim1", 32), ("dim0", 2))
    for r, lane in product(range(4), range(16)):
        assert block.apply(r=r, l=lane) == ((lane % 8) * 4 + r, lane // 8)


def test_product_then_divide_gives_the_factor_back():
    rng = random.Random(1)
    a = random_layout(rng, {"r": 2, "l": 1}, (("dim0", 4), ("dim1", 2)))
    b = random_layout(rng, {"r": 1, "l": 2}, (("dim0", 2), ("dim1", 8)))
    both = a * b
    assert both.divide_left(a) == b
    assert both.divide_right(b) == a
    assert both.divide_left(identity1d(2, "q", "dim0")) is None
    assert both.divide_left(a.flipped((1, 0))) is None
    crossed = from_columns({"r": [3, 2]}, (("o", 4),))
    assert crossed.divide_left(identity1d(2, "r", "o")) is None


def test_compose_is_application_twice():
    rng = random.Random(2)
    inner, outer = random_layout(rng, {"r": 3, "l": 3}), random_layout(rng, {"dim1": 4, "dim0": 3})
    both = inner.compose(outer)
    for index in indices(inner):
        d0, d1 = inner.apply(**index)
        assert both.apply(**index) == outer.apply(dim0=d0, dim1=d1)
    with pytest.raises(ValueError, match="outer takes fewer"):
        inner.compose(random_layout(rng, {"dim0": 3, "dim1": 3}))
    with pytest.raises(ValueError, match="names"):
        inner.compose(random_layout(rng, {"dim1": 4, "x": 3}))


@pytest.mark.parametrize("seed", range(20))
def test_inverse_undoes(seed):
    layout = random_bijection(random.Random(seed))
    inverse = layout.invert()
    assert inverse.out_sizes == layout.in_sizes
    for index in indices(layout):
        d0, d1 = layout.apply(**index)
        assert inverse.apply(dim0=d0, dim1=d1) == tuple(index.values())
    assert inverse.invert() == layout


def test_only_bijections_invert():
    with pytest.raises(ValueError, match="bijective"):
        from_bases({"r": [(0, 1)]}, OUTS).invert()
    with pytest.raises(ValueError, match="bijective"):
        zeros1d(2, "a", "b").invert()


@pytest.mark.parametrize("seed", range(20))
def test_invert_and_compose_finds_the_same_element(seed):
    rng = random.Random(seed)
    src = random_bijection(rng).with_columns("c", [rng.randrange(128)])
    dst = random_layout(rng, {"x": 3, "c": 2})
    found = dst.invert_and_compose(src)
    assert found.out_sizes == src.in_sizes
    for index in indices(dst):
        where = dict(zip(src.in_names, found.apply(**index), strict=True))
        assert src.apply(**where) == dst.apply(**index)


def test_invert_and_compose_keeps_equal_broadcasts_in_place():
    src = from_columns({"r": [1, 2], "w": [0, 4]}, (("o", 8),))
    dst = from_columns({"r": [2, 1], "w": [0, 4]}, (("o", 8),))
    found = dst.invert_and_compose(src)
    assert found.apply(r=1, w=3) == (2, 3)
    assert found.is_identity_on("w") and not found.is_identity_on("r")


def test_invert_and_compose_needs_reachable_elements():
    small = from_columns({"r": [1]}, (("o", 4),))
    with pytest.raises(ValueError, match="does not reach"):
        identity1d(4, "x", "o").invert_and_compose(small)
    with pytest.raises(ValueError, match="outputs differ"):
        identity1d(8, "x", "o").invert_and_compose(small)


def test_is_identity_on_wants_a_decoupled_dimension():
    own = identity_of((("w", 4), ("l", 2)))
    assert own.is_identity_on("w") and own.is_identity_on("absent")
    mixed = from_bases({"w": [(1, 0), (2, 0)], "l": [(1, 1)]}, (("w", 4), ("l", 2)))
    assert not mixed.is_identity_on("w")
    assert not own.flipped((1, 0)).is_identity_on("w")


def test_ranks_and_free_variables():
    layout = from_columns({"r": [1, 2], "l": [3, 4, 0]}, (("o", 8),))
    assert layout.rank == 3 and layout.is_surjective and not layout.is_injective
    assert layout.free_variable_masks == {"r": 0, "l": 0b101}


def test_edits_of_outputs():
    layout = random_layout(random.Random(3), {"r": 4, "l": 3})
    flat = layout.flatten_outs()
    reshaped = layout.reshape_outs(tile_outs((4, 2, 16)))
    swapped = layout.transpose_outs(["dim1", "dim0"])
    only = layout.sublayout(["l"], ["dim1"])
    for index in indices(layout):
        d0, d1 = layout.apply(**index)
        assert flat.apply(**index) == (d0 * 16 + d1,)
        assert reshaped.apply(**index) == (d0 // 2, d0 % 2, d1)
        assert swapped.apply(**index) == (d1, d0)
        if index["r"] == 0:
            assert only.apply(l=index["l"]) == (d1,)
    assert layout.rename_outs({"dim0": "row"}).out_names == ("row", "dim1")
    with pytest.raises(ValueError, match="regroup"):
        layout.reshape_outs(tile_outs((4, 4)))
    with pytest.raises(ValueError, match="output names"):
        layout.transpose_outs(["dim0"])


def test_edits_of_inputs():
    layout = random_layout(random.Random(4), {"r": 2, "l": 3})
    assert layout.transpose_ins(["l", "r"]).in_names == ("l", "r")
    zeros = from_columns({"r": [0, 1, 0], "l": [0]}, (("o", 2),))
    assert zeros.without_zero_bases("r").columns == ((1,), (0,))


def test_text_lists_the_bases():
    layout = from_bases({"register": [(0, 1)], "lane": []}, OUTS, flip=(1, 0))
    assert str(layout) == "register: (0, 1)\nlane: -\nflip: (1, 0)\n-> dim0[8], dim1[16]"
