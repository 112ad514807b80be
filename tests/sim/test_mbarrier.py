"""mbarriers: phases, arrival and transaction counts, waits, and what goes wrong with them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.sim.programs import WAIT, hopper
from tilec import sim
from tilec.sim import SimError

Array = np.ndarray[Any, Any]
ONE = (1, 1, 1)
SEEDS = (None, *range(6))
STORE = "mad.wide.u32 %rd2, %t, 4, %out; st.global.b32 [%rd2], %r9;"


def run(body: str, seed: int | None = None, threads: int = 128, words: int = 0) -> Array:
    """A word a thread: what the body leaves in %r9."""
    out = np.full(words or threads, 0xDEAD, np.uint32)
    sim.run(hopper(f"mov.u32 %r9, 0;\n{body}\n{STORE}", "u64", threads), "k", [out], ONE,
            shared_bytes=8192, seed=seed, check=True)
    return out


def init(count: int, at: str = "%bar+16") -> str:
    return f"@%first mbarrier.init.shared.b64 [{at}], {count}; bar.sync 0;\n"


@pytest.mark.parametrize("seed", SEEDS)
def test_phases_flip_with_the_last_arrival(seed: int | None) -> None:
    """Each thread arrives ten times and sums what all wrote to shared memory before."""
    body = init(128) + """
    mov.u32 %r1, 0; shl.b32 %r2, %t, 2; add.u32 %r2, %r2, %tile;
L:  add.u32 %r3, %r1, %t; st.shared.b32 [%r2], %r3;
    mbarrier.arrive.shared::cta.b64 %rd1, [%bar+16];
    and.b32 %r4, %r1, 1;
""" + WAIT.format(bar="%bar+16", parity="%r4") + """
    xor.b32 %r5, %t, 127; shl.b32 %r5, %r5, 2; add.u32 %r5, %r5, %tile; ld.shared.b32 %r6, [%r5];
    add.u32 %r9, %r9, %r6;
    mbarrier.arrive.release.cta.b64 %rd1, [%rd5];
    W2: mbarrier.test_wait.acquire.cta.shared::cta.b64 %p2, [%bar+32], %rd1; @!%p2 bra W2;
    add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 10; @%p1 bra L;"""
    body = init(128, "%bar+32") + """cvt.u64.u32 %rd5, %bar; add.u64 %rd5, %rd5, 32;
    cvta.shared.u64 %rd5, %rd5;""" + body
    assert np.array_equal(run(body, seed), 45 + 10 * (127 - np.arange(128)))


def test_state_and_pending_count() -> None:
    """A state has the arrivals that lacked before; .noComplete and counts go by more than one."""
    body = init(10) + """
    @!%first bra END;
    mbarrier.arrive.shared.b64 %rd1, [%bar+16];
    mbarrier.pending_count.b64 %r1, %rd1;
    mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %rd1, [%bar+16], 5;
    mbarrier.pending_count.b64 %r2, %rd1;
    mbarrier.arrive.shared.b64 %rd1, [%bar+16], 4;
    mbarrier.pending_count.b64 %r3, %rd1;
    mbarrier.test_wait.shared.b64 %p1, [%bar+16], %rd1;
    selp.u32 %r4, 1, 0, %p1;
    mbarrier.arrive_drop.shared.b64 %rd1, [%bar+16]; mbarrier.arrive.shared.b64 %rd1, [%bar+16], 9;
    mbarrier.arrive_drop.expect_tx.shared.b64 _, [%bar+16], 0;
    mbarrier.arrive.shared.b64 %rd1, [%bar+16], 8; mbarrier.pending_count.b64 %r5, %rd1;
    mbarrier.arrive.shared.b64 %rd1, [%bar+16]; mbarrier.pending_count.b64 %r6, %rd1;
    mad.lo.u32 %r9, %r1, 16, %r2; mad.lo.u32 %r9, %r9, 16, %r3; mad.lo.u32 %r9, %r9, 16, %r4;
    mad.lo.u32 %r9, %r9, 16, %r5; mad.lo.u32 %r9, %r9, 16, %r6;
END:"""
    assert run(body)[0] == 0xA94188


@pytest.mark.parametrize("order", [
    "E E A", "E A", "A", "C E A", "E C A"])
def test_transactions_and_arrivals_both_complete(order: str) -> None:
    """expect_tx and complete_tx in any order within a phase."""
    text = {"E": "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar], 48;",
            "C": "mbarrier.complete_tx.shared::cta.b64 [%bar], 48;",
            "A": "mbarrier.arrive.shared::cta.b64 _, [%bar];"}
    body = "@!%first bra END;\n" + "\n".join(text[letter] for letter in order.split())
    body += ("mbarrier.test_wait.parity.shared::cta.b64 %p1, [%bar], 0; selp.u32 %r9, 1, 0, %p1;"
             "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%bar], 1;"
             "@%p1 add.u32 %r9, %r9, 2; END:")
    complete = order.count("E") == order.count("C")
    assert run(body)[0] == (1 if complete else 2)


def test_try_wait_may_give_up() -> None:
    """A wait without a loop shows, always without a seed and with some seeds."""
    body = """setp.eq.u32 %p1, %t, 64; @%p1 mbarrier.arrive.shared::cta.b64 _, [%bar];
    setp.lt.u32 %p2, %t, 32;
    setp.ne.u32 %p3, 0, 0;
    @%p2 mbarrier.try_wait.parity.shared::cta.b64 %p3, [%bar], 0; selp.u32 %r9, 1, 0, %p3;"""
    late = """setp.lt.u32 %p2, %t, 32; setp.ne.u32 %p3, 0, 0;
    @%p2 mbarrier.try_wait.parity.shared::cta.b64 %p3, [%bar], 0, 1000; selp.u32 %r9, 1, 0, %p3;
    setp.eq.u32 %p1, %t, 64; @%p1 mbarrier.arrive.shared::cta.b64 _, [%bar];"""
    assert run(body)[:32].all() and not run(late)[:32].any()
    assert {bool(run(late, seed)[0]) for seed in range(16)} == {True, False}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("noinc", [True, False])
def test_cp_async_arrives_when_its_copies_are_done(noinc: bool, seed: int | None) -> None:
    """64 threads copy and signal; the other 64 read, after a wait for the mbarrier alone."""
    out, source = np.zeros(128, np.uint32), np.arange(100, 228, dtype=np.uint32)
    body = init(64 if noinc else 1) + """
    ld.param.u64 %rd1, [p1]; shl.b32 %r1, %t, 2; add.u32 %r2, %r1, %tile; cvt.u64.u32 %rd2, %r1;
    add.u64 %rd1, %rd1, %rd2; add.u64 %rd3, %out, %rd2; setp.ge.u32 %p1, %t, 64; @%p1 bra READ;
    cp.async.ca.shared.global [%r2], [%rd1], 4; cp.async.mbarrier.arrive{}.shared.b64 [%bar+16];
    cp.async.ca.shared.global [%r2+256], [%rd1+256], 4; {}
    bra END; READ:
    """.replace("{}", ".noinc" if noinc else "", 1).replace(
        "{}", "" if noinc else "bar.sync 1, 64; @%first mbarrier.arrive.shared.b64 _, [%bar+16];")
    body += WAIT.format(bar="%bar+16", parity=0) + """
    ld.shared.b32 %r9, [%r2+-256]; st.global.b32 [%rd3], %r9; END: cp.async.wait_all;"""
    sim.run(hopper(body, "u64 u64"), "k", [out, source], ONE, shared_bytes=8192, seed=seed,
            check=True)
    assert np.array_equal(out[64:], source[:64])


FIRST = "@!%first bra END;\n{}\nEND:"


@pytest.mark.parametrize(("body", "message"), [
    ("mbarrier.arrive.shared.b64 _, [%bar+64];", "0x440 was never initialised"),
    ("mbarrier.inval.shared.b64 [%bar]; mbarrier.arrive.shared.b64 _, [%bar];",
     "was never initialised"),
    ("mbarrier.init.shared.b64 [%bar], 1;", "init of a live mbarrier"),
    ("mbarrier.init.shared.b64 [%bar+8], 0;", "an mbarrier for 0 arrivals"),
    ("mbarrier.arrive.shared.b64 _, [%bar], 2;", "2 arrivals at an mbarrier that lacks 1"),
    ("mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 16; mbarrier.arrive.shared.b64 _, [%bar];",
     "1 arrivals at an mbarrier that lacks 0.*16 bytes"),
    ("mbarrier.arrive.noComplete.shared.b64 %rd1, [%bar], 1;", "complete the phase"),
    ("mbarrier.arrive.shared.b64 _, [%bar+4];", "misaligned shared address"),
    ("mbarrier.complete_tx.shared.b64 [%bar], 32; mbarrier.arrive.expect_tx.shared.b64 _, [%bar],"
     " 16;", "16 bytes more than expected"),
    ("mbarrier.expect_tx.shared.b64 [%bar], 1048575; mbarrier.expect_tx.shared.b64 [%bar], 1;",
     "a transaction count beyond 1048575"),
    ("st.shared.b32 [%bar+4], 0; mbarrier.arrive.shared.b64 _, [%bar];", "has been overwritten"),
    ("mbarrier.try_wait.parity.shared.b64 %p1, [%bar], 2;", "waits for parity 2"),
    ("mov.b64 %rd1, 0x700000; mbarrier.test_wait.shared.b64 %p1, [%bar], %rd1;",
     "with the state of phase 7"),
    ("mbarrier.arrive.b64 _, [%out];", "mbarrier at an address outside of shared memory"),
    ("mbarrier.arrive.shared::cluster.b64 _, [%bar+0x1000000];", "never initialised|out-of-bounds"),
])
def test_errors(body: str, message: str) -> None:
    kernel = hopper(FIRST.format(body), "u64")
    with pytest.raises(SimError, match=message) as caught:
        sim.run(kernel, "k", [np.zeros(4)], ONE, shared_bytes=8192)
    assert "thread 0" in str(caught.value) and caught.value.ptx_line


@pytest.mark.parametrize("seed", SEEDS)
def test_deadlock_names_barrier_and_phase(seed: int | None) -> None:
    body = """@%first mbarrier.expect_tx.shared::cta.b64 [%bar], 96;
    setp.lt.u32 %p1, %t, 64; @%p1 bra END;
    """ + WAIT.format(bar="%bar", parity=0) + "END: bar.sync 0;"
    kernel = hopper(body, "u64")
    with pytest.raises(SimError, match="deadlock") as caught:
        sim.run(kernel, "k", [np.zeros(4)], ONE, shared_bytes=8192, seed=seed)
    assert re.search(r"warps 2, 3 for the end of the phase of parity 0 \(PTX line \d+: "
                     r"mbarrier.try_wait[^;]*;\); mbarrier 0x400 is in phase 0 \(parity 0\) and "
                     r"lacks 1 of 1 arrivals and 96 bytes", str(caught.value))
    assert re.search(r"warps? 0.* at barrier 0", str(caught.value))


def test_a_loop_that_polls_in_vain_names_the_barrier() -> None:
    body = "W: mbarrier.test_wait.parity.shared.b64 %p1, [%bar], 0; @!%p1 bra W;"
    with pytest.raises(SimError, match="deadlock: (.|\n)*; mbarrier 0x400 is in phase 0"):
        sim.run(hopper(body, "u64"), "k", [np.zeros(4)], ONE, shared_bytes=8192)


@pytest.mark.parametrize("form", [
    "mbarrier.arrive.release.gpu.shared.b64 _, [%bar]", "mbarrier.init.shared.b32 [%bar], 1",
    "mbarrier.arrive.noComplete.shared::cluster.b64 %rd1, [%bar], 1",
    "mbarrier.test_wait.shared::cluster.b64 %p1, [%bar], %rd1", "fence.proxy.generic",
    "fence.acq_rel.warp", "setmaxnreg.inc.sync.aligned.u32 20", "griddepcontrol.start",
])
def test_unsupported_forms(form: str) -> None:
    (error,) = sim.unsupported(hopper(form + ";", "u64"))
    assert "does not know" in str(error)
