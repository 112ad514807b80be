"""CTAs that wait for each other take turns; what never ends is found, and said where."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.sim.programs import hopper
from tilec import sim
from tilec.sim import SimError, grid
from tilec.sim.decode import Decoder

Array = np.ndarray[Any, Any]
SEEDS = (None, 0, 1, 2, 3)
# Thread 0 polls until %want is there; then the whole CTA goes on.
WAIT = """setp.ne.u32 %p1, %t, 0; @%p1 bra MET;
    POLL: {poll} setp.ne.u32 %p1, %r1, %want; @%p1 bra POLL;
    MET: bar.sync 0;"""
POLLS = {"atom": "atom.acquire.gpu.global.or.b32 %r1, [%out], 0;",
         "ld": "ld.acquire.gpu.global.b32 %r1, [%out];",
         "sleep": "nanosleep.u32 20; ld.acquire.gpu.global.b32 %r1, [%out];"}
SIGNAL = """bar.sync 0; setp.ne.u32 %p1, %t, 0;
    @!%p1 red.release.gpu.global.add.u32 [%out], 1;"""


def kernel(body: str, threads: int = 64, more: str = "") -> str:
    return hopper(f".reg .b32 %want, %cta, %n; mov.u32 %cta, %ctaid.x; mov.u32 %n, %nctaid.x;"
                  f"mov.u32 %want, %cta; {body}", "u64", threads, more)


def run(text: Any, out: Array, ctas: int, **more: Any) -> Any:
    return sim.run(text, "k", [out], (ctas, 1, 1), shared_bytes=2048, **more)


def in_turn(poll: str) -> str:
    """Word 1 + t becomes 2 * itself + the CTA's number, from the last CTA to the first."""
    return f"""sub.u32 %want, %n, %cta; sub.u32 %want, %want, 1; {WAIT.format(poll=POLLS[poll])}
        mad.wide.u32 %rd1, %t, 4, %out; ld.global.b32 %r2, [%rd1+4];
        mad.lo.u32 %r2, %r2, 2, %cta; st.global.b32 [%rd1+4], %r2; {SIGNAL}"""


def last_first(ctas: int) -> int:
    total = 0
    for cta in reversed(range(ctas)):
        total = 2 * total + cta
    return total


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("poll", POLLS)
@pytest.mark.parametrize("threads", [32, 96])
@pytest.mark.sample(10)
def test_turns(poll: str, threads: int, seed: int | None) -> None:
    out = np.zeros(1 + threads, np.uint32)
    run(kernel(in_turn(poll), threads), out, 5, seed=seed, check=True)
    assert out[0] == 5 and (out[1:] == last_first(5)).all()


def test_clusters_take_turns() -> None:
    out = np.zeros(65, np.uint32)
    run(kernel(in_turn("ld"), 64, ".reqnctapercluster 2, 1, 1"), out, 6, check=True)
    assert out[0] == 6 and (out[1:] == last_first(6)).all()


def test_counts_are_those_of_all() -> None:
    """Each CTA stores once, wherever it waited."""
    text, out = kernel(in_turn("atom"), 32), np.zeros(33, np.uint32)
    counts = run(text, out, 4, count=True)
    assert counts is not None
    stores = [row for row in counts.rows if row.text.startswith("st.global")]
    assert [row.instructions for row in stores] == [4]


def test_a_second_launch_begins_anew() -> None:
    text = sim.parse(kernel(in_turn("atom"), 32))
    for _ in range(3):
        out = np.zeros(33, np.uint32)
        run(text, out, 3, check=True)
        assert (out[1:] == last_first(3)).all()


def test_decoders_serve_many_ctas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those that wait at a time need one of their own."""
    made = []
    plain = Decoder.beside
    monkeypatch.setattr(Decoder, "beside", lambda self: made.append(self) or plain(self))
    out = np.zeros(33, np.uint32)
    first = in_turn("atom").replace("sub.u32 %want, %n, %cta; sub.u32 %want, %want, 1;", "")
    run(kernel(first, 32), out, 9)
    assert out[0] == 9 and not made  # in the order of the grid none waits
    out[:] = 0
    run(kernel(in_turn("atom"), 32), out, 9)
    assert out[0] == 9 and len(made) == 8


def failure(body: str, ctas: int = 3, **more: Any) -> str:
    with pytest.raises(SimError) as caught:
        run(kernel(body), np.zeros(65, np.uint32), ctas, **more)
    return str(caught.value)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("poll", POLLS)
@pytest.mark.sample(6)
def test_a_deadlock_says_who_waits_where(poll: str, seed: int | None) -> None:
    text = failure("add.u32 %want, %want, 1;" + in_turn(poll).partition(";")[2].partition(";")[2],
                   seed=seed, check=True)
    assert text.startswith("k: deadlock: nothing changes in the loops that go round")
    for cta in range(3):
        assert re.search(rf"CTA \({cta}, 0, 0\) \(PTX line \d+: .*(atom|ld)\.acquire", text)


def test_more_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of CTAs that may not all wait at once the last is never begun."""
    monkeypatch.setattr(grid, "TOGETHER", 4)
    out = np.zeros(33, np.uint32)
    run(kernel(in_turn("ld"), 32), out, 4)
    assert out[0] == 4
    assert "deadlock" in failure(in_turn("ld"), 6)


@pytest.mark.parametrize("seed", SEEDS)
def test_warps_of_a_waiting_cta_go_on(seed: int | None) -> None:
    """Warp 0 waits for another CTA; warp 1 for warp 0's flag, warp 2 for a while, then signals."""
    out = np.zeros(8, np.uint32)
    run(kernel("""
        .shared .align 4 .b32 flag; mov.u32 %r5, flag; setp.ne.u32 %p1, %t, 0;
        @!%p1 st.volatile.shared.b32 [%r5], 0; bar.sync 0; shr.u32 %r6, %t, 5;
        and.b32 %r7, %t, 31; setp.ne.u32 %p2, %r7, 0; @%p2 bra DONE;
        setp.eq.u32 %p1, %r6, 1; @%p1 bra ONE; setp.eq.u32 %p1, %r6, 2; @%p1 bra TWO;
        ZERO: ld.acquire.gpu.global.b32 %r1, [%out]; setp.ne.u32 %p1, %r1, %n; @%p1 bra ZERO;
        st.volatile.shared.b32 [%r5], 7; bra DONE;
        ONE: ld.volatile.shared.b32 %r1, [%r5]; setp.ne.u32 %p1, %r1, 7; @%p1 bra ONE;
        red.relaxed.gpu.global.add.u32 [%out+4], 1; bra DONE;
        TWO: mov.u32 %r8, 0;
        MORE: add.u32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, 40; @%p1 bra MORE;
        red.release.gpu.global.add.u32 [%out], 1;
        DONE:""", 96), out, 3, seed=seed)
    assert out[:2].tolist() == [3, 3]


def test_a_wait_that_gives_up() -> None:
    """A loop that counts its rounds is no deadlock, however often nothing is there."""
    out = np.zeros(65, np.uint32)
    run(kernel("""mov.u32 %r5, 0;
        POLL: add.u32 %r5, %r5, 1; ld.acquire.gpu.global.b32 %r1, [%out];
        setp.eq.u32 %p1, %r1, 0; setp.lt.and.u32 %p1, %r5, 700, %p1; @%p1 bra POLL;
        mad.wide.u32 %rd1, %t, 4, %out; st.global.b32 [%rd1+4], %r5;"""), out, 1)
    assert (out[1:] == 700).all()
