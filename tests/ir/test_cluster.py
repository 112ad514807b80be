"""Ops of clusters: text, types, and what the verifier refuses."""

from __future__ import annotations

import pytest

from tilec.errors import IRError, LaunchError
from tilec.interp.run import run
from tilec.ir.parser import parse
from tilec.ir.printer import equal, print_module
from tilec.ir.verifier import verify

TEXT = """
#smem = nvmma_shared<{swizzleBytes = 128, transposed = false, elementBits = 16}>
#bar = swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#b = blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1],
              order = [1, 0]}>
module attributes {level = "gpu", num_ctas = 2, num_warps = 4, target = "sm_90a"} {
  func @k(%map: tensormap<64x64xf16, #smem>, %x: i32, %p: i1) {
    %bar = gpu.alloc_shared() : memdesc<1xi64, #bar>
    %buf = gpu.alloc_shared() : memdesc<64x64xf16, #smem>
    %two = gpu.alloc_shared() : memdesc<2x64x64xf16, #smem>
    gpu.elect() {
      gpu.mbarrier_init(%bar)
      scf.yield()
    }
    gpu.cluster_barrier()
    %rank = gpu.cluster_rank() : i32
    gpu.elect() {
      gpu.mbarrier_expect(%bar) {bytes = 8192}
      gpu.tma_multicast(%map, %buf, %bar, %x, %x, %x) {eviction = "evict_last"}
      gpu.tma_load(%map, %buf, %bar, %x, %x) {eviction = "evict_first"}
      scf.yield()
    }
    gpu.remote_arrive(%bar, %rank)
    %tile = gpu.remote_load(%buf, %rank) : tensor<64x64xf16, #b>
    tile.print(%tile)
    gpu.cluster_barrier()
    func.return()
  }
}"""


def test_round_trip() -> None:
    m = parse(TEXT)
    verify(m)
    assert equal(m, parse(print_module(m))) and m.num_ctas == 2


@pytest.mark.parametrize(("old", "new", "message"), [
    ("%x, %x, %x)", "%p, %x, %x)", "mask is i1, expected i32"),
    ("%x, %x, %x)", "%x, %x)", "coordinates are (i32), expected 2"),
    ("(%map, %buf, %bar, %x, %x, %x)", "(%map, %two, %bar, %x, %x, %x)", "expected a single"),
    ("(%map, %buf, %bar, %x, %x, %x)", "(%map, %buf, %buf, %x, %x, %x)", "a buffer of one i64"),
    ("evict_last", "evict_never", "expected one of"),
    ("gpu.cluster_barrier()\n    %rank = gpu.cluster_rank() : i32\n    gpu.elect() {",
     "%rank = gpu.cluster_rank() : i32\n    gpu.elect() {\n gpu.cluster_barrier()",
     "needs more than one thread"),
    ("gpu.remote_arrive(%bar, %rank)", "gpu.remote_arrive(%bar, %p)", "rank is i1"),
    ("gpu.remote_load(%buf, %rank)", "gpu.remote_load(%buf, %p)", "rank is i1"),
    ("gpu.remote_load(%buf, %rank)", "gpu.remote_load(%two, %rank)", "expected a single buffer"),
    (": tensor<64x64xf16, #b>", ": tensor<64x64xbf16, #b>", "cannot load tensor<64x64xbf16"),
    ("gpu.cluster_barrier()\n    func", """gpu.warp_specialize() {
      gpu.warp_role() {warps = 4} {
        gpu.cluster_barrier()
        scf.yield()
      }
      scf.yield()
    }
    func""", "stands in a role"),
    ("num_ctas = 2", "num_ctas = 3", "attribute `num_ctas` is 3, expected one of 1, 2, 4, 8"),
])
def test_what_does_not_fit(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(IRError) as e:
        verify(parse(TEXT.replace(old, new)))
    assert message in e.value.message


def test_grids_of_modules() -> None:
    m = parse("module attributes {num_ctas = 4} { func @k() { func.return() } }")
    run(m, "k", [], (8, 3))
    with pytest.raises(LaunchError, match="a grid of 6 programs along axis 0"):
        run(m, "k", [], (6, 4))
