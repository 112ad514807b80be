"""ldmatrix plans carried out lane by lane, as the PTX manual describes the instruction."""

import random

import pytest

from tests.ir.test_buffers import SHAPES, SIZES, writer
from tilec.ir.buffers import access_map
from tilec.ir.fragment import fragment, shared_tile
from tilec.ir.layouts import Blocked, DotOperand, Mma, RegisterLayout, SwizzledShared
from tilec.ir.linear import LinearLayout, from_columns
from tilec.ir.matrix import MatrixPlan, find_ldmatrix


def carried_out(plan: MatrixPlan, bits: int, lane: int, warp: int) -> dict[int, int]:
    """The element offset that lands in each register of one lane."""
    per_row = 128 // bits
    found: dict[int, int] = {}
    for first in range(0, len(plan.order), plan.per_instruction):
        registers = plan.order[first:first + plan.per_instruction]
        rows = [plan.address.apply_packed(register=registers[0], lane=giver, warp=warp)
                for giver in range(8 * plan.count)]
        assert not any(row % per_row for row in rows), "a row is not aligned"
        for i, register in enumerate(registers):
            matrix, inside = divmod(i, plan.per_word)
            if plan.trans:
                row, column = 2 * (lane % 4) + inside, lane // 4
            else:
                row, column = lane // 4, plan.per_word * (lane % 4) + inside
            found[register] = rows[8 * matrix + row] + column
    return found


def check(access: LinearLayout, bits: int) -> bool:
    plan = find_ldmatrix(access, bits)
    if plan is None:
        return False
    for warp in {0, access.in_size("warp") - 1}:
        for lane in (0, 1, 2, 5, 11, 18, 31):
            want = {r: access.apply_packed(register=r, lane=lane, warp=warp) for r in plan.order}
            assert carried_out(plan, bits, lane, warp) == want
    held = {access.apply_packed(register=r) for r in range(access.in_size("register"))}
    assert {access.apply_packed(register=r) for r in plan.order} == held
    assert len(plan.order) == len(held)
    return True


LAYOUTS: list[RegisterLayout] = [
    Mma(2, (2, 2), (16, 8)), Mma(2, (1, 4), (8, 8)), Blocked((1, 2), (8, 4), (2, 2), (1, 0)),
    Blocked((2, 1), (4, 8), (2, 2), (0, 1)),
    *(DotOperand(Mma(2, warps, (16, 8)), i, k) for warps in ((2, 2), (1, 4), (4, 1))
      for i in (0, 1) for k in (1, 2, 4))]


@pytest.mark.parametrize("shape", SHAPES[1::2])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.sample(4)
def test_plans_do_what_the_map_says(shape: tuple[int, int], size: int) -> None:
    found = 0
    for layout in [*LAYOUTS, writer(shape, size, (1, 0), 4)]:
        for order in ((1, 0), (0, 1)):
            for vec, rows, phases in ((1, 1, 1), (16 // size, 1, 2), (16 // size, 2, 4), (1, 1, 4)):
                shared = SwizzledShared(vec, rows, phases, order)
                access = access_map(fragment(shape, layout), shared_tile(shape, shared))
                found += check(access, 8 * size)
    assert (found > 0) == (size < 8)


@pytest.mark.parametrize("seed", range(40))
def test_random_maps(seed: int) -> None:
    """Maps made of a matrix's own columns and random ones above them, registers in any order."""
    rng = random.Random(seed)
    bits, trans = rng.choice([(8, False), (16, False), (32, False), (16, True)])
    row = 128 // bits
    unit, inside = row // 4, [1 << i for i in range((row // 4).bit_length() - 1)]
    free = [row << i for i in range(10)]
    rng.shuffle(free)
    registers = [free.pop() for _ in range(rng.randint(0, 3))]
    if trans:
        registers.append(free.pop())
        lanes = [free.pop(), free.pop(), 1, 2, 4]
    else:
        registers += inside
        lanes = [unit, 2 * unit, *(free.pop() for _ in range(3))]
    rng.shuffle(registers)
    if rng.random() < 0.3:
        registers.insert(rng.randint(0, len(registers)), 0)
    warps = [rng.choice([free[0], free[1] | row, 0])]
    access = from_columns({"register": registers, "lane": lanes, "warp": warps},
                          [("offset", row << 10)])
    assert check(access, bits)
    torn = from_columns({"register": registers, "lane": lanes, "warp": [warps[0] | 1]},
                        [("offset", row << 10)])
    assert find_ldmatrix(torn, bits) is None
