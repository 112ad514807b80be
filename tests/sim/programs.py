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
