"""Forms among the threads of a warp and of a CTA, and of control flow."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.sim.forms.base import Form, poison, seed_of, special, values

BLOCK = 64
FULL = "0xffffffff"
READ = "ld.global.b32 %r1, [%i0];"
WRITE = "st.global.b32 [%o0], %r2;"
FLAG = "selp.b32 %r3, 1, 0, %p1; st.global.b32 [%o1], %r3;"
HALVES = "setp.lt.u32 %p5, %l, 11; selp.b32 %r9, 0x7ff, 0xfffff800, %p5;"
"""%r9 is the mask of the lane's side: 0..10 or 11..31."""


def each(name: str, body: str, inputs: int = 1, outputs: int = 1, block: int = BLOCK,
         few: bool = False, outside: str = "") -> Form:
    """A form on 32-bit values of every thread; `few` leaves it only values from 0 to 3."""
    data = [values("i32", seed_of(name, i), block) & np.uint32(3 if few else 0xFFFFFFFF)
            for i in range(inputs)]
    return special(name, body, [poison("i32", block)] * outputs, data, block, outside=outside)


def shuffles() -> Iterator[Form]:
    for mode, operands in (
        ("up", ("1, 0", "5, 0", "3, 0x1800", "40, 0", "2, 0x1004")),
        ("down", ("1, 31", "9, 31", "2, 0x181f", "1, 15")),
        ("bfly", ("1, 31", "16, 31", "31, 31", "3, 0x1c1f", "4, 3")),
        ("idx", ("0, 31", "17, 31", "5, 0x181f", "35, 31", "20, 7"))):
        for text in operands:
            name = f"shfl.sync.{mode}.b32"
            yield each(f"{name} {text}", f"{READ} {name} %r2|%p1, %r1, {text}, {FULL};"
                       f"{WRITE}{FLAG}", outputs=2)
        yield each(f"shfl.sync.{mode}.b32 registers", f"""{READ} ld.global.b32 %r4, [%i1];
                   and.b32 %r5, %r4, 31; and.b32 %r6, %r1, 0x1f1f;
                   shfl.sync.{mode}.b32 %r2|%p1, %r1, %r5, %r6, {FULL}; {WRITE}{FLAG}""",
                   inputs=2, outputs=2)
    yield each("shfl.sync.bfly.b32 halves of a warp", f"""{READ} mov.b32 %r2, 7;
               setp.lt.u32 %p5, %l, 16; @!%p5 bra OTHER;
               shfl.sync.bfly.b32 %r2, %r1, 5, 31, 0xffff; bra.uni JOIN;
               OTHER: shfl.sync.down.b32 %r2, %r1, 3, 31, 0xffff0000; JOIN: {WRITE}""")


def votes() -> Iterator[Form]:
    for few in (False, True):
        kind = "few" if few else "many"
        test = f"{READ} and.b32 %r4, %r1, 1; setp.eq.u32 %p2, %r4, 1;"
        if few:
            test = f"{READ} setp.gt.u32 %p2, %t, 20;"
        for mode in ("all", "any", "uni"):
            yield each(f"vote.sync.{mode}.pred {kind}",
                       f"{test} vote.sync.{mode}.pred %p1, %p2, {FULL}; selp.b32 %r2, 1, 0, %p1;"
                       f"vote.sync.{mode}.pred %p1, !%p2, {FULL}; {WRITE}{FLAG}", outputs=2)
        yield each(f"vote.sync.ballot.b32 {kind}",
                   f"{test} vote.sync.ballot.b32 %r2, %p2, {FULL}; {WRITE}")
    yield each("vote.sync.ballot.b32 halves", f"""{READ} {HALVES} and.b32 %r4, %r1, 1;
               setp.eq.u32 %p2, %r4, 1; @!%p5 bra OTHER;
               vote.sync.ballot.b32 %r2, %p2, 0x7ff; bra.uni JOIN;
               OTHER: vote.sync.ballot.b32 %r2, %p2, 0xfffff800; JOIN: {WRITE}""")
    yield each("activemask.b32", f"activemask.b32 %r2; {WRITE}", inputs=0)
    yield each("elect.sync", f"elect.sync %r2|%p1, {FULL}; {WRITE}{FLAG}", inputs=0, outputs=2)


def matches() -> Iterator[Form]:
    yield each("match.any.sync.b32", f"{READ} match.any.sync.b32 %r2, %r1, {FULL}; {WRITE}",
               few=True)
    yield each("match.any.sync.b64", f"""{READ} mov.b64 %w1, {{%r1, %r1}};
               match.any.sync.b64 %r2, %w1, {FULL}; {WRITE}""", few=True)
    for same in ("0", "3"):
        yield each(f"match.all.sync.b32 {same}", f"""{READ} and.b32 %r1, %r1, {same};
                   match.all.sync.b32 %r2|%p1, %r1, {FULL}; {WRITE}{FLAG}""", outputs=2)
    for op in ("add", "min", "max"):
        for ty in ("u32", "s32"):
            yield each(f"redux.sync.{op}.{ty}",
                       f"{READ} redux.sync.{op}.{ty} %r2, %r1, {FULL}; {WRITE}")
    for op in ("and", "or", "xor"):
        yield each(f"redux.sync.{op}.b32",
                   f"{READ} redux.sync.{op}.b32 %r2, %r1, {FULL}; {WRITE}")
    yield each("redux.sync.add.s32 halves", f"""{READ} {HALVES} @!%p5 bra OTHER;
               redux.sync.add.s32 %r2, %r1, 0x7ff; bra.uni JOIN;
               OTHER: redux.sync.max.s32 %r2, %r1, 0xfffff800; JOIN: {WRITE}""")


def barriers() -> Iterator[Form]:
    test = f"{READ} and.b32 %r4, %r1, 1; setp.eq.u32 %p2, %r4, 1;"
    for name, arguments in (("bar.red.{}", "0"), ("bar.red.{}", "3, 64"),
                            ("barrier.cta.red.{}.aligned", "1")):
        for kind in ("popc", "and", "or"):
            if kind == "popc":
                text = name.format("popc") + f".u32 %r2, {arguments}, %p2; {WRITE}"
            else:
                text = (name.format(kind) + f".pred %p1, {arguments}, !%p2;"
                        f"selp.b32 %r2, 1, 0, %p1; {WRITE}")
            yield each(f"{name.format(kind)} {arguments}", f"{test} {text}")
    pairs = """.shared .align 4 .b32 held[128]; mov.u32 %r0, held; shl.b32 %r2, %t, 2;
        add.u32 %r2, %r2, %r0; shr.u32 %r5, %t, 6; add.u32 %r5, %r5, 4; xor.b32 %r6, %t, 32;
        shl.b32 %r6, %r6, 2; add.u32 %r6, %r6, %r0;"""
    for name in ("bar.sync %r5, 64", "barrier.sync %r5, 64", "bar.cta.sync %r5, 64",
                 "barrier.cta.sync.aligned %r5, 64"):
        yield each(f"{name} by pairs of warps", f"""{pairs} {READ} st.shared.b32 [%r2], %r1; {name};
                   ld.shared.b32 %r2, [%r6]; {WRITE}""", block=128)
    for arrive in ("bar.arrive", "barrier.cta.arrive.aligned"):
        yield each(f"{arrive} to a consumer", f"""{pairs} {READ} mov.b32 %r7, 0;
                   setp.ge.u32 %p1, %t, 32; @%p1 bra PRODUCER; bar.sync 7, 128;
                   ld.shared.b32 %r7, [%r6]; bra.uni JOIN;
                   PRODUCER: st.shared.b32 [%r2], %r1; {arrive} 7, 128;
                   JOIN: st.global.b32 [%o0], %r7;""", block=128)
    yield each("bar.warp.sync", f""".shared .align 4 .b32 held[64]; mov.u32 %r0, held; {READ}
               shl.b32 %r2, %t, 2; add.u32 %r2, %r2, %r0; st.shared.b32 [%r2], %r1;
               bar.warp.sync {FULL}; xor.b32 %r6, %t, 9; shl.b32 %r6, %r6, 2;
               add.u32 %r6, %r6, %r0; ld.shared.b32 %r2, [%r6]; {WRITE}""")


FUNCTION = """.func (.param .b32 out) addmul(.param .b32 x, .param .align 8 .b8 pair[8])
{ .reg .b32 %a<6>; ld.param.b32 %a1, [x]; ld.param.v2.b32 {%a2, %a3}, [pair];
  mad.lo.u32 %a4, %a1, %a2, %a3; st.param.b32 [out], %a4; ret; }"""


def control() -> Iterator[Form]:
    yield each("bra loop of each thread's length", f"""{READ} and.b32 %r1, %r1, 15; mov.b32 %r2, 1;
               LOOP: setp.eq.u32 %p1, %r1, 0; @%p1 bra DONE; mad.lo.u32 %r2, %r2, 3, %r1;
               sub.u32 %r1, %r1, 1; bra LOOP; DONE: {WRITE}""")
    yield each("brx.idx", f"""{READ} and.b32 %r1, %r1, 3; mov.b32 %r2, 0;
               TABLE: .branchtargets A, B, C, D; brx.idx %r1, TABLE;
               A: add.u32 %r2, %r2, 1; B: add.u32 %r2, %r2, 10; bra JOIN;
               C: add.u32 %r2, %r2, 100; D: add.u32 %r2, %r2, 1000; JOIN: {WRITE}""")
    yield each("call", f"""{READ} {{ .param .b32 back; .param .b32 one; .param .align 8 .b8 two[8];
               st.param.b32 [one], %r1; st.param.v2.b32 [two], {{%t, %l}};
               call.uni (back), addmul, (one, two); ld.param.b32 %r2, [back]; }} {WRITE}""",
               outside=FUNCTION)
    yield each("exit of some", f"""{READ} mov.b32 %r2, 5; {WRITE} setp.lt.s32 %p1, %r1, 0;
               @%p1 exit; add.u32 %r2, %t, 1; {WRITE}""")
    yield each("exit before a barrier", f"""{READ} mov.b32 %r2, 5; {WRITE} setp.lt.u32 %p1, %t, 32;
               @%p1 exit; bar.sync 0; add.u32 %r2, %r1, 1; {WRITE}""")
    names = ("tid.x ntid.x ctaid.x nctaid.x laneid lanemask_eq lanemask_lt lanemask_le "
             "lanemask_gt lanemask_ge").split()
    reads = " ".join(f"mov.u32 %r2, %{name}; st.global.b32 [%o0+{4 * i}], %r2;"
                     for i, name in enumerate(names))
    yield special("special registers", reads, [poison("i32", len(names) * 2 * BLOCK)], [], BLOCK,
                  grid=2)
    yield each("predicated instructions", f"""{READ} mov.b32 %r2, 1; setp.lt.s32 %p1, %r1, 0;
               @%p1 add.u32 %r2, %r2, %r1; @!%p1 mul.lo.u32 %r2, %r1, 3;
               @%p1 st.global.b32 [%o1], %r2; {WRITE}""", outputs=2)


def forms() -> Iterator[Form]:
    for part in (shuffles, votes, matches, barriers, control):
        yield from part()
