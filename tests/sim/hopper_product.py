"""A warp-specialised matrix product for sm_90a, written by hand: TMA, mbarriers, wgmma, TMA store.

c = a @ b.T for a and b of 64 x (64 * steps) bf16. Thread 0 fills two slots in turn, warps 4 to 7
multiply; full mbarriers count bytes, empty ones the threads that have read a slot.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.sim.launches import Launch
from tilec.sim import TensorMap

STEPS = 5
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
MULTIPLY = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"
SUMS = ", ".join(f"%f{i}" for i in range(32))


def wait(bar: str) -> str:
    return f"""{{ .reg .pred %done; W: mbarrier.try_wait.parity.shared::cta.b64 %done, [{bar}],
    %phase; @!%done bra W; }}"""


NEXT = """    add.u32 %k, %k, 1; xor.b32 %slot, %slot, 1; setp.eq.u32 %wrapped, %slot, 0;
    @%wrapped xor.b32 %phase, %phase, 1; setp.lt.u32 %more, %k, %steps;"""
PLACE = """    mad.lo.u32 %full, %slot, 8, %bars; add.u32 %empty, %full, 16;
    mad.lo.u32 %a, %slot, 8192, %tile; add.u32 %b, %a, 16384;"""
MULTIPLICATIONS = "\n".join(f"""    {MULTIPLY} {{{SUMS}}}, %left, %right, %adds, 1, 1, 0, 0;
    add.u64 %left, %left, 2; add.u64 %right, %right, 2; setp.eq.u32 %adds, 0, 0;"""
                            for _ in range(4))
# Register 4 j + 2 h + c holds row 16 w + g + 8 h, column 8 j + 2 t + c.
EPILOGUE = "\n".join(f"    st.shared.v2.f32 [%c+{32 * j + 2048 * h}], "
                     f"{{%f{4 * j + 2 * h}, %f{4 * j + 2 * h + 1}}};"
                     for j in range(8) for h in range(2))
PTX = f""".version 8.4
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 memory[];
.visible .entry product(.param .align 64 .b8 pa[128], .param .align 64 .b8 pb[128],
                        .param .align 64 .b8 pc[128], .param .u32 psteps)
.reqntid 256
{{
    .reg .b32 %t, %tile, %bars, %full, %empty, %a, %b, %c, %k, %x, %slot, %phase, %steps, %r<9>;
    .reg .b64 %ma, %mb, %mc, %left, %right, %w<9>; .reg .f32 %f<32>;
    .reg .pred %first, %lead, %consumer, %wrapped, %more, %adds;
    mov.u32 %t, %tid.x; mov.u32 %tile, memory; add.u32 %bars, %tile, 49152;
    ld.param.u32 %steps, [psteps]; setp.eq.u32 %first, %t, 0; setp.eq.u32 %lead, %t, 128;
    mov.b64 %ma, pa; cvta.param.u64 %ma, %ma; mov.b64 %mb, pb; cvta.param.u64 %mb, %mb;
    mov.b64 %mc, pc; cvta.param.u64 %mc, %mc;
    @%first mbarrier.init.shared::cta.b64 [%bars], 1;
    @%first mbarrier.init.shared::cta.b64 [%bars+8], 1;
    @%first mbarrier.init.shared::cta.b64 [%bars+16], 128;
    @%first mbarrier.init.shared::cta.b64 [%bars+24], 128;
    @%first fence.mbarrier_init.release.cluster;
    bar.sync 0;
    mov.u32 %k, 0; mov.u32 %slot, 0; setp.ge.u32 %consumer, %t, 128; @%consumer bra CONSUMER;
    @!%first bra DONE;
    mov.u32 %phase, 1;
PRODUCE:
{PLACE}
    {wait("%empty")}
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%full], 16384;
    shl.b32 %x, %k, 6;
    {LOAD} [%a], [%ma, {{%x, 0}}], [%full];
    {LOAD} [%b], [%mb, {{%x, 0}}], [%full];
{NEXT}
    @%more bra PRODUCE;
    bra DONE;
CONSUMER:
    mov.u32 %phase, 0; setp.ne.u32 %adds, 0, 0;
CONSUME:
{PLACE}
    {wait("%full")}
    and.b32 %r1, %a, 0x3ffff; shr.b32 %r1, %r1, 4; cvt.u64.u32 %left, %r1;
    or.b64 %left, %left, 0x4000004000010000; add.u64 %right, %left, 1024;
    wgmma.fence.sync.aligned;
{MULTIPLICATIONS}
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    mbarrier.arrive.shared::cta.b64 _, [%empty];
{NEXT}
    @%more bra CONSUME;
    and.b32 %r1, %t, 127; shr.b32 %r2, %r1, 5; and.b32 %r3, %r1, 31; shr.b32 %r4, %r3, 2;
    and.b32 %r5, %r3, 3; mad.lo.u32 %r6, %r2, 16, %r4; shl.b32 %r6, %r6, 8;
    mad.lo.u32 %r6, %r5, 8, %r6; add.u32 %c, %tile, 32768; add.u32 %r7, %c, 0;
    add.u32 %c, %c, %r6;
{EPILOGUE}
    fence.proxy.async.shared::cta;
    bar.sync 1, 128;
    @%lead cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%mc, {{0, 0}}], [%r7];
    @%lead cp.async.bulk.commit_group;
    @%lead cp.async.bulk.wait_group 0;
DONE:
    ret;
}}
"""


def launch() -> Launch:
    """The product of random matrices; its results begin as NaN."""
    rng = np.random.default_rng(12)
    a, b = (rng.integers(-3, 4, (64, 64 * STEPS)).astype(ml_dtypes.bfloat16) for _ in range(2))
    maps = [TensorMap(x, "bf16", x.shape[::-1], (x.strides[0],), (64, 64), swizzle=128)
            for x in (a, b)]
    c = np.full((64, 64), np.nan, np.float32)
    maps.append(TensorMap(c, "f32", (64, 64), (256,), (64, 64)))
    return Launch(PTX, "product", [*maps, STEPS], (1, 1, 1), 256, 49152 + 64)
