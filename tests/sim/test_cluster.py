"""Clusters: ranks, memory of other CTAs, remote arrivals, multicast, cluster barriers, st.async."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.sim.programs import WAIT, hopper
from tilec import sim
from tilec.sim import SimError, TensorMap

Array = np.ndarray[Any, Any]
SEEDS = (None, 0, 1, 2, 3)
BARRIER = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"


def kernel(body: str, cluster: str, params: str = "u64", threads: int = 64) -> str:
    """All threads of a cluster have passed its barrier before `body`, and do so again at the end.

    %rank is the CTA's rank; %at the address of the thread's word of a grid of one dimension.
    """
    return hopper(f"""
    .reg .b32 %rank, %size; .reg .b64 %at;
    mov.u32 %rank, %cluster_ctarank; mov.u32 %size, %cluster_nctarank;
    mov.u32 %r1, %ctaid.x; mad.lo.u32 %r1, %r1, {threads}, %t; mad.wide.u32 %at, %r1, 4, %out;
    {BARRIER}
    {body}
    {BARRIER}""", params, threads, f".reqnctapercluster {cluster}")


def run(body: str, ctas: int, cluster: str, seed: int | None = None) -> Array:
    out = np.zeros((ctas, 64), np.uint32)
    sim.run(kernel(body, cluster), "k", [out], (ctas, 1, 1), shared_bytes=4096, seed=seed,
            check=True)
    return out


def test_special_registers() -> None:
    """A grid of 4 x 4 x 2 CTAs in clusters of 2 x 1 x 2: each writes what it is at its place."""
    names = ["%ctaid.x", "%ctaid.y", "%ctaid.z", "%clusterid.x", "%clusterid.z", "%nclusterid.x",
             "%nclusterid.z", "%cluster_ctaid.x", "%cluster_ctaid.z", "%cluster_nctaid.z",
             "%cluster_ctarank", "%cluster_nctarank", "%warpid"]  # fmt: skip
    stores = "".join(f"mov.u32 %r5, {name}; st.global.b32 [%rd1+{4 * i}], %r5;"
                     for i, name in enumerate(names))
    body = f"""mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z; mov.u32 %r1, %ctaid.x;
    mad.lo.u32 %r1, %r2, 4, %r1; mad.lo.u32 %r1, %r3, 16, %r1; mul.lo.u32 %r1, %r1, 64;
    setp.ne.u32 %p1, %t, 0; @%p1 bra END; cvt.u64.u32 %rd1, %r1; add.u64 %rd1, %rd1, %out;
    {stores} END:"""
    out = np.zeros((2, 4, 4, 16), np.uint32)
    sim.run(kernel(body, "2, 1, 2"), "k", [out], (4, 4, 2), shared_bytes=4096)
    for z, y, x in np.ndindex(2, 4, 4):
        want = [x, y, z, x // 2, z // 2, 2, 1, x % 2, z % 2, 2, x % 2 + 2 * (z % 2), 4, 0]
        assert out[z, y, x, :13].tolist() == want


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("generic", [False, True])
def test_loads_stores_and_atomics_reach_other_ctas(generic: bool, seed: int | None) -> None:
    """Each CTA writes to the next one, adds to the one after, and reads from the one before."""
    move = "cvta.shared.u64 {d}, {d};" if generic else ""
    space = "" if generic else ".shared::cluster"

    def to(step: int) -> str:
        remote = f"mapa.u64 %rd3, %rd2, %r3;{move.format(d='%rd3')}" if not generic else (
            "cvta.shared.u64 %rd3, %rd2; mapa.u64 %rd3, %rd3, %r3;")
        return (f"add.u32 %r3, %rank, {step}; rem.u32 %r3, %r3, %size; cvt.u64.u32 %rd2, %r2;"
                f"{remote}")

    body = f"""shl.b32 %r2, %t, 2; add.u32 %r2, %r2, %tile; mad.lo.u32 %r4, %rank, 100, %t;
    {to(1)} st{space}.b32 [%rd3], %r4; {BARRIER}
    {to(2)} atom{space}.add.u32 %r5, [%rd3], 7; red{space}.add.u32 [%rd3], 5; {BARRIER}
    {to(3)} ld{space}.b32 %r6, [%rd3]; getctarank.u64 %r7, %rd3;
    mad.lo.u32 %r6, %r7, 10000, %r6; st.global.b32 [%at], %r6;"""
    if not generic:
        body = body.replace("getctarank.u64", "getctarank.shared::cluster.u64")
    got = run(body, 8, "4, 1, 1", seed)
    rank = np.arange(8)[:, None] % 4
    before = (rank + 3) % 4  # holds what the CTA before it wrote, plus 12
    want = (before + 3) % 4 * 100 + np.arange(64) + 12 + 10000 * before
    assert np.array_equal(got, want)


@pytest.mark.parametrize("seed", SEEDS)
def test_remote_arrivals(seed: int | None) -> None:
    """Rank 0 waits for one arrival of every CTA at its mbarrier, then reads what they wrote."""
    body = """@%first mbarrier.init.shared.b64 [%bar+8], 4;
    fence.mbarrier_init.release.cluster; barrier.cluster.arrive.relaxed; barrier.cluster.wait;
    mapa.shared::cluster.u32 %r3, %tile, 0; mad.lo.u32 %r4, %rank, 4, %r3;
    add.u32 %r5, %rank, 30; @%first st.shared::cluster.b32 [%r4], %r5;
    mapa.shared::cluster.u32 %r6, %bar, 0;
    @%first mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6+8];
    setp.ne.u32 %p1, %rank, 0; @%p1 bra END;
    """ + WAIT.format(bar="%bar+8", parity=0) + """
    and.b32 %r7, %t, 3; mad.lo.u32 %r7, %r7, 4, %tile; ld.shared.b32 %r8, [%r7];
    st.global.b32 [%at], %r8; END:"""
    got = run(body, 4, "4, 1, 1", seed)
    assert np.array_equal(got[0], 30 + np.arange(64) % 4) and not got[1:].any()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("box", [True, False])
def test_multicast(box: bool, seed: int | None) -> None:
    """Each of two CTAs loads its half of a tile into both; a third one gets nothing of it."""
    source = np.random.default_rng(0).integers(1, 1 << 30, (4, 32)).astype(np.uint32)
    load = ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
            ".multicast::cluster [%r2], [%map, {0, %r3}], [%bar], %h1") if box else (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
            ".multicast::cluster [%r2], [%rd4], 256, [%bar], %h1")
    body = f"""setp.gt.u32 %p1, %rank, 1; @%p1 bra READ;
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 512;
    mad.lo.u32 %r2, %rank, 256, %tile; shl.b32 %r3, %rank, 1; mov.u16 %h1, 3;
    ld.param.u64 %rd4, [p2]; mad.wide.u32 %rd4, %rank, 256, %rd4;
    @%first {load};
    {WAIT.format(bar="%bar", parity=0)}
READ: mad.lo.u32 %r4, %t, 4, %tile; ld.shared.b32 %r5, [%r4+256]; st.global.b32 [%at], %r5;"""
    out = np.zeros((3, 64), np.uint32)
    rows = TensorMap(source, "u32", (32, 4), (128,), (32, 2))
    sim.run(kernel(body, "3", "u64 map u64"), "k", [out, rows, source], (3, 1, 1),
            shared_bytes=4096, seed=seed)
    assert np.array_equal(out[:2], np.stack([source[2:].reshape(-1)] * 2))
    assert (out[2] == 0xFFFFFFFF).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_stores_and_copies_that_an_mbarrier_counts(seed: int | None) -> None:
    """st.async, red.async and a bulk copy from the other CTA's shared memory."""
    body = """shl.b32 %r2, %t, 2; add.u32 %r2, %r2, %tile; mov.u32 %r9, 1000;
    st.shared.b32 [%r2+512], %r9; mad.lo.u32 %r8, %rank, 100, %t; st.shared.b32 [%r2+768], %r8;
    fence.proxy.async.shared::cta;
    @%first mbarrier.expect_tx.relaxed.cluster.shared::cta.b64 [%bar], 1024;
    """ + BARRIER + """
    xor.b32 %r3, %rank, 1; mapa.shared::cluster.u32 %r4, %r2, %r3;
    mapa.shared::cluster.u32 %r5, %bar, %r3; mapa.shared::cluster.u32 %r6, %tile, %r3;
    mad.lo.u32 %r7, %t, 8, %r6; add.u32 %r9, %r8, 1;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r7], {%r8, %r9}, [%r5];
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32
        [%r4+512], %t, [%r5];
    add.u32 %r10, %tile, 768;
    @%first cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%r6+1024], [%r10], 256, [%r5];
    @%first mbarrier.arrive.shared.b64 _, [%bar];
    """ + WAIT.format(bar="%bar", parity=0) + """
    ld.shared.b32 %r11, [%r2+4]; ld.shared.b32 %r12, [%r2+512]; ld.shared.b32 %r13, [%r2+1024];
    add.u32 %r11, %r11, %r12; add.u32 %r11, %r11, %r13; st.global.b32 [%at], %r11;"""
    got = run(body, 2, "2", seed)
    t, other = np.arange(64), 1 - np.arange(2)[:, None]
    word = (t + 1) // 2 + (t + 1) % 2 + other * 100  # element t + 1 of the pairs
    want = word[:, :63] + 1000 + t[:63] + other * 100 + t[:63]
    assert np.array_equal(got[:, :63], want)


def test_cta_barriers_stay_within_a_cta() -> None:
    """One CTA passes its barrier a hundred times while the other waits for it at the cluster's."""
    body = """setp.ne.u32 %p1, %rank, 0; @%p1 bra END; mov.u32 %r2, 0;
L:  bar.sync 1, 64; bar.sync 0; add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 100; @%p2 bra L;
    st.global.b32 [%at], %r2; END:"""
    assert run(body, 2, "2")[0, 0] == 100


@pytest.mark.parametrize(("body", "message"), [
    ("mapa.shared::cluster.u32 %r2, %tile, 2;", "mapa to CTA 2 of a cluster of 2"),
    ("mapa.shared::cluster.u32 %r2, %tile, 1; ld.shared.b32 %r3, [%r2];",
     "to the memory of another CTA"),
    ("mov.u32 %r2, 0x2000400; ld.shared::cluster.b32 %r3, [%r2];", "of CTA 2 in a cluster of 2"),
    ("mapa.shared::cluster.u32 %r2, %tile, 1; ld.shared::cluster.b32 %r3, [%r2+8192];",
     "out-of-bounds read of shared"),
    ("barrier.cluster.arrive; barrier.cluster.arrive;", "arrives again at the cluster barrier"),
    ("barrier.cluster.wait;", "without having arrived"),
    ("setp.eq.u32 %p1, %rank, 1; @%p1 trap;",
     r"thread 0 \(warp 0\) of CTA 1 of the cluster: executes trap"),
    ("setp.eq.u32 %p1, %rank, 1; @%p1 bra L; bar.sync 2, 96; L:",
     "warps 0:0, 0:1 at barrier 2.*\n.*warps 1:0, 1:1 for the cluster barrier"),
])
def test_errors(body: str, message: str) -> None:
    with pytest.raises(SimError, match=re.compile(message)):
        run(body, 2, "2")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("access", [
    "mapa.shared::cluster.u32 %r2, %tile, 0; ld.shared::cluster.b32 %r3, [%r2];",
    "mapa.shared::cluster.u32 %r2, %bar, 0; mbarrier.arrive.shared::cluster.b64 _, [%r2];"])
def test_accesses_to_a_cta_that_has_ended(access: str, seed: int | None) -> None:
    """CTA 0 exits at once, CTA 1 comes to the cluster barrier before, which then waits for itself
    alone."""
    body = f"setp.ne.u32 %p1, %rank, 0; @!%p1 exit; {BARRIER} {access}"
    with pytest.raises(SimError, match="memory of CTA 0 of the cluster, which has ended"):
        run(body, 2, "2", seed)


def test_launches() -> None:
    with pytest.raises(SimError, match=r"does not consist of clusters of \(2, 1, 1\)"):
        run("", 3, "2")
    with pytest.raises(SimError, match="16 at most"):
        run("", 32, "32")
