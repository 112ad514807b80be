"""Hand-written PTX kernels that several tests run, and a short way to write one."""

from __future__ import annotations


def program(body: str, params: str = "u64 u64", block: int = 64, outside: str = "") -> str:
    """A kernel `k` with parameters p0, p1, ... and the usual registers.

    %o and %i hold p0 and p1 plus 4 bytes a thread; %t is the thread, %c the CTA.
    """
    kinds = params.split()
    declared = ", ".join(f".param .{kind} p{i}" for i, kind in enumerate(kinds))
    second = "ld.param.u64 %i, [p1]; mad.wide.u32 %i, %g, 4, %i;" if kinds[1:2] == ["u64"] else ""
    return f"""
.version 8.7
.target sm_90a
.address_size 64
{outside}
.visible .entry k({declared})
.reqntid {block}
{{
    .reg .pred %p<10>; .reg .b16 %h<20>; .reg .b32 %r<40>; .reg .b64 %rd<20>;
    .reg .b32 %t, %c, %g; .reg .b64 %o, %i;
    mov.u32 %t, %tid.x; mov.u32 %c, %ctaid.x;
    mad.lo.u32 %g, %c, {block}, %t;
    ld.param.u64 %o, [p0]; mad.wide.u32 %o, %g, 4, %o; {second}
    {body}
    ret;
}}
"""


WAIT = """{{ .reg .pred %p9; W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [{bar}], {parity};
    @!%p9 bra W; }}"""


def hopper(body: str, params: str = "u64 map", threads: int = 128, head: str = "") -> str:
    """A kernel `k` of dynamic shared memory with an mbarrier at its start and a tile 1024 bytes on.

    %bar and %tile are their addresses, %out is p0, %map the address of p1 if that is a tensor map;
    %first holds for thread 0, which has initialised the mbarrier for one arrival.
    """
    kinds = {"map": ".align 64 .b8 p{}[128]"}
    declared = ", ".join(f".param {kinds.get(kind, '.' + kind + ' p{}').format(i)}"
                         for i, kind in enumerate(params.split()))
    tensor = "mov.b64 %map, p1; cvta.param.u64 %map, %map;" if "map" in params else ""
    return f"""
.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 memory[];
.visible .entry k({declared})
.reqntid {threads}
{head}
{{
    .reg .pred %p<9>, %first; .reg .b16 %h<20>; .reg .b32 %r<40>, %t, %tile, %bar;
    .reg .b64 %rd<20>, %out, %map;
    mov.u32 %t, %tid.x; setp.eq.u32 %first, %t, 0;
    mov.u32 %bar, memory; add.u32 %tile, %bar, 1024; ld.param.u64 %out, [p0]; {tensor}
    @%first mbarrier.init.shared::cta.b64 [%bar], 1;
    @%first fence.mbarrier_init.release.cluster;
    bar.sync 0;
    {body}
    ret;
}}
"""
