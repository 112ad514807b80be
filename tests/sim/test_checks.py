"""check=True: races and uses of uninitialised values, each with its place; and what is none."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.sim.programs import program
from tilec import sim
from tilec.sim.errors import SimError

SHARED = ".reg .b32 %s, %s0; .shared .align 16 .b8 buffer[4096]; mov.u32 %s0, buffer; " \
    "mad.lo.u32 %s, %t, 4, %s0; "
NEXT = "add.u32 %r9, %t, 1; and.b32 %r9, %r9, 63; mad.lo.u32 %r9, %r9, 4, %s0; "
OUT = "st.global.b32 [%o], %r1;"


def run(body: str, block: int = 64, grid: int = 1, seed: int | None = None,
        params: str = "u64 u64") -> list[np.ndarray]:
    args = [np.zeros(256 * grid, np.uint32), np.arange(256 * grid, dtype=np.uint32)]
    sim.run(program(body, params, block), "k", args, (grid, 1, 1), seed=seed, check=True)
    return args


def clean(body: str, **options: Any) -> None:
    for seed in (None, 0, 1):
        run(body, seed=seed, **options)


def fails(body: str, *said: str, **options: Any) -> None:
    """Every seed gives an error that says these patterns."""
    for seed in (None, 0, 1):
        with pytest.raises(SimError) as caught:
            run(body, seed=seed, **options)
        for pattern in said:
            assert re.search(pattern, str(caught.value)), str(caught.value)


# -- races in shared memory -----------------------------------------------------------------------

ROTATE = "st.shared.b32 [%s], %t; {} " + NEXT + "ld.shared.b32 %r1, [%r9];" + OUT


def test_barriers_order() -> None:
    clean(SHARED + ROTATE.format("bar.sync 0;"))
    clean(SHARED + ROTATE.format("barrier.sync 3, 64;"))
    clean(SHARED + "setp.eq.u32 %p1, %t, 0;" + ROTATE.format("bar.red.popc.u32 %r2, 0, %p1;"))
    fails(SHARED + ROTATE.format(""), r"race: it (reads|writes) shared address 0x\w+",
          r"thread \d+ \(warp \d\).* with nothing that orders", r"st\.shared\.b32 \[%s\], %t;",
          r"ld\.shared\.b32 %r1, \[%r9\];")
    # A warp's own barrier does not order the last lane's neighbour, which is in the other warp.
    fails(SHARED + ROTATE.format("bar.warp.sync -1;"), "race|uninitialised")
    clean(SHARED + ROTATE.format("bar.warp.sync -1;").replace("63", "31"), block=32)
    # Lanes of one warp are not ordered without it, nor by what is no barrier of memory.
    fails(SHARED + ROTATE.format("").replace("63", "31"), "race", block=32)
    fails(SHARED + ROTATE.format("shfl.sync.idx.b32 %r3, %t, 0, 31, -1;").replace("63", "31"),
          "race", block=32)


def test_the_next_round_waits_too() -> None:
    turn = "st.shared.b32 [%s], %t; bar.sync 0; " + NEXT + "ld.shared.b32 %r1, [%r9]; "
    clean(SHARED + turn + "bar.sync 0; st.shared.b32 [%s], %r1;" + OUT)
    fails(SHARED + turn + "st.shared.b32 [%s], %r1;" + OUT,
          "race: it writes shared address .*which thread .*reads")


def test_producer_and_consumer() -> None:
    """Warp 0 arrives and goes on, warp 1 waits for it."""
    body = """setp.lt.u32 %p1, %t, 32; @!%p1 bra TAKE;
    st.shared.b32 [%s], 5; bar.arrive 1, 64; {} bra END;
    TAKE: bar.sync 1, 64; ld.shared.b32 %r1, [%s+-128]; st.global.b32 [%o], %r1; END:"""
    clean(SHARED + body.format(""))
    fails(SHARED + body.format("st.shared.b32 [%s], 6;"), "race")
    fails(SHARED + body.replace("bar.sync 1, 64;", "").format(""), "race|uninitialised")


def test_writes() -> None:
    clean(SHARED + "st.shared.b32 [%s0], 7;")  # all the same
    fails(SHARED + "st.shared.b32 [%s0], %t;", "race: it writes .*which thread .* writes")
    fails(SHARED + "setp.lt.u32 %p1, %t, 32; @%p1 st.shared.b32 [%s0], 1;"
          "@!%p1 st.shared.b32 [%s0], 2;", "race: it writes")
    clean(SHARED + "setp.lt.u32 %p1, %t, 1; @%p1 st.shared.b32 [%s0], 1; bar.sync 0;"
          "ld.shared.b32 %r1, [%s0];" + OUT)
    clean(SHARED + "sub.u32 %s, %s, %t; sub.u32 %s, %s, %t; sub.u32 %s, %s, %t;"
          "st.shared.u8 [%s], %t;")  # neighbouring bytes
    fails(SHARED + "sub.u32 %s, %s, %t; sub.u32 %s, %s, %t; sub.u32 %s, %s, %t;"
          "st.shared.u8 [%s], %t; ld.shared.u8 %r1, [%s+1];", "race")


def test_the_racing_element_is_named() -> None:
    """Of a warp's store, the one that another warp has written, and not to the same value."""
    first = SHARED + "setp.lt.u32 %p1, %t, 32; setp.eq.u32 %p2, %t, 5; @%p2 st.shared.b32 [%s], 9; "
    second = f"add.u32 %s, %s, {-128 + 4 * 2}; @!%p1 st.shared.b32 [%s], %t;"
    fails(first + second, r"race: it writes shared address 0x0*414\b")


def test_matrices() -> None:
    store = "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%s], {%t};"
    load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%s];" + OUT
    row = "and.b32 %r3, %t, 7; mad.lo.u32 %s, %r3, 16, %s0;"
    clean(SHARED + row + store + "bar.warp.sync -1;" + load, block=32)
    other = row + store + "xor.b32 %s, %s, 16;"  # each lane gives another's row
    clean(SHARED + other + "bar.warp.sync -1;" + load, block=32)
    fails(SHARED + other + load, "race: it reads .*stmatrix", block=32)
    fails(SHARED + row + store + "bar.sync 0;" + load, "race: it writes .*stmatrix", block=64)


# -- asynchronous copies --------------------------------------------------------------------------

COPY = "cp.async.ca.shared.global [%s], [%i], 4; cp.async.commit_group; "


def test_copies() -> None:
    read = "ld.shared.b32 %r1, [%s];" + OUT
    others = NEXT + "ld.shared.b32 %r1, [%r9];" + OUT
    clean(SHARED + COPY + "cp.async.wait_group 0;" + read)
    clean(SHARED + COPY + "cp.async.wait_all; bar.sync 0;" + others)
    fails(SHARED + COPY + read, r"race: it reads .*which a cp.async of thread \d+ \(warp \d\) writ")
    fails(SHARED + COPY + "bar.sync 0;" + others, "a cp.async of thread")
    fails(SHARED + COPY + "cp.async.wait_group 0;" + others, "a cp.async of thread")
    fails(SHARED + COPY + "bar.sync 0; cp.async.wait_group 0;" + others, "a cp.async of thread")
    # The wait lets the newest group be: that of the second copy.
    more = COPY + COPY.replace("[%s]", "[%s+1024]") + "cp.async.wait_group {};"
    clean(SHARED + more.format(1) + read)
    fails(SHARED + more.format(2) + read, "a cp.async of thread")
    fails(SHARED + more.format(1) + read.replace("[%s]", "[%s+1024]"), "a cp.async of thread")
    fails(SHARED + COPY.replace("cp.async.commit_group;", "") + "cp.async.wait_group 0;" + read,
          "a cp.async of thread")


def test_copies_into_what_is_read() -> None:
    """A slot is filled again while others read it; and a source is overwritten under a copy."""
    body = COPY + "cp.async.wait_all; bar.sync 0;" + NEXT + "ld.shared.b32 %r1, [%r9]; {}" + COPY \
        + "cp.async.wait_all; bar.sync 0;" + OUT
    clean(SHARED + body.format("bar.sync 0;"))
    fails(SHARED + body.format(""), r"race: it writes \(as a cp.async of thread .*which thread \d+ "
          r"\(warp \d\) reads")
    late = COPY + "{} st.global.b32 [%i], 0; cp.async.wait_all;"
    clean(SHARED + late.format("cp.async.wait_all;"))
    fails(SHARED + late.format(""), "race: it writes global .*which a cp.async .*reads")


# -- global memory --------------------------------------------------------------------------------

def test_within_a_cta() -> None:
    body = "st.global.b32 [%o], %t; {} ld.global.b32 %r1, [%q]; st.global.b32 [%o+1024], %r1;"
    head = ".reg .b64 %q; ld.param.u64 %q, [p0]; xor.b32 %r3, %t, 33; mad.wide.u32 %q, %r3, 4, %q;"
    body = head + body.replace("[%o+1024]", "[%i]")
    clean(body.format("bar.sync 0;"))
    fails(body.format(""), "race: it (reads|writes) global address .* of argument 0")


def test_between_ctas() -> None:
    every = "ld.param.u64 %rd1, [p0]; "
    clean(every + "st.global.b32 [%rd1], 3;", grid=3)
    fails(every + "st.global.b32 [%rd1], %c;", r"writes .*thread \d+ \(warp \d\) of CTA \(\d, 0, 0",
          grid=3)
    clean(every + "ld.global.b32 %r1, [%rd1]; st.global.b32 [%o+4], %r1;", grid=1, block=1)
    # One CTA reads what the next one writes, whichever comes first.
    window = "ld.global.b32 %r1, [%o+{}]; add.u32 %r1, %r1, 1; st.global.b32 [%o], %r1;"
    clean(window.format(0), grid=3)
    fails(window.format(64 * 4), "race: it (reads|writes) global .* of CTA", grid=3)
    # Barriers are those of a CTA.
    fails(window.format(64 * 4).replace("add", "bar.sync 0; add"), "of CTA", grid=3)


def test_atomics_between_ctas() -> None:
    """The last of the CTAs to arrive reads what all have left."""
    body = """ld.param.u64 %rd1, [p1]; mad.wide.u32 %rd2, %c, 4, %rd1;
    setp.ne.u32 %p1, %t, 0; @%p1 bra END; {store} [%rd2+64], %c;
    {atom} %r1, [%rd1+512], 1; setp.ne.u32 %p2, %r1, 514; @%p2 bra END;
    ld.global.b32 %r2, [%rd1+64]; ld.global.b32 %r3, [%rd1+68]; ld.global.b32 %r4, [%rd1+72];
    add.u32 %r2, %r2, %r3; st.global.b32 [%rd1+1024], %r2; END:""".replace("514", "130")
    parts = {"store": "st.global.b32", "atom": "atom.global.gpu.acq_rel.add.u32"}
    clean(body.format(**parts), grid=3)
    fails(body.format(**parts | {"atom": "atom.global.gpu.relaxed.add.u32"}), "of CTA", grid=3)
    fails(body.format(**parts | {"atom": "atom.global.gpu.acquire.add.u32"}), "of CTA", grid=3)
    # Atomics race with nothing but plain accesses.
    add = "ld.param.u64 %rd1, [p0]; red.global.add.u32 [%rd1], 1; {}"
    clean(add.format(""), grid=3)
    fails(add.format("ld.global.b32 %r1, [%rd1];"), "race")
    fails(add.format("ld.global.b32 %r1, [%rd1];"), "race", grid=2, block=1)
    clean(add.format("ld.relaxed.gpu.global.b32 %r1, [%rd1];"), grid=2)


# -- uninitialised values -------------------------------------------------------------------------

def test_registers() -> None:
    fails("st.global.b32 [%o], %r7;", "stores a value that depends on an uninitialised value",
          "what is read of %r7 before it is written")
    fails("add.u32 %r1, %t, %r7; mul.lo.u32 %r1, %r1, 3;" + OUT, "uninitialised.*%r7")
    fails("mad.wide.u32 %rd1, %r7, 4, %o; st.global.b32 [%rd1], 1;", "uses an address")
    fails("setp.eq.u32 %p1, %r7, 0; @%p1 bra END; st.global.b32 [%o], 1; END:", "by a predicate")
    fails("setp.eq.u32 %p1, %r7, 0; @%p1 st.global.b32 [%o], 1;", "by a predicate")
    fails("shfl.sync.bfly.b32 %r1, %r7, 1, 31, -1;" + OUT, "uninitialised")
    fails("atom.global.add.u32 %r1, [%o], %r7;", "uses a value")
    clean("add.u32 %r1, %t, %r7;")  # nothing comes of it
    # The thread that stores what only others wrote.
    fails("setp.lt.u32 %p1, %t, 40; @%p1 mov.u32 %r1, 5;" + OUT, "thread 40")
    clean("setp.lt.u32 %p1, %t, 40; @%p1 mov.u32 %r1, 5; @!%p1 mov.u32 %r1, 6;" + OUT)
    clean("setp.lt.u32 %p1, %t, 40; @%p1 mov.u32 %r1, 5; @%p1 " + OUT)
    # Written in a loop's first turn, read in the next.
    turns = "mov.u32 %r2, 0; AGAIN: setp.eq.u32 %p1, %r2, {}; @%p1 bra READ; mov.u32 %r1, 5;" \
        "bra NEXT; READ: st.global.b32 [%o], %r1; NEXT: add.u32 %r2, %r2, 1; " \
        "setp.lt.u32 %p2, %r2, 2; @%p2 bra AGAIN;"
    clean(turns.format(1))
    fails(turns.format(0), "uninitialised")


PARTS = [
    ("mov.b32 %r1, {%h1, %h2}; mov.b32 {%h3, %h4}, %r1; st.global.b16 [%o], %h3;", True),
    ("mov.b32 %r1, {%h1, %h2}; mov.b32 {%h3, %h4}, %r1; st.global.b16 [%o], %h4;", False),
    ("mov.b32 %r1, {%h1, %h2};" + OUT, False),
    ("mov.b32 %r1, {%h1, %h2}; and.b32 %r1, %r1, 65535;" + OUT, True),
    ("mov.b32 %r1, {%h1, %h2}; and.b32 %r1, %r1, 131071;" + OUT, False),
    ("mov.b32 %r1, {%h1, %h2}; or.b32 %r1, %r1, 4294901760;" + OUT, True),
    ("mov.b32 %r1, {%h2, %h1}; shr.u32 %r1, %r1, 16;" + OUT, True),
    ("mov.b32 %r1, {%h2, %h1}; shr.u32 %r1, %r1, 15;" + OUT, False),
    ("mov.b32 %r1, {%h1, %h2}; shl.b32 %r1, %r1, 16;" + OUT, True),
    ("mov.b32 %r1, {%h1, %h2}; bfe.u32 %r1, %r1, 4, 12;" + OUT, True),
    ("mov.b32 %r1, {%h1, %h2}; bfi.b32 %r1, %t, %r1, 16, 16;" + OUT, True),
    ("mov.b32 %r1, {%h1, %h2}; bfi.b32 %r1, %t, %r1, 16, 15;" + OUT, False),
    ("mov.b32 %r1, {%h1, %h2}; prmt.b32 %r1, %r1, %t, 0x5410;" + OUT, True),
    ("mov.b32 %r1, {%h1, %h2}; prmt.b32 %r1, %r1, %t, 0x5420;" + OUT, False),
    ("mov.b32 %r1, {%h1, %h2}; cvt.u16.u32 %h3, %r1; st.global.b16 [%o], %h3;", True),
    ("mov.b32 %r1, {%h1, %h2}; add.f16x2 %r1, %r1, %r1; st.global.b16 [%o], %r1;", True),
    # Bits of sums and products depend on those below.
    *((f"mov.b32 %r1, {{{pair}}}; {op}; st.global.b16 [%o], %r1;", pair == "%h1, %h2")
      for pair in ("%h1, %h2", "%h2, %h1") for op in (
          "add.u32 %r1, %r1, %r1", "sub.s32 %r1, %t, %r1", "neg.s32 %r1, %r1",
          "mul.lo.u32 %r1, %r1, %t", "mad.lo.s32 %r1, %t, %r1, %t", "mad.lo.s32 %r1, %t, %t, %r1")),
    ("mov.b32 %r1, {%h1, %h2}; add.u32 %r1, %r1, 1;" + OUT, False),
    ("mov.b32 %r1, {%h1, %h2}; add.u32 %r1, %r1, %r1; and.b32 %r1, %r1, 65535;" + OUT, True),
    ("mov.b32 %r1, {%h1, %h2}; add.u32 %r1, %r1, %r1; and.b32 %r1, %r1, 131072;" + OUT, False),
    ("mov.b32 %r1, {%h1, %h2}; mul.hi.u32 %r1, %r1, %t; st.global.b16 [%o], %r1;", False),
    ("mov.b32 %r1, {%h1, %h2}; add.sat.s32 %r1, %r1, 1; st.global.b16 [%o], %r1;", False),
    ("cvt.rn.bf16x2.f32 %r1, %r7, %t; st.global.b16 [%o], %r1;", True),
    ("cvt.rn.bf16x2.f32 %r1, %t, %r7; st.global.b16 [%o], %r1;", False),
    ("selp.b32 %r1, %t, %r7, %p1;" + OUT, True),
    ("selp.b32 %r1, %r7, %t, %p1;" + OUT, False),
    ("setp.eq.u32 %p2, %r7, 0; and.pred %p2, %p2, %p3; @%p2 st.global.b32 [%o], 1;", True),
    ("setp.eq.u32 %p2, %r7, 0; and.pred %p2, %p2, %p1; @%p2 st.global.b32 [%o], 1;", False),
    ("shfl.sync.idx.b32 %r1|%p4, %r8, 3, 31, -1; @%p4 st.global.b32 [%o], %r1;", True),
    ("shfl.sync.idx.b32 %r1|%p4, %r8, 9, 31, -1; @%p4 st.global.b32 [%o], %r1;", False),
]


@pytest.mark.parametrize(("body", "good"), PARTS)
def test_parts_of_registers(body: str, good: bool) -> None:
    """%h2 and %r7 are not written, %r8 by lane 3 alone; %p1 is true and %p3 is not."""
    head = "mov.b16 %h1, 1; setp.lt.u32 %p1, %t, 64; not.pred %p3, %p1; and.b32 %r4, %t, 31;" \
        "setp.eq.u32 %p5, %r4, 3; @%p5 mov.u32 %r8, 1;"
    (clean if good else fails)(head + body)


def test_shared_memory() -> None:
    fails(SHARED + "ld.shared.b32 %r1, [%s];" + OUT, "stores a value .*uninitialised",
          r"shared memory that is read before it is written \(PTX line \d+: ld.shared.b32 %r1")
    clean(SHARED + "ld.shared.b32 %r1, [%s]; add.u32 %r1, %r1, 1;")
    half = "setp.lt.u32 %p1, %t, 32; @%p1 st.shared.b32 [%s], 1; bar.sync 0;" \
        "ld.shared.b32 %r1, [%s]; {}" + OUT
    fails(SHARED + half.format(""), "thread 32")
    clean(SHARED + half.format("@!%p1 mov.u32 %r1, 0;"))
    fails(SHARED + half.format("").replace("bar.sync 0;", "bar.sync 0; mov.u32 %r1, 0; @%p1 bra X;"
          "ld.shared.b32 %r2, [%s]; st.shared.b32 [%s], %r2; X:"), "thread 32")
    clean(SHARED + "ld.shared.b32 %r1, [%s];" + COPY + "cp.async.wait_all; ld.shared.b32 %r1, [%s];"
          + OUT)
    fails(SHARED + "and.b32 %r3, %t, 7; mad.lo.u32 %s, %r3, 16, %s0;"
          "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%s];" + OUT, "unin", block=32)
    fails(SHARED + "atom.shared.add.u32 %r1, [%s], 1;", r"uses shared address 0x\w+, .*uninitial")
    clean(SHARED + "st.shared.b32 [%s], 0; red.shared.add.u32 [%s], 1;")
    # Every CTA begins anew.
    fails(SHARED + "setp.eq.u32 %p1, %c, 0; @%p1 st.shared.b32 [%s], 1; ld.shared.b32 %r1, [%s];"
          + OUT, r"CTA \(1, 0, 0\)", grid=2)


def test_products() -> None:
    """Row 3 of a is undefined: so is row 3 of d, and no other."""
    body = """mov.b32 %r8, 0; shr.u32 %r5, %t, 2; setp.ne.u32 %p1, %r5, 3; @%p1 mov.b32 %r7, 0;
    mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {{%r1, %r2, %r3, %r4}}, {{%r7, %r8}},
        {{%r8}}, {{%r8, %r8, %r8, %r8}}; {} st.global.b32 [%o+128], %r3;"""
    clean(body.format("@%p1 st.global.b32 [%o], %r1;"), block=32)
    fails(body.format("@!%p1 st.global.b32 [%o], %r2;"), "thread 12", block=32)


def test_local_memory() -> None:
    head = ".local .align 16 .b8 stack[64]; .reg .b64 %l; mov.u64 %l, stack; {} " \
        "ld.local.b32 %r1, [%l+8];" + OUT
    clean(head.format("st.local.b32 [%l+8], %t;"))
    fails(head.format("st.local.b32 [%l+4], %t;"), "local memory that is read before it is written")
    fails(head.format("st.local.b16 [%l+8], %t;"), "uninitialised")


def test_nothing_without_check() -> None:
    args = [np.zeros(256, np.uint32)] * 2
    sim.run(program(SHARED + ROTATE.format("") + "st.global.b32 [%o], %r7;"), "k", args, (1, 1, 1))
