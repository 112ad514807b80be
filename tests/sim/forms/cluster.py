"""Forms of clusters and distributed shared memory, and the rest of what is Hopper's."""

from __future__ import annotations

from collections.abc import Iterator

from tests.sim.forms.base import Form, poison, seed_of, special, values
from tests.sim.forms.tensor import (
    BLOCK,
    BOTH,
    START,
    Map,
    packed,
    small,
    transfer,
    wait,
)

ALL = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
RANK = """.reg .b32 %rank, %peer; mov.u32 %rank, %cluster_ctarank;
    xor.b32 %peer, %rank, 1; mad.lo.u32 %r2, %t, 16, %tile;"""


def cluster(name: str, body: str, grid: int = 2, inputs: int = 1, words: int = 1,
            ranks: int = 2) -> Form:
    """A form in a grid of clusters; `words` of results and of each input a thread."""
    count = words * BLOCK * grid
    data = [values("i32", seed_of(name, i), count) for i in range(inputs)]
    attributes = f".explicitcluster .reqnctapercluster {ranks}"
    return special(name, f"{START} {RANK} {body} {ALL}", [poison("i32", count)], data, BLOCK,
                   grid=grid, attributes=attributes)


def special_registers() -> Iterator[Form]:
    names = ("cluster_ctaid.x cluster_nctaid.x cluster_ctarank cluster_nctarank clusterid.x "
             "nclusterid.x ctaid.x nctaid.x").split()
    reads = " ".join(f"mov.u32 %r3, %{name}; st.global.b32 [%o0+{4 * i}], %r3;"
                     for i, name in enumerate(names))
    for ranks in (2, 4):
        yield cluster(f"cluster special registers {ranks}", reads, 8, 0, len(names), ranks)


def distributed() -> Iterator[Form]:
    exchange = f"ld.global.b32 %r1, [%i0]; st.shared.b32 [%r2], %r1; {ALL}"
    read = "mapa.shared::cluster.u32 %r3, %r2, %peer;"
    write = "st.global.b32 [%o0], %r4;"
    yield cluster("ld.shared::cluster",
                  f"{exchange} {read} ld.shared::cluster.b32 %r4, [%r3]; {write}")
    yield cluster("ld.shared::cluster 4 CTAs", f"""{exchange} add.u32 %peer, %rank, 3;
        and.b32 %peer, %peer, 3; {read} ld.shared::cluster.u32 %r4, [%r3]; {write}""", 8, ranks=4)
    yield cluster("ld.shared::cluster.v4", f"""ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%i0];
        st.shared.v4.b32 [%r2], {{%r4, %r5, %r6, %r7}}; {ALL} {read}
        ld.shared::cluster.v4.b32 {{%r8, %r9, %r10, %r11}}, [%r3];
        st.global.v4.b32 [%o0], {{%r8, %r9, %r10, %r11}};""", words=4)
    yield cluster("st.shared::cluster", f"""ld.global.b32 %r1, [%i0]; {read} {ALL}
        st.shared::cluster.b32 [%r3], %r1; {ALL} ld.shared.b32 %r4, [%r2]; {write}""")
    yield cluster("mapa.u64 generic", f"""{exchange} cvt.u64.u32 %w1, %r2; cvta.shared.u64 %w1, %w1;
        mapa.u64 %w2, %w1, %peer; ld.b32 %r4, [%w2]; {write}""")
    yield cluster("getctarank", f"""{read} getctarank.shared::cluster.u32 %r4, %r3;
        getctarank.shared::cluster.u32 %r5, %r2; mad.lo.u32 %r4, %r5, 16, %r4;
        {write}""")
    yield cluster("isspacep.shared::cluster", f"""cvt.u64.u32 %w1, %r2; cvta.shared.u64 %w1, %w1;
        mapa.u64 %w2, %w1, %peer; isspacep.shared::cluster %p1, %w2; isspacep.shared::cta %p2, %w2;
        isspacep.shared::cta %p3, %w1; selp.b32 %r4, 1, 0, %p1; @%p2 or.b32 %r4, %r4, 2;
        @%p3 or.b32 %r4, %r4, 4; {write}""")
    for op in ("add.u32", "max.s32", "xor.b32", "exch.b32"):
        yield cluster(f"atom.shared::cluster.{op}", f"""{exchange} {read} {ALL}
            atom.shared::cluster.{op} %r5, [%r3], %r1; {ALL} ld.shared.b32 %r4, [%r2];
            mad.lo.u32 %r4, %r5, 3, %r4; {write}""")
    yield cluster("red.shared::cluster.add.f32", f"""mov.f32 %f1, 0f3F800000;
        st.shared.f32 [%r2], %f1; {ALL} {read} cvt.rn.f32.u32 %f2, %t;
        red.shared::cluster.add.f32 [%r3], %f2; {ALL} ld.shared.b32 %r4, [%r2]; {write}""")
    for arrive in ("arrive.release.aligned", "arrive.aligned", "arrive.relaxed.aligned", "arrive"):
        fence = "fence.acq_rel.cluster;" if "relaxed" in arrive else ""
        last = "wait.acquire.aligned" if "aligned" in arrive else "wait"
        yield cluster(f"barrier.cluster.{arrive}", f"""ld.global.b32 %r1, [%i0];
            st.shared.b32 [%r2], %r1; {fence} barrier.cluster.{arrive}; barrier.cluster.{last};
            {read} ld.shared::cluster.b32 %r4, [%r3]; {write}""")


def signals() -> Iterator[Form]:
    """What arrives at the mbarrier of another CTA."""
    remote = """mapa.shared::cluster.u32 %r3, %r2, %peer;
        mapa.shared::cluster.u32 %r12, %bar, %peer; add.u32 %r13, %r12, 8;"""
    second = f"@%first mbarrier.init.shared::cta.b64 [%bar+8], {BLOCK}; {ALL}"
    for arrive in ("mbarrier.arrive.shared::cluster.b64 _, [%r13]",
                   "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r13]",
                   "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r13], 1"):
        yield cluster(arrive, f"""{remote} {second} ld.global.b32 %r1, [%i0];
            st.shared::cluster.b32 [%r3], %r1; fence.acq_rel.cluster; {arrive};
            {wait(0, "%bar+8", ".acquire.cluster")} ld.shared.b32 %r4, [%r2];
            st.global.b32 [%o0], %r4;""")
    for ty, count in (("b32", 1), ("b32", 2), ("b32", 4), ("b64", 1), ("b64", 2), ("f32", 4)):
        wide = ty == "b64"
        size = count * (8 if wide else 4)
        reg = "w" if wide else "f" if ty == "f32" else "r"
        names = [f"%{reg}{20 + i}" for i in range(count)]
        held = "{" + ", ".join(names) + "}" if count > 1 else names[0]
        vector = f".v{count}" if count > 1 else ""
        yield cluster(f"st.async{vector}.{ty}", f"""{remote}
            @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {size * BLOCK}; {ALL}
            ld.global{vector}.{ty} {held}, [%i0];
            st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vector}.{ty} [%r3], {held},
            [%r12]; {wait()} ld.shared{vector}.{ty} {held}, [%r2];
            st.global{vector}.{ty} [%o0], {held};""", words=size // 4)
    for op in ("add.u32", "min.s32", "or.b32", "inc.u32"):
        yield cluster(f"red.async.{op}", f"""{remote} st.shared.b32 [%r2], 1000;
            @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {4 * BLOCK}; {ALL}
            ld.global.b32 %r1, [%i0];
            red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}
            [%r3], %r1, [%r12]; {wait()} ld.shared.b32 %r4, [%r2]; st.global.b32 [%o0], %r4;""")
    yield cluster("cp.async.bulk to another CTA", f"""{remote} ld.global.v4.b32
        {{%r4, %r5, %r6, %r7}}, [%i0]; st.shared.v4.b32 [%r2], {{%r4, %r5, %r6, %r7}};
        @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 2048; {BOTH} {ALL}
        add.u32 %r14, %tile, 4096; mapa.shared::cluster.u32 %r15, %r14, %peer;
        @%first cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%r15], [%tile], 2048, [%r12]; {wait()}
        ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r2+4096];
        st.global.v4.b32 [%o0], {{%r4, %r5, %r6, %r7}};""", words=4)
    for name, to, size, at in (("its own CTA", "%rank", 2048, 0),
                               ("another CTA, little", "%peer", 64, 960)):
        yield cluster(f"cp.async.bulk to {name}", f"""mapa.shared::cluster.u32 %r12, %bar, {to};
            ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%i0];
            st.shared.v4.b32 [%r2], {{%r4, %r5, %r6, %r7}};
            st.shared.v4.b32 [%r2+4096], {{%r5, %r6, %r7, %r4}};
            @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {size}; {BOTH} {ALL}
            add.u32 %r14, %tile, {4096 + at}; mapa.shared::cluster.u32 %r15, %r14, {to};
            @%first cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
            [%r15], [%tile], {size}, [%r12]; {wait()}
            ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r2+4096];
            st.global.v4.b32 [%o0], {{%r4, %r5, %r6, %r7}};""", words=4)


def multicasts() -> Iterator[Form]:
    """Each CTA loads its half for both; each mbarrier expects both halves."""
    form = "mbarrier::complete_tx::bytes.multicast::cluster"
    dump = transfer("dump", 2048, "%w9")
    place = "mov.u32 %r9, %ctaid.x; mad.wide.u32 %w9, %r9, 2048, %O0;"
    attributes = ".explicitcluster .reqnctapercluster 2"
    begin = f"""{START} {RANK} {ALL} shl.b32 %r10, %rank, 10; add.u32 %r11, %tile, %r10;
        @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 2048; mov.b16 %h1, 3; {ALL}"""
    yield special("cp.async.bulk multicast", f"""{begin} cvt.u64.u32 %w1, %r10;
        add.u64 %w1, %w1, %I0; @%first cp.async.bulk.shared::cluster.global.{form}
        [%r11], [%w1], 1024, [%bar], %h1; {wait()} {place} {dump} {ALL}""",
        [poison("i32", 1024)], [values("i32", seed_of("multicast"), 512)], BLOCK, grid=2,
        attributes=attributes)
    tensor = small("bf16", 32 * 64, seed_of("multicast tensor"))
    tensor_map = Map(1, "bf16", (64, 32), packed((32, 64), 2), (64, 8), (1, 1), 128)
    yield special("cp.async.bulk.tensor multicast", f"""{begin} shl.b32 %r14, %rank, 3;
        @%first cp.async.bulk.tensor.2d.shared::cluster.global.tile.{form} [%r11],
        [%M0, {{0, %r14}}], [%bar], %h1; {wait()} {place} {dump} {ALL}""",
        [poison("i32", 1024)], [tensor], BLOCK, grid=2, attributes=attributes, maps=[tensor_map])


def hints() -> Iterator[Form]:
    """What changes no value."""
    yield special("hints of Hopper", f"""{START} ld.global.b32 %r1, [%i0];
        setmaxnreg.dec.sync.aligned.u32 64; setmaxnreg.inc.sync.aligned.u32 120;
        griddepcontrol.wait; griddepcontrol.launch_dependents; fence.proxy.async;
        fence.proxy.async.global; fence.proxy.async.shared::cta; fence.proxy.async.shared::cluster;
        fence.mbarrier_init.release.cluster; fence.proxy.alias; fence.acq_rel.cluster;
        cp.async.bulk.prefetch.L2.global [%I0], 256; nanosleep.u32 10;
        createpolicy.fractional.L2::evict_first.b64 %w1, 0.5; st.global.b32 [%o0], %r1;""",
        [poison("i32", BLOCK)], [values("i32", seed_of("hints"), BLOCK)], BLOCK)
    yield special("elect.sync by warps", """setp.lt.u32 %p5, %l, 7; mov.b32 %r2, 100;
        @%p5 bra LOW; elect.sync %r1|%p1, 0xffffff80; @%p1 add.u32 %r2, %r2, 1; bra.uni JOIN;
        LOW: elect.sync %r1|%p1, 0x7f; @%p1 add.u32 %r2, %r2, 2;
        JOIN: mad.lo.u32 %r2, %r1, 1000, %r2; st.global.b32 [%o0], %r2;""",
        [poison("i32", BLOCK)], [], BLOCK)


def forms() -> Iterator[Form]:
    for part in (special_registers, distributed, signals, multicasts, hints):
        yield from part()
