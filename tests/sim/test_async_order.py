"""A warp-specialised product of TMA, mbarriers and wgmma, and what each fault in it gives."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.sim.programs import WAIT, hopper
from tilec import sim
from tilec.sim import SimError, TensorMap

Array = np.ndarray[Any, Any]
STEPS, SLOTS = 5, 2
D = ", ".join(f"%d{i}" for i in range(32))

# Full barriers lie at %bar and 8 bytes on, empty ones 16 bytes on; at %tile two slots of a, two of
# b, and the result. Thread 128 loads, the first warpgroup multiplies.
PIECES = {
    "init": "@%first mbarrier.init.shared.b64 [%bar+8], 1;"
            "@%first mbarrier.init.shared.b64 [%bar+16], 1;"
            "@%first mbarrier.init.shared.b64 [%bar+24], 1;",
    "announce": "@%first fence.mbarrier_init.release.cluster;",
    "meet": "bar.sync 0;",
    "slot": "and.b32 %slot, %k, 1; shr.u32 %phase, %k, 1; and.b32 %phase, %phase, 1;"
            "xor.b32 %other, %phase, 1; mad.lo.u32 %full, %slot, 8, %bar;"
            "add.u32 %empty, %full, 16; mad.lo.u32 %at, %slot, 8192, %tile;",
    "wait empty": WAIT.format(bar="%empty", parity="%other"),
    "expect": "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%full], 16384;",
    "load": "shl.b32 %r1, %k, 6; add.u32 %r2, %at, 16384;"
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
            " [%at], [%map, {%r1, %zero}], [%full];"
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
            " [%r2], [%bmap, {%r1, %zero}], [%full];",
    "zero": " ".join(f"mov.f32 %d{i}, 0f00000000;" for i in range(32)),
    "wait full": WAIT.format(bar="%full", parity="%phase"),
    "fence": "wgmma.fence.sync.aligned;",
    "multiply": "shr.u32 %r1, %at, 4; cvt.u64.u32 %da, %r1; or.b64 %da, %da, %high;"
                "add.u64 %db, %da, 1024;" + "add.u64 %da, %da, 2; add.u64 %db, %db, 2;".join(
                    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                    f"{{{D}}}, %da, %db, 1, 1, 1, 0, 0;" for _ in range(4)),
    "commit": "wgmma.commit_group.sync.aligned;",
    "wait": "wgmma.wait_group.sync.aligned 0;",
    "release": "@%first mbarrier.arrive.shared.b64 _, [%empty];",
    "result": "".join(f"st.shared.f32 [%c+{(i // 2 % 2 * 8 * 64 + i // 4 * 8 + i % 2) * 4}], %d{i};"
                      for i in range(32)),
    "proxy": "fence.proxy.async.shared::cta;",
    "meet again": "bar.sync 1, 128;",
    "store": "@%first cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
             " [%cmap, {%zero, %zero}], [%r9];",
    "close": "@%first cp.async.bulk.commit_group;",
    "drain": "@%first cp.async.bulk.wait_group.read 0;",
}
BODY = f"""
    .reg .b32 %k, %slot, %phase, %other, %full, %empty, %at, %zero, %c; .reg .f32 %d<32>;
    .reg .b64 %bmap, %cmap, %da, %db, %high;
    mov.b64 %bmap, p2; cvta.param.u64 %bmap, %bmap; mov.b64 %cmap, p3;
    cvta.param.u64 %cmap, %cmap; mov.u32 %zero, 0; mov.u32 %k, 0;
    mov.b64 %high, 0x4000004000010000; add.u32 %r9, %tile, 32768;
    {{init}} {{announce}}
    {{meet}}
    setp.ge.u32 %p1, %t, 128; @!%p1 bra MULTIPLY; setp.ne.u32 %p2, %t, 128; @%p2 bra END;
LOAD:
    {{slot}} {{wait empty}} {{expect}} {{load}}
    add.u32 %k, %k, 1; setp.lt.u32 %p3, %k, {STEPS}; @%p3 bra LOAD; bra END;
MULTIPLY:
    {{zero}}
STEP:
    {{slot}} {{wait full}} {{fence}} {{multiply}} {{commit}} {{wait}} {{release}}
    add.u32 %k, %k, 1; setp.lt.u32 %p3, %k, {STEPS}; @%p3 bra STEP;
    shr.u32 %r1, %t, 5; shl.b32 %r1, %r1, 4; shr.u32 %r2, %t, 2; and.b32 %r2, %r2, 7;
    add.u32 %r1, %r1, %r2; and.b32 %r3, %t, 3; shl.b32 %r3, %r3, 1;
    mad.lo.u32 %r1, %r1, 64, %r3; mad.lo.u32 %c, %r1, 4, %r9;
    {{result}} {{proxy}} {{meet again}} {{store}} {{close}} {{drain}}
END:"""


def multiply(seed: int | None = None, **changed: str) -> tuple[Array, Array]:
    """The product that the kernel gives with some pieces changed, and the right one."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((64, 64 * STEPS)).astype(ml_dtypes.bfloat16) for _ in range(2))
    c = np.full((64, 64), np.nan, np.float32)
    body = BODY.format(**(PIECES | {name.replace("_", " "): t for name, t in changed.items()}))
    kernel = hopper(body, "u64 map map map", 256)
    inputs = [TensorMap(x, "bf16", x.shape[::-1], x.strides[:1], (64, 64), swizzle=128)
              for x in (a, b)]
    result = TensorMap(c, "f32", (64, 64), (256,), (64, 64))
    sim.run(kernel, "k", [None, *inputs, result], (1, 1, 1), shared_bytes=51200, seed=seed,
            check=True)
    return c, a.astype(np.float64) @ b.astype(np.float64).T


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_no_alarm(seed: int | None) -> None:
    got, want = multiply(seed)
    assert np.abs(got - want).max() < 1e-4


def test_no_alarm_where_the_first_product_takes_nothing_from_its_accumulators() -> None:
    first = "setp.ne.u32 %p4, %k, 0;" + PIECES["multiply"].replace("1, 1, 1", "%p4, 1, 1", 1)
    got, want = multiply(zero="", multiply=first)
    assert np.abs(got - want).max() < 1e-4


COPY = r"a copy that the mbarrier at 0x40[08] counts"
FAULTS: dict[str, tuple[dict[str, str], str]] = {
    "no wait for the data": ({"wait_full": ""},
                             rf"race: it reads \(as a wgmma.*which {COPY} writes"),
    "the wrong parity for data": ({"wait_full": WAIT.format(bar="%full", parity="%other")},
                                  rf"race: it reads \(as a wgmma.*which {COPY} writes|deadlock"),
    "the wrong slot": ({"wait_full": PIECES["wait full"] + "xor.b32 %at, %at, 8192;"},
                       "race: it (reads|writes)"),
    "no wait for the slot": ({"wait_empty": ""}, "race: it writes .*a wgmma of warpgroup 0 reads|"
                             "1 arrivals at an mbarrier that lacks 0"),
    "the wrong parity for slots": ({"wait_empty": WAIT.format(bar="%empty", parity="%phase")},
                                   r"warp 4 for the end of the phase of parity 0 "
                                   r"\(PTX line \d+: mbarrier.try_wait.*mbarrier 0x410 is in phase"
                                   r" 0 .parity 0. and lacks 1 of 1 arrivals and 0 bytes"),
    "a slot released before the product is done": (
        {"wait": PIECES["release"], "release": PIECES["wait"]},
        rf"race: it writes \(as {COPY}\).*a wgmma of warpgroup 0 reads"),
    "a release that orders nothing": (
        {"release": "@%first mbarrier.arrive.relaxed.cta.shared.b64 _, [%empty];"},
        rf"race: it writes \(as {COPY}\)"),
    "a wait of relaxed order": (
        {"wait_full": PIECES["wait full"].replace(".parity", ".parity.relaxed.cta")},
        rf"race: it reads \(as a wgmma.*which {COPY} writes"),
    "too few bytes": ({"expect": PIECES["expect"].replace("16384", "8192")},
                      "8192 bytes more than expected have come|may still use|race: it reads"),
    "too many bytes": ({"expect": PIECES["expect"].replace("16384", "16400")},
                       "deadlock(.*\n)+.*lacks 0 of 1 arrivals and 16 bytes"),
    "data that nobody expects": ({"expect": "mbarrier.arrive.shared.b64 _, [%full];"},
                                 "bytes more than expected|that the mbarrier at"),
    "a release too many": ({"release": PIECES["release"] * 2}, "arrivals at an mbarrier that lacks "
                           "0|race: it writes|deadlock"),
    "no release": ({"release": ""}, "deadlock(.*\n)+.*mbarrier 0x41[08] is in phase 0"),
    "no fence after the initialisation": ({"announce": ""}, "missing fence.mbarrier_init: the async"
                                          r" proxy signals the mbarrier at 0x408, which thread 0"),
    "no barrier after the initialisation": (
        {"meet": ""}, "race: it uses the mbarrier|was never initialised"),
    "accumulators that nobody has written": (
        {"zero": ""},
        "adds to an accumulator that depends on an uninitialised value: what is read of %d"),
    "no fence of registers": ({"fence": ""}, "accessed since the last wgmma.fence"),
    "no wait for the product": ({"wait": ""}, f"race: it writes .as {COPY}.*a wgmma of|"
                                "touches the accumulator"),
    "a wait off by one": ({"wait": "wgmma.wait_group.sync.aligned 1;"},
                          f"race: it writes .as {COPY}.*a wgmma of|touches the accumulator"),
    "a product not committed": ({"commit": ""}, f"race: it writes .as {COPY}.*a wgmma of|"
                                "touches the accumulator"),
    "no fence between the proxies": ({"proxy": ""}, "missing fence.proxy.async: the async proxy "
                                     r"uses shared address.*which thread \d+ .* writes through"),
    "no barrier before the store": ({"meet_again": ""}, "race: it reads .as a bulk copy of thread "
                                    r"0, as its source,. .*which thread \d+"),
    "no wait for the store": ({"drain": ""}, "the CTA ends while this operation may still use"),
    "a store not committed": ({"close": ""}, "the CTA ends while this operation may still use"),
    "the source reused": ({"close": PIECES["close"] + "@%first st.shared.b32 [%r9], %zero;"},
                          "race: it writes shared.*a bulk copy of thread 0, as its source, reads"),
}


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.sample(19)
def test_faults_are_found(name: str, seed: int | None) -> None:
    changed, message = FAULTS[name]
    with pytest.raises(SimError, match=re.compile(message)) as caught:
        multiply(seed, **changed)
    assert caught.value.ptx_line
