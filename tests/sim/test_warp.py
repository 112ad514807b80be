"""Instructions among lanes of a warp, with full, partial and differing member masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sim.harness import float_bits, integers, run_lines
from tests.sim.programs import program
from tilec import sim

Array = np.ndarray[Any, Any]
ONE = (1, 1, 1)


def reference_shuffle(mode: str, values: Array, b: int, c: int) -> tuple[list[int], list[bool]]:
    """The ISA's pseudo code, lane by lane."""
    out, inside = [], []
    segment, clamp = (c >> 8) & 31, c & 31
    for i in range(len(values)):
        lane, warp = i % 32, i // 32
        high = (lane & segment) | (clamp & ~segment & 31)
        low = lane & segment
        if mode == "up":
            j, ok = lane - b, lane - b >= high
        elif mode == "down":
            j, ok = lane + b, lane + b <= high
        elif mode == "bfly":
            j, ok = lane ^ b, (lane ^ b) <= high
        else:
            j = low | (b & ~segment & 31)
            ok = j <= high
        out.append(int(values[warp * 32 + (j if ok else lane)]))
        inside.append(ok)
    return out, inside


@pytest.mark.parametrize("c", [31, 0x1C1F, 0x181F, 0x1007, 0])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffle(mode: str, c: int) -> None:
    values = integers(32, 1)
    for b in (0, 1, 3, 8, 16, 31):
        got = run_lines(f"shfl.sync.{mode}.b32 %d|%e, %a, {b}, {c}, -1;", ["b32", "pred"],
                        [("b32", values)])  # fmt: skip
        want, inside = reference_shuffle(mode, values, b, c)
        assert got[0].tolist() == want
        assert got[1].astype(bool).tolist() == inside


def test_shuffle_by_register() -> None:
    values, index = integers(32, 2), integers(32, 3)
    (got,) = run_lines("shfl.sync.idx.b32 %d, %a, %b, 31, 0xFFFFFFFF;", ["b32"],
                       [("b32", values), ("b32", index)])  # fmt: skip
    lane = np.arange(256)
    assert np.array_equal(got, values[lane // 32 * 32 + index % 32])


def test_vote() -> None:
    flags = np.random.default_rng(0).integers(0, 2, 256).astype(np.uint8)
    flags[:32], flags[32:64] = 1, 0
    warps = flags.reshape(8, 32)
    inputs = [("pred", flags)]
    spread = lambda v: np.repeat(v, 32)  # noqa: E731
    (ballot,) = run_lines("vote.sync.ballot.b32 %d, %a, -1;", ["b32"], inputs)
    bits = (warps.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=1)
    assert np.array_equal(ballot, spread(bits))
    for mode, want in (("all", warps.all(1)), ("any", warps.any(1)),
                       ("uni", warps.all(1) | ~warps.any(1))):  # fmt: skip
        (got,) = run_lines(f"vote.sync.{mode}.pred %d, %a, -1;", ["pred"], inputs)
        assert np.array_equal(got.astype(bool), spread(want)), mode
    (none,) = run_lines("vote.sync.all.pred %d, !%a, -1;", ["pred"], inputs)
    assert np.array_equal(none.astype(bool), spread(~warps.any(1)))


@pytest.mark.parametrize("ty", ["s32", "u32"])
def test_redux(ty: str) -> None:
    values = integers(32, 4)
    kind = np.int32 if ty == "s32" else np.uint32
    warps = values.view(kind).reshape(8, 32)
    for mode, want in (("add", warps.sum(1, dtype=np.uint32)), ("min", warps.min(1)),
                       ("max", warps.max(1))):  # fmt: skip
        (got,) = run_lines(f"redux.sync.{mode}.{ty} %d, %a, -1;", ["b32"], [("b32", values)])
        assert np.array_equal(got, np.repeat(want.astype(np.uint32), 32)), mode
    for mode, op in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        (got,) = run_lines(f"redux.sync.{mode}.b32 %d, %a, -1;", ["b32"], [("b32", values)])
        assert np.array_equal(got, np.repeat(op.reduce(values.reshape(8, 32), axis=1), 32))


def test_redux_float() -> None:
    bits = float_bits("f32", 5)
    x = bits.view(np.float32).reshape(8, 32)
    with np.errstate(all="ignore"):
        want = np.fmax.reduce(x, axis=1)
        absolute = np.fmin.reduce(np.abs(x), axis=1)
    (got,) = run_lines("redux.sync.max.f32 %d, %a, -1;", ["b32"], [("b32", bits)])
    assert np.array_equal(got.view(np.float32), np.repeat(want, 32))
    (got,) = run_lines("redux.sync.min.abs.f32 %d, %a, -1;", ["b32"], [("b32", bits)])
    assert np.array_equal(got.view(np.float32), np.repeat(absolute, 32))
    (got,) = run_lines("redux.sync.min.NaN.f32 %d, %a, -1;", ["b32"], [("b32", bits)])
    assert np.array_equal(got == 0x7FFFFFFF, np.repeat(np.isnan(x).any(1), 32))


def test_match() -> None:
    values = (integers(32, 6) % 5).astype(np.uint32)
    values[:32] = 3
    (got,) = run_lines("match.any.sync.b32 %d, %a, -1;", ["b32"], [("b32", values)])
    warps = values.reshape(8, 32)
    for i, result in enumerate(got.tolist()):
        same = warps[i // 32] == values[i]
        assert result == sum(1 << k for k in np.flatnonzero(same))
    got = run_lines("match.all.sync.b32 %d|%e, %a, -1;", ["b32", "pred"], [("b32", values)])
    equal = np.repeat((warps == warps[:, :1]).all(1), 32)
    assert np.array_equal(got[1].astype(bool), equal)
    assert np.array_equal(got[0], np.where(equal, 0xFFFFFFFF, 0))
    wide = values.astype(np.uint64) << np.uint64(40)
    (got64,) = run_lines("match.any.sync.b64 %d, %a, -1;", ["b32"], [("b64", wide)])
    assert got64.tolist()[:32] == [0xFFFFFFFF] * 32


def test_elect_and_activemask() -> None:
    got = run_lines("elect.sync %d|%e, -1;", ["b32", "pred"], [("b32", integers(32, 7))])
    assert not got[0].any()
    assert np.array_equal(np.flatnonzero(got[1]), np.arange(0, 256, 32))
    lines = "mov.u32 %d, 0; @%q activemask.b32 %d;"
    (got2,) = run_lines(lines, ["b32"], [("b32", integers(32, 7))])
    assert got2[:5].tolist() == [0, 0, 0, 0xFFFFFFF8, 0xFFFFFFF8]
    got3 = run_lines("mov.u32 %d, 99; @%q elect.sync %d|%e, 0xFFFFFFF8;", ["b32", "pred"],
                     [("b32", integers(32, 7)[:32])])  # fmt: skip
    assert got3[0][3:].tolist() == [3] * 29 and np.flatnonzero(got3[1]).tolist() == [3]


def run(body: str, seed: int | None = None, block: int = 64) -> Array:
    out = np.zeros(block, np.uint32)
    sim.run(program(body + "st.global.u32 [%o], %r1;", "u64", block), "k", [out], ONE, seed=seed)
    return out


@pytest.mark.parametrize("seed", [None, 1])
def test_partial_members(seed: int | None) -> None:
    """Two halves of a warp in different arms reduce each for itself."""
    out = run("""
        and.b32 %r3, %t, 16; setp.ne.u32 %p1, %r3, 0; mov.u32 %r1, %t; @%p1 bra upper;
        shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xFFFF; add.u32 %r1, %r1, %r2;
        vote.sync.ballot.b32 %r4, %p1, 0xFFFF; add.u32 %r1, %r1, %r4; bra end;
    upper: redux.sync.max.u32 %r1, %r1, 0xFFFF0000; bar.warp.sync 0xFFFF0000;
        match.any.sync.b32 %r2, %r1, 0xFFFF0000; add.u32 %r1, %r1, %r2;
    end:""", seed)  # fmt: skip
    t = np.arange(64)
    low = t + (t ^ 1)
    assert np.array_equal(out, np.where(t & 16, (t // 32 * 32 + 31) + 0xFFFF0000, low))


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_diverged_lanes_wait_for_each_other(seed: int | None) -> None:
    """Lanes reach one shuffle along different paths, some after long loops."""
    out = run("""
        and.b32 %r2, %t, 31; mov.u32 %r3, 0; mov.u32 %r1, %t;
    loop: add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, %r2; @%p1 bra loop;
        setp.lt.u32 %p2, %r2, 7; @%p2 bra early;
        add.u32 %r1, %r1, 100;
    early: shfl.sync.down.b32 %r4, %r1, 16, 31, -1; add.u32 %r1, %r1, %r4;
        shfl.sync.up.b32 %r5, %r1, 1, 0, -1; mov.u32 %r1, %r5;""", seed)  # fmt: skip
    t = np.arange(64)
    x = t + np.where(t % 32 < 7, 0, 100)
    y = x + np.where(t % 32 < 16, x[np.minimum(t + 16, 63)], x)
    z = np.where(t % 32 == 0, y, y[np.maximum(t - 1, 0)])
    assert np.array_equal(out, z)


def test_same_instruction_with_two_masks() -> None:
    """Halves of a warp run one instruction with their own masks, read from a register."""
    out = run("""
        and.b32 %r3, %t, 16; setp.ne.u32 %p1, %r3, 0; selp.b32 %r4, 0xFFFF0000, 0xFFFF, %p1;
        setp.lt.u32 %p2, %t, 3; vote.sync.any.pred %p3, %p2, %r4; selp.u32 %r1, 1, 0, %p3;
        redux.sync.add.u32 %r2, %t, %r4; mad.lo.u32 %r1, %r1, 10000, %r2;""")  # fmt: skip
    t = np.arange(64)
    sums = t.reshape(4, 16).sum(1).repeat(16)
    assert np.array_equal(out, sums + np.where(t < 16, 10000, 0))


def test_lane_outside_its_own_mask() -> None:
    with pytest.raises(sim.SimError, match="does not hold its own lane"):
        run("vote.sync.any.pred %p1, %p1, 0xFFFE;")


def test_odd_block() -> None:
    out = run("redux.sync.add.u32 %r1, %t, -1; shfl.sync.bfly.b32 %r2, %t, 1, 31, -1;", block=40)
    t = np.arange(40)
    assert np.array_equal(out, np.where(t < 32, 496, t[32:].sum()))
