"""Ops that sm_90a has: what each accepts and refuses, and warp roles."""

from __future__ import annotations

import pytest

from tests.support.fixtures import FOLDER
from tilec.errors import IRError
from tilec.ir.parser import parse
from tilec.ir.printer import equal, print_module
from tilec.ir.verifier import verify
from tilec.passes.base import parse_pipeline

HEAD = """
#smem = nvmma_shared<{swizzleBytes = 128, transposed = false, elementBits = 16}>
#bar = swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#mma = nvidia_mma<{version = 3, warpsPerCTA = [4, 1], instrShape = [64, 128]}>
#old = nvidia_mma<{version = 2, warpsPerCTA = [4, 1], instrShape = [16, 8]}>
#da = dot_operand<{parent = #mma, opIndex = 0, kWidth = 2}>
#blk = blocked<{sizePerThread = [1, 4], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1],
                order = [1, 0]}>
"""
KERNEL = HEAD + """
module attributes {level = "gpu", num_warps = 4, target = "sm_90a"} {
  func @k(%map: tensormap<1x64x64xbf16, #smem>,
          %half: tensormap<32x64xbf16, #smem>, %x: i32, %p: i1, %f: f32) {
    %a = gpu.alloc_shared() : memdesc<2x64x64xbf16, #smem>
    %b = gpu.alloc_shared() : memdesc<64x128xbf16, #smem>
    %bars = gpu.alloc_shared() : memdesc<2x1xi64, #bar>
    %acc = tile.constant() {value = 0.0} : tensor<64x128xf32, #mma>
    %regs = tile.constant() {value = 1.0} : tensor<64x64xbf16, #da>
    %a0 = gpu.memdesc_index(%a, %x) : memdesc<64x64xbf16, #smem>
    %bar = gpu.memdesc_index(%bars, %x) : memdesc<1xi64, #bar>
    gpu.elect() {
      gpu.mbarrier_init(%bars) {count = 3}
      scf.yield()
    }
    gpu.elect(%p) {warp = 3, by = "warp"} {
      gpu.mbarrier_expect(%bar) {bytes = 8192}
      gpu.tma_load(%map, %a0, %bar, %x, %x, %x)
      scf.yield()
    }
    gpu.mbarrier_wait(%bar, %x)
    %r0 = gpu.wgmma(%a0, %b, %acc) : tensor<64x128xf32, #mma>
    %r1 = gpu.wgmma(%regs, %b, %r0, %p) : tensor<64x128xf32, #mma>
    %r2 = gpu.wgmma_wait(%r1) : tensor<64x128xf32, #mma>
    gpu.mbarrier_arrive(%bar)
    %part = gpu.extract_slice(%r2) {start = [0, 64], shape = [64, 64]} : tensor<64x64xf32, #mma>
    %kept = gpu.set_layout(%r2) {layout = #mma} : tensor<64x128xf32, #mma>
    gpu.tma_store(%map, %a0, %x, %x, %x)
    %y = tile.add(%x, %x) : i32
    gpu.tma_store(%map, %a0, %y, %x, %x) {reduce = "add"}
    gpu.tma_store_commit()
    gpu.tma_store_wait() {pending = 1, read = true}
    gpu.warpgroup_barrier()
    gpu.named_barrier_sync() {barrier = 2, warps = 4}
    func.return()
  }
}
"""
ELECT = "    gpu.elect() {\n      gpu.mbarrier_init(%bars) {count = 3}\n      scf.yield()\n    }\n"
INIT = "gpu.mbarrier_init(%bars) {count = 3}"
LOAD = "gpu.tma_load(%map, %a0, %bar, %x, %x, %x)"
STORE = "gpu.tma_store(%map, %a0, %x, %x, %x)"
PART = ("%part = gpu.extract_slice(%r2) {start = [0, 64], shape = [64, 64]} : "
        "tensor<64x64xf32, #mma>")
KEPT = "%kept = gpu.set_layout(%r2) {layout = #mma}"
FIRST = "%r0 = gpu.wgmma(%a0, %b, %acc)"


def checked(text: str) -> None:
    m = parse(text)
    verify(m)
    assert equal(parse(print_module(m)), m)


def test_the_kernel_is_well_formed() -> None:
    checked(KERNEL)


def test_text_gets_help_with_the_names_of_the_ir():
    with pytest.raises(IRError) as caught:
        verify(parse(KERNEL.replace(INIT, "gpu.barrier()")))
    assert caught.value.advice == "move it out; one thread computes with scalars, deals with " \
        "mbarriers and begins copies by gpu.tma_load"


@pytest.mark.parametrize(("old", "new", "message"), [
    # who acts
    (ELECT, f"    {INIT}\n", "mbarrier_init: must stand in a gpu.elect"),
    (INIT, "gpu.barrier()", "gpu.barrier: needs more than one thread"),
    (INIT, "gpu.mbarrier_arrive(%bar)", "gpu.mbarrier_arrive: needs more than one thread"),
    (INIT, "gpu.elect() {\nscf.yield()\n}\ngpu.elect() {\n" + INIT + "\nscf.yield()\n}",
     "gpu.elect: needs more than one thread"),
    (INIT, "%t = tile.splat(%x) : tensor<64xi32, slice<{parent = #blk, dim = 0}>>",
     "tile.splat: needs more than one thread"),
    (INIT + "\n      scf.yield()", INIT + "\n      scf.yield(%x)", "the region yields values"),
    ("gpu.elect(%p)", "gpu.elect(%x)", "predicate is i32, expected i1"),
    ("{warp = 3", "{warp = 4", "warp is 4, there are 4 warps"),
    ("{warp = 3", "{warp = -1", "attribute `warp` is -1, expected int from 0"),
    ('by = "warp"', 'by = "lane"', "expected one of thread, warp"),
    # mbarriers
    (INIT, "gpu.mbarrier_init(%b)", "barrier is memdesc<64x128xbf16"),
    ("{count = 3}", "{count = 0}", "attribute `count` is 0, expected int from 1 to 1048575"),
    ("{bytes = 8192}", "{bytes = 1048576}", "bytes is 1048576"),
    ("gpu.mbarrier_expect(%bar)", "gpu.mbarrier_expect(%bars)", "expected a buffer of one i64"),
    ("gpu.mbarrier_wait(%bar, %x)", "gpu.mbarrier_wait(%bar, %p)", "parity is i1, expected i32"),
    ("gpu.mbarrier_wait(%bar, %x)", "gpu.mbarrier_wait(%x, %x)", "barrier is i32"),
    # TMA
    (LOAD, "gpu.tma_load(%x, %a0, %bar, %x, %x)", "operand is i32, expected a tensor map"),
    (LOAD, "gpu.tma_load(%map, %a0, %bar, %x, %x)", "coordinates are (i32, i32), expected 3"),
    (LOAD, "gpu.tma_load(%map, %a0, %bar, %x, %x, %f)", "(i32, i32, f32), expected 3 of i32"),
    (LOAD, "gpu.tma_load(%map, %b, %bar, %x, %x, %x)", "buffer is memdesc<64x128xbf16"),
    (LOAD, "gpu.tma_load(%map, %a, %bar, %x, %x, %x)", "expected a single buffer"),
    (LOAD, "gpu.tma_load(%half, %a0, %bar, %x, %x)", "expected memdesc<32x64xbf16"),
    (LOAD, "gpu.tma_load(%map, %a0, %a0, %x, %x, %x)", "barrier is memdesc<64x64xbf16"),
    ("tensormap<1x64x64xbf16", "tensormap<2x64x64xbf16", "extents of 1 before"),
    ("tensormap<1x64x64xbf16", "tensormap<1x1x1x1x64x64xbf16", "a tensor map of rank 1 to 5"),
    ("tensormap<1x64x64xbf16", "tensormap<64xbf16", "a tensor map of rank 1 to 5"),
    ("tensormap<1x64x64xbf16", "tensormap<1x64x64xptr<bf16>", "a tensormap cannot hold ptr"),
    (STORE, "gpu.tma_store(%half, %a0, %x, %x) {parts = 2}", "there are 1 warpgroups"),
    (STORE, STORE + " {parts = 0}", "attribute `parts` is 0, expected int from 1"),
    ('{reduce = "add"}', '{reduce = "xchg"}', "reduce"),
    ("{pending = 1, read = true}", "{pending = -1}", "attribute `pending` is -1"),
    # wgmma
    (FIRST, "%r0 = gpu.wgmma(%acc, %b, %acc)", "cannot multiply"),
    (FIRST, "%r0 = gpu.wgmma(%x, %b, %acc)", "expected a tile or buffer"),
    (FIRST, "%r0 = gpu.wgmma(%a, %b, %acc)", "expected a single buffer"),
    (FIRST, "%r0 = gpu.wgmma(%a0, %a0, %acc)", "cannot multiply"),
    (FIRST, "%r0 = gpu.wgmma(%a0, %b, %acc, %x)", "accumulate is i32, expected i1"),
    ("#mma = nvidia_mma<{version = 3, warpsPerCTA = [4, 1], instrShape = [64, 128]}>",
     "#mma = nvidia_mma<{version = 2, warpsPerCTA = [4, 1], instrShape = [16, 8]}>",
     "an nvidia_mma layout of version 3"),
    ("instrShape = [64, 128]", "instrShape = [64, 256]", "64 x 128 x 64 is not made of"),
    ("%regs = tile.constant() {value = 1.0} : tensor<64x64xbf16, #da>",
     "%regs = tile.constant() {value = 1.0} : tensor<64x64xbf16, #blk>",
     "a has the layout blocked"),
    ("%acc = tile.constant() {value = 0.0} : tensor<64x128xf32",
     "%acc = tile.constant() {value = 0.0} : tensor<64x128xf16", "multiplies bf16 into f16"),
    (PART, PART.replace("%r2", "%r1"), "not there before a gpu.wgmma_wait"),
    ("gpu.wgmma_wait(%r1)", "gpu.wgmma_wait(%x)", "operands are (i32), expected tiles"),
    ("gpu.wgmma_wait(%r1)", "gpu.wgmma_wait(%r1) {pending = -1}", "attribute `pending` is -1"),
    # layouts asked for
    (KEPT, KEPT.replace("= #mma", "= #blk"), "is tensor<64x128xf32, nvidia_mma"),
    (KEPT, KEPT.replace("= #mma", "= #smem"), "cannot have the layout nvmma_shared"),
    (KEPT, KEPT.replace("(%r2)", "(%x)"), "i32 cannot have the layout"),
    (KEPT, KEPT.replace("= #mma", "= slice<{parent = #blk, dim = 0}>"), "has rank 1"),
    # slices
    (PART, PART.replace("[0, 64]", "[0, 96]"), "is not in tensor<64x128xf32"),
    (PART, PART.replace("[0, 64], shape = [64, 64]", "[32, 0], shape = [32, 128]"),
     "threads do not hold the part"),
    (PART, PART.replace("[0, 64]", "[0, 4]"), "threads do not hold the part"),
])
def test_refusals(old: str, new: str, message: str) -> None:
    assert old in KERNEL
    text = KERNEL.replace(old, new).replace("xf32, #mma>", "xf16, #mma>" if "xf16" in new else
                                            "xf32, #mma>")
    with pytest.raises(IRError) as caught:
        checked(text)
    assert message in str(caught.value)


ADDS = HEAD + """
module attributes {level = "gpu", num_warps = 4, target = "sm_90a"} {
  func @k(%map: tensormap<8xi64, #bar>, %x: i32) {
    %a = gpu.alloc_shared() : memdesc<8xi64, #bar>
    gpu.tma_store(%map, %a, %x) {reduce = "add"}
    func.return()
  }
}
"""


def test_what_tma_adds() -> None:
    for element in ("i32", "u32", "i64", "u64", "f16", "bf16", "f32"):
        checked(ADDS.replace("xi64", f"x{element}"))
    for element in ("i8", "u16", "f8e4m3", "f64"):
        with pytest.raises(IRError, match=f"gpu.tma_store: TMA has no add for {element}"):
            checked(ADDS.replace("xi64", f"x{element}"))


ROLES = HEAD + """
module attributes {level = "gpu", num_warps = 12, target = "sm_90a"} {
  func @k(%map: tensormap<64x64xbf16, #smem>, %n: i32, %p: ptr<f32>) {
    %c0 = tile.constant() {value = 0} : i32
    %c1 = tile.constant() {value = 1} : i32
    %a = gpu.alloc_shared() : memdesc<64x64xbf16, #smem>
    %full = gpu.alloc_shared() : memdesc<1xi64, #bar>
    gpu.warp_specialize() {
      gpu.warp_role() {warps = 4, registers = 24} {
        scf.for(%c0, %n, %c1) { ^(%i: i32):
          gpu.elect() {by = "warp"} {
            gpu.mbarrier_expect(%full) {bytes = 8192}
            gpu.tma_load(%map, %a, %full, %i, %c0)
            scf.yield()
          }
          scf.yield()
        }
        scf.yield()
      }
      gpu.warp_role() {warps = 8, registers = 240} {
        %zero = tile.constant() {value = 0.0} : tensor<128x64xf32, #two>
        gpu.mbarrier_wait(%full, %c0)
        tile.print(%zero)
        scf.yield()
      }
      scf.yield()
    }
    func.return()
  }
}
""".replace("module", "#two = nvidia_mma<{version = 3, warpsPerCTA = [8, 1], "
            "instrShape = [64, 64]}>\nmodule", 1)


def test_roles_are_well_formed_and_survive_passes() -> None:
    checked(ROLES)
    m = parse(ROLES)
    for p in parse_pipeline("canonicalize,cse,licm,dce,reorder"):
        p.run(m)
        verify(m)
    assert equal(m, parse(ROLES))


@pytest.mark.parametrize(("old", "new", "message"), [
    ("{warps = 4, registers = 24}", "{warps = 4}", "registers are [0, 240], expected all or none"),
    ("num_warps = 12", "num_warps = 8", "the roles have 12 warps, there are 8"),
    ("registers = 24}", "registers = 20}", "registers is 20 for 4 warps"),
    ("registers = 24}", "registers = 264}", "registers is 264 for 4 warps"),
    ("registers = 24}", "registers = 32}", "the roles have 65536 registers, a launch of 384 "
                                           "threads has 64512"),
    ("{warps = 4, registers = 24}", "{warps = 3, registers = 24}", "registers is 24 for 3 warps"),
    ("{warps = 4, registers = 24}", "{warps = 0}", "attribute `warps` is 0"),
    ("#two = nvidia_mma<{version = 3, warpsPerCTA = [8, 1]",
     "#two = nvidia_mma<{version = 3, warpsPerCTA = [4, 1]",
     "the layout is for 4 warps, the warp role has 8"),
    ('gpu.elect() {by = "warp"}', 'gpu.elect() {warp = 4, by = "warp"}',
     "warp is 4, there are 4 warps"),
    ("    gpu.warp_specialize() {\n", "    gpu.warp_specialize() {\n      gpu.barrier()\n",
     "gpu.barrier stands beside the roles"),
    ("    %a = gpu", "    gpu.warp_role() {warps = 12} {\n      scf.yield()\n    }\n"
     "    %a = gpu", "must stand in a gpu.warp_specialize"),
    ("    func.return()", "    gpu.barrier()\n    func.return()",
     "roles with registers of their own must be the function's last op"),
    ("        gpu.mbarrier_wait(%full, %c0)\n", "        gpu.warp_specialize() {\n"
     "        gpu.warp_role() {warps = 8} {\nscf.yield()\n}\nscf.yield()\n}\n",
     "gpu.warp_specialize: stands in a warp role: roles do not nest"),
    ("      gpu.warp_role() {warps = 4, registers = 24} {\n",
     "      gpu.warp_role() {warps = 4, registers = 24} {\n        gpu.elect() {\n"
     "          gpu.mbarrier_init(%full)\n          scf.yield()\n        }\n",
     "gpu.mbarrier_init: stands in a warp role: mbarriers are set up before"),
    ("        gpu.mbarrier_wait(%full, %c0)\n", "        gpu.async_commit()\n",
     "gpu.async_commit: stands in a warp role: TMA copies there"),
])
def test_roles_refused(old: str, new: str, message: str) -> None:
    assert old in ROLES
    with pytest.raises(IRError) as caught:
        checked(ROLES.replace(old, new))
    assert message in str(caught.value)


def test_wgmma_needs_whole_warpgroups() -> None:
    """Four warps that are not one of the hardware's warpgroups."""
    text = (FOLDER / "gemm_c_e2.tir").read_text()
    checked(text)
    lead = "      gpu.warp_role() {warps = 4} {"
    assert text.count(lead) == 1
    with pytest.raises(IRError, match="the role begins with warp 2; for wgmma and registers"):
        checked(text.replace(lead, lead.replace("4", "2")).replace("num_warps = 12",
                                                                   "num_warps = 10"))


def test_there_are_sixteen_barriers() -> None:
    """One is the CTA's, one each its warpgroups', one each the roles' of several warps."""
    def roles(count: int) -> str:
        role = "gpu.warp_role() {warps = 2} {\nscf.yield()\n}\n"
        body = f"gpu.warp_specialize() {{\n{role * count}scf.yield()\n}}\nfunc.return()\n"
        return f'module attributes {{level = "gpu", num_warps = {2 * count}}} {{\n' \
            f"func @k() {{\n{body}}}\n}}\n"
    checked(roles(10))
    with pytest.raises(IRError, match="the roles need 11 barriers of their own, 10 are left"):
        checked(roles(11))


def test_roles_capture_no_tiles_and_cse_makes_none_captured() -> None:
    """A tile outside, equal to one in a role, stays apart from it; used inside, it is refused."""
    outside = "%z = tile.constant() {value = 0.0} : tensor<128x64xf32, #two>\n"
    first, second = (ROLES.index(f"      gpu.warp_role() {{warps = {n}") for n in (4, 8))
    text = (ROLES[:first] + ROLES[second:]).replace("num_warps = 12", "num_warps = 8").replace(
        "    gpu.warp_specialize() {",
        f"    {outside}    tile.print(%z)\n    gpu.warp_specialize() {{")
    checked(text)
    m = parse(text)
    for p in parse_pipeline("cse"):
        p.run(m)
    verify(m)
    assert equal(m, parse(text))
    with pytest.raises(IRError, match="tile.print: uses a tile from outside of its warp role: %z"):
        checked(text.replace("tile.print(%zero)", "tile.print(%z)"))
