"""What targets have: the first of each family that an instruction came with, by the PTX ISA."""

from __future__ import annotations

import pytest

from tilec.codegen.context import instructions
from tilec.errors import InternalError
from tilec.target import NAMES, Target

FIRST = {
    "ldmatrix.sync.aligned.m8n8.x4.trans.b16.p3": 75, "atom.relaxed.gpu.global.add.noftz.f16": 75,
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": 80, "redux.sync.umax": 80,
    "cp.async.cg.shared.global.16.s": 80,
    "cvt.rn.bf16.f32": 80, "ff2bf16x2.rz": 80, "f2tf32.rna": 80,
    "stmatrix.sync.aligned.m8n8.x4.b16.p3": 90, "griddepcontrol.wait": 90,
    "barrier.cluster.arrive.release.aligned": 90, "read.ptx.sreg.cluster.ctarank": 90,
    "atom.relaxed.gpu.global.add.noftz.bf16": 90, "add.bf16": 90,
}
ONLY_90A = ["wgmma.fence.sync.aligned", "setmaxnreg.inc.sync.aligned.u32",
            "mbarrier.try_wait.parity.shared.cta.b64",
            "cp.async.bulk.tensor.2d.shared.cluster.global.tile", "elect.sync",
            "cp.reduce.async.bulk.tensor.2d.global.shared.cta.add.tile.bulk_group"]


@pytest.mark.parametrize("instruction", FIRST)
def test_since(instruction: str) -> None:
    have = {name for name in NAMES if Target.parse(name).has(instruction)}
    assert have == {name for name in NAMES if Target.parse(name).sm >= FIRST[instruction]}


@pytest.mark.parametrize("instruction", ONLY_90A)
def test_hopper_alone(instruction: str) -> None:
    assert [name for name in NAMES if Target.parse(name).has(instruction)] == ["sm_90a"]


def test_what_is_missing_is_said() -> None:
    turing, ada = Target.parse("sm_75"), Target.parse("sm_89")
    assert turing.lacks("cp.async.wait.group") == (
        "sm_80 or later", "compile the loop with num_stages = 1 for this target")
    assert turing.lacks("ldmatrix") is None
    assert ada.lacks("e4m3x2.to.f16x2.rn") == ("PTX 8.1", "")
    policy = "createpolicy.fractional.L2.evict_last.b64"
    assert Target.parse("sm_80").lacks(policy) == ("PTX 7.4", "") and ada.has(policy)
    assert Target.parse("sm_90").lacks("wgmma.wait_group") == ("sm_90a", "")
    with pytest.raises(InternalError, match="does not say which targets have `frobnicate.b32`"):
        turing.has("frobnicate.b32")


def test_instructions_in_inline_ptx() -> None:
    assert instructions("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; "
                        "@p bra D; bra W; D: }") == (
        "mbarrier.try_wait.parity.shared.cta.b64", "bra", "bra")
    assert instructions("mov.b32 $0, 0x0; mov.b32 $1, 0x0; @$5 ld.global.v2.b32 {$0, $1}, [$4];"
                        ) == ("mov.b32", "mov.b32", "ld.global.v2.b32")
    assert instructions("@!$2 st.global.L1::evict_first.L2::cache_hint.b32 [$0], $1, $3;") == (
        "st.global.L1.evict_first.L2.cache_hint.b32",)
    assert instructions("llvm.nvvm.redux.sync.add") == ("redux.sync.add",)
    assert instructions("llvm.fma.f32") == ()
