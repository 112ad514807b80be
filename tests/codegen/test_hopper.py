"""The PTX of single Hopper ops: who acts, mbarriers, TMA, fences; and where their buffers lie."""

from __future__ import annotations

import re

import pytest

from tilec.codegen.lower import to_llir
from tilec.compiler import compile_from
from tilec.errors import IRError
from tilec.ir import ops
from tilec.ir.buffers import buffer_bytes
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.verifier import verify
from tilec.passes.allocate_shared import AllocateShared
from tilec.passes.insert_barriers import InsertBarriers
from tilec.target import Target

SM_90A = Target.parse("sm_90a")
HEAD = """
#smem = nvmma_shared<{swizzleBytes = 128, transposed = false, elementBits = 16}>
#bar = swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#row = swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#b = blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [8, 1],
              order = [1, 0]}>
module attributes {level = "gpu", num_warps = 8, target = "sm_90a"} {
  func @k(%map: tensormap<64x128xbf16, #smem>, %deep: tensormap<1x1x64x128xbf16, #smem>,
          %x: i32, %y: i32, %p: i1, %q: ptr<bf16> {divisibility = 16}) {
    %buf = gpu.alloc_shared() : memdesc<64x128xbf16, #smem>
    %two = gpu.alloc_shared() : memdesc<128x128xbf16, #smem>
    %ring = gpu.alloc_shared() : memdesc<3x1xi64, #bar>
    %one = gpu.memdesc_index(%ring, %x) : memdesc<1xi64, #bar>
"""


def module(body: str) -> Module:
    m = parse(f"{HEAD}{body}\n    func.return()\n  }}\n}}\n")
    verify(m)
    return m


def ptx(body: str) -> str:
    """The PTX of a kernel with these ops, which ptxas accepts."""
    made = compile_from(module(body), SM_90A)
    assert made.linked is not None and made.linked.advisories == []
    return made.ptx


def in_elect(body: str, head: str = "gpu.elect()") -> str:
    return f"{head} {{\n{body}\nscf.yield()\n}}"


def test_one_thread_by_a_branch() -> None:
    text = ptx(in_elect("gpu.mbarrier_init(%ring) {count = 5}"))
    inits = re.findall(r"mbarrier\.init\.shared::cta\.b64 \[(%r\d+)\], 5;", text)
    assert len(inits) == len(set(inits)) == 3  # one for each of the ring, without a predicate
    assert text.count("fence.mbarrier_init.release.cluster;") == 1
    assert text.index("fence.mbarrier_init") > text.rindex("mbarrier.init.shared")
    assert "elect.sync" not in text and re.search(r"setp\.\w+\.\w+\s+%p\d+, %r\d+, 0;", text)


def test_one_fence_for_several_barriers() -> None:
    text = ptx("%other = gpu.alloc_shared() : memdesc<1xi64, #bar>\n" + in_elect(
        "gpu.mbarrier_init(%ring)\ngpu.mbarrier_init(%other) {count = 2}"))
    assert text.count("mbarrier.init.shared") == 4 and text.count("fence.mbarrier_init") == 1


def test_one_thread_of_a_warp_by_elect_sync() -> None:
    """The whole warp goes in; waits are the warp's, the rest one thread's."""
    text = ptx(in_elect("gpu.mbarrier_wait(%one, %y)\ngpu.mbarrier_expect(%one) {bytes = 64}",
                        'gpu.elect(%p) {warp = 4, by = "warp"}'))
    assert "shfl.sync.idx.b32" in text and re.search(r"setp\.\w+\.\w+\s+%p\d+, %r\d+, 4;", text)
    assert text.count("elect.sync _|p, 0xffffffff; @p mbarrier.arrive.expect_tx") == 1
    wait = re.search(r"\{ \.reg \.pred p; W: mbarrier\.try_wait\.parity\.shared::cta\.b64 p, "
                     r"\[%r\d+\], %r\d+; @p bra D; bra W; D: \}", text)
    assert wait is not None


def test_arrivals_are_one_a_warpgroup() -> None:
    text = ptx("gpu.mbarrier_arrive(%one)")
    assert re.search(r"setp\.eq\.u32 p, %r\d+, 0; @p mbarrier\.arrive\.shared::cta\.b64 _, ", text)
    assert re.search(r"and\.b32\s+%r\d+, %r\d+, 127;", text)


def test_a_tile_is_loaded_box_by_box() -> None:
    text = ptx(in_elect("gpu.tma_load(%map, %buf, %one, %x, %y)"))
    loads = re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.tile\.mbarrier::"
                       r"complete_tx::bytes \[(%r\d+)\], \[(%rd\d+), \{(%r\d+), (%r\d+)\}\], "
                       r"\[(%r\d+)\];", text)
    assert len(loads) == 2
    (to, m, column, row, bar), (to2, m2, column2, row2, bar2) = loads
    assert (m, row, bar) == (m2, row2, bar2) and to != to2 and column != column2
    assert re.search(rf"add\.s32\s+{column2}, {column}, 64;", text)


def test_coordinates_are_turned_round() -> None:
    text = ptx(in_elect("gpu.tma_load(%deep, %buf, %one, %x, %x, %x, %y)"))
    first = re.search(r"tensor\.4d\S* \[%r\d+\], \[%rd\d+, \{(%r\d+), (%r\d+), (%r\d+), "
                      r"(%r\d+)\}\]", text)
    assert first is not None and first[2] == first[3] == first[4] != first[1]


def test_stores_by_warpgroup() -> None:
    """Part i is the first thread's of warpgroup i; a single part only the first warpgroup's."""
    text = ptx("gpu.tma_store(%map, %two, %x, %y) {parts = 2}\ngpu.tma_store_commit()\n"
               "gpu.tma_store_wait() {pending = 1, read = true}\ngpu.tma_store_wait()")
    form = r"@p cp\.async\.bulk\.tensor\.2d\.global\.shared::cta\.tile\.bulk_group"
    assert len(re.findall(form, text)) == 2 and "selp" not in text
    for part in ("commit_group;", "wait_group.read 1;", "wait_group 0;"):
        assert f"@p cp.async.bulk.{part}" in text
    text = ptx("gpu.tma_store(%map, %buf, %x, %y)\ngpu.tma_store_wait()")
    assert len(re.findall(form, text)) == 2
    assert re.search(r"setp\.gt\.u32\s+%p\d+, %r\d+, 127;", text)


def test_fences_and_barriers_of_a_warpgroup() -> None:
    text = ptx("gpu.fence_async()\ngpu.warpgroup_barrier()\n" +
               in_elect("gpu.prefetch_tensormap(%map)"))
    assert "fence.proxy.async.shared::cta;" in text
    assert re.search(r"bar\.sync %r\d+, 128;", text) and "prefetch.tensormap [%rd" in text


def test_maps_are_parameters_in_the_grid_constant_space() -> None:
    text = ptx(in_elect("gpu.prefetch_tensormap(%map)"))
    assert ".param .align 64 .b8 k_param_0[128]" in text and ".local" not in text
    llir = to_llir(_lowered(module("")), SM_90A)
    assert llir.params[0].startswith("tensormap<64x128xbf16")


def test_what_tma_does_not_copy_is_refused() -> None:
    text = HEAD.replace("transposed = false", "transposed = true").replace(
        "64x128xbf16", "128x64xbf16")
    load = in_elect("gpu.tma_load(%map, %buf, %one, %x, %y)")
    with pytest.raises(IRError, match="TMA copies no tiles to or from a buffer with"):
        parse(f"{text}{load}\nfunc.return()\n}}\n}}\n")


def _lowered(m: Module) -> Module:
    AllocateShared().run(m)
    InsertBarriers().run(m)
    return m


# ---- shared memory
def test_what_is_under_way_shares_no_bytes() -> None:
    """A buffer that TMA uses is not given to another after its last op; one of threads alone is."""
    store = "%v{0} = tile.constant() {{value = 0.0}} : tensor<64x128xbf16, #b>\n" \
        "gpu.shared_store(%{1}, %v{0})\n"
    body = in_elect("gpu.tma_load(%map, %buf, %one, %x, %y)")
    for i in range(2):
        body += f"\n%own{i} = gpu.alloc_shared() : memdesc<64x128xbf16, #smem>\n"
        body += store.format(i, f"own{i}")
    m = _lowered(module(body))
    places = {op.result.name: (op.offset, op.offset + buffer_bytes(op.result))
              for op in m.walk() if isinstance(op, ops.AllocShared)}
    low, high = places["buf"]
    assert all(end <= low or high <= start for name, (start, end) in places.items()
               if name != "buf" and start < end)
    assert places["own0"] == places["own1"] and low % 1024 == 0


def test_threads_own_buffers_still_get_barriers() -> None:
    """In one kernel with TMA: scratch and buffers that only threads use are ordered as ever."""
    body = """
    %own = gpu.alloc_shared() : memdesc<64x128xbf16, #smem>
    %v = tile.constant() {value = 0.0} : tensor<64x128xbf16, #b>
    gpu.shared_store(%own, %v)
    %w = gpu.shared_load(%own) : tensor<64x128xbf16, #b>
    gpu.shared_store(%buf, %w)
    gpu.fence_async()
    gpu.tma_store(%map, %buf, %x, %y)
    """
    m = _lowered(module(body))
    names = [op.name for op in m.walk() if op.name in ("gpu.barrier", "gpu.shared_store",
                                                       "gpu.shared_load", "gpu.tma_store")]
    assert names == ["gpu.shared_store", "gpu.barrier", "gpu.shared_load", "gpu.shared_store",
                     "gpu.tma_store"]
