"""Branches and reconvergence, barriers, deadlocks, calls, printing and assertions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sim.programs import program
from tilec import sim

ONE = (1, 1, 1)
STORE = "st.global.u32 [%o], %r1;"


def run(body: str, params: str = "u64", block: int = 64, outside: str = "", **more: Any) -> Any:
    out = np.zeros(block, np.uint32)
    sim.run(program(body, params, block, outside), "k", [out, *more.pop("args", [])], ONE, **more)
    return out


def failure(body: str, **more: Any) -> str:
    with pytest.raises(sim.SimError) as caught:
        run(body, **more)
    return str(caught.value)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_loops_with_different_trip_counts(seed: int | None) -> None:
    out = run("""
        mov.u32 %r1, 0; mov.u32 %r2, 0;
    outer: setp.ge.u32 %p1, %r2, %t; @%p1 bra done;
        mov.u32 %r3, 0;
    inner: add.u32 %r1, %r1, 1; add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, %r2; @%p2 bra inner;
        add.u32 %r2, %r2, 1; bra.uni outer;
    done:""" + STORE, seed=seed)  # fmt: skip
    assert np.array_equal(out, [sum(max(1, i) for i in range(t)) for t in range(64)])


def test_diverged_threads_meet_again() -> None:
    """After the if, all 32 lanes execute activemask together, whichever arm they took."""
    out = run("""
        and.b32 %r2, %t, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra even;
        mov.u32 %r3, 1; setp.lt.u32 %p2, %t, 9; @%p2 bra join; add.u32 %r3, %r3, 1; bra join;
    even: mov.u32 %r3, 3;
    join: activemask.b32 %r1;""" + STORE)  # fmt: skip
    assert (out == 0xFFFFFFFF).all()


def test_blocks_placed_out_of_order_meet_again() -> None:
    """The join block stands first in the text, and loops jump backwards to their arms."""
    out = run("""
        mov.u32 %r2, 0; bra start;
    join: activemask.b32 %r1; bra end;
    rare: add.u32 %r2, %r2, 5; bra join;
    start: setp.lt.u32 %p1, %t, 5; @%p1 bra rare;
        setp.lt.u32 %p2, %t, 40; @%p2 bra join; bra rare;
    end:""" + STORE)  # fmt: skip
    assert (out == 0xFFFFFFFF).all()


def test_branch_table_and_early_exit() -> None:
    out = run("""
        and.b32 %r2, %t, 3; setp.eq.u32 %p1, %t, 63; @%p1 exit;
    table: .branchtargets a, b, c, d;
        brx.idx %r2, table;
    a: mov.u32 %r1, 10; bra end;
    b: mov.u32 %r1, 11; bra end;
    c: mov.u32 %r1, 12; bra end;
    d: mov.u32 %r1, 13;
    end:""" + STORE)  # fmt: skip
    want = 10 + np.arange(64) % 4
    want[63] = 0
    assert np.array_equal(out, want)
    assert "branch index 5 of 1 targets" in failure(
        "t: .branchtargets x; mov.u32 %r2, 5; brx.idx %r2, t; x:")  # fmt: skip


def test_scopes_have_their_own_names() -> None:
    out = run("""
        mov.u32 %r1, 0;
        { .reg .b32 %r1; .reg .pred p; mov.u32 %r1, 7; setp.lt.u32 p, %t, 4;
          @p bra L; mov.u32 %r1, 8; L: add.u32 %r2, %r1, 0; }
        { .reg .pred p; setp.lt.u32 p, %t, 8; @p bra L; add.u32 %r2, %r2, 100; L: }
        add.u32 %r1, %r1, %r2;""" + STORE)  # fmt: skip
    t = np.arange(64)
    assert np.array_equal(out, np.where(t < 4, 7, 8) + np.where(t < 8, 0, 100))


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("block", [64, 256, 96, 40])
def test_barriers_order_shared_memory(block: int, seed: int | None) -> None:
    out = run(f"""
        mov.u32 %r2, s; mad.lo.u32 %r3, %t, 4, %r2; mov.u32 %r1, %t; mov.u32 %r4, 0;
    again: st.shared.u32 [%r3], %r1; bar.sync 0;
        sub.u32 %r5, {block - 1}, %t; mad.lo.u32 %r5, %r5, 4, %r2; ld.shared.u32 %r6, [%r5];
        barrier.cta.sync.aligned 1;
        add.u32 %r1, %r6, 1; add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 5; @%p1 bra again;"""
              + STORE, block=block, seed=seed, outside=".shared .b32 s[1024];")  # fmt: skip
    assert np.array_equal(out, np.arange(block)[::-1] + 5)


def test_seeds_show_a_missing_barrier() -> None:
    """In step, every store comes before every load; under a seed warps run apart."""
    body = (
        """
        mov.u32 %r2, s; mad.lo.u32 %r3, %t, 4, %r2; st.shared.u32 [%r3], %t; BARRIER
        xor.b32 %r5, %t, 63; mad.lo.u32 %r5, %r5, 4, %r2; ld.shared.u32 %r1, [%r5];"""
        + STORE
    )
    want = np.arange(64)[::-1]
    for barrier, fails in (("bar.sync 0;", False), ("", True)):
        text = body.replace("BARRIER", barrier)
        assert np.array_equal(run(text, outside=".shared .b32 s[64];"), want)
        outs = [run(text, outside=".shared .b32 s[64];", seed=i) for i in range(4)]
        assert any(not np.array_equal(out, want) for out in outs) == fails


def test_failed_runs_change_nothing() -> None:
    out = np.zeros(64, np.uint32)
    with pytest.raises(sim.SimError):
        sim.run(program("st.global.u32 [%o], 7; trap;", "u64"), "k", [out], ONE)
    assert not out.any()


def test_named_barriers_and_arrive() -> None:
    """Warps 0 and 1 produce and only arrive; warps 2 and 3 wait for them."""
    body = (
        """
        mov.u32 %r2, s; mov.u32 %r1, 0; setp.ge.u32 %p1, %t, 64; @%p1 bra consume;
        mad.lo.u32 %r3, %t, 4, %r2; st.shared.u32 [%r3], %t; bar.arrive 3, 128; bra end;
    consume: bar.sync 3, 128; sub.u32 %r4, %t, 64; mad.lo.u32 %r3, %r4, 4, %r2;
        ld.shared.u32 %r1, [%r3];
    end:"""
        + STORE
    )
    for seed in (None, 0, 1, 2):
        out = run(body, block=128, seed=seed, outside=".shared .b32 s[64];")
        assert np.array_equal(out[64:], np.arange(64))
    text = failure(body.replace("bar.sync 3, 128", "bar.sync 3, 256"), block=128,
                   outside=".shared .b32 s[64];")  # fmt: skip
    assert "barrier 3 is used with 128 threads while it already waits for 256" in text or (
        "barrier 3 is used with 256 threads while it already waits for 128" in text
    )


def test_barrier_reduction() -> None:
    out = run("""
        setp.lt.u32 %p1, %t, 40;
        bar.red.popc.u32 %r1, 0, %p1; bar.red.and.pred %p2, 0, %p1; bar.red.or.pred %p3, 1, %p1;
        barrier.cta.red.or.aligned.pred %p4, 2, !%p1;
        @%p2 add.u32 %r1, %r1, 1000; @%p3 add.u32 %r1, %r1, 2000; @%p4 add.u32 %r1, %r1, 4000;"""
              + STORE)  # fmt: skip
    assert (out == 6040).all()


def test_unaligned_barrier_takes_diverged_threads() -> None:
    out = run("""
        mov.u32 %r1, 1; setp.lt.u32 %p1, %t, 10; @%p1 bra other;
        barrier.sync 0; bra end;
    other: mov.u32 %r1, 2; barrier.sync 0;
    end:""" + STORE)  # fmt: skip
    assert np.array_equal(out, np.where(np.arange(64) < 10, 2, 1))


def test_exited_warps_leave_the_barrier() -> None:
    out = run("setp.lt.u32 %p1, %t, 32; @%p1 ret; bar.sync 0; mov.u32 %r1, 5;" + STORE)
    assert np.array_equal(out, np.where(np.arange(64) < 32, 0, 5))


def test_deadlocks_are_reported() -> None:
    text = failure(".loc 1 7 0\n"
                   "setp.lt.u32 %p1, %t, 32; @%p1 bra end; bar.sync 2, 64; end:",
                   outside='.file 1 "/k.py"')  # fmt: skip
    assert "/k.py:7:1: k, CTA (0, 0, 0): deadlock" in text
    assert "warp 1 at barrier 2" in text and "needs 64 threads and has 32" in text
    assert "32 threads have exited" in text
    text = failure("""
        setp.lt.u32 %p1, %t, 10; @%p1 bra other; bar.sync 0; bra end; other: bar.sync 0; end:""")
    assert "diverged at a barrier that whole warps must reach together" in text
    assert "warp 0 lanes 0x000003ff" in text
    text = failure("setp.eq.u32 %p1, %t, 3; @%p1 bra end;"
                   "shfl.sync.bfly.b32 %r1, %t, 1, 31, -1; end: bar.sync 0;")  # fmt: skip
    assert "lanes of their member mask that never come" in text


def test_endless_loop() -> None:
    assert "deadlock: nothing changes in the loops that go round" in failure("L: bra L;")
    assert "more than 1000 jumps" in failure("L: add.u32 %r1, %r1, 1; bra L;", max_steps=1000)
    text = failure("""setp.lt.u32 %p1, %t, 7; L: add.u32 %r1, %r1, 1; @%p1 bra L;
        setp.lt.u32 %p1, %t, 9; bra L;""", max_steps=1000)
    assert "more than 1000 jumps" in text


def test_spin_between_lanes_of_a_warp() -> None:
    """Lane 0 waits for lane 1 of its own warp: both must advance."""
    out = run("""
        mov.u32 %r2, s; st.shared.u32 [%r2], 0; bar.sync 0; mov.u32 %r1, 1;
        setp.ne.u32 %p1, %t, 0; @%p1 bra send;
    spin: ld.volatile.shared.u32 %r3, [%r2]; setp.eq.u32 %p2, %r3, 0; @%p2 bra spin; bra end;
    send: setp.ne.u32 %p3, %t, 1; @%p3 bra end; st.volatile.shared.u32 [%r2], 9; mov.u32 %r1, 2;
    end:""" + STORE, outside=".shared .b32 s;")  # fmt: skip
    assert out[:3].tolist() == [1, 2, 1]


def test_trap_names_the_thread() -> None:
    text = failure("setp.eq.u32 %p1, %t, 37; @%p1 trap;")
    assert "thread 37 (warp 1): executes trap" in text
    assert "executes brkpt" in failure("brkpt;")


FUNCTIONS = """
.func (.param .b32 ret0) twice(.param .b32 a, .param .b64 unused)
{
    .reg .b32 %r<4>; .reg .pred %p<2>;
    ld.param.b32 %r1, [a]; setp.lt.u32 %p1, %r1, 8; @%p1 bra small;
    st.param.b32 [ret0], %r1; ret;
small: shl.b32 %r2, %r1, 1; st.param.b32 [ret0], %r2; ret;
}
.func (.param .b32 ret0) outer(.param .b32 a)
{
    .reg .b32 %r<4>;
    ld.param.b32 %r1, [a]; add.u32 %r1, %r1, 1;
    { .param .b32 x; .param .b64 y; .param .b32 z; st.param.b32 [x], %r1; st.param.b64 [y], 0;
      call.uni (z), twice, (x, y); ld.param.b32 %r2, [z]; }
    add.u32 %r2, %r2, %r1; st.param.b32 [ret0], %r2; ret;
}
"""


def test_calls_are_inlined() -> None:
    out = run("""
        { .param .b32 x; .param .b32 z; st.param.b32 [x], %t; call.uni (z), outer, (x);
          ld.param.b32 %r1, [z]; }
        setp.lt.u32 %p1, %t, 3;
        { .param .b32 x; .param .b32 z; st.param.b32 [x], %r1; @%p1 call (z), outer, (x);
          @%p1 ld.param.b32 %r1, [z]; }""" + STORE, outside=FUNCTIONS)  # fmt: skip

    def outer(a: int) -> int:
        return (2 * (a + 1) if a + 1 < 8 else a + 1) + a + 1

    want = [outer(outer(t)) if t < 3 else outer(t) for t in range(64)]
    assert np.array_equal(out, want)


def test_undefined_function_and_unknown_instruction() -> None:
    text = failure("{ .param .b32 x; call missing, (x); }")
    assert "the function 'missing', which this PTX does not define" in text
    ptx = program("setp.eq.u32 %p1, %t, 99; @%p1 frob.u32 %r1, %t;", "u64")
    sim.run(ptx, "k", [np.zeros(64, np.uint32)], ONE)
    (found,) = sim.unsupported(ptx)
    assert "the instruction 'frob'" in str(found) and found.ptx_line == 14
    assert "the simulator does not know the instruction 'frob'" in failure("frob.u32 %r1, %t;")


PRINT = """
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 fmt[40] = {116, 61, 37, 100, 32, 120, 61, 37, 46, 50, 102, 32, 37, 108, 108, 117, 32, 37, 115, 10, 0};
.global .align 1 .b8 word[4] = {104, 105, 33, 0};
"""  # noqa: E501


def test_printf() -> None:
    printed: list[str] = []
    run("""
        .local .align 8 .b8 buf[32];
        setp.ge.u32 %p1, %t, 2; @%p1 bra end;
        st.local.u32 [buf], %t; mov.f64 %rd1, 0d3FF4000000000000; st.local.f64 [buf+8], %rd1;
        st.local.u64 [buf+16], 12345678901; mov.u64 %rd2, word; st.local.u64 [buf+24], %rd2;
        mov.u64 %rd3, buf; cvta.local.u64 %rd3, %rd3; mov.u64 %rd4, fmt; cvta.global.u64 %rd4, %rd4;
        { .param .b64 a; .param .b64 b; .param .b32 r; st.param.b64 [a], %rd4;
          st.param.b64 [b], %rd3; call.uni (r), vprintf, (a, b); }
    end:""", outside=PRINT, on_print=printed.append)  # fmt: skip
    assert printed == [f"t={t} x=1.25 12345678901 hi!\n" for t in (0, 1)]


def test_printf_beside_a_called_function() -> None:
    """The parameters are those of the frame that calls, whichever was laid out last."""
    printed: list[str] = []
    function = ".func f (.param .b32 n) { .reg .b32 %x; ld.param.b32 %x, [n]; ret; }"
    run("""
        setp.ge.u32 %p1, %t, 1; @%p1 bra end;
        mov.u64 %rd4, word; cvta.global.u64 %rd4, %rd4;
        { .param .b64 a; .param .b64 b; .param .b32 r; st.param.b64 [a], %rd4;
          st.param.b64 [b], 0; call.uni (r), vprintf, (a, b); }
        { .param .b32 n; st.param.b32 [n], %t; call.uni f, (n); }
    end:""", outside=PRINT + function, on_print=printed.append)  # fmt: skip
    assert printed == ["hi!"]


def test_barrier_numbers_are_checked() -> None:
    assert "barrier 16: a CTA has barriers 0 to 15" in failure("bar.sync 16;")


def test_assertfail() -> None:
    text = failure("""
        setp.ne.u32 %p1, %t, 5; @%p1 bra end;
        mov.u64 %rd1, word; cvta.global.u64 %rd1, %rd1;
        { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
          st.param.b64 [a], %rd1; st.param.b64 [b], %rd1; st.param.b32 [c], 42;
          st.param.b64 [d], %rd1; st.param.b64 [e], 1;
          call.uni __assertfail, (a, b, c, d, e); }
    end:""", outside=PRINT)  # fmt: skip
    assert "thread 5 (warp 0): assertion failed: hi! (hi!:42, in hi!)" in text


def test_special_registers() -> None:
    registers = ("%laneid", "%warpid", "%ntid.x", "%nctaid.y", "%lanemask_lt", "%lanemask_ge",
                 "%warpsize", "%lanemask_eq", "%lanemask_le", "%lanemask_gt")  # fmt: skip
    lane = np.arange(64, dtype=np.uint64) % 32
    bit = np.uint64(1) << lane
    want = {
        "%laneid": lane, "%warpid": np.arange(64) // 32, "%ntid.x": 64, "%nctaid.y": 1,
        "%lanemask_lt": bit - 1, "%lanemask_ge": 0xFFFFFFFF ^ (bit - 1), "%warpsize": 32,
        "%lanemask_eq": bit, "%lanemask_le": (bit - 1) | bit,
        "%lanemask_gt": 0xFFFFFFFF ^ ((bit - 1) | bit),
    }  # fmt: skip
    for name in registers:
        assert np.array_equal(run(f"mov.u32 %r1, {name};" + STORE), np.broadcast_to(want[name], 64))
    out = run("mov.u64 %rd1, %clock64; mov.u64 %rd2, %clock64; setp.lt.u64 %p1, %rd1, %rd2;"
              "selp.u32 %r1, 1, 0, %p1; nanosleep.u32 20; "
              ""
              "griddepcontrol.wait; pmevent 1;" + STORE)  # fmt: skip
    assert (out == 1).all()
    out = run("mov.u64 %rd1, 4096; mapa.u64 %rd2, %rd1, 0; cvt.u32.u64 %r1, %rd2;" + STORE)
    assert (out == 4096).all()


def test_launch_arguments() -> None:
    ptx = program(STORE, "u64")
    out = np.zeros(64, np.uint32)
    with pytest.raises(sim.SimError, match=r"no kernel 'f' in this PTX; it has: k"):
        sim.run(ptx, "f", [out], ONE)
    with pytest.raises(sim.SimError, match=r"block=32, but kernel 'k' has .reqntid 64"):
        sim.run(ptx, "k", [out], ONE, block=32)
    bare = ptx.replace(".reqntid 64", "")
    with pytest.raises(sim.SimError, match=r"has no .reqntid: give block="):
        sim.run(bare, "k", [out], ONE)
    with pytest.raises(sim.SimError, match=r"1 to 1024 threads"):
        sim.run(bare, "k", [out], ONE, block=2048)
    sim.run(bare, "k", [out], ONE, block=64)
    cluster = ptx.replace(".reqntid 64", ".reqntid 64\n.reqnctapercluster 2, 1, 1")
    with pytest.raises(sim.SimError, match=r"does not consist of clusters of \(2, 1, 1\)"):
        sim.run(cluster, "k", [out], ONE)
