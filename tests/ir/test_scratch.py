"""How much shared memory ops need, and what their plans promise."""

import pytest

from tilec.ir import ops
from tilec.ir.core import Block, Builder
from tilec.ir.fragment import fragment
from tilec.ir.layouts import Blocked, Slice
from tilec.ir.scratch import move_plan, move_scratch, reduce_plan, scratch_bytes
from tilec.ir.types import Tensor, f32, i8, i32

ROWS = Blocked((1, 4), (4, 8), (2, 1), (1, 0))
FLAT = Blocked((4,), (32,), (4,), (0,))


def reduce(t: Tensor, axis: int) -> ops.Reduce:
    body = Block([t.element, t.element])
    inner = Builder(body)
    inner.insert(ops.Yield([inner.emit(ops.Add(*body.args))]))
    source = Block([t])
    return ops.Reduce(source.args, axis=axis, body=body)


def test_a_reduction_within_warps_needs_none() -> None:
    assert scratch_bytes(reduce(Tensor((16, 32), f32, ROWS), 1)) == 0


def test_a_reduction_across_warps_keeps_one_value_a_warp() -> None:
    assert scratch_bytes(reduce(Tensor((1024,), f32, FLAT), 0)) == 16
    assert scratch_bytes(reduce(Tensor((16, 32), f32, ROWS), 0)) == 32 * 2 * 4
    assert scratch_bytes(reduce(Tensor((16, 48), i8, ROWS), 0)) == 48 * 2


def test_reduce_plan_lists_members_by_coordinate() -> None:
    plan = reduce_plan(Tensor((8, 96), i32, ROWS), 1)
    assert plan.lanes == (0, 1, 2) and plan.partials.warps == ()
    assert plan.members == (tuple(range(12)),) and plan.partials.elements == 8


@pytest.mark.parametrize("shape", [(4, 16, 5), (8, 6, 12), (2, 8, 3), (16, 10, 7), (64, 17, 4)])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("layout", [Blocked((1, 1, 1), (2, 16, 1), (2, 1, 1), (2, 1, 0)),
                                    Blocked((1, 2, 1), (4, 2, 4), (1, 2, 1), (0, 2, 1))])
def test_reduce_plan_gives_every_result_one_place(shape, axis, layout) -> None:
    """The place of a register plus the XOR of the places of the thread's bits."""
    plan, frag = reduce_plan(Tensor(shape, f32, layout), axis), fragment(shape, layout)
    places: dict[tuple[int, ...], int] = {}
    for thread in range(64):
        at = 0
        for bit, place in enumerate(plan.partials.thread_places):
            at ^= place if thread >> bit & 1 else 0
        for registers, base in zip(plan.members, plan.partials.places, strict=True):
            result = list(frag.coords(registers[0], thread % 32, thread // 32))
            del result[axis]
            assert places.setdefault(tuple(result), base + at) == base + at
    assert sorted(places.values()) == list(range(plan.partials.elements))


@pytest.mark.parametrize("other", [Blocked((4, 1), (8, 4), (1, 2), (0, 1)),
                                   Blocked((1, 1), (32, 1), (2, 1), (1, 0))])
def test_conversions_fit_their_tile(other: Blocked) -> None:
    for shape in ((32, 32), (48, 32), (17, 8)):
        src, dst = Tensor(shape, f32, ROWS), Tensor(shape, f32, other)
        assert move_scratch(src, src) == 0
        assert 0 <= move_scratch(src, dst) <= 4 * 32 * 64


def test_odd_factors_that_move_go_through_row_major_memory() -> None:
    src = Tensor((6, 32), f32, ROWS)
    warps2 = Blocked((4,), (32,), (2,), (0,))
    assert move_plan(src, Tensor((192,), f32, warps2)).plan is not None
    moved = Tensor((2, 96), f32, ROWS)
    assert move_plan(src, moved).plan is None and move_scratch(src, moved) == 192 * 4


def test_slices_are_free_to_expand() -> None:
    t = Tensor((32,), f32, Slice(ROWS, 0))
    block = Block([t])
    op = ops.ExpandDims(block.args[0], axis=0)
    assert scratch_bytes(op) == 0
