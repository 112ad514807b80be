"""Warp roles that hand data over: right with each step of the protocol, and an error without it, in
the interpreter at both levels and in the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.errors import InterpreterError, TilecError
from tilec.ir.core import Module
from tilec.ir.parser import parse
from tilec.ir.verifier import verify
from tilec.knobs import RUN_LEVELS
from tilec.runtime.text import TextKernel

LEVELS = RUN_LEVELS[1:]
SEEDS = range(3)
N = 512


def hand_over(publish: str = "gpu.warpgroup_barrier()\ngpu.mbarrier_arrive(%full)",
              take: str = "gpu.mbarrier_wait(%full, %odd)",
              release: str = "gpu.barrier()\ngpu.mbarrier_arrive(%empty)",
              again: str = "gpu.mbarrier_wait(%empty, %even)", outside: str = "gpu.barrier()",
              counts: tuple[int, int] = (1, 2)) -> Module:
    """One warpgroup puts squares into a buffer, two take them out, in as many rounds as asked."""
    def tile(name: str, warps: int) -> str:
        layout = f"blocked<{{sizePerThread = [{4 if warps == 4 else 1}], threadsPerWarp = [32], " \
            f"warpsPerCTA = [{warps}], order = [0]}}>"
        return f"""%{name}r = tile.arange() {{start = 0, end = {N}}} : tensor<{N}xi32, {layout}>
          %{name}i = tile.splat(%i{name}) : tensor<{N}xi32, {layout}>
          %{name}n = tile.constant() {{value = {N}}} : tensor<{N}xi32, {layout}>
          %{name}s = tile.mul(%{name}i, %{name}n) : tensor<{N}xi32, {layout}>
          %{name} = tile.add(%{name}s, %{name}r) : tensor<{N}xi32, {layout}>"""

    store = "blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>"
    load = "blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [8], order = [0]}>"
    m = parse(f"""
#s = swizzled_shared<{{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}}>
module attributes {{level = "gpu", num_warps = 12, target = "sm_90a"}} {{
  func @k(%p: ptr<i32>, %n: i32) {{
    %c0 = tile.constant() {{value = 0}} : i32
    %c1 = tile.constant() {{value = 1}} : i32
    %buf = gpu.alloc_shared() : memdesc<{N}xi32, #s>
    %full = gpu.alloc_shared() : memdesc<1xi64, #s>
    %empty = gpu.alloc_shared() : memdesc<1xi64, #s>
    gpu.elect() {{
      gpu.mbarrier_init(%full) {{count = {counts[0]}}}
      gpu.mbarrier_init(%empty) {{count = {counts[1]}}}
      scf.yield()
    }}
    {outside}
    gpu.warp_specialize() {{
      gpu.warp_role() {{warps = 4}} {{
        scf.for(%c0, %n, %c1) {{ ^(%ia: i32):
          %o = tile.and(%ia, %c1) : i32
          %even = tile.xor(%o, %c1) : i32
          {tile("a", 4)}
          %sq = tile.mul(%a, %a) : tensor<{N}xi32, {store}>
          {again}
          gpu.shared_store(%buf, %sq)
          {publish}
          scf.yield()
        }}
        scf.yield()
      }}
      gpu.warp_role() {{warps = 8}} {{
        scf.for(%c0, %n, %c1) {{ ^(%ib: i32):
          %odd = tile.and(%ib, %c1) : i32
          {tile("b", 8)}
          {take}
          %v = gpu.shared_load(%buf) : tensor<{N}xi32, {load}>
          {release}
          %ps = tile.splat(%p) : tensor<{N}xptr<i32>, {load}>
          %pp = tile.addptr(%ps, %b) : tensor<{N}xptr<i32>, {load}>
          tile.store(%pp, %v)
          scf.yield()
        }}
        scf.yield()
      }}
      scf.yield()
    }}
    func.return()
  }}
}}""")
    verify(m)
    return m


def elected(body: str, warp: int = 0) -> str:
    return f'gpu.elect() {{warp = {warp}, by = "warp"}} {{\n{body}\nscf.yield()\n}}\n'


WAIT = "gpu.mbarrier_wait(%full, %odd)"
RIGHT = {
    "as it is": hand_over,
    "one thread waits, then all meet": lambda: hand_over(
        take=elected(WAIT, 5) + "gpu.barrier()"),
    "one thread waits to store again": lambda: hand_over(
        again=elected("gpu.mbarrier_wait(%empty, %even)") + "gpu.warpgroup_barrier()"),
    "warpgroups release what their own threads have read": lambda: hand_over(
        release="gpu.warpgroup_barrier()\ngpu.mbarrier_arrive(%empty)"),
}
UNORDERED = "no named barrier orders the two"
# What is wrong, the error of the interpreter, that of the simulator.
WRONG = {
    "nobody waits": (lambda: hand_over(take=""), UNORDERED, "race|uninitialised"),
    "arrival before the others have stored": (
        lambda: hand_over(publish="gpu.mbarrier_arrive(%full)"), UNORDERED, "race|uninitialised"),
    "arrival before the others have read": (
        lambda: hand_over(release="gpu.mbarrier_arrive(%empty)"), UNORDERED, "race"),
    "stores again at once": (lambda: hand_over(again=""), f"{UNORDERED}|waits for ever",
                             "race|arrivals"),
    "one thread waits, the others do not know": (
        lambda: hand_over(take=elected(WAIT)), UNORDERED, "race|uninitialised"),
    "one thread waits, its warpgroup alone knows": (
        lambda: hand_over(take=elected(WAIT) + "gpu.warpgroup_barrier()"), UNORDERED,
        "race|uninitialised"),
    "one warpgroup is not waited for": (lambda: hand_over(counts=(1, 1)),
                                        f"{UNORDERED}|waits for ever", "race|arrivals|deadlock"),
    "an arrival that never comes": (lambda: hand_over(counts=(2, 2)), "waits for ever", "deadlock"),
    "mbarriers set up by one thread": (
        lambda: hand_over(outside=""), "nothing says that the mbarriers",
        "race: it uses the mbarrier|never initialised"),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", RIGHT)
def test_data_handed_over(name: str, level: str) -> None:
    for seed in SEEDS:
        out = np.full(5 * N, -1, np.int32)
        TextKernel(RIGHT[name]()).run([out, 5], 1, level, seed=seed)
        np.testing.assert_array_equal(out, np.arange(5 * N, dtype=np.int32) ** 2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_missing_is_found(name: str, level: str) -> None:
    make, in_interpreter, in_simulator = WRONG[name]
    for seed in SEEDS:
        with pytest.raises(TilecError, match=in_simulator if level == "ptx" else in_interpreter):
            TextKernel(make()).run([np.zeros(5 * N, np.int32), 5], 1, level, seed=seed)


def test_overlapping_buffers_of_two_roles_are_found() -> None:
    """Bytes count at the lowered level, whosever buffers they are."""
    layout = "blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>"
    role = f"""gpu.warp_role() {{warps = 4}} {{
        %x = tile.splat(%f) : tensor<128xf32, {layout}>
        %b = gpu.alloc_shared() {{offset = OFFSET}} : memdesc<128xf32, #s>
        gpu.shared_store(%b, %x)
        %y = gpu.shared_load(%b) : tensor<128xf32, {layout}>
        tile.print(%y)
        scf.yield()
      }}\n"""
    text = f"""
#s = swizzled_shared<{{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}}>
module attributes {{level = "lowered", num_warps = 8, shared = 1024}} {{
  func @k(%f: f32) {{
    gpu.warp_specialize() {{
      {role.replace("OFFSET", "0")}{role.replace("OFFSET", "256")}
      scf.yield()
    }}
    func.return()
  }}
}}"""
    for offset, fine in ((512, True), (256, False)):
        kernel = TextKernel(parse(text.replace("offset = 256", f"offset = {offset}").replace(
            "gpu.shared_store(%b, %x)", "gpu.shared_store(%b, %x)\ngpu.barrier()")))
        if fine:
            kernel.run([1.0], 1, "lowered")
            continue
        with pytest.raises(InterpreterError, match=UNORDERED):
            kernel.run([1.0], 1, "lowered")


STORED = """
#b = blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [8, 1],
              order = [1, 0]}>
#smem = nvmma_shared<{swizzleBytes = 128, transposed = false, elementBits = 16}>
module attributes {level = "gpu", num_warps = 8, target = "sm_90a"} {
  func @k(%map: tensormap<64x64xf16, #smem>) {
    %c0 = tile.constant() {value = 0} : i32
    %x = tile.constant() {value = 2.0} : tensor<64x64xf16, #b>
    %buf = gpu.alloc_shared() : memdesc<64x64xf16, #smem>
    gpu.shared_store(%buf, %x)
    gpu.fence_async()
    gpu.barrier()
    BEFORE
    gpu.warp_specialize() {
      gpu.warp_role() {warps = 4} {
        IN
        scf.yield()
      }
      gpu.warp_role() {warps = 4} {
        scf.yield()
      }
      scf.yield()
    }
    func.return()
  }
}"""
STORE = "gpu.tma_store(%map, %buf, %c0, %c0)\ngpu.tma_store_commit()\n"
WAITED = STORE + "gpu.tma_store_wait() {read = true}\n"


@pytest.mark.parametrize(("before", "inside", "message"), [
    (WAITED + "gpu.barrier()", "", ""), ("", WAITED, ""),
    (STORE, "", "roles begin while gpu.tma_store"),
    (WAITED, "", "roles begin while gpu.tma_store"),
    ("", STORE, "the role of warps 0 to 3 ends while this may still read")])
def test_groups_end_where_they_begin(before: str, inside: str, message: str) -> None:
    """Groups are their threads': what is begun outside, no role could wait for, nor the reverse."""
    m = parse(STORED.replace("BEFORE", before).replace("IN", inside))
    verify(m)
    for level in LEVELS if not message else LEVELS[:2]:
        out = np.full((64, 64), np.nan, np.float16)
        if message:
            with pytest.raises(InterpreterError, match=message):
                TextKernel(m).run([out], 1, level)
        else:
            TextKernel(m).run([out], 1, level)
            assert (out == 2).all()
