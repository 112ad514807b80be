"""cp.async: sizes, zero fill, groups, and that data which nobody waited for may not be there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sim.programs import program
from tilec import sim
from tilec.sim.errors import SimError

Array = np.ndarray[Any, Any]
ONE = (1, 1, 1)
SEEDS = (None, 0, 1, 2, 3, 4)


def staged(body: str, extra: str = "") -> str:
    """64 threads with 16 bytes each of p1 (%rd1), p0 (%rd2) and shared memory (%s), zeroed."""
    return program(f"""
    .reg .b32 %s, %v<4>; .shared .align 16 .b8 buffer[4096];
    ld.param.u64 %rd1, [p1]; mad.wide.u32 %rd1, %t, 16, %rd1;
    ld.param.u64 %rd2, [p0]; mad.wide.u32 %rd2, %t, 16, %rd2;
    mov.u32 %s, buffer; mad.lo.u32 %s, %t, 16, %s;
    st.shared.v4.b32 [%s], {{0, 0, 0, 0}}; {extra}
    {body}
    ld.shared.v4.b32 {{%v0, %v1, %v2, %v3}}, [%s];
    st.global.v4.b32 [%rd2], {{%v0, %v1, %v2, %v3}};""", "u64 u64", 64)


def run(body: str, source: Array, seed: int | None = None, extra: str = "") -> Array:
    out = np.zeros((64, 4), np.uint32)
    sim.run(staged(body, extra), "k", [out, source], ONE, seed=seed)
    return out


@pytest.fixture
def source() -> Array:
    return np.random.default_rng(0).integers(1, 1 << 32, (64, 4)).astype(np.uint32)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("end", ["cp.async.commit_group; cp.async.wait_group 0;",
                                 "cp.async.wait_all;"])
@pytest.mark.parametrize(("form", "size"), [
    ("cg.shared.global", 16), ("ca.shared.global", 16), ("ca.shared.global", 8),
    ("ca.shared::cta.global", 4), ("cg.shared.global.L2::128B", 16),
])
def test_sizes(form: str, size: int, end: str, seed: int | None, source: Array) -> None:
    got = run(f"cp.async.{form} [%s], [%rd1], {size}; {end}", source, seed)
    want = np.zeros_like(source)
    want[:, : size // 4] = source[:, : size // 4]
    assert np.array_equal(got, want)


@pytest.mark.parametrize("seed", SEEDS)
def test_zero_fill(seed: int | None, source: Array) -> None:
    """Lane t copies t % 17 bytes; those of 0 bytes may have any address."""
    body = """rem.u32 %r1, %t, 17; setp.eq.u32 %p1, %r1, 0; @%p1 mov.u64 %rd1, 16;
    st.shared.v4.b32 [%s], {9, 9, 9, 9};
    cp.async.cg.shared.global [%s], [%rd1], 16, %r1; cp.async.wait_all;"""
    want = source.copy().view(np.uint8)
    for thread in range(64):
        want[thread, thread % 17:] = 0
    assert np.array_equal(run(body, source, seed), want.view(np.uint32))
    body = "cp.async.ca.shared.global [%s], [%rd1], 8, 4; cp.async.wait_all;"
    assert np.array_equal(run(body, source, seed)[:, :2],
                          np.stack([source[:, 0], np.zeros(64, np.uint32)], axis=1))


def test_partial_reads_stay_inside_the_array(source: Array) -> None:
    """The last thread's array ends in the middle of its 16 bytes."""
    short = source.reshape(-1)[:-2].copy()
    body = """mov.u32 %r1, 16; setp.eq.u32 %p1, %t, 63; @%p1 mov.u32 %r1, {};
    cp.async.cg.shared.global [%s], [%rd1], 16, %r1; cp.async.wait_all;"""
    assert np.array_equal(run(body.replace("{}", "8"), short).reshape(-1)[:-2], short)
    with pytest.raises(SimError, match="thread 63 .*out-of-bounds read of global address"):
        run(body.replace("{}", "9"), short)


@pytest.mark.parametrize("seed", SEEDS)
def test_ignore_src(seed: int | None, source: Array) -> None:
    body = """setp.ge.u32 %p1, %t, 40;
    cp.async.ca.shared.global [%s], [%rd1], 16, {}%p1; cp.async.wait_all;"""
    late = np.arange(64)[:, None] >= 40
    assert np.array_equal(run(body.format(""), source, seed), np.where(late, 0, source))
    assert np.array_equal(run(body.format("!"), source, seed), np.where(late, source, 0))


def test_cache_policy_is_skipped(source: Array) -> None:
    body = """createpolicy.fractional.L2::evict_first.b64 %rd5, 1.0;
    cp.async.cg.shared.global.L2::cache_hint [%s], [%rd1], 16, 4, %rd5; cp.async.wait_all;"""
    want = np.zeros_like(source)
    want[:, 0] = source[:, 0]
    assert np.array_equal(run(body, source), want)


MISSING = {
    "no wait": "cp.async.cg.shared.global [%s], [%rd1], 16; cp.async.commit_group;",
    "the wait covers older groups only":
        "cp.async.cg.shared.global [%s], [%rd1], 16; cp.async.commit_group; "
        "cp.async.wait_group 1;",
    "not committed": "cp.async.cg.shared.global [%s], [%rd1], 16; cp.async.wait_group 0;",
    "a wait of other threads":
        "cp.async.cg.shared.global [%s], [%rd1], 16; cp.async.commit_group; "
        "setp.lt.u32 %p1, %t, 32; @%p1 cp.async.wait_group 0;",
}


@pytest.mark.parametrize("body", MISSING.values(), ids=MISSING)
def test_a_missing_wait_shows(body: str, source: Array) -> None:
    """Without a seed always; with seeds some see all data, some none, some a part."""
    assert not run(body, source)[32:].any()
    right = {seed: (run(body, source, seed) == source)[32:].mean() for seed in range(40)}
    assert min(right.values()) < 0.05 and max(right.values()) == 1
    assert any(0 < share < 1 for share in right.values())


def test_copies_may_happen_in_any_block(source: Array) -> None:
    """A loop between the copy and the read gives it the time that a GPU would."""
    wait = """cp.async.cg.shared.global [%s], [%rd1], 16; cp.async.commit_group;
    mov.u32 %r1, 0; LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, {}; @%p1 bra LOOP;"""
    short = np.mean([(run(wait.format(1), source, s) == source).mean() for s in range(20)])
    long = np.mean([(run(wait.format(40), source, s) == source).mean() for s in range(20)])
    assert short < 0.9 < long


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("newest", [0, 1, 2, 3])
def test_wait_group_leaves_the_newest(newest: int, seed: int | None, source: Array) -> None:
    """Three groups of one word each: those before the `newest` last ones are there."""
    copies = " ".join(f"cp.async.ca.shared.global [%s+{4 * i}], [%rd1+{4 * i}], 4; "
                      "cp.async.commit_group;" for i in range(3))
    got = run(f"{copies} cp.async.wait_group {newest};", source, seed)
    there = max(0, 3 - newest)
    assert np.array_equal(got[:, :there], source[:, :there])
    if seed is None:
        assert not got[:, there:].any()


def test_empty_groups_count(source: Array) -> None:
    body = """cp.async.cg.shared.global [%s], [%rd1], 16; cp.async.commit_group;
    cp.async.commit_group; cp.async.wait_group 1;"""
    assert np.array_equal(run(body, source), source)


@pytest.mark.parametrize("seed", SEEDS)
def test_pipeline(seed: int | None) -> None:
    """A loop over tiles with two buffers, one copy ahead: what a pipelined kernel does."""
    tiles = 6
    source = np.random.default_rng(1).integers(0, 1 << 20, (tiles, 64)).astype(np.uint32)
    body = f"""
    .reg .b32 %s, %sum, %k, %v, %at; .shared .align 16 .b8 buffer[512];
    ld.param.u64 %rd1, [p1]; mad.wide.u32 %rd1, %t, 4, %rd1;
    mov.u32 %s, buffer; mad.lo.u32 %s, %t, 4, %s; mov.u32 %sum, 0; mov.u32 %k, 0;
    cp.async.ca.shared.global [%s], [%rd1], 4; cp.async.commit_group;
LOOP:
    add.u32 %r1, %k, 1; setp.lt.u32 %p1, %r1, {tiles};
    and.b32 %r2, %r1, 1; mad.lo.u32 %at, %r2, 256, %s;
    add.u64 %rd1, %rd1, 256;
    @%p1 cp.async.ca.shared.global [%at], [%rd1], 4;
    cp.async.commit_group; cp.async.wait_group 1; bar.sync 0;
    and.b32 %r2, %k, 1; mad.lo.u32 %at, %r2, 256, %s;
    ld.shared.u32 %v, [%at]; mad.lo.u32 %sum, %sum, 3, %v; bar.sync 0;
    mov.u32 %k, %r1; @%p1 bra LOOP;
    st.global.u32 [%o], %sum;"""
    want = np.zeros(64, np.uint32)
    for tile in source:
        want = want * np.uint32(3) + tile
    out = np.zeros(64, np.uint32)
    sim.run(program(body), "k", [out, source], ONE, seed=seed)
    assert np.array_equal(out, want)


def test_copies_do_not_outlive_a_cta(source: Array) -> None:
    body = """mov.u32 %r5, %ctaid.x; setp.eq.u32 %p2, %r5, 0;
    @%p2 cp.async.cg.shared.global [%s], [%rd1], 16; cp.async.wait_group 0;"""
    out = np.zeros((64, 4), np.uint32)
    sim.run(staged(body), "k", [out, source], (2, 1, 1))
    assert not out.any()


@pytest.mark.parametrize(("text", "message"), [
    ("cp.async.cg.shared.global [%s], [%rd1], 8;", "does not know cp.async.cg of 8 bytes"),
    ("cp.async.bulk.commit;", "does not know cp.async.bulk.commit"),
    ("cp.async.cg.shared.global [%s+8], [%rd1], 16;", "misaligned shared address"),
    ("ld.param.u64 %rd1, [p1]; cp.async.cg.shared.global [%s], [%rd1+8], 16;",
     "misaligned global address"),
    ("cp.async.cg.shared.global [%s], [%rd1+8], 16, 8;", "misaligned global address"),
    ("cp.async.cg.shared.global [%s+4096], [%rd1], 16;", "out-of-bounds store to shared"),
    ("cp.async.cg.shared.global [%s], [%rd1+512], 16;", "out-of-bounds read of global"),
    ("mov.u32 %r1, 17; cp.async.cg.shared.global [%s], [%rd1], 16, %r1;", "copies 17 of 16 bytes"),
])
def test_errors(text: str, message: str, source: Array) -> None:
    with pytest.raises(SimError, match=message):
        run(text, source)
